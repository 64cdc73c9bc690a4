"""Pydantic's errors as complaints: what was expected and what came, in words for a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from counterfoil.arguments import MISSING, Json, describe, no_such_field, schemas_at, wanted

_EXPECTED = {
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer that is not that long",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "decimal_type": "a number",
    "decimal_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "bytes_type": "a string",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "an object",
    "mapping_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dataclass_type": "an object",
}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument", "unexpected_positional_argument")
_ABSENT = ("missing", "missing_argument", "missing_keyword_only_argument", "missing_positional_only_argument")
# The last "or" of a list of literals, but none inside of one.
_LAST_OR = re.compile(r" or (?=(?:'[^']*'|[^' ]+)$)")

Found = tuple[list[str | int], str, str]


def complaints_of(error: ValidationError, value: Json, schema: Json) -> Iterator[Found]:
    """Path, what was expected and what came, for each error of Pydantic on ``value``.

    Args:
        error: what Pydantic raised.
        value: the decoded input; only it tells a step of a path from the name of a union's branch.
        schema: the JSON Schema of the input; it knows which names are good, and what is secret.
    """
    for line in error.errors(include_url=False):
        path = _path(line, value)
        if line["type"] in _UNKNOWN:
            yield path, no_such_field(schemas_at(schema, path[:-1])), describe(line["input"])
        elif line["type"] in _ABSENT:
            yield path, wanted(schemas_at(schema, path)), MISSING
        else:
            secret = any(one.get("writeOnly") or one.get("format") == "password" for one in schemas_at(schema, path))
            yield path, _expected(line), describe(line["input"], secret=secret)


def _path(line: ErrorDetails, value: object) -> list[str | int]:
    here: Any = value
    path: list[str | int] = []
    loc: Sequence[str | int] = line["loc"]
    for number, step in enumerate(loc):
        known = isinstance(here, dict) and step in here
        if known or (isinstance(here, list) and isinstance(step, int) and step < len(here)):
            here = here[step]
        elif line["type"] not in _ABSENT or number < len(loc) - 1:
            continue  # the name of a union's branch
        path.append(step)
    return path


def _expected(line: ErrorDetails) -> str:
    kind, context = line["type"], line.get("ctx", {})
    if kind in ("literal_error", "enum"):
        choices = _LAST_OR.sub(", ", context["expected"])
        text = f"one of {choices}" if choices != context["expected"] else f"exactly {choices}"
    elif kind == "union_tag_invalid":
        text = f"an object whose {context['discriminator']} is one of {context['expected_tags']}"
    elif kind == "union_tag_not_found":
        text = f"an object with the field {context['discriminator']}"
    elif kind in _EXPECTED:
        text = _EXPECTED[kind]
    else:
        text = line["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        text = text.removeprefix("Assertion failed, ").replace("Input should", "it should")
        text = text.replace("String should", "a string should").replace("List should", "a list should")
    return f"a field name that is {text}" if line["loc"] and line["loc"][-1] == "[key]" else text
