"""The client of the HTTP API: what it gives is what the Runtime gives, and nothing is lost or done twice on the way."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace

import pytest

from counterfoil import (
    AsyncClient,
    Client,
    DecisionConflict,
    InvalidInput,
    NotFound,
    NotPending,
    RunEnded,
    RunPaused,
    Runtime,
    ToolResult,
    TurnDelta,
    tool,
)
from counterfoil.client import calls, following, wire
from counterfoil.core.errors import Conflict, DefinitionError, NotAllowed, ServerError, UnknownAgent, UsageError
from counterfoil.doors.http import create_key
from counterfoil.doors.http.live import frame
from counterfoil.testing import call, say
from tests.helpers import Gate, Place, agent, arrives, broken, counted, fine, go
from tests.served import served
from tests.test_docs import ROOT, blocks

PAGE = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(wire, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr("counterfoil.doors.http.live.RETRY_MS", 0)
    for name in (wire.URL_VARIABLE, wire.KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def url_of(http) -> str:
    return str(http.client.base_url)


@asynccontextmanager
async def client_of(runtime, key=None, **options):
    """A server on the Runtime, and a client of it."""
    async with served(runtime, **options) as http, AsyncClient(url_of(http), key) as client:
        yield client, http


async def every(items):
    return [item async for item in items]


def asks(**settings):
    pay, seen = counted("pay", needs_approval=True, **settings)
    turns = [[say("Let me see."), call("fine", id="f"), call("broken", id="b")], [call("pay", id="a")], say("Done.")]
    return agent(turns, pay, fine, broken), seen


# ---------------------------------------------------------------------------------------- what it gives


def scenario(client: Client) -> dict:
    """A run from its start to its end, as a program without asyncio has it."""
    with client:
        begun = client.start("desk", "Pay it.")
        paused = client.wait(begun.id, timeout=20)
        (approval,) = client.approvals(begun.id)
        with pytest.raises(InvalidInput):
            client.approve(begun.id, "a", input={"n": "many"})
        client.approve(begun.id, "a", input={"n": 7}, digest=approval.digest)
        ended = client.wait(begun.id, timeout=20)
        with pytest.raises(DecisionConflict, match="the first decision stands"):
            client.reject(begun.id, "a")
        with pytest.raises(NotPending):
            client.reject(begun.id, "f")
        return {
            "runs": [begun, paused, ended],
            "approval": approval,
            "events": list(client.events(begun.id)),
            "timeline": client.timeline(begun.id),
            "context": list(client.context(begun.id)),
            "items": client.items(begun.id),
            "list": list(client.runs(status="completed")),
            "errors": list(client.errors(begun.id)),
            "groups": client.error_groups(tool="broken"),
            "trace": [client.trace(begun.id), client.trace(begun.id, all=True)],
            "sequence": (number := ended_sequence(client, begun.id)),
            "result": client.tool_result(begun.id, number, offset=4, limit=3),
            "agents": client.agents(),
            "tools": client.tools(),
        }


def ended_sequence(client, run_id):
    return next(row.sequence for row in client.timeline(run_id) if row.call_id == "a" and row.outcome)


def test_a_program_without_asyncio_gets_what_the_runtime_gives():
    desk, seen = asks()

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            got = await asyncio.to_thread(scenario, Client(url_of(http)))
            runtime = http.runtime
            run = await runtime.get(got["runs"][0].id)
            assert [r.status for r in got["runs"]] == ["running", "paused", "completed"]
            assert (got["runs"][2].answer, got["runs"][2].usage) == (run.answer, run.usage)
            assert got["approval"].effective_input == {"n": 0}
            assert got["events"] == await every(runtime.events(run.id))
            assert got["timeline"] == await runtime.timeline(run.id)
            assert got["context"] == await runtime.context(run.id)
            assert [item["kind"] for item in got["items"]] == [item.kind for item in run.items]
            assert [(r.id, r.ended_at) for r in got["list"]] == [(run.id, None)]
            assert [r.to_json() for r in got["errors"]] == [r.to_json() for r in await run.errors()]
            assert got["result"] == await runtime.tool_result(run.id, got["sequence"], offset=4, limit=3)
            assert got["groups"] == await runtime.error_groups(tool="broken")
            assert [[len(s["request"]["messages"]) for s in steps] for steps in got["trace"]] == [[1, 3, 2], [1, 4, 6]]
            assert [a.name for a in got["agents"]] == ["desk"]
            assert [(t.agent, t.name, t.needs_approval) for t in got["tools"]] == [
                ("desk", "broken", False), ("desk", "fine", False), ("desk", "pay", True),
            ]  # fmt: skip  # one row
            assert [one["n"] for one in seen] == [7]

    go(main())


def test_both_clients_have_the_same_methods():
    def methods(kind):
        found = {n: f for n, f in vars(kind).items() if callable(f) and not n.startswith("_")}
        return {name: list(inspect.signature(f).parameters.values())[1:] for name, f in found.items()}

    assert methods(Client) == methods(AsyncClient)
    assert inspect.signature(Client).parameters.keys() == inspect.signature(AsyncClient).parameters.keys()


def test_every_call_of_the_api_has_a_method(tmp_path):
    desk, _ = asks()
    given = {"sequence": 1, "path": tmp_path / "out", "result": ToolResult.text("it did")}

    async def main():
        asked = []

        async def note(request):
            asked.append((request.method.lower(), request.url.path))

        async with client_of(Runtime(agents=[desk])) as (client, http):
            client._wire.way.http.event_hooks = {"request": [note], "response": []}
            for name in vars(Client).keys() - {"base_url", "close"}:
                takes = {} if name.startswith("_") else inspect.signature(getattr(client, name)).parameters
                wanted = {n: given.get(n, "x") for n, p in takes.items() if p.default is p.empty or n == "result"}
                for also in ({}, *({n: "x"} for n in ("run_id", "interaction") if n in takes)) if takes else ():
                    done = getattr(client, name)(**wanted, **{n: v for n, v in also.items() if n not in wanted})
                    with suppress(NotFound, UnknownAgent):  # it was asked, which is all that is wanted
                        await (every(done) if inspect.isasyncgen(done) else done)
            for name in ("agents", "tools"):
                await getattr(client, name)()
            routes = http.app.openapi()["paths"]
            missing = {
                (method, path)
                for path, methods in routes.items()
                for method in methods
                if path.startswith("/v1/")
                and not any(m == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", path), p) for m, p in asked)
            }
            assert not missing

    go(main())


def test_pages_come_one_after_another(monkeypatch):
    monkeypatch.setattr(calls, "PAGE", 2)
    desk = agent([[call("fine", n=n) for n in range(4)], say("Done.")], fine)

    async def main():
        async with client_of(Runtime(agents=[desk])) as (client, http):
            begun = [(await client.start("desk", "go")).id for _ in range(5)]
            for run_id in begun:
                await client.wait(run_id)
            assert [run.id async for run in client.runs()] == begun[::-1]
            assert [run.id async for run in client.runs(limit=3, roots=True)] == begun[:1:-1]
            assert await every(client.context(begun[0])) == await http.runtime.context(begun[0])
            assert len(await every(client.context(begun[0], after=2, limit=3))) == 3

    go(main())


def test_a_start_goes_on_with_an_interaction_within_its_limits_and_a_key_starts_once():
    desk = agent([call("fine"), call("fine"), say("Done.")], fine)

    async def main():
        async with client_of(Runtime(agents=[desk])) as (client, _):
            within = {"steps": 1, "consecutive_failures": None}
            first = await client.start("desk", "go", limits=within, key="k")
            assert (await client.start("desk", "go", limits=within, key="k")).id == first.id
            assert (await client.wait(first.id)).status == "limited"
            again = await client.start("desk", "more", interaction=first.interaction_id)
            assert again.interaction_id == first.interaction_id
            with pytest.raises(Conflict):
                await client.start("desk", "other", key="k")
            with pytest.raises(NotFound):
                await client.start("desk", "more", interaction="nothing")

    go(main())


def test_a_team_is_read_as_the_runtime_reads_it():
    pay, _ = counted("pay", needs_approval=True)
    miner = agent([call("pay", id="p"), say("Paid.")], pay, name="miner")
    chief = agent([call("dispatch", agent="miner", task="Pay.", id="d"), say("Done.")], name="chief", manages=[miner])

    async def main():
        async with client_of(Runtime(agents=[chief])) as (client, http):
            run = await arrives(await http.runtime.start("chief", "go"), "paused")
            info = await client.get(run.id)
            (wait,) = info.waits_for
            assert (info.waits_for, wait.agent, wait.call_id, info.waiting) == (run.waits_for, "miner", "p", 1)
            child = await client.get(wait.run_id)
            assert (child.parent_run_id, info.parent_run_id) == (run.id, None)
            assert [one.id async for one in client.runs()] == [child.id, run.id]
            assert [one.id async for one in client.runs(roots=True)] == [run.id]
            thread = child.data["threadId"]
            for every in (None, ...):
                told = await client.timeline(run.id, thread=every)
                assert told == await http.runtime.timeline(run.id, thread=...)
                assert child.id in {row.run_id for row in told}
            for name in ("main", thread):
                assert await client.timeline(run.id, thread=name) == await http.runtime.timeline(run.id, thread=name)
                assert {item["threadId"] for item in await client.items(run.id, thread=name)} == {
                    None if name == "main" else name
                }

    go(main())


def test_a_wait_after_a_decision_is_for_what_comes_of_it(tmp_path):
    desk, _ = asks()
    place = Place("sqlite", tmp_path)

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await run.wait()
        async with client_of(place.runtime()) as (client, _):  # nobody drives the run
            assert (await client.wait(run.id)).status == "paused"
            await client.approve(run.id, "a")
            with pytest.raises(TimeoutError, match="it goes on"):
                await client.wait(run.id, timeout=0.05)
            waiting = asyncio.create_task(client.wait(run.id))
            async with place.runtime(desk):
                assert (await waiting).answer == "Done."

    go(main())


def test_a_conversation_is_begun_before_its_first_run_read_and_listed():
    desk = agent([say("Done.")])

    async def main():
        async with client_of(Runtime(agents=[desk])) as (client, _):
            who = [("Human", "ada"), ("Human", "grace"), ("Agent", "desk")]
            begun = await client.create_interaction(who, key="k")
            assert [(one.type, one.name) for one in begun.participants] == who
            assert await client.create_interaction(who, key="k") == begun
            with pytest.raises(Conflict):
                await client.create_interaction([("Human", "eve")], key="k")
            run = await client.start("desk", "go", interaction=begun.interaction_id)
            await client.wait(run.id)
            other = await client.start("desk", "go")
            assert [one.interaction_id async for one in client.interactions()] == [
                other.interaction_id, begun.interaction_id,
            ]  # fmt: skip  # one row
            assert (await client.interaction(begun.interaction_id)).open_run_id is None
            assert [r.id async for r in client.runs(interaction=begun.interaction_id)] == [run.id]

    go(main())


def test_an_interrupted_call_is_settled_a_run_is_told_something_and_cancelled():
    gate = Gate()
    desk = agent([[call("work", at="hold", id="w")], say("Done.")], gate.tool())

    async def main():
        async with client_of(Runtime(agents=[desk])) as (client, _):
            run = await client.start("desk", "go")
            await gate.began("hold")
            with pytest.raises(TimeoutError):
                await client.wait(run.id, timeout=0)
            assert await client.send(run.id, "and hurry") is True
            await client.cancel(run.id, reason="enough")
            ended = await client.wait(run.id)
            assert (ended.status, ended.reason, ended.open) == ("cancelled", "enough", False)
            assert await client.send(run.id, "later") is False
            with pytest.raises(NotPending):
                await client.settle(run.id, "w", result=ToolResult.text("it did"))
            with pytest.raises(NotPending):
                await client.answer(run.id, "w", text="yes")
            with pytest.raises(UsageError):
                await client.settle(run.id, "w")

    go(main())


def test_a_result_of_any_size_goes_into_a_file_and_one_that_was_erased_says_when(tmp_path):
    @tool
    async def long() -> str:
        """A text that is kept apart."""
        return "é0123456789\n" * 20_000

    desk = agent([call("long", id="l"), say("Done.")], long)

    async def main():
        async with client_of(Runtime(agents=[desk])) as (client, http):
            run = await client.start("desk", "go")
            await client.wait(run.id)
            sequence = next(row.sequence for row in await client.timeline(run.id) if row.outcome)
            file = tmp_path / "out.txt"
            assert await client.save_result(run.id, sequence, file) == 260_000
            assert file.read_text(encoding="utf-8") == "é0123456789\n" * 20_000
            piece = await client.tool_result(run.id, sequence, offset=239_998)
            assert (piece.text, piece.total, piece.size) == ("9\n", 240_000, 260_000)
            await http.runtime.erase(run.id)
            gone = await client.tool_result(run.id, sequence)
            known = await http.runtime.tool_result(run.id, sequence)
            assert (gone.text, gone.size, gone.erased_at) == ("", 260_000, known.erased_at)
            with pytest.raises(NotFound, match="erased"):
                await client.save_result(run.id, sequence, file)
            with pytest.raises(NotFound):
                await client.tool_result(run.id, 99)
            assert [one.name for one in tmp_path.iterdir()] == ["out.txt"]

    go(main())


# ------------------------------------------------------------------------------------------------ events


def test_events_end_at_a_pause_or_go_over_it_to_the_end_and_deltas_pass_through():
    desk, _ = asks()

    async def main():
        async with client_of(Runtime(agents=[desk])) as (client, _):
            run = await client.start("desk", "go")
            to_pause = await every(client.events(run.id))
            assert isinstance(to_pause[-1], RunPaused)
            assert await every(client.events(run.id, after=to_pause[-1].entry)) == []
            seen = []
            async for event in client.events(run.id, to_end=True):
                seen.append(event)
                if isinstance(event, RunPaused):
                    await client.approve(run.id, "a")
            assert isinstance(seen[-1], RunEnded)
            assert any(isinstance(event, TurnDelta) for event in seen)
            stored = [event for event in seen if not isinstance(event, TurnDelta)]
            assert stored == await every(client.events(run.id))
            assert await every(client.events(run.id, after=seen[-1].entry, to_end=True)) == []

    go(main())


class Between:
    """Stands between a client and a server, and decides what becomes of each connection.

    Args:
        port: of the server.
        fates: for each connection in turn, how many bytes of the answer go through before it is cut; None: all;
            ``...``: none, and it stays open.
    """

    def __init__(self, port: int, fates) -> None:
        self.port, self.fates, self.asked = port, iter(fates), []

    async def __call__(self, reader, writer):
        left = next(self.fates, None)
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(next((r.split(b":")[1] for r in head.split(b"\r\n") if r.startswith(b"Content-Length")), 0))
            self.asked.append((head + await reader.readexactly(length)).decode())
            if left is ...:
                await reader.read()
                return
            back.write(re.sub(rb"(?i)connection: keep-alive", b"Connection: close", self.asked[-1].encode()))
            while piece := await there.read(65536):
                writer.write(piece[:left])
                await writer.drain()
                left = None if left is None else left - len(piece)
                if left is not None and left <= 0:
                    writer.transport.abort()
                    return
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            back.close()
            writer.close()


@asynccontextmanager
async def cut(http, fates, **settings):
    """A client whose connections meet these fates, and what stands between."""
    between = Between(http.client.base_url.port, fates)
    async with await asyncio.start_server(between, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with AsyncClient(url, **settings) as client:
            yield client, between


def test_a_wait_whose_time_ends_before_a_stream_opens_is_a_wait_that_took_too_long():
    gate = Gate()
    desk = agent([[call("work", at="hold", id="w")], say("Done.")], gate.tool())

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            run = await http.start()
            await gate.began("hold")
            async with cut(http, [None, *[...] * 9]) as (client, between):
                with pytest.raises(TimeoutError, match="it goes on"):
                    await client.wait(run["runId"], timeout=0.3)
                assert len(between.asked) > 1
            gate.open("hold")
            await http.rests(run["runId"])

    go(main())


def test_a_stream_that_is_cut_anywhere_goes_on_with_nothing_lost_and_nothing_twice():
    desk = agent([[call("fine", id="f")], say("É says: done.\u2028")], fine)

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            run = await http.start()
            await http.rests(run["runId"])
            whole = await every(http.runtime.events(run["runId"]))
            for size in range(1, sum(len(frame(event)) for event in whole), 97):
                async with cut(http, [size, size, None]) as (client, between):
                    assert await every(client.events(run["runId"], to_end=True)) == whole
                    assert len(between.asked) > 1

    go(main())


def test_a_proxy_that_cuts_each_answer_at_64_kib_lets_a_long_run_through_piece_by_piece():
    @tool
    async def talk() -> str:
        """Say much."""
        return "x" * 30_000

    desk = agent([[call("talk", id=f"t{n}") for n in range(12)], say("Done.")], talk)

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            run = await http.start()
            await http.rests(run["runId"])
            async with cut(http, [64 * 1024] * 100) as (client, between):
                found = await every(client.events(run["runId"], to_end=True))
            assert found == await every(http.runtime.events(run["runId"]))
            assert len(between.asked) > 5

    go(main())


def test_followers_go_on_at_the_server_that_comes_after_the_one_that_left(tmp_path):
    gate = Gate()
    desk = agent([[call("work", at="one")], [call("work", at="two")], say("Done.")], gate.tool(read_only=True))
    url = f"sqlite:///{tmp_path}/runs.db"

    async def main():
        ports = []
        async with served(Runtime(url, agents=[desk])) as first:
            ports.append(first.client.base_url.port)
            between = Between(ports[-1], [])
            async with await asyncio.start_server(between, "127.0.0.1", 0) as server:
                address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
                async with AsyncClient(address) as client:
                    run = await client.start("desk", "go")
                    events = client.events(run.id, to_end=True)
                    seen = [await anext(events)]
                    gate.open("one")
                    while type(seen[-1]).__name__ != "CallEnded":
                        seen.append(await anext(events))
                    rest = asyncio.create_task(every(events))
                    await gate.began("two")
                    first.app.state.leaving.set_result(None)
                    async with served(Runtime(url)) as second:
                        between.port = second.client.base_url.port
                        gate.open("two")
                        seen += await rest
                        stored = [event for event in seen if not isinstance(event, TurnDelta)]
                        assert stored == await every(client.events(run.id))
                        assert isinstance(seen[-1], RunEnded)

    go(main())


def test_one_client_follows_more_runs_than_a_pool_has_connections():
    gate = Gate()
    desk = agent([[call("work", at="hold")], say("Done.")], gate.tool())

    async def main():
        async with client_of(Runtime(agents=[desk])) as (client, _):
            run = await client.start("desk", "go")
            await gate.began("hold")
            streams = [client.events(run.id) for _ in range(101)]
            for stream in streams:
                await anext(stream)
            assert (await client.get(run.id)).status == "running"
            gate.open("hold")
            for stream in streams:
                assert isinstance((await every(stream))[-1], RunEnded)

    go(main())


def test_a_stream_that_never_comes_back_is_given_up_after_the_patience(monkeypatch):
    gate = Gate()
    desk = agent([[call("work", at="hold")], say("Done.")], gate.tool())
    monkeypatch.setattr(wire, "FIRST_PAUSE", 0.01)

    async def main():
        async with served(Runtime(agents=[desk])) as http, cut(http, [None], retries=0, patience=0.05) as (client, way):
            run = await http.start()
            events = client.events(run["runId"], to_end=True)
            await anext(events)
            way.port = 1  # nobody listens there
            http.app.state.leaving.set_result(None)
            with pytest.raises(ServerError, match="cannot be reached") as lost:
                await every(events)
            assert (lost.value.__cause__, lost.value.__suppress_context__) == (None, True), "one traceback, not a chain"

    go(main())


@asynccontextmanager
async def streams(pieces, **settings):
    """A client of a small server that answers each request for events with the next of these pieces, and ends it.

    Gives the client and the ``Last-Event-ID`` of each request.
    """
    seen, head = [], b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

    async def answer(reader, writer):
        asked = (await reader.readuntil(b"\r\n\r\n")).decode()
        seen.append(int(re.search("(?i)last-event-id: (.*)", asked)[1]))
        writer.write(head + pieces(len(seen) - 1))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with AsyncClient(url, **settings) as client:
            yield client, seen


async def frames():
    """Events of a whole run, and each of them on the wire."""
    run = await agent([[call("fine", id="f")], say("Done.")], fine).run("go")
    whole = await every(run.events())
    return whole, [frame(event) for event in whole]


def test_a_server_that_repeats_events_is_seen_to_say_each_once():
    async def main():
        whole, sent = await frames()
        # Each time from the first one, whatever was asked for, and one more than before.
        async with streams(lambda number: b"".join(sent[: number + 1] * 2)) as (client, seen):
            assert await every(client.events("r", to_end=True)) == whole
            assert seen == [0, *(event.entry for event in whole[:-1])]

    go(main())


@pytest.mark.parametrize("piece", [b"", b"retry: 0\n\n", b": alive\n\n"], ids=["nothing", "retry", "comment"])
def test_streams_that_end_at_once_are_asked_for_ever_more_seldom_and_then_given_up(monkeypatch, piece):
    monkeypatch.setattr(wire, "FIRST_PAUSE", 0.02)

    async def main():
        async with streams(lambda _: piece, patience=1) as (client, seen):
            with pytest.raises(ServerError, match="ends each stream of events before anything new comes"):
                await every(client.events("r", to_end=True))
            assert 1 < len(seen) < 10

    go(main())


def test_a_server_that_repeats_for_ever_is_given_up(monkeypatch):
    monkeypatch.setattr(wire, "FIRST_PAUSE", 0.02)

    async def main():
        whole, sent = await frames()
        async with streams(lambda _: b"".join(sent[:2]), patience=0.3) as (client, _):
            events = client.events("r", to_end=True)
            assert [await anext(events), await anext(events)] == whole[:2]
            with pytest.raises(ServerError, match="before anything new comes"):
                await anext(events)

    go(main())


def test_a_server_says_how_long_to_wait_before_the_next_connection():
    async def main():
        async with streams(lambda _: b"retry: 200\n\n", patience=0.3) as (client, seen):
            with pytest.raises(ServerError):
                await every(client.events("r", to_end=True))
            assert len(seen) <= 4

    go(main())


def test_something_new_makes_patience_and_pauses_begin_anew(monkeypatch):
    monkeypatch.setattr(wire, "FIRST_PAUSE", 0.01)

    async def main():
        whole, sent = await frames()
        now = 0.0
        monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: now))

        def piece(number):
            nonlocal now
            now += 1
            return b"" if number % 6 else sent[number // 6]

        # Each connection takes a second, and one in six brings an event: all of them take longer than the patience.
        async with streams(piece, patience=10) as (client, _):
            assert await every(client.events("r", to_end=True)) == whole
        assert now > 2 * 10

    go(main())


@pytest.mark.parametrize("data", ["no JSON", "{}", "[]", '{"type": "RunEnded", "entry": 1}'])
def test_an_event_that_is_none_is_said(monkeypatch, data):
    monkeypatch.setattr(wire, "FIRST_PAUSE", 0.01)

    async def main():
        async with streams(lambda _: f"id: 1\ndata: {data}\n\n".encode(), patience=0.05) as (client, _):
            with pytest.raises(ServerError, match="something else than an event of a run"):
                await every(client.events("r"))

    go(main())


# -------------------------------------------------------------------------------- lost, refused and wrong


def test_what_is_lost_is_asked_again_only_where_that_does_nothing_twice():
    desk, seen = asks()

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            async with cut(http, [1, 1, None]) as (client, between):  # the answer is lost, twice
                run = await client.start("desk", "go")
                assert len(between.asked) == 3
                keys = {re.search("(?i)idempotency-key: (.*)", asked)[1] for asked in between.asked}
                assert len(keys) == 1
            assert [r["runId"] for r in (await http.client.get("/v1/runs")).json()["items"]] == [run.id]
            await http.rests(run.id)
            async with cut(http, [1]) as (client, between):
                assert (await client.get(run.id)).status == "paused"
                (approval,) = await every(client.approvals())
            async with cut(http, [1]) as (client, between):
                assert await client.send(run.id, "hello")
                assert len(between.asked) > 1
            async with cut(http, [1]) as (client, between):
                await client.approve(run.id, "a", digest=approval.digest)
                assert len(between.asked) > 1
            assert (await http.rests(run.id))["answer"] == "Done."
            queued = [row.text for row in await http.runtime.timeline(run.id) if row.text == "hello"]
            assert (len(seen), len(queued)) == (1, 1)
            async with cut(http, []) as (client, between):
                for _ in range(3):
                    between.fates = iter([1])
                    with pytest.raises(ServerError):
                        await client.approve(run.id, "a")
            async with cut(http, [1] * 4) as (client, between):
                with pytest.raises(ServerError):
                    await client.get(run.id)
                assert len(between.asked) == 4

    go(main())


def test_the_keys_user_starts_and_decides_and_its_tenant_and_scopes_are_all_there_is():
    desk, _ = asks(approvers=["grace"])

    async def main():
        runtime = Runtime(agents=[desk])
        async with served(runtime, dev=None) as http:

            async def client(user, tenant="acme", **more):
                token, _ = await create_key(runtime, user, tenant=tenant, **more)
                return AsyncClient(url_of(http), token)

            ada, grace, eve = await client("ada"), await client("grace"), await client("eve", "other")
            run = await ada.start("desk", "go")
            assert (await ada.wait(run.id)).user == "ada"
            with pytest.raises(NotAllowed, match="grace"):
                await ada.approve(run.id, "a")
            assert (await grace.approve(run.id, "a")).call_id == "a"
            (decided,) = [row for row in await grace.timeline(run.id) if row.kind == "decision"]
            assert decided.author.name == "grace"
            with pytest.raises(NotFound):
                await eve.get(run.id)
            with pytest.raises(ServerError, match="scope admin") as refused:
                await every(ada.errors())
            assert (refused.value.status, refused.value.type) == (403, "forbidden")
            late = await client("ada", expires=timedelta())
            with pytest.raises(ServerError, match="this key has expired"):
                await late.get(run.id)
            for one in (ada, grace, eve, late):
                await one.close()

    go(main())


def test_a_key_is_in_no_error_and_in_no_repr():
    key = "cf_secret-of-mine"

    async def main():
        async with served(Runtime(), dev=None) as http:
            client = AsyncClient(url_of(http), key)
            told = [repr(client), repr(Client("http://a", key)), repr(vars(client)), repr(vars(client._wire))]
            with pytest.raises(ServerError) as refused:
                await client.get("x")
            told += [str(refused.value), repr(refused.value)]
            await client.close()
            for wrong in (f"{key}\nX: y", f"{key}é"):
                with pytest.raises(UsageError, match="no key has") as fault:
                    Client("http://a", wrong)
                told.append(str(fault.value))
            with pytest.raises(UsageError, match="by itself") as fault:
                Client(f"http://name:{key}@host")
            told.append(str(fault.value))
            assert [text for text in told if key in text] == []

    go(main())


def test_address_and_key_come_from_the_environment_unless_given(monkeypatch):
    with pytest.raises(UsageError, match="COUNTERFOIL_URL"):
        Client()
    monkeypatch.setenv("COUNTERFOIL_URL", "https://agents.example.com/base/")
    monkeypatch.setenv("COUNTERFOIL_KEY", "cf_there")
    with Client() as client, Client("http://here:1", "cf_here") as given:
        assert client.base_url == "https://agents.example.com/base"
        sent = [one._source._wire.way.http.build_request("GET", "/v1/runs") for one in (client, given)]
        assert [str(request.url) for request in sent] == [
            "https://agents.example.com/base/v1/runs", "http://here:1/v1/runs",
        ]  # fmt: skip  # one row
        assert [request.headers["authorization"] for request in sent] == ["Bearer cf_there", "Bearer cf_here"]
    for wrong in ("127.0.0.1:8000", "http://", "http://a?b=c"):
        with pytest.raises(UsageError, match="expected an address such as"):
            Client(wrong)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_without_the_extra_the_error_says_what_to_install(monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(DefinitionError, match=r"needs httpx2.*type: pip install 'counterfoil\[client\]'"):
        kind("http://127.0.0.1:8000")


def test_what_is_no_counterfoil_server_is_said():
    async def other(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()

    async def main():
        async with await asyncio.start_server(other, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with AsyncClient(url) as client:
                with pytest.raises(ServerError, match="is it a Counterfoil server"):
                    await client.get("x")
                with pytest.raises(ServerError, match="is it a Counterfoil server"):
                    await every(client.events("x"))
        async with served(Runtime()) as http, AsyncClient(f"{url_of(http)}/other") as client:
            with pytest.raises(ServerError, match="there is no route") as wrong:
                await client.get("x")
            assert wrong.value.status == 404

    go(main())


# -------------------------------------------------------------------------------------------------- docs


@pytest.mark.parametrize("program", blocks("python", PAGE), ids=lambda program: program.split()[1])
def test_each_program_of_the_page_prints_what_stands_beside_it(tmp_path, program):
    @tool(needs_approval=True)
    async def refund(order_id: str, cents: int) -> ToolResult:
        """Refund part of an order."""
        return ToolResult.text("It is refunded.").with_narration(f"Refunded {cents / 100:.2f} on {order_id}")

    turns = [[call("refund", order_id="W100", cents=4200, id="pay")], say("Refunded.")]
    agents = [agent(turns, refund, name="support"), agent([say("Good day.")], name="greeter")]
    (tmp_path / "program.py").write_text(program, encoding="utf-8")

    async def main():
        async with served(Runtime(agents=agents)) as http:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "COUNTERFOIL_URL": url_of(http)}
            done = await asyncio.create_subprocess_exec(
                sys.executable, "-W", "error", "program.py", cwd=tmp_path, env=environment, stdout=PIPE, stderr=PIPE
            )
            out, error = await done.communicate()
            assert (done.returncode, error.decode()) == (0, "")
            assert out.decode().splitlines() == re.findall(r"\S  # (.+)$", program, re.MULTILINE)

    go(main())
