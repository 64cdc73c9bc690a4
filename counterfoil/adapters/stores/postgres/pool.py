"""Connections that are kept, and the transactions that are done on them."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from counterfoil.adapters.stores.postgres.database import MEANT, SQL, Db, connect, explain
from counterfoil.core.errors import UsageError

T = TypeVar("T")

GROUP = 64
"""Commits of different interactions that share a transaction, at most."""
LANES = 2
"""Groups under way at once: while the server syncs one, the next is made ready."""


class Appended:
    """Entries to append by one statement, if the interaction is still as it was."""

    __slots__ = ("future", "number", "sql", "values")

    def __init__(self, number: int, sql: str, values: Sequence[object]) -> None:
        self.number = number
        self.sql = sql
        self.values = values
        self.future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(self, *, done: bool = False, error: Exception | None = None) -> None:
        """Wake who waits, unless the loop is ending and nobody does."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(done)


class Pool:
    """The connections of one event loop.

    Args:
        conninfo: where the server is.
        schema: the record's.
        place: for messages.
        size: connections at most.
    """

    def __init__(self, conninfo: str, schema: str, place: str, size: int) -> None:
        self.loop = asyncio.get_running_loop()
        self._conninfo, self._schema, self._place = conninfo, schema, place
        self._free = asyncio.Semaphore(size)
        self._idle: list[Db] = []
        self._used: set[Db] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting: list[Appended] = []
        self._groups = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Db]:
        """One that nobody else uses meanwhile. Raises StoreError, and what `explain` makes of other errors."""
        async with self._free:
            db = self._take() or await connect(self._conninfo, self._schema, self._place)
            self._used.add(db)
            try:
                yield db
            except MEANT as error:
                raise explain(error, self._place) from error
            finally:
                self._used.discard(db)
                if not db.closed and db.pgconn.transaction_status == TransactionStatus.IDLE:
                    self._idle.append(db)
                else:
                    db.pgconn.finish()

    def _take(self) -> Db | None:
        while self._idle:
            db = self._idle.pop()
            # From a connection that does nothing there is nothing to read but its end.
            if not _is_readable(db.pgconn.socket):
                return db
            db.pgconn.finish()
        return None

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it to its end, whatever becomes of who waits: a write is not left half known."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def transact(self, work: Callable[[Db], Awaitable[T]]) -> T:
        """Do it in one transaction; an error or a refusal takes everything back."""
        async with self.connection() as db:
            try:
                async with db.pipeline():
                    await db.execute("BEGIN")
                    value = await work(db)
                    await db.execute("COMMIT")
            except BaseException:
                if not db.closed and db.pgconn.transaction_status != TransactionStatus.IDLE:
                    await db.execute("ROLLBACK")
                raise
            return value

    async def append(self, job: Appended) -> bool:
        """Whether the entries are on record; with those of other interactions, in one transaction."""
        self._waiting.append(job)
        if self._groups < LANES:
            self._groups += 1
            # What else this turn of the loop brings goes along.
            await asyncio.sleep(0)
            await self._group()
        return await job.future

    async def _group(self) -> None:
        jobs, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
        # Whoever locks several interactions locks them in the order of their numbers.
        jobs.sort(key=lambda job: job.number)
        try:
            if jobs:
                await self._append(jobs)
        finally:
            if self._waiting:
                task = asyncio.create_task(self._group())
                self._tasks.add(task)
                task.add_done_callback(self._done)
            else:
                self._groups -= 1

    async def _append(self, jobs: list[Appended]) -> None:
        async def together(db: Db) -> list[psycopg.AsyncCursor[tuple[Any, ...]]]:
            return [await db.execute(job.sql, job.values) for job in jobs]

        try:
            if len(jobs) > 1:
                cursors = await self.transact(together)
            else:
                async with self.connection() as db:
                    cursors = await together(db)
        except UsageError as error:
            # A value that cannot be kept took back what all of them wrote: only the culprit fails.
            if len(jobs) > 1:
                for job in jobs:
                    await self._append([job])
            else:
                jobs[0].end(error=error)
        except Exception as error:  # noqa: BLE001  # whoever waits must see it
            for job in jobs:
                job.end(error=error)
        else:
            for job, cursor in zip(jobs, cursors, strict=True):
                job.end(done=cursor.rowcount > 0)

    async def close(self) -> None:
        """Let what was begun come to its end, and let go of the server."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the server at once: the loop is another one by now."""
        for db in (*self._idle, *self._used):
            db.pgconn.finish()
        self._idle.clear()
        self._used.clear()


def _is_readable(socket: int) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


async def fetch(db: Db, name: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a statement."""
    cursor = await db.execute(SQL[name], values, binary=True)
    return await cursor.fetchall()


async def fetch_one(db: Db, name: str, *values: object) -> tuple[Any, ...] | None:
    """The first row of a statement, if it has one."""
    cursor = await db.execute(SQL[name], values, binary=True)
    return await cursor.fetchone()


async def send(db: Db, name: str, *values: object) -> psycopg.AsyncCursor[tuple[Any, ...]]:
    """Have a statement done, in a pipeline without waiting for its end."""
    return await db.execute(SQL[name], values)
