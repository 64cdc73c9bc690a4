"""What HTTP has for readers: results whole and in part, error reports, the trace, ETags, compression, limits."""

from __future__ import annotations

import gzip
import logging

import pytest

from counterfoil import Caller, Runtime, ToolError, tool
from counterfoil.core.errors import Conflict
from counterfoil.core.turn import date_json
from counterfoil.doors.http.results import byte_range
from counterfoil.testing import call, say
from tests.helpers import Gate, agent, both, broken, counted, fine, go
from tests.marks import case
from tests.served import PROBLEM, served

LONG = "é0123456789\n" * 8000


@tool(read_only=True)
def long_text() -> str:
    """A text that is kept apart."""
    return LONG


@both
def test_a_result_is_read_whole_in_bytes_and_in_characters_also_where_it_is_kept_apart(place):
    desk = agent([[call("long_text", id="l"), call("fine", id="f")], say("Done.")], long_text, fine)

    async def main():
        async with served(place.runtime(desk)) as http:
            run = await http.rests((await http.start())["runId"])
            results = [i for i in run["context"]["items"] if i["kind"] == "ToolResult"]
            assert (results[0]["result"], results[0]["resultSize"]) == (None, len(LONG.encode()))
            for item, text in zip(results, (LONG, "fine 0"), strict=True):
                address = f"/v1/runs/{run['runId']}/tool-results/{item['sequence']}"
                whole = await http.client.get(address)
                assert (whole.status_code, whole.text) == (200, text)
                assert whole.headers["content-type"] == "text/plain; charset=utf-8"
                assert whole.headers["x-characters"] == str(len(text))
                part = await http.client.get(address, headers={"Range": "bytes=1-4"})
                assert (part.status_code, part.content) == (206, text.encode()[1:5])
                assert part.headers["content-range"] == f"bytes 1-4/{len(text.encode())}"
                most = await http.client.get(address, headers={"Range": "bytes=1-5000"})
                assert (most.status_code, most.content) == (206, text.encode()[1:5001])
                assert "content-encoding" not in most.headers
                some = await http.client.get(address, params={"offset": 2, "limit": 3})
                assert (some.status_code, some.text) == (200, text[2:5])
                beyond = await http.client.get(address, headers={"Range": "bytes=9999999-"})
                assert (beyond.status_code, beyond.headers["content-type"]) == (416, PROBLEM)
                assert beyond.headers["content-range"] == f"bytes */{len(text.encode())}"
            none = await http.client.get(f"/v1/runs/{run['runId']}/tool-results/1")
            assert none.status_code == 404
            await http.runtime.erase(run["runId"])
            kept = f"/v1/runs/{run['runId']}/tool-results/{results[0]['sequence']}"
            gone = await http.client.get(kept)
            assert (gone.status_code, gone.json()["type"]) == (410, "urn:counterfoil:problem:erased")

    go(main())


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, None),
        ("bytes=0-", (0, 10)),
        ("bytes=2-3", (2, 4)),
        ("bytes=2-99", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
        ("bytes=3-2", None),
        ("bytes=0-1,4-5", None),
        ("items=0-1", None),
        ("bytes=-", None),
    ],
)
def test_a_range_is_understood_as_the_standard_has_it_or_counts_for_nothing(asked, found):
    assert byte_range(asked, 10) == found


@both
def test_error_reports_come_in_pages_that_neither_repeat_nor_lose_one_while_others_come(place):
    @tool
    async def fails(n: int) -> str:
        """Fail."""
        raise ToolError(f"no {n}", code=n)

    desk = agent([[call("fails", n=n) for n in range(7)], say("Done.")], fails)

    async def main():
        async with served(place.runtime(desk)) as http:
            run = await http.rests((await http.start())["runId"])
            await http.rests((await http.start())["runId"])
            for address, of in ((f"/v1/runs/{run['runId']}/errors", run["runId"]), ("/v1/errors", None)):
                wanted = [(r.run_id, r.call_id) for r in await http.runtime.errors(of)]
                seen, cursor = [], None
                while True:
                    params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
                    page = (await http.client.get(address, params=params)).json()
                    seen += [(r["runId"], r["callId"]) for r in page["items"]]
                    assert [r["at"] for r in page["items"]] == sorted((r["at"] for r in page["items"]), reverse=True)
                    cursor = page["next"]
                    if cursor is None:
                        break
                    await http.rests((await http.start())["runId"])  # what comes now is newer than every page to come
                assert seen == wanted
            one = (await http.client.get("/v1/errors", params={"tool": "fails", "code": 3, "limit": 1})).json()["items"]
            assert one[0]["error"]["type"] == "counterfoil.core.errors.ToolError"
            assert (one[0]["code"], one[0]["modelText"], one[0]["userContext"]["user"]) == (3, "no 3", "ada")
            late = await http.client.get("/v1/errors", params={"since": "2999-01-01T00:00:00Z"})
            assert late.json()["items"] == []
            bad = await http.client.get("/v1/errors", params={"cursor": "bm90aGluZw"})
            assert bad.status_code == 422

    go(main())


@both
def test_error_reports_are_counted_by_tool_and_code(place):
    @tool
    async def fails(n: int) -> str:
        """Fail."""
        raise ToolError("no", code=n % 2)

    desk = agent([[call("fails", n=n) for n in range(3)], [call("fails", n=0)], say("Done.")], fails)

    async def main():
        async with served(place.runtime(desk)) as http:
            await http.rests((await http.start())["runId"])

            async def groups(**params):
                answer = (await http.client.get("/v1/errors/groups", params=params)).json()
                assert answer["next"] is None
                return [(g["toolName"], g["code"], g["count"]) for g in answer["items"]]

            assert await groups() == [("fails", 0, 3), ("fails", 1, 1)]
            assert await groups(code=1) == [("fails", 1, 1)]
            assert await groups(limit=1) == [("fails", 0, 3)]
            assert await groups(tool="other") == await groups(since="2999-01-01T00:00:00Z") == []
            (found,) = (await http.client.get("/v1/errors/groups?code=0")).json()["items"]
            reports = await http.runtime.errors(code=0)
            (newest,) = await http.runtime.errors(since=reports[0].at)
            assert newest.at == reports[0].at
            (group,) = await http.runtime.error_groups(since=reports[0].at, until=reports[0].at_us)
            assert (group.count, group.first_at, group.last_at) == (1, newest.at, newest.at)
            assert [found["lastAt"], found["firstAt"]] == [date_json(reports[0].at), date_json(reports[-1].at)]

    go(main())


def test_the_pages_of_runs_approvals_and_items_are_stable_while_more_come():
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="a"), call("pay", id="b")], say("Done.")], pay)

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            begun = [await http.start() for _ in range(5)]
            for run in begun:
                await http.rests(run["runId"])
            for address, wanted in (
                ("/v1/runs", [r["runId"] for r in reversed(begun)]),
                ("/v1/approvals", [f"{r['runId']} {c}" for r in begun for c in "ab"]),
            ):
                seen, cursor = [], None
                while cursor is not None or not seen:
                    page = (
                        await http.client.get(address, params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
                    ).json()
                    seen += [f"{i['runId']} {i['callId']}" if "callId" in i else i["runId"] for i in page["items"]]
                    cursor = page["next"]
                    if address == "/v1/runs":
                        await http.rests((await http.start())["runId"])
                assert seen[: len(wanted)] == wanted
            address = f"/v1/runs/{begun[0]['runId']}/context"
            first = (await http.client.get(address, params={"limit": 2})).json()
            rest = (await http.client.get(address, params={"after": first["next"]})).json()
            whole = (await http.client.get(address)).json()
            assert (first["items"] + rest["items"], rest["next"]) == (whole["items"], None)
            await http.decide(begun[0]["runId"], "b", decision="reject")
            await so_many(http, address, whole["tip"], 1)

    async def so_many(http, address, tip, count):
        """What arrived after a tip is given, whatever number was reserved for it."""
        while len(new := (await http.client.get(address, params={"since": tip})).json()["items"]) < count:
            pass
        assert [(i["kind"], i["toolCallId"]) for i in new] == [("ToolResult", "b")]

    go(main())


def test_a_run_that_is_known_is_not_sent_again_until_something_changes():
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="a")], say("Done.")], pay)

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            run = await http.rests((await http.start())["runId"])
            address = f"/v1/runs/{run['runId']}"
            tag = (await http.client.get(address)).headers["etag"]
            for known in (tag, f'"other", {tag}', "*"):
                again = await http.client.get(address, headers={"If-None-Match": known})
                assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            await http.decide(run["runId"], "a", decision="approve")
            await http.rests(run["runId"])
            changed = await http.client.get(address, headers={"If-None-Match": tag})
            assert (changed.status_code, changed.headers["etag"] == tag) == (200, False)

    go(main())


@both
@case("R190")
def test_a_start_that_is_sent_again_with_its_key_is_one_run_of_its_tenant(place):
    gate = Gate()
    desk = agent([[call("work", at="hold")], say("Done.")], gate.tool())

    async def main():
        async with served(place.runtime(desk)) as http:
            body, key = {"agent": "desk", "prompt": "go"}, {"Idempotency-Key": "order-7"}
            first = await http.client.post("/v1/runs", json=body, headers=key)
            again = await http.client.post("/v1/runs", json=body, headers=key)
            assert (first.status_code, again.status_code) == (202, 202)
            assert first.json()["runId"] == again.json()["runId"]
            other = await http.client.post("/v1/runs", json={**body, "prompt": "stop"}, headers=key)
            assert other.status_code == 409
            for field in ({"priority": 3}, {"pool": "x"}, {"limits": {"steps": 2}}, {"onDisconnect": "cancel"}):
                assert (await http.client.post("/v1/runs", json={**body, **field}, headers=key)).status_code == 409
            with pytest.raises(Conflict):  # whoever sends it gets no run that works for somebody else
                await http.runtime.start("desk", "go", caller=Caller(user="bob"), key="order-7")
            theirs = await http.runtime.start("desk", "go", caller=Caller(tenant="acme"), key="order-7")
            assert theirs.id != first.json()["runId"]
            assert len((await http.client.get("/v1/runs")).json()["items"]) == 1
            gate.open("hold")

    go(main())


def test_the_trace_has_what_the_model_was_asked_in_each_step_and_what_it_answered():
    desk = agent([[call("fine", id="f")], say("Done.")], fine)

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            run = await http.rests((await http.start(prompt="Do it."))["runId"])
            first, second = (await http.client.get(f"/v1/runs/{run['runId']}/trace")).json()["items"]
            assert [m["content"] for m in first["request"]["messages"]] == ["Do it."]
            assert [c["toolName"] for c in first["response"]["calls"]] == ["fine"]
            assert [m["role"] for m in second["request"]["messages"]] == ["assistant", "tool"]
            assert second["response"]["text"] == "Done."
            whole = (await http.client.get(f"/v1/runs/{run['runId']}/trace", params={"all": True})).json()["items"]
            assert [m["role"] for m in whole[1]["request"]["messages"]] == ["user", "assistant", "tool"]
            page = (await http.client.get(f"/v1/runs/{run['runId']}/trace", params={"limit": 1})).json()
            assert [step["step"] for step in page["items"]] == [0]
            more = {"limit": 1, "cursor": page["next"]}
            rest = (await http.client.get(f"/v1/runs/{run['runId']}/trace", params=more)).json()
            assert rest == {"items": [second], "next": None}

    go(main())


def test_long_answers_are_compressed_for_who_asks_for_it():
    desk = agent([[call("fine", id=f"f{n}") for n in range(20)], say("Done.")], fine)

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            run = await http.rests((await http.start())["runId"])
            address = f"/v1/runs/{run['runId']}"
            async with http.client.stream("GET", address, headers={"Accept-Encoding": "gzip"}) as answer:
                raw = b"".join([chunk async for chunk in answer.aiter_raw()])
            assert answer.headers["content-encoding"] == "gzip"
            for refuses in ("identity", "gzip;q=0", "GZIP ; q=0.000, identity", "br, gzip;q=0"):
                plain = await http.client.get(address, headers={"Accept-Encoding": refuses})
                assert "content-encoding" not in plain.headers
                assert gzip.decompress(raw) == plain.content
            assert len(raw) < len(plain.content) / 4
            for takes in ("gzip;q=0.1", "gzip, br;q=0", "gzip; q=1"):
                answer = await http.client.get(address, headers={"Accept-Encoding": takes})
                assert answer.headers["content-encoding"] == "gzip"

    go(main())


def test_a_key_that_asks_too_often_is_told_when_to_try_again():
    async def main():
        async with served(Runtime(agents=[agent([say("x")])]), rate=(3, 3600.0)) as http:
            for _ in range(3):
                assert (await http.client.get("/v1/runs")).status_code == 200
            over = await http.client.get("/v1/runs")
            assert (over.status_code, over.headers["content-type"]) == (429, PROBLEM)
            assert 1100 < int(over.headers["retry-after"]) <= 1200
            assert (await http.client.get("/healthz")).status_code == 200

    go(main())


def test_each_request_has_an_id_in_its_answer_and_in_the_log(caplog):
    desk = agent([[call("broken", id="b")], say("x")], broken)

    async def main():
        async with served(Runtime(agents=[desk])) as http:
            with caplog.at_level(logging.INFO, "counterfoil.http"):
                mine = await http.client.get("/v1/runs", headers={"X-Request-Id": "order-7/1"})
                forged = await http.client.get("/v1/runs", headers={"X-Request-Id": "a b"})
            assert mine.headers["x-request-id"] == "order-7/1"
            assert " " not in forged.headers["x-request-id"]
            lines = [record.getMessage() for record in caplog.records if record.name == "counterfoil.http"]
            assert [line.rpartition(" ")[2] for line in lines] == ["order-7/1", forged.headers["x-request-id"]]
            assert all(line.startswith("GET /v1/runs 200 in ") for line in lines)

    go(main())
