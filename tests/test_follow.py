"""Many follow one run at the price of one, and nobody is told of what can never have been."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import aclosing, contextmanager

import pytest

from counterfoil import RunPaused, Runtime, TurnDelta
from counterfoil.core.errors import UsageError
from counterfoil.testing import call, say
from tests.helpers import Gate, agent, both, counted, fine, go, until
from tests.marks import law
from tests.served import served

ONCE = ("apply", "result_part", "frame", "event_json")
"""What is done for each entry or event."""


@contextmanager
def counting():
    """How often each function of ours is called meanwhile, by name."""
    calls = Counter()

    def note(frame, event, _):
        if event == "call" and "counterfoil" in frame.f_code.co_filename:
            calls[frame.f_code.co_name] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


async def read(http, run_id):
    """All that a stream of events says."""
    return (await http.client.get(f"/v1/runs/{run_id}/events")).content


@pytest.mark.parametrize("late", [False, True], ids=["live", "catching up"])
def test_many_followers_of_one_run_cost_the_work_of_one(late):
    async def cost(followers):
        gate = Gate()
        steps = [[say("hm", deltas=3), call("fine")] for _ in range(20)]
        turns = [call("work", at="first"), *steps, call("work", at="last"), say("Done.")]
        async with served(Runtime(agents=[agent(turns, fine, gate.tool())])) as http:
            run = await http.start()
            await gate.began("first")
            if late:
                gate.open("first")
                await gate.began("last")
            with counting() as calls:
                readers = [asyncio.create_task(read(http, run["runId"])) for _ in range(followers)]
                await until(lambda: len(http.runtime.hub._listeners.get(run["runId"], ())) == followers)
                gate.open("first", "last")
                assert len(set(await asyncio.gather(*readers))) == 1
            return calls

    async def main():
        one, many = await cost(1), await cost(10)
        assert {name: (one[name], many[name]) for name in ONCE if many[name] > one[name]} == {}
        # Each that comes asks what is on record by then, and is given nothing that another has read.
        assert many["entries"] <= one["entries"] + 2 * 10

    go(main())


def test_what_is_never_stored_is_handed_on_without_a_look_at_the_record():
    told = asyncio.Event()

    async def first(_):
        await told.wait()
        return [say("let me see", deltas=3), call("work", at="go")]

    async def main():
        gate = Gate()
        async with Runtime(agents=[agent([first, say("x" * 40, deltas=40)], gate.tool())]) as runtime:
            run = await runtime.start("desk", "go")
            reads, entries = 0, runtime.store.entries

            async def counted_entries(*args):
                nonlocal reads
                reads += 1
                return await entries(*args)

            runtime.store.entries = counted_entries
            deltas, marks = 0, []
            async for event in run.events():
                told.set()
                gate.open("go")
                if isinstance(event, TurnDelta):
                    deltas += 1
                    marks.append(reads)
            assert deltas >= 43
            assert len(set(marks[-40:])) <= 2

    go(main())


@both
@law("2.6")
def test_who_comes_to_a_trail_that_others_read_gets_the_same(place):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([[call("fine"), call("pay", id="p")], [call("fine")], say("Done.")], pay, fine)

    async def main():
        async with place.open(desk) as runtime, place.runtime() as reader:
            run = await (await runtime.start("desk", "go")).wait()

            async def follow(after=None, *, slow=False):
                found = []
                async for event in reader.events(run.id, after=after, to_end=True):
                    if slow and isinstance(event, RunPaused):
                        await until(done.done)  # meanwhile another reads to the end
                    if not isinstance(event, TurnDelta):
                        found.append(event)
                return found

            first = [e async for e in reader.events(run.id)]
            done = asyncio.create_task(follow())
            slow = asyncio.create_task(follow(slow=True))
            rest = asyncio.create_task(follow(first[-1].entry))
            await until(lambda: len(reader.hub._listeners.get(run.id, ())) == 3)
            await run.approve("p", by="grace")
            await run.wait()
            whole = [e async for e in run.events()]
            assert await done == await slow == first + await rest == whole
            assert not reader.lookout._trails, "nobody follows any more"

    go(main())


@both
def test_a_pause_is_waited_through_without_a_record(place):
    pay, _ = counted("pay", needs_approval=True)
    desk = agent([call("pay", id="p"), say("Done.")], pay)

    async def main():
        async with place.open(desk) as runtime, place.runtime() as reader:
            run = await (await runtime.start("desk", "go")).wait()
            async with aclosing(reader.events(run.id, to_end=True)) as events:
                while not isinstance(await anext(events), RunPaused):
                    pass
                last = asyncio.ensure_future(anext(events))
                await until(lambda: reader.lookout._waiting)
                assert not reader.lookout._trails
                await run.approve("p", by="grace")
                assert type(await last).__name__ == "Decided"

    go(main())


@both
def test_an_entry_that_cannot_have_been_seen_is_refused(place):
    async def main():
        async with place.open(agent([say("Done.")])) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            tip = [e async for e in run.events()][-1].entry
            assert [e async for e in run.events(after=tip)] == []
            with pytest.raises(UsageError, match=rf"the newest entry has the number {tip}; is it another run's\?"):
                await anext(aiter(run.events(after=tip + 1)))

    go(main())
