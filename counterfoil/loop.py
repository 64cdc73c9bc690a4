"""The loop: model, tools, model. One re-entrant `Drive.go` that goes on from the record, whatever happened before."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

from counterfoil.batch import Batch
from counterfoil.core import words
from counterfoil.core.context import CHARS_PER_TOKEN, Fitter
from counterfoil.core.entries import (
    CallRecord,
    CancelEntry,
    EndedEntry,
    Entry,
    MessageEntry,
    PausedEntry,
    ResumedEntry,
    RunEntry,
    TurnEntry,
)
from counterfoil.core.errors import Fenced, ModelError
from counterfoil.core.events import CallProgress, TurnDelta, event_of
from counterfoil.core.jsontext import JsonValue, clean_text, dumps
from counterfoil.core.limits import GUARD_SECONDS, MODEL_RETRIES
from counterfoil.core.record import CallState, Record
from counterfoil.core.states import STATUS_OF, ending_call, limit_reached, unanimous
from counterfoil.core.turn import moment
from counterfoil.effects import Effects
from counterfoil.ending import finish
from counterfoil.env import Env, bounded
from counterfoil.execute import Execution
from counterfoil.hooks import AfterModel, BeforeModel, HookList
from counterfoil.hub import Hub, Locks, Slots
from counterfoil.judge import needs_time
from counterfoil.model import CallDelta, Model, ModelCall, ModelRequest, ModelTurn, ReasoningDelta, TextDelta
from counterfoil.policy import Policy
from counterfoil.pool import ThreadPool
from counterfoil.store import Behind, KeptText, Lease, StatusChange, Store
from counterfoil.tool import Tool

log = logging.getLogger("counterfoil")

RETRY_SECONDS = 0.5
"""Before the model is asked again after a retryable error; it doubles with each further try."""


class Driven(Protocol):
    """What the loop needs of an agent."""

    name: str
    instructions: str | Callable[..., Any] | None
    policy: Policy | None
    parameters: dict[str, JsonValue]

    @property
    def tool_map(self) -> dict[str, Tool]:
        """Tools by name."""

    def open_model(self) -> Model:
        """The model, made on first use."""

    @property
    def output_schema(self) -> dict[str, JsonValue] | None:
        """The JSON Schema of the output type, if there is one."""

    def parse_output(self, text: str) -> JsonValue:
        """The answer as the output type, as JSON. Raises ValueError with what is wrong."""


class Offered:
    """What one turn is offered: offers, names and the digest that goes on record."""

    __slots__ = ("digest", "names", "offers")

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        self.offers = tuple(t.offer for t in tools)
        self.names = frozenset(t.name for t in tools)
        self.digest = hashlib.sha256(dumps([[o.name, o.description, o.input_schema] for o in self.offers])).hexdigest()


@functools.lru_cache(maxsize=256)
def offered(tools: tuple[Tool, ...]) -> Offered:
    """The offer of these tools; the same object for the same tools."""
    return Offered(tools)


class Drive:
    """One run, driven by this process until it pauses, ends or is given up."""

    def __init__(
        self, agent: Driven, lease: Lease, record: Record, *, store: Store, effects: Effects, pool: ThreadPool,
        hub: Hub, locks: Locks, slots: Slots, hooks: HookList, deps: Callable[[], object] | None,
        builtin: Callable[[Drive], Tool],
    ) -> None:  # fmt: skip  # rows by what belongs together
        self.agent = agent
        self.lease = lease
        self.record = record
        self.run = record.runs[lease.run_id]
        self.store = store
        self.effects = effects
        self.hub = hub
        self.locks = locks
        self.slots = slots
        self.hooks = hooks
        self.builtin = builtin
        head = cast("RunEntry", self.run.head)
        self.one_by_one = head.approvals == "one-by-one"
        self.direct = head.direct
        self.env = Env(
            head.caller, lease.interaction_id, lease.run_id, head.thread_id, agent.name, self.run,
            agent.tool_map, agent.policy, hooks, self.run.limits, effects, pool, deps,
        )  # fmt: skip  # as above
        self.slow_judge = needs_time(self.env)
        self._some_end = any(t.ends_run for t in self.env.tools.values())
        self.batch: Batch | None = None
        self.stopping: str | None = None
        """``cancel``, or the words of the limit that is used up: nothing new starts."""
        self.abandoned = False
        self.fatal: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.task: asyncio.Task[Any] | None = None
        """The task that drives."""
        self._signal = False
        self._foreign = False
        self._asking: asyncio.Task[Any] | None = None
        self._interrupted = False
        """The request to the model is being broken off, because the run was cancelled."""
        self.resumed = False
        """That the run goes on is on record already."""
        self._fitter: Fitter | None = None
        self._reads_on = False
        """Some result was left out of a request to fit the context."""
        self._steady: Offered | None = None
        """The offer of every turn, while no tool decides for itself and nothing is kept apart."""
        self._applied: TurnEntry | None = None
        """A turn that the fold has already, before it is on record: its calls are judged meanwhile."""
        self.loop = asyncio.get_running_loop()
        self._side: set[asyncio.Task[None]] = set()

    # waking

    def wake(self) -> None:
        """Look again: something ended, or may begin."""
        self._signal = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def notify(self) -> None:
        """Somebody else wrote to the record of this run."""
        self._foreign = True
        self.wake()
        if self._asking is not None:
            self._aside(self._look_while_asking())

    async def _look_while_asking(self) -> None:
        rows = await self.store.entries(self.lease.tenant, self.lease.interaction_id, self.record.tip)
        cancelled = any(isinstance(e, CancelEntry) and e.run_id == self.run.run_id for e in rows)
        if cancelled and self._asking is not None and not self._interrupted:
            self._interrupted = True
            self._asking.cancel()

    def _aside(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._side.add(task)
        task.add_done_callback(self._side.discard)

    async def _wait(self, seconds: float | None) -> None:
        if self._signal:
            self._signal = False
            return
        self._waiter = self.loop.create_future()
        timer = None if seconds is None else self.loop.call_later(max(seconds, 0.0), self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._signal = False
            if timer is not None:
                timer.cancel()

    # writing

    async def write(
        self, entries: Sequence[Entry], *, change: StatusChange | None = None, reports: Sequence[Any] = (),
        kept: Sequence[KeptText] = (), exact: bool = False,
    ) -> None:  # fmt: skip  # rows by what belongs together
        """Append entries and take them into the fold, with whatever others appended in between.

        Raises:
            Behind: ``exact``, and somebody else appended first; nothing was written, the fold is up to date.
            Fenced: another worker drives the run.
        """
        probe = self.effects.probe
        if probe is not None:
            probe("store:before:" + ",".join(e.kind for e in entries))
        record = self.record
        before = record.tip
        try:
            tip = await self.store.commit(
                self.lease, entries, change=change, reports=reports, kept=kept, expect=before if exact else None
            )
        except Behind:
            await self.refresh()
            raise
        if probe is not None:
            probe("store:after:" + ",".join(e.kind for e in entries))
        if tip == before + len(entries) and record.tip == before:
            applied = self._applied
            for entry in entries:
                if entry is applied:
                    record.tip = entry.entry
                else:
                    record.apply(entry)
            if self.hooks.on_event or self.hub.listened(self.run.run_id):
                self._publish(entries)
        else:
            await self.refresh()

    async def refresh(self) -> None:
        """Take in what is on record beyond the fold."""
        self._foreign = False
        fresh = await self.store.entries(self.lease.tenant, self.lease.interaction_id, self.record.tip)
        fresh = [e for e in fresh if e.entry > self.record.tip]
        for entry in fresh:
            mine = self._applied
            if mine is not None and isinstance(entry, TurnEntry) and entry.entry == mine.entry:
                self.record.tip = entry.entry
            else:
                self.record.apply(entry)
        self._publish(fresh)

    def write_later(self, entry: Entry) -> None:
        """Append an entry that nobody waits for."""

        async def write() -> None:
            try:
                await self.write([entry])
            except Fenced:
                # The run has ended, or has another driver: what came too late belongs on record all the same.
                await self.store.post(self.lease.tenant, self.run.run_id, entry)

        self._aside(write())

    def _publish(self, entries: Sequence[Entry]) -> None:
        self.hub.wake(self.run.run_id)
        if not self.hooks.on_event:
            return
        for entry in entries:
            event = event_of(entry, self.run) if entry.run_id == self.run.run_id else None
            if event is None:
                continue
            for observer in self.hooks.on_event:
                self.observe(observer, event)

    def observe(self, observer: Callable[[Any], object], event: object) -> None:
        """Tell an observer; whatever it raises is logged and changes nothing."""
        try:
            answer = observer(event)
            if inspect.isawaitable(answer):
                self._aside(_observed(answer))
        except Exception:  # an observer changes nothing
            log.exception("on_event failed")

    def tell_progress(self, call: CallState, text: str, done: float | None, total: float | None) -> None:
        """Hand progress to whoever listens."""
        at = moment(self.effects.now())
        event = CallProgress(
            self.record.tip, self.run.run_id, self.env.thread_id, at, call.record.call_id, call.record.tool_name,
            text, done, total,
        )  # fmt: skip  # two rows
        self.hub.tell(self.run.run_id, event)

    def finish_late(self, batch: Batch, x: Execution, value: object, error: BaseException | None) -> None:
        """A thread that was given up ended: render its end and log it beside the call."""

        async def late() -> None:
            x.ready.approval_id = None
            finished = await finish(x, (value, error), late=True)
            self.write_later(batch._late_entry(x, finished))

        self._aside(late())

    # the run

    async def go(self) -> str:
        """Drive until the run pauses or ends; returns its status.

        Raises:
            Fenced: another worker drives it now.
        """
        self.task = asyncio.current_task()
        await self._begin()
        while True:
            try:
                if self.run.open:
                    if not await self._work():
                        return "paused"
                if self._foreign:
                    await self.refresh()
                end = self._due_end()
                if end is not None:
                    return await end
                status = await self._ask()
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
        self._collect_rejections()
        if run.open:
            if self.record.has_kept:
                self._take_builtin()
            self.env.offered = frozenset(self.env.tools)
            self.batch = Batch(self, self.env, run.batch)
            if run.cancel is None:
                await self.batch.recover()

    def _unseen(self) -> list[Entry]:
        """What is on record of the run that no driver could tell observers: its beginning, decisions in a pause."""
        if self.lease.epoch <= 1:
            return [cast("RunEntry", self.run.head)]
        log = self.run.log
        paused = max((i for i, e in enumerate(log) if isinstance(e, PausedEntry)), default=len(log))
        return log[paused + 1 :]

    def _head(self) -> Any:
        return {"run_id": self.run.run_id, "thread_id": self.env.thread_id, "at": self.effects.now()}

    def _collect_rejections(self) -> None:
        for call in self.run.calls:
            if call.decided is not None and call.waiting is not None and call.decided.decision.choice == "reject":
                self.env.rejected.add(call.waiting.approval.digest)

    async def abandon(self) -> None:
        """This process drives the run no more: bodies are told to stop; their starts stay on record without an end."""
        batch = self.batch
        if batch is None:
            return
        for _ in batch.starting:
            self.slots.give()  # their starts did not come to be on record
        flights = list(batch.flights.values())
        for flight in flights:
            flight.tell("abandon")
        tasks = [f.task for f in flights if f.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self.run.limits.cancel_grace)

    async def _flush(self) -> None:
        batch: Batch = self.batch  # type: ignore[assignment]  # called with a batch alone
        entries = batch.outbox
        if entries:
            reports, kept = batch.reports, batch.kept
            batch.outbox, batch.reports, batch.kept = [], [], []
            await self.write(entries, reports=reports, kept=kept)
        if batch.starting:
            batch.launch()
        if self.fatal is not None:
            raise self.fatal

    async def _work(self) -> bool:
        """Bring the batch on until every call has its result (True) or all that is open waits for people (False)."""
        batch: Batch = self.batch  # type: ignore[assignment]  # called with a batch alone
        while True:
            if self._foreign:
                await self.refresh()
            if self.run.cancel is not None and self.stopping != "cancel":
                await self._stop("cancel")
            if self.stopping is None and self.run.limits.seconds is not None:
                used = self._time_used()
                if used is not None:
                    await self._stop(used)
            if self.stopping is None and self.fatal is None:
                if batch.asked and batch.waits:
                    await batch.take_decisions()
                    batch.ask()
                if batch.ready:
                    batch.select()
            await self._flush()
            if not self.run.open:
                return True
            if batch.done:
                await batch.gather()
                continue
            if not (batch.flights or batch.ready or batch.locking or batch.starting):
                if await self._pause():
                    return False
                continue
            await self._wait(self._next_look() if batch.asked or self.run.limits.seconds is not None else None)
            await batch.gather()

    def _time_used(self) -> str | None:
        left = self._time_left()
        return None if left is None or left > 0 else f"{self.run.limits.seconds:g} seconds"

    def _time_left(self) -> float | None:
        seconds = self.run.limits.seconds
        if seconds is None:
            return None
        return seconds - self.run.seconds - (self.effects.now() - self.run.last_at) / 1_000_000

    def _next_look(self) -> float | None:
        now = self.effects.now()
        looks: list[float] = []
        for call in self.run.batch:
            if call.pending and call.waiting is not None and call.waiting.approval.expires_at is not None:
                looks.append((call.waiting.approval.expires_at - moment(now)).total_seconds())
        left = self._time_left()
        if left is not None and self.stopping is None:
            looks.append(left)
        return max(min(looks), 0.001) if looks else None

    async def _stop(self, why: str) -> None:
        """Nothing new starts; bodies are told and waited for; every call gets its result."""
        self.stopping = why
        batch = cast("Batch", self.batch)
        limit = None if why == "cancel" else why
        await batch.cancel_idle(limit)
        for flight in list(batch.flights.values()):
            flight.tell("cancel" if limit is None else "limit")
        await self._flush()
        until = self.loop.time() + self.run.limits.cancel_grace
        while batch.flights and self.loop.time() < until:
            await self._wait(until - self.loop.time())
            await batch.gather()
            await self._flush()
        for flight in list(batch.flights.values()):
            flight.give_up()
        await batch.gather()

    async def _pause(self) -> bool:
        ended = ending_call(self.run.batch, self._ends)
        key = self.run.ended_run or (ended.key if ended else None)
        expiries = [c.waiting.approval.expires_at for c in self.run.batch if c.pending and c.waiting]
        times = [int((e - moment(0)).total_seconds() * 1_000_000) for e in expiries if e is not None]
        change = StatusChange("paused", wake_at=min(times) if times else None)
        try:
            await self.write([PausedEntry(**self._head(), ended_run=key)], change=change, exact=True)
        except Behind:
            return False
        return True

    def _ends(self, name: str) -> bool:
        tool = self.env.tools.get(name)
        return tool is not None and tool.ends_run

    def _advisory(self, name: str) -> bool:
        tool = self.env.tools.get(name)
        return tool is not None and tool.advisory

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
                call = ending_call(run.batch, self._ends)
            if call is not None and call.result is not None:
                return self._end("tool", call, answer=call.result.result.model_output)
            call = unanimous(run.batch, self._advisory)
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
        reason: str | None = None, before: Sequence[Entry] = (),
    ) -> str:  # fmt: skip  # rows by what belongs together
        status = STATUS_OF[by]
        entry = EndedEntry(
            **self._head(), status=status, ended_by=by, ended_run=self.run.ended_run or (call.key if call else None),
            answer=answer, output=output, reason=reason, seconds=self.run.seconds,
        )  # fmt: skip  # as above
        await self.write([*before, entry], change=StatusChange(status, ended_by=by), exact=True)
        return status

    # the model

    async def _ask(self) -> str | None:
        """Deliver what waits, ask the model and put its turn on record; the run's status where that ended it."""
        run = self.run
        if self.record.queued:
            messages = [self.record.queued[n] for n in sorted(self.record.queued)]
            await self.write([
                MessageEntry(**self._head(), text=m.text, author_name=m.author_name, queued=m.entry) for m in messages
            ])
        try:
            steady = self._steady if not (self.record.has_kept or self._reads_on) else None
            offer = steady or await self._offer()
            given = self.agent.instructions
            text = given if type(given) is str else await self._instructions()
            items = self.record.items
            request = ModelRequest(
                text, items, len(items), offer.offers, run.run_id, run.turns,
                output_schema=self.agent.output_schema, parameters=self.agent.parameters,
            )  # fmt: skip  # two rows
            if run.limits.context_tokens is not None:
                offer = await self._fit(request, offer)
            plain = not (self.hooks.before_model or self.hooks.after_model or run.limits.seconds is not None)
            turn = await (self._respond(request) if plain else self._guarded(request))
        except ModelError as e:
            return await self._fail(str(e))
        except Exception as e:  # a fault of the program must not leave the run hanging
            log.exception("run %s failed", run.run_id)
            return await self._fail(f"{type(e).__name__}: {e}")
        if turn is None:
            await self.refresh()
            return None
        return await self._take_turn(turn, offer)

    async def _fit(self, request: ModelRequest, offer: Offered) -> Offered:
        """Cut a request to the context budget; what it leaves out can be read with a tool that is offered then."""
        if self._fitter is None:
            self._fitter = Fitter(self.run.limits.context_tokens)
        reserve = (len(request.instructions) + len(dumps([o.input_schema for o in offer.offers]))) // CHARS_PER_TOKEN
        cut = self._fitter.fit(request.history, reserve)
        request.history, request.length, request.elided = cut.items, cut.length, cut.elided
        if cut.elided and not self._reads_on:
            self._reads_on = True
            offer = await self._offer()
            request.tools = offer.offers
        return offer

    async def _fail(self, reason: str) -> str | None:
        while self.run.cancel is None:
            try:
                return await self._end("error", reason=clean_text(reason))
            except Behind:
                continue
        return None

    async def _take_turn(self, turn: ModelTurn, offer: Offered) -> str | None:
        run, record = self.run, self.record
        began = self.effects.clock()
        entry = TurnEntry(
            run_id=run.run_id, thread_id=self.env.thread_id, at=self.effects.now(), step=run.turns,
            text=clean_text(turn.text) if turn.text else "", calls=self._records(turn.calls, offer.names), stop=turn.stop,
            usage=turn.usage, model=turn.model, offered=offer.digest, reasoning=turn.reasoning,
        )  # fmt: skip  # rows by what belongs together
        if not entry.calls:
            return await self._answer(entry)
        self.env.offered = offer.names
        tip = record.tip
        record.apply(entry)
        record.tip = tip
        self._applied = entry
        self.batch = batch = Batch(self, self.env, run.batch, fresh=True)
        if self.slow_judge:
            # Somebody's code may take its time, or the process may die in it: the turn is safe first.
            await self.write([entry])
        else:
            batch.outbox.append(entry)
        await batch.judge_new(run.batch, began)
        return None

    def _records(self, calls: Sequence[ModelCall], names: frozenset[str]) -> tuple[CallRecord, ...]:
        used = self.run.call_ids
        out: list[CallRecord] = []
        mine: set[str] = set()
        for call in calls:
            given, name, raw = call.id or None, call.name, call.arguments
            if type(raw) is not str:
                raw = "" if raw is None else dumps(raw).decode()
            if type(name) is not str or not (name.isascii() and raw.isascii()):
                name, raw = clean_text(str(name)), clean_text(raw)
            if given is not None and not given.isascii():
                given = clean_text(given)
            call_id = given
            if call_id is None or call_id in used or call_id in mine:
                call_id = f"call_{self.effects.new_id()}"
            mine.add(call_id)
            out.append(CallRecord(call_id, given, name, raw, name in names))
        return tuple(out)

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
        if mend is not None:
            message = MessageEntry(**self._head(), text=mend, author_type="System", author_name="counterfoil")
            await self.write([entry, message])
            return None
        while True:
            if self.run.cancel is not None or self.record.queued:
                await self.write([entry])
                return None
            try:
                return await self._end("answer", answer=entry.text, output=output, before=[entry])
            except Behind:
                continue

    async def _offer(self) -> Offered:
        tools = []
        for tool in self.env.tools.values():
            if tool.offered is not None:
                answer = await bounded(_call(tool.offered, self._plain_context()), GUARD_SECONDS)
                if not answer:
                    continue
            tools.append(tool)
        if (self.record.has_kept or self._reads_on) and words.READ_RESULT not in self.env.tools:
            tools.append(self._take_builtin())
        found = offered(tuple(tools))
        if all(t.offered is None for t in self.env.tools.values()):
            self._steady = found
        return found

    def _take_builtin(self) -> Tool:
        made = self.builtin(self)
        self.env.tools = {**self.env.tools, words.READ_RESULT: made}
        return made

    def _plain_context(self) -> Any:
        turn = self.run.last_turn or TurnEntry(run_id="", at=0, step=0, text="", calls=(), stop="")
        return self.env.judging_context(CallState(turn, 0, CallRecord("", None, "", "")))

    async def _instructions(self) -> str:
        given = self.agent.instructions
        if given is None or isinstance(given, str):
            return given or ""
        return str(await bounded(_call(given, self._plain_context()), GUARD_SECONDS))

    async def _guarded(self, request: ModelRequest) -> ModelTurn | None:
        """As `_within`, between the guards of request and turn, which raise to fail the run."""
        for hook in self.hooks.before_model:
            seen = BeforeModel(self.env.caller, self.run.run_id, self.run.turns, request)
            await bounded(hook(seen), GUARD_SECONDS)
        turn = await self._within(request)
        if turn is not None:
            for hook in self.hooks.after_model:
                made = AfterModel(self.env.caller, self.run.run_id, self.run.turns, turn)
                await bounded(hook(made), GUARD_SECONDS)
        return turn

    async def _within(self, request: ModelRequest) -> ModelTurn | None:
        """As `_respond`, within the time that is left of the run; None when that is used up."""
        left = self._time_left()
        if left is None:
            return await self._respond(request)
        try:
            async with asyncio.timeout(max(left, 0.0)) as clock:
                return await self._respond(request)
        except TimeoutError:
            if not clock.expired():
                raise
            self.stopping = f"{self.run.limits.seconds:g} seconds"
            return None

    async def _respond(self, request: ModelRequest) -> ModelTurn | None:
        """The model's turn; None when the run was cancelled meanwhile.

        Raises:
            ModelError: it failed beyond its retries.
        """
        tries = 0
        turn: ModelTurn | None = None
        self._asking = self.task
        try:
            while turn is None:
                if self._foreign:
                    await self.refresh()
                if self.run.cancel is not None:
                    return None
                try:
                    stream = self.agent.open_model().respond(request)
                    if not hasattr(stream, "__aiter__"):
                        stream = await cast("Any", stream)
                    async for event in stream:
                        if type(event) is ModelTurn:
                            turn = event
                        elif self.hub.listened(self.run.run_id):
                            self._tell_delta(event)
                    if turn is None:
                        raise ModelError("the model's stream ended without a finished turn", retryable=True)  # noqa: TRY301  # retried as any other
                except ModelError as e:
                    if not e.retryable or tries >= MODEL_RETRIES:
                        raise
                    turn = None
                    await self.effects.sleep(RETRY_SECONDS * 2**tries)
                    tries += 1
        except asyncio.CancelledError as e:
            if cast("asyncio.Task[Any]", self.task).cancelling() > self._interrupted:
                raise  # the driver itself is told to stop
            if not self._interrupted:
                raise ModelError("the model ended with CancelledError, and nobody had cancelled it") from e
        finally:
            self._asking = None
            if self._interrupted:
                self._interrupted = False
                cast("asyncio.Task[Any]", self.task).uncancel()
                turn = None
        return turn

    def _tell_delta(self, event: TextDelta | ReasoningDelta | CallDelta | ModelTurn) -> None:
        if isinstance(event, ModelTurn):
            return
        name = event.tool_name if isinstance(event, CallDelta) else None
        self.hub.tell(
            self.run.run_id,
            TurnDelta(
                self.record.tip, self.run.run_id, self.env.thread_id, moment(self.effects.now()), event.text,
                isinstance(event, ReasoningDelta), name,
            ),
        )  # fmt: skip  # rows by what belongs together


def _call(fn: Callable[..., Any], context: Any) -> Any:
    """Call a function that takes the context, or nothing."""
    return fn(context) if inspect.signature(fn).parameters else fn()


async def _observed(answer: Any) -> None:
    try:
        await answer
    except Exception:  # an observer changes nothing
        log.exception("on_event failed")
