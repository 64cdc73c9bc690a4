"""A team whose runs are driven by several workers, some of which die or leave (contract 7 and 9)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Agent, Limits, Run, ToolContext, ToolResult, tool
from counterfoil.core.errors import NotPending
from counterfoil.core.turn import Usage
from counterfoil.testing import call, say
from tests import run_child
from tests.helpers import Child, Gate, Place, agent, arrives, both, go, outcomes, pending, shared, until
from tests.marks import law
from tests.test_team import child_of, team


@shared
@law("7.6", "9.recovery", "7.9")
def test_a_worker_is_killed_while_its_children_wait_one_decides_elsewhere_and_a_third_goes_on(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = Child(tmp_path, "drive", "boss", url=place.url)
    killed.begin()

    async def main() -> None:
        async with place.runtime() as decider:
            while sorted(a.call_id for a in await decider.approvals()) != ["a", "b"]:
                await asyncio.sleep(0.01)
            await until(lambda: killed.lines() == ["hang 0 attempt 1"])
            killed.kill()
            (row,) = [row for row in await decider.runs() if row.parent is None]
            run = await decider.get(row.run_id)
            await run.approve("a", by="grace")
            await run.reject("b", by="grace", reason="No.")
            async with place.open(*run_child.agents()):
                while await pending(run) != ["h"]:
                    await asyncio.sleep(0.01)
                assert [a.kind for a in await run.approvals()] == ["interrupted"]
                await run.settle("h", by="grace", result=ToolResult.text("seen to"))
                await arrives(run, "completed")
            assert outcomes(run) == {"h0": "Succeeded", "p0": "Succeeded"}
            paid = await decider.get(child_of(run, "p0").run_id)
            assert outcomes(paid) == {"a": "Succeeded", "b": "Rejected"}
            assert [line.split()[:2] for line in killed.lines()] == [["hang", "0"], ["pay", "1"]]

    monkeypatch.setattr(run_child, "EFFECTS", str(killed.effects))
    go(main())


def needs(gate: Gate) -> Any:
    """A body that a person must approve, and that waits at a gate then."""

    @tool(needs_approval=True)
    async def blast(ctx: ToolContext[Any], at: str) -> str:
        await gate.enter(f"{at}{ctx.attempt}")
        return f"{at} done"

    return blast


@shared
@law("9.pause", "7.2", "7.6")
@pytest.mark.parametrize("leaves", [False, True])
def test_two_workers_drive_a_child_each_of_a_manager_that_a_third_drives(place: Place, *, leaves: bool) -> None:
    gate = Gate()
    members = {
        name: agent([call("blast", at=name, id=name[0]), say(f"by {name}")], needs(gate), name=name)
        for name in ("miner", "smith")
    }
    chief = team(*members.values())

    async def main() -> None:
        async with place.open(chief) as top, AsyncExitStack() as others:
            for name in members:
                del top.agents[name]
            one = await others.enter_async_context(place.runtime(members["miner"]))
            two = await others.enter_async_context(place.runtime(members["smith"]))
            run = await top.start("chief", "Go.")
            while sorted(await pending(run)) != ["m", "s"]:
                await asyncio.sleep(0.005)
            await arrives(run, "paused")
            await asyncio.gather(one.approve(run.id, "m", by="ada"), two.approve(run.id, "s", by="grace"))
            await gate.began("miner1", "smith1")
            assert one.driving(child_of(run, "miner").run_id)
            assert two.driving(child_of(run, "smith").run_id)
            gate.open("smith1")
            if leaves:
                await one.close()
                await others.enter_async_context(place.runtime(members["miner"]))
                while await pending(run) != ["m"]:
                    await asyncio.sleep(0.005)
                await run.settle("m", by="ada", rerun=True)
                gate.open("miner2")
            gate.open("miner1")
            assert (await arrives(run, "completed")).answer == "by miner | by smith"

    go(main())


@both
@law("7.8", "9.cancel")
def test_a_child_that_ends_just_when_its_manager_is_cancelled_ends_in_one_way(place: Place) -> None:
    gate = Gate()
    miner = agent([call("work", at="m", id="w"), say("dug")], gate.tool(), name="miner")
    chief = team(miner)

    async def once(runtime: Any, turns: int) -> Run:
        run = await runtime.start(chief, "Go.")
        gate.log.clear()
        await gate.began("m")
        gate.open("m")
        for _ in range(turns):
            await asyncio.sleep(0)
        await run.cancel("enough")
        while (await run.wait()).status in ("running", "paused"):
            await asyncio.sleep(0.001)
        gate._opened.clear()
        return run

    async def main() -> None:
        async with place.open(chief) as runtime:
            for turns in range(12):
                run = await once(runtime, turns)
                child = await runtime.get(child_of(run).run_id)
                ended = (run.status, child.status, outcomes(run)["miner"])
                assert ended in {
                    ("cancelled", "cancelled", "Cancelled"),
                    ("cancelled", "completed", "Succeeded"),
                    ("completed", "completed", "Succeeded"),
                }

    go(main())


@both
@law("9.spending", "5.limit")
def test_a_manager_that_was_limited_with_its_child_goes_on_with_new_limits_and_gives_the_task_anew(
    place: Place,
) -> None:
    cost = Usage(60, 0)
    miner = agent([[call("dig", id="d"), say("", usage=cost)], say("mined", usage=cost)], dig(), name="miner")
    again = call("dispatch", agent="miner", task="Again.", id="again")
    chief = team(miner, then=[again, say("done")], limits=Limits(tokens=50))

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await arrives(run, "limited")
            first = child_of(run)
            assert (first.status, outcomes(run), run.usage.tokens) == ("limited", {"miner": "Failed"}, 60)
            run = await runtime.resume(run.id, limits=Limits(tokens=500))
            assert (await arrives(run, "completed")).answer == "done"
            second = child_of(run, "again")
            assert second.head is not None
            assert (second.status, second.head.limits.tokens) == ("completed", 440)
            assert outcomes(run) == {"miner": "Failed", "again": "Succeeded"}
            assert run.usage.tokens == 180

    go(main())


def dig() -> Any:
    """A tool."""

    @tool(read_only=True, name="dig")
    async def body() -> str:
        return "gold"

    return body


@both
@law("9.cancel", "5.limit")
def test_a_manager_whose_time_was_used_up_goes_on_and_reads_that_its_child_was_stopped(place: Place) -> None:
    gate = Gate()
    miner = agent([call("work", at="m", id="w"), say("never")], gate.tool(), name="miner")
    calls = [call("dispatch", agent="miner", task="Dig.", id="miner"), call("work", at="c", id="w")]
    chief = team(miner, calls=calls, limits=Limits(seconds=0.3))
    chief.tool_map["work"] = gate.tool()

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await arrives(run, "limited")
            assert child_of(run).status == "cancelled"
            run = await runtime.resume(run.id, limits=Limits(seconds=60))
            answer = (await arrives(run, "completed")).answer
            assert answer is not None
            assert answer.count("It was stopped before its end") == 2

    go(main())


@law("9.pause")
def test_a_limited_child_is_not_resumed_for_its_manager_has_gone_on(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path)
    miner = Agent("miner", agent([call("none", id="n")] * 3).model, limits=Limits(steps=1))
    chief = team(miner)

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await arrives(run, "completed")
            with pytest.raises(NotPending, match="give the task anew"):
                await runtime.resume(child_of(run).run_id, limits=Limits(steps=5))

    go(main())
