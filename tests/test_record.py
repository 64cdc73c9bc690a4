"""The fold: entries in order of arrival become runs, calls and items."""

from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.call_entries import DecidedEntry, MemoEntry, ResultEntry, WaitingEntry
from counterfoil.core.entries import EndedEntry, MessageEntry, PausedEntry, ResumedEntry, TurnEntry
from counterfoil.core.limits import DEFAULT_LIMITS, Limits
from counterfoil.core.outcome import SUCCEEDED
from counterfoil.core.record import Record
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.turn import Usage
from tests.marks import case, law
from tests.records import OUTCOMES, Book, a_call, ended


def begun(*calls: tuple[str, str]) -> Book:
    book = Book()
    book.begin()
    book.message()
    if calls:
        book.turn(*calls)
    return book


def test_each_entry_goes_where_readers_look_for_it() -> None:
    book = begun(("refund", "{}"))
    waiting = book.wait()
    decided = book.decide()
    start = book.start()
    result = book.result()
    late = book.late()
    call = book.call(0)
    assert (call.waiting, call.decided, call.start, call.result, call.late) == (
        waiting, decided, start, result, [late],
    )  # fmt: skip  # a row
    assert call.key == (0, 0)
    assert book.record.tip == late.entry == 8


def test_memos_of_a_call_are_kept_by_name() -> None:
    book = begun(("refund", "{}"))
    for name, value in (("rate", 1), ("rate", 2), ("key", None)):
        head = {
            "run_id": "run-1",
            "at": book.at,
            "step": 0,
            "index": 0,
            "call_id": "c0.0",
            "tool_name": "refund",
        }
        book.put(MemoEntry(**head, name=name, value=value))  # type: ignore[arg-type]  # as the book makes heads
    assert book.call(0).memos == {"rate": 2, "key": None}


@law("2.2")
@given(st.permutations(range(4)))
def test_results_join_the_items_in_call_order_when_the_batch_is_complete(arrival: list[int]) -> None:
    book = begun(*[("get", "{}")] * 4)
    for index in arrival[:-1]:
        book.result(index)
        assert [type(item) for item in book.record.items] == [MessageEntry, TurnEntry]
    book.result(arrival[-1])
    assert [item.index for item in book.record.items if isinstance(item, ResultEntry)] == [0, 1, 2, 3]


@given(st.data())
def test_folding_entry_by_entry_equals_folding_them_at_once(data: st.DataObject) -> None:
    book = begun(("a", "{}"), ("b", "{}"))
    for index in data.draw(st.permutations(range(2))):
        if data.draw(st.booleans()):
            book.wait(index)
            book.decide(index, data.draw(st.sampled_from(["approve", "reject"])))
        if data.draw(st.booleans()):
            book.start(index)
        book.result(index, ended(data.draw(st.sampled_from(list(OUTCOMES.values())))))
    again = Record(book.entries)
    one, other = again.runs["run-1"], book.record.runs["run-1"]
    assert again.items == book.record.items
    assert (one.status, one.failed_steps, one.seconds, one.open, one.usage) == (
        other.status, other.failed_steps, other.seconds, other.open, other.usage,
    )  # fmt: skip  # a row
    assert [c.state for c in one.calls] == [c.state for c in other.calls]


# ---------------------------------------------------------------------------------- where a call stands


def test_the_life_of_a_call() -> None:
    book = begun(("refund", "{}"))
    seen = [book.call(0).state]
    book.wait()
    seen.append(book.call(0).state)
    book.decide()
    seen.append(book.call(0).state)
    book.start()
    seen.append(book.call(0).state)
    book.wait(kind="interrupted")
    seen.append(book.call(0).state)
    book.decide(choice="rerun")
    book.start(attempt=2)
    seen.append(book.call(0).state)
    book.result()
    seen.append(book.call(0).state)
    assert seen == ["judged", "waiting", "waiting", "started", "interrupted", "started", "settled"]


def test_a_call_is_pending_until_it_is_decided_or_settled() -> None:
    book = begun(("a", "{}"), ("b", "{}"))
    book.wait(0)
    book.wait(1)
    assert [book.call(i).pending for i in (0, 1)] == [True, True]
    book.decide(0)
    book.result(1, ended(OUTCOMES["cancelled"]))
    assert [book.call(i).pending for i in (0, 1)] == [False, False]


def test_a_new_approval_takes_the_place_of_an_older_one_and_the_log_keeps_both() -> None:
    book = begun(("refund", "{}"))
    first = book.wait()
    decision = book.decide()
    second = book.wait(after=first.approval.id)
    call = book.call(0)
    assert (call.waiting, call.decided, call.pending) == (second, None, True)
    assert book.record.runs["run-1"].log == [first, decision, second]


@law("7.6")
def test_a_call_is_in_flight_from_its_start_to_its_result_or_its_next_approval() -> None:
    book = begun(("refund", "{}"))
    book.wait()
    assert not book.call(0).in_flight
    book.start()
    assert book.call(0).in_flight
    book.wait(kind="interrupted")
    assert not book.call(0).in_flight
    book.start(attempt=2)
    assert book.call(0).in_flight
    book.result()
    assert not book.call(0).in_flight


# ----------------------------------------------------------------------------------- where a run stands


def test_the_log_holds_pauses_decisions_resumes_and_ends_in_order_of_arrival() -> None:
    book = begun(("refund", "{}"))
    book.wait()
    book.pause()
    book.decide()
    book.resume()
    book.end("limit", "limited")
    book.resume(limits=Limits(steps=100))
    kinds = [WaitingEntry, PausedEntry, DecidedEntry, ResumedEntry, EndedEntry, ResumedEntry]
    assert [type(entry) for entry in book.record.runs["run-1"].log] == kinds


def test_a_run_that_goes_on_after_a_limit_is_running_with_new_limits_and_without_an_end() -> None:
    book = begun()
    run = book.record.runs["run-1"]
    assert run.limits == DEFAULT_LIMITS
    book.end("limit", "limited")
    assert (run.status, run.ended is not None) == ("limited", True)
    book.resume(limits=Limits(steps=100))
    assert (run.status, run.ended, run.limits.steps) == ("running", None, 100)
    book.resume()
    assert run.limits.steps == 100


@law("5.limit")
def test_pauses_and_downtime_do_not_count_as_work() -> None:
    book = begun(("refund", "{}"))
    run = book.record.runs["run-1"]
    book.wait()
    book.pause()
    worked = run.seconds
    book.at += 86_400 * 1_000_000
    book.decide()
    book.at += 3_600 * 1_000_000
    book.resume()
    assert run.seconds == worked
    book.start()
    assert run.seconds == worked + 1


@law("5.tool", "1.2.endedRun")
def test_the_call_that_ends_the_run_never_moves() -> None:
    book = begun(("close", "{}"), ("close", "{}"), ("ask", "{}"))
    book.wait(2)
    book.pause(ended_run=(0, 1))
    book.decide(2)
    book.resume()
    book.end("tool", ended_run=(0, 0))
    assert book.record.runs["run-1"].ended_run == (0, 1)


def test_the_first_cancel_counts() -> None:
    book = begun()
    first = book.cancel("enough")
    book.cancel("again")
    assert book.record.runs["run-1"].cancel is first


def test_usage_and_steps_add_up() -> None:
    book = begun()
    for _ in range(3):
        book.turn(text="x", usage=Usage(10, 5, 2, 0.5))
    run = book.record.runs["run-1"]
    assert (run.turns, run.usage) == (3, Usage(30, 15, 6, 1.5))


@law("5.limit", "2.1.cut-off")
def test_failed_steps_in_a_row() -> None:
    book = begun()
    run = book.record.runs["run-1"]
    seen = []
    for outcomes, stop in (
        (["failed", "failed"], "calls"),
        (["skipped"], "length"),
        (["failed", "succeeded"], "calls"),
        (["denied"], "calls"),
        (["failed"], "calls"),
    ):
        book.turn(*[("get", "{}")] * len(outcomes), stop=stop)
        for index, outcome in enumerate(outcomes):
            book.result(index, ended(OUTCOMES[outcome]))
        seen.append(run.failed_steps)
    assert seen == [1, 2, 0, 0, 1]


def test_an_answer_that_was_refused_counts_as_a_failed_step() -> None:
    book = begun()
    book.turn(text="no JSON")
    book.message("Answer again.", author_type="System", author_name="counterfoil")
    assert book.record.runs["run-1"].failed_steps == 1


def test_queued_messages_wait_until_they_are_delivered() -> None:
    book = begun()
    queued = book.queue()
    assert book.record.queued == {queued.entry: queued}
    book.message("And hurry", queued=queued.entry)
    assert book.record.queued == {}


@law("6.kept-apart")
def test_the_record_knows_what_is_kept_apart() -> None:
    assert a_call().record.kept is None
    kept = a_call(seal(ToolResult.text("…").content, SUCCEEDED), kept_id="id").record.kept
    assert kept is not None
    assert [one.kept_id for one in kept] == ["id"]


def test_the_runs_of_an_interaction_share_its_items_and_nothing_else() -> None:
    book = a_call()
    book.run_id = "run-2"
    book.begin("other")
    book.message()
    one, other = book.record.runs["run-1"], book.record.runs["run-2"]
    assert (one.turns, other.turns, len(one.calls), len(other.calls)) == (1, 0, 1, 0)
    assert [item.run_id for item in book.record.items] == ["run-1"] * 3 + ["run-2"]


@case("R004")
def test_an_entry_about_an_unknown_call_is_shown_to_nobody() -> None:
    book = a_call()
    before = list(book.record.items), dict(book.record.runs["run-1"].call_ids)
    stray = Book()
    stray.begin()
    stray.turn(*[("x", "{}")] * 2)
    entry = stray.start(1)
    book.record.apply(entry)
    assert (list(book.record.items), dict(book.record.runs["run-1"].call_ids)) == before
    assert book.record.tip == entry.entry
