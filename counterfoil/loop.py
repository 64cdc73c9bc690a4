"""The loop: model, tools, model. One re-entrant `Drive.go` that goes on from the record, whatever happened before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from counterfoil.asking import Driven, Offered
from counterfoil.batch import Batch
from counterfoil.core import words
from counterfoil.core.entries import (
    EndedEntry,
    Entry,
    MessageEntry,
    PausedEntry,
    ResumedEntry,
    TurnEntry,
)
from counterfoil.core.errors import DefinitionError, Fenced, ModelError, StoreError
from counterfoil.core.jsontext import JsonValue, clean_text
from counterfoil.core.limits import CHILDREN_DEEP
from counterfoil.core.record import CallState, Record
from counterfoil.core.states import STATUS_OF, ending_call, limit_reached, next_expiry, pause_of, to_deliver, unanimous
from counterfoil.core.threads import view_of
from counterfoil.core.turn import moment
from counterfoil.eager import Starter
from counterfoil.effects import Effects
from counterfoil.ending import finish
from counterfoil.env import Env
from counterfoil.execute import Execution
from counterfoil.hooks import HookList
from counterfoil.hub import Hub, Locks, Slots
from counterfoil.judge import needs_time
from counterfoil.model import ModelRequest
from counterfoil.pool import ThreadPool
from counterfoil.store import Behind, Lease, StatusChange, Store
from counterfoil.summing import Fitting
from counterfoil.team import Team, remembered
from counterfoil.tool import Tool

log = logging.getLogger("counterfoil")

HOLD_SECONDS = 0.05
"""A run whose model and tools never wait holds up the event loop for so long at most, but for its step."""
LOOK_SECONDS = 0.1
"""Between two looks of a run that is to end at those below it."""
BELOW_SECONDS = 0.5
"""What a run that is to end waits beyond its grace for those below it, for each level that there may be."""


class Drive(Fitting):
    """One run, driven by this process until it pauses, ends or is given up."""

    def __init__(
        self, agent: Driven, lease: Lease, record: Record, *, store: Store, effects: Effects, pool: ThreadPool,
        hub: Hub, locks: Locks, slots: Slots, hooks: HookList, deps: Callable[[], object] | None,
        builtin: Callable[[Drive], Tool], team: Team | None = None,
    ) -> None:  # fmt: skip  # rows by what belongs together
        super().__init__(lease, record, store=store, effects=effects, hub=hub, hooks=hooks)
        head = self.head
        env = Env(
            head.caller, lease.interaction_id, lease.run_id, head.thread_id, agent.name, self.run,
            agent.tool_map, agent.policy, hooks, self.run.limits, effects, pool, deps, team=team,
        )  # fmt: skip  # as above
        env.probe = self._body if effects.probe is not None or hooks.on_body else None
        self._begin_asking(agent, env, builtin)
        self.locks = locks
        self.slots = slots
        self.starter = Starter(self.loop)
        self.one_by_one = head.approvals == "one-by-one"
        self.direct = head.direct
        self.slow_judge = needs_time(env)
        self.view = view_of(record, self.run)
        self._some_end = any(t.ends_run for t in env.tools.values())
        self.batch: Batch | None = None
        self.fatal: BaseException | None = None
        self.resumed = False
        """That the run goes on is on record already."""
        self.leaving = False  # stop where the next step would begin

    def finish_late(self, batch: Batch, x: Execution, value: object, error: BaseException | None) -> None:
        """A thread that was given up ended: render its end and log it beside the call."""

        async def late() -> None:
            x.ready.approval_id = None
            finished = await finish(x, (value, error), late=True)
            self.write_later(batch._late_entry(x, finished))

        self._aside(late())

    # the run

    async def go(self) -> str:
        """Drive until the run pauses, ends, waits for its child runs (``waiting``) or is left to others (``running``).

        Raises:
            Fenced: another worker drives it now.
        """
        self.task = asyncio.current_task()
        try:
            return await self._go()
        finally:
            self.starter.close()

    async def _go(self) -> str:
        await self._begin()
        time = self.loop.time
        until = time() + HOLD_SECONDS
        while True:
            if time() > until:
                await asyncio.sleep(0)
                until = time() + HOLD_SECONDS
            try:
                if self.run.open and not await self._work():
                    return "waiting" if self.run.left else "paused"
                if self._foreign:
                    await self.refresh()
                end = self._due_end()
                if end is not None:
                    return await end
                status = "running" if self.leaving else await self._ask()
                if status is not None:
                    return status
            except Behind:
                continue

    async def _begin(self) -> None:
        """Take the run up where the record leaves it."""
        run = self.run
        if self.hooks.on_event:
            self._publish(self._unseen())
        if run.status != "running" or (self.lease.epoch > 1 and not self.resumed):
            await self.write([ResumedEntry(**self._head())])
        self.env.take_rejections()
        if run.open:
            if self._reads_on or (self.record.kept and self._sees_kept()):
                self._take_builtin()
            self.env.offered = frozenset(self.env.tools)
            self.batch = Batch(self, self.env, run.batch)
            if run.cancel is None:
                await self.batch.recover()

    async def abandon(self) -> None:
        """This process drives the run no more: bodies are told to stop; their starts stay on record without an end."""
        if self.batch is not None:
            await self.batch.abandon(self.run.limits.cancel_grace)

    async def _flush(self) -> None:
        batch: Batch = self.batch  # type: ignore[assignment]  # called with a batch alone
        if batch.outbox:
            await self.write(*batch.taken())
        if batch.starting:
            batch.launch()
        if self.fatal is not None:
            raise self.fatal

    async def _work(self) -> bool:  # noqa: C901  # a frame of its own for any part of it costs each call twice
        """Bring the batch on until every call has its result (True) or all that is open waits for people (False)."""
        batch: Batch = self.batch  # type: ignore[assignment]  # called with a batch alone
        run = self.run
        while True:
            if self._foreign or run.cancel is not None or run.limits.seconds is not None:
                await self._heed()
            if self.stopping is None and self.fatal is None:
                if batch.asked and batch.waits:
                    await batch.take_decisions()
                    batch.ask()
                if batch.ready:
                    batch.select()
            # As `_flush`, without a frame of its own: every call comes by here twice.
            if batch.outbox and (rest := self.put(*batch.taken())) is not None:
                await rest
            if batch.starting:
                told = self._foreign or run.cancel is not None or run.limits.seconds is not None
                batch.launch(None if told else self.starter)
            if self.fatal is not None:
                raise self.fatal
            if batch.children and await batch.look_below():
                continue
            if not run.open:
                return True
            if batch.done:
                self._signal = False
                if not batch.gather_plain():
                    await batch.gather()
                continue
            if not (batch.flights or batch.ready or batch.locking or batch.starting):
                if await self._pause():
                    return False
                continue
            await self._wait(self._next_look() if batch.asked or run.limits.seconds is not None else None)
            if not batch.gather_plain():
                await batch.gather()

    async def _heed(self) -> None:
        """Take in what others wrote, and stop where they cancelled or the time is used up."""
        if self._foreign:
            await self.refresh()
        if self.run.cancel is not None and self.stopping != "cancel":
            await self._stop("cancel")
        left = self._time_left()
        if self.stopping is None and left is not None and left <= 0:
            await self._stop(f"{self.run.limits.seconds:g} seconds")

    def _next_look(self) -> float | None:
        now = self.effects.now()
        expiry = next_expiry(self.run)
        looks = [] if expiry is None else [(expiry - moment(now)).total_seconds()]
        left = self._time_left()
        if left is not None and self.stopping is None:
            looks.append(left)
        return max(min(looks), 0.001) if looks else None

    async def _stop(self, why: str) -> None:
        """Nothing new starts; bodies and the runs below are told and waited for; every call gets its result."""
        self.stopping = why
        batch = cast("Batch", self.batch)
        await batch.cancel_below()
        await batch.cancel_idle()
        for flight in list(batch.flights.values()):
            flight.tell("cancel" if why == "cancel" else "limit")
        grace = self.run.limits.cancel_grace
        await self._linger(lambda: batch.flights or batch.children, grace)
        for flight in list(batch.flights.values()):
            flight.give_up()
        # A run below may have as long for its bodies, from a little later on, and those below it too.
        await self._linger(lambda: batch.children, BELOW_SECONDS * (CHILDREN_DEEP + 1 - len([*self.run.above()])))
        batch.leave_below()
        await batch.cancel_idle()
        await batch.gather()

    async def _linger(self, waits: Callable[[], object], seconds: float) -> None:
        """Put on record what ends, as long as something does not, for so long at most."""
        batch, until = cast("Batch", self.batch), self.loop.time() + seconds
        while True:
            await batch.gather()
            if batch.children:
                await self.refresh()  # whoever drives those below may have no way to tell
                await batch.look_below()
            await self._flush()
            left = until - self.loop.time()
            if left <= 0 or not waits():
                return
            await self._wait(min(left, LOOK_SECONDS) if batch.children else left)

    async def _pause(self) -> bool:
        ended = ending_call(self.run.batch, self.env.ends_run)
        key = self.run.ended_run or (ended.key if ended else None)
        children, wake_at = pause_of(self.run, self.record.runs, moment(self.effects.now()))
        change = StatusChange("running" if children else "paused", wake_at=wake_at, leaves=children)
        try:
            entry = PausedEntry(**self._head(), ended_run=key, children=children)
            await self.write([entry], change=change, exact=True)
        except Behind:
            return False
        return True

    def _due_end(self) -> Awaitable[str] | None:
        """The run's end, if a rule says so; each call of the batch has its result."""
        run = self.run
        if run.cancel is not None:
            return self._end("cancelled", reason=run.cancel.reason)
        if run.batch:
            call = None
            if run.ended_run is not None:
                call = next((c for c in run.batch if c.key == run.ended_run), None)
            if call is None and self._some_end:
                call = ending_call(run.batch, self.env.ends_run)
            if call is not None and call.result is not None:
                return self._end("tool", call, answer=call.result.result.model_output)
            call = unanimous(run.batch, self.env.advisory)
            if call is not None and call.result is not None:
                return self._end("vote", None, answer=call.result.result.model_output)
        if self.direct:
            return self._end_direct()
        used = self.stopping or limit_reached(run, run.limits)
        if used is not None:
            return self._end("limit", reason=f"the limit of {used} is reached")
        return None

    def _end_direct(self) -> Awaitable[str]:
        """A call without a model: its result is the run's answer, and a success ended it."""
        call = self.run.batch[0]
        text = call.result.result.model_output if call.result is not None else None
        ran = call.result is not None and call.result.result.executed
        return self._end("tool" if ran else "answer", call if ran else None, answer=text)

    async def _end(
        self, by: str, call: CallState | None = None, *, answer: str | None = None, output: JsonValue = None,
        null: bool = False, reason: str | None = None, before: Sequence[Entry] = (),
    ) -> str:  # fmt: skip  # rows by what belongs together
        status = STATUS_OF[by]
        entry = EndedEntry(
            **self._head(), status=status, ended_by=by, ended_run=self.run.ended_run or (call.key if call else None),
            answer=answer, output=output, null=null, reason=reason, seconds=self.run.seconds, discarded=self._discarded,
        )  # fmt: skip  # as above
        if self.head.parent is not None and answer is not None:
            before = [*before, *remembered(self.record, self.run, answer, self.effects.now())]
        await self.write([*before, entry], change=StatusChange(status, ended_by=by), exact=True)
        return status

    # the model

    async def _ask(self) -> str | None:
        """Deliver what waits, ask the model and put its turn on record; the run's status where that ended it."""
        run = self.run
        if self.record.queued and (messages := to_deliver(self.record, run)):
            await self.write([
                MessageEntry(**self._head(), text=m.text, blocks=m.blocks, author_name=m.author_name, queued=m.entry)
                for m in messages
            ])  # fmt: skip  # one list
        try:
            steady = None if (self.record.kept and self._sees_kept()) or self._reads_on else self._steady
            offer = steady or await self._offer()
            given = self.agent.instructions
            text = given if type(given) is str else await self._instructions()
            items = self.record.items if self.view is None else self.view.take()
            request = ModelRequest(
                text, items, len(items), offer.offers, run.run_id, run.turns, self.agent.output_schema,
                self.agent.parameters,
            )  # fmt: skip  # two rows
            if run.limits.context_tokens is not None and not await self._fit(request, offer):
                return None
            plain = not (self.hooks.before_model or self.hooks.after_model or run.limits.seconds is not None)
            turn = await (self._respond(request) if plain else self._guarded(request))
            entry = None if turn is None else self._turn_entry(turn, offer)
        except (ModelError, DefinitionError) as e:
            return await self._fail(str(e))
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError, StoreError, Fenced):
            raise
        except BaseException as e:  # a fault of the program must not leave the run hanging
            log.exception("run %s failed", run.run_id)
            return await self._fail(f"{type(e).__name__}: {e}")
        if entry is None:
            await self.refresh()
            return None
        taken = self._take_turn(entry, offer)
        return None if taken is None else await taken

    async def _fail(self, reason: str, *before: Entry) -> str | None:
        while self.run.cancel is None:
            try:
                return await self._end("error", reason=clean_text(reason), before=before)
            except Behind:
                continue
        return None

    def _take_turn(self, entry: TurnEntry, offer: Offered) -> Awaitable[str | None] | None:
        """Take a turn into the fold and judge its calls; what is awaitable has not been done yet."""
        run, record = self.run, self.record
        began = self.effects.clock()
        if not entry.calls:
            return self._answer(entry)
        self.env.offered = offer.names
        tip = record.tip
        record.apply(entry)
        record.tip = tip
        self._applied = entry
        self.batch = batch = Batch(self, self.env, run.batch, fresh=True)
        if self.slow_judge:
            return self._judge_slowly(batch, entry, began)
        batch.outbox.append(entry)
        return batch.judge_new(run.batch, began)

    async def _judge_slowly(self, batch: Batch, entry: TurnEntry, began: float) -> None:
        # Somebody's code may take its time, or the process may die in it: the turn is safe first.
        await self.write([entry])
        rest = batch.judge_new(self.run.batch, began)
        if rest is not None:
            await rest

    async def _answer(self, entry: TurnEntry) -> str | None:
        """A turn without calls: the run's answer, unless it was cut off or does not have the output's form."""
        mend: str | None = None
        output: JsonValue = None
        if entry.stop == "length":
            mend = words.cut_off_answer()
        elif self.agent.output_schema is not None:
            try:
                output = self.agent.parse_output(entry.text)
            except ValueError as e:
                mend = words.output_mismatch(str(e))
            except Exception as e:  # a validator of the program's own
                log.exception("run %s failed", self.run.run_id)
                return await self._fail(f"{type(e).__name__}: {e}", entry)
        if mend is not None:
            message = MessageEntry(**self._head(), text=mend, author_type="System", author_name="counterfoil")
            await self.write([entry, message])
            return None
        while True:
            if self.run.cancel is not None or to_deliver(self.record, self.run):
                await self.write([entry])
                return None
            try:
                null = output is None and self.agent.output_schema is not None
                return await self._end("answer", answer=entry.text, output=output, null=null, before=[entry])
            except Behind:
                continue
