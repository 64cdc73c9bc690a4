"""Conversations of other programs: onto the record as runs, and from it; nothing made up, nothing lost unsaid."""

import base64
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import TextBlock, ToolUseBlock
from hypothesis import given, settings
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

from counterfoil import (
    Agent,
    Audio,
    Caller,
    File,
    Hooks,
    Image,
    Runtime,
    Text,
    ToolContext,
    ToolError,
    ToolResult,
    tool,
)
from counterfoil.adapters.models.anthropic.request import WIRE as MESSAGES_WIRE
from counterfoil.adapters.models.shared.opaque import own_items
from counterfoil.core.entries import TurnEntry
from counterfoil.core.errors import DefinitionError, StoreError, UsageError
from counterfoil.core.items import Reasoning
from counterfoil.model import ModelCall
from counterfoil.run import Fold, Run
from counterfoil.store import Wanted
from counterfoil.testing import ScriptedModel, call, say
from counterfoil.testing.model_bench import PNG
from counterfoil.transcripts import (
    FORMATS,
    Transcript,
    body_of,
    export_messages,
    import_messages,
    read_messages,
    repair,
    transcript_of,
)
from counterfoil.transcripts.files import read_values
from tests.helpers import Place, both, go
from tests.marks import law
from tests.promises import shared
from tests.test_threads import a_team
from tests.transcripts import (
    ANTHROPIC,
    CHAT,
    FORMS,
    OWN,
    RESPONSES,
    TELLS_FAILURES,
    broken,
    damaged,
    faults,
    meaning,
    whole,
)

WAV = b"RIFF\x04\x00\x00\x00WAVE"
NAUGHTY = json.loads((Path(__file__).parent / "hostile" / "blns.json").read_text(encoding="utf-8"))


def brought(messages: Any, format: str | None = None) -> Any:
    """The imported run, on a record in memory that is whole."""

    async def main() -> Any:
        async with Runtime("memory://") as runtime:
            run = await import_messages(runtime, messages, format=format)
            assert (await runtime.verify()).ok
            return run

    return go(main())


def written(transcript: Transcript, form: str) -> Any:
    return body_of(transcript, export_messages(transcript, form), form)


# ---------------------------------------------------------------------------------------- four forms


@pytest.mark.parametrize("form", FORMATS)
def test_a_form_is_told_apart_and_read(form: str) -> None:
    transcript = read_messages(FORMS[form])
    assert transcript.format == form
    assert transcript.repairs == ()
    failures = form in TELLS_FAILURES
    assert meaning(transcript, failures=failures) == meaning(read_messages(ANTHROPIC), failures=failures)
    assert transcript.instructions == "Be brief."
    assert repair(transcript) is transcript


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("form", FORMATS)
def test_each_form_becomes_each_other_form_with_the_same_meaning(source: str, form: str) -> None:
    transcript = read_messages(FORMS[source])
    again = read_messages(written(transcript, form), form)
    failures = source in TELLS_FAILURES and form in TELLS_FAILURES
    assert meaning(again, failures=failures) == meaning(transcript, failures=failures)
    assert written(again, form) == written(transcript, form)


@both
@pytest.mark.parametrize("form", FORMATS)
def test_what_is_imported_is_a_run_on_record_that_an_agent_goes_on_with(place: Place, form: str) -> None:
    model = ScriptedModel([say("In short: sunny.")])

    async def main() -> None:
        async with place.open() as runtime:
            run = await import_messages(runtime, FORMS[form], agent="weather-man", caller=Caller("default", "ada"))
        async with place.open(Agent("desk", model, instructions="Other words.")) as runtime:
            run = await runtime.get(run.id)
            assert (run.status, run.ended_by, run.answer) == ("completed", "answer", "Rome is sunny.")
            assert (run.agent, run.steps, run.imported["format"]) == ("weather-man", 2, form)
            assert [c.tool_name for c in run.calls] == ["weather", "weather"]
            assert [r.result.model_output for r in run.results] == ["sunny", "no such city"]
            assert [r.failed for r in run.results] == [False, form in TELLS_FAILURES]
            assert len(await run.errors()) == (form in TELLS_FAILURES)
            again = await (await runtime.start("desk", "In short?", interaction=run.interaction_id)).wait()
            assert again.answer == "In short: sunny."
            whole = transcript_of(again, conversation=True)
            assert meaning(whole)[-2:] == [["user", "In short?"], ["model", "In short: sunny.", []]]
            assert len(export_messages(again)) == 2
            assert (await runtime.replay(run.id)).steps

    go(main())
    asked = model.requests[0].messages
    assert asked[0] == {"role": "system", "content": "Other words."}
    assert [m["role"] for m in asked[1:]] == ["user", "assistant", "tool", "tool", "user", "assistant", "user"]


# ---------------------------------------------------------------------------------- nothing is made up


@law("2.1", "11.chain")
def test_what_a_transcript_does_not_tell_is_not_made_up() -> None:
    run = brought(ANTHROPIC)
    for part in run.calls:
        assert (part.state, part.decision, part.approval, part.attempt) == ("settled", None, None, 0)
        assert part.effective_input is None
    ok, bad = run.results
    assert (ok.executed, ok.started_at, ok.duration_ms, ok.attempt) == (True, None, None, None)
    assert bad.failure is not None
    assert (bad.failure.code, bad.failure.body, bad.failure.retryable) == (None, "unknown", None)
    assert run.usage.tokens == 0
    assert [t.model for t in run._fold.record.items if isinstance(t, TurnEntry)] == ["claude", "claude"]


def test_a_history_that_does_not_end_with_an_answer_has_none() -> None:
    for end in (2, 5, 6):
        run = brought(CHAT[:end])
        assert (run.status, run.ended_by, run.answer) == ("completed", "import", None)


def test_ids_that_repeat_from_turn_to_turn_are_the_providers_own_on_record() -> None:
    turns = [OWN[1], {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "name": "look"}]}]
    answer = {"role": "tool", "content": "fine", "tool_call_id": "x", "tool_name": "look", "error": None}
    run = brought([*turns, answer, *turns, answer])
    assert run.imported["repairs"] == []
    assert [c.provider_call_id for c in run.calls] == ["x", "x"]
    assert len({c.call_id for c in run.calls}) == 2
    ids = [m["tool_call_id"] for m in export_messages(run) if m["role"] == "tool"]
    assert len(set(ids)) == 2


def test_steps_of_the_server_within_a_turn_are_left_out_and_said() -> None:
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    clicked = {"type": "computer_call_output", "call_id": "k", "output": {}}
    said = [{"role": "assistant", "content": text} for text in ("I look.", "Rain.", "Done.")]
    transcript = read_messages([{"role": "user", "content": "?"}, said[0], searched, said[1], clicked, said[2]])
    assert [item.turn.text for item in transcript.items[1:]] == ["I look.\n\nRain.", "Done."]
    left = [(one.kind, one.place, one.removed) for one in transcript.repairs]
    assert left == [("left-out", "input[2]", searched), ("left-out", "input[4]", clicked)]


PATCH = "*** Begin Patch"
CUSTOM = {
    "openai": [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "p", "input": PATCH}}]},
        {"role": "tool", "tool_call_id": "c", "content": "Patched."},
    ],
    "openai-responses": [
        {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": PATCH},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "Patched."},
    ],
}


@pytest.mark.parametrize("form", CUSTOM)
def test_a_call_of_a_tool_that_takes_any_text_is_a_call(form: str) -> None:
    run = brought(CUSTOM[form], form)
    assert run.imported["repairs"] == []
    (call,) = run.calls
    assert (call.tool_name, call.raw_input, run.results[0].output) == ("p", PATCH, "Patched.")
    (again,) = read_messages(export_messages(run, form), form).items[:1]
    assert again.turn.calls == (ModelCall("c", "p", PATCH),)


def test_what_has_no_place_on_record_is_kept_beside_it_and_said() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/dot.png"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image], "name": "ada"},
        {"role": "assistant", "content": "A dot.", "audio": {"id": "a"}, "annotations": []},
    ]
    run = brought(messages)
    left = [(one["kind"], one["place"], one["removed"]) for one in run.imported["repairs"]]
    assert left == [
        ("left-out", "messages[0]", {"name": "ada"}),
        ("left-out", "messages[0].content[1]", image),
        ("left-out", "messages[1]", {"audio": {"id": "a"}}),
    ]
    assert [item.text for item in run.items] == ["What is this?", "https://example.org/dot.png", "A dot."]


@pytest.mark.parametrize("form", ["anthropic", "openai", "openai-responses"])
def test_media_in_a_message_go_there_and_back_and_to_the_screen(form: str) -> None:
    data = {name: base64.b64encode(raw).decode() for name, raw in (("png", PNG), ("pdf", b"%PDF-1"), ("wav", WAV))}
    png, pdf = f"data:image/png;base64,{data['png']}", f"data:application/pdf;base64,{data['pdf']}"
    parts = {
        "anthropic": [
            {"type": "text", "text": "What is this?"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data["png"]}},
            {"type": "document", "title": "a.pdf",
             "source": {"type": "base64", "media_type": "application/pdf", "data": data["pdf"]}},
        ],
        "openai": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": png}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": pdf}},
            {"type": "input_audio", "input_audio": {"data": data["wav"], "format": "wav"}},
        ],
        "openai-responses": [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": png},
            {"type": "input_file", "filename": "a.pdf", "file_data": pdf},
        ],
    }[form]  # fmt: skip  # a form each
    run = brought([{"role": "user", "content": parts}, {"role": "assistant", "content": "A dot."}], form)
    assert run.imported["repairs"] == []
    blocks = (Text("What is this?"), Image(PNG), File(b"%PDF-1", "application/pdf", "a.pdf"), Audio(WAV))
    assert run.items[0].blocks == blocks[: len(parts)]
    assert run.items[0].text.startswith(f"What is this?\n[image, image/png, {len(PNG)} bytes]\n[file a.pdf")
    sent = export_messages(run, form)[0]["content"]
    assert sent == parts
    shown = export_messages(run, "ui")[0]["parts"]
    assert shown[1] == {"type": "file", "mediaType": "image/png", "url": png}
    assert shown[2]["filename"] == "a.pdf"


@pytest.mark.parametrize("form", ["anthropic", "openai-responses"])
def test_media_in_a_result_go_there_and_back(form: str) -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    parts = {
        "anthropic": [{"type": "text", "text": "Look:"}, {"type": "image", "source": source}],
        "openai-responses": [{"type": "input_text", "text": "Look:"}, {"type": "input_image", "image_url": url}],
    }[form]
    given = json.loads(json.dumps(FORMS[form]))
    if form == "anthropic":
        given["messages"][2]["content"][1]["content"] = parts
    else:
        given["input"][5]["output"] = parts
    run = brought(given)
    assert run.results[0].result.content[1] == Image(PNG)
    out = json.dumps(written(transcript_of(run), form))
    assert json.dumps(parts) in out


def test_reasoning_goes_back_to_its_own_form_and_to_no_server() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "abc"}
    given = json.loads(json.dumps(ANTHROPIC))
    second = {"type": "text", "text": "And look again."}
    given["messages"][1]["content"] = [thinking, *given["messages"][1]["content"][:2], second]
    given["messages"][1]["content"] += ANTHROPIC["messages"][1]["content"][2:]
    run = brought(given)
    assert export_messages(run, "anthropic")[1]["content"] == given["messages"][1]["content"]
    kept = next(item.reasoning for item in run._fold.record.items if isinstance(item, TurnEntry))
    assert kept["wire"] == MESSAGES_WIRE
    assert own_items(kept, MESSAGES_WIRE, kept["origin"]) != []
    assert kept["origin"] == "imported"  # 16 hexadecimal digits name a server and model
    others = [export_messages(run, form) for form in ("openai", "openai-responses", "counterfoil")]
    assert "Hm." not in json.dumps(others)
    assert {"type": "reasoning", "text": "Hm.", "state": "done"} in export_messages(run, "ui")[1]["parts"]
    summary = [{"type": "summary_text", "text": "Hm."}]
    item = {"type": "reasoning", "id": "r1", "summary": summary, "encrypted_content": "xyz"}
    items = {**RESPONSES, "input": [RESPONSES["input"][0], item, *RESPONSES["input"][1:]]}
    run = brought(items)
    assert export_messages(run, "openai-responses")[1] == item
    chat = brought([CHAT[1], {"role": "assistant", "content": "Fine.", "reasoning_content": "Hm."}])
    for one in (run, chat):
        assert [i.text for i in one.items if isinstance(i, Reasoning)] == ["Hm."]
        assert {"type": "reasoning", "text": "Hm.", "state": "done"} in export_messages(one, "ui")[1]["parts"]


def test_texts_and_calls_that_take_turns_keep_their_order_in_their_own_form() -> None:
    call_, text = ANTHROPIC["messages"][1]["content"][1], {"type": "text", "text": "Then this."}
    given = [ANTHROPIC["messages"][0], {"role": "assistant", "content": [call_, text]}]
    told = {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}
    run = brought([*given, {"role": "user", "content": [told]}])
    assert export_messages(run, "anthropic")[1] == given[1]
    assert [type(item).__name__ for item in run.items[1:3]] == ["Message", "ToolCallPart"]
    said, asked = RESPONSES["input"][1], RESPONSES["input"][2]
    out = export_messages(brought([asked, said, RESPONSES["input"][5]]), "openai-responses")
    assert [item.get("type", "message") for item in out] == ["function_call", "message", "function_call_output"]


# --------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("messages", "form", "said"),
    [
        (7, None, "the transcript: expected a list of messages, or an object with messages or input, got int"),
        ([7], None, "messages[0]: expected an object, got int"),
        ([{"role": "bot"}], None, "messages[0].role: expected system, developer, user, assistant, tool or function"),
        ([{"role": "user", "content": 7}], None, "messages[0].content: expected a list, got int"),
        ([{"role": "user", "content": [{"type": "text"}]}], None, "messages[0].content[0]: expected a text, got noth"),
        ([CHAT[1], {"role": "assistant", "tool_calls": [{"id": 7, "function": {"name": "x"}}]}], None,
         "messages[1].tool_calls[0].id: expected a text, got int"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], None, "tool_calls[0].name: expected a text, got n"),
        ([{"role": "assistant", "tool_calls": [{"type": "odd"}]}], None, "type: expected function or custom, got 'o"),
        ({"system": [], "messages": [{"role": "tool"}]}, None, "messages[0].role: expected user, assistant or system"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "name": "x", "input": []}]}], None,
         "messages[0].content[0].input: expected an object, got list"),
        ([{"type": "reasoning"}, {"type": "note"}], None, "input[1].type: expected message, function_call"),
        ([{"type": "function_call", "name": "x", "arguments": 7}], None, "input[0].arguments: expected a text, got"),
        ([{"role": "tool", "tool_name": "x", "content": []}], None, "messages[0].content: expected a text, got list"),
        ([{"role": "assistant", "tool_calls": [{"id": "x"}]}], "counterfoil", "messages[0], call 1"),
        ([], "ui", "there is no transcript format 'ui'"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}]}],
         None, "messages[0].content[0]: expected data in base64"),
    ],
)  # fmt: skip  # a row for each fault
def test_an_error_names_the_message_and_what_was_expected(messages: Any, form: str | None, said: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        read_messages(messages, form)
    assert said in str(caught.value)


def test_what_is_damaged_is_refused_in_a_sentence_or_read_and_written() -> None:
    dice, counts = random.Random(7), Counter[str]()  # noqa: S311  # the same damage each time
    for _ in range(2000):
        given = damaged(FORMS[dice.choice(FORMATS)], dice)
        try:
            transcript = repair(read_messages(given, dice.choice([None, *FORMATS])))
        except DefinitionError:
            counts["refused"] += 1
            continue
        counts["read"] += 1
        assert repair(transcript) == transcript
        for form in FORMATS:
            export_messages(transcript, form)
    assert min(counts.values()) > 200


def test_a_runtime_that_is_not_open_takes_no_import() -> None:
    with pytest.raises(UsageError, match="not open"):
        go(import_messages(Runtime("memory://"), CHAT))


def test_a_broken_transcript_is_not_written() -> None:
    transcript = read_messages([*CHAT[:4], CHAT[5]])
    with pytest.raises(DefinitionError, match="call c1 has no result behind its turn; repair"):
        export_messages(transcript)
    with pytest.raises(DefinitionError, match=r"messages\[0\] has no call before it; repair"):
        export_messages(read_messages(CHAT[3:4]))
    with pytest.raises(DefinitionError, match="no transcript format 'pdf'"):
        export_messages(transcript, "pdf")


# ------------------------------------------------------------------------------------- hostile strings


@pytest.mark.parametrize("form", FORMATS)
def test_naughty_strings_go_there_and_back_exactly(form: str) -> None:
    strings = [text for text in NAUGHTY if text.strip()]
    said = [{"role": "user", "content": text} for text in strings]
    calls = [
        {"id": text, "type": "function", "function": {"name": text, "arguments": json.dumps({"a": text})}}
        for text in dict.fromkeys(strings)
    ]
    turn = {"role": "assistant", "content": strings[0], "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": c["id"], "content": c["id"]} for c in calls]
    run = brought([*said, turn, *results])
    assert run.imported["repairs"] == []
    assert [i.text for i in run.items[: len(strings)]] == strings
    assert [c.tool_name for c in run.calls] == [c["id"] for c in calls]
    again = read_messages(json.loads(json.dumps(written(transcript_of(run), form))), form)
    assert meaning(again) == meaning(transcript_of(run))


@pytest.mark.parametrize("file", ["jsontestsuite.jsonl", "smollm2-raw-tool-calls.jsonl"])
def test_hostile_json_is_kept_to_the_letter_or_refused_in_a_sentence(tmp_path: Path, file: str) -> None:
    folder = shared()
    if folder is None:
        pytest.skip("the hostile inputs are not here: set COUNTERFOIL_SHARED")
    rows = [json.loads(line) for line in (folder / "data" / "hostile" / file).read_text("utf-8").splitlines()]
    raws = [base64.b64decode(row["b64"]) if "b64" in row else row["raw"].encode() for row in rows]
    refused = 0
    for raw in raws:  # as a whole file
        path = tmp_path / "x.json"
        path.write_bytes(raw)
        try:
            read_messages([value for value, _ in read_values(path)])
        except DefinitionError:
            refused += 1
    assert refused > 0
    texts = [raw.decode("utf-8", "replace") for raw in raws]
    calls = [{"id": f"c{n}", "function": {"name": "x", "arguments": text}} for n, text in enumerate(texts)]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": c["function"]["arguments"]} for c in calls]
    run = brought([{"role": "assistant", "tool_calls": calls}, *results])
    assert [c.raw_input for c in run.calls] == texts
    for form in ("openai", "openai-responses", "counterfoil"):
        again = read_messages(json.loads(json.dumps(written(transcript_of(run), form))), form)
        assert [c.arguments for c in again.items[0].turn.calls] == texts
    sent = export_messages(run, "anthropic")[0]["content"]
    assert all(isinstance(block["input"], dict) for block in sent)  # the wire takes objects alone


def test_every_export_is_plain_json_whatever_a_model_wrote() -> None:
    raws = ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', "NaN", '{"a": "\\ud800"}']
    calls = [{"id": f"c{n}", "function": {"name": "x", "arguments": raw}} for n, raw in enumerate(raws)]
    run = brought([{"role": "assistant", "tool_calls": calls}])
    for form in (*FORMATS, "ui"):
        json.dumps(export_messages(run, form), allow_nan=False, ensure_ascii=False).encode()


# --------------------------------------------------------------------------------------------- repair


@given(transcript=whole())
@settings(max_examples=150, deadline=None)
def test_what_is_whole_is_not_changed(transcript: Transcript) -> None:
    assert faults(transcript) == []
    assert repair(transcript) == transcript


@law("2.1", "2.2")
@given(transcript=broken())
@settings(max_examples=300, deadline=None)
def test_what_is_broken_is_whole_after_one_repair_and_nothing_is_lost_unsaid(transcript: Transcript) -> None:
    mended = repair(transcript)
    assert faults(mended) == []
    assert repair(mended) == mended
    assert bool(mended.repairs) == bool(faults(transcript))
    assert (mended == transcript) == (not mended.repairs)
    for form in FORMATS:
        export_messages(mended, form)
    told = [item for item in mended.items if not getattr(item, "failure", None) or item.failure.origin == "tool"]
    lost = [one.removed for one in mended.repairs if one.kind in ("orphan-result", "doubled-result", "empty")]
    assert len(told) + len(lost) == len(transcript.items)


def one(call_id: str | None, name: str = "look") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def asks(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def tells(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


USER = {"role": "user", "content": "Go on."}


@pytest.mark.parametrize(
    ("messages", "kinds", "results"),
    [
        ([asks(one("a"), one("b")), tells("b", "B")], ["unanswered"], [None, "B"]),
        ([asks(one("a")), tells("a", "A"), tells("a", "again")], ["doubled-result"], ["A"]),
        ([asks(one("a")), tells("a", "A"), USER, tells("a", "again")], ["doubled-result"], ["A"]),
        ([tells("z", "Z"), asks(one("a")), tells("a", "A")], ["orphan-result"], ["A"]),
        ([asks(one("a"), one("b")), tells("a", "A"), USER, tells("b", "B")], ["moved-result"], ["A", "B"]),
        ([tells("a", "A"), asks(one("a"))], ["moved-result"], ["A"]),
        ([asks(one("a")), asks(one("b")), tells("a", "A"), tells("b", "B")], ["moved-result"], ["A", "B"]),
        ([asks(one("a"), one("a")), tells("a", "1"), tells("a", "2")], ["duplicate-id"], ["1", "2"]),
        ([asks(one("a"), one("a")), tells("a", "1")], ["duplicate-id", "unanswered"], ["1", None]),
        ([{"role": "user", "content": " "}, asks(one("a")), tells("a", "A")], ["empty"], ["A"]),
        ([asks(one("a")), tells("a", "1"), asks(one("a")), tells("a", "2")], [], ["1", "2"]),
        ([asks(one("a")), asks(one("a")), tells("a", "2"), tells("a", "1")], ["moved-result"], ["1", "2"]),
    ],
)
def test_each_repair_is_on_record_with_its_place_and_reason(
    messages: list[Any], kinds: list[str], results: list[str | None]
) -> None:
    run = brought([*messages, {"role": "assistant", "content": "Done."}])
    assert [one["kind"] for one in run.imported["repairs"]] == kinds
    assert all(one["place"].startswith("messages[") and one["why"] for one in run.imported["repairs"])
    assert len(run.results) == len(results)
    for part, text in zip(run.results, results, strict=True):
        if text is None:
            assert (part.error_code, part.failure.body, part.executed) == (5001, "unknown", False)
            assert "no result of look" in part.result.model_output
        else:
            assert (part.result.model_output, part.failed) == (text, False)
    told = json.dumps(run.imported["repairs"])
    assert all(m["content"] in told or m["content"] in results for m in messages if m["role"] == "tool")


# --------------------------------------------------------------------------------------------- export

CANARY = "canary-of-the-other-half"


@tool
def pay(ctx: ToolContext, cents: int) -> ToolResult:
    """Pay."""
    if cents == 7:
        raise ToolError("Not seven.", code=77, data=CANARY, details=CANARY)
    if cents == 13:
        raise ValueError(CANARY)
    return ToolResult.text(f"Paid {cents}.").with_details(CANARY).with_narration(CANARY)


@tool(needs_approval=True)
def gift(cents: int) -> str:
    """Give."""
    return "given"


def test_an_export_holds_what_the_model_read_and_nothing_of_the_other_half() -> None:
    turns = [[say("Pay."), *(call("pay", cents=n) for n in (1, 7, 13))], [call("gift", cents=5, id="g")], say("Done.")]
    agent = Agent("desk", ScriptedModel(turns), tools=[pay, gift], hooks=Hooks())

    async def main() -> None:
        async with Runtime("memory://", agents=[agent]) as runtime:
            run = await (await runtime.start("desk", "Pay it")).wait()
            paused = [export_messages(run, form) for form in FORMATS]
            assert [m["role"] for m in paused[0]] == ["user", "assistant", "tool", "tool", "tool"]
            await run.reject("g", by="grace", reason="too kind")
            await run.wait()
            read = transcript_of(run)
            assert CANARY not in json.dumps([export_messages(run, form) for form in (*FORMATS, "ui")])
            assert meaning(read)[1][2][0] == ["pay", {"cents": 1}, "Paid 1.", False]
            assert [result[2:] for result in meaning(read)[1][2]][1] == ["Not seven.", True]
            assert meaning(read)[2][2][0][3] is True
            for form in FORMATS:
                again = read_messages(written(read, form), form)
                failures = form in TELLS_FAILURES
                assert meaning(again, failures=failures) == meaning(read, failures=failures)

    go(main())


def test_calls_of_a_turn_that_share_an_id_have_ids_of_their_own_in_an_export() -> None:
    turns = [[call("pay", cents=1, id="x"), call("pay", cents=2, id="x"), call("pay", cents=2, id="x")], say("Done.")]

    async def main() -> None:
        async with Runtime("memory://", agents=[Agent("desk", ScriptedModel(turns), tools=[pay])]) as runtime:
            run = await (await runtime.start("desk", "Pay it")).wait()
            want = meaning(transcript_of(run))
            assert [c[2] for c in want[1][2]][:2] == ["Paid 1.", "Paid 2."]
            for form in FORMATS:
                again = repair(read_messages(export_messages(run, form), form))
                assert again.repairs == ()
                failures = form in TELLS_FAILURES
                assert meaning(again, failures=failures) == meaning(transcript_of(run), failures=failures)

    go(main())


def test_a_run_is_exported_with_its_own_thread_alone() -> None:
    record = a_team().record
    runs = {name: Run(None, Fold("acme", "talk-1", name, record)) for name in record.runs}  # type: ignore[arg-type]
    said = {name: json.dumps([export_messages(run, form) for form in FORMATS]) for name, run in runs.items()}
    shown = {name: json.dumps(export_messages(run, "ui", conversation=True)) for name, run in runs.items()}
    for texts, forms in ((said, len(FORMATS)), (shown, 1)):
        assert "Forge a ring." in texts["run-1"]
        assert "a vein of gold" in texts["run-1"]
        assert not any(word in texts["run-1"] for word in ("Dig.", "Heat.", "Found gold."))
        assert texts["run-2"].count("Found gold.") == forms
        assert "Forge" not in texts["run-2"]
        assert "Heat." in texts["run-3"]
        assert not any(word in texts["run-3"] for word in ("Dig.", "Forge"))


def test_what_retention_erased_is_erased_of_the_import_too() -> None:
    async def main() -> None:
        async with Runtime("memory://") as runtime:
            run = await import_messages(runtime, [*CHAT, tells("zz", "stray")])
            assert await runtime.erase(run.id)
            run = await runtime.get(run.id)
            await run.refresh()
            assert (await runtime.verify()).ok
            entries = await runtime.store.entries("default", run.interaction_id)
            assert entries[0].imported == {"format": "openai"}
            assert "stray" not in json.dumps([entry.facts() for entry in entries])

    go(main())


@both
def test_an_import_that_was_broken_off_is_driven_by_nobody_and_can_be_cancelled(place: Place) -> None:
    model = ScriptedModel([])

    async def main() -> None:
        async def full(*_: Any, **__: Any) -> int:
            raise StoreError("the disk is full")

        async with place.runtime() as runtime:
            runtime.store.commit = full  # type: ignore[method-assign]  # as a disk would
            with pytest.raises(StoreError):
                await import_messages(runtime, CHAT, agent="desk")
            del runtime.store.commit
        async with place.open(Agent("desk", model)) as runtime:
            (row,) = await runtime.runs()
            assert row.status == "running"
            wanted = Wanted(runtime.owner, runtime.effects.now(), ["desk"])
            assert await runtime.store.open_runs(wanted) == []
            run = await runtime.get(row.run_id)
            await run.cancel(by="ada")
            assert (await run.wait()).status == "cancelled"

    go(main())
    assert model.requests == []


def test_a_timeline_tells_that_a_run_was_imported_and_what_was_repaired() -> None:
    async def main() -> None:
        async with Runtime("memory://") as runtime:
            run = await import_messages(runtime, CHAT[:4], agent="desk")
            rows = await runtime.timeline(run.id)
            assert rows[0].text == "desk was imported"
            assert rows[0].notes == (
                "repaired messages[2]: the call of weather (c1) has no result; it has one now that says so",
            )
            assert rows[-1].text == "completed: what was imported ends here"

    go(main())


def test_a_transcript_keeps_its_earlier_repairs() -> None:
    first = repair(read_messages([*CHAT[:4], CHAT[5]]))
    second = repair(replace(first, items=(*first.items, *read_messages(CHAT[3:4]).items)))
    assert [r.kind for r in second.repairs] == ["unanswered", "doubled-result"]


def test_the_objects_of_the_sdks_are_messages_too() -> None:
    chat = ChatCompletionMessage.model_validate({**CHAT[2], "refusal": None, "annotations": []})
    assert meaning(read_messages([*CHAT[:2], chat, *CHAT[3:]])) == meaning(read_messages(CHAT))
    blocks = [{"type": "text", "text": "Let me look.", "citations": None}, *ANTHROPIC["messages"][1]["content"][1:]]
    made = [TextBlock.model_validate(blocks[0]), *map(ToolUseBlock.model_validate, blocks[1:])]
    talk = [ANTHROPIC["messages"][0], {"role": "assistant", "content": made}, *ANTHROPIC["messages"][2:]]
    again = read_messages({**ANTHROPIC, "messages": talk})
    assert meaning(again) == meaning(read_messages(ANTHROPIC))
    said = ResponseOutputMessage.model_validate({
        "id": "m1", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}],
    })  # fmt: skip  # as it comes
    asked = [ResponseFunctionToolCall.model_validate(RESPONSES["input"][n]) for n in (2, 3)]
    items = [RESPONSES["input"][0], said, *asked, *RESPONSES["input"][4:]]
    again = read_messages({**RESPONSES, "input": items})
    assert meaning(again) == meaning(read_messages(RESPONSES))
    assert again.repairs == ()
