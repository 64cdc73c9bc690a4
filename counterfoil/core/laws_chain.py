"""The hash chain of one interaction, checked row by row; each root of trouble is found once (contract 11).

After a break the check goes on from the hash that is stored, so that one changed byte is one break. Breaks
are explained when the interaction is complete: rows that follow one another in another order than they stand
in were moved; the rest was changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from counterfoil.core.codec import GENESIS, chain
from counterfoil.core.laws_facts import Kind, Row

MAX_BREAKS = 32
"""Breaks of one interaction that are explained one by one; explaining costs their number squared."""


@dataclass(slots=True, eq=False)
class _Piece:
    """Rows that follow one another. The first one does not follow the row before it."""

    start: int
    """Number of its first entry."""
    before: bytes
    """The hash that stands before it."""
    body: bytes
    """Of its first row, as is `hash`."""
    hash: bytes
    last: bytes
    """Hash of its last row."""
    length: int
    run_id: str
    hash_changed: bool = False
    """The next row follows the first one's bytes: its hash is what was changed."""


@dataclass(frozen=True, slots=True)
class Break:
    """A root of trouble in the chain."""

    kind: Kind
    entry: int
    run_id: str | None
    message: str
    until: int = 0
    """From `entry` to this one the order is not that of writing, so no law of order can be judged there."""


class Chain:
    """The chain of one interaction. `feed` it every row in order, then ask `breaks`."""

    __slots__ = ("_found", "_last", "_more", "_number", "_other", "_pieces")

    def __init__(self) -> None:
        self._found: list[Break] = []
        self._number = 0
        self._last = GENESIS
        self._other = b""
        """What the newest row's hash would be by its bytes, where that is not what is stored."""
        self._more = 0
        # The first piece has no row: it is what stands before entry 1.
        self._pieces = [_Piece(1, b"", b"", b"", GENESIS, 0, "")]

    def feed(self, row: Row) -> bool:
        """Take the next row in; whether its bytes can be trusted."""
        computed = chain(self._last, row.body)
        if row.entry != self._number + 1 and not self._gap(row, computed):
            return True
        self._number = row.entry
        if computed == row.hash:
            self._follow(row.hash)
            return True
        if self._other and chain(self._other, row.body) == row.hash:
            self._pieces[-1].hash_changed = True
            self._follow(row.hash)
            return True
        if len(self._pieces) > MAX_BREAKS:
            self._more += 1
            self._pieces[-1].last = row.hash
        else:
            piece = _Piece(row.entry, self._last, row.body, row.hash, row.hash, 1, row.run_id)
            self._pieces.append(piece)
        self._last, self._other = row.hash, computed
        return False

    def _follow(self, digest: bytes) -> None:
        self._last, self._other = digest, b""
        piece = self._pieces[-1]
        piece.last = digest
        piece.length += 1

    def _gap(self, row: Row, computed: bytes) -> bool:
        """Name what is wrong with the row's number; whether its hash can still be checked."""
        expected = self._number + 1
        if row.entry > expected:
            gone = f"entry {expected} is" if row.entry == expected + 1 else f"entries {expected} to {row.entry - 1} are"
            message = f"{gone} missing"
        else:
            message = f"entry {row.entry} stands after entry {self._number}"
        self._found.append(Break("broken-chain", row.entry, row.run_id, message))
        if computed == row.hash:
            return True  # only the numbers were changed
        self._found += self._explain()
        self._pieces = [_Piece(row.entry, b"", b"", b"", row.hash, 1, "")]
        self._number, self._last, self._other = row.entry, row.hash, b""
        return False

    def forget_last(self) -> None:
        """The newest row's break was named by somebody who knows better."""
        if len(self._pieces) > 1 and not self._more:
            gone = self._pieces.pop()
            self._pieces[-1].last = gone.last
            self._other = b""

    def breaks(self) -> list[Break]:
        """Every root of trouble, once; after the last row."""
        found = [*self._found, *self._explain()]
        if self._more:
            found.append(Break("broken-chain", self._number, None, f"{self._more} more entries are broken"))
        return found

    def _explain(self) -> Iterator[Break]:
        broken = self._pieces[1:]
        if not broken:
            return
        moved = [] if self._more else self._moved()
        if moved:
            until = moved[-1].start + moved[-1].length
            yield Break("broken-chain", moved[0].start, moved[0].run_id, _moved_text(moved), until)
            return
        swapped: set[int] = set()
        for i, one in enumerate(broken):
            for other in broken[i + 1 :]:
                # The bytes changed places, the hashes stayed.
                if chain(one.before, other.body) == one.hash and chain(other.before, one.body) == other.hash:
                    swapped |= {one.start, other.start}
                    message = _swapped_text(one, other)
                    yield Break("broken-chain", one.start, one.run_id, message, other.start + 1)
        for piece in broken:
            if piece.start in swapped:
                continue
            if piece.hash_changed:
                yield Break("broken-chain", piece.start, piece.run_id, f"the hash of entry {piece.start} was changed")
            else:
                yield Break("changed-bytes", piece.start, piece.run_id, _changed_text(piece.start))

    def _moved(self) -> list[_Piece]:
        """The pieces that stand elsewhere than they were written, if all follow one another in some order."""
        first, *rest = self._pieces
        position, last = first.start + first.length, first.last
        moved: list[_Piece] = []
        while rest:
            following = next((p for p in rest if chain(last, p.body) == p.hash), None)
            if following is None:
                return []
            if following.start != position:
                moved.append(following)
            position += following.length
            last = following.last
            rest.remove(following)
        return sorted(moved, key=lambda p: p.start)


def _swapped_text(one: _Piece, other: _Piece) -> str:
    return f"entries {one.start} and {other.start} have changed places"


def _moved_text(moved: list[_Piece]) -> str:
    if [p.length for p in moved] == [1, 1]:
        return _swapped_text(*moved)
    starts = ", ".join(str(p.start) if p.length == 1 else f"{p.start} to {p.start + p.length - 1}" for p in moved)
    return f"entries {starts} are not where they were written"


def _changed_text(entry: int) -> str:
    return (
        f"the bytes of entry {entry} do not give its hash: they were changed, or what stood before it was "
        "changed or removed"
    )
