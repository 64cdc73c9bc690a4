"""The calls of one turn: which may run now, what their ends put on record (contract 2, 3 and 7)."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

from counterfoil.core import plain_entries, words
from counterfoil.core.call_entries import LateEntry, MemoEntry, ResultEntry, StartEntry
from counterfoil.core.entries import EndedEntry, Entry, RunEntry
from counterfoil.core.jsontext import JsonValue, loads, normal
from counterfoil.core.limits import ATTEMPTS
from counterfoil.core.outcome import ErrorCode, Failed
from counterfoil.core.record import CallState, RunState
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.states import OPEN
from counterfoil.core.verdict import Verdict
from counterfoil.docket import Docket
from counterfoil.driver import Driver
from counterfoil.eager import Starter
from counterfoil.ending import End, finish
from counterfoil.env import ChildFailed, Env, Finished, Ready
from counterfoil.execute import Execution, ExecutionHooks
from counterfoil.judge import edited_by, fail
from counterfoil.store import KeptText
from counterfoil.team import tools_of

RETRY_SECONDS = 0.1
"""Back-off before the second attempt of a tool with retries; it doubles with each further one."""


def _answer(child: RunState) -> End:
    """What the end of a run is to the call that waited for it."""
    ended, head = cast("EndedEntry", child.ended), cast("RunEntry", child.head)
    if ended.status == "completed":
        return ended.answer or "", None
    told = f"run {child.run_id} of {head.agent} ended as {ended.status}: {ended.reason or ended.ended_by}"
    return None, ChildFailed(told, words.child_end(head.agent, ended.status, ended.reason))


class Batch(Docket, ExecutionHooks):
    """One turn's calls while they are driven."""

    def __init__(self, drive: Driver, env: Env, calls: list[CallState], *, fresh: bool = False) -> None:
        super().__init__(drive, env, calls, fresh=fresh)
        self.flights: dict[int, Execution] = {}
        self.locking: set[int] = set()
        self.outliving: set[int] = set()
        """Calls of which an earlier attempt, or the run that they waited for, may still run."""
        self.children: dict[int, Ready] = {}
        """Calls that wait for a run of another agent, by index."""
        self.spawning: list[int] = []
        """Those of which that run may not be on record yet."""
        self.starting: list[tuple[int, Ready]] = []
        self.done: list[Execution] = []
        self.loop = drive.loop

    def running(self, index: int) -> bool:
        """Whether a body of the call runs here, or another run does its work."""
        return index in self.flights or index in self.children

    def may_run(self, index: int) -> bool:
        """Whether an earlier attempt at the call, or the run that it waited for, may still run."""
        return index in self.outliving

    # run

    def select(self) -> None:
        """Choose what starts now, by order, barrier, lock and concurrency; starts go into the outbox."""
        if not self.ready:
            return
        now = self.env.effects.now()
        if self.env.team is not None:
            self._hand_on(now)
        slots = self.env.limits.concurrency - len(self.flights)
        for call in self.calls:
            index = call.index
            ready = self.ready.get(index)
            if ready is None:
                flight = self.flights.get(index)
                if flight is not None and flight.ready.tool.sequential:
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

    def _hand_on(self, now: int) -> None:
        """Start what waits for another run: it takes no slot and no lock, and stands in nobody's way."""
        for index in [i for i, ready in self.ready.items() if ready.child is not None]:
            ready = self.children[index] = self.ready.pop(index)
            self.spawning.append(index)
            self._start(self.calls[index], ready, now)

    async def wait_again(self, call: CallState) -> None:
        """Go on waiting for the run that a call was handed to."""
        ready = self._handed_on(call)
        is_there = call.child in self.drive.record.runs
        if self.env.team.again(self.env, ready) or is_there:
            self.children[call.index] = ready
            if not is_there:
                self.spawning.append(call.index)
            return
        whom = ready.arguments.get("agent") or ready.arguments.get("participant")
        reason = words.child_end(str(whom), "failed", None)
        await self.settle(call, fail(ErrorCode.CHILD_FAILED, ready.tool.name, reason=reason), ready.began)

    def _handed_on(self, call: CallState) -> Ready:
        """What was judged of a call that waits for another run, from the record."""
        start, name = cast("StartEntry", call.start), call.record.tool_name
        return Ready(
            self.env.tools.get(name) or tools_of(self.env.agent, ())[name],
            cast("dict[str, Any]", loads(start.effective)), start.effective, start.parsed,
            Verdict("allow", None, None, None), attempt=start.attempt, edited_by=edited_by(call),
            began=self.env.effects.clock(), child_id=start.child,
        )  # fmt: skip  # rows by what belongs together

    async def look_below(self) -> bool:
        """See to it that the runs which calls wait for are on record, as their starts are, and take what they came to.

        Returns:
            Whether there is something to put on record.
        """
        spawning, self.spawning = self.spawning, []
        for index in spawning:
            await self.env.team.begin(self.env, self.calls[index], self.children[index])
        for index, ready in list(self.children.items()):
            call = self.calls[index]
            child = self.drive.record.runs.get(call.child or "")
            if child is None or child.ended is None or child.status in OPEN:
                continue
            del self.children[index]
            if child.status == "cancelled" and self.drive.stopping:
                await self._cancel(call, ready)
                continue
            x = Execution(self.env, call, ready, self, self._on_end)
            now, start = self.env.effects.now(), cast("StartEntry", call.start)
            x.started_at, x.clock0 = start.at, self.env.effects.clock() - (now - start.at) / 1_000_000
            x.body_over = True
            self._record(x, await finish(x, _answer(child), last=True), now)
        return bool(self.outbox)

    async def cancel_below(self) -> None:
        """Have the runs end that calls wait for; `look_below` settles each call when its run has, and none begins."""
        self.spawning, self.children = [], {}
        for call in self.calls:
            if call.child is not None and await self.env.team.cancel(call.child, self._why()):
                self.children[call.index] = self._handed_on(call)

    def leave_below(self) -> None:
        """Wait no more for the runs that have not ended."""
        self.outliving.update(self.children)
        self.children = {}

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
        if ready.child is None:
            self.starting.append((call.index, ready))
        env, record, tool = self.env, call.record, ready.tool
        entry = plain_entries.start(
            env.run_id, env.thread_id, now, call.turn.step, call.index, record.call_id, record.tool_name,
            ready.attempt, env.key(call), tool.safe, ready.effective, ready.parsed,
        )  # fmt: skip  # rows by what belongs together
        entry.approval_id = ready.approval_id
        entry.child = ready.child_id
        if ready.child is None:
            entry.lock = ready.lock
        if ready.verdict.revision is not None:
            entry.decision = ready.verdict.to_json()
        if tool.retries:
            entry.most = ATTEMPTS + tool.retries
        self.outbox.append(entry)

    def launch(self, at_once: Starter | None = None) -> None:
        """Begin the bodies whose starts are on record; without ``at_once`` one can still be stopped before it runs."""
        starting, self.starting = self.starting, []
        for index, ready in starting:
            flight = self.flights[index] = Execution(self.env, self.calls[index], ready, self, self._on_end)
            flight.begin(self.loop, at_once)

    def _on_end(self, x: Execution) -> None:
        self.done.append(x)
        self.drive.slots.give()
        self.drive.wake()

    def taken(self) -> tuple[list[Entry], list[ToolErrorReport], list[KeptText]]:
        """What lies in the outbox, which is empty then."""
        taken = self.outbox, self.reports, self.kept
        self.outbox, self.reports, self.kept = [], [], []
        return taken

    def gather_plain(self) -> bool:
        """As `gather`, where every end is the end of its call as it is; False: nothing was done."""
        for x in self.done:
            finished = x.finished
            if finished is None or finished.again or finished.fatal is not None or x.late_end is not None:
                return False
        done, self.done = self.done, []
        now = self.env.effects.now()
        for x in done:
            del self.flights[x.call.index]
            self._record(x, x.finished, now)  # type: ignore[arg-type]  # looked at above
        return True

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
        env, call = self.env, x.call
        record = call.record
        entry = plain_entries.result(
            env.run_id, env.thread_id, now, call.turn.step, call.index, record.call_id, record.tool_name,
            finished.result, finished.size, x.ready.attempt, finished.started_at, finished.duration, kind,
        )  # fmt: skip  # as in `_start`
        entry.replaced = finished.replaced
        entry.over = finished.over
        if kept is not None:
            entry.kept_id, entry.kept_digest = kept.id, kept.digest
        self.outbox.append(entry)

    def _again(self, x: Execution, finished: Finished) -> bool:
        """Make a failed attempt's successor ready, unless nothing new may start; the lock is asked for anew."""
        tool, ready = x.ready.tool, x.ready
        failure = cast("Failed", finished.result.outcome).failure
        if self.drive.stopping or self.drive.fatal is not None:
            return False
        if not x.body_over:
            self.outliving.add(x.call.index)
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

    async def abandon(self, grace: float) -> None:
        """Tell bodies to stop, and wait for them for so many seconds at most."""
        self.leave()
        flights = list(self.flights.values())
        for flight in flights:
            flight.tell("abandon")
        tasks = [f.task for f in flights if f.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace)

    def leave(self) -> None:
        """Give back what calls hold that do not come to start here; a lock that comes later goes back by itself."""
        for _ in self.starting:
            self.drive.slots.give()
        idle = {**self.ready, **dict(self.starting)}
        self.ready, self.starting = {}, []
        for index, ready in idle.items():
            if ready.locked:
                self.drive.locks.give(self.env.caller.tenant, self, index)
