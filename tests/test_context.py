"""Which items a request holds: the context budget (contract 6)."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.content import Audio, File, Image, Json, Kept, Link, Text
from counterfoil.core.context import (
    CHARS_PER_TOKEN,
    MEDIA_TOKENS,
    Cut,
    Fitter,
    estimate,
    estimate_elided,
    fit,
)
from counterfoil.core.entries import CallRecord, MessageEntry, TurnEntry
from counterfoil.core.outcome import SUCCEEDED
from counterfoil.core.pairs import check_pairs
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.turn import NO_USAGE, Usage
from tests import records
from tests.marks import law


class Book(records.Book):
    """A book of a provider that counts nothing, unless told."""

    def turn(self, *calls: tuple[str, str] | CallRecord, text: str = "", **more: Any) -> TurnEntry:
        return super().turn(*calls, text=text, **{"usage": NO_USAGE, **more})


def conversation(*sizes: Sequence[int], message: str = "Go.") -> Book:
    """A run whose steps have results of these numbers of characters."""
    book = Book()
    book.begin()
    book.message(message)
    for step in sizes:
        book.turn(*[("get", "{}")] * len(step))
        for index, size in enumerate(step):
            book.start(index)
            book.result(index, ToolResult.text("x" * size))
    return book


def shown(cut: Cut) -> list[str]:
    """The items of a cut in short: m, t, r with the step, e where elided."""
    out = []
    for position, item in enumerate(cut.items[: cut.length]):
        match item:
            case MessageEntry():
                out.append("m")
            case TurnEntry():
                out.append(f"t{item.step}")
            case ResultEntry():
                out.append(f"{'e' if position in cut.elided else 'r'}{item.step}")
    return out


# --------------------------------------------------------------------------------------------- budget


def test_without_a_budget_a_request_holds_everything_and_copies_nothing() -> None:
    items = conversation([10_000], [10_000]).record.items
    cut = fit(items, None)
    assert cut.items is items
    assert (cut.length, cut.elided, cut.left_out) == (5, frozenset(), 0)


def test_what_fits_is_whole() -> None:
    items = conversation([100], [100]).record.items
    cut = fit(items, 10_000)
    assert cut.items is items
    assert (shown(cut), cut.left_out) == (["m", "t0", "r0", "t1", "r1"], 0)
    assert cut.tokens == sum(map(estimate, items))


@law("6.context-budget")
def test_old_results_are_elided_first_the_oldest_first_until_a_quarter_of_the_room_is_free() -> None:
    items = conversation([4000], [4000], [4000], [4000]).record.items
    assert shown(fit(items, 4_113)) == ["m", "t0", "r0", "t1", "r1", "t2", "r2", "t3", "r3"]
    assert shown(fit(items, 4_112)) == ["m", "t0", "e0", "t1", "r1", "t2", "r2", "t3", "r3"], "3,341 at most"
    assert shown(fit(items, 3_800)) == ["m", "t0", "e0", "t1", "e1", "t2", "r2", "t3", "r3"], "3,107 at most"
    assert shown(fit(items, 2_100)) == ["m", "t0", "e0", "t1", "e1", "t2", "e2", "t3", "r3"]


@law("6.context-budget")
def test_the_record_keeps_what_a_request_leaves_out() -> None:
    book = conversation([4000], [4000], [4000])
    before = [(type(item), item.sequence) for item in book.record.items]
    fit(book.record.items, 100)
    assert [(type(item), item.sequence) for item in book.record.items] == before
    assert all(len(c.result.result.model_output) == 4000 for c in book.record.runs["run-1"].calls if c.result)


def test_the_newest_turn_stays_whole_and_messages_stay_even_when_that_is_too_much() -> None:
    book = conversation([4000], [4000], [4000, 4000])
    cut = fit(book.record.items, 1)
    assert (shown(cut), cut.left_out) == (["m", "t2", "r2", "r2"], 2)
    assert cut.tokens > 1


def test_whole_old_turns_are_left_out_with_all_their_results() -> None:
    book = conversation([4000, 4000], [4000], [4000])
    pointer = estimate_elided(next(i for i in book.record.items if isinstance(i, ResultEntry)))
    message, *_, turn, result = book.record.items
    newest = estimate(turn) + estimate(result)
    room = estimate(message) + estimate(turn) + pointer
    cut = fit(book.record.items, newest + room * 4 // 3 + 1)
    assert (shown(cut), cut.left_out) == (["m", "t1", "e1", "t2", "r2"], 1)


def test_messages_between_turns_that_are_left_out_stay_in_their_order() -> None:
    book = conversation([4000])
    book.message("Second.")
    book.turn(("get", "{}"), text="Hm.")
    book.start()
    book.result(0, ToolResult.text("x" * 4000))
    book.message("Third.")
    book.turn(text="An answer.")
    book.message("Fourth.")
    book.turn(("get", "{}"))
    book.start()
    book.result()
    cut = fit(book.record.items, 1)
    assert [i.text for i in cut.items if isinstance(i, MessageEntry)] == [
        "Go.",
        "Second.",
        "Third.",
        "Fourth.",
    ]
    assert [i.step for i in cut.items if isinstance(i, TurnEntry)] == [3]


def test_a_short_result_is_not_elided_where_the_pointer_would_be_longer() -> None:
    book = conversation([10], [4000], [10])
    whole = sum(map(estimate, book.record.items))
    assert shown(fit(book.record.items, whole))[:5] == ["m", "t0", "r0", "t1", "r1"]
    assert shown(fit(book.record.items, whole - 1))[:5] == ["m", "t0", "r0", "t1", "e1"]


def test_a_reserve_counts_against_the_budget() -> None:
    items = conversation([4000], [4000]).record.items
    assert fit(items, 3_000).elided == frozenset()
    assert fit(items, 3_000, reserve=1_500).elided == {2}


def test_a_call_without_its_result_is_never_left_out() -> None:
    book = conversation([4000])
    book.turn(("get", "{}"))
    open_turn = book.record.items[-1]
    book.turn(text="x" * 4000)
    cut = fit(book.record.items, 1)
    assert open_turn in cut.items


patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no fault."""
STEPS = st.lists(st.lists(st.integers(0, 3000), min_size=0, max_size=4), max_size=12)


@law("2.1")
@patient
@given(STEPS, st.integers(0, 5000), st.integers(0, 500), st.sets(st.integers(0, 11)))
def test_every_cut_keeps_pairs_messages_and_the_newest_turn(
    sizes: list[list[int]], budget: int, reserve: int, talks: set[int]
) -> None:
    book = Book()
    book.begin()
    book.message("Go.")
    for step, results in enumerate(sizes):
        book.turn(*[("get", "{}")] * len(results), text="text" if step in talks else "")
        for index, size in enumerate(results):
            book.result(index, ToolResult.text("x" * size))
        if step in talks:
            book.message(f"message {step}")
    items = book.record.items
    cut = fit(items, budget, reserve)
    kept = list(cut.items[: cut.length])
    check_pairs(kept)
    assert [i for i in kept if isinstance(i, MessageEntry)] == [i for i in items if isinstance(i, MessageEntry)]
    assert [i.entry for i in kept] == sorted(i.entry for i in kept)
    newest = max((p for p, i in enumerate(items) if isinstance(i, TurnEntry)), default=None)
    if newest is not None:
        assert kept[-len(items) + newest :] == items[newest:]
        turns = [p for p, i in enumerate(kept) if isinstance(i, TurnEntry)]
        assert all(position < turns[-1] for position in cut.elided)
    assert all(isinstance(kept[position], ResultEntry) for position in cut.elided)
    costs = [estimate_elided(i) if p in cut.elided else estimate(i) for p, i in enumerate(kept)]  # type: ignore[arg-type]  # only results are elided
    assert cut.tokens == sum(costs)
    if cut.tokens > budget - reserve:
        assert [i for i in kept if isinstance(i, TurnEntry)] == ([items[newest]] if newest is not None else [])


@patient
@given(STEPS, st.integers(0, 5000))
def test_a_fitter_that_was_asked_before_every_turn_gives_the_cut_of_one_that_sees_all_at_once(
    sizes: list[list[int]], budget: int
) -> None:
    fitter = Fitter(budget)
    book = Book()
    book.begin()
    book.message("Go.")
    for results in sizes:
        asked = fitter.fit(book.record.items)
        at_once = fit(book.record.items, budget)
        assert (shown(asked), asked.elided, asked.tokens) == (shown(at_once), at_once.elided, at_once.tokens)
        book.turn(*[("get", "{}")] * len(results), text="x")
        for index, size in enumerate(results):
            book.result(index, ToolResult.text("x" * size))


def test_most_steps_change_nothing_of_the_request_before_so_that_a_cache_of_it_counts() -> None:
    fitter, book, before, changed = Fitter(4_000), conversation(), [], 0
    for _ in range(200):
        book.turn(("get", "{}"))
        book.start()
        book.result(0, ToolResult.text("x" * 800))
        cut = fitter.fit(book.record.items)
        now = [(item.entry, position in cut.elided) for position, item in enumerate(cut.items[: cut.length])]
        changed += now[: len(before)] != before
        before = now
        assert cut.tokens <= 4_000
    assert changed <= 60, "200 where each cut makes no more room than it must"


@law("6.context-budget")
def test_what_the_provider_counted_counts_and_what_came_since_is_estimated() -> None:
    def cut_at(budget: int, counted: int, since: int = 0, reserve: int = 0) -> list[str]:
        book = conversation([4000], [4000])
        book.turn(("get", "{}"), usage=Usage(counted, 50))
        book.start()
        book.result(0, ToolResult.text("x" * 4000))
        return shown(Fitter(budget, since).fit(book.record.items, reserve))

    whole = ["m", "t0", "r0", "t1", "r1", "t2", "r2"]
    newest = 1026
    assert cut_at(8_000, 8_000 - newest) == whole
    assert cut_at(8_000, 8_001 - newest)[2] == "e0"
    assert cut_at(8_000, 0) == whole, "a provider that counts nothing"
    assert cut_at(8_000, 8_000 - newest, reserve=500) == whole, "it has counted what is reserved too"
    assert cut_at(8_000, 8_001 - newest, reserve=500)[2] == "e0"
    assert cut_at(8_000, 50_000, since=99) == whole, "a turn that another budget asked for says nothing"
    assert cut_at(3_000, 500) == whole, "fewer than were estimated"


def test_what_left_a_request_never_comes_back() -> None:
    fitter = Fitter(1_000)
    book = conversation()
    gone: set[int] = set()
    for _ in range(30):
        book.turn(("get", "{}"))
        book.start()
        book.result(0, ToolResult.text("x" * 1200))
        cut = fitter.fit(book.record.items)
        whole = {i.entry for p, i in enumerate(cut.items[: cut.length]) if p not in cut.elided}
        assert not gone & whole
        gone |= {i.entry for i in book.record.items} - whole
    assert cut.left_out > 0


def test_a_fitter_starts_anew_with_another_conversation() -> None:
    one, other = conversation([4000], [4000], [4000]), conversation([10], [10])
    fitter = Fitter(1_500)
    fitter.fit(one.record.items)
    assert shown(fitter.fit(other.record.items)) == shown(fit(other.record.items, 1_500))
    assert shown(fitter.fit(one.record.items)) == shown(fit(one.record.items, 1_500))


@law("6.growth")
def test_the_work_of_a_request_does_not_grow_with_the_run() -> None:
    book = conversation()
    fitter = Fitter(4_000)
    for _ in range(3_000):
        book.turn(("get", "{}"))
        book.start()
        book.result(0, ToolResult.text("x" * 400))
    fitter.fit(book.record.items)
    began = time.perf_counter()
    for _ in range(1_000):
        cut = fitter.fit(book.record.items)
    # A walk over all 6,000 items would take thousands of times as long as one over the 40 that are left.
    assert time.perf_counter() - began < 1.0
    assert cut.length < 200


# ------------------------------------------------------------------------------------------- estimates


@pytest.mark.parametrize(
    ("result", "tokens"),
    [
        (ToolResult.text("x" * 400), 100),
        (ToolResult.text(""), 0),
        (ToolResult.json("x" * 398), 100),
        (ToolResult.blocks(Image(b"x" * 1_000_000)), MEDIA_TOKENS),
        (ToolResult.blocks(Audio(b"x"), File(b"x"), Text("x" * 40)), 2 * MEDIA_TOKENS + 10),
        (ToolResult.blocks(Link("a:" + "b" * 6)), 2),
        (seal((Kept("id", 1_000_000, "x" * 400),), SUCCEEDED), 100),
        (ToolResult.blocks(Json({"a": 1}), Text("abc")), 3),
    ],
)
def test_four_characters_are_a_token_and_a_medium_is_a_constant(result: ToolResult, tokens: int) -> None:
    empty = ResultEntry(
        run_id="r", at=0, step=0, index=0, call_id="c", tool_name="t", result=ToolResult.text(""), size=0
    )
    entry = ResultEntry(run_id="r", at=0, step=0, index=0, call_id="c", tool_name="t", result=result, size=0)
    assert estimate(entry) - estimate(empty) == tokens


def test_a_turn_counts_text_names_arguments_and_reasoning() -> None:
    book = Book()
    small = estimate(book.turn(("", ""), text=""))
    assert estimate(book.turn(("get", "x" * 397), text="x" * 400)) - small == 200
    assert estimate(book.turn(("", ""), reasoning=["x" * 396])) - small == 400 // CHARS_PER_TOKEN
