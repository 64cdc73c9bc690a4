"""What a schema of any origin promises: a model's text in, validated arguments or complaints out."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import dumps

Json = dict[str, Any]
"""A JSON object, or a JSON Schema, as Python holds it."""

MAX_COMPLAINTS = 50
"""Complaints of one refusal: a model mends a few at a time, and a list of 10,000 bad items must not flood
it."""
MAX_GOT = 80
"""Characters of ``Complaint.got``: enough to recognise a value, too few to repeat a document."""
MAX_FIELDS = 50
"""Field names that one complaint lists."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_TYPES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


class SchemaError(DefinitionError, TypeError):
    """A tool cannot be offered as it is written: the message begins with its name and says what to do."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that a schema refuses in the model's input."""

    path: str
    """Where, such as ``items.0.price``; empty for the whole."""
    expected: str
    """What the schema takes there, such as ``an integer``."""
    got: str
    """What came, in at most 80 characters, such as ``'seven' (a string)``."""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}expected {self.expected}, got {self.got}"


class InvalidArguments(ValueError):
    """The input is a JSON object that the schema refuses.

    Args:
        complaints: what is wrong, at least one, in the input's order.
        left_out: how many more there are.
    """

    def __init__(self, complaints: Iterable[Complaint], left_out: int = 0) -> None:
        self.complaints = tuple(complaints)
        self.left_out = left_out
        more = [f"and {left_out} more"] if left_out else []
        super().__init__("; ".join([*map(str, self.complaints), *more]))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.complaints, self.left_out)


class NotAnObject(ValueError):
    """The input is no JSON, or JSON but no object; ``reason`` says what and where."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ArgumentsSchema(ABC):
    """What one tool's parameters mean. Immutable; safe to use from several threads.

    A schema decides alone what input is good: the text of a model, a person's edit and a guard's change go
    the same way, so that none of them can bring in what another could not.
    """

    json_schema: Json
    """The JSON Schema that is offered to models; an object schema."""

    @abstractmethod
    def parse(self, raw: str | None) -> Json:
        """Validated values by parameter, from the text that a model wrote.

        None, empty text, white space and ``null`` count as ``{}``. Of a key that comes twice the last one
        counts. ``null`` for a parameter that may be left out, and whose type takes no null, means that it
        is left out.

        Raises:
            NotAnObject: the text is no JSON, or JSON but no object.
            InvalidArguments: the schema refuses the object.
        """

    @abstractmethod
    def dump(self, arguments: Json) -> object:
        """The plain JSON value of what `parse` gave; the same arguments give the same value in every process.

        ``parse`` takes it back: what waits for a person is stored in this form.

        Raises:
            ValueError: a value has no JSON form.
        """

    def write(self, arguments: Json) -> bytes:
        """The JSON text of what `dump` gives. Raises as it does."""
        return dumps(self.dump(arguments))

    def validate(self, value: Json) -> Json:
        """What `parse` gives for a JSON object that is already decoded; ``value`` is left as it is.

        Raises:
            NotAnObject: it is no object, or holds what JSON cannot.
            InvalidArguments: the schema refuses the object.
        """
        if not isinstance(value, dict):
            raise NotAnObject(f"expected a JSON object, got {describe(value)}")
        try:
            text = to_json(value, inf_nan_mode="constants").decode()
        except ValueError as error:
            raise NotAnObject(f"not a JSON value: {error}") from error
        return self.parse(text)


def check_name(name: str) -> None:
    """Refuse a tool's name that some provider would refuse, and with it the whole request.

    Raises:
        SchemaError: it is not 1 to 64 letters, digits, ``_`` and ``-``, of which the first is a letter or
        ``_``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = name if isinstance(name, str) and len(name) <= MAX_GOT else describe(name)
        raise SchemaError(
            f"{shown}: expected a tool's name of 1 to 64 letters, digits, _ and -, first a letter or _; "
            f"got {describe(name)}; give another with name=",
        )


def decode(raw: str | None) -> Json:
    """The JSON object in a model's text; integers keep all digits, and nothing is repaired.

    Raises:
        NotAnObject: see `ArgumentsSchema.parse`.
    """
    if raw is None or not raw.strip():
        return {}
    try:
        value = from_json(raw, allow_inf_nan=False)
    except TypeError:  # what it says of a str that has no UTF-8 form
        raise NotAnObject("the text holds half of a surrogate pair, which is no character") from None
    except ValueError as error:
        raise NotAnObject(_reason(raw, str(error))) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise NotAnObject(f"expected a JSON object, got {describe(value)}")
    return value


def _reason(raw: str, error: str) -> str:
    if "recursion limit" in error:
        return f"nested over 200 levels ({error})"
    if "surrogate" in error or "hex escape" in error:
        return f"a broken \\u escape, such as half of a surrogate pair ({error})"
    if error.startswith("EOF"):
        return f"the JSON is cut off ({error})"
    try:
        from_json(raw)
    except ValueError:
        return f"no valid JSON ({error})"
    return f"NaN and infinities are no JSON ({error})"


def describe(value: object, *, secret: bool = False) -> str:
    """A short description of a JSON value for a complaint; of a secret one only its type."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} item{'' if len(value) == 1 else 's'}"
    if isinstance(value, dict):
        return _describe_object(value)
    kind = {str: "a string", int: "an integer", float: "a number"}.get(type(value))
    if kind is None:
        return f"a value of the type {type(value).__name__}"[:MAX_GOT]
    if secret:
        return f"{kind} (not shown)"
    if isinstance(value, str):
        return _describe_text(value)
    # Python refuses to write out very long integers, and nobody would read one.
    if isinstance(value, int) and value.bit_length() > 160:  # noqa: PLR2004
        return f"an integer of about {int(value.bit_length() * 0.30103) + 1} digits"
    return f"{value!r} ({kind})"


def _describe_text(text: str) -> str:
    whole = f"{text!r} (a string)" if len(text) <= MAX_GOT else ""
    if whole and len(whole) <= MAX_GOT:
        return whole
    keep = MAX_GOT
    while True:
        cut = f"{text[:keep]!r}… (a string of {len(text)} characters)"
        if len(cut) <= MAX_GOT:
            return cut
        keep -= 1  # one character may be written as up to ten


def _describe_object(value: Json) -> str:
    if not value:
        return "an empty object"
    names = ", ".join(str(name)[:MAX_GOT] for name in list(value)[:10])
    text = f"an object with the fields {names}"
    if len(value) > 10 or len(text) > MAX_GOT:  # noqa: PLR2004
        return f"an object of {len(value)} field{'' if len(value) == 1 else 's'}"
    return text


MISSING = "nothing (it is missing)"


def no_such_field(schemas: Iterable[Json]) -> str:
    """What a complaint expects in place of a field that nobody knows: the names that these schemas know."""
    names = list(dict.fromkeys(name for schema in schemas for name in schema.get("properties", ())))
    if not names:
        return "no such field; there are none"
    more = f" and {len(names) - MAX_FIELDS} more" if len(names) > MAX_FIELDS else ""
    return f"no such field; the fields are: {', '.join(names[:MAX_FIELDS])}{more}"


def wanted(schemas: Iterable[Json]) -> str:
    """What these schemas take, in a few words."""
    found = dict.fromkeys(filter(None, map(_wanted, schemas)))
    return " or ".join(found) or "a value"


def _wanted(schema: Json) -> str:
    if "enum" in schema:
        return one_of(schema["enum"])
    if "const" in schema:
        return one_of([schema["const"]])
    kinds = schema.get("type", [])
    return type_words([kinds] if isinstance(kinds, str) else kinds)


def type_words(kinds: Iterable[str]) -> str:
    """JSON Schema's names of types in words."""
    return " or ".join(_TYPES.get(kind, kind) for kind in kinds)


def one_of(values: Sequence[object]) -> str:
    """The values that an enumeration takes, in words."""
    shown = [_literal(value) for value in values[:MAX_FIELDS]]
    more = f" and {len(values) - MAX_FIELDS} more" if len(values) > MAX_FIELDS else ""
    return f"exactly {shown[0]}" if len(values) == 1 else f"one of {', '.join(shown)}{more}"


def _literal(value: object) -> str:
    if isinstance(value, str):
        return repr(value)
    try:
        return to_json(value).decode()
    except ValueError:
        return describe(value)


def schemas_at(root: Json, path: Sequence[str | int]) -> list[Json]:
    """Every part of ``root`` that speaks of the value at ``path``, through references and unions."""
    here = list(_alternatives(root, root, set()))
    for step in path:
        below = (child for schema in here for child in _children(schema, step))
        seen: set[int] = set()
        here = [one for child in below for one in _alternatives(root, child, seen)]
    return here


def _alternatives(root: Json, schema: object, seen: set[int]) -> Iterator[Json]:
    if not isinstance(schema, dict) or id(schema) in seen:
        return
    seen.add(id(schema))
    yield schema
    for key in ("anyOf", "oneOf", "allOf"):
        for child in schema.get(key, ()):
            yield from _alternatives(root, child, seen)
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith("#"):
        yield from _alternatives(root, pointed(root, ref), seen)


def _children(schema: Json, step: str | int) -> Iterator[object]:
    if isinstance(step, str):
        properties = schema.get("properties", {})
        yield properties[step] if step in properties else schema.get("additionalProperties")
    else:
        first = schema.get("prefixItems", [])
        yield first[step] if step < len(first) else schema.get("items")


def pointed(root: Json, ref: str) -> object:
    """What the JSON pointer in ``ref`` (``#/$defs/x``) leads to in ``root``; None where it leads nowhere."""
    here: Any = root
    for part in ref.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and key in here:
            here = here[key]
        elif isinstance(here, list) and key.isdecimal() and int(key) < len(here):
            here = here[int(key)]
        else:
            return None
    return here


def refusal(found: Iterable[tuple[Sequence[str | int], str, str]]) -> InvalidArguments:
    """The complaints of ``(path, expected, got)``; those about one place, from branches of a union, join."""
    places: dict[str, tuple[dict[str, None], str]] = {}
    for path, expected, got in found:
        place = places.setdefault(".".join(map(str, path)), ({}, got))
        place[0][expected] = None
    complaints = [Complaint(path, " or ".join(expected), got) for path, (expected, got) in places.items()]
    return InvalidArguments(complaints[:MAX_COMPLAINTS], max(0, len(complaints) - MAX_COMPLAINTS))
