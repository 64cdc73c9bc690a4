"""The store suite: what a worker looks for, what a tenant may use, and what is erased."""

# ruff: noqa: S101, PLR2004  # tests, as those in tests/

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from counterfoil.store import Lease, OverQuota, Quota, StatusChange, Store, Wanted
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import Bench, claimed, refuses, stored
from counterfoil.testing.store_living import SHORT, silent

ALL = Wanted(r.WORKER, r.NOON, ("support",))
PAUSED = StatusChange("paused")
COMPLETED = StatusChange("completed", "answer")


async def free(store: Store, run_id: str, **other: Any) -> None:
    """A run that nobody has claimed."""
    await store.create(r.new_run(run_id, f"talk-{run_id}", owner=None, **other))


async def found(store: Store, wanted: Wanted = ALL) -> list[str]:
    """Ids of the runs that a sweep gets."""
    return [row.run_id for row in await store.open_runs(wanted)]


async def paused(store: Store, run_id: str, **change: Any) -> None:
    """A run that waits for a person."""
    lease = await claimed(store, run_id, f"talk-{run_id}")
    await store.commit(lease, [r.turn(run_id), r.waiting(run_id)], change=replace(PAUSED, **change))


async def end(store: Store, run_id: str, at: int = r.NOON, **other: Any) -> Lease:
    """A run that has ended then."""
    lease = await claimed(store, run_id, f"talk-{run_id}", **other)
    entry = r.ended(run_id)
    entry.at = at
    await store.commit(lease, [entry], change=COMPLETED)
    return lease


class DueTests(Bench):
    """open_runs, posted, counts, claim with a quota, to_erase."""

    @stored
    async def test_a_sweep_gets_what_may_be_driven_now_and_nothing_else(self, store: Store) -> None:
        await free(store, "free")
        await free(store, "stranger", agent="stranger")
        await free(store, "elsewhere", pool="big")
        await end(store, "ended")
        lease = await claimed(store, "driven", "talk-driven")
        await paused(store, "waits")
        await paused(store, "decided")
        await store.decide("acme", "decided", "call-0-0", r.decision())
        await paused(store, "posted")
        await store.post("acme", "posted", r.queued("posted"))
        assert await found(store) == ["free", "decided", "posted"]
        assert await found(store, replace(ALL, agents=("support", "stranger", "nobody"))) == [
            "free",
            "stranger",
            "decided",
            "posted",
        ]
        assert await found(store, replace(ALL, pool="big")) == ["elsewhere"]
        assert await found(store, replace(ALL, agents=())) == []
        await store.release(lease)
        assert await found(store) == ["free", "driven", "decided", "posted"]
        row = await store.run("acme", "free")
        assert (await store.open_runs(ALL))[0] == row
        await store.claim(row, r.WORKER)
        assert await found(store) == ["driven", "decided", "posted"]

    @stored
    async def test_a_sweep_gets_a_run_when_its_time_has_come(self, store: Store) -> None:
        await free(store, "later", not_before=r.NOON + 5)
        await paused(store, "expires", wake_at=r.NOON + 3)
        assert await found(store) == []
        assert await found(store, replace(ALL, now=r.NOON + 3)) == ["expires"]
        assert await found(store, replace(ALL, now=r.NOON + 5)) == ["later", "expires"]
        for run_id in ("later", "expires"):
            await store.claim(await store.run("acme", run_id), r.WORKER)
        assert await found(store, replace(ALL, now=r.NOON + 5)) == []
        later = Lease("acme", "later", "talk-later", 1)
        await store.commit(later, [r.turn("later"), r.waiting("later")], change=PAUSED)
        await store.decide("acme", "later", "call-0-0", r.decision())
        assert await found(store, replace(ALL, now=r.NOON + 5)) == ["later"], "also after a pause"

    @stored
    async def test_a_sweep_gets_the_higher_priority_first_then_the_older_run_and_a_page_at_most(
        self, store: Store
    ) -> None:
        for i, priority in enumerate((0, -1, 2, 0, 2)):
            await free(store, f"run-{i}", priority=priority, agent=("support", "other")[i % 2])
        await free(store, "then", priority=1, not_before=r.NOON)
        both = replace(ALL, agents=("support", "other"))
        assert await found(store, both) == ["run-2", "run-4", "then", "run-0", "run-3", "run-1"]
        assert await found(store, replace(both, limit=3)) == ["run-2", "run-4", "then"]
        assert await found(store, replace(both, limit=0)) == []

    @stored
    async def test_a_sweep_leaves_out_tenants_and_their_runs_fill_no_page(self, store: Store) -> None:
        for i in range(5):
            await free(store, f"big-{i}", tenant="big", priority=9)
        await free(store, "small", tenant="small")
        assert await found(store, replace(ALL, limit=3)) == ["big-0", "big-1", "big-2"]
        assert await found(store, replace(ALL, limit=3, without=("big", "' OR 1=1 --"))) == ["small"]
        assert await found(store, replace(ALL, without=("small", "big"))) == []

    @stored
    async def test_a_sweep_gets_what_a_dead_owner_drives(self, store: Store) -> None:
        await claimed(store, "theirs", "talk-1", owner=r.OTHER_WORKER, priority=1)
        await claimed(store, "mine", "talk-2", owner=r.WORKER)
        await free(store, "free")
        await store.beat(r.OTHER_WORKER, 3600.0)
        assert await found(store) == ["free"]
        await store.beat(r.OTHER_WORKER, SHORT)
        await silent(store, r.OTHER_WORKER)
        assert await found(store) == ["theirs", "free"]
        assert await found(store, replace(ALL, agents=("stranger",))) == []
        assert await found(store, replace(ALL, me=r.OTHER_WORKER)) == ["free"], "nobody thinks itself dead"

    @stored
    async def test_an_owner_is_told_of_its_runs_that_others_have_written_to(self, store: Store) -> None:
        lease = await claimed(store)
        await claimed(store, "run-2", "talk-2")
        await claimed(store, "run-3", "talk-3", owner=r.OTHER_WORKER)
        await store.commit(lease, [r.turn()])
        assert await store.posted(r.WORKER) == []
        for run_id in ("run-1", "run-3"):
            await store.post("acme", run_id, r.queued(run_id))
        assert await store.posted(r.WORKER) == ["run-1"]
        await store.claim(await store.run("acme", "run-1"), r.WORKER)
        assert await store.posted(r.WORKER) == []

    @stored
    async def test_unfinished_runs_are_counted(self, store: Store) -> None:
        await free(store, "free")
        await free(store, "later", not_before=r.NOON * 2)
        await claimed(store, "driven", "talk-driven")
        await end(store, "ended")
        await paused(store, "waits")
        await paused(store, "decided")
        await store.decide("acme", "decided", "call-0-0", r.decision())
        await free(store, "stranger", agent="stranger")
        await free(store, "elsewhere", pool="big")
        assert await store.counts(("support", "nobody")) == (1, 3, 1, 1)
        assert await store.counts(("support", "stranger"), "big") == (0, 1, 0, 0)
        assert await store.counts(()) == (0, 0, 0, 0)
        assert await store.counts(("support", "nobody"), tenant="acme") == (1, 3, 1, 1)
        assert await store.counts(("support", "nobody"), tenant="other") == (0, 0, 0, 0)

    @stored
    async def test_a_quota_bounds_the_runs_of_a_tenant_that_are_driven_at_once(self, store: Store) -> None:
        two = Quota(running=2)
        for i in range(4):
            await free(store, f"run-{i}")
        rows = [await store.run("acme", f"run-{i}") for i in range(4)]
        leases = [await store.claim(row, r.WORKER, two) for row in rows[:2]]
        await refuses(store, OverQuota, store.claim(rows[2], r.OTHER_WORKER, two))
        await free(store, "other", tenant="other")
        assert await store.claim(await store.run("other", "other"), r.WORKER, two), "it is the tenant's own"
        assert await store.claim(rows[2], r.WORKER), "who is given none is not bound by it"
        again = await store.run("acme", "run-0")
        assert await store.claim(again, r.OTHER_WORKER, Quota(running=3)), "a run does not count against itself"
        assert leases[1] is not None
        await store.commit(leases[1], [], change=PAUSED)
        await refuses(store, OverQuota, store.claim(rows[3], r.WORKER, two))
        assert await store.claim(rows[3], r.WORKER, Quota(running=3)), "a paused run counts nothing"
        await refuses(store, OverQuota, store.claim(await store.run("acme", "run-1"), r.WORKER, Quota(running=0)))

    @stored
    async def test_a_quota_bounds_the_starts_within_a_time(self, store: Store) -> None:
        two = Quota(starts=2, seconds=3600)
        await claimed(store, "run-0", "talk-0")  # a start too
        for i in range(1, 4):
            await free(store, f"run-{i}")
        rows = [await store.run("acme", f"run-{i}") for i in range(4)]
        lease = await store.claim(rows[1], r.WORKER, two)
        assert lease is not None
        await refuses(store, OverQuota, store.claim(rows[2], r.WORKER, two))
        await store.commit(lease, [r.ended("run-1")], change=COMPLETED)
        await refuses(store, OverQuota, store.claim(rows[2], r.WORKER, two))
        assert await store.claim(rows[0], r.OTHER_WORKER, two), "only a first claim is a start"
        await asyncio.sleep(0.005)
        assert await store.claim(rows[2], r.WORKER, Quota(starts=1, seconds=0.002)), "the others were long ago"

    @stored
    async def test_whoever_is_late_is_told_so_before_the_quota_is_looked_at(self, store: Store) -> None:
        await free(store, "run-1")
        row = await store.run("acme", "run-1")
        await store.claim(row, r.OTHER_WORKER)
        await claimed(store, "run-2", "talk-2")
        assert await store.claim(row, r.WORKER, Quota(running=0)) is None

    @stored
    async def test_of_many_claims_at_once_no_more_than_the_quota_hold(self, store: Store) -> None:
        for i in range(20):
            await free(store, f"run-{i}")
        rows = [await store.run("acme", f"run-{i}") for i in range(20)]
        claims = [store.claim(row, r.WORKER, Quota(running=5, starts=7)) for row in rows]
        ends = await asyncio.gather(*claims, return_exceptions=True)
        assert sum(isinstance(end, Lease) for end in ends) == 5
        assert sum(isinstance(end, OverQuota) for end in ends) == 15

    @pytest.mark.parametrize("wrong", [{"running": -1}, {"starts": -1}, {"seconds": -0.1}])
    def test_a_quota_is_no_negative_number(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Quota(**wrong)

    @stored
    async def test_runs_that_ended_long_ago_are_given_until_they_are_erased(self, store: Store) -> None:
        await end(store, "old-2", r.NOON + 2)
        await end(store, "old-1", r.NOON + 1, tenant="other")
        await end(store, "new", r.NOON + 5)
        await end(store, "stranger", agent="stranger")
        await claimed(store, "open", "talk-open")
        assert await store.to_erase(("support",), r.NOON + 5, 10) == [("other", "old-1"), ("acme", "old-2")]
        assert await store.to_erase(("support", "stranger"), r.NOON + 5, 1) == [("acme", "stranger")]
        assert await store.to_erase((), r.NOON + 5, 10) == []
        assert await store.erase("other", "old-1", r.NOON + 9) > 0
        assert await store.to_erase(("support",), r.NOON + 5, 10) == [("acme", "old-2")]
        await store.post("acme", "old-2", r.queued("old-2"))
        assert await store.to_erase(("support",), r.NOON + 5, 10) == [("acme", "old-2")], "it ended when it ended"

    @stored
    async def test_a_run_that_goes_on_has_not_ended(self, store: Store) -> None:
        lease = await claimed(store)
        limited = StatusChange("limited", "limit")
        await store.commit(lease, [r.ended(status="limited", ended_by="limit")], change=limited)
        await store.erase("acme", "run-1", r.NOON)
        again = await store.reopen(await store.run("acme", "run-1"), r.WORKER)
        assert again is not None
        assert await store.to_erase(("support",), r.NOON + 5, 10) == []
        await store.commit(again, [r.ended()], change=COMPLETED)
        assert await store.to_erase(("support",), r.NOON + 5, 10) == [("acme", "run-1")]
