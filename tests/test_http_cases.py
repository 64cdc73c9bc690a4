"""Cases of the field as a client of the service meets them: what a decision is of, whose a key is, who is asked."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil import Policy, Rule, Runtime, Tool, ToolResult, tool
from counterfoil.core.content import File, Image, Link
from counterfoil.core.content import Text as TextBlock
from counterfoil.core.turn import author
from counterfoil.testing import call, say
from tests.helpers import Gate, agent, arrives, both, broken, content, counted, fine, go, requests, shared, told
from tests.marks import case, law
from tests.served import Served, served
from tests.test_http_keys import keyed

ASKS = Rule("asks", tool="*", then="ask")


async def waits(http: Served, run_id: str) -> dict[str, dict[str, Any]]:
    """What is asked of people about a run that has come to rest, by call."""
    await http.rests(run_id)
    items = (await http.client.get("/v1/approvals", params={"run": run_id})).json()["items"]
    return {a["callId"]: a for a in items}


async def results(http: Served, run_id: str) -> dict[str, dict[str, Any]]:
    """The results of a run, by call."""
    items = (await http.client.get(f"/v1/runs/{run_id}/context")).json()["items"]
    return {i["toolCallId"]: i for i in items if i["kind"] == "ToolResult"}


@shared
@law("7.9", "7.4")
@case("R052", "R053")
def test_what_a_person_refused_does_not_run_at_a_server_whose_agent_would_ask_nobody(place):
    ran = []
    count, seen = counted("count")
    made = Tool("made", "Made elsewhere.", {"type": "object"}, lambda given: ran.append(given) or "ran")
    turns = [[call("count", id="a"), call("made", id="b")], say("Done.")]

    async def main():
        async with served(place.runtime(agent(turns, count, made, policy=Policy(rules=[ASKS])))) as asking:
            run = (await asking.start())["runId"]
            assert set(await waits(asking, run)) == {"a", "b"}
        async with served(place.runtime()) as deciding:
            for call_id in "ab":
                assert (await deciding.decide(run, call_id, decision="reject")).status_code == 200
        async with served(place.runtime(agent(turns, count, made))) as driving:
            assert (await driving.rests(run))["status"] == "completed"
            assert {i["outcome"] for i in (await results(driving, run)).values()} == {"rejected"}
        assert (ran, seen) == ([], [])

    go(main())


@both
@law("7.1", "7.2.digest", "2.5")
@case("R031", "R055", "R059", "R061", "R067", "R068", "R071", "R073")
def test_a_decision_is_of_one_call_with_its_very_input_and_the_model_waits_for_the_last_one(place):
    pay, paid = counted("pay", needs_approval=True)
    send, sent = counted("send", needs_approval=True)
    batch = [
        call("pay", n=10, id="b"), call("pay", n=1000, id="c"), call("send", n=10, id="d"), call("fine", id="f"),
    ]  # fmt: skip  # one row
    desk = agent([call("pay", n=10, id="a"), batch, say("Done.")], pay, send, fine)

    async def main():
        async with served(place.runtime(desk)) as http:
            run = (await http.start())["runId"]
            first = (await waits(http, run))["a"]
            for scope in ("once", "run", "thread", "tool"):
                refused = await http.decide(run, "a", decision="approve", scope=scope)
                assert (refused.status_code, "scope" in refused.json()["detail"]) == (422, True)
            assert (set(await waits(http, run)), len(requests(desk)), paid) == ({"a"}, 1, [])
            assert (await http.decide(run, "a", decision="approve", digest=first["digest"])).status_code == 200
            asked = await waits(http, run)
            assert list(asked) == ["b", "c", "d"]
            assert len({a["id"] for a in (first, *asked.values())}) == 4
            for other in "cd":  # the digest of what was approved fits neither other input nor another tool
                stale = await http.decide(run, other, decision="approve", digest=first["digest"])
                assert (stale.status_code, stale.json()["waiting"]) == (409, ["b", "c", "d"])
            assert set(await results(http, run)) == {"a", "f"}
            for call_id, decision, rest in (("d", "approve", ["b", "c"]), ("c", "reject", ["b"]), ("b", "approve", [])):
                answer = await http.decide(run, call_id, decision=decision, digest=asked[call_id]["digest"])
                assert [a["callId"] for a in answer.json()["waiting"]] == rest
                assert len(requests(desk)) == 2 or not rest
            assert (await http.rests(run))["status"] == "completed"
            assert ([s["n"] for s in paid], [s["n"] for s in sent]) == ([10, 10], [10])
            found = {call_id: i["outcome"] for call_id, i in (await results(http, run)).items()}
            assert found == {"a": "succeeded", "b": "succeeded", "c": "rejected", "d": "succeeded", "f": "succeeded"}
            assert (len(requests(desk)), list(told(desk))) == (3, ["a", "b", "c", "d", "f"])

    go(main())


@both
@law("4.rejection")
@case("R056")
def test_a_client_tells_what_a_person_refused_from_what_failed_and_the_very_call_can_be_barred(place):
    pay, seen = counted("pay")
    rules = [Rule("asks", tool="pay", then="ask"), Rule("rest", then="allow")]
    turns = [[call("pay", n=1, id="a"), call("broken", id="b")], [call("pay", n=1, id="again")], say("Done.")]
    desk = agent(turns, pay, broken, policy=Policy(rules=rules, repeat_block=True))

    async def main():
        async with served(place.runtime(desk)) as http:
            run = (await http.start())["runId"]
            assert set(await waits(http, run)) == {"a"}
            await http.decide(run, "a", decision="reject", reason="Not him.")
            assert (await http.rests(run))["status"] == "completed"
            found = await results(http, run)
            assert {id_: (i["outcome"], i["rejectionReason"]) for id_, i in found.items()} == {
                "a": ("rejected", "Not him."), "b": ("failed", None), "again": ("denied", None),
            }  # fmt: skip  # one row
            for part in ("person refused", "Not him.", "Do not try the same call again"):
                assert part in found["a"]["result"]
            assert seen == []

    go(main())


@shared
@law("7.4", "7.2.digest")
@case("R064", "R070")
def test_a_stricter_policy_asks_again_and_what_was_said_of_the_first_question_decides_no_second(place):
    pay, seen = counted("pay")
    turns = [call("pay", n=1, id="a"), say("Done.")]
    stricter = Policy(rules=[Rule("second look", tool="pay", then="ask", reason="Since Monday.")])

    async def main():
        async with served(place.runtime(agent(turns, pay, policy=Policy(rules=[ASKS])))) as before:
            run = (await before.start())["runId"]
            first = (await waits(before, run))["a"]
        async with served(place.runtime(agent(turns, pay, policy=stricter))) as http:
            mine = {"decision": "approve", "digest": first["digest"]}
            assert (await http.decide(run, "a", **mine)).status_code == 200
            second = (await waits(http, run))["a"]
            assert (second["after"], second["rule"], second["reason"]) == (first["id"], "second look", "Since Monday.")
            repeated = await http.decide(run, "a", **mine)
            assert (repeated.status_code, repeated.json()["approval"]["id"]) == (200, first["id"])
            for other in ({**mine, "decision": "reject"}, {**mine, "input": {"n": 2}}):
                refused = await http.decide(run, "a", **other)
                assert (refused.status_code, refused.json()["waiting"]) == (409, ["a"])
            assert (set(await waits(http, run)), seen) == ({"a"}, [])
            assert (await http.decide(run, "a", decision="approve", digest=second["digest"])).status_code == 200
            assert (await http.rests(run))["status"] == "completed"
            assert len(seen) == 1

    go(main())


@both
@law("7.2.one-by-one")
@case("R074")
def test_a_run_that_asks_one_by_one_blames_nobody_for_the_calls_that_are_not_asked_about_yet(place):
    pay, seen = counted("pay", needs_approval=True)
    desk = agent([[call("pay", n=n, id=id_) for n, id_ in enumerate("abc")], say("Done.")], pay)

    async def main():
        async with served(place.runtime(desk)) as http:
            body = {"agent": "desk", "prompt": "go", "approvals": "all at once"}
            assert (await http.client.post("/v1/runs", json=body)).status_code == 422
            run = (await http.start(approvals="one-by-one"))["runId"]
            for at, call_id in enumerate("abc"):
                assert list(await waits(http, run)) == [call_id]
                assert list(await results(http, run)) == list("abc"[:at])
                assert (await http.decide(run, call_id, decision="approve")).status_code == 200
            assert (await http.rests(run))["status"] == "completed"
            assert [s["n"] for s in seen] == [0, 1, 2]
            assert {i["outcome"] for i in (await results(http, run)).values()} == {"succeeded"}

    go(main())


TEXT = {"type": "text", "text": "It went out."}
NO_RESULTS: list[Any] = [
    {}, {"content": []}, {"content": "x"}, {"content": ["x"]}, {"content": [{"type": "text"}]},
    {"content": [{"type": "text", "text": 5}]}, {"content": [{"type": "moon"}]},
    {"content": [{"type": "kept", "id": "x", "size": 1, "preview": "x"}]},
    {"content": [{"type": "link", "uri": 5}]}, {"content": [{"type": "image", "data": "!", "mime": "image/png"}]},
    {"content": [TEXT], "narration": 5}, {"content": [TEXT], "terminate": "perhaps"}, {"content": [TEXT], "more": 1},
    {"content": [TEXT], "outcome": {"type": "denied"}}, {"content": [TEXT], "outcome": "failed"},
    *(
        {"content": [TEXT], "outcome": {"type": "failed", "failure": {name: value}}}
        for name, value in (("code", "x"), ("code", 5001), ("code", True), ("message", 5), ("origin", "gateway"))
    ),
]  # fmt: skip  # rows by what belongs together


@shared
@law("7.6", "1.4.author")
def test_what_a_person_records_is_a_result_or_is_refused_and_the_call_waits_on(place):
    gate = Gate()
    turns = [call("work", at="x", id="w"), say("Done.")]
    whole = ToolResult.blocks(
        TextBlock("See:"), Image(b"12345"), File(b"1", "text/csv", "a.csv"), Link("https://a", "A")
    )
    given = {
        **whole.with_details({"n": 2**60}).with_narration("Looked it up").to_dict(),
        "outcome": {"type": "failed", "failure": {"code": 7, "message": "by hand", "data": [1]}},
    }

    async def main():
        async with place.runtime(agent(turns, gate.tool())) as first:
            run = (await first.start("desk", "go")).id
            await gate.began("x")
        async with served(place.runtime(agent(turns, gate.tool()))) as http:
            await arrives(await http.runtime.get(run), "paused")
            for wrong in NO_RESULTS:
                refused = await http.decide(run, "w", decision="record", result=wrong)
                assert (refused.status_code, "body.result" in refused.json()["detail"]) == (422, True), wrong
            assert set(await waits(http, run)) == {"w"}
            assert (await http.decide(run, "w", decision="record", result=given)).status_code == 200
            assert (await http.rests(run))["status"] == "completed"
            shown = (await http.client.get(f"/v1/runs/{run}/timeline")).json()["items"]
            (part,) = [i for i in shown if i["kind"] == "TOOL_RESULT"]
            assert (part["errorCode"], part["author"]["type"]) == (7, "Human")
            told_failure = part["result"]["outcome"].pop("failure")
            assert {name: told_failure[name] for name in given["outcome"].pop("failure")} == {
                "code": 7, "message": "by hand", "data": [1],
            }  # fmt: skip  # one row
            assert part["result"] == given
            await content(http.runtime)

    go(main())


@both
@law("10.does-not-exist")
@case("R190")
def test_the_same_idempotency_key_of_two_tenants_makes_two_of_everything(place):
    desk = agent([say("Done.")])
    bodies = {"/v1/runs": {"agent": "desk", "prompt": "go"}, "/v1/interactions": {"participants": []}}

    async def main():
        async with (
            served(place.runtime(desk), dev=None) as http,
            keyed(http, user="ada", tenant="acme") as (ada, _),
            keyed(http, user="ada", tenant="globex") as (other, _),
        ):
            made = []
            for path, body in bodies.items():
                for client in (ada, other, ada, other):
                    answer = await client.post(path, json=body, headers={"Idempotency-Key": "order-7"})
                    assert answer.status_code in (201, 202), answer.text
                    made.append(answer.json()["interactionId"])
            assert (made[:2], made[4:6]) == (made[2:4], made[6:])
            assert len(set(made)) == 4
            for client, mine in ((ada, made[::2]), (other, made[1::2])):
                listed = (await client.get("/v1/interactions")).json()["items"]
                assert {talk["interactionId"] for talk in listed} == set(mine)

    go(main())


@law("9.unknown", "9.ask")
@case("R196")
def test_a_question_to_nobody_fails_and_the_thread_of_one_who_is_unknown_shows_nothing():
    miner = agent([say("Never.")], name="miner")
    asks = call("ask", participant="nobody", question="Who?", id="q")
    chief = agent([asks, say("Done.")], name="chief", manages=[miner])

    async def main():
        async with served(Runtime(agents=[chief])) as http:
            run = (await http.rests((await http.start("chief"))["runId"]))["runId"]
            (item,) = (await results(http, run)).values()
            assert (item["outcome"], "miner (Agent)" in item["result"]) == ("failed", True)
            assert len((await http.client.get("/v1/runs")).json()["items"]) == 1
            who = author("Agent", "nobody", "default").id
            for view in ("context", "timeline"):
                for thread in (f"question:{who}:1", f"private:{who}", f"dispatch:{who}:1"):
                    shown = await http.client.get(f"/v1/runs/{run}/{view}", params={"thread": thread})
                    assert (shown.status_code, shown.json()["items"]) == (200, [])
                wrong = await http.client.get(f"/v1/runs/{run}/{view}", params={"thread": "question:nobody:1"})
                assert wrong.status_code == 422

    go(main())


@both
@case("R199", "R121")
@pytest.mark.parametrize("text", ['{"a":1}', "[1]", "12", "null", "true", '"'])
def test_a_text_that_holds_json_stays_that_text_from_the_model_and_from_a_person(place, text):
    seen = []

    @tool(needs_approval=True)
    async def post(body: str) -> str:
        """Post it."""
        seen.append(body)
        return body

    schema = {"type": "object", "properties": {"body": {"type": "string"}}}
    made = Tool(
        "made", "Post it.", schema, lambda given: seen.append(given["body"]) or given["body"], needs_approval=True
    )
    calls = [call(name, body=body, id=f"{name} {body}") for name in ("post", "made") for body in (text, "old")]

    async def main():
        async with served(place.runtime(agent([calls, say("Done.")], post, made))) as http:
            run = (await http.start())["runId"]
            for call_id, asked in (await waits(http, run)).items():
                edit = {"input": {"body": text}} if call_id.endswith("old") else {}
                assert asked["input"] == {"body": "old" if edit else text}
                assert (await http.decide(run, call_id, decision="approve", **edit)).status_code == 200
            await http.rests(run)
            assert seen == [text] * 4
            for item in (await results(http, run)).values():
                assert item["result"].endswith(text)

    go(main())
