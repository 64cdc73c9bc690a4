"""Validation by a JSON Schema of somebody else: an MCP server, or a tool without a function.

Nothing is fetched: a reference that leads out of the schema is refused when the tool is defined. ``format``
is a note to the reader and is not checked, under every draft alike: servers write formats that they do not
mean, and the tool checks its own input. Patterns run on an engine that takes linear time; one that needs
look-around or back-references runs on another, whose work is bounded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from counterfoil.arguments import (
    MAX_COMPLAINTS,
    MISSING,
    ArgumentsSchema,
    Complaint,
    InvalidArguments,
    Json,
    SchemaError,
    check_name,
    decode,
    describe,
    no_such_field,
    one_of,
    pointed,
    refusal,
    schemas_at,
    type_words,
    wanted,
)

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

MAX_CHECKS = 10_000
"""Parts of a schema that may look at one value. Definitions that each name the next one twice double it at
every step: 30 of them would take longer than anybody waits."""
MAX_BYTES = 512 * 1024
"""Bytes of a schema, 512 KiB: some 100,000 tokens. Chains of references cannot exhaust the stack then."""
MAX_CHAIN = 200
"""References and alternatives one below the other that look at one value; as many levels as JSON may have."""
BACKTRACKS = 100_000
"""Steps back of a pattern that needs look-around, about 10 ms; beyond that the text counts as not
matching."""

Found = tuple[list[str | int], str, str]


def dynamic_schema(name: str, schema: Json) -> ArgumentsSchema:
    """The meaning of a JSON Schema: draft 2020-12, or the draft that its ``$schema`` names.

    Args:
        name: the tool's name, for the messages.
        schema: an object schema; it is copied, and offered to models unchanged.

    Raises:
        SchemaError: the tool's name is not a legal one, or the schema is not valid, is no object schema,
        refers to
            something outside of itself, or would take too long to check.
    """
    check_name(name)
    if not isinstance(schema, dict) or schema.get("type") != "object":
        got = f"the type {schema.get('type')!r}" if isinstance(schema, dict) else describe(schema)
        raise SchemaError(f'{name}: expected an object schema, got {got}; write {{"type": "object", …}}')
    try:
        written = to_json(schema, inf_nan_mode="constants")
        same = from_json(written, allow_inf_nan=False) == schema
    except ValueError as error:
        raise SchemaError(f"{name}: expected a schema that JSON can hold; {error}") from error
    if not same:
        raise SchemaError(f"{name}: expected a schema of JSON values, got other Python values; use lists and dicts")
    if len(written) > MAX_BYTES:
        raise SchemaError(
            f"{name}: expected a schema of at most {MAX_BYTES} bytes, got {len(written)}; shorten it",
        )
    if _Cost(schema).most() > MAX_CHECKS:
        raise SchemaError(
            f"{name}: expected a schema of which at most {MAX_CHECKS} parts look at one value; "
            "its references multiply; name each definition once",
        )
    return DynamicSchema(copy.deepcopy(schema), _compile(name, schema))


class DynamicSchema(ArgumentsSchema):
    """What a tool's parameters mean by a given JSON Schema; made by `dynamic_schema`."""

    __slots__ = ("_validator", "json_schema")

    def __init__(self, json_schema: Json, validator: Validator) -> None:
        self.json_schema = json_schema
        self._validator = validator

    def parse(self, raw: str | None) -> Json:
        """See `ArgumentsSchema.parse`; defaults are not filled in, since only the schema's author may."""
        value = decode(raw)
        try:
            if self._validator.is_valid(value):
                return value
            spare = self._left_out(value)
            value = {key: item for key, item in value.items() if key not in spare}
            errors = self._validator.iter_errors(value)
            # One more than is shown tells that there are more; a union's branches count as one error here.
            found = [item for error in islice(errors, MAX_COMPLAINTS + 1) for item in _found(error, self.json_schema)]
        except ValueError as error:  # a value that the validator cannot hold
            raise InvalidArguments(
                [Complaint("", f"a value that can be checked ({error})", describe(value))]
            ) from error
        if found:
            raise refusal(found)
        return value

    def dump(self, arguments: Json) -> object:
        """The arguments, which are plain JSON already."""
        return arguments

    def _left_out(self, value: Json) -> set[str]:
        """Parameters that may be left out, and that the schema refuses only because they are null."""
        properties = self.json_schema.get("properties", {})
        spare = {k for k, v in value.items() if v is None and k in properties} - set(
            self.json_schema.get("required", ())
        )
        if not spare:
            return set()
        return {str(e.instance_path[0]) for e in self._validator.iter_errors(value) if e.instance_path} & spare


def _compile(name: str, schema: Json) -> Validator:
    # Imported only here: most programs have no such tool.
    from jsonschema_rs import FancyRegexOptions, RegexOptions, ValidationError, validator_for

    failure: Exception | None = None
    for patterns in (RegexOptions(), FancyRegexOptions(backtrack_limit=BACKTRACKS)):
        try:
            return validator_for(schema, offline=True, validate_formats=False, pattern_options=patterns)
        except ValidationError as error:
            failure = error
            if "regex" not in error.message:
                break
        except Exception as error:  # noqa: BLE001  # such as nesting that is too deep
            failure = error
            break
    said = str(getattr(failure, "message", failure))
    at = "/".join(map(str, getattr(failure, "instance_path", ())))
    advice = "put what it refers to into $defs" if "not present in a registry" in said else "correct it"
    raise SchemaError(f"{name}: expected a valid JSON Schema; at /{at}: {said[:500]}; {advice}") from failure


class _Cost:
    """How many parts of a schema look at the same value, references followed."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._known: dict[int, int] = {}
        self._parts: list[Json] = []
        self._named: dict[str, Json] = {}
        self._index(root)

    def _index(self, node: object) -> None:
        if isinstance(node, dict):
            self._parts.append(node)
            for key in ("$id", "id", "$anchor", "$dynamicAnchor"):
                if isinstance(name := node.get(key), str):
                    self._named.setdefault(name.rpartition("/")[2].lstrip("#"), node)
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        for child in children:
            self._index(child)

    def most(self) -> int:
        """The number for the part where it is greatest."""
        return max(self._of(part, 0) for part in self._parts)

    def _of(self, node: object, depth: int) -> int:
        if not isinstance(node, dict):
            return 1
        if depth > MAX_CHAIN:
            return MAX_CHECKS + 1
        if id(node) not in self._known:
            self._known[id(node)] = 1  # a definition that comes back to itself on the same value counts once
            self._known[id(node)] = 1 + sum([self._of(child, depth + 1) for child in self._same_value(node)])
        return self._known[id(node)]

    def _same_value(self, node: Json) -> Iterator[object]:
        for key in ("allOf", "anyOf", "oneOf"):
            yield from children if isinstance(children := node.get(key), list) else ()
        for key in ("not", "if", "then", "else"):
            yield node.get(key)
        for key in ("dependentSchemas", "dependencies"):
            yield from children.values() if isinstance(children := node.get(key), dict) else ()
        for key in ("$ref", "$dynamicRef"):
            if isinstance(ref := node.get(key), str):
                yield self._target(ref)

    def _target(self, ref: str) -> object:
        if ref == "#":
            return self._root
        base, _, fragment = ref.partition("#")
        if fragment.startswith("/"):
            return pointed(self._named.get(base.rpartition("/")[2], self._root), ref[ref.index("#") :])
        return self._named.get(fragment or base.rpartition("/")[2])


# What each keyword expects, from the values that its error carries.
_EXPECTED: dict[str, Callable[[Any], str]] = {
    "type": lambda kind: type_words(sorted(kind.types, key="null".__eq__)),
    "enum": lambda kind: one_of(kind.options),
    "const": lambda kind: one_of([kind.expected_value]),
    "minimum": lambda kind: f"at least {kind.limit}",
    "maximum": lambda kind: f"at most {kind.limit}",
    "exclusiveMinimum": lambda kind: f"more than {kind.limit}",
    "exclusiveMaximum": lambda kind: f"less than {kind.limit}",
    "multipleOf": lambda kind: f"a multiple of {kind.multiple_of}",
    "minLength": lambda kind: f"at least {kind.limit} characters",
    "maxLength": lambda kind: f"at most {kind.limit} characters",
    "pattern": lambda kind: f"text that matches the pattern {kind.pattern}",
    "minItems": lambda kind: f"at least {kind.limit} items",
    "maxItems": lambda kind: f"at most {kind.limit} items",
    "additionalItems": lambda kind: f"at most {kind.limit} items",
    "unevaluatedItems": lambda _: "no further items",
    "uniqueItems": lambda _: "items that all differ",
    "contains": lambda _: "a list with an item that the schema asks for",
    "minProperties": lambda kind: f"at least {kind.limit} fields",
    "maxProperties": lambda kind: f"at most {kind.limit} fields",
    "falseSchema": lambda _: "nothing here",
    "oneOf": lambda _: "a value that fits exactly one of the alternatives",
    "not": lambda _: "a value other than those that the schema forbids",
}


def _found(error: ValidationError, root: Json) -> Iterator[Found]:
    """Path, what was expected and what came, of one error; of a union, those of its branches."""
    kind: Any = error.kind
    path = list(error.instance_path)
    if kind.name in ("additionalProperties", "unevaluatedProperties"):
        for name in kind.unexpected:
            yield [*path, name], no_such_field(schemas_at(root, path)), describe(error.instance.get(name))  # type: ignore[union-attr]
    elif kind.name == "required":
        yield [*path, kind.property], wanted(schemas_at(root, [*path, kind.property])), MISSING
    elif kind.name == "propertyNames":
        for _, expected, got in _found(kind.error, root):
            yield path, f"field names: {expected}", got
    elif kind.name in ("anyOf", "oneOf") and (branches := [e for branch in _branches(kind) for e in branch]):
        for branch in branches:
            yield from _found(branch, root)
    else:
        said = _EXPECTED.get(kind.name)
        secret = any(one.get("writeOnly") or one.get("format") == "password" for one in schemas_at(root, path))
        yield (
            path,
            said(kind) if said else f"what {kind.name!r} asks for",
            describe(error.instance, secret=secret),
        )


def _branches(kind: Any) -> list[list[ValidationError]]:
    return [] if type(kind).__name__ == "OneOfMultipleValid" else list(kind.context)
