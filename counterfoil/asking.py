"""The model's part of a run: what it is offered and asked, within which time, and how often again."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import logging
from collections.abc import Callable, Sequence
from types import AsyncGeneratorType
from typing import Any, Protocol, cast

from counterfoil.core import plain_entries, words
from counterfoil.core.entries import CallRecord, CancelEntry, TurnEntry
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.events import TurnDelta
from counterfoil.core.jsontext import JsonValue, clean_text, dumps, normal
from counterfoil.core.limits import GUARD_SECONDS, MODEL_RETRIES, RETRY_AFTER_SECONDS, RETRY_SECONDS
from counterfoil.core.record import CallState
from counterfoil.core.threads import may_read
from counterfoil.core.turn import NO_USAGE, Usage, moment
from counterfoil.env import Env, asked
from counterfoil.hooks import AfterModel, BeforeModel
from counterfoil.leash import Leash
from counterfoil.model import CallDelta, Model, ModelCall, ModelRequest, ModelTurn, ReasoningDelta, TextDelta
from counterfoil.policy import Policy
from counterfoil.prices import Prices, counted, priced
from counterfoil.tool import Tool
from counterfoil.writing import Writing

log = logging.getLogger("counterfoil")


class Driven(Protocol):
    """What the loop needs of an agent."""

    name: str
    instructions: str | Callable[..., Any] | None
    policy: Policy | None
    parameters: dict[str, JsonValue]
    prices: Prices | None

    @property
    def tool_map(self) -> dict[str, Tool]:
        """Tools by name."""

    def open_model(self) -> Model:
        """The model, made on first use."""

    @property
    def open_summary(self) -> Callable[[], Model] | None:
        """What gives the model that sums up, in the same way; None: nothing is summed up."""

    @property
    def output_schema(self) -> dict[str, JsonValue] | None:
        """The JSON Schema of the output type, if there is one."""

    def parse_output(self, text: str) -> JsonValue:
        """The answer as the output type, as JSON. Raises ValueError with what is wrong."""


class Offered:
    """What one turn is offered: offers, names and the digest that goes on record."""

    __slots__ = ("chars", "digest", "names", "offers")

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        self.offers = tuple(t.offer for t in tools)
        self.names = frozenset(t.name for t in tools)
        said = dumps([[o.name, o.description, o.input_schema] for o in self.offers])
        self.digest = hashlib.sha256(said).hexdigest()
        self.chars = len(said)


@functools.lru_cache(maxsize=256)
def offered(tools: tuple[Tool, ...]) -> Offered:
    """The offer of these tools; the same object for the same tools."""
    return Offered(tools)


class Asking(Writing):
    """A run whose model can be asked."""

    agent: Driven
    env: Env
    task: asyncio.Task[Any] | None = None
    """The task that drives."""
    stopping: str | None = None
    """``cancel``, or the words of the limit that is used up: nothing new starts."""

    def _begin_asking(self, agent: Driven, env: Env, builtin: Callable[[Any], Tool]) -> None:
        self.agent = agent
        self.env = env
        self.builtin = builtin
        self._waiter: asyncio.Future[None] | None = None
        self._signal = False
        self._asking: asyncio.Task[Any] | None = None
        self._interrupted = False
        """The request to the model is being broken off, because the run was cancelled."""
        self._leash = Leash()
        """What holds the request to the model."""
        self._summing = False
        """What is asked for now is a summary."""
        self._reads_on = self.run.limits.context_tokens is not None
        """Results may be left out of a request. What reads them is offered from the first turn on: one that came later
        would change the beginning of all requests."""
        self._thought: list[str] = []
        """What the provider lets people see of the reasoning of the turn that is made now."""
        self._discarded = NO_USAGE
        """What answers cost that came to nothing; the next turn, or the run's end, puts it on record."""
        self._steady: Offered | None = None
        """The offer of every turn, while no tool decides for itself and nothing is kept apart."""

    # waking

    def wake(self) -> None:
        """Look again: something ended, or may begin."""
        self._signal = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

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
            self.leave_model_later()

    def leave_model_later(self, seconds: float = 0.0) -> asyncio.TimerHandle:
        """A model that is told to stop in so many seconds, or was just now, has a body's grace; then it is left."""
        return self.loop.call_later(seconds + self.run.limits.cancel_grace, self._leash.let_go)

    # what it is offered

    async def _offer(self) -> Offered:
        tools = []
        for tool in self.env.tools.values():
            if tool.offered is not None:
                answer = await asked(_call, GUARD_SECONDS, tool.offered, self._plain_context())
                if not answer:
                    continue
            tools.append(tool)
        if (self._reads_on or (self.record.kept and self._sees_kept())) and words.READ_RESULT not in self.env.tools:
            tools.append(self._take_builtin())
        found = offered(tuple(tools))
        if all(t.offered is None for t in self.env.tools.values()):
            self._steady = found
        return found

    def _sees_kept(self) -> bool:
        """Whether something is kept apart that may be read here; then what reads it is offered from now on."""
        self._reads_on = self._reads_on or any(may_read(self.run, one) for one in self.record.kept or ())
        return self._reads_on

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
        return str(await asked(_call, GUARD_SECONDS, given, self._plain_context()))

    # asking it

    async def _guarded(self, request: ModelRequest) -> ModelTurn | None:
        """As `_within`, between the guards of request and turn, which raise to fail the run."""
        for hook in self.hooks.before_model:
            model = getattr(self.agent, "summary" if self._summing else "model", None)
            seen = BeforeModel(
                self.env.caller, self.run.run_id, self.run.turns, request, self.env.interaction_id, model
            )  # fmt: skip  # two rows
            await asked(hook, GUARD_SECONDS, seen)
        turn = await self._within(request)
        if turn is not None:
            try:
                for hook in self.hooks.after_model:
                    made = AfterModel(self.env.caller, self.run.run_id, self.run.turns, turn)
                    await asked(hook, GUARD_SECONDS, made)
            except BaseException:
                self._discard(turn.model, turn.usage)
                raise
        return turn

    def _time_left(self) -> float | None:
        seconds = self.run.limits.seconds
        if seconds is None:
            return None
        return seconds - self.run.seconds - (self.effects.now() - self.run.last_at) / 1_000_000

    async def _within(self, request: ModelRequest) -> ModelTurn | None:
        """As `_respond`, within the time that is left of the run; None when that is used up."""
        left = self._time_left()
        if left is None:
            return await self._respond(request)
        left = max(left, 0.0)
        last = self.leave_model_later(left)
        try:
            async with asyncio.timeout(left) as clock:
                return await self._respond(request)
        except TimeoutError:
            if not clock.expired():
                raise
            self.stopping = f"{self.run.limits.seconds:g} seconds"
            return None
        finally:
            last.cancel()

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
                    stream = self._stream(request)
                    try:
                        waits = stream.send(None)
                    except StopIteration as end:  # it waited for nothing, as a script does
                        turn = end.value
                    else:
                        turn = await self._leash.hold(stream, waits)
                    if turn is None:
                        raise ModelError("the model's stream ended without a finished turn", retryable=True)
                except ModelError as e:
                    pause = _pause(tries, e.retry_after)
                    if not e.retryable or tries >= MODEL_RETRIES or pause > RETRY_AFTER_SECONDS:
                        raise
                    turn = None
                    await self.effects.sleep(pause)
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
                if turn is not None:
                    self._discard(turn.model, turn.usage)
                turn = None
            for model, usage in request.discarded:
                self._discard(model, usage)
        return turn

    def _discard(self, model: str, usage: Usage) -> None:
        try:
            self._discarded += priced(counted(usage), model, self.agent.prices)
        except Exception:  # of a model that is anybody's object; nobody can count it
            log.exception("run %s: usage that cannot be counted", self.run.run_id)

    async def _stream(self, request: ModelRequest) -> ModelTurn | None:
        """What the model gives; its deltas go to whoever listens."""
        turn: ModelTurn | None = None
        if self._thought:
            self._thought.clear()
        opened = self.agent.open_model
        if self._summing:
            opened = self.agent.open_summary or opened
        stream = opened().respond(request)
        if type(stream) is not AsyncGeneratorType and not hasattr(stream, "__aiter__"):
            stream = await cast("Any", stream)
        async for event in stream:
            if type(event) is ModelTurn:
                turn = event
                continue
            if self._summing:
                continue
            if type(event) is ReasoningDelta:
                self._thought.append(event.text)
            if self.hub.listened(self.run.run_id):
                self._tell_delta(event)
        return turn

    def _turn_entry(self, turn: ModelTurn, offer: Offered) -> TurnEntry:
        """The turn as it goes on record.

        Raises:
            ModelError: it holds what is no part of a turn; a model may be anybody's object.
        """
        try:
            usage, reasoning, discarded = turn.usage, turn.reasoning, self._discarded
            if usage is not NO_USAGE:
                usage = counted(usage)
                if self.agent.prices is not None or self.run.limits.cost is not None:
                    must = self.run.limits.cost is not None
                    usage = priced(usage, turn.model, self.agent.prices, must=must)
            entry = plain_entries.turn(
                self.run.run_id, self.env.thread_id, self.effects.now(), self.run.turns,
                clean_text(turn.text) if turn.text else "", self._records(turn.calls, offer.names),
                turn.stop if type(turn.stop) is str else _text(turn.stop, "stop"),
                usage, discarded, turn.model if type(turn.model) is str else _text(turn.model, "model"),
                offer.digest, None if reasoning is None else normal(reasoning),
                clean_text("".join(self._thought)) if self._thought else "",
            )  # fmt: skip  # rows by what belongs together
            self._discarded = NO_USAGE
            return entry
        except DefinitionError:
            self._discard(turn.model, turn.usage)
            raise
        except Exception as e:
            self._discard(turn.model, turn.usage)
            raise ModelError(f"the model gave a turn that cannot be used: {type(e).__name__}: {e}") from e

    def _records(self, calls: Sequence[ModelCall], names: frozenset[str]) -> tuple[CallRecord, ...]:
        used = self.run.call_ids
        out: list[CallRecord] = []
        mine: dict[str, None] = {}  # a set's `add` is a call more for each
        for call in calls:
            given, name, raw = call.id or None, call.name, call.arguments
            if type(raw) is not str:
                raw = "" if raw is None else dumps(raw).decode()
            if type(name) is not str or not (name.isascii() and raw.isascii()):
                name, raw = clean_text(str(name)), clean_text(raw)
            if given is not None and (type(given) is not str or not given.isascii()):
                given = clean_text(str(given))
            call_id = given
            if call_id is None or call_id in used or call_id in mine:
                call_id = f"call_{self.effects.new_id()}"
            mine[call_id] = None
            out.append(CallRecord(call_id, given, name, raw, name in names))
        return tuple(out)

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


def _pause(tries: int, wish: float | None) -> float:
    """Seconds before the model is asked again: those of the back-off, or the provider's wish where it is longer."""
    seconds = RETRY_SECONDS * 2**tries
    # A model is anybody's object, and NaN is longer than nothing.
    return wish if isinstance(wish, (int, float)) and wish > seconds else seconds


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, got {value!r:.80}")
    return str(value)


def _call(fn: Callable[..., Any], context: Any) -> Any:
    """Call a function that takes the context, or nothing."""
    return fn(context) if inspect.signature(fn).parameters else fn()
