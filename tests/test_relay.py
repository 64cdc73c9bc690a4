"""Processes of one PostgreSQL record tell one another what they write while some follow runs: quick, and not needed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import psycopg
import pytest

from counterfoil import CallEnded, CallStarted, RunEnded, Runtime, TurnDelta
from counterfoil import follow as following
from counterfoil import relay as relays
from counterfoil.adapters.stores.postgres import open_store, telling
from counterfoil.adapters.stores.postgres.store import PostgresStore
from counterfoil.core.errors import StoreError
from counterfoil.testing import call, say
from tests.helpers import Gate, agent, fine, go, until

LONG = 3600.0
"""Seconds that no test waits."""


@pytest.fixture
def url(postgres):
    return postgres.fresh()


@pytest.fixture
def heard_only(monkeypatch):
    """Once what others write is heard, the record is not looked at any more."""
    monkeypatch.setattr(relays, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(following, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(following, "REPAIR_SECONDS", LONG)


@asynccontextmanager
async def two(url, *agents, reader=None):
    """A worker, and another process's reader."""
    async with Runtime(url, agents=agents, heartbeat=0.05) as worker, Runtime(url, store=reader) as there:
        yield worker, there


async def every(events):
    return [event async for event in events]


async def collect(events, into):
    """Each event as it comes, to be looked at meanwhile."""
    async for event in events:
        into.append(event)


def stored(events):
    return [event for event in events if not isinstance(event, TurnDelta)]


def listens(worker):
    """Whether the worker tells what it writes."""
    return worker.hub._relay is not None


async def other(url, statement):
    """What a session of somebody else gets."""
    async with await psycopg.AsyncConnection.connect(open_store(url)._conninfo, autocommit=True) as db:
        return await (await db.execute(statement)).fetchall()


def test_an_event_comes_by_notify_where_nobody_looks_at_the_record(url, heard_only):
    gate = Gate()
    desk = agent([[call("work", at="one")], [call("work", at="two")], say("Done.")], gate.tool())

    async def main():
        async with two(url, desk) as (worker, reader):
            run = await worker.start("desk", "go")
            seen = []
            reading = asyncio.create_task(collect(reader.events(run.id), seen))
            await until(lambda: listens(worker) and reader.lookout.relay.works)
            gate.open("one")
            await until(lambda: sum(isinstance(event, CallStarted) for event in seen) == 2)
            gate.open("two")
            await reading
            assert stored(seen) == stored(await every(run.events()))
            assert isinstance(seen[-1], RunEnded)

    go(main())


def test_a_connection_that_is_ended_is_made_anew_with_nothing_lost_and_nothing_twice(url, monkeypatch):
    monkeypatch.setattr(relays, "AGAIN_SECONDS", (0.0, 0.01))
    monkeypatch.setattr(relays, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(following, "REPAIR_SECONDS", 0.1)  # the worker may not have seen yet that it is heard again
    steps = 8
    gate = Gate()
    desk = agent([*([call("work", at=f"{n}")] for n in range(steps)), say("Done.")], gate.tool())
    end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"

    async def main():
        async with two(url, desk) as (worker, reader):
            run = await worker.start("desk", "go")
            seen, relay = [], reader.lookout.relay
            reading = asyncio.create_task(collect(reader.events(run.id), seen))
            for number in range(steps):
                if number % 2:
                    await until(lambda: relay.works)
                    ear = reader.store._ear
                    assert (True,) in await other(url, end)
                    gate.open(f"{number}")  # perhaps while nobody hears it
                    await until(lambda ear=ear: reader.store._ear != ear)
                gate.open(f"{number}")
                await until(lambda n=number: sum(isinstance(e, CallEnded) for e in seen) > n)
            await reading
            assert stored(seen) == stored(await every(run.events()))

    go(main())


def test_nothing_is_told_unless_another_process_follows_a_run(url, monkeypatch):
    monkeypatch.setattr(relays, "LINGER_SECONDS", 0.0)
    gate = Gate()
    desk = agent([[call("work", at="hold")], say("Done.")], gate.tool())

    async def main():
        async with two(url, desk) as (worker, reader):
            run = await worker.start("desk", "go")
            mine = asyncio.create_task(anext(aiter(worker.events(run.id, after=1))))
            await mine
            assert not await worker.store.listened()
            events = reader.events(run.id)
            while not isinstance(await anext(events), CallStarted):
                pass
            waiting = asyncio.create_task(anext(events))
            await until(lambda: listens(worker))
            waiting.cancel()
            await asyncio.wait([waiting])
            await until(lambda: not listens(worker))
            gate.open("hold")
            assert (await run.wait()).status == "completed"

    go(main())


def test_many_commits_are_told_by_few_words(url, monkeypatch):
    monkeypatch.setattr(relays, "SPREAD_SECONDS", 0.05)
    desk = agent([*([call("fine")] for _ in range(60)), say("Done.")], fine)

    async def main():
        loop, words, told = asyncio.get_running_loop(), [], asyncio.Event()

        def hear(run_ids):
            words.append(run_ids)
            told.set()

        ear = open_store(url)
        async with Runtime(url, agents=[desk], heartbeat=0.05) as worker:
            await ear.open()
            hearing = asyncio.create_task(ear.listen(hear))
            await until(lambda: words == [None] and listens(worker))
            began = loop.time()
            runs = [await worker.start("desk", "go") for _ in range(5)]
            for run in runs:
                await run.wait()
            took = loop.time() - began
            await until(lambda: {run.id for run in runs} <= {i for ids in words[1:] for i in ids})
            assert len(words) - 1 <= took / 0.05 + 2
            hearing.cancel()
            await asyncio.wait([hearing])
            await ear.close()

    go(main())


def test_more_runs_than_a_word_holds_are_told_as_all(url):
    async def main():
        words = []
        ear, mouth = open_store(url), open_store(url)
        await ear.open()
        await mouth.open()
        hearing = asyncio.create_task(ear.listen(words.append))
        await until(lambda: words == [None])
        assert (await mouth.listened(), await ear.listened()) == (True, False)
        await mouth.tell(["one", "two"])
        await ear.tell(["of its own"])
        await mouth.tell([f"{n:036}" for n in range(1000)])
        await until(lambda: len(words) == 3)
        assert words[1:] == [["one", "two"], None]
        hearing.cancel()
        await asyncio.wait([hearing])
        while await mouth.listened():  # the server sees it in a moment
            await asyncio.sleep(0.001)
        await ear.close()
        await mouth.close()

    go(main())


class Shared(PostgresStore):
    """Behind a pooler that shares connections: what is told comes to nobody."""

    async def tell(self, run_ids):
        """It gets lost."""


def test_where_nothing_is_heard_the_record_is_looked_at_as_ever(url, monkeypatch):
    monkeypatch.setattr(telling, "CHECK_SECONDS", 0.01)
    gate = Gate()
    desk = agent([[call("work", at="hold")], say("Done.")], gate.tool())

    async def main():
        known = open_store(url)
        deaf = Shared(known._conninfo, schema=known.schema)
        async with two(url, desk, reader=deaf) as (worker, reader):
            with pytest.raises(StoreError, match="NOTIFY is not heard"):
                await deaf.listen(lambda _: None)
            run = await worker.start("desk", "go")
            reading = asyncio.create_task(every(reader.events(run.id)))
            await until(lambda: reader.lookout.relay._hearing)
            gate.open("hold")
            seen = await reading
            assert not listens(worker)
            assert stored(seen) == stored(await every(run.events()))

    go(main())
