"""DBOS drives: the laws of the port of engines through the real one, and its workers killed (contract 7)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from dbos import DBOS, DBOSConfig

from counterfoil import Caller, Limits, Runtime, tool
from counterfoil.adapters.dispatch.dbos import Engine, engine
from counterfoil.adapters.dispatch.dbos.desk import VERSION
from counterfoil.adapters.dispatch.dbos.place import open_place
from counterfoil.core.errors import StoreError, UsageError
from counterfoil.owners import owner_text, this_host
from counterfoil.store import Owner
from counterfoil.testing import call, say
from tests.dbos_child import agent as hanger
from tests.helpers import Gate, agent, arrives, content, counted, pending, until
from tests.marks import case, law

ROOT = Path(__file__).parent.parent
ONE_CALL = [[call("count", n=1, id="c")], say("done")]
NOBODY = Owner(this_host(), 2**22 + 1, 1, "gone")


def go(main):
    """Run a test's coroutine; one that hangs fails. Its processes take their time on a busy machine."""
    asyncio.run(asyncio.wait_for(main, 60))


class Desk:
    """A record and a DBOS beside it."""

    def __init__(self, url, dispatch, folder):
        self.url, self.dispatch, self.effects = url, dispatch, folder / "effects"
        self.file = url.removeprefix("sqlite:///")
        self.effects.touch()

    def runtime(self, *agents, **options):
        return Runtime(self.url, agents=agents, dispatch=self.dispatch, **options)

    @contextlib.asynccontextmanager
    async def open(self, *agents, **options):
        async with self.runtime(*agents, **options) as runtime:
            yield runtime
            await content(runtime)

    @contextlib.contextmanager
    def child(self, task, *point):
        """Another process; it is there when this begins, and dead after it."""
        command = [sys.executable, "-m", "tests.dbos_child", self.url, self.dispatch, str(self.effects), task, *point]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
            try:
                line = process.stdout.readline()
                assert line == "ready\n" or point, line
                yield process
            finally:
                process.kill()

    def happened(self):
        return self.effects.read_text(encoding="utf-8").splitlines()

    def end(self):
        with self.effects.open("a", encoding="utf-8") as f:
            f.write("end\n")


@pytest.fixture(scope="session")
def shared_dbos(postgres):
    """A database of DBOS's own, which costs a second to make."""
    return f"dbos:{postgres.fresh()}"


@pytest.fixture(params=["sqlite", "postgres"])
def desk(request, tmp_path):
    if request.param == "sqlite":
        return Desk(f"sqlite:///{tmp_path}/runs.db", "dbos", tmp_path)
    fresh = request.getfixturevalue("postgres").fresh()
    return Desk(fresh, request.getfixturevalue("shared_dbos"), tmp_path)


@pytest.fixture
def sqlite_desk(tmp_path):
    return Desk(f"sqlite:///{tmp_path}/runs.db", "dbos", tmp_path)


async def rows(runtime, **which):
    """What DBOS keeps."""
    of = runtime.dispatch
    return await of._call(of._desk._client.list_workflows, **which)


async def ended(runtime, run, count=1):
    """How the segments of a run have ended in DBOS, once there are so many."""
    while True:
        found = await rows(runtime, workflow_id_prefix=run.id)
        if len(found) >= count and all(w.status == "SUCCESS" for w in found):
            return [w.output for w in found]
        await asyncio.sleep(0.01)


@law("7.6")
def test_a_run_is_driven_by_one_workflow_which_is_deleted_in_the_end(desk, monkeypatch):
    monkeypatch.setattr(engine, "CLEAN_SECONDS", 0.3)
    tool, seen = counted()

    async def main():
        async with desk.open(agent(ONE_CALL, tool)) as runtime:
            run = await runtime.start("desk", "go")
            assert (await run.wait()).answer == "done"
            assert await ended(runtime, run) == ["completed"]
            while await rows(runtime):
                await asyncio.sleep(0.01)
            assert len(seen) == 1

    go(main())


@law("7.5", "7.6")
def test_what_is_told_twice_or_too_late_is_driven_once(desk, monkeypatch):
    monkeypatch.setattr(engine, "AGAIN_SECONDS", (0.0, 0.0))

    async def main():
        gate = Gate()
        async with desk.open(agent([[call("work", at="a", id="a")], say("done")], gate.tool())) as runtime:
            runtime.dispatch._stop_looking()
            run = await runtime.start("desk", "go")
            row = await runtime.store.run("default", run.id)
            await asyncio.gather(*(runtime.dispatch.enqueue(row) for _ in range(5)))
            assert [w.status for w in await rows(runtime, workflow_id_prefix=run.id)] == ["ENQUEUED"]
        async with desk.open(agent([[call("work", at="a", id="a")], say("done")], gate.tool())) as runtime:
            await gate.began("a")
            await runtime.dispatch.enqueue(row)
            assert [w.status for w in await rows(runtime, workflow_id_prefix=run.id)] == ["PENDING"]
            gate.open("a")
            assert await ended(runtime, run) == ["completed"]
            await runtime.dispatch.enqueue(row)
            assert sorted(await ended(runtime, run, 2)) == ["completed", "stale"]
            assert gate.log == ["+a", "-a"]

    go(main())


def test_what_was_told_lately_is_not_told_again_by_every_look_of_the_sweep(sqlite_desk):
    async def main():
        async with sqlite_desk.open(agent(ONE_CALL, counted()[0])) as runtime:
            runtime.dispatch._stop_looking()
            run = await runtime.start("desk", "go")
            told = runtime.dispatch._told
            await until(lambda: run.id in told)
            before = told[run.id]
            row = await runtime.store.run("default", run.id)
            for _ in range(3):
                await runtime.dispatch.enqueue(row)
            assert told[run.id] == before

    go(main())


@law("7.9")
def test_a_segment_that_was_refused_comes_again(sqlite_desk, monkeypatch):
    monkeypatch.setattr(engine, "AGAIN_SECONDS", (0.05, 0.1))
    tool, _ = counted()

    async def main():
        async with sqlite_desk.open(agent(ONE_CALL, tool)) as runtime:
            clerk = runtime.agents.pop("desk")
            run = await runtime.start("desk", "go")
            assert await ended(runtime, run) == ["refused"]
            runtime.agents["desk"] = clerk
            await arrives(run, "completed")

    go(main())


def test_a_segment_that_was_refused_is_not_told_again_at_once(sqlite_desk, monkeypatch):
    monkeypatch.setattr(engine, "AGAIN_SECONDS", (60.0, 60.0))

    async def main():
        async with sqlite_desk.open(agent(ONE_CALL, counted()[0])) as runtime:
            runtime.agents.clear()
            run = await runtime.start("desk", "go")
            assert await ended(runtime, run) == ["refused"]
            await runtime.dispatch.enqueue(await runtime.store.run("default", run.id))
            assert await ended(runtime, run) == ["refused"]

    go(main())


def test_a_body_is_no_part_of_a_workflow(sqlite_desk):
    @tool
    async def look() -> str:
        """Look."""
        return f"{DBOS.workflow_id} {threading.current_thread() is threading.main_thread()}"

    async def main():
        async with sqlite_desk.open(agent([[call("look", id="l")], say("done")], look)) as runtime:
            run = await arrives(await runtime.start("desk", "go"), "completed")
            assert run.results[0].result.model_output == "None True"

    go(main())


@law("7.9")
def test_a_worker_takes_nothing_for_an_agent_that_it_has_not_and_nothing_of_another_pool(desk):
    async def main():
        async with desk.open(agent(ONE_CALL, counted()[0])) as runtime:
            await runtime.store.beat(NOBODY, agents=["other"])
            other = await runtime.start("other", "go")
            elsewhere = await runtime.start("desk", "go", pool="night")
            run = await runtime.start("desk", "go")
            await arrives(run, "completed")
            for left in (other, elsewhere):
                assert [w.status for w in await rows(runtime, workflow_id_prefix=left.id)] == ["ENQUEUED"]
            await elsewhere.cancel()
            assert await rows(runtime, workflow_id_prefix=elsewhere.id) == []

    go(main())


@law("7.1", "7.2", "7.9")
def test_a_process_without_agents_starts_and_decides_and_a_worker_drives(desk):
    tool, seen = counted(needs_approval=True)

    async def main():
        async with desk.open(agent(ONE_CALL, tool)) as worker, desk.open() as clerk:
            run = await clerk.start("desk", "go", caller=Caller(user="ada"))
            await arrives(run, "paused")
            assert await ended(worker, run) == ["paused"]
            assert seen == []
            await run.approve("c", by="grace")
            await arrives(run, "completed")
            assert seen[0]["caller"].user == "ada"
            assert sorted(await ended(worker, run, 2)) == ["completed", "paused"]

    go(main())


@law("7.9")
def test_a_worker_takes_as_many_segments_at_once_as_it_may_drive(sqlite_desk):
    async def main():
        gate = Gate()
        clerk = agent([[call("work", at="a", id="a")], say("done")], gate.tool())
        async with sqlite_desk.open(clerk, max_runs=2) as runtime:
            runs = [await runtime.start("desk", "go") for _ in range(5)]
            await until(lambda: len(gate.log) >= 2)
            held = []
            while sorted(held) != ["ENQUEUED"] * 3 + ["PENDING"] * 2:  # DBOS may count one too few for a moment
                held = [w.status for run in runs for w in await rows(runtime, workflow_id_prefix=run.id)]
                assert gate.log == ["+a", "+a"]
                await asyncio.sleep(0.01)
            gate.open("a")
            for run in runs:
                await arrives(run, "completed")

    go(main())


def test_what_was_started_before_the_first_worker_came_is_driven_by_it(sqlite_desk, caplog):
    async def main():
        async with sqlite_desk.open() as clerk:
            run = await clerk.start("desk", "go")
            await until(lambda: not clerk._kicks)
            assert caplog.messages == []
            async with sqlite_desk.open(agent(ONE_CALL, counted()[0])):
                await arrives(run, "completed")

    go(main())


def test_an_agent_that_comes_later_is_driven_by_the_process_that_has_it(sqlite_desk):
    async def main():
        async with sqlite_desk.open(agent(ONE_CALL, counted()[0])) as runtime:
            late = await runtime.start(agent(ONE_CALL, counted()[0], name="late"), "go")
            await arrives(late, "completed")
            assert await rows(runtime, workflow_id_prefix=late.id) == []

    go(main())


def test_a_limited_run_that_goes_on_is_given_out_again(sqlite_desk):
    async def main():
        async with sqlite_desk.open(agent(ONE_CALL, counted()[0])) as runtime:
            run = await runtime.start("desk", "go", limits=Limits(steps=1))
            await arrives(run, "limited")
            await runtime.resume(run.id, limits=Limits(steps=5))
            await arrives(run, "completed")
            assert sorted(await ended(runtime, run, 2)) == ["completed", "limited"]

    go(main())


SECRETS = ("sesame-prompt", "sesame-input", "sesame-result", "sesame-answer", "sesame-error")


def everything(desk):
    """All that lies in DBOS's database, as text."""
    db, schema = open_place(desk.url, desk.dispatch.partition(":")[2] or None)
    try:
        with db.connect() as connection:
            tables = sa.inspect(connection).get_table_names(schema)
            assert "workflow_input" in tables
            of = sa.MetaData(schema=schema)
            found = [connection.execute(sa.select(sa.Table(name, of, autoload_with=db))) for name in tables]
            return "\n".join(str(row) for result in found for row in result)
    finally:
        db.dispose()


@tool
async def secret(said: str) -> str:
    """Fail, or tell."""
    if said == SECRETS[4]:
        raise ValueError(said)
    return SECRETS[2]


@law("10")
def test_dbos_keeps_ids_alone(desk):
    script = [[call("secret", said=SECRETS[1])], [call("secret", said=SECRETS[4])], say(SECRETS[3])]

    def careless(caller):
        raise ValueError(SECRETS[4])

    async def main():
        async with desk.open(agent(script, secret)) as runtime:
            run = await arrives(await runtime.start("desk", SECRETS[0]), "completed")
            await ended(runtime, run)
            runtime.deps = careless
            assert (await runtime.start("desk", SECRETS[0])).id
            text = everything(desk)
            assert run.id in text
            assert [word for word in SECRETS if word in text] == []

    go(main())


@case("R002")
@law("7.6", "7.6.replay")
def test_a_worker_is_killed_in_a_body_and_another_goes_on(desk):
    async def main():
        with desk.child("work") as worker:
            async with desk.open() as clerk:
                run = await clerk.start("hanger", "go")
                await until(desk.happened)
                (held,) = await rows(clerk, workflow_id_prefix=run.id)
                worker.kill()
                worker.wait()
                async with desk.open(hanger(desk.effects)) as other:
                    await until(lambda: len(desk.happened()) > 1)
                    assert await rows(other, executor_id=held.executor_id) == []
                    desk.end()
                    await arrives(run, "completed")
                    assert desk.happened() == ["hang 1", "hang 2", "end"]
                    assert await ended(other, run) == ["completed"]

    go(main())


@law("7.6")
def test_a_kill_between_the_commit_and_the_telling_is_repaired_by_a_sweep(desk):
    desk.end()

    async def main():
        async with desk.open(hanger(desk.effects)) as worker:
            with desk.child("start", "store:after:create") as starter:
                starter.wait()
                assert starter.returncode == -signal.SIGKILL
            (row,) = await worker.runs()
            await arrives(await worker.get(row.run_id), "completed")

    go(main())


@law("7.6")
def test_a_worker_that_died_with_a_segment_that_it_had_not_begun_blocks_nothing(desk):
    desk.end()

    async def main():
        async with desk.open() as clerk:
            with desk.child("work", "dequeued") as worker:
                run = await clerk.start("hanger", "go")
                worker.wait()
            (held,) = await rows(clerk, workflow_id_prefix=run.id)
            assert (held.status, (await clerk.store.run("default", run.id)).epoch) == ("PENDING", 0)
            async with desk.open(hanger(desk.effects)) as other:
                await arrives(run, "completed")
                assert await ended(other, run) == ["completed"]

    go(main())


@law("7.6", "7.7")
def test_a_zombies_segment_is_refused(desk):
    tool, seen = counted(needs_approval=True)

    async def main():
        async with desk.open(agent(ONE_CALL, tool)) as runtime:
            run = await arrives(await runtime.start("desk", "go"), "paused")
            await ended(runtime, run)
            of = runtime.dispatch
            (old,) = await rows(runtime, workflow_id_prefix=run.id)
            again = await of._call(of._desk._client.fork_workflow, old.workflow_id, 1, application_version=VERSION)
            while (await rows(runtime, workflow_ids=[again.get_workflow_id()]))[0].output != "stale":
                await asyncio.sleep(0.01)
            assert (await runtime.store.run("default", run.id)).epoch == 1
            assert await pending(run) == ["c"]
            assert seen == []

    go(main())


def test_what_a_dead_worker_had_is_deleted_when_it_is_handed_over(sqlite_desk):
    async def main():
        async with sqlite_desk.open(agent(ONE_CALL, counted()[0])) as runtime:
            of = runtime.dispatch
            with sqlite3.connect(f"{sqlite_desk.file}.dbos") as db:
                await runtime.store.beat(NOBODY, agents=["other"])
                await runtime.start("other", "go")
                await until(lambda: db.execute("SELECT count(*) FROM workflow_status").fetchone() == (1,))
                db.execute("UPDATE workflow_status SET status = 'PENDING', executor_id = ?", [owner_text(NOBODY)])
            db.close()
            for _ in range(2):
                await of.hand_over(NOBODY)
            assert await rows(runtime) == []

    go(main())


@law("7.6")
def test_a_run_that_cannot_be_driven_ends_its_workflow_and_is_not_tried_without_end(sqlite_desk, monkeypatch, caplog):
    monkeypatch.setattr("counterfoil.driving.PUT_OFF_SECONDS", (60.0, 60.0))

    async def main():
        async with sqlite_desk.open() as clerk:
            run = await clerk.start("desk", "go")
        with contextlib.closing(sqlite3.connect(sqlite_desk.file)) as db, db:
            db.execute("UPDATE entries SET body = x'00'")
        async with sqlite_desk.runtime(agent(ONE_CALL, counted()[0])) as runtime:
            while (row := await runtime.store.run("default", run.id)).epoch == 0:
                await asyncio.sleep(0.01)
            assert "failed" in await ended(runtime, run)
            for _ in range(3):  # each write makes the sweep look again
                await arrives(await runtime.start("desk", "go"), "completed")
            assert (await runtime.store.run("default", run.id)).epoch == row.epoch == 1
            assert await runtime.drive("default", run.id, 1) == "refused"
            assert caplog.text.count(f"run {run.id} could not be driven") == 1

    go(main())


@law("2.3", "7.6")
def test_a_process_that_drains_takes_nothing_more_and_another_goes_on(desk):
    async def main():
        gate = Gate()
        script = [[call("work", at="a", id="a")], [call("work", at="b", id="b")], say("done")]
        async with desk.open() as clerk:
            async with desk.runtime(agent(script, gate.tool())) as first:
                run = await clerk.start("desk", "go")
                await gate.began("a")
                assert not await first.drain(0.01)
                await until(lambda: not any(t.name.startswith("queue-worker-") for t in threading.enumerate()))
                late = await clerk.start("desk", "later")
                gate.open("a", "b")
                assert await first.drain()
                row = await first.store.run("default", run.id)
                assert (row.status, row.owner, row.runnable, gate.log) == ("running", None, True, ["+a", "-a"])
                assert [w.status for w in await rows(clerk, workflow_id_prefix=late.id)] == ["ENQUEUED"]
            async with desk.open(agent(script, gate.tool())):
                for left in (run, late):
                    await arrives(left, "completed")
            assert gate.log.count("+a") == 2  # once for each run

    go(main())


@law("7.6")
def test_closing_gives_up_what_it_drives_and_leaves_nothing_in_dbos(desk, caplog):
    async def main():
        gate = Gate()
        script = [[call("work", at="a", id="a")], say("done")]
        async with desk.open() as clerk:
            async with desk.runtime(agent(script, gate.tool(idempotent=True))) as first:
                run = await clerk.start("desk", "go")
                await gate.began("a")
                await first.dispatch.close()
                assert (first.dispatch._calls, first.driving(run.id)) == (set(), True)
            row = await clerk.store.run("default", run.id)
            assert (row.status, row.owner, row.runnable) == ("running", None, True)
            assert await rows(clerk, workflow_id_prefix=run.id) == []
            gate.open("a")
            async with desk.open(agent(script, gate.tool(idempotent=True))):
                await arrives(run, "completed")

    go(main())
    assert caplog.messages == []


def test_dbos_is_one_for_a_process(sqlite_desk):
    async def main():
        async with sqlite_desk.open(agent(ONE_CALL, counted()[0])), sqlite_desk.open() as beside:
            with pytest.raises(UsageError, match="DBOS is one for a process; give that Runtime all agents, or close"):
                await sqlite_desk.runtime(agent(name="second")).open()
            run = await beside.start("desk", "go")
            await arrives(run, "completed")
        async with sqlite_desk.open(agent(ONE_CALL, counted()[0])) as runtime:
            await arrives(await runtime.start("desk", "go"), "completed")

    go(main())


def test_a_program_with_a_dbos_of_its_own_is_refused_and_keeps_it(sqlite_desk, tmp_path):
    DBOS(config=DBOSConfig(name="theirs", system_database_url=f"sqlite:///{tmp_path}/theirs.db"))
    try:

        async def main():
            with pytest.raises(UsageError, match="this program has a DBOS of its own"):
                await sqlite_desk.runtime(agent(ONE_CALL, counted()[0])).open()

        go(main())
        assert DBOS.executor_id == "local"
    finally:
        DBOS.destroy()
        logging.getLogger("dbos").handlers.clear()


@law("7.6")
def test_an_event_loop_that_ended_before_its_runtime_was_closed_takes_nothing_more(sqlite_desk):
    left = []

    async def forgetful():
        runtime = sqlite_desk.runtime(agent(ONE_CALL, counted()[0]))
        await runtime.open()
        left.append(runtime)

    async def main():
        async with sqlite_desk.open() as clerk:
            run = await clerk.start("desk", "go")
            assert await ended(clerk, run) == ["given up"]
            await until(lambda: Engine.driving is None)
            async with sqlite_desk.open(agent(ONE_CALL, counted()[0])):
                await arrives(run, "completed")

    go(forgetful())
    go(main())


def test_dbos_says_nothing_on_the_console(sqlite_desk, capfd):
    async def main():
        async with sqlite_desk.open(agent(ONE_CALL, counted()[0])) as runtime:
            await arrives(await runtime.start("desk", "go"), "completed")

    go(main())
    assert capfd.readouterr() == ("", "")
    assert "__dbos_console_log_handler__" not in {handler.name for handler in logging.getLogger("dbos").handlers}


def test_a_record_in_memory_is_refused():
    async def main():
        with pytest.raises(UsageError, match="DBOS needs a database that processes share, and the record memory:// is"):
            await Runtime(agents=[agent()], dispatch="dbos").open()

    go(main())


def test_a_database_that_cannot_be_opened_leaves_nothing_open(sqlite_desk, tmp_path):
    async def main():
        with pytest.raises(StoreError, match="DBOS could not open its database"):
            await Runtime(sqlite_desk.url, agents=[agent()], dispatch=f"dbos:sqlite:///{tmp_path}/no/dbos.db").open()
        async with sqlite_desk.open(agent(ONE_CALL, counted()[0])) as runtime:
            await arrives(await runtime.start("desk", "go"), "completed")

    go(main())


def test_beside_a_record_in_a_file_lies_a_file(tmp_path):
    db, schema = open_place(f"sqlite:///{tmp_path}/a%3Fb.db?synchronous=NORMAL", None)
    with db.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    db.dispose()
    assert schema is None
    assert (tmp_path / "a?b.db.dbos").exists()


@pytest.mark.parametrize(
    ("record", "given", "asked", "schema"),
    [
        ("postgresql://me:p%40ss@a:1,b:2/runs?pool=3&sslmode=disable", None,
         {"user": "me", "password": "p@ss", "host": "a,b", "port": "1,2", "dbname": "runs", "sslmode": "disable"},
         "counterfoil_dbos"),
        ("postgres:///runs?host=/run/a%20b&schema=mine", None, {"host": "/run/a b", "dbname": "runs"}, "mine_dbos"),
        ("sqlite:///runs.db", "postgresql://it@c/dbos", {"user": "it", "host": "c", "dbname": "dbos"},
         "counterfoil_dbos"),
    ],
)  # fmt: skip  # rows by what belongs together
def test_a_server_is_asked_for_what_the_url_says(monkeypatch, record, given, asked, schema):
    class Asked(Exception):
        pass

    def connect(**settings):
        raise Asked(settings)

    monkeypatch.setattr(psycopg, "connect", connect)
    db, found = open_place(record, given)
    with pytest.raises(Asked) as settings:
        db.connect()
    assert asked.items() <= settings.value.args[0].items()
    assert not {"pool", "schema"} & set(settings.value.args[0])
    assert found == schema


@pytest.mark.parametrize("schema", ["x" * 59, "Mine", "a;b"])
def test_a_schema_that_cannot_be_is_refused(schema):
    with pytest.raises(UsageError, match="DBOS's schema would be"):
        open_place(f"postgresql:///runs?schema={schema}", None)


def test_dbos_lies_in_a_schema_of_its_own_beside_a_record_in_a_server(postgres, tmp_path):
    url = postgres.fresh()
    schema = url.rpartition("schema=")[2]

    async def main():
        async with Desk(url, "dbos", tmp_path).open(agent(ONE_CALL, counted()[0])) as runtime:
            await arrives(await runtime.start("desk", "go"), "completed")
        with psycopg.connect(postgres.url) as db:
            found = db.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'workflow_status'").fetchall()
            assert (f"{schema}_dbos",) in found

    go(main())
