"""Tools: what a developer writes, and what the gateway knows of it."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, Literal, cast, overload

from counterfoil.arguments import ArgumentsSchema, SchemaError, check_name
from counterfoil.core.call import Offer
from counterfoil.core.jsontext import JsonValue
from counterfoil.crossing import check_importable
from counterfoil.toolcontext import ToolContext

RESERVED_NAMES = frozenset({"read_result", "dispatch", "ask"})
"""Names of built-in tools."""


class Deps:
    """Marks a parameter that takes the run's deps: ``db: Annotated[Shop, Deps]``. It is never in the schema."""


SETTINGS = (
    "read_only", "idempotent", "destructive", "needs_approval", "ends_run", "advisory", "sequential", "lock",
    "on_interrupted", "timeout", "max_output_bytes", "on_oversize", "expose", "isolation", "retries", "offered",
    "approvers", "not_caller",
)  # fmt: skip  # a list of names reads better in rows


class Tool:
    """A tool: name, description, schema, body and settings. Calling it calls the function that it was made from.

    Made by the decorator `tool`, or directly for a tool without a function: its body then takes the arguments as one
    dict, after the ToolContext if it has two parameters.

    Raises:
        DefinitionError: it cannot be offered as written; the message begins with its name.
    """

    name: str
    description: str
    schema: ArgumentsSchema
    read_only: bool
    """It changes nothing: allowed without a rule, and safe to run again."""
    idempotent: bool
    """Running it twice with the same key does what running it once does."""
    safe: bool
    """It may run again after an unknown end: read_only or idempotent."""
    destructive: bool
    """It destroys something; for policies."""
    needs_approval: bool | Callable[..., Any]
    """A person must approve: True, or a function of (context, input)."""
    approvers: tuple[str, ...]
    """Who may decide on its calls where the rule that asks names nobody: users, and ``role:NAME``; empty: anybody."""
    not_caller: bool
    """Whether the run's own user is kept from deciding on its calls."""
    ends_run: bool
    """A success ends the run."""
    advisory: bool
    """Its results have no vote."""
    sequential: bool
    """A barrier in its batch."""
    lock: str | None
    """Calls of a tenant whose formatted lock is equal never overlap; ``{name}`` stands for a parameter."""
    on_interrupted: Literal["ask", "tell"]
    """After a crash in its body: wait for a person, or tell the model."""
    timeout: float | None
    """Seconds."""
    max_output_bytes: int | None
    """None: the run's ``output_bytes``."""
    on_oversize: Literal["keep", "fail"]
    expose: tuple[type[BaseException], ...]
    """Exceptions whose message reaches the model."""
    isolation: Literal["thread", "process"]
    """Where a body runs; ``process`` can be killed."""
    retries: int
    """Further attempts after a failure; of a safe tool only."""
    offered: Callable[..., Any] | None
    """Whether it is offered in this turn: a function of the context."""
    waits: bool
    """Its calls have no body: they wait for another run, or for a person's answer."""

    def __init__(
        self,
        name: str,
        description: str,
        input_schema: dict[str, JsonValue],
        fn: Callable[..., Any],
        **settings: Any,
    ) -> None:
        from counterfoil.dynamic import dynamic_schema  # jsonschema_rs is slow to import; few programs need it

        check_name(name)
        _not_reserved(name)
        self._fill(name, description, dynamic_schema(name, input_schema), fn, settings)
        self.dynamic = True

    def _fill(
        self, name: str, description: str, schema: ArgumentsSchema, fn: Callable[..., Any], settings: dict[str, Any]
    ) -> None:
        self.name = name
        self.description = description
        self.schema = schema
        self.fn = fn
        self.dynamic = False
        self.builtin = False
        self.waits = False
        self.settings = settings
        unknown = sorted(set(settings) - set(SETTINGS))
        if unknown:
            raise SchemaError(f"{name}: unknown setting {unknown[0]!r}; the settings are: {', '.join(SETTINGS)}")
        for key in ("read_only", "idempotent", "destructive", "ends_run", "advisory", "sequential", "not_caller"):
            flag = settings.get(key, False)
            if not isinstance(flag, bool):
                raise SchemaError(f"{name}: {key} must be True or False, got {flag!r:.80}")
            setattr(self, key, flag)
        self.safe = self.read_only or self.idempotent
        self.needs_approval = settings.get("needs_approval", False)
        self.lock = settings.get("lock")
        self.on_interrupted = _one_of(name, "on_interrupted", settings.get("on_interrupted", "ask"), ("ask", "tell"))
        self.timeout = settings.get("timeout")
        self.max_output_bytes = settings.get("max_output_bytes")
        self.on_oversize = _one_of(name, "on_oversize", settings.get("on_oversize", "keep"), ("keep", "fail"))
        expose = settings.get("expose", ())
        self.expose = expose if isinstance(expose, tuple) else (expose,) if isinstance(expose, type) else tuple(expose)
        self.isolation = _one_of(name, "isolation", settings.get("isolation", "thread"), ("thread", "process"))
        self.retries = settings.get("retries", 0)
        self.offered = settings.get("offered")
        self.approvers = settings.get("approvers", ())
        self._check()
        self._check_lock()
        if self.isolation == "process":
            self._check_process()
        self.facts: dict[str, JsonValue] = {
            "name": name,
            "read_only": self.read_only,
            "idempotent": self.idempotent,
            "destructive": self.destructive,
        }
        self.bare = self.isolation == "thread" and getattr(self.schema, "bare", False)
        """Its body is a coroutine that takes its arguments by name and nothing else: the way of most calls."""
        self.offer = Offer(name, description, cast("dict[str, JsonValue]", self.schema.json_schema))

    def _check(self) -> None:
        name = self.name
        if self.timeout is not None and not (_is_number(self.timeout) and self.timeout > 0):
            raise SchemaError(f"{name}: timeout must be seconds over 0, got {self.timeout!r:.80}")
        if self.max_output_bytes is not None and not (_is_number(self.max_output_bytes) and self.max_output_bytes > 0):
            raise SchemaError(f"{name}: max_output_bytes must be over 0, got {self.max_output_bytes!r:.80}")
        if type(self.retries) is not int or self.retries < 0:
            raise SchemaError(f"{name}: retries must be at least 0, got {self.retries!r:.80}")
        if self.retries and not self.safe:
            raise SchemaError(f"{name}: retries need read_only=True or idempotent=True; else an effect may come twice")
        if not isinstance(self.needs_approval, bool) and not callable(self.needs_approval):
            raise SchemaError(
                f"{name}: needs_approval must be True, False or a function of (context, input), "
                f"got {self.needs_approval!r:.80}"
            )
        if self.offered is not None and not callable(self.offered):
            raise SchemaError(f"{name}: offered must be a function of the context, got {self.offered!r:.80}")
        if isinstance(self.approvers, list):
            self.approvers = tuple(self.approvers)
        if not isinstance(self.approvers, tuple) or any(
            not isinstance(who, str) or not who.strip() for who in self.approvers
        ):
            raise SchemaError(
                f"{name}: approvers must be a list of names, such as ['grace', 'role:lead'], got {self.approvers!r:.80}"
            )
        for kind in self.expose:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise SchemaError(f"{name}: expose takes exception classes, got {kind!r:.80}")

    def _check_lock(self) -> None:
        if self.lock is None:
            return
        known = cast("dict[str, Any]", self.schema.json_schema.get("properties", {}))
        try:
            fields = list(string.Formatter().parse(self.lock))
        except (ValueError, TypeError) as e:
            raise SchemaError(f"{self.name}: lock {self.lock!r} cannot be read: {e}") from e
        for _, field, spec, conversion in fields:
            if field is not None and (field not in known or spec or conversion):
                raise SchemaError(
                    f"{self.name}: lock {self.lock!r} may name parameters as {{name}} only; "
                    f"{field!r} is none of: {', '.join(known)}"
                )

    def _check_process(self) -> None:
        from counterfoil.schema import FunctionSchema  # as in `_of_function`

        schema = self.schema
        if not isinstance(schema, FunctionSchema):
            raise SchemaError(f"{self.name}: isolation='process' needs a function, so that a child can import it")
        if schema.deps is not None:
            raise SchemaError(f"{self.name}: deps cannot cross into a process; open what the body needs inside it")
        self.target = check_importable(self.fn)

    @property
    def input_schema(self) -> dict[str, JsonValue]:
        """The JSON Schema of the arguments, as offered."""
        return self.offer.input_schema

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, past the gateway: for the author's own tests."""
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """A tool in a class body: on an instance, the tool of the bound method."""
        if instance is None or self.dynamic:
            return self
        return _of_function(MethodType(self.fn, instance), self.name, self.description, self.settings)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


def _not_reserved(name: str) -> None:
    if name in RESERVED_NAMES:
        raise SchemaError(f"{name}: this is the name of a built-in tool; give another one with name=…")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _one_of(name: str, setting: str, value: Any, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise SchemaError(f"{name}: {setting} must be one of {', '.join(map(repr, known))}, got {value!r}")
    return value


def _of_function(
    fn: Callable[..., Any],
    name: str | None,
    description: str | None,
    settings: dict[str, Any],
    *,
    builtin: bool = False,
) -> Tool:
    target = fn
    if _is_method_to_be(fn):
        # In a class body the function is not bound yet; `self` is no argument of the tool.
        target = MethodType(fn, object())
    from counterfoil.schema import inspect_function  # brings Pydantic; a process that only reads defines no tool

    schema = inspect_function(
        target, name=name, description=description, context_types=(ToolContext,), deps_marker=Deps
    )
    if not builtin:
        _not_reserved(schema.name)
    made = Tool.__new__(Tool)
    made._fill(schema.name, schema.description, schema, fn, settings)
    made.builtin = builtin
    return made


def _is_method_to_be(fn: Callable[..., Any]) -> bool:
    if isinstance(fn, MethodType):
        return False
    name = getattr(fn, "__qualname__", "")
    code = getattr(fn, "__code__", None)
    inside = name.rpartition(".")[0]
    return bool(
        inside and not inside.endswith("<locals>") and code and code.co_argcount and code.co_varnames[0] == "self"
    )


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool = False,
    needs_approval: bool | Callable[..., Any] = False,
    approvers: Sequence[str] = (),
    not_caller: bool = False,
    ends_run: bool = False,
    advisory: bool = False,
    sequential: bool = False,
    lock: str | None = None,
    on_interrupted: Literal["ask", "tell"] = "ask",
    timeout: float | None = None,
    max_output_bytes: int | None = None,
    on_oversize: Literal["keep", "fail"] = "keep",
    expose: type[BaseException] | Sequence[type[BaseException]] = (),
    isolation: Literal["thread", "process"] = "thread",
    retries: int = 0,
    offered: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(fn: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a tool of a function: async or sync, a generator, a bound method, any callable.

    The schema comes from the signature, descriptions from the docstring. Settings: see `Tool`.

    Raises:
        DefinitionError: the function cannot be offered as written; the message begins with its name.
    """
    name = settings.pop("name", None)
    description = settings.pop("description", None)
    if fn is not None:
        return _of_function(fn, name, description, settings)
    return lambda f: _of_function(f, name, description, settings)


def as_tools(things: Sequence[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    """Tools by name; plain functions become tools.

    Raises:
        DefinitionError: two have one name.
    """
    out: dict[str, Tool] = {}
    for thing in things:
        made = thing if isinstance(thing, Tool) else _of_function(thing, None, None, {})
        if made.name in out:
            raise SchemaError(f"{made.name}: two tools have this name; give one of them another with name=…")
        out[made.name] = made
    return out
