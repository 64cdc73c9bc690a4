"""The store suite: interactions with their participants, and runs that wait for other runs."""

# ruff: noqa: S101  # tests, as those in tests/

from __future__ import annotations

from typing import Any

from counterfoil.core.entries import NoteEntry, QueuedEntry
from counterfoil.core.errors import Conflict, Fenced, NotFound, UsageError
from counterfoil.core.turn import author
from counterfoil.store import Lease, ReportFilter, StatusChange, Store
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import Bench, claimed, log, refuses, stored

ADA, BOT, SYSTEM = author("Human", "ada", "acme"), author("Agent", "bot", "acme"), author("System", "clock", "acme")
LEFT, ENDED = StatusChange("running", leaves=True), StatusChange("completed", "answer")


async def child(store: Store, run_id: str, parent: str, **other: Any) -> Lease:
    """A run below another one, which this process drives."""
    row, _ = await store.create(r.new_run(run_id, new_interaction=False, parent=parent, **other))
    return r.lease_of(row)


async def runnable(store: Store, *runs: str) -> list[bool]:
    """Whether each is runnable."""
    return [(await store.run("acme", run_id)).runnable for run_id in runs]


class FamilyTests(Bench):
    """open_interaction, interaction, interactions; what a child run does to its parent."""

    @stored
    async def test_an_interaction_begins_before_its_first_run_with_its_participants(self, store: Store) -> None:
        await store.open_interaction("acme", "talk-1", [ADA, SYSTEM, ADA], r.NOON - 5)
        row = await store.interaction("acme", "talk-1")
        assert (row.interaction_id, row.tenant, row.created_at) == ("talk-1", "acme", r.NOON - 5)
        assert (row.participants, row.open_run) == ((ADA, SYSTEM), None)
        assert await log(store) == []
        await refuses(store, Conflict, store.open_interaction("acme", "talk-1", [], r.NOON))
        await refuses(store, Conflict, store.create(r.new_run()))
        await refuses(store, UsageError, store.open_interaction("", "talk-2", [], r.NOON))

    @stored
    async def test_an_interaction_begun_with_the_same_digest_is_the_first_one(self, store: Store) -> None:
        assert await store.open_interaction("acme", "talk-1", [ADA], r.NOON, "d1")
        assert not await store.open_interaction("acme", "talk-1", [ADA], r.NOON + 1, "d1")
        assert (await store.interaction("acme", "talk-1")).created_at == r.NOON
        for other in ("d2", None):
            await refuses(store, Conflict, store.open_interaction("acme", "talk-1", [ADA], r.NOON, other))
        await store.open_interaction("acme", "talk-2", [ADA], r.NOON)
        await refuses(store, Conflict, store.open_interaction("acme", "talk-2", [ADA], r.NOON, "d1"))
        assert await store.open_interaction("other", "talk-1", [], r.NOON, "d1")

    @stored
    async def test_what_is_posted_again_with_its_key_is_on_record_once(self, store: Store) -> None:
        lease = await claimed(store)
        told = [QueuedEntry(run_id="run-1", at=r.NOON, text=text) for text in "abcde"]
        assert (await store.post("acme", "run-1", told[0], ("k1", "d1"))).status == "running"
        await refuses(store, Conflict, store.post("acme", "run-1", told[1], ("k1", "d2")))
        await store.commit(lease, [r.ended()], change=StatusChange("completed", "answer"))
        assert (await store.post("acme", "run-1", told[2], ("k1", "d1"))).status == "running"
        assert (await store.post("acme", "run-1", told[3], ("k2", "d1"))).status == "completed"
        await claimed(store, "run-2", "talk-2")
        other = QueuedEntry(run_id="run-2", at=r.NOON, text="f")
        assert (await store.post("acme", "run-2", other, ("k1", "d3"))).status == "running"
        assert [e.text for e in await log(store) if isinstance(e, QueuedEntry)] == ["a", "d"]

    @stored
    async def test_whom_a_run_brings_in_comes_to_the_participants_once(self, store: Store) -> None:
        await store.open_interaction("acme", "talk-1", [ADA], r.NOON)
        new = r.new_run(new_interaction=False, participants=(ADA, BOT))
        lease = r.lease_of((await store.create(new))[0])
        row = await store.interaction("acme", "talk-1")
        assert (row.participants, row.open_run) == ((ADA, BOT), "run-1")
        assert [e.entry for e in await log(store)] == [1, 2]
        await child(store, "run-2", "run-1", participants=(BOT, SYSTEM))
        await store.commit(lease, [r.ended()], change=StatusChange("completed", "answer"))
        row = await store.interaction("acme", "talk-1")
        assert (row.participants, row.open_run) == ((ADA, BOT, SYSTEM), None)

    @stored
    async def test_reports_of_the_main_thread_are_told_apart_from_those_of_child_runs(self, store: Store) -> None:
        lease = await claimed(store)
        below = await child(store, "run-2", "run-1", thread_id="dispatch:p:1")
        await store.commit(lease, [], reports=[r.report(at_us=r.NOON + 1)])
        await store.commit(below, [], reports=[r.report("run-2", thread_id="dispatch:p:1", at_us=r.NOON + 2)])
        for main, runs in ((False, ["run-2", "run-1"]), (True, ["run-1"])):
            where = ReportFilter(main=main)
            assert [report.run_id for report in await store.reports("acme", where)] == runs
            assert [group.count for group in await store.report_groups("acme", where)] == [len(runs)]

    @stored
    async def test_interactions_are_listed_newest_first_and_in_pages(self, store: Store) -> None:
        await store.create(r.new_run("run-0", "talk-0", participants=[ADA]))
        for n in (1, 2):
            await store.open_interaction("acme", f"talk-{n}", [BOT], r.NOON + n)
        await store.open_interaction("other", "talk-3", [], r.NOON)
        every = await store.interactions("acme")
        assert [row.interaction_id for row in every] == ["talk-2", "talk-1", "talk-0"]
        assert every[-1] == await store.interaction("acme", "talk-0")
        assert (every[-1].created_at, every[-1].open_run, every[-1].participants) == (r.NOON, "run-0", (ADA,))
        assert await store.interactions("acme", limit=1) == every[:1]
        assert await store.interactions("acme", limit=5, before="talk-2") == every[1:]
        await refuses(store, NotFound, store.interactions("acme", before="talk-3"))
        await refuses(store, NotFound, store.interaction("acme", "talk-3"))
        await refuses(store, UsageError, store.interactions(""))

    @stored
    async def test_a_note_is_on_record_and_wakes_nobody(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [], change=r.paused())
        await store.post("acme", "run-1", NoteEntry(run_id="run-1", at=r.NOON, text="Look here"))
        entry = (await log(store))[-1]
        assert isinstance(entry, NoteEntry)
        assert (entry.text, entry.sequence) == ("Look here", 2)
        assert await runnable(store, "run-1") == [False]

    @stored
    async def test_a_run_that_waits_for_its_children_is_running_and_nobody_drives_it(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [], change=LEFT)
        row = await store.run("acme", "run-1")
        assert (row.status, row.owner, row.runnable, row.epoch) == ("running", None, False, 1)
        assert await store.claim(row, r.OTHER_WORKER) is not None

    @stored
    async def test_who_drives_a_run_no_more_begins_none_below_it(self, store: Store) -> None:
        lease = await claimed(store)
        await child(store, "run-2", "run-1", parent_epoch=lease.epoch)
        await store.commit(lease, [], change=LEFT)
        await refuses(store, Fenced, child(store, "run-3", "run-1", parent_epoch=lease.epoch))
        again = await store.claim(await store.run("acme", "run-1"), r.OTHER_WORKER)
        assert again is not None
        await refuses(store, Fenced, child(store, "run-3", "run-1", parent_epoch=lease.epoch))
        await child(store, "run-3", "run-1", parent_epoch=again.epoch)
        await store.commit(again, [r.ended()], change=StatusChange("cancelled", "cancelled"))
        await refuses(store, Fenced, child(store, "run-4", "run-1", parent_epoch=again.epoch))
        await refuses(store, NotFound, store.run("acme", "run-4"))

    @stored
    async def test_a_child_that_pauses_or_ends_makes_its_parent_runnable(self, store: Store) -> None:
        top = await claimed(store)
        middle = await child(store, "run-2", "run-1")
        below = await child(store, "run-3", "run-2")
        for lease in (top, middle):
            await store.commit(lease, [], change=LEFT)
        await store.commit(below, [r.turn("run-3", calls=0, text="so")])
        assert await runnable(store, "run-1", "run-2") == [False, False]
        await store.commit(below, [r.ended("run-3")], change=StatusChange("completed", "answer"))
        assert await runnable(store, "run-1", "run-2", "run-3") == [False, True, False]
        middle = await store.claim(await store.run("acme", "run-2"), r.WORKER) or middle
        await store.commit(middle, [], change=r.paused())
        assert await runnable(store, "run-1", "run-2") == [True, False]
        top = await store.claim(await store.run("acme", "run-1"), r.WORKER) or top
        await store.commit(top, [r.ended()], change=StatusChange("cancelled", "cancelled"))
        middle = await store.claim(await store.run("acme", "run-2"), r.WORKER) or middle
        await store.commit(middle, [r.ended("run-2")], change=StatusChange("cancelled", "cancelled"))
        assert await runnable(store, "run-1", "run-2") == [False, False]

    @stored
    async def test_a_run_is_erased_with_all_below_it_once_they_have_ended(self, store: Store) -> None:
        leases = [await claimed(store)]
        for run_id, parent in (("run-2", "run-1"), ("run-3", "run-2"), ("run-4", "run-1")):
            leases.append(await child(store, run_id, parent, text=f"a task of {run_id}"))
        for lease in (leases[3], leases[1], leases[0]):
            apart = r.kept_text(f"kept of {lease.run_id}", lease.run_id)
            reports = [r.report(lease.run_id)]
            made = [r.turn(lease.run_id), r.result(lease.run_id, attempt=0, text="what came of it")]
            await store.commit(lease, made, reports=reports, kept=[apart])
            await store.commit(lease, [r.ended(lease.run_id)], change=ENDED)
        before = [row async for row in store.rows()]
        await refuses(store, Conflict, store.erase("acme", "run-1", r.NOON))
        assert [row async for row in store.rows()] == before, "run-3 has not ended"
        await store.commit(leases[2], [r.ended("run-3")], change=ENDED)
        assert await store.erase("acme", "run-2", r.NOON) > 0
        gone = {row.run_id async for row in store.rows() if row.erased_at is not None}
        assert gone == {"run-2", "run-3"}, "not what is above or beside it"
        assert sorted(x.run_id for x in await store.reports("acme")) == ["run-1", "run-4"]
        assert await store.erase("acme", "run-1", r.NOON) > 0
        assert {row.content async for row in store.rows()} == {None}
        assert {x[2] async for x in store.kept_texts()} == {None}
        assert await store.reports("acme") == []
        assert await store.to_erase(("support",), r.NOON + 9, 10) == []

    @stored
    async def test_what_comes_while_the_parent_is_driven_is_not_lost_when_it_leaves(self, store: Store) -> None:
        top = await claimed(store)
        below = await child(store, "run-2", "run-1")
        await store.commit(below, [r.ended("run-2")], change=StatusChange("completed", "answer"))
        assert "run-1" in await store.posted(r.WORKER)
        await store.commit(top, [], change=LEFT)
        assert await runnable(store, "run-1") == [True]

    @stored
    async def test_a_decision_below_and_a_message_make_every_run_above_runnable(self, store: Store) -> None:
        top = await claimed(store)
        middle = await child(store, "run-2", "run-1")
        below = await child(store, "run-3", "run-2")
        await store.commit(below, [r.turn("run-3"), r.waiting("run-3")], change=r.paused())
        for lease in (middle, top):
            await store.commit(lease, [], change=r.paused())
        other = await store.create(r.new_run("run-4", "talk-4"))
        await store.commit(r.lease_of(other[0]), [], change=r.paused())
        await store.claim(await store.run("acme", "run-1"), r.WORKER)
        assert await store.approvals("acme", "run-1") == await store.approvals("acme", "run-3") != []
        assert await store.approvals("acme", "run-4") == []
        await store.decide("acme", "run-3", "call-0-0", r.decision())
        assert await runnable(store, "run-1", "run-2", "run-3", "run-4") == [True, True, True, False]
