"""Wake-ups and locks of one process (contract 2.7)."""

from __future__ import annotations

import asyncio
import threading

from counterfoil import ErrorCode, Limits, Runtime, tool
from counterfoil.core.events import TurnDelta
from counterfoil.core.turn import moment
from counterfoil.hub import MAX_LIVE, SMALLEST, Hub, Slots
from counterfoil.testing import FrozenEffects, call, say
from tests.helpers import Gate, Place, agent, both, codes, content, go, outcomes, until
from tests.marks import law


@both
@law("2.7.lock")
def test_two_runs_with_an_equal_lock_never_overlap(place):
    async def main():
        gate = Gate()

        @tool(lock="account:{name}")
        async def book(name: str, at: str) -> str:
            """Book."""
            await gate.enter(at)
            return at

        def desk(name, account):
            return agent([[call("book", name=account, at=name)], say("done")], book, name=name)

        async with place.open(desk("one", "x"), desk("two", "x"), desk("three", "y")) as runtime:
            runs = [await runtime.start("one", "go")]
            await gate.began("one")
            runs += [await runtime.start(name, "go") for name in ("two", "three")]
            await gate.began("three")
            await asyncio.sleep(0.02)
            assert gate.running == {"one", "three"}
            gate.open("one")
            await gate.began("two")
            gate.open("two", "three")
            for run in runs:
                await run.wait()
            assert gate.log.index("-one") < gate.log.index("+two")

    go(main())


@both
@law("2.7.lock", "2.7")
def test_calls_of_one_batch_with_an_equal_lock_come_one_after_another_and_others_pass(place):
    async def main():
        gate = Gate()
        hold = gate.tool("hold", lock="till")
        desk = agent(
            [[call("hold", at="a"), call("hold", at="b"), call("hold", at="c"), call("work", at="w")], say("done")],
            hold, gate.tool(), limits=Limits(concurrency=2),
        )  # fmt: skip  # rows by what belongs together
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("a", "w")
            gate.open("a", "b", "c", "w")
            await run.wait()
            held = [x for x in gate.log if x[1] != "w"]
            assert held == ["+a", "-a", "+b", "-b", "+c", "-c"]

    go(main())


@both
@law("2.7.lock")
def test_the_wait_for_a_lock_counts_to_no_time_out(place):
    async def main():
        gate = Gate()
        hold = gate.tool("hold", lock="till")

        @tool(lock="till", timeout=0.05)
        async def quick() -> str:
            """Be quick."""
            return "quick"

        desk = agent([[call("hold", at="a"), call("quick", id="q")], say("done")], hold, quick)
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("a")
            await asyncio.sleep(0.1)
            gate.open("a")
            await run.wait()
            assert codes(run)["q"] is None

    go(main())


@both
@law("2.7.lock")
def test_a_lock_is_not_taken_while_a_person_decides(place):
    async def main():
        gate = Gate()
        hold = gate.tool("hold", lock="till", needs_approval=True)
        desk = agent([[call("hold", at="a", id="a"), call("hold", at="b", id="b")], say("done")], hold)
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.approve("b", by="grace")
            await gate.began("b")
            gate.open("b")
            await run.wait()
            assert outcomes(run) == {"b": "Succeeded"}
            await run.approve("a", by="grace")
            gate.open("a")
            await run.wait()
            assert run.answer == "done"

    go(main())


@both
@law("2.7.lock", "7.7", "3.4080")
def test_a_body_that_outlives_its_time_out_keeps_its_lock_until_it_ends(place):
    end, ran = threading.Event(), []

    @tool(lock="till", timeout=0.05)
    def slow() -> str:
        """Outlive the time-out, in a thread."""
        end.wait()
        ran.append("slow")
        return "late"

    @tool(lock="till")
    async def after() -> str:
        """Come after it."""
        ran.append("after")
        return "after"

    desk = agent([[call("slow", id="s"), call("after", id="a")], say("done")], slow, after)

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            while codes(await run.refresh()) != {"s": ErrorCode.TIMEOUT}:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            assert ran == []
            end.set()
            await run.wait()
            assert ran == ["slow", "after"]
            assert codes(run) == {"s": ErrorCode.TIMEOUT, "a": None}
            late = []
            while not late:
                late = [e for e in await runtime.store.entries("default", run.interaction_id) if e.kind == "late"]
                await asyncio.sleep(0.001)
            assert late[0].result.model_output == "late"

    go(main())


@both
@law("2.7.lock", "7.8")
def test_a_call_that_waits_for_a_lock_can_be_cancelled_and_leaves_the_lock_free(place):
    async def main():
        gate = Gate()
        hold = gate.tool("hold", lock="till")

        def desk(name):
            return agent([[call("hold", at=name, id=name)], say("done")], hold, name=name)

        async with place.open(desk("one"), desk("two"), desk("three")) as runtime:
            one = await runtime.start("one", "go")
            await gate.began("one")
            two, three = [await runtime.start(name, "go") for name in ("two", "three")]
            await until(lambda: len(runtime.locks._waiting.get(("default", "till"), ())) == 2)
            await two.cancel()
            await two.wait()
            assert outcomes(two) == {"two": "Cancelled"}
            gate.open("one", "three")
            await one.wait()
            await three.wait()
            assert (one.answer, three.answer) == ("done", "done")
            assert "+two" not in gate.log

    go(main())


@both
@law("2.7.lock", "7.8")
def test_a_call_that_has_its_lock_and_waits_for_a_place_gives_it_back_when_it_is_cancelled(place):
    async def main():
        gate = Gate()
        hold = gate.tool("hold", lock="till")
        busy = agent([[call("work", at="busy", id="b")], say("done")], gate.tool(), name="busy")

        def desk(name):
            return agent([[call("hold", at=name, id=name)], say("done")], hold, name=name)

        async with place.open(busy, desk("one"), desk("two"), concurrency=1) as runtime:
            first = await runtime.start("busy", "go")
            await gate.began("busy")
            one = await runtime.start("one", "go")
            await until(lambda: runtime.slots._waiting)
            assert runtime.locks._held
            await one.cancel()
            assert outcomes(await one.wait()) == {"one": "Cancelled"}
            gate.open("busy", "two")
            two = await (await runtime.start("two", "go")).wait()
            assert (two.answer, (await first.wait()).answer) == ("done", "done")

    go(main())


@law("2.7.lock")
def test_a_store_that_fails_for_a_while_makes_a_call_wait_for_its_lock_and_no_longer(tmp_path, caplog):
    async def main():
        gate = Gate()
        hold = gate.tool("hold", lock="till")

        def desk(name):
            return agent([[call("hold", at=name, id=name)], say("done")], hold, name=name)

        place = Place("sqlite", tmp_path)
        async with place.open(desk("one")) as here, place.open(desk("two")) as there:
            one = await here.start("one", "go")
            await gate.began("one")
            two = await there.start("two", "go")
            await until(lambda: there.locks._held)
            there.store._writer._db.execute("PRAGMA query_only = ON")
            gate.open("one", "two")
            assert (await one.wait()).answer == "done"
            await until(lambda: "asked for again" in caplog.text)
            there.store._writer._db.execute("PRAGMA query_only = OFF")
            assert (await two.wait()).answer == "done"

    go(main())


@both
@law("2.7.lock", "7.8")
def test_hundreds_of_calls_that_wait_for_one_lock_can_be_cancelled_at_once(place):
    async def main():
        gate = Gate()
        hold = gate.tool("hold", lock="till")
        desk = agent([[call("hold", at=f"{i}", id=f"{i}") for i in range(450)], say("done")], hold)
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("0")
            await until(lambda: len(runtime.locks._waiting.get(("default", "till"), ())) > 400)
            await run.cancel()
            await run.wait()
            assert set(outcomes(run).values()) == {"Cancelled"}
            await until(lambda: not runtime.locks._held)

    go(main())


@law("2.7.lock", "5.limit")
def test_a_call_that_is_told_to_stop_before_its_body_had_a_turn_gives_lock_and_place_back():
    async def main():
        effects = FrozenEffects()
        began = []

        @tool(lock="till")
        async def hold() -> str:
            """Hold the till."""
            began.append("hold")
            return "held"

        desk = agent([[call("hold", id="h")], say("done")], hold)
        async with Runtime(agents=[desk], effects=effects, concurrency=1) as runtime:

            def late(point):
                if point == "store:after:turn,start":  # launched in this turn of the loop, and stopped in the same one
                    effects.advance(100)
                    for drive in runtime._drives.values():
                        drive.wake()

            effects.probe = late
            run = await (await runtime.start("desk", "go", limits=Limits(seconds=10, cancel_grace=1000))).wait()
            assert (run.status, codes(run)) == ("limited", {"h": ErrorCode.LIMIT_REACHED})
            assert (began, runtime.locks._held, runtime.slots.take(desk)) == ([], {}, True)
            await content(runtime)

    go(main())


@law("2.7.lock")
def test_a_runtime_that_closes_leaves_no_lock_behind_that_it_was_asking_for(tmp_path):
    async def main():
        gate = Gate()
        hold = gate.tool("hold", lock="till:{at}")

        place = Place("sqlite", tmp_path)
        script = [[call("hold", at=f"{i}", id=f"{i}") for i in range(4)], say("done")]
        one, two = place.runtime(agent(script, hold)), place.runtime(agent(script, hold))
        async with two:
            async with one:
                await one.start("desk", "go")
                await until(lambda: len(one.locks._held) == 4)  # asked for in this very moment
            gate.open("0", "1", "2", "3")
            run = await (await two.start("desk", "go")).wait()
            assert run.answer == "done"

    go(main())


@law("2.7.lock")
def test_a_body_that_nobody_can_stop_keeps_its_lock_when_its_runtime_closes(tmp_path):
    began, end, ran = threading.Event(), threading.Event(), []

    @tool(lock="till")
    def slow() -> str:
        """Go on, whatever happens outside."""
        began.set()
        end.wait()
        ran.append("slow")
        return "late"

    @tool(lock="till")
    async def after() -> str:
        """Come after it."""
        ran.append("after")
        return "after"

    async def main():
        place = Place("sqlite", tmp_path)
        async with place.runtime(agent([[call("slow", id="s")]], slow, name="one")) as one:
            await one.start("one", "go")
            await until(began.is_set)
        async with place.runtime(agent([[call("after", id="a")], say("done")], after, name="two")) as two:
            run = await two.start("two", "go")
            await until(lambda: two.locks._held)
            await asyncio.sleep(0.1)
            assert ran == []
            end.set()
            assert (await run.wait()).answer == "done"
            assert ran == ["slow", "after"]

    go(main())


def test_a_slow_reader_loses_deltas_and_nothing_else():
    hub = Hub()
    listener = hub.add("r")
    most = MAX_LIVE // SMALLEST

    def delta(number, text="a"):
        return TurnDelta(number, "r", None, moment(0), text)

    for number in range(most + 5):
        hub.tell("r", delta(number))
    assert [event.entry for event in listener.live] == list(range(5, most + 5))
    hub.tell("r", delta(0, "x" * (MAX_LIVE - SMALLEST)))  # a long text takes the place of many
    assert [len(event.text) for event in listener.live] == [1, MAX_LIVE - SMALLEST]
    assert (listener.take().entry, listener.take().entry) == (most + 4, 0)
    for number in range(most):
        hub.tell("r", delta(number))
    assert len(listener.live) == most, "what was read makes room again"
    hub.remove("r", listener)
    assert not hub.listened("r")
    hub.tell("r", delta(0))
    hub.remove("r", listener)


def test_slots_wake_whoever_found_none():
    woken = []
    slots = Slots(1)
    assert slots.take(lambda: woken.append("a"))
    assert not slots.take(lambda: woken.append("b"))
    slots.give()
    assert woken == ["b"]
    assert slots.take(lambda: woken.append("c"))
