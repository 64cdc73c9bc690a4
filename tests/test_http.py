"""The HTTP API: starting, reading, deciding and following runs (api.md, section 4)."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import get_args

import pytest

from counterfoil import Runtime
from counterfoil.core.states import STATUS_OF
from counterfoil.doors.http.shapes import RunSummary
from counterfoil.testing import call, say
from counterfoil.transcripts import import_messages
from tests.helpers import Gate, Place, agent, both, counted, fine, go
from tests.served import PROBLEM, follow, served
from tests.transcripts import ANTHROPIC

DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z")


def asks(**settings):
    pay, seen = counted("pay", needs_approval=True, **settings)
    return agent([[call("fine", id="f"), call("pay", id="a")], say("Done.")], pay, fine), seen


@both
def test_a_run_is_started_paused_decided_and_read(place):
    desk, seen = asks()

    async def main():
        async with served(place.runtime(desk)) as http:
            begun = await http.client.post("/v1/runs", json={"agent": "desk", "prompt": "Pay it."})
            run = begun.json()
            assert (begun.status_code, begun.headers["location"]) == (202, f"/v1/runs/{run['runId']}")
            assert (run["agent"], run["user"], run["endedAt"]) == ("desk", "ada", None)
            paused = await http.rests(run["runId"])
            assert (paused["status"], paused["waiting"], paused["answer"]) == ("paused", 1, None)
            inbox = (await http.client.get("/v1/approvals")).json()
            assert [(a["callId"], a["kind"], a["toolName"]) for a in inbox["items"]] == [("a", "approval", "pay")]
            assert DATE.fullmatch(inbox["items"][0]["requestedAt"])
            done = await http.decide(run["runId"], "a", decision="approve", digest=inbox["items"][0]["digest"])
            assert (done.status_code, done.json()["waiting"]) == (200, [])
            ended = await http.rests(run["runId"])
            assert (ended["status"], ended["endedBy"], ended["answer"]) == ("completed", "answer", "Done.")
            assert [i["kind"] for i in ended["context"]["items"]] == [
                "Message", "ToolCall", "ToolCall", "ToolResult", "ToolResult", "Message",
            ]  # fmt: skip  # one row
            assert len(seen) == 1
            listed = (await http.client.get("/v1/runs")).json()
            assert [r["runId"] for r in listed["items"]] == [run["runId"]]
            assert listed["next"] is None

    go(main())


def test_an_interaction_goes_on_with_one_run_at_a_time():
    desk, _ = asks()

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            first = await http.start()
            address = f"/v1/interactions/{first['interactionId']}/runs"
            body = {"agent": "desk", "prompt": "more"}
            await http.rests(first["runId"])
            busy = await http.client.post(address, json=body)
            assert (busy.status_code, busy.json()["type"]) == (409, "urn:counterfoil:problem:conflict")
            await http.decide(first["runId"], "a", decision="reject", reason="no")
            await http.rests(first["runId"])
            second = await http.client.post(address, json=body)
            assert second.status_code == 202
            assert second.json()["interactionId"] == first["interactionId"]
            gone = await http.client.post("/v1/interactions/nothing/runs", json=body)
            assert gone.status_code == 404

    go(main())


@both
def test_the_events_of_a_run_go_over_pauses_to_its_end_and_resume_after_any_of_them(place):
    desk, _ = asks()

    async def main():
        async with served(place.runtime(desk)) as http:
            run = await http.start()
            live = []
            async for event in follow(http.client, run["runId"]):
                live.append(event)
                if event["event"] == "RunPaused":
                    await http.decide(run["runId"], "a", decision="approve")
            stored = [e for e in live if e["id"] is not None]
            assert [e["event"] for e in stored][:1] == ["RunStarted"]
            assert [e["event"] for e in stored][-1:] == ["RunEnded"]
            assert {"Decided", "RunResumed", "CallEnded"} <= {e["event"] for e in stored}
            assert [e["id"] for e in stored] == sorted({e["id"] for e in stored})
            assert all(e["data"]["entry"] == e["id"] and e["data"]["type"] == e["event"] for e in stored)
            for place_, event in enumerate(stored[:-1]):
                assert await http.events(run["runId"], event["id"]) == stored[place_ + 1 :]
            last = {"Last-Event-ID": str(live[-1]["id"])}
            over = await http.client.get(f"/v1/runs/{run['runId']}/events", headers=last)
            assert over.status_code == 204

    go(main())


@both
def test_an_imported_run_is_read_as_any_other(place):
    async def main():
        runtime = place.runtime()
        async with served(runtime) as http:
            run = await import_messages(runtime, ANTHROPIC["messages"][:3])
            read = (await http.client.get(f"/v1/runs/{run.id}")).json()
            assert (read["status"], read["endedBy"], read["answer"]) == ("completed", "import", None)
            assert [i["isError"] for i in read["context"]["items"] if i["kind"] == "ToolResult"] == [False, True]
            listed = (await http.client.get("/v1/runs")).json()["items"]
            assert [r["endedBy"] for r in listed] == ["import"]
            for what in ("context", "timeline"):
                assert (await http.client.get(f"/v1/runs/{run.id}/{what}")).status_code == 200, what

    go(main())


def test_the_api_knows_each_way_in_which_a_run_ends():
    known, _ = get_args(RunSummary.model_fields["ended_by"].annotation)
    assert set(get_args(known)) == set(STATUS_OF)


def test_a_client_that_goes_away_leaves_the_run_going(tmp_path):
    gate = Gate()

    async def main():
        desk = agent([[call("work", at="hold", id="h")], say("Done.")], gate.tool())
        async with served(Place("sqlite", tmp_path).runtime(desk)) as http:
            run = await http.start()
            async with aclosing(follow(http.client, run["runId"])) as events:
                while (await anext(events))["event"] != "CallStarted":
                    pass
            gate.open("hold")
            assert (await http.rests(run["runId"]))["answer"] == "Done."

    go(main())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/v1/nothing", None, 404, "no-route"),
        ("GET", "/v1/runs/", None, 404, "no-route"),
        ("GET", "/v1/runs/0199aaaa", None, 404, "not-found"),
        ("GET", "/v1/runs/%00%ff", None, 404, "not-found"),
        ("DELETE", "/v1/runs", None, 405, "method-not-allowed"),
        ("GET", "/v1/runs?limit=0", None, 422, "invalid-request"),
        ("GET", "/v1/runs?cursor=%20", None, 422, "invalid-request"),
        ("POST", "/v1/runs", b"{", 422, "invalid-request"),
        ("POST", "/v1/runs", b"[]", 422, "invalid-request"),
        ("POST", "/v1/runs", b'{"agent": "desk", "prompt": "x", "user": "eve"}', 422, "invalid-request"),
        ("POST", "/v1/runs", b'{"agent": "desk", "prompt": "\\ud800"}', 422, "invalid-request"),
        ("POST", "/v1/runs", b'{"agent": "desk", "prompt": "x", "prompt": "y"}', 422, "invalid-request"),
        ("POST", "/v1/runs", b'{"agent":"desk","prompt":"x","limits":{"steps":1,"steps":9}}', 422, "invalid-request"),
        ("POST", "/v1/runs", b"x" * 2000, 413, "body-too-large"),
    ],
)  # fmt: skip  # a table
def test_every_error_is_a_problem_with_a_type_and_a_sentence(method, path, body, status, kind):
    desk, _ = asks()

    async def main():
        async with served(Runtime(agents=[desk]), max_body=1000) as http:
            headers = {} if body is None else {"Content-Type": "application/json"}
            answer = await http.client.request(method, path, content=body, headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
            told = answer.json()
            assert (told["type"], told["status"]) == (f"urn:counterfoil:problem:{kind}", status)
            assert told["detail"]
            assert told["requestId"] == answer.headers["x-request-id"]

    go(main())


def test_who_sends_far_too_much_reads_why_it_is_refused():
    async def main():
        async with served(Runtime(agents=[asks()[0]]), max_body=1000) as http:
            answer = await http.client.post("/v1/runs", json={"agent": "desk", "prompt": "x" * 8_000_000})
            assert (answer.status_code, answer.json()["detail"]) == (413, "a body has at most 1000 bytes; send less")
            host, port = http.client.base_url.host, http.client.base_url.port
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n")
            writer.write(b"Expect: 100-continue\r\n\r\n")
            assert b" 413 " in await reader.readline()  # who asks first sends nothing
            writer.close()

    go(main())


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("runs", '{"agent": "desk"', "body: it is not JSON at character 16: Expecting ',' delimiter"),
        ("runs", "[]", "body: Input should be an object"),
        ("runs", '{"x": {"\\u00e4": 1, "\\u00e4": 2}}', "the body has '\\xe4' twice in one object; send it once"),
        ("interactions", '{"participants": [["Human", "ada"]]}', "body.participants.0: Input should be an object"),
    ],
)  # fmt: skip  # a table
def test_a_body_that_is_not_as_expected_is_told_what_is_wrong_and_where(path, body, said):
    desk, _ = asks()

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            answer = await http.client.post(f"/v1/{path}", content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["detail"]) == (422, said)

    go(main())


@both
def test_an_interaction_is_begun_with_participants_once_for_a_key_and_goes_on_with_runs(place):
    desk, _ = asks()

    async def main():
        async with served(place.runtime(desk)) as http:
            who = [{"type": "Human", "name": "grace"}, {"type": "Agent", "name": "desk"}]
            key = {"Idempotency-Key": "talk-1"}
            begun = await http.client.post("/v1/interactions", json={"participants": who}, headers=key)
            talk = begun.json()
            assert (begun.status_code, begun.headers["location"]) == (201, f"/v1/interactions/{talk['interactionId']}")
            assert [(p["type"], p["name"]) for p in talk["participants"]] == [("Human", "grace"), ("Agent", "desk")]
            again = await http.client.post("/v1/interactions", json={"participants": who}, headers=key)
            assert (again.status_code, again.json()) == (201, talk)
            other = await http.client.post("/v1/interactions", json={"participants": who[1:]}, headers=key)
            assert other.status_code == 409
            run = await http.client.post(f"{begun.headers['location']}/runs", json={"agent": "desk", "prompt": "go"})
            assert run.json()["interactionId"] == talk["interactionId"]
            read = (await http.client.get(begun.headers["location"])).json()
            assert ([p["name"] for p in read["participants"]], read["openRunId"]) == (
                ["grace", "desk", "ada"],
                run.json()["runId"],
            )
            newest = (await http.client.post("/v1/interactions", json={})).json()["interactionId"]
            page = (await http.client.get("/v1/interactions", params={"limit": 1})).json()
            assert [t["interactionId"] for t in page["items"]] == [newest]
            rest = (await http.client.get("/v1/interactions", params={"cursor": page["next"]})).json()
            assert ([t["interactionId"] for t in rest["items"]], rest["next"]) == ([talk["interactionId"]], None)
            listed = (await http.client.get("/v1/runs", params={"interaction": newest})).json()
            assert listed["items"] == []
            await http.rests(run.json()["runId"])

    go(main())
