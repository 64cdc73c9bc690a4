"""The rules of OpenAI's server for tools, and of its strict dialect of JSON Schema (guide to structured outputs)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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


NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The name of a tool, as OpenAI takes it."""
_NOT_ON_TOP: Final = ("oneOf", "anyOf", "allOf", "enum", "not")
"""What a tool's schema may not have at its top, strict or not (the API's own error says so)."""


def tools_fault(body: Mapping[str, Any], within: str = "") -> Fault | None:
    """The first thing in a request's tools that the server refuses; None where there is none.

    Args:
        body: the request's.
        within: the field of a tool that holds name, schema and ``strict``, with a point before it; empty: they stand in
            the tool itself, and ``strict`` has to be said.
    """
    tools = body.get("tools")
    if tools is None:
        needless = {"tool_choice", "parallel_tool_calls"} & body.keys()
        return Fault("only allowed with tools", needless.pop()) if needless else None
    if not isinstance(tools, list) or not tools:
        return Fault("tools is an empty list", "tools")
    names = set()
    for place, tool in enumerate(tools):
        here, said = f"tools[{place}]{within}", (tool.get(within[1:]) or {}) if within else tool
        name, schema = said.get("name"), said.get("parameters", {"type": "object"} if within else None)
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in names:
            return Fault(f"the tool's name {name!r} is illegal or not the first", f"{here}.name")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            return Fault("the schema is of no object", f"{here}.parameters")
        if not schema.keys().isdisjoint(_NOT_ON_TOP):
            return Fault("oneOf, anyOf, allOf, enum or not at the top level", f"{here}.parameters")
        if not within and not isinstance(said.get("strict"), bool):
            return Fault("strict is not said, and would be taken as true", f"{here}.strict")
        if said.get("strict") and (fault := dialect_fault(schema, f"{here}.parameters")) is not None:
            return fault
        names.add(name)
    return None


def arguments_fault(call: Mapping[str, Any], param: str) -> Fault | None:
    """What is wrong with the arguments of a call: they have to be a JSON object."""
    try:
        arguments = json.loads(call["arguments"], parse_constant=_no_constant)
    except (KeyError, TypeError, ValueError):
        arguments = None
    return None if isinstance(arguments, dict) else Fault("the arguments are no JSON object", f"{param}.arguments")


def _no_constant(name: str) -> None:
    raise ValueError(name)


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
