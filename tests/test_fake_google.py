"""The fake Gemini server refuses what Google's refuses, and its own answers are those of the SDK."""

import asyncio
import base64
from typing import Any

import pytest
from google import genai
from google.genai.errors import ClientError
from google.genai.types import GenerateContentResponse

from counterfoil.core.turn import Usage
from counterfoil.testing.fake_google import FakeGoogle, Play
from counterfoil.testing.google_rules import fault_of

USER = {"role": "user", "parts": [{"text": "hello"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


def call(identity: str | None = "c1", name: str = "look", **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"name": name, "args": {}}
    return {"functionCall": given | ({"id": identity} if identity else {}), **more}


def answer(identity: str | None = "c1", name: str = "look", **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"name": name, "response": {"output": "fine"}, **more}
    return {"functionResponse": given | ({"id": identity} if identity else {})}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def body(*contents: Any, **more: Any) -> dict[str, Any]:
    return {"contents": list(contents), **more}


def tools(*names: str, schema: Any = SCHEMA) -> list[Any]:
    return [{"functionDeclarations": [{"name": name, "parametersJsonSchema": schema} for name in names]}]


def shown(kind: str, data: str = PNG) -> dict[str, Any]:
    return answer(parts=[{"inlineData": {"mimeType": kind, "data": data}}])


def test_a_request_that_keeps_the_rules_is_taken() -> None:
    good = body(
        USER,
        model({"text": "Looking."}, call("c1"), call(None), call(None)),
        user(answer(None), answer("c1"), answer(None), {"text": "and?"}),
        model(call("c1", thoughtSignature="skip_thought_signature_validator")),
        user(shown("image/png")),
        systemInstruction={"parts": [{"text": "Be brief."}]},
        tools=tools("look"),
        toolConfig={"functionCallingConfig": {"mode": "ANY"}},
        generationConfig={"responseMimeType": "application/json", "responseJsonSchema": {"type": "integer"}},
    )
    assert fault_of(good) is None
    assert fault_of(good, signs=True) is None, "the call without a signature is of an earlier turn"


@pytest.mark.parametrize(
    ("request_body", "words"),
    [
        (body(), "not specified"),
        (body(USER, stream=True), 'Unknown name "stream"'),
        (body({**USER, "name": "ada"}), "SDK"),
        (body(USER, generationConfig={"temperature": "hot"}), "SDK"),
        (body(USER, tools=[{"functions": []}]), "SDK"),
        (body(USER, USER), "alternate"),
        (body(model({"text": "hi"})), "alternate"),
        (body({"role": "system", "parts": [{"text": "x"}]}), "valid role"),
        (body(user()), "must not be empty"),
        (body(user({"text": " "})), "empty"),
        (body(user({})), "oneof"),
        (body(USER, model({"text": "a"} | call())), "oneof"),
        (body(USER, model({"text": "a", "thought": True})), "oneof"),
        (body(user({"text": "\ud800"})), "surrogate"),
        (body(USER, model(call())), "immediately after"),
        (body(USER, model(call()), USER), "immediately after"),
        (body(USER, model({"text": "a"}), user(answer())), "immediately after"),
        (body(USER, model(call("c1"), call("c2")), user(answer("c1"))), "number of function response parts"),
        (body(USER, model(call()), user(answer(), answer())), "number of function response parts"),
        (body(USER, model(call()), user(answer("c2"))), "no call of look has the id c2"),
        (body(USER, model(call()), user(answer(name="seek"))), "no call of seek"),
        (body(USER, model(call(None)), user(answer("c1"))), "no call of look"),
        (body(USER, model(call(), call()), user(answer(), answer())), "one id"),
        (body(user(call())), "role"),
        (body(USER, model(answer())), "role"),
        (body(USER, model(call(name="2nd")), user(answer(name="2nd"))), "illegal"),
        (body(USER, model(call()), user(answer(response={"text": "x"}))), "output or error"),
        (body(USER, model(call()), user(answer(response={"output": "x", "error": "y"}))), "output or error"),
        (body(USER, model(call()), user(shown("image/gif"))), "image"),
        (body(USER, model(call()), user(shown("image/jpeg"))), "image"),
        (body(USER, model(call(thoughtSignature="AAAA")), user(answer())), "signature is not valid"),
        (body(USER, model({"text": "a", "thoughtSignature": "skip_thought_signature_validator"})), "not valid"),
        (body(USER, systemInstruction={"parts": [{"text": " "}]}), "instruction"),
        (body(USER, tools=[]), "no function"),
        (body(USER, tools=tools("look", "look")), "Duplicate"),
        (body(USER, tools=tools("2nd")), "Invalid function name"),
        (body(USER, tools=tools("x" * 129)), "Invalid function name"),
        (body(USER, tools=tools("a", schema={"type": "string"})), "no object"),
        (body(USER, tools=tools("a", schema=SCHEMA | {"items": {"$ref": "#", "title": "x"}})), "reference"),
        (body(USER, toolConfig={"functionCallingConfig": {"mode": "ANY"}}), "without function_declarations"),
        (body(USER, generationConfig={"responseJsonSchema": {}}), "mime"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused(request_body: dict[str, Any], words: str) -> None:
    fault = fault_of(request_body)
    assert fault is not None
    assert words in f"{fault.message} {fault.param}"


def test_models_differ_in_signatures_and_in_forms_beside_tools() -> None:
    unsigned = body(USER, model(call(), call("c2")), user(answer(), answer("c2")))
    assert fault_of(unsigned) is None
    assert "missing a thought_signature" in str(fault_of(unsigned, signs=True))
    form = {"responseMimeType": "application/json", "responseJsonSchema": {}}
    both = body(USER, tools=tools("look"), generationConfig=form)
    assert fault_of(both) is None
    assert "unsupported" in str(fault_of(both, forms=False))


@pytest.mark.parametrize("change", [{"args": {"a": 2}}, {"name": "seek"}])
def test_a_signature_holds_for_its_part_alone(change: dict[str, Any]) -> None:
    server = FakeGoogle()
    play = Play(calls=[("c1", "look", '{"a": 1}')], reasoning="Hm.")
    signed = next(p for p in server.whole_of(play)["candidates"][0]["content"]["parts"] if "functionCall" in p)
    assert fault_of(body(USER, model(signed), user(answer()))) is None
    moved = signed | {"functionCall": signed["functionCall"] | change}
    name = moved["functionCall"]["name"]
    assert "not valid" in str(fault_of(body(USER, model(moved), user(answer(name=name)))))


@pytest.mark.parametrize("stop", ["", "length", "refusal"])
def test_its_answers_are_those_of_the_sdk(stop: str) -> None:
    play = Play("Hi.", calls=[("c1", "look", "{}")], reasoning="Hm.", stop=stop, usage=Usage(7, 5, 3, 0.0, 2))
    server = FakeGoogle()
    for piece in [*server.stream_of(play), server.whole_of(play)]:
        GenerateContentResponse.model_validate(piece)


def test_the_sdk_itself_can_ask_it() -> None:
    async def main() -> None:
        async with FakeGoogle([Play("Hello."), Play("Again.")], key="k") as server:
            client = genai.Client(api_key="k", vertexai=False, http_options={"base_url": server.base_url})
            whole = await client.aio.models.generate_content(model="m", contents="hello")
            assert whole.text == "Hello."
            stream = await client.aio.models.generate_content_stream(model="m", contents="hello")
            assert "".join([piece.text or "" async for piece in stream]) == "Again."
            with pytest.raises(ClientError, match="script") as caught:
                await client.aio.models.generate_content(model="m", contents="hello")
            assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
            await client.aio.aclose()
            client.close()

    asyncio.run(main())
