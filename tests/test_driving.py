"""Driving when something goes wrong around a run: nobody waits for ever, and nothing is tried without end."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import pytest

from counterfoil import tool
from counterfoil.core.errors import StoreError
from counterfoil.owners import this_process
from counterfoil.testing import call, say
from tests.helpers import Gate, Place, agent, arrives, both, counted, fine, go, shared, until
from tests.marks import law

ONE_CALL = [[call("fine", id="f")], say("done")]


@contextlib.contextmanager
def refusing(runtime):
    """Its store refuses every write, as on a full disk."""
    db = runtime.store._writer._db
    db.execute("PRAGMA query_only = ON")
    try:
        yield
    finally:
        db.execute("PRAGMA query_only = OFF")


@law("7.6", "7.8")
def test_a_run_whose_starter_went_away_is_driven_all_the_same(tmp_path):
    async def main():
        async with Place("sqlite", tmp_path).open(agent(ONE_CALL, fine)) as runtime:
            other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            starting = asyncio.create_task(runtime.start("desk", "go"))
            await until(lambda: runtime.store._writer._handed)  # its run waits for the file, in the writer's thread
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            other.execute("COMMIT")
            other.close()
            while not (rows := await runtime.runs()):
                await asyncio.sleep(0.001)
            run = await arrives(await runtime.get(rows[0].run_id), "completed")
            assert run.answer == "done"

    go(main())


@law("2.3", "7.6")
def test_what_a_body_did_while_the_store_was_away_is_put_on_record_when_it_is_back(tmp_path, caplog):
    async def main():
        gate = Gate()
        script = [[call("pay", at="x", id="x"), call("pay", at="y", id="y")], say("done")]
        async with Place("sqlite", tmp_path).open(agent(script, gate.tool("pay"))) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("x", "y")
            with refusing(runtime):
                gate.open("x", "y")
                await until(lambda: f"run {run.id} cannot be written to" in caplog.text)
                assert run.results == []  # what is not on record is not shown
            assert (await run.wait()).answer == "done"
            assert [r.attempt for r in run.results] == [1, 1]

    go(main())


@pytest.mark.parametrize("what", ["turn", "result", "ended"])
@shared
@law("2.1", "7.6")
def test_what_was_written_although_the_connection_was_lost_is_there_once(place, what):
    class Lossy:
        """A store whose answer to the first commit of this kind gets lost."""

        def __init__(self, store):
            self._store, self.lost = store, 0

        def __getattr__(self, name):
            if name == "commit_now":
                raise AttributeError(name)
            return getattr(self._store, name)

        async def commit(self, lease, entries, **more):
            tip = await self._store.commit(lease, entries, **more)
            if any(e.kind == what for e in entries) and not self.lost:
                self.lost = tip
                raise StoreError("the connection was lost")
            return tip

    async def main():
        async with place.open(agent(ONE_CALL, fine)) as runtime:
            runtime.store = store = Lossy(runtime.store)
            run = await runtime.start("desk", "go")
            assert (await run.wait()).answer == "done"
            assert [r.attempt for r in run.results] == [1]
            entries = await store.entries("default", run.interaction_id)
            assert [e.kind for e in entries] == ["run", "message", "turn", "start", "result", "turn", "ended"]
            assert store.lost

    go(main())


@law("7.6", "2.3")
def test_a_run_whose_store_failed_for_too_long_is_taken_up_again_by_the_same_process(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("counterfoil.writing.PATIENCE_SECONDS", 0.0)

    async def main():
        gate = Gate()
        script = [[call("look", at="x", id="x")], say("done")]
        async with Place("sqlite", tmp_path).open(agent(script, gate.tool("look", read_only=True))) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("x")
            with refusing(runtime):
                gate.open("x")
                with pytest.raises(StoreError, match="read-only"):
                    await run.wait()
                await until(lambda: "could not be released" in caplog.text)
                assert run.results == []
            run = await arrives(run, "completed")
            assert [r.attempt for r in run.results] == [2]

    go(main())


@law("7.6")
def test_a_run_that_cannot_be_read_keeps_no_other_waiting_and_is_not_tried_at_every_look(tmp_path, caplog):
    place = Place("sqlite", tmp_path)

    async def prepare():
        async with place.runtime() as runtime:
            for _ in range(2):
                await runtime.start("desk", "go")

    async def main():
        async with place.runtime(agent(ONE_CALL, fine)) as runtime:
            whole, damaged = await runtime.runs()
            await arrives(await runtime.get(whole.run_id), "completed")
            await until(lambda: "could not be taken up" in caplog.text)
            epoch = (await runtime.store.run("default", damaged.run_id)).epoch
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < began + 0.5:
                await (await runtime.start("desk", "go")).wait()  # each write makes the sweep look again
                await asyncio.sleep(0.01)
            assert (await runtime.store.run("default", damaged.run_id)).epoch <= epoch + 1

    go(prepare())
    db = sqlite3.connect(tmp_path / "runs.db")
    db.execute("UPDATE entries SET body = x'00' WHERE run = 1")
    db.commit()
    db.close()
    go(main())


@both
@law("2.7", "7.7")
def test_a_driver_that_lost_its_run_keeps_neither_lock_nor_place(place):
    async def main():
        gate = Gate()

        @tool(lock="till")
        async def hold() -> str:
            """Hold the till."""
            return "held"

        one = agent([[call("work", at="a", id="a"), call("hold", id="h")], say("done")], gate.tool(), hold, name="one")
        two = agent([[call("hold", id="h")], say("done")], hold, name="two")
        async with place.runtime(one, two, concurrency=1) as runtime:
            run = await runtime.start("one", "go")
            await gate.began("a")
            await until(lambda: runtime.slots._waiting)  # `hold` has its lock, and waits for a place
            row = await runtime.store.run("default", run.id)
            assert await runtime.store.claim(row, this_process("somebody else"))
            gate.open("a")
            await until(lambda: run.id not in runtime._drives)
            assert (await (await runtime.start("two", "go")).wait()).answer == "done"

    go(main())


@both
@law("7.6")
def test_a_runtime_that_closes_right_after_a_start_gives_the_run_back_and_can_be_opened_again(place):
    async def main():
        look, _ = counted("look", read_only=True)
        runtime = place.runtime(agent([[call("look", id="l")], say("done")], look))
        await runtime.open()
        run = await runtime.start("desk", "go")  # its driver has not had a turn of the loop yet
        await runtime.close()
        async with place.runtime() as other:
            row = await other.store.run("default", run.id)
            assert (row.status, row.owner, row.runnable) == ("running", None, True)
        async with runtime:
            assert (await (await runtime.get(run.id)).wait()).answer == "done"

    go(main())


@law("7.6")
def test_a_runtime_that_closes_while_a_run_is_started_gives_the_run_back(tmp_path):
    async def main():
        place = Place("sqlite", tmp_path)
        runtime = place.runtime(agent(ONE_CALL, fine))
        await runtime.open()
        other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        starting = [asyncio.create_task(runtime.start("desk", "go")) for _ in range(3)]
        await until(lambda: runtime.store._writer._handed)
        starting[0].cancel()
        closing = asyncio.create_task(runtime.close())
        await asyncio.sleep(0)
        other.execute("COMMIT")
        other.close()
        await closing
        await asyncio.gather(*starting, return_exceptions=True)
        async with place.runtime() as reader:
            rows = await reader.runs()
            assert [row.owner for row in rows] == [None] * 3

    go(main())
