"""`verify` on real stores: content with what they write, and not with what somebody changes in a file."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from counterfoil.adapters.stores.memory import MemoryStore
from counterfoil.adapters.stores.postgres import open_store
from counterfoil.adapters.stores.sqlite import SqliteStore
from counterfoil.core.call_entries import DecidedEntry, ResultEntry
from counterfoil.core.codec import chain
from counterfoil.core.entries import (
    CancelEntry,
    EndedEntry,
    Entry,
    MessageEntry,
    PausedEntry,
    QueuedEntry,
    ResumedEntry,
    RunEntry,
)
from counterfoil.core.errors import UsageError
from counterfoil.store import Head, KeptText, Lease, NewRun, Owner, StatusChange, Store
from counterfoil.verify import Verification, format_head, parse_head, verify
from tests.marks import law
from tests.test_laws import FAITHFUL, TEXT, TEXT_DIGEST, Write, apart_story, approved, plain, story

OWNER = Owner("here", 1, 1)


class Keeper:
    """Puts entries on record as a driver does, through the port alone."""

    def __init__(self, store: Store, interaction: str, tenant: str) -> None:
        self.store = store
        self.interaction = interaction
        self.tenant = tenant
        self.leases: dict[str, Lease] = {}
        self.status: dict[str, str] = {}

    async def keep(self, entries: list[Entry]) -> None:
        entries = list(entries)
        while entries:
            entry = entries.pop(0)
            if isinstance(entry, RunEntry):
                first = [entry]
                if entries and isinstance(entries[0], MessageEntry):
                    first.append(entries.pop(0))
                await self.create(first)
            elif isinstance(entry, DecidedEntry):
                await self.store.decide(self.tenant, entry.run_id, entry.call_id, entry.decision)
            elif self.status[entry.run_id] == "ended" and isinstance(entry, ResumedEntry):
                lease = await self.store.reopen(await self.store.run(self.tenant, entry.run_id), OWNER)
                assert lease is not None
                self.leases[entry.run_id], self.status[entry.run_id] = lease, "running"
                await self.commit(entry)
            elif isinstance(entry, QueuedEntry | CancelEntry) or self.status[entry.run_id] == "ended":
                await self.store.post(self.tenant, entry.run_id, entry)
            else:
                await self.commit(entry)

    async def create(self, entries: list[Entry]) -> None:
        run = entries[0]
        assert isinstance(run, RunEntry)
        await self.store.create(
            NewRun(
                tenant=self.tenant, run_id=run.run_id, interaction_id=self.interaction,
                new_interaction=not self.leases, agent="support", entries=entries, created_at=run.at,
                owner=OWNER, parent=run.parent,
            )
        )  # fmt: skip
        self.leases[run.run_id] = Lease(self.tenant, run.run_id, self.interaction, 1)
        self.status[run.run_id] = "running"

    async def commit(self, entry: Entry) -> None:
        run_id = entry.run_id
        if self.status[run_id] == "paused":
            lease = await self.store.claim(await self.store.run(self.tenant, run_id), OWNER)
            assert lease is not None
            self.leases[run_id] = lease
            self.status[run_id] = "running"
        change = None
        if isinstance(entry, PausedEntry):
            change = StatusChange("paused")
            self.status[run_id] = "paused"
        elif isinstance(entry, EndedEntry):
            change = StatusChange(entry.status, entry.ended_by)
            self.status[run_id] = "ended"
        kept = []
        if isinstance(entry, ResultEntry) and entry.kept_id:
            kept = [KeptText(entry.kept_id, TEXT.decode(), len(TEXT), TEXT_DIGEST)]
        await self.store.commit(self.leases[run_id], [entry], change=change, kept=kept)


async def keep(store: Store, *runs: "Write | Entry", interaction: str = "i1", tenant: str = "default") -> None:
    await Keeper(store, interaction, tenant).keep(story(*runs))


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "postgres":
        return open_store(request.getfixturevalue("postgres").fresh())
    return MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path / "shop.db"))


# ------------------------------------------------------------------------------------ content with a store


@law("11.verify", "11.entries")
@pytest.mark.parametrize("entries", FAITHFUL.values(), ids=FAITHFUL.keys())
def test_verify_is_content_with_what_a_store_writes(store: Store, entries: Callable[[], list[Entry]]) -> None:
    async def main() -> Verification:
        async with opened(store):
            await keep(store, *entries())
            return await verify(store)

    found = asyncio.run(main())
    assert found.problems == ()
    assert found.ok
    assert found.entries == len(entries())


@law("11.verify")
def test_verify_reads_all_tenants_and_counts(store: Store) -> None:
    async def main() -> tuple[Verification, list[Head], list[int]]:
        seen: list[int] = []
        async with opened(store):
            await keep(store, plain())
            await keep(store, Write(tenant="acme").begin().answer(0), interaction="i2", tenant="acme")
            await keep(store, *apart_story("r3"), interaction="i3")
            return await verify(store, progress=seen.append), await store.heads(), seen

    found, heads, seen = asyncio.run(main())
    assert found.ok
    counts = (found.interactions, found.runs, found.calls, found.results, found.entries, found.kept)
    assert counts == (3, 3, 3, 3, 20, 1)
    assert sorted(map(str, found.heads)) == sorted(map(str, heads))
    assert seen == [20]
    json = found.to_json()
    assert (json["ok"], json["problems"], json["kept"], json["erased"]) == (True, [], 1, 0)


@law("11.erased")
def test_erased_contents_are_said_to_be_erased_and_not_broken(store: Store) -> None:
    async def main() -> tuple[int, Verification]:
        async with opened(store):
            await keep(store, approved().done(approval_id="a1").answer())
            await keep(store, *apart_story("r2"), interaction="i2")
            gone = await store.erase("default", "r1", 5) + await store.erase("default", "r2", 5)
            return gone, await verify(store)

    gone, found = asyncio.run(main())
    assert found.problems == ()
    assert found.erased == gone > 8


def test_verify_reads_while_a_run_goes_on(store: Store) -> None:
    async def main() -> Verification:
        async with opened(store):
            keeper = Keeper(store, "i1", "default")
            entries = story(*apart_story("r1"))
            await keeper.keep(entries[:3])
            first = await verify(store)
            assert first.ok
            await keeper.keep(entries[3:])
            return await verify(store, head=first.heads)

    assert asyncio.run(main()).ok


# ----------------------------------------------------------------------------------- a file that was changed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def written(path: Path, *runs: "Write | Entry") -> list[Head]:
    """A store's file with these entries; where it ends."""

    async def main() -> list[Head]:
        async with opened(SqliteStore(str(path))) as store:
            await keep(store, *runs)
            return (await verify(store)).heads

    return asyncio.run(main())


def verified(path: Path, head: str | list[Head] | None = None) -> Verification:
    async def main() -> Verification:
        async with opened(SqliteStore(str(path))) as store:
            return await verify(store, head=head)

    return asyncio.run(main())


@contextmanager
def file(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    with connection:
        yield connection
    connection.close()


FIRST = 1 << 32  # the place of an interaction's entry 0


def named(found: Verification) -> list[tuple[str, int | None]]:
    assert found.ok == (not found.problems)
    return [(p.kind, p.entry) for p in found.problems]


@law("11.verify", "11.chain")
def test_a_changed_byte_is_named(path: Path) -> None:
    written(path, plain())
    with file(path) as db:
        (body,) = db.execute("SELECT body FROM entries WHERE kind = 'start'").fetchone()
        changed = body.replace(b'"attempt":1', b'"attempt":2')
        assert changed != body
        db.execute("UPDATE entries SET body = ? WHERE body = ?", (changed, body))
    assert named(verified(path)) == [("changed-bytes", 4)]


@law("11.verify")
def test_text_where_bytes_were_is_named_and_stops_nothing(path: Path) -> None:
    written(path, plain())
    with file(path) as db:
        db.execute("UPDATE entries SET content = CAST(content AS TEXT) || 'x' WHERE kind = 'message'")
    assert named(verified(path)) == [("changed-bytes", 2)]


@law("11.verify")
def test_a_changed_content_is_named(path: Path) -> None:
    written(path, plain())
    with file(path) as db:
        db.execute("UPDATE entries SET content = replace(content, 'W100', 'W666') WHERE kind = 'message'")
        db.execute("UPDATE entries SET content = CAST(content AS BLOB)")
    assert named(verified(path)) == [("changed-bytes", 2)]


def chained_anew(db: sqlite3.Connection) -> None:
    """Numbers and hashes as if nothing had happened."""
    previous = b"\x00" * 32
    rows = db.execute("SELECT row, body FROM entries ORDER BY place").fetchall()
    for at, (row, body) in enumerate(rows, 1):
        previous = chain(previous, body)
        db.execute("UPDATE entries SET place = ?, hash = ? WHERE row = ?", (FIRST + at, previous, row))


@law("11.verify")
@pytest.mark.parametrize("mend", [False, True])
def test_a_missing_result_is_named(path: Path, *, mend: bool) -> None:
    written(path, plain())
    with file(path) as db:
        db.execute("DELETE FROM entries WHERE kind = 'result' AND idx = 1")
        if mend:
            chained_anew(db)
    found = named(verified(path))
    assert ("missing-result", 3) in found
    assert (len(found) == 1) == mend


def copied(db: sqlite3.Connection, kind: str, **new: Any) -> None:
    """The newest entry of this kind once more, at the end."""
    db.execute("DROP INDEX entries_start")
    cursor = db.execute("SELECT * FROM entries WHERE kind = ? ORDER BY place DESC", (kind,))
    names = [column[0] for column in cursor.description]
    row = dict(zip(names, cursor.fetchone(), strict=True)) | new
    del row["row"]
    (row["place"],) = db.execute("SELECT max(place) + 1 FROM entries").fetchone()
    marks = ",".join("?" * len(row))
    db.execute(f"INSERT INTO entries ({','.join(row)}) VALUES ({marks})", list(row.values()))  # noqa: S608


@law("11.verify")
@pytest.mark.parametrize("mend", [False, True])
@pytest.mark.parametrize("kind", ["start", "result"])
def test_a_doubled_start_or_result_is_named(path: Path, kind: str, *, mend: bool) -> None:
    written(path, Write().begin().turn("c00", "c01").start() if kind == "start" else
            Write().begin().turn("c00", "c01").done())  # fmt: skip
    with file(path) as db:
        copied(db, kind)
        if mend:
            chained_anew(db)
    assert [k for k, _ in named(verified(path))] == [f"doubled-{kind}"]


@law("11.verify", "11.chain")
@pytest.mark.parametrize(("one", "other"), [(4, 5), (3, 8), (6, 9)])
def test_two_entries_that_changed_places_are_named(path: Path, one: int, other: int) -> None:
    written(path, plain())
    with file(path) as db:
        for old, new in ((one, 99), (other, one), (99, other)):
            db.execute("UPDATE entries SET place = ? WHERE place = ?", (FIRST + new, FIRST + old))
    assert named(verified(path)) == [("broken-chain", one)]


@law("11.head")
def test_a_dropped_tail_is_named_against_a_head_kept_elsewhere(path: Path) -> None:
    head = written(path, plain())
    with file(path) as db:
        db.execute("DELETE FROM entries WHERE place > ?", (FIRST + 7,))
    assert verified(path).ok  # what is left is whole: the run goes on, as far as it can tell
    assert named(verified(path, parse_head(format_head(head)))) == [("dropped-tail", 7)]
    assert named(verified(path, format_head(head))) == [("dropped-tail", 7)]
    assert verified(path, verified(path).head).ok


@law("11.head")
def test_a_dropped_interaction_is_named_against_a_head_kept_elsewhere(path: Path) -> None:
    head = written(path, plain())
    with file(path) as db:
        for table in ("entries", "runs", "interactions"):
            db.execute(f"DELETE FROM {table}")  # noqa: S608  # one of three
    assert verified(path).ok
    (problem,) = verified(path, head).problems
    assert (problem.kind, problem.interaction_id) == ("dropped-tail", "i1")


@law("11.head")
def test_a_store_that_has_grown_since_its_head_is_well(path: Path) -> None:
    head = written(path, plain())
    text = format_head(head)
    asyncio.run(_more(path))
    assert verified(path, parse_head(text)).ok


async def _more(path: Path) -> None:
    async with opened(SqliteStore(str(path))) as store:
        await store.post("default", "r1", QueuedEntry(run_id="r1", at=9, text="More."))
        await keep(store, Write("r9").begin().answer(0), interaction="i9")


@law("11.verify")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE kept_pieces SET piece = CAST(replace(piece, 'long', 'wild') AS BLOB)",
        "UPDATE kept_pieces SET piece = CAST('' AS BLOB)",
        "UPDATE kept SET digest = 'x'",
        "UPDATE kept SET size = 11",
        "DELETE FROM kept",
    ],
)
def test_changed_bytes_of_a_result_kept_apart_are_named(path: Path, change: str) -> None:
    written(path, *apart_story("r1"))
    with file(path) as db:
        db.execute(change)
    (problem,) = verified(path).problems
    assert (problem.kind, problem.entry, problem.call_id) == ("kept", 5, "c00")


@law("11.verify")
@pytest.mark.parametrize(
    ("change", "kind", "entry"),
    [
        ("UPDATE entries SET kind = 'late' WHERE kind = 'result' AND idx = 0", "column", 7),
        ("UPDATE entries SET sequence = 2 WHERE kind = 'message'", "column", 2),
        ("UPDATE runs SET id = 'r7'", "column", 1),
        ("UPDATE interactions SET tenant = 'acme'", "column", 1),
        ("UPDATE entries SET content = NULL WHERE kind = 'ended'", "changed-bytes", 9),
        ("UPDATE entries SET erased_at = 5 WHERE kind = 'ended'", "changed-bytes", 9),
        ("UPDATE entries SET hash = CAST(zeroblob(32) AS BLOB) WHERE kind = 'turn'", "broken-chain", 3),
        ("UPDATE entries SET body = CAST('{' AS BLOB) WHERE kind = 'turn'", "unreadable", 3),
        ("DELETE FROM entries WHERE kind = 'message'", "broken-chain", 3),
    ],
)
def test_what_else_was_changed_in_a_file_is_named(path: Path, change: str, kind: str, entry: int) -> None:
    written(path, plain())
    with file(path) as db:
        db.execute(change)
    assert (kind, entry) in named(verified(path))


# ----------------------------------------------------------------------------------------- heads as text

HEADS = [Head("default", "i2", 7, b"\x02" * 32), Head("acme", 'i"1\n', 1, b"\x01" * 32)]


@law("11.head")
def test_a_head_is_text_that_can_be_read_again(tmp_path: Path) -> None:
    text = format_head(HEADS)
    assert len(text.splitlines()) == 3
    kept = tmp_path / "head.jsonl"
    kept.write_text(text, encoding="utf-8")
    in_order = [HEADS[1], HEADS[0]]
    assert parse_head(text) == parse_head(f"\n{text.strip()}\n") == in_order
    assert parse_head(kept) == parse_head(str(kept)) == in_order


def test_the_head_of_an_empty_store_is_text_too() -> None:
    assert parse_head(format_head([])) == []


@law("11.head")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace('"entry":7', '"entry":6'),
        lambda text: "".join(text.splitlines(keepends=True)[:-1]),
        lambda text: "".join(text.splitlines(keepends=True)[1:]),
        lambda text: text.replace('"heads":2', '"heads":3'),
        lambda text: text[:-20],
        lambda _: "{",
        lambda _: "{}",
        lambda _: "no-such-file",
        lambda _: "",
        lambda _: "\x00",
    ],
)
def test_a_head_that_is_not_whole_is_refused(spoil: Callable[[str], str]) -> None:
    with pytest.raises(UsageError, match="head"):
        parse_head(spoil(format_head(HEADS)))
