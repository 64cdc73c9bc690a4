"""A run whose older part a model sums up: the summary is on record, read in its place, and never in the way."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from counterfoil import Agent, Hooks, Limits, Run, Runtime
from counterfoil.core.entries import SummaryEntry
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.turn import Usage
from counterfoil.core.words import summarised, summary_instructions
from counterfoil.model import ModelCall, ModelRequest, ModelTurn
from counterfoil.testing import call, say
from counterfoil.testing.fake_server import Play
from counterfoil.testing.model_bench import KEY
from tests.helpers import Place, agent, arrives, both, fine, go, requests, shared
from tests.marks import law
from tests.wires import WIRES

BUDGET = Limits(context_tokens=2_000)
LONG = "x" * 2_000
"""500 tokens: of four prompts of it and the tool that reads on, the last does not fit."""
SHORT = ModelTurn("They sent x.", usage=Usage(700, 5), model="small")


class Writer:
    """A model that sums up: what it is to give, one for each request; the last for all further ones."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.asked: list[ModelRequest] = []

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelTurn]:
        self.asked.append(request)
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if isinstance(turn, Exception):
            raise turn
        yield turn


def desk(writer: Any, turns: Any = None, **options: Any) -> Agent:
    return agent(turns or [say("ok")], fine, summary=writer, limits=options.pop("limits", BUDGET), **options)


async def talk(runtime: Runtime, times: int, **options: Any) -> Run:
    """So many runs of one interaction, each with a long prompt; the last."""
    run: Run | None = None
    for number in range(times):
        where = {} if run is None else {"interaction": run.interaction_id}
        run = await (await runtime.start("desk", f"{number} {LONG}", **where, **options)).wait()
        assert run.status == "completed", run.reason
    assert run is not None
    return run


def summaries(run: Run) -> list[SummaryEntry]:
    return [e for one in run._fold.record.runs.values() for e in one.log if isinstance(e, SummaryEntry)]


@law("6.context-budget", "2.1")
@both
def test_what_does_not_fit_is_summed_up_once_and_read_in_its_place(place: Place) -> None:
    writer = Writer(SHORT)
    one = desk(writer)

    async def main() -> None:
        async with place.open(one) as runtime:
            run = await talk(runtime, 5)
            assert len(writer.asked) == 1
            (entry,) = summaries(run)
            # Four prompts and three answers: the newest answer is 6, and all before it is summed up.
            assert (entry.first, entry.last, entry.text, entry.model) == (1, 5, "They sent x.", "small")
            seen = [r[0]["content"][:30] for r in requests(one)]
            assert seen == [f"0 {LONG}"[:30]] * 3 + [summarised("")[:30]] * 2
            assert [m["content"] for m in requests(one)[3]] == [summarised("They sent x."), "ok", f"3 {LONG}"]
            told = writer.asked[0]
            assert told.instructions == summary_instructions(200)
            assert (told.tools, told.length) == ((), 1)
            assert told.items[0].text.startswith(f"[user] 0 {LONG}\n[agent] ok\n[user] 1 x")
            # People read what was said, and that it was summed up.
            assert [i.text[:3] for i in run.items] == ["4 x", "ok"]
            before = (await runtime.runs(interaction=run.interaction_id))[1]
            rows = [row for row in await runtime.timeline(before.run_id) if row.kind == "summary"]
            assert [(row.text, row.author.type, row.notes[0][-6:]) for row in rows] == [
                ("They sent x.", "Agent", "1 to 5")
            ]
            assert (await runtime.get(before.run_id)).usage == Usage(700, 5)

    go(main())


def test_without_it_nothing_is_summed_up_and_none_is_on_record() -> None:
    one = agent([say("ok")], fine, limits=BUDGET)

    async def main() -> None:
        async with Runtime("memory://", agents=[one]) as runtime:
            run = await talk(runtime, 5)
            assert summaries(run) == []
            assert len(requests(one)[-1]) == 6, "five prompts and the newest answer"

    go(main())


def test_a_second_summary_is_of_the_first_and_what_came_since() -> None:
    writer = Writer(SHORT, ModelTurn("They sent more."))
    one = desk(writer)

    async def main() -> None:
        async with Runtime("memory://", agents=[one]) as runtime:
            run = await talk(runtime, 7)
            first, second = summaries(run)
            assert (first.first, second.first) == (1, 1)
            assert first.last < second.last
            text = writer.asked[1].items[0].text
            assert text.startswith("[summary of what came before] They sent x.\n[agent] ok\n[user] 3 x")
            assert requests(one)[-1][0]["content"] == summarised("They sent more.")
            assert (await runtime.verify()).ok

    go(main())


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        (ModelError("the server is down", retryable=False), "the server is down"),
        (ValueError("a fault"), "a fault"),
        (ModelTurn(" ", usage=Usage(7, 1)), "the model gave none"),
        (ModelTurn("cut", stop="length", usage=Usage(7, 1)), "ended by length"),
        (ModelTurn("I call", (ModelCall("c", "fine", "{}"),), "calls", Usage(7, 1)), "ended by calls"),
        (ModelTurn(LONG * 9, usage=Usage(7, 1)), "longer than what it sums up"),
    ],
)
def test_a_summary_that_comes_to_nothing_is_logged_and_the_run_goes_on(
    turn: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(turn)
    one = desk(writer)

    async def main() -> None:
        async with Runtime("memory://", agents=[one]) as runtime:
            run = await talk(runtime, 4)
            assert summaries(run) == []
            assert len(writer.asked) == 1
            assert run.usage == (turn.usage if isinstance(turn, ModelTurn) else Usage())
            assert [m["content"][:3] for m in requests(one)[-1]] == ["0 x", "1 x", "2 x", "ok", "3 x"]

    go(main())
    assert why in caplog.text


def test_it_is_not_asked_for_again_before_more_has_come() -> None:
    writer = Writer(ModelError("down", retryable=False))
    turns = [*([call("fine", n=n, id=f"c{n}")] for n in range(6)), say("done")]

    async def main() -> None:
        async with Runtime("memory://", agents=[desk(writer)]) as runtime:
            run = await talk(runtime, 3)
            runtime.agents["desk"] = desk(writer, turns)
            run = await (await runtime.start("desk", LONG, interaction=run.interaction_id)).wait()
            # Once for three prompts, once more when the fourth, a quarter of the budget, is older too.
            assert (run.answer, run.steps, len(writer.asked)) == ("done", 7, 2)

    go(main())


@law("5.limit")
def test_its_tokens_count_in_the_limits_of_the_run() -> None:
    one = desk(Writer(SHORT))

    async def main() -> None:
        async with Runtime("memory://", agents=[one]) as runtime:
            run = await talk(runtime, 3)
            limits = Limits(context_tokens=2_000, tokens=700)
            run = await (await runtime.start("desk", LONG, interaction=run.interaction_id, limits=limits)).wait()
            assert (run.status, run.reason) == ("limited", "the limit of 700 tokens is reached")
            assert (run.steps, run.usage) == (0, Usage(700, 5))

    go(main())


def test_guards_see_the_request_for_a_summary_and_one_that_refuses_it_fails_no_run() -> None:
    writer = Writer(SHORT)
    seen: list[Any] = []

    def before(asked: Any) -> None:
        seen.append(asked.model)
        if asked.model is writer:
            raise PermissionError("not to that one")

    async def main() -> None:
        one = desk(writer, hooks=Hooks(before_model=before))
        async with Runtime("memory://", agents=[one]) as runtime:
            run = await talk(runtime, 4)
            assert summaries(run) == []
            assert writer.asked == []
            assert seen == [one.model] * 3 + [writer, one.model]

    go(main())


class Held:
    """A model that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelTurn]:
        self.asked.set()
        await asyncio.Event().wait()
        yield ModelTurn()


@law("7.9")
@shared
def test_a_process_that_leaves_between_the_summary_and_the_turn_loses_nothing(place: Place) -> None:
    writer, held = Writer(SHORT), Held()

    async def main() -> None:
        async with place.open(desk(writer)) as runtime:
            run = await talk(runtime, 3)
            runtime.agents["desk"] = Agent("desk", held, tools=[fine], summary=writer, limits=BUDGET)
            run = await runtime.start("desk", f"3 {LONG}", interaction=run.interaction_id)
            await held.asked.wait()
        later = desk(writer)
        async with place.open(later) as runtime:
            run = await arrives(await runtime.get(run.id), "completed")
            assert len(writer.asked) == len(summaries(run)) == 1
            assert [m["content"] for m in requests(later)[-1]] == [summarised("They sent x."), "ok", f"3 {LONG}"]

    go(main())


@law("2.1", "2.6")
@pytest.mark.parametrize("wire", list(WIRES))
def test_every_wire_takes_it_and_the_agents_own_model_can_write_it(wire: str) -> None:
    calls = [("c1", "fine", '{"n": 1}'), ("c2", "fine", '{"n": 2}')]

    async def main() -> None:
        plays = [
            Play("", calls=calls),
            Play("ok"),
            Play("ok"),
            Play("They sent x."),
            Play("", calls=calls),
            Play("fine"),
        ]
        async with WIRES[wire].fake(plays, key=KEY) as server:
            model = WIRES[wire].model(server.base_url, KEY)
            one = Agent("desk", model, "Be brief.", [fine], summary=True, limits=BUDGET)
            async with Runtime("memory://", agents=[one]) as runtime:
                run = await talk(runtime, 2)
                run = await (await runtime.start("desk", LONG * 3, interaction=run.interaction_id)).wait()
                assert (run.answer, len(summaries(run))) == ("fine", 1)
                assert (await runtime.verify()).ok
            await model.aclose()
            assert server.faults == []
            assert b"Be brief." not in server.asked[3].raw
            assert b"fine 1" in server.asked[3].raw
            for asked in server.asked[4:]:
                told = server.told(asked.body)
                assert "They sent x." in told[1].text
                assert told[1].kind == "user"
                assert not any(one.text.startswith("0 x") for one in told)

    go(main())


def test_a_replay_plays_it_back() -> None:
    writer = Writer(SHORT)
    one = desk(writer)

    async def main() -> None:
        async with Runtime("memory://", agents=[one]) as runtime:
            run = await talk(runtime, 4)
            again = await runtime.replay(run.id)
            assert again.ok, again.differences
            assert len(writer.asked) == 1
            assert again.steps[0].messages(all_=True) == requests(one)[-1]
            runtime.agents["desk"] = agent([], fine, limits=BUDGET)
            assert (await runtime.replay(run.id)).ok, "today's agent sums nothing up, which changes what it reads alone"

    go(main())


@both
def test_retention_erases_its_text_and_another_run_reads_what_is_left(place: Place) -> None:
    writer = Writer(ModelTurn("canary-summary"))

    async def main() -> None:
        one = desk(writer)
        async with place.open(one) as runtime:
            run = await talk(runtime, 4)
            await runtime.erase(run.id)
        async with place.open(one) as runtime:
            run = await runtime.get(run.id)
            assert [e.text for e in summaries(run)] == ["(erased)"]
            writer.turns = [ModelTurn("Anew.")]
            run = await (await runtime.start("desk", LONG, interaction=run.interaction_id)).wait()
            assert "canary-summary" not in str(requests(one)[-1])

    go(main())


@pytest.mark.parametrize("given", [3, object()])
def test_what_is_no_model_is_refused(given: Any) -> None:
    with pytest.raises(DefinitionError, match="expected a model"):
        Agent("desk", "openai:x", summary=given)
