"""What is peculiar to the wire of Gemini; what holds for every wire is in the suite (test_model_suite.py)."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google import genai

from counterfoil import Agent
from counterfoil.adapters.models.google import GoogleGemini, open_model
from counterfoil.adapters.models.google.answer import Answer
from counterfoil.adapters.models.google.names import wire_name, wire_schema
from counterfoil.core.call import Offer
from counterfoil.core.content import File, Image, Text
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import Usage
from counterfoil.model import CallDelta, ModelCall, ModelTurn, ReasoningDelta, TextDelta
from counterfoil.registry import resolve
from counterfoil.testing.fake_google import Chunks, FakeGoogle, Play, Refusal, Whole
from counterfoil.testing.model_bench import KEY, LOOK, PNG, At, made, request, result, said, turn
from tests.asked import Wire

UNSIGNED = "skip_thought_signature_validator"


@asynccontextmanager
async def serving(*script: Any, signs: bool = False, forms: bool = True, **settings: Any) -> AsyncIterator[At]:
    async with FakeGoogle(script, key=KEY, signs=signs, forms=forms) as server:
        model = GoogleGemini("fake", base_url=server.base_url, **{"api_key": KEY, **settings})
        try:
            yield At(server, model)
        finally:
            await model.aclose()


WIRE = Wire(serving)
sent, answered, refused = WIRE.sent, WIRE.answered, WIRE.refused


def pieces(*parts: dict[str, Any], finish: str | None = "STOP", **more: Any) -> Whole:
    candidate = {"content": {"role": "model", "parts": list(parts)}, **({"finishReason": finish} if finish else {})}
    return Whole({"candidates": [candidate | more]})


# --------------------------------------------------------------------------------------------- requests


def test_roles_alternate_and_messages_that_follow_each_other_are_parts_of_one() -> None:
    body = sent(request(said("Hello"), turn(words="Hi."), said("Again", "System"), said("Go")))
    assert body == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Hello"}]},
            {"role": "model", "parts": [{"text": "Hi."}]},
            {"role": "user", "parts": [{"text": "Again"}, {"text": "Go"}]},
        ],
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "look", "description": "Look it up.", "parametersJsonSchema": LOOK.input_schema}
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    }
    assert sent(request(turn(words="Hi."), said("Go")))["contents"][0] == {
        "role": "user",
        "parts": [{"text": "(empty)"}],
    }


def test_results_of_a_turn_stand_together_under_the_ids_that_the_provider_gave() -> None:
    body = sent(
        request(
            said("Go"),
            turn(made("c1", "p1", raw='{"a": 1}'), made("c2", None)),
            result("c1", ToolResult.text("one")),
            result("c2", ToolResult.error("it broke"), index=1),
            said("And?"),
        )
    )
    assert body["contents"][1:] == [
        {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "look", "id": "p1", "args": {"a": 1}}},
                {"functionCall": {"name": "look", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "look", "id": "p1", "response": {"output": "one"}}},
                {"functionResponse": {"name": "look", "response": {"error": "it broke"}}},
                {"text": "And?"},
            ],
        },
    ]


def test_images_and_documents_are_sent_and_the_rest_is_text() -> None:
    shown = ToolResult.blocks(
        Text("A map:"), Image(PNG, "image/jpeg"), Image(b"GIF89a", "image/gif"), File(b"%PDF-1", "application/pdf")
    )
    asked = request(said("Go"), turn(made("c1", "c1")), result("c1", shown))
    given = sent(asked)["contents"][-1]["parts"][0]["functionResponse"]
    assert given["response"] == {"output": "A map:\n[image, image/gif, 6 bytes]"}
    assert given["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}},
        {"inlineData": {"mimeType": "application/pdf", "data": base64.b64encode(b"%PDF-1").decode()}},
    ]
    given = sent(asked, media=False)["contents"][-1]["parts"][0]["functionResponse"]
    assert given["response"] == {"output": shown.model_output}
    assert "parts" not in given


@pytest.mark.parametrize(
    ("name", "shows"),
    [("gemini-2.5-pro", False), ("models/gemini-1.5-flash", False), ("gemini-3-pro", True), ("gemini-20", True)],
)
def test_models_before_gemini_3_are_shown_no_media(name: str, shows: bool) -> None:
    assert GoogleGemini(name)._settings.media is shows
    assert GoogleGemini(name, media=not shows)._settings.media is not shows


def test_a_medium_over_the_servers_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterfoil.adapters.models.google.request.MAX_MEDIUM", len(PNG) - 1)
    asked = request(said("Go"), turn(made("c1", "c1")), result("c1", ToolResult.blocks(Image(PNG))))
    assert "parts" not in sent(asked)["contents"][-1]["parts"][0]["functionResponse"]


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("look", "look"),
        ("2nd-look", "_2nd-look"),
        ("-x", "_-x"),
        ("a b", "a_b"),
        ("9" * 64, "_" + "9" * 63),
        ("", "unnamed"),
    ],
)
def test_a_name_begins_with_a_letter_or_an_underscore(name: str, wire: str) -> None:
    assert wire_name(name) == wire


def test_a_call_of_a_tool_whose_name_had_to_change_comes_under_the_tools_own() -> None:
    offer = Offer("2nd", "Look.", LOOK.input_schema)

    async def main() -> None:
        async with serving(Play(calls=[("c1", "_2nd", "{}")])) as at:
            deltas: list[Any]
            last: Any
            *deltas, last = await at.events(request(tools=(offer,)))
            assert list(at.server.tools(at.last.body)) == ["_2nd"]
            assert last.calls == (ModelCall("c1", "2nd", "{}"),)
            assert deltas == [CallDelta(0, "2nd", "{}")]

    asyncio.run(main())


def test_beside_a_reference_nothing_stands() -> None:
    node = {"type": "object", "properties": {"$ref": {"type": "string"}}}
    schema: Any = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n", "description": "a tree"}, "b": {"$ref": "#/$defs/n"}},
        "default": {"$ref": "x", "y": 1},
        "$defs": {"n": node},
    }
    assert wire_schema(schema) == schema | {
        "properties": {"a": {"description": "a tree", "anyOf": [{"$ref": "#/$defs/n"}]}, "b": {"$ref": "#/$defs/n"}}
    }
    assert schema["properties"]["a"] == {"$ref": "#/$defs/n", "description": "a tree"}


def test_the_form_of_an_answer_is_its_schema() -> None:
    config = sent(request(output_schema={"type": "integer"}))["generationConfig"]
    assert config == {"responseMimeType": "application/json", "responseJsonSchema": {"type": "integer"}}


def test_a_model_that_takes_no_form_beside_tools_is_told_it_once_and_for_all() -> None:
    async def main() -> None:
        async with serving(Play("1"), Play("2"), Play("3"), forms=False) as at:
            asked = request(output_schema={"type": "integer"}, parameters={"temperature": 0})
            for answer in ("1", "2"):
                assert [event async for event in at.model.respond(asked)][-1].text == answer
                assert at.told[0].text.startswith("Be brief.\n\n")
                assert at.told[0].text.endswith('{"type":"integer"}')
                assert at.last.body["generationConfig"] == {"temperature": 0}
            assert [asked.fault is None for asked in at.server.asked] == [False, True, True]
            await anext(at.model.respond(request(output_schema={"type": "integer"}, tools=())))
            assert "responseJsonSchema" in at.last.body["generationConfig"]

    asyncio.run(main())


def test_parameters_are_merged_and_those_that_would_break_a_law_are_refused() -> None:
    asked = request(parameters={"temperature": 0, "extra_body": {"labels": {"a": "b"}}, "max_output_tokens": 9})
    body = sent(asked, parameters={"temperature": 1, "topK": 3}, extra_body={"generationConfig": {"top_k": 5}})
    assert body["generationConfig"] == {"temperature": 0, "maxOutputTokens": 9, "topK": 5}
    assert body["labels"] == {"a": "b"}
    for name in ("contents", "tools", "system_instruction", "cachedContent", "candidate_count", "continuation_token"):
        with pytest.raises(DefinitionError, match="by itself"):
            GoogleGemini("m", parameters={name: 2})
    for parameters in ({"candidateCount": 2}, {"generation_config": {"candidate_count": 2}}):
        error = refused(asked=request(parameters=parameters))
        assert not error.retryable
        assert "candidateCount" in str(error)


def test_nothing_is_told_of_this_machine() -> None:
    async def main() -> None:
        async with serving(Play("fine")) as at:
            await at.turn()
            assert "x-goog-api-client" not in at.last.headers

    asyncio.run(main())


def test_a_server_that_sends_us_elsewhere_is_not_followed() -> None:
    async def main() -> None:
        async with FakeGoogle([Play("fine")]) as other, serving() as at:
            at.server.add(Refusal(307, "over there", {"Location": f"{other.base_url}/v1/models/x:generateContent"}))
            assert not (await at.refused()).retryable
            assert other.asked == []

    asyncio.run(main())


# ------------------------------------------------------------------------------------------- signatures


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": "look", "args": {}, "id": name}, **more}


def shape(parts: list[dict[str, Any]]) -> list[Any]:
    return [(p.get("text", p.get("functionCall", {}).get("id")), p.get("thoughtSignature")) for p in parts]


def test_signatures_go_back_on_the_very_parts_that_carried_them() -> None:
    from counterfoil.adapters.models.google.request import _turn

    answer = Answer("m", {})
    came = [
        {"text": "Think", "thought": True, "thoughtSignature": "s0"},
        {"text": "Let "},
        {"text": "me "},
        {"text": "look.", "thoughtSignature": "s1"},
        function("c1", thoughtSignature="s2"),
        function("c2"),
        {"text": "", "thoughtSignature": "s3"},
        {"text": "Done."},
    ]
    for part in came:
        list(answer.add({"candidates": [{"content": {"parts": [part]}}]}))
    list(answer.add({"candidates": [{"finishReason": "STOP"}]}))
    list(answer.rest())
    got = answer.turn("o")
    assert got.text == "Let me look.Done."
    entry = turn(*(made(c.id or "", c.id) for c in got.calls), words=got.text, reasoning=got.reasoning)
    items: Any = got.reasoning["items"]  # type: ignore[index, call-overload]
    ids = {("r", 0, n): c.id or "" for n, c in enumerate(got.calls)}
    back = shape(_turn(entry, ids, items))
    assert back == [
        *(("Let me ", None), ("look.", "s1"), ("c1", "s2"), ("c2", None), ("", "s3"), ("Done.", None)),
    ]
    changed = turn(*entry.calls, words="Another.", reasoning=got.reasoning)
    assert shape(_turn(changed, ids, items)) == [("Another.", None), ("c1", None), ("c2", None)]
    fewer = turn(entry.calls[0], words=got.text, reasoning=got.reasoning)
    assert shape(_turn(fewer, ids, items)) == [("Let me look.Done.", None), ("c1", None)]


@pytest.mark.parametrize("stream", [True, False])
def test_the_server_knows_its_own_signatures_again(stream: bool) -> None:
    async def main() -> None:
        plays = [Play("Looking.", calls=[("c1", "look", '{"a": 1}'), ("c2", "look", "{}")], reasoning="Hm."),
                 Play("Yes, it is.", reasoning="So."), Play("fine")]  # fmt: skip
        async with serving(*plays, signs=True, stream=stream) as at:
            items: list[Any] = [said("Go")]
            first = await at.turn(request(*items))
            calls = [made(c.id or "", c.id, c.name, c.arguments or "") for c in first.calls]
            items.append(turn(*calls, words=first.text, reasoning=first.reasoning))
            items += [result(c.call_id, ToolResult.text("1"), index=n) for n, c in enumerate(calls)]
            second = await at.turn(request(*items))
            items += [turn(words=second.text, step=1, reasoning=second.reasoning), said("And?")]
            await at.turn(request(*items))
            assert [told.kind for told in at.told].count("opaque") == 2
            assert UNSIGNED not in str(at.last.body)

    asyncio.run(main())


def test_signatures_are_of_one_server_and_one_model() -> None:
    async def main() -> None:
        async with serving(Play("Yes.", reasoning="Hm.")) as first, serving(Play("fine")) as second:
            items = (said("Hello"), turn(words="Yes.", reasoning=(await first.turn()).reasoning))
            await second.turn(request(*items))
            assert "opaque" not in [told.kind for told in second.told]
            other = GoogleGemini("other", base_url=first.server.base_url, api_key=KEY)
            first.server.add(Play("fine"), Play("fine"))
            await At(first.server, other).turn(request(*items))
            assert "opaque" not in [told.kind for told in first.told]
            await first.turn(request(*items))
            assert "opaque" in [told.kind for told in first.told]
            await other.aclose()

    asyncio.run(main())


def test_a_model_that_insists_on_signatures_takes_the_turns_of_others() -> None:
    async def main() -> None:
        async with serving(Play("one"), Play("two"), signs=True) as at:
            items = (said("Go"), turn(made("c1", "c1"), made("c2", "c2")),
                     result("c1", ToolResult.text("1")), result("c2", ToolResult.text("2"), index=1))  # fmt: skip
            for text in ("one", "two"):
                assert [event async for event in at.model.respond(request(*items))][-1].text == text
                assert shape(at.last.body["contents"][1]["parts"]) == [("c1", UNSIGNED), ("c2", None)]
            assert [asked.fault is None for asked in at.server.asked] == [False, True, True]

    asyncio.run(main())


@pytest.mark.parametrize("again", [Play("fine"), Refusal(400, "Thought signature is not valid.")])
def test_signatures_that_the_server_cannot_verify_any_more_are_left_out_and_asked_once_more(again: Any) -> None:
    async def main() -> None:
        stale = Refusal(400, "Thought signature is not valid.")
        async with serving(Play(calls=[("c1", "look", "{}")], reasoning="Hm."), stale, again) as at:
            got = await at.turn()
            asked = request(
                said("Hello"), turn(made("c1", "c1"), reasoning=got.reasoning), result("c1", ToolResult.text("1"))
            )
            if isinstance(again, Play):
                assert (await at.turn(asked)).text == "fine"
            else:
                assert not (await at.refused(asked)).retryable
            assert len(at.server.asked) == 3
            assert shape(at.last.body["contents"][1]["parts"]) == [("c1", UNSIGNED)]

    asyncio.run(main())


def test_an_answer_without_signatures_keeps_nothing_opaque() -> None:
    assert answered(Play("fine"))[-1].reasoning is None
    assert answered(Play("fine", reasoning="Hm."))[-1].reasoning["wire"] == "google"


# ---------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("stream", [True, False])
def test_streamed_or_whole_it_is_the_same_turn(stream: bool) -> None:
    play = Play("Looking.", calls=[("c1", "look", '{"a": 1}')], reasoning="Hm.", usage=Usage(7, 5, 3, 0.0, 2))
    *deltas, last = answered(play, stream=stream)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Looking."
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "Hm."
    assert last == ModelTurn(
        "Looking.", (ModelCall("c1", "look", '{"a":1}'),), "calls", Usage(7, 5, 3, 0.0, 2), "fake-1", last.reasoning
    )


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        *(("STOP", "end"), ("MAX_TOKENS", "length"), ("OTHER", "other"), ("NEW", "other")),
        *((name, "refusal") for name in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")),
    ],
)
def test_the_reason_for_the_end_is_told(finish: str, stop: str) -> None:
    assert answered(pieces({"text": "x"}, finish=finish), stream=False)[-1].stop == stop


def test_a_prompt_that_is_blocked_is_a_refusal() -> None:
    body = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}
    for got in (answered(Whole(body), stream=False)[-1], answered(Chunks([body]))[-1]):
        assert (got.stop, got.text, got.calls, got.usage) == ("refusal", "", (), Usage(4))


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("Malformed function call: print(default_api.look(a=", "look"),
        ("Malformed function call: print(default_api.function(a=", ""),
        (None, ""),
    ],
)
def test_a_call_that_cannot_be_read_is_a_call_whose_arguments_are_no_json(message: str | None, name: str) -> None:
    whole = pieces(finish="MALFORMED_FUNCTION_CALL", **({"finishMessage": message} if message else {}))
    *deltas, last = answered(whole, stream=False)
    raw = message or "MALFORMED_FUNCTION_CALL"
    assert (last.stop, last.calls) == ("calls", (ModelCall(None, name, raw),))
    assert deltas == [CallDelta(0, name or None, raw)]


def test_a_run_goes_on_after_a_call_that_cannot_be_read() -> None:
    def double(n: int) -> int:
        """Double a number."""
        return 2 * n

    async def main() -> None:
        message = "Malformed function call: print(default_api.double(n="
        broken = pieces(finish="MALFORMED_FUNCTION_CALL", finishMessage=message)
        async with serving(broken, Play("Sorry."), stream=False) as at:
            run = await Agent("desk", at.model, tools=[double]).run("Double 2")
            assert (run.status, run.answer, at.server.faults) == ("completed", "Sorry.", [])
            assert [part.failed for part in run.results] == [True]

    asyncio.run(main())


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(Chunks([]), id="nothing"),
        pytest.param(Chunks([{"candidates": []}]), id="no candidates"),
        pytest.param(Chunks([{"candidates": [{"content": {"parts": [{"text": "x"}]}}]}]), id="no end"),
        pytest.param(Chunks(["{broken"]), id="no JSON"),
        pytest.param(Chunks([{"candidates": [7]}]), id="no candidate"),
        pytest.param(Chunks([{"error": {"code": 503, "message": "overloaded"}}]), id="an error amid the answer"),
    ],
)
def test_an_answer_without_an_end_is_a_failure_that_may_pass(script: Chunks) -> None:
    assert refused(script).retryable
    assert refused(Whole({"candidates": []}), stream=False).retryable


def test_an_error_amid_the_stream_says_why() -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3s"}
    error = refused(Chunks([{"error": {"code": 429, "message": f"slow down {KEY}", "details": [detail]}}]))
    assert (error.retryable, error.retry_after) == (True, 3.0)
    assert "slow down [key]" in str(error)
    assert not refused(Chunks([{"error": {"code": 400, "message": "bad"}}])).retryable


def test_pieces_that_nobody_knows_are_passed_over() -> None:
    parts: list[dict[str, Any]] = [{"executableCode": {"code": "1"}}, {"text": "Yes."}, {"new": 1}]
    assert answered(pieces(*parts, groundingMetadata={}), stream=False)[-1] == ModelTurn("Yes.", model="fake")


# --------------------------------------------------------------------------------------------- failures


def failed(*details: dict[str, Any]) -> ModelError:
    from google.genai.errors import ClientError

    from counterfoil.adapters.models.google.failures import failure_of

    client = genai.Client(api_key=KEY, vertexai=False)
    error = ClientError(429, [{"error": {"code": 429, "message": "quota", "details": list(details)}}])
    out = failure_of(error, client)
    client.close()
    asyncio.run(client.aio.aclose())
    return out


def test_how_long_to_wait_is_in_the_error_itself() -> None:
    kind = "type.googleapis.com/google.rpc."
    wait = {"@type": f"{kind}RetryInfo", "retryDelay": "34.07s"}
    minute = {"@type": f"{kind}QuotaFailure", "violations": [{"quotaId": "RequestsPerMinute"}]}
    day = {"@type": f"{kind}QuotaFailure", "violations": [{"quotaId": "GenerateRequestsPerDayPerProject"}]}
    assert (failed(minute, wait).retryable, failed(minute, wait).retry_after) == (True, 34.07)
    assert failed().retry_after is None
    assert failed({"@type": f"{kind}RetryInfo", "retryDelay": "soon"}).retry_after is None
    assert not failed(day, wait).retryable


def test_a_key_in_an_address_is_in_no_error() -> None:
    error = refused(Refusal(500, "no such page /v1/models?key=another-secret&alt=sse"))
    assert "another-secret" not in str(error)
    assert "?key=[key]&alt=sse" in str(error)


# --------------------------------------------------------------------------------------------- registry


def test_the_registry_opens_it_by_its_name() -> None:
    model = resolve("model", "google")("google:gemini-x", base_url="http://127.0.0.1:1")
    assert isinstance(model, GoogleGemini)
    assert open_model("gemini-x").model == "gemini-x"
    with pytest.raises(DefinitionError, match="name"):
        open_model("google:")
    with pytest.raises(DefinitionError, match="base_uri"):
        open_model("google:x", base_uri="http://127.0.0.1")


def test_without_a_key_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    async def main() -> None:
        with pytest.raises(ModelError, match="GEMINI_API_KEY"):
            [event async for event in GoogleGemini("m").respond(request())]

    asyncio.run(main())


def test_the_key_of_the_environment_is_sent_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")

    async def main() -> None:
        async with FakeGoogle([Play("fine")]) as server:
            model = GoogleGemini("m", base_url=server.base_url)
            assert [event async for event in model.respond(request())][-1].text == "fine"
            assert server.asked[-1].headers["x-goog-api-key"] == "no-key"
            await model.aclose()

    asyncio.run(main())


def test_a_given_client_stays_open_and_is_one_of_the_gemini_api() -> None:
    class Other:
        vertexai = True

    with pytest.raises(DefinitionError, match="Gemini API"):
        GoogleGemini("m", client=Other())

    async def main() -> None:
        async with FakeGoogle([Play("one"), Play("two")]) as server:
            client = genai.Client(api_key=KEY, vertexai=False, http_options={"base_url": server.base_url})
            model = GoogleGemini("m", client=client)
            for text in ("one", "two"):
                assert [event async for event in model.respond(request())][-1].text == text
                await model.aclose()
            await client.aio.aclose()
            client.close()

    asyncio.run(main())
