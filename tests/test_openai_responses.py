"""What is peculiar to the Responses wire; what holds for every wire is in the suite (test_model_suite.py)."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from counterfoil.adapters.models.openai import OpenAIResponses, open_model
from counterfoil.adapters.models.openai.answer import Answer
from counterfoil.core.content import File, Image, Text
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import Usage
from counterfoil.model import ModelCall, ModelTurn, TextDelta
from counterfoil.registry import resolve
from counterfoil.testing.fake_responses import Chunks, FakeResponses, Play, Refusal, Whole
from counterfoil.testing.model_bench import KEY, LOOK, PNG, At, made, request, result, said, turn
from tests.asked import Wire

SEAL = "fake-seal:"


@asynccontextmanager
async def serving(*script: Any, reasons: bool = True, **settings: Any) -> AsyncIterator[At]:
    async with FakeResponses(script, key=KEY, reasons=reasons) as server:
        model = OpenAIResponses("fake", base_url=server.base_url, **{"api_key": KEY, **settings})
        try:
            yield At(server, model)
        finally:
            await model.aclose()


WIRE = Wire(serving)
sent, answered, refused = WIRE.sent, WIRE.answered, WIRE.refused


# --------------------------------------------------------------------------------------------- requests


def test_a_request_stores_nothing_and_holds_the_whole_conversation() -> None:
    body = sent(request(said("Hello"), turn(words="Hi."), said("Again", "System"), said("Go")))
    assert body == {
        "model": "fake",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi."},
            {"role": "system", "content": "Again"},
            {"role": "user", "content": "Go"},
        ],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": True,
        "tools": [
            {
                "type": "function",
                "name": "look",
                "description": "Look it up.",
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
                    "required": ["a"],
                    "additionalProperties": False,
                },
            }
        ],
        "tool_choice": "auto",
    }


def test_the_requests_of_a_run_go_where_their_beginning_is_cached() -> None:
    assert "prompt_cache_key" not in sent()
    assert sent(request(run_id="r7"))["prompt_cache_key"] == "r7"
    assert "prompt_cache_key" not in sent(request(run_id="r7"), parameters={"prompt_cache_key": None})
    assert sent(request(run_id="r7", parameters={"prompt_cache_key": "desk"}))["prompt_cache_key"] == "desk"


def test_a_call_and_its_output_carry_the_calls_id_and_no_items() -> None:
    body = sent(request(said("Go"), turn(made("c1", "p1", raw='{"a": 1}')), result("c1", ToolResult.text("one"))))
    assert body["input"][1:] == [
        {"type": "function_call", "call_id": "p1", "name": "look", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "p1", "output": "one"},
    ]


def test_images_and_documents_are_sent_and_the_rest_is_text() -> None:
    shown = ToolResult.blocks(
        Text("A map:"), Image(PNG, "image/jpeg"), File(b"%PDF-1.7", "application/pdf", "a.pdf"), File(b"\x00", "a/b")
    )
    asked = request(said("Go"), turn(made("c1", "c1")), result("c1", shown))
    png, pdf = base64.b64encode(PNG).decode(), base64.b64encode(b"%PDF-1.7").decode()
    assert sent(asked)["input"][-1]["output"] == [
        {"type": "input_text", "text": "A map:"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{png}"},
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{pdf}"},
        {"type": "input_text", "text": "[file, a/b, 1 bytes]"},
    ]
    text = sent(asked, media=False)["input"][-1]["output"]
    assert text == (
        f"A map:\n[image, image/jpeg, {len(PNG)} bytes]\n[file a.pdf, application/pdf, 8 bytes]\n[file, a/b, 1 bytes]"
    )


def test_a_medium_over_the_servers_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterfoil.adapters.models.openai.request.MAX_MEDIUM", len(PNG) - 1)
    shown = ToolResult.blocks(Image(PNG))
    asked = request(said("Go"), turn(made("c1", "c1")), result("c1", shown))
    assert sent(asked)["input"][-1]["output"] == f"[image, image/png, {len(PNG)} bytes]"


def test_the_form_of_an_answer_is_strict_where_it_can_be() -> None:
    form = sent(request(output_schema={"type": "integer"}))["text"]["format"]
    assert (form["type"], form["name"], form["strict"]) == ("json_schema", "answer", True)
    assert form["schema"]["properties"] == {"answer": {"type": "integer"}}
    free = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert sent(request(output_schema=free))["text"]["format"]["schema"] == free
    assert sent(request(output_schema=free))["text"]["format"]["strict"] is False
    assert sent(request(output_schema=free), strict=False)["text"]["format"]["strict"] is False


def test_parameters_are_merged_and_those_that_would_break_a_law_are_refused() -> None:
    asked = request(parameters={"temperature": 0, "extra_body": {"truncation": "auto"}, "max_output_tokens": 9})
    body = sent(asked, parameters={"temperature": 1, "include": None}, extra_body={"max_output_tokens": 5})
    assert (body["temperature"], body["truncation"], body["max_output_tokens"]) == (0, "auto", 5)
    assert "include" not in body
    for name in ("input", "stream", "tools", "previous_response_id", "conversation", "background", "prompt"):
        with pytest.raises(DefinitionError, match=f"openai sets {name} by itself"):
            OpenAIResponses("m", parameters={name: "x"})
    error = refused(asked=request(parameters={"previous_response_id": "resp_1"}))
    assert not error.retryable
    assert "previous_response_id" in str(error)


# -------------------------------------------------------------------------------------------- reasoning


def thought(name: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": name, "summary": [], "encrypted_content": f"{SEAL}{name}", "status": None}


def message(text: str, phase: str | None = None) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    more = {} if phase is None else {"phase": phase}
    return {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": [part], **more}


def function(identity: str) -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{identity}", "call_id": identity, "name": "look", "arguments": "{}"}


def replay(output: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    """What a second request holds of an answer with these items, the results left out."""

    async def main() -> list[dict[str, Any]]:
        reply = Whole({"object": "response", "status": "completed", "model": "m", "output": output})
        async with serving(reply, Play("fine"), stream=False) as at:
            got = await at.turn()
            calls = [made(c.id or "", c.id) for c in got.calls]
            words = changes.get("words", got.text)
            entry = turn(*calls[: changes.get("calls")], words=words, reasoning=got.reasoning)
            results = [result(c.call_id, ToolResult.text("1"), index=n) for n, c in enumerate(entry.calls)]
            await at.turn(request(said("Go"), entry, *results))
            return [i for i in at.last.body["input"][1:] if i.get("type") != "function_call_output"]

    return asyncio.run(main())


def shape(items: list[dict[str, Any]]) -> list[str]:
    return [item.get("id") or item.get("call_id") or item["content"] for item in items]


def test_the_items_of_an_answer_go_back_in_their_order_with_reasoning_and_phases() -> None:
    items = replay(
        [
            thought("r1"),
            message("Let me look.", "commentary"),
            thought("r2"),
            function("c1"),
            thought("r3"),
            function("c2"),
            message("It is so.", "final_answer"),
        ]
    )
    assert shape(items) == ["r1", "Let me look.", "r2", "c1", "r3", "c2", "It is so."]
    assert [item.get("phase") for item in items if "role" in item] == ["commentary", "final_answer"]
    assert items[0] == {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": f"{SEAL}r1"}
    assert not any("id" in item for item in items if item.get("type") != "reasoning")


@pytest.mark.parametrize(
    ("output", "changes", "back"),
    [
        pytest.param([thought("r1"), message("Yes.")], {"words": "Another."}, ["r1", "Another."], id="a changed text"),
        pytest.param(
            [message("One.", "commentary"), thought("r1"), message("Two.")],
            {"words": "One. Two!"},
            ["r1", "One. Two!"],
            id="two changed texts",
        ),
        pytest.param([thought("r1"), message("Yes.")], {"words": ""}, ["r1", "(empty)"], id="a text that is gone"),
        pytest.param(
            [thought("r1"), function("c1"), function("c2")], {"calls": 1}, ["r1", "c1"], id="a call that is gone"
        ),
        pytest.param([thought("r1")], {}, ["r1", "(empty)"], id="nothing but reasoning"),
        pytest.param([message("Yes."), thought("r1")], {}, ["Yes."], id="reasoning at the end"),
        pytest.param(
            [{**thought("r1"), "encrypted_content": None}, message("Yes.")],
            {},
            ["Yes."],
            id="a pointer to what is not kept",
        ),
        pytest.param([message(""), message("Yes.")], {}, ["Yes."], id="an empty message"),
    ],
)
def test_what_goes_back_is_whole_whatever_was_changed(output: Any, changes: Any, back: list[str]) -> None:
    assert shape(replay(output, **changes)) == back


def test_an_answer_without_reasoning_keeps_nothing_opaque() -> None:
    assert answered(Play("fine"))[-1].reasoning is None
    kept = answered(Play("fine", reasoning="Hm."))[-1].reasoning
    assert (kept["wire"], len(kept["origin"])) == ("openai-responses", 16)


def test_reasoning_is_of_one_server_and_one_model() -> None:
    async def main() -> None:
        async with serving(Play("Yes.", reasoning="Hm.")) as first, serving(Play("fine"), Play("fine")) as second:
            items = (said("Hello"), turn(words="Yes.", reasoning=(await first.turn()).reasoning))
            await second.turn(request(*items))
            assert [told.kind for told in second.told] == ["system", "user", "assistant"]
            other = OpenAIResponses("other", base_url=first.server.base_url, api_key=KEY)
            first.server.add(Play("fine"), Play("fine"))
            await At(first.server, other).turn(request(*items))
            assert "opaque" not in [told.kind for told in first.told]
            await first.turn(request(*items))
            assert "opaque" in [told.kind for told in first.told]
            await other.aclose()

    asyncio.run(main())


def test_a_model_that_does_not_reason_is_asked_again_without_once_and_for_all() -> None:
    async def main() -> None:
        async with serving(Play("one"), Play("two"), reasons=False) as at:
            assert [event async for event in at.model.respond(request())][-1].text == "one"
            assert [event async for event in at.model.respond(request())][-1].text == "two"
            assert ["include" in asked.body for asked in at.server.asked] == [True, False, False]

    asyncio.run(main())


@pytest.mark.parametrize("again", [Play("fine"), Refusal(400, "no", code="invalid_encrypted_content")])
def test_reasoning_that_the_server_cannot_read_any_more_is_left_out_and_asked_once_more(again: Any) -> None:
    async def main() -> None:
        stale = Refusal(400, "cannot be decrypted", kind="invalid_request_error", code="invalid_encrypted_content")
        async with serving(Play("Yes.", reasoning="Hm."), stale, again) as at:
            got = await at.turn()
            asked = request(said("Hello"), turn(words="Yes.", reasoning=got.reasoning))
            if isinstance(again, Play):
                assert (await at.turn(asked)).text == "fine"
            else:
                assert not (await at.refused(asked)).retryable
            assert len(at.server.asked) == 3
            assert "reasoning" not in str(at.last.body["input"])

    asyncio.run(main())


# ---------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("stream", [True, False])
def test_streamed_or_whole_it_is_the_same_turn(stream: bool) -> None:
    play = Play("Looking.", calls=[("c1", "look", '{"a": 1}')], reasoning="Hm.", usage=Usage(7, 5, 3, 0.0, 2))
    *deltas, last = answered(play, stream=stream)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Looking."
    assert last == ModelTurn(
        "Looking.", (ModelCall("c1", "look", '{"a": 1}'),), "calls", Usage(7, 5, 3, 0.0, 2), "fake-1", last.reasoning
    )


def test_messages_of_one_answer_are_paragraphs_in_deltas_and_text_alike() -> None:
    output = [message("One.", "commentary"), message(""), message("Two.")]
    events = [
        {"type": "response.output_text.delta", "output_index": n, "delta": t} for n, t in ((0, "One."), (2, "Two."))
    ]
    end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
    *deltas, last = answered(Chunks([*events, end]))
    assert "".join(delta.text for delta in deltas) == last.text == "One.\n\nTwo."


def test_the_items_count_where_the_end_repeats_none_of_them() -> None:
    done = {"type": "response.output_item.done", "output_index": 0, "item": message("Yes.")}
    end = {"type": "response.completed", "response": {"status": "completed", "output": []}}
    assert answered(Chunks([done, end]))[-1].text == "Yes."


@pytest.mark.parametrize(
    ("reason", "stop"),
    [("max_output_tokens", "length"), ("content_filter", "refusal"), ("new", "length"), (None, "length")],
)
def test_why_an_answer_is_incomplete_is_told(reason: str | None, stop: str) -> None:
    details = None if reason is None else {"reason": reason}
    response = {"status": "incomplete", "incomplete_details": details, "output": [function("c1")]}
    assert answered(Chunks([{"type": "response.incomplete", "response": response}]))[-1].stop == stop


@pytest.mark.parametrize(
    ("said_of_it", "retryable"),
    [
        ({"code": "server_error", "message": f"it broke with {KEY}"}, True),
        ({"code": "rate_limit_exceeded", "message": "it broke"}, True),
        ({"code": "invalid_prompt", "message": "it broke"}, False),
        ({"message": "it broke"}, True),
    ],
)
def test_an_answer_that_fails_amid_the_stream_says_why(said_of_it: dict[str, Any], retryable: bool) -> None:
    failed = {"type": "response.failed", "response": {"status": "failed", "error": said_of_it, "output": []}}
    for chunk in (failed, {"type": "error", **said_of_it}):
        error = refused(Chunks([chunk]))
        assert error.retryable is retryable
        assert "it broke" in str(error)
        assert KEY not in str(error)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(Chunks([]), id="nothing"),
        pytest.param(Chunks([{"type": "response.output_text.delta", "output_index": 0, "delta": "x"}]), id="no end"),
        pytest.param(Chunks(["{broken"]), id="no JSON"),
        pytest.param(Chunks([{"type": "response.output_text.delta", "delta": 7}]), id="no text"),
        pytest.param(Chunks([{"type": "response.completed"}]), id="an end of nothing"),
        pytest.param(Chunks([{"error": {"message": "overloaded"}}]), id="an error amid the answer"),
        pytest.param(
            Chunks([{"type": "response.completed", "response": {"status": "cancelled"}}]), id="cancelled there"
        ),
        pytest.param(Chunks([{"type": "response.completed", "response": {"status": "queued"}}]), id="not done"),
    ],
)
def test_an_answer_without_an_end_is_a_failure_that_may_pass(script: Chunks) -> None:
    assert refused(script).retryable


def test_events_that_nobody_knows_are_passed_over() -> None:
    end = {
        "type": "response.completed",
        "response": {"status": "completed", "output": [message("Yes.")], "usage": None},
    }
    odd = [
        {"type": "response.new", "x": 1},
        {"type": "response.output_item.added", "item": {"type": "web_search_call"}},
    ]
    assert answered(Chunks([*odd, end]))[-1] == ModelTurn("Yes.", model="fake")


def test_a_quota_that_is_used_up_does_not_pass_and_the_servers_word_counts() -> None:
    assert not refused(Refusal(429, "no money", code="insufficient_quota")).retryable
    assert not refused(Refusal(500, "never", {"x-should-retry": "false"})).retryable
    assert refused(Refusal(400, "do", {"x-should-retry": "true"})).retryable


def test_the_work_for_a_delta_does_not_grow_with_the_answer() -> None:
    joined = Answer("m")
    for n in range(50_000):
        list(joined.add({"type": "response.output_text.delta", "output_index": 0, "delta": str(n % 10)}))
    list(joined.add({"type": "response.completed", "response": {"output": [message("0123456789" * 5000)]}}))
    list(joined.rest())
    assert len(joined.turn("o").text) == 50_000


# --------------------------------------------------------------------------------------------- registry


def test_the_registry_opens_it_by_its_name() -> None:
    model = resolve("model", "openai")("openai:gpt-x", base_url="http://127.0.0.1:1/v1")
    assert isinstance(model, OpenAIResponses)
    assert open_model("gpt-x").model == "gpt-x"
    assert repr(OpenAIResponses("m", api_key=KEY)) == "OpenAIResponses('m')"
    with pytest.raises(DefinitionError, match="name"):
        open_model("openai:")
    with pytest.raises(DefinitionError, match="base_uri"):
        open_model("openai:x", base_uri="http://127.0.0.1")


def test_without_a_key_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)

    async def main() -> None:
        with pytest.raises(ModelError, match="OPENAI_API_KEY"):
            [event async for event in OpenAIResponses("m").respond(request(tools=(LOOK,)))]

    asyncio.run(main())
