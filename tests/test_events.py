"""Events: what happens in a run, live and from the record, with nothing lost and nothing twice (api.md, events)."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil import (
    CallEnded,
    CallProgress,
    CallStarted,
    CallWaiting,
    Decided,
    Hooks,
    RunEnded,
    RunPaused,
    RunResumed,
    RunStarted,
    Runtime,
    ToolContext,
    TurnDelta,
    TurnRecorded,
    tool,
)  # fmt: skip  # names in rows
from counterfoil.testing import call, say
from tests.helpers import Gate, agent, arrives, both, broken, counted, fine, go, until
from tests.marks import case, law

LIVE = (TurnDelta, CallProgress)


def stored(events):
    """Without what is never stored."""
    return [e for e in events if not isinstance(e, LIVE)]


def shape(events):
    """Types and ids, as they came."""
    return [(type(e).__name__, getattr(e, "call_id", None)) for e in events]


@both
@law("2.2")
def test_a_run_tells_what_happened_in_order(place):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent(
        [[say("hm"), call("fine", id="f"), call("pay", id="p"), call("broken", id="b")], say("done")], fine, pay, broken
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            first = [e async for e in run.events()]
            assert shape(first)[:2] == [("RunStarted", None), ("TurnRecorded", None)]
            assert sorted(shape(first)[2:-1]) == sorted(
                [
                    ("CallStarted", "f"),
                    ("CallWaiting", "p"),
                    ("CallStarted", "b"),
                    ("CallEnded", "f"),
                    ("CallEnded", "b"),
                ]
            )
            assert isinstance(first[-1], RunPaused)
            assert first[-1].waiting == ("p",)
            await run.approve("p", by="grace")
            await run.wait()
            rest = [e async for e in run.events(after=first[-1].entry)]
            assert shape(rest) == [
                ("Decided", "p"), ("RunResumed", None), ("CallStarted", "p"), ("CallEnded", "p"),
                ("TurnRecorded", None), ("RunEnded", None),
            ]  # fmt: skip  # rows by what belongs together
            every = [e async for e in run.events()]
            assert every == first + rest
            entries = [e.entry for e in every]
            assert entries == sorted(set(entries))
            ended = {e.call_id: e.part for e in every if isinstance(e, CallEnded)}
            assert ended == {r.call_id: r for r in run.results}
            assert all(e.run_id == run.id and e.thread_id is None and e.at.tzinfo for e in every)
            last = every[-1]
            assert (last.status, last.ended_by, last.answer) == ("completed", "answer", "done")

    go(main())


@both
@case("R116")
@law("7.8.reader")
@pytest.mark.parametrize("stop", range(1, 7))
def test_a_reader_that_comes_back_reads_on_without_gap_or_repeat(place, stop):
    desk = agent([[call("fine", id="f")], say("done")], fine)

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            seen = []
            async for event in run.events():
                if isinstance(event, LIVE):
                    continue
                seen.append(event)
                if len(seen) == stop:
                    break
            seen += [e async for e in run.events(after=seen[-1].entry) if not isinstance(e, LIVE)]
            assert seen == [e async for e in run.events()]
            assert shape(seen) == [
                ("RunStarted", None), ("TurnRecorded", None), ("CallStarted", "f"), ("CallEnded", "f"),
                ("TurnRecorded", None), ("RunEnded", None),
            ]  # fmt: skip  # rows by what belongs together

    go(main())


@both
@law("2.6")
def test_deltas_and_progress_come_live_in_their_place_and_are_never_stored(place):
    async def main():
        listened, go_on = asyncio.Event(), asyncio.Event()

        async def first(request):
            await listened.wait()  # what nobody listens to is not kept
            return [say("let me see", deltas=3), call("work", id="w")]

        @tool
        async def work(ctx: ToolContext) -> str:
            """Tell how far it is."""
            await ctx.progress("half", done=1, total=2)
            await go_on.wait()
            ctx.progress("all", 2, 2)
            return "worked"

        desk = agent([first, say("done and done", deltas=2)], work)
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            seen = []
            async for event in run.events():
                seen.append(event)
                listened.set()
                if isinstance(event, CallProgress) and event.text == "half":
                    go_on.set()
            names = [type(e).__name__ for e in seen]
            assert names == [
                "RunStarted", *["TurnDelta"] * 3, "TurnRecorded", "CallStarted", "CallProgress", "CallProgress",
                "CallEnded", *["TurnDelta"] * 2, "TurnRecorded", "RunEnded",
            ]  # fmt: skip  # rows by what belongs together
            assert "".join(e.text for e in seen if isinstance(e, TurnDelta)) == "let me seedone and done"
            told = [(e.call_id, e.text, e.done, e.total) for e in seen if isinstance(e, CallProgress)]
            assert told == [("w", "half", 1, 2), ("w", "all", 2, 2)]
            assert [e async for e in run.events()] == stored(seen)

    go(main())


@both
@law("7.9")
def test_a_stream_of_the_agent_a_run_and_an_observer_see_the_same(place):
    observed, failing = [], []

    def fails(event):
        failing.append(event)
        raise RuntimeError("an observer changes nothing")

    async def later(event):
        await asyncio.sleep(0)
        observed.append(event)

    script = [[call("fine", id="f")], say("done")]
    desk = agent(script, fine, hooks=Hooks(on_event=[fails, later]))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await asyncio.sleep(0.01)
            mine = [e async for e in run.events()]
            assert failing == mine
            assert observed == mine
        streamed = stored([e async for e in agent(script, fine).stream("go")])
        assert shape(streamed) == shape(mine)

    go(main())


@both
@law("7.9")
def test_an_observer_sees_decisions_of_a_pause(place):
    seen = []
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="p")], say("done")], pay, hooks=Hooks(on_event=seen.append))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.approve("p", by="grace")
            await run.wait()
            assert seen == [e async for e in run.events()]
            assert any(isinstance(e, Decided) and e.decision.by == "grace" for e in seen)

    go(main())


@both
@law("7.9")
def test_a_reader_on_another_runtime_follows_a_run_to_its_end(place):
    async def main():
        gate = Gate()
        desk = agent([[call("work", at="w", id="w")], say("done")], gate.tool())
        async with place.open(desk) as runtime, place.runtime() as reader:
            run = await runtime.start("desk", "go")
            seen = []
            async for event in reader.events(run.id):
                seen.append(event)
                if isinstance(event, CallStarted):
                    gate.open("w")
            assert shape(seen)[-1] == ("RunEnded", None)
            await run.wait()
            assert seen == [e async for e in run.events()]

    go(main())


@both
@law("7.1")
def test_two_readers_at_once_and_one_that_comes_late(place):
    async def main():
        gate = Gate()
        desk = agent([[call("work", at="w", id="w")], say("done")], gate.tool())
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")

            async def read():
                return stored([e async for e in run.events()])

            early = [asyncio.create_task(read()) for _ in range(2)]
            await gate.began("w")
            late = asyncio.create_task(read())
            await asyncio.sleep(0)
            gate.open("w")
            one, two, three = await asyncio.gather(*early, late)
            assert one == two == three
            assert isinstance(one[-1], RunEnded)
            assert not runtime.hub.listened(run.id)

    go(main())


@both
def test_events_of_one_run_are_not_those_of_another_in_the_same_conversation(place):
    desk = agent([say("one")])

    async def main():
        async with place.open(desk) as runtime:
            first = await (await runtime.start("desk", "a")).wait()
            second = await (await runtime.start("desk", "b", interaction=first.interaction_id)).wait()
            for run in (first, second):
                names = [type(e) async for e in run.events()]
                assert names == [RunStarted, TurnRecorded, RunEnded]
            assert {e.run_id async for e in second.events()} == {second.id}

    go(main())


@both
@law("7.4")
def test_every_type_of_event_that_waits_for_people_is_there(place):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="p")], say("done")], pay)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.reject("p", by="grace", reason="no")
            await arrives(run, "completed")
            found = {type(e): e async for e in run.events()}
            assert found[CallWaiting].approval.call_id == "p"
            assert found[Decided].decision.choice == "reject"
            assert RunResumed in found
            assert found[CallEnded].part.rejection_reason == "no"

    go(main())


class Slow(Runtime):
    """A program without agents that is slow to look whether it can take a run up."""

    looking = looked = asyncio.Event()

    async def _take_up(self, tenant: str, run_id: str) -> None:
        self.looking.set()
        await self.looked.wait()
        await super()._take_up(tenant, run_id)


def test_who_decides_and_then_follows_misses_nothing_that_another_process_does(tmp_path):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("pay", id="p")], say("done")], pay)
    url = f"sqlite:///{tmp_path}/shop.db"

    async def main():
        async with Runtime(url, agents=[desk]) as worker, Slow(url) as reader:
            reader.looking, reader.looked = asyncio.Event(), asyncio.Event()
            run = await (await worker.start("desk", "go")).wait()
            here = await reader.get(run.id)
            await here.approve("p", by="grace")
            await reader.looking.wait()
            found = []

            async def follow():
                async for event in here.events():
                    found.append(event)  # noqa: PERF401  # each is looked at as it comes

            following = asyncio.ensure_future(follow())
            await arrives(run, "completed")
            await until(lambda: any(isinstance(e, Decided) for e in found))
            reader.looked.set()
            await following
            assert isinstance(found[-1], RunEnded)

    go(main())
