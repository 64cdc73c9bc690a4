"""What the wires have in common: whatever a server answers is a turn that can be recorded, or an error that says so."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import pytest

from counterfoil.adapters.models.shared.counts import amount, count
from counterfoil.core.entries import MessageEntry
from counterfoil.core.errors import ModelError
from counterfoil.core.jsontext import normal
from counterfoil.model import ModelRequest, ModelTurn
from counterfoil.prices import counted
from counterfoil.testing.fake_server import Play
from tests.wires import WIRES

NAMES = ["anthropic", "google", "google whole", "openai", "openai-chat"]
ODD: list[Any] = [None, 7, -1, float("nan"), 1e400, 10**400, "x", "\ud800", [], [7], {"a": 1}]
PLAYS = [
    Play("Hello", calls=[("c1", "look", '{"a":1}')], reasoning="Hm.", pieces=1),
    Play("No.", stop="refusal", pieces=1),
]


class Pieces:
    """An answer as the SDK gives it."""

    def __init__(self, pieces: list[Any]) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[Any]:
        for piece in self.pieces:
            yield piece

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """The way to each value within a value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (key,)
        yield from ((key, *rest) for rest in places(value[key]))


def damaged(whole: Any) -> Iterator[Any]:
    """The answer with one value that is another, or is not there."""
    for *way, last in places(whole):
        for odd in (*ODD, ...):
            made = copy.deepcopy(whole)
            node = made
            for key in way:
                node = node[key]
            if odd is ...:
                del node[last]
            else:
                node[last] = odd
            yield made


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_with_any_odd_value_is_a_turn_that_can_be_recorded_or_an_error_of_the_model(name: str) -> None:
    wire = WIRES[name]
    model = wire.model("http://127.0.0.1:9/v1", "key")
    answer: Any = None

    async def sent(*_: object) -> Any:
        return Pieces(answer) if isinstance(answer, list) else answer

    model.sent = sent
    asked = [MessageEntry(run_id="r", at=0, text="Hi", author_type="Human", author_name="ada")]

    async def main() -> int:
        nonlocal answer
        turns = 0
        for play in PLAYS:
            fake: Any = wire.fake()
            for whole in filter(None, (list(fake.stream_of(play)), fake.whole_of(play))):
                for answer in damaged(json.loads(json.dumps(whole))):  # noqa: B007  # what is sent
                    try:
                        *_, turn = [event async for event in model.respond(ModelRequest("", asked, 1, ()))]
                    except ModelError:
                        continue
                    assert isinstance(turn, ModelTurn)
                    assert counted(turn.usage) == turn.usage
                    assert isinstance(turn.text, str)
                    assert isinstance(turn.stop, str)
                    normal(turn.reasoning)
                    turns += 1
        await model.aclose()
        return turns

    assert asyncio.run(main()) > 100


@pytest.mark.parametrize("given", [None, "7", -1, -0.5, float("nan"), float("inf"), 10**400, 2**53 + 1, [], {}])
def test_a_number_that_counts_nothing_is_none(given: object) -> None:
    assert amount(given) == count(given) == 0


def test_what_counts_is_counted() -> None:
    assert [count(7), count(7.9), count(2**53), amount(0.5)] == [7, 7, 2**53, 0.5]
