"""Cancelling a run, in every state that it can be in (contract 7.8)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from counterfoil import Agent, Cancelled, Limits, NotFound, NotPending, ToolContext, tool
from counterfoil.core.errors import ModelError
from counterfoil.model import ModelTurn
from counterfoil.testing import FrozenEffects, call, say
from tests import boundary_bodies as bodies
from tests.helpers import SOON, Gate, Hanging, agent, arrives, both, counted, fine, go, outcomes, requests, until
from tests.marks import case, law


def cancelled(run):
    return (run.status, run.ended_by, run.answer) == ("cancelled", "cancelled", None)


@both
@law("7.8", "2.1", "1.3.never", "5.cancelled")
@case("R001", "R007", "R010")
def test_a_body_that_obeys_is_cancelled_and_what_had_ended_keeps_its_result(place):
    async def main():
        gate = Gate()
        desk = agent(
            [[call("fine", id="done"), call("work", at="w", id="w"), call("work", at="x", id="x")], say("never")],
            gate.tool(), fine, limits=Limits(concurrency=2),
        )  # fmt: skip  # rows by what belongs together
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("w", "x")
            await run.cancel("stop it", by="ada")
            await run.wait()
            assert cancelled(run)
            assert run.reason == "stop it"
            assert outcomes(run) == {"done": "Succeeded", "w": "Cancelled", "x": "Cancelled"}
            assert await run.errors() == []
            assert run.results[1].cancelled
            assert [part.result.outcome for part in run.results[1:]] == [Cancelled("stop it")] * 2
            assert run.results[1].started_at is not None
            follow = agent([say("all paired")], name="follow")
            after = await (await runtime.start(follow, "and now?", interaction=run.interaction_id)).wait()
            assert after.answer == "all paired"
            asked = [c["id"] for m in requests(follow)[0] for c in m.get("tool_calls") or ()]
            assert (
                asked == [m["tool_call_id"] for m in requests(follow)[0] if m["role"] == "tool"] == ["done", "w", "x"]
            )

    go(main())


@both
@law("7.8")
def test_nothing_new_starts_after_a_cancel(place):
    async def main():
        gate = Gate()
        desk = agent(
            [[call("work", at=f"w{i}", id=f"w{i}") for i in range(4)], say("never")],
            gate.tool(), limits=Limits(concurrency=1),
        )  # fmt: skip  # rows by what belongs together
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("w0")
            await run.cancel()
            await run.wait()
            assert gate.log == ["+w0", "-w0"]
            assert set(outcomes(run).values()) == {"Cancelled"}
            assert [r.started_at is None for r in run.results] == [False, True, True, True]

    go(main())


@both
@law("7.8")
def test_a_body_that_ends_within_the_grace_keeps_its_real_result(place):
    async def main():
        began = asyncio.Event()

        @tool
        async def careful(ctx: ToolContext) -> str:
            """Finish what was begun."""
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return f"finished, cancelled={ctx.cancelled}"

        desk = agent([[call("careful", id="c")], say("never")], careful)
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await began.wait()
            await run.cancel()
            await run.wait()
            assert cancelled(run)
            assert run.results[0].output == "finished, cancelled=True"
            assert run.results[0].executed

    go(main())


@both
@law("7.8")
@case("R098")
@pytest.mark.parametrize("body", ["function", "generator"])
def test_a_sync_body_is_told_and_waited_for(place, body):
    began = threading.Event()

    def wait(ctx: ToolContext) -> str:
        began.set()
        while not ctx.cancelled:
            threading.Event().wait(0.001)
        return "stopped by itself"

    def function(ctx: ToolContext) -> str:
        return wait(ctx)

    def generator(ctx: ToolContext) -> Iterator[str]:
        yield "ended: "
        yield wait(ctx)

    fn = {"function": function, "generator": generator}[body]
    looks = tool(name="looks", description="Look whether to stop.")(fn)
    said = {"function": "stopped by itself", "generator": "ended: stopped by itself"}[body]
    desk = agent([[call("looks", id="c")], say("never")], looks)

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await until(began.is_set)
            await run.cancel()
            await run.wait()
            assert cancelled(run)
            assert [r.output for r in run.results] == [said]
            assert run.results[0].executed

    go(main())


@both
@law("7.8")
@case("R098")
@pytest.mark.parametrize("obeys", [True, False])
def test_a_body_in_a_process_is_told_and_waited_for(place, obeys, tmp_path):
    body = bodies.until_cancelled if obeys else bodies.for_ever
    begun = tmp_path / "begun"
    grace = Limits() if obeys else Limits(cancel_grace=0.05)
    desk = agent([[call(body.name, begun=str(begun), id="c")], say("never")], body, limits=grace)

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await until(begun.exists)
            await run.cancel()
            await run.wait()
            assert cancelled(run)
            if obeys:
                assert outcomes(run) == {"c": "Succeeded"}
                assert run.results[0].output == "stopped by itself"
            else:
                assert outcomes(run) == {"c": "Cancelled"}
                assert "it was stopped before its end" in run.results[0].result.model_output

    go(main())


@both
@law("7.8", "7.7")
@case("R098")
def test_a_sync_body_that_hangs_ends_late_beside_the_call(place):
    began, end = threading.Event(), threading.Event()

    @tool
    def hangs() -> str:
        """Hang."""
        began.set()
        end.wait(SOON)
        return "at last"

    desk = agent([[call("hangs", id="c")], say("never")], hangs, limits=Limits(cancel_grace=0.02))

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await until(began.is_set)
            await run.cancel()
            await run.wait()
            assert outcomes(run) == {"c": "Cancelled"}
            assert "may still be running" in run.results[0].result.model_output
            end.set()
            late = []
            while not late:
                late = [e for e in await runtime.store.entries("default", run.interaction_id) if e.kind == "late"]
                await asyncio.sleep(0.001)
            assert [e.result.model_output for e in late] == ["at last"]

    go(main())


@both
@law("7.8", "7.7")
def test_a_body_that_ignores_its_cancel_ends_late_beside_the_call(place):
    async def main():
        began, end, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @tool
        async def stubborn() -> str:
            """Go on."""
            began.set()
            while not end.is_set():
                try:
                    await end.wait()
                except asyncio.CancelledError:
                    continue
            over.set()
            return "went on anyway"

        desk = agent([[call("stubborn", id="c")], say("never")], stubborn, limits=Limits(cancel_grace=0.02))
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await began.wait()
            await run.cancel()
            await run.wait()
            assert cancelled(run)
            assert outcomes(run) == {"c": "Cancelled"}
            text = run.results[0].result.model_output
            assert "may still be running" in text
            end.set()
            await over.wait()
            late = []
            while not late:
                entries = await runtime.store.entries("default", run.interaction_id)
                late = [e for e in entries if e.kind == "late"]
                await asyncio.sleep(0.001)
            assert late[0].result.model_output == "went on anyway"
            assert [r.result.model_output for r in (await runtime.get(run.id)).results] == [text]

    go(main())


@both
@law("7.8", "7.6")
def test_a_runtime_that_closes_waits_for_no_body_that_was_asked_to_stop(place):
    began, asked, end = threading.Event(), threading.Event(), threading.Event()

    @tool(read_only=True)
    def hangs(ctx: ToolContext) -> str:
        """Hang."""
        began.set()
        while not ctx.cancelled:
            end.wait(0.001)
        asked.set()
        end.wait(SOON)
        return "at last"

    desk = agent([[call("hangs", id="c")], say("never")], hangs, limits=Limits(cancel_grace=2 * SOON))

    async def main():
        async with place.runtime(desk) as runtime:
            run = await runtime.start("desk", "go")
            await until(began.is_set)
            await run.cancel()
            await until(asked.is_set)
        end.set()
        async with place.open(desk) as runtime:
            again = await arrives(await runtime.get(run.id), "cancelled")
            assert outcomes(again) == {"c": "Cancelled"}

    go(main())


@both
@law("7.8")
def test_a_cancel_breaks_off_the_request_to_the_model(place):
    async def main():
        model = Hanging()
        async with place.open(Agent("desk", model=model)) as runtime:
            run = await runtime.start("desk", "go")
            await model.asked.wait()
            await run.cancel()
            await run.wait()
            assert cancelled(run)
            assert model.stopped
            assert run.steps == 0

    go(main())


class Deaf:
    """A model that goes on whatever it is told, until the test is over."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.told = 0

    async def respond(self, request):
        while True:
            self.asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.told += 1
        yield ModelTurn(text="never")


@both
@law("7.8")
@case("R100")
def test_a_model_that_swallows_its_cancel_holds_a_cancelled_run_for_no_longer_than_a_body(place):
    async def main():
        model = Deaf()
        async with place.open(Agent("desk", model=model, limits=Limits(cancel_grace=0.05))) as runtime:
            run = await runtime.start("desk", "go")
            await model.asked.wait()
            await run.cancel("enough")
            await run.wait()
            assert cancelled(run)
            assert (run.reason, run.steps, model.told) == ("enough", 0, 2)  # once more when it is left

    go(main())


@both
@law("5.limit")
def test_a_model_that_swallows_its_cancel_holds_no_run_whose_time_is_used_up(place):
    async def main():
        model = Deaf()
        limits = Limits(seconds=0.1, cancel_grace=0.05)
        async with place.open(Agent("desk", model=model, limits=limits)) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (run.status, run.ended_by, model.told) == ("limited", "limit", 2)  # as above

    go(main())


@both
@law("7.6")
def test_a_model_that_swallows_its_cancel_holds_no_runtime_that_closes(place):
    async def main():
        model = Deaf()
        async with place.runtime(Agent("desk", model=model, limits=Limits(cancel_grace=0.05))) as runtime:
            run = await runtime.start("desk", "go")
            await model.asked.wait()
        assert model.told == 2  # as above
        desk = agent([say("done")])
        async with place.open(desk) as runtime:
            assert (await arrives(await runtime.get(run.id), "completed")).answer == "done"

    go(main())


@both
@law("7.8")
def test_a_cancel_breaks_off_the_wait_before_the_model_is_asked_again(place):
    async def main():
        sleeping = asyncio.Event()

        class Waiting(FrozenEffects):
            async def sleep(self, seconds: float) -> None:
                sleeping.set()
                await asyncio.Event().wait()

        def busy(request):
            raise ModelError("busy", retryable=True)

        async with place.open(agent([busy]), effects=Waiting()) as runtime:
            run = await runtime.start("desk", "go")
            await sleeping.wait()
            await run.cancel()
            while (await run.refresh()).status == "running":
                await asyncio.sleep(0.001)
            assert cancelled(run)

    go(main())


@both
@law("7.8")
def test_a_cancel_before_the_first_request_asks_no_model(place):
    async def main():
        asked, answer = asyncio.Event(), asyncio.Event()

        async def instructions():
            asked.set()
            await answer.wait()
            return "be kind"

        desk = agent([say("never")], instructions=instructions)
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await asked.wait()
            await run.cancel()
            answer.set()
            await run.wait()
            assert cancelled(run)
            assert requests(desk) == []

    go(main())


@both
@law("7.8", "7.9")
def test_a_paused_run_can_be_cancelled_where_its_agent_is_not_registered(place):
    pay, seen = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="a"), call("fine", id="b"), call("pay", n=2, id="c")], say("never")], pay, fine)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.approve("c", by="grace")
            await run.wait()
        async with place.open() as reader:
            again = await reader.get(run.id)
            await again.cancel("closing time")
            await again.wait()
            assert cancelled(again)
            assert outcomes(again) == {"a": "Cancelled", "b": "Succeeded", "c": "Succeeded"}
            assert "Nothing ran" in again.results[0].result.model_output
            assert await again.approvals() == []
            with pytest.raises(NotPending):
                await again.approve("a", by="grace")
            assert len(seen) == 1

    go(main())


@both
@law("7.8")
def test_a_run_that_has_not_begun_can_be_cancelled(place):
    desk = agent([say("never")])

    async def main():
        async with place.open(desk) as runtime:
            later = datetime.now(UTC) + timedelta(hours=1)
            run = await runtime.start("desk", "go", not_before=later)
            elsewhere = await runtime.start("desk", "go", pool="other")
            for one in (run, elsewhere):
                await one.cancel()
                await one.wait()
                assert cancelled(one)
            assert requests(desk) == []

    go(main())


@both
@law("7.8")
def test_a_second_cancel_and_one_after_the_end_change_nothing(place):
    async def main():
        gate = Gate()
        desk = agent([[call("work", at="w")], say("never")], gate.tool())
        async with place.open(desk, agent([say("done")], name="quick")) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("w")
            await asyncio.gather(run.cancel("one"), run.cancel("other"))
            await run.wait()
            cancels = [
                e.reason for e in await runtime.store.entries("default", run.interaction_id) if e.kind == "cancel"
            ]
            assert (cancelled(run), run.reason) == (True, cancels[0])
            assert set(cancels) <= {"one", "other"}
            tip = len(await runtime.store.entries("default", run.interaction_id))
            await run.cancel("third")
            assert len(await runtime.store.entries("default", run.interaction_id)) == tip
            done = await (await runtime.start("quick", "go")).wait()
            await done.cancel()
            await done.wait()
            assert (done.status, done.answer) == ("completed", "done")
            with pytest.raises(NotFound):
                await runtime.cancel("no such run")

    go(main())


@both
@law("7.8.reader", "7.8")
@case("R007", "R116")
def test_a_caller_that_goes_away_cancels_nothing(place):
    async def main():
        gate = Gate()
        desk = agent([[call("work", at="w", id="w")], say("done")], gate.tool())
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("w")

            async def read():
                return [event async for event in run.events()]

            waiter, reader = asyncio.create_task(run.wait()), asyncio.create_task(read())
            await asyncio.sleep(0)
            waiter.cancel()
            reader.cancel()
            ended = await asyncio.gather(waiter, reader, return_exceptions=True)
            assert [type(e) for e in ended] == [asyncio.CancelledError] * 2
            with pytest.raises(TimeoutError):
                await run.wait(0.01)
            assert gate.running == {"w"}
            assert run.status == "running"
            gate.open("w")
            await run.wait()
            assert run.answer == "done"

    go(main())


@both
@law("2.1")
@case("R007", "R112")
@pytest.mark.parametrize("how", ["raises", "cancels"])
def test_a_body_that_cancels_itself_fails_alone(place, how):
    @tool
    async def selfish() -> str:
        """Cancel the task that it runs in."""
        if how == "raises":
            raise asyncio.CancelledError
        task = asyncio.current_task()
        task.cancel()
        await asyncio.Event().wait()
        return "never"

    desk = agent([[call("selfish", id="s"), call("fine", id="f")], say("done")], selfish, fine)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert outcomes(run) == {"s": "Failed", "f": "Succeeded"}
            assert run.answer == "done"

    go(main())
