"""Prices: what a turn costs where its provider does not say it."""

from __future__ import annotations

import pytest

from counterfoil import Agent, Limits, tool
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.turn import Usage
from counterfoil.model import ModelCall, ModelTurn
from counterfoil.prices import Prices
from tests.helpers import both, go

TABLE = {"some": {"input": 3, "cached_input": 0.3, "output": 15}, "plain": {"input": 2, "output": 4}}
SPENT = Usage(1_000_000, 100_000, 400_000)


@pytest.mark.parametrize(
    ("model", "cost"),
    [
        ("some", 0.6 * 3 + 0.4 * 0.3 + 0.1 * 15),
        ("plain", 1.0 * 2 + 0.1 * 4),
        ("some-20260801", 0.6 * 3 + 0.4 * 0.3 + 0.1 * 15),
        ("some-2026-08-01", 0.6 * 3 + 0.4 * 0.3 + 0.1 * 15),
        ("some@20260801", 0.6 * 3 + 0.4 * 0.3 + 0.1 * 15),
        ("some-latest", 0.6 * 3 + 0.4 * 0.3 + 0.1 * 15),
        ("some-mini", None),
        ("some-mini-20260801", None),
        ("some2", None),
        ("soma-20260801", None),
        ("awesome", None),
        ("", None),
    ],
)
def test_a_million_tokens_cost_their_price_and_a_dated_name_is_the_model(model, cost):
    assert Prices(TABLE).cost(model, SPENT) == (None if cost is None else pytest.approx(cost))


def test_more_from_a_cache_than_came_in_is_not_paid_back():
    assert Prices(TABLE).cost("some", Usage(10, 0, 20)) == pytest.approx(10 * 0.3 / 1e6)


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ({"input": 1}, "expected input, output and cached_input"),
        ({"input": 1, "output": 2, "images": 3}, "expected input, output and cached_input"),
        (5, "expected input, output and cached_input"),
        ({"input": "1", "output": 2}, "input must be a number of at least 0"),
        ({"input": 1, "output": -2}, "output must be a number of at least 0"),
        ({"input": 1, "output": float("nan")}, "output must be a number of at least 0"),
        ({"input": True, "output": 1}, "input must be a number of at least 0"),
    ],
)
def test_a_table_that_is_none_is_refused_where_the_agent_is_made(prices, said):
    with pytest.raises(DefinitionError, match=rf"prices of 'some': {said}"):
        Agent("desk", model="scripted:x", prices={"some": prices})


@tool
def more() -> str:
    """Go on."""
    return "on"


class Spending:
    """A model that goes on for ever, at this usage a turn."""

    def __init__(self, usage, model="some", failures=0):
        self.usage, self.model, self.failures = usage, model, failures

    async def respond(self, request):
        if self.failures:
            self.failures -= 1
            request.discard(self.model, self.usage)
            raise ModelError("lost", retryable=True)
        yield ModelTurn(calls=(ModelCall(None, "more", "{}"),), usage=self.usage, model=self.model)


async def run(place, model, limits, prices=TABLE, **more_of_it):
    desk = Agent("desk", model=model, tools=[more], limits=limits, prices=prices)
    async with place.open(desk, **more_of_it) as runtime:
        done = await (await runtime.start("desk", "Go")).wait()
        return done, await runtime.get(done.id)


ONCE = 0.6 * 3 + 0.4 * 0.3 + 0.1 * 15


@both
def test_a_limit_of_cost_works_by_the_table(place):
    async def main():
        done, again = await run(place, Spending(SPENT), Limits(cost=2 * ONCE - 0.01))
        assert (done.status, done.steps) == ("limited", 2)
        assert done.usage.cost == again.usage.cost == pytest.approx(2 * ONCE)

    go(main())


@both
def test_what_the_provider_says_of_the_cost_stands(place):
    async def main():
        done, _ = await run(place, Spending(Usage(1_000_000, 0, 0, 0.5)), Limits(cost=1.0))
        assert (done.status, done.steps, done.usage.cost) == ("limited", 2, 1.0)

    go(main())


@both
@pytest.mark.parametrize("prices", [None, TABLE])
def test_a_limit_of_cost_that_nobody_can_count_ends_the_run_and_says_so(place, prices):
    async def main():
        done, again = await run(place, Spending(SPENT, "other"), Limits(cost=1.0), prices)
        assert (done.status, done.steps) == ("failed", 0)
        assert "nobody says what other costs; give the agent prices={'other'" in done.reason
        assert again.usage == SPENT

    go(main())


@both
def test_a_model_that_is_free_costs_nothing(place):
    async def main():
        free = {"other": {"input": 0, "output": 0}}
        done, _ = await run(place, Spending(SPENT, "other"), Limits(cost=1.0, steps=2), free)
        assert (done.status, done.steps, done.usage.cost) == ("limited", 2, 0)

    go(main())
