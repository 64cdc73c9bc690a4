"""The fake Messages server refuses what Anthropic's refuses, and its own events are those of the SDK."""

import asyncio
import json
from typing import Any

import pytest
from anthropic import AsyncAnthropic, BadRequestError, OverloadedError
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter

from counterfoil.core.turn import Usage
from counterfoil.testing.fake_anthropic import FakeAnthropic, Play, Refusal, fault_of, signature

USER = {"role": "user", "content": "hello"}
TOOL = {"name": "look", "input_schema": {"type": "object"}}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": signature("Hm.")}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def use(identity: Any = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "look", "input": {}, **more}


def gave(identity: str = "c1", content: Any = "fine", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": content, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def model(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    given = {"model": "fake", "max_tokens": 9000, "messages": list(messages), "stream": True, "tools": [TOOL], **more}
    return {name: value for name, value in given.items() if value is not None}


def strict(schema: Any) -> dict[str, Any]:
    return body(USER, tools=[{"name": "look", "strict": True, "input_schema": schema}])


CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
BUDGET = {"type": "enabled", "budget_tokens": 1024}
MARK = {"cache_control": {"type": "ephemeral"}}


def test_a_request_that_keeps_the_rules_is_taken() -> None:
    good = body(
        USER,
        model(THOUGHT, {"type": "redacted_thinking", "data": "fake-sealed:x"}, text("Looking."), use("c1"), use("c2")),
        user(gave("c2", [text("a map"), PNG]), gave("c1", "broken", is_error=True), text("And?") | MARK),
        model(text("It is so.")),
        USER,
        system=[text("Be brief.") | MARK],
        tools=[TOOL, {"name": "b", "strict": True, "input_schema": CLOSED} | MARK],
        tool_choice={"type": "none"},
        thinking=BUDGET,
        output_config={"format": {"type": "json_schema", "schema": CLOSED}},
    )
    assert fault_of(good) is None
    assert fault_of(body(USER, stream=None)) is None


PAIR = "`tool_use` ids were found without `tool_result` blocks immediately after: "


@pytest.mark.parametrize(
    ("request_body", "words"),
    [
        (body(USER, model(use())), f"messages.1: {PAIR}c1. Each `tool_use` block must have"),
        (body(USER, model(use()), USER), f"messages.1: {PAIR}c1"),
        (body(USER, model(use("c1"), use("c2")), user(gave("c1"))), f"{PAIR}c2"),
        (body(USER, model(use()), user(text("Wait."), gave())), f"{PAIR}c1"),
        (body(USER, model(use("c1"), use("c2")), user(gave("c1"), text("x"), gave("c2"))), f"{PAIR}c2"),
        (body(USER, model(use()), user(gave()), user(text("x"))), 'multiple "user" roles in a row'),
        (body(user(gave())), "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: c1"),
        (body(USER, model(use()), user(gave(), gave("c2"))), "messages.2.content.1: unexpected `tool_use_id`"),
        (body(USER, model(use()), user(gave(), gave())), "each tool_use must have a single result"),
        (body(USER, model(use(), use()), user(gave())), "`tool_use` ids must be unique"),
        (body(USER, model(use("a.b")), user(gave("a.b"))), "String should match pattern '^[a-zA-Z0-9_-]+$'"),
        (body(USER, model(use("")), user(gave(""))), "String should match pattern"),
        (body(USER, model(use(name="a b")), user(gave())), "tool_use.name: String should match pattern"),
        (body(USER, model(use(input="{}")), user(gave())), "Input should be a valid dictionary"),
        (body(USER, model(use()), user(gave()), tools=None), "must define tools"),
        (body(USER, model(use()), user(gave(content=" "))), "non-whitespace"),
        (body(USER, model(use()), user(gave(content=[]))), "not be empty"),
        (body(USER, model(use()), user(gave(content=[text("")]))), "non-empty"),
        (body(USER, model(use()), user(gave(content=[PNG], is_error=True))), 'all content must be type "text"'),
        (body(model(text("Hi.")), USER), 'first message must use the "user" role'),
        (body(USER, model(text("So"))), "does not support assistant message prefill"),
        (body(user()), "user messages must have non-empty content"),
        (body(USER, model(), USER), "assistant messages must have non-empty content"),
        (body(user(text(""))), "text content blocks must be non-empty"),
        (body(user(text(" \n"))), "text content blocks must contain non-whitespace text"),
        (body({"role": "user", "content": ""}), "non-empty"),
        (body(USER, system=" "), "system: text content blocks must contain non-whitespace text"),
        (
            body(USER, model({**THOUGHT, "thinking": "Ha."}, text("x")), USER),
            "messages.1.content.0: Invalid `signature`",
        ),
        (body(USER, model({**THOUGHT, "signature": "x"}, text("x")), USER), "Invalid `signature` in `thinking` block"),
        (body(USER, model({"type": "redacted_thinking", "data": "x"}, text("x")), USER), "Invalid `data`"),
        (body(USER, model(text("x"), THOUGHT), USER), "final block in an assistant message cannot be `thinking`"),
        (body(user(THOUGHT)), "does not match any of the expected tags"),
        (body(USER, model(PNG), USER), "does not match any of the expected tags"),
        (body(user({**PNG, "source": {**PNG["source"], "data": "AAAA"}})), "Could not process image"),
        (body(user({**PNG, "source": {**PNG["source"], "data": "%"}})), "Could not process image"),
        (body(user({**PNG, "source": {**PNG["source"], "media_type": "image/tiff"}})), "media_type"),
        (body(user({**PNG, "type": "document"})), "media_type"),
        (body(user({**PNG, "source": {**PNG["source"], "data": "A" * 5242884}})), "image exceeds 5 MB maximum"),
        (body(), "at least one message is required"),
        ({"messages": [USER], "max_tokens": 1}, "model: Field required"),
        (body(USER, max_tokens=None), "max_tokens: Field required"),
        (body(USER, max_tokens=0), "max_tokens"),
        (body(USER, tools=None, tool_choice={"type": "auto"}), "only be specified while providing tools"),
        (body(USER, tool_choice={"type": "tool", "name": "seek"}), "'seek' not found"),
        (body(USER, tools=[TOOL, TOOL]), "must be unique"),
        (body(USER, tools=[{**TOOL, "name": "ä"}]), "pattern"),
        (body(USER, tools=[{"name": "a", "input_schema": {"type": "array"}}]), "should be 'object'"),
        (body(USER, tools=[{"name": f"t{n}", "strict": True, "input_schema": CLOSED} for n in range(21)]), "strict"),
        (strict({"type": "object"}), "'additionalProperties' must be explicitly set to false"),
        (strict({**CLOSED, "properties": {"a": {"type": "integer", "minimum": 1}}}), "'minimum' is not supported"),
        (strict({**CLOSED, "properties": {"a": {}}}), "type is missing"),
        (strict({**CLOSED, "properties": {"a": {"anyOf": [{"type": "array", "items": {}}]}}}), "anyOf.0.items"),
        (strict({**CLOSED, "properties": {"a": {"type": "array", "minItems": 2}}}), "'minItems'"),
        (body(USER, output_config={"format": {"type": "json_schema", "schema": {"maxLength": 1}}}), "maxLength"),
        (body(USER, thinking={"type": "enabled", "budget_tokens": 1000}), "greater than or equal to 1024"),
        (body(USER, thinking={"type": "enabled", "budget_tokens": 9000}), "must be greater than"),
        (body(USER, thinking=BUDGET, tool_choice={"type": "any"}), "forces tool use"),
        (body(USER, model(use()), user(gave()), thinking=BUDGET), "messages.1.content.0.type: Expected `thinking`"),
        (body(USER, tools=[TOOL | MARK] * 1, system=[text("x") | MARK] * 4), "maximum of 4 blocks"),
        (body(USER, model(THOUGHT | MARK, text("x")), USER), "cannot have cache_control"),
        (body(user(text("\ud800"))), "surrogate"),
        (body({"role": "narrator", "content": "x"}), "first message"),
        (body(USER, speed="slow"), "SDK"),
        (body({**USER, "name": "ada"}), "SDK"),
        (body(user(text("x") | {"tone": "warm"})), "SDK"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused(request_body: dict[str, Any], words: str) -> None:
    fault = fault_of(request_body)
    assert fault is not None
    assert words in f"{fault.message} {fault.param}"


FULL = Play(
    "Looking.", calls=[("c1", "look", '{"a": 1}'), ("c2", "look", "{}")], reasoning="Hm.", usage=Usage(9, 5, 3, 0.0, 2)
)


@pytest.mark.parametrize("play", [FULL, Play("x"), Play(""), Play("x", stop="length"), Play("x", stop="refusal")])
def test_its_answers_are_those_of_the_sdk(play: Play) -> None:
    server = FakeAnthropic()
    events = TypeAdapter(RawMessageStreamEvent)
    for event in server.stream_of(play):
        if event["type"] != "ping":
            events.validate_python(event)
    Message.model_validate(server.whole_of(play))
    kind = TypeAdapter(ErrorResponse)
    for status in (400, 401, 402, 403, 404, 429, 500, 504, 529):
        kind.validate_python(server.error_body(Refusal(status, "x"), None))


def test_the_sdks_own_calls_read_what_it_streams_and_what_it_refuses() -> None:
    async def main() -> None:
        async with FakeAnthropic([FULL, FULL, Refusal(529, "Overloaded")], key="k") as server:
            client = AsyncAnthropic(api_key="k", base_url=server.base_url, max_retries=0)
            asked: dict[str, Any] = {"model": "any", "max_tokens": 9, "messages": [USER]}
            async with client.messages.stream(**asked) as stream:
                streamed = await stream.get_final_message()
            whole = await client.messages.create(**asked)
            assert [b.to_dict() for b in streamed.content] == [b.to_dict() for b in whole.content]
            assert (streamed.stop_reason, streamed.usage.output_tokens) == ("tool_use", 5)
            assert [b.type for b in whole.content] == ["thinking", "redacted_thinking", "text", "tool_use", "tool_use"]
            with pytest.raises(BadRequestError) as caught:
                await client.messages.create(**asked | {"messages": [model(text("Hi."))]})
            assert caught.value.type == "invalid_request_error"
            assert caught.value.api_message == 'messages: first message must use the "user" role'
            with pytest.raises(OverloadedError) as over:
                await client.messages.create(**asked)
            assert (over.value.type, over.value.api_message) == ("overloaded_error", "Overloaded")
            assert len(server.faults) == 1
            await client.close()

    asyncio.run(main())


def test_it_tells_what_a_model_reads() -> None:
    server = FakeAnthropic()
    asked = body(
        USER, model(THOUGHT, text("Hm."), use(input={"a": 1})), user(gave(content=[text("map"), PNG])), system="S"
    )
    told = server.told(asked)
    assert [one.kind for one in told] == ["system", "user", "opaque", "assistant", "call", "result"]
    assert json.loads(told[4].text) == {"a": 1}
    assert (told[5].text, told[5].media, told[5].id) == ("map", ("image/png",), "c1")
    assert server.choice(asked) == "auto"
    assert server.choice(asked | {"tool_choice": {"type": "any"}}) == "required"
    assert server.tools(asked) == {"look": {"type": "object"}}
