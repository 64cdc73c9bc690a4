"""Threads that own a connection, and the jobs that an event loop hands to them."""

from __future__ import annotations

import sqlite3
import threading
import time
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, TypeVarTuple

from counterfoil.adapters.stores.sqlite.database import BUSY_SECONDS, explain
from counterfoil.adapters.stores.sqlite.known import WritingConnection
from counterfoil.core.errors import CounterfoilError, NotFound, UsageError
from counterfoil.store import Refusal

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
C = TypeVar("C", bound=sqlite3.Connection)

GROUP = 512
"""Jobs of one transaction, about: more would make the first ones wait for long and gain no more."""
QUICK_SECONDS = 0.002
"""Where transactions take longer on average, they are not done in the loop's thread: others wait there."""
RECENT = 8
"""About so many transactions make the average: a checkpoint, one in some hundreds, makes no disk slow."""
ALONE = 2
"""After so many groups of one job, all of one driver, it waits for no company."""
SLOW_SECONDS = 1.0
"""For so long the thread does all of them, before the loop tries again."""


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


class Worker(Generic[C]):
    """A thread with a queue and a connection: it does each job by itself.

    Args:
        name: the thread's.
        path: for messages.
        connect: makes the connection, in the thread.
    """

    def __init__(self, name: str, path: str, connect: Callable[[], C]) -> None:
        self._path = path
        self._connect = connect
        self._queue: SimpleQueue[list[Job]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._last: Job | None = None
        """Closes the connection; nothing comes after it."""
        self._refusal: CounterfoilError | None = None
        """Why nothing more is done although the connection is open."""

    async def start(self) -> None:
        """Run the thread and wait for its connection. Raises StoreError."""
        opened = Job(self._connect, ())
        self._queue.put([opened])
        self._thread.start()
        await opened.future

    def submit(self, work: Callable[[C, *Ts], T], *arguments: *Ts) -> Future[T]:
        """Have it done; a refusal that it raises reaches who waits, and so does a StoreError.

        Raises:
            UsageError: the store is not open.
        """
        job = self._job(work, arguments)
        self._queue.put([job])
        return job.future

    def _job(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Job:
        if self._last is not None:
            raise self._refusal or UsageError("the store is not open; use it between open() and close()")
        return Job(work, arguments)

    def refuse(self, error: CounterfoilError) -> None:
        """Do nothing more but close: whoever comes from now on is given this error."""
        self._refusal = error
        self._last = Job(sqlite3.Connection.close, ())

    async def close(self) -> None:
        """Let the thread do what waits, and end."""
        if (self._last is None or self._refusal) and self._thread.is_alive():
            self._refusal, self._last = None, Job(sqlite3.Connection.close, ())
            self._queue.put([self._last])
            await self._last.future

    def _run(self) -> None:
        (first,) = self._queue.get()
        try:
            db = self._connect()
        except BaseException as error:  # noqa: BLE001  # whoever opens the store must see it
            first.error = error
            answer([first])
            return
        self._opened(db)
        answer([first])
        queue = self._queue
        while True:
            jobs = queue.get()
            while len(jobs) < GROUP and not queue.empty():
                jobs = jobs + queue.get()
            last = jobs.pop() if jobs[-1] is self._last else None
            if jobs:
                self._do(db, jobs)
            if last is not None:
                Worker._do(self, db, [last])
                return

    def _opened(self, db: C) -> None:
        """The connection is there."""

    def _do(self, db: C, jobs: list[Job]) -> None:
        for job in jobs:
            try:
                job.value = job.work(db, *job.arguments)
            except BaseException as error:  # noqa: BLE001  # whoever waits must see it
                job.error = self._meaning(error)
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


class Writer(Worker[WritingConnection]):
    """Does the jobs of a group in one transaction and answers them after its commit.

    A group is what one turn of the loop submits, or what waits while the thread works. Where the disk is
    quick and nobody else holds the file, a group is done in the loop's own thread: waking another one costs
    more than the commit. A slow disk, a file that is held, and large jobs are the thread's. A driver that is
    the only one to write need not wait for the end of the turn either.
    """

    def __init__(self, name: str, path: str, connect: Callable[[], WritingConnection]) -> None:
        super().__init__(name, path, connect)
        self._db: WritingConnection | None = None
        self._waiting: list[Job] = []
        self._handed = 0
        """Groups given to the thread; only the loop counts here."""
        self._done = 0
        """Groups that the thread has done; only the thread counts here. Equal: the connection is free."""
        self._average = 0.0
        """Seconds of a transaction in the loop's thread."""
        self._slow_until = 0.0
        self._alone = 0
        """Groups of one job in a row."""
        self._taker: object = None
        """Who wrote last, of those that may do it at once."""

    def _opened(self, db: WritingConnection) -> None:
        # Who begins a transaction decides how long it may wait.
        db.execute("PRAGMA busy_timeout = 0")
        self._db = db

    def at_once(self, who: object, work: Callable[[WritingConnection, *Ts], T | None], *arguments: *Ts) -> T | None:
        """What a job gives that is a transaction by itself; None: it was not done, and is to be submitted.

        ``who`` writes: it is done where nobody else has written for some time, so that there is no company to wait for.
        """
        if who is not self._taker:
            self._taker = who
            self._alone = 0
        if self._alone < ALONE or self._waiting:
            return None
        db = self._db
        started = time.monotonic()
        # As `_is_ours`, and below as `_took`: every commit of a lone run comes by here.
        if db is None or self._last is not None or self._handed != self._done or started < self._slow_until:
            return None
        try:
            value = work(db, *arguments)
        except Exception:  # noqa: BLE001  # as in _flush
            _roll_back(db)
            return None
        except BaseException:
            _roll_back(db)
            raise
        took = time.monotonic() - started
        if took > QUICK_SECONDS:
            self._took(started)
        else:
            self._average += (took - self._average) / RECENT
        return value

    def _is_ours(self, now: float) -> bool:
        """The connection is free, and the disk quick."""
        return self._last is None and self._handed == self._done and now >= self._slow_until

    def _took(self, started: float) -> None:
        ended = time.monotonic()
        self._average += (ended - started - self._average) / RECENT
        if self._average > QUICK_SECONDS:
            self._average = 0.0
            self._slow_until = ended + SLOW_SECONDS

    def submit(self, work: Callable[[WritingConnection, *Ts], T], *arguments: *Ts) -> Future[T]:
        """See `Worker.submit`; for a job of some microseconds."""
        job = self._job(work, arguments)
        waiting = self._waiting
        if waiting and waiting[0].loop is job.loop:
            waiting.append(job)
        else:
            # What a loop left behind that was stopped at once is lost with it, unacknowledged.
            self._waiting = [job]
            job.loop.call_soon(self._flush)
        return job.future

    def submit_large(self, work: Callable[[WritingConnection, *Ts], T], *arguments: *Ts) -> Future[T]:
        """See `Worker.submit`; for a job that would hold up the loop."""
        self._hand_over()
        job = self._job(work, arguments)
        self._waiting = [job]
        self._hand_over()
        return job.future

    async def close(self) -> None:
        """Let the thread do what waits, and end."""
        self._hand_over()
        await super().close()

    def _hand_over(self) -> None:
        if self._waiting:
            self._handed += 1
            self._queue.put(self._waiting)
            self._waiting = []

    def _flush(self) -> None:
        jobs, db = self._waiting, self._db
        if not jobs:
            return
        self._alone = self._alone + 1 if len(jobs) == 1 else 0
        started = time.monotonic()
        if db is None or not self._is_ours(started):
            self._hand_over()
            return
        try:
            db.begin()
            _transact(db, jobs)
        except Exception:  # noqa: BLE001  # the thread finds the culprit, and waits where another process writes
            _roll_back(db)
            self._hand_over()
            return
        except BaseException:
            _roll_back(db)
            raise
        self._waiting = []
        _settle(jobs)
        self._took(started)

    def _do(self, db: WritingConnection, jobs: list[Job]) -> None:
        self._together(db, jobs)
        self._done += 1
        answer(jobs)

    def _together(self, db: WritingConnection, jobs: list[Job]) -> None:
        """One transaction for all; where it fails as a whole, one for each: only the culprit fails."""
        try:
            _begin_patiently(db)
            _transact(db, jobs)
        except BaseException as error:  # noqa: BLE001  # as in Worker
            _roll_back(db)
            if len(jobs) == 1:
                jobs[0].error = self._meaning(error)
            else:
                for job in jobs:
                    self._together(db, [job])


def _transact(db: WritingConnection, jobs: list[Job]) -> None:
    for job in jobs:
        job.value = job.error = None
        try:
            job.value = job.work(db, *job.arguments)
        except (CounterfoilError, Refusal) as error:
            # A refusal: it comes before the job's first write.
            job.error = error
    db.end()


def _begin_patiently(db: WritingConnection) -> None:
    try:
        db.begin()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        db.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        try:
            db.begin()
        finally:
            db.execute("PRAGMA busy_timeout = 0")


def _roll_back(db: WritingConnection) -> None:
    db.forget()
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
