"""Parts from the folded record: items in reading order, outputs, authors, versions of an input."""

import pytest

from counterfoil.core.content import File, Image, Json, Kept, Link, Text
from counterfoil.core.entries import CallRecord
from counterfoil.core.items import Message, ToolCallPart, ToolResultPart
from counterfoil.core.outcome import SUCCEEDED, ErrorCode, Failed, ToolFailure
from counterfoil.core.parts import call_part, items_of, output_of, result_part
from counterfoil.core.result import ToolResult, seal
from tests.marks import law
from tests.records import OUTCOMES, Book, a_call, ended

KEPT = Kept("0198f000-0000-7000-8000-000000000001", 1_200_000, "head … tail")


@law("1.2.output", "source.000.output")
@pytest.mark.parametrize(
    ("result", "output"),
    [
        (ToolResult.text("done"), "done"),
        (ToolResult.text('{"a": 1}'), '{"a": 1}'),
        (ToolResult.json({"a": [1, None]}), {"a": [1, None]}),
        (ToolResult.json(None), None),
        (
            ToolResult.blocks(Text("one"), Json({"a": 1})),
            [{"type": "text", "text": "one"}, {"type": "json", "value": {"a": 1}}],
        ),
        (ToolResult.blocks(Link("a:b", "A")), [{"type": "link", "uri": "a:b", "title": "A"}]),
        (ToolResult.blocks(Image(b"\x00")), [{"type": "image", "data": "AA==", "mime": "image/png"}]),
        (ToolResult.json([]), []),
        (seal((KEPT,), SUCCEEDED), None),
        (seal((KEPT, Image(b"\x00")), SUCCEEDED), None),
        (ToolResult.error("no", ToolFailure(17)), {"error": {"code": 17, "message": "no"}}),
        (
            ended(Failed(ToolFailure(ErrorCode.TIMEOUT, "canary")), "too slow"),
            {"error": {"code": 4080, "name": "TIMEOUT", "message": "too slow"}},
        ),
        (
            ended(Failed(ToolFailure(5000, "canary")), "it failed"),
            {"error": {"code": 5000, "name": "TOOL_ERROR", "message": "it failed"}},
        ),
        (ToolResult.error("no"), {"error": {"message": "no"}}),
        (ended(OUTCOMES["denied"], "denied so"), "denied so"),
        (ended(OUTCOMES["rejected"], "refused so"), "refused so"),
        (ended(OUTCOMES["skipped"], "skipped so"), "skipped so"),
        (ended(OUTCOMES["cancelled"], "cancelled so"), "cancelled so"),
    ],
)
def test_the_output_is_what_the_tool_returned_or_what_the_model_read(result: ToolResult, output: object) -> None:
    assert output_of(result) == output


@law("1.2.output")
def test_the_code_of_a_failure_is_a_plain_number() -> None:
    output = output_of(ended(Failed(ToolFailure(ErrorCode.TIMEOUT)), "too slow"))
    assert type(output["error"]["code"]) is int


@law("1.2.output")
@pytest.mark.parametrize("outcome", list(OUTCOMES))
def test_the_output_of_a_result_kept_apart_is_null_whatever_its_outcome(outcome: str) -> None:
    assert output_of(seal((KEPT,), OUTCOMES[outcome])) is None


@law("1.2.output")
def test_the_part_of_a_result_kept_apart_has_no_output() -> None:
    kept = seal((KEPT,), Failed(ToolFailure(17)))
    book = a_call(kept, kept_id=KEPT.id)
    assert result_part(book.call(0), book.record.runs["run-1"]).output is None


def two_steps() -> Book:
    book = Book()
    book.begin()
    book.message("Refund W100")
    book.turn(("get_order", "{}"), ("refund", "{}"), ("notify", "{}"), text="Let me see.")
    return book


@law("1.2.order")
def test_items_stand_in_reading_order_however_the_results_arrive() -> None:
    book = two_steps()
    for index in (2, 0, 1):
        book.start(index)
        book.result(index, ToolResult.text(f"result {index}"))
    book.turn(text="Done.")
    items = items_of(book.record, "run-1")
    assert [item.sequence for item in items] == list(range(1, 10))
    assert [item.kind for item in items] == [
        "MESSAGE", "MESSAGE", "TOOL_CALL", "TOOL_CALL", "TOOL_CALL",
        "TOOL_RESULT", "TOOL_RESULT", "TOOL_RESULT", "MESSAGE",
    ]  # fmt: skip  # rows of kinds
    results = [item for item in items if isinstance(item, ToolResultPart)]
    assert [(item.call_id, item.output) for item in results] == [
        ("c0.0", "result 0"), ("c0.1", "result 1"), ("c0.2", "result 2"),
    ]  # fmt: skip  # rows


def test_a_call_without_a_result_stands_alone_and_the_others_keep_their_numbers() -> None:
    book = two_steps()
    book.start(2)
    book.result(2)
    items = items_of(book.record, "run-1")
    assert [(item.kind, item.sequence) for item in items] == [
        ("MESSAGE", 1), ("MESSAGE", 2), ("TOOL_CALL", 3), ("TOOL_CALL", 4), ("TOOL_CALL", 5),
        ("TOOL_RESULT", 8),
    ]  # fmt: skip  # rows
    assert [item.state for item in items if isinstance(item, ToolCallPart)] == ["judged", "judged", "settled"]


def test_items_are_those_of_one_run_and_an_unknown_run_is_an_error() -> None:
    book = Book()
    book.begin()
    book.message("first")
    book.turn(text="one")
    book.run_id = "run-2"
    book.begin()
    book.message("second")
    assert [i.text for i in items_of(book.record, "run-1") if isinstance(i, Message)] == ["first", "one"]
    assert [i.text for i in items_of(book.record, "run-2") if isinstance(i, Message)] == ["second"]
    with pytest.raises(KeyError):
        items_of(book.record, "run-3")


def test_a_turn_that_is_not_on_record_yet_is_no_item() -> None:
    book = Book()
    book.begin()
    book.message("first")
    turn = book.turn(("refund", "{}"))
    turn.sequence = 0
    assert [item.kind for item in items_of(book.record, "run-1")] == ["MESSAGE"]


def test_a_text_has_its_author_and_a_models_text_its_step() -> None:
    book = two_steps()
    book.message("Go on.", author_type="System", author_name="counterfoil")
    texts = [item for item in items_of(book.record, "run-1") if isinstance(item, Message)]
    assert [(t.author.type, t.author.name, t.step_index) for t in texts] == [
        ("Human", "user", None),
        ("Agent", "support", 0),
        ("System", "counterfoil", None),
    ]


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        ("Agent", "", "support"),
        ("Agent", "other", "other"),
        ("Human", "grace", "grace"),
        ("Human", "", "user"),
        ("System", "", "counterfoil"),
    ],
)
def test_every_author_of_a_result_has_a_name(kind: str, name: str, shown: str) -> None:
    book = a_call(author_type=kind, author_name=name)
    who = result_part(book.call(0), book.record.runs["run-1"]).author
    assert (who.type, who.name) == (kind, shown)


def test_a_call_without_a_result_has_no_result_part() -> None:
    book = two_steps()
    with pytest.raises(ValueError, match=r"call c0\.0 has no result yet"):
        result_part(book.call(0), book.record.runs["run-1"])


@law("1.2.call-part")
def test_both_versions_of_an_input_stay() -> None:
    book = two_steps()
    book.start(0, input={"id": "W100"}, parsed=b'{"id":"w100"}')
    guarded = call_part(book.call(0))
    book.wait(1, input={"cents": 500})
    waiting = call_part(book.call(1))
    book.decide(1, input=b'{"cents":200}')
    decided = call_part(book.call(1))
    book.start(1, input={"cents": 200}, parsed=b'{"cents":500}')
    started = call_part(book.call(1))
    assert (guarded.input, guarded.effective_input) == ({"id": "w100"}, {"id": "W100"})
    assert (waiting.input, waiting.effective_input) == ({"cents": 500}, {"cents": 500})
    assert (decided.input, decided.effective_input) == ({"cents": 500}, {"cents": 200})
    assert (started.input, started.effective_input) == ({"cents": 500}, {"cents": 200})


@law("1.2.call-part")
def test_the_policys_decision_is_shown_wherever_it_is_on_record() -> None:
    book = two_steps()
    book.start(0, decision={"verdict": "allow", "rule": "small", "revision": "r1"})
    book.wait(1)
    book.result(2, ended(OUTCOMES["denied"]), decision={"verdict": "deny"}, parsed=b'{"a":1}')
    parts = [call_part(book.call(i)) for i in range(3)]
    assert [part.decision for part in parts] == [
        {"verdict": "allow", "rule": "small", "revision": "r1"}, {"verdict": "ask"}, {"verdict": "deny"},
    ]  # fmt: skip  # a row
    assert (parts[2].input, parts[2].attempt) == ({"a": 1}, 0)


@law("1.2.key")
def test_calls_with_one_provider_id_are_told_apart_by_step_and_index() -> None:
    book = Book()
    book.begin()
    for step in range(2):
        book.turn(
            CallRecord(f"ours-{step}.0", "same", "get", "{}"),
            CallRecord(f"ours-{step}.1", "same", "get", "{}"),
        )
        for index in range(2):
            book.start(index)
            book.result(index, ToolResult.text(f"{step}.{index}"))
    calls = [i for i in items_of(book.record, "run-1") if isinstance(i, ToolCallPart)]
    results = {i.call_id: i.output for i in items_of(book.record, "run-1") if isinstance(i, ToolResultPart)}
    assert [(c.step_index, c.index, c.provider_call_id) for c in calls] == [
        (0, 0, "same"), (0, 1, "same"), (1, 0, "same"), (1, 1, "same"),
    ]  # fmt: skip  # rows
    assert [results[c.call_id] for c in calls] == ["0.0", "0.1", "1.0", "1.1"]


def test_a_placeholder_stands_for_media_in_what_the_model_reads() -> None:
    assert ToolResult.blocks(File(b"abc", "text/csv", "a.csv")).model_output == "[file a.csv, text/csv, 3 bytes]"
