"""The store suite: owners say that they live, and a dead one loses its locks."""

# ruff: noqa: S101, PLR2004  # tests, as those in tests/

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from counterfoil.core.limits import DEAD_AFTER
from counterfoil.owners import leave, this_process
from counterfoil.store import LockLost, Owner, Store
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import Bench, claimed, intact, log, stored

SHORT = 0.02
"""Seconds between the heartbeats of an owner that is to be dead soon."""
LONG = 3600.0
"""Of one that lives for the whole test."""


async def silent(store: Store, owner: Owner) -> None:
    """Wait until an owner's last sign of life is older than it may be, by the database's clock."""
    while True:
        (ago,) = [w.ago for w in await store.workers() if w.owner == owner]
        if ago > DEAD_AFTER * SHORT:
            return
        await asyncio.sleep(0.001)


class LivingTests(Bench):
    """beat, leave, workers, lives, lock, unlock."""

    @stored
    async def test_an_owner_that_beats_is_on_record_until_it_leaves(self, store: Store) -> None:
        await store.beat(r.WORKER, 7.5)
        await store.beat(r.OTHER_WORKER, LONG)
        found = {w.owner: w for w in await store.workers()}
        assert {owner: w.every for owner, w in found.items()} == {r.WORKER: 7.5, r.OTHER_WORKER: LONG}
        assert all(0 <= w.ago < 60 and w.steady == 0 for w in found.values())
        await store.leave(r.WORKER)
        await store.leave(r.WORKER)
        assert [w.owner for w in await store.workers()] == [r.OTHER_WORKER]

    @stored
    async def test_the_agents_of_owners_are_known_while_one_lives_that_has_them_and_for_a_time_after(
        self, store: Store
    ) -> None:
        assert await store.agents() == {}
        await store.beat(r.WORKER, SHORT, ["old", "both \x00 'é"])
        await silent(store, r.WORKER)
        await store.beat(r.OTHER_WORKER, LONG, ["new", "both \x00 'é"])
        await store.beat(r.WORKER, SHORT, ["both \x00 'é"])
        await silent(store, r.WORKER)
        assert await store.agents() == {"old": False, "new": True, "both \x00 'é": True}
        await store.leave(r.OTHER_WORKER)
        assert (await store.agents())["new"]

    @stored
    async def test_an_owner_is_steady_since_its_last_gap(self, store: Store) -> None:
        await store.beat(r.WORKER, LONG)
        await asyncio.sleep(0.01)
        await store.beat(r.WORKER, LONG)
        (worker,) = await store.workers()
        assert worker.steady >= 0.005
        await store.beat(r.WORKER, SHORT)
        await silent(store, r.WORKER)
        await store.beat(r.WORKER, SHORT)
        (worker,) = await store.workers()
        assert worker.steady == 0

    @stored
    async def test_an_owner_elsewhere_is_dead_after_two_of_its_own_heartbeats(self, store: Store) -> None:
        await store.beat(r.OTHER_WORKER, LONG)
        assert await store.lives(r.OTHER_WORKER, r.WORKER)
        await store.beat(r.OTHER_WORKER, SHORT)
        await silent(store, r.OTHER_WORKER)
        assert not await store.lives(r.OTHER_WORKER, r.WORKER)
        assert await store.lives(r.OTHER_WORKER, r.OTHER_WORKER), "nobody thinks itself dead"
        await store.beat(r.OTHER_WORKER, LONG)
        assert await store.lives(r.OTHER_WORKER, r.WORKER)

    @stored
    async def test_whoever_was_silent_itself_has_to_listen_first(self, store: Store) -> None:
        await store.beat(r.OTHER_WORKER, SHORT)
        await silent(store, r.OTHER_WORKER)
        await store.beat(r.WORKER, LONG)
        assert await store.lives(r.OTHER_WORKER, r.WORKER), "it has just come: everybody may have stood still"
        while (await store.workers())[0].steady <= DEAD_AFTER * SHORT:
            await store.beat(r.WORKER, LONG)
            await store.leave(r.OTHER_WORKER)
        await store.beat(r.OTHER_WORKER, SHORT)
        await silent(store, r.OTHER_WORKER)
        assert not await store.lives(r.OTHER_WORKER, r.WORKER)

    @stored
    async def test_an_owner_here_is_dead_with_its_process_or_when_it_is_silent(self, store: Store) -> None:
        me, other = this_process("me"), this_process("other")
        ended = replace(me, pid=2**30, started=1)
        assert await store.lives(other, me), "it never beat, and its process runs"
        await store.beat(ended, LONG)
        assert not await store.lives(ended, me)
        await store.beat(other, SHORT)
        await silent(store, other)
        assert not await store.lives(other, me), "its process is frozen, or its loop hangs"
        await store.beat(other, LONG)
        assert await store.lives(other, me)
        leave(other)
        assert not await store.lives(other, me)
        leave(me)

    @stored
    async def test_a_lock_has_one_living_holder_in_its_tenant(self, store: Store) -> None:
        assert await store.lock("acme", "order:7", r.WORKER)
        assert await store.lock("acme", "order:7", r.WORKER)
        assert not await store.lock("acme", "order:7", r.OTHER_WORKER)
        assert await store.lock("other", "order:7", r.OTHER_WORKER)
        assert await store.lock("acme", "order:8", r.OTHER_WORKER)
        await store.unlock("acme", "order:7", r.OTHER_WORKER)
        assert not await store.lock("acme", "order:7", r.OTHER_WORKER)
        await store.unlock("acme", "order:7", r.WORKER)
        assert await store.lock("acme", "order:7", r.OTHER_WORKER)

    @stored
    async def test_a_lock_of_a_dead_owner_is_free(self, store: Store) -> None:
        me = this_process("me")
        assert await store.lock("acme", "order:7", replace(me, pid=2**30, started=1))
        assert await store.lock("acme", "order:7", me)
        assert not await store.lock("acme", "order:7", r.WORKER)
        leave(me)
        await store.beat(r.WORKER, LONG)
        assert await store.lock("acme", "order:8", r.WORKER)
        assert not await store.lock("acme", "order:8", r.OTHER_WORKER)
        await store.beat(r.WORKER, SHORT)
        await silent(store, r.WORKER)
        assert await store.lock("acme", "order:8", r.OTHER_WORKER)
        await store.unlock("acme", "order:8", r.WORKER)
        await store.beat(r.OTHER_WORKER, LONG)
        assert not await store.lock("acme", "order:8", r.WORKER), "it went to another"

    @stored
    async def test_a_start_is_refused_when_its_lock_was_lost(self, store: Store) -> None:
        lease = await claimed(store)
        if not store.shared:
            await store.commit(lease, [r.turn(), r.start(lock="order:7")])
            return
        await store.commit(lease, [r.turn(calls=2)])
        for holder in (None, r.OTHER_WORKER):
            if holder is not None:
                assert await store.lock("acme", "order:7", holder)
            before = await log(store)
            with pytest.raises(LockLost):
                await store.commit(lease, [r.start(lock="order:7")])
            assert len(await log(store)) == len(before)
        await store.unlock("acme", "order:7", r.OTHER_WORKER)
        assert await store.lock("other", "order:7", r.OTHER_WORKER)
        assert await store.lock("acme", "order:7", r.WORKER)
        await store.commit(lease, [r.start(lock="order:7")])
        with pytest.raises(LockLost):
            await store.commit(lease, [r.start(index=1, lock="order:8")])
        await store.commit(lease, [r.start(index=1)])
        await intact(store)

    @stored
    async def test_of_many_that_want_a_lock_one_has_it(self, store: Store) -> None:
        owners = [Owner(f"host-{i}", i, i) for i in range(20)]
        taken = await asyncio.gather(*(store.lock("acme", "order:7", owner) for owner in owners))
        assert sum(taken) == 1

    @stored
    async def test_of_many_that_want_a_dead_owners_lock_one_has_it(self, store: Store) -> None:
        dead = Owner("host-dead", 1, 1)
        await store.beat(dead, SHORT)
        assert await store.lock("acme", "order:7", dead)
        await silent(store, dead)
        owners = [Owner(f"host-{i}", i, i) for i in range(20)]
        taken = await asyncio.gather(*(store.lock("acme", "order:7", owner) for owner in owners))
        assert sum(taken) == 1
