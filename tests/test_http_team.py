"""A team over HTTP: what waits in a child is decided in the inbox; its private words reach only who may see them."""

from __future__ import annotations

import pytest

from counterfoil import Agent, AmbiguousCall, AsyncClient, Policy, Rule, Runtime
from counterfoil.testing import FrozenEffects, ScriptedModel, call, say
from tests.helpers import agent, arrives, both, counted, go
from tests.marks import case, law
from tests.served import served
from tests.test_http_keys import keyed


@both
@law("9.rises", "9.ask", "1.4.threadId")
@case("R032", "R197")
def test_a_team_asks_people_in_the_middle_and_each_thread_is_read_alone_by_who_may(place):
    pay, seen = counted("pay", needs_approval=True)
    miner = agent([[call("pay", n=7, id="p")], say("Paid, says the miner's canary.")], pay, name="miner")
    hands_on = [
        call("dispatch", agent="miner", task="Pay.", id="d"),
        call("ask", participant="grace", question="Now?", id="q"),
    ]
    chief = Agent(
        "chief",
        ScriptedModel(
            [hands_on, lambda r: say(" | ".join(str(m["content"]) for m in r.messages if m["role"] == "tool"))]
        ),
        manages=[miner],
    )

    async def main():
        async with (
            served(place.runtime(chief), dev=None) as http,
            keyed(http, user="ada", scopes=["run", "read"]) as (ada, _),
            keyed(http, user="grace", scopes=["approve"]) as (grace, _),
            keyed(http, user="root", scopes=["read", "threads"]) as (root, _),
        ):
            who = {"participants": [{"type": "Human", "name": "grace"}]}
            talk = (await ada.post("/v1/interactions", json=who)).json()["interactionId"]
            begun = await ada.post(f"/v1/interactions/{talk}/runs", json={"agent": "chief", "prompt": "Go."})
            run = begun.json()["runId"]
            await (await http.runtime.get(run)).wait()
            inbox = {a["kind"]: a for a in (await grace.get("/v1/approvals")).json()["items"]}
            assert (inbox["question"]["callId"], inbox["question"]["runId"]) == ("q", run)
            child = inbox["approval"]["runId"]
            assert (await ada.get(f"/v1/runs/{child}")).status_code == 404
            paused = (await ada.get(f"/v1/runs/{run}")).json()
            assert (paused["status"], paused["waiting"]) == ("paused", 2)
            # In reverse order of asking, each in the run that it waits in.
            answered = await grace.post(f"/v1/runs/{run}/calls/q/decision", json={"decision": "answer", "text": "Now."})
            assert answered.status_code == 200, answered.text
            approved = await grace.post(f"/v1/runs/{child}/calls/p/decision", json={"decision": "approve"})
            assert approved.status_code == 200, approved.text
            await (await http.runtime.get(run)).wait()
            ended = (await ada.get(f"/v1/runs/{run}")).json()
            assert ended["status"] == "completed", ended
            assert ended["answer"] == "Paid, says the miner's canary. | Now."
            assert [s["n"] for s in seen] == [7]
            main_thread = (await ada.get(f"/v1/runs/{run}/context")).json()["items"]
            assert {i["threadId"] for i in main_thread} == {None}
            assert [i["kind"] for i in main_thread] == [
                "Message", "ToolCall", "ToolCall", "ToolResult", "ToolResult", "Message",
            ]  # fmt: skip  # one row
            every = (await root.get(f"/v1/runs/{run}/context", params={"limit": 500})).json()["items"]
            threads = {i["threadId"] for i in every} - {None}
            assert any(str(t).startswith("dispatch:") for t in threads)
            for thread in threads:
                alone = (await root.get(f"/v1/runs/{run}/context", params={"thread": thread})).json()["items"]
                assert [i["sequence"] for i in alone] == [i["sequence"] for i in every if i["threadId"] == thread]
                assert (await ada.get(f"/v1/runs/{run}/context", params={"thread": thread})).status_code == 403

    go(main())


@both
@law("9.rises", "9.threads")
@case("R089")
def test_a_manager_says_what_it_waits_for_and_whoever_may_reads_the_runs_below_it(place):
    word = "the miner's canary"
    pay, _ = counted("pay", needs_approval=True)
    miner = agent([call("pay", n=7, id="p"), say(word)], pay, name="miner")
    asks = [call("dispatch", agent="miner", task=word, id="d"), call("ask", participant="grace", question="?", id="q")]
    chief = agent([asks, say("Done.")], name="chief", manages=[miner])

    async def main():
        async with (
            served(place.runtime(chief), dev=None) as http,
            keyed(http, user="ada", scopes=["run", "read"]) as (ada, _),
            keyed(http, user="root", scopes=["read", "threads"]) as (root, _),
        ):
            talk = (await http.runtime.open_interaction([("Human", "grace")])).interaction_id
            run = (await http.runtime.start("chief", "Go.", interaction=talk)).id
            await arrives(await http.runtime.get(run), "paused")
            paused = (await ada.get(f"/v1/runs/{run}")).json()
            asked, below = paused["waitsFor"]
            child = below["runId"]
            assert asked == {
                "kind": "question", "runId": run, "agent": "chief", "callId": "q", "toolName": "ask",
                "approvers": ["grace"],
            }  # fmt: skip  # two rows
            assert (below["kind"], below["agent"], below["callId"], paused["waiting"]) == ("approval", "miner", "p", 2)
            mine = (await ada.get(f"/v1/runs/{run}/timeline")).json()
            assert mine["rows"][-1]["text"] == "waits for a person: ask (q), pay (p of miner)"
            assert {row["runId"] for row in mine["rows"]} == {i["runId"] for i in mine["items"]} == {run}
            # Only in what the manager itself wrote.
            assert word not in str([paused["waitsFor"], [row["text"] for row in mine["rows"]]])
            told = (await root.get(f"/v1/runs/{run}/timeline")).json()
            assert {row["runId"] for row in told["rows"]} == {i["runId"] for i in told["items"]} == {run, child}
            for thread in {i["threadId"] for i in told["items"]} - {None}:
                where = {"params": {"thread": thread}}
                alone = (await root.get(f"/v1/runs/{run}/timeline", **where)).json()
                assert {r["threadId"] for r in alone["rows"]} == {i["threadId"] for i in alone["items"]} == {thread}
                assert (await ada.get(f"/v1/runs/{run}/timeline", **where)).status_code == 403

    go(main())


@law("9.rises", "7.2")
def test_a_call_id_of_several_runs_below_is_a_conflict_that_names_them():
    pay, seen = counted("pay", needs_approval=True)
    miner = agent([call("pay", n=7, id="p"), say("Paid.")], pay, name="miner")
    tasks = [call("dispatch", agent="miner", task="Pay.", id=one) for one in ("d1", "d2")]
    chief = agent([tasks, say("Done.")], name="chief", manages=[miner])

    async def main():
        async with served(Runtime(agents=[chief])) as http, AsyncClient(str(http.client.base_url)) as client:
            run = await arrives(await http.runtime.start("chief", "Go."), "paused")
            below = [a.run_id for a in await run.approvals()]
            address = f"/v1/runs/{run.id}/calls/p/decision"
            answer = await http.client.post(address, json={"decision": "approve"})
            told = answer.json()
            assert (answer.status_code, told["type"]) == (409, "urn:counterfoil:problem:ambiguous-call")
            assert (told["runs"], told["waiting"]) == (below, ["p", "p"])
            assert all(one in told["detail"] for one in below)
            with pytest.raises(AmbiguousCall, match="decide in the run that is meant") as refused:
                await client.approve(run.id, "p")
            assert refused.value.runs == tuple(below)
            for one in refused.value.runs:
                await client.approve(one, "p")
            assert (await arrives(run, "completed")).answer == "Done."
            assert len(seen) == 2

    go(main())


@both
@law("3.4081")
def test_inbox_run_and_timeline_agree_on_what_has_expired_and_nobody_has_settled(place):
    effects = FrozenEffects()
    asks = Policy([Rule("ask", "ask", tool="pay", expires_in=60)])
    miner = agent([call("pay", n=7, id="p"), say("Paid.")], counted("pay")[0], name="miner", policy=asks)
    chief = agent([call("dispatch", agent="miner", task="Pay.", id="d"), say("Done.")], name="chief", manages=[miner])

    async def main():
        async with place.runtime(chief, effects=effects) as runtime:
            run = (await arrives(await runtime.start("chief", "Go."), "paused")).id
        async with served(place.runtime(effects=effects)) as http:  # nobody here goes on with it
            for kinds in (["approval"], ["run"]):
                read = await http.runtime.get(run)
                told = (await http.client.get(f"/v1/runs/{run}")).json()
                rows = (await http.client.get(f"/v1/runs/{run}/timeline")).json()["rows"]
                assert [w.kind for w in read.waits_for] == [w["kind"] for w in told["waitsFor"]] == kinds
                inbox = (await http.client.get("/v1/approvals", params={"run": run})).json()["items"]
                assert told["waiting"] == len(inbox) == len(await read.approvals()) == kinds.count("approval")
                (text,) = (row["text"] for row in rows if row["callId"] == "d" and row["kind"] == "call")
                assert ("waits for a person" in text) == (kinds == ["approval"])
                effects.advance(60)

    go(main())


@law("9.threads", "10.does-not-exist")
def test_lists_name_the_run_that_waits_and_leave_out_what_a_key_may_not_see():
    miner = agent([say("Dug.")], name="miner")
    chief = agent([call("dispatch", agent="miner", task="Dig.", id="d"), say("Done.")], name="chief", manages=[miner])

    async def main():
        async with (
            served(Runtime(agents=[chief]), dev=None) as http,
            keyed(http, user="ada", scopes=["read"]) as (ada, _),
            keyed(http, user="root", scopes=["read", "threads"]) as (root, _),
        ):
            first, last = [(await (await http.runtime.start("chief", "Go.")).wait()).id for _ in range(2)]
            every = (await root.get("/v1/runs")).json()["items"]
            assert [row["agent"] for row in every] == ["miner", "chief", "miner", "chief"]
            assert [row["parentRunId"] for row in every] == [last, None, first, None]
            roots = (await root.get("/v1/runs", params={"roots": True})).json()["items"]
            assert roots == [row for row in every if row["parentRunId"] is None]
            # A page is full of what the key may see, and its cursor stands for nothing else.
            page = (await ada.get("/v1/runs", params={"limit": 1})).json()
            after = (await ada.get("/v1/runs", params={"limit": 1, "cursor": page["next"]})).json()
            assert ([*page["items"], *after["items"]], after["next"]) == (roots, None)

    go(main())
