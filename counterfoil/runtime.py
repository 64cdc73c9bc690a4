"""Runtime: what a program holds. It starts runs, drives them in this process, decides, cancels and reads."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from counterfoil.asking import Driven
from counterfoil.builtin import read_result_tool
from counterfoil.core.approval import Approval, Decision
from counterfoil.core.call import DEFAULT_CALLER, Caller
from counterfoil.core.entries import (
    CallRecord,
    CancelEntry,
    Entry,
    MessageEntry,
    QueuedEntry,
    ResumedEntry,
    RunEntry,
    TurnEntry,
)
from counterfoil.core.errors import Conflict, DefinitionError, Fenced, NotFound, NotPending, UsageError
from counterfoil.core.events import Event
from counterfoil.core.jsontext import JsonValue, clean_text, dumps
from counterfoil.core.limits import DEFAULT_LIMITS, PROCESS_CONCURRENCY, Limits
from counterfoil.core.record import Record
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.result import ToolResult
from counterfoil.core.states import OPEN
from counterfoil.core.turn import moment
from counterfoil.decide import check_edit
from counterfoil.effects import REAL, Effects
from counterfoil.follow import follow
from counterfoil.hooks import Hooks, join_hooks
from counterfoil.hub import Hub, Locks, Slots
from counterfoil.loop import Drive
from counterfoil.owners import alive, leave, this_process
from counterfoil.pool import ThreadPool
from counterfoil.registry import resolve
from counterfoil.run import Fold, Run
from counterfoil.store import Head, KeptRange, Lease, NewRun, ReportFilter, RunRow, Store

if TYPE_CHECKING:
    from counterfoil.verify import Verification

log = logging.getLogger("counterfoil")

POLL_SECONDS = 0.1
"""How often a Runtime looks whether another process has written to a shared store."""
SWEEP_SECONDS = 1.0
"""How often it looks for runs of dead processes though nothing was written."""

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

    def __init__(self, name: str) -> None:
        self.name = name
        self.tool_map: dict[str, Any] = {}
        self.parameters: dict[str, JsonValue] = {}

    def open_model(self) -> Any:
        raise UsageError(f"agent {self.name!r} is not registered here")

    def parse_output(self, text: str) -> JsonValue:
        return text


class Runtime:
    """Drives the runs of its agents and reads every run of its store. An async context manager.

    Args:
        url: where the record is: ``memory://``, ``sqlite:///path``.
        agents: whose runs this process starts and takes up; none: it only reads and decides.
        hooks: guards and observers for all of them.
        limits: budgets for agents that set none.
        deps: a function of the Caller, called again on every resume; its value is ``ToolContext.deps``.
        dispatch: who drives a runnable run: ``inline``, this process.
        pool: the name of the pool whose runs it takes up.
        concurrency: bodies that it runs at once, over all its runs.

    Raises:
        DefinitionError: the url is not understood, or two agents have one name.
    """

    def __init__(
        self, url: str = "memory://", *, agents: Iterable[Any] = (), hooks: Hooks | Sequence[Hooks] | None = None,
        limits: Limits | None = None, deps: Callable[[Caller], Any] | None = None, dispatch: str = "inline",
        pool: str = "default", concurrency: int = PROCESS_CONCURRENCY, effects: Effects = REAL, store: Store | None = None,
    ) -> None:  # fmt: skip  # rows by what belongs together
        if dispatch != "inline":
            raise DefinitionError(f"dispatch {dispatch!r} is not known; this version has 'inline'")
        self.url = url
        self.agents: dict[str, Any] = {}
        for agent in agents:
            self.register(agent)
        self.hooks = hooks
        self.limits = limits
        self.deps = deps
        self.pool = pool
        self.effects = effects
        self.store: Store = store if store is not None else resolve("store", url.partition("://")[0])(url)
        self.hub = Hub()
        self.slots = Slots(concurrency)
        self._open = False
        self._drives: dict[str, Drive] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._kicks: dict[str, asyncio.Task[None]] = {}
        self._folds: WeakValueDictionary[str, Fold] = WeakValueDictionary()
        self._sweeper: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @classmethod
    def in_memory(cls, agent: Any, *, hooks: Any = None, deps: Callable[[Caller], Any] | None = None) -> Runtime:
        """A Runtime for one agent whose record is in this process alone; needs no closing."""
        runtime = cls(agents=(agent,), hooks=hooks, deps=deps)
        runtime._ready()
        return runtime

    def register(self, agent: Any) -> None:
        """Add an agent.

        Raises:
            DefinitionError: another one has its name.
        """
        known = self.agents.setdefault(agent.name, agent)
        if known is not agent:
            raise DefinitionError(f"{agent.name}: two agents have this name; runs find their agent by it")

    # life

    async def __aenter__(self) -> Runtime:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the store; with agents, begin to take up unfinished runs whose process is dead."""
        await self.store.open()
        self._ready()
        if self.store.shared and self.agents:
            self._sweeper = asyncio.create_task(self._sweep())

    def _ready(self) -> None:
        self.owner = this_process(self.effects.new_id())
        self.locks = Locks(self.store, self.owner)
        self._open = True

    async def close(self) -> None:
        """Stop driving: bodies that run are told to stop; runs that are not finished may be taken up by others."""
        if not self._open:
            return
        self._open = False
        for timer in self._timers.values():
            timer.cancel()
        tasks = [t for t in (self._sweeper, *self._kicks.values(), *self._tasks.values()) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.locks.close()
        leave(self.owner)
        await self.store.close()

    def _check(self) -> None:
        if not self._open:
            raise UsageError("this Runtime is not open; use `async with Runtime(…) as runtime:`")

    # start and drive

    async def start(
        self, agent: Any, prompt: str, *, caller: Caller | None = None, interaction: str | None = None,
        key: str | None = None, pool: str = "default", priority: int = 0, not_before: Any = None,
        approvals: str = "any-order", on_disconnect: str = "go-on", limits: Limits | None = None,
    ) -> Run:  # fmt: skip  # rows by what belongs together
        """Put a run on record and begin to drive it.

        Args:
            agent: its name, or the Agent; one that is not registered here is left for a worker that has it.
            prompt: the first message.
            caller: on whose behalf.
            interaction: the id of an earlier conversation to go on with.
            key: a repeat with the same key and request gives the first run.
            not_before: a datetime; the run begins then.
            approvals: ``any-order``, or ``one-by-one``: one open approval at a time.

        Raises:
            NotFound: the interaction does not exist for this tenant.
            Conflict: it has an open run, or the key was used for another request.
        """
        self._check()
        if not isinstance(agent, str):
            self.register(agent)
        name = agent if isinstance(agent, str) else agent.name
        if approvals not in ("any-order", "one-by-one"):
            raise ValueError(f"approvals must be 'any-order' or 'one-by-one', got {approvals!r}")
        if not isinstance(prompt, str):
            raise TypeError(f"prompt must be text, got {type(prompt).__name__}")
        known = self.agents.get(name)
        caller = caller or DEFAULT_CALLER
        now = self.effects.now()
        run_id = self.effects.new_id()
        budget = limits or (known.limits if known is not None else None) or self.limits or DEFAULT_LIMITS
        first: list[Entry] = [
            RunEntry(run_id=run_id, at=now, agent=name, caller=caller, limits=budget, approvals=approvals, on_disconnect=on_disconnect),
            MessageEntry(run_id=run_id, at=now, text=clean_text(prompt), author_name=caller.user or "user"),
        ]  # fmt: skip  # a row for each entry
        digest = None if key is None else _digest([name, prompt, interaction])
        return await self._create(
            caller.tenant, run_id, first, known, interaction=interaction, key=key, key_digest=digest, pool=pool,
            priority=priority, later=None if not_before is None else int(not_before.timestamp() * 1_000_000),
        )  # fmt: skip  # two rows

    async def _create(
        self, tenant: str, run_id: str, first: list[Entry], known: Any, *, interaction: str | None = None,
        key: str | None = None, key_digest: str | None = None, pool: str | None = None, priority: int = 0,
        later: int | None = None,
    ) -> Run:  # fmt: skip  # rows by what belongs together
        """Put a run on record with its first entries; drive it if its agent is here and its time has come."""
        now = first[0].at
        here = known is not None and (later is None or later <= now) and pool in (None, self.pool)
        new = NewRun(
            tenant=tenant, run_id=run_id, interaction_id=interaction or self.effects.new_id(),
            new_interaction=interaction is None, agent=cast("RunEntry", first[0]).agent, entries=first, created_at=now,
            owner=self.owner if here else None, key=key, key_digest=key_digest, pool=pool or self.pool,
            priority=priority, not_before=later,
        )  # fmt: skip  # as above
        probe = self.effects.probe
        if probe is not None:
            probe("store:before:create")
        row, created = await self.store.create(new)
        if probe is not None:
            probe("store:after:create")
        if not created:
            return await self.get(row.run_id, tenant=row.tenant)
        entries = first if interaction is None else await self.store.entries(row.tenant, row.interaction_id)
        fold = self._fold(row, Record(entries))
        if here:
            self._drive(known, Lease(row.tenant, row.run_id, row.interaction_id, row.epoch), fold)
        elif later is not None and known is not None:
            self._kick_at(fold, later)
        return Run(self, fold)

    async def call(
        self, agent: Any, tool: str, input: dict[str, JsonValue], *, caller: Caller | None = None,  # as in approve
        limits: Limits | None = None, key: str | None = None,
    ) -> Run:  # fmt: skip  # two rows
        """Call a tool without a model, by the same way as a model's call: a run of one step.

        Args:
            agent: its name, or the Agent: whose tools, policy and hooks apply.
            tool: the tool's name.
            input: its arguments, as JSON.
            caller: on whose behalf.
            key: a repeat with the same key and request gives the first run.

        Returns:
            The run, ended or paused; its one result is ``run.results[0]``.
        """
        if not isinstance(agent, str):
            self.register(agent)
        name = agent if isinstance(agent, str) else agent.name
        known = self.agents.get(name)
        offered = known is not None and tool in known.tool_map
        caller, now, run_id = caller or DEFAULT_CALLER, self.effects.now(), self.effects.new_id()
        raw = dumps(input).decode()
        record = CallRecord(f"call_{self.effects.new_id()}", None, clean_text(tool), raw, offered)
        budget = limits or (known.limits if known is not None else None) or self.limits or DEFAULT_LIMITS
        first: list[Entry] = [
            RunEntry(run_id=run_id, at=now, agent=name, caller=caller, limits=budget, direct=True),
            TurnEntry(run_id=run_id, at=now, step=0, text="", calls=(record,), stop="calls", model="direct"),
        ]
        digest = None if key is None else _digest([name, tool, input])
        run = await self._create(caller.tenant, run_id, first, known, key=key, key_digest=digest)
        return await run.wait()

    def _fold(self, row: RunRow, record: Record) -> Fold:
        fold = self._folds.get(row.run_id)
        if fold is None:
            fold = self._folds[row.run_id] = Fold(row.tenant, row.interaction_id, row.run_id, record)
        else:
            fold.record = record
        return fold

    def _drive(self, agent: Any, lease: Lease, fold: Fold) -> Drive:
        caller = cast("RunEntry", fold.record.runs[fold.run_id].head).caller
        deps = self.deps
        # Once for each time that the run is taken up: a resume gets deps of its own (contract 7.9).
        make = None if deps is None else functools.lru_cache(maxsize=1)(functools.partial(deps, caller))
        drive = Drive(
            cast("Driven", agent), lease, fold.record, store=self.store, effects=self.effects, pool=shared_pool(),
            hub=self.hub, locks=self.locks, slots=self.slots, hooks=join_hooks(self.hooks, getattr(agent, "hooks", None)), deps=make,
            builtin=_builtin,
        )  # fmt: skip  # rows by what belongs together
        fold.error = None
        self._drives[fold.run_id] = drive
        task = asyncio.get_running_loop().create_task(self._driven(drive, fold))
        self._tasks[fold.run_id] = task
        return drive

    async def _driven(self, drive: Drive, fold: Fold) -> None:
        run_id = fold.run_id
        try:
            await drive.go()
        except Fenced as e:
            log.info("run %s is driven by another worker now: %s", run_id, e)
            fold.record = Record(await self.store.entries(fold.tenant, fold.interaction_id))
        except asyncio.CancelledError:
            await asyncio.shield(self._give_up(drive))
            raise
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:  # whoever waits is told; the record shows how far it came
            log.exception("the driver of run %s failed", run_id)
            fold.error = e
            await self._give_up(drive)
        finally:
            del self._drives[run_id], self._tasks[run_id]
            self.hub.wake(run_id)
        if self._open:
            self._after(drive, fold)

    def _after(self, drive: Drive, fold: Fold) -> None:
        if drive._foreign:
            self.kick(fold.tenant, fold.run_id)
        run = fold.record.runs[fold.run_id]
        if run.status == "paused":
            expiries = [c.waiting.approval.expires_at for c in run.batch if c.pending and c.waiting]
            times = [e for e in expiries if e is not None]
            if times:
                self._kick_at(fold, int((min(times) - moment(0)).total_seconds() * 1_000_000))
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
            await self.store.release(drive.lease)
        except Exception:  # the record is safe; another process takes the run up when this one is gone
            log.exception("run %s could not be released", drive.lease.run_id)

    def kick(self, tenant: str, run_id: str) -> None:
        """Something was put on record for this run: have its driver look, or take it up if that can be done here."""
        drive = self._drives.get(run_id)
        if drive is not None:
            drive.notify()
            return
        if run_id not in self._kicks and self._open:
            task = asyncio.get_running_loop().create_task(self._take_up(tenant, run_id))
            self._kicks[run_id] = task
            task.add_done_callback(lambda _: self._kicks.pop(run_id, None))

    async def _take_up(self, tenant: str, run_id: str) -> None:
        await self._take_up_row(await self.store.run(tenant, run_id))

    def _may_take(self, row: RunRow, *, force: bool = False) -> bool:
        now = self.effects.now()
        if row.status not in OPEN or row.run_id in self._drives:
            return False
        if not force and (row.pool != self.pool or (row.not_before or 0) > now):
            return False
        if row.owner is not None:
            return not alive(row.owner)
        due = row.wake_at is not None and row.wake_at <= now
        return row.runnable or due or row.status == "running"

    async def _take_up_row(self, row: RunRow, *, force: bool = False) -> None:
        agent = self.agents.get(row.agent) or (_Nobody(row.agent) if force else None)
        if agent is None or not self._may_take(row, force=force):
            return
        lease = await self.store.claim(row, self.owner)
        if lease is None:
            return
        record = Record(await self.store.entries(row.tenant, row.interaction_id))
        self._drive(agent, lease, self._fold(row, record))

    async def _sweep(self) -> None:
        seen: object = None
        last = -SWEEP_SECONDS
        while True:
            try:
                version = await self.store.version()
                clock = self.effects.clock()
                if version != seen or clock - last >= SWEEP_SECONDS:
                    changed, seen, last = version != seen, version, clock
                    if changed:
                        for drive in list(self._drives.values()):
                            drive.notify()
                    for row in await self.store.open_runs(list(self.agents), self.pool):
                        await self._take_up_row(row)
            except asyncio.CancelledError:
                raise
            except Exception:  # the sweep must outlive a locked file or a full disk
                log.exception("the sweep for runs to take up failed; it tries again")
            await asyncio.sleep(POLL_SECONDS)

    # wait and read

    async def refresh(self, fold: Fold) -> None:
        """Bring a fold up to date where no driver of this process does."""
        if fold.run_id in self._drives:
            return
        for entry in await self.store.entries(fold.tenant, fold.interaction_id, fold.record.tip):
            if entry.entry > fold.record.tip:
                fold.record.apply(entry)

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
                if fold.error is not None:
                    raise fold.error
                if run_id in self._kicks or run_id in self._tasks:
                    continue
                state = fold.record.runs[run_id]
                if state.status not in OPEN:
                    return
            row = await self.store.run(fold.tenant, run_id)
            # A pause whose approval has expired is none: whoever may take the run up settles the call.
            mine = row.agent in self.agents and self._may_take(row)
            if row.status not in OPEN or (row.status == "paused" and not row.runnable and not mine):
                await self.refresh(fold)
                return
            if run_id not in self._tasks and run_id not in self._kicks:
                if mine:
                    self.kick(fold.tenant, run_id)
                else:
                    await asyncio.sleep(POLL_SECONDS / 2)

    async def get(self, run_id: str, tenant: str = "default") -> Run:
        """A handle on a run. Raises NotFound, also for another tenant's."""
        self._check()
        row = await self.store.run(tenant, run_id)
        fold = self._folds.get(run_id)
        if fold is None:
            fold = self._fold(row, Record(await self.store.entries(tenant, row.interaction_id)))
        else:
            await self.refresh(fold)
        return Run(self, fold)

    async def runs(
        self, *, tenant: str = "default", status: str | None = None, agent: str | None = None,
        interaction: str | None = None, limit: int = 50, before: str | None = None,
    ) -> list[RunRow]:  # fmt: skip  # rows by what belongs together
        """Runs of a tenant, newest first."""
        self._check()
        return await self.store.runs(
            tenant, status=status, agent=agent, interaction_id=interaction, limit=limit, before=before
        )

    async def timeline(self, run_id: str, *, tenant: str = "default") -> list[Any]:
        """What happened, in rows for a person."""
        run = await self.get(run_id, tenant)
        from counterfoil.core.timeline import rows

        return rows(run._fold.record, run_id)

    async def context(
        self, run_id: str, *, after: int = 0, thread: str | None = None, limit: int | None = None, tenant: str = "default"
    ) -> list[dict[str, JsonValue]]:
        """The items of the run's conversation as a client reads them (contract 1.4)."""
        run = await self.get(run_id, tenant)
        from counterfoil.core.wire import context_items

        return context_items(run._fold.record, run_id, after=after, thread=thread, limit=limit)

    async def tool_result(
        self, run_id: str, sequence: int, *, offset: int = 0, limit: int | None = None, tenant: str = "default"
    ) -> KeptRange:
        """A whole result, or characters of it. Raises NotFound where no result has this number."""
        run = await self.get(run_id, tenant)
        for call in run._fold.record.runs[run_id].calls:
            entry = call.result
            if entry is None or call.turn.result_sequence(call.index) != sequence:
                continue
            if entry.kept_id is not None:
                return await self.store.kept(tenant, entry.kept_id, offset, limit)
            text = entry.result.model_output
            end = None if limit is None else offset + limit
            return KeptRange(text[offset:end], offset, len(text), entry.size)
        raise NotFound(f"run {run_id} has no result with sequence {sequence}; its timeline lists them")

    async def errors(
        self, run_id: str | None = None, *, tool: str | None = None, code: int | None = None, since: int | None = None,
        limit: int = 100, tenant: str = "default",
    ) -> list[ToolErrorReport]:  # fmt: skip  # two rows
        """Error reports, newest first. Raises NotFound for an unknown run."""
        self._check()
        if run_id is not None:
            await self.store.run(tenant, run_id)
        return await self.store.reports(tenant, ReportFilter(run_id, tool, code, since, limit))

    async def events(
        self, run_id: str, *, after: int | None = None, tenant: str = "default"
    ) -> AsyncIterator[Event]:
        """A run's events from the first, or after an entry, until it ends or pauses. Raises NotFound."""
        self._check()
        row = await self.store.run(tenant, run_id)
        async for event in follow(self, row, after or 0):
            yield event

    def driving(self, run_id: str) -> bool:
        """Whether this process drives the run now."""
        return run_id in self._tasks or run_id in self._kicks

    async def verify(
        self, head: Sequence[Head] | None = None, progress: Callable[[int], None] | None = None
    ) -> Verification:
        """Prove the laws of the contract on the whole store."""
        from counterfoil.verify import verify  # the laws are a tenth of the package; few programs check them

        self._check()
        return await verify(self.store, head=head, progress=progress)

    async def erase(self, run_id: str, *, tenant: str = "default") -> int:
        """Erase the contents of an ended run; digests and sizes stay. Raises NotFound, Conflict."""
        self._check()
        return await self.store.erase(tenant, run_id, self.effects.now())

    # decide

    async def approvals(self, run_id: str | None = None, *, tenant: str = "default") -> list[Approval]:
        """What waits for a decision, oldest first. Raises NotFound for an unknown run."""
        self._check()
        if run_id is not None:
            await self.store.run(tenant, run_id)
        now = moment(self.effects.now())
        waiting = await self.store.approvals(tenant, run_id)
        return [a for a in waiting if a.expires_at is None or a.expires_at > now]

    async def approve(
        self, run_id: str, call_id: str, *, by: str | None = None, reason: str | None = None,
        input: dict[str, JsonValue] | None = None,  # a promise of the public interface
        digest: str | None = None, roles: Sequence[str] = (), tenant: str = "default",
    ) -> Approval:  # fmt: skip  # rows by what belongs together
        """Let a call run, perhaps with an edited input.

        Raises:
            NotFound: no such run for this tenant.
            NotPending: no decision is awaited.
            DecisionConflict: it was decided differently, or ``digest`` is of another input.
            InvalidInput: schema or policy refuse the edited input; the call stays pending.
        """
        edited: bytes | None = None
        if input is not None:
            edited = await check_edit(self, run_id, call_id, input, tenant)
        return await self._decide(tenant, run_id, call_id, Decision("approve", by, reason, edited, digest), roles)

    async def reject(
        self, run_id: str, call_id: str, *, by: str | None = None, reason: str | None = None, digest: str | None = None,
        roles: Sequence[str] = (), tenant: str = "default",
    ) -> Approval:  # fmt: skip  # two rows
        """Refuse a call. Raises as `approve`."""
        return await self._decide(tenant, run_id, call_id, Decision("reject", by, reason, None, digest), roles)

    async def settle(
        self, run_id: str, call_id: str, *, by: str | None = None, rerun: bool = False, result: ToolResult | None = None,
        reason: str | None = None, roles: Sequence[str] = (), tenant: str = "default",
    ) -> Approval:  # fmt: skip  # two rows
        """Settle an interrupted call: run it again, or record what happened. Raises as `approve`."""
        if rerun == (result is not None):
            raise UsageError("settle takes either rerun=True or result=ToolResult…")
        value = None if result is None else cast("JsonValue", result.to_dict())
        decision = Decision("rerun" if rerun else "record", by, reason, None, None, value)
        return await self._decide(tenant, run_id, call_id, decision, roles)

    async def answer(
        self, run_id: str, call_id: str, *, by: str | None = None, text: str, tenant: str = "default"
    ) -> Approval:
        """Answer a question. Raises as `approve`."""
        return await self._decide(tenant, run_id, call_id, Decision("answer", by, None, None, None, clean_text(text)), ())

    async def _decide(
        self, tenant: str, run_id: str, call_id: str, decision: Decision, roles: Sequence[str]
    ) -> Approval:
        self._check()
        now = self.effects.now()
        made = Decision(
            decision.choice, decision.by, None if decision.reason is None else clean_text(decision.reason),
            decision.input, decision.digest, decision.value, now, tuple(roles),
        )  # fmt: skip  # two rows
        probe = self.effects.probe
        if probe is not None:
            probe("store:before:decide")
        approval, _ = await self.store.decide(tenant, run_id, call_id, made)
        if probe is not None:
            probe("store:after:decide")
        self.hub.wake(run_id)
        self.kick(tenant, run_id)
        return approval

    async def cancel(
        self, run_id: str, *, reason: str | None = None, by: str | None = None, tenant: str = "default"
    ) -> None:
        """End a run: nothing new starts, bodies are told and waited for, every call gets its result.

        On a run that has ended already it does nothing. Raises NotFound.
        """
        self._check()
        entry = CancelEntry(run_id=run_id, at=self.effects.now(), reason=reason and clean_text(reason), by=by)
        row = await self.store.post(tenant, run_id, entry)
        if row.status not in OPEN:
            return
        if run_id in self._drives:
            self._drives[run_id].notify()
        elif row.owner is None or not alive(row.owner):
            # Nobody drives it, so nothing runs: it can be settled here, with its agent or without.
            await self._take_up_row(await self.store.run(tenant, run_id), force=True)

    async def send(self, run_id: str, text: str, *, by: str | None = None, tenant: str = "default") -> bool:
        """Queue a message for a run.

        Returns:
            True: the run is open and reads it when its batch is complete. False: the run has ended; the message waits
            for the next run of the interaction.

        Raises:
            NotFound
        """
        self._check()
        entry = QueuedEntry(run_id=run_id, at=self.effects.now(), text=clean_text(text), author_name=by or "user")
        row = await self.store.post(tenant, run_id, entry)
        if run_id in self._drives:
            self._drives[run_id].notify()
        return row.status in OPEN

    async def resume(self, run_id: str, *, limits: Limits | None = None, tenant: str = "default") -> Run:
        """Go on with a run that ended as limited, under new limits.

        Raises:
            NotFound, NotPending: it did not end as limited. Conflict: its interaction has another open run.
        """
        self._check()
        row = await self.store.run(tenant, run_id)
        agent = self.agents.get(row.agent)
        if agent is None:
            raise UsageError(f"agent {row.agent!r} is not registered here; open the Runtime with it")
        if row.status != "limited":
            raise NotPending(f"run {run_id} is {row.status}; only a limited run can be resumed with new limits")
        lease = await self.store.reopen(row, self.owner)
        if lease is None:
            raise Conflict(f"run {run_id} was taken up by somebody else")
        record = Record(await self.store.entries(tenant, row.interaction_id))
        fold = self._fold(row, record)
        budget = limits or agent.limits or self.limits or DEFAULT_LIMITS
        entry = ResumedEntry(run_id=run_id, at=self.effects.now(), limits=budget)
        await self.store.commit(lease, [entry])
        record.apply(entry)
        self._drive(agent, lease, fold).resumed = True
        return Run(self, fold)


def _builtin(drive: Drive) -> Any:
    return read_result_tool(drive.record, drive.store, drive.lease.tenant, drive.env.thread_id)


def _digest(value: JsonValue) -> str:
    return hashlib.sha256(dumps(value)).hexdigest()


async def _ended(task: asyncio.Task[None]) -> None:
    """Wait for a task without becoming its owner: a waiter that is cancelled cancels nothing."""
    if task.done():
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
