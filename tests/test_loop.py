"""The loop itself: closing in the middle, interrupts of the program, one writer at a time (contract 4 and 7)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from counterfoil import Hooks, Limits, tool
from counterfoil.testing import call, say
from tests.helpers import (
    SOON,
    Gate,
    agent,
    arrives,
    both,
    content,
    counted,
    fine,
    go,
    outcomes,
    pending,
    requests,
    told,
    until,
)
from tests.marks import case, law


@both
@law("4.exit", "2.1")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_in_a_body_ends_the_program_after_the_call_is_settled(place, error):
    @tool
    async def leave() -> str:
        """Leave."""
        raise error("bye")

    store = []

    async def main():
        async with place.runtime(
            agent([[call("leave", id="l"), call("fine", id="f")], say("never")], leave, fine)
        ) as runtime:
            store.append(runtime.store)
            run = await runtime.start("desk", "go")
            store.append(run.id)
            await run.wait(SOON)

    with pytest.raises(error):
        asyncio.run(main())

    async def look():
        desk = agent([[call("leave"), call("fine")], say("went on")], leave, fine)
        async with place.open(desk) as runtime:
            run = await arrives(await runtime.get(store[1]), "completed")
            assert outcomes(run)["l"] == "Failed"
            assert (run.answer, len(run.results)) == ("went on", 2)

    go(look())


@both
@law("7.6")
@case("R005")
def test_closing_in_the_middle_leaves_the_run_to_whoever_comes_next(place):
    async def main():
        gate = Gate()
        script = [[call("look", at="x", id="x"), call("fine", id="f")], say("done")]
        tools = gate.tool("look", read_only=True), fine
        async with place.runtime(agent(script, *tools)) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("x")
            await until(lambda: run.results)
            waiter = asyncio.create_task(run.wait())
            await asyncio.sleep(0)
            waiter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiter
        assert gate.running == set()
        gate.open("x")
        async with place.open(agent(script, *tools)) as runtime:
            row = await runtime.store.run("default", run.id)
            assert row.status == "running"
            again = await arrives(await runtime.get(run.id), "completed")
            assert [r.attempt for r in again.results] == [2, 1]
            assert [r.output for r in again.results] == ["x done", "fine 0"]

    go(main())


@both
@law("7.6")
def test_closing_while_the_model_is_asked_leaves_the_run_to_whoever_comes_next(place):
    async def main():
        asked = asyncio.Event()

        async def hang(request):
            asked.set()
            await asyncio.Event().wait()

        async with place.runtime(agent([hang])) as runtime:
            run = await runtime.start("desk", "go")
            await asked.wait()
        desk = agent([say("done")])
        async with place.open(desk) as runtime:
            again = await arrives(await runtime.get(run.id), "completed")
            assert (again.answer, again.steps) == ("done", 1)

    go(main())


@both
@law("2.1", "7.6")
def test_a_turn_is_safe_before_somebodys_code_judges_it(place):
    async def main():
        seen = []

        async def guard(before):
            row = await runtime.store.entries("default", run.interaction_id)
            seen.append([e.kind for e in row])

        desk = agent([[call("fine", id="f")], say("done")], fine, hooks=Hooks(before_call=guard))
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await run.wait()
            assert seen == [["run", "message", "turn"]]

    go(main())


@both
@law("7.7", "7.5")
def test_a_driver_that_lost_its_run_writes_nothing_more(place):
    async def main():
        gate = Gate()
        script = [[call("look", at="x", id="x")], say("done")]
        tools = (gate.tool("look", read_only=True),)
        one = place.runtime(agent(script, *tools))
        async with one:
            run = await one.start("desk", "go")
            await gate.began("x")
            # Another worker claims the run, as one does that takes this process for dead.
            row = await one.store.run("default", run.id)
            two = place.runtime(agent([*script[:1], say("the other's")], *tools))
            async with two:
                assert await one.store.claim(row, two.owner)
                gate.open("x")
                await until(lambda: run.id not in one._drives)
                assert run.results == []
                lost = await one.store.run("default", run.id)
                assert (lost.epoch, lost.status) == (row.epoch + 1, "running")
        async with place.open(agent(script, *tools)) as runtime:
            again = await arrives(await runtime.get(run.id), "completed")
            assert len(again.results) == 1

    go(main())


@both
@law("2.2")
@case("R020", "R016")
def test_a_request_holds_each_item_once_also_after_several_pauses(place):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("pay", n=1, id="a")], [call("pay", n=2, id="b"), call("fine", id="f")], say("done")], pay, fine)

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            while (await run.wait()).status == "paused":
                for call_id in await pending(run):
                    await run.approve(call_id, by="grace")
            assert [len(r) for r in requests(desk)] == [1, 3, 6]
            for seen in desk.model.requests:
                entries = [i.entry for i in seen.items]
                assert len(entries) == len(set(entries))
            assert list(told(desk)) == ["a", "b", "f"]

    go(main())


@both
@law("6.growth", "2.3")
def test_a_long_run_stays_in_order(place):
    desk = agent([*[[call("fine", n=n)] for n in range(40)], say("done")], fine, limits=Limits(steps=None))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert [r.output for r in run.results] == [f"fine {n}" for n in range(40)]
            assert [i.sequence for i in run.items] == list(range(1, len(run.items) + 1))

    go(main())


@both
@law("7.1")
def test_many_runs_at_once_each_come_to_their_own_end(place):
    pay, seen = counted("pay", needs_approval=True)
    desk = agent([[call("pay", n=1), call("fine", n=2)], say("done")], pay, fine)

    async def main():
        async with place.open(desk) as runtime:
            runs = await asyncio.gather(*(runtime.start("desk", f"go {i}") for i in range(20)))
            await asyncio.gather(*(run.wait() for run in runs))
            assert {run.status for run in runs} == {"paused"}
            await asyncio.gather(*(runtime.approve(a.run_id, a.call_id, by="grace") for a in await runtime.approvals()))
            await asyncio.gather(*(run.wait() for run in runs))
            assert {(run.status, run.answer) for run in runs} == {("completed", "done")}
            assert len(seen) == 20
            await content(runtime)

    go(main())
