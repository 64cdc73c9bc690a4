"""OpenAI's strict dialect of JSON Schema, and the way back from it.

In the dialect every object lists all its properties as required and takes no others, and half of JSON Schema is
refused, ``default`` included (OpenAI's guide to structured outputs; the SDK's own `to_strict_json_schema`). So here:

* A property that may be left out takes null beside its own values, and null means that it is left out: the gateway
  reads it so at the top of a tool's arguments (contract 3), and `Written.restore` takes it out below and in answers.
* What the dialect has no word for, such as a default or a longest length, is told in the description. We validate
  by the whole schema in any case.
* What cannot be said at all (free keys, tuples, any value) is offered as it is, without the dialect.
* An answer that is no object is asked for as the one property of an object, and taken out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.model import ModelRequest, ModelTurn

Schema = dict[str, JsonValue]

WRAP: Final = "answer"
"""The property that holds an answer that is no object."""

MAX_DEPTH: Final = 10
_TOP: Final = ("oneOf", "anyOf", "allOf", "enum", "not")
MAX_PROPERTIES: Final = 5_000
MAX_VALUES: Final = 1_000
MAX_CHARS: Final = 120_000
"""Levels of objects, properties, values of enumerations, and characters of a schema that the guide allows."""

_KEPT: Final = frozenset({
    "type", "enum", "description", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minItems", "maxItems",
})  # fmt: skip  # names in rows
_TOLD: Final = (
    "default", "minLength", "maxLength", "pattern", "format", "uniqueItems", "minProperties", "maxProperties",
)  # fmt: skip  # as above
_FORMATS: Final = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
})  # fmt: skip  # as above
_FREE: Final = ("patternProperties", "prefixItems", "unevaluatedProperties", "unevaluatedItems")
"""Words without which the dialect would refuse what the tool wants."""
_TYPES: Final[Mapping[type, str]] = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object",
}  # fmt: skip  # as above


class _Unfit(Exception):
    """The dialect cannot say it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A schema as it goes out, and what has to be done with what comes back."""

    schema: Schema
    strict: bool | None
    """None: nothing is said of it."""
    original: Schema
    wrapped: bool = False
    nulls: bool = False
    """Some property deep inside, or anywhere in an answer, takes a null that means "left out"."""

    def fields(self, name: str) -> dict[str, Any]:
        """The schema under its name on the wire, and whether it is strict."""
        said: dict[str, Any] = {name: self.schema}
        return said if self.strict is None else said | {"strict": self.strict}

    def restore(self, text: str, *, top: bool) -> str:
        """What the model wrote, with nulls and wrapping taken out again; the same text where nothing was added.

        Args:
            text: JSON text; other text stays as it is.
            top: take out the nulls of the outermost object too.
        """
        if not (self.wrapped or self.nulls):
            return text
        try:
            value = loads(text)
        except ValueError:
            return text
        found = value
        if self.wrapped:
            if not isinstance(value, dict) or list(value) != [WRAP]:
                return text
            found = value[WRAP]
        if self.nulls:
            found = _without(found, [self.original], self.original, top=top)
        return text if found == value else dumps(found).decode()


class Dialect:
    """How one adapter writes schemas; a schema is written once.

    Args:
        strict: in the dialect, where it can be said in it.
        said: the server is OpenAI's, and takes answers for objects alone and tools for strict unless told.
    """

    def __init__(self, *, strict: bool, said: bool = False) -> None:
        self._strict = strict
        self._on = strict or said
        self._known: dict[tuple[int, bool], Written] = {}

    def tool(self, schema: Schema) -> Written:
        """The schema of a tool's arguments."""
        return self._written(schema, answer=False)

    def output(self, schema: Schema) -> Written:
        """The schema of an answer."""
        return self._written(schema, answer=True)

    def restored(self, turn: ModelTurn, request: ModelRequest) -> ModelTurn:
        """The turn as the schemas of the request's tools and answer want it, and not as the dialect does."""
        if not self._on:
            return turn
        tools = {offer.name: offer.input_schema for offer in request.tools}
        for call in turn.calls:
            if call.name in tools and call.arguments:
                call.arguments = self.tool(tools[call.name]).restore(call.arguments, top=False)
        if request.output_schema is not None and not turn.calls:
            text = self.output(request.output_schema).restore(turn.text, top=True)
            return turn if text == turn.text else replace(turn, text=text)
        return turn

    def _written(self, schema: Schema, *, answer: bool) -> Written:
        if not self._on:
            return Written(schema if answer else rooted(schema), strict=None, original=schema)
        key = id(schema), answer
        known = self._known.get(key)
        if known is None or known.original is not schema:
            if len(self._known) > MAX_VALUES:  # schemas that a program makes anew for each request
                self._known.clear()
            known = self._known[key] = _write(schema, answer=answer, strict=self._strict)
        return known


def _write(schema: Schema, *, answer: bool, strict: bool) -> Written:
    root, wrapped = schema if answer else rooted(schema), False
    strict = strict and (answer or root is schema)
    target = _target(schema, schema)
    if answer and "$ref" in schema:  # the form of an answer says itself that it is an object
        root = target | {k: schema[k] for k in ("$defs", "definitions") if k in schema}
    if answer and target.get("type") != "object":
        inner = {k: v for k, v in schema.items() if k not in ("$defs", "definitions", "$schema")}
        root = {"type": "object", "properties": {WRAP: inner}, "required": [WRAP], "additionalProperties": False}
        root |= {k: schema[k] for k in ("$defs", "definitions") if k in schema}
        wrapped = True
    writer = _Writer(root)
    try:
        out = writer.whole() if strict else None
    except _Unfit:
        out = None
    if out is None:
        return Written(root, strict=False, original=schema, wrapped=wrapped)
    nulls = writer.deep or (answer and writer.top)
    return Written(out, strict=True, original=schema, wrapped=wrapped, nulls=nulls)


class _Writer:
    """One schema on its way into the dialect."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.top = self.deep = False
        """Some property of the outermost object, or of another, may be left out and takes no null of its own."""
        self._properties = self._values = 0

    def whole(self) -> Schema:
        """The schema in the dialect. Raises _Unfit."""
        target = _target(self.root, self.root)
        if target.get("type") != "object" or "anyOf" in target or "oneOf" in target:
            raise _Unfit
        out = self._object(target, 0)
        for home in ("$defs", "definitions"):
            named = self.root.get(home)
            if isinstance(named, dict):
                out[home] = {name: self.one(child, 1) for name, child in named.items()}
        if len(dumps(out)) > MAX_CHARS:
            raise _Unfit
        return out

    def one(self, schema: JsonValue, depth: int) -> Schema:
        """One schema inside another."""
        if not isinstance(schema, dict) or any(word in schema for word in _FREE):
            raise _Unfit
        if "$ref" in schema:
            return self._reference(schema)
        branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if branches is not None:
            if not isinstance(branches, list) or "properties" in schema or (
                "allOf" in schema and (len(branches) > 1 or "anyOf" in schema or "oneOf" in schema)
            ):  # fmt: skip  # one condition
                raise _Unfit
            return {"anyOf": [self.one(branch, depth) for branch in branches], **_described(schema)}
        kinds = _kinds(schema)
        if not kinds:
            raise _Unfit
        if "object" in kinds:
            if len([kind for kind in kinds if kind != "null"]) > 1:
                raise _Unfit
            return self._object(schema, depth)
        return self._plain(schema, kinds, depth)

    def _reference(self, schema: Schema) -> Schema:
        ref = schema["$ref"]
        if not isinstance(ref, str) or not ref.startswith(("#/$defs/", "#/definitions/")):
            raise _Unfit
        if set(schema) & (_KEPT - {"description"} | {"properties", "items", "anyOf", "oneOf", "allOf"}):
            raise _Unfit
        about = _described(schema)
        # The dialect takes no word beside a reference.
        return {"anyOf": [{"$ref": ref}], **about} if about else {"$ref": ref}

    def _plain(self, schema: Schema, kinds: list[str], depth: int) -> Schema:
        out = {k: v for k, v in schema.items() if k in _KEPT} | _described(schema)
        if "const" in schema:
            out["enum"] = [schema["const"]]
        values = out.get("enum")
        if isinstance(values, list):
            self._values += len(values)
            if self._values > MAX_VALUES:
                raise _Unfit
        out["type"] = kinds[0] if len(kinds) == 1 else list(kinds)
        if schema.get("format") in _FORMATS:
            out["format"] = schema["format"]
        if "array" in kinds and "enum" not in out:
            out["items"] = self.one(schema.get("items"), depth)
        return out

    def _object(self, schema: Schema, depth: int) -> Schema:
        properties = schema.get("properties") or {}
        extra = schema.get("additionalProperties")
        # Without a word on other keys they are allowed; where no key is named they are all that there is.
        if depth > MAX_DEPTH or not isinstance(properties, dict) or extra not in (None, False):
            raise _Unfit
        if any(word in schema for word in ("allOf", "anyOf", "oneOf", *_FREE)) or (not properties and extra is None):
            raise _Unfit
        required = schema.get("required")
        must = set(map(str, required)) if isinstance(required, list) else set()
        if must - properties.keys():
            raise _Unfit
        self._properties += len(properties)
        if self._properties > MAX_PROPERTIES:
            raise _Unfit
        out: Schema = {"type": schema.get("type", "object"), **_described(schema)}
        out["properties"] = {
            name: self._property(child, depth, optional=name not in must) for name, child in properties.items()
        }
        out["required"] = list(properties)
        out["additionalProperties"] = False
        return out

    def _property(self, schema: JsonValue, depth: int, *, optional: bool) -> Schema:
        out = self.one(schema, depth + 1)
        if not optional or _takes_null(schema, self.root, 0):
            return out
        if depth:
            self.deep = True
        else:
            self.top = True
        about = {"description": out.pop("description")} if "description" in out else {}
        return {"anyOf": [out, {"type": "null"}], **about}


def _described(schema: Schema) -> dict[str, JsonValue]:
    """The description, with what else the dialect leaves to be told."""
    rest = [
        f"{word}: {dumps(schema[word]).decode()}"
        for word in _TOLD
        if word in schema and not (word == "format" and schema[word] in _FORMATS)
    ]
    text = str(schema.get("description") or "")
    if rest:
        text = f"{text} ({'; '.join(rest)})".strip()
    return {"description": text} if text else {}


def _kinds(schema: Schema) -> list[str]:
    """The types that a schema takes, by its own word or by its values; none where it takes any."""
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return [kinds]
    if isinstance(kinds, list):
        return [str(kind) for kind in kinds]
    if "properties" in schema:
        return ["object"]
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return list(dict.fromkeys(_TYPES[type(v)] for v in values)) if isinstance(values, list) else []


def rooted(schema: Schema) -> Schema:
    """A tool's schema without what providers refuse at its top: Anthropic oneOf, anyOf, allOf, OpenAI enum and not too.

    With such a tool they refuse every request. The properties of all branches stand at the top instead, and the
    description tells the rest; we validate by the whole schema in any case. The same schema where there is none.
    """
    told = {word: schema[word] for word in _TOP if word in schema}
    if not told:
        return schema
    forms: dict[str, list[JsonValue]] = {}
    for branch in _branches([schema], schema):
        properties = branch.get("properties")
        for name, form in properties.items() if isinstance(properties, dict) else ():
            if form not in (known := forms.setdefault(name, [])):
                known.append(form)
    said = "; ".join(f"{word}: {dumps(value).decode()}" for word, value in told.items())
    return {
        **{word: value for word, value in schema.items() if word not in told},
        "description": f"{schema.get('description') or ''} ({said})".strip(),
        "properties": {name: found[0] if len(found) == 1 else {"anyOf": found} for name, found in forms.items()},
    }


def _target(schema: JsonValue, root: Schema) -> Schema:
    """What a schema means when its references are followed."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, dict):
            return {}
        ref = schema.get("$ref")
        if not isinstance(ref, str):
            return schema
        here: JsonValue = root
        for part in ref.removeprefix("#").split("/")[1:]:
            here = here.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(here, dict) else None
        schema = here
    return {}


def _branches(schemas: Iterable[JsonValue], root: Schema, seen: set[int] | None = None) -> Iterator[Schema]:
    """The schemas themselves and all that they are made of, each once, as far as they speak of the same value."""
    seen = set() if seen is None else seen  # they may refer to each other in circles
    for schema in schemas:
        found = _target(schema, root)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        for word in ("anyOf", "oneOf", "allOf"):
            inner = found.get(word)
            if isinstance(inner, list):
                yield from _branches(inner, root, seen)


def _takes_null(schema: JsonValue, root: Schema, depth: int) -> bool:
    found = _target(schema, root)
    inner = found.get("anyOf") or found.get("oneOf") or found.get("allOf")
    if isinstance(inner, list) and depth < MAX_DEPTH:
        return any(_takes_null(one, root, depth + 1) for one in inner)
    return "null" in _kinds(found)


def _without(value: JsonValue, schemas: list[JsonValue], root: Schema, *, top: bool) -> JsonValue:
    """The value without the nulls that mean "left out"."""
    shapes = list(_branches(schemas, root))
    if isinstance(value, list):
        items = [shape["items"] for shape in shapes if "items" in shape]
        return [_without(item, items, root, top=True) for item in value]
    if not isinstance(value, dict):
        return value
    out: dict[str, JsonValue] = {}
    for name, inner in value.items():
        named = [s for s in shapes if isinstance(p := s.get("properties"), dict) and name in p]
        below = [s["properties"][name] for s in named]  # type: ignore[index, call-overload]  # a dict, as seen above
        if inner is None and top and below and _left_out(name, named, below, root):
            continue
        out[name] = _without(inner, below, root, top=True)
    return out


def _left_out(name: str, shapes: list[Schema], below: list[JsonValue], root: Schema) -> bool:
    """Whether null, under this name, can only mean that it is left out."""
    may = any(name not in (shape.get("required") or ()) for shape in shapes)  # type: ignore[operator]  # a list of names
    return may and not any(_takes_null(one, root, 0) for one in below)
