"""Guards and observers: the application's own code at the boundary. A hook takes one frozen record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from counterfoil.core.call import Caller, Where
from counterfoil.core.content import Block
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.result import ToolResult
from counterfoil.model import ModelRequest, ModelTurn

if TYPE_CHECKING:
    from counterfoil.core.events import Event
    from counterfoil.tool import Tool


class _Unchanged:
    """Stands for a field that a Change leaves as it is; None is a value of some of them."""

    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED = _Unchanged()


@dataclass(frozen=True, slots=True)
class Change:
    """What a guard changes. ``input`` belongs before a call; the others after it, and never the outcome."""

    input: JsonValue | _Unchanged = UNCHANGED
    content: str | Block | Sequence[Block] | _Unchanged = UNCHANGED
    details: JsonValue | _Unchanged = UNCHANGED
    narration: str | _Unchanged | None = UNCHANGED
    terminate: bool | _Unchanged = UNCHANGED

    @property
    def after_only(self) -> bool:
        """It changes something that there is only after a call."""
        after = (self.content, self.details, self.narration, self.terminate)
        return any(value is not UNCHANGED for value in after)


@dataclass(frozen=True, slots=True)
class Skip:
    """A guard before a call passes it over: nothing runs, and the model's text says so."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class BeforeCall:
    """What a guard before a call sees."""

    where: Where
    caller: Caller
    call_id: str
    tool: Tool
    input: JsonValue
    """The parsed input as JSON, with what earlier guards changed; a copy."""


@dataclass(frozen=True, slots=True)
class AfterCall:
    """What a guard after a call sees."""

    where: Where
    caller: Caller
    call_id: str
    tool: Tool
    input: JsonValue
    result: ToolResult

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", copy(self.result))  # what a guard changes in place is changed for nobody


@dataclass(frozen=True, slots=True)
class BeforeModel:
    """What is asked of the model. The guard may raise to fail the run; it changes nothing."""

    caller: Caller
    run_id: str
    step: int
    request: ModelRequest
    interaction_id: str = ""
    model: Any = None
    """As the agent has it: a name such as ``openai:NAME``, or the object."""


@dataclass(frozen=True, slots=True)
class AfterModel:
    """What the model answered, before it goes on record."""

    caller: Caller
    run_id: str
    step: int
    turn: ModelTurn


@dataclass(frozen=True, slots=True)
class BodyBegins:
    """A body is about to run, here or in a process of its own."""

    where: Where
    caller: Caller
    call_id: str
    tool: Tool
    attempt: int
    """1 for the first."""


BeforeGuard: TypeAlias = "Callable[[BeforeCall], Change | Skip | Awaitable[Change | Skip | None] | None]"
AfterGuard: TypeAlias = "Callable[[AfterCall], Change | Awaitable[Change | None] | None]"


def _many(value: object) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


@dataclass(frozen=True)
class Hooks:
    """Guards may change or stop; observers may do neither. Each field takes one function or a list of them.

    A guard that raises refuses the call (GUARD_ERROR); an observer that raises is logged and changes nothing.
    """

    before_call: BeforeGuard | Sequence[BeforeGuard] | None = None
    """Guards: ``None``, ``Change(input=…)`` or ``Skip(reason)``."""
    after_call: AfterGuard | Sequence[AfterGuard] | None = None
    """Guards: ``None`` or ``Change(content=…, details=…, narration=…, terminate=…)``."""
    before_model: Callable[[BeforeModel], object] | Sequence[Callable[[BeforeModel], object]] | None = None
    """Guards of the request: raising fails the run."""
    after_model: Callable[[AfterModel], object] | Sequence[Callable[[AfterModel], object]] | None = None
    """Guards of the turn: raising fails the run."""
    on_tool_error: Callable[[ToolErrorReport], object] | Sequence[Callable[[ToolErrorReport], object]] | None = None
    """Observers of every failed call, right before its result goes on record."""
    on_event: Callable[[Event], object] | Sequence[Callable[[Event], object]] | None = None
    """Observers of every event."""
    on_body: Callable[[BodyBegins], object] | Sequence[Callable[[BodyBegins], object]] | None = None
    """Observers of every body that begins, called in its own context: it has what they set in context variables."""


@dataclass(frozen=True, slots=True)
class HookList:
    """The hooks of runtime and agent together, in that order."""

    before_call: tuple[Any, ...] = ()
    after_call: tuple[Any, ...] = ()
    before_model: tuple[Any, ...] = ()
    after_model: tuple[Any, ...] = ()
    on_tool_error: tuple[Any, ...] = ()
    on_event: tuple[Any, ...] = ()
    on_body: tuple[Any, ...] = ()


NO_HOOKS = HookList()


def join_hooks(*hooks: Hooks | Sequence[Hooks] | None) -> HookList:
    """All hooks in one list for each place."""
    flat: list[Hooks] = [h for group in hooks if group is not None for h in _many(group)]
    if not flat:
        return NO_HOOKS
    return HookList(*(tuple(f for h in flat for f in _many(getattr(h, n.name))) for n in fields(HookList)))
