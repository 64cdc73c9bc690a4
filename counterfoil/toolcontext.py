"""ToolContext: what a body knows of its call, and what it may ask of us."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from counterfoil.core.call import Caller
from counterfoil.core.extensions import Extensions

if TYPE_CHECKING:
    from collections.abc import Generator

D = TypeVar("D")
T = TypeVar("T")


class _Done:
    """What progress() gives: it took effect at the call; awaiting it is allowed and does nothing."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()


class Scratch:
    """In-process values of one call, at most one for each type: for hooks and tracing."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[type, object] = {}

    def add(self, value: object) -> None:
        """Keep a value; it replaces an earlier one of its type and joins the result's extensions."""
        self._values[type(value)] = value

    def get(self, kind: type[T]) -> T | None:
        """The value of exactly this type, or None."""
        return cast("T | None", self._values.get(kind))

    def merged(self, extensions: Extensions) -> Extensions:
        """These values below those of a result."""
        return Extensions(*self._values.values(), *extensions) if self._values else extensions


class ToolContext(Generic[D]):
    """What a body knows of its call. A parameter annotated with it is injected and never in the schema."""

    __slots__ = (
        "_cancelled",
        "_deps",
        "_memo",
        "_progress",
        "_scratch",
        "attempt",
        "call_id",
        "caller",
        "idempotency_key",
        "interaction_id",
        "run_id",
        "step_index",
        "thread_id",
    )

    caller: Caller
    """On whose behalf the run works."""
    run_id: str
    interaction_id: str
    thread_id: str | None
    step_index: int
    """0-based."""
    call_id: str
    idempotency_key: str
    """The same in every attempt of this call; for whoever must not do a thing twice."""
    attempt: int
    """1 for the first."""

    @property
    def deps(self) -> D:
        """What the program gave for this caller."""
        deps = self._deps
        return cast("D", deps() if callable(deps) else None)

    @property
    def extensions(self) -> Scratch:
        """In-process values of this call."""
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch

    @property
    def cancelled(self) -> bool:
        """The run was cancelled, or the call timed out: stop soon."""
        return bool(self._cancelled())

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> Awaitable[None]:
        """Say how far the body is. It takes effect at the call, in sync bodies too; awaiting it is optional."""
        self._progress(text, done, total)
        return _DONE

    def memo(self, name: str, fn: Callable[[], T | Awaitable[T]]) -> Any:
        """A durable sub-step: what ``fn`` returns (JSON) is recorded once and given back in every later attempt.

        In an async body await it; in a sync body it returns the value.
        """
        return self._memo(name, fn)

    _cancelled: Callable[[], bool]
    _deps: Callable[[], object] | None
    _memo: Callable[[str, Callable[[], Any]], Any]
    _progress: Callable[[str, float | None, float | None], None]
    _scratch: Scratch | None
