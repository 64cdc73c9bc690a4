"""Text that comes in pieces: kept as a list and joined once; cut surrogate pairs are made whole."""

from __future__ import annotations

from counterfoil.core.jsontext import clean_text


class Joined:
    """A growing text. The work for a piece does not grow with what is there already."""

    __slots__ = ("_half", "_pieces", "begun")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""
        self.begun = False
        """Some piece was not empty."""

    def add(self, piece: str) -> str:
        """The piece as it can be shown now; half a pair at its end waits for the other half."""
        self.begun = self.begun or bool(piece)
        piece, self._half = self._half + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        piece = clean_text(piece)
        self._pieces.append(piece)
        return piece

    def rest(self) -> str:
        """What still waits."""
        half, self._half = clean_text(self._half), ""
        self._pieces.append(half)
        return half

    def __str__(self) -> str:
        return "".join(self._pieces)
