"""Live events over HTTP: from any server, over restarts, for slow readers and ones that go away."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta

from counterfoil import Runtime, tool
from counterfoil.core.errors import StoreError
from counterfoil.doors.http import create_key
from counterfoil.testing import FrozenEffects, call, say
from tests.helpers import Gate, Place, agent, both, counted, fine, go, shared, until
from tests.marks import case
from tests.served import PROBLEM, follow, served


def stored(events):
    """Those that are on record."""
    return [event for event in events if event["id"] is not None]


async def taken(events, kind):
    """Events up to the first of a kind."""
    found = []
    async for event in events:
        found.append(event)
        if event["event"] == kind:
            return found
    raise AssertionError(found)


@shared
def test_a_run_is_followed_live_from_a_server_that_does_not_drive_it(place):
    gate = Gate()
    desk = agent([[call("work", at="one")], [call("work", at="two")], say("Done.")], gate.tool())

    async def main():
        async with served(place.runtime(desk)) as here, served(place.runtime()) as there:
            run = await here.start()
            events = follow(there.client, run["runId"])
            seen = await taken(events, "CallStarted")
            gate.open("one")
            seen += await taken(events, "CallEnded")  # it comes while the run goes on elsewhere
            gate.open("two")
            seen += [event async for event in events]
            assert stored(seen) == seen == stored(await here.events(run["runId"]))

    go(main())


@shared
@case("R118")
def test_a_client_of_a_server_that_ends_goes_on_at_another_with_nothing_lost_and_nothing_twice(place):
    gate = Gate()
    desk = agent([[call("work", at="one")], [call("work", at="two")], say("Done.")], gate.tool())

    async def main():
        async with served(place.runtime(desk)) as first:
            run = await first.start()
            gate.open("one")
            events = follow(first.client, run["runId"])
            seen = await taken(events, "CallEnded")
            first.app.state.leaving.set_result(None)
            rest = [event async for event in events]  # the server ends the stream before the run has ended
            assert "RunEnded" not in {event["event"] for event in rest}
            await gate.began("two")
        async with served(place.runtime(desk)) as second:
            # Nobody can say what the body that was told to stop has done.
            approval = (await second.client.get("/v1/approvals")).json()["items"]
            while not approval:
                approval = (await second.client.get("/v1/approvals")).json()["items"]
            assert approval[0]["kind"] == "interrupted"
            gate.open("two")
            assert (await second.decide(run["runId"], approval[0]["callId"], decision="rerun")).status_code == 200
            seen = stored(seen + rest)
            seen += stored(await second.events(run["runId"], seen[-1]["id"]))
            assert seen == stored(await second.events(run["runId"]))
            assert seen[-1]["event"] == "RunEnded"

    go(main())


def test_a_run_that_was_started_so_is_cancelled_when_its_last_client_has_gone_for_the_grace_time():
    gate = Gate()
    desk = agent([[call("work", at="hold")], say("Done.")], gate.tool())

    async def main():
        async with served(Runtime(agents=[desk]), disconnect_grace=0.0) as http:
            run = await http.start(onDisconnect="cancel")
            kept = await http.start()
            for started in (kept, run):
                async with aclosing(follow(http.client, started["runId"])) as events:
                    await taken(events, "CallStarted")
            ended = await http.rests(run["runId"])
            assert (ended["status"], ended["reason"]) == ("cancelled", "the client that followed the run went away")
            gate.open("hold")
            assert (await http.rests(kept["runId"]))["status"] == "completed"

    go(main())


def test_a_client_that_comes_back_in_time_or_is_not_the_last_keeps_its_run():
    gate = Gate()
    desk = agent([[call("work", at="hold")], say("Done.")], gate.tool())

    async def main():
        async with served(Runtime(agents=[desk]), disconnect_grace=3600) as http:
            followers = http.app.state.followers
            run = await http.start(onDisconnect="cancel")
            first, second = (follow(http.client, run["runId"]) for _ in range(2))
            await taken(first, "CallStarted")
            await taken(second, "CallStarted")
            await first.aclose()
            await until(lambda: followers._here[run["runId"]] == 1)
            assert not followers._going
            await second.aclose()
            await until(lambda: followers._going)
            third = follow(http.client, run["runId"])
            await taken(third, "CallStarted")
            assert not followers._going
            gate.open("hold")
            assert [event async for event in third][-1]["event"] == "RunEnded"
            assert not followers._here
            assert not followers._going

    go(main())


@shared
def test_a_last_event_id_that_was_never_sent_is_refused_and_one_of_an_erased_run_goes_on(place):
    desk = agent([[call("fine", id="f")], say("Done.")], fine)

    async def main():
        async with served(place.runtime(desk)) as http:
            run = (await http.start())["runId"]
            await http.rests(run)
            whole = stored(await http.events(run))
            tip = whole[-1]["id"]
            for wrong in (str(tip + 1), str(2**53), "9" * 5000, "-1", "1e3", "abc", ""):
                answer = await http.client.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": wrong})
                assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM), wrong
                assert answer.json()["type"] == "urn:counterfoil:problem:invalid-request"
            wrong = await http.client.get(f"/v1/runs/{run}/events", params={"after": tip + 1})
            assert f"the newest entry has the number {tip}" in wrong.json()["detail"]
            await http.runtime.erase(run)
            rest = stored(await http.events(run, whole[1]["id"]))
            assert [(e["id"], e["event"]) for e in rest] == [(e["id"], e["event"]) for e in whole[2:]]
            seen = await http.client.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": str(tip)})
            assert seen.status_code == 204

    go(main())


@asynccontextmanager
async def idle_reader(http, path):
    """A client that asks for events and reads none of them."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    link.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(link, (http.client.base_url.host, http.client.base_url.port))
    await loop.sock_sendall(link, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    with link:
        yield link


async def rest_of(link):
    """Everything that comes on a connection until its end."""
    loop, found = asyncio.get_running_loop(), b""
    while data := await loop.sock_recv(link, 65536):
        found += data
    return found


def test_a_reader_that_reads_nothing_holds_no_run_up_and_misses_nothing_when_it_reads_on():
    size, calls = 30_000, 100

    @tool
    async def talk() -> str:
        """Say much."""
        return "x" * size

    desk = agent([[call("talk", id=f"t{number}") for number in range(calls)], say("Done.")], talk)

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            run = await http.start()
            async with idle_reader(http, f"/v1/runs/{run['runId']}/events") as link:
                assert (await http.rests(run["runId"]))["status"] == "completed"
                text = (await rest_of(link)).decode()
            assert len(text) > size * calls, "more than the buffers on the way hold"
            ids = [int(line[4:]) for line in text.splitlines() if line.startswith("id: ")]
            assert ids == [event.entry async for event in http.runtime.events(run["runId"])]

    go(main())


def test_a_quiet_stream_is_kept_alive_by_comments():
    gate = Gate()
    desk = agent([[call("work", at="hold")], say("Done.")], gate.tool())

    async def main():
        async with served(Runtime(agents=[desk]), heartbeat=0.01) as http:
            run = await http.start()
            async with http.client.stream("GET", f"/v1/runs/{run['runId']}/events") as answer:
                comments = 0
                async for line in answer.aiter_lines():
                    comments += line.startswith(":")
                    if comments == 3:
                        gate.open("hold")
            assert comments >= 3

    go(main())


def test_a_stream_whose_store_fails_is_cut_off_and_the_log_says_why_in_one_line(tmp_path, caplog):
    class Away:
        """A store whose record cannot be read for a while."""

        def __init__(self, store):
            self._store, self.away = store, False

        def __getattr__(self, name):
            return getattr(self._store, name)

        async def entries(self, *where):
            if self.away:
                raise StoreError("the server starts anew")
            return await self._store.entries(*where)

    gate = Gate()
    desk = agent([[call("work", at="one")], say("Done.")], gate.tool())

    async def main():
        store = Away(Place("sqlite", tmp_path).runtime().store)
        async with served(Runtime(agents=[desk], store=store)) as http:
            run = await http.start()
            events = follow(http.client, run["runId"])
            seen = await taken(events, "CallStarted")
            store.away = True
            gate.open("one")
            seen += [event async for event in events]
            store.away = False
            seen += await http.events(run["runId"], seen[-1]["id"])
            assert seen == stored(await http.events(run["runId"]))
        assert f"a stream of run {run['runId']} is cut off: the store failed" in caplog.text
        assert "already started" not in caplog.text

    go(main())


@both
def test_a_key_that_is_revoked_or_expires_follows_no_longer_than_to_the_next_heartbeat(place):
    desk = agent([[call("pay", id="p")], say("Done.")], counted("pay", needs_approval=True)[0])

    async def main():
        effects = FrozenEffects()
        async with served(place.runtime(desk, effects=effects), dev=None, heartbeat=0.02) as http:
            keys = [await create_key(http.runtime, "ada", expires=timedelta(hours=n)) for n in (1, 2, 3)]
            headers = [{"Authorization": f"Bearer {token}"} for token, _ in keys]
            answer = await http.client.post("/v1/runs", json={"agent": "desk", "prompt": "go"}, headers=headers[0])
            run = answer.json()["runId"]
            streams = [follow(http.client, run, **one) for one in headers]
            for events in streams:
                await taken(events, "RunPaused")
            await http.runtime.store.revoke_key("default", keys[1][1].id, effects.now())
            assert [event async for event in streams[1]] == []
            effects.advance(3600)
            assert [event async for event in streams[0]] == []
            answer = await http.client.get(f"/v1/runs/{run}/events", headers=headers[0])
            assert answer.status_code == 401
            await http.client.post(f"/v1/runs/{run}/calls/p/decision", json={"decision": "approve"}, headers=headers[2])
            assert [event["event"] for event in [e async for e in streams[2]]][-1] == "RunEnded"

    go(main())


@shared
def test_who_follows_a_run_over_a_pause_reads_on_after_it_from_another_server(place):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("fine", id="f"), call("pay", id="a")], say("Done.")], pay, fine)

    async def main():
        async with served(place.runtime(desk)) as here, served(place.runtime()) as there:
            run = await here.start()
            events = follow(there.client, run["runId"])
            seen = await taken(events, "RunPaused")
            await here.decide(run["runId"], "a", decision="approve")
            seen += [event async for event in events]
            assert seen == stored(await here.events(run["runId"]))

    go(main())
