"""A turn in the order in which it came, by the layout that stands on record with its reasoning (see `opaque`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from counterfoil.core.jsontext import JsonValue

BETWEEN: Final = "\n\n"
"""Between texts of one answer that something else stands between; they are one text on our record."""


def texts_of(text: str, sizes: Sequence[JsonValue]) -> list[str] | None:
    """The texts of these sizes that `BETWEEN` joined to this one; None where it is another one by now."""
    texts: list[str] = []
    at = 0
    for size in sizes:
        if not isinstance(size, int) or (texts and text[at : at + len(BETWEEN)] != BETWEEN):
            return None
        at += len(BETWEEN) if texts else 0
        texts.append(text[at : at + size])
        at += size
    return texts if at == len(text) else None


def woven(
    layout: Sequence[dict[str, JsonValue]],
    opaque: Collection[str],
    texts: Iterator[dict[str, Any] | None] | None,
    calls: Iterator[dict[str, Any]],
    otherwise: Sequence[dict[str, Any]],
    empty: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """Reasoning, texts and calls in the order of the layout; reasoning stands before what it led to.

    Args:
        layout: the places.
        opaque: types of places that are reasoning, and go out as they are.
        texts: by the layout's places, None for a blank one; None where the layout says nothing of text and calls.
        calls: all of them.
        otherwise: what stands before the calls then.
        empty: what a turn without anything is.
    """
    waiting: list[dict[str, Any]] = []
    count = 0
    for place in layout:
        block: dict[str, Any] | None = None
        if place["type"] in opaque:
            waiting.append(place)
        elif texts is not None:
            block = next(calls if place["type"] == "call" else texts, None)
        if block is not None:
            yield from waiting
            waiting.clear()
            count += 1
            yield block
    rest = [*otherwise, *calls]
    if rest or not count:
        yield from waiting
        yield from rest or [empty]
