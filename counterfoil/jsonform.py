"""Any Python value as JSON text, by fixed rules: the same value to the same bytes (contract 8).

As pydantic_core writes it, but for this:

    sets                      sorted by the JSON bytes of their items, at any depth
    bytes                     base64 with the standard alphabet, which readers of either alphabet decode
    NaN and infinities        null; also as Decimal, in models and in NumPy values
    lone surrogates           U+FFFD, in keys too
    NumPy scalars, arrays     what their ``tolist`` gives; times as ISO 8601
    mappings, sequences       any of them, as object and array; a named tuple is an array
    a content block           as ``{"type": …}``
    iterators                 refused, generators too: to read one is to change it

What has no form is refused, never shown by its ``repr``.

Two ways lead to the same bytes. Nearly every value holds nothing but plain JSON types, and the writer writes
it in one pass. Any other value is first rebuilt of such types, by `_plain`. NumPy is never imported: what
comes from it is known by the module of its class.

Pydantic models are written by their own serializers. What these say without naming a type stays unseen: a set
that a function serializer returns stands in the order that it has.
"""

from __future__ import annotations

import dataclasses
import math
from base64 import b64encode
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MappingView,
    Sequence,
)
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeAlias, cast

from pydantic_core import PydanticSerializationError, SchemaSerializer, core_schema, from_json

from counterfoil.core.content import BLOCK_TYPES, block_to_json
from counterfoil.core.jsontext import MAX_DEPTH, clean_text
from counterfoil.core.result import ToolResult
from counterfoil.core.shorten import clip
from counterfoil.plainvalue import Formless, is_plain, too_deep


def json_bytes(value: object) -> bytes:
    """The JSON of a value, as UTF-8 bytes.

    Raises:
        Formless: the value, or something in it, has no form; it nests over 200 levels, or holds itself.
    """
    if is_plain(value):
        try:
            return _WRITER.to_json(value)
        except PydanticSerializationError:
            pass  # a lone surrogate, most likely: the value is rebuilt without it
    return _WRITER.to_json(_plain(value, 0))


_WRITER = SchemaSerializer(
    core_schema.any_schema(), core_schema.CoreConfig(ser_json_inf_nan="null", ser_json_bytes="base64")
)


def _plain(value: object, depth: int) -> object:
    """``value`` rebuilt of plain JSON types, by our rules; ``depth`` counts the containers around it."""
    kind = type(value)
    if value is None or kind is bool or kind is int:
        return value
    if kind is str:
        return clean_text(cast("str", value))
    try:
        for types, build in _FORMS:
            if isinstance(value, types):
                return build(value, depth)
        return _other(value, depth)
    except (Formless, MemoryError):
        raise
    except RecursionError:
        raise too_deep() from None
    except Exception as error:  # noqa: BLE001  # the value's own code may raise anything
        cause = error.__cause__ or error
        what = f"a {_name(kind)}, which raised {_name(type(cause))}"
        raise Formless(what, "return plain JSON values, or mend what it does when it is read") from cause


def _name(kind: type) -> str:
    return clip(kind.__qualname__, 100)


def _object(items: Iterable[tuple[object, object]], depth: int) -> dict[str, object]:
    if depth >= MAX_DEPTH:
        raise too_deep()
    out: dict[str, object] = {}
    for key, item in items:
        try:
            name = _key(key)
            built = _plain(item, depth + 1)
        except Formless as refused:
            refused.way.append(f"[{clip(key, 40)!r}]" if type(key) is str else f"[a key of type {_name(type(key))}]")
            raise
        out[_Twin(name) if name in out else name] = built
    return out


class _Twin(str):
    """A key whose text another key of its object has already: both are written, as the writer does."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def _key(key: object) -> str:
    if isinstance(key, str):
        return clean_text(str.__str__(key))
    if isinstance(key, Enum):
        return _key(key.value)
    if isinstance(key, tuple):
        return ",".join(map(_key, key))
    plain = _plain(key, 0)
    if isinstance(plain, (dict, list)):
        raise Formless(f"a key of type {_name(type(key))}", "use text as keys")
    if isinstance(plain, str):
        return plain
    (name,) = cast("dict[str, object]", from_json(_WRITER.to_json({plain: None})))
    return name


def _array(items: Iterable[object], depth: int) -> list[object]:
    if depth >= MAX_DEPTH:
        raise too_deep()
    out: list[object] = []
    for item in items:
        try:
            out.append(_plain(item, depth + 1))
        except Formless as refused:
            refused.way.append(f"[{len(out)}]")
            raise
    return out


def _sorted(items: Iterable[object], depth: int) -> list[object]:
    return sorted(_array(items, depth), key=_WRITER.to_json)


def _number(value: float | Decimal) -> object:
    if isinstance(value, Decimal):
        return str(value) if value.is_finite() else None
    return float.__float__(value) if math.isfinite(value) else None


def _other(value: object, depth: int) -> object:
    """The forms that are told by more than a class, and what only the writer knows, such as a URL."""
    kind = type(value)
    if isinstance(value, type):
        raise _formless(value)
    if hasattr(kind, "__pydantic_serializer__"):
        return _model(value, depth)
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(cast("Any", value))
        return _object(((f.name, getattr(value, f.name)) for f in fields), depth)
    if hasattr(kind, "tolist") and any(base.__module__.split(".")[0] == "numpy" for base in kind.__mro__):
        return _numpy(value, depth)
    for types, build in _LOOSE_FORMS:
        if isinstance(value, types):
            return build(value, depth)
    try:
        written = _WRITER.to_json(value, warnings=False)
    except PydanticSerializationError as error:
        raise _formless(value) from error
    return _plain(from_json(written), depth)


def _formless(value: object) -> Formless:
    name = _name(type(value))
    if isinstance(value, type):
        return Formless(f"the class {_name(value)}", "return a value, not a class")
    if isinstance(value, ToolResult):
        return Formless("a ToolResult inside another value", "return the ToolResult itself")
    if isinstance(value, Awaitable):
        return Formless(f"an unawaited {name}", "await it and return what it gives")
    if isinstance(value, (Iterator, AsyncIterator)):
        return Formless(f"a {name}", "read it first and return what it gives")
    return Formless(f"an object of type {name}", "return JSON types, a dataclass or a Pydantic model made from it")


def _refuse(value: object, _depth: int) -> object:
    raise _formless(value)


def _numpy(value: Any, depth: int) -> object:
    if value.dtype.kind == "M":  # as text, since a Python datetime has no nanoseconds
        return _plain(_without_nat(value.astype("U").tolist()), depth)
    if value.dtype.kind == "m":
        return _plain(value.astype("timedelta64[us]").tolist(), depth)
    plain = value.tolist()
    if type(plain) is type(value):  # a long double gives itself
        plain = complex(value) if value.dtype.kind == "c" else float(value)
    return _plain(plain, depth)


def _without_nat(times: object) -> object:
    if isinstance(times, list):
        return [_without_nat(item) for item in times]
    return None if times == "NaT" else times


# --------------------------------------------------------------------------------------- models of Pydantic


def _model(model: Any, depth: int) -> object:
    """What the model's own serializer gives, mended where that breaks our rules."""
    try:
        dump = _WRITER.to_python(
            model, mode="json", by_alias=True, warnings=False, fallback=lambda item: _plain(item, depth)
        )
    except UnicodeError:  # bytes that are no text, or a lone surrogate: Python values hold both
        dump = _WRITER.to_python(model, by_alias=True, warnings=False)
    except ValueError as error:
        if isinstance(error, PydanticSerializationError):
            raise
        raise too_deep() from error
    return _mend(dump, model, depth)


def _mend(dump: object, raw: Any, depth: int) -> object:
    """``dump`` as plain JSON types; ``raw``, from which it was made, tells where sets and bytes were."""
    if hasattr(type(raw), "__pydantic_root_model__") and raw.__pydantic_root_model__:
        raw = raw.root
    if isinstance(raw, (set, frozenset)) and isinstance(dump, (list, set, frozenset)):
        return _sorted(raw, depth)
    if isinstance(raw, bytes) and isinstance(dump, str) and dump.encode() == raw:
        return b64encode(raw).decode()
    if isinstance(raw, Decimal) and not raw.is_finite() and dump == str(raw):
        return None
    if isinstance(dump, (dict, list)) and depth >= MAX_DEPTH:
        raise too_deep()
    if isinstance(dump, dict):
        mended = {}
        for key, item, *part in _parts(raw, dump):
            mended[_key(key)] = _mend(item, part[0], depth + 1) if part else _plain(item, depth + 1)
        return mended
    if isinstance(dump, list) and isinstance(raw, Sequence) and len(dump) == len(raw):
        return [_mend(item, part, depth + 1) for item, part in zip(dump, raw, strict=True)]
    return _plain(dump, depth)


def _parts(raw: Any, dump: dict[Any, object]) -> Iterator[tuple[object, ...]]:
    """Key and value of all in ``dump``, and the value of ``raw`` that it was made from, where known."""
    if isinstance(raw, Mapping) and len(raw) == len(dump):
        for (key, item), (own, part) in zip(dump.items(), raw.items(), strict=True):
            if key in raw:
                yield key, item, raw[key]
            else:
                # The key was no text, or had a lone surrogate, of which the serializer makes three U+FFFD.
                yield own if isinstance(own, str) else key, item, part
        return
    names: dict[object, str] = {}
    for name, field in getattr(type(raw), "__pydantic_fields__", {}).items():
        names[field.serialization_alias or name] = name
    for name, field in getattr(type(raw), "__pydantic_computed_fields__", {}).items():
        names[field.alias or name] = name
    if not names and dataclasses.is_dataclass(raw):
        names = {f.name: f.name for f in dataclasses.fields(raw)}
    extra = getattr(raw, "__pydantic_extra__", None) or {}
    for key, item in dump.items():
        if key in names:
            yield key, item, getattr(raw, names[key], None)
        else:
            yield (key, item, extra[key]) if key in extra else (key, item)


# -------------------------------------------------------------------------------------------------- the table

_Form: TypeAlias = "tuple[type | tuple[type, ...], Callable[[Any, int], object]]"

_FORMS: tuple[_Form, ...] = (
    (Enum, lambda value, depth: _plain(value.value, depth)),
    (BLOCK_TYPES, lambda value, depth: _plain(block_to_json(value), depth)),
    (ToolResult, _refuse),
    (str, lambda value, _: clean_text(str.__str__(value))),
    (int, lambda value, _: int.__int__(value)),
    ((float, Decimal), lambda value, _: _number(value)),
    ((bytes, bytearray, memoryview), lambda value, _: b64encode(bytes(value)).decode()),
    ((list, tuple), _array),
    ((set, frozenset), _sorted),
    (dict, lambda value, depth: _object(value.items(), depth)),
    (PurePath, lambda value, _: clean_text(str(value))),
)
"""Forms by class, the first that fits; then come those that `_other` tells."""

_LOOSE_FORMS: tuple[_Form, ...] = (
    (Iterator, _refuse),
    (Mapping, lambda value, depth: _object(value.items(), depth)),
    ((Sequence, MappingView), _array),
    (AbstractSet, _sorted),
)
"""Forms by what a class can do: a view of a dict, a range, a deque, a mapping of one's own."""
