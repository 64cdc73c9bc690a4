"""Driving: taking up runs, driving them in this process, giving them up, waiting for them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from counterfoil.asking import Driven
from counterfoil.builtin import read_result_tool
from counterfoil.core.call import Caller
from counterfoil.core.entries import Entry, RunEntry
from counterfoil.core.errors import Conflict, Fenced, NotFound, StoreError, UsageError
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.record import Record
from counterfoil.core.states import OPEN, next_expiry
from counterfoil.core.turn import micros
from counterfoil.deciding import Deciding
from counterfoil.dispatch import REFUSED, STALE, Dispatch
from counterfoil.hooks import Hooks, join_hooks
from counterfoil.hub import Locks, Slots
from counterfoil.loop import Drive
from counterfoil.pool import ThreadPool
from counterfoil.run import Fold
from counterfoil.store import Lease, LockLost, OverQuota, Owner, RunRow
from counterfoil.sweep import POLL_SECONDS, Sweep
from counterfoil.team import Host, Team

log = logging.getLogger("counterfoil")

PUT_OFF_SECONDS = (1.0, 60.0)
"""Before the sweep takes a run up again whose driver failed here: at first, doubling, and at most."""

_pool: list[ThreadPool] = []


def shared_pool() -> ThreadPool:
    """The threads of this process for sync bodies, shared by its Runtimes."""
    if not _pool:
        _pool.append(ThreadPool())
    return _pool[0]


class _Nobody:
    """Stands in for an agent where a run is only brought to its end: it offers nothing and asks no model."""

    instructions = None
    policy = None
    output_schema = None
    open_summary = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.tool_map: dict[str, Any] = {}
        self.parameters: dict[str, JsonValue] = {}

    def open_model(self) -> Any:
        raise UsageError(f"agent {self.name!r} is not registered here")

    def parse_output(self, text: str) -> JsonValue:
        return text


class Driving(Deciding):
    """The half of a Runtime that drives."""

    hooks: Hooks | Sequence[Hooks] | None
    deps: Callable[[Caller], Any] | None
    pool: str
    dispatch: Dispatch
    leaving: bool
    """This process takes up nothing more."""
    locks: Locks
    slots: Slots
    _tasks: dict[str, asyncio.Task[None]]
    _kicks: dict[str, asyncio.Task[None]]
    _timers: dict[str, asyncio.TimerHandle]
    sweep: Sweep
    _sweeper: asyncio.Task[None] | None
    _put_off: dict[str, tuple[float, float]]
    """Runs whose driver failed here: on the loop's clock when the sweep may take them up again; the wait so far."""

    def _drive(self, agent: Any, lease: Lease, fold: Fold) -> Drive:
        caller = cast("RunEntry", fold.record.runs[fold.run_id].head).caller
        deps = self.deps
        # Once for each time that the run is taken up: a resume gets deps of its own (contract 7.9).
        make = None if deps is None else functools.lru_cache(maxsize=1)(functools.partial(deps, caller))
        drive = Drive(
            cast("Driven", agent), lease, fold.record, store=self.store, effects=self.effects, pool=shared_pool(),
            hub=self.hub, locks=self.locks, slots=self.slots, deps=make, builtin=_builtin,
            hooks=join_hooks(self.hooks, getattr(agent, "hooks", None)), team=self._team(agent, lease, fold),
        )  # fmt: skip  # rows by what belongs together
        fold.error = None
        self._lost.pop(fold.run_id, None)
        self._drives[fold.run_id] = drive
        task = asyncio.get_running_loop().create_task(self._driven(drive, fold))
        self._tasks[fold.run_id] = task
        return drive

    def _team(self, agent: Any, lease: Lease, fold: Fold) -> Team | None:
        members = getattr(agent, "manages", ())
        if not (members or any(call.child for call in fold.record.runs[fold.run_id].batch)):
            return None
        return Team(cast("Host", self), lease, members)

    async def begin_child(self, lease: Lease, first: Sequence[Entry]) -> None:
        """See `counterfoil.team.Host`."""
        above = await self.store.run(lease.tenant, lease.run_id)
        head = cast("RunEntry", first[0])
        with contextlib.suppress(Conflict):  # it is there
            await cast("Any", self)._create(
                lease.tenant, head.run_id, list(first), self.agents.get(head.agent), interaction=lease.interaction_id,
                pool=above.pool, priority=above.priority, above=lease,
            )  # fmt: skip  # two rows

    async def _driven(self, drive: Drive, fold: Fold) -> None:
        run_id = fold.run_id
        try:
            left = await drive.go() == "running"
            self._put_off.pop(run_id, None)
            if left:
                await asyncio.shield(self._give_up(drive))
                drive._foreign = True  # tells an engine that the run waits for another process
        except LockLost:
            log.info("run %s is taken up again: this process was silent, and another took a lock of it", run_id)
            await asyncio.shield(self._give_up(drive))
            await self._read_again(fold)
            drive._foreign = True
        except Fenced as e:
            log.info("run %s is driven by another worker now: %s", run_id, e)
            await drive.abandon()
            await self._read_again(fold)
        except (KeyboardInterrupt, SystemExit):  # the event loop raises it, so nobody asks the task for it
            self._tasks[run_id].add_done_callback(asyncio.Task.exception)
            raise
        except BaseException as e:  # whoever waits is told; the record shows how far it came
            told_to_stop = isinstance(e, asyncio.CancelledError) and self._tasks[run_id].cancelling() > 0
            await asyncio.shield(self._give_up(drive))
            if told_to_stop:
                raise
            log.exception("the driver of run %s failed", run_id)
            fold.error = RuntimeError("it raised CancelledError") if isinstance(e, asyncio.CancelledError) else e
            self._fails(run_id)
            drive._foreign = False  # the sweep takes it up again, and not at once
            await self._read_again(fold)
        finally:
            del self._drives[run_id], self._tasks[run_id]
            drive.batch = None  # they have each other
            self.sweep.freed(fold.tenant)
            self.hub.wake(run_id)
        if self._open:
            self._after(drive, fold)

    async def _read_again(self, fold: Fold) -> None:
        """The fold as it is on record: it may hold a turn that did not come to be."""
        try:
            fold.record = Record(await self.store.entries(fold.tenant, fold.interaction_id))
        except StoreError:
            log.exception("run %s could not be read", fold.run_id)

    def _fails(self, run_id: str) -> None:
        """The run could not be driven; what fails at once must not be tried without end."""
        first, most = PUT_OFF_SECONDS
        wait = min(2 * self._put_off[run_id][1], most) if run_id in self._put_off else first
        self._put_off[run_id] = asyncio.get_running_loop().time() + wait, wait

    def _is_put_off(self, run_id: str) -> bool:
        return run_id in self._put_off and self._put_off[run_id][0] > asyncio.get_running_loop().time()

    def _after(self, drive: Drive, fold: Fold) -> None:
        if drive._foreign:
            self.kick(fold.tenant, fold.run_id)
        run = fold.record.runs[fold.run_id]
        if drive.head.parent is not None and (run.status != "running" or run.left):
            self.kick(fold.tenant, drive.head.parent)
        if run.status == "paused" or run.left:
            expiry = next_expiry(run, None if run.left else fold.record.runs)
            if expiry is not None:
                self._kick_at(fold, micros(expiry))
        elif timer := self._timers.pop(fold.run_id, None):
            timer.cancel()

    def _kick_at(self, fold: Fold, at: int) -> None:
        """Look at a run again at a time, in microseconds since 1970."""
        known = self._timers.pop(fold.run_id, None)
        if known is not None:
            known.cancel()
        seconds = max((at - self.effects.now()) / 1_000_000, 0.0) + 0.005
        loop = asyncio.get_running_loop()
        self._timers[fold.run_id] = loop.call_later(seconds, self.kick, fold.tenant, fold.run_id)

    async def _give_up(self, drive: Drive) -> None:
        await drive.abandon()
        try:
            with self._claiming(drive.lease.tenant, drive.run.run_id):
                await self.store.release(drive.lease)
        except Exception:  # the record is safe; the sweep takes the run up again
            log.exception("run %s could not be released", drive.lease.run_id)

    async def _give_up_rest(self) -> None:
        """Give back what is this process's on record and has no task that would do it."""
        for drive in list(self._drives.values()):
            await self._give_up(drive)  # its task was told to end before it had begun
        for run_id, tenant in self._lost.items():
            try:
                row = await self.store.run(tenant, run_id)
                if row.owner == self.owner:
                    await self.store.release(Lease(tenant, run_id, row.interaction_id, row.epoch))
            except NotFound:
                continue  # it did not come to be
            except StoreError:
                log.exception("run %s could not be released", run_id)
        for known in (self._drives, self._tasks, self._lost, self._put_off):
            known.clear()

    def kick(self, tenant: str, run_id: str) -> None:
        """Something was put on record for this run: have its driver look, or take it up if that can be done here."""
        if self.driving(run_id):
            if (drive := self._drives.get(run_id)) is not None:
                drive.notify()
        elif self._open:
            task = asyncio.get_running_loop().create_task(self._take_up(tenant, run_id))
            self._kicks[run_id] = task
            task.add_done_callback(functools.partial(self._kicked, run_id))

    def _kicked(self, run_id: str, task: asyncio.Task[None]) -> None:
        del self._kicks[run_id]
        self.hub.wake(run_id)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("run %s could not be taken up", run_id, exc_info=error)

    async def _take_up(self, tenant: str, run_id: str) -> None:
        await self._hand_on(await self.store.run(tenant, run_id))

    async def _may_take(self, row: RunRow, *, force: bool = False) -> bool:
        """Whether this process may drive the run now."""
        return (force or not (self.leaving or row.pool != self.pool)) and await self._waits(row, force=force)

    async def _waits(self, row: RunRow, *, force: bool = False) -> bool:
        """Whether the run needs a driver now, and has none."""
        now = self.effects.now()
        if row.status not in OPEN or row.run_id in self._drives:
            return False
        if not force and (row.not_before or 0) > now:
            return False
        if row.owner is not None:
            if row.owner == self.owner:
                return row.run_id in self._lost
            return not await self.lives(row.owner)
        due = row.wake_at is not None and row.wake_at <= now
        return row.runnable or due

    async def _hand_on(self, row: RunRow) -> None:
        """Have it driven: here, where that can be done, or by whomever the engine gives it to."""
        if await self._waits(row):
            if row.owner not in (None, self.owner):
                await self.dispatch.hand_over(row.owner)
            await self.dispatch.enqueue(row)

    async def drive(self, tenant: str, run_id: str, segment: int) -> str:
        """Drive one segment of a run here, to its end: for an engine. See `counterfoil.dispatch.Host.drive`."""
        row = await self.store.run(tenant, run_id)
        if row.epoch != segment or row.status not in OPEN:
            return STALE
        if self._is_put_off(run_id):
            return REFUSED  # other workers' sweeps do not know that it failed here
        try:
            await self.take_up(row)
        except Exception:
            self._fails(run_id)
            raise
        task = self._tasks.get(run_id)
        if task is None:
            return REFUSED
        await _ended(task)
        row = await self.store.run(tenant, run_id)
        # What waits for its child runs is told again when it may go on, as what waits for people is.
        return "paused" if row.status == "running" and row.owner is None and not row.runnable else row.status

    async def take_up(self, row: RunRow, *, force: bool = False) -> None:
        """Claim a run and begin to drive it in a task of its own; nothing where that cannot be done.

        Args:
            row: the run's; the claim fails where it is not its newest.
            force: also without its agent, from another pool or before its time: it was cancelled.
        """
        agent = self.agents.get(row.agent) or (_Nobody(row.agent) if force else None)
        if agent is None or not await self._may_take(row, force=force):
            return
        await self.heart.start()
        if not (force or self.sweep.has_room(row.tenant)):
            return
        quota = None if force else self.sweep.quota(row.tenant)
        with self._claiming(row.tenant, row.run_id):
            try:
                lease = await self.store.claim(row, self.owner, quota)
            except OverQuota:
                self.sweep.refused(row.tenant)
                return
            if lease is None:
                return
            record = Record(await self.store.entries(row.tenant, row.interaction_id))
        self._drive(agent, lease, self._fold(row, record))

    async def lives(self, owner: Owner) -> bool:
        """See `counterfoil.dispatch.Host.lives`."""
        return await self.store.lives(owner, self.owner)

    async def _sweep_row(self, row: RunRow) -> None:
        try:
            await self._hand_on(row)
        except Exception:  # one run that cannot be taken up must not keep the others waiting
            log.exception("run %s could not be taken up; it is tried again", row.run_id)
            self._fails(row.run_id)

    async def wait(self, fold: Fold, timeout: float | None) -> None:  # a promise of the public interface
        """Wait until a run ends or pauses. Raises TimeoutError, or what its driver here died of."""
        if timeout is None:
            await self._wait(fold)
        else:
            async with asyncio.timeout(timeout):
                await self._wait(fold)

    async def _wait(self, fold: Fold) -> None:
        run_id = fold.run_id
        while True:
            task = self._tasks.get(run_id) or self._kicks.get(run_id)
            if task is not None:
                await _ended(task)
                error = fold.error or (None if task.cancelled() else task.exception())
                if error is not None:
                    raise error
                if self.driving(run_id):
                    continue
                state = fold.record.runs[run_id]
                if state.status not in OPEN:
                    return
            row = await self.store.run(fold.tenant, run_id)
            # A pause whose approval has expired is none: whoever may take the run up settles the call.
            # Whether somebody else's owner lives is the sweep's to ask: it is cheaper once for all that wait.
            swept = self._sweeper is not None and row.owner not in (None, self.owner)
            mine = row.agent in self.agents and not swept and await self._may_take(row)
            room = not self.sweep.chooses and self.sweep.has_room(row.tenant)
            if row.status not in OPEN or (row.status == "paused" and not row.runnable and not mine):
                await self.refresh(fold)
                return
            if run_id not in self._tasks and run_id not in self._kicks:
                if mine and room and self.dispatch.here:
                    self.kick(fold.tenant, run_id)
                else:
                    await self._woken(fold.run_id)

    async def _woken(self, run_id: str) -> None:
        """Wait until something of the run is on record here, for a moment at most: others may drive it."""
        listener = self.hub.add(run_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS / 2):
                await listener.signal.wait()
        self.hub.remove(run_id, listener)

    def driving(self, run_id: str) -> bool:
        """Whether this process drives the run now."""
        task = self._tasks.get(run_id)
        if task is not None and task.done():  # its event loop ended before it had begun
            self._lost[run_id] = self._drives.pop(run_id).lease.tenant
            del self._tasks[run_id]
        return run_id in self._tasks or run_id in self._kicks

    def looked_at(self, tenant: str, run_id: str) -> None:
        if self._sweeper is None and not self.driving(run_id):
            self.kick(tenant, run_id)


def _builtin(drive: Drive) -> Any:
    return read_result_tool(drive.record, drive.store, drive.lease.tenant, drive.run.run_id)


async def _ended(task: asyncio.Task[None]) -> None:
    """Wait for a task without becoming its owner: a waiter that is cancelled cancels nothing."""
    if task.done():
        await asyncio.sleep(0)  # what follows from its end comes in the next turn of the event loop
        return
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)
