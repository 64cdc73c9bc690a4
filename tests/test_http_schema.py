"""The served OpenAPI says all that can come and nothing else, and every answer that it names can be reached."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from counterfoil import Caller, Runtime
from counterfoil.core.errors import StoreError
from counterfoil.core.keys import SCOPES
from counterfoil.doors.http import create_key
from counterfoil.doors.http.common import cursor_of
from counterfoil.doors.http.problems import KINDS, PREFIX
from counterfoil.testing import call, say
from tests.floors import ROOT
from tests.helpers import agent, arrives, counted, fine, go
from tests.served import NO_TLS, PROBLEM, Served, served
from tests.test_http_reading import long_text

REAL = ("200", "201", "202", "409", "410")
"""Statuses of a request that met something; who comes first to cancel decides whether a decision is awaited yet."""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


class Faulty:
    """A store that raises where it is told to."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.error: Exception | None = None
        self.spares = {"key", "close", "shared"}

    def __getattr__(self, name: str) -> Any:
        if self.error is not None and name not in self.spares:
            raise self.error
        return getattr(self.store, name)


def pays():
    pay, _ = counted("pay", needs_approval=True, approvers=("grace",))
    return agent(
        [[call("fine", id="f"), call("long_text", id="l"), call("pay", id="a")], say("Done.")], pay, fine, long_text
    )


def hands_on():
    miner = agent([call("pay", id="a"), say("Paid.")], counted("pay", needs_approval=True)[0], name="miner")
    tasks = [call("dispatch", agent="miner", task="Pay.", id=one) for one in ("d1", "d2")]
    return agent([tasks, say("Done.")], name="chief", manages=[miner])


async def what_there_is(http: Served) -> dict[str, Any]:
    """Ids of a run that waits for a person, of its call, and the sequence of a result that is kept apart."""
    run = await http.runtime.start("desk", "go", caller=Caller(user="ada"))
    await run.wait()
    kept = next(r for r in run.results if r.tool_result_id is not None)
    return {"run_id": run.id, "interaction_id": run.interaction_id, "call_id": "a", "sequence": kept.sequence}


@asynccontextmanager
async def with_key(http: Served, **fields: Any) -> AsyncIterator[httpx2.AsyncClient]:
    token, _ = await create_key(http.runtime, **{"user": "grace", "scopes": SCOPES, **fields})
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=http.client.base_url, headers=headers, verify=NO_TLS) as client:
        yield client


class Seen:
    """Which documented answers came: each is held against what is said of it."""

    def __init__(self, http: Served) -> None:
        self.http = http
        made = http.app.openapi()
        self.paths, self.components = made["paths"], made["components"]
        self.wanted = {(m.upper(), p, s) for p, ms in self.paths.items() for m, o in ms.items() for s in o["responses"]}
        self.seen: set[tuple[str, str, str]] = set()
        self.problems: dict[tuple[str, str], set[str]] = {}
        """Kinds of problems that are documented of an operation and did not come yet."""
        for method, path, status in self.wanted:
            told = self.paths[path][method.lower()]["responses"][status].get("content", {}).get(PROBLEM, {})
            self.problems.setdefault((method, path), set()).update(told.get("examples", {}))
        self.validators: dict[tuple[str, str, str], Any] = {}

    def conforms(self, place: tuple[str, str, str], schema: dict[str, Any], body: Any) -> None:
        """An answer has the form that is documented, which a program is made from."""
        if place not in self.validators:
            whole = {**schema, "components": self.components}
            self.validators[place] = jsonschema_rs.validator_for(whole, validate_formats=True)
        faults = [f"{e.instance_path}: {e.message}" for e in self.validators[place].iter_errors(body)]
        assert not faults, (place, faults)

    async def ask(self, client: httpx2.AsyncClient, method: str, path: str, ids: dict[str, Any], **options: Any) -> Any:
        async with client.stream(method, path.format(**ids), **options) as answer:
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                await answer.aread()
        said = self.paths[path][method.lower()]["responses"].get(str(answer.status_code))
        assert said is not None, (method, path, answer.status_code)
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert kind in (said.get("content") or {"": None}), (method, path, answer.status_code, kind)
        if kind == PROBLEM:
            told = answer.json()
            name = told["type"].removeprefix(PREFIX)
            assert name in said["content"][PROBLEM]["examples"], (method, path, told)
            assert (KINDS[name].status, KINDS[name].title) == (answer.status_code, told["title"])
            self.problems[method, path].discard(name)
        if kind in (PROBLEM, "application/json"):
            self.conforms((method, path, str(answer.status_code)), said["content"][kind]["schema"], answer.json())
        self.seen.add((method, path, str(answer.status_code)))
        return answer


BODIES: dict[str, Any] = {
    "/v1/runs": {"agent": "desk", "prompt": "go"},
    "/v1/interactions": {"participants": []},
    "/v1/interactions/{interaction_id}/runs": {"agent": "desk", "prompt": "go"},
    "/v1/runs/{run_id}/messages": {"text": "hello"},
    "/v1/runs/{run_id}/calls/{call_id}/decision": {"decision": "approve"},
    "/v1/runs/{run_id}/cancel": {},
}
WRONG = {"decision": "perhaps", "participants": 7, "prompt": 7, "text": 7, "reason": 7}
"""No body has all of these right."""


async def everywhere(seen: Seen, ids: dict[str, Any], store: Faulty) -> None:
    """What any route can answer."""
    http, nothing = seen.http, {**dict.fromkeys(ids, "nothing"), "sequence": 1}
    operations = [(m.upper(), p, o) for p, ms in seen.paths.items() for m, o in ms.items()]
    json_ = {"Content-Type": "application/json"}
    async with with_key(http) as all_, with_key(http, scopes=[]) as none:
        for method, path, operation in operations:
            body = {"json": BODIES[path]} if method == "POST" else {}
            for error, spared in itertools.product((RuntimeError("secret"), StoreError("secret")), ({"key"}, set())):
                store.error, store.spares = error, spared | {"close", "shared"}
                told = await seen.ask(all_, method, path, ids, **body)
                assert "secret" not in told.text
            store.error = None
            if "security" not in operation:
                continue
            await seen.ask(http.client, method, path, ids, **body)
            await seen.ask(none, method, path, ids, **body)
            if "{" in path:
                await seen.ask(all_, method, path, nothing, **body)
            if body:
                await seen.ask(all_, method, path, ids, json=WRONG)
                await seen.ask(all_, method, path, ids, content=b"x" * 3000, headers=json_)
                await seen.ask(all_, method, path, ids, content=b"x", headers={"Content-Type": "text/plain"})
            for wrong in ({"limit": 0}, {"after": -1}, {"thread": "no"}, {"offset": -1}, {"all": "perhaps"}):
                if {p["name"] for p in operation.get("parameters", [])} & set(wrong):
                    await seen.ask(all_, method, path, ids, params=wrong)


async def here_and_there(seen: Seen, ids: dict[str, Any]) -> None:
    """What each route answers by itself."""
    http, run = seen.http, "/v1/runs/{run_id}"
    decision, talk = f"{run}/calls/{{call_id}}/decision", "/v1/interactions/{interaction_id}/runs"
    key = {"headers": {"Idempotency-Key": "k"}}
    async with with_key(http) as all_:
        for path in ("/v1/runs", "/v1/interactions"):
            await seen.ask(all_, "POST", path, ids, json=BODIES[path], **key)
            other = {"participants": [{"type": "Human", "name": "x"}], "agent": "desk", "prompt": "other"}
            changed = {name: other[name] for name in BODIES[path]}
            await seen.ask(all_, "POST", path, ids, json=changed, **key)
        for path in ("/v1/runs", talk):
            await seen.ask(all_, "POST", path, ids, json={"agent": "dekc", "prompt": "go"})
        await seen.ask(all_, "POST", talk, ids, json=BODIES[talk])
        for path, operations in seen.paths.items():
            if "get" in operations and not path.endswith("/events"):
                await seen.ask(all_, "GET", path, ids)
        nobodys = cursor_of("nothing")
        for path, name, wrong in (
            ("/v1/approvals", "run", "x"), ("/v1/runs", "before", "x"), ("/v1/interactions", "cursor", nobodys),
        ):  # fmt: skip  # one row
            await seen.ask(all_, "GET", path, ids, params={name: wrong})
        tag = (await seen.ask(all_, "GET", run, ids)).headers["etag"]
        await seen.ask(all_, "GET", run, ids, headers={"If-None-Match": tag})
        result, message = f"{run}/tool-results/{{sequence}}", f"{run}/messages"
        for asked in ({"Range": "bytes=0-1"}, {"Range": "bytes=99999999-"}, {"If-None-Match": "*"}):
            await seen.ask(all_, "GET", result, ids, headers=asked)
        for said in ("hello", "bye"):
            await seen.ask(all_, "POST", message, ids, json={"text": said}, **key)
        async with with_key(http, user="eve") as eve:
            await seen.ask(eve, "POST", decision, ids, json={"decision": "approve"})
        team = await arrives(await http.runtime.start("chief", "go"), "paused")
        await seen.ask(all_, "POST", decision, {**ids, "run_id": team.id}, json={"decision": "approve"})
        await team.cancel()
        here = http.runtime.agents.pop("desk")
        await seen.ask(all_, "POST", decision, ids, json={"decision": "approve", "input": {"n": 1}})
        http.runtime.agents["desk"] = here
        for body in ({"decision": "approve", "input": {"n": "x"}}, {"decision": "approve"}, {"decision": "reject"}):
            await seen.ask(all_, "POST", decision, ids, json=body)
        await seen.ask(all_, "POST", decision, {**ids, "call_id": "f"}, json={"decision": "approve"})
        await (await http.runtime.get(ids["run_id"])).wait()
        await seen.ask(all_, "GET", f"{run}/events", ids)
        tip = (await seen.ask(all_, "GET", f"{run}/context", ids)).json()["tip"]
        for last in (tip, tip + 1):
            await seen.ask(all_, "GET", f"{run}/events", ids, headers={"Last-Event-ID": str(last)})
        await seen.ask(all_, "POST", f"{run}/cancel", ids, json={})
        done = await http.runtime.start("desk", "go", interaction=ids["interaction_id"])
        await done.cancel()
        await done.wait()
        await seen.ask(all_, "POST", talk, ids, json=BODIES[talk])
        await http.runtime.erase(ids["run_id"])
        await seen.ask(all_, "GET", f"{run}/tool-results/{{sequence}}", ids)


def test_every_documented_answer_can_be_reached_and_no_other_comes(caplog):
    caplog.set_level("CRITICAL")

    async def main():
        runtime = Runtime(agents=[pays(), hands_on()])
        store = runtime.store = Faulty(runtime.store)
        async with served(runtime, dev=None, max_body=2000) as http:
            ids = await what_there_is(http)
            seen = Seen(http)
            await everywhere(seen, ids, store)
            await here_and_there(seen, ids)
            async with with_key(http) as client:
                from counterfoil.doors.http.access import Rate

                http.app.state.rate = Rate(1, 3600.0)
                await client.get("/v1/runs")
                for method, path, _ in sorted(seen.wanted):
                    if (method, path, "429") in seen.wanted - seen.seen:
                        body = {"json": BODIES[path]} if method == "POST" else {}
                        await seen.ask(client, method, path, ids, **body)
            assert seen.wanted - seen.seen == set()
            assert {place: kinds for place, kinds in seen.problems.items() if kinds} == {}

    go(main())


def test_every_route_body_and_problem_has_an_example_and_a_sentence():
    async def main():
        async with served(Runtime(agents=[pays()])) as http:
            made = (await http.client.get("/openapi.json")).json()
            for path, operations in made["paths"].items():
                for method, operation in operations.items():
                    assert operation["description"].strip().endswith("."), path
                    assert operation["tags"], path
                    for status, said in operation["responses"].items():
                        assert said["description"], (path, status)
                        if PROBLEM in said.get("content", {}):
                            assert said["content"][PROBLEM]["examples"], (path, status)
                    if method == "post":
                        shape = json.dumps(operation["requestBody"]["content"]["application/json"]["schema"])
                        name = shape.rpartition("/")[2].rstrip('"}]')
                        name = name.partition('"')[0]
                        assert made["components"]["schemas"][name]["examples"], path
            documented = {
                name
                for operations in made["paths"].values()
                for operation in operations.values()
                for said in operation["responses"].values()
                for name in said.get("content", {}).get(PROBLEM, {}).get("examples", {})
            }
            assert documented == set(KINDS) - {"no-route", "method-not-allowed", "too-slow"}

    go(main())


@pytest.fixture
def schemathesis() -> list[str]:
    pytest.importorskip("schemathesis")
    return [sys.executable, "-m", "schemathesis.cli", "run"]


def test_schemathesis_finds_no_server_error_and_no_undocumented_answer(schemathesis: list[str], tmp_path: Path):
    # Streams of events do not end while a run waits; they have tests of their own. It is given a key and what there
    # is: made-up ones meet little but 401 and 404.
    async def main():
        runtime = Runtime(f"sqlite:///{tmp_path}/runs.db", agents=[pays()])
        async with served(runtime, rate=(None, 1.0), dev=None) as http, with_key(http) as client:
            rows = [f'"path.{name}" = "{value}"' for name, value in (await what_there_is(http)).items()]
            settings = ["[phases.coverage]", "unexpected-methods = []", "[parameters]", *rows]
            (tmp_path / "schemathesis.toml").write_text("\n".join(settings))
            process = await asyncio.create_subprocess_exec(
                *schemathesis, f"{http.client.base_url}/openapi.json", "--exclude-path-regex", "/events$",
                "--header", f"Authorization: {client.headers['Authorization']}", "--checks", CHECKS,
                "--phases", "coverage,fuzzing", "-n", "5", "--request-timeout", "30",
                "--seed", "7", "--generation-deterministic",
                cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip  # rows by what belongs together
            told, _ = await process.communicate()
            assert process.returncode == 0, told.decode()
            counts = (await client.get("/metrics")).text
            row = re.compile(r'requests_total{method="(\w+)",route="([^"]+)",status="(\d+)"')
            met = {(method, path) for method, path, status in row.findall(counts) if status in REAL}
            all_ = {(m.upper(), p) for p, ms in http.app.openapi()["paths"].items() for m in ms}
            assert all_ - met == {("GET", "/v1/runs/{run_id}/events")}

    asyncio.run(asyncio.wait_for(main(), 300))
