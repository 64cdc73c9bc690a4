"""The engine: one DBOS workflow for each segment of a run, and what it tells DBOS beside that.

DBOS has a queue for each pool and agent, and a worker listens to those that it can drive. A workflow holds three ids
and does nothing but call `Host.drive` in the Runtime's event loop. Its deduplication id is the segment's, so a segment
waits in DBOS once at most; it is free again when the workflow has ended, however it ended. What has ended is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar, ParamSpec, TypeVar

import sqlalchemy as sa
from dbos import DBOS, DBOSConfig

from counterfoil.adapters.dispatch.dbos.desk import (
    APPLICATION,
    NAME,
    POLL_SECONDS,
    VERSION,
    Desk,
    Words,
    queue_of,
)
from counterfoil.adapters.dispatch.dbos.place import open_place
from counterfoil.core.errors import NotFound, StoreError, UsageError
from counterfoil.dispatch import REFUSED, STALE, Dispatch, Host
from counterfoil.owners import owner_text
from counterfoil.store import Owner, RunRow

T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger("counterfoil")
_logger = logging.getLogger("dbos")

END_SECONDS = 2.0
"""Seconds that DBOS has, at most, to write down what was given up when a Runtime closes."""
AGAIN_SECONDS = (1.0, 30.0)
"""A segment that still waits, or was refused, is told again after so long: at first, doubling, and at most."""
HANDED_SECONDS = 30.0
"""What a dead worker had is looked for once in so long."""
CLEAN_SECONDS = 5.0
"""What has ended is deleted after so long; DBOS writes down the end of a workflow after it."""
MANY = 10_000
"""Segments that are remembered."""

_LOOKING = "queue-worker-"
"""How DBOS names the threads that look into queues."""

GIVEN_UP = "given up"
"""How a segment ends in DBOS whose Runtime closed or whose event loop has ended."""
FAILED = "failed"
"""How it ends when it could not be driven."""


class Engine:
    """See `counterfoil.dispatch.Dispatch`.

    Args:
        host: the Runtime.
        url: of a database of DBOS's own; None: beside the record.
    """

    here = False
    driving: ClassVar[Engine | None] = None
    """The one of this process that drives: DBOS is one for a process."""

    def __init__(self, host: Host, url: str | None = None) -> None:
        self._host = host
        self._url = url
        self._told: dict[str, tuple[int, float, float]] = {}
        """By run: the epoch, when to tell it again, and the wait before that. Seconds of the loop's clock."""
        self._handed: dict[Owner, float] = {}
        self._ended: deque[tuple[float, str]] = deque()
        """Workflows of ours that have ended, and when."""
        self._calls: set[asyncio.Task[str]] = set()
        self._agents: frozenset[str] = frozenset()
        """Whose queues this process looks into."""
        self._is_open = False
        self._dbos: DBOS | None = None
        self._cleaning: asyncio.TimerHandle | None = None
        self._stopping = threading.Lock()

    # life

    async def open(self) -> None:
        """See `Dispatch.open`."""
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._agents = frozenset(self._host.agents)
        if _logger.level == logging.NOTSET:
            _logger.setLevel(logging.WARNING)
        if self._agents:
            await self._be_the_one()
        try:
            self._db, self._schema = open_place(self._host.url, self._url)
            # One thread: SQLite has one writer, and nobody waits for what is told.
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="counterfoil-dbos")
            self._desk = Desk(self._db, self._schema)
            self._is_open = True
            if self._agents:
                await self._call(self._launch)
        except BaseException as e:
            if self._is_open:
                await self.close()
            Engine.driving = None if Engine.driving is self else Engine.driving
            if isinstance(e, sa.exc.SQLAlchemyError):
                raise StoreError(f"DBOS could not open its database: {e}") from e
            raise

    async def _be_the_one(self) -> None:
        other, Engine.driving = Engine.driving, self
        if other is None:
            return
        if not other._loop.is_closed():
            Engine.driving = other
            raise UsageError(
                "this process has an open Runtime with dispatch='dbos' and agents, and DBOS is one for a process; "
                "give that Runtime all agents, or close it first, or start another process"
            )
        await asyncio.to_thread(other._stop)  # its program never closed it

    def _launch(self) -> None:
        """Listen to the queues. In a thread, so that DBOS leaves the Runtime's event loop alone."""
        queues = self._host.pool, self._agents, self._host.max_runs
        try:
            self._desk.make_queues(*queues)
        except sa.exc.SQLAlchemyError:
            # DBOS makes its tables when it starts, and would look for queues again after a second only.
            self._start()
            DBOS.destroy()
            self._desk.make_queues(*queues)
        self._start()

    def _start(self) -> None:
        nobody = logging.NullHandler()
        _logger.addHandler(nobody)  # to a logger without any DBOS adds one that writes to the console
        me = owner_text(self._host.owner)
        try:
            self._dbos = DBOS(
                config=DBOSConfig(
                    name=APPLICATION, system_database_engine=self._db, dbos_system_schema=self._schema,
                    executor_id=me, application_version=VERSION, serializer=Words(), use_listen_notify=False,
                    notification_listener_polling_interval_sec=POLL_SECONDS, enable_otlp=False, log_level="WARNING",
                )
            )  # fmt: skip  # rows by what belongs together
        finally:
            _logger.removeHandler(nobody)
        if DBOS.executor_id != me:
            self._dbos = None
            raise UsageError(
                "this program has a DBOS of its own, and DBOS is one for a process; "
                "open the Runtime with agents in another process, or with dispatch='inline'"
            )
        DBOS.listen_queues([queue_of(self._host.pool, name) for name in sorted(self._agents)])
        DBOS.launch()

    async def drain(self) -> None:
        """See `Dispatch.drain`."""
        self._stop_looking()

    def _stop_looking(self) -> None:
        """Take nothing more out of the queues; what has begun goes on."""
        if self._dbos is not None:
            for event in self._dbos.background_thread_stop_events:
                event.set()

    async def close(self) -> None:
        """See `Dispatch.close`."""
        if not self._is_open:
            return
        self._is_open = False
        if self._cleaning is not None:
            self._cleaning.cancel()
        for task in list(self._calls):
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._call(self._stop)
        self._threads.shutdown(wait=False)

    def _stop(self) -> None:
        """Stop DBOS and forget what it keeps for this worker."""
        self._is_open = False
        with self._stopping:
            if self._dbos is not None:
                try:
                    self._let_end()
                except Exception:  # others delete it when they find that this worker is gone
                    log.warning("what DBOS keeps for this worker could not be deleted", exc_info=True)
                self._dbos = None
            self._desk.close()
        if Engine.driving is self:
            Engine.driving = None

    def _let_end(self) -> None:
        self._stop_looking()
        me = owner_text(self._host.owner)
        last = time.monotonic() + END_SECONDS
        try:
            # DBOS ends its event loop before the threads that look into queues, and complains of what these take then.
            for thread in threading.enumerate():
                if thread.name.startswith(_LOOKING):
                    thread.join(END_SECONDS)
            # It still has to write down the end of what was given up here.
            while time.monotonic() < last and self._desk.is_busy(me):
                time.sleep(END_SECONDS / 100)
        finally:
            _logger.setLevel(logging.ERROR)  # it warns of each task that it ends
            DBOS.destroy()
            _logger.setLevel(logging.WARNING)
        self._desk.delete(executor_id=me)

    # tell

    async def enqueue(self, row: RunRow) -> None:
        """See `Dispatch.enqueue`."""
        if row.agent in self._host.agents and row.agent not in self._agents:
            # It was registered since: nobody here listens for it.
            await self._host.take_up(row)
            return
        now = self._loop.time()
        epoch, due, wait = self._told.get(row.run_id, (-1, 0.0, 0.0))
        if epoch == row.epoch and now < due:
            return
        first, most = AGAIN_SECONDS
        wait = min(2 * wait, most) if epoch == row.epoch else first
        if len(self._told) >= MANY:
            self._told = {run: told for run, told in self._told.items() if told[1] > now}
        self._told[row.run_id] = row.epoch, now + wait, wait
        try:
            while (held := await self._call(self._desk.tell, row)) and not await self._host.lives(held.owner):
                await self._call(self._desk.delete_these, [held.workflow])
        except sa.exc.SQLAlchemyError as e:
            del self._told[row.run_id]
            if not _has_no_tables(e):
                raise
            # No worker has been here yet. The first one finds the run in the record.

    async def hand_over(self, owner: Owner) -> None:
        """See `Dispatch.hand_over`."""
        now = self._loop.time()
        if owner == self._host.owner or now - self._handed.get(owner, -HANDED_SECONDS) < HANDED_SECONDS:
            return
        self._handed = {o: at for o, at in self._handed.items() if now - at < HANDED_SECONDS}
        for workflow in await self._call(self._desk.delete, executor_id=owner_text(owner)):
            self._told.pop(workflow.partition(":")[0], None)
        self._handed[owner] = now

    async def forget(self, row: RunRow) -> None:
        """See `Dispatch.forget`."""
        self._told.pop(row.run_id, None)
        with contextlib.suppress(sa.exc.SQLAlchemyError):  # whoever takes it finds that the segment is over
            await self._call(self._desk.delete, workflow_id_prefix=f"{row.run_id}:", status="ENQUEUED")

    async def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._loop.run_in_executor(self._threads, functools.partial(work, *args, **kwargs))

    # drive

    def begin(self, workflow: str, tenant: str, run_id: str, number: int) -> Future[str]:
        """Drive a segment in the Runtime's event loop. Called in a thread of DBOS.

        Returns:
            How it ends.
        """
        done: Future[str] = Future()
        done.set_running_or_notify_cancel()  # it ends when the segment has, not when DBOS no longer waits for it
        try:
            # Nothing of DBOS's context goes along: a body is no step of a workflow.
            self._loop.call_soon_threadsafe(
                self._begin, workflow, (tenant, run_id, number), done, context=self._context
            )  # fmt: skip  # one call
        except RuntimeError:
            # The program ended its event loop and left the Runtime open: it must take nothing more from others.
            done.set_result(GIVEN_UP)
            threading.Thread(target=self._stop, daemon=True).start()
        return done

    def _begin(self, workflow: str, segment: tuple[str, str, int], done: Future[str]) -> None:
        if not self._is_open:
            done.set_result(GIVEN_UP)
            return
        task = self._loop.create_task(self._drive(segment))
        self._calls.add(task)
        task.add_done_callback(functools.partial(self._driven, workflow, segment, done))

    async def _drive(self, segment: tuple[str, str, int]) -> str:
        try:
            return await self._host.drive(*segment)
        except NotFound:
            return STALE
        except Exception:  # the sweep tells it again
            log.exception("run %s could not be driven", segment[1])
            return FAILED

    def _driven(
        self, workflow: str, segment: tuple[str, str, int], done: Future[str], task: asyncio.Task[str]
    ) -> None:  # fmt: skip  # one row
        self._calls.discard(task)
        _, run_id, number = segment
        end = GIVEN_UP if task.cancelled() else task.result()
        done.set_result(end)
        now = self._loop.time()
        if end == REFUSED:
            first, _ = AGAIN_SECONDS
            self._told.setdefault(run_id, (number, now + first, first))
        else:
            self._told.pop(run_id, None)
        self._ended.append((now, workflow))
        if self._cleaning is None and self._is_open:
            self._cleaning = self._loop.call_later(CLEAN_SECONDS, self._clean)

    def _clean(self) -> None:
        now = self._loop.time()
        ids: list[str] = []
        while self._ended and now - self._ended[0][0] >= CLEAN_SECONDS:
            ids.append(self._ended.popleft()[1])
        done = self._threads.submit(self._desk.delete_these, ids)
        done.add_done_callback(_log_failure)
        self._cleaning = self._loop.call_later(CLEAN_SECONDS, self._clean) if self._ended else None


def _log_failure(done: Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.warning("ended segments could not be deleted from DBOS", exc_info=error)


@DBOS.workflow(name=NAME)
async def segment(tenant: str, run_id: str, number: int) -> str:
    """The only workflow: drive one segment of a run here. Returns how it ended, in a word."""
    engine, workflow = Engine.driving, DBOS.workflow_id
    if engine is None or workflow is None:
        return GIVEN_UP
    return await asyncio.wrap_future(engine.begin(workflow, tenant, run_id, number))


def _has_no_tables(error: sa.exc.SQLAlchemyError) -> bool:
    cause = getattr(error, "orig", None)
    return getattr(cause, "sqlstate", None) == "42P01" or "no such table" in str(cause)


def make_dispatch(name: str, host: Host) -> Dispatch:
    """For the registry: ``dbos``, or ``dbos:URL`` for a database of DBOS's own."""
    url = name.partition(":")[2]
    return Engine(host, url or None)
