"""A thread that owns a connection, and the jobs that an event loop hands to it."""

from __future__ import annotations

import sqlite3
import threading
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

from counterfoil.adapters.stores.sqlite.database import explain
from counterfoil.core.errors import CounterfoilError, NotFound, UsageError
from counterfoil.store import Behind

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GROUP = 512
"""Jobs of one transaction at most: more would make the first ones wait for long and gain no more."""


class Job:
    """One piece of work on the connection, and who waits for it."""

    __slots__ = ("arguments", "error", "future", "loop", "value", "work")

    def __init__(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.work = work
        self.arguments = arguments
        self.loop = get_running_loop()
        self.future: Future[Any] = self.loop.create_future()
        self.value: Any = None
        self.error: BaseException | None = None


class Worker:
    """A thread with a queue and a connection.

    Args:
        name: the thread's.
        path: for messages.
        connect: makes the connection, in the thread.
        transactions: the jobs that wait are done together in one transaction, and answered after its commit.
    """

    def __init__(
        self, name: str, path: str, connect: Callable[[], sqlite3.Connection], *, transactions: bool
    ) -> None:
        self._path = path
        self._connect = connect
        self._do = self._together if transactions else self._each
        self._queue: SimpleQueue[Job] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._last: Job | None = None
        """Closes the connection; nothing comes after it."""

    async def start(self) -> None:
        """Run the thread and wait for its connection. Raises StoreError."""
        opened = Job(self._connect, ())
        self._queue.put(opened)
        self._thread.start()
        await opened.future

    def submit(self, work: Callable[[sqlite3.Connection, *Ts], T], *arguments: *Ts) -> Future[T]:
        """Have the thread do it; a refusal that it raises reaches who waits, as a StoreError does.

        Raises:
            UsageError: the store is not open.
        """
        if self._last is not None or not self._thread.is_alive():
            raise UsageError("the store is not open; use it between open() and close()")
        job = Job(work, arguments)
        self._queue.put(job)
        return job.future

    async def close(self) -> None:
        """Let the thread do what waits, and end."""
        if self._last is None and self._thread.is_alive():
            self._last = Job(sqlite3.Connection.close, ())
            self._queue.put(self._last)
            await self._last.future

    def _run(self) -> None:
        first = self._queue.get()
        try:
            db = self._connect()
        except BaseException as error:  # noqa: BLE001  # whoever opens the store must see it
            first.error = error
            answer([first])
            return
        answer([first])
        queue = self._queue
        while True:
            jobs = [queue.get()]
            jobs.extend(queue.get() for _ in range(min(queue.qsize(), GROUP)))
            last = jobs.pop() if jobs[-1] is self._last else None
            if jobs:
                self._do(db, jobs)
            if last is not None:
                self._each(db, [last])
                return

    def _each(self, db: sqlite3.Connection, jobs: Sequence[Job]) -> None:
        for job in jobs:
            try:
                job.value = job.work(db, *job.arguments)
            except BaseException as error:  # noqa: BLE001  # whoever waits must see it
                job.error = self._meaning(error)
        answer(jobs)

    def _together(self, db: sqlite3.Connection, jobs: Sequence[Job]) -> None:
        """One transaction for all; where it fails as a whole, one for each: only the culprit fails."""
        try:
            db.execute("BEGIN IMMEDIATE")
            for job in jobs:
                try:
                    job.value = job.work(db, *job.arguments)
                except (CounterfoilError, Behind) as error:
                    # A refusal: it comes before the job's first write.
                    job.error = error
            db.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001  # as in _each
            _roll_back(db)
            if len(jobs) == 1:
                jobs[0].error = self._meaning(error)
            else:
                for job in jobs:
                    job.value = job.error = None
                    self._together(db, [job])
                return
        answer(jobs)

    def _meaning(self, error: BaseException) -> BaseException:
        if isinstance(error, sqlite3.Error):
            meant: BaseException = explain(error, self._path)
        elif isinstance(error, UnicodeEncodeError):
            meant = NotFound("no such id: it holds half a surrogate pair, which no stored text does")
        elif isinstance(error, OverflowError):
            meant = UsageError("a number is out of the range that SQLite keeps, 64 bits")
        else:
            return error
        meant.__cause__ = error
        return meant


def _roll_back(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        try:
            db.execute("ROLLBACK")
        except sqlite3.Error:
            # SQLite has rolled back by itself, as it does when the disk is full.
            return


def answer(jobs: Sequence[Job]) -> None:
    """Wake who waits: one call into each loop, however many jobs."""
    loops: dict[AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        loops.setdefault(job.loop, []).append(job)
    for loop, mine in loops.items():
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:
            # The loop is closed: nobody waits any more, and what was written stays written.
            continue


def _settle(jobs: Sequence[Job]) -> None:
    for job in jobs:
        future = job.future
        if future.done():
            continue  # whoever waited was cancelled
        if job.error is None:
            future.set_result(job.value)
        else:
            future.set_exception(job.error)
