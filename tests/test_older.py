"""A summary in place of the older part of a conversation: every cut with one, and what who writes it is told."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterfoil.adapters.stores.memory.store import StoredRow
from counterfoil.core.codec import GENESIS, chain, encode
from counterfoil.core.context import ROOM, estimate
from counterfoil.core.entries import ERASED, MessageEntry, SummaryEntry, TurnEntry
from counterfoil.core.laws import Checker
from counterfoil.core.older import Older, Summing, message_of, summaries_for
from counterfoil.core.pairs import check_pairs
from counterfoil.core.record import Item
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import NO_USAGE
from counterfoil.core.words import elided
from tests.marks import law
from tests.records import Book


def summed(book: Book, older: Older, text: str = "In short.", **more: object) -> SummaryEntry:
    head = {"run_id": book.run_id, "thread_id": book.thread, "at": book.at}
    entry: SummaryEntry = book.put(SummaryEntry(**head, text=text, first=older.first, last=older.last, **more))
    return entry


def problems(book: Book) -> list[str]:
    checker, previous, found = Checker(), GENESIS, []
    for e in book.entries:
        body, content = encode(e)
        previous = chain(previous, body)
        found += checker.feed(
            StoredRow(
                book.tenant, "talk", e.entry, e.run_id, e.kind, e.sequence, e.width, body, content, None, previous
            )
        )
    return [problem.message for problem in [*found, *checker.finish()]]


def step(book: Book, *sizes: int, text: str = "") -> None:
    book.turn(*[("get", "{}")] * len(sizes), text=text, usage=NO_USAGE)
    for index, size in enumerate(sizes):
        book.start(index)
        book.result(index, ToolResult.text("x" * size))


LENGTHS = st.sampled_from([None, 10, 400, 2000])
SIZES = st.tuples(st.lists(st.integers(0, 2000), max_size=3), st.integers(0, 1500), LENGTHS)
"""Of one step: characters of its results, of the message after it, and of a summary before it, if one comes."""
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@law("2.1", "6.context-budget")
@patient
@given(st.lists(SIZES, max_size=14), st.integers(0, 4000), st.integers(0, 300))
def test_every_cut_with_summaries_keeps_pairs_the_newest_turn_and_what_no_summary_covers(
    steps: list[tuple[list[int], int, int | None]], budget: int, reserve: int
) -> None:
    book, live = Book(), Summing(budget, 0, [], sums=True)
    book.begin()
    book.message("Go.")
    for results, said, length in steps:
        items = book.record.items
        while (older := live.older(items, reserve)) is not None:
            assert older.tokens > 0
            if length is None:
                live.came_to_nothing()
                break
            live.summaries.append(summed(book, older, "s" * length))
        cut = live.fit(items, reserve)
        kept: list[Item] = list(cut.items[: cut.length])
        check_pairs(kept)
        covered = live.summaries[-1].last if live.summaries else 0
        messages = [i for i in items if isinstance(i, MessageEntry) and i.sequence > covered]
        shown = [i for i in kept if isinstance(i, MessageEntry)]
        if live.summaries:
            assert shown.pop(0).text == message_of(live.summaries[-1]).text
        assert shown == messages
        newest = max((p for p, i in enumerate(items) if isinstance(i, TurnEntry)), default=None)
        if newest is not None:
            assert kept[newest - len(items) :] == items[newest:]
        # A process that takes the run up elsewhere makes the same request.
        anew = Summing(budget, 0, list(live.summaries), sums=True).fit(items, reserve)
        assert [(i.entry, type(i)) for i in anew.items[: anew.length]] == [(i.entry, type(i)) for i in kept]
        assert (anew.elided, anew.tokens) == (cut.elided, cut.tokens)
        step(book, *results, text="" if results else "text")
        if said:
            book.message("m" * said)
    assert problems(book) == []


def conversation(messages: int) -> Book:
    book = Book()
    book.begin()
    for number in range(messages):
        book.message(f"{number} " + "m" * 1998)
        step(book, 4000, 10)
    return book


def test_it_covers_so_much_that_half_of_the_room_is_free_and_leaves_the_rest() -> None:
    book = conversation(6)
    fitter = Summing(3_000, 0, [], sums=True)
    older = fitter.older(book.record.items, 0)
    assert older is not None
    entry = summed(book, older)
    fitter.summaries.append(entry)
    cut = fitter.fit(book.record.items)
    fresh = sum(map(estimate, book.record.items[-3:]))
    assert cut.tokens <= 3_000 - (3_000 - fresh) // 2
    assert entry.last == book.record.items[-4].sequence - 1, "the newest turn and the message before it are left"


def test_who_sums_up_is_told_words_calls_and_results_in_short() -> None:
    book = Book()
    book.begin()
    book.message("Refund.", author_name="ada")
    book.turn(("get", '{"id": 1}'), text="m" * 400, thought="canary", reasoning=["canary"], usage=NO_USAGE)
    book.start()
    book.result(0, ToolResult.text("y" * 3000).with_details("canary").with_narration("canary"))
    book.turn(("get", "{}"), usage=NO_USAGE)
    book.start()
    book.result()
    older = Summing(180, 0, [], sums=True).older(book.record.items, 0)
    assert older is not None
    assert older.text.splitlines() == [
        "[ada] Refund.",
        "[agent] " + "m" * 400,
        '[call c0.0 of get] {"id": 1}',
        f"[result of call c0.0] {elided('c0.0', 3000)}",
    ]
    assert (older.first, older.last, older.words) == (1, 5, 50)


def test_nothing_is_summed_up_that_fits_or_is_too_little() -> None:
    book = conversation(3)
    assert Summing(20_000, 0, [], sums=True).older(book.record.items, 0) is None
    assert Summing(None, 0, [], sums=True).older(book.record.items, 0) is None
    assert Summing(100, 0, [], sums=False).older(book.record.items, 0) is None
    short = Book()
    short.begin()
    short.message("Go.")
    step(short, 10)
    short.message("m" * 9000)
    assert Summing(1_000, 0, [], sums=True).older(short.record.items, 0) is None, (
        "one short message and the newest turn"
    )


def test_after_one_that_came_to_nothing_the_next_waits_for_a_quarter_of_the_budget() -> None:
    book, fitter, asked = conversation(6), Summing(2_000, 0, [], sums=True), []
    for number in range(12):
        if fitter.older(book.record.items, 0) is not None:
            asked.append(number)
            fitter.came_to_nothing()
        assert fitter.fit(book.record.items).left_out
        book.message("m" * (2_000 // ROOM - 10))
        step(book, 10)
    # A step takes 156 tokens and a quarter of the budget is 500; the first ask did not count what was newest then.
    assert asked == [0, 3, 7, 11]


@pytest.mark.parametrize("own", [False, True])
def test_a_run_reads_summaries_of_its_own_and_of_its_agents_runs_on_the_main_thread(own: bool) -> None:  # a case
    book = Book()
    older = Older(1, 1, "", 50, 9)
    main = [("desk", None, text) for text in ("a", ERASED, "d")]
    runs = [main[0], ("other", None, "b"), ("desk", "private:x", "c"), *main[1:]]
    for number, (agent, thread, text) in enumerate(runs):
        book.on(f"run-{number}", thread).begin(agent)
        book.message()
        summed(book, older, text)
    found = summaries_for(book.record, book.record.runs["run-4"], own=own)
    assert [entry.text for entry in found] == (["d"] if own else ["a", "d"])


def test_results_that_were_elided_before_a_summary_stay_so_in_a_process_that_takes_the_run_up() -> None:
    book, fitter = Book(), Summing(3_000, 0, [], sums=True)
    book.begin()
    for _ in range(12):
        book.message("m" * 800)
        step(book, 400)
    older = fitter.older(book.record.items, 0)
    assert older is not None
    fitter.summaries.append(summed(book, older))
    cut = fitter.fit(book.record.items)
    assert cut.elided
    assert Summing(3_000, 0, list(fitter.summaries), sums=True).fit(book.record.items).elided == cut.elided
