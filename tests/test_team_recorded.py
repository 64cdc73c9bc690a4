"""A team on recorded conversations of real models: a manager, three managed agents, a person asked in the middle."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from counterfoil import Agent, Caller, Tool, ToolContext, ToolError
from counterfoil.core.turn import author
from counterfoil.testing import RecordedModel, ScriptedModel, call, say
from tests.helpers import Place, content, go, requests
from tests.marks import case, law
from tests.promises import shared
from tests.served import served
from tests.test_http_keys import keyed
from tests.test_threads import FIELDS

NAMES = ("first", "second", "third")
SMALL = [
    [
        {"role": "user", "content": f"Task {n}"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "name": "look", "arguments": {"n": n}}, {"id": "b", "name": "put", "arguments": {"n": n}},
        ]},
        {"role": "tool", "content": f"seen by {n} alone", "error": None},
        {"role": "tool", "content": "refused", "error": f"no place for {n}"},
        {"role": "assistant", "content": f"Report {n}."},
    ]
    for n in range(3)
]  # fmt: skip  # rows by what belongs together
"""Conversations in our own words, for where the recordings are not."""


@pytest.fixture(params=["small", "agentdojo-204", "bfcl-multi-turn-200", "tau-airline-100"])
def conversations(request: pytest.FixtureRequest) -> list[list[dict[str, Any]]]:
    """Three conversations, each of one agent; they end with an answer."""
    if request.param == "small":
        return SMALL
    folder = shared()
    if folder is None:
        pytest.skip("the recorded runs are not here: set COUNTERFOIL_SHARED")
    path = folder / "data" / "trajectories" / f"{request.param}.jsonl"
    rows = [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]
    # A managed agent works alone: what its model only said to a person is left out, and so are the person's answers.
    work = [[m for m in messages if m.get("tool_calls") or m["role"] == "tool"] for messages in rows]
    chosen = [messages for messages in work if sum(len(m.get("tool_calls") or ()) for m in messages) > 3][:3]
    return [[*messages, {"role": "assistant", "content": "That is all."}] for messages in chosen]


def steps(messages: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each turn of the model with the results of its calls."""
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            count = len(message.get("tool_calls") or ())
            yield message, messages[at + 1 : at + 1 + count]
            if not count:
                return  # the run ends here


def worker(name: str, messages: list[dict[str, Any]]) -> Agent:
    """An agent that says and does what was recorded."""
    gave = {(step, i): m for step, (_, results) in enumerate(steps(messages)) for i, m in enumerate(results)}

    async def body(ctx: ToolContext[Any], arguments: dict[str, Any]) -> str:
        del arguments
        step, index = map(int, ctx.idempotency_key.rsplit(":", 2)[1:])
        result = gave[step, index]
        if result["error"]:
            raise ToolError(result["error"])
        return str(result["content"])

    names = {one["name"] for turn, _ in steps(messages) for one in turn.get("tool_calls") or ()}
    tools = [Tool(tool, "As recorded.", {"type": "object"}, body) for tool in sorted(names)]
    return Agent(name, RecordedModel(messages), tools=tools, description=f"the {name} one")


def said(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What a thread holds of a recording: texts, calls and results."""
    found = []
    for turn, results in steps(messages):
        calls = turn.get("tool_calls") or ()
        found += [("Message", turn["content"])] if turn["content"] or not calls else []
        found += [("ToolCall", one["name"]) for one in calls]
        found += [("ToolResult", m["error"] or str(m["content"]) or "(no output)") for m in results]
    return found


Read = Callable[[Any], Awaitable[list[dict[str, Any]]]]
"""The items of a thread (None: the main one; ``...``: all of them) as a client gets them."""


@asynccontextmanager
async def in_process(place: Place, chief: Agent) -> AsyncIterator[tuple[str | None, Read]]:
    """The team at work to its end; ada answers what it asks her in the middle."""
    async with place.open(chief) as runtime:
        run = await (await runtime.start(chief, "Begin.", caller=Caller(user="ada"))).wait()
        (asked,) = await run.approvals()
        assert (run.status, asked.kind, asked.call_id) == ("paused", "question", "ask")
        await run.answer_question("ask", by="ada", text="Yes, go on.")
        await run.wait()
        assert run.status == "completed"
        yield run.answer, lambda thread: runtime.context(run.id, thread=thread)


@asynccontextmanager
async def over_http(place: Place, chief: Agent) -> AsyncIterator[tuple[str | None, Read]]:
    """As `in_process`, by a client of the service, which reads in small pages."""
    async with served(place.runtime(chief)) as http:
        run = (await http.start("chief", "Begin."))["runId"]
        assert (await http.rests(run))["status"] == "paused"
        (asked,) = (await http.client.get("/v1/approvals")).json()["items"]
        assert (asked["kind"], asked["runId"], asked["callId"]) == ("question", run, "ask")
        assert (await http.decide(run, "ask", decision="answer", text="Yes, go on.")).status_code == 200
        ended = await http.rests(run)
        assert ended["status"] == "completed"
        address = f"/v1/runs/{run}/context"

        async def read(thread: Any) -> list[dict[str, Any]]:
            items: list[dict[str, Any]] = []
            after: int | None = 0
            while after is not None:
                named = {} if thread is ... else {"thread": thread or "main"}
                page = (await http.client.get(address, params={"after": after, "limit": 20, **named})).json()
                items, after = [*items, *page["items"]], page["next"]
            return items

        async with keyed(http, scopes=["read"]) as (few, _):
            assert (await few.get(address, params={"limit": 500})).json()["items"] == await read(None)
            rows = (await http.client.get("/v1/runs", params={"limit": 500})).json()["items"]
            below = [row["runId"] for row in rows if row["runId"] != run]
            assert len(below) == 4
            assert {(await few.get(f"/v1/runs/{child}")).status_code for child in below} == {404}
        yield ended["answer"], read
        await content(http.runtime)


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("through", [in_process, over_http])
@law("9.threads", "9.dispatch", "9.ask", "9.sees", "1.4.every-field", "1.4.sequence")
@case("R193", "R194", "R197")
def test_each_thread_of_a_team_is_read_alone_and_whole(
    place: Place, conversations: list[list[dict[str, Any]]], through: Any
) -> None:
    workers = [worker(name, messages) for name, messages in zip(NAMES, conversations, strict=True)]
    model = ScriptedModel([
        [call("dispatch", agent=name, task=f"Do what {name} does.", id=name) for name in NAMES],
        call("ask", participant="ada", question="Shall we go on?", id="ask"),
        [call("ask", participant="first", question="What did you find?", id="again")],
        say("The team is done."),
    ])  # fmt: skip  # a turn a row
    chief = Agent("chief", model, manages=workers)

    async def main() -> None:
        async with through(place, chief) as (answer, read):
            assert answer == "The team is done."
            await look(read)

    async def look(read: Read) -> None:
        whole = await read(...)
        numbers = [i["sequence"] for i in whole]
        assert numbers == sorted(set(numbers))
        threads = list(dict.fromkeys(i["threadId"] for i in whole))
        kinds = sorted(str(t or "main").partition(":")[0] for t in threads)
        assert kinds == ["dispatch"] * 3 + ["main"] + ["private"] * 3 + ["question"] * 2
        alone = {t: await read(t) for t in threads}
        for thread, items in alone.items():
            assert items == [i for i in whole if i["threadId"] == thread]
        for item in whole:
            if item["kind"] == "ToolResult":
                assert set(item) == FIELDS
        asked = author("Human", "ada", "default").id
        (question,) = (alone[t] for t in threads if str(t).startswith(f"question:{asked}:"))
        assert [(i["author"]["name"], i["text"]) for i in question] == [
            ("chief", "Shall we go on?"), ("ada", "Yes, go on."),
        ]  # fmt: skip  # one row
        came_to = {i["toolCallId"]: i for i in alone[None] if i["kind"] == "ToolResult"}
        assert list(came_to) == [*NAMES, "ask", "again"]
        assert (came_to["ask"]["result"], came_to["ask"]["author"]["type"]) == ("Yes, go on.", "Human")
        for name, agent, messages in zip(NAMES, workers, conversations, strict=True):
            who = author("Agent", name, "default").id
            (task, *work) = next(alone[t] for t in threads if str(t).startswith(f"dispatch:{who}"))
            assert (task["author"]["name"], task["text"]) == ("chief", f"Do what {name} does.")
            told = [(i["kind"], i.get("text", i.get("result", i.get("toolName")))) for i in work]
            assert told == said(messages)
            assert {i["author"]["name"] for i in work} == {name}
            answer = told[-1][1]
            assert came_to[name]["result"] == (answer or "(no output)")
            private = [i["text"] for i in alone[f"private:{who}"]]
            assert private[:2] == [f"Do what {name} does.", answer]
            others = [m for n, m in zip(NAMES, conversations, strict=True) if n != name]
            read_by_it = str(requests(agent)[: len(list(steps(messages)))])
            mine = {text for kind, text in said(messages) if kind == "ToolResult"}
            for text in {t for m in others for kind, t in said(m) if kind == "ToolResult" and len(t) > 15} - mine:
                assert text not in read_by_it

    go(main())
