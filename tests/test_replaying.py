"""Today's loop on the past: what people, callers and clocks did then happens again in the same place."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Agent, Limits, Policy, Rule, Run, Runtime, ToolContext, ToolResult, tool
from counterfoil.core.entries import Entry
from counterfoil.hooks import HookList
from counterfoil.model import ModelCall, ModelEvent, ModelRequest, ModelTurn
from counterfoil.past import Past
from counterfoil.replay import Replay, replay_with
from counterfoil.testing import FrozenEffects, call, say
from tests.helpers import SOON, Gate, Place, agent, arrives, broken, counted, fine, go, outcomes, pending, until


def leave_a_mark(folder: str) -> str:
    """Leave one more file."""
    path = Path(folder)
    (path / str(len(list(path.iterdir())))).touch()
    return "left"


PAIR = [[call("count", n=1, id="a"), call("count", n=2, id="b")], say("Done.")]


async def again(runtime: Runtime, run: Run, **options: Any) -> Replay:
    made = await runtime.replay(run.id, **options)
    assert made.agent is not None
    return made


async def entries_of(runtime: Runtime, run: Run) -> list[Entry]:
    return await runtime.store.entries("default", run.interaction_id)


# ------------------------------------------------------------------------------------------------------ people


@pytest.mark.parametrize("approvals", ["any-order", "one-by-one"])
def test_decisions_are_those_on_record(approvals: str) -> None:
    count, seen = counted(needs_approval=True)
    desk = agent(PAIR, count)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on", approvals=approvals)).wait()
            if approvals == "any-order":
                await run.reject("b", by="ada", reason="Too many.")
                await run.approve("a", by="grace", input={"n": 7})
            else:
                await run.approve("a", by="grace", input={"n": 7})
                await run.wait()
                await run.reject("b", by="ada", reason="Too many.")
            await run.wait()
            assert outcomes(run) == {"a": "Succeeded", "b": "Rejected"}
            made = await again(runtime, run)
            assert made.differences == ()
            assert len(seen) == 1
            assert "Too many." in str(made.steps[1].messages()[2]["content"])

    go(main())


def test_a_run_that_waits_for_a_person_is_replayed_up_to_there() -> None:
    count, _ = counted(needs_approval=True)
    desk = agent([[call("fine", id="f")], *PAIR], count, fine)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            made = await again(runtime, run)
            assert (made.differences, len(made.steps), made.ended) == ((), 2, None)
            await run.approve("a", by="grace")
            await run.wait()
            assert (await again(runtime, run)).ok
            assert await pending(run) == ["b"]

    go(main())


def test_an_approval_that_expired_then_expires_again() -> None:
    effects = FrozenEffects()
    count, seen = counted()
    policy = Policy([Rule("all", "ask", expires_in=60)])
    desk = agent(PAIR, count, policy=policy)

    async def main() -> None:
        async with Runtime(agents=[desk], effects=effects) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            await run.approve("a", by="grace")
            await run.wait()
            effects.advance(61)
            runtime.kick("default", run.id)
            await until(lambda: run.status == "completed")
            assert [r.error_code for r in run.results] == [None, 4081]
            made = await again(runtime, run)
            assert made.differences == ()
            longer = agent([], count, policy=Policy([Rule("all", "ask")]))
            (revision, outcome) = (await again(runtime, run, agent=longer)).differences
            assert (revision.kind, outcome.kind, outcome.now) == ("revision", "outcome", "it would run")
            assert len(seen) == 1

    go(main())


def test_a_decision_that_came_in_time_comes_in_time_again() -> None:
    effects = FrozenEffects()
    gate = Gate()
    count, _ = counted()
    policy = Policy([Rule("count", "ask", "count", expires_in=60), Rule("work", "allow", "work")])
    desk = agent(
        [[call("work", at="one", id="w"), call("count", id="c")], say("Done.")], gate.tool(), count, policy=policy
    )

    async def main() -> None:
        async with Runtime(agents=[desk], effects=effects) as runtime:
            run = await runtime.start(desk, "Go on")
            await gate.began("one")
            await until(lambda: run.calls[1].approval is not None)
            await run.approve("c", by="grace")
            await until(lambda: run.calls[1].state == "settled")
            effects.advance(100)
            gate.open("one")
            await run.wait()
            assert outcomes(run) == {"w": "Succeeded", "c": "Succeeded"}
            assert (await again(runtime, run)).differences == ()

    go(main())


def test_a_call_that_asks_now_goes_on_as_the_record_says() -> None:
    count, _ = counted()
    asks, seen = counted(needs_approval=True)
    desk = agent(PAIR, count)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            made = await again(runtime, run, agent=agent([], asks))
            assert [(d.kind, d.call_id, d.then, d.now) for d in made.differences] == [
                ("verdict", "a", "allow", "ask"), ("verdict", "b", "allow", "ask"),
            ]  # fmt: skip
            assert len(made.steps) == 2
            assert not seen

    go(main())


# ----------------------------------------------------------------------------------------------------- callers


def test_a_cancel_comes_between_the_same_calls_as_then() -> None:
    gate = Gate()
    work = gate.tool()
    pay, _ = counted("pay", needs_approval=True)
    turn = [call("work", at=at, id=at) for at in ("one", "two")]
    desk = agent([[*turn, call("pay", id="p"), call("fine", id="f")], say("Never.")], work, pay, fine)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await runtime.start(desk, "Go on")
            gate.open("one")
            await gate.began("one", "two")
            await until(lambda: len(run.results) == 2)
            await run.cancel(reason="enough")
            await run.wait()
            assert outcomes(run) == {"one": "Succeeded", "two": "Cancelled", "p": "Cancelled", "f": "Succeeded"}
            assert (await again(runtime, run)).differences == ()

    go(main())


def test_a_cancel_comes_when_as_many_calls_had_ended_as_then() -> None:
    gate = Gate()
    turn = [call("first", at="one", id="one"), call("work", at="two", id="two"), call("work", at="three", id="three")]
    desk = agent([turn, say("Never.")], gate.tool("first", sequential=True), gate.tool())

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await runtime.start(desk, "Go on")
            gate.open("one", "two")
            await gate.began("three")
            await until(lambda: len(run.results) == 2)
            await run.cancel()
            await run.wait()
            assert outcomes(run) == {"one": "Succeeded", "two": "Succeeded", "three": "Cancelled"}
            assert (await again(runtime, run)).differences == ()

    go(main())


def test_a_cancel_comes_after_the_start_of_a_call_that_was_approved() -> None:
    gate = Gate()
    desk = agent([[call("work", at="w", id="w")], say("Never.")], gate.tool(needs_approval=True))

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            await run.approve("w", by="grace")
            await gate.began("w")
            await run.cancel()
            await run.wait()
            assert "while work ran" in run.results[0].result.model_output
            assert (await again(runtime, run)).differences == ()

    go(main())


def test_a_call_that_was_cancelled_while_it_waited_for_a_lock_did_not_run() -> None:
    gate = Gate()
    hold = gate.tool("hold", lock="the lock")
    first, second = (agent([[call("hold", at=at, id=at)]], hold, name=at) for at in ("one", "two"))

    async def main() -> None:
        async with Runtime(agents=[first, second]) as runtime:
            holder = await runtime.start(first, "Go on")
            await gate.began("one")
            run = await runtime.start(second, "Go on")
            await until(lambda: run.calls)
            await run.cancel()
            await run.wait()
            made = await again(runtime, run)
            assert (made.differences, gate.log) == ((), ["+one"])
            gate.open("one")
            await holder.wait()

    go(main())


def test_a_cancel_in_a_pause_and_one_before_the_first_turn_come_there() -> None:
    count, _ = counted(needs_approval=True)
    desk = agent(PAIR, count)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            await run.cancel()
            await run.wait()
            made = await again(runtime, run)
            assert (made.differences, made.ended and made.ended.ended_by) == ((), "cancelled")
            later = await runtime.start(desk, "Go on", not_before=datetime(2999, 1, 1, tzinfo=UTC))
            await later.cancel()
            await later.wait()
            assert (await again(runtime, later)).to_json()["steps"] == []
            assert (await again(runtime, later)).differences == ()

    go(main())


def test_a_message_into_the_run_is_delivered_where_it_was() -> None:
    gate = Gate()
    desk = agent([[call("work", at="one", id="a")], say("Done."), say("Done again.")], gate.tool())

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await runtime.start(desk, "Go on")
            await gate.began("one")
            await run.send("And hurry")
            gate.open("one")
            await run.wait()
            made = await again(runtime, run)
            assert made.differences == ()
            assert [m["content"] for m in made.steps[1].messages()][1:] == ["one done", "And hurry"]

    go(main())


@pytest.mark.parametrize("resumed", [False, True])
def test_a_message_that_came_after_the_end_is_part_of_the_run_only_where_that_was_resumed_and_read_it(
    resumed: bool,
) -> None:
    desk = agent([call("fine", id="a"), say("Done.")], fine, limits=Limits(steps=1 if resumed else 9))

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            assert not await run.send("And hurry")
            if resumed:
                await (await runtime.resume(run.id, limits=Limits(steps=9))).wait()
                assert not await run.send("Thanks")
            assert run.status == "completed"
            made = await again(runtime, run)
            assert made.differences == ()
            assert ("And hurry" in str(made.steps[1].messages())) == resumed

    go(main())


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_message_that_came_before_the_first_turn_is_delivered_before_it(place: Place) -> None:
    desk = agent([say("Done.")])

    async def main() -> None:
        async with place.open() as people:
            run = await people.start("desk", "Go on")
            await run.send("And hurry")
            async with place.open(desk) as runtime:
                await arrives(run, "completed")
                made = await again(runtime, run)
                assert [m["content"] for m in made.steps[0].messages()] == ["Go on", "And hurry"]
                assert made.differences == ()

    go(main())


def test_a_message_that_keeps_an_answer_from_ending_the_run_does_so_again() -> None:
    said: list[Run] = []

    class Told:
        async def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            if not request.turns:
                await until(lambda: said)
                await said[0].send("Wait!")
            yield ModelTurn("Done.")

    desk = Agent("desk", Told())

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await runtime.start(desk, "Go on")
            said.append(run)
            await run.wait()
            assert run.steps == 2
            made = await again(runtime, run)
            assert (made.differences, len(made.steps)) == ((), 2)

    go(main())


# ------------------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize("limits", [Limits(steps=1), Limits(calls=1), Limits(consecutive_failures=1), Limits(tokens=1)])
def test_limits_of_then_end_the_run_again(limits: Limits) -> None:
    desk = agent([[call("broken", id="a"), call("fine", id="b")], [call("broken", id="c")], say("Done.")], broken, fine)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on", limits=limits)).wait()
            assert (await again(runtime, run)).differences == ()
            if run.status == "limited":
                await (await runtime.resume(run.id, limits=Limits())).wait()
                made = await again(runtime, run)
                assert (made.differences, made.ended and made.ended.status) == ((), "completed")

    go(main())


def test_a_runs_time_is_up_when_it_was() -> None:
    gate = Gate()
    desk = agent(
        [[call("work", at="one", id="a"), call("fine", id="b")], say("Never.")], gate.tool(sequential=True), fine
    )

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on", limits=Limits(seconds=0.05, cancel_grace=0.01))).wait()
            assert run.status == "limited"
            assert (await again(runtime, run)).differences == ()

    go(main())


def test_time_that_is_up_while_the_model_is_asked_ends_the_run_again() -> None:
    class Slow:
        async def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            if request.turns:
                await asyncio.sleep(SOON)
            yield ModelTurn("", (ModelCall("a", "fine", "{}"),), "calls")

    desk = Agent("desk", Slow(), tools=[fine])

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on", limits=Limits(seconds=0.2))).wait()
            assert (run.status, run.steps) == ("limited", 1)
            assert (await again(runtime, run)).differences == ()

    go(main())


def test_a_model_that_failed_then_fails_again() -> None:
    desk = agent([[call("fine", id="a")]], fine)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            assert run.status == "failed"
            assert (await again(runtime, run)).differences == ()

    go(main())


# -------------------------------------------------------------------------------------------- results and ids


def test_results_kept_apart_failures_votes_and_memos_are_those_on_record() -> None:
    @tool(read_only=True)
    async def large() -> str:
        """Large."""
        return "x" * 100_000

    @tool
    async def vote(ctx: ToolContext) -> ToolResult:
        """Vote."""
        return ToolResult.terminal(f"bye {await ctx.memo('n', lambda: 7)}")

    turns = [
        [call("large", id="big")],
        [call("read_result", call_id="big", id="r"), call("broken", id="x")],
        [call("vote", id="v")],
    ]
    desk = agent(turns, large, vote, broken)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            assert (run.ended_by, run.answer) == ("vote", "bye 7")
            made = await again(runtime, run)
            assert made.differences == ()
            assert "read_result" in [t.name for t in made.steps[1].request.tools]

    go(main())


def test_a_body_in_a_process_of_its_own_does_not_run_either(tmp_path: Path) -> None:
    leave = tool(isolation="process")(leave_a_mark)
    desk = agent([[call("leave_a_mark", folder=str(tmp_path), id="a")], say("Done.")], leave)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            assert outcomes(run) == {"a": "Succeeded"}
            assert (await again(runtime, run)).differences == ()

    go(main())
    assert len(list(tmp_path.iterdir())) == 1


def test_ids_that_we_gave_are_those_on_record() -> None:
    count, _ = counted()
    desk = agent(
        [[call("count", n=1), call("count", n=2)], [call("count", id="a"), call("count", n=1, id="a")], say("Done.")],
        count,
    )

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            made = await again(runtime, run)
            assert made.differences == ()
            read = [m["tool_call_id"] for s in made.steps for m in s.messages() if m["role"] == "tool"]
            assert read == [r.call_id for r in run.results]

    go(main())


def test_a_replay_is_the_same_each_time() -> None:
    count, _ = counted(needs_approval=True)
    other, _ = counted()
    desk = agent(PAIR, count)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            await run.approve("a", by="grace")
            await run.reject("b", by="grace")
            await run.wait()
            made = [(await again(runtime, run, agent=agent([], other))).to_json() for _ in range(3)]
            assert made[0] == made[1] == made[2]
            assert made[0]["differences"]

    go(main())


def test_a_record_that_breaks_off_is_replayed_up_to_there() -> None:
    count, seen = counted()
    desk = agent([*PAIR[:1], [call("count", n=3, id="c")], say("Done.")], count)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            entries = await entries_of(runtime, run)
            for length in range(2, len(entries) + 1):
                made = await replay_with(desk, entries[:length], run.id, HookList())
                assert made.differences == (), length
            assert len(seen) == 3

    go(main())


def test_entries_of_the_record_are_left_as_they_are() -> None:
    count, _ = counted(needs_approval=True)
    desk = agent(PAIR, count)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            await run.cancel()
            await run.wait()
            entries = await entries_of(runtime, run)
            before = [dataclasses.asdict(e) for e in entries]
            await replay_with(desk, entries, run.id, HookList())
            assert [dataclasses.asdict(e) for e in entries] == before

    go(main())


def test_the_past_has_its_own_clock_and_ids() -> None:
    past = Past(1_000_000)
    past.reach(3_000_000)
    past.reach(2_000_000)
    assert (past.now(), past.clock()) == (3_000_000, 3.0)
    past.ids.append("then")
    assert [past.new_id() for _ in range(3)] == [
        "then", "00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002",
    ]  # fmt: skip
    asyncio.run(past.sleep(60))
    assert past.now() == 63_000_000
