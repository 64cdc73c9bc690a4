"""How a test of the store suite gets its store."""

# ruff: noqa: S101  # tests, as those in tests/

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from counterfoil.core.codec import GENESIS, chain, decode, encode
from counterfoil.core.entries import Entry
from counterfoil.store import Lease, Store
from counterfoil.testing import records as r

MakeStore: TypeAlias = Callable[[], Store]


class Bench:
    """The fixture that a subclass overrides."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """A function that gives a store which is not open yet."""
        raise NotImplementedError("override the fixture make_store: see counterfoil.testing.store_suite")


def stored(body: Callable[[Any, Store], Awaitable[None]]) -> Callable[[Any, MakeStore], None]:
    """A test with an open store: ``body`` runs in a loop of its own."""

    def test(self: Any, make_store: MakeStore) -> None:
        async def run() -> None:
            store = make_store()
            await store.open()
            try:
                await body(self, store)
                await intact(store)
            finally:
                await store.close()

        asyncio.run(run())

    test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return test


async def intact(store: Store) -> None:
    """Every chain, recomputed from the rows, is the stored one; entries are numbered without a gap."""
    tips: dict[tuple[str, str], tuple[int, bytes]] = {}
    for_all = [row async for row in store.rows()]
    for row in for_all:
        place = (row.tenant, row.interaction_id)
        number, previous = tips.get(place, (0, GENESIS))
        assert row.entry == number + 1
        assert row.hash == chain(previous, row.body)
        entry = decode(row.body, row.content, row.entry)
        assert (entry.kind, entry.run_id, entry.sequence) == (row.kind, row.run_id, row.sequence)
        assert entry.width == row.width or row.content is None
        if row.content is not None:
            assert encode(entry) == (row.body, row.content)
        tips[place] = (row.entry, row.hash)
    heads = await store.heads()
    assert {(h.tenant, h.interaction_id): (h.entry, h.hash) for h in heads} == tips
    assert len(heads) == len(tips)


async def claimed(store: Store, run_id: str = "run-1", interaction_id: str = "talk-1", **other: Any) -> Lease:
    """A new run and the lease on it."""
    row, created = await store.create(r.new_run(run_id, interaction_id, **other))
    assert created
    return r.lease_of(row)


async def log(store: Store, interaction_id: str = "talk-1", tenant: str = r.TENANT) -> list[Entry]:
    """The interaction's entries."""
    return await store.entries(tenant, interaction_id)


async def kinds(store: Store, interaction_id: str = "talk-1") -> list[str]:
    """Their kinds."""
    return [entry.kind for entry in await log(store, interaction_id)]


async def refuses(store: Store, error: type[Exception], write: Awaitable[object]) -> None:
    """The write raises this, and nothing is written."""
    before = [row async for row in store.rows()], await everything(store)
    with pytest.raises(error):
        await write
    assert ([row async for row in store.rows()], await everything(store)) == before


async def everything(store: Store, tenant: str = r.TENANT) -> list[object]:
    """What a tenant can read beside the entries."""
    rows = await store.runs(tenant, limit=10_000)
    return [
        rows,
        await store.approvals(tenant),
        [x.to_json() for x in await store.reports(tenant)],
        [x async for x in store.kept_texts()],
    ]
