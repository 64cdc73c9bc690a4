"""The Chat Completions adapter against a strict server: real HTTP on loopback, requests made of entries."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from counterfoil.adapters.models.openai_chat import OpenAIChat, open_model
from counterfoil.adapters.models.openai_chat.answer import Answer
from counterfoil.adapters.models.shared.replay import legal_name, replayed
from counterfoil.core.content import Image, Text
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import Usage
from counterfoil.model import (
    CallDelta,
    Item,
    ModelCall,
    ModelEvent,
    ModelRequest,
    ModelTurn,
    Offer,
    ReasoningDelta,
    TextDelta,
)
from counterfoil.registry import resolve
from counterfoil.testing.fake_openai import (
    Chunks,
    FakeOpenAI,
    Refusal,
    chunk,
    rate_limit,
    text,
    tool_calls,
    usage,
)
from counterfoil.testing.model_bench import LOOK, made, request, result, said, turn
from tests.marks import case, law

KEY = "sk-canary-of-a-key"


@asynccontextmanager
async def serving(*script: Any, **settings: Any) -> AsyncIterator[tuple[FakeOpenAI, OpenAIChat]]:
    async with FakeOpenAI(script, key=KEY) as server:
        model = OpenAIChat("fake", base_url=server.base_url, **{"api_key": KEY, **settings})
        try:
            yield server, model
        finally:
            await model.aclose()


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


def answer(*script: Any, asked: ModelRequest | None = None, **settings: Any) -> tuple[ModelTurn, FakeOpenAI]:
    """The finished turn of one request; the server must have found no fault in it."""
    events, server = events_of(*script, asked=asked, **settings)
    assert isinstance(events[-1], ModelTurn)
    return events[-1], server


def events_of(*script: Any, asked: ModelRequest | None = None, **settings: Any) -> tuple[list[ModelEvent], FakeOpenAI]:
    async def main() -> tuple[list[ModelEvent], FakeOpenAI]:
        async with serving(*script, **settings) as (server, model):
            return [event async for event in model.respond(asked or request())], server

    events, server = run(main)
    assert server.faults == []
    return events, server


def sent(*items: Item, **more: Any) -> dict[str, Any]:
    """The body that the server got, which it found no fault in."""
    return answer(text("fine"), asked=request(*items, **more))[1].asked[0].body


def refused(*script: Any, asked: ModelRequest | None = None, **settings: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        answer(*script, asked=asked, **settings)
    return caught.value


# ---------------------------------------------------------------------------------------------- answers


def test_a_text_is_streamed_and_then_whole() -> None:
    events, server = events_of(text("Hello there, Ada.", pieces=4))
    assert all(isinstance(event, TextDelta) for event in events[:-1])
    assert len(events) == 5
    assert "".join(event.text for event in events[:-1] if isinstance(event, TextDelta)) == "Hello there, Ada."
    assert events[-1] == ModelTurn("Hello there, Ada.", usage=Usage(10, 5), model="fake-1")
    body = server.asked[0].body
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    assert body["stream_options"] == {"include_usage": True}
    assert body["tools"] == [
        {
            "type": "function",
            "function": {"name": "look", "description": "Look it up.", "parameters": LOOK.input_schema},
        }
    ]


@case("R022", "R131")
def test_parallel_calls_come_and_go_as_they_are() -> None:
    made_here, _ = answer(
        tool_calls(("p1", "look", '{"a": 1}'), ("p2", "look", '{"a": 2}'), ("p3", "seek", "{}"), pieces=3)
    )
    assert made_here.calls == (
        ModelCall("p1", "look", '{"a": 1}'),
        ModelCall("p2", "look", '{"a": 2}'),
        ModelCall("p3", "seek", "{}"),
    )
    assert made_here.stop == "calls"
    body = sent(
        said("Go"),
        turn(made("p1", "p1"), made("p2", "p2"), made("p3", "p3"), words="Looking."),
        result("p1", ToolResult.text("one")),
        result("p2", ToolResult.error("two"), index=1),
        result("p3", ToolResult.json({"n": 3}), index=2),
    )
    assert body["messages"][2:] == [
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {"id": i, "type": "function", "function": {"name": "look", "arguments": "{}"}}
                for i in ("p1", "p2", "p3")
            ],
        },
        {"role": "tool", "tool_call_id": "p1", "content": "one"},
        {"role": "tool", "tool_call_id": "p2", "content": "two"},
        {"role": "tool", "tool_call_id": "p3", "content": '{"n":3}'},
    ]


def fragment(index: int | None = None, identity: str | None = None, **function: Any) -> dict[str, Any]:
    out: dict[str, Any] = {"function": function}
    if index is not None:
        out["index"] = index
    if identity is not None:
        out["id"] = identity
    return chunk({"tool_calls": [out]})


END = chunk({}, "tool_calls")
TWO = (ModelCall("p1", "look", '{"a":1}'), ModelCall("p2", "seek", '{"b":2}'))


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        pytest.param(
            [
                fragment(1, "p2", name="seek", arguments='{"b"'),
                fragment(0, "p1", name="look"),
                fragment(1, arguments=":2}"),
                fragment(0, arguments='{"a":1}'),
            ],
            TWO,
            id="indexes out of order",
        ),
        pytest.param(
            [
                fragment(None, "p1", name="look", arguments='{"a":1}'),
                fragment(None, "p2", name="seek", arguments='{"b":2}'),
            ],
            TWO,
            id="whole calls without an index",
        ),
        pytest.param(
            [
                fragment(0, "p1", name="look", arguments='{"a":1}'),
                fragment(0, "p2", name="seek", arguments='{"b":2}'),
            ],
            TWO,
            id="index 0 for every call",
        ),
        pytest.param(
            [
                fragment(0, "p1", name="look", arguments='{"a"'),
                fragment(0, "p1", name="look", arguments=":1}"),
                fragment(1, "p2", name="seek"),
                fragment(1, "p2", name="seek", arguments='{"b":2}'),
            ],
            TWO,
            id="name and id in every piece",
        ),
        pytest.param(
            [
                fragment(0, "p1", name="lo"),
                fragment(0, name="ok", arguments='{"a":1}'),
                fragment(1, "p2", name="seek", arguments={"b": 2}),
            ],
            TWO,
            id="a name in pieces, arguments as an object",
        ),
        pytest.param(
            [
                fragment(None, None, name="look", arguments='{"a"'),
                fragment(None, None, arguments=":1}"),
                fragment(None, "", name="look", arguments='{"a":1}'),
            ],
            (ModelCall(None, "look", '{"a":1}'),) * 2,
            id="neither id nor index",
        ),
        pytest.param([fragment(0, "p1", name="look")], (ModelCall("p1", "look", ""),), id="no arguments"),
        pytest.param([fragment(0, "p1", arguments="{}")], (ModelCall("p1", "", "{}"),), id="no name"),
        pytest.param(
            [fragment(0, "p1", name="look", arguments='{"a":"\ud83c'), fragment(0, arguments='\udf78"}')],
            (ModelCall("p1", "look", '{"a":"\U0001f378"}'),),
            id="a character cut in two",
        ),
    ],
)
def test_calls_are_put_together_however_a_server_cuts_them(pieces: list[Any], calls: tuple[ModelCall, ...]) -> None:
    assert answer(Chunks([*pieces, END]))[0].calls == calls


@case("R127")
def test_broken_arguments_of_one_call_leave_the_other_as_it_is() -> None:
    got, _ = answer(tool_calls(("p1", "look", '{"a": '), ("p2", "look", '{"a": 2}')))
    assert [c.arguments for c in got.calls] == ['{"a": ', '{"a": 2}']
    body = sent(
        said("Go"),
        turn(made("p1", "p1", raw='{"a": '), made("p2", "p2", raw='{"a": 2}')),
        result("p1", ToolResult.error("The arguments of look are not a JSON object.")),
        result("p2", ToolResult.text("two"), index=1),
    )
    assert [c["function"]["arguments"] for c in body["messages"][2]["tool_calls"]] == ["{}", '{"a": 2}']


def test_the_pieces_of_calls_are_events_too() -> None:
    events, _ = events_of(tool_calls(("p1", "look", '{"a": 1}')))
    pieces = [event for event in events if isinstance(event, CallDelta)]
    assert "".join(piece.text for piece in pieces) == '{"a": 1}'
    assert {(piece.index, piece.tool_name) for piece in pieces} == {(0, "look")}


def test_reasoning_is_streamed_and_is_no_part_of_the_text() -> None:
    script = [
        chunk({"reasoning_content": "Hm"}),
        chunk({"reasoning": "m."}),
        chunk({"content": "Yes."}, "stop"),
    ]
    events, _ = events_of(Chunks(script))
    assert events[:-1] == [ReasoningDelta("Hm"), ReasoningDelta("m."), TextDelta("Yes.")]
    assert events[-1] == ModelTurn("Yes.", model="fake-1")


@pytest.mark.parametrize(
    ("finish", "delta", "stop"),
    [
        ("stop", {"content": "x"}, "end"),
        ("tool_calls", {"content": "x"}, "end"),
        ("stop", {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "look"}}]}, "calls"),
        ("length", {"content": "x"}, "length"),
        ("length", {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "look"}}]}, "length"),
        ("content_filter", {"content": "x"}, "refusal"),
        ("stop", {"refusal": "I cannot."}, "refusal"),
        ("something_new", {"content": "x"}, "other"),
    ],
)
def test_the_reason_for_the_end_is_told(finish: str, delta: dict[str, Any], stop: str) -> None:
    got, _ = answer(Chunks([chunk(delta), chunk({}, finish)]))
    assert got.stop == stop
    assert got.text == delta.get("content", delta.get("refusal", ""))


def test_usage_is_counted_where_a_server_gives_it() -> None:
    assert answer(Chunks([chunk({"content": "x"}, "stop"), usage(7, 3, 2)]))[0].usage == Usage(7, 3, 2)
    assert answer(Chunks([chunk({"content": "x"}, "stop")]))[0].usage == Usage()
    odd = {"prompt_tokens": None, "completion_tokens": 3, "prompt_tokens_details": None, "cost": 0.5}
    assert answer(Chunks([chunk({"content": "x"}, "stop", usage=odd)]))[0].usage == Usage(0, 3, 0, 0.5)


def test_the_end_of_the_stream_without_done_is_an_end() -> None:
    assert answer(text("fine", then="end"))[0].text == "fine"


def test_a_connection_lost_after_the_end_of_the_turn_loses_nothing() -> None:
    assert answer(Chunks([chunk({"content": "fine"}, "stop")], then="drop"))[0].text == "fine"


def test_a_character_cut_in_two_is_whole_in_text_and_a_lone_half_is_replaced() -> None:
    pieces = [
        chunk({"content": "a\ud83c"}),
        chunk({"content": "\udf78b"}),
        chunk({"content": "\ud800"}, "stop"),
    ]
    events, _ = events_of(Chunks(pieces))
    assert events[-1] == ModelTurn("a\U0001f378b\ufffd", model="fake-1")
    for event in events[:-1]:
        assert isinstance(event, TextDelta)
        event.text.encode()


def test_a_call_of_many_pieces_is_whole() -> None:
    joined = Answer("m")
    for n in range(50_000):
        for _ in joined.add(fragment(0, "p1", name="look", arguments=str(n % 10))):
            pass
    list(joined.add(END))
    list(joined.rest())
    assert len(joined.turn().calls[0].arguments or "") == 50_000


# --------------------------------------------------------------------------------------------- requests


@case("R130")
def test_equal_ids_in_one_turn_leave_as_different_ones() -> None:
    body = sent(
        said("Go"),
        turn(made("same", "same"), made("0193-ours", "same")),
        result("same", ToolResult.text("one")),
        result("0193-ours", ToolResult.text("two"), index=1),
    )
    assert [c["id"] for c in body["messages"][2]["tool_calls"]] == ["same", "0193-ours"]
    assert [m["tool_call_id"] for m in body["messages"][3:]] == ["same", "0193-ours"]


def test_ids_that_are_missing_too_long_or_used_by_another_run_are_replaced() -> None:
    long = "x" * 41
    items = [
        said("Go"),
        turn(made("ours-1", None), made("ours-2", ""), made(long, long)),
        result("ours-1", ToolResult.text("1")),
        result("ours-2", ToolResult.text("2"), index=1),
        result(long, ToolResult.text("3"), index=2),
        turn(made("ours-1", "call_2"), run="r2"),
        result("ours-1", ToolResult.text("4"), run="r2"),
        turn(made("ours-1", None), run="r3"),
        result("ours-1", ToolResult.text("5"), run="r3"),
    ]
    messages = sent(*items)["messages"]
    answers = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    assert answers == {"ours-1": "1", "ours-2": "2", "call_2": "3", "call_3": "4", "call_4": "5"}
    assert sent(*items[:5])["messages"] == messages[:6], "an earlier request is the beginning of a later one"


@case("R185")
def test_a_made_up_name_is_replayed_as_a_legal_one() -> None:
    body = sent(
        said("Go"),
        turn(made("c1", "c1", name="a b.c!"), made("c2", "c2", name="ü" * 80), made("c3", "c3", name="")),
        *(result(f"c{n + 1}", ToolResult.error("There is no such tool."), index=n) for n in range(3)),
    )
    names = [c["function"]["name"] for c in body["messages"][2]["tool_calls"]]
    assert names == ["a_b_c_", "_" * 64, "unnamed"]
    assert legal_name("look-it_up2") == "look-it_up2"


@pytest.mark.parametrize(
    ("raw", "wire"),
    [
        ('{"a":  1}', '{"a":  1}'),
        ("", "{}"),
        ("null", "{}"),
        ("[1]", "{}"),
        ('"text"', "{}"),
        ('{"a": 1', "{}"),
        ('{"a": NaN}', '{"a":null}'),
        ('{"a": 2512292042121000001}', '{"a": 2512292042121000001}'),
        ('{"a": "\\ud83c\\udf78"}', '{"a":"\U0001f378"}'),
        ('{"a": "\\ud800"}', '{"a":"\ufffd"}'),
        ("{" * 5000, "{}"),
    ],
)
def test_arguments_are_replayed_as_a_json_object(raw: str, wire: str) -> None:
    assert replayed(raw) == wire


@case("R145", "R151")
@pytest.mark.parametrize("empty", ["", " ", "\n\t", "\u2003"])
def test_no_message_leaves_without_a_text(empty: str) -> None:
    body = sent(
        said(empty),
        turn(words=empty),
        said("Go"),
        turn(made("c1", "c1"), words=empty, step=1),
        result("c1", ToolResult.text(empty), step=1),
        instructions=empty,
    )
    assert [m["content"] for m in body["messages"]] == ["(empty)", "(empty)", "Go", None, "(no output)"]


def test_a_failure_without_text_is_never_blank() -> None:
    body = sent(said("Go"), turn(made("c1", "c1")), result("c1", ToolResult.error("")))
    assert body["messages"][-1]["content"] == "(no output)"


def test_media_are_named_in_a_result() -> None:
    shown = ToolResult.blocks(Text("A map:"), Image(b"\x89PNG", "image/png"))
    body = sent(said("Go"), turn(made("c1", "c1")), result("c1", shown))
    assert body["messages"][-1]["content"] == "A map:\n[image, image/png, 4 bytes]"


def test_a_result_left_out_for_space_is_a_pointer() -> None:
    items = (said("Go"), turn(made("c1", "p1")), result("c1", ToolResult.text("very long"), size=9000))
    content = sent(*items, elided=frozenset({2}))["messages"][-1]["content"]
    assert "very long" not in content
    assert 'read_result(call_id="c1")' in content
    assert "9000" in content


def test_what_is_no_persons_message_is_the_systems() -> None:
    body = sent(said("Hello"), said("The answer does not have the form.", "System"))
    assert [m["role"] for m in body["messages"]] == ["system", "user", "system"]


def test_without_tools_nothing_of_tools_is_sent() -> None:
    body = sent(tools=(), tool_choice="required", parameters={"parallel_tool_calls": False})
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_the_choice_of_tools_is_sent(choice: str) -> None:
    assert sent(tool_choice=choice)["tool_choice"] == choice


def test_parameters_of_the_agent_win_over_the_models_and_extra_body_over_all() -> None:
    _, server = answer(
        text("fine"),
        asked=request(parameters={"temperature": 0, "extra_body": {"seed": 7}, "max_tokens": 9}),
        parameters={"temperature": 1, "top_p": 0.5, "stream_options": None},
        extra_body={"cache_prompt": False, "max_tokens": 5},
    )
    body = server.asked[0].body
    assert (body["temperature"], body["top_p"], body["seed"]) == (0, 0.5, 7)
    assert (body["cache_prompt"], body["max_tokens"]) == (False, 5)
    assert "stream_options" not in body


def test_parameters_that_would_break_the_laws_are_refused() -> None:
    with pytest.raises(DefinitionError, match="messages, stream"):
        OpenAIChat("m", parameters={"stream": False}, extra_body={"messages": []})
    error = refused(asked=request(parameters={"n": 2}))
    assert "sets n by itself" in str(error)
    assert not error.retryable


def test_a_form_of_the_answer_is_asked_for() -> None:
    form = sent(output_schema={"type": "object"})["response_format"]
    assert form == {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


@law("2.6")
@case("R167")
def test_nothing_but_the_models_half_is_in_the_requests_bytes() -> None:
    canary = "canary-7f3a"
    shown = (
        ToolResult.text("Refunded.")
        .with_details({"secret": f"{canary}-details"})
        .with_narration(f"{canary}-narration")
        .with_extensions(f"{canary}-extension")
    )
    items = (said("Go"), turn(made("c1", "c1")), result("c1", shown))
    for elided in (frozenset[int](), frozenset({2})):
        _, server = answer(text("fine"), asked=request(*items, elided=elided))
        (asked,) = server.asked
        assert canary.encode() not in asked.raw
        assert (b"Refunded." in asked.raw) is not bool(elided)


def test_half_a_surrogate_pair_in_the_agents_own_text_is_replaced() -> None:
    offer = Offer("look", "Look \ud800.", {"type": "object"})
    body = sent(instructions="Be \udfff.", tools=(offer,))
    assert body["messages"][0]["content"] == "Be \ufffd."
    assert body["tools"][0]["function"]["description"] == "Look \ufffd."


# --------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *((status, False) for status in (400, 401, 403, 404, 422)),
        *((status, True) for status in (408, 409, 429, 500, 502, 503, 529)),
    ],
)
def test_a_status_says_whether_asking_again_may_help(status: int, retryable: bool) -> None:
    error = refused(Refusal(status, "the server's own words"))
    assert error.retryable is retryable
    assert str(error) == f"the server answered {status}: the server's own words"


def test_a_rate_limit_is_retryable_says_how_long_and_is_asked_once() -> None:
    async def main() -> None:
        async with serving(rate_limit(7), text("fine")) as (server, model):
            with pytest.raises(ModelError, match="wait 7 s") as caught:
                [event async for event in model.respond(request())]
            assert caught.value.retryable
            assert len(server.asked) == 1, "the loop retries, not the SDK"
            assert [event async for event in model.respond(request())][-1].text == "fine"

    run(main)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(text("half", finish=None), id="done without a reason"),
        pytest.param(text("half", finish=None, then="end"), id="the end without a reason"),
        pytest.param(text("half", finish=None, then="drop"), id="the connection dropped"),
        pytest.param(tool_calls(("c1", "look", '{"a'), finish=None, then="drop"), id="dropped amid a call"),
        pytest.param(Chunks([], then="drop"), id="dropped before the first piece"),
        pytest.param(Chunks(["{broken"]), id="no JSON"),
        pytest.param(Chunks([{"choices": [7]}]), id="no choice"),
        pytest.param(Chunks([chunk({"tool_calls": 7})]), id="no calls"),
        pytest.param(Chunks([chunk({"tool_calls": ["x"]})]), id="no call"),
        pytest.param(Chunks([{"error": {"message": "overloaded", "code": 503}}]), id="an error amid the answer"),
    ],
)
def test_an_answer_without_an_end_is_a_failure_that_may_pass(script: Chunks) -> None:
    assert refused(script).retryable


def test_an_error_amid_the_answer_that_blames_the_request_does_not_pass() -> None:
    error = refused(Chunks([{"error": {"message": "too long", "type": "invalid_request_error"}}]))
    assert not error.retryable
    assert str(error) == "the server broke the answer off: too long"
    assert not refused(Chunks([{"error": {"message": "too long", "code": 400}}])).retryable


def test_a_server_that_is_not_there_and_one_that_is_silent_may_come_back() -> None:
    async def main() -> None:
        async with FakeOpenAI() as server:
            url = server.base_url
        gone = OpenAIChat("m", base_url=url)
        with pytest.raises(ModelError, match="the connection failed") as caught:
            [event async for event in gone.respond(request())]
        assert caught.value.retryable
        await gone.aclose()
        async with serving(text("half", finish=None, then="hang"), timeout=0.05) as (_, model):
            with pytest.raises(ModelError, match="in time") as caught:
                [event async for event in model.respond(request())]
            assert caught.value.retryable

    run(main)


def causes(error: BaseException | None) -> Iterable[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("key", "script"),
    [
        pytest.param(KEY, Refusal(500, f"bad header Authorization: Bearer {KEY}"), id="a server that quotes it"),
        pytest.param("another-secret", text("fine"), id="a wrong key"),
        pytest.param(KEY, Refusal(500, "x" * 395 + KEY), id="a key where the text is cut"),
        pytest.param(KEY, Chunks([{"error": {"message": f"key {KEY}"}}]), id="amid the answer"),
        pytest.param("secret\nwith-a-line", text("fine"), id="a key that no header takes"),
        pytest.param("secret-ключ", text("fine"), id="a key beyond ASCII"),
    ],
)
def test_secrets_never_reach_an_errors_text(key: str, script: Any) -> None:
    error = refused(script, api_key=key)
    shown = " ".join(f"{e} {e!r}" for e in causes(error))
    for part in ("sk-can", "another-secret", "secret"):
        assert part not in shown
    assert len(str(error)) < 500


def test_a_key_that_no_header_takes_is_not_tried_again() -> None:
    assert not refused(api_key="secret\nwith-a-line").retryable
    assert not refused(api_key="secret-ключ").retryable


def test_a_schema_that_cannot_be_sent_is_said() -> None:
    offer = Offer("look", "Look.", {"type": "object", "title": "\ud800"})
    error = refused(asked=request(tools=(offer,)))
    assert "surrogate" in str(error)
    assert not error.retryable


def test_without_a_key_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)

    async def main() -> None:
        with pytest.raises(ModelError, match="OPENAI_API_KEY"):
            [event async for event in OpenAIChat("m").respond(request())]

    run(main)


def test_the_key_of_the_environment_goes_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")

    async def main() -> None:
        async with FakeOpenAI([text("fine")]) as server:
            model = OpenAIChat("m", base_url=server.base_url)
            [event async for event in model.respond(request())]
            await model.aclose()
            assert "sk-of-the-environment" not in str(server.asked[0].headers)

    run(main)


# ----------------------------------------------------------------------------------- cancelling, closing


def test_cancelling_amid_the_stream_closes_the_connection() -> None:
    async def main() -> None:
        async with serving(text("half", finish=None, then="hang"), text("fine")) as (server, model):

            async def read() -> None:
                async for _ in model.respond(request()):
                    pass

            task = asyncio.create_task(read())
            await server.streaming.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(5):
                await server.gone.wait()
            assert [event async for event in model.respond(request())][-1].text == "fine"

    run(main)


def test_leaving_the_answer_closes_the_connection() -> None:
    async def main() -> None:
        async with serving(text("half", finish=None, then="hang")) as (server, model):
            events: Any = model.respond(request())
            assert await anext(events) == TextDelta("half")
            await events.aclose()
            async with asyncio.timeout(5):
                await server.gone.wait()

    run(main)


def test_one_model_serves_several_event_loops_in_turn() -> None:
    models: list[OpenAIChat] = []

    async def main() -> None:
        async with FakeOpenAI([text("fine")]) as server:
            if not models:
                models.append(OpenAIChat("m", base_url=server.base_url))
            models[0]._options["base_url"] = server.base_url
            assert [event async for event in models[0].respond(request())][-1].text == "fine"
            await models[0].aclose()

    run(main)
    run(main)


def test_a_given_client_is_used_and_left_open() -> None:
    from openai import AsyncOpenAI

    async def main() -> None:
        async with (
            FakeOpenAI([text("fine"), text("fine")], key=KEY) as server,
            AsyncOpenAI(base_url=server.base_url, api_key=KEY) as sdk,
        ):
            model = OpenAIChat("m", client=sdk)
            for _ in range(2):
                assert [event async for event in model.respond(request())][-1].text == "fine"
                await model.aclose()
            assert not sdk.is_closed()

    run(main)


# ------------------------------------------------------------------------------------------- registry


def test_the_registry_opens_it_by_its_name() -> None:
    model = resolve("model", "openai-chat")("openai-chat:llama3:8b", base_url="http://127.0.0.1:1/v1")
    assert model.model == "llama3:8b"
    assert open_model("gpt-x").model == "gpt-x"
    with pytest.raises(DefinitionError, match="name"):
        open_model("openai-chat:")
    with pytest.raises(DefinitionError, match="base_uri"):
        open_model("openai-chat:x", base_uri="http://127.0.0.1")


def test_its_repr_holds_no_key() -> None:
    assert KEY not in repr(OpenAIChat("m", api_key=KEY))


def test_a_request_is_json_that_ends_as_it_began() -> None:
    _, server = answer(text("fine"), asked=request(said("Ada \U0001f378")))
    assert json.loads(server.asked[0].raw)["messages"][1]["content"] == "Ada \U0001f378"
