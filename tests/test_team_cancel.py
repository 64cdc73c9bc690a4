"""A manager that is cancelled, or has no time left, while runs below it are at work (contract 7.8 and 9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil import Agent, Limits, Run, Runtime, ToolContext, tool
from counterfoil import loop as loop_module
from counterfoil.core.entries import EndedEntry
from counterfoil.core.outcome import ErrorCode
from counterfoil.owners import leave
from counterfoil.store import NewRun, RunRow
from counterfoil.testing import call, say
from tests.helpers import SOON, Gate, Place, agent, arrives, both, codes, go, outcomes, requests, shared, until
from tests.marks import law
from tests.test_team import child_of, give, needing, team


class Tidy:
    """A body that is told to stop, tidies up for a while, and gives a result all the same."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.tidied = asyncio.Event()
        self.began = asyncio.Event()

    async def __call__(self, ctx: ToolContext[Any]) -> str:
        """Work until told to stop."""
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.told.set()
            await self.tidied.wait()
        return "tidied"

    def agent(self, name: str = "miner", **options: Any) -> Agent:
        """An agent that calls it once."""
        body = tool(name="work", description="Work.")(self.__call__)
        return agent([call("work", id="w"), say("never")], body, name=name, **options)


async def ends(runtime: Runtime, run: Run) -> list[str]:
    """The agents of the runs of a conversation that have ended, in the order of their ends on record."""
    entries = await runtime.store.entries("default", run.interaction_id)
    names = {row.run_id: row.agent for row in await runtime.runs()}
    return [names[e.run_id] for e in entries if isinstance(e, EndedEntry)]


@both
@law("7.8", "9.cancel")
def test_a_manager_ends_after_the_bodies_below_it_which_keep_what_they_gave(place: Place) -> None:
    async def main() -> None:
        body = Tidy()
        chief = team(body.agent())
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await body.began.wait()
            await run.cancel("enough", by="ada")
            await body.told.wait()
            await run.refresh()
            assert (run.status, outcomes(run)) == ("running", {})
            body.tidied.set()
            await arrives(run, "cancelled")
            child = await runtime.get(child_of(run).run_id)
            assert [r.output for r in child.results] == ["tidied"]
            assert (child.status, child.reason) == ("cancelled", "enough")
            assert (outcomes(run), run.results[0].failure) == ({"miner": "Cancelled"}, None)
            assert await run.errors() == []
            assert await ends(runtime, run) == ["miner", "chief"]
            assert "It may have had an effect" in run.results[0].result.model_output

    go(main())


@both
@law("7.8", "9.cancel")
def test_the_order_of_ends_holds_at_every_depth_though_all_have_the_same_grace(place: Place) -> None:
    async def main() -> None:
        body, short = Tidy(), Limits(cancel_grace=0.1)
        chief = team(team(body.agent(limits=short), name="foreman", limits=short), limits=short)
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await body.began.wait()
            await run.cancel()
            await arrives(run, "cancelled")
            assert await ends(runtime, run) == ["miner", "foreman", "chief"]
            body.tidied.set()

    go(main())


@both
@law("7.8", "9.cancel")
def test_a_manager_whose_grace_has_passed_ends_and_says_that_the_run_below_may_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "BELOW_SECONDS", 0.0)

    async def main() -> None:
        body = Tidy()
        chief = team(body.agent(limits=Limits(cancel_grace=SOON)), limits=Limits(cancel_grace=0.01))
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await body.began.wait()
            await run.cancel("enough")
            await arrives(run, "cancelled")
            assert await ends(runtime, run) == ["chief"]
            assert outcomes(run) == {"miner": "Cancelled"}
            assert "did not stop in time" in run.results[0].result.model_output
            body.tidied.set()
            child = await arrives(await runtime.get(child_of(run).run_id), "cancelled")
            assert [r.output for r in child.results] == ["tidied"]

    go(main())


@shared
@law("7.8", "9.cancel")
@pytest.mark.parametrize("who", ["the manager's process", "the child's process", "a third one without agents"])
def test_it_waits_for_a_child_that_another_process_drives(place: Place, who: str) -> None:
    async def main() -> None:
        body = Tidy()
        miner = body.agent()
        chief = team(agent(name="miner"))
        async with place.open(chief) as here, place.runtime(miner) as there, place.runtime() as third:
            del here.agents["miner"]
            run = await here.start("chief", "Go.")
            await body.began.wait()
            await until(lambda: not here.driving(run.id))
            teller = {"the manager's process": here, "the child's process": there}.get(who, third)
            await teller.cancel(run.id, reason="enough")
            await body.told.wait()
            await run.refresh()
            assert run.status == "running"
            body.tidied.set()
            await arrives(run, "cancelled")
            assert outcomes(run) == {"miner": "Cancelled"}
            child = await here.get(child_of(run).run_id)
            assert [r.output for r in child.results] == ["tidied"]
            assert await ends(here, run) == ["miner", "chief"]

    go(main())


@shared
@law("7.8", "9.cancel", "7.6")
def test_a_process_that_closes_while_it_waits_leaves_the_rest_to_another(place: Place) -> None:
    async def main() -> None:
        body = Tidy()
        miner = body.agent()
        chief = team(agent(name="miner"))
        async with place.open(chief) as last, place.runtime(miner) as there:
            del last.agents["miner"]
            async with place.runtime(chief) as first:
                del first.agents["miner"]
                run = await first.start("chief", "Go.")
                await body.began.wait()
                await until(lambda: not first.driving(run.id))
                await first.cancel(run.id, reason="enough")
                await body.told.wait()
            run = await last.get(run.id)
            assert run.status == "running"
            body.tidied.set()
            await arrives(run, "cancelled")
            assert outcomes(run) == {"miner": "Cancelled"}
            assert await ends(there, run) == ["miner", "chief"]

    go(main())


@both
@law("7.8", "9.cancel")
def test_a_child_that_came_to_its_end_meanwhile_keeps_its_answer(place: Place) -> None:
    async def main() -> None:
        body = Tidy()
        gate = Gate()
        miner = agent([call("work", at="m", id="w"), say("dug")], gate.tool(), name="miner")
        chief = team(miner, body.agent("smith"))
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await gate.began("m")
            await body.began.wait()
            await until(lambda: not runtime.driving(run.id))
            del runtime.agents["chief"]  # nobody drives it, so it sees the end of one and the cancel in one look
            body.tidied.set()
            gate.open("m")
            await run.refresh()
            await arrives(await runtime.get(child_of(run).run_id), "completed")
            await run.cancel("enough")
            await arrives(run, "cancelled")
            assert outcomes(run) == {"miner": "Succeeded", "smith": "Cancelled"}
            assert run.results[0].result.model_output == "dug"

    go(main())


@both
@law("7.8", "9.cancel", "9.pause")
def test_a_child_that_waits_for_a_person_ends_before_its_manager_and_a_late_decision_is_not_pending(
    place: Place,
) -> None:
    log: list[str] = []
    miner = agent([call("blast", where="m", id="m1"), say("mined")], needing(log), name="miner")
    chief = team(miner)

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await arrives(run, "paused")
            await run.cancel("enough")
            await arrives(run, "cancelled")
            assert await ends(runtime, run) == ["miner", "chief"]
            assert (await runtime.approvals(), log) == ([], [])

    go(main())


@both
@law("7.8", "9.cancel", "5.limit")
def test_a_manager_whose_time_is_used_up_waits_for_those_below_in_the_same_way(place: Place) -> None:
    async def main() -> None:
        body = Tidy()
        body.tidied.set()
        gate = Gate()
        calls = [give("miner", "Dig.", "miner"), call("work", at="c", id="w")]
        chief = team(body.agent(), calls=calls, limits=Limits(seconds=0.3))
        chief.tool_map["work"] = gate.tool()
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await arrives(run, "limited")
            limit = ErrorCode.LIMIT_REACHED
            assert codes(run) == {"miner": limit, "w": limit}
            assert await ends(runtime, run) == ["miner", "chief"]

    go(main())


@shared
@law("9.recovery", "7.8", "7.5")
def test_a_process_that_was_held_for_dead_begins_no_run_below_a_manager_that_ended_meanwhile(place: Place) -> None:
    miner = agent([say("never")], name="miner")

    async def main() -> None:
        stuck, sleeps = asyncio.Event(), asyncio.Event()
        async with place.open() as teller, place.runtime(chief := team(miner)) as sleeper:
            create = sleeper.store.create

            async def late(new: NewRun) -> tuple[RunRow, bool]:
                if new.parent is not None:
                    stuck.set()
                    await sleeps.wait()
                return await create(new)

            sleeper.store.create = late  # type: ignore[method-assign]  # the process stands still here
            run = await sleeper.start(chief, "Go.")
            await stuck.wait()
            leave(sleeper.owner)  # to others it is dead
            await teller.cancel(run.id, reason="enough")
            await arrives(await teller.get(run.id), "cancelled")
            sleeps.set()
            await until(lambda: not sleeper.driving(run.id))
            assert [row.agent for row in await teller.runs()] == ["chief"]
            assert requests(miner) == []

    go(main())
