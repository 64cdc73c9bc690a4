"""Several models of one agent: the next is asked where one cannot answer now."""

from __future__ import annotations

import pytest

from counterfoil import Agent, tool
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.turn import Usage
from counterfoil.model import ModelCall, ModelTurn, TextDelta
from counterfoil.testing import FrozenEffects, ModelSuite
from counterfoil.testing.fake_anthropic import FakeAnthropic
from counterfoil.testing.fake_openai import FakeOpenAI
from counterfoil.testing.fake_server import Play, Refusal, rate_limit
from counterfoil.testing.model_bench import awaited
from tests.helpers import go
from tests.wires import WIRES

BUSY = ModelError("busy", retryable=True)


class Given:
    """A model that answers each request as it is told: with a turn, events before an error, or an error."""

    def __init__(self, *answers, name="a"):
        self.answers, self.name, self.asked = list(answers), name, 0

    async def respond(self, request):
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, ModelError):
            yield TextDelta("half")
            request.discard(self.name, Usage(100, 5))
            raise answer
        if answer is not None:
            yield answer


async def run(*models, tools=()):
    effects = FrozenEffects()
    from counterfoil import Runtime

    desk = Agent("desk", model=list(models), tools=tools)
    async with Runtime("memory://", agents=[desk], effects=effects) as runtime:
        return await (await runtime.start("desk", "Go")).wait(), effects.slept


FINE = ModelTurn("fine", usage=Usage(10, 2), model="b")


def test_the_next_is_asked_at_once_and_its_turn_is_the_one_on_record():
    async def main():
        first, second = Given(ModelError("busy", retryable=True, retry_after=60)), Given(FINE)
        done, slept = await run(first, second)
        assert (done.status, done.answer, done.steps, slept) == ("completed", "fine", 1, [])
        assert (first.asked, second.asked) == (1, 1)
        assert done.usage == Usage(110, 7), "what the first has cost counts"

    go(main())


def test_an_answer_that_ends_without_a_turn_goes_to_the_next():
    async def main():
        done, _ = await run(Given(None), Given(FINE))
        assert done.answer == "fine"

    go(main())


def test_when_all_are_out_the_first_is_asked_again_after_the_shortest_wait():
    async def main():
        first = Given(ModelError("a", retryable=True, retry_after=9), FINE)
        second = Given(ModelError("b", retryable=True, retry_after=3))
        done, slept = await run(first, second)
        assert (done.answer, slept, first.asked, second.asked) == ("fine", [3], 2, 1)

    go(main())


def test_all_are_asked_three_times_at_most():
    async def main():
        first, second = Given(*[BUSY] * 9), Given(*[ModelError("gone", retryable=True)] * 9, name="b")
        done, slept = await run(first, second)
        assert (done.status, done.reason, slept) == ("failed", "gone", [0.5, 1.0])
        assert (first.asked, second.asked) == (3, 3)
        assert done.usage == Usage(600, 30)

    go(main())


def test_what_is_wrong_with_the_request_is_wrong_everywhere():
    async def main():
        first, second = Given(ModelError("your schema is wrong")), Given(FINE)
        done, slept = await run(first, second)
        assert (done.status, done.reason, slept, second.asked) == ("failed", "your schema is wrong", [], 0)

    go(main())


def test_a_quota_that_is_used_up_is_asked_for_elsewhere_and_not_again():
    async def main():
        out = ModelError("quota", elsewhere=True)
        done, _ = await run(Given(out), Given(FINE))
        assert done.answer == "fine"
        first, second = Given(out), Given(ModelError("no such model"))
        done, slept = await run(first, second)
        assert (done.status, done.reason, slept, first.asked) == ("failed", "no such model", [], 1)
        done, slept = await run(Given(out), Given(out, name="b"))
        assert (done.status, slept) == ("failed", [])
        busy = Given(BUSY, FINE)
        done, slept = await run(busy, Given(out, name="b"))
        assert (done.answer, slept, busy.asked) == ("fine", [0.5], 2)

    go(main())


def test_after_a_turn_is_on_record_its_model_is_not_asked_for_it_again():
    async def main():
        @tool
        def look() -> str:
            """Look."""
            return "seen"

        first = Given(ModelTurn(calls=(ModelCall("c1", "look", "{}"),)), BUSY)
        second = Given(FINE)
        done, _ = await run(first, second, tools=[look])
        assert (done.answer, done.steps, len(done.calls), first.asked, second.asked) == ("fine", 2, 1, 2, 1)

    go(main())


@awaited
async def test_a_run_goes_over_from_one_wire_to_another():
    async with FakeOpenAI([rate_limit(60), Refusal(429, "used up", code="insufficient_quota")]) as one:
        play = Play(calls=[("c1", "look", "{}")])
        async with FakeAnthropic([play, Play("fine")]) as other:
            models = [WIRES["openai-chat"].model(one.base_url, "k"), WIRES["anthropic"].model(other.base_url, "k")]
            done, slept = await run(*models)
            for model in models:
                await model.aclose()
        assert (done.answer, slept) == ("fine", [])
        assert (len(one.asked), len(other.asked)) == (2, 2)
        assert one.faults == other.faults == []


def test_a_list_holds_models_and_their_names_and_is_not_empty():
    with pytest.raises(DefinitionError, match="no model; the list is empty"):
        Agent("desk", model=[])
    with pytest.raises(DefinitionError, match=r"no model has the scheme 'opanai'; known are .*did you mean 'openai'"):
        Agent("desk", model=["scripted:x", "opanai:y"])
    with pytest.raises(DefinitionError, match=r"expected a model with a method respond\(request\), got int"):
        Agent("desk", model=["scripted:x", 5])


class TestOneOfSeveral(ModelSuite):
    """A list of models keeps what one promises: cancelling, ends, errors."""

    @pytest.fixture
    def fake(self):
        return FakeOpenAI

    @pytest.fixture
    def make_model(self):
        from counterfoil.fallback import Fallback

        class One(Fallback):
            def __init__(self, model):
                super().__init__([lambda: model])
                self.aclose = model.aclose

        return lambda url, key, **settings: One(WIRES["openai-chat"].model(url, key, **settings))
