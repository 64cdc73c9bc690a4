"""What HTTP itself promises: HEAD, validators, idempotency keys, pages, and what clients may send amiss."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil import Caller, Runtime
from counterfoil.core.items import Message
from counterfoil.core.keys import SCOPES
from counterfoil.core.turn import author
from counterfoil.testing import call, say
from tests.helpers import agent, both, broken, counted, fine, go
from tests.served import Served, served
from tests.test_http_keys import keyed
from tests.test_http_reading import long_text
from tests.test_http_wire import child_on


def pays():
    pay, _ = counted("pay", needs_approval=True)
    return agent(
        [[call("fine", id="f"), call("long_text", id="l"), call("pay", id="a")], say("Done.")], pay, fine, long_text
    )


async def ids_of(http: Served) -> dict[str, Any]:
    """A run that is paused, and its result that is kept apart."""
    run = await http.rests((await http.start())["runId"])
    kept = next(i for i in run["context"]["items"] if i["kind"] == "ToolResult" and i["toolResultId"])
    return {
        "run_id": run["runId"], "interaction_id": run["interactionId"], "call_id": "a", "sequence": kept["sequence"],
    }  # fmt: skip  # one row


def test_head_gives_of_every_get_what_stands_above_its_body():
    async def main():
        async with served(Runtime(agents=[pays()])) as http:
            ids = await ids_of(http)
            paths = [path for path, of in http.app.openapi()["paths"].items() if "get" in of]
            assert len(paths) > 15
            for path in [*paths, "/openapi.json", "/v1/runs/{call_id}"]:
                address = path.format(**ids)
                told = await http.client.head(address)
                async with http.client.stream("GET", address) as answer:
                    assert (told.status_code, told.content) == (answer.status_code, b""), path
                    own = {"date", "x-request-id"} | ({"content-length"} if path == "/metrics" else set())
                    assert [{k: v for k, v in one.headers.items() if k not in own} for one in (told, answer)] == [
                        {k: v for k, v in answer.headers.items() if k not in own}
                    ] * 2, path
            wrong = await http.client.head("/v1/runs/x/cancel")
            assert (wrong.status_code, wrong.content, wrong.headers["allow"]) == (405, b"", "POST")
            both_ = await http.client.delete("/v1/runs")
            assert (both_.headers["allow"], "use GET, HEAD, POST" in both_.json()["detail"]) == (
                "GET, HEAD, POST",
                True,
            )
            counts = (await http.client.get("/metrics")).text
            assert 'counterfoil_http_requests_total{method="HEAD",route="/healthz",status="200"} 1.0' in counts

    go(main())


def test_a_head_of_events_ends_at_once_and_keeps_no_run_of_a_client_that_went():
    async def main():
        async with served(Runtime(agents=[pays()])) as http:
            ids = await ids_of(http)
            told = await http.client.head(f"/v1/runs/{ids['run_id']}/events")
            assert (told.status_code, told.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")

    go(main())


def test_a_part_of_a_result_is_given_while_the_result_is_the_one_that_the_client_knows():
    async def main():
        async with served(Runtime(agents=[pays()])) as http:
            ids = await ids_of(http)
            address = f"/v1/runs/{ids['run_id']}/tool-results/{ids['sequence']}"
            ask = {"Accept-Encoding": "identity"}
            whole = await http.client.get(address, headers=ask)
            tag = whole.headers["etag"]
            packed = await http.client.get(address, headers={"Accept-Encoding": "gzip"})
            assert packed.headers["content-encoding"] == "gzip"
            assert packed.headers["etag"] == f'{tag[:-1]}-gzip"'
            assert "accept-encoding" in packed.headers["vary"].lower()
            for condition, status in (
                (tag, 206), (packed.headers["etag"], 200), (f"W/{tag}", 200), ('"other"', 200),
                ("Wed, 21 Oct 2026 07:28:00 GMT", 200),
            ):  # fmt: skip  # a row for each kind
                asked = {**ask, "Range": "bytes=1-4", "If-Range": condition}
                part = await http.client.get(address, headers=asked)
                assert (part.status_code, part.content) == (
                    status,
                    whole.content[1:5] if status == 206 else whole.content,
                )
                assert part.headers["etag"] == tag
            for known in (tag, packed.headers["etag"], "*", f'"x", W/{tag}'):
                same = await http.client.get(address, headers={**ask, "If-None-Match": known, "Range": "bytes=0-1"})
                assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
                assert same.headers["vary"] == "Accept-Encoding"
            some = await http.client.get(address, params={"limit": 3}, headers={"If-None-Match": tag})
            assert (some.status_code, some.headers["etag"] == tag) == (200, False)

    go(main())


def test_the_etag_of_a_run_is_the_same_however_it_is_packed():
    async def main():
        async with served(Runtime(agents=[pays()])) as http:
            address = f"/v1/runs/{(await ids_of(http))['run_id']}"
            tags = set()
            for way in ("gzip", "identity"):
                answer = await http.client.get(address, headers={"Accept-Encoding": way})
                tags.add(answer.headers["etag"])
                assert (answer.headers.get("content-encoding") == "gzip") == (way == "gzip")
                assert answer.headers["vary"] == "Accept-Encoding"
                for other in ("gzip", "identity"):
                    known = {"Accept-Encoding": other, "If-None-Match": answer.headers["etag"]}
                    assert (await http.client.get(address, headers=known)).status_code == 304
            assert len(tags) == 1

    go(main())


CREATING: dict[str, list[dict[str, Any]]] = {
    "/v1/runs": [{"agent": "desk", "prompt": "go"}, {"agent": "desk", "prompt": "stop"}],
    "/v1/interactions": [
        {"participants": [{"type": "Human", "name": name} for name in names]}
        for names in (("grace", "bob"), ("grace",), (), ("bob", "grace"), ("grace", "bob", "ada"))
    ],
    "/v1/interactions/{interaction_id}/runs": [{"agent": "desk", "prompt": "go"}, {"agent": "desk", "prompt": "more"}],
    "/v1/runs/{run_id}/messages": [{"text": "hello"}, {"text": "bye"}],
}
"""Of each POST that takes a key a body, and others."""


@both
def test_a_key_is_for_one_request_of_one_user_on_every_post_that_creates(place):
    async def main():
        async with served(place.runtime(pays())) as http:
            ids = await ids_of(http)
            for path, of in http.app.openapi()["paths"].items():
                keyed_ = [p for p in of.get("post", {}).get("parameters", []) if p["name"] == "Idempotency-Key"]
                assert bool(keyed_) == (path in CREATING), path
            for path, (body, *others) in CREATING.items():
                talk = (await http.client.post("/v1/interactions", json={})).json()["interactionId"]
                address = path.format(**{**ids, "interaction_id": talk})
                key = {"Idempotency-Key": path}
                at_once = await asyncio.gather(*(http.client.post(address, json=body, headers=key) for _ in range(5)))
                assert {one.status_code for one in at_once} <= {201, 202}, (path, at_once[0].text)
                names = ("runId", "interactionId", "delivered")
                assert len({str([one.json().get(name) for name in names]) for one in at_once}) == 1
                for other in others:
                    answer = await http.client.post(address, json=other, headers=key)
                    told = answer.json()
                    assert (answer.status_code, told["type"]) == (409, "urn:counterfoil:problem:conflict"), (
                        path,
                        other,
                    )
                async with keyed(http, user="bob", scopes=SCOPES) as (bob, _):
                    assert (await bob.post(address, json=body, headers=key)).status_code == 409, path
            run = await http.runtime.get(ids["run_id"])
            await run.reject("a", by="ada")
            await run.wait()
            told = [i.text for i in run.items if isinstance(i, Message) and i.author.type == "Human"]
            assert told == ["go", "hello"]
            late = await http.client.post(f"/v1/runs/{ids['run_id']}/messages", json={"text": "hello"}, headers=key)
            assert late.json()["delivered"], "as the first one was answered"

    go(main())


@both
def test_of_different_requests_with_one_key_at_once_one_counts(place):
    async def main():
        async with served(place.runtime(pays())) as http:
            ids = await ids_of(http)
            for path, bodies in CREATING.items():
                talk = (await http.client.post("/v1/interactions", json={})).json()["interactionId"]
                address, key = path.format(**{**ids, "interaction_id": talk}), {"Idempotency-Key": path}
                answers = await asyncio.gather(*(http.client.post(address, json=b, headers=key) for b in bodies * 3))
                good = [b for b, one in zip(bodies * 3, answers, strict=True) if one.status_code < 300]
                assert (len(good), all(b == good[0] for b in good)) == (3, True), path
                assert {one.status_code for one in answers if one.status_code >= 300} == {409}

    go(main())


@both
def test_pages_of_runs_are_full_for_a_key_that_sees_no_child_runs(place):
    async def main():
        async with served(place.runtime(pays())) as http:
            roots = []
            for _ in range(3):
                run = await http.runtime.get((await ids_of(http))["run_id"])
                roots.append(run.id)
                for number in range(3):
                    await child_on(http.runtime, run, f"dispatch:{author('Agent', 'miner', 'default').id}:{number}")
            async with keyed(http, scopes=["read"]) as (client, _):
                seen, cursor = [], None
                for wanted in (2, 1):
                    page = (
                        await client.get("/v1/runs", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
                    ).json()
                    assert len(page["items"]) == wanted
                    seen += [one["runId"] for one in page["items"]]
                    cursor = page["next"]
                assert (seen, cursor) == (roots[::-1], None)

    go(main())


@both
def test_error_reports_are_read_within_a_time_from_both_ends(place):
    desk = agent([[call("broken", n=n, id=f"b{n}") for n in range(4)], say("Done.")], broken)

    async def main():
        async with served(place.runtime(desk)) as http:
            await http.rests((await http.start())["runId"])
            every = (await http.client.get("/v1/errors")).json()["items"]
            times = sorted({one["at"] for one in every})
            for path in ("/v1/errors", f"/v1/runs/{every[0]['runId']}/errors"):
                for at in times:
                    within = {"until": at, "limit": 1}
                    seen, cursor = [], None
                    while cursor is not None or not seen:
                        page = (
                            await http.client.get(path, params=within | ({"cursor": cursor} if cursor else {}))
                        ).json()
                        seen += page["items"]
                        cursor = page["next"]
                    assert seen == [one for one in every if one["at"] <= at]
            groups = (await http.client.get("/v1/errors/groups", params={"until": times[0]})).json()["items"]
            assert sum(group["count"] for group in groups) == sum(one["at"] == times[0] for one in every)
            assert (await http.client.get("/v1/errors", params={"until": "2000-01-01T00:00:00Z"})).json()["items"] == []

    go(main())


@both
def test_another_tenants_admin_is_told_of_its_own_runs_alone(place):
    async def main():
        async with served(place.runtime(pays())) as http:
            for tenant in ("default", "acme", "acme"):
                await (await http.runtime.start("desk", "go", caller=Caller(tenant))).wait()
            paused = 'counterfoil_runs_unfinished{state="paused"}'
            for tenant, told, whole in (("default", "3.0", True), ("acme", "2.0", False), ("globex", "0.0", False)):
                async with keyed(http, tenant=tenant, scopes=["admin"]) as (client, _):
                    lines = (await client.get("/metrics")).text.splitlines()
                    assert f"{paused} {told}" in lines
                    assert f"counterfoil_approvals_waiting {told}" in lines
                    assert any("runs_started" in line for line in lines) == whole

    go(main())


async def said(http: Served, sent: bytes) -> bytes:
    """What the server answers to these bytes, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", http.client.base_url.port)
    writer.write(sent)
    told = await reader.read()
    writer.close()
    return told


def test_a_body_that_does_not_come_is_waited_for_no_longer_than_it_may_take():
    async def main():
        async with served(Runtime(agents=[pays()]), patience=0.05) as http:
            for length in (b"Content-Length: 100", b"Transfer-Encoding: chunked"):
                head = b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                told = await said(http, head + length + b"\r\n\r\n1\r\n{")
                assert told.startswith(b"HTTP/1.1 408 ")
                assert b"urn:counterfoil:problem:too-slow" in told
            assert (await http.client.get("/v1/runs")).json()["items"] == []

    go(main())


@pytest.mark.parametrize(
    "line",
    [
        b"Origin: http://[", b"Origin: \xff", b"Authorization: Bearer \xff", b"Authorization: Bearer",
        b"Range: bytes=\xff", b"If-None-Match: \xff", b"If-Range: \xff", b"Accept-Encoding: \xff",
        b"X-Request-Id: a\tb", b"X-Request-Id: \xff",
    ],
)  # fmt: skip  # rows
def test_no_header_makes_the_server_fail(line):
    async def main():
        async with served(Runtime(agents=[pays()])) as http:
            ids = await ids_of(http)
            for path in (f"/v1/runs/{ids['run_id']}", f"/v1/runs/{ids['run_id']}/tool-results/{ids['sequence']}"):
                head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
                told = (await said(http, head + line + b"\r\n\r\n")).partition(b"\r\n\r\n")[0]
                assert int(told.split()[1]) in (200, 206, 401), told
                assert told.lower().count(b"x-request-id:") == 1

    go(main())


STRANGE = [
    "x",
    "%00",
    "%ff",
    "%ed%a0%80",
    "..%2f..",
    "%2e%2e",
    "%0d%0aX-A:1",
    "' OR 1=1 --",
    "a" * 5000,
    "9" * 400,
    "%25",
]
QUERIES = [
    ("limit", "9" * 5000), ("limit", "-1"), ("cursor", "%00"), ("cursor", "////"), ("cursor", "LTEgMQ"),
    ("cursor", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5IDE"), ("after", "9" * 30), ("since", "0001-01-01T00:00:00+14:00"),
    ("until", "9999-12-31T23:59:59-14:00"), ("code", "9" * 30), ("tool", "\x00"), ("agent", "\x00"), ("thread", "\x00"),
    ("before", "\x00"), ("interaction", "\x00"), ("run", "\x00"), ("offset", "9007199254740992"), ("unknown", "1"),
]  # fmt: skip  # rows
BODIES = [
    b"", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"prompt":' * 20_000, b'{"agent":"\\ud800","prompt":"x"}',
    b'{"agent":"desk","prompt":"\\ud800\\u0000"}', b'{"agent":"desk","agent":"x","prompt":"a"}', b'{"text":"\\ud800"}',
    b'{"agent":"desk","prompt":"x","priority":1e400}', b'{"agent":"desk","prompt":"x","limits":{"cost":Infinity}}',
    b'{"agent":"desk","prompt":"x","limits":{"steps":' + b"9" * 5000 + b"}}",
    b'{"agent":"desk","prompt":"x","notBefore":"9999-12-31T23:59:59-14:00"}',
    b'{"agent":"desk","prompt":"x","notBefore":"0001-01-01T00:00:00+14:00"}',
    b'{"participants":[{"type":"Human","name":"\\ud800"}]}', b'{"decision":"approve","digest":"\\ud800"}',
    b'{"decision":"approve","input":{"n":' + b"9" * 5000 + b"}}", b'{"decision":"reject","reason":"\\ud83d\\u0000"}',
]  # fmt: skip  # rows


@both
def test_whatever_a_client_sends_is_answered_and_never_by_a_fault_of_the_server(place):
    async def main():
        async with served(place.runtime(pays()), rate=(None, 1.0)) as http:
            ids = await ids_of(http)
            paths = http.app.openapi()["paths"]
            asked: list[tuple[str, str, dict[str, Any]]] = []
            for path, of in paths.items():
                good = path.format(**ids)
                if "get" in of and not path.endswith("/events"):
                    takes = {one["name"] for one in of["get"].get("parameters", [])} | {"unknown"}
                    asked += [("GET", good, {"params": {name: value}}) for name, value in QUERIES if name in takes]
                    if "{" in path:
                        asked += [("GET", path.format(**dict.fromkeys(ids, one)), {}) for one in STRANGE]
                if "post" in of and not path.endswith("/cancel"):
                    asked += [("POST", good, {"content": body}) for body in BODIES]
            for method, path, more in asked:
                kind = {"Content-Type": "application/json"} if method == "POST" else {}
                answer = await http.client.request(method, path, headers=kind, **more)
                assert answer.status_code < 500, (method, path, str(more)[:200], answer.text)
                if answer.status_code >= 400:
                    assert answer.headers["content-type"] == "application/problem+json"

    go(main())


def _leaves(schema: Any, path: str = "") -> list[str]:
    """Properties without a description."""
    if isinstance(schema, list):
        return [leaf for one in schema for leaf in _leaves(one, path)]
    if not isinstance(schema, dict):
        return []
    found = [f"{path}.{n}" for n, of in schema.get("properties", {}).items() if not of.get("description", "").strip()]
    return found + [leaf for name, of in schema.items() if name != "examples" for leaf in _leaves(of, f"{path}.{name}")]


def test_every_field_and_parameter_is_described():
    from counterfoil.doors.http import create_app

    made = create_app(Runtime()).openapi()
    assert _leaves(made["components"]["schemas"]) == []
    asked = [
        (path, one["name"])
        for path, of in made["paths"].items()
        for operation in of.values()
        for one in operation.get("parameters", [])
        if not one.get("description")
    ]
    assert asked == []
