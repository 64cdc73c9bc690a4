"""Contract 1.4 over HTTP: each way for a call to end, on each kind of thread, field by field."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from counterfoil import Agent, Caller, Hooks, Limits, Policy, Rule, Runtime, Skip, Tool, ToolError, ToolResult, tool
from counterfoil.core.content import Image, Text
from counterfoil.core.turn import author
from counterfoil.testing import FrozenEffects, ScriptedModel, call, say
from counterfoil.testing import records as r
from tests.helpers import Gate, Place, agent, content, counted, fine, go, so, until
from tests.marks import case, law
from tests.served import Served, served
from tests.test_http_reading import LONG, long_text
from tests.test_http_wire import DATE, FIELDS, MORE

HUSH = "hush"
"""In details, narrations, exceptions and what an operator reads: never in an item."""
THREADS = ("main", "private", "dispatch", "question")
DESK = author("Agent", "desk", "default")


@dataclass(frozen=True)
class Way:
    """What the table says of a call that ended so; the result is what the model read."""

    outcome: str
    author: str
    size: int | None = None
    """None: the bytes of the result."""
    reason: str | None = None
    kept: bool = False


WAYS = {
    "record": Way("succeeded", "Human"),
    "failed": Way("failed", "Human"),
    "rerun": Way("succeeded", "Agent"),
    "tell": Way("failed", "System"),
    "told": Way("succeeded", "Agent"),
    "empty": Way("succeeded", "Agent", 0),
    "picture": Way("succeeded", "Agent", len("See:") + 5),
    "long_text": Way("succeeded", "Agent", len(LONG.encode()), kept=True),
    "coded": Way("failed", "Agent"),
    "uncoded": Way("failed", "Agent"),
    "raises": Way("failed", "Agent"),
    "slow": Way("failed", "Agent"),
    "big": Way("failed", "Agent", len("much")),
    "odd": Way("failed", "Agent"),
    "refuses": Way("denied", "Agent"),
    "barred": Way("denied", "System"),
    "broken": Way("failed", "System"),
    "unknown": Way("failed", "System"),
    "hidden": Way("failed", "System"),
    "invalid": Way("failed", "System"),
    "guarded": Way("failed", "System"),
    "unsure": Way("failed", "System"),
    "late": Way("failed", "System"),
    "no": Way("rejected", "Human", reason="No reason was given."),
    "why": Way("rejected", "Human", reason="Too much, says «Ada»."),
    "yes": Way("succeeded", "Agent"),
    "edited": Way("succeeded", "Agent", len("pay 9, time 1")),  # the line that tells of the edit is no output
    "passed": Way("skipped", "System"),
    "same": Way("succeeded", "Agent"),
    "again": Way("skipped", "System"),
    "cut": Way("skipped", "System"),
    "waits": Way("cancelled", "Agent"),
    "held": Way("cancelled", "Agent"),
}  # by the call's id; `again` is the second one of the id `same`
SAME = ("sequence", "date", "author", "resultSize", "toolResultId", "rejectionReason")
"""Fields that the items have in common with the parts of the timeline and of the events."""
WHOLE = ("told", "empty", "picture", "long_text", "coded", "why", "edited")
"""Results that are read whole too."""
DECISIONS: dict[str, dict[str, Any]] = {
    "record": {"decision": "record", "result": "It went out."},
    "failed": {"decision": "record", "result": ToolResult.error("It did not.").with_details(HUSH).to_dict()},
    "rerun": {"decision": "rerun"},
    "no": {"decision": "reject"},
    "why": {"decision": "reject", "reason": "Too much, says «Ada»."},
    "yes": {"decision": "approve"},
    "edited": {"decision": "approve", "input": {"n": 9}},
}


def plain(name: str, gives: Any, **settings: Any) -> Tool:
    """A tool that gives this, or raises it."""

    @tool(name=name, description="Do it.", **settings)
    async def body():
        if isinstance(gives, Exception):
            raise gives
        return gives

    return body


@tool(timeout=0.01)
async def slow() -> str:
    """Sleep."""
    await asyncio.sleep(60)
    return ""


def raises(_: object) -> Any:
    raise RuntimeError(HUSH)


def guard(seen: Any) -> Skip | None:
    if seen.tool.name == "guarded":
        raises(seen)
    return Skip("Not today.") if seen.tool.name == "passed" else None


def team(gate: Gate) -> tuple[Agent, Agent]:
    """An agent in whose run a call ends in each way, and a manager that has it work twice."""
    pay, _ = counted("pay", needs_approval=True)
    told = ToolResult.text("déjà vu").with_details({"of": HUSH}).with_narration(HUSH)
    bodies = [
        plain("told", told), plain("empty", None), plain("picture", ToolResult.blocks(Text("See:"), Image(b"12345"))),
        plain("coded", ToolError("There is none.", code=404, data=HUSH, details={"of": HUSH}, narration=HUSH)),
        plain("uncoded", ToolResult.error("It is shut.")), plain("raises", ValueError(HUSH)),
        plain("big", "much", max_output_bytes=3, on_oversize="fail"), plain("odd", object()),
        plain("refuses", ToolResult.denied("Not for you.")), plain("hidden", "", offered=lambda: False),
        *(plain(name, "") for name in ("barred", "guarded", "unsure", "late", "passed")), long_text, slow,
    ]  # fmt: skip  # rows by what belongs together
    rules = [
        Rule("never", tool="barred", then="deny", reason="Closed."), Rule("asks", tool="pay", then="ask"),
        Rule("late", tool="late", then="ask", expires_in=0.001), Rule("rest", then="allow"),
        Rule("unsure", tool="unsure", then="deny", when=raises),
    ]  # fmt: skip  # as above
    turns = [
        [*(call("hold", at=at, id=at) for at in ("record", "failed", "rerun")), call("tell", at="tell", id="tell")],
        [
            *(call(body.name, id=body.name) for body in bodies), call("fine", raw="{", id="broken"),
            call("nothing", id="unknown"), call("fine", n="many", id="invalid"),
            *(call("pay", n=n, id=id_) for n, id_ in enumerate(("no", "why", "yes", "edited"))),
            call("fine", id="same"), call("fine", id="same"),
        ],
        [call("fine", id="cut"), say("", stop="length")],
        [call("pay", id="waits"), call("hold", at="end", id="held")],
    ]  # fmt: skip  # as above
    desk = Agent(
        "desk", ScriptedModel(turns), policy=Policy(rules=rules), hooks=Hooks(before_call=guard),
        tools=[*bodies, pay, fine, gate.tool("hold"), gate.tool("tell", on_interrupted="tell")],
    )  # fmt: skip  # as above
    hands_on = [
        call("dispatch", agent="desk", task="go", id="d"),
        call("ask", participant="desk", question="go?", id="q"),
    ]
    return desk, agent([hands_on, say("Done.")], name="chief", manages=[desk])


@dataclass
class Shown:
    """What a client was given of the run on one thread."""

    run_id: str
    thread: str | None = None
    before: set[str] = field(default_factory=set)
    """Ids of calls that had a result while they waited for a person."""
    items: list[dict[str, Any]] = field(default_factory=list)
    """In pages of seven."""
    others: list[list[dict[str, Any]]] = field(default_factory=list)
    """The same in other answers."""
    timeline: dict[str, dict[str, Any]] = field(default_factory=dict)
    live: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The parts that the events brought."""
    whole: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    """The whole result, and the header with its size."""
    read: dict[str, str] = field(default_factory=dict)
    """What the model read of each call."""

    def of(self, way: str) -> dict[str, Any]:
        """The item of the call that ended so."""
        results = [i for i in self.items if i["kind"] == "ToolResult"]
        at = next(n for n, i in enumerate(results) if i["toolCallId"] == ("same" if way == "again" else way))
        return results[at + (way == "again")]


def flat(item: dict[str, Any]) -> dict[str, Any]:
    """With an author that can be looked up."""
    return {**item, "author": tuple(item["author"].values())}


async def decided(http: Served, shown: Shown) -> None:
    """Everything that people decide in a run, each when it is asked for."""
    for call_id, body in DECISIONS.items():

        async def waits(call_id: str = call_id) -> bool:
            page = (await http.client.get("/v1/approvals", params={"limit": 500})).json()
            return (shown.run_id, call_id) in {(a["runId"], a["callId"]) for a in page["items"]}

        await so(waits)
        items = (await http.client.get(f"/v1/runs/{shown.run_id}")).json()["context"]["items"]
        shown.before |= {i["toolCallId"] for i in items if i["kind"] == "ToolResult"} & {call_id}
        answer = await http.decide(shown.run_id, call_id, **body)
        assert answer.status_code == 200, answer.text


async def shows(http: Served, shown: Shown) -> None:
    """Read what stands on the thread, in every way that there is."""
    address, thread = f"/v1/runs/{shown.run_id}", {"thread": shown.thread or "main", "limit": 500}
    after: int | None = 0
    while after is not None:
        page = (await http.client.get(f"{address}/context", params={"after": after, "limit": 7})).json()
        shown.items += page["items"]
        after = page["next"]
    for path, params in ((f"{address}/context", thread), (f"{address}/context", {"limit": 500})):
        shown.others.append((await http.client.get(path, params=params)).json()["items"])
    shown.others.append(await http.runtime.context(shown.run_id))
    shown.others.append((await http.client.get(address)).json()["context"]["items"])
    timeline = (await http.client.get(f"{address}/timeline")).json()["items"]
    shown.timeline = {i["callId"]: i for i in timeline if i["kind"] == "TOOL_RESULT"}
    ended = [e["data"] for e in await http.events(shown.run_id) if e["event"] == "CallEnded"]
    shown.live = {data["callId"]: data["part"] for data in ended}
    assert len(ended) == len(shown.live)
    for way in WHOLE:
        item = shown.of(way)
        answer = await http.client.get(f"{address}/tool-results/{item['sequence']}")
        shown.whole[way] = answer.content, answer.headers["x-bytes"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    """What was shown, by kind of thread."""
    place, gate = Place("sqlite", tmp_path_factory.mktemp("table")), Gate()

    async def main() -> dict[str, Shown]:
        async with place.runtime() as first:  # nothing puts a run on a private thread by itself
            alone = r.new_run(
                "alone", "talk", tenant="default", agent="desk", thread_id=f"private:{DESK.id}", owner=first.owner
            )
            await first.store.create(alone)
        async with place.runtime(*team(gate)) as second:
            for name in ("desk", "chief"):
                await second.start(name, "go", caller=Caller(user="ada"))
            await until(lambda: all(gate.log.count(f"+{at}") == 4 for at in ("record", "failed", "rerun", "tell")))
        gate.open("rerun")  # the others died with their process
        desk, chief = team(gate)
        async with served(place.runtime(desk, chief)) as http:
            rows = [row for row in (await http.client.get("/v1/runs")).json()["items"] if row["agent"] == "desk"]
            runs = [(await http.client.get(f"/v1/runs/{row['runId']}")).json() for row in rows]
            found = {
                (run["threadId"] or "main").partition(":")[0]: Shown(run["runId"], run["threadId"]) for run in runs
            }
            await asyncio.gather(*(decided(http, shown) for shown in found.values()))
            await until(lambda: gate.log.count("+end") == len(found))
            for shown in found.values():
                answer = await http.client.post(f"/v1/runs/{shown.run_id}/cancel", json={"reason": "Enough."})
                assert answer.status_code == 202, answer.text
                assert (await http.rests(shown.run_id))["status"] == "cancelled"
                for seen in desk.model.requests:
                    if seen.run_id == shown.run_id:
                        shown.read |= {m["tool_call_id"]: m["content"] for m in seen.messages if m["role"] == "tool"}
                await shows(http, shown)
            await content(http.runtime)
        return found

    return go(main())


@law("1.4.every-field", "1.4.toolCallId", "1.4.result", "1.4.isError", "1.4.toolResultId", "1.4.resultSize",
     "1.4.rejectionReason", "1.4.sequence", "1.4.author", "1.4.date", "1.4.threadId", "1.4.beside")  # fmt: skip
@pytest.mark.parametrize("thread", THREADS)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_end_has_every_field_of_the_table_on_each_kind_of_thread(
    table: dict[str, Shown], thread: str, way: str
) -> None:
    shown, told = table[thread], WAYS[way]
    item = shown.of(way)
    assert set(item) == FIELDS | MORE
    assert (item["kind"], item["runId"], item["outcome"]) == ("ToolResult", shown.run_id, told.outcome)
    assert item["toolCallId"] == way or (way == "again" and item["toolCallId"] not in WAYS)
    if told.kept:
        assert (item["result"], str(uuid.UUID(item["toolResultId"]))) == (None, item["toolResultId"])
    else:
        assert (type(item["result"]), item["toolResultId"]) == (str, None)
        assert item["result"] == shown.read.get(item["toolCallId"], item["result"]) != ""
    assert item["isError"] is (told.outcome not in ("succeeded", "skipped"))
    size = len(item["result"].encode()) if told.size is None else told.size
    assert (type(item["resultSize"]), item["resultSize"]) == (int, size)
    assert item["rejectionReason"] == told.reason
    assert type(item["sequence"]) is int
    name = {"Human": "ada", "Agent": "desk", "System": "counterfoil"}[told.author]
    who = author(told.author, name, "default")
    assert item["author"] == {"id": str(uuid.UUID(who.id)), "name": name, "type": told.author}
    assert DATE.fullmatch(item["date"])
    assert item["threadId"] == shown.thread


@pytest.mark.parametrize("thread", THREADS)
def test_what_the_model_read_of_a_call_is_its_result(table: dict[str, Shown], thread: str) -> None:
    shown = table[thread]
    unread = {"waits", "held"}  # the run was cancelled before a next request
    assert set(shown.read) == {i["toolCallId"] for i in shown.items if i["kind"] == "ToolResult"} - unread
    assert shown.read["long_text"].startswith(LONG[:100])
    assert shown.of("told")["result"] == "déjà vu"
    assert shown.of("picture")["result"] == "See:\n[image, image/png, 5 bytes]"
    assert shown.of("empty")["result"] == "(no output)"
    assert shown.of("edited")["result"].partition("pay 9")[1:2] == ("pay 9",)
    assert "Too much, says «Ada»." in shown.of("why")["result"]


@law("1.4.whole", "1.4.resultSize")
@pytest.mark.parametrize("thread", THREADS)
@pytest.mark.parametrize("way", WHOLE)
def test_the_whole_result_has_the_size_that_its_item_says(table: dict[str, Shown], thread: str, way: str) -> None:
    shown, item = table[thread], table[thread].of(way)
    whole, size = shown.whole[way]
    assert whole.decode() == (LONG if way == "long_text" else item["result"])
    assert int(size) == item["resultSize"]


@law("1.4.sequence", "1.4.date", "2.2")
@pytest.mark.parametrize("thread", THREADS)
def test_items_stand_in_reading_order_and_each_answer_has_the_same(table: dict[str, Shown], thread: str) -> None:
    shown = table[thread]
    *whole, first_page = shown.others
    assert all(other == shown.items for other in whole)
    assert first_page == shown.items[:50] != shown.items
    numbers = [i["sequence"] for i in shown.items]
    assert numbers == sorted(set(numbers))
    calls = [i["toolCallId"] for i in shown.items if i["kind"] == "ToolCall"]
    results = [i for i in shown.items if i["kind"] == "ToolResult"]
    assert [i["toolCallId"] for i in results] == calls
    asked = {i["toolCallId"]: i["date"] for i in shown.items if i["kind"] == "ToolCall"}
    now = datetime.now(UTC).isoformat()
    assert all(asked[i["toolCallId"]] <= i["date"] < now for i in results)
    for parts in (shown.timeline, shown.live):
        assert {(i["toolCallId"], *(i[name] for name in SAME)) for i in map(flat, results)} == {
            (id_, *(i.get(name) for name in SAME)) for id_, i in ((id_, flat(part)) for id_, part in parts.items())
        }


@law("2.6")
@case("R167")
@pytest.mark.parametrize("thread", THREADS)
def test_no_item_has_anything_of_details_narration_or_an_exception(table: dict[str, Shown], thread: str) -> None:
    shown = table[thread]
    assert HUSH in str(shown.timeline), "there is something to keep quiet about"
    assert HUSH not in str(shown.items)


@case("R058")
@pytest.mark.parametrize("thread", THREADS)
def test_a_call_that_waits_for_a_person_has_no_result_yet(table: dict[str, Shown], thread: str) -> None:
    assert table[thread].before == set()


@law("1.4.author", "3.5004", "3.4290")
def test_a_task_that_failed_is_the_managers_own_failure_and_what_a_limit_refuses_is_the_systems() -> None:
    lost = agent([call("fine")], fine, name="lost")  # its model has no second turn
    turns = [call("dispatch", agent="lost", task="go", id="child"), [call("fine", id="last"), call("fine", id="over")]]
    chief = agent([*turns, say("Done.")], fine, name="chief", manages=[lost], limits=Limits(calls=2))

    async def main() -> None:
        async with served(Runtime(agents=[chief])) as http:
            run = await http.rests((await http.start("chief"))["runId"])
            items = (await http.client.get(f"/v1/runs/{run['runId']}/context", params={"thread": "main"})).json()[
                "items"
            ]
            results = [i for i in items if i["kind"] == "ToolResult"]
            assert all(set(i) == FIELDS | MORE for i in results)
            assert [(i["toolCallId"], i["outcome"], i["author"]["name"], i["rejectionReason"]) for i in results] == [
                ("child", "failed", "chief", None), ("last", "succeeded", "chief", None),
                ("over", "failed", "counterfoil", None),
            ]  # fmt: skip  # rows by what belongs together

    go(main())


def rendered(items: list[dict[str, Any]]) -> str:
    """A conversation as a client shows it that knows messages, calls and the table of contract 1.4, and no more."""
    names = {i["author"]["id"]: i["author"]["name"] for i in items}
    lines: list[str] = []
    for thread in dict.fromkeys(i["threadId"] for i in items):
        kind, _, rest = (thread or "main").partition(":")
        lines.append(f"== {kind}{' ' + names[rest.partition(':')[0]] if rest else ''}")
        for item in sorted((i for i in items if i["threadId"] == thread), key=lambda i: i["sequence"]):
            who = item["author"]
            name = who["name"] + ("" if who["type"] == "Agent" else f" ({who['type']})")
            if "text" in item:
                said = item["text"]
            elif "toolName" in item:
                said = f"{item['toolName']} {item['rawInput']} as {item['toolCallId']}"
            elif item["rejectionReason"] is not None:
                said = f"{item['toolCallId']} is refused: {item['rejectionReason']}"
            elif item["toolResultId"] is not None:
                said = f"{item['toolCallId']} gave {item['resultSize']} bytes, to be read by {item['sequence']}"
            else:
                said = f"{item['toolCallId']} {'✗' if item['isError'] else '✓'} {item['result']}"
            lines.append(f"{item['sequence']:>2} {item['date'][11:19]} {name}: {said}")
    return "\n".join(lines)


CONVERSATION = """\
== main
 1 12:00:00 grace (Human): Forge a ring.
 2 12:00:00 chief: I hand it on.
 3 12:00:00 chief: dispatch {"agent":"miner","task":"Dig."} as gold
 4 12:00:00 chief: gold ✓ Gold.
16 12:00:00 chief: ask {"participant":"grace","question":"Shall it be a ring?"} as ring
17 12:00:00 grace (Human): ring ✓ A plain one.
20 12:00:00 chief: ask {"participant":"smith","question":"When?"} as when
21 12:00:00 chief: pay {"n":2} as coal
22 12:00:00 chief: when ✓ At noon.
23 12:00:00 grace (Human): coal is refused: Too dear.
30 12:00:00 chief: The ring is ready.
== dispatch miner
 5 12:00:00 chief: Dig.
 6 12:00:00 miner: I dig.
 7 12:00:00 miner: long_text {} as map
 8 12:00:00 miner: raises {} as dig
 9 12:00:00 miner: pay {"n":5} as toll
10 12:00:00 miner: map gave 104000 bytes, to be read by 10
11 12:00:00 miner: dig ✗ raises failed with ValueError. It had begun to run, so it may have had an effect.
12 12:00:00 miner: toll ✓ pay 5, time 1
13 12:00:00 miner: Gold.
== private miner
14 12:00:00 chief: Dig.
15 12:00:00 miner: Gold.
== question grace
18 12:00:00 chief: Shall it be a ring?
19 12:00:00 grace (Human): A plain one.
== question smith
24 12:00:00 chief: When?
25 12:00:00 smith: nothing {} as heat
26 12:00:00 counterfoil (System): heat ✗ There is no tool named nothing. Nothing ran. The tools are: fine.
27 12:00:00 smith: At noon.
== private smith
28 12:00:00 chief: When?
29 12:00:00 smith: At noon.
"""


@law("1.4.every-field", "9.threads")
@case("R083", "R197")
def test_a_client_that_knows_the_table_alone_shows_a_whole_team_at_work() -> None:
    pay, _ = counted("pay", needs_approval=True)
    dig = [call("long_text", id="map"), call("raises", id="dig"), call("pay", n=5, id="toll")]
    miner = agent(
        [[say("I dig."), *dig], say("Gold.")], long_text, plain("raises", ValueError(HUSH)), pay, name="miner"
    )
    smith = agent([call("nothing", id="heat"), say("At noon.")], fine, name="smith")
    chief = agent(
        [
            [say("I hand it on."), call("dispatch", agent="miner", task="Dig.", id="gold")],
            [call("ask", participant="grace", question="Shall it be a ring?", id="ring")],
            [call("ask", participant="smith", question="When?", id="when"), call("pay", n=2, id="coal")],
            say("The ring is ready."),
        ],
        pay, name="chief", manages=[miner, smith],
    )  # fmt: skip  # a turn a row

    async def main() -> None:
        async with served(Runtime(agents=[chief], effects=FrozenEffects()), dev="grace") as http:
            who = {"participants": [{"type": "Human", "name": name} for name in ("grace", "ada")]}
            talk = (await http.client.post("/v1/interactions", json=who)).json()["interactionId"]
            body = {"agent": "chief", "prompt": "Forge a ring."}
            run = (await http.client.post(f"/v1/interactions/{talk}/runs", json=body)).json()["runId"]
            for call_id, decision in {
                "toll": {"decision": "approve"},
                "ring": {"decision": "answer", "text": "A plain one."},
                "coal": {"decision": "reject", "reason": "Too dear."},
            }.items():
                await (await http.runtime.get(run)).wait()
                (asked,) = (await http.client.get("/v1/approvals")).json()["items"]
                assert asked["callId"] == call_id
                assert (await http.decide(asked["runId"], call_id, **decision)).status_code == 200
            await (await http.runtime.get(run)).wait()
            shown = (await http.client.get(f"/v1/runs/{run}/context")).json()
            assert shown["next"] is None
            assert rendered(shown["items"]) + "\n" == CONVERSATION
            main_one = (await http.client.get(f"/v1/runs/{run}/context", params={"thread": "main"})).json()
            assert rendered(main_one["items"]) + "\n" == CONVERSATION[: CONVERSATION.index("== dispatch")]

    go(main())
