"""The store suite: reading, texts kept apart, erasing, and the rows that `verify` reads."""

# ruff: noqa: S101, PLR2004  # tests, as those in tests/

from __future__ import annotations

import hashlib

import pytest

from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.codec import decode
from counterfoil.core.entries import ERASED, MessageEntry
from counterfoil.core.errors import Conflict, NotFound
from counterfoil.core.report import StoredError
from counterfoil.store import KeptRange, Lease, ReportFilter, StatusChange, Store
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import Bench, claimed, everything, log, refuses, stored

COMPLETED = StatusChange("completed", "answer")


async def finished(store: Store, run_id: str = "run-1", interaction_id: str = "talk-1") -> Lease:
    """A run with one of everything."""
    lease = await claimed(store, run_id, interaction_id)
    await store.commit(lease, [r.turn(run_id, calls=2, text="Hm"), r.start(run_id), r.waiting(run_id, index=1)])
    await store.commit(
        lease,
        [r.result(run_id, text="secret"), r.result(run_id, index=1, attempt=0)],
        reports=[r.report(run_id), r.report(run_id, index=1)],
        kept=[r.kept_text("a secret of the run " + run_id, "kept-" + run_id)],
    )
    await store.commit(lease, [r.ended(run_id)], change=COMPLETED)
    return lease


class ReadTests(Bench):
    """The reading methods, and erase."""

    @stored
    async def test_entries_are_read_from_a_number_on(self, store: Store) -> None:
        await finished(store)
        numbers = [e.entry for e in await log(store)]
        assert numbers == [1, 2, 3, 4, 5, 6, 7, 8]
        assert [e.entry for e in await store.entries("acme", "talk-1", after=6)] == [7, 8]
        assert await store.entries("acme", "talk-1", after=8) == []
        assert await store.entries("acme", "talk-1", after=2**31) == []

    @stored
    async def test_what_is_unknown_or_another_tenants_is_not_found(self, store: Store) -> None:
        await finished(store)
        for tenant, name in (("acme", "none"), ("other", ""), ("acme", "half \ud800 a pair"), ("\ud800", "")):
            with pytest.raises(NotFound):
                await store.run(tenant, name or "run-1")
            with pytest.raises(NotFound):
                await store.entries(tenant, name or "talk-1")
            with pytest.raises(NotFound):
                await store.kept(tenant, name or "kept-run-1")
            with pytest.raises(NotFound):
                await store.runs(tenant, before=name or "run-1")
        assert await everything(store, "other") == [[], [], [], (await everything(store))[3]]
        assert await store.reports("other", ReportFilter(run_id="run-1")) == []

    @stored
    async def test_runs_are_listed_newest_first_page_by_page(self, store: Store) -> None:
        for i in range(7):
            await claimed(store, f"run-{i}", f"talk-{i}", agent="a" if i % 2 else "b", created_at=r.NOON - i)
        await claimed(store, "run-9", "talk-9", tenant="other")
        assert [row.run_id for row in await store.runs("acme", limit=3)] == ["run-6", "run-5", "run-4"]
        page = await store.runs("acme", limit=3, before="run-4")
        assert [row.run_id for row in page] == ["run-3", "run-2", "run-1"]
        assert [row.run_id for row in await store.runs("acme", limit=3, before="run-1")] == ["run-0"]
        assert await store.runs("acme", before="run-0") == []
        assert await store.runs("acme", limit=0) == []

    @stored
    async def test_runs_are_listed_by_status_agent_and_interaction(self, store: Store) -> None:
        lease = await claimed(store)
        await store.commit(lease, [r.ended()], change=COMPLETED)
        await claimed(store, "run-2", new_interaction=False)
        await claimed(store, "run-3", "talk-3", agent="other")

        async def ids(**where: str) -> list[str]:
            return [row.run_id for row in await store.runs("acme", **where)]  # type: ignore[arg-type]  # texts alone

        assert await ids(status="running") == ["run-3", "run-2"]
        assert await ids(status="completed") == ["run-1"]
        assert await ids(agent="other") == ["run-3"]
        assert await ids(interaction_id="talk-1") == ["run-2", "run-1"]
        assert await ids(interaction_id="talk-1", status="running", agent="support") == ["run-2"]
        assert await ids(agent="' OR 1=1 --") == []

    @stored
    async def test_runs_that_others_wait_for_name_them_and_can_be_left_out(self, store: Store) -> None:
        await claimed(store)
        await store.create(r.new_run("run-2", new_interaction=False, parent="run-1"))
        await claimed(store, "run-3", "talk-3")
        rows = await store.runs("acme")
        assert [(row.run_id, row.parent) for row in rows] == [("run-3", None), ("run-2", "run-1"), ("run-1", None)]
        assert [row.to_json()["parentRunId"] for row in rows] == [None, "run-1", None]
        # A page is filled with what is asked for.
        assert [row.run_id for row in await store.runs("acme", roots=True, limit=2)] == ["run-3", "run-1"]
        assert [row.run_id for row in await store.runs("acme", roots=True, before="run-2")] == ["run-1"]
        assert await store.runs("acme", roots=True, interaction_id="talk-1", status="paused") == []

    @stored
    async def test_reports_are_read_newest_first_by_filter(self, store: Store) -> None:
        lease = await claimed(store)
        other = await claimed(store, "run-2", "talk-2")
        codes = (404, None, 2**70)
        error = StoredError("builtins.ValueError", "no", "Traceback …", ("KeyError: 7",))
        told = [r.report(index=i, error=error, code=c, at_us=r.NOON + i) for i, c in enumerate(codes)]
        await store.commit(lease, [], reports=told)
        await store.commit(other, [], reports=[r.report("run-2", tool_name="refund", at_us=r.NOON + 9)])

        async def ids(**where: object) -> list[str]:
            found = await store.reports("acme", ReportFilter(**where))  # type: ignore[arg-type]  # its fields
            return [f"{x.run_id} {x.call_id}" for x in found]

        assert await store.reports("acme", ReportFilter(run_id="run-1")) == told[::-1]
        assert await ids() == ["run-2 call-0-0", "run-1 call-0-2", "run-1 call-0-1", "run-1 call-0-0"]
        assert await ids(until=r.NOON + 1) == ["run-1 call-0-1", "run-1 call-0-0"]
        assert await ids(since=r.NOON + 1, until=r.NOON + 2) == ["run-1 call-0-2", "run-1 call-0-1"]
        assert await ids(tool_name="refund") == ["run-2 call-0-0"]
        assert await ids(code=404) == ["run-2 call-0-0", "run-1 call-0-0"]
        assert await ids(code=2**70) == ["run-1 call-0-2"]
        assert await ids(since=r.NOON + 2, run_id="run-1") == ["run-1 call-0-2"]
        assert await ids(limit=1) == ["run-2 call-0-0"]
        assert await ids(run_id="none") == []
        await store.commit(other, [], reports=[r.report("run-2", index=1, at_us=r.NOON + 1)])  # by a clock that is slow
        assert await ids(limit=4) == ["run-2 call-0-0", "run-1 call-0-2", "run-2 call-0-1", "run-1 call-0-1"]

    @stored
    async def test_reports_are_counted_by_tool_and_code_what_was_seen_last_first(self, store: Store) -> None:
        lease = await claimed(store)
        other = await claimed(store, "run-2", "talk-2")
        stranger = await claimed(store, "run-3", "talk-3", tenant="other")
        seen = ((404, 1), (None, 2), (2**70, 3), (404, 4), (7, 4), (12, 4))
        await store.commit(
            lease, [], reports=[r.report(index=i, code=c, at_us=r.NOON + at) for i, (c, at) in enumerate(seen)]
        )
        await store.commit(other, [], reports=[r.report("run-2", tool_name="refund", at_us=r.NOON + 9)])
        await store.commit(stranger, [], reports=[r.report("run-3", tenant_id="other")])

        async def groups(**where: object) -> list[tuple[object, ...]]:
            found = await store.report_groups("acme", ReportFilter(**where))  # type: ignore[arg-type]  # its fields
            return [(g.tool_name, g.code, g.count, g.first_us - r.NOON, g.last_us - r.NOON) for g in found]

        whole = [
            ("refund", 404, 1, 9, 9), ("get_order", 12, 1, 4, 4), ("get_order", 404, 2, 1, 4),
            ("get_order", 7, 1, 4, 4), ("get_order", 2**70, 1, 3, 3), ("get_order", None, 1, 2, 2),
        ]  # fmt: skip  # a table
        assert await groups() == whole
        assert await groups(limit=2) == whole[:2]
        assert await groups(run_id="run-2") == whole[:1]
        assert await groups(run_id="none") == []
        assert await groups(tool_name="get_order", code=404) == [whole[2]]
        assert await groups(code=404) == [whole[0], whole[2]]
        assert await groups(since=r.NOON + 2, until=r.NOON + 3) == whole[4:]
        await store.commit(lease, [r.ended()], change=COMPLETED)
        await store.erase("acme", "run-1", r.NOON)
        assert await groups() == whole[:1]

    @stored
    async def test_a_text_kept_apart_is_read_in_ranges_of_characters(self, store: Store) -> None:
        lease = await claimed(store)
        texts = {
            "ascii": "0123456789" * 30_000,
            "mixed": "aé漢👩" * 40_000 + "end",
            "wide": "👩" * 50_000,
            "nul": "\x00a" * 5,
            "empty": "",
        }
        await store.commit(lease, [], kept=[r.kept_text(text, name) for name, text in texts.items()])
        for name, text in texts.items():
            size = len(text.encode())
            assert await store.kept("acme", name) == KeptRange(text, 0, len(text), size)
            edges = {
                0,
                1,
                16_383,
                16_384,
                16_385,
                65_535,
                65_536,
                65_537,
                len(text) - 1,
                len(text),
                len(text) + 9,
            }
            for offset in sorted(e for e in edges if e >= 0):
                for limit in (0, 1, 5, 65_536, 10**6):
                    piece = await store.kept("acme", name, offset, limit)
                    assert piece == KeptRange(text[offset : offset + limit], offset, len(text), size)

    @stored
    async def test_texts_kept_apart_are_given_whole_to_verify(self, store: Store) -> None:
        lease = await claimed(store)
        text = "漢" * 100_000
        await store.commit(lease, [], kept=[r.kept_text(text), r.kept_text("x", "kept-2")])
        found = {kept_id: rest async for _, kept_id, *rest in store.kept_texts()}
        assert found["kept-1"] == [text.encode(), 300_000, hashlib.sha256(text.encode()).hexdigest()]
        assert found["kept-2"][0] == b"x"

    @stored
    async def test_an_erased_run_keeps_digests_sizes_and_its_chain(self, store: Store) -> None:
        await finished(store)
        await finished(store, "run-2", "talk-2")
        before = [row async for row in store.rows()]
        held = sum(row.content is not None for row in before if row.interaction_id == "talk-1")
        assert await store.erase("acme", "run-1", r.NOON + 5) == held + 1 + 2
        after = [row async for row in store.rows()]
        assert [(row.body, row.hash) for row in after] == [(row.body, row.hash) for row in before]
        for row, was in zip(after, before, strict=True):
            erased = row.interaction_id == "talk-1" and was.content is not None
            assert (row.content, row.erased_at) == ((None, r.NOON + 5) if erased else (was.content, None))
            assert decode(row.body, row.content, row.entry).sequence == was.sequence
        message, *_, result, _, _ = (await log(store))[1:]
        assert isinstance(message, MessageEntry)
        assert isinstance(result, ResultEntry)
        assert (message.text, result.result.model_output, result.size) == (ERASED, ERASED, 6)
        kept = await store.kept("acme", "kept-run-1")
        assert (kept.text, kept.total, kept.size, kept.erased_at) == ("", 25, 25, r.NOON + 5)
        assert [x[2:4] async for x in store.kept_texts()] == [(None, 25), (b"a secret of the run run-2", 25)]
        assert [x.run_id for x in await store.reports("acme")] == ["run-2", "run-2"]
        assert (await store.kept("acme", "kept-run-2")).text == "a secret of the run run-2"
        assert await store.erase("acme", "run-1", r.NOON + 6) == 0

    @stored
    async def test_only_the_run_is_erased_and_the_interaction_goes_on(self, store: Store) -> None:
        await finished(store)
        await claimed(store, "run-2", new_interaction=False, text="not this")
        await store.erase("acme", "run-1", r.NOON)
        last = (await log(store))[-1]
        assert isinstance(last, MessageEntry)
        assert (last.text, last.entry) == ("not this", 10)
        await store.commit(Lease("acme", "run-2", "talk-1", 1), [r.turn("run-2")])

    @stored
    async def test_a_run_that_has_not_ended_is_not_erased(self, store: Store) -> None:
        lease = await claimed(store)
        await refuses(store, Conflict, store.erase("acme", "run-1", r.NOON))
        await store.commit(lease, [], change=StatusChange("paused"))
        await refuses(store, Conflict, store.erase("acme", "run-1", r.NOON))

    @stored
    async def test_rows_come_by_interaction_and_number(self, store: Store) -> None:
        one, two = await claimed(store), await claimed(store, "run-2", "talk-2", tenant="other")
        for step in range(200):
            await store.commit(one, [r.turn(step=step)])
            await store.commit(two, [r.turn("run-2", step)])
        rows = [(row.tenant, row.interaction_id, row.entry) async for row in store.rows()]
        assert rows == [(t, i, n + 1) for t, i in (("acme", "talk-1"), ("other", "talk-2")) for n in range(202)]

    @stored
    async def test_an_empty_store_has_no_rows_and_no_heads(self, store: Store) -> None:
        assert [row async for row in store.rows()] == []
        assert await store.heads() == []
        assert [x async for x in store.kept_texts()] == []

    @stored
    async def test_the_version_differs_after_every_write(self, store: Store) -> None:
        seen = [await store.version()]
        assert await store.version() == seen[0]
        lease = await claimed(store)
        seen.append(await store.version())
        await store.commit(lease, [r.turn(), r.waiting()])
        seen.append(await store.version())
        await store.decide("acme", "run-1", "call-0-0", r.decision())
        seen.append(await store.version())
        await store.post("acme", "run-1", r.cancel())
        seen.append(await store.version())
        assert len(set(seen)) == 5
