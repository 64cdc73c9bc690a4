"""The schema of a tool's parameters from a function's signature, through Pydantic.

The names that this file gives on (`dynamic_schema`, `Complaint` and the errors) are all that other rooms
need.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, get_args, get_origin

from pydantic import ConfigDict, Field, SecretBytes, SecretStr, TypeAdapter, ValidationError, with_config
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, from_json, to_json

from counterfoil.arguments import (
    ArgumentsSchema,
    Complaint,
    InvalidArguments,
    Json,
    NotAnObject,
    SchemaError,
    check_name,
    decode,
    describe,
    refusal,
)
from counterfoil.docstring import read_docstring
from counterfoil.dynamic import dynamic_schema
from counterfoil.refused import complaints_of
from counterfoil.signature import (
    call_of,
    check_callable,
    docstring_of,
    hints_of,
    only_one,
    owner_of,
    parameters_of,
    role_of,
)

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:  # Pydantic takes only this one before 3.12, and brings it along
    from typing_extensions import TypedDict

__all__ = [
    "ArgumentsSchema",
    "Complaint",
    "FunctionSchema",
    "InvalidArguments",
    "NotAnObject",
    "SchemaError",
    "dynamic_schema",
    "inspect_function",
]

_NOTHING: Any = inspect.Parameter.empty
_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSchema(ArgumentsSchema):
    """What a function's parameters mean; made by `inspect_function`.

    Text is read as Pydantic reads JSON: the text ``"7"`` is good for an integer, the integer 7 is not good
    for text. Fields that nobody declared are refused, at every depth, unless a model of the author says
    otherwise. NaN and infinities are refused.
    """

    name: str
    """The tool's name."""
    description: str
    """What the model reads of the tool; empty where there is no docstring."""
    json_schema: Json
    """See `ArgumentsSchema`."""
    context: str | None
    """The parameter that takes the ToolContext."""
    deps: str | None
    """The parameter that takes the run's deps."""
    is_async: bool
    """A call gives an awaitable."""
    is_generator: bool
    """A call gives an iterator."""
    is_async_generator: bool
    """A call gives an async iterator."""
    _adapter: TypeAdapter[Any]
    _validate_json: Callable[..., Json]
    _extra: Any
    _may_be_left_out: frozenset[str]
    _leading: tuple[tuple[str, object], ...]
    _exact_dump: bool

    def parse(self, raw: str | None) -> Json:
        """See `ArgumentsSchema.parse`; defaults are filled in, but for those that have no JSON form."""
        # The way of nearly all calls is one call of the validator. What it refuses is looked at again,
        # slowly; it reads the literals NaN and Infinity, which are no JSON.
        # A search for one letter runs some ten times faster through a long text than one for a word.
        if raw and ("N" not in raw or "NaN" not in raw) and ("I" not in raw or "Infinity" not in raw):
            try:
                return self._validate_json(raw, extra=self._extra)
            except Exception:  # noqa: BLE001, S110  # read again below, which says what it was
                pass
        return self._parse_slowly(raw)

    def _parse_slowly(self, raw: str | None) -> Json:
        value = decode(raw)
        while True:
            try:
                return self._validate_json(to_json(value, inf_nan_mode="constants"), extra=self._extra)
            except ValidationError as error:
                # A strict schema lists all parameters as required, and a model then writes null to leave
                # one out.
                refused = {first[0] for line in error.errors(include_url=False) if (first := line["loc"])}
                left_out = [k for k in refused & self._may_be_left_out if k in value and value[k] is None]
                if not left_out:
                    raise refusal(complaints_of(error, value, self.json_schema)) from error
                value = {k: v for k, v in value.items() if k not in left_out}
            except Exception as error:
                # A validator of the author that raises what Pydantic does not expect; its text may hold
                # secrets.
                expected = f"what the tool's own check can read (it raised {type(error).__name__})"
                raise InvalidArguments([Complaint("", expected, describe(value))]) from error

    def dump(self, arguments: Json) -> object:
        """See `ArgumentsSchema.dump`; a secret is written as it is, so that the call can run later."""
        write = self._adapter.serializer.to_python
        plain = write(arguments, mode="json", by_alias=True, warnings=False)
        if self._exact_dump:
            return _exact(write(arguments, by_alias=True, warnings=False), plain)
        return plain

    def write(self, arguments: Json) -> bytes:
        """See `ArgumentsSchema.write`."""
        if not self._exact_dump:
            try:
                return self._adapter.serializer.to_json(arguments, by_alias=True, warnings=False)
            except PydanticSerializationError:
                pass  # half a surrogate pair, which is replaced then, or no JSON form
        return ArgumentsSchema.write(self, arguments)

    @property
    def bare(self) -> bool:
        """A call is ``await fn(**arguments)``."""
        return self.is_async and self.context is self.deps is None and not self._leading

    def bind(self, arguments: Json, context: object, deps: object) -> tuple[tuple[Any, ...], Json]:
        """The positional and the keyword arguments of the call; ``arguments`` come from `parse`."""
        named = dict(arguments)
        if self.context is not None:
            named[self.context] = context
        if self.deps is not None:
            named[self.deps] = deps
        if not self._leading:
            return (), named
        return tuple([named.pop(name, default) for name, default in self._leading]), named


def _exact(value: object, plain: Any) -> Any:
    """``plain``, the JSON form of ``value``, with sets in a fixed order and secrets in the clear."""
    if isinstance(value, (set, frozenset)):
        return sorted(plain, key=to_json)
    if isinstance(value, (SecretStr, SecretBytes)):
        secret = value.get_secret_value()
        return secret if isinstance(secret, str) else secret.decode()
    if isinstance(value, dict) and isinstance(plain, dict) and len(value) == len(plain):
        return {key: _exact(v, p) for v, (key, p) in zip(value.values(), plain.items(), strict=True)}
    if isinstance(value, (list, tuple)) and isinstance(plain, list) and len(value) == len(plain):
        return [_exact(v, p) for v, p in zip(value, plain, strict=True)]
    return plain


def inspect_function(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    context_types: tuple[type, ...],
    deps_marker: type | None = None,
) -> FunctionSchema:
    """The schema of a function's parameters.

    Args:
        fn: a function, bound method, static method, partial, or an object with ``__call__``. What a
            partial binds by name is fixed: it is not offered.
        name: the tool's name, where it is not the function's own.
        description: what the model reads, where it is not the docstring's text.
        context_types: a parameter of one of these types, or of a subclass, takes the context.
        deps_marker: a parameter annotated with ``Annotated[T, deps_marker]`` or with
            ``Annotated[T, deps_marker()]`` takes the deps.

    Raises:
        SchemaError: the function cannot be a tool; the message begins with its name.
    """
    owner = owner_of(fn)
    name = name if name is not None else getattr(owner, "__name__", type(owner).__name__)
    check_name(name)
    check_callable(name, fn)
    documented = read_docstring(docstring_of(fn, owner))
    parameters = parameters_of(name, fn)
    hints = hints_of(name, fn, parameters, context_types)
    roles = {p: role_of(hint, context_types, deps_marker) for p, hint in hints.items()}
    own = [p for p in parameters if roles[p.name] is None]
    fields = {p.name: _field(p, hints[p.name], documented.parameters.get(p.name)) for p in own}
    adapter, json_schema, extra = _build(name, fields)
    call = call_of(fn)
    schema = FunctionSchema(
        name=name,
        description=documented.description if description is None else description,
        json_schema=json_schema,
        context=only_one(name, roles, "context"),
        deps=only_one(name, roles, "deps"),
        is_async=inspect.iscoroutinefunction(call),
        is_generator=inspect.isgeneratorfunction(call),
        is_async_generator=inspect.isasyncgenfunction(call),
        _adapter=adapter,
        _validate_json=adapter.validator.validate_json,
        _extra=extra,
        _may_be_left_out=frozenset(json_schema["properties"]) - frozenset(json_schema["required"]),
        _leading=tuple((p.name, p.default) for p in parameters if p.kind is _POSITIONAL_ONLY),
        _exact_dump=b'"uniqueItems"' in (text := to_json(json_schema)) or b'"writeOnly"' in text,
    )
    _dry_bind(fn, schema, own)
    return schema


def _field(p: inspect.Parameter, hint: Any, documented: str | None) -> Any:
    """The annotation of the parameter's field, with its default and its description."""
    marks = list(get_args(hint)[1:]) if get_origin(hint) is Annotated else []
    if isinstance(p.default, FieldInfo):
        hint, marks = Annotated[hint, p.default], [*marks, p.default]
    elif p.default is not _NOTHING and _is_json(p.default):
        hint = Annotated[hint, Field(default=p.default)]
    if not any(isinstance(mark, FieldInfo) and mark.description for mark in marks):
        text = next((mark for mark in marks if isinstance(mark, str)), documented)
        hint = Annotated[hint, Field(description=text)] if text else hint
    # A default that is no JSON can be neither offered nor recorded; the function itself fills it in.
    given = p.default is _NOTHING or isinstance(p.default, FieldInfo) or _is_json(p.default)
    return hint if given else NotRequired[hint]


def _is_json(value: object) -> bool:
    if value is ...:  # Pydantic would take it as "required"
        return False
    try:
        from_json(to_json(value, inf_nan_mode="constants"), allow_inf_nan=False)
    except ValueError:
        return False
    return True


class _Offered(GenerateJsonSchema):
    """JSON Schema as models read it; a default that is no JSON is left out without a warning."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # Pydantic's own


def _build(name: str, fields: dict[str, Any]) -> tuple[TypeAdapter[Any], Json, str | None]:
    try:
        adapter = _adapter(name, fields)
        offered = adapter.json_schema(schema_generator=_Offered)
    except Exception as error:
        culprit = next((p for p, field in fields.items() if not _stands_alone(p, field)), None)
        where = f"the parameter {culprit!r}" if culprit else "the signature"
        said = str(getattr(error, "message", error)).partition("\n")[0].partition(". Set ")[0]
        raise SchemaError(
            f"{name}: {where} expected types that JSON can hold; {said}; use a type that Pydantic has a "
            "JSON Schema for",
        ) from error
    # Pydantic drops unknown fields of a nested model unless told otherwise, and nobody notices a misspelt
    # one. It can be told for a whole call only, so an author's own word on one model counts for the tool.
    extra = None if _author_decides(adapter.core_schema) else "forbid"
    _tidy(offered, closed=extra == "forbid")
    definitions = {"$defs": offered["$defs"]} if "$defs" in offered else {}
    return (
        adapter,
        {
            "type": "object",
            "properties": offered.get("properties", {}),
            "required": offered.get("required", []),
            "additionalProperties": False,
            **definitions,
        },
        extra,
    )


def _adapter(name: str, fields: dict[str, Any]) -> TypeAdapter[Any]:
    # A typed dict, since it takes any name as a key: `self`, `json`, `_x` and `model_config` too.
    record: Any = TypedDict(name, fields)  # type: ignore[misc]  # its keys are known at run time
    adapter = TypeAdapter[Any](with_config(ConfigDict(extra="forbid", allow_inf_nan=False))(record))
    adapter.rebuild(raise_errors=True)
    return adapter


def _stands_alone(parameter: str, field: Any) -> bool:
    try:
        _adapter("one", {parameter: field}).json_schema(schema_generator=_Offered)
    except Exception:  # noqa: BLE001  # any failure is the answer
        return False
    return True


def _author_decides(core: object) -> bool:
    """Whether a nested model says itself what happens to fields that it does not know."""
    if isinstance(core, dict):
        config = core.get("config")
        if isinstance(config, dict) and config.get("extra_fields_behavior") in ("allow", "ignore"):
            return True
        return any(_author_decides(v) for k, v in core.items() if k not in ("metadata", "serialization"))
    return isinstance(core, (list, tuple)) and any(map(_author_decides, core))


def _tidy(schema: object, *, closed: bool) -> None:
    """Drop titles, give enumerations the type that fits; if ``closed``, objects take no other fields."""
    if not isinstance(schema, dict):
        return
    schema.pop("title", None)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    kinds = {_KINDS.get(type(value)) for value in values}
    if "type" not in schema and len(kinds) == 1 and (kind := kinds.pop()):
        schema["type"] = kind
    if closed and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    for child in _below(schema):
        _tidy(child, closed=closed)


_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _below(schema: Json) -> Iterator[object]:
    for key in ("$defs", "properties", "patternProperties"):
        yield from schema.get(key, {}).values()
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        yield from schema.get(key, ())
    for key in ("items", "additionalProperties", "not", "propertyNames", "contains"):
        yield schema.get(key)


def _dry_bind(fn: Callable[..., Any], schema: FunctionSchema, own: Sequence[inspect.Parameter]) -> None:
    args, kwargs = schema.bind(dict.fromkeys(p.name for p in own), None, None)
    try:
        inspect.signature(fn).bind(*args, **kwargs)
    except TypeError as error:
        raise SchemaError(f"{schema.name}: expected a function that can be called by its signature; {error}") from error
