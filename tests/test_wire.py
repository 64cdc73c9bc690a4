"""The record as a client reads it (contract 1.4, and 1.2 by the timeline call)."""

from typing import Any

import pytest

from counterfoil.core.content import File, Image, Kept, Text
from counterfoil.core.jsontext import dumps, loads
from counterfoil.core.outcome import SUCCEEDED, Rejected, Skipped
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.turn import Usage, author
from counterfoil.core.wire import context_items, run_json, timeline_items
from counterfoil.core.words import REJECTION_FALLBACK
from tests.marks import law
from tests.records import OUTCOMES, TIMEOUT, Book, a_call, ended

KEPT = Kept("0198f000-0000-7000-8000-000000000001", 1_200_000, "head … tail")

FIELDS = {
    "toolCallId", "result", "isError", "toolResultId", "resultSize", "rejectionReason", "sequence", "author",
    "date", "threadId",
}  # fmt: skip  # a list of names
BESIDE = {"kind", "runId", "outcome"}


def item(result: ToolResult | None = None, **more: Any) -> dict[str, Any]:
    """The one result item of a run of one call."""
    return of_kind("ToolResult", a_call(result, **more))[0]


def of_kind(kind: str, book: Book, **more: Any) -> list[dict[str, Any]]:
    return [item for item in context_items(book.record, book.run_id, **more) if item["kind"] == kind]


@law("1.4.every-field", "1.4.beside")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_field_is_present_and_empty_ones_are_null(outcome: str) -> None:
    shown = item(ended(OUTCOMES[outcome]), started=False)
    assert set(shown) == FIELDS | BESIDE
    assert (shown["kind"], shown["runId"], shown["outcome"]) == ("ToolResult", "run-1", outcome)
    assert shown["toolResultId"] is None
    assert shown["threadId"] is None
    assert loads(dumps(shown)) == shown


@law("1.4.toolCallId", "source.002.toolCallId")
def test_the_item_names_its_call() -> None:
    assert item()["toolCallId"] == "c0.0"


@law("1.4.result", "source.002.result")
@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ToolResult.text("  verbatim \n"), "  verbatim \n"),
        (ToolResult.json({"b": 1, "a": None}), '{"b":1,"a":null}'),
        (ToolResult.text(""), "(no output)"),
        (ToolResult.error("It did not work."), "It did not work."),
        (ToolResult.blocks(Text("see"), Image(b"12345")), "see\n[image, image/png, 5 bytes]"),
        (ToolResult.blocks(File(b"123", "text/csv", "a.csv")), "[file a.csv, text/csv, 3 bytes]"),
    ],
)
def test_the_result_is_exactly_what_the_model_read_with_placeholders_for_media(result: ToolResult, text: str) -> None:
    assert item(result)["result"] == text == result.model_output


@law("1.4.result", "1.4.toolResultId", "1.4.resultSize", "source.002.result", "source.002.toolResultId",
     "source.002.resultSize")  # fmt: skip  # one list
def test_a_result_kept_apart_is_null_with_its_id_and_the_size_of_the_whole() -> None:
    shown = item(seal((KEPT,), SUCCEEDED), kept_id=KEPT.id, size=KEPT.size)
    assert (shown["result"], shown["toolResultId"], shown["resultSize"]) == (None, KEPT.id, 1_200_000)


@law("1.4.resultSize", "source.002.resultSize")
def test_the_size_counts_bytes() -> None:
    assert item(ToolResult.text("déjà"))["resultSize"] == 6


@law("1.4.isError", "source.002.isError")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_error_follows_from_the_outcome(outcome: str) -> None:
    assert item(ended(OUTCOMES[outcome]), started=False)["isError"] is (outcome not in ("succeeded", "skipped"))


@law("1.4.rejectionReason", "source.002.rejectionReason")
@pytest.mark.parametrize("reason", ["Too much.", None])
def test_a_client_shows_the_rejection_reason_and_parses_no_text(reason: str | None) -> None:
    shown = item(ended(Rejected(reason, "grace"), "A person refused."), started=False)
    assert shown["rejectionReason"] == (reason or REJECTION_FALLBACK)


@law("1.4.rejectionReason", "source.002.rejectionReason")
@pytest.mark.parametrize("outcome", [name for name in OUTCOMES if name != "rejected"])
def test_no_other_call_has_a_rejection_reason(outcome: str) -> None:
    assert item(ended(OUTCOMES[outcome]), started=False)["rejectionReason"] is None


@law("1.4.author", "source.002.author")
@pytest.mark.parametrize(
    ("outcome", "kind", "name"),
    [
        ("succeeded", "Agent", "support"),
        ("rejected", "Human", "grace"),
        ("skipped", "System", "counterfoil"),
        ("failed", "System", "counterfoil"),
    ],
)
def test_the_author_is_who_made_the_result(outcome: str, kind: Any, name: str) -> None:
    given = name if kind == "Human" else ""
    shown = item(ended(OUTCOMES[outcome]), started=False, author_type=kind, author_name=given)
    assert shown["author"] == {"id": author(kind, name, "acme").id, "name": name, "type": kind}


@law("1.4.date", "source.002.date")
def test_the_date_is_utc_with_seven_decimals() -> None:
    book = a_call()
    result = book.call(0).result
    assert result is not None
    result.at = 1_793_016_000_000_000
    noon = of_kind("ToolResult", book)[0]["date"]
    result.at += 123_456
    assert (noon, of_kind("ToolResult", book)[0]["date"]) == (
        "2026-10-26T12:00:00.0000000Z",
        "2026-10-26T12:00:00.1234560Z",
    )


@law("1.4.threadId", "source.002.threadId")
def test_the_thread_is_null_for_the_main_one_and_else_its_id() -> None:
    thread = f"private:{author('Agent', 'helper', 'acme').id}"
    book = Book(thread=thread)
    book.begin()
    book.turn(("get", "{}"), text="Hm.")
    book.start()
    book.result()
    assert item()["threadId"] is None
    assert [i["threadId"] for i in context_items(book.record, "run-1")] == [thread] * 3
    assert context_items(book.record, "run-1", thread=None) == []
    assert len(context_items(book.record, "run-1", thread=thread)) == 3


def a_conversation() -> Book:
    book = Book()
    book.begin()
    book.message("Refund W100")
    book.turn(("get_order", '{"id": "W100"}'), ("refund", "{broken"), text="Let me see.")
    for index in (1, 0):
        book.start(index)
        book.result(index, ToolResult.text(f"result {index}"))
    book.turn(text="Done.")
    book.end(answer="Done.")
    return book


@law("1.4.sequence", "source.002.sequence")
def test_items_stand_in_reading_order() -> None:
    items = context_items(a_conversation().record, "run-1")
    assert [(i["kind"], i["sequence"]) for i in items] == [
        ("Message", 1), ("Message", 2), ("ToolCall", 3), ("ToolCall", 4), ("ToolResult", 5),
        ("ToolResult", 6), ("Message", 7),
    ]  # fmt: skip  # rows
    assert [i["result"] for i in items if i["kind"] == "ToolResult"] == ["result 0", "result 1"]


@law("1.4.whole")
def test_the_sequence_of_a_result_finds_the_call_whose_whole_result_it_is() -> None:
    book = a_conversation()
    found = {call.turn.result_sequence(call.index): call.record.call_id for call in book.record.runs["run-1"].calls}
    assert {i["sequence"]: i["toolCallId"] for i in of_kind("ToolResult", book)} == found


@pytest.mark.parametrize("after", range(9))
@pytest.mark.parametrize("limit", [None, 0, 1, 3, 100])
def test_pages_by_sequence_leave_nothing_out(after: int, limit: int | None) -> None:
    book = a_conversation()
    everything = [i for i in context_items(book.record, "run-1") if i["sequence"] > after]
    page = context_items(book.record, "run-1", after=after, limit=limit)
    assert page == (everything if limit is None else everything[:limit])


@law("2.2")
def test_one_who_reads_on_by_arrival_misses_no_late_result() -> None:
    book = Book()
    book.begin()
    book.turn(("slow", "{}"), ("quick", "{}"))
    book.start(1)
    book.result(1)
    seen = context_items(book.record, "run-1")
    cursor = book.record.tip
    book.start(0)
    book.result(0)
    book.turn(text="Done.")
    new = context_items(book.record, "run-1", since=cursor)
    assert [(i["kind"], i["sequence"]) for i in new] == [("ToolResult", 3), ("Message", 5)]
    numbers = sorted(i["sequence"] for i in [*seen, *new])
    assert numbers == [i["sequence"] for i in context_items(book.record, "run-1")]


def test_an_interaction_gives_the_items_of_all_its_runs() -> None:
    book = a_conversation()
    book.run_id = "run-2"
    book.begin()
    book.message("And now?")
    whole = context_items(book.record)
    assert [i["runId"] for i in whole] == ["run-1"] * 7 + ["run-2"]
    assert [i["sequence"] for i in whole] == list(range(1, 9))
    with pytest.raises(KeyError):
        context_items(book.record, "run-3")


def test_messages_and_calls_have_every_field_too() -> None:
    message, text, call, broken, *_ = context_items(a_conversation().record, "run-1")
    place = {"sequence", "author", "date", "threadId"}
    assert set(message) == set(text) == {"kind", "runId", "text"} | place
    assert set(call) == {"kind", "runId", "toolCallId", "toolName", "input", "rawInput", "state"} | place
    assert (message["text"], message["author"]["type"]) == ("Refund W100", "Human")
    assert (text["text"], text["author"]["name"]) == ("Let me see.", "support")
    assert (call["toolCallId"], call["toolName"], call["input"], call["state"]) == (
        "c0.0", "get_order", {"id": "W100"}, "settled",
    )  # fmt: skip  # a row
    assert (broken["input"], broken["rawInput"]) == (None, "{broken")


@pytest.mark.parametrize("raw", ["", "{", "[" * 100_000, "\ud800", "null"])
def test_a_call_whose_input_is_no_json_has_null_and_its_text(raw: str) -> None:
    book = Book()
    book.begin()
    book.turn(("get", raw))
    (call,) = context_items(book.record, "run-1")
    assert (call["input"], call["rawInput"], call["state"]) == (None, raw, "judged")


def test_a_call_without_a_result_is_a_call_alone() -> None:
    book = Book()
    book.begin()
    book.turn(("get", "{}"), ("refund", "{}"))
    book.wait(1)
    book.start(0)
    assert [(i["kind"], i["state"]) for i in context_items(book.record, "run-1")] == [
        ("ToolCall", "started"),
        ("ToolCall", "waiting"),
    ]


def test_the_outside_sees_no_details_no_narration_and_no_operators_message() -> None:
    result = ended(OUTCOMES["failed"], details={"hidden": "hidden"}, narration="hidden")
    assert b"hidden" not in dumps(item(result))
    assert b"secret" not in dumps(item(result))


# ----------------------------------------------------------------------------------------- the timeline


def test_the_timeline_call_gives_the_parts_whole_with_their_place() -> None:
    book = a_call(ToolResult.text("done").with_details({"id": 7}).with_narration("Paid"), replaced={"old": 1})
    message, call, result = timeline_items(book.record, "run-1")
    assert (message["kind"], message["text"]) == ("MESSAGE", "Refund order W100")
    assert (call["kind"], call["effectiveInput"], call["runId"]) == ("TOOL_CALL", {"order": "W100"}, "run-1")
    shown: Any = result
    assert (shown["result"]["details"], shown["result"]["narration"]) == ({"id": 7}, "Paid")
    assert (shown["sequence"], shown["threadId"], shown["author"]["name"]) == (3, None, "support")
    assert shown["date"] == "2026-10-26T12:00:04.0000000Z"
    assert "rejected" not in shown
    assert "replaced" not in shown


def test_what_a_guard_replaced_is_for_the_scope_admin() -> None:
    book = a_call(replaced={"old": 1})
    assert timeline_items(book.record, "run-1", admin=True)[-1]["replaced"] == {"old": 1}


def test_a_failed_call_has_its_error_in_the_timeline() -> None:
    shown = timeline_items(a_call(ended(TIMEOUT, "It took too long.")).record, "run-1")[-1]
    assert (shown["failed"], shown["errorCode"]) == (True, 4080)
    assert shown["output"] == {"error": {"code": 4080, "name": "TIMEOUT", "message": "It took too long."}}


def test_a_duplicate_is_skipped_and_no_error() -> None:
    shown = item(ended(Skipped("duplicate", "framework")), started=False)
    assert (shown["outcome"], shown["isError"]) == ("skipped", False)


# ------------------------------------------------------------------------------------------------ runs


def test_a_run_by_field() -> None:
    book = a_conversation()
    assert run_json(book.record, "run-1", "i-1") == {
        "runId": "run-1",
        "interactionId": "i-1",
        "parentRunId": None,
        "threadId": None,
        "agent": "support",
        "user": "ada",
        "status": "completed",
        "endedBy": "answer",
        "answer": "Done.",
        "output": None,
        "reason": None,
        "steps": 2,
        "calls": 2,
        "waiting": 0,
        "waitsFor": [],
        "usage": {"inputTokens": 200, "outputTokens": 40, "cachedTokens": 0, "reasoningTokens": 0, "cost": 0.0},
        "seconds": 8.0,
        "createdAt": "2026-10-26T12:00:00.0000000Z",
        "updatedAt": "2026-10-26T12:00:08.0000000Z",
        "endedAt": "2026-10-26T12:00:08.0000000Z",
    }


def test_a_run_that_waits_says_how_many_calls_do() -> None:
    book = Book()
    book.begin()
    book.turn(("refund", "{}"), ("refund", "{}"), usage=Usage(1, 2, 1, 0.5, 2))
    book.wait(0)
    book.wait(1)
    book.decide(0)
    book.pause()
    shown = run_json(book.record, "run-1", "i-1")
    assert (shown["status"], shown["waiting"], shown["endedBy"], shown["endedAt"]) == (
        "paused",
        1,
        None,
        None,
    )
    assert shown["usage"] == {
        "inputTokens": 1, "outputTokens": 2, "cachedTokens": 1, "reasoningTokens": 2, "cost": 0.5,
    }  # fmt: skip  # a row
