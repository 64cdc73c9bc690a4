"""`verify` on all three stores: each kind of tampering is named, memory is bounded, and writers go on meanwhile."""

import asyncio
import copy
import gc
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from counterfoil.adapters.stores.memory import MemoryStore
from counterfoil.adapters.stores.postgres import open_store
from counterfoil.adapters.stores.postgres import reading as postgres_reading
from counterfoil.adapters.stores.sqlite import SqliteStore
from counterfoil.core.codec import chain
from counterfoil.core.entries import QueuedEntry
from counterfoil.store import Head, Lease, Store
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import claimed
from counterfoil.verify import Verification, verify
from tests.marks import law
from tests.test_laws import Write, apart_story, plain
from tests.test_verify import keep, opened

STORES = ["memory", "sqlite", "postgres"]


class Hand(Protocol):
    """Somebody who changes a store behind its back."""

    def open(self) -> Store:
        """The store."""

    def body(self, entry: int) -> bytes:
        """The stored bytes of an entry of interaction i1."""

    def change(self, entry: int, **columns: Any) -> None:
        """Other values in its row."""

    def remove(self, entry: int) -> None:
        """Take it away."""

    def copy(self, entry: int, to: int) -> None:
        """The same row once more, under another number."""


class InMemory:
    """Reaches into the objects: nothing else holds a record in memory."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def open(self) -> Store:
        return self._store

    @property
    def _log(self) -> Any:
        (log,) = (log for log in self._store._logs.values() if log.id == "i1")
        log.encode()
        return log

    def _position(self, entry: int) -> int:
        return next(i for i, e in enumerate(self._log.entries) if e.entry == entry)

    def body(self, entry: int) -> bytes:
        return bytes(self._log.encoded[self._position(entry)][0])

    def change(self, entry: int, **columns: Any) -> None:
        log, at = self._log, self._position(entry)
        body, content, digest = log.encoded[at]
        log.encoded[at] = columns.pop("body", body), columns.pop("content", content), columns.pop("hash", digest)
        changed = log.entries[at] = copy.copy(log.entries[at])
        for name, value in columns.items():
            setattr(changed, {"place": "entry"}.get(name, name), value)
        log.entries.sort(key=lambda e: e.entry)

    def remove(self, entry: int) -> None:
        at = self._position(entry)
        del self._log.entries[at], self._log.encoded[at]

    def copy(self, entry: int, to: int) -> None:
        at = self._position(entry)
        again = copy.copy(self._log.entries[at])
        again.entry = to
        self._log.entries.append(again)
        self._log.encoded.append(self._log.encoded[at])


class InTables:
    """Types SQL."""

    first = 1 << 32  # the place of an interaction's entry 0

    def __init__(self, connect: Callable[[], Any], open_: Callable[[], Store], mark: str) -> None:
        self._connect = connect
        self.open = open_
        self._mark = mark

    def _type(self, sql: str, *values: object) -> list[Any]:
        connection = self._connect()
        try:
            cursor = connection.execute(sql.replace("?", self._mark), values)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
        finally:
            connection.close()
        return rows

    def body(self, entry: int) -> bytes:
        return bytes(self._type("SELECT body FROM entries WHERE place = ?", self.first + entry)[0][0])

    def change(self, entry: int, **columns: Any) -> None:
        for name, value in columns.items():
            self._type(f"UPDATE entries SET {name} = ? WHERE place = ?", value, self.first + entry)  # noqa: S608  # ours

    def remove(self, entry: int) -> None:
        self._type("DELETE FROM entries WHERE place = ?", self.first + entry)

    def copy(self, entry: int, to: int) -> None:
        self._type("DROP INDEX IF EXISTS entries_call")
        self._type("DROP INDEX IF EXISTS entries_start")
        names = "run, kind, step, idx, slot, sequence, following, body, content, erased_at, hash"
        self._type(
            f"INSERT INTO entries (place, {names}) SELECT ?, {names} FROM entries WHERE place = ?",  # noqa: S608  # ours
            self.first + to, self.first + entry,
        )  # fmt: skip


@pytest.fixture(params=STORES)
def hand(request: pytest.FixtureRequest, tmp_path: Path) -> Hand:
    if request.param == "memory":
        return InMemory()
    if request.param == "sqlite":
        path = str(tmp_path / "shop.db")
        return InTables(lambda: sqlite3.connect(path), lambda: SqliteStore(path), "?")
    url = request.getfixturevalue("postgres").fresh()
    (schema,) = parse_qs(urlsplit(url).query)["schema"]
    plain_url = url.rpartition("schema=")[0].rstrip("?&")

    def connect() -> Any:
        return psycopg.connect(plain_url, options=f"-csearch_path={schema}")

    return InTables(connect, lambda: open_store(url), "%s")


def written(hand: Hand, *runs: Any) -> list[Head]:
    """These entries in the store; where it ends."""

    async def main() -> list[Head]:
        async with opened(hand.open()) as store:
            await keep(store, *runs)
            found = await verify(store)
            assert found.ok
            return found.heads

    return asyncio.run(main())


def verified(hand: Hand, head: list[Head] | None = None) -> Verification:
    async def main() -> Verification:
        async with opened(hand.open()) as store:
            return await verify(store, head=head)

    return asyncio.run(main())


def named(hand: Hand, head: list[Head] | None = None) -> list[tuple[str, int | None]]:
    return [(p.kind, p.entry) for p in verified(hand, head).problems]


def chained_anew(hand: Hand, length: int) -> None:
    """Hashes as if nothing had happened."""
    previous = b"\x00" * 32
    for entry in range(1, length + 1):
        previous = chain(previous, hand.body(entry))
        hand.change(entry, hash=previous)


# ------------------------------------------------------------------------------------------------- tampering


@law("11.verify", "11.chain")
def test_a_changed_byte_is_named(hand: Hand) -> None:
    written(hand, plain())
    body = hand.body(4)
    changed = body.replace(b'"attempt":1', b'"attempt":2')
    assert changed != body
    hand.change(4, body=changed)
    assert named(hand) == [("changed-bytes", 4)]


@law("11.verify")
def test_a_changed_content_is_named(hand: Hand) -> None:
    written(hand, plain())
    hand.change(2, content=b'"Refund order W666"')
    assert named(hand) == [("changed-bytes", 2)]


@law("11.verify", "2.1")
def test_a_missing_result_is_named(hand: Hand) -> None:
    """The result of the second call is gone, and what stands after it was numbered and chained anew."""
    head = written(hand, plain())
    (last,) = {h.entry for h in head}
    gone = next(n for n in range(1, last + 1) if b'"kind":"result"' in hand.body(n) and b'"index":1' in hand.body(n))
    hand.remove(gone)
    for entry in range(gone + 1, last + 1):
        hand.change(entry, place=entry - 1 + getattr(hand, "first", 0))
    chained_anew(hand, last - 1)
    assert ("missing-result", 3) in named(hand)
    # Whoever chains anew cannot give the hash that somebody else keeps.
    assert "dropped-tail" in [kind for kind, _ in named(hand, head)]


@law("11.verify", "7.5")
@pytest.mark.parametrize("mend", [False, True])
def test_a_doubled_start_is_named(hand: Hand, *, mend: bool) -> None:
    written(hand, Write().begin().turn("c00", "c01").start())
    hand.copy(4, 5)
    if mend:
        chained_anew(hand, 5)
    assert "doubled-start" in [kind for kind, _ in named(hand)]


@law("11.verify", "11.chain")
def test_a_broken_chain_is_named(hand: Hand) -> None:
    written(hand, plain())
    hand.change(3, hash=b"\x00" * 32)
    assert named(hand) == [("broken-chain", 3)]


@law("11.verify", "11.chain")
def test_an_entry_that_was_taken_away_breaks_the_chain(hand: Hand) -> None:
    written(hand, plain())
    hand.remove(2)
    assert ("broken-chain", 3) in named(hand)


@law("11.verify")
def test_a_row_that_does_not_say_what_its_bytes_say_is_named(hand: Hand) -> None:
    written(hand, plain())
    hand.change(2, sequence=2)
    assert ("column", 2) in named(hand)


@law("11.head")
def test_a_dropped_tail_is_named_against_a_head_kept_elsewhere(hand: Hand) -> None:
    head = written(hand, plain())
    (last,) = {h.entry for h in head}
    for entry in range(last, last - 2, -1):
        hand.remove(entry)
    assert ("dropped-tail", last - 2) in named(hand, head)


def test_entries_of_other_interactions_are_judged_by_themselves(hand: Hand) -> None:
    async def more() -> None:
        async with opened(hand.open()) as store:
            await keep(store, *apart_story("r2"), interaction="i2")

    written(hand, plain())
    asyncio.run(more())
    hand.change(3, hash=b"\x00" * 32)
    assert [(p.kind, p.interaction_id) for p in verified(hand).problems] == [("broken-chain", "i1")]


# ---------------------------------------------------------------------------------------------------- memory


@pytest.fixture(params=["sqlite", "postgres"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Store]:
    if request.param == "sqlite":
        return lambda name: SqliteStore(str(tmp_path / f"{name}.db"))
    server = request.getfixturevalue("postgres")
    urls: dict[str, str] = {}

    def open_(name: str) -> Store:
        return open_store(urls.setdefault(name, server.fresh()))

    return open_


EACH = 100
"""Entries of each interaction."""
BYTES = 4000
"""Of each content."""


async def _filled(store: Store, interactions: int) -> None:
    for number in range(interactions):
        lease = await claimed(store, f"run-{number}", interaction_id=f"i{number}")
        await store.commit(lease, [_memo(lease, n) for n in range(EACH - 2)])


def _memo(lease: Lease, number: int) -> Any:
    return QueuedEntry(run_id=lease.run_id, at=r.NOON + number, text="x" * BYTES)


@law("11.verify")
def test_memory_does_not_grow_with_the_entries_of_a_store(on_disk: Callable[[str], Store]) -> None:
    def peak(interactions: int) -> int:
        async def main() -> int:
            async with opened(on_disk(f"of{interactions}")) as store:
                await _filled(store, interactions)
            async with opened(on_disk(f"of{interactions}")) as store:
                gc.collect()
                tracemalloc.start()
                found = await verify(store)
                _, most = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert (found.ok, found.entries) == (True, interactions * EACH)
                return most

        return asyncio.run(main())

    few, many = peak(10), peak(40)
    # Thirty more interactions hold 12 MB more, of which nothing may be held but where each one ends.
    assert many - few < 30 * EACH * BYTES / 20, (few, many)


# ----------------------------------------------------------------------------------------------------- writers


@law("11.verify")
def test_a_long_read_of_a_database_blocks_no_writer_and_holds_no_transaction(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_reading, "PAGE_ROWS", 8)
    url = postgres.fresh()
    (schema,) = parse_qs(urlsplit(url).query)["schema"]

    async def main() -> None:
        async with opened(open_store(url)) as store, opened(open_store(url)) as other:
            await _filled(store, 1)
            rows = store.rows()
            seen = [await anext(rows) for _ in range(20)]
            lease = Lease("acme", "run-0", "i0", 1)
            async with asyncio.timeout(10):
                await other.commit(lease, [_memo(lease, 0)])
                # Not even a change of the table waits for the reader.
                await asyncio.to_thread(_exclusively, url, schema)
            seen += [row async for row in rows]
            assert [row.entry for row in seen] == list(range(1, EACH + 2))
            assert (await verify(store)).ok

    asyncio.run(main())


def _exclusively(url: str, schema: str) -> None:
    with psycopg.connect(url.rpartition("schema=")[0].rstrip("?&"), options=f"-csearch_path={schema}") as db:
        db.execute("SET lock_timeout = '5s'")
        db.execute("LOCK TABLE entries IN ACCESS EXCLUSIVE MODE")
