"""What is peculiar to the Messages wire; what holds for every wire is in the suite (test_model_suite.py)."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from counterfoil import Agent
from counterfoil.adapters.models.anthropic import AnthropicMessages, open_model
from counterfoil.adapters.models.anthropic.answer import Answer
from counterfoil.adapters.models.anthropic.schema import in_dialect
from counterfoil.core.call import Offer
from counterfoil.core.content import File, Image, Text
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import Usage
from counterfoil.model import CallDelta, ModelCall, ModelRequest, ModelTurn, ReasoningDelta, TextDelta
from counterfoil.registry import resolve
from counterfoil.testing.fake_anthropic import Chunks, FakeAnthropic, Play, Refusal, Whole, signature
from counterfoil.testing.model_bench import KEY, LOOK, PNG, At, made, request, result, said, turn
from tests.asked import Wire
from tests.helpers import go

LOOK_SENT = {"name": "look", "description": "Look it up.", "input_schema": LOOK.input_schema}


@asynccontextmanager
async def serving(*script: Any, **settings: Any) -> AsyncIterator[At]:
    async with FakeAnthropic(script, key=KEY) as server:
        model = AnthropicMessages("fake", base_url=server.base_url, **{"api_key": KEY, **settings})
        try:
            yield At(server, model)
        finally:
            await model.aclose()


WIRE = Wire(serving)
sent, answered, refused = WIRE.sent, WIRE.answered, WIRE.refused


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(identity: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "look", "input": given}


def gave(identity: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": content, **more}


CALLED = (said("Go"), turn(made("c1", "c1")), result("c1", ToolResult.text("one")))


# --------------------------------------------------------------------------------------------- requests


def test_a_request_holds_the_whole_conversation_in_turns_of_user_and_assistant() -> None:
    body = sent(request(said("Hello"), said("there"), turn(words="Hi."), said("Again", "System"), said("Go")))
    assert body == {
        "model": "fake",
        "max_tokens": 16_000,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [text("Hello"), text("there")]},
            {"role": "assistant", "content": [text("Hi.")]},
            {"role": "user", "content": [text("Again"), text("Go")]},
        ],
        "stream": True,
        "tools": [LOOK_SENT],
        "tool_choice": {"type": "auto"},
    }


def test_all_results_of_a_turn_stand_in_the_next_message_before_any_text() -> None:
    body = sent(
        request(
            said("Go"),
            turn(made("c1", "c1", raw='{"a": 1}'), made("c2", "c2"), words="Looking."),
            result("c1", ToolResult.text("one")),
            result("c2", ToolResult.error("it broke"), index=1),
            said("And?"),
        )
    )
    assert body["messages"][1:] == [
        {"role": "assistant", "content": [text("Looking."), use("c1", a=1), use("c2")]},
        {"role": "user", "content": [gave("c1", "one"), gave("c2", "it broke", is_error=True), text("And?")]},
    ]


def test_a_conversation_begins_and_ends_with_the_user() -> None:
    assert sent(request(turn(words="Hi."), turn(words="Hm.", step=1)))["messages"] == [
        {"role": "user", "content": [text("(empty)")]},
        {"role": "assistant", "content": [text("Hi."), text("Hm.")]},
        {"role": "user", "content": [text("(empty)")]},
    ]
    assert sent(ModelRequest("", [], 0, ()))["messages"] == [{"role": "user", "content": [text("(empty)")]}]


def test_ids_with_characters_that_the_wire_refuses_are_replaced_in_call_and_result() -> None:
    calls = (made("ours.1", "toolu_1"), made("ours-2", "functions.look:0"), made("ours.3", "ü"))
    results = [result(call.call_id, ToolResult.text("x"), index=n) for n, call in enumerate(calls)]
    messages = sent(request(said("Go"), turn(*calls), *results))["messages"]
    ids = [block["id"] for block in messages[1]["content"]]
    assert ids == ["toolu_1", "ours-2", "call_2"]
    assert [block["tool_use_id"] for block in messages[2]["content"]] == ids


def test_images_and_documents_of_results_are_sent_and_the_rest_is_text() -> None:
    shown = ToolResult.blocks(
        Text("A map:"), Image(PNG, "image/jpeg"), File(b"%PDF-1.7", "application/pdf", "a.pdf"), File(b"\x00", "a/b")
    )
    asked = request(said("Go"), turn(made("c1", "c1")), result("c1", shown))
    png, pdf = base64.b64encode(PNG).decode(), base64.b64encode(b"%PDF-1.7").decode()
    (block,) = sent(asked)["messages"][-1]["content"]
    assert block["content"] == [
        text("A map:"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": pdf},
            "title": "a.pdf",
        },
        text("[file, a/b, 1 bytes]"),
    ]
    (block,) = sent(asked, media=False)["messages"][-1]["content"]
    assert block["content"] == (
        f"A map:\n[image, image/jpeg, {len(PNG)} bytes]\n[file a.pdf, application/pdf, 8 bytes]\n[file, a/b, 1 bytes]"
    )


def test_the_result_of_an_error_is_text_alone() -> None:
    from counterfoil.core.outcome import Failed, ToolFailure
    from counterfoil.core.result import seal

    failed = seal((Text("Broken:"), Image(PNG)), Failed(ToolFailure(message="x")))
    (block,) = sent(request(*CALLED[:2], result("c1", failed)))["messages"][-1]["content"]
    assert block["is_error"] is True
    assert block["content"] == f"Broken:\n[image, image/png, {len(PNG)} bytes]"


@pytest.mark.parametrize(
    ("name", "limit", "whole"),
    [("MAX_IMAGE", len(PNG) - 1, 0), ("MAX_MEDIA", 2 * len(PNG), 2), ("MAX_COUNT", 1, 1), ("MAX_COUNT", 3, 3)],
)
def test_media_over_a_limit_of_the_server_are_named_the_oldest_first(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: int, whole: int
) -> None:
    monkeypatch.setattr(f"counterfoil.adapters.models.anthropic.request.{name}", limit)
    calls = [made(f"c{n}", f"c{n}") for n in range(3)]
    results = [result(c.call_id, ToolResult.blocks(Image(PNG)), index=n) for n, c in enumerate(calls)]
    blocks = sent(request(said("Go"), turn(*calls), *results))["messages"][-1]["content"]
    assert [isinstance(block["content"], list) for block in blocks] == [n >= 3 - whole for n in range(3)]


@pytest.mark.parametrize(
    ("choice", "wire"), [("auto", {"type": "auto"}), ("required", {"type": "any"}), ("none", {"type": "none"})]
)
def test_the_choice_of_tools_keeps_what_a_parameter_says_of_parallel_calls(choice: Any, wire: dict[str, Any]) -> None:
    assert sent(request(tool_choice=choice))["tool_choice"] == wire
    single = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    flag = {} if choice == "none" else {"disable_parallel_tool_use": True}
    assert sent(request(tool_choice=choice), parameters=single)["tool_choice"] == wire | flag


def test_calls_of_the_past_keep_a_tool_that_cannot_be_called_where_none_is_offered() -> None:
    body = sent(request(*CALLED, tools=()))
    assert body["tools"] == [{"name": "look", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}
    assert "tools" not in sent(request(tools=()))


def test_parameters_are_merged_and_those_that_would_break_a_law_are_refused() -> None:
    asked = request(parameters={"speed": "fast", "extra_body": {"top_k": 5}, "max_tokens": 9})
    body = sent(asked, parameters={"speed": "standard"}, extra_body={"max_tokens": 5})
    assert (body["speed"], body["top_k"], body["max_tokens"]) == ("fast", 5, 5)
    for name in ("messages", "system", "stream", "tools", "container", "mcp_servers"):
        with pytest.raises(DefinitionError, match=f"anthropic sets {name} by itself"):
            AnthropicMessages("m", parameters={name: "x"})
    error = refused(asked=request(parameters={"container": "c_1"}))
    assert not error.retryable
    assert "container" in str(error)


# ---------------------------------------------------------------------------------------- schemas, answers


def test_tools_are_strict_where_asked_and_where_the_dialect_can_say_them() -> None:
    free = Offer("free", "", {"type": "object", "additionalProperties": {"type": "integer"}})
    long = Offer("long", "", {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}})
    first, second, third = sent(request(tools=(LOOK, free, long)), strict=True)["tools"]
    assert first["strict"] is third["strict"] is True
    assert first["input_schema"] == {**LOOK.input_schema, "required": []}
    assert second == {"name": "free", "input_schema": free.input_schema}
    assert third["input_schema"]["properties"]["a"] == {"type": "string", "description": "(maxLength: 9)"}
    assert "strict" not in str(sent(request(tools=(LOOK, free))))


def test_no_more_tools_are_strict_than_a_request_may_hold() -> None:
    many = tuple(Offer(f"t{n}", "", {"type": "object", "properties": {"a": {"type": "null"}}}) for n in range(30))
    assert sum("strict" in tool for tool in sent(request(tools=many), strict=True)["tools"]) == 20
    wide = {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(10)}}
    tools = tuple(Offer(f"t{n}", "", wide) for n in range(4))
    assert [t.get("strict", False) for t in sent(request(tools=tools), strict=True)["tools"]] == [
        True,
        True,
        False,
        False,
    ]
    form = sent(request(tools=tools, output_schema=wide), strict=True)
    assert [t.get("strict", False) for t in form["tools"]] == [True, False, False, False]
    either = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}
    unions = tuple(Offer(f"u{n}", "", either) for n in range(18))
    assert sum("strict" in tool for tool in sent(request(tools=unions), strict=True)["tools"]) == 16


@pytest.mark.parametrize(
    ("schema", "said_of_it"),
    [
        ({"type": "integer", "minimum": 1}, {"type": "integer", "description": "(minimum: 1)"}),
        ({"enum": ["a", None]}, {"enum": ["a", None]}),
        ({"const": 3, "description": "Three"}, {"enum": [3], "description": "Three"}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"oneOf": [{"type": "null"}, {"type": "number"}]}, {"anyOf": [{"type": "null"}, {"type": "number"}]}),
        ({"allOf": [{"type": "number"}], "default": 1}, {"type": "number", "description": "(default: 1)"}),
        ({"type": "string", "format": "uri"}, {"type": "string", "format": "uri"}),
        ({"type": "string", "format": "car"}, {"type": "string", "description": '(format: "car")'}),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 1},
            {"type": "array", "items": {"type": "null"}, "minItems": 1},
        ),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 2},
            {"type": "array", "items": {"type": "null"}, "description": "(minItems: 2)"},
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, {"type": "null"}),
    ],
)
def test_a_schema_in_the_dialect_says_in_words_what_it_cannot_say_else(schema: Any, said_of_it: Any) -> None:
    said_ = in_dialect(schema)
    assert said_ is not None
    assert said_.schema == said_of_it


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "null"}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False},
        {"type": "array"},
        {"type": "array", "prefixItems": [{"type": "null"}]},
        {"enum": [[1]]},
        {"enum": []},
        {"not": {"type": "null"}},
        {"allOf": [{"type": "null"}, {"type": "null"}]},
        {"anyOf": [{"type": "null"}], "properties": {"a": {"type": "null"}}},
        {"$ref": "#/$defs/a"},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"type": "object", "properties": {"a": {"type": "null"}}}},
            "properties": {"b": {"type": "null"}},
        },
        {"$ref": "other.json"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
        {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(25)}},
        {"type": "array", "items": {"anyOf": [{"type": ["null", "string"]}] * 17}},
        {
            "$ref": "#/$defs/d20",
            "$defs": {
                "d0": {"type": "null"},
                **{
                    f"d{n + 1}": {
                        "type": "object",
                        "properties": {"a": {"$ref": f"#/$defs/d{n}"}, "b": {"$ref": f"#/$defs/d{n}"}},
                        "required": ["a", "b"],
                    }
                    for n in range(20)
                },
            },
        },
    ],
)
def test_what_the_dialect_cannot_say_is_not_said(schema: Any) -> None:
    assert in_dialect(schema) is None


def test_the_form_of_an_answer_is_asked_for_and_stands_beside_other_settings_of_output() -> None:
    asked = request(output_schema={"type": "integer"}, parameters={"output_config": {"effort": "low"}})
    form = {"type": "json_schema", "schema": {"type": "integer"}}
    assert sent(asked)["output_config"] == {"format": form, "effort": "low"}


FREE = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("schema", "given", "answer"),
    [
        (FREE, '{"a": 1}', '{"a":1}'),
        ({"type": "array"}, '{"answer": [1]}', "[1]"),
        ({"type": "array"}, '{"x": 1}', None),
    ],
)
def test_an_answer_that_no_form_can_say_is_given_as_a_call(stream: bool, schema: Any, given: str, answer: Any) -> None:
    asked = request(output_schema=schema)

    async def main() -> tuple[dict[str, Any], list[Any]]:
        async with serving(Play("So:", calls=[("c1", "answer", given)]), stream=stream) as at:
            events = await at.events(asked)
            return at.last.body, events

    body, events = asyncio.run(main())
    assert [tool["name"] for tool in body["tools"]] == ["look", "answer"]
    assert body["tool_choice"] == {"type": "any"}
    last = events[-1]
    assert (last.calls, last.stop) == ((), "end")
    assert last.text.replace(" ", "") == (answer or given).replace(" ", "")
    assert not any(isinstance(event, CallDelta) for event in events)


def test_an_answer_beside_calls_waits_for_their_results() -> None:
    calls = [("c1", "answer", '{"a": 1}'), ("c2", "look", '{"a": 2}')]
    *deltas, last = answered(Play("Looking.", calls=calls), asked=request(output_schema=FREE))
    assert last == ModelTurn("Looking.", (ModelCall("c2", "look", '{"a": 2}'),), "calls", Usage(10, 5), "fake-1")
    assert {delta.index for delta in deltas if isinstance(delta, CallDelta)} == {0}


def test_the_tool_for_an_answer_has_a_name_of_its_own_and_bends_to_the_choice() -> None:
    own = Offer("answer", "Of somebody else.", LOOK.input_schema)
    body = sent(request(output_schema=FREE, tools=(own,)))
    assert [tool["name"] for tool in body["tools"]] == ["answer", "answer_"]
    assert sent(request(output_schema=FREE, tool_choice="none"))["tool_choice"] == {"type": "tool", "name": "answer"}
    body = sent(request(output_schema=FREE, tool_choice="required"))
    assert ([tool["name"] for tool in body["tools"]], body["tool_choice"]) == (["look"], {"type": "any"})
    body = sent(request(output_schema=FREE, parameters={"thinking": {"type": "adaptive"}}))
    assert body["tool_choice"] == {"type": "auto"}


def test_a_run_ends_with_an_answer_by_call() -> None:
    async def main() -> None:
        async with serving(Play(calls=[("c1", "answer", '{"answer": [1, 2]}')]), formats=False) as at:
            run = await Agent("desk", at.model, output_type=list[int]).run("Which?")
            assert at.server.faults == []
        assert (run.status, run.output) == ("completed", [1, 2])

    go(main())


# --------------------------------------------------------------------------------------------- thinking


def thought(words: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": signature(words)}


HIDDEN = {"type": "redacted_thinking", "data": "fake-sealed:x"}


def replay(output: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    """What a second request holds of an answer with these blocks."""

    async def main() -> list[dict[str, Any]]:
        reply = Whole({"type": "message", "stop_reason": "end_turn", "model": "m", "content": output})
        async with serving(reply, Play("fine"), stream=False) as at:
            got = await at.turn()
            calls = [made(c.id or "", c.id) for c in got.calls]
            words = changes.get("words", got.text)
            entry = turn(*calls[: changes.get("calls")], words=words, reasoning=got.reasoning)
            results = [result(c.call_id, ToolResult.text("1"), index=n) for n, c in enumerate(entry.calls)]
            await at.turn(request(said("Go"), entry, *results))
            return at.last.body["messages"][1]["content"]

    return asyncio.run(main())


def test_thinking_goes_back_unchanged_and_in_its_place() -> None:
    output = [
        thought("r1 \u00e9"), HIDDEN, text("Let me "), text("look."), thought("r2"), use("c1"), use("c2"),
        thought("r3"), text("It is so."),
    ]  # fmt: skip  # blocks in rows
    back = replay(output)
    assert back == [*output[:2], text("Let me look."), *output[4:]]


@pytest.mark.parametrize(
    ("output", "changes", "back"),
    [
        pytest.param([thought("r"), text("Yes.")], {"words": "No."}, [thought("r"), text("No.")], id="a changed text"),
        pytest.param(
            [thought("r"), text("Yes.")], {"words": "Yes. No."}, [thought("r"), text("Yes. No.")], id="a longer text"
        ),
        pytest.param(
            [text("One."), thought("r"), text("Two.")],
            {"words": "One. Two!"},
            [thought("r"), text("One. Two!")],
            id="two changed texts",
        ),
        pytest.param(
            [thought("r"), text("Yes.")], {"words": ""}, [thought("r"), text("(empty)")], id="a text that is gone"
        ),
        pytest.param(
            [thought("r"), use("c1"), use("c2")], {"calls": 1}, [thought("r"), use("c1")], id="a call that is gone"
        ),
        pytest.param([thought("r")], {}, [thought("r"), text("(empty)")], id="nothing but thinking"),
        pytest.param([text("Yes."), thought("r")], {}, [text("Yes.")], id="thinking at the end"),
        pytest.param([text("Yes."), thought("r"), text(" \n")], {}, [text("Yes.")], id="a blank text at the end"),
        pytest.param([thought("r") | {"signature": ""}, text("Yes.")], {}, [text("Yes.")], id="no signature"),
        pytest.param([text(""), use("c1")], {}, [use("c1")], id="an empty text"),
    ],
)
def test_what_goes_back_is_whole_whatever_was_changed(output: Any, changes: Any, back: list[Any]) -> None:
    assert replay(output, **changes) == back


def test_an_answer_without_thinking_keeps_nothing_opaque() -> None:
    assert answered(Play("fine"))[-1].reasoning is None
    *deltas, last = answered(Play("fine", reasoning="Hm."))
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "Hm."
    assert (last.reasoning["wire"], len(last.reasoning["origin"])) == ("anthropic-messages", 16)


def test_thinking_is_of_one_server_and_one_model() -> None:
    async def main() -> None:
        async with serving(Play("Yes.", reasoning="Hm.")) as first, serving(Play("fine")) as second:
            items = (said("Hello"), turn(words="Yes.", reasoning=(await first.turn()).reasoning), said("Go"))
            await second.turn(request(*items))
            assert "opaque" not in [told.kind for told in second.told]
            other = AnthropicMessages("other", base_url=first.server.base_url, api_key=KEY)
            first.server.add(Play("fine"), Play("fine"))
            await At(first.server, other).turn(request(*items))
            assert "opaque" not in [told.kind for told in first.told]
            await first.turn(request(*items))
            assert [told.kind for told in first.told].count("opaque") == 2
            await other.aclose()

    asyncio.run(main())


BUDGET = {"type": "enabled", "budget_tokens": 2000}


def test_a_budget_for_thinking_comes_on_top_of_the_answers_tokens_unless_those_are_set() -> None:
    assert sent(parameters={"thinking": BUDGET})["max_tokens"] == 18_000
    assert sent(parameters={"thinking": BUDGET, "max_tokens": 3000})["max_tokens"] == 3000


def test_a_row_of_calls_that_began_without_thinking_goes_on_without() -> None:
    asks = {"thinking": BUDGET}
    assert "thinking" not in sent(request(*CALLED), parameters=asks), "another wire began it"
    assert "thinking" in sent(request(*CALLED, said("And?")), parameters=asks)
    assert "thinking" in sent(request(*CALLED), parameters={"thinking": {"type": "adaptive"}})

    async def main() -> None:
        begun = Play(calls=[("c1", "look", "{}")], reasoning="Hm.")
        async with serving(begun, Play("fine"), parameters=asks) as at:
            got = await at.turn()
            items = (said("Go"), turn(made("c1", "c1"), reasoning=got.reasoning), CALLED[2])
            more = (turn(made("c2", "c2"), step=1), result("c2", ToolResult.text("2"), step=1))
            await at.turn(request(*items, *more))
            assert "thinking" in at.last.body

    asyncio.run(main())


@pytest.mark.parametrize("kind", [BUDGET, {"type": "adaptive"}])
def test_a_forced_tool_is_forced_without_thinking(kind: dict[str, Any]) -> None:
    body = sent(request(tool_choice="required"), parameters={"thinking": kind})
    assert body["tool_choice"] == {"type": "any"}
    assert "thinking" not in body
    assert "thinking" in sent(request(tool_choice="none"), parameters={"thinking": kind})


# ---------------------------------------------------------------------------------------------- caching


def marks(body: dict[str, Any]) -> list[str]:
    blocks = [b for message in body["messages"] for b in message["content"]]
    return [
        str(b.get("name") or b.get("text") or b.get("content"))
        for b in [*body["tools"], *body["system"], *blocks]
        if "cache_control" in b
    ]


def test_marks_for_the_servers_cache_stand_on_what_is_sent_again() -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    items = (said("One"), turn(words="Hi."), said("Two"), *CALLED[1:])
    body = sent(request(*items), parameters={"cache_control": mark})
    assert marks(body) == ["look", "Be brief.", "Two", "one"]
    assert body["messages"][-1]["content"][-1]["cache_control"] == mark
    assert "cache_control" not in body
    assert "cache_control" not in str(sent(request(*items)))


def test_tokens_of_the_cache_count_as_input() -> None:
    usage = {"input_tokens": 5, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 300, "output_tokens": 1}
    start = {"type": "message_start", "message": {"model": "m", "usage": usage}}
    more = {"output_tokens": 40, "output_tokens_details": {"thinking_tokens": 9}, "cache_read_input_tokens": None}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": more}
    assert answered(Chunks([start, end]))[-1].usage == Usage(325, 40, 300, 0.0, 9)


# ---------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("stream", [True, False])
def test_streamed_or_whole_it_is_the_same_turn(stream: bool) -> None:
    play = Play("Looking.", calls=[("c1", "look", '{"a":1}')], reasoning="Hm.", usage=Usage(7, 5, 3, 0.0, 2))
    *deltas, last = answered(play, stream=stream)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Looking."
    assert "".join(delta.text for delta in deltas if isinstance(delta, CallDelta)) == '{"a":1}'
    kept = [*({"type": "thinking", "thinking": "Hm.", "signature": signature("Hm.")},), last.reasoning["items"][1]]
    assert last.reasoning["items"] == [*kept, {"type": "text", "chars": 8}, {"type": "call"}]
    assert last == ModelTurn(
        "Looking.", (ModelCall("c1", "look", '{"a":1}'),), "calls", Usage(7, 5, 3, 0.0, 2), "fake-1", last.reasoning
    )


def test_texts_with_something_between_them_are_paragraphs_in_deltas_and_text_alike() -> None:
    output = [text("One, "), text("two."), HIDDEN, text(""), text("Three.")]
    *deltas, last = answered(Whole({"type": "message", "stop_reason": "end_turn", "content": output}), stream=False)
    assert "".join(delta.text for delta in deltas) == last.text == "One, two.\n\nThree."


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def end(reason: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, **more}, "usage": {"output_tokens": 1}}


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "calls"),
        ("tool_use", "calls"),
        ("stop_sequence", "calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "other"),
        ("new", "other"),
    ],
)
def test_why_an_answer_ended_is_told(reason: str, stop: str) -> None:
    assert answered(Chunks([*block(0, use("c1")), end(reason)]))[-1].stop == stop
    if stop == "calls":
        assert answered(Chunks([*block(0, text("x")), end(reason)]))[-1].stop == "end"


def test_a_refusal_without_words_has_the_servers_explanation() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "Not this."}
    assert answered(Chunks([end("refusal", stop_details=details)]))[-1].text == "Not this."
    said_too = Chunks([*block(0, text("I cannot.")), end("refusal", stop_details=details)])
    assert answered(said_too)[-1].text == "I cannot."


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(Chunks([]), id="nothing"),
        pytest.param(Chunks(block(0, text(""), {"type": "text_delta", "text": "x"})), id="no end"),
        pytest.param(Chunks(["{broken"]), id="no JSON"),
        pytest.param(Chunks(block(0, text(""), {"type": "text_delta", "text": 7})), id="no text"),
        pytest.param(
            Chunks([{"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta"}}]), id="no block"
        ),
        pytest.param(Chunks([end(None)]), id="no reason"),
    ],
)
def test_an_answer_without_an_end_is_a_failure_that_may_pass(script: Chunks) -> None:
    assert refused(script).retryable


def test_events_and_blocks_that_nobody_knows_are_passed_over() -> None:
    odd = [{"type": "new", "x": 1}, *block(0, {"type": "server_tool_use", "id": "s1"}, {"type": "new_delta"})]
    said_ = block(1, text(""), {"type": "text_delta", "text": "Yes."}, {"type": "citations_delta", "citation": {}})
    assert answered(Chunks([*odd, *said_, end("end_turn")]))[-1] == ModelTurn("Yes.", usage=Usage(0, 1), model="fake")


def test_the_work_for_a_delta_does_not_grow_with_the_answer() -> None:
    joined = Answer("m")
    list(joined.add({"type": "content_block_start", "index": 0, "content_block": text("")}))
    for n in range(50_000):
        delta = {"type": "text_delta", "text": str(n % 10)}
        list(joined.add({"type": "content_block_delta", "index": 0, "delta": delta}))
    assert len(joined.turn("o").text) == 50_000


# ----------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        ("overloaded_error", True),
        ("api_error", True),
        ("rate_limit_error", True),
        ("timeout_error", True),
        ("invalid_request_error", False),
        ("authentication_error", False),
        ("billing_error", False),
    ],
)
def test_an_error_amid_the_stream_says_whether_it_passes(kind: str, retryable: bool) -> None:
    said_ = {"type": "error", "error": {"type": kind, "message": f"it broke with {KEY}"}}
    error = refused(Chunks([*block(0, text("")), said_]))
    assert error.retryable is retryable
    assert str(error) == "the server broke the answer off: it broke with [key]"


def test_an_overloaded_server_is_asked_again_and_a_limit_of_spending_is_not() -> None:
    error = refused(Refusal(529, "Overloaded", {"retry-after": "3"}))
    assert (error.retryable, error.retry_after) == (True, 3.0)
    assert str(error) == "the server answered 529: Overloaded (it asks to wait 3 s)"
    assert not refused(Refusal(429, "no money", code="enforced_spend_limit_reached")).retryable
    assert refused(Refusal(429, "too fast", code="ramp_limit_exceeded")).retryable
    assert not refused(Refusal(500, "never", {"x-should-retry": "false"})).retryable


PICTURE = (said("Go"), turn(made("c1", "c1")), result("c1", ToolResult.blocks(Text("A map:"), Image(PNG))))


def mends(*script: Any, asked: ModelRequest, **settings: Any) -> list[dict[str, Any]]:
    """The bodies of a request that the server refuses at first."""

    async def main() -> list[dict[str, Any]]:
        async with serving(*script, Play("fine"), **settings) as at:
            assert (await at.turn(asked)).text == "fine"
            return [asked.body for asked in at.server.asked]

    return asyncio.run(main())


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(400, "messages.2: At least one of the image dimensions exceed max allowed size"),
        Refusal(413, "too large"),
    ],
)
def test_media_that_the_server_cannot_take_are_named_and_asked_once_more(refusal: Refusal) -> None:
    first, second = mends(refusal, asked=request(*PICTURE))
    assert first["messages"][-1]["content"][0]["content"][1]["type"] == "image"
    assert second["messages"][-1]["content"][0]["content"][1] == text(f"[image, image/png, {len(PNG)} bytes]")
    assert not refused(refusal, refusal, asked=request(*PICTURE)).retryable


def test_thinking_that_the_server_cannot_read_any_more_is_left_out_and_asked_once_more() -> None:
    async def main() -> None:
        stale = Refusal(400, "messages.1.content.0: Invalid `signature` in `thinking` block")
        first = Play(calls=[("c1", "look", "{}")], reasoning="Hm.")
        async with serving(first, stale, Play("fine"), parameters={"thinking": BUDGET}) as at:
            got = await at.turn()
            items = (said("Go"), turn(made("c1", "c1"), reasoning=got.reasoning), CALLED[2])
            assert (await at.turn(request(*items))).text == "fine"
            assert [told.kind for told in at.told] == ["system", "user", "call", "result"]
            assert "thinking" not in at.last.body
            assert len(at.server.asked) == 3

    asyncio.run(main())


def test_strict_schemas_that_the_server_cannot_take_go_as_they_are() -> None:
    first, second = mends(Refusal(400, "The compiled grammar is too large"), asked=request(), strict=True)
    assert (first["tools"][0]["strict"], "strict" in second["tools"][0]) == (True, False)


# --------------------------------------------------------------------------------------------- registry


def test_the_registry_opens_it_by_its_name() -> None:
    model = resolve("model", "anthropic")("anthropic:claude-x", base_url="http://127.0.0.1:1")
    assert isinstance(model, AnthropicMessages)
    assert open_model("claude-x").model == "claude-x"
    assert repr(AnthropicMessages("m", api_key=KEY)) == "AnthropicMessages('m')"
    with pytest.raises(DefinitionError, match="name"):
        open_model("anthropic:")
    with pytest.raises(DefinitionError, match="base_uri"):
        open_model("anthropic:x", base_uri="http://127.0.0.1")


@pytest.mark.parametrize("profile", [None, "gone"])
def test_without_a_key_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: Any) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    if profile:
        monkeypatch.setenv("ANTHROPIC_PROFILE", profile)

    async def main() -> None:
        with pytest.raises(ModelError, match="ANTHROPIC_API_KEY"):
            [event async for event in AnthropicMessages("m").respond(request(tools=(LOOK,)))]

    asyncio.run(main())


def test_the_key_of_the_environment_goes_to_the_providers_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", f"{KEY}-token")

    async def main() -> None:
        async with FakeAnthropic([Play("fine"), Play("fine")]) as server:
            model = AnthropicMessages("m", base_url=server.base_url)
            await At(server, model).turn()
            assert KEY not in str(server.asked[-1].headers)
            await model.aclose()
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
            model = AnthropicMessages("m")
            await At(server, model).turn()
            assert server.key_of(server.asked[-1].headers) == KEY
            await model.aclose()

    asyncio.run(main())


def test_a_given_client_is_used_and_stays_open() -> None:
    async def main() -> None:
        async with FakeAnthropic([Play("fine")], key=KEY) as server:
            client = AsyncAnthropic(api_key=KEY, base_url=server.base_url)
            model = AnthropicMessages("m", client=client)
            assert (await At(server, model).turn()).text == "fine"
            await model.aclose()
            assert not client.is_closed()
            await client.close()

    asyncio.run(main())
