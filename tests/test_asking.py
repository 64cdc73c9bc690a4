"""A model, or code around it, that keeps to nothing that was agreed ends its run as failed, once, with the reason."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel, field_validator

from counterfoil import Agent, Hooks, Limits, tool
from counterfoil.core.errors import ModelError
from counterfoil.core.turn import Usage
from counterfoil.model import ModelCall, ModelTurn, TextDelta
from counterfoil.testing import FrozenEffects, ScriptedModel, say
from tests.helpers import agent, both, fine, go
from tests.marks import law


class Odd(BaseException):
    """Of no kind that a program expects."""


class Given:
    """A model that gives these events, or raises one that is an exception; it counts how often it was asked."""

    def __init__(self, *events):
        self.events = events
        self.asked = 0

    async def respond(self, request):
        self.asked += 1
        for event in self.events:
            if isinstance(event, BaseException):
                raise event
            yield event


async def ended(place, desk):
    """Its run, ended."""
    async with place.open(desk) as runtime:
        return await (await runtime.start(desk.name, "go")).wait()


@both
@law("5.error")
@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (ModelTurn(5, ()), "cannot be used"),
        (ModelTurn("x", None), "cannot be used"),
        (ModelTurn("", (ModelCall("i", "fine", {"a": object()}),)), "cannot be used"),
        (ModelTurn("x", (), stop=None), "stop must be text"),
        (ModelTurn("x", (), model=7), "model must be text"),
        (ModelTurn("x", (), usage=None), "cannot be used"),
        (ModelTurn("x", (), usage=Usage(-1)), "at least 0"),
        (ModelTurn("x", (), usage=Usage(cost=float("nan"))), "finite"),
        (ModelTurn("x", (), reasoning=object()), "cannot be used"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_turn_that_is_none_fails_the_run_and_is_not_asked_for_again(place, turn, reason):
    async def main():
        model = Given(turn)
        run = await ended(place, Agent("desk", model=model, tools=[fine]))
        assert (run.status, run.ended_by, model.asked) == ("failed", "error", 1)
        assert reason in run.reason

    go(main())


@both
@law("5.error")
@pytest.mark.parametrize("error", [Odd("o"), GeneratorExit("o"), RecursionError("o"), asyncio.CancelledError("o")])
def test_whatever_a_model_raises_fails_the_run(place, error):
    async def main():
        model = Given(TextDelta("so far"), error)
        run = await ended(place, Agent("desk", model=model))
        assert (run.status, run.ended_by, model.asked) == ("failed", "error", 1)
        assert type(error).__name__ in run.reason

    go(main())


@both
@law("5.error")
@pytest.mark.parametrize("where", ["instructions", "offered", "before_model", "after_model"])
@pytest.mark.parametrize("error", [asyncio.CancelledError, Odd])
def test_whatever_code_around_a_request_raises_fails_the_run(place, where, error):
    def odd(*_):
        raise error

    @tool(offered=odd if where == "offered" else None)
    async def some() -> str:
        """Do some."""
        return ""

    hooks = Hooks(**{where: odd}) if where.endswith("model") else None
    desk = agent([say("x")], some, hooks=hooks, instructions=odd if where == "instructions" else None)

    async def main():
        run = await ended(place, desk)
        assert (run.status, run.ended_by) == ("failed", "error")
        assert error.__name__ in run.reason

    go(main())


@both
@law("5.error")
def test_a_validator_that_raises_of_itself_fails_the_run_and_the_turn_is_on_record(place):
    class Out(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def odd(cls, x):
            raise KeyError("of the program")

    async def main():
        model = ScriptedModel([say('{"x": 1}'), say("never")])
        run = await ended(place, Agent("desk", model=model, output_type=Out))
        assert (run.status, run.steps, len(model.requests)) == ("failed", 1, 1)
        assert "KeyError" in run.reason

    go(main())


@both
@pytest.mark.parametrize("error", [Odd, asyncio.CancelledError])
def test_whatever_an_observer_raises_changes_nothing(place, error):
    def odd(event):
        raise error

    async def main():
        run = await ended(place, agent([say("done")], hooks=Hooks(on_event=odd)))
        assert run.answer == "done"

    go(main())


class Busy:
    """A model that is busy as often as it has wishes, and asks to come back after that many seconds."""

    def __init__(self, *wishes):
        self.wishes = list(wishes)

    async def respond(self, request):
        if self.wishes:
            raise ModelError("busy", retryable=True, retry_after=self.wishes.pop(0))
        yield ModelTurn("fine")


@both
@pytest.mark.parametrize(
    ("wishes", "slept", "status"),
    [
        ([None, None], [0.5, 1.0], "completed"),
        ([7], [7], "completed"),
        ([0.1, 0.1], [0.5, 1.0], "completed"),
        ([float("nan"), -3], [0.5, 1.0], "completed"),
        ([120], [120], "completed"),
        ([120.5], [], "failed"),
        ([float("inf")], [], "failed"),
        ([1, 1, 1], [1, 1], "failed"),
    ],
)
def test_a_providers_wish_to_wait_is_followed_unless_it_is_shorter_than_the_back_off_or_too_long(
    place, wishes, slept, status
):
    async def main():
        effects = FrozenEffects()
        async with place.open(Agent("desk", model=Busy(*wishes)), effects=effects) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        assert (run.status, effects.slept) == (status, slept)

    go(main())


class Lost:
    """A model whose first answers break off when the server has told what they cost."""

    def __init__(self, *ends):
        self.ends = list(ends)
        self.gate = asyncio.Event()

    async def respond(self, request):
        if self.ends:
            end = self.ends.pop(0)
            try:
                if end is None:
                    self.gate.set()
                    await asyncio.Event().wait()
                raise end
            finally:
                request.discard("m", Usage(100, 7, 20))
        yield ModelTurn("fine", usage=Usage(10, 2), model="m")


@both
@law("5.limit")
def test_what_an_answer_cost_that_broke_off_counts_for_the_run_and_its_limits(place):
    async def main():
        desk = Agent("desk", model=Lost(ModelError("lost", retryable=True)), limits=Limits(tokens=119))
        async with place.open(desk, effects=FrozenEffects()) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.answer, run.usage) == ("fine", Usage(110, 9, 20))
            assert (await runtime.get(run.id)).usage == run.usage
            assert (await runtime.verify()).ok

    go(main())


@both
def test_what_answers_cost_counts_where_no_turn_followed(place):
    async def main():
        desk = Agent("desk", model=Lost(*[ModelError("lost", retryable=True)] * 3))
        async with place.open(desk, effects=FrozenEffects()) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, run.usage) == ("failed", Usage(300, 21, 60))
            assert (await runtime.get(run.id)).usage == run.usage

    go(main())


@both
def test_what_an_answer_cost_that_was_cancelled_counts(place):
    async def main():
        model = Lost(None)
        async with place.open(Agent("desk", model=model)) as runtime:
            run = await runtime.start("desk", "go")
            await model.gate.wait()
            await run.cancel()
            await run.wait()
            assert (run.status, run.usage) == ("cancelled", Usage(100, 7, 20))

    go(main())


@both
def test_what_an_answer_cost_that_took_too_long_counts(place):
    async def main():
        async with place.open(Agent("desk", model=Lost(None), limits=Limits(seconds=0.05))) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, run.usage) == ("limited", Usage(100, 7, 20))

    go(main())


@both
def test_a_turn_that_a_guard_refuses_or_that_cannot_be_used_has_cost_what_it_did(place):
    def no(made):
        raise RuntimeError("no")

    async def main():
        guarded = Agent("desk", model=Lost(), hooks=Hooks(after_model=no))
        odd = Agent("odd", model=Given(ModelTurn(5, (), usage=Usage(10, 2))))
        for desk in (guarded, odd):
            async with place.open(desk) as runtime:
                run = await (await runtime.start(desk.name, "go")).wait()
                assert (run.status, run.steps, run.usage) == ("failed", 0, Usage(10, 2))

    go(main())
