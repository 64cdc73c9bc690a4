"""Today's loop on a record of the past: recorded turns for the model, recorded results for bodies, nothing else new."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from counterfoil.arguments import ArgumentsSchema
from counterfoil.asking import Driven
from counterfoil.builtin import read_result_tool
from counterfoil.core.approval import Decision
from counterfoil.core.call_entries import DecidedEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.differences import NOT_ON_RECORD, CallKey
from counterfoil.core.entries import Entry, TurnEntry
from counterfoil.core.errors import ModelError, StoreError
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.outcome import ErrorCode, Failed
from counterfoil.core.record import CallState, Record
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import author, micros
from counterfoil.env import Asks, Env, Ready, Refused
from counterfoil.hooks import HookList
from counterfoil.hub import Hub, Locks, Slots
from counterfoil.loop import Drive
from counterfoil.model import ModelCall, ModelEvent, ModelRequest, ModelTurn, StopReason
from counterfoil.past import Past, Script
from counterfoil.pool import ThreadPool
from counterfoil.store import Behind, Lease, Owner, Store
from counterfoil.team import Team
from counterfoil.tool import Tool

STUCK_SECONDS = 1.0
"""After so long a body stops waiting for what happened beside it then: today's code did not come that far."""

_NOBODY = Owner("", 0, 0)


class _Over(StoreError):
    """The model would be asked, and the record has no further turn of it."""


class _Log:
    """The store of a replay: a list. What bodies give goes on record as what they gave then."""

    shared = False

    def __init__(self, before: Sequence[Entry], script: Script, effects: Past) -> None:
        self._all = [*before, *script.first]
        self._begin = len(before)
        self._script = script
        self._effects = effects
        self._sequence = 1 + max((e.sequence + e.width - 1 for e in self._all), default=0)
        self._came_so_far: set[CallKey] = set()
        self._step = max((e.step for e in script.first if isinstance(e, TurnEntry)), default=-1)
        self.cancelled = asyncio.Event()
        self.notify: Callable[[], None] = lambda: None
        """Tells the driver that somebody else wrote."""
        self.decide_before: Callable[[int], None] = lambda _: None
        """Puts decisions of then on record that had come before the entry of this number."""

    @property
    def mine(self) -> list[Entry]:
        """What the replay put on record of its run."""
        return self._all[self._begin :]

    def _append(self, entry: Entry) -> None:
        entry.entry = self._all[-1].entry + 1
        entry.sequence = self._sequence if entry.width else 0
        self._sequence += entry.width
        self._all.append(entry)
        if isinstance(entry, TurnEntry):
            self._step = entry.step
        elif isinstance(entry, StartEntry | WaitingEntry | ResultEntry):
            key = entry.step, entry.index
            # What was decided then goes on by itself, and the cancel may have come after that.
            if type(entry) is not WaitingEntry or all((d.step, d.index) != key for d in self._script.decisions):
                self._came_so_far.add(key)

    async def commit(self, lease: Lease, entries: Sequence[Entry], **settings: Any) -> int:
        """See `Store.commit`; what came from outside then comes after the same calls."""
        del lease
        expect = settings.get("expect")
        if expect is not None and expect != self._all[-1].entry:
            raise Behind
        for entry in entries:
            if type(entry) is ResultEntry and entry.attempt:
                self._stand_in(entry)
            self._append(entry)
        self.cancel_if_due()
        return self._all[-1].entry

    def _stand_in(self, entry: ResultEntry) -> None:
        then = self._script.given((entry.step, entry.index))
        if then is None:
            entry.result = ToolResult.text(NOT_ON_RECORD)
            return
        for name in ("result", "size", "started_at", "duration", "kept_id", "kept_digest", "replaced"):
            setattr(entry, name, getattr(then, name))

    async def entries(self, tenant: str, interaction_id: str, after: int = 0) -> list[Entry]:
        """See `Store.entries`."""
        del tenant, interaction_id
        return [e for e in self._all if e.entry > after]

    # what others wrote then

    def put(self, entry: Entry) -> None:
        """Somebody else's entry."""
        self._append(copy.copy(entry))
        self.notify()

    def queue(self, step: int) -> None:
        """Messages that were there when the turn of this step was."""
        for entry in self._script.queued.pop(step, ()):
            self.put(replace(entry, run_id=self._script.head.run_id))

    def cancel_if_due(self) -> None:
        """The cancel, once all has come that had come before it then."""
        script = self._script
        if script.cancel is None or self.cancelled.is_set() or self._step < script.cancel_step:
            return
        if script.before_cancel <= self._came_so_far:
            self.cancel()

    def cancel(self) -> bool:
        """The cancel, now; False where there was none, or it has come."""
        if self._script.cancel is None or self.cancelled.is_set():
            return False
        self.cancelled.set()
        self._effects.reach(self._script.cancel.at)
        self.put(self._script.cancel)
        return True

    async def body_may_end(self, key: CallKey) -> None:
        """What ended after the cancel waits for it."""
        if key in self._script.after_cancel:
            try:
                await asyncio.wait_for(self.cancelled.wait(), STUCK_SECONDS)
            except TimeoutError:
                self.cancel()
        result = self._script.results.get(key)
        if result is not None:
            self.decide_before(result.entry)
            self._effects.reach(result.at)


class _Schema(ArgumentsSchema):
    """A tool's schema for a body that takes all arguments as one dict."""

    def __init__(self, schema: ArgumentsSchema) -> None:
        self._schema = schema
        self.json_schema = schema.json_schema

    def parse(self, raw: str | None) -> dict[str, Any]:
        return self._schema.parse(raw)

    def dump(self, arguments: dict[str, Any]) -> object:
        return self._schema.dump(arguments)


def _stand_in(tool: Tool, log: _Log) -> Tool:
    """The tool as the gateway knows it today, with a body that does nothing."""

    async def body(ctx: Any, arguments: dict[str, Any]) -> str:
        del arguments
        step, index = ctx.idempotency_key.rsplit(":", 2)[1:]
        await log.body_may_end((int(step), int(index)))
        return ""  # the log puts in its place what is on record

    made = copy.copy(tool)
    made.fn, made.schema = body, _Schema(tool.schema)
    made.isolation, made.timeout, made.retries, made.bare = "thread", None, 0, False
    return made


class _StandIn:
    """The agent of today, but for its model and the bodies of its tools."""

    def __init__(self, agent: Driven, model: _Recorded, log: _Log) -> None:
        self.name = agent.name
        self.instructions = agent.instructions
        self.policy = agent.policy
        self.parameters = agent.parameters
        self.prices = agent.prices
        self.tool_map = {name: _stand_in(tool, log) for name, tool in agent.tool_map.items()}
        self.output_schema = agent.output_schema
        self.parse_output: Callable[[str], JsonValue] = agent.parse_output
        self.open_model: Callable[[], Any] = lambda: model
        self.open_summary: Callable[[], Any] | None = None if agent.open_summary is None else lambda: model.summaries


class _Summaries:
    """The model that sums up: what it gave then."""

    def __init__(self, script: Script, effects: Past) -> None:
        self._script = script
        self._effects = effects

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The next summary before the turn of this step. Raises ModelError: there was none."""
        left = self._script.summaries.get(request.turns)
        if not left:
            raise ModelError("no summary is on record here", retryable=False)
        entry = left.popleft()
        self._effects.reach(entry.at)
        yield ModelTurn(entry.text, usage=entry.usage, model=entry.model)


class _Recorded:
    """The model: its turns of then."""

    def __init__(self, script: Script, log: _Log, effects: Past) -> None:
        self.requests: dict[int, ModelRequest] = {}
        self.summaries = _Summaries(script, effects)
        self._script = script
        self._log = log
        self._effects = effects

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The turn of this step; ends the replay, or the run as it ended, where there is none."""
        step = request.turns
        self.requests[step] = request
        script = self._script
        turn = script.turns.get(step)
        if turn is None:
            if script.ended is not None and script.ended.ended_by == "error" and step == len(script.turns):
                self._effects.reach(script.ended.at)
                raise ModelError(script.ended.reason or "", retryable=False)
            raise _Over
        self._effects.reach(turn.at)
        made = (c.call_id for c in turn.calls if c.call_id != c.provider_call_id and c.call_id.startswith("call_"))
        self._effects.ids = deque(call_id.removeprefix("call_") for call_id in made)
        self._log.queue(step)
        calls = tuple(ModelCall(c.provider_call_id, c.tool_name, c.raw) for c in turn.calls)
        yield ModelTurn(turn.text, calls, cast("StopReason", turn.stop), turn.usage, turn.model, turn.reasoning)


_UNREACHED = (ErrorCode.INVALID_INPUT, ErrorCode.LIMIT_REACHED)
"""How a call ends that names nobody who could be reached; today's schema and budgets were asked before."""


class _Team:
    """Whom calls were handed to then: no run is begun, and a person is asked who was asked then."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def route(self, env: Env, call: CallState, ready: Ready) -> Ready | Asks | Refused:
        """A question to a person as one, nobody known as such; else a call whose body gives what came then."""
        then = self._script.results.get(call.key)
        failure = then.result.outcome.failure if then and isinstance(then.result.outcome, Failed) else None
        if then and failure and failure.code in _UNREACHED and not then.attempt:
            return Refused(then.result, verdict=ready.verdict, parsed=ready.effective, before=ready.parsed)
        asked = self._script.asked.get(call.key)
        if asked is not None:
            who = author("Human", asked.approvers[0], env.caller.tenant)
            return Asks(ready.tool, ready.effective, ready.parsed, ready.verdict, who)
        ready.tool = copy.copy(ready.tool)
        ready.tool.waits = False
        return ready


class Replaying:
    """One run, driven once more in this process's memory.

    Args:
        entries: those of its interaction, in order of arrival.
        run_id: the run.
        agent: whose code is asked: tools, policy, instructions, output type.
        hooks: guards of the call and of the model; none else is called.
        deps: makes what ``ctx.deps`` is for conditions and guards.
    """

    def __init__(
        self, entries: Sequence[Entry], run_id: str, agent: Driven, hooks: HookList,
        deps: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip  # two rows
        self._script = script = Script(entries, run_id)
        self._effects = Past(script.first[-1].at)
        before = [e for e in entries if e.entry < script.head.entry]
        self._log = _Log(before, script, self._effects)
        self._record = Record([*before, *script.first])
        self._run = self._record.runs[run_id]
        self._model = _Recorded(script, self._log, self._effects)
        self._agent = _StandIn(agent, self._model, self._log)
        self._hooks = HookList(
            before_call=hooks.before_call, before_model=hooks.before_model, after_model=hooks.after_model
        )
        self._deps = deps
        self._epoch = 0
        self._pool = ThreadPool()
        self._hub, self._slots = Hub(), Slots(script.head.limits.concurrency)
        self._locks = Locks(cast("Store", self._log), _NOBODY, lambda: None)
        self._log.decide_before = self._decide_before

    @property
    def log(self) -> list[Entry]:
        """What the loop of today put on record of the run."""
        return self._log.mine

    @property
    def requests(self) -> dict[int, ModelRequest]:
        """What the model would have read, by step."""
        return self._model.requests

    async def go(self) -> None:
        """Drive it as far as the record goes."""
        self._log.queue(-1)
        self._log.cancel_if_due()
        while True:
            try:
                status = await self._drive()
            except _Over:
                return self._time_is_up()
            if status == "limited" and self._script.resumed:
                entry = self._script.resumed.popleft()
                self._effects.reach(entry.at)
                self._log.put(entry)
            elif status != "paused" or not self._next_word():
                return None

    def _drive(self) -> Awaitable[str]:
        self._epoch += 1
        # What others wrote in the pause is there before the driver looks.
        for entry in self._log.mine:
            if entry.entry > self._record.tip:
                self._record.apply(entry)
        head = self._script.head
        drive = Drive(
            cast("Driven", self._agent), Lease(head.caller.tenant, head.run_id, "", self._epoch), self._record,
            store=cast("Store", self._log), effects=self._effects, pool=self._pool, hub=self._hub, locks=self._locks,
            slots=self._slots, hooks=self._hooks, deps=self._deps, builtin=self._builtin,
            team=cast("Team", _Team(self._script)),
        )  # fmt: skip  # rows by what belongs together
        self._log.notify = drive.notify
        return drive.go()

    def _builtin(self, drive: Drive) -> Tool:
        made = read_result_tool(drive.record, drive.store, drive.lease.tenant, drive.run.run_id)
        return _stand_in(made, self._log)

    def _time_is_up(self) -> None:
        """A budget of time ends a run at its own hour, whatever the code."""
        ended = self._script.ended
        if ended is not None and ended.ended_by == "limit" and (ended.reason or "").endswith(" seconds is reached"):
            self._log.put(ended)

    def _next_word(self) -> bool:
        """What ended the pause then; False where nothing did, and where it is the end of the record."""
        pending = {call.key: call for call in self._run.batch if call.pending}
        for entry in self._script.decisions:
            if (entry.step, entry.index) in pending:
                self._script.decisions.remove(entry)
                self._decide(pending[entry.step, entry.index], entry.decision, entry.at)
                return True
        if self._log.cancel():
            return True
        for key, call in pending.items():
            result = self._script.results.get(key)
            if result is None:
                continue
            expires = None if call.waiting is None else call.waiting.approval.expires_at
            outcome = result.result.outcome
            if (
                expires is not None
                and isinstance(outcome, Failed)
                and outcome.failure.code == ErrorCode.APPROVAL_EXPIRED
            ):
                self._effects.reach(max(result.at, micros(expires)))
                return True
            # Nobody was asked then. That it asks now is said; the record tells how it would have gone on.
            self._decide(call, Decision("approve", "replay"), result.at)
            return True
        return False

    def _decide_before(self, number: int) -> None:
        pending = {call.key: call for call in self._run.batch if call.pending}
        for entry in [e for e in self._script.decisions if e.entry < number]:
            call = pending.pop((entry.step, entry.index), None)
            if call is not None:
                self._script.decisions.remove(entry)
                self._decide(call, entry.decision, entry.at)

    def _decide(self, call: CallState, decision: Decision, at: int) -> None:
        waiting = cast("WaitingEntry", call.waiting)
        self._effects.reach(at)
        self._log.put(
            DecidedEntry(
                run_id=self._run.run_id, thread_id=waiting.thread_id, at=at, step=call.turn.step, index=call.index,
                call_id=call.record.call_id, tool_name=call.record.tool_name, approval_id=waiting.approval.id,
                decision=decision,
            )
        )  # fmt: skip  # rows by what belongs together
