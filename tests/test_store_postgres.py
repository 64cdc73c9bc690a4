"""The PostgreSQL store passes the store suite; what only it does: a server, pools, processes, migrations."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from counterfoil.adapters.stores.postgres import PostgresStore, database, open_store
from counterfoil.adapters.stores.postgres.database import SQL, migrations
from counterfoil.core.call_entries import MemoEntry
from counterfoil.core.errors import (
    Conflict,
    DecisionConflict,
    DefinitionError,
    Fenced,
    NotFound,
    StoreError,
    UsageError,
)
from counterfoil.doors.wiring import Setting, settings, store_setting
from counterfoil.store import Owner, StatusChange, Wanted
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import claimed, intact, kinds
from counterfoil.testing.store_suite import StoreSuite
from tests.marks import case, law

ROOT = Path(__file__).parent.parent
COMMAND = Path(sys.executable).with_name("counterfoil")


@law("7.5", "7.2", "8.NUL", "11.entries", "11.chain", "11.erased", "1.2.key", "5.one-root-run")
@law("10.every-record", "10.does-not-exist", "1.3.transaction", "6.kept-apart", "2.3")
@case("R013", "R023", "R080", "R187")
class TestPostgresStore(StoreSuite):
    @pytest.fixture
    def make_store(self, postgres):
        url = postgres.fresh()
        return lambda: open_store(url)


@pytest.fixture
def url(postgres):
    return postgres.fresh()


def using(url, body, **settings):
    """Run `body` with an open store."""

    async def run():
        store = open_store(url, **settings)
        await store.open()
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(run())


# ------------------------------------------------------------------------------------ several processes


def test_stores_that_write_to_one_interaction_at_once_lose_nothing(url):
    async def body(one):
        two = open_store(url)
        await two.open()
        lease = await claimed(one)
        child_lease = await claimed(two, "child", new_interaction=False, parent="run-1")
        writes = [one.commit(lease, [r.turn(step=i)]) for i in range(30)]
        writes += [two.commit(child_lease, [r.turn("child", step=i)]) for i in range(30)]
        writes += [two.post("acme", "run-1", r.queued("run-1", str(i))) for i in range(30)]
        await asyncio.gather(*writes)
        await two.close()
        assert [e.entry for e in await one.entries("acme", "talk-1")] == list(range(1, 95))
        await intact(one)

    using(url, body)


@law("7.2")
def test_of_fifty_decisions_by_several_stores_at_once_one_wins(url):
    async def body(one):
        stores = [one, *(open_store(url, pool=4) for _ in range(4))]
        for store in stores[1:]:
            await store.open()
        lease = await claimed(one)
        await one.commit(lease, [r.turn(), r.waiting()])
        writes = [
            stores[i % 5].decide("acme", "run-1", "call-0-0", r.decision("approve" if i % 2 else "reject"))
            for i in range(50)
        ]
        ends = await asyncio.gather(*writes, return_exceptions=True)
        for store in stores[1:]:
            await store.close()
        assert sum(isinstance(end, tuple) and end[1] for end in ends) == 1
        assert sum(isinstance(end, tuple) for end in ends) == 25
        assert sum(isinstance(end, DecisionConflict) for end in ends) == 25
        assert (await kinds(one)).count("decided") == 1

    using(url, body)


DECIDING = """
import asyncio, sys
from counterfoil.adapters.stores.postgres import open_store
from counterfoil.core.errors import DecisionConflict
from counterfoil.testing import records as r

async def main(url, choice):
    store = open_store(url)
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    for step in range(20):
        try:
            _, first = await store.decide("acme", "run-1", f"call-{step}-0", r.decision(choice))
            print(step, "first" if first else "equal")
        except DecisionConflict:
            print(step, "conflict")
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


@law("7.2")
def test_two_processes_decide_and_each_call_has_one_decision(url):
    async def ask(store):
        lease = await claimed(store)
        await store.commit(lease, [e for step in range(20) for e in (r.turn(step=step), r.waiting(step=step))])

    using(url, ask)
    people = [
        subprocess.Popen(
            [sys.executable, "-c", DECIDING, url, choice],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for choice in ("approve", "reject")
    ]  # fmt: skip
    assert [p.stdout.readline() for p in people] == ["ready\n"] * 2
    for p in people:
        p.stdin.write("go\n")
        p.stdin.flush()
    said = [p.communicate()[0].splitlines() for p in people]
    for step, ends in enumerate(zip(*said, strict=True)):
        assert sorted(ends) == [f"{step} conflict", f"{step} first"]

    async def check(store):
        assert (await kinds(store)).count("decided") == 20
        await intact(store)

    using(url, check)


def test_runs_of_one_interaction_do_not_wait_for_one_another_for_ever(url):
    async def body(one):
        stores = [one, open_store(url), open_store(url)]
        for store in stores[1:]:
            await store.open()
        leases = [await claimed(one)]
        leases += [await claimed(one, f"child-{i}", new_interaction=False, parent="run-1") for i in range(5)]
        for lease in leases:
            await one.commit(lease, [r.turn(lease.run_id), r.waiting(lease.run_id)])
        work = []
        for i in range(60):
            lease, store = leases[i % 6], stores[i % 3]
            work += [
                store.commit(lease, [r.turn(lease.run_id, step=i + 1), r.start(lease.run_id, i + 1)]),
                store.decide("acme", lease.run_id, "call-0-0", r.decision()),
                store.post("acme", lease.run_id, r.queued(lease.run_id)),
                store.release(lease.__class__("acme", lease.run_id, "talk-1", 99)),
            ]
        ends = await asyncio.gather(*work, return_exceptions=True)
        assert [end for end in ends if isinstance(end, Exception)] == []
        for store in stores[1:]:
            await store.close()
        await intact(one)

    using(url, body)


# ---------------------------------------------------------------------------------------- hostile content


@law("8.NUL")
def test_every_text_comes_back_whatever_it_holds(url):
    hostile = "a\x00b\x1b0\x1be\x1b\x1b\x00\x00é漢👩\uffff'\"\\%s$1"

    async def body(store):
        lease = await claimed(
            store, "run" + hostile, "talk" + hostile, tenant="t" + hostile, agent="a" + hostile,
            key="k" + hostile, key_digest="d", pool="p" + hostile, owner=Owner("h" + hostile, 1, 2, "o" + hostile),
        )  # fmt: skip  # all that is a text
        row = await store.run(lease.tenant, lease.run_id)
        assert (row.run_id, row.interaction_id, row.tenant, row.agent, row.key, row.pool, row.owner) == (
            "run" + hostile, "talk" + hostile, "t" + hostile, "a" + hostile, "k" + hostile, "p" + hostile,
            Owner("h" + hostile, 1, 2, "o" + hostile),
        )  # fmt: skip  # as above
        assert await store.counts(["a" + hostile], "p" + hostile) == (1, 0, 0, 0)
        dead, free = (
            Owner("h" + hostile, 1, 2, "o" + hostile),
            r.new_run("free", "free", agent="a" + hostile, owner=None),
        )
        await store.create(replace(free, tenant="t" + hostile, pool="p" + hostile))
        await store.beat(dead, 0.0)
        wanted = Wanted(r.WORKER, r.NOON, ["a" + hostile], "p" + hostile)
        assert [x.run_id for x in await store.open_runs(wanted)] == [lease.run_id, "free"]
        assert await store.open_runs(replace(wanted, without=["t" + hostile])) == []
        assert await store.lock("t", "l" * 10_000 + hostile, r.WORKER)
        assert not await store.lock("t", "l" * 10_000 + hostile, r.OTHER_WORKER)
        for other in ("run" + hostile.replace("\x00", "\x1b0"), "run" + hostile.replace("\x1b", "\x00")):
            with pytest.raises(NotFound):
                await store.run(lease.tenant, other)
        await store.commit(lease, [r.turn(lease.run_id), r.result(lease.run_id, attempt=0, text=hostile)])
        await store.commit(lease, [], kept=[r.kept_text(hostile * 30_000, "k" + hostile)])
        assert (await store.entries(lease.tenant, lease.interaction_id))[-1].result.model_output == hostile
        assert (await store.kept(lease.tenant, "k" + hostile)).text == hostile * 30_000
        await intact(store)

    using(url, body)


def test_ten_megabytes_and_numbers_at_the_edge_are_kept(url):
    async def body(store):
        lease = await claimed(store, created_at=2**63 - 1, priority=-(2**63), not_before=2**62)
        await store.commit(lease, [r.turn(), r.start(), r.result(text="漢\x00" * 2_500_000)])
        assert len((await store.entries("acme", "talk-1"))[-1].result.model_output) == 5_000_000
        row = await store.run("acme", "run-1")
        assert (row.created_at, row.priority, row.not_before) == (2**63 - 1, -(2**63), 2**62)
        with pytest.raises(UsageError, match="64 bits"):
            await store.create(r.new_run("run-2", "talk-2", priority=2**63))
        incompressible = "".join(chr(0x4E00 + i * 7919 % 20_000) for i in range(20_000))
        await claimed(store, "run-2", "talk-2", tenant=incompressible, agent=incompressible, key=incompressible)
        assert (await store.runs(incompressible))[0].key == incompressible
        assert await store.lock(incompressible, incompressible, r.WORKER)
        await intact(store)

    using(url, body)


# ---------------------------------------------------------------------------------------- transactions


def test_a_write_that_fails_takes_nobody_of_its_group_with_it(url):
    async def body(store):
        good = [await claimed(store, f"run-{i}", f"talk-{i}") for i in range(10)]
        bad = await claimed(store, "bad", "talk-bad")
        good += [await claimed(store, f"run-{i}", f"talk-{i}") for i in range(10, 20)]
        cycle = []
        cycle.append(cycle)
        memo = MemoEntry(run_id="bad", at=1, step=0, index=0, call_id="c", tool_name="t", name="m", value=cycle)
        too_large = r.start("bad", step=2**63)
        for entry, error in ((memo, (ValueError, RecursionError)), (too_large, UsageError)):
            writes = [store.commit(lease, [r.turn(lease.run_id)]) for lease in good]
            writes.insert(9, store.commit(bad, [r.turn("bad"), entry]))
            ends = await asyncio.gather(*writes, return_exceptions=True)
            assert sum(isinstance(end, int) for end in ends) == 20
            assert isinstance(ends[9], error)
        assert await kinds(store, "talk-bad") == ["run", "message"]
        for lease in good:
            assert await kinds(store, lease.interaction_id) == ["run", "message", "turn", "turn"]
        await intact(store)

    using(url, body)


def test_a_waiter_that_is_cancelled_disturbs_nobody(url):
    async def body(store):
        lease = await claimed(store)
        writes = [asyncio.ensure_future(store.commit(lease, [r.turn(step=i)])) for i in range(10)]
        await asyncio.sleep(0)
        writes[3].cancel()
        ends = await asyncio.gather(*writes, return_exceptions=True)
        assert sum(isinstance(end, int) for end in ends) == 9
        assert (await kinds(store)).count("turn") == 10
        reads = [asyncio.ensure_future(store.run("acme", "run-1")) for _ in range(20)]
        await asyncio.sleep(0)
        for read in reads[:19]:
            read.cancel()
        assert (await reads[19]).run_id == "run-1"
        await intact(store)

    using(url, body)


def test_a_commit_that_nobody_waits_for_any_more_is_on_record(url):
    async def body(one):
        two = open_store(url)
        await two.open()
        lease = await claimed(one)

        async def leave(step):
            write = asyncio.ensure_future(one.commit(lease, [r.turn(step=step)]))
            await asyncio.sleep(0)
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write

        await leave(0)
        assert await one.commit(lease, [r.turn(step=1)]) == 4
        # What this store knows is old, so its statement writes nothing, and nobody is there to see it.
        await two.post("acme", "run-1", r.queued("run-1"))
        await leave(2)
        assert await one.commit(lease, [r.turn(step=3)]) == 7
        assert (await kinds(one))[2:] == ["turn", "turn", "queued", "turn", "turn"]
        await two.close()
        await intact(one)

    using(url, body)


def test_an_end_is_one_statement_with_its_entries_and_frees_the_interaction(url):
    async def body(store):
        lease = await claimed(store)
        await store.commit(lease, [r.turn(calls=0, text="Bye"), r.ended()], change=StatusChange("completed", "answer"))
        row = await store.run("acme", "run-1")
        assert (row.status, row.ended_by, row.owner, row.runnable) == ("completed", "answer", None, False)
        with pytest.raises(Fenced):
            await store.commit(lease, [r.turn()])
        await claimed(store, "run-2", new_interaction=False)
        assert await kinds(store) == ["run", "message", "turn", "ended", "run", "message"]
        await intact(store)

    using(url, body)


def test_runs_that_write_at_once_share_transactions(url):
    async def body(store):
        leases = [await claimed(store, f"run-{i}", f"talk-{i}") for i in range(16)]
        counting = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"

        async def drive(lease):
            for step in range(20):
                await store.commit(lease, [r.turn(lease.run_id, step=step)])

        ((before,),) = sql(url, counting)
        await asyncio.gather(*map(drive, leases))
        ((after,),) = sql(url, counting)
        assert after - before <= 16 * 20 / 4
        await intact(store)

    using(url, body)


@pytest.mark.parametrize("pool", [1, 2])
def test_more_tasks_than_connections_take_turns(url, pool):
    async def body(store):
        leases = await asyncio.gather(*(claimed(store, f"run-{i}", f"talk-{i}") for i in range(50)))
        await asyncio.gather(*(store.commit(lease, [r.turn(lease.run_id)]) for lease in leases))
        await asyncio.gather(*(store.run("acme", f"run-{i}") for i in range(50)))
        both = [(store.commit(lease, [r.turn(lease.run_id, step=1)]), store.run("acme", "run-1")) for lease in leases]
        await asyncio.gather(*(work for pair in both for work in pair))
        await intact(store)

    using(url, body, pool=pool)


def test_a_worker_that_was_silent_for_an_hour_is_forgotten(url):
    async def body(store):
        async def later(seconds):
            async with store._pool.connection() as db:
                await db.execute("UPDATE workers SET beat_at = beat_at - $1 * INTERVAL '1 second'", (seconds,))

        for worker in (r.WORKER, r.OTHER_WORKER):
            await store.beat(worker)
        await later(3590)
        await store.beat(r.OTHER_WORKER)
        assert len(await store.workers()) == 2
        await later(3601)
        await store.beat(r.OTHER_WORKER)
        assert [(w.owner, w.steady) for w in await store.workers()] == [(r.OTHER_WORKER, 0.0)]

    using(url, body)


def test_a_version_that_was_seen_before_a_commit_is_not_the_one_after_it(url):
    async def body(store):
        lease = await claimed(store)
        seen = [await store.version()]
        async with store._pool.connection() as other:
            await other.execute("BEGIN")
            await other.execute(SQL["touch"], (1,))
            seen.append(await store.version())
            await other.execute("COMMIT")
        seen.append(await store.version())
        assert seen[2] not in seen[:2]
        await store.commit(lease, [r.turn()])

    using(url, body)


# --------------------------------------------------------------------------------------------- the server


@law("6.growth")
def test_a_range_reads_only_its_pieces(url):
    async def body(store):
        lease = await claimed(store)
        await store.commit(lease, [], kept=[r.kept_text("漢字" * 500_000)])
        async with store._pool.connection() as db:
            found = await (await db.execute(SQL["pieces"], (1, 700_000, 700_100))).fetchall()
        assert sum(len(piece) for _, piece in found) <= 2 * 64 * 1024
        assert (await store.kept("acme", "kept-1", 700_000, 4)).text == "漢字漢字"

    using(url, body)


def test_erased_content_is_in_no_row(url):
    async def body(store):
        lease = await claimed(store, text="the secret message")
        await store.commit(lease, [r.turn(text="the secret turn")], kept=[r.kept_text("the secret kept apart")])
        await store.commit(lease, [r.ended()], change=StatusChange("completed", "answer"))
        await store.erase("acme", "run-1", r.NOON)
        async with store._pool.connection() as db:
            for table in ("entries", "kept_pieces", "reports", "approvals"):
                rows = await (await db.execute(f"SELECT t::text FROM {table} t")).fetchall()  # noqa: S608  # names above
                assert not any(b"the secret".hex() in row or "the secret" in row for (row,) in rows)

    using(url, body)


def test_migrations_are_numbered_from_one_and_applied_once(url):
    numbers = [number for number, _ in migrations()]
    assert numbers == list(range(1, len(numbers) + 1))
    using(url, claimed)
    using(url, intact)
    assert sql(url, "SELECT version FROM counterfoil_schema") == [(numbers[-1],)]


def sql(url, statement):
    store = open_store(url)
    with psycopg.connect(store._conninfo, autocommit=True) as db:
        db.execute(f"SET search_path = {store.schema}")
        cursor = db.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_an_older_schema_is_left_alone_until_it_is_upgraded(url):
    using(url, claimed)
    newest = migrations()[-1][0]
    for column in ("participants", "created_at"):  # what the third migration brought
        sql(url, f"ALTER TABLE interactions DROP COLUMN {column}")
    sql(url, "DROP INDEX interactions_newest")
    sql(url, "ALTER TABLE interactions DROP COLUMN key_digest")  # and the fourth
    sql(url, "DROP TABLE agents, sent")
    sql(url, "UPDATE counterfoil_schema SET version = 2")
    with pytest.raises(StoreError, match=rf"schema 2, this program needs {newest}.*counterfoil db upgrade"):
        using(url, intact)
    assert sql(url, "SELECT version FROM counterfoil_schema") == [(2,)]
    assert asyncio.run(open_store(url).upgrade()) == (2, newest)
    assert asyncio.run(open_store(url).upgrade()) == (newest, newest)
    using(url, intact)


def test_an_upgrade_makes_the_tables_where_there_are_none(url):
    assert asyncio.run(open_store(url).upgrade()) == (0, migrations()[-1][0])
    using(url, claimed)
    using(url, intact)


def test_a_newer_schema_is_refused_and_left_alone(url):
    using(url, claimed)
    sql(url, "UPDATE counterfoil_schema SET version = 999")
    with pytest.raises(StoreError, match=r"999.*newer counterfoil"):
        using(url, intact)
    assert sql(url, "SELECT version FROM counterfoil_schema") == [(999,)]


def test_a_schema_of_another_program_is_refused_and_left_alone(url):
    name = open_store(url).schema
    sql(url, f"CREATE SCHEMA {name}; CREATE TABLE {name}.theirs (x int)")
    with pytest.raises(StoreError, match=r"another program.*schema="):
        using(url, intact)
    assert sql(url, f"SELECT tablename FROM pg_tables WHERE schemaname = '{name}'") == [("theirs",)]  # noqa: S608  # as above


def test_a_schema_that_is_there_and_empty_becomes_a_record(url):
    sql(url, f"CREATE SCHEMA {open_store(url).schema}")
    using(url, claimed)


def test_a_server_that_is_not_there_says_what_to_do():
    with pytest.raises(StoreError, match="check that the server runs, and that address") as refused:
        using("postgresql://me:geheim@127.0.0.1:1/db", intact)
    assert "geheim" not in str(refused.value)


def test_a_database_that_is_not_there_says_so(postgres):
    store = open_store(postgres.fresh())
    conninfo = psycopg.conninfo.make_conninfo(store._conninfo, dbname="nowhere")
    with pytest.raises(StoreError, match=r"nowhere.*does not exist.*database"):
        asyncio.run(PostgresStore(conninfo).open())


ENDING = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'"


def test_connections_that_the_server_ends_are_made_anew(url):
    async def body(store):
        lease = await claimed(store)
        sql(url, ENDING.format("to-be-ended"))
        while sql(url, "SELECT 1 FROM pg_stat_activity WHERE application_name = 'to-be-ended' AND state = 'idle'"):
            await asyncio.sleep(0)
        assert await store.commit(lease, [r.turn()]) == 3
        assert (await store.run("acme", "run-1")).run_id == "run-1"

    using(f"{url}&application_name=to-be-ended", body)


def test_a_connection_lost_in_mid_write_is_a_store_error_and_nothing_is_written(url):
    async def body(store):
        lease = await claimed(store)
        async with store._pool.connection() as other:
            await other.execute("BEGIN")
            await other.execute(SQL["touch"], (1,))
            write = asyncio.ensure_future(store.commit(lease, [r.turn()]))
            waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'lost' AND wait_event_type = 'Lock'"
            while not sql(url, waiting):
                await asyncio.sleep(0)
            sql(url, ENDING.format("lost") + " AND wait_event_type = 'Lock'")
            with pytest.raises(StoreError, match="try again"):
                await write
            await other.execute("ROLLBACK")
        assert await kinds(store) == ["run", "message"]
        assert await store.commit(lease, [r.turn()]) == 3
        await intact(store)

    using(f"{url}&application_name=lost", body)


def test_a_refusal_leaves_the_connection_what_it_has_prepared(url):
    async def body(store):
        lease = await claimed(store)
        await store.commit(lease, [r.turn(step=0)])
        for i in range(10):
            await claimed(store, f"other-{i}", f"elsewhere-{i}")
        with pytest.raises(Conflict):
            await claimed(store)
        for step in (1, 2):  # the first by a transaction of its own: what was known of the interaction is forgotten
            await store.commit(lease, [r.turn(step=step)])
        await intact(store)

    using(url, body, pool=1)


def test_a_statement_that_was_to_be_prepared_behind_a_failure_can_be_used_after_it(url, caplog):
    async def body(store):
        async def fails(db):
            await db.execute("SELECT 1 / 0")
            await db.execute(SQL["run_number"], (b"",))

        async def works(db):
            return await (await db.execute(SQL["run_number"], (b"",))).fetchone()

        for _ in range(10):
            with pytest.raises(StoreError, match="division by zero"):
                await store._pool.transact(fails)
            assert await store._pool.transact(works) is None

    using(url, body, pool=1)
    assert caplog.text == ""


def test_two_who_start_one_run_at_once_leave_no_warning_in_the_log(url, caplog):
    async def body(store):
        for i in range(10):
            both = [store.create(r.new_run(f"run-{i}-{n}", f"talk-{i}-{n}", key=f"key-{i}")) for n in range(2)]
            assert sorted(created for _, created in await asyncio.gather(*both)) == [False, True]

    using(url, body)
    assert caplog.text == ""


def test_a_row_that_another_session_holds_is_not_waited_for_for_ever(url, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 1)

    async def body(store):
        lease = await claimed(store)
        async with store._pool.connection() as other:
            await other.execute("BEGIN")
            await other.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            await other.execute(SQL["touch"], (1,))
            with pytest.raises(StoreError, match="pg_stat_activity, and end it"):
                await store.commit(lease, [r.turn()])
            await other.execute("ROLLBACK")
        assert await store.commit(lease, [r.turn()]) == 3

    using(url, body)


def test_a_row_that_another_session_holds_fails_its_own_commit_alone(url, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 1)

    async def body(store):
        leases = [await claimed(store, f"run-{i}", f"talk-{i}") for i in range(4)]
        async with store._pool.connection() as other:
            await other.execute("BEGIN")
            await other.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            await other.execute(SQL["touch"], (2,))
            writes = [store.commit(lease, [r.turn(lease.run_id)]) for lease in leases]
            ends = await asyncio.gather(*writes, return_exceptions=True)
            await other.execute("ROLLBACK")
        assert [ends[0], *ends[2:]] == [3, 3, 3]
        assert isinstance(ends[1], StoreError)
        await intact(store)

    using(url, body)


def test_a_user_who_may_not_make_schemas_is_told_so_and_may_use_one_that_is_given(url):
    store = open_store(url)
    role = f"role_{store.schema}"
    sql(url, f"CREATE ROLE {role} LOGIN")
    theirs = psycopg.conninfo.make_conninfo(store._conninfo, user=role)
    with pytest.raises(StoreError, match="grant it CREATE on the database"):
        asyncio.run(PostgresStore(theirs, schema=store.schema).open())
    sql(url, f"CREATE SCHEMA {store.schema} AUTHORIZATION {role}")

    async def body():
        given = PostgresStore(theirs, schema=store.schema)
        await given.open()
        await claimed(given)
        await intact(given)
        await given.close()

    asyncio.run(body())


# ---------------------------------------------------------------------------------------------- the url


@pytest.mark.parametrize(
    ("url", "pool", "schema", "conninfo"),
    [
        ("postgresql://me:pw@host:5433/shop", 8, "counterfoil", "postgresql://me:pw@host:5433/shop"),
        ("postgres://host/shop?pool=3", 3, "counterfoil", "postgres://host/shop"),
        ("postgresql:///shop?host=/run/pg&pool=2&schema=a_1", 2, "a_1", "postgresql:///shop?host=%2Frun%2Fpg"),
    ],
)
def test_a_url_names_a_database(url, pool, schema, conninfo):
    store = open_store(url)
    assert (store.pool, store.schema) == (pool, schema)
    assert psycopg.conninfo.conninfo_to_dict(store._conninfo) == psycopg.conninfo.conninfo_to_dict(conninfo)


def test_a_setting_may_stand_beside_the_url():
    store = open_store("postgresql:///shop", pool=5, schema="record")
    assert (store.pool, store.schema) == (5, "record")


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("postgresql:shop", {}),
        ("mysql://host/shop", {}),
        ("postgresql:///shop?pool=0", {}),
        ("postgresql:///shop?pool=many", {}),
        ("postgresql:///shop?schema=My-Schema", {}),
        ("postgresql:///shop?schema=pg_catalog", {}),
        ("postgresql:///shop?cache=9", {}),
        ("postgresql:///shop", {"timeout": 3}),
    ],
)
def test_a_wrong_url_or_setting_is_refused(url, settings):
    with pytest.raises(DefinitionError):
        open_store(url, **settings)


def test_the_command_shows_where_the_store_is_without_its_password():
    store = store_setting("postgresql://me:geheim@host/shop?pool=2")
    shown = settings(store, Setting("tenant", "acme", "--tenant"), "", {}, {})
    assert shown[0].value == "postgresql://me:***@host/shop?pool=2"


def test_the_command_reads_and_verifies_what_is_on_record(url):
    async def body(store):
        lease = await claimed(store, tenant="default")
        await store.commit(lease, [r.turn(calls=0, text="Bye"), r.ended()], change=StatusChange("completed", "answer"))

    using(url, body)
    for words in (["runs"], ["show", "run-1"], ["verify"]):
        done = subprocess.run(
            [str(COMMAND), *words, "--store", url],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip  # what is typed
        assert done.returncode == 0, done.stderr
