"""Recorded conversations of real models: each is whole on record, means the same in every form, goes to every wire."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from counterfoil import Runtime
from counterfoil.core.words import no_result
from counterfoil.model import ModelRequest
from counterfoil.testing.fake_server import Play
from counterfoil.testing.model_bench import KEY
from counterfoil.transcripts import (
    FORMATS,
    Reply,
    Said,
    body_of,
    export_messages,
    import_messages,
    read_messages,
    repair,
    transcript_of,
)
from tests.helpers import go
from tests.marks import case, law
from tests.promises import shared
from tests.transcripts import OWN, TELLS_FAILURES, meaning, recorded_meaning
from tests.wires import WIRES, Wire

FILES = ("agentdojo-204", "tau-airline-100", "bfcl-multi-turn-200")


def answer(text: str, call_id: str | None = None, error: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id, "tool_name": "look", "error": error}


def asks(*ids: str | None, text: str | None = None) -> dict[str, Any]:
    calls = [{"id": i, "name": "look", "arguments": {"n": n}} for n, i in enumerate(ids)]
    return {"role": "assistant", "content": text, "tool_calls": calls}


SMALL = [
    {"id": "parallel", "messages": [*OWN[:5]]},
    {"id": "ids-repeat", "messages": [OWN[1], asks("x"), answer("1", "x"), OWN[1], asks("x"), answer("2", "x")]},
    {"id": "ends-with-a-call", "messages": [OWN[1], asks("a", None, text="Well.")]},
    {"id": "two-turns-in-a-row", "messages": [OWN[1], OWN[6], asks(None, None), answer(""), answer("", None, "no")]},
    {"id": "an-empty-turn", "messages": [OWN[1], {"role": "assistant", "content": ""}]},
]
"""What the recordings hold that is not plain, in our own words, for where they are not."""


@pytest.fixture(scope="module", params=["small", *FILES])
def conversations(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    if request.param == "small":
        return SMALL
    folder = shared()
    if folder is None:
        pytest.skip("the recorded runs are not here: set COUNTERFOIL_SHARED")
    path = folder / "data" / "trajectories" / f"{request.param}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def expected(messages: list[dict[str, Any]]) -> list[Any]:
    """What a recording means, once what it lacks is said."""
    said = [item for item in recorded_meaning(messages) if item[0] != "model" or item[1] or item[2]]
    for item in said:
        for call in item[2] if item[0] == "model" else ():
            if len(call) == 2:
                call += [no_result(call[0]), True]
    return said


@law("2.1")
@case("R011")
def test_each_is_whole_on_record_and_means_the_same_in_every_form(conversations: list[dict[str, Any]]) -> None:
    async def main() -> None:
        kinds: Counter[str] = Counter()
        async with Runtime("memory://") as runtime:
            for row in conversations:
                run = await import_messages(runtime, row)
                assert run.imported is not None
                assert run.imported["source"] == row["id"]
                kinds.update(one["kind"] for one in run.imported["repairs"])
                read = transcript_of(run)
                want = expected(row["messages"])
                assert meaning(read) == want, row["id"]
                for form in FORMATS:
                    file = json.loads(json.dumps(body_of(read, export_messages(run, form), form)))
                    again = read_messages(file, form)
                    assert again.repairs == ()
                    told = form in TELLS_FAILURES
                    assert meaning(again, failures=told) == meaning(read, failures=told), (row["id"], form)
            verified = await runtime.verify()
            assert verified.ok
            assert (verified.runs, verified.calls) == (len(conversations), verified.results)
        assert set(kinds) <= {"unanswered", "empty"}
        assert sum(kinds.values()) <= 3

    go(main())


@case("R011", "R022")
def test_each_goes_to_every_wire_without_a_refusal(conversations: list[dict[str, Any]]) -> None:
    calls = sum(len(m.get("tool_calls") or ()) for row in conversations for m in row["messages"])

    async def ask(requests: list[ModelRequest], wire: Wire) -> None:
        async with wire.fake([Play("fine") for _ in requests], key=KEY) as server:
            model = wire.model(server.base_url, KEY)
            for request in requests:
                assert [event async for event in model.respond(request)][-1].text == "fine"
            await model.aclose()
            assert server.faults == []
            told = [one for asked in server.asked for one in server.told(asked.body)]
            assert sum(one.kind == "call" for one in told) == sum(one.kind == "result" for one in told) == calls

    async def main() -> None:
        requests = []
        async with Runtime("memory://") as runtime:
            for row in conversations:
                run = await import_messages(runtime, row)
                items = run._fold.record.items
                requests.append(ModelRequest(run.imported["instructions"], items, len(items), ()))
        for name in ("openai", "openai-chat", "anthropic", "google"):
            await ask(requests, WIRES[name])

    go(main())


@pytest.mark.parametrize(
    ("form", "wire", "more"),
    [
        ("openai", "openai-chat", {}),
        ("openai-responses", "openai", {"store": False}),
        ("anthropic", "anthropic", {"max_tokens": 100}),
    ],
)
def test_each_export_is_what_its_provider_takes(
    conversations: list[dict[str, Any]], form: str, wire: str, more: dict[str, Any]
) -> None:
    fake = WIRES[wire].fake()
    for row in conversations:
        read = repair(read_messages(row))
        if isinstance(read.items[-1], Reply):
            read = replace(read, items=(*read.items, Said("Go on.")))  # not every model goes on with its own words
        file = body_of(read, export_messages(read, form), form)
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in sorted(called(row))]
        body = {"model": "x", "stream": True, **more, **(file if isinstance(file, dict) else {"messages": file})}
        assert fake.fault_of({**body, "tools": tools} if form == "anthropic" else body) is None, row["id"]


def called(row: dict[str, Any]) -> set[str]:
    return {call["name"] for message in row["messages"] for call in message.get("tool_calls") or ()}
