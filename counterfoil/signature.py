"""What a function's signature says: its parameters, their types, and which of them no model fills."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from counterfoil.arguments import SchemaError, describe

_NOTHING: Any = inspect.Parameter.empty


def owner_of(fn: object) -> Any:
    """What carries the name and the docstring: the innermost function, or the object that is called."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, (MethodType, staticmethod)):
            fn = fn.__func__
        else:
            return fn


def call_of(fn: Any) -> Any:
    """What runs when ``fn`` is called, as `inspect` can judge it."""
    fn = owner_of(fn)
    return fn if inspect.isroutine(fn) else getattr(type(fn), "__call__", fn)  # noqa: B004


def docstring_of(fn: object, owner: Any) -> str | None:
    """The text that describes what ``fn`` does, as it stands in the source."""
    if fn is owner and not isinstance(owner, FunctionType):
        return getattr(call_of(owner), "__doc__", None) or type(owner).__doc__
    doc: str | None = getattr(owner, "__doc__", None)
    return doc


def check_callable(name: str, fn: object) -> None:
    """Refuse what is not callable, and what is without being a function.

    Raises:
        SchemaError: it is.
    """
    if isinstance(fn, classmethod):
        raise SchemaError(f"{name}: expected a function, got a classmethod object; make the tool of Class.{name}")
    if isinstance(fn, type) or not callable(fn):
        raise SchemaError(f"{name}: expected a function, got {describe(fn)}; write a function that calls it")


def parameters_of(name: str, fn: Any) -> list[inspect.Parameter]:
    """The parameters that a caller may fill; those that a partial binds by name are not among them.

    Raises:
        SchemaError: there is no signature, or it takes any number of arguments.
    """
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError, NameError) as error:
        raise SchemaError(f"{name}: expected a function with a signature; {error}; wrap it in a function") from error
    fixed: set[str] = set()
    while isinstance(fn, functools.partial):
        fixed, fn = fixed | set(fn.keywords), fn.func
    for p in signature.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            stars = "*" if p.kind is p.VAR_POSITIONAL else "**"
            raise SchemaError(
                f"{name}: expected parameters with names, got {stars}{p.name}, of which a model cannot know "
                "what it takes; declare each parameter, or one parameter that is a list or a dict",
            )
    return [p for p in signature.parameters.values() if p.name not in fixed]


def hints_of(
    name: str,
    fn: Any,
    parameters: Sequence[inspect.Parameter],
    context_types: tuple[type, ...],
) -> dict[str, Any]:
    """The annotations as types, those that were postponed too; each alone, so that a fault has a name.

    Raises:
        SchemaError: one of them is no type, or not to be found at run time.
    """
    body = inspect.unwrap(call_of(fn))
    names = {kind.__name__: kind for kind in context_types} | getattr(body, "__globals__", {})
    local = _local_names(body)
    hints = {}
    for p in parameters:
        annotation = Any if p.annotation is _NOTHING else p.annotation
        try:
            holder = SimpleNamespace(__annotations__={p.name: annotation})
            hints[p.name] = get_type_hints(holder, names, local, include_extras=True)[p.name]
        except NameError as error:
            raise SchemaError(
                f"{name}: the parameter {p.name!r} expected an annotation that exists at run time, got "
                f"{annotation!r} ({error}); import it outside TYPE_CHECKING, or define it before the tool",
            ) from error
        except Exception as error:
            raise SchemaError(
                f"{name}: the parameter {p.name!r} expected a type, got {annotation!r} ({error}); "
                "annotate it with a type",
            ) from error
    return hints


def _local_names(body: Any) -> dict[str, Any]:
    """Names that the function's enclosing functions and classes hold right now, the innermost last."""
    found: list[dict[str, Any]] = [_enclosed(body)]
    qualified = f"{getattr(body, '__qualname__', '')}"
    frame = inspect.currentframe() if "<locals>" in qualified or "." in qualified else None
    while frame is not None:
        code = frame.f_code
        inside = qualified.startswith((f"{code.co_qualname}.<locals>.", f"{code.co_qualname}."))
        if inside and frame.f_globals is getattr(body, "__globals__", None):
            found.append(dict(frame.f_locals))
        frame = frame.f_back
    return {key: value for names in reversed(found) for key, value in names.items()}


def _enclosed(body: Any) -> dict[str, Any]:
    """What the closure holds; a name that is not bound yet, such as the tool's own, is left out."""
    found = {}
    names = body.__code__.co_freevars if inspect.isfunction(body) else ()
    for key, cell in zip(names, getattr(body, "__closure__", None) or (), strict=True):
        try:
            found[key] = cell.cell_contents
        except ValueError:
            continue
    return found


def role_of(hint: Any, context_types: tuple[type, ...], deps_marker: type | None) -> str | None:
    """``context``, ``deps`` or, for a parameter that the model fills, None."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        if deps_marker and any(mark is deps_marker or isinstance(mark, deps_marker) for mark in marks):
            return "deps"
        return role_of(inner, context_types, deps_marker)
    if get_origin(hint) in (Union, UnionType):
        roles = {role_of(arm, context_types, deps_marker) for arm in get_args(hint) if arm is not type(None)}
        return roles.pop() if len(roles) == 1 else None
    aliased = getattr(hint, "__value__", None) or getattr(hint, "__supertype__", None)
    if aliased is not None and not isinstance(hint, type):
        return role_of(aliased, context_types, deps_marker)
    kind = get_origin(hint) or hint
    return "context" if isinstance(kind, type) and issubclass(kind, context_types) else None


def only_one(name: str, roles: dict[str, str | None], role: str) -> str | None:
    """The one parameter with this role, or None.

    Raises:
        SchemaError: there are several.
    """
    found = [parameter for parameter, its in roles.items() if its == role]
    if len(found) > 1:
        raise SchemaError(
            f"{name}: expected one parameter for the {role}, got {', '.join(found)}; remove all but one",
        )
    return found[0] if found else None


@functools.lru_cache(maxsize=1024)
def dynamic_caller(fn: Callable[..., Any]) -> Callable[[Any, dict[str, Any]], Any]:
    """How a dynamic tool's body takes (context, arguments).

    By two parameters, the context first unless the second is annotated as such; by one; or by ``**kwargs``, behind the
    context where a parameter is annotated so.
    """
    parameters = list(inspect.signature(fn).parameters.values())
    context = next((p.name for p in parameters if _says_context(p.annotation)), None)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return lambda ctx, arguments: fn(**arguments) if context is None else fn(**{**arguments, context: ctx})
    if len(parameters) < 2:  # noqa: PLR2004  # context and arguments
        return (lambda _, arguments: fn(arguments)) if context is None else (lambda ctx, _: fn(ctx))
    return (lambda ctx, arguments: fn(arguments, ctx)) if context == parameters[1].name else fn


def _says_context(annotation: Any) -> bool:
    """Whether an annotation, postponed or not, is ToolContext, of whatever deps."""
    said = annotation if isinstance(annotation, str) else getattr(get_origin(annotation) or annotation, "__name__", "")
    return said.partition("[")[0].rpartition(".")[2] == "ToolContext"
