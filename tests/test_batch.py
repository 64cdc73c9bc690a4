"""The laws of the batch (contract 2), through the public face."""

from __future__ import annotations

import asyncio
import threading

import pytest

from counterfoil import Limits, Policy, Rule, Tool, ToolResult, tool
from counterfoil.core.outcome import ErrorCode
from counterfoil.testing import call, say
from tests.helpers import (
    Gate,
    agent,
    both,
    broken,
    codes,
    counted,
    fine,
    go,
    outcomes,
    pending,
    requests,
    told,
    until,
)
from tests.marks import case, law


@tool
async def deny(n: int = 0) -> ToolResult:
    """Refuse by the tool's own check."""
    return ToolResult.denied("not you")


@both
@law("2.1", "2.4", "2.5")
@case("R092", "R097", "R008")
def test_every_call_has_one_result_whatever_became_of_it(place):
    desk = agent(
        [
            [
                call("fine", id="ok"), call("broken", id="raises"), call("deny", id="denies"),
                call("no_such", id="made-up"), call("fine", raw='{"n": ', id="broken-json"),
                call("fine", n="x", id="wrong"), call("fine", n=2, id="last"),
            ],
            say("read it all"),
        ],
        fine, broken, deny,
    )  # fmt: skip  # rows by what belongs together

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert outcomes(run) == {
                "ok": "Succeeded", "raises": "Failed", "denies": "Denied", "made-up": "Failed",
                "broken-json": "Failed", "wrong": "Failed", "last": "Succeeded",
            }  # fmt: skip  # two rows
            assert codes(run) == {
                "ok": None, "raises": 5000, "denies": None, "made-up": 4001, "broken-json": 4000, "wrong": 4003,
                "last": None,
            }  # fmt: skip  # two rows
            assert (run.status, run.ended_by, run.answer) == ("completed", "answer", "read it all")
            assert list(told(desk)) == list(outcomes(run))
            assert "secret" not in str(requests(desk))
            assert {r.call_id for r in await run.errors()} == {"raises", "made-up", "broken-json", "wrong"}

    go(main())


@both
@law("2.8", "2.1")
@case("R128", "R130")
def test_ids_that_repeat_are_missing_or_come_again(place):
    count, seen = counted()
    desk = agent(
        [
            [
                call("count", n=1, id="a"),
                call("count", n=1, id="a"),
                call("count", n=2, id="a"),
                call("count", n=1),
                call("count", n=1),
                call("count", n=1, id=""),
            ],
            [call("count", n=1, id="a")],
            say("done"),
        ],
        count,
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert [x["n"] for x in seen] == [1, 2, 1, 1, 1, 1]
            ids = [c.call_id for c in run.calls]
            assert len(set(ids)) == 7
            assert ids[0] == "a"
            assert [c.provider_call_id or None for c in run.calls] == ["a", "a", "a", None, None, None, "a"]
            assert [type(r.result.outcome).__name__ for r in run.results] == [
                "Succeeded",
                "Skipped",
                *["Succeeded"] * 5,
            ]
            assert len({x["key"] for x in seen}) == 6
            for request in requests(desk):
                asked = [c["id"] for m in request for c in m.get("tool_calls") or ()]
                assert asked == [m["tool_call_id"] for m in request if m["role"] == "tool"]
                assert len(set(asked)) == len(asked)

    go(main())


@both
@law("2.8")
def test_a_repeat_with_its_keys_in_another_order_is_still_a_repeat(place):
    @tool
    async def pair(a: int, b: int) -> str:
        """Two values."""
        return f"{a}{b}"

    desk = agent(
        [
            [call("pair", raw='{"a":1,"b":2}', id="x"), call("pair", raw='{ "b": 2, "a": 1 }', id="x")],
            [call("nest", raw='{"in":[{"a":1,"b":2}]}', id="y"), call("nest", raw='{"in":[{"b":2,"a":1}]}', id="y")],
            say("done"),
        ],
        pair, Tool("nest", "Objects in a list.", {"type": "object"}, lambda given: ran.append(given) or "ran"),
    )  # fmt: skip  # rows by what belongs together
    ran = []

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert [type(r.result.outcome).__name__ for r in run.results] == ["Succeeded", "Skipped"] * 2
            assert ran == [{"in": [{"a": 1, "b": 2}]}]
            assert run.results[1].skipped
            assert run.results[1].author.type == "System"

    go(main())


@both
@law("2.2", "2.3")
@case("R014")
def test_results_stand_in_the_order_of_the_calls_however_they_arrive(place):
    async def main():
        gate = Gate()
        desk = agent(
            [
                [
                    say("now"),
                    call("work", at="one", id="1"),
                    call("work", at="two", id="2"),
                    call("work", at="three", id="3"),
                ],
                say("done"),
            ],
            gate.tool(),
        )
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("one", "two", "three")
            await run.send("in between")
            for name, known in (("three", ["3"]), ("one", ["1", "3"]), ("two", ["1", "2", "3"])):
                gate.open(name)
                while [r.call_id for r in (await run.refresh()).results] != known:
                    await asyncio.sleep(0.001)
                reader = await runtime.get(run.id)
                assert [r.call_id for r in reader.results] == known  # on record before its siblings ended
            await run.wait()
            kinds = [(type(i).__name__, i.sequence) for i in run.items]
            assert kinds == [
                ("Message", 1), ("Message", 2), ("ToolCallPart", 3), ("ToolCallPart", 4), ("ToolCallPart", 5),
                ("ToolResultPart", 6), ("ToolResultPart", 7), ("ToolResultPart", 8),
                ("Message", 9), ("Message", 10),
            ]  # fmt: skip  # rows by what belongs together
            assert [i.text for i in run.items[-2:]] == ["in between", "done"]
            entries = await runtime.store.entries(run.tenant, run.interaction_id)
            assert [e.call_id for e in entries if e.kind == "result"] == ["3", "1", "2"]
            assert list(told(desk, 1)) == ["1", "2", "3"]

    go(main())


@both
@law("2.1.cut-off", "2.1")
@case("R125")
def test_no_call_of_a_turn_that_was_cut_off_runs(place):
    count, seen = counted()
    cut = [say("", stop="length"), call("count", n=1, id="a"), call("count", raw='{"n": 2', id="b")]
    desk = agent(
        [cut, [say("", stop="length"), call("count", n=1)], say("never")],
        count,
        limits=Limits(consecutive_failures=2),
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert seen == []
            assert all(r.skipped and r.author.type == "System" for r in run.results)
            assert len(run.results) == 3
            assert (run.status, run.ended_by, run.steps) == ("limited", "limit", 2)
            assert "cut off" in told(desk)["a"]
            assert await run.errors() == []

    go(main())


@law("2.1.refusal", "2.1")
def test_no_call_of_a_turn_that_was_refused_runs():
    count, seen = counted()
    desk = agent([[say("I must not", stop="refusal"), call("count", n=1, id="a")], say("Something else.")], count)

    async def main():
        run = await desk.run("go")
        assert seen == []
        (part,) = run.results
        assert (part.skipped, part.author.type) == (True, "System")
        assert "refusal" in told(desk)["a"]
        assert (run.answer, run.steps) == ("Something else.", 2)

    go(main())


@both
@law("2.7")
@case("R131")
def test_calls_of_a_batch_run_at_once_within_the_concurrency(place):
    async def main():
        gate = Gate()
        names = [f"w{i}" for i in range(7)]
        desk = agent([[call("work", at=n) for n in names], say("done")], gate.tool(), limits=Limits(concurrency=3))
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("w0", "w1", "w2")
            assert gate.running == {"w0", "w1", "w2"}
            gate.open("w1")
            await gate.began("w3")
            gate.open(*names)
            await run.wait()
            assert gate.most == 3
            assert len(run.results) == 7
            assert [x for x in gate.log if x[0] == "+"] == [f"+{n}" for n in names]

    go(main())


@both
@law("2.7")
def test_sync_bodies_of_a_batch_run_at_once_and_never_block_the_loop(place):
    meet = threading.Barrier(3, timeout=10)

    @tool
    def meeting(n: int) -> str:
        """Wait for the others."""
        meet.wait()
        return f"met {n}"

    desk = agent([[call("meeting", n=i) for i in range(3)], say("done")], meeting)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert [r.output for r in run.results] == ["met 0", "met 1", "met 2"]

    go(main())


@both
@law("2.7.sequential")
def test_a_sequential_call_is_a_barrier(place):
    async def main():
        gate = Gate()
        desk = agent(
            [
                [
                    call("work", at="a"), call("work", at="b"), call("alone", at="s1"), call("alone", at="s2"),
                    call("work", at="c"), call("work", at="d"),
                ],
                say("done"),
            ],
            gate.tool(), gate.tool("alone", sequential=True),
        )  # fmt: skip  # rows by what belongs together
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("a", "b")
            gate.open("a")
            await until(lambda: "-a" in gate.log)
            gate.open("b", "s1", "s2")
            await gate.began("c", "d")
            gate.open("c", "d")
            await run.wait()
            log = gate.log
            assert log[:2] == ["+a", "+b"]
            assert log[4:8] == ["+s1", "-s1", "+s2", "-s2"]
            assert log[8:10] == ["+c", "+d"]

    go(main())


@both
@law("2.7.sequential")
@case("R055")
def test_a_barrier_that_waits_for_a_person_lets_the_others_pass(place):
    async def main():
        gate = Gate()
        desk = agent(
            [[call("work", at="a"), call("alone", at="s", id="s"), call("work", at="b")], say("done")],
            gate.tool(), gate.tool("alone", sequential=True, needs_approval=True),
        )  # fmt: skip  # rows by what belongs together
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("a", "b")
            while not await pending(run):
                await asyncio.sleep(0.001)
            await run.approve("s", by="grace")
            gate.open("b", "s")
            await until(lambda: "-b" in gate.log)
            assert "+s" not in gate.log  # approved meanwhile, it is a barrier again: what runs ends first
            gate.open("a")
            await run.wait()
            assert gate.log == ["+a", "+b", "-b", "-a", "+s", "-s"]

    go(main())


@both
@law("2.7")
def test_a_call_that_waits_for_a_person_takes_no_slot(place):
    count, seen = counted("pay", needs_approval=True)
    desk = agent(
        [[call("pay"), call("pay", n=1), call("fine")], say("done")],
        count,
        fine,
        limits=Limits(concurrency=1),
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert run.status == "paused"
            assert [r.tool_name for r in run.results] == ["fine"]
            assert len(await pending(run)) == 2
            assert seen == []

    go(main())


@both
@law("2.5", "2.4")
@case("R041", "R055")
def test_a_failure_a_denial_or_a_rejection_leaves_the_siblings_as_they_are(place):
    pay, seen = counted("pay", needs_approval=True)
    policy = Policy([Rule("no", "deny", tool="fine", when=lambda f: f.input["n"] == 9)], default="allow")
    desk = agent(
        [
            [
                call("broken", id="b"), call("pay", n=1, id="yes"), call("pay", n=2, id="no"),
                call("fine", n=9, id="denied"), call("fine", id="f"),
            ],
            say("done"),
        ],
        pay, broken, fine, policy=policy,
    )  # fmt: skip  # rows by what belongs together

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert run.status == "paused"
            assert outcomes(run) == {"b": "Failed", "denied": "Denied", "f": "Succeeded"}
            assert await pending(run) == ["yes", "no"]
            await run.reject("no", by="grace", reason="not this one")
            await run.approve("yes", by="grace")
            await run.wait()
            assert outcomes(run) == {
                "b": "Failed",
                "yes": "Succeeded",
                "no": "Rejected",
                "denied": "Denied",
                "f": "Succeeded",
            }
            assert [x["n"] for x in seen] == [1]
            assert len(requests(desk)) == 2

    go(main())


@both
@law("2.9", "3.4002")
def test_what_is_offered_is_fixed_for_a_turn(place):
    open_ = [True]

    @tool(offered=lambda ctx: open_[0])
    async def sometimes() -> str:
        """Offered now and then."""
        open_[0] = False
        return "ran"

    def second(request):
        assert [t["name"] for t in request.tools] == ["fine"]
        return [call("sometimes", id="two"), call("sometime", id="three")]

    desk = agent([[call("sometimes", id="one")], second, say("done")], sometimes, fine)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert codes(run) == {"one": None, "two": ErrorCode.NOT_OFFERED, "three": ErrorCode.UNKNOWN_TOOL}
            assert "sometimes" not in told(desk)["three"]  # a tool that is not offered is not named
            first, again = [
                e.offered for e in await runtime.store.entries(run.tenant, run.interaction_id) if e.kind == "turn"
            ][:2]
            assert len(first) == 64
            assert first != again

    go(main())


@both
@law("2.1")
@pytest.mark.parametrize("raw", ["", None, "null", "  ", "{}"])
def test_arguments_that_are_empty_count_as_none(place, raw):
    desk = agent([[call("fine", raw=raw)], say("done")], fine)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert run.results[0].output == "fine 0"

    go(main())


@both
@law("2.7")
@case("R094")
def test_when_the_batch_is_over_no_task_of_it_is_left(place):
    desk = agent([[call("broken"), call("fine"), call("broken")], say("done")], fine, broken)

    async def main():
        async with place.open(desk) as runtime:
            before = asyncio.all_tasks()
            run = await (await runtime.start("desk", "go")).wait()
            await until(lambda: asyncio.all_tasks() <= before)
            assert len(run.results) == 3

    go(main())


@both
@law("2.7.sequential", "2.7.lock")
def test_a_barrier_also_waits_for_an_earlier_call_that_waits_for_its_lock(place):
    async def main():
        gate = Gate()
        hold = gate.tool("hold", lock="till")

        other = agent([[call("hold", at="other")], say("done")], hold, name="other")
        desk = agent(
            [[call("hold", at="a"), call("alone", at="s"), call("work", at="w")], say("done")],
            hold, gate.tool("alone", sequential=True), gate.tool(),
        )  # fmt: skip  # rows by what belongs together
        async with place.open(other, desk) as runtime:
            first = await runtime.start("other", "go")
            await gate.began("other")
            run = await runtime.start("desk", "go")
            await until(lambda: run.calls)
            await asyncio.sleep(0.02)
            assert gate.log == ["+other"]
            gate.open("other", "a", "s", "w")
            await first.wait()
            await run.wait()
            assert gate.log == ["+other", "-other", "+a", "-a", "+s", "-s", "+w", "-w"]

    go(main())
