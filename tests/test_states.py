"""How a run ends (contract 5): every row, through the public face."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from pydantic import BaseModel

from counterfoil import ErrorCode, Limits, Run, ToolResult, tool
from counterfoil.core.errors import Conflict, ModelError, NotPending, UsageError
from counterfoil.core.states import pause_of
from counterfoil.core.turn import Usage, moment
from counterfoil.testing import FrozenEffects, call, say
from tests.helpers import (
    Gate,
    Hanging,
    agent,
    both,
    broken,
    codes,
    counted,
    fine,
    go,
    outcomes,
    requests,
)
from tests.marks import case, law
from tests.records import Book


@tool(ends_run=True)
async def finish(text: str = "over", fails: bool = False) -> str:
    """End the run."""
    if fails:
        raise ValueError(text)
    return text


@tool
async def vote(text: str = "enough", yes: bool = True) -> ToolResult:
    """Vote to end the run, or not."""
    return ToolResult.terminal(text) if yes else ToolResult.text(text)


@tool(advisory=True)
async def advise(yes: bool = False) -> ToolResult:
    """Has no vote."""
    return ToolResult.terminal("advice") if yes else ToolResult.text("advice")


def ended(run):
    return [r.call_id for r in run.results if r.ended_run]


@both
@law("5.tool", "5.complete", "1.2.endedRun", "source.000.endedRun")
@case("R166")
def test_a_tool_that_ends_the_run_ends_it_with_its_text(place):
    desk = agent(
        [
            [call("fine", id="a"), call("finish", text="bye", id="b"), call("finish", text="me too", id="c")],
            say("never"),
        ],
        fine,
        finish,
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, run.ended_by, run.answer) == ("completed", "tool", "bye")
            assert ended(run) == ["b"]
            assert len(run.results) == 3
            assert run.steps == 1

    go(main())


@both
@law("5.tool")
def test_the_first_in_call_order_ends_the_run_though_a_later_one_ended_first(place):
    async def main():
        gate = Gate()
        desk = agent(
            [[call("work", at="a", id="a"), call("work", at="b", id="b")], say("never")],
            gate.tool(ends_run=True),
        )
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("a", "b")
            gate.open("b")
            while not (await run.refresh()).results:
                await asyncio.sleep(0.001)
            assert run.status == "running"
            assert ended(run) == []
            gate.open("a")
            await run.wait()
            assert (run.ended_by, run.answer, ended(run)) == ("tool", "a done", ["a"])

    go(main())


@both
@law("5.tool")
def test_one_that_failed_does_not_end_the_run(place):
    desk = agent([[call("finish", fails=True, id="a")], [call("finish", text="now")], say("never")], finish)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.ended_by, run.answer, run.steps) == ("tool", "now", 2)

    go(main())


@both
@law("5.tool")
def test_what_ends_the_run_is_fixed_at_the_pause_and_never_moves(place):
    @tool(ends_run=True, needs_approval=True)
    async def finish_after(text: str) -> str:
        """End the run, when a person agrees."""
        return text

    desk = agent(
        [
            [
                call("finish_after", text="first", id="a"), call("finish", text="second", id="b"),
                call("finish", text="third", id="c"),
            ],
            say("never"),
        ],
        finish, finish_after,
    )  # fmt: skip  # rows by what belongs together

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, ended(run)) == ("paused", ["b"])
            await run.approve("a", by="grace")
            await run.wait()
            assert outcomes(run) == {"a": "Succeeded", "b": "Succeeded", "c": "Succeeded"}
            assert (run.status, run.ended_by, run.answer, ended(run)) == (
                "completed",
                "tool",
                "second",
                ["b"],
            )
            assert len(requests(desk)) == 1

    go(main())


@both
@law("5.vote", "source.004.terminate")
@pytest.mark.parametrize(
    ("batch", "answer"),
    [
        ([call("vote", text="one"), call("vote", text="two")], "two"),
        ([call("vote"), call("vote", yes=False)], None),
        ([call("vote", text="mine"), call("advise")], "mine"),
        ([call("vote", text="mine"), call("advise", yes=True)], "mine"),
        ([call("advise", yes=True)], None),
        ([call("vote", text="mine", id="x"), call("vote", text="mine", id="x")], "mine"),
        ([call("vote"), call("broken")], None),
        ([call("vote"), call("no_such")], None),
        ([call("vote"), call("vote", raw="{")], None),
        ([call("vote"), call("fine")], None),
    ],
)
def test_a_vote_that_is_unanimous_ends_the_run(place, batch, answer):
    desk = agent([batch, say("went on")], vote, advise, fine, broken)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.ended_by, run.answer) == (("vote", answer) if answer else ("answer", "went on"))
            assert ended(run) == []

    go(main())


@both
@law("5.vote")
@pytest.mark.parametrize("agrees", [True, False])
def test_votes_are_counted_when_the_batch_is_complete_also_after_a_pause(place, agrees):
    pay, _ = counted("pay", needs_approval=True)

    @tool(needs_approval=True)
    async def vote_after() -> ToolResult:
        """Vote, when a person agrees."""
        return ToolResult.terminal("after")

    desk = agent([[call("vote", id="v"), call("vote_after", id="w")], say("went on")], vote, vote_after, pay)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert run.status == "paused"
            await (run.approve("w", by="grace") if agrees else run.reject("w", by="grace"))
            await run.wait()
            assert (run.ended_by, run.answer) == (("vote", "after") if agrees else ("answer", "went on"))

    go(main())


class Sum(BaseModel):
    total: int


@both
@law("5.answer")
def test_an_answer_that_does_not_have_the_form_goes_back_to_the_model(place):
    desk = agent([say("about 7"), say('{"total": "many"}'), say('{"total": 7}')], output_type=Sum)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, run.ended_by, run.answer) == ("completed", "answer", '{"total": 7}')
            assert run.output == {"total": 7}
            assert run.steps == 3
            assert "total" in requests(desk)[2][-1]["content"]
            assert desk.model.requests[0].output_schema["properties"]["total"]["type"] == "integer"

    go(main())


@both
@law("5.answer", "5.limit")
def test_mending_an_answer_stays_within_the_limits(place):
    desk = agent([say("no"), say("no"), say("no"), say("no")], output_type=Sum, limits=Limits(consecutive_failures=3))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, run.steps, run.answer) == ("limited", 3, None)
            assert "3 failed steps" in run.reason

    go(main())


@both
@law("5.answer")
def test_a_text_that_was_cut_off_is_no_answer(place):
    desk = agent([say("It is", stop="length"), say("It is 7")])

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.answer, run.steps) == ("It is 7", 2)
            assert "cut off" in requests(desk)[1][-1]["content"]

    go(main())


@both
@law("5.limit")
def test_the_limit_of_steps(place):
    desk = agent([[call("fine")], [call("fine")], say("never")], fine, limits=Limits(steps=2))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, run.ended_by, run.steps, run.answer) == ("limited", "limit", 2, None)
            assert len(run.results) == 2
            assert "2 steps" in run.reason

    go(main())


@both
@law("5.limit", "3.4290")
def test_the_limit_of_calls_refuses_those_beyond_it(place):
    count, seen = counted()
    desk = agent([[call("count", n=i, id=f"c{i}") for i in range(4)], say("never")], count, limits=Limits(calls=2))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert codes(run) == {
                "c0": None,
                "c1": None,
                "c2": ErrorCode.LIMIT_REACHED,
                "c3": ErrorCode.LIMIT_REACHED,
            }
            assert [x["n"] for x in seen] == [0, 1]
            assert (run.status, run.ended_by) == ("limited", "limit")

    go(main())


@both
@law("5.limit")
@pytest.mark.parametrize("limits", [Limits(tokens=100), Limits(cost=0.5)])
def test_the_limits_of_tokens_and_cost(place, limits):
    usage = Usage(60, 40, 0, 0.5)
    desk = agent([[say("", usage=usage), call("fine", id="a")], say("never")], fine, limits=limits)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert codes(run) == {"a": ErrorCode.LIMIT_REACHED}
            assert (run.status, run.ended_by, run.usage) == ("limited", "limit", usage)

    go(main())


@both
@law("5.limit")
def test_failed_steps_in_a_row(place):
    desk = agent(
        [
            [call("broken")], [call("broken"), call("fine")], [call("broken")], [call("broken"), call("no_such")],
            say("never"),
        ],
        fine, broken, limits=Limits(consecutive_failures=2),
    )  # fmt: skip  # rows by what belongs together

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, run.steps) == ("limited", 4)
            assert "in a row" in run.reason

    go(main())


@both
@law("5.limit")
def test_a_body_that_hangs_is_stopped_when_the_time_of_the_run_is_used_up(place):
    async def main():
        gate = Gate()
        desk = agent(
            [[call("work", at="a", id="a"), call("work", at="b", id="b"), call("fine", id="f")], say("never")],
            gate.tool(), fine, limits=Limits(seconds=0.5, concurrency=1),
        )  # fmt: skip  # rows by what belongs together
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert codes(run) == dict.fromkeys(("a", "b", "f"), ErrorCode.LIMIT_REACHED)
            assert gate.log == ["+a", "-a"]
            assert (run.status, run.ended_by) == ("limited", "limit")
            assert "0.5 seconds" in run.reason

    go(main())


@both
@law("5.limit")
def test_a_model_that_hangs_is_stopped_when_the_time_of_the_run_is_used_up(place):
    from counterfoil import Agent

    async def main():
        model = Hanging()
        desk = Agent("desk", model=model, limits=Limits(seconds=0.5))
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert model.stopped
            assert (run.status, run.ended_by) == ("limited", "limit")

    go(main())


@both
@law("5.limit")
def test_pauses_do_not_count_as_time_of_the_run(place):
    pay, _ = counted("pay", needs_approval=True)
    effects = FrozenEffects()
    desk = agent([[call("pay", id="a")], say("done")], pay, limits=Limits(seconds=60))

    async def main():
        async with place.open(desk, effects=effects) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert run.status == "paused"
            effects.advance(3600)
            await run.approve("a", by="grace")
            await run.wait()
            assert (run.status, run.answer) == ("completed", "done")

    go(main())


@both
@law("5.limit")
def test_a_limited_run_goes_on_with_new_limits(place):
    desk = agent([[call("fine", n=1)], [call("fine", n=2)], say("done")], fine, limits=Limits(steps=1))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert run.status == "limited"
            again = await runtime.resume(run.id, limits=Limits(steps=2))
            await again.wait()
            assert (run.status, run.steps) == ("limited", 2)
            await (await runtime.resume(run.id, limits=Limits(steps=9))).wait()
            assert (run.status, run.answer, run.steps) == ("completed", "done", 3)
            assert [r.output for r in run.results] == ["fine 1", "fine 2"]
            names = [type(e).__name__ async for e in run.events()]
            assert names.count("RunResumed") == 2
            with pytest.raises(NotPending):
                await runtime.resume(run.id, limits=Limits(steps=9))

    go(main())


@both
@law("5.limit", "5.one-root-run")
def test_a_limited_run_whose_conversation_went_on_cannot_be_continued(place):
    async def main():
        gate = Gate()
        desk = agent([[call("work", at="a")], say("done")], gate.tool(), limits=Limits(steps=1))
        async with place.open(desk) as runtime:
            gate.open("a")
            run = await (await runtime.start("desk", "go")).wait()
            gate._opened.clear()
            other = await runtime.start("desk", "again", interaction=run.interaction_id)
            with pytest.raises(Conflict):
                await runtime.resume(run.id, limits=Limits(steps=9))
            gate.open("a")
            await other.wait()
            async with place.runtime() as reader:
                with pytest.raises(UsageError):
                    await reader.resume(run.id, limits=Limits(steps=9))

    go(main())


@both
@law("5.error")
def test_a_model_error_that_may_pass_is_tried_again(place):
    tries = []

    def turn(request):
        tries.append(1)
        if len(tries) < 3:
            raise ModelError("busy", retryable=True)
        return say("at last")

    desk = agent([turn])

    async def main():
        async with place.open(desk, effects=FrozenEffects()) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.answer, run.steps, len(tries)) == ("at last", 1, 3)

    go(main())


@both
@law("5.error", "2.1")
@pytest.mark.parametrize(
    ("error", "tries", "reason"),
    [
        (ModelError("no such model"), 1, "no such model"),
        (ModelError("busy", retryable=True), 3, "busy"),
        (ValueError("a bug in the adapter"), 1, "ValueError: a bug in the adapter"),
        (asyncio.CancelledError(), 1, "CancelledError"),
    ],
    ids=["for-good", "too-often", "bug", "cancels-itself"],
)
def test_a_model_that_fails_beyond_its_retries_ends_the_run_as_failed(place, error, tries, reason):
    asked = []

    def turn(request):
        asked.append(1)
        raise error

    desk = agent([[call("fine", id="a")], turn], fine)

    async def main():
        async with place.open(desk, effects=FrozenEffects()) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, run.ended_by, run.answer) == ("failed", "error", None)
            assert reason in run.reason
            assert len(asked) == tries
            assert outcomes(run) == {"a": "Succeeded"}

    go(main())


@both
@law("5.error")
def test_instructions_that_raise_fail_the_run(place):
    def instructions():
        raise KeyError("no such customer")

    desk = agent([say("never")], instructions=instructions)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, run.ended_by) == ("failed", "error")
            assert "KeyError" in run.reason

    go(main())


@both
@law("5.cancelled", "5.tool")
def test_a_cancel_comes_before_every_other_ending(place):
    async def main():
        begun: asyncio.Future[Run] = asyncio.get_running_loop().create_future()

        @tool(ends_run=True)
        async def work() -> str:
            """Be cancelled, and end well all the same."""
            run = await begun
            # So the cancel is on record before the body ends.
            with contextlib.suppress(asyncio.CancelledError):
                await run.cancel("enough", by="ada")
            return "done"

        async with place.open(agent([[call("work", id="a")], say("never")], work)) as runtime:
            run = await runtime.start("desk", "go")
            begun.set_result(run)
            await run.wait()
            assert (run.status, run.ended_by, run.answer, run.reason) == (
                "cancelled",
                "cancelled",
                None,
                "enough",
            )
            assert outcomes(run) == {"a": "Succeeded"}

    go(main())


@both
@law("5.queued-message", "5.complete")
def test_a_message_into_a_run_waits_for_the_batch_and_skips_no_call(place):
    async def main():
        gate = Gate()
        desk = agent([[call("work", at="a"), call("work", at="b")], say("first"), say("second")], gate.tool())
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("a", "b")
            assert await run.send("and one more thing", by="ada") is True
            gate.open("a", "b")
            await run.wait()
            assert [r.output for r in run.results] == ["a done", "b done"]
            roles = [m["role"] for m in requests(desk)[1]]
            assert roles == ["user", "assistant", "tool", "tool", "user"]
            assert requests(desk)[1][-1]["content"] == "and one more thing"
            assert (run.answer, run.steps) == ("first", 2)

    go(main())


@both
@law("5.queued-message", "11.entries")
def test_what_a_body_put_on_record_is_read_before_the_run_goes_on(place):
    async def main():
        begun: asyncio.Future[Run] = asyncio.get_running_loop().create_future()

        @tool
        async def work(n: int) -> str:
            """Say more, the third time."""
            if n == 3:
                await (await begun).send("and one more thing", by="ada")
            return f"{n} done"

        desk = agent([*([call("work", n=n)] for n in range(5)), say("first"), say("second")], work)
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            begun.set_result(run)
            await run.wait()
            assert [m["content"] for m in requests(desk)[4] if m["role"] == "user"] == ["go", "and one more thing"]
            assert (run.answer, run.steps) == ("first", 6)
            assert [r.output for r in run.results] == [f"{n} done" for n in range(5)]
            assert (await runtime.verify()).ok

    go(main())


@both
@law("5.queued-message")
def test_a_message_keeps_a_run_going_that_would_end_with_an_answer(place):
    async def main():
        asked, answer = asyncio.Event(), asyncio.Event()

        async def slow(request):
            asked.set()
            await answer.wait()
            return say("first")

        desk = agent([slow, say("second")])
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await asked.wait()
            assert await run.send("wait") is True
            answer.set()
            await run.wait()
            assert (run.answer, run.steps) == ("second", 2)
            assert [m["content"] for m in requests(desk)[1]] == ["go", "first", "wait"]

    go(main())


@both
@law("5.queued-message")
def test_after_any_other_end_a_message_waits_for_the_next_run(place):
    async def main():
        gate = Gate()

        def repeats(request):
            return say("saw " + " / ".join(m["content"] for m in request.messages if m["role"] == "user"))

        desk = agent(
            [[call("work", at="a")], repeats],
            gate.tool(ends_run=True),
        )  # fmt: skip  # rows by what belongs together
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("a")
            assert await run.send("too late for this one") is True
            gate.open("a")
            await run.wait()
            assert (run.ended_by, run.steps) == ("tool", 1)
            assert await run.send("the run is over") is False
            follow = agent(
                [
                    lambda request: say(
                        "saw " + " / ".join(m["content"] for m in request.messages if m["role"] == "user")
                    )
                ],
                name="follow",
            )
            after = await (await runtime.start(follow, "next", interaction=run.interaction_id)).wait()
            assert after.status == "completed"
            assert after.answer == "saw go / next / too late for this one / the run is over"

    go(main())


@both
@law("5.queued-message", "7.1")
def test_a_message_into_a_paused_run_waits_and_the_run_stays_paused(place):
    pay, seen = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="a")], say("done")], pay)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert await run.send("hurry") is True
            await run.wait()
            assert run.status == "paused"
            assert seen == []
            assert len(requests(desk)) == 1
            await run.approve("a", by="grace")
            await run.wait()
            assert requests(desk)[1][-1]["content"] == "hurry"
            assert run.answer == "done"

    go(main())


@both
@law("5.one-root-run")
def test_an_interaction_has_one_open_run(place):
    async def main():
        gate = Gate()
        desk = agent([[call("work", at="a")], say("done"), say("more")], gate.tool())
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("a")
            with pytest.raises(Conflict):
                await runtime.start("desk", "another", interaction=run.interaction_id)
            gate.open("a")
            await run.wait()
            after = await runtime.start("desk", "another", interaction=run.interaction_id)
            await after.wait()
            assert after.interaction_id == run.interaction_id
            assert after.id != run.id
            sequences = [i.sequence for i in run.items] + [i.sequence for i in after.items]
            assert sequences == sorted(set(sequences))

    go(main())


@law("9.pause", "7.1")
def test_a_run_left_to_runs_at_work_is_woken_by_them_and_not_by_their_approvals():
    book = Book()
    book.begin("chief")
    book.turn(("dispatch", "{}"), ("pay", "{}"))
    book.start(0, child="run-2")
    first, later = book.at + 60_000_000, book.at + 120_000_000
    book.wait(1, expires_at=moment(later))
    book.on("run-2", "dispatch:x:run-2").begin("miner", parent="run-1", call=(0, 0))
    book.turn(("blast", "{}"))
    book.wait(0, expires_at=moment(first))
    book.pause()
    run, runs = book.record.runs["run-1"], book.record.runs
    assert pause_of(run, runs, moment(first - 1)) == (False, first)
    # Now the child has something to do. To look again and again whether it has done it would be of no use.
    assert pause_of(run, runs, moment(first)) == (True, later)
