"""What a person reads of a run (core/timeline.py, core/narrate.py)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.content import Kept
from counterfoil.core.jsontext import dumps, loads
from counterfoil.core.limits import Limits
from counterfoil.core.narrate import edits, one_line, size_text, time_text
from counterfoil.core.outcome import (
    SUCCEEDED,
    Cancelled,
    Denied,
    ErrorCode,
    Failed,
    Rejected,
    Skipped,
    ToolFailure,
    ToolOutcome,
)
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.timeline import Row, rows, summary
from tests.marks import case, law
from tests.records import OUTCOMES, TIMEOUT, Book, a_call, ended

KEPT_ID = "0198f000-0000-7000-8000-000000000001"


def of_kind(kind: str, book: Book) -> list[Row]:
    return [row for row in rows(book.record, book.run_id) if row.kind == kind]


def call_row(result: ToolResult | None = None, **more: Any) -> Row:
    (row,) = of_kind("call", a_call(result, **more))
    return row


def failed(code: int | None, body: Any = "ended") -> Failed:
    return Failed(ToolFailure(code, "secret", body=body))


# ------------------------------------------------------------------------------------------ narrations


@pytest.mark.parametrize(
    ("outcome", "started", "text"),
    [
        (SUCCEEDED, True, "refund gave 20 bytes in 12 ms"),
        (failed(5000), True, "refund failed: TOOL_ERROR (5000) after 12 ms"),
        (failed(4003), False, "refund failed: INVALID_INPUT (4003)"),
        (failed(17), False, "refund failed with code 17"),
        (failed(None), False, "refund failed"),
        (Denied("policy", "no-refunds", "Refunds wait."), False,
         "refund was denied by the policy (rule no-refunds): Refunds wait."),
        (Denied("policy", None, None), False, "refund was denied by the policy"),
        (Denied("tool", None, "Sign in."), False, "refund refused the call: Sign in."),
        (Rejected("too much", "grace"), False, "grace rejected refund: too much"),
        (Rejected(None, None), False, "A person rejected refund"),
        (Skipped("duplicate", "framework"), False, "refund was skipped by the framework: duplicate"),
        (Skipped("quiet hours", "my-guard"), False, "refund was skipped by a guard: quiet hours"),
        (Cancelled("enough"), True, "refund was cancelled after 12 ms: enough"),
        (Cancelled(None), False, "refund was cancelled"),
    ],
)  # fmt: skip  # rows of a table
def test_a_call_without_a_narration_is_told_by_its_facts(outcome: ToolOutcome, started: bool, text: str) -> None:
    assert call_row(ended(outcome), started=started).text == text


@law("1.1.narration", "source.004.narration")
def test_a_tools_own_narration_is_the_text_and_the_outcome_stands_beside_it() -> None:
    row = call_row(ended(failed(17), narration="Tried to refund\nW100"))
    assert (row.text, row.outcome, row.code, row.notes) == (
        "Tried to refund W100", "failed", 17, ("failed with code 17",),
    )  # fmt: skip  # a row


def test_neither_the_operators_message_nor_reasoning_nor_what_the_model_reads_is_shown() -> None:
    book = Book()
    book.begin()
    book.turn(("refund", "{}"), reasoning=["secret"])
    book.start()
    book.result(0, ended(OUTCOMES["failed"], "model's text"))
    shown = dumps([row.to_json() for row in rows(book.record, "run-1")])
    assert b"secret" not in shown
    assert b"model's text" not in shown


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1.0 kB"), (999_949, "999.9 kB"),
     (999_950, "1.0 MB"), (1_200_000, "1.2 MB"), (10 * 1024**3, "10.7 GB"), (5 * 10**15, "5000.0 TB")],
)  # fmt: skip  # rows
def test_sizes_in_words(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "under 1 ms"), (1, "1 ms"), (999.4, "999 ms"), (999.5, "1.0 s"), (59_949, "59.9 s"),
     (59_950, "1 min 0 s"), (125_000, "2 min 5 s"), (3_599_600, "1 h 0 min"), (90_000_000, "25 h 0 min")],
)  # fmt: skip  # rows
def test_times_in_words(ms: float, text: str) -> None:
    assert time_text(ms) == text


# ---------------------------------------------------------------------------------------- what is told


def test_a_whole_run_in_reading_order() -> None:
    book = Book()
    book.begin()
    book.message("Refund W100")
    book.turn(("get_order", '{"id":"W100"}'), ("refund", '{"cents":500}'), text="Let me see.")
    book.start(0)
    book.wait(1, input={"cents": 500})
    book.result(0, ToolResult.text("W100: 500 cents").with_narration("Looked up W100"))
    book.pause()
    book.decide(1, input=b'{"cents":200}', reason="half is enough")
    book.resume()
    book.start(1, input={"cents": 200}, parsed=b'{"cents":500}')
    book.result(1, ToolResult.text("ok").with_narration("Refunded 2.00"))
    book.turn(text="I refunded 2.00.")
    book.end(answer="I refunded 2.00.")
    assert [(row.kind, row.sequence, row.text) for row in rows(book.record, "run-1")] == [
        ("run", None, "support began for ada"),
        ("message", 1, "Refund W100"),
        ("turn", 2, "Let me see."),
        ("call", 5, "Looked up W100"),
        ("call", 6, "Refunded 2.00"),
        ("paused", None, "waits for a person: refund (c0.1)"),
        ("decision", None, "grace approved refund with changes: cents: 500 → 200: half is enough"),
        ("resumed", None, "went on"),
        ("turn", 7, "I refunded 2.00."),
        ("ended", None, "completed: the model answered"),
    ]


def test_one_row_tells_all_of_a_call() -> None:
    book = Book()
    book.begin()
    book.turn(("refund", '{"cents":500}'))
    book.wait(0, input={"cents": 500})
    book.decide(0, input=b'{"cents":200}', reason="half")
    book.start(0, input={"cents": 200}, parsed=b'{"cents":500}')
    book.result(0, ToolResult.text("ok").with_details({"payment": 7}))
    (row,) = of_kind("call", book)
    assert row.to_json() == {
        "at": "2026-10-26T12:00:01.0000000Z",
        "kind": "call",
        "threadId": None,
        "author": {"id": row.author.id, "name": "support", "type": "Agent"},
        "text": "refund gave 2 bytes in 12 ms",
        "sequence": 2,
        "stepIndex": 0,
        "callId": "c0.0",
        "toolName": "refund",
        "state": "settled",
        "outcome": "succeeded",
        "code": None,
        "approval": {
            "id": "approval-2",
            "decision": "approve",
            "by": "grace",
            "at": "2026-10-26T12:00:03.0000000Z",
            "reason": "half",
        },
        "attempt": 1,
        "startedAt": "2026-10-26T12:00:04.0000000Z",
        "endedAt": "2026-10-26T12:00:05.0000000Z",
        "durationMs": 12.0,
        "size": 2,
        "kept": False,
        "endedRun": False,
        "notes": ["edited by grace: cents: 500 → 200"],
        "input": {"cents": 200},
        "details": {"payment": 7},
        "runId": "run-1",
    }
    assert loads(dumps(row.to_json())) == row.to_json()


def test_what_a_guard_edited_is_told_apart_from_what_a_person_edited() -> None:
    book = Book()
    book.begin()
    book.turn(("refund", "{}"))
    book.wait(0, input={"cents": 500}, effective_input={"cents": 400})
    book.decide(0, input=b'{"cents":200}')
    guarded = a_call()
    guarded.turn(("refund", "{}"))
    guarded.start(0, input={"order": "W100"}, parsed=b'{"order":"w100"}')
    assert of_kind("call", book)[0].notes == (
        "edited by a guard: cents: 500 → 400",
        "edited by grace: cents: 400 → 200",
    )
    assert of_kind("call", guarded)[1].notes == ('edited by a guard: order: "w100" → "W100"',)


def test_an_approval_without_an_edit_notes_no_edit() -> None:
    book = Book()
    book.begin()
    book.turn(("refund", "{}"))
    book.wait(0)
    book.decide(0, reason="fine")
    assert of_kind("call", book)[0].notes == ()
    assert of_kind("decision", book)[0].text == "grace approved refund: fine"


def test_a_rejection_shows_the_persons_words_on_the_call_and_on_the_decision() -> None:
    book = Book()
    book.begin()
    book.turn(("refund", "{}"))
    book.wait(0)
    book.decide(0, "reject", reason="too much")
    book.result(0, ended(Rejected("too much", "grace")), author_type="Human", author_name="grace")
    (row,) = of_kind("call", book)
    assert (row.text, row.author.name, row.author.type) == (
        "grace rejected refund: too much",
        "grace",
        "Human",
    )
    assert row.approval is not None
    assert (row.approval.decision, row.approval.by, row.approval.reason) == ("reject", "grace", "too much")
    (decision,) = of_kind("decision", book)
    assert (decision.text, decision.author.type) == ("grace rejected refund: too much", "Human")


@law("6.kept-apart")
def test_a_result_kept_apart_says_how_to_read_it() -> None:
    row = call_row(seal((Kept(KEPT_ID, 1_200_000, "…"),), SUCCEEDED), kept_id=KEPT_ID, size=1_200_000)
    assert (row.kept, row.size) == (True, 1_200_000)
    assert row.notes == ("kept apart: 1.2 MB, read with `counterfoil result run-1 3`",)


def test_a_body_that_outlived_its_call_may_still_be_running() -> None:
    for outcome in (TIMEOUT, Cancelled("enough")):
        for over in (False, None):
            notes = call_row(ended(outcome), over=over).notes
            assert notes == ("may have had an effect, and may still be running",)
    assert call_row(ended(Cancelled("enough")), started=False).notes == ()
    assert call_row(ended(failed(17))).notes == ()


@law("7.8")
@case("R098")
def test_a_body_that_was_stopped_is_told_apart_from_one_that_may_still_run() -> None:
    for outcome in (TIMEOUT, Cancelled("enough")):
        assert call_row(ended(outcome), over=True).notes == ("was stopped before its end, and may have had an effect",)


@law("7.6")
def test_how_many_attempts_a_call_took_is_told() -> None:
    assert call_row(attempt=1).notes == ()
    assert call_row(attempt=3).notes == ("took 3 attempts",)


@law("7.7")
def test_a_late_result_is_told_beside_the_call() -> None:
    book = a_call(ended(TIMEOUT))
    book.late()
    (row,) = of_kind("call", book)
    assert (row.outcome, row.notes) == ("failed", ("a result came too late and does not count",))


def test_an_interrupted_call_that_was_settled_says_that_nobody_knows() -> None:
    row = call_row(ended(failed(ErrorCode.INTERRUPTED, "unknown")))
    assert row.notes == ("nobody can say whether it had its effect",)


def test_what_an_after_guard_changed_is_told() -> None:
    assert call_row(replaced={"narration": "x"}).notes == ("a guard changed the result",)


def test_the_call_that_ended_the_run_is_marked() -> None:
    book = a_call()
    book.end("tool", ended_run=(0, 0))
    assert of_kind("call", book)[0].ended_run is True
    assert of_kind("ended", book)[0].text == "completed: a tool ended it"


# --------------------------------------------------------------------------------------- what is open


def test_a_call_without_a_result_says_where_it_stands() -> None:
    book = Book()
    book.begin()
    book.turn(*[("refund", "{}")] * 7)
    book.start(1)
    book.start(2, attempt=2)
    book.wait(3)
    book.wait(4, kind="question", rule=None, reason=None)
    book.start(5)
    book.wait(5, kind="interrupted")
    book.wait(6)
    book.decide(6)
    assert [(row.state, row.text, row.outcome) for row in of_kind("call", book)] == [
        ("judged", "refund has not started", None),
        ("started", "refund has started and has no result yet", None),
        ("started", "refund has started (attempt 2) and has no result yet", None),
        ("waiting", "refund waits for a person's approval (rule big-refunds): Over the limit.", None),
        ("waiting", "refund waits for a person's answer", None),
        ("interrupted", "refund was interrupted: nobody can say what it did, so a person decides", None),
        ("waiting", "refund is decided (approve) and goes on", None),
    ]


def test_each_pause_says_what_it_waited_for_then() -> None:
    book = Book()
    book.begin()
    book.turn(("a", "{}"), ("b", "{}"), ("c", "{}"))
    for index in range(3):
        book.wait(index)
    book.pause()
    book.decide(0)
    book.resume()
    book.start(0)
    book.result(0)
    book.result(1, ended(failed(4081)))
    book.pause()
    assert [row.text for row in of_kind("paused", book)] == [
        "waits for a person: a (c0.0), b (c0.1), c (c0.2)",
        "waits for a person: c (c0.2)",
    ]


def test_an_earlier_decision_stays_when_a_new_approval_took_its_place() -> None:
    book = Book()
    book.begin()
    book.turn(("refund", "{}"))
    book.wait(0)
    book.decide(0, by="grace")
    book.wait(0, after="approval-2", rule="night")
    book.decide(0, "reject", by="lin", reason="not at night")
    assert [row.text for row in of_kind("decision", book)] == [
        "grace approved refund",
        "lin rejected refund: not at night",
    ]


@pytest.mark.parametrize(
    ("choice", "more", "text"),
    [
        ("rerun", {}, "grace had refund run again"),
        ("record", {"value": {"content": []}}, "grace recorded what refund did"),
        ("answer", {"value": "Blue"}, 'grace answered refund: "Blue"'),
        ("approve", {"by": None}, "A person approved refund"),
    ],
)
def test_decisions_in_words(choice: str, more: dict[str, Any], text: str) -> None:
    book = Book()
    book.begin()
    book.turn(("refund", "{}"))
    book.wait(0)
    book.decide(0, choice, **more)
    assert of_kind("decision", book)[0].text == text


def test_a_queued_message_is_shown_until_it_is_delivered() -> None:
    book = Book()
    book.begin()
    queued = book.queue("And hurry")
    waiting = [(row.kind, row.text) for row in rows(book.record, "run-1")]
    book.message("And hurry", queued=queued.entry)
    delivered = [(row.kind, row.text) for row in rows(book.record, "run-1")]
    assert waiting[1:] == [("queued", "And hurry")]
    assert delivered[1:] == [("message", "And hurry")]


@pytest.mark.parametrize(
    ("by", "status", "reason", "text"),
    [
        ("limit", "limited", "the limit of 50 steps is reached", "limited: the limit of 50 steps is reached"),
        ("error", "failed", None, "failed: it failed"),
        ("vote", "completed", None, "completed: all its calls voted to end"),
        ("cancelled", "cancelled", "enough", "cancelled: enough"),
        ("cancelled", "cancelled", None, "cancelled: it was cancelled"),
    ],
)
def test_the_end_says_how(by: str, status: str, reason: str | None, text: str) -> None:
    book = Book()
    book.begin()
    book.end(by, status, reason=reason)
    assert of_kind("ended", book)[0].text == text


def test_a_limited_run_that_went_on_tells_both() -> None:
    book = Book()
    book.begin(user=None)
    book.end("limit", "limited")
    book.resume(limits=Limits(steps=100))
    book.cancel(None, None)
    assert [(row.kind, row.text) for row in rows(book.record, "run-1")] == [
        ("run", "support began"),
        ("ended", "limited: a limit was reached"),
        ("resumed", "went on with new limits"),
        ("cancel", "The caller cancelled the run"),
    ]


def test_a_turn_that_was_cut_off_says_so() -> None:
    book = Book()
    book.begin()
    book.turn(text="I was abou", stop="length")
    book.turn(text="I cannot.", stop="refusal")
    book.turn(text="")
    assert [(row.text, row.notes) for row in of_kind("turn", book)] == [
        ("I was abou", ("cut off by its token limit",)),
        ("I cannot.", ("refused",)),
        ("(no text)", ()),
    ]


def test_a_turn_that_is_not_on_record_yet_comes_last() -> None:
    book = Book()
    book.begin()
    turn = book.turn(("refund", "{}"))
    book.message("x")
    turn.entry = 0
    assert [row.kind for row in rows(book.record, "run-1")] == ["run", "message", "call"]


def test_rows_are_of_one_run_and_an_unknown_one_is_an_error() -> None:
    book = a_call()
    book.run_id = "run-2"
    book.begin()
    assert [row.kind for row in rows(book.record, "run-1")] == ["run", "message", "call"]
    assert [row.kind for row in rows(book.record, "run-2")] == ["run"]
    with pytest.raises(KeyError):
        rows(book.record, "run-3")


# --------------------------------------------------------------------------------------- hostile text


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\u202e", "a\nb", "\x07", "\x9b1m", "\u2066"])
def test_no_text_moves_the_terminal_or_turns_its_direction(hostile: str) -> None:
    book = Book()
    book.begin(user=hostile)
    book.message(hostile)
    book.turn((hostile, hostile), (hostile, "{}"), text=hostile)
    book.start(0, input={hostile: hostile}, parsed=b"{}")
    book.result(0, ToolResult.text("x").with_narration(f"x{hostile}"))
    book.wait(1, reason=hostile, rule=hostile)
    book.pause()
    book.decide(1, "reject", by=hostile, reason=hostile)
    book.result(1, ended(Rejected(hostile, hostile)))
    book.end("limit", "limited", reason=hostile)
    for row in rows(book.record, "run-1"):
        for line in (row.text, *row.notes):
            assert hostile not in line
            assert "\x1b" not in line


@given(st.text(max_size=300), st.integers(min_value=1, max_value=60))
def test_a_line_is_one_line_and_short(text: str, most: int) -> None:
    line = one_line(text, most)
    assert len(line) <= most
    assert len(line.splitlines()) <= 1
    line.encode()


def test_a_clipped_line_says_so() -> None:
    assert one_line("word " * 1000, 20) == "word word word word…"
    assert one_line("a" + " " * 10_000 + "b", 20) == "a …"


def test_a_narration_of_white_space_gives_way_to_the_facts() -> None:
    result = seal(ToolResult.text("x").content, SUCCEEDED, narration=" \x1b ")
    assert call_row(result).text == "refund gave 1 byte in 12 ms"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "b: 2 → 3"),
        ({"a": 1}, {"b": 1}, "a: 1 → (none), b: (none) → 1"),
        ({"a": 1}, {"a": 1.0}, "a: 1 → 1.0"),
        ({"a": True}, {"a": 1}, "a: true → 1"),
        ({"a": 1}, {"a": 1}, "nothing"),
        (None, {"a": 1}, 'null → {"a":1}'),
        ({"a": None}, {}, "a: null → (none)"),
    ],
)
def test_edits_in_words(before: Any, after: Any, text: str) -> None:
    assert edits(before, after) == text


# --------------------------------------------------------------------------------------------- numbers


def test_a_run_in_numbers() -> None:
    book = Book()
    book.begin()
    book.turn(*[("refund", "{}")] * 7)
    for index, outcome in enumerate(OUTCOMES.values()):
        book.result(index, ended(outcome))
    made = summary(book.record, "run-1")
    assert made.outcomes == {
        "succeeded": 1, "failed": 1, "denied": 1, "rejected": 1, "skipped": 1, "cancelled": 1, "open": 1,
    }  # fmt: skip  # a row
    assert (made.status, made.ended_by, made.steps, made.calls) == ("running", None, 1, 7)
    assert (made.usage.tokens, made.seconds) == (120, 7.0)
    assert made.to_json()["usage"] == {
        "inputTokens": 100, "outputTokens": 20, "cachedTokens": 0, "cost": 0.0, "reasoningTokens": 0,
    }  # fmt: skip  # a row


def test_a_run_in_one_line() -> None:
    book = a_call()
    book.turn(text="Done.")
    book.end()
    assert summary(book.record, "run-1").line == "completed: 2 steps, 1 call (1 succeeded), 240 tokens, 6.0 s"
