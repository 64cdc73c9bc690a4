"""Reading a store: every run of it, whoever drives it. A reader drives nothing."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from counterfoil.core.approval import Approval, expired
from counterfoil.core.call import Caller
from counterfoil.core.errors import NotFound, UsageError
from counterfoil.core.events import Event
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.record import Record
from counterfoil.core.report import ReportGroup, ToolErrorReport
from counterfoil.core.states import ENDED, OPEN
from counterfoil.core.threads import asked_thread
from counterfoil.core.turn import micros, moment
from counterfoil.effects import Effects
from counterfoil.follow import Lookout, Trail, follow
from counterfoil.hooks import Hooks, join_hooks
from counterfoil.hub import Hub
from counterfoil.run import Fold, Run, Runs
from counterfoil.store import Head, InteractionRow, KeptRange, ReportFilter, RunRow, Store

if TYPE_CHECKING:
    from counterfoil.replay import Replay
    from counterfoil.verify import Verification

PAGE = 500
"""Rows of runs that are read at once where all of a tenant's are looked at."""


class Reading:
    """The half of a Runtime that reads."""

    store: Store
    effects: Effects
    hub: Hub
    lookout: Lookout
    agents: dict[str, Any]
    hooks: Hooks | Sequence[Hooks] | None
    deps: Callable[[Caller], Any] | None
    _open: bool
    _folds: WeakValueDictionary[str, Fold]
    _drives: dict[str, Any]

    def driving(self, run_id: str) -> bool:
        """Whether this process drives the run now."""
        raise NotImplementedError

    def looked_at(self, tenant: str, run_id: str) -> None:
        """Somebody follows the run: where no sweep would take it up, that is done now.

        The event loop in which a run in memory was driven may have ended.
        """
        raise NotImplementedError

    def _check(self) -> None:
        if not self._open:
            raise UsageError("this Runtime is not open; use `async with Runtime(…) as runtime:`")

    def _fold(self, row: RunRow, record: Record) -> Fold:
        fold = self._folds.get(row.run_id)
        if fold is None:
            fold = self._folds[row.run_id] = Fold(row.tenant, row.interaction_id, row.run_id, record)
        else:
            fold.record = record
        return fold

    async def refresh(self, fold: Fold) -> None:
        """Bring a fold up to date where no driver of this process does."""
        if fold.run_id in self._drives:
            return
        fresh = await self.store.entries(fold.tenant, fold.interaction_id, fold.record.tip)
        if fold.run_id in self._drives:
            return  # it was taken up meanwhile, and its driver alone writes to the fold
        for entry in fresh:
            if entry.entry > fold.record.tip:
                fold.record.apply(entry)

    async def get(self, run_id: str, tenant: str = "default") -> Run:
        """A handle on a run. Raises NotFound, also for another tenant's."""
        self._check()
        row = await self.store.run(tenant, run_id)
        fold = self._folds.get(run_id)
        if fold is None:
            fold = self._fold(row, Record(await self.store.entries(tenant, row.interaction_id)))
        else:
            await self.refresh(fold)
        return Run(cast("Runs", self), fold)

    async def runs(
        self, *, tenant: str = "default", status: str | None = None, agent: str | None = None,
        interaction: str | None = None, limit: int = 50, before: str | None = None, roots: bool = False,
    ) -> list[RunRow]:  # fmt: skip  # rows by what belongs together
        """Runs of a tenant, newest first.

        Args:
            tenant: whose.
            status: only these; likewise ``agent`` and ``interaction``.
            agent: as ``status``.
            interaction: as ``status``.
            limit: how many at most.
            before: a run's id; runs that are older.
            roots: none that another run waits for, whose ``parent`` is that run's id.

        Raises:
            NotFound: the tenant has no run ``before``.
            ValueError: there is no such status.
        """
        self._check()
        if status not in (None, *OPEN, *ENDED):
            raise ValueError(f"status must be one of {', '.join((*sorted(OPEN), *ENDED))}, got {status!r:.80}")
        return await self.store.runs(
            tenant, status=status, agent=agent, interaction_id=interaction, limit=limit, before=before, roots=roots
        )

    async def nobody_has(self, agent: str) -> str | None:
        """Why a run of an agent waits whatever it waits for: no process that lives has it. None: one has."""
        self._check()
        if agent in self.agents or (await self.store.agents()).get(agent):
            return None
        return f"no process has agent {agent!r} now: the run waits until one that has it is started, or for a cancel"

    async def interaction(self, interaction_id: str, *, tenant: str = "default") -> InteractionRow:
        """A conversation and who takes part in it. Raises NotFound."""
        self._check()
        return await self.store.interaction(tenant, interaction_id)

    async def interactions(
        self, *, tenant: str = "default", limit: int = 50, before: str | None = None
    ) -> list[InteractionRow]:
        """Conversations of a tenant, newest first; ``before``: those that are older than this one. Raises NotFound."""
        self._check()
        return await self.store.interactions(tenant, limit=limit, before=before)

    async def timeline(
        self, run_id: str, *, thread: str | EllipsisType | None = None, tenant: str = "default"
    ) -> list[Any]:
        """What happened in a run, in rows for a person.

        Args:
            run_id: the run.
            thread: as for `context`.
            tenant: whose.
        """
        run = await self.get(run_id, tenant)
        from counterfoil.core.timeline import rows

        record = run._fold.record
        return rows(record, run_id, asked_thread(record, run_id, thread), moment(self.effects.now()))

    async def context(
        self, run_id: str, *, after: int = 0, thread: str | EllipsisType | None = None, limit: int | None = None,
        tenant: str = "default",
    ) -> list[dict[str, JsonValue]]:  # fmt: skip  # two rows
        """The items of the run's conversation, and of the runs below it, as a client reads them (contract 1.4).

        Args:
            run_id: the run.
            after: a reading number; items with a larger one are given.
            thread: None: the run's own thread, which of a root run is the main one; ``main``: what it wrote on that
                one; a thread's id: that one, whole, whichever runs of the interaction wrote on it; ``...``: every
                thread of the run and the runs below it.
            limit: items at most.
            tenant: whose.
        """
        run = await self.get(run_id, tenant)
        from counterfoil.core.wire import context_items

        record = run._fold.record
        return context_items(record, run_id, after=after, thread=asked_thread(record, run_id, thread), limit=limit)

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
        self, run_id: str | None = None, *, tool: str | None = None, code: int | None = None,
        since: datetime | int | None = None, until: datetime | int | None = None, limit: int = 100,
        main: bool = False, tenant: str = "default",
    ) -> list[ToolErrorReport]:  # fmt: skip  # rows by what belongs together
        """Error reports, newest first.

        Args:
            run_id: of this run alone; likewise ``tool`` and ``code``.
            tool: as ``run_id``.
            code: as ``run_id``.
            since: a time, or microseconds since 1970, UTC: none that are older; ``until``: none that are newer.
            until: as ``since``.
            limit: how many at most.
            main: none of runs that other ones wait for, whose threads are their own.
            tenant: whose.

        Raises:
            NotFound: there is no such run.
        """
        self._check()
        if run_id is not None:
            await self.store.run(tenant, run_id)
        where = ReportFilter(run_id, tool, code, _us(since), _us(until), limit, main)
        return await self.store.reports(tenant, where)

    async def error_groups(
        self, run_id: str | None = None, *, tool: str | None = None, code: int | None = None,
        since: datetime | int | None = None, until: datetime | int | None = None, limit: int = 100,
        main: bool = False, tenant: str = "default",
    ) -> list[ReportGroup]:  # fmt: skip  # rows by what belongs together
        """What `errors` would give, counted by tool and code, what was seen last first. Raises NotFound as it does."""
        self._check()
        if run_id is not None:
            await self.store.run(tenant, run_id)
        where = ReportFilter(run_id, tool, code, _us(since), _us(until), limit, main)
        return await self.store.report_groups(tenant, where)

    async def events(
        self, run_id: str, *, after: int | None = None, to_end: bool = False, tenant: str = "default"
    ) -> AsyncIterator[Event]:
        """A run's events from the first, or after an entry, until it ends; or pauses, unless ``to_end``.

        Raises:
            NotFound
            UsageError: there is no such entry.
        """
        row, trail = await self.trail(run_id, tenant)
        lists = self.event_lists(row, trail, after or 0, to_end=to_end)
        del trail  # they let go of it while the run waits for people
        async with aclosing(lists):
            async for events in lists:
                for event in events:
                    yield event

    async def trail(self, run_id: str, tenant: str) -> tuple[RunRow, Trail]:
        """A run, and what is on record of its interaction by now, for who follows it. Raises NotFound."""
        self._check()
        row = await self.store.run(tenant, run_id)
        self.looked_at(tenant, run_id)
        trail = self.lookout.trail((row.tenant, row.interaction_id))
        await trail.read()
        return row, trail

    def event_lists(self, row: RunRow, trail: Trail, after: int, *, to_end: bool) -> AsyncGenerator[list[Event], None]:
        """As `events`, for whoever writes what there is at once in one go. Raises UsageError."""
        return follow(self, row, trail, after, to_end=to_end)

    async def verify(
        self, head: str | Path | Sequence[Head] | None = None, progress: Callable[[int], None] | None = None
    ) -> Verification:
        """Prove the rules of the record on the whole store.

        Args:
            head: the ``head`` of an earlier answer, kept elsewhere, or a file that holds it: what is gone since, or
                is something else, is found out.
            progress: told how many entries were read.

        Raises:
            UsageError: the head cannot be read, was changed or is not whole.
        """
        from counterfoil.verify import verify  # the laws are a tenth of the package; few programs check them

        self._check()
        return await verify(self.store, head=head, progress=progress)

    async def replay(self, run_id: str, *, agent: Any = None, tenant: str = "default") -> Replay:
        """A run step by step from its record; with its agent, what today's code would do otherwise.

        Recorded turns stand in for the model and recorded results for the bodies of tools, so no effect is repeated.
        Policy, schemas, guards before calls and around the model, ``needs_approval``, ``offered``, instructions and
        the output type are asked as they are today; guards after calls and observers are not. Decisions of people,
        messages, cancels and times are those on record.

        Args:
            run_id: the run, ended or not.
            agent: an Agent; None: the one that is registered here under the name of the run's, and without one the
                record alone is read.
            tenant: whose.

        Raises:
            NotFound: no such run for this tenant.
            UsageError: there is an agent, and what the run held was erased.
        """
        from counterfoil.replay import replay, replay_with  # brings the loop; a program that only reads has none

        self._check()
        row = await self.store.run(tenant, run_id)
        entries = await self.store.entries(tenant, row.interaction_id)
        agent = agent or self.agents.get(row.agent)
        if agent is None:
            return replay(entries, run_id)
        hooks = join_hooks(self.hooks, getattr(agent, "hooks", None))
        head = Record(entries).runs[run_id].head
        deps = self.deps
        make = None if deps is None or head is None else functools.lru_cache(1)(functools.partial(deps, head.caller))
        return await replay_with(agent, entries, run_id, hooks, make)

    async def erase(self, run_id: str, *, tenant: str = "default") -> int:
        """Erase the contents of an ended run and of those below it; digests and sizes stay.

        Raises:
            NotFound
            Conflict: it, or one below it, has not ended.
        """
        self._check()
        return await self.store.erase(tenant, run_id, self.effects.now())

    async def ended_before(self, when: datetime, *, tenant: str = "default") -> list[str]:
        """Ids of runs that have ended, and of which nothing was heard since that time: what retention may erase.

        Newest first. A limited run has ended, though it could be resumed.
        """
        self._check()
        at, found = micros(when), list[str]()
        for status in ENDED:
            before: str | None = None
            while page := await self.store.runs(tenant, status=status, limit=PAGE, before=before):
                found += [row.run_id for row in page if row.updated_at < at]
                before = page[-1].run_id
        return sorted(found, reverse=True)

    async def approvals(self, run_id: str | None = None, *, tenant: str = "default") -> list[Approval]:
        """What waits for a decision, oldest first; of a run also in the runs below it. Raises NotFound."""
        self._check()
        if run_id is not None:
            await self.store.run(tenant, run_id)
        now = moment(self.effects.now())
        waiting = await self.store.approvals(tenant, run_id)
        return [a for a in waiting if not expired(a, now)]


def _us(at: datetime | int | None) -> int | None:
    return micros(at) if isinstance(at, datetime) else at
