"""Contract 1.4 on the wire: a client that knows that table alone can show a conversation, on every kind of thread."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import Any

import pytest

from counterfoil import Caller, Policy, Rule, Runtime, ToolError, ToolResult, tool
from counterfoil.core.turn import author
from counterfoil.testing import call, say
from counterfoil.testing import records as r
from tests.helpers import Gate, agent, both, broken, counted, fine, go, shared
from tests.marks import case, law
from tests.served import follow, served
from tests.test_http_keys import keyed
from tests.test_http_reading import long_text

FIELDS = {
    "toolCallId", "result", "isError", "toolResultId", "resultSize", "rejectionReason", "sequence", "author", "date",
    "threadId",
}  # fmt: skip  # contract 1.4, to the letter
MORE = {"kind", "runId", "outcome"}
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z")
MINER = author("Agent", "miner", "default").id


@tool
async def refuses() -> ToolResult:
    """Refuse."""
    return ToolResult.denied("Not for you.")


@tool
async def fails() -> str:
    """Fail."""
    raise ToolError("There is none.", code=404)


def every():
    """An agent in whose run a call ends in each way."""
    pay, _ = counted("pay", needs_approval=True)
    barred, _ = counted("barred")
    ways = [
        call("fine", id="ok"), call("long_text", id="kept"), call("fails", id="fails"), call("broken", id="raises"),
        call("barred", id="denied"), call("refuses", id="refused"), call("pay", id="no"), call("pay", n=2, id="why"),
        call("pay", n=3, id="yes"), call("fine", id="ok"), call("nothing", id="unknown"),
    ]  # fmt: skip  # rows
    rules = [Rule("never", tool="barred", then="deny", reason="Closed."), Rule("rest", tool="*", then="allow")]
    asks = Rule("asks", tool="pay", then="ask")
    return agent(
        [ways, say("Done.")], pay, fine, fails, broken, barred, refuses, long_text, policy=Policy(rules=[asks, *rules])
    )


def shown(items):
    """What a client that knows the table alone shows of each result."""
    return {i["toolCallId"]: i["rejectionReason"] or _plain(i) for i in items if i["kind"] == "ToolResult"}


def _plain(item):
    return f"{'✗' if item['isError'] else '✓'}{item['result'] or item['toolResultId']}"


@both
@law("1.4.result", "1.4.isError", "1.4.rejectionReason", "1.4.author", "1.4.date", "1.4.threadId", "1.4.sequence")
@case("R055", "R056")
def test_each_way_to_end_is_told_apart_by_the_fields_of_the_table(place):
    async def main():
        async with served(place.runtime(every())) as http:
            run = await http.start()
            await http.rests(run["runId"])
            assert (await http.decide(run["runId"], "no", decision="reject")).status_code == 200
            await http.decide(run["runId"], "why", decision="reject", reason="Too much.")
            await http.decide(run["runId"], "yes", decision="approve")
            ended = await http.rests(run["runId"])
            assert ended["status"] == "completed"
            items = (await http.client.get(f"/v1/runs/{run['runId']}/context", params={"limit": 500})).json()["items"]
            results = {i["toolCallId"]: i for i in items if i["kind"] == "ToolResult"}
            for item in results.values():
                assert set(item) == FIELDS | MORE
                assert DATE.fullmatch(item["date"])
                assert set(item["author"]) == {"id", "name", "type"}
                assert uuid.UUID(item["author"]["id"])
                assert (item["threadId"], item["runId"]) == (None, run["runId"])
                assert (item["result"] is None) == (item["toolResultId"] is not None)
            twice = next(id_ for id_ in results if id_ not in {
                "ok", "kept", "fails", "raises", "denied", "refused", "no", "why", "yes", "unknown",
            })  # fmt: skip  # the id that the second call of the same id got
            told = {
                id_: (i["outcome"], i["isError"], i["author"]["type"], i["rejectionReason"])
                for id_, i in results.items()
            }
            without_words = told["no"][3]
            assert without_words
            assert told == {
                "ok": ("succeeded", False, "Agent", None),
                "kept": ("succeeded", False, "Agent", None),
                "fails": ("failed", True, "Agent", None),
                "raises": ("failed", True, "Agent", None),
                "denied": ("denied", True, "System", None),
                "refused": ("denied", True, "Agent", None),
                "no": ("rejected", True, "Human", without_words),
                "why": ("rejected", True, "Human", "Too much."),
                "yes": ("succeeded", False, "Agent", None),
                "unknown": ("failed", True, "System", None),
                twice: ("skipped", False, "System", None),
            }
            assert results["fails"]["result"] == "There is none."
            assert "secret" not in results["raises"]["result"]
            assert results["kept"]["resultSize"] > 32 * 1024
            assert results["ok"]["resultSize"] == len("fine 0")
            numbers = [i["sequence"] for i in items]
            assert numbers == sorted(set(numbers))
            calls = [i["toolCallId"] for i in items if i["kind"] == "ToolCall"]
            assert [i["toolCallId"] for i in items if i["kind"] == "ToolResult"] == calls
            assert shown(items)["why"] == "Too much."
            assert shown(items)["ok"] == "✓fine 0"

    go(main())


@both
def test_a_call_of_a_cancelled_run_is_cancelled_and_no_rejection(place):
    pay, _ = counted("pay", needs_approval=True)

    async def main():
        async with served(place.runtime(agent([[call("pay", id="a")], say("x")], pay))) as http:
            run = await http.rests((await http.start())["runId"])
            done = await http.client.post(f"/v1/runs/{run['runId']}/cancel", json={"reason": "Withdrawn."})
            assert done.status_code == 202
            ended = await http.rests(run["runId"])
            (item,) = [i for i in ended["context"]["items"] if i["kind"] == "ToolResult"]
            assert (ended["status"], ended["reason"]) == ("cancelled", "Withdrawn.")
            assert (item["outcome"], item["isError"], item["rejectionReason"]) == ("cancelled", True, None)
            assert (await http.decide(run["runId"], "a", decision="approve")).status_code == 410

    go(main())


async def child_on(runtime, root, thread):
    """A run below another one, whose work stands on a thread of its own."""
    id_ = runtime.effects.new_id()
    new = r.new_run(
        id_, root.interaction_id, tenant="default", new_interaction=False, parent=root.id, thread_id=thread,
        agent="miner", text="Dig.", owner=runtime.owner,
    )  # fmt: skip  # two rows
    new.entries[0].parent = root.id
    row, _ = await runtime.store.create(new)
    work = [r.turn(id_, thread_id=thread), r.start(id_, thread_id=thread), r.result(id_, thread_id=thread, text="gold")]
    await runtime.store.commit(r.lease_of(row), work)
    return id_


@law("1.4.threadId", "9.threads")
@case("R193")
@pytest.mark.parametrize("thread", [f"private:{MINER}", f"dispatch:{MINER}:d1", f"question:{MINER}:q1"])
def test_items_and_events_of_another_thread_reach_only_who_may_see_it(thread):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="a")], say("Done.")], pay)

    async def main():
        async with served(Runtime(agents=[desk]), dev=None) as http:
            root = await http.runtime.start("desk", "go", caller=Caller(user="ada"))
            await root.wait()
            child = await child_on(http.runtime, root, thread)
            async with keyed(http, scopes=["read"]) as (few, _), keyed(http, scopes=["read", "threads"]) as (all_, _):
                for view in ("context", "timeline"):
                    items = (await few.get(f"/v1/runs/{root.id}/{view}")).json()["items"]
                    assert {i["threadId"] for i in items} == {None}
                    assert "gold" not in str(items)
                (seen,) = (await few.get("/v1/runs")).json()["items"]
                assert seen["runId"] == root.id
                for path in ("", "/context", "/timeline", "/events", "/trace", "/tool-results/4"):
                    assert (await few.get(f"/v1/runs/{child}{path}")).status_code == 404
                for run in (root.id, child):
                    items = (await all_.get(f"/v1/runs/{run}/context", params={"thread": thread})).json()["items"]
                    (item,) = [i for i in items if i["kind"] == "ToolResult"]
                    assert set(item) == FIELDS | MORE
                    assert (item["threadId"], item["result"], item["author"]["type"]) == (thread, "gold", "Agent")
                events = follow(all_, child)
                kinds = [(await anext(events))["data"] for _ in range(4)]
                assert {(e["runId"], e["threadId"]) for e in kinds} == {(child, thread)}
                await events.aclose()

    go(main())


@both
@law("7.2")
@case("R076", "R037")
def test_of_fifty_decisions_at_once_one_wins_equal_ones_are_acknowledged_and_others_conflict(place):
    gate = Gate()
    work = gate.tool(needs_approval=True)
    desk = agent([[call("work", at="pay", id="a")], say("Done.")], work)

    async def main():
        async with served(place.runtime(desk)) as http:
            run = await http.rests((await http.start())["runId"])
            choices = ["approve", "reject"] * 25
            answers = await asyncio.gather(*(http.decide(run["runId"], "a", decision=choice) for choice in choices))
            won = {choice for choice, answer in zip(choices, answers, strict=True) if answer.status_code == 200}
            lost = {choice for choice, answer in zip(choices, answers, strict=True) if answer.status_code == 409}
            assert (len(won), len(lost)) == (1, 1)
            assert sorted(answer.status_code for answer in answers) == [200] * 25 + [409] * 25
            gate.open("pay")
            await http.rests(run["runId"])
            assert gate.log.count("+pay") == (1 if won == {"approve"} else 0)
            for choice in choices[:2]:
                status = 200 if choice in won else 409
                assert (await http.decide(run["runId"], "a", decision=choice)).status_code == status

    go(main())


@both
@law("7.3")
@case("R065", "R070", "R071")
def test_a_refused_edit_leaves_the_call_pending_and_each_answer_says_what_waits_yet(place):
    pay, seen = counted("pay", needs_approval=True)
    never = Rule("never", tool="pay", when="input.n > 100", then="deny", reason="Too much.")
    asks = Rule("asks", tool="pay", then="ask")
    desk = agent(
        [[call("pay", n=1, id="a"), call("pay", n=2, id="b")], say("Done.")], pay, policy=Policy(rules=[never, asks])
    )

    async def main():
        async with served(place.runtime(desk)) as http:
            run = (await http.rests((await http.start())["runId"]))["runId"]
            for edit in ({"n": "many"}, {"n": 1, "to": "eve"}, {"n": 101}):
                refused = await http.decide(run, "a", decision="approve", input=edit)
                assert (refused.status_code, refused.json()["type"][-13:]) == (422, "invalid-input")
            for wrong in ({"decision": "reject", "input": {"n": 1}}, {"decision": "answer"}, {"decision": "maybe"}):
                assert (await http.decide(run, "a", **wrong)).status_code == 422
            stale = await http.decide(run, "a", decision="approve", digest="0" * 64)
            assert (stale.status_code, stale.json()["waiting"]) == (409, ["a", "b"])
            unknown = await http.decide(run, "z", decision="approve")
            assert (unknown.status_code, unknown.json()["waiting"]) == (410, ["a", "b"])
            first = await http.decide(run, "a", decision="approve", input={"n": 50})
            assert (first.status_code, [a["callId"] for a in first.json()["waiting"]]) == (200, ["b"])
            last = await http.decide(run, "b", decision="reject", reason="Enough.")
            assert (last.status_code, last.json()["waiting"]) == (200, [])
            ended = await http.rests(run)
            assert [s["n"] for s in seen] == [50]
            deep: Any = 1
            for _ in range(300):
                deep = {"n": deep}
            assert (await http.decide(run, "a", decision="approve", input=deep)).status_code == 422
            timeline = (await http.client.get(f"/v1/runs/{run}/timeline")).json()["items"]
            (edited,) = [i for i in timeline if i["kind"] == "TOOL_CALL" and i["callId"] == "a"]
            assert (edited["input"], edited["effectiveInput"]) == ({"n": 1}, {"n": 50})
            assert ended["status"] == "completed"

    go(main())


@shared
def test_an_edit_is_refused_where_the_agent_is_not_and_the_call_stays_pending(place):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="a")], say("Done.")], pay)

    async def main():
        async with served(place.runtime(desk)) as here, served(place.runtime()) as there:
            run = (await here.rests((await here.start())["runId"]))["runId"]
            refused = await there.decide(run, "a", decision="approve", input={"n": 2})
            assert (refused.status_code, refused.json()["type"][-15:]) == (409, "agent-elsewhere")
            assert (await there.decide(run, "a", decision="approve")).status_code == 200
            assert (await here.rests(run))["answer"] == "Done."

    go(main())


@both
@case("R187")
def test_of_runs_started_at_once_in_one_interaction_one_begins_and_others_conflict(place):
    gate = Gate()
    desk = agent([[call("work", at="hold")], say("Done.")], gate.tool())

    async def main():
        async with served(place.runtime(desk)) as http, served(place.runtime(desk)) as other:
            talk = (await http.client.post("/v1/interactions", json={})).json()["interactionId"]
            address, body = f"/v1/interactions/{talk}/runs", {"agent": "desk", "prompt": "go"}
            numbers = []
            for _ in range(2):
                gate.close("hold")
                answers = await asyncio.gather(*(s.client.post(address, json=body) for s in (http, other) * 5))
                assert sorted(a.status_code for a in answers) == [202] + [409] * 9
                gate.open("hold")
                (begun,) = [a.json()["runId"] for a in answers if a.status_code == 202]
                ended = await http.rests(begun)
                assert ended["status"] == "completed"
                numbers += [i["sequence"] for i in ended["context"]["items"]]
            assert numbers == list(range(1, 9))

    go(main())


@case("R139")
def test_half_a_surrogate_that_a_tool_returned_is_no_trouble_for_any_reader():
    @tool
    async def odd() -> str:
        """Return what no encoding has."""
        return "a\ud800b\x00"

    async def main():
        async with served(Runtime(agents=[agent([[call("odd", id="o")], say("Done.")], odd)])) as http:
            run = await http.rests((await http.start())["runId"])
            (item,) = [i for i in run["context"]["items"] if i["kind"] == "ToolResult"]
            assert item["result"] == "a\ufffdb\x00"
            address = f"/v1/runs/{run['runId']}"
            assert (await http.client.get(f"{address}/tool-results/{item['sequence']}")).text == item["result"]
            assert "RunEnded" in {e["event"] for e in await http.events(run["runId"])}
            for view in ("timeline", "trace"):
                assert (await http.client.get(f"{address}/{view}")).status_code == 200

    go(main())
