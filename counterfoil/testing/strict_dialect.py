"""The rules of OpenAI's strict dialect of JSON Schema, as its server has them (guide to structured outputs)."""

from __future__ import annotations

from typing import Any, Final

from counterfoil.testing.fake_server import Fault

_WORDS: Final = frozenset({
    "$defs", "definitions", "$ref", "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum",
    "const", "description", "title", "format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minItems", "maxItems",
})  # fmt: skip  # names in rows
_FORMATS: Final = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
})  # fmt: skip  # as above


NOT_ON_TOP: Final = ("oneOf", "anyOf", "allOf", "enum", "not")
"""What a tool's schema may not have at its top, strict or not (the API's own error says so)."""


def dialect_fault(schema: Any, param: str) -> Fault | None:
    """The first thing in a schema that the dialect refuses; None where there is none."""
    if not isinstance(schema, dict) or schema.get("type") != "object" or "anyOf" in schema:
        return Fault("schema must be a JSON Schema of 'type: \"object\"'", param)
    return _fault(schema, param)


def _fault(schema: Any, place: str) -> Fault | None:
    if not isinstance(schema, dict):
        return Fault("a schema is an object", place)
    if strange := sorted(schema.keys() - _WORDS):
        return Fault(f"'{strange[0]}' is not permitted", place)
    if "$ref" in schema and len(schema) > 1:
        return Fault("$ref cannot have keywords beside it", place)
    if not {"type", "anyOf", "$ref", "enum", "const"} & schema.keys():
        return Fault("schema must have a 'type' key", place)
    if schema.get("format", "date") not in _FORMATS:
        return Fault(f"the format {schema['format']!r} is not permitted", place)
    kinds = schema.get("type")
    if "object" in ([kinds] if isinstance(kinds, str) else kinds or ()):
        if schema.get("additionalProperties") is not False:
            return Fault("'additionalProperties' is required to be supplied and to be false", place)
        if sorted(schema.get("required", ())) != sorted(schema.get("properties", {})):
            return Fault("'required' is required to be an array including every key in properties", place)
    if (kinds == "array" or (isinstance(kinds, list) and "array" in kinds)) and "items" not in schema:
        return Fault("array schema missing items", place)
    for name, child in _children(schema):
        if (fault := _fault(child, f"{place}.{name}")) is not None:
            return fault
    return None


def _children(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    named = [
        (name, child) for word in ("$defs", "definitions", "properties") for name, child in schema.get(word, {}).items()
    ]
    branches = [(f"anyOf.{number}", child) for number, child in enumerate(schema.get("anyOf", ()))]
    return [*named, *branches, *([("items", schema["items"])] if "items" in schema else [])]
