"""The SQLite store passes the store suite; what only it does: files, processes, crashes, migrations."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from counterfoil.adapters.stores.sqlite import SqliteStore, open_store, worker
from counterfoil.adapters.stores.sqlite.database import SQL, migrations
from counterfoil.adapters.stores.sqlite.known import WritingConnection
from counterfoil.core.call_entries import MemoEntry
from counterfoil.core.errors import DecisionConflict, DefinitionError, Fenced, StoreError, UsageError
from counterfoil.store import StatusChange
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import claimed, intact, kinds
from counterfoil.testing.store_suite import StoreSuite
from tests.marks import case, law

ROOT = Path(__file__).parent.parent


@law("7.5", "7.2", "8.NUL", "11.entries", "11.chain", "11.erased", "1.2.key", "5.one-root-run")
@law("10.every-record", "10.does-not-exist", "1.3.transaction", "6.kept-apart", "2.3")
@case("R013", "R023", "R080", "R187")
class TestSqliteStore(StoreSuite):
    @pytest.fixture(params=[3600.0, -1.0], ids=["a quick disk", "a slow disk"])
    def make_store(self, tmp_path, request, monkeypatch):
        monkeypatch.setattr(worker, "QUICK_SECONDS", request.param)
        monkeypatch.setattr(worker, "SLOW_SECONDS", 3600.0)
        return lambda: SqliteStore(str(tmp_path / "record.db"))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "record.db")


def using(path, body, **settings):
    """Run `body` with an open store on the file."""

    async def run():
        store = SqliteStore(path, **settings)
        await store.open()
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(run())


# ------------------------------------------------------------------------------------ several processes


@law("7.5", "7.7")
def test_a_call_has_one_result_whichever_of_two_stores_writes_it(path):
    async def body(one):
        two = SqliteStore(path)
        await two.open()
        try:
            lease = await claimed(one)
            await one.commit(lease, [r.turn(calls=2), r.start()])
            await two.commit(lease, [r.result(index=1, attempt=0)])
            for store in (one, two):
                with pytest.raises(Fenced):
                    await store.commit(lease, [r.result(index=1, attempt=0)])
            await one.commit(lease, [r.result()])
            with pytest.raises(Fenced):
                await two.commit(lease, [r.result()])
            await intact(one)
        finally:
            await two.close()

    using(path, body)


def test_after_others_wrote_the_writer_looks_through_their_entries_alone(path, monkeypatch):
    looked_through = []
    execute = WritingConnection.execute

    def spied(self, sql, *values):
        if sql == SQL["calls_since"]:
            before, last, _ = values[0]
            looked_through.append(last - before)
        return execute(self, sql, *values)

    monkeypatch.setattr(WritingConnection, "execute", spied)

    async def body(one):
        two = SqliteStore(path)
        await two.open()
        try:
            lease = await alone(one)
            for step in range(3, 6):
                await two.post("acme", "run-1", r.queued())
                await one.commit(lease, [r.turn(step=step), r.start(step=step)])
                await one.commit(lease, [r.result(step=step)])
            assert looked_through == [1, 1, 1]
        finally:
            await two.close()

    using(path, body)


# ------------------------------------------------------------------------------------------- in one statement


@pytest.fixture
def at_once(monkeypatch):
    """What each append in one statement gave; the disk counts as quick."""
    gave = []
    append = WritingConnection.append_at_once

    def spied(self, values, rows):
        gave.append(append(self, values, rows))
        return gave[-1]

    monkeypatch.setattr(WritingConnection, "append_at_once", spied)
    monkeypatch.setattr(worker, "QUICK_SECONDS", 3600.0)
    return gave


async def alone(store):
    """A run whose driver has been the only one to write for some time: its commits are statements by themselves."""
    lease = await claimed(store)
    for step in range(3):
        await store.commit(lease, [r.turn(step=step), r.start(step=step)])
        await store.commit(lease, [r.result(step=step)])
    return lease


@law("7.6", "2.3", "11.chain")
def test_a_driver_that_is_alone_commits_in_one_statement(path, at_once):
    async def body(store):
        lease = await alone(store)
        assert len(at_once) >= 3
        assert all(at_once)
        before = len(at_once)
        many = [r.turn(step=3, calls=4), *(r.start(step=3, index=i) for i in range(4))]
        assert await store.commit(lease, many) == 16
        memo = {"step": 3, "index": 0, "call_id": "call-3-0", "tool_name": "get_order", "name": "n", "value": 1}
        assert len(at_once) == before
        await store.commit(lease, [MemoEntry(run_id="run-1", at=r.NOON, **memo)])
        await store.commit(lease, [r.turn(step=4), r.waiting(step=4)])
        await store.commit(lease, [r.result(step=3)])
        assert len(at_once) == before
        assert [a.call_id for a in await store.approvals("acme")] == ["call-4-0"]
        await intact(store)

    using(path, body)


@law("7.5", "7.7")
@pytest.mark.parametrize("again", ["start", "result", "another run's"])
def test_what_a_law_forbids_is_refused_there_too(path, at_once, again):
    async def body(store):
        lease = await alone(store)
        refused = {
            "start": [r.start(step=2)],
            "result": [r.result(step=2)],
            "another run's": [r.turn(run_id="run-2", step=3)],
        }[again]
        before = len(await store.entries("acme", "talk-1"))
        with pytest.raises(UsageError if again == "another run's" else Fenced):
            await store.commit(lease, refused)
        await store.commit(lease, [r.turn(step=3), r.start(step=3)])
        assert len(await store.entries("acme", "talk-1")) == before + 2
        await intact(store)

    using(path, body)


@law("7.6", "11.chain")
@pytest.mark.parametrize("what", ["claimed", "released", "written"])
def test_what_another_process_did_is_seen_there_too(path, at_once, what):
    async def body(one):
        two = SqliteStore(path)
        await two.open()
        try:
            lease = await alone(one)
            if what == "claimed":
                assert await two.claim(await two.run("acme", "run-1"), r.OTHER_WORKER)
            elif what == "released":
                await two.release(lease)
            else:
                await two.post("acme", "run-1", r.cancel())
            before = len(await two.entries("acme", "talk-1"))
            if what == "written":
                assert await one.commit(lease, [r.turn(step=3), r.start(step=3)]) == before + 2
            else:
                with pytest.raises(Fenced):
                    await one.commit(lease, [r.turn(step=3), r.start(step=3)])
                assert len(await two.entries("acme", "talk-1")) == before
            assert at_once[-1] is False
            await intact(two)
        finally:
            await two.close()

    using(path, body)


@law("11.chain")
def test_a_statement_that_wrote_nothing_moves_nothing(path, monkeypatch):
    monkeypatch.setattr(WritingConnection, "append_at_once", lambda *_: False)
    monkeypatch.setattr(worker, "QUICK_SECONDS", 3600.0)

    async def body(store):
        lease = await alone(store)
        assert await store.commit(lease, [r.turn(step=3), r.start(step=3)]) == 13
        await intact(store)

    using(path, body)


def test_a_file_that_is_held_is_waited_for_there_too(path, at_once):
    async def body(store):
        lease = await alone(store)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        write = asyncio.ensure_future(store.commit(lease, [r.turn(step=3)]))
        await asyncio.sleep(0.1)
        assert not write.done()
        other.execute("COMMIT")
        other.close()
        assert await write == 12
        await intact(store)

    using(path, body)


def test_two_tasks_that_write_share_their_commits(path, at_once):
    async def body(store):
        leases = [await claimed(store, run_id=f"run-{i}", interaction_id=f"talk-{i}") for i in (1, 2)]

        async def drive(lease):
            for step in range(9):
                await store.commit(lease, [r.turn(run_id=lease.run_id, step=step, calls=0, text="so")])

        await asyncio.gather(*map(drive, leases))
        assert at_once == []
        await intact(store)

    using(path, body)


def test_an_entry_that_cannot_be_read_leaves_the_reader_at_what_is_on_record_now(path):
    async def body(store):
        await claimed(store)
        other = sqlite3.connect(path)
        other.execute("UPDATE entries SET body = x'00' WHERE row = 1")
        other.commit()
        with pytest.raises(ValueError) as kept:  # noqa: PT011  # whatever it is; it is kept, as a log keeps one
            await store.entries("acme", "talk-1")
        other.execute("UPDATE runs SET priority = 7")
        other.commit()
        other.close()
        assert (await store.run("acme", "run-1")).priority == 7
        assert kept.value.__traceback__

    using(path, body)


@law("7.2")
def test_of_decisions_by_several_stores_at_once_one_wins(path):
    async def body(one):
        stores = [one, SqliteStore(path), SqliteStore(path)]
        for store in stores[1:]:
            await store.open()
        lease = await claimed(one)
        await one.commit(lease, [r.turn(), r.waiting()])
        writes = [
            store.decide("acme", "run-1", "call-0-0", r.decision("approve" if i % 2 else "reject"))
            for i in range(16)
            for store in stores
        ]
        ends = await asyncio.gather(*writes, return_exceptions=True)
        for store in stores[1:]:
            await store.close()
        assert sum(isinstance(end, tuple) and end[1] for end in ends) == 1
        assert sum(isinstance(end, DecisionConflict) for end in ends) == 24
        assert (await kinds(one)).count("decided") == 1

    using(path, body)


def test_a_file_that_another_process_locks_blocks_neither_the_loop_nor_readers(path):
    async def body(store):
        lease = await claimed(store)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        write = asyncio.ensure_future(store.commit(lease, [r.turn()]))
        for _ in range(100):
            assert await kinds(store) == ["run", "message"]
        assert not write.done()
        other.execute("COMMIT")
        other.close()
        assert await write == 3

    using(path, body)


# ---------------------------------------------------------------------------------------- transactions


def test_a_write_that_fails_takes_nobody_of_its_group_with_it(path):
    async def body(store):
        good, bad = await claimed(store), await claimed(store, "run-2", "talk-2")
        cycle = []
        cycle.append(cycle)
        memo = MemoEntry(run_id="run-2", at=1, step=0, index=0, call_id="c", tool_name="t", name="m", value=cycle)
        writes = [store.commit(good, [r.turn(step=i)]) for i in range(5)]
        writes += [store.commit(bad, [r.turn("run-2"), memo])]
        writes += [store.commit(good, [r.turn(step=i)]) for i in range(5, 10)]
        ends = await asyncio.gather(*writes, return_exceptions=True)
        assert [end for end in ends if isinstance(end, int)] == list(range(3, 13))
        assert isinstance(ends[5], (ValueError, RecursionError))
        assert await kinds(store, "talk-2") == ["run", "message"]
        await intact(store)

    using(path, body)


def test_a_waiter_that_is_cancelled_disturbs_nobody(path):
    async def body(store):
        lease = await claimed(store)
        writes = [asyncio.ensure_future(store.commit(lease, [r.turn(step=i)])) for i in range(10)]
        await asyncio.sleep(0)
        writes[3].cancel()
        ends = await asyncio.gather(*writes, return_exceptions=True)
        assert sum(isinstance(end, int) for end in ends) == 9
        await intact(store)

    using(path, body)


def test_a_worker_that_was_silent_for_an_hour_is_forgotten(path):
    async def body(store):
        for owner in (r.WORKER, r.OTHER_WORKER):
            await store.beat(owner)
        db = sqlite3.connect(path)
        db.execute("UPDATE workers SET beat_at = beat_at - 3590000000")
        db.commit()
        await store.beat(r.OTHER_WORKER)
        assert len(await store.workers()) == 2
        db.execute("UPDATE workers SET beat_at = beat_at - 3601000000")
        db.commit()
        db.close()
        await store.beat(r.OTHER_WORKER)
        assert [(w.owner, w.steady) for w in await store.workers()] == [(r.OTHER_WORKER, 0.0)]

    using(path, body)


def test_a_clock_that_is_set_back_makes_nobody_look_silent(path):
    async def body(store):
        for owner in (r.WORKER, r.OTHER_WORKER):
            await store.beat(owner)
        db = sqlite3.connect(path)
        db.execute("UPDATE workers SET beat_at = beat_at + 3600000000, since = since + 3600000000")
        db.commit()
        db.close()
        assert await store.lives(r.OTHER_WORKER, r.WORKER)
        await store.beat(r.WORKER)
        assert [w.steady for w in await store.workers() if w.owner == r.WORKER] == [0.0]

    using(path, body)


# --------------------------------------------------------------------------------------------- the file


def test_erased_bytes_are_not_in_the_file(path):
    async def body(store):
        lease = await claimed(store, text="the gossip message")
        hidden = "the gossip kept apart"
        await store.commit(
            lease,
            [r.turn(text="the gossip turn")],
            kept=[r.kept_text(hidden * 9000)],
            reports=[r.report(model_text=hidden)],
        )
        await store.commit(lease, [r.ended()], change=StatusChange("completed", "answer"))
        assert on_disk(path, b"the gossip")
        await store.erase("acme", "run-1", r.NOON)
        assert not on_disk(path, b"the gossip")

    using(path, body)


def on_disk(path, text):
    return any(text in file.read_bytes() for file in Path(path).parent.glob(Path(path).name + "*"))


@law("6.growth")
def test_a_range_reads_only_its_pieces(path):
    async def body(store):
        lease = await claimed(store)
        await store.commit(lease, [], kept=[r.kept_text("漢字" * 500_000)])

        def pieces(db):
            where = {"kept": 1, "first": 700_000, "end": 700_100}
            return sum(len(piece) for _, piece in db.execute(SQL["pieces"], where))

        assert await store._read.submit(pieces) <= 2 * 64 * 1024
        assert (await store.kept("acme", "kept-1", 700_000, 4)).text == "漢字漢字"

    using(path, body)


def test_migrations_are_numbered_from_one_and_applied_once(path):
    numbers = [number for number, _ in migrations()]
    assert numbers == list(range(1, len(numbers) + 1))
    scripts = files("counterfoil.adapters.stores.sqlite") / "sql"
    assert sum(script.name[:1].isdigit() for script in scripts.iterdir()) == len(numbers)
    using(path, claimed)
    before = schema(path)
    using(path, intact)
    assert schema(path) == before
    assert before[0] == numbers[-1]


def schema(path):
    db = sqlite3.connect(path)
    found = (
        db.execute("PRAGMA user_version").fetchone()[0],
        db.execute("SELECT * FROM sqlite_master").fetchall(),
    )
    db.close()
    return found


def test_an_empty_file_becomes_a_record(path):
    Path(path).touch()
    using(path, claimed)


def test_a_newer_schema_is_refused_and_left_alone(path):
    using(path, claimed)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 999")
    db.close()
    with pytest.raises(StoreError, match=r"999.*newer counterfoil"):
        using(path, intact)
    assert schema(path)[0] == 999


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE theirs (x)", "PRAGMA user_version = 1", "PRAGMA application_id = 7"]
)
def test_a_database_of_another_program_is_refused_and_left_alone(path, statement):
    db = sqlite3.connect(path)
    db.execute(statement)
    db.close()
    before = Path(path).read_bytes()
    with pytest.raises(StoreError, match="another program"):
        using(path, intact)
    assert Path(path).read_bytes() == before


def test_what_cannot_be_opened_says_what_to_do(tmp_path):
    with pytest.raises(StoreError, match=r"no folder .*create it"):
        using(str(tmp_path / "none" / "record.db"), intact)
    with pytest.raises(StoreError, match="cannot be opened"):
        using(str(tmp_path), intact)
    (tmp_path / "text.db").write_text("This is no database. " * 100)
    with pytest.raises(StoreError, match="no SQLite database; give another path"):
        using(str(tmp_path / "text.db"), intact)


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_file_that_is_not_at_its_place_any_more_takes_nothing_that_would_be_lost(tmp_path, how):
    async def main():
        path, other = tmp_path / "runs.db", tmp_path / "other.db"
        for name in (other, path):
            store = SqliteStore(str(name))
            await store.open()
            if name is other:
                await store.close()
        await store.create(r.new_run())
        await store.beat(r.WORKER)
        match how:
            case "deleted":
                path.unlink()
            case "moved":
                path.rename(tmp_path / "elsewhere.db")
            case "replaced":
                other.rename(path)
        told = r"runs\.db was moved, deleted or replaced .* put the file back"
        with pytest.raises(StoreError, match=told):
            await store.beat(r.WORKER)
        for work in (store.create(r.new_run("run-2", "talk-2")), store.run("acme", "run-1"), store.version()):
            with pytest.raises(StoreError, match=told):
                await work
        await store.close()

    asyncio.run(main())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_says_so(path):
    using(path, claimed)
    Path(path).chmod(0o444)
    with pytest.raises(StoreError, match="read-only"):
        using(path, intact)


FULL_DISK = """
import asyncio, resource, signal, sys
from counterfoil.adapters.stores.sqlite import SqliteStore
from counterfoil.core.errors import StoreError
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import claimed, intact

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    lease = await claimed(store)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    writes = [store.commit(lease, [r.turn(step=0)]), store.commit(lease, [], kept=[r.kept_text("x" * 2**22)])]
    writes.append(store.commit(lease, [r.turn(step=1)]))
    ends = await asyncio.gather(*writes, return_exceptions=True)
    print(*(type(e).__name__ for e in ends))
    await intact(store)
    await store.close()

asyncio.run(main())
"""


def test_a_full_disk_fails_the_large_write_and_keeps_the_rest(path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["int", "StoreError", "int"], "")


# ---------------------------------------------------------------------------------------------- the url


@pytest.mark.parametrize(
    ("url", "path", "synchronous"),
    [
        ("sqlite:///shop.db", "shop.db", "FULL"),
        ("sqlite:////var/lib/shop.db", "/var/lib/shop.db", "FULL"),
        ("sqlite:///a/b%3Fc.db?synchronous=NORMAL", "a/b?c.db", "NORMAL"),
        ("sqlite:///shop.db?synchronous=extra", "shop.db", "EXTRA"),
    ],
)
def test_a_url_names_a_file(url, path, synchronous):
    store = open_store(url)
    assert (store.path, store.synchronous) == (path, synchronous)


def test_a_setting_may_stand_beside_the_url():
    assert open_store("sqlite:///shop.db", synchronous="NORMAL").synchronous == "NORMAL"


@pytest.mark.parametrize(
    "url",
    ["sqlite:shop.db", "sqlite://shop.db", "sqlite:///", "sqlite://", "sqlite:///a.db#x", "file:///shop.db"],
)
def test_a_wrong_url_says_the_right_form(url):
    with pytest.raises(DefinitionError, match=r"sqlite:///relative/path.db or sqlite:////absolute"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("sqlite:///:memory:", {}),
        ("sqlite:///a.db?synchronous=OFF", {}),
        ("sqlite:///a.db?cache=9", {}),
        ("sqlite:///a.db", {"timeout": 3}),
        ("sqlite:///a%00b.db", {}),
    ],
)
def test_a_wrong_setting_is_refused(url, settings):
    with pytest.raises(DefinitionError):
        open_store(url, **settings)


@pytest.mark.parametrize(("setting", "value"), [("FULL", 2), ("NORMAL", 1), ("EXTRA", 3)])
def test_the_disk_is_met_as_the_setting_says(path, setting, value):
    async def body(store):
        return await store._write.submit(lambda db: db.execute("PRAGMA synchronous").fetchone()[0])

    assert using(path, body, synchronous=setting) == value
    assert using(path, body) == 2
