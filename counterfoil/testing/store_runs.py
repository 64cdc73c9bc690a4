"""The store suite: runs are created, claimed, posted to and end."""

# ruff: noqa: S101, PLR2004  # tests, as those in tests/

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from counterfoil.core.entries import CancelEntry
from counterfoil.core.errors import Conflict, Fenced, NotFound, UsageError
from counterfoil.store import Lease, StatusChange, Store
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import Bench, claimed, kinds, log, refuses, stored

PAUSED = StatusChange("paused", wake_at=r.NOON + 60)
COMPLETED = StatusChange("completed", "answer")
LIMITED = StatusChange("limited", "limit")


class RunTests(Bench):
    """create, claim, post, and the row."""

    @stored
    async def test_a_new_run_is_on_record_with_its_entries(self, store: Store) -> None:
        new = r.new_run(key="k", key_digest="d", pool="big", priority=3, not_before=r.NOON + 5)
        row, created = await store.create(new)
        assert created
        assert (row.run_id, row.interaction_id, row.tenant, row.agent) == (
            "run-1",
            "talk-1",
            "acme",
            "support",
        )
        assert (row.status, row.ended_by, row.created_at, row.updated_at) == ("running", None, r.NOON, r.NOON)
        assert (row.key, row.pool, row.priority, row.not_before) == ("k", "big", 3, r.NOON + 5)
        assert (row.parent, row.wake_at) == (None, None)
        assert await store.run("acme", "run-1") == row
        assert [(e.kind, e.entry, e.sequence) for e in await log(store)] == [("run", 1, 0), ("message", 2, 1)]

    @stored
    async def test_a_run_with_an_owner_is_claimed_and_one_without_is_runnable(self, store: Store) -> None:
        mine, _ = await store.create(r.new_run())
        assert (mine.owner, mine.epoch, mine.runnable) == (r.WORKER, 1, False)
        free, _ = await store.create(r.new_run("run-2", "talk-2", owner=None))
        assert (free.owner, free.epoch, free.runnable) == (None, 0, True)

    @stored
    async def test_an_interaction_that_is_not_new_must_exist(self, store: Store) -> None:
        await refuses(store, NotFound, store.create(r.new_run(new_interaction=False)))

    @stored
    async def test_an_interaction_of_another_tenant_does_not_exist(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.ended()], change=COMPLETED)
        other = r.new_run("run-2", tenant="other", new_interaction=False)
        await refuses(store, NotFound, store.create(other))

    @stored
    async def test_a_new_interaction_must_be_new_to_the_tenant(self, store: Store) -> None:
        await claimed(store)
        await refuses(store, Conflict, store.create(r.new_run("run-2")))
        await claimed(store, "run-2", tenant="other")

    @stored
    async def test_a_run_is_created_once(self, store: Store) -> None:
        await claimed(store)
        await refuses(store, Conflict, store.create(r.new_run("run-1", "talk-2")))
        await claimed(store, "run-1", "talk-2", tenant="other")

    @stored
    async def test_an_interaction_has_one_open_root_run(self, store: Store) -> None:
        lease = await claimed(store)
        await refuses(store, Conflict, store.create(r.new_run("run-2", new_interaction=False)))
        await store.commit(lease, [], change=PAUSED)
        await refuses(store, Conflict, store.create(r.new_run("run-2", new_interaction=False)))

    @stored
    async def test_of_many_runs_started_at_once_in_an_interaction_one_is_created(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.ended()], change=COMPLETED)
        starts = [store.create(r.new_run(f"next-{i}", new_interaction=False)) for i in range(20)]
        ends = await asyncio.gather(*starts, return_exceptions=True)
        assert sum(isinstance(end, Conflict) for end in ends) == 19
        assert await kinds(store) == ["run", "message", "ended", "run", "message"]

    @stored
    async def test_after_its_end_the_next_run_goes_on_with_the_numbers(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.turn(calls=0, text="Bye"), r.ended()], change=COMPLETED)
        await claimed(store, "run-2", new_interaction=False)
        assert [(e.entry, e.sequence) for e in await log(store)] == [
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 0),
            (5, 0),
            (6, 3),
        ]

    @stored
    async def test_a_child_run_neither_takes_nor_frees_the_interaction(self, store: Store) -> None:
        await claimed(store)
        child = await claimed(store, "child", new_interaction=False, parent="run-1")
        assert (await store.run("acme", "child")).parent == "run-1"
        await store.commit(child, [r.ended("child")], change=COMPLETED)
        await refuses(store, Conflict, store.create(r.new_run("run-2", new_interaction=False)))

    @stored
    async def test_a_repeat_with_the_key_gives_the_first_run(self, store: Store) -> None:
        first, _ = await store.create(r.new_run(key="k", key_digest="d"))
        again, created = await store.create(r.new_run("run-2", "talk-2", key="k", key_digest="d"))
        assert (again, created) == (first, False)
        await refuses(store, Conflict, store.create(r.new_run("run-3", "talk-3", key="k", key_digest="other")))
        await claimed(store, "run-4", "talk-4", key="k", key_digest="other", tenant="other")

    @stored
    async def test_many_repeats_with_a_key_at_once_are_one_run(self, store: Store) -> None:
        news = [r.new_run(f"run-{i}", f"talk-{i}", key="k", key_digest="d") for i in range(20)]
        made = await asyncio.gather(*map(store.create, news))
        assert len({row.run_id for row, _ in made}) == 1
        assert sum(created for _, created in made) == 1

    @stored
    async def test_a_claim_takes_the_run_over(self, store: Store) -> None:
        row, _ = await store.create(r.new_run(owner=None))
        lease = await store.claim(row, r.OTHER_WORKER)
        assert lease == Lease("acme", "run-1", "talk-1", 1)
        now = await store.run("acme", "run-1")
        assert (now.owner, now.epoch, now.runnable, now.status) == (r.OTHER_WORKER, 1, False, "running")

    @stored
    async def test_a_claim_of_an_older_epoch_or_an_ended_run_is_none(self, store: Store) -> None:
        row, _ = await store.create(r.new_run(owner=None))
        lease = await store.claim(row, r.WORKER)
        assert lease is not None
        assert await store.claim(row, r.OTHER_WORKER) is None
        await store.commit(lease, [r.ended()], change=COMPLETED)
        assert await store.claim(await store.run("acme", "run-1"), r.OTHER_WORKER) is None

    @stored
    async def test_of_many_claims_at_once_one_holds(self, store: Store) -> None:
        row, _ = await store.create(r.new_run(owner=None))
        leases = await asyncio.gather(*(store.claim(row, r.WORKER) for _ in range(50)))
        assert sum(lease is not None for lease in leases) == 1

    @stored
    async def test_a_paused_run_gives_up_its_lease_and_runs_when_claimed(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [], change=PAUSED)
        row = await store.run("acme", "run-1")
        assert (row.status, row.owner, row.wake_at, row.epoch) == ("paused", None, r.NOON + 60, 1)
        await refuses(store, Fenced, store.commit(lease, [r.turn()]))
        again = await store.claim(row, r.WORKER)
        assert again is not None
        row = await store.run("acme", "run-1")
        assert (row.status, row.wake_at, row.epoch) == ("running", None, 2)
        await store.commit(again, [r.turn()])

    @stored
    async def test_an_end_leaves_status_and_reason_and_nothing_to_run(self, store: Store) -> None:
        lease = await claimed(store)
        await store.post("acme", "run-1", r.queued())
        await store.commit(lease, [r.ended()], change=COMPLETED)
        row = await store.run("acme", "run-1")
        assert (row.status, row.ended_by, row.owner, row.runnable) == ("completed", "answer", None, False)

    @stored
    async def test_a_post_is_appended_and_makes_the_run_runnable(self, store: Store) -> None:
        lease = await claimed(store)
        before = await store.run("acme", "run-1")
        assert await store.post("acme", "run-1", r.queued()) == before
        assert (await store.run("acme", "run-1")).runnable
        assert await kinds(store) == ["run", "message", "queued"]
        await store.commit(lease, [], change=PAUSED)
        assert (await store.run("acme", "run-1")).runnable, "the driver has not seen it"

    @stored
    async def test_a_cancel_of_an_ended_run_appends_nothing(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.ended()], change=COMPLETED)
        assert (await store.post("acme", "run-1", r.cancel())).status == "completed"
        assert await kinds(store) == ["run", "message", "ended"]

    @stored
    async def test_a_message_to_an_ended_run_is_kept_and_runs_nothing(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.ended()], change=COMPLETED)
        await store.post("acme", "run-1", r.queued())
        assert await kinds(store) == ["run", "message", "ended", "queued"]
        row = await store.run("acme", "run-1")
        assert (row.status, row.runnable) == ("completed", False)

    @stored
    async def test_a_limited_run_is_opened_again(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.ended(status="limited", ended_by="limit")], change=LIMITED)
        limited = await store.run("acme", "run-1")
        again = await store.reopen(limited, r.OTHER_WORKER)
        assert again == Lease("acme", "run-1", "talk-1", 2)
        row = await store.run("acme", "run-1")
        assert (row.status, row.ended_by, row.runnable, row.owner) == ("running", None, False, r.OTHER_WORKER)
        assert await store.reopen(limited, r.WORKER) is None
        await refuses(store, Conflict, store.create(r.new_run("run-2", new_interaction=False)))
        await store.commit(again, [r.resumed(), r.turn()])
        await store.commit(again, [r.ended()], change=COMPLETED)
        await claimed(store, "run-2", new_interaction=False)

    @stored
    async def test_other_ends_are_for_good(self, store: Store) -> None:
        lease = await claimed(store)
        assert await store.reopen(await store.run("acme", "run-1"), r.WORKER) is None
        await store.commit(lease, [r.ended()], change=COMPLETED)
        assert await store.reopen(await store.run("acme", "run-1"), r.WORKER) is None

    @stored
    async def test_a_limited_run_waits_for_the_interactions_open_run(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.ended(status="limited", ended_by="limit")], change=LIMITED)
        await claimed(store, "run-2", new_interaction=False)
        limited = await store.run("acme", "run-1")
        await refuses(store, Conflict, store.reopen(limited, r.WORKER))

    @stored
    async def test_a_run_given_back_is_runnable_and_its_lease_is_over(self, store: Store) -> None:
        lease = await claimed(store)
        await store.release(lease)
        row = await store.run("acme", "run-1")
        assert (row.status, row.owner, row.runnable, row.epoch) == ("running", None, True, 1)
        await refuses(store, Fenced, store.commit(lease, [r.turn()]))
        assert await store.claim(row, r.OTHER_WORKER) is not None
        before = await store.run("acme", "run-1")
        await store.release(lease)
        assert await store.run("acme", "run-1") == before

    @stored
    async def test_a_write_for_an_unknown_run_or_another_tenant_is_not_found(self, store: Store) -> None:
        lease = await claimed(store)
        row = await store.run("acme", "run-1")
        for tenant, run_id in (("acme", "none"), ("other", "run-1"), ("", "run-1")):
            await refuses(store, NotFound, store.post(tenant, run_id, CancelEntry(run_id=run_id, at=r.NOON)))
            wrong = Lease(tenant, run_id, "talk-1", lease.epoch)
            await refuses(store, NotFound, store.commit(wrong, [r.turn(run_id)]))
            await refuses(store, NotFound, store.decide(tenant, run_id, "call-0-0", r.decision()))
            await refuses(store, NotFound, store.erase(tenant, run_id, r.NOON))
        with pytest.raises(NotFound):
            await store.claim(replace(row, tenant="other"), r.WORKER)

    @stored
    async def test_nobody_reads_or_writes_for_no_tenant(self, store: Store) -> None:
        await claimed(store)
        nobody: str = None  # type: ignore[assignment]  # what a caller without types may hand over
        await refuses(store, UsageError, store.create(replace(r.new_run("run-2", "talk-2"), tenant="")))
        for read in (store.runs(nobody), store.approvals(nobody), store.reports(nobody), store.runs("")):
            with pytest.raises(UsageError):
                await read
        for one in (
            store.run(nobody, "run-1"),
            store.entries(nobody, "talk-1"),
            store.kept(nobody, "kept-1"),
        ):
            with pytest.raises(NotFound):
                await one
