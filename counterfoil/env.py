"""What the boundary and the loop share while one run is driven."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from counterfoil.core.call import Caller, Where
from counterfoil.core.jsontext import clean_text
from counterfoil.core.limits import Limits
from counterfoil.core.record import CallState, RunState
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import Author, AuthorType
from counterfoil.core.verdict import Verdict
from counterfoil.effects import Effects
from counterfoil.hooks import HookList
from counterfoil.policy import Policy
from counterfoil.pool import ThreadPool
from counterfoil.tool import Tool
from counterfoil.toolcontext import ToolContext


@dataclass(slots=True, eq=False, repr=False)
class Env:
    """One run, as gateway and loop see it while it is driven."""

    caller: Caller
    interaction_id: str
    run_id: str
    thread_id: str | None
    agent: str
    run: RunState
    tools: dict[str, Tool]
    policy: Policy | None
    hooks: HookList
    limits: Limits
    effects: Effects
    pool: ThreadPool
    deps: Callable[[], object] | None
    offered: frozenset[str] = frozenset()
    """Names that the newest turn was offered."""
    rejected: set[str] = field(default_factory=set)
    """Digests of calls that a person rejected in this run."""
    team: Any = None
    """Whom its calls may be handed to (`team.Team`); None for an agent without any."""
    probe: Callable[[Any, str], None] | None = None
    """Told of each body's execution right before and right after it, in the body's context; None: nobody asks."""

    def where(self, call: CallState) -> Where:
        """The place of a call."""
        return Where(self.interaction_id, self.thread_id, self.run_id, call.turn.step, call.index)

    def ends_run(self, name: str) -> bool:
        """Whether success of this tool ends the run."""
        tool = self.tools.get(name)
        return tool is not None and tool.ends_run

    def advisory(self, name: str) -> bool:
        """Whether votes of this tool do not count."""
        tool = self.tools.get(name)
        return tool is not None and tool.advisory

    def take_rejections(self) -> None:
        """Remember what people rejected so far."""
        for call in self.run.calls:
            if call.decided is not None and call.waiting is not None and call.decided.decision.choice == "reject":
                self.rejected.add(call.waiting.approval.of_input)

    def key(self, call: CallState) -> str:
        """The idempotency key of a call: the same in every attempt."""
        return f"{self.run_id}:{call.turn.step}:{call.index}"

    def context(
        self,
        call: CallState,
        attempt: int,
        progress: Callable[[str, float | None, float | None], None],
        memo: Callable[[str, Callable[[], Any]], Any],
        cancelled: Callable[[], bool],
    ) -> ToolContext[Any]:
        """The context of a body."""
        ctx: ToolContext[Any] = ToolContext.__new__(ToolContext)
        ctx.caller = self.caller
        ctx.run_id = self.run_id
        ctx.interaction_id = self.interaction_id
        ctx.thread_id = self.thread_id
        ctx.step_index = call.turn.step
        ctx.call_id = call.record.call_id
        ctx.idempotency_key = self.key(call)
        ctx.attempt = attempt
        ctx._deps = self.deps
        ctx._progress = progress
        ctx._memo = memo
        ctx._cancelled = cancelled
        ctx._scratch = None
        return ctx

    def judging_context(self, call: CallState) -> ToolContext[Any]:
        """A context for functions that are asked before any body runs."""
        return self.context(call, 0, _no_progress, _no_memo, _never)


def _no_progress(text: str, done: float | None, total: float | None) -> None:
    """Nothing runs yet, so there is nothing to tell."""


def _no_memo(name: str, _fn: Callable[[], Any]) -> Any:
    raise RuntimeError(f"memo {name!r}: there is no body yet whose steps could be recorded; use it in the tool")


def _never() -> bool:
    return False


@dataclass(slots=True, eq=False, repr=False)
class Ready:
    """The gateway lets the call run."""

    tool: Tool
    arguments: dict[str, Any]
    """Python values by parameter."""
    effective: bytes
    """Their JSON bytes: what is on record, and what a decision binds."""
    parsed: bytes | None
    """JSON bytes of the parsed input where guards or a person changed it."""
    verdict: Verdict
    lock: str | None = None
    attempt: int = 1
    approval_id: str | None = None
    edited_by: str | None = None
    """The person who changed the input."""
    locked: bool = False
    not_before: float = 0.0
    """On the effects' clock: the back-off before a further attempt."""
    attempts: tuple[str, ...] = ()
    """What earlier attempts ended with."""
    began: float = 0.0
    """On the effects' clock: when the gateway began with the call, waits for a person taken off."""
    child: Author | None = None
    """The agent whose run the call waits for: it has no body."""
    child_id: str | None = None
    """The id of that run."""


@dataclass(slots=True, eq=False, repr=False)
class Asks:
    """A person must decide first."""

    tool: Tool
    effective: bytes
    parsed: bytes | None
    verdict: Verdict
    person: Author | None = None
    """Who is asked a question; None: whoever may decide on the call."""


@dataclass(slots=True, eq=False, repr=False)
class Refused:
    """The call ends without a body."""

    result: ToolResult
    verdict: Verdict | None = None
    parsed: bytes | None = None
    """JSON bytes of the input that was judged, where the schema took it."""
    before: bytes | None = None
    """JSON bytes of the parsed input, where guards or a person had changed it."""
    error: BaseException | None = None
    """What was raised, for the report."""
    author: AuthorType = "System"
    human: str | None = None
    """The name of the author, where it is a person."""
    raw_input: bool = False
    """The report shows the raw input: the schema did not take it."""


@dataclass(slots=True, eq=False, repr=False)
class Finished:
    """A body has ended, or was given up."""

    result: ToolResult
    size: int
    started_at: int
    duration: int
    """Microseconds."""
    kept: Any = None
    """The KeptText, where the text is stored apart."""
    report: ToolErrorReport | None = None
    replaced: Any = None
    error: BaseException | None = None
    fatal: BaseException | None = None
    """KeyboardInterrupt or SystemExit: raised again once the call is settled."""
    over: bool | None = None
    """Of a body without an end of its own: whether it is known to run no more."""
    again: bool = False
    """It failed and may be tried again: no guard saw it and nothing was reported."""


class ChildFailed(Exception):  # what a report shows as the error of a call whose run gave no answer
    """The run that a call waited for failed, was limited or cancelled.

    Args:
        message: for the report alone: it may hold words of a thread that the reader of a result does not see.
        shown: what the model may read of it.
    """

    def __init__(self, message: str, shown: str) -> None:
        super().__init__(message)
        self.shown = shown


async def asked(fn: Callable[..., object], seconds: float, *args: object) -> object:
    """What a hook answers. Whatever it raises is its own: a CancelledError that nobody sent is a RuntimeError.

    Raises:
        TimeoutError: an awaitable took longer than so many seconds.
    """
    try:
        answer = fn(*args)
    except asyncio.CancelledError as e:
        raise RuntimeError("it raised CancelledError, and nobody had cancelled it") from e
    return await bounded(answer, seconds)


async def bounded(answer: object, seconds: float) -> object:
    """What a hook or handler gave; awaited for so many seconds at most, however it takes a cancel.

    Raises:
        TimeoutError: it took longer; it is cancelled and not waited for.
    """
    if not isinstance(answer, Awaitable):
        return answer
    task = asyncio.ensure_future(_awaited(answer))
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not task.done():
        task.add_done_callback(_looked_at)
        task.cancel()
        raise TimeoutError(f"it gave no answer within {seconds:g} s")
    if task.cancelled():
        raise RuntimeError("it was cancelled, and not by us")
    return task.result()


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def _looked_at(task: asyncio.Future[object]) -> None:
    if not task.cancelled():
        task.exception()  # read, so that asyncio does not report it as forgotten: nobody waits any more


def told(error: BaseException) -> str:
    """What an exception says of itself; its class, where it says nothing or cannot."""
    try:
        return clean_text(str(error)) or type(error).__name__
    except Exception:  # noqa: BLE001  # an exception whose own text raises must not hide the failure
        return type(error).__name__
