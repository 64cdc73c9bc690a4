"""Two logs of one run compared: each kind of difference is named, with what was then and what is now."""

from collections.abc import Callable
from typing import Any

import pytest

from counterfoil.core.content import Text
from counterfoil.core.differences import NOT_ON_RECORD, Difference, compare, of_its_hour, outcome_words, verdict_words
from counterfoil.core.entries import CallRecord
from counterfoil.core.jsontext import dumps
from counterfoil.core.outcome import SUCCEEDED, Cancelled, Denied, ErrorCode, Failed, ToolFailure
from counterfoil.core.result import ToolResult, seal
from tests.records import TIMEOUT, Book, ended

ALLOW = {"verdict": "allow", "rule": "small", "revision": "r" * 64}
ASK = {"verdict": "ask", "rule": "big", "revision": "r" * 64}
DENY = {"verdict": "deny", "rule": "none", "revision": "r" * 64}


def begun(**turn: Any) -> Book:
    book = Book()
    book.begin()
    book.message()
    book.turn(("refund", "{}"), **turn)
    return book


def ran(decision: Any = ALLOW, result: ToolResult | None = None, **start: Any) -> Book:
    book = begun()
    book.start(decision=decision, **start)
    book.result(result=result)
    book.turn(text="Done.")
    book.end(answer="Done.")
    return book


def found(then: Book, now: Book, **options: Any) -> list[tuple[str, int | None, str, str]]:
    differences = compare(then.entries, now.entries, **options)
    assert all(d.to_json()["kind"] == d.kind for d in differences)
    return [(d.kind, d.step, d.then, d.now) for d in differences]


def test_equal_logs_do_not_differ() -> None:
    assert found(ran(), ran()) == []


def test_a_difference_names_its_call_in_json() -> None:
    (difference,) = compare(ran().entries, ran(result=ToolResult.text("other")).entries)
    assert difference == Difference("text", 0, "c0.0", "refund", "done", "other")
    assert difference.to_json() == {
        "kind": "text", "step": 0, "callId": "c0.0", "toolName": "refund", "then": "done", "now": "other",
    }  # fmt: skip


def test_another_verdict_is_named_by_its_rule_and_without_one() -> None:
    other = {"verdict": "allow", "rule": None, "revision": "r" * 64}
    assert found(ran(), ran(other)) == [("verdict", 0, "allow (rule small)", "allow (no rule)")]


def test_another_revision_is_named_once_for_the_run() -> None:
    other = ALLOW | {"revision": "s" * 64}
    assert found(ran(), ran(other)) == [("revision", None, "r" * 12, "s" * 12)]
    assert ("revision", None, "r" * 12, "no policy") in found(ran(), ran(None))


def test_a_question_that_is_new_or_gone_is_named() -> None:
    asked = begun()
    asked.wait()
    asked.entries[-1].decision = ASK
    asked.decide()
    asked.start(decision=ASK)
    asked.result()
    asked.turn(text="Done.")
    asked.end(answer="Done.")
    assert found(ran(), asked) == [("verdict", 0, "allow (rule small)", "ask (rule big)")]
    assert found(asked, ran()) == [("verdict", 0, "ask (rule big)", "allow (rule small)")]


def test_what_policy_said_after_the_decision_counts_too() -> None:
    one, other = begun(), begun()
    for book, last in ((one, ASK), (other, DENY)):
        book.wait()
        book.entries[-1].decision = ASK
        book.result(result=ended(SUCCEEDED), decision=last)
    assert found(one, other) == [("verdict", 0, "ask (rule big)", "ask (rule big), then deny (rule none)")]


def test_a_denial_is_a_verdict_and_another_outcome() -> None:
    denied = begun()
    denied.result(result=ended(Denied("policy", "none"), "No."), decision=DENY)
    denied.turn(text="Done.")
    denied.end(answer="Done.")
    assert found(ran(), denied) == [
        ("verdict", 0, "allow (rule small)", "deny (rule none)"),
        ("outcome", 0, "succeeded", "denied: No."),
    ]


def test_an_input_that_the_schema_refuses_is_an_outcome_and_no_verdict() -> None:
    refused = begun()
    failure = ToolFailure(ErrorCode.INVALID_INPUT, "", retryable=False, origin="gateway", body="not_started")
    refused.result(result=ended(Failed(failure), "why: missing"))
    refused.turn(text="Done.")
    refused.end(answer="Done.")
    assert found(ran(), refused) == [("outcome", 0, "succeeded", "failed 4003 INVALID_INPUT: why: missing")]


def test_a_call_that_never_ran_and_would_run_now_is_named_without_a_result() -> None:
    denied = begun()
    denied.result(result=ended(Denied("policy", "none"), "No."), decision=DENY)
    now = begun()
    now.start(decision=ALLOW)
    now.result(result=ToolResult.text(NOT_ON_RECORD))
    assert found(denied, now) == [
        ("verdict", 0, "deny (rule none)", "allow (rule small)"),
        ("outcome", 0, "denied: No.", "it would run"),
    ]


def test_another_effective_input_is_named_and_another_order_of_keys_is_none() -> None:
    assert found(ran(), ran(input={"order": "W200"})) == [("input", 0, '{"order":"W100"}', '{"order":"W200"}')]
    one, other = ran(input={"a": 1, "b": 2}), ran(input={"b": 2, "a": 1})
    assert found(one, other) == []


def test_the_input_of_a_refused_call_counts_too() -> None:
    one, other = begun(), begun()
    for book, order in ((one, "W1"), (other, "W2")):
        book.result(result=ended(Denied("policy", "none"), "No."), decision=DENY, parsed=dumps({"order": order}))
    assert found(one, other) == [("input", 0, '{"order":"W1"}', '{"order":"W2"}')]


@pytest.mark.parametrize(("then", "now", "kind"), [(True, False, "gone"), (False, True, "new")])
def test_a_tool_that_is_gone_or_new_is_named_by_its_call(*, then: bool, now: bool, kind: str) -> None:
    one, other = Book(), Book()
    for book, offered in ((one, then), (other, now)):
        book.begin()
        book.turn(CallRecord("c1", "c1", "refund", "{}", offered))
    words = {True: "offered", False: "not offered"}
    assert found(one, other) == [(kind, 0, words[then], words[now])]


def test_other_tools_are_named_once_with_those_of_now() -> None:
    one, other = Book(), Book()
    for book, digest in ((one, "a" * 64), (other, "b" * 64)):
        book.begin()
        book.turn(("refund", "{}"), offered=digest)
        book.result(result=ToolResult.text("done"))
        book.turn(text="Done.", offered=digest)
    names = {0: ["get", "pay"], 1: ["get", "pay"]}
    assert found(one, other, offered=names) == [("offered", 0, "a" * 12, f"{'b' * 12}: get, pay")]


def test_a_turn_whose_offer_is_not_on_record_says_nothing_of_tools() -> None:
    assert found(begun(), begun(offered="b" * 64)) == []


def test_what_the_loop_says_is_compared_in_order() -> None:
    one, other = begun(), begun()
    one.message("The answer is no JSON.", author_type="System")
    other.message("The answer has no city.", author_type="System")
    other.message("Again.", author_type="System")
    assert found(one, other) == [
        ("message", 0, "The answer is no JSON.", "The answer has no city."),
        ("message", 0, "nothing", "Again."),
    ]


def test_messages_of_people_are_not_compared() -> None:
    one, other = begun(), begun()
    other.message("Hurry")
    assert found(one, other) == []


@pytest.mark.parametrize(
    ("more", "then"),
    [
        ({"by": "answer", "answer": "Other."}, "completed by answer: Other."),
        ({"by": "error", "status": "failed", "reason": "no model"}, "failed by error: no model"),
        ({"by": "tool", "ended_run": (0, 0), "answer": "ok"}, "completed by tool of call 0 in step 0: ok"),
        ({"by": "answer", "answer": "Done.", "output": {"n": 1}}, 'completed by answer, output {"n":1}: Done.'),
    ],
)
def test_another_end_is_named(more: dict[str, Any], then: str) -> None:
    other = ran()
    other.entries.pop()
    other.end(**more)
    assert found(other, ran()) == [("end", 1, then, "completed by answer: Done.")]


def test_an_end_that_comes_sooner_or_not_is_named() -> None:
    short = begun()
    short.end(answer="Done.")
    at = "completed by answer: Done. after step"
    assert ("end", 0, f"{at} 1", f"{at} 0") in found(ran(), short)
    assert found(ran(), begun())[-1] == ("end", 0, "completed by answer: Done.", "it goes on")
    open_ = ran()
    open_.entries.pop()
    assert ("end", 0, "it goes on to step 1", "completed by answer: Done.") in found(open_, short)


def test_a_record_that_stops_in_the_middle_asks_for_no_end() -> None:
    open_ = ran()
    open_.entries.pop()
    assert found(open_, ran()) == []


def test_of_a_call_of_which_nothing_is_on_record_nobody_knows_what_would_differ() -> None:
    assert found(begun(), ran()) == []


def test_a_cancel_before_a_call_was_judged_says_nothing_of_its_verdict() -> None:
    one = begun()
    one.result(result=ended(Cancelled("enough"), "Nothing ran."))
    other = begun()
    other.start(decision=ALLOW)
    other.result(result=ended(Cancelled("enough"), "Nothing ran."))
    assert found(one, other) == []


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (None, "not judged"),
        ({"verdict": "ask"}, "ask"),
        (DENY, "deny (rule none)"),
        (DENY | {"error": "KeyError: x"}, "deny (rule none failed)"),
        ({"verdict": "deny", "rule": None, "revision": "r"}, "deny (no rule)"),
    ],
)
def test_a_verdict_has_words(decision: Any, words: str) -> None:
    assert verdict_words(decision) == words


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "no result"),
        (ToolResult.text("x"), "succeeded"),
        (ended(TIMEOUT), "failed 4080 TIMEOUT"),
        (ended(Failed(ToolFailure(77))), "failed 77"),
        (ended(Failed(ToolFailure())), "failed"),
        (ended(Cancelled()), "cancelled"),
    ],
)
def test_an_outcome_has_words(result: ToolResult | None, words: str) -> None:
    assert outcome_words(result) == words


def limit(what: str) -> ToolResult:
    failure = ToolFailure(ErrorCode.LIMIT_REACHED, what, retryable=False, origin="gateway", body="not_started")
    return seal((Text("x"),), Failed(failure))


@pytest.mark.parametrize(
    ("result", "so"),
    [
        (lambda: limit("30 seconds"), True),
        (lambda: limit("5 tool calls"), False),
        (lambda: ended(Cancelled()), True),
        (lambda: ended(TIMEOUT), False),
        (lambda: ToolResult.text("30 seconds"), False),
    ],
)
def test_only_a_cancel_and_the_runs_time_end_a_call_at_their_own_hour(
    result: Callable[[], ToolResult], *, so: bool
) -> None:
    assert of_its_hour(result()) == so
