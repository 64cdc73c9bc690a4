"""Runtime: what a program holds. It starts runs, drives them in this process, decides, cancels and reads."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Self, cast
from weakref import WeakValueDictionary

from counterfoil.core.call import DEFAULT_CALLER, Caller
from counterfoil.core.content import block_to_json
from counterfoil.core.entries import (
    CallRecord,
    Entry,
    MessageEntry,
    RunEntry,
    TurnEntry,
)
from counterfoil.core.errors import DefinitionError, StoreError
from counterfoil.core.jsontext import JsonValue, clean_text, dumps
from counterfoil.core.limits import HEARTBEAT, PROCESS_CONCURRENCY, Limits
from counterfoil.core.media import Prompt, prompt_of
from counterfoil.core.record import Record
from counterfoil.core.turn import author
from counterfoil.deciding import digest_of
from counterfoil.dispatch import Dispatch
from counterfoil.driving import Driving
from counterfoil.effects import REAL, Effects
from counterfoil.follow import Lookout
from counterfoil.heart import Heart
from counterfoil.hooks import Hooks
from counterfoil.hub import Hub, Locks, Slots
from counterfoil.loop import Drive
from counterfoil.owners import leave, this_process
from counterfoil.registry import resolve
from counterfoil.run import Fold, Run
from counterfoil.store import Lease, NewRun, Quota, Store
from counterfoil.sweep import POLL_SECONDS, Sweep

log = logging.getLogger("counterfoil")

READY_SECONDS = 2.0
"""For a store to answer whoever asks whether this process is ready; probes give up after one to ten."""


_KINDS = {"caller": Caller, "limits": Limits, "not_before": datetime, "key": str, "pool": str, "priority": int}


def _check(**given: object) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, _KINDS[name]):
            raise TypeError(f"{name} must be of {_KINDS[name].__name__}, got {value!r:.80}")


class Runtime(Driving):
    """Drives the runs of its agents and reads every run of its store. An async context manager.

    Args:
        url: where the record is: ``memory://``, ``sqlite:///path``, ``postgresql://host/database``.
        agents: whose runs this process starts and takes up; none: it only reads and decides.
        hooks: guards and observers for all of them.
        limits: budgets for agents that set none.
        deps: a function of the Caller, called again on every resume; its value is ``ToolContext.deps``.
        dispatch: who drives a runnable run: ``inline``, each process what it starts and what its sweep finds; or the
            name of an engine (`counterfoil.dispatch`).
        pool: the name of the pool whose runs it takes up.
        concurrency: bodies that it runs at once, over all its runs.
        heartbeat: seconds between two signs of life in a shared store; two that are missing make it dead to others.
        quotas: what a tenant may use, a function of its name; None: no tenant has a quota.
        max_runs: runs that it drives at once; it leaves others to other workers, or until it has room.
        retain: contents of its agents' runs are erased so long after their end.
        host: where its pid means this process, unless that is `owners.this_host`.

    Raises:
        DefinitionError: the url is not understood, two agents have one name, or a number is out of range.
    """

    def __init__(
        self, url: str = "memory://", *, agents: Iterable[Any] = (), hooks: Hooks | Sequence[Hooks] | None = None,
        limits: Limits | None = None, deps: Callable[[Caller], Any] | None = None, dispatch: str = "inline",
        pool: str = "default", concurrency: int = PROCESS_CONCURRENCY, effects: Effects = REAL,
        store: Store | None = None, heartbeat: float = HEARTBEAT,
        quotas: Callable[[str], Quota | None] | None = None, max_runs: int | None = None,
        retain: timedelta | None = None, host: str | None = None,
    ) -> None:  # fmt: skip  # rows by what belongs together
        if not heartbeat > 0:
            raise DefinitionError(f"heartbeat is a number of seconds over 0, not {heartbeat!r}")
        if max_runs is not None and max_runs < 1:
            raise DefinitionError(f"max_runs is a number of runs, 1 or more, not {max_runs!r}")
        if retain is not None and retain < timedelta():
            raise DefinitionError(f"retain is a time of 0 or more, not {retain!r}")
        self.url = url
        self.heartbeat = heartbeat
        self.host = host
        self.agents: dict[str, Any] = {}
        for agent in agents:
            self.register(agent)
        self.hooks = hooks
        self.limits = limits
        self.deps = deps
        self.pool = pool
        self.effects = effects
        self.store: Store = store if store is not None else resolve("store", url.partition("://")[0])(url)
        self.dispatch: Dispatch = resolve("dispatch", dispatch.partition(":")[0])(dispatch, self)
        self.hub = Hub()
        self.lookout = Lookout(self.store, self.hub, self)
        self.slots = Slots(concurrency)
        self._open = False
        self.leaving = False
        self._drives: dict[str, Drive] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._kicks: dict[str, asyncio.Task[None]] = {}
        self._folds: WeakValueDictionary[str, Fold] = WeakValueDictionary()
        self.max_runs = max_runs
        self.sweep = Sweep(self, quotas, max_runs, retain)
        self._sweeper: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._lost: dict[str, str] = {}
        self._claims = 0
        self._put_off: dict[str, tuple[float, float]] = {}

    @classmethod
    def in_memory(cls, agent: Any, *, hooks: Any = None, deps: Callable[[Caller], Any] | None = None) -> Runtime:
        """A Runtime for one agent whose record is in this process alone; needs no closing."""
        runtime = cls(agents=(agent,), hooks=hooks, deps=deps)
        runtime._ready()
        return runtime

    def register(self, agent: Any) -> None:
        """Add an agent, and those that it manages.

        Raises:
            DefinitionError: another one has its name.
        """
        known = self.agents.setdefault(agent.name, agent)
        if known is not agent:
            raise DefinitionError(f"{agent.name}: two agents have this name; runs find their agent by it")
        for member in getattr(agent, "manages", ()):
            self.register(member)

    def add_hooks(self, hooks: Hooks) -> None:
        """One more list of guards and observers, for runs that are taken up from now on."""
        known = self.hooks
        self.hooks = [*(() if known is None else (known,) if isinstance(known, Hooks) else known), hooks]

    @property
    def opened(self) -> bool:
        """Whether it is open."""
        return self._open

    # life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the store; with agents, begin to take up unfinished runs whose process is dead."""
        await self.store.open()
        self._ready()
        try:
            if self.agents:
                await self.heart.start()
            await self.dispatch.open()
        except BaseException:
            self._open = False
            await self.heart.stop()
            await self.store.close()
            raise
        self._begin_to_sweep()

    async def drain(self, seconds: float | None = None) -> bool:
        """Take up nothing more, and give each run that is driven here back where its next step would begin.

        Bodies that run go on to their end: what they did is on record before the run is another worker's.

        Args:
            seconds: to wait at most; None: until the last run is given back.

        Returns:
            Whether nothing is driven here any more. What still is goes on; `close` ends it.
        """
        self._check()
        self.leaving = True
        await self.dispatch.drain()
        for drive in self._drives.values():
            drive.leaving = True
        tasks = {*self._tasks.values(), *self._kicks.values()}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        return not self._tasks

    async def unready(self) -> str | None:
        """Why nothing should be sent here now; None: it is open, its store answers and it takes up work."""
        if not self._open:
            return "it is not open"
        if self.leaving:
            return "it is about to end, and takes up nothing more"
        if self._sweeper is not None and self._sweeper.done():
            return "its worker has ended; start it anew"
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self.store.version()
        except (StoreError, TimeoutError) as error:
            log.warning("the store does not answer", exc_info=error)
            return "its store does not answer"
        return None

    def _begin_to_sweep(self) -> None:
        if self._open and (self.store.shared or self.sweep.always) and self.agents and self._sweeper is None:
            self._sweeper = asyncio.create_task(self.sweep.go(self))

    def _ready(self) -> None:
        self.owner = this_process(self.effects.new_id(), self.host)
        self.heart = Heart(self.store, self.owner, self.heartbeat, self.agents, self.lookout.relay.look)
        self.locks = Locks(self.store, self.owner, functools.partial(leave, self.owner))
        self._open = True

    async def close(self) -> None:
        """Stop driving: bodies that run are told to stop; runs that are not finished may be taken up by others."""
        if not self._open:
            return
        self._open = False
        for timer in self._timers.values():
            timer.cancel()
        await self.dispatch.close()
        for drive in self._drives.values():
            drive.leave_model_later()
        await _end(self._sweeper, *self._kicks.values(), *self._tasks.values())
        self._sweeper = None
        while self._claims:  # noqa: ASYNC110  # what somebody has begun to start is given back too
            await asyncio.sleep(POLL_SECONDS / 10)
        await _end(*self._tasks.values())
        await self._give_up_rest()
        await self.locks.close()
        await self.heart.stop()
        self.lookout.close()
        for agent in self.agents.values():
            if hasattr(agent, "close_model"):
                await agent.close_model()
        await self.store.close()

    # start and drive

    async def start(
        self, agent: Any, prompt: Prompt, *, caller: Caller | None = None, interaction: str | None = None,
        key: str | None = None, pool: str = "default", priority: int = 0, not_before: Any = None,
        approvals: str = "any-order", on_disconnect: str = "go-on", limits: Limits | None = None,
    ) -> Run:  # fmt: skip  # rows by what belongs together
        """Put a run on record and begin to drive it.

        Args:
            agent: its name, or the Agent; one that another process has is left for it.
            prompt: the first message: text, or a list of texts, images, sounds and files.
            caller: on whose behalf.
            limits: budgets of this run; None: the agent's, else those of the Runtime.
            pool: which workers may take it up.
            priority: higher goes first where workers choose.
            on_disconnect: what a server does when the client that follows the run is gone.
            interaction: the id of an earlier conversation to go on with.
            key: a repeat with the same key and request gives the first run.
            not_before: a datetime; the run begins then.
            approvals: ``any-order``, or ``one-by-one``: one open approval at a time.

        Raises:
            TypeError, ValueError: no model could read the prompt, or an argument is not as it must be.
            UnknownAgent: other agents are known, here or at workers, and none of this name.
            NotFound: the interaction does not exist for this tenant.
            Conflict: it has an open run, or the key was used for another request.
        """
        self._check()
        if not isinstance(agent, str):
            self.register(agent)
            self._begin_to_sweep()
        name = agent if isinstance(agent, str) else agent.name
        if approvals not in ("any-order", "one-by-one"):
            raise ValueError(f"approvals must be 'any-order' or 'one-by-one', got {approvals!r}")
        if on_disconnect not in ("go-on", "cancel"):
            raise ValueError(f"on_disconnect must be 'go-on' or 'cancel', got {on_disconnect!r}")
        if caller or limits or not_before or key or pool != "default" or priority:
            _check(caller=caller, limits=limits, not_before=not_before, key=key, pool=pool, priority=priority)
        text, blocks = prompt_of(prompt)
        known = self.agents.get(name)
        if known is None:
            await self._must_be_known(name)
        caller = caller or DEFAULT_CALLER
        now, run_id = self.effects.now(), self.effects.new_id()
        first: list[Entry] = [
            RunEntry(
                run_id=run_id, at=now, agent=name, caller=caller, limits=self._budget(known, limits),
                approvals=approvals, on_disconnect=on_disconnect,
            ),
            MessageEntry(run_id=run_id, at=now, text=text, blocks=blocks, author_name=caller.user or "user"),
        ]  # fmt: skip  # a row for each entry
        later = None if not_before is None else int(not_before.timestamp() * 1_000_000)
        digest = None if key is None else digest_of([
            name, [block_to_json(b) for b in blocks] or text, interaction, caller.user, pool, priority, later,
            approvals, on_disconnect, None if limits is None else limits.to_json(),
        ])  # fmt: skip  # two rows
        return await self._create(
            caller.tenant, run_id, first, known, interaction=interaction, key=key, key_digest=digest, pool=pool,
            priority=priority, later=later,
        )  # fmt: skip  # two rows

    async def _create(
        self, tenant: str, run_id: str, first: list[Entry], known: Any, *, interaction: str | None = None,
        key: str | None = None, key_digest: str | None = None, pool: str | None = None, priority: int = 0,
        later: int | None = None, above: Lease | None = None,
    ) -> Run:  # fmt: skip  # rows by what belongs together
        """Put a run on record with its first entries; drive it if its agent is here and its time has come."""
        if known is not None and self.dispatch.here:
            await self.heart.start()
        head = cast("RunEntry", first[0])
        now, due = head.at, later is None or later <= head.at
        here = known is not None and due and pool in (None, self.pool) and self.dispatch.here and not self.leaving
        # Where a quota may refuse it, the run is created first, and claimed as any other.
        room = self.sweep.has_room(tenant)
        here = here and room and self.sweep.quota(tenant) is None
        new = NewRun(
            tenant=tenant, run_id=run_id, interaction_id=interaction or self.effects.new_id(),
            new_interaction=interaction is None, agent=head.agent, entries=first, created_at=now,
            owner=self.owner if here else None, key=key and clean_text(key), key_digest=key_digest,
            pool=pool or self.pool, priority=priority, not_before=later, parent=above.run_id if above else None,
            parent_epoch=above.epoch if above else None, participants=(
                author("Human", head.caller.user or "user", tenant), author("Agent", head.agent, tenant),
            ),
        )  # fmt: skip  # as above
        probe = self.effects.probe
        if probe is not None:
            probe("store:before:create")
        with self._claiming(tenant, run_id):
            row, created = await self.store.create(new)
            if probe is not None:
                probe("store:after:create")
            if not created:
                return await self.get(row.run_id, tenant=row.tenant)
            entries = first if interaction is None else await self.store.entries(row.tenant, row.interaction_id)
        fold = self._fold(row, Record(entries))
        if here:
            self._drive(known, Lease(row.tenant, row.run_id, row.interaction_id, row.epoch), fold)
        elif due and (room or not self.dispatch.here):  # else the sweep chooses, when there is room
            self.kick(row.tenant, row.run_id)
        elif later is not None and (known is not None or not self.dispatch.here):
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
            limits: budgets of this run.
            key: a repeat with the same key and request gives the first run.

        Returns:
            The run, ended or paused; its one result is ``run.results[0]``.

        Raises:
            UnknownAgent: as `start`.
        """
        if not isinstance(agent, str):
            self.register(agent)
            self._begin_to_sweep()
        name = agent if isinstance(agent, str) else agent.name
        known = self.agents.get(name)
        if known is None:
            await self._must_be_known(name)
        offered = known is not None and tool in known.tool_map
        caller, now, run_id = caller or DEFAULT_CALLER, self.effects.now(), self.effects.new_id()
        raw = dumps(input).decode()
        record = CallRecord(f"call_{self.effects.new_id()}", None, clean_text(tool), raw, offered)
        budget = self._budget(known, limits)
        first: list[Entry] = [
            RunEntry(run_id=run_id, at=now, agent=name, caller=caller, limits=budget, direct=True),
            TurnEntry(run_id=run_id, at=now, step=0, text="", calls=(record,), stop="calls", model="direct"),
        ]
        digest = None if key is None else digest_of([name, tool, input, caller.user])
        run = await self._create(caller.tenant, run_id, first, known, key=key, key_digest=digest)
        return await run.wait()


async def _end(*tasks: asyncio.Task[None] | None) -> None:
    """Tell tasks to end, and wait for that."""
    ending = [task for task in tasks if task is not None and task.cancel()]
    await asyncio.gather(*ending, return_exceptions=True)
