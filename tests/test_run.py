"""Run: the handle (api.md, Run)."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil import Limits, NotFound, ToolError, tool
from counterfoil.core.turn import Usage
from counterfoil.testing import call, say
from tests.helpers import SOON, Gate, agent, arrives, both, broken, counted, fine, go, outcomes, requests
from tests.marks import case, law


@both
@law("2.4", "1.2.key")
def test_a_handle_shows_all_of_the_run(place):
    desk = agent(
        [[say("one moment", usage=Usage(5, 2)), call("fine", n=3, id="f")], say("done", usage=Usage(7, 1))], fine
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            assert (run.status, run.ended_by, run.answer, run.output, run.reason) == ("running", None, None, None, None)
            assert await run.wait() is run
            assert (run.status, run.ended_by, run.answer, run.output) == ("completed", "answer", "done", "done")
            assert (run.agent, run.tenant, run.steps, run.usage) == ("desk", "default", 2, Usage(12, 3))
            assert [c.tool_name for c in run.calls] == ["fine"]
            assert [r.output for r in run.results] == ["fine 3"]
            kinds = [(type(i).__name__, i.sequence) for i in run.items]
            assert kinds == [("Message", 1), ("Message", 2), ("ToolCallPart", 3), ("ToolResultPart", 4), ("Message", 5)]
            assert run.id in repr(run)
            again = await runtime.get(run.id)
            assert again.items == run.items
            assert (again.usage, again.steps, again.answer) == (run.usage, run.steps, run.answer)
            assert await run.errors() == []
            assert await run.approvals() == []

    go(main())


@both
@law("7.8.reader")
def test_wait_with_a_time_limit_leaves_the_run_going(place):
    async def main():
        gate = Gate()
        desk = agent([[call("work", at="w")], say("done")], gate.tool())
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await run.wait(timeout=0.01)
            await gate.began("w")
            assert (run.status, gate.running) == ("running", {"w"})
            waiters = [asyncio.create_task(run.wait()) for _ in range(3)]
            await asyncio.sleep(0)
            waiters[0].cancel()
            gate.open("w")
            done = await asyncio.gather(*waiters, return_exceptions=True)
            assert isinstance(done[0], asyncio.CancelledError)
            assert done[1].answer == done[2].answer == "done"
            assert await run.wait(SOON) is run  # it has ended

    go(main())


@both
@law("1.3.one-per-failure", "source.001.callId", "source.001.runId")
@case("R008")
def test_errors_are_those_of_the_run(place):
    @tool
    async def declines() -> str:
        """Fail on purpose."""
        raise ToolError("not on Sundays", code=77, retryable=True)

    desk = agent([[call("broken", n=1, id="b"), call("declines", id="d")], say("done")], broken, declines)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            other = await (await runtime.start("desk", "go")).wait()
            reports = {r.call_id: r for r in await run.errors()}
            assert {i: r.code for i, r in reports.items()} == {"b": 5000, "d": 77}
            assert all(r.run_id == run.id for r in reports.values())
            assert "secret 1" in str(reports["b"].to_json())
            assert "secret" not in str(requests(desk))
            assert reports["d"].model_text == "not on Sundays"
            assert len(await runtime.errors()) == 4
            assert [r.call_id for r in await runtime.errors(other.id, code=77)] == ["d"]
            assert run.status == other.status == "completed"

    go(main())


@both
def test_a_whole_result_is_read_by_its_sequence(place):
    long = "0123456789" * 500

    @tool
    async def big() -> str:
        """Give much."""
        return long

    desk = agent(
        [[call("big", id="x"), call("fine", id="f")], say("done")], big, fine, limits=Limits(keep_apart_bytes=1000)
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            part = run.results[0]
            assert part.tool_result_id
            assert part.output is None
            whole = await runtime.tool_result(run.id, part.sequence)
            assert (whole.text, whole.total, whole.size) == (long, 5000, 5000)
            piece = await runtime.tool_result(run.id, part.sequence, offset=10, limit=5)
            assert (piece.text, piece.offset, piece.total) == ("01234", 10, 5000)
            small = await runtime.tool_result(run.id, run.results[1].sequence, offset=1, limit=3)
            assert (small.text, small.total) == ("ine", 6)
            with pytest.raises(NotFound):
                await runtime.tool_result(run.id, run.calls[0].sequence)

    go(main())


@both
@law("6.read_result", "7.6")
def test_a_result_kept_apart_can_be_read_on_after_a_restart(place):
    @tool
    async def big() -> str:
        """Give much."""
        return "0123456789" * 500

    async def main():
        gate = Gate()
        script = [
            [call("big", id="x")],
            [call("read_result", call_id="x", offset=4990, limit=10, id="r"), call("look", at="l", id="l")],
            say("done"),
        ]

        def desk():
            return agent(
                script, big, gate.tool("look", read_only=True), limits=Limits(keep_apart_bytes=1000, concurrency=1)
            )

        async with place.runtime(desk()) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("l")
        gate.open("l")
        async with place.open(desk()) as runtime:
            again = await arrives(await runtime.get(run.id), "completed")
            assert outcomes(again) == {"x": "Succeeded", "r": "Succeeded", "l": "Succeeded"}
            assert again.results[1].output.endswith("0123456789")

    go(main())


@both
@law("11.erased")
def test_an_ended_run_can_be_erased(place):
    from counterfoil.core.errors import Conflict

    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("broken", id="b"), call("pay", id="a")], say("done")], pay, broken)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "a secret wish")).wait()
            with pytest.raises(Conflict):
                await runtime.erase(run.id)
            await run.reject("a")
            await run.wait()
            assert await runtime.erase(run.id) > 0
            assert await run.errors() == []
        async with place.open() as reader:
            again = await reader.get(run.id)
            assert again.status == "completed"
            assert "secret" not in repr(again.items)

    go(main())
