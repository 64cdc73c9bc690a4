"""The connection on which the commits of all runs of a process go, in groups that share a transaction.

It speaks to libpq itself: a commit is a step of many runs, and a cursor for each costs more than the statement.
"""

from __future__ import annotations

import asyncio
import functools
import select
from collections.abc import Awaitable, Callable, Sequence
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq

from counterfoil.adapters.stores.postgres.database import MEANT, Db, explain

GROUP = 64
"""Commits of different interactions that share a transaction, at most."""
TURNS = 8
"""Turns of the loop after a group for which the next one waits: the runs of the first come again by then."""
_OK, _SYNC, _ABORTED = pq.ExecStatus.COMMAND_OK, pq.ExecStatus.PIPELINE_SYNC, pq.ExecStatus.PIPELINE_ABORTED


class Appended:
    """Entries to append by one statement, if the interaction is still as it was.

    Args:
        number: the interaction's.
        sql: the statement.
        values: for its parameters, in the server's binary form.
    """

    __slots__ = ("future", "number", "sql", "values")

    def __init__(self, number: int, sql: str, values: Sequence[bytes | None]) -> None:
        self.number = number
        self.sql = sql
        self.values = values
        self.future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def ended(self, *, done: bool, error: BaseException | None) -> None:
        """Note whether the entries are on record; whoever waits is woken afterwards, and may be nobody."""

    def end(self, *, done: bool = False, error: BaseException | None = None) -> None:
        """Wake who waits."""
        self.ended(done=done, error=error)
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(done)


class Lane:
    """One group after another: what comes while the server writes one goes with the next.

    The statements of a group stand between two syncs of a pipeline, which makes a transaction of them: the server
    commits at the second sync, and answers it when the commit is durable.

    Args:
        take: gives a connection that is this lane's until it is given back.
        give: takes it back.
        place: for messages.
    """

    def __init__(self, take: Callable[[], Awaitable[Db]], give: Callable[[Db], None], place: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._take, self._give, self._place = take, give, place
        self._waiting: list[Appended] = []
        self._alone: list[Appended] = []
        """To be done one by one: their group failed."""
        self._jobs: list[Appended] = []
        """The group under way."""
        self._is_busy = False
        self._is_wanted = False
        """Somebody else needs the connection."""
        self._is_over: asyncio.Future[None] | None = None
        self._taking: asyncio.Task[None] | None = None
        self._db: Db | None = None
        self._socket = -1
        """The connection's; a connection that is lost does not tell any more."""
        self._known: WeakKeyDictionary[Db, dict[str, bytes]] = WeakKeyDictionary()
        """The statements that each connection has prepared."""
        self._prepared: dict[str, bytes] = {}
        self._new: dict[str, bytes] = {}
        """Statements that are being prepared."""
        self._counts: list[int] = []
        self._error: psycopg.Error | None = None

    def add(self, job: Appended) -> None:
        """Have it done: with what else this turn of the loop brings, or with the next group."""
        self._waiting.append(job)
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._begin)

    async def rest(self) -> None:
        """Wait until nothing is under way."""
        while self._is_busy:
            if self._is_over is None:
                self._is_over = self._loop.create_future()
            await asyncio.shield(self._is_over)

    def yield_connection(self) -> None:
        """Give the connection back, at once or after the group that is under way."""
        if self._is_busy:
            self._is_wanted = self._db is not None
        else:
            self._let_go()

    def abandon(self) -> None:
        """Let go of the server at once; who waits is not told."""
        if self._taking is not None and not self._loop.is_closed():
            self._taking.cancel()
        self._let_go(is_good=False)

    def _let_go(self, *, is_good: bool = True) -> None:
        db, self._db = self._db, None
        if db is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        if is_good:
            db.pgconn.exit_pipeline_mode()
        else:
            db.pgconn.finish()
        self._give(db)

    def _begin(self) -> None:
        """Send the next group, or rest."""
        if self._db is not None and (self._is_wanted or is_readable(self._socket)):
            # Wanted elsewhere; or from a connection that does nothing there is something to read: its end.
            self._let_go(is_good=self._is_wanted)
        self._is_wanted = False
        if not (self._waiting or self._alone):
            self._is_busy = False
            if self._is_over is not None:
                self._is_over.set_result(None)
                self._is_over = None
        elif self._db is None:
            self._taking = self._loop.create_task(self._connect())
        else:
            self._send(self._db)

    async def _connect(self) -> None:
        try:
            db = await self._take()
        except Exception as error:  # noqa: BLE001  # whoever waits must see it
            self._jobs = [*self._alone, *self._waiting]
            self._alone, self._waiting = [], []
            self._fail(error)
            return
        finally:
            self._taking = None
        self._db = db
        db.pgconn.enter_pipeline_mode()
        self._prepared = self._known.setdefault(db, {})
        self._socket = db.pgconn.socket
        self._loop.add_reader(self._socket, self._readable, db)
        self._begin()

    def _send(self, db: Db) -> None:
        if self._alone:
            self._jobs = [self._alone.pop()]
        else:
            self._jobs, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
        jobs, prepared, server = self._jobs, self._prepared, db.pgconn
        if len(jobs) > 1:
            # Whoever locks several interactions locks them in the order of their numbers.
            jobs.sort(key=_number)
        try:
            for job in jobs:
                if job.sql not in prepared and job.sql not in self._new:
                    name = self._new[job.sql] = b"counterfoil_%d" % (len(prepared) + len(self._new))
                    server.send_prepare(name, job.sql.encode())
            if self._new:
                server.pipeline_sync()
            for job in jobs:
                name = prepared.get(job.sql) or self._new[job.sql]
                server.send_query_prepared(name, job.values, _binary(len(job.values)))
            server.pipeline_sync()
            if server.flush():
                self._loop.add_writer(self._socket, self._writable, db)
        except psycopg.Error as error:
            self._lost(error)

    def _writable(self, db: Db) -> None:
        try:
            if db.pgconn.flush() == 0:
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self._lost(error)

    def _readable(self, db: Db) -> None:
        server = db.pgconn
        try:
            server.consume_input()
            while self._jobs and not server.is_busy():
                result = server.get_result()
                if result is None:
                    if server.status != pq.ConnStatus.OK:
                        raise psycopg.OperationalError(server.get_error_message())
                    continue  # the end of one statement's results
                status = result.status
                if status == _OK:
                    self._counts.append(result.command_tuples or 0)
                elif status == _SYNC:
                    self._synced()
                elif status != _ABORTED and self._error is None:
                    self._error = _error_of(result)
        except psycopg.Error as error:
            self._lost(error)

    def _synced(self) -> None:
        if self._new and self._error is None:
            self._prepared.update(self._new)
            self._new.clear()
            self._counts.clear()
            return
        if self._new:
            # The statements behind the failed ones follow, and their sync.
            self._new.clear()
            return
        jobs, counts, error = self._jobs, self._counts, self._error
        self._jobs, self._counts, self._error = [], [], None
        if error is None:
            for job, count in zip(jobs, counts, strict=True):
                job.end(done=count > 0)
        elif len(jobs) > 1:
            # It took back what all of them wrote: only the culprit fails.
            self._alone = jobs[::-1]
        else:
            self._jobs = jobs
            self._fail(error)
            return
        # With nothing that waits the next one to come says when.
        self._after(TURNS if self._waiting else 1)

    def _after(self, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._after, turns - 1)
        else:
            self._begin()

    def _lost(self, error: psycopg.Error) -> None:
        """The connection is of no use any more, and what became of the group is unknown."""
        self._let_go(is_good=False)
        self._new.clear()
        if self._jobs:
            self._fail(self._error or error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, MEANT):
            meant = explain(error, self._place)
            meant.__cause__ = error
            error = meant
        jobs = self._jobs
        self._jobs, self._counts, self._error = [], [], None
        for job in jobs:
            job.end(error=error)
        self._loop.call_soon(self._begin)


@functools.cache
def _binary(values: int) -> Sequence[int]:
    return [pq.Format.BINARY] * values


def is_readable(socket: int) -> bool:
    """Whether there is something to read."""
    if not hasattr(select, "poll"):
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def _number(job: Appended) -> int:
    return job.number


def _error_of(result: pq.abc.PGresult) -> psycopg.Error:
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode(errors="replace")
    try:
        kind = psycopg.errors.lookup(state)
    except KeyError:
        kind = psycopg.DatabaseError
    return kind(message)
