"""JSON as the record writes it: the bytes of ``pydantic_core.to_json``, the same value to the same bytes.

The only core module that imports pydantic_core (contract 8 names it as the writer); both functions are pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from pydantic_core import PydanticSerializationError, from_json, to_json

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""What JSON can hold. Integers are exact at any size; NaN and infinities are written as null."""

MAX_DEPTH = 200
"""Levels of nesting that a value may have (contract 8)."""


def clean_text(text: str) -> str:
    """``text`` with each lone surrogate replaced by U+FFFD (contract 8); the same object if there is none."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # utf-16 joins the halves of a pair that came as two escapes; what is still alone becomes U+FFFD.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def utf8_size(text: str) -> int:
    """Bytes of ``text`` in UTF-8; ``text`` has no lone surrogate (see `clean_text`)."""
    return len(text) if text.isascii() else len(text.encode())


def dumps(value: object) -> bytes:
    """JSON bytes of a plain JSON value (also tuples and other forms that pydantic_core writes).

    Raises:
        ValueError: a cycle, nesting too deep, or a value that has no JSON form.
    """
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        # The one thing in plain JSON values that the writer refuses is a lone surrogate.
        return to_json(_clean(value, 0), inf_nan_mode="null")


quoted = json.encoder.encode_basestring
"""The JSON text of a string, as `dumps` writes it; half a surrogate pair stays what it is."""


def loads(data: bytes | str) -> JsonValue:
    """The value of JSON bytes that `dumps` wrote.

    Raises:
        ValueError: the bytes are no JSON.
    """
    try:
        value: JsonValue = from_json(data)
    except (ValueError, TypeError):
        # Deeper than jiter's own limit, yet within ours; or a lone surrogate, which is a TypeError there.
        try:
            value = json.loads(data)
        except RecursionError:
            raise ValueError("nested too deep to be read") from None
    return value


def normal(value: object) -> JsonValue:
    """``value`` as plain JSON values that nobody else holds, so that a later change of it changes nothing."""
    if value is None or value is True or value is False or type(value) is int:
        return value
    return loads(dumps(value))


def _clean(value: object, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested over {MAX_DEPTH} levels; give a flatter value")
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {(clean_text(k) if isinstance(k, str) else k): _clean(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(v, depth + 1) for v in value]
    return value
