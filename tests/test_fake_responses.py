"""The fake Responses server refuses what OpenAI's refuses, and its own events are those of the SDK."""

import asyncio
import json
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from counterfoil.core.turn import Usage
from counterfoil.testing.fake_responses import FakeResponses, Play, fault_of
from counterfoil.testing.strict_dialect import dialect_fault

USER = {"role": "user", "content": "hello"}
SEALED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "fake-seal:x"}


def call(identity: Any = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": identity, "name": "look", "arguments": "{}", **more}


def output(identity: str = "c1", given: Any = "fine") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": identity, "output": given}


def body(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": "fake", "input": list(items), "stream": True, **more}


def offered(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": "look", "parameters": schema, "strict": True, **more}


CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def test_a_request_that_keeps_the_rules_is_taken() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    good = body(
        USER,
        SEALED,
        {"role": "assistant", "content": "Looking.", "phase": "commentary"},
        SEALED,
        call("c1"),
        call("c2"),
        output("c2", [{"type": "input_text", "text": "a map"}, image]),
        output("c1"),
        tools=[offered(CLOSED)],
        tool_choice="required",
        include=["reasoning.encrypted_content"],
        text={"format": {"type": "json_schema", "name": "answer", "schema": CLOSED, "strict": True}},
    )
    assert fault_of(good) is None


@pytest.mark.parametrize(
    ("request_body", "words"),
    [
        (body(USER, call()), "No tool output found for function call c1"),
        (body(USER, call(), USER), "No tool output found"),
        (body(USER, call("c1"), call("c2"), output("c1"), USER), "call c2"),
        (body(USER, call("c1"), call("c2"), output("c1"), call("c3")), "call c2"),
        (body(USER, output()), "No tool call found for function call output with call_id c1"),
        (body(USER, call(), output(), output()), "No tool call found"),
        (body(USER, call(), output(given=" ")), "blank"),
        (body(USER, call(), output(given=[])), "missing"),
        (body(USER, call(), output(given=[{"type": "input_text", "text": ""}])), "blank"),
        (body(USER, call(), output(given=[{"type": "input_audio", "text": "x"}])), "input_audio"),
        (
            body(USER, call(), output(given=[{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}])),
            "image",
        ),
        (body(USER, call(), output(given=[{"type": "input_image", "image_url": "http://x/y.png"}])), "data URL"),
        (
            body(USER, call(), output(given=[{"type": "input_file", "file_data": "data:text/plain;base64,AAAA"}])),
            "file",
        ),
        (body(USER, call(id="fc_1"), output()), "not persisted"),
        (body(USER, call("c" * 65)), "too long"),
        (body(USER, call(None)), "missing"),
        (body(USER, call("c1"), call("c1")), "not the first"),
        (body(USER, call(name="a b")), "illegal"),
        (body(USER, call(arguments="{")), "no JSON object"),
        (body(USER, call(arguments='{"a": NaN}')), "no JSON object"),
        (body(USER, SEALED), "without its required following item"),
        (body(SEALED, USER), "without its required following item"),
        (body(USER, {**SEALED, "encrypted_content": None}, call(), output()), "not persisted"),
        (body(USER, {**SEALED, "encrypted_content": "other"}, call(), output()), "could not be verified"),
        (body(USER, {"type": "item_reference", "id": "x"}), "item_reference"),
        (body({"role": "user", "content": " \n"}), "blank"),
        (body({"role": "user", "content": "\ud800"}), "surrogate"),
        (body({"role": "narrator", "content": "x"}), "SDK"),
        (body(USER, temperature="hot"), "SDK"),
        (body({**USER, "name": "ada"}), "SDK"),
        (body(), "at least one item"),
        (body(USER, instructions=" "), "instructions"),
        (body(USER, tools=[]), "empty list"),
        (body(USER, tool_choice="auto"), "only allowed with tools"),
        (body(USER, tools=[offered(CLOSED), offered(CLOSED)]), "not the first"),
        (body(USER, tools=[offered(CLOSED, strict=None)]), "strict"),
        (body(USER, tools=[offered({"type": "object"})]), "additionalProperties"),
        (body(USER, text={"format": {"type": "json_schema", "name": "a", "schema": {"type": "array"}}}), "no object"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused(request_body: dict[str, Any], words: str) -> None:
    fault = fault_of(request_body)
    assert fault is not None
    assert words in f"{fault.message} {fault.param}"


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        ({"type": "string", "default": "x"}, "'default' is not permitted"),
        ({"oneOf": [{"type": "string"}]}, "'oneOf' is not permitted"),
        ({"type": "string", "minLength": 1}, "'minLength' is not permitted"),
        ({"type": "string", "format": "uri"}, "'uri'"),
        ({}, "'type'"),
        ({"type": "array"}, "items"),
        ({"type": "object", "properties": {}}, "'additionalProperties'"),
        ({**CLOSED, "required": []}, "'required'"),
        ({"$ref": "#/$defs/x", "description": "d"}, "$ref"),
        ({"anyOf": [{"type": "object", "properties": {}}]}, "'additionalProperties'"),
        ({"type": ["array", "null"], "items": {}}, "'type'"),
    ],
)
def test_what_the_strict_dialect_refuses(inner: Any, words: str) -> None:
    fault = dialect_fault({**CLOSED, "properties": {"a": inner}}, "x")
    assert fault is not None
    assert words in fault.message
    assert dialect_fault({**CLOSED, "type": "array"}, "x") is not None
    assert dialect_fault(CLOSED, "x") is None


PLAYS = [
    Play("Hello there.", pieces=3, usage=Usage(7, 3, 2, 0.0, 1)),
    Play("Looking.", calls=[("c1", "look", '{"a": 1}'), ("c2", "look", "{}")], reasoning="Hm."),
    Play("I cannot.", stop="refusal"),
    Play("So far", stop="length"),
]


@pytest.mark.parametrize("play", PLAYS, ids=range(len(PLAYS)))
def test_its_events_and_answers_are_those_of_the_sdk(play: Play) -> None:
    events = list(FakeResponses().stream_of(play))
    for number, event in enumerate(events):
        TypeAdapter(ResponseStreamEvent).validate_python(event)
        assert event["sequence_number"] == number
    whole = FakeResponses().whole_of(play)
    Response.model_validate(whole)
    assert events[-1]["response"] == whole
    assert whole["output"] == [event["item"] for event in events if event["type"] == "response.output_item.done"]


def test_it_speaks_with_the_official_client() -> None:
    async def main() -> None:
        async with (
            FakeResponses([PLAYS[0], PLAYS[0]], key="k") as server,
            AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as sdk,
        ):
            stream = await sdk.responses.create(model="fake", input=[USER], stream=True, store=False)
            pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            assert len(pieces) == 3
            assert "".join(pieces) == "Hello there."
            whole = await sdk.responses.create(model="fake", input=[USER], store=False)
            assert whole.output_text == "Hello there."
            assert whole.usage is not None
            assert whole.usage.output_tokens_details.reasoning_tokens == 1
            bad = {**SEALED, "encrypted_content": "x"}
            with pytest.raises(BadRequestError, match="could not be verified") as caught:
                await sdk.responses.create(model="fake", input=[USER, bad, USER], store=False)
            assert caught.value.code == "invalid_encrypted_content"
            assert json.loads(server.asked[0].raw)["input"] == [USER]

    asyncio.run(main())


def test_a_model_that_does_not_reason_refuses_to_be_asked_for_it() -> None:
    asked = body(USER, include=["reasoning.encrypted_content"])
    assert FakeResponses(reasons=False).fault_of(asked) is not None
    assert FakeResponses(reasons=False).fault_of(body(USER)) is None
