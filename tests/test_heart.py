"""A worker's signs of life: from before its first claim until it has closed; and what becomes of one that is silent."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time

import pytest

from counterfoil import Runtime, tool
from counterfoil.core.errors import DefinitionError
from counterfoil.core.limits import DEAD_AFTER
from counterfoil.effects import Effects
from counterfoil.owners import owner_text
from counterfoil.store import LockLost
from counterfoil.testing import call, say
from tests.helpers import Child, Gate, agent, arrives, fine, go, outcomes, shared, until
from tests.marks import law
from tests.run_child import agents as child_agents
from tests.test_driving import refusing

BEAT = 0.2
"""Seconds: an owner of these tests is dead after twice that."""
ONE_CALL = [[call("fine", id="f")], say("done")]


async def beating(runtime: Runtime) -> list:
    return [w.owner for w in await runtime.store.workers()]


def freeze(runtime: Runtime) -> None:
    """It is silent from now on, as in a process that is frozen."""
    runtime.heart._task.cancel()


@shared
@law("7.6")
def test_a_worker_beats_until_it_has_closed(place):
    async def main():
        async with place.runtime() as reader:
            async with place.runtime(agent(ONE_CALL, fine), heartbeat=BEAT) as worker:
                (first,) = await worker.store.workers()
                assert (first.owner, first.every) == (worker.owner, BEAT)
                while (await worker.store.workers())[0].steady < 4 * BEAT:
                    await asyncio.sleep(0.001)
                assert (await worker.store.workers())[0].ago < 4 * BEAT
            assert await beating(reader) == []

    go(main())


@law("7.6")
def test_the_first_beat_is_on_record_before_the_first_claim(tmp_path):
    effects = Effects()
    claimed = []

    async def main():
        url = f"sqlite:///{tmp_path}/runs.db"
        async with Runtime(url, effects=effects) as late, Runtime(url) as other:
            import sqlite3

            db = sqlite3.connect(tmp_path / "runs.db")

            def probe(point: str) -> None:
                if point == "store:before:create":
                    claimed.append(db.execute("SELECT owner FROM workers").fetchall())

            effects.probe = probe
            assert await beating(late) == []  # it has no agent yet
            run = await (await late.start(agent(ONE_CALL, fine), "go")).wait()
            assert run.answer == "done"
            assert claimed == [[(owner_text(late.owner),)]]
            free = await other.start("desk", "go")
            await other.cancel(free.id)  # it drives the run to its end itself, without an agent
            assert {late.owner, other.owner} >= set(await beating(late))
            db.close()

    go(main())


@shared
def test_whoever_brings_a_cancelled_run_to_its_end_beats_first_though_it_has_no_agents(place):
    async def main():
        async with place.runtime() as reader:
            run = await reader.start("nobody here", "go")
            assert await beating(reader) == []
            await run.cancel()
            assert await beating(reader) == [reader.owner]
            await arrives(run, "cancelled")

    go(main())


def test_in_memory_nobody_beats():
    async def main():
        async with Runtime("memory://", agents=[agent(ONE_CALL, fine)]) as runtime:
            await (await runtime.start("desk", "go")).wait()
            assert await beating(runtime) == []

    go(main())


@law("7.6")
def test_a_beat_that_fails_is_tried_again(tmp_path, caplog):
    async def main():
        url = f"sqlite:///{tmp_path}/runs.db"
        async with Runtime(url, agents=[agent(ONE_CALL, fine)], heartbeat=BEAT) as runtime:
            with refusing(runtime):
                await until(lambda: "no sign of life could be left" in caplog.text)
            while (await runtime.store.workers())[0].ago > BEAT:
                await asyncio.sleep(0.001)
            assert (await (await runtime.start("desk", "go")).wait()).answer == "done"

    go(main())


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_heartbeat_is_a_number_of_seconds(seconds):
    with pytest.raises(DefinitionError, match="heartbeat"):
        Runtime(heartbeat=seconds)


# --------------------------------------------------------------------------------- dead, elsewhere or here


@shared
@pytest.mark.parametrize("hosts", [("a", "b"), (None, None)], ids=["on another host", "on the same host"])
@law("7.6", "7.9")
def test_the_run_of_a_silent_worker_is_taken_up_and_the_old_one_is_fenced(place, hosts):
    async def main():
        gate, opened = Gate(), Gate()
        opened.open("x")
        script = [[call("look", at="x", id="x")], say("done")]
        first = agent(script, gate.tool("look", read_only=True))
        second = agent(script, opened.tool("look", read_only=True))
        async with place.runtime(first, host=hosts[0], heartbeat=BEAT) as silent:
            run = await silent.start("desk", "go")
            await gate.began("x")
            async with place.runtime(second, host=hosts[1], heartbeat=BEAT) as other:
                there = await other.get(run.id)
                while (await other.store.workers())[0].steady <= 2 * DEAD_AFTER * BEAT:
                    await asyncio.sleep(0.001)
                assert (await other.store.run("default", run.id)).owner == silent.owner, "it lives"
                freeze(silent)
                await arrives(there, "completed")
                assert [r.attempt for r in there.results] == [2]
                gate.open("x")
                await until(lambda: run.id not in silent._drives)
                assert (await other.store.run("default", run.id)).epoch == 2

    go(main())


@shared
@law("7.6", "7.8")
def test_a_cancel_settles_the_run_of_a_silent_worker_and_leaves_that_of_a_living_one(place):
    async def main():
        gate = Gate()
        desk = agent([[call("work", at="x", id="x")], say("done")], gate.tool())
        async with place.runtime(desk, host="a", heartbeat=BEAT) as worker, place.runtime(host="b") as reader:
            run = await worker.start("desk", "go")
            await gate.began("x")
            there = await reader.get(run.id)
            freeze(worker)
            while await reader.store.lives(worker.owner, reader.owner):
                await asyncio.sleep(0.001)
            await there.cancel("enough")
            await arrives(there, "cancelled")
            assert outcomes(there) == {"x": "Cancelled"}

    go(main())


@shared
@law("2.7.lock")
def test_a_lock_of_a_silent_worker_is_free_and_that_of_a_living_one_is_not(place):
    async def main():
        gate = Gate()
        one = agent([[call("work", at="a", id="a")], say("done")], gate.tool(lock="till"), name="one")
        two = agent([[call("work", at="b", id="b")], say("done")], gate.tool(lock="till"), name="two")
        first = place.runtime(one, host="a", heartbeat=BEAT)
        second = place.runtime(two, host="b", heartbeat=BEAT)
        async with first, second:
            await first.start("one", "go")
            await gate.began("a")
            run = await second.start("two", "go")
            while (await second.store.workers())[0].steady <= 2 * DEAD_AFTER * BEAT:
                await asyncio.sleep(0.001)
            assert "+b" not in gate.log
            freeze(first)
            await gate.began("b")
            gate.open("a", "b")
            await run.wait()

    go(main())


@shared
@law("2.7.lock")
def test_a_lock_that_was_lost_is_not_passed_on_by_whoever_had_it(place):
    async def main():
        gate = Gate()
        calls = [call("work", at="a", id="a"), call("work", at="next", id="next")]
        one = agent([calls, say("done")], gate.tool(lock="till"), name="one")
        two = agent([[call("work", at="b", id="b")], say("done")], gate.tool(lock="till"), name="two")
        first = place.runtime(one, host="a", heartbeat=BEAT)
        second = place.runtime(two, host="b", heartbeat=BEAT)
        async with first, second:
            run = await first.start("one", "go")
            await gate.began("a")
            other = await second.start("two", "go")
            freeze(first)
            await gate.began("b")
            gate.open("a", "next")  # it goes on: nobody else has its agent, so its run is still its own
            await until(lambda: "-a" in gate.log)
            await until(lambda: first.locks._tasks or "+next" in gate.log)
            assert "+next" not in gate.log
            gate.open("b")
            await other.wait()
            await run.wait()
            assert gate.log == ["+a", "+b", "-a", "-b", "+next", "-next"]

    go(main())


@shared
@law("2.7.lock")
def test_a_lock_that_was_lost_before_the_start_was_on_record_gives_no_start(place):
    async def main():
        gate = Gate()
        one = agent([[call("work", at="a", id="a")], say("done")], gate.tool(lock="till"), name="one")
        two = agent([[call("work", at="b", id="b")], say("done")], gate.tool(lock="till"), name="two")
        first = place.runtime(one, host="a", heartbeat=BEAT)
        second = place.runtime(two, host="b", heartbeat=BEAT)
        commit, refused = first.store.commit, []

        async def late(lease, entries, **more):
            if any(e.kind == "start" for e in entries) and not gate.log:
                freeze(first)  # it has the lock, and the start is not on record yet
                await second.start("two", "go")
                await gate.began("b")
            try:
                return await commit(lease, entries, **more)
            except LockLost as e:
                refused.append(e)
                raise
            finally:
                gate.open("b")

        async with first, second:
            while any(w.steady <= 2 * DEAD_AFTER * BEAT for w in await second.store.workers()):
                await asyncio.sleep(0.001)
            first.store.commit = late
            gate.open("a")
            run = await first.start("one", "go")
            await run.wait()
            assert (gate.log, run.answer, len(refused)) == (["+b", "-b", "+a", "-a"], "done", 1)

    go(main())


@law("7.6")
def test_a_worker_whose_loop_stood_still_goes_on_with_its_own_run(tmp_path):
    async def main():
        @tool(read_only=True)
        async def block() -> str:
            """Block the loop."""
            time.sleep(4 * DEAD_AFTER * BEAT)  # noqa: ASYNC251  # what a body must not do
            return "blocked"

        desk = agent([[call("block", id="b")], say("done")], block)
        async with Runtime(f"sqlite:///{tmp_path}/runs.db", agents=[desk], heartbeat=BEAT) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.answer, [r.attempt for r in run.results]) == ("done", [1])
            assert (await runtime.store.run("default", run.id)).epoch == 1

    go(main())


@shared
@law("7.6", "7.7")
def test_a_process_that_is_frozen_loses_its_run_and_harms_nothing_when_it_goes_on(place, tmp_path):
    child = Child(tmp_path, "drive_quickly", "hanger", url=place.url)
    child.begin()

    async def main():
        await until(child.lines)
        async with place.open(*child_agents(), heartbeat=BEAT) as runtime:
            run = await runtime.get((await runtime.runs())[0].run_id)
            child.process.send_signal(signal.SIGSTOP)
            try:
                await arrives(run, "paused")  # the body may not run twice
                (asked,) = await run.approvals()
                assert asked.kind == "interrupted"
            finally:
                child.process.send_signal(signal.SIGCONT)
            with child.effects.open("a") as f:
                f.write("end\n")
            await arrives(run, "paused")
            await run.cancel()
            await arrives(run, "cancelled")

    with contextlib.ExitStack() as stack:
        stack.callback(child.kill)
        go(main())
