"""The port of engines: what the Runtime promises to one, and what an engine may do wrong without harm."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil import Limits, NotFound, sweep
from counterfoil.core.errors import DefinitionError
from counterfoil.dispatch import REFUSED, STALE
from counterfoil.owners import this_host
from counterfoil.registry import resolve
from counterfoil.store import Owner
from counterfoil.testing import call, say
from tests.helpers import Gate, Place, agent, arrives, content, counted, go, until
from tests.marks import law

ONE_CALL = [[call("count", n=1, id="c")], say("done")]


class Careless:
    """An engine that drives nothing by itself: the test says when, how often, and with which segment."""

    here = False

    def __init__(self, host):
        self.host = host
        self.rows = []
        self.handed = []
        self.forgotten = []

    async def open(self):
        """Nothing to open."""

    async def enqueue(self, row):
        """Remember it."""
        self.rows.append(row)

    async def hand_over(self, owner):
        """Remember it."""
        self.handed.append(owner)

    async def forget(self, row):
        """Remember it."""
        self.forgotten.append(row.run_id)

    async def drain(self):
        """Nothing to stop."""

    async def close(self):
        """Nothing is open."""

    async def told(self, run):
        """The row of a run, once the engine was told of it."""
        await until(lambda: any(row.run_id == run.id for row in self.rows))
        return next(row for row in reversed(self.rows) if row.run_id == run.id)


@pytest.fixture
def desk(tmp_path):
    tool, seen = counted()
    return Place("sqlite", tmp_path), agent(ONE_CALL, tool), seen


def opened(place, *agents):
    """A Runtime whose engine is careless."""
    runtime = place.runtime(*agents)
    runtime.dispatch = Careless(runtime)
    return runtime


@law("7.6")
def test_a_run_is_driven_when_its_engine_says_so_and_not_before(desk):
    place, clerk, seen = desk

    async def main():
        async with opened(place, clerk) as runtime:
            run = await runtime.start("desk", "go")
            row = await runtime.dispatch.told(run)
            assert (row.status, row.owner, row.epoch, seen) == ("running", None, 0, [])
            assert await runtime.dispatch.host.drive("default", run.id, 0) == "completed"
            assert (await run.wait()).answer == "done"
            await content(runtime)

    go(main())


@law("7.5", "7.6")
def test_a_segment_that_is_told_twice_or_too_late_is_driven_once(desk):
    place, clerk, seen = desk

    async def main():
        async with opened(place, clerk) as one, opened(place, clerk) as two:
            run = await one.start("desk", "go")
            ends = await asyncio.gather(*(r.drive("default", run.id, 0) for r in (one, two, one, two)))
            assert set(ends) <= {"completed", STALE, REFUSED}
            assert "completed" in ends
            assert len(seen) == 1
            assert [await r.drive("default", run.id, n) for r in (one, two) for n in (0, 1, 7)] == [STALE] * 6
            await content(one)

    go(main())


@law("7.6")
def test_a_sweep_tells_what_somebody_else_did_not_and_leaves_him_time_to(desk):
    place, clerk, _ = desk

    async def main():
        async with opened(place) as lost, opened(place, clerk) as worker:
            await worker.dispatch.told(await lost.start("desk", "go"))  # its first look leaves nothing to anybody
            row = await worker.dispatch.told(await lost.start("desk", "go"))
            assert worker.effects.now() - row.updated_at >= sweep.TELLING_SECONDS * 1_000_000

    go(main())


@law("7.9")
def test_a_worker_without_the_agent_refuses_and_the_run_stays_for_others(desk, tmp_path):
    place, clerk, _ = desk

    async def main():
        async with opened(place, clerk) as one, opened(place, agent(name="other")) as two:
            run = await one.start("desk", "go")
            assert await two.drive("default", run.id, 0) == REFUSED
            assert await one.drive("default", run.id, 0) == "completed"
            with pytest.raises(NotFound):
                await one.drive("acme", run.id, 0)

    go(main())


@law("7.1", "7.2")
def test_a_pause_ends_the_segment_and_a_decision_tells_the_engine_of_the_next(tmp_path):
    tool, seen = counted(needs_approval=True)
    place, clerk = Place("sqlite", tmp_path), agent(ONE_CALL, tool)

    async def main():
        async with opened(place, clerk) as runtime:
            run = await runtime.start("desk", "go")
            assert await runtime.drive("default", run.id, 0) == "paused"
            runtime.dispatch.rows.clear()
            await run.approve("c", by="grace")
            row = await runtime.dispatch.told(run)
            assert await runtime.drive("default", run.id, 0) == STALE
            assert (row.epoch, seen) == (1, [])
            assert await runtime.drive("default", run.id, row.epoch) == "completed"
            assert len(seen) == 1
            await content(runtime)

    go(main())


@law("7.6")
def test_an_engine_hears_of_dead_workers_of_that_whose_run_it_is_to_give_on_and_of_one_that_had_none(desk):
    place, clerk, _ = desk
    first, second = (Owner(this_host(), 2**22 + 1, 1, token) for token in ("first", "second"))

    async def main():
        async with opened(place, clerk) as runtime:
            run = await runtime.start("desk", "go")
            assert await runtime.store.claim(await runtime.dispatch.told(run), first)
            await until(lambda: first in runtime.dispatch.handed)
            assert (await runtime.dispatch.told(run)).run_id == run.id
            await runtime.store.beat(second)
        async with opened(place, clerk) as runtime:
            await until(lambda: second in runtime.dispatch.handed)
            assert await runtime.lives(runtime.owner)
            assert not await runtime.lives(second)

    go(main())


@law("7.6")
def test_a_run_that_could_not_be_driven_is_refused_for_a_while_whoever_tells_it(desk):
    place, clerk, seen = desk

    async def main():
        async with opened(place, clerk) as runtime:
            run = await runtime.start("desk", "go")
            runtime._fails(run.id)
            assert await runtime.drive("default", run.id, 0) == REFUSED
            del runtime._put_off[run.id]
            assert await runtime.drive("default", run.id, 0) == "completed"
            assert len(seen) == 1

    go(main())


@law("7.8")
def test_a_cancel_of_a_run_that_nobody_drives_is_settled_at_once_and_the_engine_lets_go(desk):
    place, clerk, seen = desk

    async def main():
        async with opened(place, clerk) as runtime:
            run = await runtime.start("desk", "go")
            await run.cancel(reason="no longer")
            await arrives(run, "cancelled")
            assert (seen, runtime.dispatch.forgotten) == ([], [run.id])
            assert await runtime.drive("default", run.id, 0) == STALE

    go(main())


def test_a_limited_run_that_goes_on_is_the_engines_again(desk):
    place, clerk, seen = desk

    async def main():
        async with opened(place, clerk) as runtime:
            run = await runtime.start("desk", "go", limits=Limits(steps=1))
            assert await runtime.drive("default", run.id, 0) == "limited"
            runtime.dispatch.rows.clear()
            await runtime.resume(run.id, limits=Limits(steps=5))
            row = await runtime.dispatch.told(run)
            assert row.owner is None
            assert await runtime.drive("default", run.id, row.epoch) == "completed"
            assert len(seen) == 1
            await content(runtime)

    go(main())


@law("2.3", "7.6")
@pytest.mark.parametrize("engine", ["inline", "careless"])
def test_a_process_that_drains_ends_its_bodies_and_gives_the_run_back_before_the_next_step(tmp_path, engine):
    gate = Gate()
    place, script = Place("sqlite", tmp_path), [[call("work", at="a", id="a")], say("done")]
    clerk = agent(script, gate.tool())

    async def main():
        first = place.runtime(clerk) if engine == "inline" else opened(place, clerk)
        async with first:
            run = await first.start("desk", "go")
            driving = asyncio.create_task(first.drive("default", run.id, 0)) if engine == "careless" else None
            await gate.began("a")
            assert not await first.drain(0.01)
            late = await first.start("desk", "later")
            gate.open("a")
            assert await first.drain()
            row = await first.store.run("default", run.id)
            assert (row.status, row.owner, row.runnable) == ("running", None, True)
            assert [r.result.model_output for r in (await first.get(run.id)).results] == ["a done"]
            if driving is not None:
                assert await driving == "running"
            async with place.open(clerk) as second:
                for left in (run, late):
                    await arrives(await second.get(left.id), "completed")
        assert gate.log.count("+a") == 2  # once for each run

    go(main())


def test_an_engine_that_is_not_known_is_refused_by_name():
    with pytest.raises(DefinitionError, match=r"no dispatch has the scheme 'pigeon'; known are .*inline"):
        resolve("dispatch", "pigeon")
