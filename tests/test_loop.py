"""The loop itself: closing in the middle, interrupts of the program, one writer at a time (contract 4 and 7)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time

import pytest

from counterfoil import Hooks, Limits, Runtime, Succeeded, Text, tool
from counterfoil.core.approval import Decision
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.entries import CancelEntry, QueuedEntry
from counterfoil.core.result import seal
from counterfoil.effects import Effects
from counterfoil.testing import call, say
from tests.helpers import (
    SOON,
    Gate,
    Place,
    agent,
    arrives,
    both,
    content,
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


@both
@law("4.exit", "2.1")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_in_a_body_ends_the_program_after_the_call_is_settled(place, error):
    @tool
    async def leave() -> str:
        """Leave."""
        raise error("bye")

    store = []

    async def main():
        async with place.runtime(
            agent([[call("leave", id="l"), call("fine", id="f")], say("never")], leave, fine)
        ) as runtime:
            store.append(runtime.store)
            run = await runtime.start("desk", "go")
            store.append(run.id)
            await run.wait(SOON)

    with pytest.raises(error):
        asyncio.run(main())

    async def look():
        desk = agent([[call("leave"), call("fine")], say("went on")], leave, fine)
        async with place.open(desk) as runtime:
            run = await arrives(await runtime.get(store[1]), "completed")
            assert outcomes(run)["l"] == "Failed"
            assert (run.answer, len(run.results)) == ("went on", 2)

    go(look())


@both
@law("7.6")
@case("R005")
def test_closing_in_the_middle_leaves_the_run_to_whoever_comes_next(place):
    async def main():
        gate = Gate()
        script = [[call("look", at="x", id="x"), call("fine", id="f")], say("done")]
        tools = gate.tool("look", read_only=True), fine
        async with place.runtime(agent(script, *tools)) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("x")
            await until(lambda: run.results)
            waiter = asyncio.create_task(run.wait())
            await asyncio.sleep(0)
            waiter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiter
        assert gate.running == set()
        gate.open("x")
        async with place.open(agent(script, *tools)) as runtime:
            row = await runtime.store.run("default", run.id)
            assert row.status == "running"
            again = await arrives(await runtime.get(run.id), "completed")
            assert [r.attempt for r in again.results] == [2, 1]
            assert [r.output for r in again.results] == ["x done", "fine 0"]

    go(main())


@both
@law("7.6")
def test_closing_while_the_model_is_asked_leaves_the_run_to_whoever_comes_next(place):
    async def main():
        asked = asyncio.Event()

        async def hang(request):
            asked.set()
            await asyncio.Event().wait()

        async with place.runtime(agent([hang])) as runtime:
            run = await runtime.start("desk", "go")
            await asked.wait()
        desk = agent([say("done")])
        async with place.open(desk) as runtime:
            again = await arrives(await runtime.get(run.id), "completed")
            assert (again.answer, again.steps) == ("done", 1)

    go(main())


@both
def test_a_run_that_never_waits_lets_others_go_on(place):
    @tool
    async def busy() -> str:
        """Never waits."""
        time.sleep(0.03)  # noqa: ASYNC251  # what it is about
        return "busy"

    async def main():
        turns = []
        desk = agent([call("busy")] * 20 + [say("done")], busy)

        async def others():
            while True:
                turns.append(len((await runtime.get(run.id)).results))
                await asyncio.sleep(0)

        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            task = asyncio.create_task(others())
            await run.wait(SOON)
            task.cancel()
        assert len(set(turns) - {0, 20}) >= 3

    go(main())


@both
@law("2.1", "7.6")
def test_a_turn_is_safe_before_somebodys_code_judges_it(place):
    async def main():
        seen = []

        async def guard(before):
            row = await runtime.store.entries("default", run.interaction_id)
            seen.append([e.kind for e in row])

        desk = agent([[call("fine", id="f")], say("done")], fine, hooks=Hooks(before_call=guard))
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await run.wait()
            assert seen == [["run", "message", "turn"]]

    go(main())


@both
@law("7.7", "7.5")
def test_a_driver_that_lost_its_run_writes_nothing_more(place):
    async def main():
        gate = Gate()
        script = [[call("look", at="x", id="x")], say("done")]
        tools = (gate.tool("look", read_only=True),)
        one = place.runtime(agent(script, *tools))
        async with one:
            run = await one.start("desk", "go")
            await gate.began("x")
            # Another worker claims the run, as one does that takes this process for dead.
            row = await one.store.run("default", run.id)
            two = place.runtime(agent([*script[:1], say("the other's")], *tools))
            async with two:
                assert await one.store.claim(row, two.owner)
                gate.open("x")
                await until(lambda: run.id not in one._drives)
                assert run.results == []
                lost = await one.store.run("default", run.id)
                assert (lost.epoch, lost.status) == (row.epoch + 1, "running")
        async with place.open(agent(script, *tools)) as runtime:
            again = await arrives(await runtime.get(run.id), "completed")
            assert len(again.results) == 1

    go(main())


@both
@law("2.2")
@case("R020", "R016", "R025", "R028")
def test_a_request_holds_each_item_once_also_after_several_pauses(place):
    pay, paid = counted("pay", needs_approval=True)
    look, looked = counted("look")
    desk = agent(
        [
            [call("pay", n=1, id="a")],
            [call("pay", n=2, id="b"), call("look", n=1, id="l"), call("pay", n=3, id="c")],
            [call("look", n=2, id="m")],
            say("done"),
        ],
        pay,
        look,
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            while (await run.wait()).status == "paused":
                await run.approve((await pending(run))[0], by="grace")
            assert [x["n"] for x in paid] == [1, 2, 3]
            assert [x["n"] for x in looked] == [1, 2]  # a finished sibling of two pauses, and the step after them
            assert [(c.call_id, c.step_index) for c in run.calls] == [("a", 0), ("b", 1), ("l", 1), ("c", 1), ("m", 2)]
            assert [len(r) for r in requests(desk)] == [1, 3, 7, 9]
            for seen in desk.model.requests:
                entries = [i.entry for i in seen.items]
                assert len(entries) == len(set(entries))
            assert list(told(desk)) == ["a", "b", "l", "c", "m"]

    go(main())


@both
@law("6.growth", "2.3")
def test_a_long_run_stays_in_order(place):
    desk = agent([*[[call("fine", n=n)] for n in range(40)], say("done")], fine, limits=Limits(steps=None))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert [r.output for r in run.results] == [f"fine {n}" for n in range(40)]
            assert [i.sequence for i in run.items] == list(range(1, len(run.items) + 1))

    go(main())


@both
@law("7.1")
def test_many_runs_at_once_each_come_to_their_own_end(place):
    pay, seen = counted("pay", needs_approval=True)
    desk = agent([[call("pay", n=1), call("fine", n=2)], say("done")], pay, fine)

    async def main():
        async with place.open(desk) as runtime:
            runs = await asyncio.gather(*(runtime.start("desk", f"go {i}") for i in range(20)))
            await asyncio.gather(*(run.wait() for run in runs))
            assert {run.status for run in runs} == {"paused"}
            await asyncio.gather(*(runtime.approve(a.run_id, a.call_id, by="grace") for a in await runtime.approvals()))
            await asyncio.gather(*(run.wait() for run in runs))
            assert {(run.status, run.answer) for run in runs} == {("completed", "done")}
            assert len(seen) == 20
            await content(runtime)

    go(main())


@both
@law("2.1")
@case("R004")
def test_a_result_on_record_whose_call_is_missing_is_reported_and_left_out(place):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="a")], say("done")], pay)

    async def main():
        async with place.runtime(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            row = await runtime.store.run("default", run.id)
            lease = await runtime.store.claim(row, runtime.owner)
            stray = ResultEntry(
                run_id=run.id, at=row.updated_at, step=7, index=0, call_id="ghost", tool_name="pay",
                result=seal((Text("boo"),), Succeeded()), size=3,
            )  # fmt: skip  # rows by what belongs together
            await runtime.store.commit(lease, [stray])
            await runtime.store.release(lease)
            await run.approve("a", by="grace")
            await arrives(run, "completed")
            assert (run.answer, list(outcomes(run))) == ("done", ["a"])
            assert "boo" not in str(requests(desk))
            assert [e.call_id async for e in run.events() if hasattr(e, "part")] == ["a"]
            found = await runtime.verify()
            assert any(p.call_id == "ghost" or "ghost" in p.message for p in found.problems), found.problems

    go(main())


def paired(of):
    """Each request's calls and results pair off, next to one another, and no text of a result is empty."""
    for request in requests(of):
        open_ = []
        for message in request:
            if message["role"] == "tool":
                assert open_.pop(0) == message["tool_call_id"]
                assert message["content"]
                continue
            assert open_ == []
            open_ = [c["id"] for c in message.get("tool_calls") or ()]
        assert open_ == []


@both
@law("6.context-budget", "2.1")
@case("R016", "R017")
def test_a_history_that_is_cut_to_its_budget_keeps_pairs_and_waiting_calls(place):
    @tool
    async def much(n: int) -> str:
        """Give much."""
        return f"{n} " * 500

    pay, seen = counted("pay", needs_approval=True)
    turns = [[say("hm"), call("much", n=n, id=f"m{n}"), call("fine", id=f"f{n}")] for n in range(6)]
    desk = agent([*turns, [call("pay", id="p")], say("done")], much, fine, pay, limits=Limits(context_tokens=1000))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            approval = (await run.approvals())[0]
            assert run.status == "paused"
            await run.approve("p", by="grace", digest=approval.digest)
            await run.wait()
            assert (run.answer, len(seen), len(run.results)) == ("done", 1, 13)
            assert len(requests(desk)[-1]) < len(run.items)
            assert requests(desk)[-1][0]["content"] == "go"
            paired(desk)

    go(main())


@both
@law("6.read_result", "6.context-budget")
def test_what_reads_results_that_are_left_out_is_offered_from_the_first_turn_on_and_after_a_crash(place):
    @tool(read_only=True)
    async def much(n: int) -> str:
        """Give much."""
        return f"{n} " * 500

    gate = Gate()
    turns = [[call("much", n=n, id=f"m{n}")] for n in range(4)]
    turns += [[call("work", at="w", id="w"), call("read_result", call_id="m0", limit=4, id="r")]]
    limits = Limits(context_tokens=700, concurrency=1)
    desk, later = (agent(t, much, gate.tool(read_only=True), limits=limits) for t in (turns, [*turns, say("done")]))

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("w")
            offered = [[str(tool["name"]) for tool in seen.tools] for seen in desk.model.requests]
            assert offered == [["much", "work", "read_result"]] * 5
            assert "left out" in told(desk)["m0"]
        gate.open("w")
        async with place.open(later) as runtime:
            run = await arrives(await runtime.get(run.id), "completed")
            assert run.results[-1].result.model_output.endswith("\n0 0 ")

    go(main())


@both
@law("2.1", "4.never-empty")
@case("R011")
def test_whatever_happened_the_next_request_is_paired_and_never_empty(place):
    @tool
    async def blank(how: str) -> object:
        """Give nothing, in many ways."""
        return {"none": None, "empty": "", "list": [], "space": " "}[how]

    async def main():
        gate = Gate()
        script = [
            [
                call("blank", how="none"),
                call("blank", how="empty"),
                call("blank", how="list"),
                call("blank", how="space"),
            ],
            [call("no_such"), call("fine", raw="{"), call("fine", id="x"), call("fine", id="x")],
            [call("work", at="w"), call("pay")],
        ]
        desk = agent(script, blank, fine, gate.tool(), counted("pay", needs_approval=True)[0])
        after = agent([say("", stop="end")], name="after")
        async with place.open(desk, after) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("w")
            await run.cancel()
            await run.wait()
            more = await (await runtime.start("after", "and?", interaction=run.interaction_id)).wait()
            assert more.status == "completed"
            paired(desk)
            paired(after)
            assert len([m for m in requests(after)[0] if m["role"] == "tool"]) == 10

    go(main())


def elsewhere(runtime, work):
    """Do something on the same record while this event loop stands still, as another process may."""
    if not runtime.store.shared:
        with contextlib.suppress(StopIteration):
            work(runtime.store).send(None)
        return

    async def other():
        async with Runtime(runtime.url) as reader:
            await work(reader.store)

    thread = threading.Thread(target=lambda: asyncio.run(other()))
    thread.start()
    thread.join()


@both
@law("7.1", "7.2.one-by-one")
@case("R077")
def test_a_decision_in_the_moment_of_the_pause_is_not_missed(place):
    pay, seen = counted("pay", needs_approval=True)
    desk = agent([[call("pay", n=1, id="a")], say("done")], pay)
    effects = Effects()

    async def main():
        async with place.open(desk, effects=effects) as runtime:
            decision = Decision("approve", "grace", at=effects.now())

            def at_the_pause(point):
                if point == "store:before:paused" and not decided:
                    decided.append(point)
                    elsewhere(runtime, lambda store: store.decide("default", run.id, "a", decision))

            decided = []
            effects.probe = at_the_pause
            run = await runtime.start("desk", "go")
            await run.wait()
            assert decided
            assert (run.status, run.answer, len(seen)) == ("completed", "done", 1)
            assert not any(type(e).__name__ == "RunPaused" for e in [e async for e in run.events()])

    go(main())


@both
@law("5.cancelled", "5.queued-message")
@pytest.mark.parametrize("what", ["cancel", "message"])
def test_what_comes_in_the_moment_of_the_end_is_not_missed(place, what):
    desk = agent([say("first"), say("second")])
    effects = Effects()

    async def main():
        async with place.open(desk, effects=effects) as runtime:
            done = []

            def at_the_end(point):
                if point == "store:before:turn,ended" and not done:
                    done.append(point)
                    made = CancelEntry if what == "cancel" else functools.partial(QueuedEntry, text="wait")
                    entry = made(run_id=run.id, at=effects.now())
                    elsewhere(runtime, lambda store: store.post("default", run.id, entry))

            effects.probe = at_the_end
            run = await runtime.start("desk", "go")
            await run.wait()
            assert done
            assert (run.status, run.answer) == (("cancelled", None) if what == "cancel" else ("completed", "second"))

    go(main())


def test_a_waiter_that_comes_when_a_task_has_just_ended_lets_the_loop_go_on():
    desk = agent([[call("pay", n=1, id="a")], say("done")], counted("pay", needs_approval=True)[0])

    async def main():
        place = Place("memory", None)
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        async with place.open() as reader:
            again = await reader.get(run.id)
            await again.approve("a", by="grace")
            looking = reader._kicks[run.id]
            while not looking.done():
                await asyncio.sleep(0)
            assert run.id in reader._kicks  # what tidies up after it comes in the next turn of the loop
            with pytest.raises(TimeoutError):
                await again.wait(0.01)

    go(main())
