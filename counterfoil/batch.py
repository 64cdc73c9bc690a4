"""The calls of one turn: which may run now, what their ends put on record (contract 2, 3 and 7)."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

from counterfoil.core import words
from counterfoil.core.approval import Approval, ApprovalKind, input_digest
from counterfoil.core.call_entries import LateEntry, MemoEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.content import Text
from counterfoil.core.entries import Entry
from counterfoil.core.jsontext import JsonValue, dumps, loads, normal
from counterfoil.core.limits import ATTEMPTS
from counterfoil.core.outcome import Cancelled, ErrorCode, Failed, ToolFailure
from counterfoil.core.record import CallState
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.result import seal
from counterfoil.core.turn import moment
from counterfoil.core.verdict import Verdict
from counterfoil.driver import Driver
from counterfoil.ending import finish, make_report
from counterfoil.env import Asks, Env, Finished, Ready, Refused
from counterfoil.execute import Execution, ExecutionHooks
from counterfoil.judge import cut_off, duplicates, fail, judge, out_of_budget, readmit, refuse, repeated
from counterfoil.render import content_size
from counterfoil.store import KeptText

RETRY_SECONDS = 0.1
"""Back-off before the second attempt of a tool with retries; it doubles with each further one."""


class Batch(ExecutionHooks):
    """One turn's calls while they are driven. What is decided but not yet on record lies in the outbox."""

    def __init__(self, drive: Driver, env: Env, calls: list[CallState], *, fresh: bool = False) -> None:
        self.drive = drive
        self.env = env
        self.calls = calls
        self.ready: dict[int, Ready] = {}
        """Judged and not started, by index."""
        self.asks: dict[int, Asks] = {}
        """Waits to be asked, by index."""
        self.asked = not fresh
        """Some call may have waited for a person, or is about to; not so in a turn that is fresh."""
        self.flights: dict[int, Execution] = {}
        self.locking: set[int] = set()
        self.outbox: list[Entry] = []
        self.reports: list[ToolErrorReport] = []
        self.kept: list[KeptText] = []
        self.starting: list[tuple[int, Ready]] = []
        self.done: list[Execution] = []
        self.loop = drive.loop

    # judge

    async def judge_new(self, calls: list[CallState], began: float) -> None:
        """Judge calls that have nothing on record yet."""
        repeats = duplicates(self.calls) if len(self.calls) > 1 else ()
        truncated = calls[0].turn.stop == "length" if calls else False
        waits: list[CallState] = []
        slow = (self.drive.slow_judge or self.env.policy is not None) and len(calls) > 1
        for call in calls:
            if truncated:
                await self.take(call, cut_off(call.record.tool_name), began)
            elif call.index in repeats:
                await self.take(call, repeated(call.record.tool_name), began)
            elif slow:
                waits.append(call)
            else:
                answer = await judge(self.env, call)
                if type(answer) is Ready:
                    answer.began = began
                    self.ready[call.index] = answer
                else:
                    await self.take(call, answer, began)
        if waits:
            answers = await asyncio.gather(*(judge(self.env, c) for c in waits))
            for call, answer in zip(waits, answers, strict=True):
                await self.take(call, answer, began)

    @property
    def waits(self) -> bool:
        """Some call waits for a person, or is about to be asked about."""
        if self.asks:
            return True
        for call in self.calls:
            if call.waiting is not None and call.result is None:
                return True
        return False

    async def take(self, call: CallState, answer: Ready | Asks | Refused, began: float) -> None:
        """Act on the gateway's word."""
        if type(answer) is Ready:
            answer.began = began
            self.ready[call.index] = answer
        elif type(answer) is Asks:
            self.asks[call.index] = answer
            self.asked = True
        else:
            await self.settle(call, cast("Refused", answer), began)

    async def settle(self, call: CallState, refused: Refused, began: float) -> None:
        """Put the end of a call whose body does not run into the outbox."""
        env = self.env
        result = refused.result
        if isinstance(result.outcome, Failed):
            shown: JsonValue = call.record.raw
            if not refused.raw_input and refused.parsed is not None:
                shown = loads(refused.parsed)
            seconds = env.effects.clock() - began
            self.reports.append(await make_report(env, call, result, refused.error, shown, seconds))
        start = call.start
        self.outbox.append(
            ResultEntry(
                **self._head(call),
                result=result,
                size=content_size(result.content),
                attempt=start.attempt if start else 0,
                started_at=start.at if start else None,
                author_type="Human" if refused.by_human else "System",
                author_name=refused.human or "",
                decision=refused.verdict.to_json() if refused.verdict else None,
                parsed=refused.parsed if refused.before is None else refused.before,
                effective=None if refused.before is None else refused.parsed,
            )
        )

    def _head(self, call: CallState) -> Any:
        return {
            "run_id": self.env.run_id, "thread_id": self.env.thread_id, "at": self.env.effects.now(),
            "step": call.turn.step, "index": call.index, "call_id": call.record.call_id, "tool_name": call.record.tool_name,
        }  # fmt: skip  # two rows

    # ask

    def ask(self) -> None:
        """Open the approvals that may be open now."""
        one_by_one = self.drive.one_by_one
        if one_by_one and any(c.pending for c in self.calls):
            return
        for index in sorted(self.asks):
            asks = self.asks.pop(index)
            self.outbox.append(self._waiting(self.calls[index], "approval", asks))
            if one_by_one:
                return

    def _waiting(self, call: CallState, kind: ApprovalKind, asks: Asks | None) -> WaitingEntry:
        env = self.env
        now = env.effects.now()
        verdict: Verdict | None = None
        after = call.waiting.approval.id if call.waiting else None
        if asks is not None:
            effective, parsed, verdict = asks.effective, asks.parsed, asks.verdict
        else:
            start = cast("StartEntry", call.start)
            effective, parsed = start.effective, start.parsed
        seconds = env.limits.approval_seconds if kind == "approval" else None
        if verdict is not None and verdict.expires_in is not None:
            seconds = verdict.expires_in
        shown = loads(effective)
        approval = Approval(
            id=env.effects.new_id(),
            kind=kind,
            run_id=env.run_id,
            call_id=call.record.call_id,
            tool_name=call.record.tool_name,
            input=shown if parsed is None else loads(parsed),
            effective_input=shown,
            digest=input_digest(call.record.tool_name, effective),
            rule=verdict.rule if verdict else None,
            reason=verdict.reason if verdict else None,
            requested_at=moment(now),
            expires_at=None if seconds is None else moment(now + int(seconds * 1_000_000)),
            after=after,
            agent=env.agent,
            tenant=env.caller.tenant,
            approvers=verdict.approvers if verdict else (),
            not_user=env.caller.user if verdict is not None and verdict.not_caller else None,
        )
        return WaitingEntry(**self._head(call), approval=approval, decision=verdict.to_json() if verdict else None)

    # people

    async def take_decisions(self) -> None:
        """Act on decisions that came, and on approvals that expired."""
        now = self.env.effects.now()
        for call in self.calls:
            if call.result is not None or call.waiting is None or call.in_flight or self._held(call.index):
                continue
            if call.decided is not None:
                await self.take(call, await readmit(self.env, call), self.env.effects.clock())
            elif call.waiting.approval.expires_at is not None and moment(now) >= call.waiting.approval.expires_at:
                effective = dumps(call.waiting.approval.effective_input)
                refused = fail(ErrorCode.APPROVAL_EXPIRED, call.record.tool_name, parsed=effective)
                await self.settle(call, refused, self.env.effects.clock())

    def _held(self, index: int) -> bool:
        return (
            index in self.ready
            or index in self.asks
            or index in self.flights
            or any(isinstance(e, ResultEntry) and e.index == index for e in self.outbox)
        )

    async def recover(self) -> None:
        """Take up calls whose bodies died with another process, and those that were never started."""
        new = [c for c in self.calls if c.state == "judged"]
        if new:
            await self.judge_new(new, self.env.effects.clock())
        for call in self.calls:
            if not call.in_flight:
                continue
            start = cast("StartEntry", call.start)
            tool = self.env.tools.get(call.record.tool_name)
            if start.safe and tool is not None and tool.safe and start.attempt < ATTEMPTS + tool.retries:
                try:
                    arguments = tool.schema.parse(start.effective.decode())
                except ValueError:
                    pass
                else:
                    verdict = Verdict("allow", None, None, None)
                    self.ready[call.index] = Ready(
                        tool, arguments, start.effective, start.parsed, verdict, attempt=start.attempt + 1,
                        lock=start.lock, began=self.env.effects.clock(), attempts=("interrupted",),
                    )  # fmt: skip  # two rows
                    continue
            if tool is not None and tool.on_interrupted == "tell":
                code = ErrorCode.INTERRUPTED
                failure = ToolFailure(code, "the process died while the body ran", retryable=False, origin="gateway", body="unknown")
                text = words.failure(code, call.record.tool_name)
                await self.settle(
                    call, refuse(Failed(failure), text, parsed=start.effective), self.env.effects.clock()
                )
            else:
                self.outbox.append(self._waiting(call, "interrupted", None))
                self.asked = True

    # run

    def select(self) -> None:
        """Choose what starts now, by order, barrier, lock and concurrency; starts go into the outbox."""
        if not self.ready:
            return
        now = self.env.effects.now()
        slots = self.env.limits.concurrency - len(self.flights)
        for call in self.calls:
            index = call.index
            flying = index in self.flights or index in self.locking
            ready = self.ready.get(index)
            if ready is None:
                if flying and self.flights.get(index) and self.flights[index].ready.tool.sequential:
                    return
                continue
            alone = ready.tool.sequential
            if alone and (self.flights or self.starting or self._unfinished_before(index)):
                return
            if slots < 1:
                return
            if ready.lock is not None and not ready.locked:
                if index not in self.locking:
                    self.locking.add(index)
                    self.drive.locks.take(self.env.caller.tenant, ready.lock, self, index)
                if index in self.locking:
                    if alone:
                        return
                    continue
            if not self.drive.slots.take(self.drive.wake):
                return
            del self.ready[index]
            slots -= 1
            self._start(call, ready, now)
            if alone:
                return

    def _unfinished_before(self, index: int) -> bool:
        return any(i < index for i in self.locking) or any(i < index for i in self.ready)

    def locked(self, index: int) -> None:
        """A lock was taken for this call."""
        self.locking.discard(index)
        ready = self.ready.get(index)
        if ready is None:
            self.drive.locks.give(self.env.caller.tenant, self, index)
            return
        ready.locked = True
        self.drive.wake()

    def _start(self, call: CallState, ready: Ready, now: int) -> None:
        self.starting.append((call.index, ready))
        record = call.record
        self.outbox.append(
            StartEntry(
                run_id=self.env.run_id,
                thread_id=self.env.thread_id,
                at=now,
                step=call.turn.step,
                index=call.index,
                call_id=record.call_id,
                tool_name=record.tool_name,
                attempt=ready.attempt,
                key=self.env.key(call),
                safe=ready.tool.safe,
                effective=ready.effective,
                parsed=ready.parsed,
                decision=ready.verdict.to_json() if ready.verdict.revision is not None else None,
                approval_id=ready.approval_id,
                lock=ready.lock,
                most=ATTEMPTS + ready.tool.retries,
            )
        )

    def launch(self) -> None:
        """Begin the bodies whose starts are on record."""
        starting, self.starting = self.starting, []
        for index, ready in starting:
            flight = self.flights[index] = Execution(self.env, self.calls[index], ready, self, self._on_end)
            flight.begin(self.loop)

    def _on_end(self, x: Execution) -> None:
        self.done.append(x)
        self.drive.slots.give()
        self.drive.wake()

    async def gather(self) -> None:
        """Put the ends of bodies into the outbox: results, or further attempts."""
        done, self.done = self.done, []
        now = self.env.effects.now()
        for x in done:
            index = x.call.index
            del self.flights[index]
            finished = x.finished or await finish(x, x.end, last=True)
            if finished.again:
                if self._again(x, finished):
                    continue
                finished = await finish(x, x.end, last=True)
            self._record(x, finished, now)
            if x.late_end is not None:
                self.drive.finish_late(self, x, *x.late_end)
            if finished.fatal is not None:
                self.drive.fatal = finished.fatal

    def _record(self, x: Execution, finished: Finished, now: int, kind: type[ResultEntry] = ResultEntry) -> None:
        kept: KeptText | None = finished.kept
        if kept is not None:
            self.kept.append(kept)
        if finished.report is not None:
            self.reports.append(finished.report)
        call = x.call
        self.outbox.append(
            kind(
                run_id=self.env.run_id,
                thread_id=self.env.thread_id,
                at=now,
                step=call.turn.step,
                index=call.index,
                call_id=call.record.call_id,
                tool_name=call.record.tool_name,
                result=finished.result,
                size=finished.size,
                attempt=x.ready.attempt,
                started_at=finished.started_at,
                duration=finished.duration,
                kept_id=None if kept is None else kept.id,
                kept_digest=None if kept is None else kept.digest,
                replaced=finished.replaced,
            )
        )

    def _again(self, x: Execution, finished: Finished) -> bool:
        """Make a failed attempt's successor ready, unless nothing new may start; the lock is asked for anew."""
        tool, ready = x.ready.tool, x.ready
        failure = cast("Failed", finished.result.outcome).failure
        if self.drive.stopping or self.drive.fatal is not None:
            return False
        wait = RETRY_SECONDS * 2 ** (ready.attempt - 1)
        told = f"attempt {ready.attempt}: {failure.message or type(finished.error).__name__}"
        self.ready[x.call.index] = Ready(
            tool, ready.arguments, ready.effective, ready.parsed, ready.verdict, attempt=ready.attempt + 1,
            edited_by=ready.edited_by, lock=ready.lock, began=ready.began,
            not_before=self.env.effects.clock() + wait, attempts=(*ready.attempts, told),
        )  # fmt: skip  # rows by what belongs together
        return True

    # what bodies ask for

    def memo(self, execution: Execution) -> Callable[[str, Callable[[], Any]], Any]:
        """Durable sub-steps: recorded once, given back in every later attempt."""

        async def step(name: str, fn: Callable[[], Any]) -> JsonValue:
            call = execution.call
            if call.memos is not None and name in call.memos:
                return call.memos[name]
            value = fn()
            value = normal(await value if inspect.isawaitable(value) else value)
            await self.drive.write([MemoEntry(**self._head(call), name=name, value=value)])
            return value

        def either(name: str, fn: Callable[[], Any]) -> Any:
            try:
                running = asyncio.get_running_loop()
            except RuntimeError:
                running = None
            if running is self.loop:
                return step(name, fn)
            # A sync body: it sits in a thread, where a coroutine would be of no use.
            return asyncio.run_coroutine_threadsafe(step(name, fn), self.loop).result()

        return either

    def progress(self, execution: Execution, text: str, done: float | None, total: float | None) -> None:
        """Tell listeners; from any thread."""
        if self.drive.hub.listened(self.env.run_id):
            tell = functools.partial(self.drive.tell_progress, execution.call, text, done, total)
            self.loop.call_soon_threadsafe(tell)

    def late(self, execution: Execution, finished: Finished) -> None:
        """Log beside the call what came too late to be its result."""
        self.drive.write_later(self._late_entry(execution, finished))
        if finished.fatal is not None:
            self.drive.fatal = finished.fatal
            self.drive.wake()

    def _late_entry(self, x: Execution, finished: Finished) -> LateEntry:
        held, self.outbox = self.outbox, []
        reports, self.reports = self.reports, []
        kept, self.kept = self.kept, []
        finished.kept, finished.report = None, None
        self._record(x, finished, self.env.effects.now(), LateEntry)
        entry = cast("LateEntry", self.outbox.pop())
        self.outbox, self.reports, self.kept = held, reports, kept
        return entry

    def thread_ended(self, execution: Execution, value: object, error: BaseException | None) -> None:
        """A thread that was given up has ended: its end is logged beside the call."""
        self.drive.finish_late(self, execution, value, error)

    def released(self, execution: Execution) -> None:
        """The lock of the call may go; its result is on record, or is in this very turn of the loop."""
        if execution.ready.lock is not None:
            self.drive.locks.give(self.env.caller.tenant, self, execution.call.index)

    # end early

    def leave(self) -> None:
        """Give back what calls hold that do not come to start here; a lock that comes later goes back by itself."""
        for _ in self.starting:
            self.drive.slots.give()
        idle = {**self.ready, **dict(self.starting)}
        self.ready, self.starting = {}, []
        for index, ready in idle.items():
            if ready.locked:
                self.drive.locks.give(self.env.caller.tenant, self, index)

    async def cancel_idle(self, why: str | None) -> None:
        """Settle every call that runs nothing: cancelled, or with a limit's name, failed."""
        for call in self.calls:
            if call.result is not None or call.index in self.flights:
                continue
            if any(isinstance(e, ResultEntry) and e.index == call.index for e in self.outbox):
                continue
            name = call.record.tool_name
            known = self.ready.pop(call.index, None) or self.asks.pop(call.index, None)
            if type(known) is Ready and known.locked:
                self.drive.locks.give(self.env.caller.tenant, self, call.index)
            began = self.env.effects.clock()
            if why is not None:
                await self.settle(call, out_of_budget(call, known, why), began)
                continue
            started = call.start is not None
            text = words.cancelled(name, started=started, ended=True)
            reason = self.env.run.cancel.reason if self.env.run.cancel else None
            result = seal((Text(text),), Cancelled(reason))
            await self.settle(call, Refused(result), began)
