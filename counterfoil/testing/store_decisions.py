"""The store suite: approvals are opened, decided once, consumed once and closed."""

# ruff: noqa: S101, PLR2004  # tests, as those in tests/

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from counterfoil.core.call_entries import DecidedEntry
from counterfoil.core.errors import DecisionConflict, Fenced, NotFound, NotPending
from counterfoil.store import Lease, StatusChange, Store
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import Bench, claimed, kinds, log, refuses, stored

CALL = ("acme", "run-1", "call-0-0")


async def asking(store: Store, calls: int = 1) -> Lease:
    """A run whose calls wait for a person."""
    lease = await claimed(store)
    await store.commit(lease, [r.turn(calls=calls), *(r.waiting(index=i) for i in range(calls))])
    return lease


class DecisionTests(Bench):
    """decide, and the approvals in a commit."""

    @stored
    async def test_a_decision_is_put_on_record_and_makes_the_run_runnable(self, store: Store) -> None:
        lease = await asking(store)
        await store.commit(lease, [], change=StatusChange("paused"))
        assert not (await store.run("acme", "run-1")).runnable
        decision = r.decision(reason="fine \x00 👍", input=b'{"id":8}', digest=r.approval().digest)
        assert await store.decide(*CALL, decision) == (r.approval(), True)
        assert (await store.run("acme", "run-1")).runnable
        entry = (await log(store))[-1]
        assert isinstance(entry, DecidedEntry)
        assert entry.decision == replace(decision, approval="ask-0-0")
        assert (entry.approval_id, entry.call_id) == ("ask-0-0", "call-0-0")
        assert (entry.step, entry.index, entry.tool_name, entry.at) == (0, 0, "get_order", r.NOON)
        assert await store.approvals("acme") == []

    @stored
    async def test_an_equal_repeat_is_acknowledged_and_changes_nothing(self, store: Store) -> None:
        await asking(store)
        await store.decide(*CALL, r.decision(reason="first"))
        entries = await kinds(store)
        assert await store.decide(*CALL, r.decision(by="ada", reason="second")) == (r.approval(), False)
        assert await store.decide(*CALL, r.decision(digest=r.approval().digest)) == (r.approval(), False)
        assert await kinds(store) == entries

    @stored
    async def test_a_different_decision_is_a_conflict_for_ever(self, store: Store) -> None:
        lease = await asking(store)
        await store.decide(*CALL, r.decision())
        for other in (r.decision("reject"), r.decision(input=b"{}"), r.decision(digest="of another input")):
            await refuses(store, DecisionConflict, store.decide(*CALL, other))
        await store.commit(lease, [r.start(approval_id="ask-0-0")])
        await store.commit(lease, [r.result()])
        await store.commit(lease, [r.ended()], change=StatusChange("completed", "answer"))
        await refuses(store, DecisionConflict, store.decide(*CALL, r.decision("reject")))
        assert await store.decide(*CALL, r.decision()) == (r.approval(), False)

    @stored
    async def test_a_decision_on_another_input_is_a_conflict(self, store: Store) -> None:
        await asking(store)
        await refuses(store, DecisionConflict, store.decide(*CALL, r.decision(digest="f" * 64)))
        assert len(await store.approvals("acme")) == 1

    @stored
    async def test_of_many_decisions_at_once_one_wins(self, store: Store) -> None:
        await asking(store)
        choices = [r.decision("approve" if i % 2 else "reject", by=f"p{i}") for i in range(50)]
        ends = await asyncio.gather(*(store.decide(*CALL, c) for c in choices), return_exceptions=True)
        wins = [c for c, end in zip(choices, ends, strict=True) if isinstance(end, tuple) and end[1]]
        equal = [c for c, end in zip(choices, ends, strict=True) if isinstance(end, tuple) and not end[1]]
        assert len(wins) == 1
        assert len(equal) == 24
        assert {c.choice for c in equal} == {wins[0].choice}
        assert sum(isinstance(end, DecisionConflict) for end in ends) == 25
        assert (await kinds(store)).count("decided") == 1

    @stored
    async def test_what_awaits_no_decision_is_not_pending(self, store: Store) -> None:
        lease = await asking(store, calls=2)
        await store.commit(lease, [r.result(attempt=0)])
        await refuses(store, NotPending, store.decide(*CALL, r.decision()))
        await refuses(store, NotPending, store.decide("acme", "run-1", "unknown", r.decision()))
        await refuses(store, NotPending, store.decide("acme", "run-1", "call-0-1", r.decision("answer")))

    @stored
    async def test_an_expired_approval_is_not_pending_by_the_decisions_own_time(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.turn(), r.waiting(expires_at=r.later(1))])
        await refuses(store, NotPending, store.decide(*CALL, r.decision(at=r.NOON + 1)))
        assert (await store.decide(*CALL, r.decision(at=r.NOON)))[1]

    @stored
    async def test_an_end_closes_every_approval(self, store: Store) -> None:
        lease = await asking(store, calls=2)
        await store.commit(lease, [r.ended(status="cancelled")], change=StatusChange("cancelled", "cancelled"))
        assert await store.approvals("acme") == []
        await refuses(store, NotPending, store.decide(*CALL, r.decision()))

    @stored
    async def test_a_cancel_closes_every_approval_and_leaves_decisions(self, store: Store) -> None:
        await asking(store, calls=2)
        assert (await store.decide(*CALL, r.decision()))[1]
        await store.post("acme", "run-1", r.cancel())
        assert await store.approvals("acme") == []
        other = ("acme", "run-1", "call-0-1")
        await refuses(store, NotPending, store.decide(*other, r.decision()))
        assert not (await store.decide(*CALL, r.decision()))[1]

    @stored
    async def test_an_approval_is_consumed_by_one_start(self, store: Store) -> None:
        lease = await asking(store)
        await store.decide(*CALL, r.decision())
        used = r.start(approval_id="ask-0-0")
        await store.commit(lease, [used])
        again = r.start(approval_id="ask-0-0", attempt=2)
        await refuses(store, Fenced, store.commit(lease, [again]))
        await store.commit(lease, [r.start(attempt=2)])

    @stored
    async def test_an_approval_that_gives_no_start_is_refused(self, store: Store) -> None:
        lease = await asking(store, calls=3)
        named = r.start(approval_id="ask-0-0")
        await refuses(store, Fenced, store.commit(lease, [named]))
        await store.decide(*CALL, r.decision("reject"))
        await refuses(store, Fenced, store.commit(lease, [named]))
        await store.decide("acme", "run-1", "call-0-1", r.decision())
        await refuses(store, Fenced, store.commit(lease, [r.start(index=2, approval_id="ask-0-1")]))
        await refuses(store, Fenced, store.commit(lease, [r.start(approval_id="unknown")]))
        twice = [r.start(index=1, approval_id="ask-0-1"), r.start(index=1, attempt=2, approval_id="ask-0-1")]
        await refuses(store, Fenced, store.commit(lease, twice))
        await store.commit(lease, twice[:1])

    @stored
    async def test_an_approval_of_another_run_gives_no_start(self, store: Store) -> None:
        await asking(store)
        await store.decide(*CALL, r.decision())
        other = await claimed(store, "run-2", "talk-2")
        start = r.start("run-2", approval_id="ask-0-0")
        await refuses(store, Fenced, store.commit(other, [r.turn("run-2"), start]))

    @stored
    async def test_many_starts_at_once_consume_an_approval_once(self, store: Store) -> None:
        lease = await asking(store)
        await store.decide(*CALL, r.decision())
        starts = [store.commit(lease, [r.start(attempt=i + 1, approval_id="ask-0-0")]) for i in range(20)]
        ends = await asyncio.gather(*starts, return_exceptions=True)
        assert sum(isinstance(end, Fenced) for end in ends) == 19
        assert (await kinds(store)).count("start") == 1

    @stored
    async def test_an_interrupted_call_runs_again_by_a_decision_of_its_own(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.turn(), r.start(), r.waiting(kind="interrupted")])
        await refuses(store, NotPending, store.decide(*CALL, r.decision("approve")))
        await store.decide(*CALL, r.decision("rerun"))
        await store.commit(lease, [r.start(attempt=2, approval_id="ask-0-0")])
        await store.commit(lease, [r.result(attempt=2)])

    @stored
    async def test_the_newest_approval_of_a_call_is_the_one_that_counts(self, store: Store) -> None:
        lease = await asking(store)
        await store.decide(*CALL, r.decision())
        await store.commit(lease, [r.waiting(id="second", after="ask-0-0", digest="d2")])
        (open_now,) = await store.approvals("acme")
        assert (open_now.id, open_now.after) == ("second", "ask-0-0")
        given, first = await store.decide(*CALL, r.decision("reject", digest="d2"))
        assert (given.id, first) == ("second", True)

    @stored
    async def test_a_repeat_of_an_earlier_decision_decides_nothing_new(self, store: Store) -> None:
        lease = await asking(store)
        seen = r.approval().digest
        await store.decide(*CALL, r.decision(digest=seen))
        await store.commit(lease, [r.waiting(id="second", after="ask-0-0", digest="d2")])
        entries = await kinds(store)
        ways: list[dict[str, Any]] = [
            {"digest": seen},
            {"approval": "ask-0-0"},
            {"approval": "ask-0-0", "digest": seen},
        ]
        for named in ways:
            assert await store.decide(*CALL, r.decision(by="ada", **named)) == (r.approval(), False)
            await refuses(store, DecisionConflict, store.decide(*CALL, r.decision("reject", **named)))
        await refuses(store, DecisionConflict, store.decide(*CALL, r.decision(digest="d3")))
        await refuses(store, DecisionConflict, store.decide(*CALL, r.decision(approval="second", digest=seen)))
        await refuses(store, NotPending, store.decide(*CALL, r.decision(approval="third")))
        assert [a.id for a in await store.approvals("acme")] == ["second"]
        assert await kinds(store) == entries
        given, first = await store.decide(*CALL, r.decision("reject", approval="second", digest="d2"))
        assert (given.id, first) == ("second", True)

    @stored
    async def test_a_repeat_of_an_approval_is_no_word_on_what_was_interrupted_after_it(self, store: Store) -> None:
        lease = await asking(store)
        await store.decide(*CALL, r.decision())
        await store.commit(lease, [r.start(approval_id="ask-0-0"), r.waiting(id="cut", kind="interrupted")])
        assert await store.decide(*CALL, r.decision()) == (r.approval(), False)
        await refuses(store, DecisionConflict, store.decide(*CALL, r.decision("reject")))
        assert [a.id for a in await store.approvals("acme")] == ["cut"]

    @stored
    async def test_a_new_approval_takes_the_place_of_an_open_one(self, store: Store) -> None:
        lease = await asking(store)
        await store.commit(lease, [r.waiting(id="second", after="ask-0-0")])
        assert [a.id for a in await store.approvals("acme")] == ["second"]

    @stored
    async def test_what_waits_is_listed_oldest_first(self, store: Store) -> None:
        lease = await claimed(store)
        other = await claimed(store, "run-2", "talk-2")
        late, early = r.waiting(requested_at=r.later(9)), r.waiting("run-2", requested_at=r.later(1))
        await store.commit(lease, [r.turn(calls=2), late, r.waiting(index=1, expires_at=r.later(0))])
        await store.commit(other, [r.turn("run-2"), early])
        listed = await store.approvals("acme")
        assert [(a.run_id, a.call_id) for a in listed] == [
            ("run-1", "call-0-1"),
            ("run-2", "call-0-0"),
            ("run-1", "call-0-0"),
        ]
        assert listed[1] == early.approval
        assert [a.call_id for a in await store.approvals("acme", "run-1")] == ["call-0-1", "call-0-0"]
        assert await store.approvals("other") == []
        for tenant, run_id in (("acme", "none"), ("other", "run-1")):
            with pytest.raises(NotFound):
                await store.approvals(tenant, run_id)
