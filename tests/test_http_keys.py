"""Keys, tenants and scopes of the HTTP API (contract 10; api.md, section 4)."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx2
import pytest

from counterfoil import Agent, Caller, Policy, Rule, Runtime, ToolError, ToolResult, tool
from counterfoil.core.keys import SCOPES, ApiKey, token_digest
from counterfoil.doors.http import create_key
from counterfoil.testing import FrozenEffects, ScriptedModel, call, say
from tests.helpers import agent, both, broken, counted, go
from tests.marks import case, law
from tests.served import NO_TLS, PROBLEM, served

NEEDED = {
    ("POST", "/v1/runs"): {"run"},
    ("POST", "/v1/interactions"): {"run"},
    ("POST", "/v1/interactions/{interaction_id}/runs"): {"run"},
    ("POST", "/v1/runs/{run_id}/cancel"): {"run"},
    ("POST", "/v1/runs/{run_id}/messages"): {"run"},
    ("POST", "/v1/runs/{run_id}/calls/{call_id}/decision"): {"approve"},
    ("GET", "/v1/approvals"): {"approve", "read"},
    ("GET", "/v1/errors"): {"admin"},
    ("GET", "/v1/errors/groups"): {"admin"},
    ("GET", "/v1/runs/{run_id}/errors"): {"admin"},
    ("GET", "/metrics"): {"admin"},
}
"""Scopes of which a route needs one, where it is not `read`."""
BODIES = {
    "/interactions": {"participants": []},
    "/runs": {"agent": "desk", "prompt": "go"},
    "/messages": {"text": "hello"},
    "/decision": {"decision": "approve"},
    "/cancel": {},
}


def asks(**settings):
    pay, seen = counted("pay", needs_approval=True, **settings)
    return agent([[call("broken", id="b"), call("pay", id="a")], say("Done.")], pay, broken), seen


def routes(app):
    """Every route of the served description that needs a key."""
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            if "security" in operation:
                yield method.upper(), path


def body_of(method, path):
    return next((b for end, b in BODIES.items() if method == "POST" and path.endswith(end)), None)


@asynccontextmanager
async def keyed(http, **fields):
    """A client with a key of its own."""
    token, key = await create_key(http.runtime, fields.pop("user", "grace"), **fields)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=http.client.base_url, headers=headers, verify=NO_TLS) as client:
        yield client, key


@both
@law("10.does-not-exist", "10.every-record")
@case("R079", "R191")
def test_on_every_route_every_id_of_another_tenant_is_404_and_no_list_shows_any(place):
    desk, seen = asks()

    async def main():
        async with served(place.runtime(desk), dev=None) as http:
            mine = await http.runtime.start("desk", "secret words", caller=Caller(tenant="acme", user="ada"))
            await mine.wait()
            tip = len(await http.runtime.store.entries("acme", mine.interaction_id))
            ids = {"run_id": mine.id, "interaction_id": mine.interaction_id, "call_id": "a", "sequence": "4"}
            async with keyed(http, tenant="globex", user="ada", scopes=SCOPES) as (client, _):
                walked = 0
                for method, path in routes(http.app):
                    answer = await client.request(method, path.format(**ids), json=body_of(method, path))
                    assert answer.status_code == 404 if "{" in path else answer.status_code < 300, (path, answer.text)
                    named = {mine.id, mine.interaction_id} if "{" not in path else set()  # a 404 repeats what was asked
                    for secret in named | {"secret words", '"tenant":"acme"'}:
                        assert secret not in answer.text, path
                    walked += "{" in path
                assert walked >= 8
                page = await client.get("/v1/runs", params={"cursor": _cursor(mine.id)})
                assert page.status_code == 404
            assert len(await http.runtime.store.entries("acme", mine.interaction_id)) == tip
            assert seen == []

    go(main())


def _cursor(text):
    from counterfoil.doors.http.common import cursor_of

    return cursor_of(text)


def test_every_route_needs_a_key_and_one_of_its_scopes():
    desk, _ = asks()

    async def main():
        async with served(Runtime(agents=[desk]), dev=None) as http:
            run = await http.runtime.start("desk", "go", caller=Caller(user="ada"))
            await run.wait()
            for method, path in routes(http.app):
                needed = NEEDED.get((method, path), {"read"})
                address = path.format(run_id=run.id, interaction_id=run.interaction_id, call_id="a", sequence=4)
                body = body_of(method, path)
                nobody = await http.client.request(method, address, json=body)
                assert (nobody.status_code, nobody.headers["content-type"]) == (401, PROBLEM), path
                assert nobody.headers["www-authenticate"] == "Bearer"
                async with keyed(http, scopes=sorted(set(SCOPES) - needed)) as (client, _):
                    refused = await client.request(method, address, json=body)
                    assert refused.status_code == 403, path
                    assert all(scope in refused.json()["detail"] for scope in needed)
            assert run.status == "paused"

    go(main())


def test_each_scope_alone_opens_its_own_routes():
    desk, _ = asks()

    async def main():
        async with served(Runtime(agents=[desk]), dev=None) as http:
            for scope in ("read", "approve", "admin", "run"):  # `run` last: it cancels
                run = await http.runtime.start("desk", "go", caller=Caller(user="ada"))
                await run.wait()
                async with keyed(http, scopes=[scope]) as (client, _):
                    for method, path in routes(http.app):
                        if path.endswith("/events"):
                            continue  # it does not end while the run waits
                        address = path.format(run_id=run.id, interaction_id=run.interaction_id, call_id="a", sequence=4)
                        answer = await client.request(method, address, json=body_of(method, path))
                        allowed = scope in NEEDED.get((method, path), {"read"})
                        assert (answer.status_code != 403) == allowed, (scope, path, answer.text)

    go(main())


@law("10.who-decides")
def test_who_decides_is_the_keys_user_and_an_approval_limited_to_some_holds_for_it():
    rule = Rule("money", tool="pay", then="ask", approvers=("role:finance", "kim"), not_caller=True)
    pay, seen = counted("pay")
    desk = agent([[call("pay", id="a")], say("Done.")], pay, policy=Policy(rules=[rule]))

    async def main():
        async with served(Runtime(agents=[desk]), dev=None) as http, keyed(http, user="ada") as (ada, _):
            run = (await ada.post("/v1/runs", json=BODIES["/runs"])).json()
            assert run["user"] == "ada"
            await (await http.runtime.get(run["runId"])).wait()
            address = f"/v1/runs/{run['runId']}/calls/a/decision"
            for user, roles in (("ada", ["finance"]), ("eve", ["sales"])):
                async with keyed(http, user=user, roles=roles) as (client, _):
                    refused = await client.post(address, json={"decision": "approve"})
                    assert (refused.status_code, refused.json()["type"][-11:]) == (403, "not-allowed")
                    named = await client.post(address, json={"decision": "approve", "by": "kim"})
                    assert named.status_code == 422
            assert seen == []
            async with keyed(http, user="grace", roles=["finance"]) as (client, _):
                assert (await client.post(address, json={"decision": "approve"})).status_code == 200
            await (await http.runtime.get(run["runId"])).wait()
            timeline = (await ada.get(f"/v1/runs/{run['runId']}/timeline")).json()["items"]
            (paid,) = [i for i in timeline if i["kind"] == "TOOL_CALL"]
            assert paid["approval"]["by"] == "grace"

    go(main())


def test_a_key_counts_until_it_expires_or_is_revoked():
    effects = FrozenEffects()

    async def main():
        async with served(Runtime(agents=[asks()[0]], effects=effects), dev=None) as http:
            async with keyed(http, expires=timedelta(hours=1)) as (client, _):
                assert (await client.get("/v1/runs")).status_code == 200
                effects.advance(3601)
                over = await client.get("/v1/runs")
                assert (over.status_code, "has expired" in over.json()["detail"]) == (401, True)
            async with keyed(http) as (client, key):
                assert (await client.get("/v1/runs")).status_code == 200
                await http.runtime.store.revoke_key("default", key.id, effects.now())
                over = await client.get("/v1/runs")
                assert (over.status_code, "was revoked" in over.json()["detail"]) == (401, True)

    go(main())


@pytest.mark.parametrize("header", ["Bearer nothing", "Bearer", "Basic YTpi", "nothing", ""])
def test_whatever_is_no_key_is_refused_also_where_none_is_needed(header):
    async def main():
        async with served(Runtime(agents=[asks()[0]])) as http:
            answer = await http.client.get("/v1/runs", headers={"Authorization": header})
            assert answer.status_code == 401
            assert (await http.client.get("/v1/runs")).status_code == 200

    go(main())


@both
def test_the_secret_of_a_key_is_long_and_in_no_store(place):
    async def main():
        async with place.runtime() as runtime:
            tokens = [(await create_key(runtime, "ada"))[0] for _ in range(20)]
            assert len(set(tokens)) == 20
            assert all(re.fullmatch(r"cf_[A-Za-z0-9_-]{43}", token) for token in tokens)
            kept = await runtime.store.keys("default")
            assert [k.digest for k in kept] == [token_digest(token) for token in tokens]
            assert not any(token in repr(kept) for token in tokens)

    go(main())


@pytest.mark.parametrize(
    "fields", [{"scopes": ("read", "all")}, {"user": ""}, {"tenant": ""}, {"tenant": "a\x00"}, {"roles": ("",)}]
)
def test_a_key_that_could_not_count_is_refused_when_it_is_made(fields):
    given = {"tenant": "acme", "user": "ada", "roles": (), "scopes": ("read",), **fields}
    with pytest.raises(ValueError, match=r"scope|names"):
        ApiKey(id="k", digest="d", created_at=0, **given)


@law("9.rises", "9.private", "2.6")
@case("R193")
def test_nothing_that_is_said_below_a_run_reaches_a_key_without_the_scope_threads():
    @tool
    async def dig(where: str) -> ToolResult:
        raise ToolError(f"hush {where}", narration="hush")

    class Broken:
        async def respond(self, request):
            raise RuntimeError("hush")
            yield

    deep = agent([say("hush")], name="deep")
    lost = Agent("lost", Broken())
    task = call("dispatch", agent="deep", task="hush", id="t")
    model = [[call("dig", where="hush", id="d"), call("hush", id="n"), call("dig", raw="hush", id="r"), task]]
    miner = Agent("miner", ScriptedModel([*model, say("gold")]), tools=[dig], manages=[deep])
    tasks = [call("dispatch", agent=name, task="go", id=name) for name in ("miner", "lost")]
    chief = Agent("chief", ScriptedModel([tasks, say("Done.")]), manages=[miner, lost])

    async def main():
        async with served(Runtime(agents=[chief, deep]), dev=None) as http:
            run = await (await http.runtime.start("chief", "go")).wait()
            own = await (await http.runtime.start("deep", "again", interaction=run.interaction_id)).wait()
            ids = {row.run_id for row in await http.runtime.runs()}
            assert len(ids) == 5
            few = sorted({*SCOPES} - {"threads"})
            async with keyed(http, scopes=few) as (client, _), keyed(http, scopes=SCOPES) as (whole, _):
                for method, path in routes(http.app):
                    for run_id in ids if method == "GET" else ():
                        for sequence in range(1, 30) if "{sequence}" in path else (0,):
                            fields = {"run_id": run_id, "interaction_id": run.interaction_id, "sequence": sequence}
                            answer = await client.get(path.format(**fields), params={"all": True})
                            if (run_id, path) == (run.id, "/v1/runs/{run_id}/errors"):
                                assert "miner" not in answer.text  # why lost failed is all that it tells
                            elif run_id == own.id and path.startswith("/v1/runs/{run_id}"):
                                assert answer.text.count("hush") <= OWN.get(path.rpartition("}")[2], 0), path
                            elif path != "/v1/errors":
                                assert "hush" not in answer.text, (path, answer.text)
                named = [(await one.get("/v1/errors")).json()["items"] for one in (client, whole)]
                assert [{item["runId"] for item in items} for items in named] == [{run.id}, {run.id, *below(named)}]
                assert len(below(named)) == 1

    go(main())


OWN = {"": 2, "/context": 1, "/timeline": 2, "/trace": 1, "/events": 2}
"""How often the answer of a run of one's own is in each view of it."""


def below(named):
    return {item["runId"] for item in named[1]} - {item["runId"] for item in named[0]}


def test_other_threads_than_the_main_one_need_their_scope():
    async def main():
        async with served(Runtime(agents=[asks()[0]]), dev=None) as http:
            run = await http.runtime.start("desk", "go")
            await run.wait()
            for scopes, status in ((["read"], 403), (["read", "threads"], 200)):
                async with keyed(http, scopes=scopes) as (client, _):
                    thread = "private:00000000-0000-0000-0000-000000000000"
                    for view in ("context", "timeline"):
                        answer = await client.get(f"/v1/runs/{run.id}/{view}", params={"thread": thread})
                        assert answer.status_code == status
                        main_one = await client.get(f"/v1/runs/{run.id}/{view}", params={"thread": "main"})
                        assert len(main_one.json()["items"]) > 3

    go(main())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:1", "Origin": "http://localhost:5173"}, 200),
        ({"Host": "evil.example"}, 401),
        ({"Host": "127.0.0.1.evil.example"}, 401),
        ({"Origin": "https://evil.example"}, 401),
        ({"Origin": "null"}, 401),
    ],
)
def test_without_a_key_only_this_machines_own_names_and_pages_count(headers, status):
    async def main():
        async with served(Runtime(agents=[asks()[0]])) as http:
            assert (await http.client.get("/v1/runs", headers=headers)).status_code == status
            token, _ = await create_key(http.runtime, "grace")
            keyed_too = {**headers, "Authorization": f"Bearer {token}"}
            assert (await http.client.get("/v1/runs", headers=keyed_too)).status_code == 200

    go(main())
