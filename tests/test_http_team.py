"""A team over HTTP: what waits in a child is decided in the inbox; its private words reach only who may see them."""

from __future__ import annotations

from counterfoil import Agent
from counterfoil.testing import ScriptedModel, call, say
from tests.helpers import agent, both, counted, go
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
            # A page is full of what the key may see, and its cursor names nothing else.
            again = await http.runtime.start("chief", "Go.")
            pages = [(await ada.get("/v1/runs", params={"limit": 1})).json()]
            pages.append((await ada.get("/v1/runs", params={"limit": 1, "cursor": pages[0]["next"]})).json())
            assert [[r["runId"] for r in page["items"]] for page in pages] == [[again.id], [run]]
            assert pages[1]["next"] is None
            roots = (await root.get("/v1/runs", params={"roots": True})).json()["items"]
            assert [r["runId"] for r in roots] == [again.id, run]
            every = (await root.get("/v1/runs", params={"interaction": talk})).json()["items"]
            assert {r["runId"]: r["parentRunId"] for r in every} == {run: None, child: run}

    go(main())
