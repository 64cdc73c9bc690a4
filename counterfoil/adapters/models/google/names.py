"""Names of functions as Gemini takes them, and schemas as it reads them.

A name starts with a letter or an underscore and has letters, digits and ``_.:-`` (`FunctionDeclaration.name` of the
SDK). Of a schema the whole JSON Schema may be sent, but beside ``$ref`` there may be nothing else (the API's page on
``FunctionDeclaration`` and ``GenerationConfig``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from counterfoil.adapters.models.shared.replay import legal_name
from counterfoil.core.jsontext import JsonValue, normal

_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Words whose values are schemas by name."""
_VALUES: Final = frozenset({"enum", "const", "default", "examples"})
"""Words whose values are no schemas."""


def wire_name(name: str) -> str:
    """A tool's name as the wire takes it."""
    legal = legal_name(name)
    return legal if legal[0].isalpha() or legal[0] == "_" else f"_{legal[:63]}"


def names_back(offered: Iterable[str]) -> dict[str, str]:
    """The tools' own names by those on the wire."""
    return {wire_name(name): name for name in offered}


def wire_schema(schema: dict[str, JsonValue]) -> JsonValue:
    """A copy of a schema in which references stand alone; surrogate halves are replaced."""
    return _alone(normal(schema))


def _alone(schema: JsonValue) -> JsonValue:
    if isinstance(schema, list):
        return [_alone(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, JsonValue] = {}
    for word, value in schema.items():
        if word in _VALUES:
            out[word] = value
        elif word in _MAPS and isinstance(value, dict):
            out[word] = {name: _alone(one) for name, one in value.items()}
        else:
            out[word] = _alone(value)
    rest = {word: value for word, value in out.items() if not word.startswith("$")}
    if "$ref" not in out or not rest:
        return out
    # The rest speaks of the same value, and stays beside the branch that holds the reference.
    held = {word: value for word, value in out.items() if word.startswith("$") and word != "$ref"}
    inner = rest.pop("anyOf", None)
    branch: JsonValue = {"$ref": out["$ref"]}
    return held | rest | {"anyOf": [branch]} | ({} if inner is None else {"allOf": [{"anyOf": inner}]})
