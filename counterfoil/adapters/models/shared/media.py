"""Media as wires take them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from counterfoil.adapters.models.shared.replay import EMPTY, is_blank
from counterfoil.core.content import Block
from counterfoil.core.media import read_as


def encoded(data: bytes) -> str:
    """The bytes in base64."""
    return base64.b64encode(data).decode()


def data_url(data: bytes, kind: str) -> str:
    """The bytes as a ``data:`` URL."""
    return f"data:{kind};base64,{encoded(data)}"


def parts_of(
    blocks: Sequence[Block],
    shown: Callable[[int, Block], dict[str, Any] | None],
    text: Callable[[str], dict[str, Any]],
    read: Callable[[Block], str] = read_as,
) -> list[dict[str, Any]]:
    """The parts of a message or a result: media as the wire shows them, everything else as text.

    Args:
        blocks: those of it.
        shown: the part for the block at this place; None where the wire does not show it.
        text: the part for a text.
        read: the text of a block that is not shown.
    """
    out = []
    for place, block in enumerate(blocks):
        part = shown(place, block)
        if part is None and not is_blank(said := read(block)):
            part = text(said)
        if part is not None:
            out.append(part)
    return out or [text(EMPTY)]
