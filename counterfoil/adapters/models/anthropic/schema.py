"""Anthropic's strict dialect of JSON Schema: the form of an answer, and tools marked ``strict``.

In the dialect an object takes the properties that it names and no others; numbers, texts and most lists have no
limits; nothing refers to itself (Anthropic's guide to structured outputs; the SDK's own `transform_schema`). A property
may be left out, unlike in OpenAI's dialect, so nothing has to be undone in what comes back. What the dialect has no
word for is told in the description; we validate by the whole schema in any case. What cannot be said at all (free keys,
tuples, any value) is None here, and each caller knows another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from counterfoil.core.jsontext import JsonValue, dumps

Schema = dict[str, JsonValue]

MAX_TOOLS: Final = 20
MAX_OPTIONAL: Final = 24
MAX_UNIONS: Final = 16
"""Strict tools, properties that may be left out, and unions of one request, that the guide allows."""

MAX_NODES: Final = 2_000
"""Schemas in one schema when references are written out; they may double with each level."""

_FORMATS: Final = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid",
})  # fmt: skip  # names in rows
_SAID: Final = frozenset({
    "type", "description", "title", "properties", "required", "additionalProperties", "items", "enum", "const",
    "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions", "$schema", "discriminator", "examples",
})  # fmt: skip  # as above
_FREE: Final = ("patternProperties", "prefixItems", "unevaluatedProperties", "unevaluatedItems", "not", "if")


class _Unfit(Exception):
    """The dialect cannot say it."""


@dataclass(frozen=True, slots=True)
class Said:
    """A schema in the dialect, and what it uses of the request's limits."""

    schema: Schema
    optional: int
    unions: int


def in_dialect(schema: Schema) -> Said | None:
    """The schema in the dialect; None where it cannot be said, or is over the limits by itself."""
    writer = _Writer(schema)
    try:
        out = writer.one(schema)
    except _Unfit:
        return None
    if writer.optional > MAX_OPTIONAL or writer.unions > MAX_UNIONS:
        return None
    return Said(out, writer.optional, writer.unions)


class _Writer:
    """One schema on its way into the dialect. References are written out, which finds those that go in circles."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.optional = self.unions = self._nodes = 0
        self._open: list[str] = []
        """References that are being written out."""

    def one(self, schema: JsonValue) -> Schema:
        self._nodes += 1
        if self._nodes > MAX_NODES or not isinstance(schema, dict) or any(map(schema.__contains__, _FREE)):
            raise _Unfit
        if "$ref" in schema:
            return self._reference(schema)
        branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if branches is not None:
            return self._union(schema, branches)
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            if not isinstance(values, list) or not values or any(isinstance(v, (list, dict)) for v in values):
                raise _Unfit
            return {"enum": values, **_described(schema)}
        kinds = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kinds, list):
            return self._counted([self._plain(schema, kind) for kind in kinds], _described(schema))
        return self._plain(schema, kinds) | _described(schema)

    def _reference(self, schema: Schema) -> Schema:
        ref = schema["$ref"]
        if not isinstance(ref, str) or not ref.startswith("#") or ref in self._open or "properties" in schema:
            raise _Unfit
        target: JsonValue = self.root
        for part in ref.removeprefix("#").split("/")[1:]:
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        self._open.append(ref)
        try:
            return self.one(target) | _described(schema)
        finally:
            self._open.pop()

    def _union(self, schema: Schema, branches: JsonValue) -> Schema:
        if not isinstance(branches, list) or "properties" in schema or "items" in schema:
            raise _Unfit
        if "allOf" in schema and (len(branches) > 1 or "anyOf" in schema or "oneOf" in schema):
            raise _Unfit
        return self._counted([self.one(branch) for branch in branches], _described(schema))

    def _counted(self, branches: list[Schema], about: Schema) -> Schema:
        if len(branches) == 1:
            return branches[0] | about
        self.unions += 1
        return {"anyOf": list(branches), **about}

    def _plain(self, schema: Schema, kind: JsonValue) -> Schema:
        match kind:
            case "object":
                return self._object(schema)
            case "array":
                fewest = schema.get("minItems")
                few: Schema = {"minItems": fewest} if fewest in (0, 1) else {}
                return {"type": "array", "items": self.one(schema.get("items")), **few}
            case "string":
                form = schema.get("format")
                return {"type": "string", "format": form} if form in _FORMATS else {"type": "string"}
            case "integer" | "number" | "boolean" | "null":
                return {"type": str(kind)}
            case _:
                raise _Unfit

    def _object(self, schema: Schema) -> Schema:
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        # Without a word on other keys they are allowed; where no key is named they are all that there is.
        if not isinstance(properties, dict) or extra not in (None, False) or (not properties and extra is None):
            raise _Unfit
        required = schema.get("required")
        must = [name for name in required if name in properties] if isinstance(required, list) else []
        if isinstance(required, list) and len(must) < len(required):
            raise _Unfit
        self.optional += len(properties) - len(must)
        return {
            "type": "object",
            "properties": {name: self.one(child) for name, child in properties.items()},
            "required": list(must),
            "additionalProperties": False,
        }


def _described(schema: Schema) -> Schema:
    """The description, with what else the dialect leaves to be told."""
    text = str(schema.get("description") or "")
    rest = [
        f"{word}: {dumps(value).decode()}"
        for word, value in schema.items()
        if word not in _SAID
        and not (word == "format" and value in _FORMATS)
        and not (word == "minItems" and value in (0, 1))
    ]
    if rest:
        text = f"{text} ({'; '.join(rest)})".strip()
    return {"description": text} if text else {}
