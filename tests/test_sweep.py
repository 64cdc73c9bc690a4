"""What a worker's sweep costs and takes up: by priority, within quotas, as many as it has room for; what it erases."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from datetime import timedelta

import pytest

from counterfoil import Caller, Runtime
from counterfoil.adapters.stores.postgres import database
from counterfoil.adapters.stores.sqlite import due
from counterfoil.adapters.stores.sqlite.database import SQL
from counterfoil.core.errors import DefinitionError
from counterfoil.owners import Watch
from counterfoil.store import SWEEP_ROWS, Quota, Wanted
from counterfoil.testing import call, say
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import claimed
from tests.helpers import Gate, Place, agent, arrives, both, content, counted, fine, go, shared, so, until
from tests.marks import law

MANY = 200
"""Runs that wait for people."""


def asks() -> tuple:
    """An agent whose call waits for a person, and what its body was called with."""
    pay, seen = counted("pay", needs_approval=True)
    return agent([[call("pay", id="a")], say("done")], pay), seen


def gated(gate: Gate, name: str = "desk"):
    """An agent whose body waits at a gate under the prompt of its run."""

    def turns(request):
        prompt = request.messages[-1]["content"]
        return [call("work", at=prompt, id="w")] if request.messages[-1]["role"] == "user" else say("done")

    return agent([turns] * 50, gate.tool(), name=name)


async def wait_for_people(runtime: Runtime, many: int = MANY) -> None:
    """So many runs, all paused."""
    runs = await asyncio.gather(*(runtime.start("desk", "go") for _ in range(many)))
    await asyncio.gather(*(run.wait() for run in runs))


# ------------------------------------------------------------------------------------------- what it costs


@shared
@law("7.1")
def test_runs_that_wait_for_people_use_no_task_and_no_row_of_a_sweep_and_survive_a_restart(place):
    desk, seen = asks()
    idle: dict[str, int] = {}

    async def main():
        async with place.runtime(desk) as runtime:
            await asyncio.sleep(0)
            idle["tasks"] = len(asyncio.all_tasks())
            await wait_for_people(runtime)
            await until(lambda: len(asyncio.all_tasks()) <= idle["tasks"])
            wanted = Wanted(runtime.owner, runtime.effects.now(), ["desk"])
            assert await runtime.store.open_runs(wanted) == []
            assert await runtime.store.posted(runtime.owner) == []
        async with place.runtime(desk) as runtime:
            (first,) = await runtime.runs(limit=1)
            assert await runtime.store.counts(["desk"]) == (0, 0, MANY, MANY)
            await runtime.approve(first.run_id, "a", by="grace")
            await arrives(await runtime.get(first.run_id), "completed")
            assert len(seen) == 1

    go(main())


def test_a_sweep_reads_as_much_with_many_paused_runs_as_with_none(tmp_path):
    place = Place("sqlite", tmp_path)

    async def main():
        async with place.runtime() as runtime:
            store = runtime.store

            async def steps() -> int:
                count = [0]

                def one() -> None:
                    count[0] += 1

                def look(db):
                    due.open_runs(db, Watch(), Wanted(r.WORKER, r.NOON, ("support",)))  # compiled
                    db.set_progress_handler(one, 1)
                    due.open_runs(db, Watch(), Wanted(r.WORKER, r.NOON, ("support",)))
                    due.posted(db, r.WORKER)
                    db.set_progress_handler(None, 0)
                    return count[0]

                return await store._read.submit(look)

            none = await steps()
            for i in range(MANY):
                lease = await claimed(store, f"run-{i}", f"talk-{i}")
                wake_at = r.NOON + 10**9 if i % 2 else None
                await store.commit(lease, [r.turn(lease.run_id), r.waiting(lease.run_id)], change=r.paused(wake_at))
            assert await steps() < none + MANY / 10, "one step more where an index is not empty"

    go(main())


def test_a_sweep_of_the_database_touches_no_row_of_a_paused_run(postgres):
    place = Place("postgres", None, postgres.fresh())

    async def main():
        async with place.runtime() as runtime:
            store = runtime.store
            for i in range(MANY):
                lease = await claimed(store, f"run-{i}", f"talk-{i}")
                await store.commit(lease, [r.turn(lease.run_id), r.waiting(lease.run_id)], change=r.paused())
            async with store._pool.connection() as db:
                # So few rows lie in a few pages, which is quicker to read than an index.
                await db.execute("SET enable_seqscan = off")
                await db.execute("ANALYZE runs")
                read = 0
                for name, values in (
                    ("open_runs", (["support"], "default", r.NOON, 100, [], [])),
                    ("owners", ()),
                    ("posted", ("nobody",)),
                ):
                    explained = await db.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + database.SQL[name], values)
                    (plan,) = await explained.fetchone()
                    read += rows_of((plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"])
                await db.execute("SET enable_seqscan = on")
                assert read < 10

    go(main())


def rows_of(plan) -> int:
    """Rows that a plan read from tables and indexes."""
    here = 0
    if "Scan" in plan["Node Type"] and "Relation Name" in plan:
        here = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return here + sum(rows_of(child) for child in plan.get("Plans", ()))


def test_every_search_of_a_sweep_has_an_index(tmp_path):
    place = Place("sqlite", tmp_path)

    async def main():
        async with place.runtime() as runtime:

            def plans(db):
                named = {"agent": "a", "pool": "p", "tenant": None, "now": 1, "limit": 1, "d": "d", "w": "w"}
                sweep = SQL["open_runs"].replace("{dead}", ":d").replace("{without}", ":w")
                asked = [(sweep, named), (SQL["counts"], named), (SQL["owners"], ())]
                asked += [(SQL[name], (1,) * SQL[name].count("?")) for name in ("posted", "to_erase", "at_work")]
                return [line[3] for q, v in asked for line in db.execute("EXPLAIN QUERY PLAN " + q, v)]

            found = await runtime.store._read.submit(plans)
            assert [line for line in found if line.startswith("SCAN runs")] == []
            for index in ("free", "later", "waking", "owned", "posted", "ended", "paused"):
                assert any(f"INDEX runs_{index} " in line for line in found), index

    go(main())


# --------------------------------------------------------------------------------------- what it takes up


@shared
@law("7.2")
def test_a_decision_in_another_process_is_seen_by_the_worker(place):
    desk, seen = asks()

    async def main():
        async with place.runtime(desk) as worker, place.runtime() as reader:
            run = await (await worker.start("desk", "go")).wait()
            await reader.approve(run.id, "a", by="grace")
            await arrives(run, "completed")
            assert len(seen) == 1

    go(main())


@both
def test_a_worker_drives_so_many_runs_at_once_and_the_others_by_priority(place):
    async def main():
        gate = Gate()
        async with place.open(gated(gate), max_runs=2) as runtime:
            for prompt, priority in (("a", 0), ("b", 0), ("c", 0), ("d", 5), ("e", 1)):
                await runtime.start("desk", prompt, priority=priority)
            await gate.began("a", "b")
            assert await runtime.store.counts(["desk"]) == (2, 3, 0, 0)
            assert len(runtime._drives) == 2
            for ends, begins in (("a", "d"), ("b", "e"), ("d", "c")):
                gate.open(ends)
                await gate.began(begins)
            gate.open("c", "e")
            await so(lambda: ended(runtime, 5))
            assert gate.most == 2
            assert [line for line in gate.log if line[0] == "+"] == ["+a", "+b", "+d", "+e", "+c"]

    go(main())


@shared
def test_a_run_that_one_worker_has_no_room_for_is_another_ones(place):
    async def main():
        gate = Gate()
        async with place.runtime(gated(gate), max_runs=1) as full, place.runtime(gated(gate), max_runs=1) as other:
            await full.start("desk", "a")
            await full.start("desk", "b")
            await gate.began("a", "b")
            assert [len(one._drives) for one in (full, other)] == [1, 1]
            gate.open("a", "b")
            await so(lambda: ended(full, 2))

    go(main())


async def ended(runtime: Runtime, many: int, tenant: str = "default") -> bool:
    return len(await runtime.runs(status="completed", tenant=tenant)) == many


def test_a_page_of_runs_that_cannot_be_driven_keeps_no_other_waiting(tmp_path):
    place = Place("sqlite", tmp_path)

    async def main():
        async with place.runtime(agent([say("done")] * 3, fine)) as runtime:
            for i in range(SWEEP_ROWS):
                runtime._put_off[f"run-{i}"] = (asyncio.get_running_loop().time() + 60, 60.0)
                new = r.new_run(f"run-{i}", f"talk-{i}", agent="desk", owner=None, priority=9)
                await runtime.store.create(new)
            async with place.runtime() as reader:
                run = await reader.start("desk", "go")
                await arrives(run, "completed")

    go(main())


@law("7.6")
def test_a_run_whose_starter_went_away_is_driven_though_nobody_waits_for_it(tmp_path):
    async def main():
        async with Place("sqlite", tmp_path).open(agent([say("done")], fine)) as runtime:
            other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            starting = asyncio.create_task(runtime.start("desk", "go"))
            await until(lambda: runtime.store._writer._handed)  # its run waits for the file
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            other.execute("COMMIT")
            other.close()
            await so(lambda: ended(runtime, 1))

    go(main())


# ------------------------------------------------------------------------------------------------- quotas


@both
def test_a_tenant_has_so_many_runs_at_once_and_keeps_no_other_tenant_waiting(place):
    quotas = {"big": Quota(running=2), "small": Quota(running=1)}

    async def main():
        gate = Gate()
        async with place.open(gated(gate), quotas=quotas.get) as runtime:
            for i in range(SWEEP_ROWS + 5):
                await runtime.start("desk", f"big-{i}", caller=Caller("big"), priority=9)
            await runtime.start("desk", "small", caller=Caller("small"))
            await runtime.start("desk", "none", caller=Caller("none"))
            await gate.began("small", "none")
            assert sum(name.startswith("+big") for name in gate.log) == 2
            await until(lambda: len(gate.running) == 4)
            first = next(iter(name for name in gate.running if name.startswith("big")))
            gate.open(first)
            await until(lambda: sum(name.startswith("+big") for name in gate.log) == 3)
            gate.open("small", "none", *(f"big-{i}" for i in range(SWEEP_ROWS + 5)))
            await so(lambda: ended(runtime, 1, "small"))
            assert gate.most == 4

    go(main())


def test_one_look_goes_past_a_page_of_runs_whose_tenant_has_no_room(tmp_path):
    place = Place("sqlite", tmp_path)

    async def main():
        gate = Gate()
        async with place.runtime(gated(gate), quotas=lambda _: Quota(running=1)) as runtime:
            runtime._sweeper.cancel()
            for i in range(SWEEP_ROWS + 5):
                new = r.new_run(f"big-{i}", f"big-{i}", tenant="big", agent="desk", owner=None, priority=9)
                await runtime.store.create(new)
            await runtime.store.create(r.new_run("small", "small", tenant="small", agent="desk", owner=None))
            await runtime.sweep.look()
            assert set(runtime._drives) == {"big-0", "small"}

    go(main())


@shared
def test_a_quota_holds_over_all_workers(place):
    def quota(tenant: str) -> Quota:
        return Quota(running=3)

    async def main():
        gate = Gate()
        async with contextlib.AsyncExitStack() as stack:
            workers = [
                await stack.enter_async_context(place.runtime(gated(gate), quotas=quota, host=f"host-{i}"))
                for i in range(3)
            ]
            await asyncio.gather(*(workers[i % 3].start("desk", f"{i}") for i in range(12)))
            await until(lambda: len(gate.running) == 3)
            gate.open(*(f"{i}" for i in range(12)))
            await so(lambda: ended(workers[0], 12))
            assert gate.most == 3
            await content(workers[0])

    go(main())


@both
def test_a_run_waits_for_its_tenants_quota_and_so_does_whoever_waits_for_the_run(place):
    def quota(tenant: str) -> Quota:
        return Quota(starts=1, seconds=0.8)

    async def main():
        async with place.open(agent([say("done")] * 3, fine), quotas=quota) as runtime:
            runs = [await runtime.start("desk", "go") for _ in range(2)]
            await asyncio.gather(*(run.wait() for run in runs))
            assert [run.answer for run in runs] == ["done", "done"]
            rows = [await runtime.store.run("default", run.id) for run in runs]
            assert [row.epoch for row in rows] == [1, 1]

    go(main())


@both
def test_a_cancel_needs_no_room(place):
    async def main():
        async with place.open(agent([say("done")], fine), quotas=lambda _: Quota(running=0)) as runtime:
            run = await runtime.start("desk", "go")
            with pytest.raises(TimeoutError):
                await run.wait(0.05)
            assert (await run.refresh()).status == "running"
            await run.cancel("enough")
            await arrives(run, "cancelled")

    go(main())


# ------------------------------------------------------------------------------------------------ erasing


@both
@law("11.erased")
def test_a_worker_erases_runs_that_ended_long_ago_and_each_once(place):
    async def main():
        async with place.runtime(agent([[call("fine", id="f")], say("done")] * 30, fine)) as runtime:
            runs = [await (await runtime.start("desk", "secret")).wait() for _ in range(12)]
            await runtime.store.beat(runtime.owner, agents=["nobody here"])
            open_run = await runtime.start("nobody here", "secret")
        async with place.runtime(agent([say("done")]), retain=timedelta()) as runtime:
            await so(lambda: erased(runtime, 12))
            assert await runtime.store.to_erase(["desk"], runtime.effects.now() + 1, 9) == []
            found = await runtime.verify()
            assert not found.problems
            assert found.erased
            rows = [row async for row in runtime.store.rows() if row.run_id == open_run.id]
            assert [row.erased_at for row in rows] == [None] * len(rows)
            assert {row.run_id for row in await runtime.runs(status="completed")} == {run.id for run in runs}
        async with place.runtime(agent([say("done")]), retain=timedelta(hours=1)) as runtime:
            run = await (await runtime.start("desk", "kept")).wait()
            await runtime.sweep._erase()
            assert (await runtime.get(run.id)).answer == "done"

    go(main())


@both
def test_a_run_that_cannot_be_erased_yet_keeps_no_others_waiting(place, monkeypatch):
    monkeypatch.setattr("counterfoil.sweep.ERASE_ROWS", 1)

    async def main():
        async with place.runtime(agent([say("done")]), retain=timedelta()) as runtime:
            run = await (await runtime.start("desk", "of a manager")).wait()
            its = {"tenant": "default", "new_interaction": False, "parent": run.id}
            await runtime.store.create(r.new_run("below", run.interaction_id, **its))
            other = await (await runtime.start("desk", "secret")).wait()
            for _ in range(2):
                runtime.sweep._erase_at = 0.0
                await runtime.sweep._erase()
            rows = [row async for row in runtime.store.rows()]
            assert {row.run_id for row in rows if row.erased_at is not None} == {other.id}

    go(main())


async def erased(runtime: Runtime, many: int) -> bool:
    rows = [row async for row in runtime.store.rows()]
    return len({row.run_id for row in rows if row.erased_at is not None}) == many


@pytest.mark.parametrize("wrong", [{"max_runs": 0}, {"retain": timedelta(seconds=-1)}])
def test_numbers_that_make_no_sense_are_refused(wrong):
    with pytest.raises(DefinitionError, match=next(iter(wrong))):
        Runtime(**wrong)


# --------------------------------------------------------------------------------------- a store that is away


def test_a_sweep_whose_store_is_away_says_so_once_in_a_while_and_goes_on_when_it_is_back(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("counterfoil.sweep.SWEEP_SECONDS", 0.0)
    place = Place("sqlite", tmp_path)

    async def main():
        async with place.runtime(agent([say("done")])) as runtime:
            looks = counting(runtime.store, "open_runs", monkeypatch)
            with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as other:
                other.execute("ALTER TABLE runs RENAME TO gone")
                there = len(looks)
                await until(lambda: len(looks) > there + 3)
                other.execute("ALTER TABLE gone RENAME TO runs")
            await arrives(await runtime.start("desk", "go"), "completed")

    go(main())
    assert [r.getMessage() for r in caplog.records if r.name == "counterfoil"] == [
        "the sweep for runs to take up failed; it tries again"
    ]


def counting(store, method, monkeypatch) -> list[None]:
    """A list that grows with each call of a method of a store."""
    calls: list[None] = []
    asked = getattr(store, method)

    def ask(*arguments):
        calls.append(None)
        return asked(*arguments)

    monkeypatch.setattr(store, method, ask)
    return calls
