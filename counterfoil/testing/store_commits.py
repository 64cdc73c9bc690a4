"""The store suite: what a driver may append, and what is refused."""

# ruff: noqa: S101, PLR2004  # tests, as those in tests/

from __future__ import annotations

import asyncio

from counterfoil.core.call_entries import MemoEntry, ResultEntry
from counterfoil.core.entries import Entry
from counterfoil.core.errors import Fenced, UsageError
from counterfoil.core.jsontext import JsonValue
from counterfoil.store import Behind, Lease, StatusChange, Store
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import Bench, claimed, kinds, log, refuses, stored

HOSTILE = (
    "",
    "\x00 in \x00 the middle",
    "\ufeff\u202e bidi \u2028\u2029",
    "👩‍👩‍👧‍👦" * 10,
    "é" * 70_000,
    '"; DROP TABLE entries; --',
    str(2**63) + " " + str(-(2**64)),
    "half \ud83d a pair",
    "x" * 10_000_000,
)
"""Texts that have broken stores."""


class CommitTests(Bench):
    """commit."""

    @stored
    async def test_entries_are_numbered_and_a_turn_reserves_the_numbers_of_its_results(self, store: Store) -> None:
        lease = await claimed(store)
        first = r.turn(calls=2, text="Let me see")
        assert await store.commit(lease, [first, r.start(), r.start(index=1)]) == 5
        assert [(e.entry, e.sequence, e.width) for e in await log(store)][2:] == [
            (3, 2, 5),
            (4, 0, 0),
            (5, 0, 0),
        ]
        assert (first.entry, first.sequence) == (3, 2)
        await store.post("acme", "run-1", r.queued())
        assert await store.commit(lease, [r.result(index=1), r.result()]) == 8
        assert await store.commit(lease, [r.turn(step=1, calls=0, text="Done")]) == 9
        assert [(e.entry, e.sequence) for e in await log(store)][-1] == (9, 7)

    @stored
    async def test_every_kind_of_content_survives(self, store: Store) -> None:
        lease = await claimed(store)
        entries: list[Entry] = [r.turn(calls=len(HOSTILE), text="".join(HOSTILE[:-1]))]
        entries += [r.result(index=i, attempt=0, text=text) for i, text in enumerate(HOSTILE)]
        big: JsonValue = {"n": [2**63, -(2**70), 1.5e300, True, None], "\x00": "\x00"}
        entries.append(
            MemoEntry(run_id="run-1", at=2**62, step=0, index=0, call_id="c", tool_name="t", name="m", value=big)
        )
        await store.commit(lease, entries)
        stored_entries = (await log(store))[3:]
        results = [e.result.model_output for e in stored_entries if isinstance(e, ResultEntry)]
        clean = [t.replace("\ud83d", "\ufffd") or "(no output)" for t in HOSTILE]
        assert results == clean
        (memo,) = [e for e in stored_entries if isinstance(e, MemoEntry)]
        assert (memo.value, memo.at) == (big, 2**62)

    @stored
    async def test_names_and_ids_may_be_hostile(self, store: Store) -> None:
        for i, name in enumerate(HOSTILE[1:7]):
            lease = await claimed(store, name, name, tenant=name, agent=name, key=name, key_digest=name, pool=name)
            waiting = r.waiting(name, id=name, tool_name=name)
            waiting.call_id = name
            await store.commit(lease, [r.turn(name, text=name), waiting])
            assert (await store.run(name, name)).agent == name
            assert [a.id for a in await store.approvals(name, name)] == [name]
            assert (await store.decide(name, name, name, r.decision(by=name, reason=name)))[1]
            assert [row.run_id for row in await store.runs(name)] == [name]
            assert (await store.counts([name], name))[0] == 1
            assert len(await store.heads()) == i + 1

    @stored
    async def test_a_lease_of_an_older_epoch_is_fenced(self, store: Store) -> None:
        old = await claimed(store)
        new = await store.claim(await store.run("acme", "run-1"), r.OTHER_WORKER)
        assert new is not None
        await refuses(store, Fenced, store.commit(old, [r.turn()], reports=[r.report()], kept=[r.kept_text("x")]))
        await store.commit(new, [r.turn()])

    @stored
    async def test_a_run_that_nobody_claimed_cannot_be_written(self, store: Store) -> None:
        await store.create(r.new_run(owner=None))
        await refuses(store, Fenced, store.commit(Lease("acme", "run-1", "talk-1", 0), [r.turn()]))

    @stored
    async def test_an_ended_run_cannot_be_written(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.ended()], change=StatusChange("completed", "answer"))
        await refuses(store, Fenced, store.commit(lease, [r.turn()]))

    @stored
    async def test_an_attempt_is_started_once_and_attempts_grow(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.turn(calls=2), r.start()])
        await refuses(store, Fenced, store.commit(lease, [r.start()]))
        await refuses(store, Fenced, store.commit(lease, [r.start(index=1, attempt=0)]))
        await store.commit(lease, [r.start(index=1), r.start(attempt=2)])
        await refuses(store, Fenced, store.commit(lease, [r.start(attempt=1)]))

    @stored
    async def test_a_call_has_one_result_and_the_first_stays(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.turn(), r.start()])
        await store.commit(lease, [r.result(text="first")])
        await refuses(store, Fenced, store.commit(lease, [r.result(text="second")], reports=[r.report()]))
        await refuses(store, Fenced, store.commit(lease, [r.start(attempt=2)]))
        last = (await log(store))[-1]
        assert isinstance(last, ResultEntry)
        assert last.result.model_output == "first"

    @stored
    async def test_a_result_names_the_newest_attempt(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.turn(calls=2), r.start(), r.start(attempt=2)])
        for attempt in (-1, 0, 1, 3):
            await refuses(store, Fenced, store.commit(lease, [r.result(attempt=attempt)]))
        await store.commit(lease, [r.result(attempt=2)])
        for attempt in (-1, 1):
            await refuses(store, Fenced, store.commit(lease, [r.result(index=1, attempt=attempt)]))
        await store.commit(lease, [r.result(index=1, attempt=0)])

    @stored
    async def test_a_late_result_is_only_logged(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.turn(), r.start(), r.result()])
        await store.commit(lease, [r.late(text="late")])
        assert (await kinds(store))[-2:] == ["result", "late"]

    @stored
    async def test_a_commit_is_written_whole_or_not_at_all(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.turn(calls=3), r.start()])
        good, bad = r.result(), r.start()
        change = StatusChange("completed", "answer")
        for batch in (
            [good, bad],
            [r.start(index=1), r.start(index=1)],
            [good, r.result()],
            [good, r.start(attempt=2)],
        ):
            await refuses(
                store,
                Fenced,
                store.commit(lease, batch, change=change, reports=[r.report()], kept=[r.kept_text("x")]),
            )
        await store.commit(lease, [r.start(index=1), r.result(index=1), r.start(attempt=2), r.result(attempt=2)])

    @stored
    async def test_the_laws_hold_for_each_run_by_itself(self, store: Store) -> None:
        one = await claimed(store)
        two = await claimed(store, "run-2", new_interaction=False, parent="run-1")
        three = await claimed(store, "run-1", "talk-1", tenant="other")
        for lease in (one, two, three):
            await store.commit(lease, [r.turn(lease.run_id), r.start(lease.run_id), r.result(lease.run_id)])

    @stored
    async def test_an_entry_of_another_run_or_thread_is_refused(self, store: Store) -> None:
        lease = await claimed(store)
        await claimed(store, "run-2", new_interaction=False, parent="run-1")
        await refuses(store, UsageError, store.commit(lease, [r.result("run-2", attempt=0)]))
        thread = "private:6f0f3c2e-51c3-5d0f-9d5a-2f4b1a7c8e10"
        await refuses(store, UsageError, store.commit(lease, [r.turn(thread_id=thread)]))
        await refuses(store, UsageError, store.commit(lease, [r.turn(), r.result(attempt=0, thread_id=thread)]))

    @stored
    async def test_a_commit_that_is_behind_writes_nothing(self, store: Store) -> None:
        lease = await claimed(store)
        await store.post("acme", "run-1", r.cancel())
        await refuses(store, Behind, store.commit(lease, [r.turn()], expect=2))
        assert await store.commit(lease, [r.turn()], expect=3) == 4
        assert await store.commit(lease, [], expect=4) == 4

    @stored
    async def test_of_many_commits_that_expect_the_same_entry_one_is_written(self, store: Store) -> None:
        lease = await claimed(store)
        commits = [store.commit(lease, [r.turn(step=i)], expect=2) for i in range(20)]
        ends = await asyncio.gather(*commits, return_exceptions=True)
        assert sum(isinstance(end, Behind) for end in ends) == 19
        assert await kinds(store) == ["run", "message", "turn"]

    @stored
    async def test_of_many_starts_and_results_at_once_one_each_is_written(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.turn()])
        for entry in (r.start, r.result):
            writes = [store.commit(lease, [entry()]) for _ in range(50)]
            ends = await asyncio.gather(*writes, return_exceptions=True)
            assert sum(isinstance(end, Fenced) for end in ends) == 49
        assert await kinds(store) == ["run", "message", "turn", "start", "result"]

    @stored
    async def test_many_runs_at_once_keep_their_numbers_and_chains(self, store: Store) -> None:
        async def live(i: int) -> None:
            lease = await claimed(
                store, f"run-{i}", f"talk-{i % 5}", new_interaction=i < 5, parent="p" if i >= 5 else None
            )
            for step in range(3):
                await store.commit(lease, [r.turn(lease.run_id, step), r.start(lease.run_id, step)])
                await store.commit(lease, [r.result(lease.run_id, step)])

        await asyncio.gather(*(live(i) for i in range(5)))
        await asyncio.gather(*(live(i) for i in range(5, 40)))
        for i in range(5):
            entries = await log(store, f"talk-{i}")
            taken = [n for e in entries for n in range(e.sequence, e.sequence + e.width)]
            assert taken == list(range(1, len(taken) + 1))
            assert len(entries) == 8 * 11

    @stored
    async def test_a_report_is_written_with_its_result(self, store: Store) -> None:
        lease = await claimed(store)
        boom = ValueError("boom")
        await store.commit(lease, [r.turn(), r.result(attempt=0)], reports=[r.report(error=boom, code=2**70)])
        (back,) = await store.reports("acme")
        assert back.to_json() == r.report(error=boom, code=2**70).to_json()

    @stored
    async def test_a_text_is_kept_once(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [], kept=[r.kept_text("one"), r.kept_text("one")])
        await store.commit(lease, [r.turn()], kept=[r.kept_text("one")])
        await refuses(store, Fenced, store.commit(lease, [r.result(attempt=0)], kept=[r.kept_text("two")]))
        assert (await store.kept("acme", "kept-1")).text == "one"
