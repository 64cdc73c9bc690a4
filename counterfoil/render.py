"""Any Python value to content blocks, by fixed rules: the same value to the same bytes (contract 8).

A ``str`` is text, verbatim. ``None`` is no output: one empty text, which a model reads as "(no output)" and
whose JSON is ``""``, so that null is left to mean "kept apart". Bytes are a file. Everything else is JSON, by
the rules of `counterfoil.jsonform`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from counterfoil.core.content import (
    BLOCK_TYPES,
    Block,
    File,
    Json,
    Kept,
    Link,
    Text,
)
from counterfoil.core.jsontext import utf8_size
from counterfoil.core.result import ToolResult
from counterfoil.jsonform import json_bytes
from counterfoil.plainvalue import Formless


class Unrenderable(ValueError):
    """A value has no form that a model could read: what came, where in the value, what to do.

    The message is for developer and operator: it names types and keys, and holds nothing else of the value.
    """


GIVEN: tuple[type, ...] = tuple(kind for kind in BLOCK_TYPES if kind is not Kept)
"""Blocks that a tool may give. A pointer to a text kept apart is the gateway's to make."""


def render(value: object) -> tuple[Block, ...]:
    """The blocks of a value that a tool returned; at least one.

    Args:
        value: anything but a `ToolResult`, which is a result already, and a generator, which is drained first
            (see `combine`).

    Returns:
        For a content block, or a list or tuple of nothing but blocks, those; else one block of text, file or
        JSON.

    Raises:
        Unrenderable: the value, or something in it, has no form; it nests over 200 levels, or holds itself.
    """
    if type(value) is str:
        return (_text(value),)
    if value is None:
        return _NO_OUTPUT
    if isinstance(value, str):
        return (Text(str.__str__(value)),)
    return _given_blocks(value) or (_made_block(value),)


class _OpenText:
    """A `Text` whose fields can be set: a frozen one takes three times as long to make."""

    __slots__ = Text.__slots__
    text: str
    size: int


def _text(text: str) -> Text:
    """As `Text`; most outputs are one."""
    if not text.isascii():
        return Text(text)
    made = _OpenText()
    made.text, made.size = text, len(text)
    made.__class__ = Text  # type: ignore[assignment]  # mypy: no change of class
    return made  # type: ignore[return-value]  # as above


def _given_blocks(value: object) -> tuple[Block, ...]:
    """The blocks that a value is, or is a list or tuple of; none where it is anything else."""
    if isinstance(value, GIVEN):
        return (cast("Block", value),)
    if type(value) is list or type(value) is tuple:
        items = cast("Sequence[Block]", value)
        if items and isinstance(items[0], GIVEN) and all(isinstance(item, GIVEN) for item in items):
            return tuple(items)
    return ()


def _made_block(value: object) -> Block:
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return File(bytes(value))
        return Json.from_bytes(json_bytes(value))
    except Formless as refused:
        raise Unrenderable(refused.sentence()) from refused.__cause__
    except ValueError as error:
        kind = type(value).__name__
        raise Unrenderable(f"cannot render a {kind} that cannot be read at value: return bytes") from error


_NO_OUTPUT: tuple[Block, ...] = (Text(""),)


def content_size(blocks: Iterable[Block]) -> int:
    """Bytes of the whole output (``resultSize`` of contract 1.2).

    Text and JSON count in UTF-8, media as they are, a link by its URI, what is kept apart by its whole size.
    """
    size = 0
    for block in blocks:
        match block:
            case Text() | Json():
                size += block.size
            case Link():
                size += utf8_size(block.uri)
            case Kept():
                size += block.size
            case _:
                size += len(block.data)
    return size


def combine(items: list[object]) -> object:
    """The value that a drained generator amounts to.

    Returns:
        A `ToolResult` that came last; else all strings joined to one; else the list of all items; None where
        there were none.
    """
    if not items:
        return None
    if isinstance(items[-1], ToolResult):
        return items[-1]
    if all(isinstance(item, str) for item in items):
        return "".join(cast("list[str]", items))
    return items
