"""The fake server refuses what the strictest server refuses, and answers by its script."""

import asyncio
import json
from typing import Any

import pytest
from openai import APIConnectionError, AsyncOpenAI, BadRequestError, RateLimitError

from counterfoil.testing.fake_openai import FakeOpenAI, fault_of, rate_limit, text, tool_calls

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def made(*calls: tuple[Any, ...], content: Any = None) -> dict[str, Any]:
    wire = [
        {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
        for identity, name, arguments in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": wire}


def result(identity: str, content: Any = "fine") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": list(messages), "stream": True, **more}


def test_a_request_that_keeps_the_rules_is_taken() -> None:
    two = made(("c1", "look", "{}"), ("c2", "look", '{"a": 1}'))
    good = body(USER, two, result("c2"), result("c1"), {"role": "assistant", "content": "Done."}, tools=[TOOL])
    assert fault_of(good) is None


@pytest.mark.parametrize(
    ("request_body", "param"),
    [
        (body(USER, made(("c1", "look", "{}"))), "messages"),
        (body(USER, made(("c1", "look", "{}")), USER), "messages[2]"),
        (body(USER, made(("c1", "look", "{}"), ("c2", "look", "{}")), result("c1"), USER), "messages[3]"),
        (body(USER, result("c1")), "messages[1].tool_call_id"),
        (body(USER, made(("c1", "look", "{}")), result("c1"), result("c1")), "messages[3].tool_call_id"),
        (body(USER, made(("c1", "look", "{}")), result("c1", "")), "messages[2].content"),
        (body(USER, made(("c1", "look", "{}")), result("c1", None)), "messages[2].content"),
        (body({"role": "user", "content": " \n"}), "messages[0].content"),
        (body(USER, {"role": "assistant", "content": None}), "messages[1].content"),
        (body(USER, {"role": "assistant", "content": "hi", "tool_calls": []}), "messages[1].tool_calls"),
        (body(USER, made(("c1", "a b.c!", "{}")), result("c1")), "messages[1].tool_calls[0].function.name"),
        (
            body(USER, made(("c1", "a", "{"), ("c1", "b", "{}"))),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (body(USER, made(("c1", "a", '{"a": NaN}'))), "messages[1].tool_calls[0].function.arguments"),
        (body(USER, made(("c1", "a", "{}"), ("c1", "b", "{}"))), "messages[1].tool_calls[1].id"),
        (body(USER, made((None, "a", "{}"))), "messages[1].tool_calls[0].id"),
        (body(USER, made(("c" * 41, "a", "{}"))), "messages[1].tool_calls[0].id"),
        (body(USER, tools=[]), "tools"),
        (body(USER, tools=[TOOL, TOOL]), "tools[1].function.name"),
        (body(USER, tool_choice="auto"), "tool_choice"),
        (body({"role": "user", "content": "\ud800"}), None),
        (body({"role": "narrator", "content": "x"}), "messages[0].role"),
        (body(), "messages"),
        ({"model": "fake", "messages": [USER]}, "stream"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused(request_body: dict[str, Any], param: str | None) -> None:
    fault = fault_of(request_body)
    assert fault is not None
    assert fault.param == param


def client(server: FakeOpenAI, key: str = "k") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.base_url, api_key=key, max_retries=0)


def test_it_speaks_with_the_official_client() -> None:
    async def main() -> None:
        script = [
            text("Hello there.", pieces=3),
            tool_calls(("c1", "look", '{"a": 1}'), ("c2", "look", "{}")),
        ]
        async with FakeOpenAI(script) as server, client(server) as sdk:
            ask = {"model": "fake", "messages": [USER], "stream": True}
            stream = await sdk.chat.completions.create(**ask)
            said = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            assert "".join(said) == "Hello there."
            assert len([piece for piece in said if piece]) == 3
            stream = await sdk.chat.completions.create(**ask)
            pieces = [t async for c in stream if c.choices for t in c.choices[0].delta.tool_calls or ()]
            first = "".join(t.function.arguments or "" for t in pieces if t.index == 0 and t.function)
            assert json.loads(first) == {"a": 1}
            assert [asked.fault for asked in server.asked] == [None, None]
            assert json.loads(server.asked[0].raw) == server.asked[0].body == ask

    asyncio.run(main())


def test_a_broken_rule_is_http_400_and_uses_up_no_reply() -> None:
    async def main() -> None:
        async with FakeOpenAI([text("fine")]) as server, client(server) as sdk:
            with pytest.raises(BadRequestError, match="no open call") as caught:
                await sdk.chat.completions.create(
                    model="fake",
                    messages=[{"role": "tool", "tool_call_id": "x", "content": "y"}],
                    stream=True,
                )
            assert caught.value.type == "invalid_request_error"
            assert [fault.param for fault in server.faults] == ["messages[0].tool_call_id"]
            stream = await sdk.chat.completions.create(model="fake", messages=[USER], stream=True)
            assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]) == "fine"
            with pytest.raises(BadRequestError, match="script of 1"):
                await sdk.chat.completions.create(model="fake", messages=[USER], stream=True)

    asyncio.run(main())


def test_a_rate_limit_says_when_to_come_back_and_a_drop_breaks_the_connection() -> None:
    async def main() -> None:
        script = [rate_limit(7), text("never whole", finish=None, then="drop")]
        async with FakeOpenAI(script) as server, client(server) as sdk:
            with pytest.raises(RateLimitError) as caught:
                await sdk.chat.completions.create(model="fake", messages=[USER], stream=True)
            assert caught.value.response.headers["retry-after"] == "7"
            with pytest.raises(APIConnectionError):
                async for _ in await sdk.chat.completions.create(model="fake", messages=[USER], stream=True):
                    pass

    asyncio.run(main())
