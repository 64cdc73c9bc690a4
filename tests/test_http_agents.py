"""Whose agents there are: a run of one that nobody has is refused, or says why it waits."""

from __future__ import annotations

import pytest

from counterfoil import AsyncClient, Runtime, UnknownAgent
from counterfoil.core.limits import DEAD_AFTER
from counterfoil.testing import call, say
from tests.helpers import agent, both, counted, go, shared, so
from tests.served import served


def pays(name: str = "desk"):
    pay, _ = counted("pay", needs_approval=True)
    return agent([[call("pay", id="a")], say("Done.")], pay, name=name)


@both
def test_a_name_that_nobody_has_is_refused_with_those_that_there_are(place):
    async def main():
        async with served(place.runtime(pays(), pays("till"))) as http:
            talk = (await http.client.post("/v1/interactions", json={})).json()["interactionId"]
            for address in ("/v1/runs", f"/v1/interactions/{talk}/runs"):
                answer = await http.client.post(address, json={"agent": "dekc", "prompt": "go"})
                told = answer.json()
                assert (answer.status_code, told["type"]) == (422, "urn:counterfoil:problem:unknown-agent")
                assert (told["agents"], "'dekc'" in told["detail"]) == (["desk", "till"], True)
            with pytest.raises(UnknownAgent, match="there are: desk, till") as refused:
                await http.runtime.start("dekc", "go")
            assert refused.value.agents == ("desk", "till")
            async with AsyncClient(str(http.client.base_url)) as client:
                with pytest.raises(UnknownAgent) as refused:
                    await client.start("dekc", "go")
            assert refused.value.agents == ("desk", "till"), "of a client too"
            with pytest.raises(UnknownAgent):
                await http.runtime.call("dekc", "pay", {})
            assert (await http.client.get("/v1/runs")).json()["items"] == []

    go(main())


@shared
def test_a_server_knows_the_agents_of_workers_and_says_when_none_lives(place):
    async def main():
        beat = 0.05
        async with served(place.runtime()) as http:
            async with place.open(pays(), heartbeat=beat) as worker:
                run = await http.start()
                assert run["hint"] is None
                assert (await http.client.post("/v1/runs", json={"agent": "x", "prompt": "go"})).status_code == 422
                await (await worker.get(run["runId"])).wait()
                address = f"/v1/runs/{run['runId']}"
                tag = (await http.client.get(address)).headers["etag"]
            # It has left: the name is known yet, and whoever starts or writes is told what it waits for.
            await so(lambda: gone(http.runtime))
            assert (await http.client.get(address)).json()["hint"] is None, "it waits for people"
            sent = (await http.client.post(f"{address}/messages", json={"text": "hello"})).json()
            decided = (await http.decide(run["runId"], "a", decision="approve")).json()
            read = await http.client.get(address, headers={"If-None-Match": tag})
            for told in (read.json(), sent, decided, await http.start()):
                assert "no process has agent 'desk' now" in told["hint"]
            async with place.open(pays()) as worker:
                assert (await http.client.get(address)).json()["hint"] is None
                await (await worker.get(run["runId"])).wait()
            ended = (await http.client.get(address)).json()
            assert (ended["status"], ended["hint"]) == ("completed", None)

    async def gone(runtime: Runtime) -> bool:
        return (await runtime.store.agents()) == {"desk": False}

    assert DEAD_AFTER == 2
    go(main())


@shared
def test_while_no_process_with_an_agent_lives_nothing_is_known_and_any_run_waits_for_one(place):
    async def main():
        async with place.open(pays()):
            pass
        async with served(place.runtime()) as http:
            run = await http.start("till")
            assert "no process has agent 'till' now" in run["hint"]
            async with place.open(pays("till")) as worker:
                assert (await (await worker.get(run["runId"])).wait()).status == "paused"

    go(main())
