"""Run: a handle on one run; what it shows is a fold of the record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from datetime import datetime
from typing import Any, Protocol

from counterfoil.core.approval import Approval
from counterfoil.core.events import Event
from counterfoil.core.items import Message, Note, Reasoning, ToolCallPart, ToolResultPart
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.media import Prompt
from counterfoil.core.parts import call_part, items_of, result_part
from counterfoil.core.record import Record, RunState
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import Usage, moment
from counterfoil.core.waits import Wait, waits_of
from counterfoil.effects import Effects

ALL = 2**31 - 1
"""More reports than a run can have."""


class Fold:
    """The folded record of a run's interaction, shared by every handle of one Runtime."""

    __slots__ = ("__weakref__", "error", "interaction_id", "record", "run_id", "tenant")

    def __init__(self, tenant: str, interaction_id: str, run_id: str, record: Record) -> None:
        self.tenant = tenant
        self.interaction_id = interaction_id
        self.run_id = run_id
        self.record = record
        self.error: BaseException | None = None
        """What the driver of this process died of; the record has no end then."""


class Runs(Protocol):
    """What a handle needs of its Runtime, which says what each does."""

    effects: Effects

    def refresh(self, fold: Fold) -> Awaitable[None]:
        """Bring a fold up to date."""

    def wait(self, fold: Fold, timeout: float | None) -> Awaitable[None]:
        """Wait for a run's end or pause."""

    def approvals(self, run_id: str, *, tenant: str) -> Awaitable[list[Approval]]:
        """What waits for a decision."""

    def approve(self, *call: Any, **options: Any) -> Awaitable[Approval]:
        """Let a call run."""

    def reject(self, *call: Any, **options: Any) -> Awaitable[Approval]:
        """Refuse a call."""

    def settle(self, *call: Any, **options: Any) -> Awaitable[Approval]:
        """Say what became of an interrupted call."""

    def answer(self, *call: Any, **options: Any) -> Awaitable[Approval]:
        """Answer a question."""

    def cancel(self, run_id: str, *, reason: str | None, by: str | None, tenant: str) -> Awaitable[None]:
        """End a run."""

    def send(self, run_id: str, text: Prompt, *, by: str | None, key: str | None, tenant: str) -> Awaitable[bool]:
        """Queue a message."""

    def nobody_has(self, agent: str) -> Awaitable[str | None]:
        """Why a run of an agent waits."""

    def errors(self, run_id: str, *, tenant: str, limit: int) -> Awaitable[list[ToolErrorReport]]:
        """Error reports."""

    def events(self, run_id: str, *, after: int | None, tenant: str) -> AsyncIterator[Event]:
        """Events as they come."""


class _Answer(str):
    """What `Run.answer` is where a question is on record: the final text, and what answers the question."""

    __slots__ = ("run",)
    run: Run

    def __call__(self, call_id: str, *, by: str | None = None, text: str, **options: Any) -> Awaitable[Approval]:
        return self.run.answer_question(call_id, by=by, text=text, **options)


class Run:
    """A run. Its attributes are as of the last `wait`, `refresh` or event; a run driven here is always current."""

    def __init__(self, runtime: Runs, fold: Fold) -> None:
        self._runtime = runtime
        self._fold = fold

    @property
    def _state(self) -> RunState:
        return self._fold.record.runs[self._fold.run_id]

    @property
    def id(self) -> str:
        """The run's id (a UUID)."""
        return self._fold.run_id

    @property
    def interaction_id(self) -> str:
        """The conversation that it belongs to (a UUID)."""
        return self._fold.interaction_id

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self._fold.tenant

    @property
    def agent(self) -> str:
        """The name of its agent."""
        return self._state.agent

    @property
    def status(self) -> str:
        """running, paused, completed, limited, cancelled or failed."""
        return self._state.status

    @property
    def ended_by(self) -> str | None:
        """tool, vote, answer, limit, cancelled, error or import; None while it is open."""
        ended = self._state.ended
        return ended.ended_by if ended else None

    @property
    def imported(self) -> dict[str, JsonValue] | None:
        """Of a run from elsewhere: ``format``, ``source``, ``instructions`` and ``repairs``; else None."""
        head = self._state.head
        return head.imported if head else None

    @property
    def answer(self) -> str | None:
        """The final text, of a completed run.

        Where a question is on record, in the run or beside it, ``answer(call_id, by=…, text=…)`` answers it, as
        `answer_question` does; the text is empty until the run has ended.
        """
        ended = self._state.ended
        text = "" if ended is None else ended.answer
        if text is not None and self._has_asked():
            answer = _Answer(text)
            answer.run = self
            return answer
        return None if ended is None else text

    def _has_asked(self) -> bool:
        return any(
            call.waiting is not None and call.waiting.approval.kind == "question"
            for run in self._fold.record.runs.values()
            for call in run.calls
        )

    @property
    def output(self) -> JsonValue:
        """The answer as the agent's output type, as JSON; the answer's text where it has none."""
        ended = self._state.ended
        if ended is None:
            return None
        return ended.output if ended.null or ended.output is not None else ended.answer

    @property
    def reason(self) -> str | None:
        """Why it ended as it did: which limit, which error, why cancelled."""
        ended = self._state.ended
        return ended.reason if ended else None

    @property
    def usage(self) -> Usage:
        """What its turns cost so far."""
        return self._state.usage

    @property
    def waits_for(self) -> tuple[Wait, ...]:
        """What it waits for now: people's words and agents at work, here and in the runs below it."""
        return tuple(waits_of(self._fold.record, self._state, self._now))

    @property
    def _now(self) -> datetime:
        return moment(self._runtime.effects.now())

    @property
    def steps(self) -> int:
        """Model turns so far."""
        return self._state.turns

    @property
    def items(self) -> list[Message | Reasoning | Note | ToolCallPart | ToolResultPart]:
        """Everything in the run, in sequence; of the runs below it, see `Runtime.context`."""
        return items_of(self._fold.record, self.id)

    @property
    def calls(self) -> list[ToolCallPart]:
        """Its calls, in order."""
        return [call_part(c) for c in self._state.calls]

    @property
    def results(self) -> list[ToolResultPart]:
        """Its results so far, in the order of their calls."""
        return [result_part(c, self._state) for c in self._state.calls if c.result is not None]

    async def refresh(self) -> Run:
        """Read on in the record, where another process drives the run."""
        await self._runtime.refresh(self._fold)
        return self

    async def wait(self, timeout: float | None = None) -> Run:
        """Wait until it ends or pauses.

        Raises:
            TimeoutError: it did neither within ``timeout`` seconds; it goes on.
        """
        await self._runtime.wait(self._fold, timeout)
        return self

    async def approvals(self) -> list[Approval]:
        """What waits for a decision, oldest first."""
        return await self._runtime.approvals(self.id, tenant=self.tenant)

    async def approve(self, call_id: str, **options: Any) -> Approval:
        """See `Runtime.approve`."""
        return await self._runtime.approve(self.id, call_id, tenant=self.tenant, **options)

    async def reject(self, call_id: str, **options: Any) -> Approval:
        """See `Runtime.reject`."""
        return await self._runtime.reject(self.id, call_id, tenant=self.tenant, **options)

    async def settle(
        self,
        call_id: str,
        *,
        by: str | None = None,
        rerun: bool = False,
        result: ToolResult | None = None,
        **options: Any,
    ) -> Approval:
        """See `Runtime.settle`."""
        return await self._runtime.settle(
            self.id, call_id, by=by, rerun=rerun, result=result, tenant=self.tenant, **options
        )

    async def answer_question(self, call_id: str, *, by: str | None = None, text: str, **options: Any) -> Approval:
        """Answer a question; see `Runtime.answer`."""
        return await self._runtime.answer(self.id, call_id, by=by, text=text, tenant=self.tenant, **options)

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> None:
        """See `Runtime.cancel`."""
        await self._runtime.cancel(self.id, reason=reason, by=by, tenant=self.tenant)

    async def send(self, text: Prompt, *, by: str | None = None, key: str | None = None) -> bool:
        """See `Runtime.send`."""
        return await self._runtime.send(self.id, text, by=by, key=key, tenant=self.tenant)

    async def hint(self) -> str | None:
        """Why it waits though nothing of its own holds it up: no process has its agent now. None: it does not."""
        waits = self.status == "running" or (self.status == "paused" and not self.waits_for)
        return await self._runtime.nobody_has(self.agent) if waits else None

    async def errors(self) -> list[ToolErrorReport]:
        """The error reports of its failed calls, newest first."""
        return await self._runtime.errors(self.id, tenant=self.tenant, limit=ALL)

    def events(self, after: int | None = None) -> AsyncIterator[Event]:
        """Its events from the first, or after an entry, until it ends or pauses."""
        return self._runtime.events(self.id, after=after, tenant=self.tenant)

    def __repr__(self) -> str:
        return f"Run({self.id}, {self.status})"
