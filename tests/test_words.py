"""Every sentence that a model can read, on one page: tests/snapshots/words.txt.

The page is compared, never written by a test. To change it, send the output of `python -m tests.test_words`
to that file, then read the difference as a model would.
"""

import inspect
import re
import string
import sys
from pathlib import Path

import pytest

from counterfoil.core import words
from counterfoil.core.outcome import CODE_TABLE, ErrorCode, retryable
from tests.marks import law

PAGE = Path(__file__).parent / "snapshots" / "words.txt"

VALUES: dict[int, dict[str, object]] = {
    ErrorCode.INVALID_JSON: {"reason": "expected ',' at line 1 column 9"},
    ErrorCode.UNKNOWN_TOOL: {"hint": words.close_matches(["get_order"], [])},
    ErrorCode.INVALID_INPUT: {"complaints": words.complaints([("cents", "a whole number over 0", "-5")])},
    ErrorCode.TIMEOUT: {"seconds": 2.5, "effect": words.MAY_HAVE_RUN},
    ErrorCode.OUTPUT_TOO_LARGE: {"size": 20_000_000, "limit": 10_485_760},
    ErrorCode.LIMIT_REACHED: {"limit": "500 tool calls"},
    ErrorCode.TOOL_ERROR: {"error": "KeyError"},
    ErrorCode.GUARD_ERROR: {"effect": words.NOTHING_RAN},
    ErrorCode.CHILD_FAILED: {"reason": "the run of researcher was cancelled"},
}
"""Sample values of each sentence that has a place for some."""

CALLS: dict[str, list[str]] = {
    "failure": [words.failure(code, "refund", **VALUES.get(code, {})) for code in ErrorCode],
    "close_matches": [
        words.close_matches(["get_order", "get_orders"], ["x"]),
        words.close_matches([], ["get_order", "refund"]),
        words.close_matches([], []),
    ],
    "complaints": [
        words.complaints([("cents", "a whole number over 0", "-5"), ("", "an object", "a list")]),
    ],
    "tool_error": [words.tool_error("refund", "KeyError")],
    "rejected": [words.rejected("refund", "Too much."), words.rejected("refund", None)],
    "repeat_blocked": [words.repeat_blocked("refund")],
    "denied": [words.denied("refund", "Refunds wait for the morning."), words.denied("refund", None)],
    "skipped": [words.skipped("refund", "Quiet hours."), words.skipped("refund", "")],
    "duplicate": [words.duplicate("refund")],
    "cut_off": [words.cut_off("refund")],
    "refused": [words.refused("refund")],
    "cut_off_answer": [words.cut_off_answer()],
    "no_result": [words.no_result("refund")],
    "cancelled": [
        words.cancelled("refund", started=False),
        words.cancelled("refund", started=True, ended=True),
        words.cancelled("refund", started=True, ended=False),
    ],
    "limit_in_body": [words.limit_in_body("refund"), words.limit_in_body("refund", ended=True)],
    "dispatch_description": [words.dispatch_description([("smith", "forges"), ("miner", "")])],
    "ask_description": [words.ask_description(["smith", "miner"])],
    "child_end": [
        words.child_end("smith", "limited", "the limit of 40 steps is reached"),
        words.child_end("smith", "limited", None),
        words.child_end("smith", "cancelled", None),
        words.child_end("smith", "failed", "secret"),
    ],
    "team_limit": [words.team_limit(8)],
    "overheard": [
        words.overheard("smith", "Forged.", [("heat", "c1", "1,200 degrees")]),
        words.overheard("smith", "", [("heat", "c1", "x" * 2_010)]),
        words.overheard("smith", "", []),
    ],
    "summary_instructions": [words.summary_instructions(200)],
    "summarised": [words.summarised("They asked for a refund of W100, and got it.")],
    "edited": [words.edited("refund", '{"cents":200}')],
    "left_out": [words.left_out(1_191_808, "call_1", 1_200_000)],
    "output_mismatch": [words.output_mismatch("total: expected a number, got a text.")],
    "read_result_unknown": [words.read_result_unknown("call_1")],
    "read_result_slice": [
        words.read_result_slice("the text", 100, 5000),
        words.read_result_slice("the end", 4993, 5000),
    ],
    "read_result_lines": [
        words.read_result_lines([(0, "first line"), (311, "second line")], more=True),
        words.read_result_lines([(0, "first line")], more=False),
        words.read_result_lines([], more=False),
    ],
    "elided": [words.elided("call_1", 1_200_000)],
    "bad_pattern": [words.bad_pattern("(a", "missing closing parenthesis")],
}
"""Each function of words.py with sample values, every branch of it."""

FUNCTIONS = {
    name: function
    for name, function in inspect.getmembers(words, inspect.isfunction)
    if function.__module__ == words.__name__ and not name.startswith("_")
}
TEXTS = {name: value for name, value in vars(words).items() if name.isupper() and isinstance(value, str)}


def page() -> str:
    """Every sentence, one after another, under the name of what says it."""
    parts = ["What a model can read from us. Made by tests/test_words.py of counterfoil/core/words.py.\n"]
    parts += [f"== {name}\n{text}\n" for name, text in sorted(TEXTS.items())]
    for name, said in sorted(CALLS.items()):
        labels = [f" {code.value} {code.name}" for code in ErrorCode] if name == "failure" else [""] * len(said)
        parts += [f"== {name}(){label}\n{text.strip()}\n" for label, text in zip(labels, said, strict=True)]
    return "\n".join(parts)


@law("4.words")
def test_the_page_holds_every_sentence_as_it_is_said_today() -> None:
    assert page() == PAGE.read_text(encoding="utf-8"), "run python -m tests.test_words > tests/snapshots/words.txt"


@law("4.words")
def test_every_function_of_words_has_its_place_on_the_page() -> None:
    assert set(CALLS) == set(FUNCTIONS)


@law("3.table")
def test_every_code_has_a_row_and_a_sentence_and_none_is_left_over() -> None:
    assert set(words.FAILURE) == set(CODE_TABLE) == set(ErrorCode)


@law("3.table")
@pytest.mark.parametrize("code", ErrorCode)
def test_the_table_says_whether_a_call_may_be_tried_again(code: ErrorCode) -> None:
    expected = {ErrorCode.TIMEOUT: (False, True), ErrorCode.TOOL_ERROR: (None, None)}.get(code, (False, False))
    assert (retryable(code, safe=False), retryable(code, safe=True)) == expected


@pytest.mark.parametrize("code", ErrorCode)
def test_a_sentence_names_the_tool_and_has_a_value_for_each_of_its_places(code: ErrorCode) -> None:
    places = {name for _, name, _, _ in string.Formatter().parse(words.FAILURE[code]) if name}
    assert places == {"tool", *VALUES.get(code, {})}
    assert "refund" in words.failure(code, "refund", **VALUES.get(code, {}))


NEVER_STARTED = {4000, 4001, 4002, 4003, 4081, 4290, 5003}
EFFECT = re.compile(r"may (still )?(have|stand)|may be|Nobody can say|[Ii]t ran|ran, but")


@law("3.after-start")
@pytest.mark.parametrize("code", ErrorCode)
def test_a_sentence_says_whether_anything_ran(code: ErrorCode) -> None:
    said = words.failure(code, "refund", **VALUES.get(code, {}))
    if code in NEVER_STARTED or code == ErrorCode.GUARD_ERROR:
        assert "Nothing ran." in said
        assert not EFFECT.search(said)
    else:
        assert EFFECT.search(said)
        assert "Nothing ran" not in said


@law("3.after-start")
@pytest.mark.parametrize("effect", [words.MAY_HAVE_RUN, words.STOPPED, words.HAS_ENDED])
def test_each_word_on_an_effect_says_that_there_may_be_one(effect: str) -> None:
    assert re.search(r"effect may stand|may have had an effect", effect)


@law("4.rejection")
@pytest.mark.parametrize("reason", ["Too much.", None])
def test_a_rejection_says_that_a_person_refused_why_and_not_to_try_the_same_again(reason: str | None) -> None:
    said = words.rejected("refund", reason)
    assert "A person refused this call of refund" in said
    assert (reason or words.REJECTION_FALLBACK) in said
    assert "Do not try the same call again." in said
    assert "Nothing ran." in said


@pytest.mark.parametrize(
    ("reason", "read"),
    [
        ("too much", "too much."),
        ("Why?", "Why?"),
        ("No!", "No!"),
        ("so …", "so …"),
        ("太多。", "太多。"),
        (None, "No reason was given."),
    ],
)
def test_the_reason_of_a_rejection_is_a_sentence_of_its_own(reason: str | None, read: str) -> None:
    assert f" {read} Do not try" in words.rejected("refund", reason)


@pytest.mark.parametrize(
    "said",
    [words.denied("x", None), words.skipped("x", ""), words.duplicate("x"), words.cut_off("x"),
     words.refused("x"),     words.repeat_blocked("x"), words.cancelled("x", started=False)],
)  # fmt: skip  # a list of texts
def test_whatever_did_not_start_says_that_nothing_ran(said: str) -> None:
    assert "Nothing ran" in said


@law("4.never-empty")
def test_no_sentence_is_empty() -> None:
    assert all(text.strip() for said in CALLS.values() for text in said)
    assert all(text.strip() for text in TEXTS.values())


@law("4.other")
def test_of_an_exception_a_model_reads_the_tools_name_and_the_class_alone() -> None:
    assert words.tool_error("refund", "KeyError").startswith("refund failed with KeyError.")


@law("6.preview")
def test_the_line_in_a_shortened_text_says_what_is_missing_and_how_to_read_on() -> None:
    line = words.left_out(1_191_808, "call_1", 1_200_000)
    assert "1191808 of 1200000 bytes" in line
    assert 'read_result(call_id="call_1"' in line


@pytest.mark.parametrize("hostile", ["{", "}", "{tool}", "{0}", "{x.__class__}", "%s", "\n", ""])
def test_braces_in_names_and_reasons_are_text(hostile: str) -> None:
    assert hostile in words.rejected(hostile, hostile)
    assert hostile in words.tool_error(hostile, hostile)
    assert hostile in words.failure(ErrorCode.INVALID_JSON, hostile, reason=hostile)


@law("6.read_result")
def test_a_slice_says_where_it_stands_and_how_to_go_on_until_the_end() -> None:
    assert words.read_result_slice("abc", 5, 100).startswith("[Characters 5 to 8 of 100. To read on, use offset=8.]")
    assert words.read_result_slice("abc", 97, 100).startswith("[Characters 97 to 100 of 100.]")


if __name__ == "__main__":
    sys.stdout.write(page())
