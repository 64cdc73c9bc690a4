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

Two ways lead to the same bytes. Nearly every value holds nothing but plain JSON types: `_is_plain` finds that
out at the speed of C, and the writer writes it in one pass. Any other value is first rebuilt of such types, by
`_plain`. NumPy is never imported: its values are known by their module.
"""

from __future__ import annotations

import dataclasses
import gc
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
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, TypeAlias, cast
from uuid import UUID

from pydantic_core import PydanticSerializationError, SchemaSerializer, core_schema, from_json

from counterfoil.core.content import BLOCK_TYPES, block_to_json
from counterfoil.core.jsontext import MAX_DEPTH, clean_text
from counterfoil.core.result import ToolResult
from counterfoil.core.shorten import clip


class Formless(Exception):
    """A value without a JSON form: what came, what to do about it, and the way to it, innermost step first.

    Nobody outside meets it: `counterfoil.render` makes an ``Unrenderable`` of it.
    """

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.way: list[str] = []

    def sentence(self) -> str:
        """What came, where in the value, what to do."""
        return f"cannot render {self.what} at {clip('value' + ''.join(reversed(self.way)), 200)}: {self.hint}"


def json_text(value: object) -> str:
    """The JSON text of a value.

    Raises:
        Formless: the value, or something in it, has no form; it nests over 200 levels, or holds itself.
    """
    if _is_plain(value):
        try:
            return _WRITER.to_json(value).decode()
        except PydanticSerializationError:
            pass  # a lone surrogate, most likely: the value is rebuilt without it
    return _WRITER.to_json(_plain(value, 0)).decode()


_WRITER = SchemaSerializer(
    core_schema.any_schema(), core_schema.CoreConfig(ser_json_inf_nan="null", ser_json_bytes="base64")
)

# ------------------------------------------------------------------------------------------- plain values

_CONTAINERS: frozenset[type] = frozenset({dict, list, tuple})
_PLAIN: frozenset[type] = _CONTAINERS | {str, int, float, bool, type(None), datetime, date, time, timedelta}
"""Types, exactly these, that the writer writes by our rules, and in which `gc` sees nothing but contents."""
_LEAVES: frozenset[type] = frozenset({UUID, Decimal, type(Path())})
"""Types that it writes so too, but for a Decimal that is no number; what `gc` sees in them is theirs."""

_MANY = 1_000_000
"""Values on one level from which on a cycle is looked for: a wide one would fill the memory by level 200."""
_TOO_MANY = 100_000_000
"""Values that may be written: a few objects that hold one another again and again make an endless text."""
_NUMBERS = frozenset({int, float, bool})
_WORTH_IT = 100
"""Values on a level from which on to look at its columns."""
_WIDEST = 32
"""Columns of a table, at most."""
_LONG = 1000
"""Characters of a text from which on its type is found sooner than its copy is made."""


def _is_plain(value: object) -> bool:
    """Whether the writer alone does right by a value.

    Goes down level by level, each in a few calls that loop in C: what the objects of a level hold is the next
    one. So the number of levels is the depth.
    """
    level: list[object] = [value]
    depth = columns = 0
    while level:
        types = _types(level, columns)
        if not types <= _PLAIN:
            if not types <= _PLAIN | _LEAVES:
                return False
            if Decimal in types and not all(x.is_finite() for x in level if isinstance(x, Decimal)):
                return False
            level = [x for x in level if type(x) not in _LEAVES]
        if depth >= MAX_DEPTH and not types.isdisjoint(_CONTAINERS):
            raise _too_deep()
        below = gc.get_referents(*level)
        if len(below) > _MANY:
            _measure(value, 0, {})
        columns = len(below) // len(level) if level else 0
        level = below
        depth += 1
    return True


def _types(level: list[object], columns: int) -> set[type]:
    """The types on a level, except that columns of text alone and of numbers alone may be left out.

    Rows of one shape lie on a level as a table of so many columns; a wrong number makes this slower, not wrong.
    """
    if len(level) < _WORTH_IT:
        return set(map(type, level))
    if not 0 < columns <= _WIDEST:
        columns = 1
    types: set[type] = set()
    for first in range(columns):
        column = level[first::columns] if columns > 1 else level
        if not _is_of_one_kind(column):
            types.update(map(type, column))
    return types


def _is_of_one_kind(column: list[object]) -> bool:
    """Whether a column is text alone, or numbers alone: a join and a sum tell sooner than all the types.

    They let subclasses pass. Those written in Python give themselves away on the next level, where `gc` shows the
    class; those written in C are written as their base is; a Decimal changes the type of the sum.
    """
    first = column[0]
    try:
        if type(first) is str:
            if len(first) > _LONG:
                return False
            "".join(cast("list[str]", column))
            return True
        return type(first) in _NUMBERS and type(sum(cast("list[int]", column))) in _NUMBERS
    except Exception:  # noqa: BLE001  # an addition in a class of somebody else may raise anything
        return False


def _measure(value: object, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Levels and values of a container, itself included; each object is looked into once."""
    if type(value) not in _CONTAINERS:
        return 0, 1
    if (found := known.get(id(value))) is None:
        if depth >= MAX_DEPTH:
            raise _too_deep()
        levels, count = 0, 1
        for item in gc.get_referents(value):
            below = _measure(item, depth + 1, known)
            levels, count = max(levels, below[0]), count + below[1]
        found = known[id(value)] = levels + 1, count
    if depth + found[0] > MAX_DEPTH:
        raise _too_deep()
    if found[1] > _TOO_MANY:
        raise Formless(f"a value that is written as more than {_TOO_MANY:,} values", "return a part of it")
    return found


def _too_deep() -> Formless:
    return Formless(f"a value that holds itself or nests over {MAX_DEPTH} levels", "return a flatter value")


# ----------------------------------------------------------------------------------------- all other values


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
    except Exception as error:  # noqa: BLE001  # the value's own code may raise anything
        cause = error.__cause__ or error
        what = f"a {_name(kind)}, which raised {_name(type(cause))}"
        raise Formless(what, "return plain JSON values, or mend what it does when it is read") from cause


def _name(kind: type) -> str:
    return clip(kind.__qualname__, 100)


def _object(items: Iterable[tuple[object, object]], depth: int) -> dict[str, object]:
    if depth >= MAX_DEPTH:
        raise _too_deep()
    out: dict[str, object] = {}
    for key, item in items:
        try:
            name = _key(key)
            built = _plain(item, depth + 1)
        except Formless as refused:
            refused.way.append(
                f"[{clip(key, 40)!r}]" if type(key) is str else f"[a key of type {_name(type(key))}]"
            )
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
        raise _too_deep()
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
    text = isinstance(value, Decimal)
    finite = value.is_finite() if isinstance(value, Decimal) else value - value == 0
    return (str(value) if text else float.__float__(cast("float", value))) if finite else None


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
    if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
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
    return Formless(
        f"an object of type {name}", "return JSON types, a dataclass or a Pydantic model made from it"
    )


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
        raise _too_deep() from error
    return _mend(dump, model, depth)


def _mend(dump: object, raw: Any, depth: int) -> object:
    """``dump`` as plain JSON types; ``raw``, from which it was made, tells where sets and bytes were."""
    if hasattr(type(raw), "__pydantic_root_model__") and raw.__pydantic_root_model__:
        raw = raw.root
    if isinstance(raw, (set, frozenset)) and isinstance(dump, (list, set, frozenset)):
        return _sorted(raw, depth)
    if isinstance(raw, bytes) and dump == raw.decode(errors="replace"):
        return b64encode(raw).decode()
    if isinstance(raw, Decimal) and not raw.is_finite() and dump == str(raw):
        return None
    if isinstance(dump, (dict, list)) and depth >= MAX_DEPTH:
        raise _too_deep()
    if isinstance(dump, dict):
        mended = {}
        for key, item, *part in _parts(raw, dump):
            mended[_key(key)] = _mend(item, part[0], depth + 1) if part else _plain(item, depth + 1)
        return mended
    if isinstance(dump, list) and isinstance(raw, Sequence) and len(dump) == len(raw):
        return [_mend(item, part, depth + 1) for item, part in zip(dump, raw, strict=True)]
    return _plain(dump, depth)


def _parts(raw: Any, dump: dict[Any, object]) -> Iterator[tuple[object, ...]]:
    """Key and value of all in ``dump``, with the value of ``raw`` that it was made from where that is known."""
    if isinstance(raw, Mapping) and len(raw) == len(dump):
        for (key, item), (own, part) in zip(dump.items(), raw.items(), strict=True):
            # In a key the serializer makes three U+FFFD of one lone surrogate.
            yield own if isinstance(own, str) and "\ufffd" in str(key) else key, item, part
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
