"""Temporal sees to it that runs are driven: ``temporal``, ``temporal:HOST:PORT``, ``temporal:HOST:PORT/NAMESPACE``.

Each run has one workflow, each segment of it is one activity. A pause leaves a workflow that waits for a signal, the
end of the run completes it. It holds ids, numbers and statuses. Whatever is lost there, a signal or all of it, the next
sweep tells again: a signal starts the workflow where there is none. So a workflow is only left open where its run is
driven or paused, and one that cannot go on is replaced.

A namespace has the runs of one record. Pool and agent make a task queue, so a worker gets what it can drive.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from temporalio import activity
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import PollerBehaviorSimpleMaximum, UnsandboxedWorkflowRunner, Worker

from counterfoil.adapters.dispatch import temporal_run as names
from counterfoil.adapters.dispatch.temporal_run import RunWorkflow
from counterfoil.core.errors import DefinitionError, NotFound, UsageError
from counterfoil.dispatch import REFUSED, STALE, Dispatch, Host
from counterfoil.effects import REAL
from counterfoil.store import Owner, RunRow

log = logging.getLogger("counterfoil")

SERVER = "localhost:7233"
NAMESPACE = "default"
CONNECT_SECONDS = 5.0
"""To wait for a server before it counts as missing."""
CALL_SECONDS = 3.0
"""To wait for one answer of the server."""
CALLS = 16
"""Questions to the server at once."""
AWAY_SECONDS = 5.0
"""A server that did not answer is not asked again for so long."""
COMPLAIN_SECONDS = 60.0
"""A server that is away is logged so often."""
BEAT_SECONDS = 10.0
"""Between two heartbeats of a segment."""
FRESH = 1_000_000
"""Microseconds after a change of its row in which a run's segment is new to the server."""
TOLD_SECONDS = (1.0, 60.0)
"""Before a segment is told again: at first, doubling, and at most."""
MOST_TOLD = 10_000
"""Runs of which is remembered when they were told."""
CLOSE_SECONDS = 5.0
"""To wait for the server while a worker closes."""
STUCK = 6
"""A workflow whose task failed so often is replaced: another version of us may have written its history."""
RUNS = 200
"""Runs that one process drives at once for one agent, where its Runtime says nothing of it."""
STICKY = timedelta(seconds=1)
"""A worker that knows a workflow's history has so long to take its next task, before any other may."""
_LOGGED = ApplicationErrorCategory.BENIGN
"""The SDK does not log it too."""


class Temporal:
    """See `counterfoil.dispatch.Dispatch`."""

    here = False

    def __init__(self, name: str, host: Host) -> None:
        self._host = host
        self._server, self._namespace = _address(name)
        self._opened = False
        self._workers: dict[str, Worker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By agent: what runs its worker."""
        self._stopping: set[asyncio.Task[None]] = set()
        self._driving: set[asyncio.Task[str]] = set()
        self._told: dict[str, tuple[int, float, float]] = {}
        """By run: the segment, on the loop's clock when it may be told again, and the wait so far."""
        self._away_until = 0.0
        self._complained = -COMPLAIN_SECONDS
        self._leaving = False

    # life

    async def open(self) -> None:
        """Connect; with agents, begin to work for them.

        Raises:
            UsageError: the record is in this process alone, or no server answers.
        """
        if self._host.url.partition("://")[0] == "memory":
            raise UsageError(
                "dispatch='temporal' gives runs to other processes, and memory:// is in this one alone; "
                "keep the record in sqlite:///… or postgresql://…"
            )
        self._client = await self._connect()
        self._opened = True
        self._context = contextvars.copy_context()
        self._threads = ThreadPoolExecutor(4, "counterfoil-temporal")
        self._calls = asyncio.Semaphore(CALLS)
        self._closing = asyncio.get_running_loop().create_future()
        self._leaving = False
        self._serve()

    async def _connect(self) -> Client:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                client = await Client.connect(self._server, namespace=self._namespace, runtime=_runtime(os.getpid()))
                await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=self._namespace))
                return client
        except (RuntimeError, RPCError, TimeoutError) as error:
            raise UsageError(
                f"no Temporal server with the namespace {self._namespace!r} answers at {self._server} "
                f"({_short(error)}); start one with `temporal server start-dev`, or say where yours is: "
                "dispatch='temporal:HOST:PORT/NAMESPACE'"
            ) from error

    def _serve(self) -> None:
        """A worker for each agent; some come after the Runtime was opened."""
        for agent in self._host.agents:
            if agent not in self._tasks and not self._leaving:
                self._tasks[agent] = asyncio.create_task(self._work(agent), context=self._context.copy())

    async def _work(self, agent: str) -> None:
        wait, most = 1.0, COMPLAIN_SECONDS
        while not self._leaving:
            try:
                worker = self._workers[agent] = self._worker(agent)
                await worker.run()
            except Exception:  # such as a namespace that was deleted; what waits stays on record
                log.exception("the Temporal worker for agent %r ended; it begins again in %g s", agent, wait)
                await asyncio.wait({self._closing}, timeout=wait)
                wait = min(2 * wait, most)

    def _worker(self, agent: str) -> Worker:
        polls = PollerBehaviorSimpleMaximum(2)
        return Worker(
            self._client, task_queue=_queue(self._host.pool, agent), workflows=[RunWorkflow],
            activities=[self._drive], workflow_runner=UnsandboxedWorkflowRunner(),
            workflow_task_executor=self._threads, max_concurrent_workflow_tasks=4,
            max_concurrent_activities=self._host.max_runs or RUNS,
            workflow_task_poller_behavior=polls, activity_task_poller_behavior=polls,
            max_cached_workflows=RUNS, sticky_queue_schedule_to_start_timeout=STICKY, build_id="counterfoil",
            max_heartbeat_throttle_interval=timedelta(seconds=BEAT_SECONDS), graceful_shutdown_timeout=names.FOREVER,
        )  # fmt: skip  # rows by what belongs together

    async def drain(self) -> None:
        """Poll no more; segments at work go on."""
        self._leaving = True
        for worker in self._workers.values():
            self._stopping.add(asyncio.create_task(worker.shutdown()))

    async def close(self) -> None:
        """Give the segments at work back to the server, which has another worker go on."""
        if not self._opened:
            return
        self._opened = False
        self._closing.set_result(None)
        await self.drain()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=CLOSE_SECONDS)
        ending = {*self._tasks.values(), *self._stopping, *self._driving}
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_SECONDS)
        for known in (self._tasks, self._workers, self._stopping, self._driving, self._told):
            known.clear()
        self._threads.shutdown(wait=False)

    # what the server is told

    async def enqueue(self, row: RunRow) -> None:
        """Signal the run's workflow, and start it where it is not there."""
        self._serve()
        async with self._calls:
            now = asyncio.get_running_loop().time()
            segment, due, wait = self._told.get(row.run_id, (-1, 0.0, 0.0))
            again = segment == row.epoch
            if now < self._away_until or (again and now < due):
                return
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    # A signal stays in the history: whoever is not the first to tell looks whether it is needed.
                    look = again or REAL.now() - row.updated_at > FRESH
                    conflict = await self._missing(row) if look else WorkflowIDConflictPolicy.USE_EXISTING
                    if conflict is not None:
                        await self._tell(row, conflict)
            except (RPCError, TimeoutError) as error:
                self._away(error)
                return
        first, most = TOLD_SECONDS
        self._told.pop(row.run_id, None)
        self._told[row.run_id] = row.epoch, now + max(wait, first), min(2 * max(wait, first), most)
        if len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]

    async def _tell(self, row: RunRow, conflict: WorkflowIDConflictPolicy) -> None:
        await self._client.start_workflow(
            names.WORKFLOW, args=[row.tenant, row.run_id], id=_id(row), task_queue=_queue(row.pool, row.agent),
            start_signal=names.SEGMENT, start_signal_args=[row.epoch], id_conflict_policy=conflict,
        )  # fmt: skip  # two rows

    async def _missing(self, row: RunRow) -> WorkflowIDConflictPolicy | None:
        """None: the server has the segment. Else what to do with a workflow that is there."""
        try:
            found = (await self._handle(row).describe()).raw_description
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return WorkflowIDConflictPolicy.USE_EXISTING
        if found.pending_workflow_task.attempt > STUCK:
            log.warning("the Temporal workflow of run %s could not go on; it is started anew", row.run_id)
            return WorkflowIDConflictPolicy.TERMINATE_EXISTING
        at_work = any(known.activity_id == str(row.epoch) for known in found.pending_activities)
        return None if at_work or found.HasField("pending_workflow_task") else WorkflowIDConflictPolicy.USE_EXISTING

    def _handle(self, row: RunRow) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(_id(row))

    async def hand_over(self, owner: Owner) -> None:
        """The server misses its heartbeats, and a later segment goes past the one that it had."""

    async def forget(self, row: RunRow) -> None:
        """Complete its workflow."""
        self._told.pop(row.run_id, None)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._handle(row).signal(names.FORGET)
        except (RPCError, TimeoutError) as error:
            if not (isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND):
                self._away(error)

    def _away(self, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        self._away_until = now + AWAY_SECONDS
        if now >= self._complained + COMPLAIN_SECONDS:
            self._complained = now
            log.error(
                "the Temporal server at %s cannot be told of runs (%s); they stay on record, and it is tried again",
                self._server, _short(error),
            )  # fmt: skip  # two rows

    # what the server has us do

    @activity.defn(name=names.ACTIVITY)
    async def _drive(self, tenant: str, run_id: str, segment: int) -> tuple[str, int]:
        """The activity: one segment, and the number of the one that was driven."""
        said = await self._segment(tenant, run_id, segment)
        if said == STALE and activity.info().attempt > 1:
            # Whoever had it before died after its claim. What it left is the next segment.
            segment += 1
            said = await self._segment(tenant, run_id, segment)
        return names.LEFT if said == names.RUNNING and self._leaving else said, segment

    async def _segment(self, tenant: str, run_id: str, segment: int) -> str:
        driving = asyncio.create_task(self._host.drive(tenant, run_id, segment), context=self._context.copy())
        self._driving.add(driving)  # it goes on where the server does not wait for it any more
        driving.add_done_callback(self._driving.discard)
        while not driving.done():
            activity.heartbeat()
            await asyncio.wait({driving, self._closing}, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self._closing.done() and not driving.done():
                raise ApplicationError("the worker closes", next_retry_delay=names.CLOSING, category=_LOGGED)
        try:
            return driving.result()
        except NotFound:
            log.error(  # noqa: TRY400  # where it was raised says nothing
                "run %s is not in this record; do two records share the Temporal namespace %r?", run_id, self._namespace
            )
            return REFUSED
        except Exception as error:
            log.exception("run %s could not be driven for Temporal", run_id)
            # Its text may hold what people wrote, which is not the server's.
            raise ApplicationError(type(error).__name__, category=_LOGGED) from None


def _id(row: RunRow) -> str:
    return f"{row.tenant}/{row.run_id}"


def _queue(pool: str, agent: str) -> str:
    return f"counterfoil/{quote(pool, safe='')}/{quote(agent, safe='')}"


def _address(name: str) -> tuple[str, str]:
    """Server and namespace. Raises DefinitionError."""
    found = re.fullmatch(r"temporal(?::([^/]+:\d+)(?:/([^/]+))?)?", name)
    if found is None:
        raise DefinitionError(f"expected 'temporal:HOST:PORT' or 'temporal:HOST:PORT/NAMESPACE', got {name!r:.200}")
    return found[1] or SERVER, found[2] or NAMESPACE


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200] if str(error) else type(error).__name__


@functools.lru_cache(maxsize=1)
def _runtime(_pid: int) -> Runtime:
    """The threads of this process that talk to servers; they do not outlive a fork."""
    # It would warn of every call that it tries again.
    quiet = LoggingConfig(TelemetryFilter("ERROR", "ERROR"), LogForwardingConfig(log))
    return Runtime(telemetry=TelemetryConfig(logging=quiet), worker_heartbeat_interval=None)


def make_dispatch(name: str, host: Host) -> Dispatch:
    """For the registry.

    Raises:
        DefinitionError: the name is not understood.
    """
    return Temporal(name, host)
