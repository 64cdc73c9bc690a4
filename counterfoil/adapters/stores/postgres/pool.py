"""Connections that are kept, and the transactions that are done on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar, TypeVarTuple

import psycopg
from psycopg.generators import execute
from psycopg.pq import TransactionStatus

from counterfoil.adapters.stores.postgres.database import MEANT, SQL, Db, connect, explain
from counterfoil.adapters.stores.postgres.lane import Lane, is_readable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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
        self._size = size
        self._free = asyncio.Semaphore(size)
        self._idle: list[Db] = []
        self._used: set[Db] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.lane = Lane(self._borrow, self._give_back, place)
        """Where the commits of interactions go that are known."""
        self.transactions = Transactions(self)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Db]:
        """One that nobody else uses meanwhile. Raises StoreError, and what `explain` makes of other errors."""
        db = await self._borrow()
        try:
            yield db
        except MEANT as error:
            raise explain(error, self._place) from error
        finally:
            self._give_back(db)

    async def submit(self, work: Callable[[Db, *Ts], Awaitable[T]], *arguments: *Ts) -> T:
        """Do what writes nothing, each statement by itself."""
        async with self.connection() as db:
            return await work(db, *arguments)

    async def _borrow(self) -> Db:
        if self._size == 1:
            self.lane.yield_connection()
        await self._free.acquire()
        try:
            db = self._take() or await connect(self._conninfo, self._schema, self._place)
        except BaseException:
            self._free.release()
            raise
        self._used.add(db)
        return db

    def _give_back(self, db: Db) -> None:
        self._used.discard(db)
        if not db.closed and db.pgconn.transaction_status == TransactionStatus.IDLE:
            self._idle.append(db)
        else:
            db.pgconn.finish()
        if not self.loop.is_closed():
            self._free.release()

    def _take(self) -> Db | None:
        while self._idle:
            db = self._idle.pop()
            # From a connection that does nothing there is nothing to read but its end.
            if not is_readable(db.pgconn.socket):
                return db
            db.pgconn.finish()
        return None

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it to its end, whatever becomes of who waits: a write is not left half known."""
        return await asyncio.shield(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have it done to its end, before the pool is closed."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def transact(self, work: Callable[[Db], Awaitable[T]]) -> T:
        """Do it in one transaction; an error or a refusal takes everything back."""
        async with self.connection() as db:
            failed = None
            try:
                async with db.pipeline():
                    try:
                        await db.execute("BEGIN")
                        value = await work(db)
                        await db.execute("COMMIT")
                    except psycopg.Error as error:
                        failed = error  # else psycopg logs a warning of what follows from it in the pipeline
            except BaseException:
                await _take_back(db)
                if failed is None:
                    raise
            if failed is not None:
                await _take_back(db)
                raise failed
            return value

    async def close(self) -> None:
        """Let what was begun come to its end, and let go of the server."""
        await self.lane.rest()
        while self._tasks:
            await asyncio.wait(self._tasks)
            await self.lane.rest()
        self.abandon()

    def abandon(self) -> None:
        """Let go of the server at once: the loop is another one by now."""
        self.lane.abandon()
        for db in (*self._idle, *self._used):
            db.pgconn.finish()
        self._idle.clear()
        self._used.clear()


class Transactions:
    """Writes: each is a transaction that is done to its end."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def submit(self, work: Callable[[Db, *Ts], Awaitable[T]], *arguments: *Ts) -> T:
        """Do it, whatever becomes of who waits."""
        return await self._pool.finish(self._pool.transact(lambda db: work(db, *arguments)))


async def _take_back(db: Db) -> None:
    """Undo the open transaction, without psycopg's own ROLLBACK: it would drop what the lane has prepared there."""
    server = db.pgconn
    if db.closed or server.transaction_status == TransactionStatus.IDLE:
        return
    if server.transaction_status != TransactionStatus.INTRANS:
        # psycopg takes for prepared what stood behind the failed statement and was never done.
        server.finish()
        return
    server.send_query(b"ROLLBACK")
    await db.wait(execute(server))


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
