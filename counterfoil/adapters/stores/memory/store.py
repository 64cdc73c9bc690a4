"""A `Store` in this process.

Entries are kept as objects; bodies and hashes are made when somebody reads them (rows, heads) or erases.
No method ever suspends, so on one event loop each is a transaction without a lock.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace

from counterfoil.adapters.stores.memory import due
from counterfoil.adapters.stores.memory.keys import Keys
from counterfoil.adapters.stores.memory.living import Living
from counterfoil.adapters.stores.memory.reports import Reports
from counterfoil.adapters.stores.memory.state import Kept, Log, Run
from counterfoil.core.approval import Approval, Decision, meant, settle
from counterfoil.core.call_entries import DecidedEntry
from counterfoil.core.entries import CancelEntry, Entry, NoteEntry
from counterfoil.core.errors import Conflict, DefinitionError, Fenced, NotFound, NotPending
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.states import must_have_ended
from counterfoil.core.turn import Author, joined
from counterfoil.store import (
    Behind,
    Counts,
    Head,
    InteractionRow,
    KeptRange,
    KeptText,
    Lease,
    NewRun,
    OverQuota,
    Owner,
    Quota,
    RunRow,
    StatusChange,
    StoredRow,
    Wanted,
    needs_tenant,
    sent_before,
)


class MemoryStore(Keys, Living, Reports):
    """A `Store` in this process. What it holds is gone with the process."""

    shared = False

    def __init__(self) -> None:
        super().__init__()
        self._logs: dict[tuple[str, str], Log] = {}
        self._runs: dict[tuple[str, str], Run] = {}
        self._keys: dict[tuple[str, str], Run] = {}
        self._kept: dict[tuple[str, str], Kept] = {}
        self._version = 0

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do: the record stays readable as long as the object lives."""

    async def create(self, new: NewRun) -> tuple[RunRow, bool]:
        tenant = new.tenant
        needs_tenant(tenant)
        if new.key is not None:
            first = self._keys.get((tenant, new.key))
            if first is not None:
                if first.new.key_digest != new.key_digest:
                    raise Conflict(f"key {new.key!r} was used for another request; give a new key")
                return first.row(), False
        log = self._log_for(new)
        if (tenant, new.run_id) in self._runs:
            raise Conflict(f"run {new.run_id} exists already")
        run = Run(new, log, None if new.parent is None else self._runs.get((tenant, new.parent)))
        run.check(new.entries)
        log.participants = joined(log.participants, new.participants)
        self._logs[tenant, new.interaction_id] = log
        self._runs[tenant, new.run_id] = run
        if run.parent is not None:
            run.parent.below += (run,)
        if new.key is not None:
            self._keys[tenant, new.key] = run
        if new.parent is None:
            log.open_run = run
        log.append(new.entries)
        self._version += 1
        return run.row(), True

    def _log_for(self, new: NewRun) -> Log:
        log = self._logs.get((new.tenant, new.interaction_id))
        if new.new_interaction:
            if log is not None:
                raise Conflict(f"interaction {new.interaction_id} exists already")
            return Log(new.tenant, new.interaction_id, new.created_at)
        if log is None:
            raise NotFound(f"no interaction {new.interaction_id}")
        if log.open_run is not None and new.parent is None:
            raise Conflict(f"interaction {log.id} has an open run, {log.open_run.new.run_id}; wait for its end")
        return log

    async def open_interaction(
        self, tenant: str, interaction_id: str, participants: Sequence[Author], at: int, digest: str | None = None
    ) -> bool:
        needs_tenant(tenant)
        known = self._logs.get((tenant, interaction_id))
        if known is None:
            log = self._logs[tenant, interaction_id] = Log(tenant, interaction_id, at)
            log.participants, log.key_digest = joined((), participants), digest
            self._version += 1
        elif digest is None or known.key_digest != digest:
            raise Conflict(f"interaction {interaction_id} exists already")
        return known is None

    async def interaction(self, tenant: str, interaction_id: str) -> InteractionRow:
        return self._log(tenant, interaction_id).row()

    def _log(self, tenant: str, interaction_id: str) -> Log:
        log = self._logs.get((tenant, interaction_id))
        if log is None:
            raise NotFound(f"no interaction {interaction_id}")
        return log

    async def interactions(self, tenant: str, *, limit: int = 50, before: str | None = None) -> list[InteractionRow]:
        needs_tenant(tenant)
        mine = [log for log in self._logs.values() if log.tenant == tenant]
        if before is not None:
            mine = mine[: mine.index(self._log(tenant, before))]
        return [log.row() for log in reversed(mine)][: max(limit, 0)]

    async def claim(self, row: RunRow, owner: Owner, quota: Quota | None = None) -> Lease | None:
        run = self._run(row.tenant, row.run_id)
        if run.epoch != row.epoch or run.ended:
            return None
        if quota is not None and not due.is_within(self._runs.values(), quota, run):
            raise OverQuota
        return self._take(run, owner)

    def _take(self, run: Run, owner: Owner) -> Lease:
        run.epoch += 1
        run.owner = owner
        run.runnable = False
        run.status = "running"
        run.wake_at = run.ended_at = None
        run.is_erased = False
        if run.started is None:
            run.started = time.monotonic()
        self._version += 1
        return Lease(run.new.tenant, run.new.run_id, run.new.interaction_id, run.epoch)

    async def release(self, lease: Lease) -> None:
        run = self._run(lease.tenant, lease.run_id)
        if run.epoch == lease.epoch and run.owner is not None:
            run.owner = None
            run.runnable = True
            self._version += 1

    async def reopen(self, row: RunRow, owner: Owner) -> Lease | None:
        run = self._run(row.tenant, row.run_id)
        if run.epoch != row.epoch or run.status != "limited":
            return None
        if run.new.parent is None:
            if run.log.open_run is not None:
                raise Conflict(f"interaction {run.log.id} has another open run; wait for its end")
            run.log.open_run = run
        run.ended_by = None
        return self._take(run, owner)

    async def commit(
        self,
        lease: Lease,
        entries: Sequence[Entry],
        *,
        change: StatusChange | None = None,
        reports: Sequence[ToolErrorReport] = (),
        kept: Sequence[KeptText] = (),
        expect: int | None = None,
    ) -> int:
        return self.commit_now(lease, entries, change, reports, kept, expect)

    def commit_now(
        self, lease: Lease, entries: Sequence[Entry], change: StatusChange | None = None,
        reports: Sequence[ToolErrorReport] = (), kept: Sequence[KeptText] = (), expect: int | None = None,
    ) -> int:  # fmt: skip  # two rows
        """See `store.CommitsNow`: nothing here ever waits."""
        run = self._runs.get((lease.tenant, lease.run_id))
        if run is None:
            raise NotFound(f"no run {lease.run_id}")
        if run.epoch != lease.epoch or run.owner is None:
            raise Fenced(f"run {lease.run_id} is held by another worker, or by none; claim it again")
        log = run.log
        if expect is not None and expect != len(log.entries):
            raise Behind
        after = run.check(entries)
        if kept:
            self._keep(run, kept)
        if after:
            run.calls.update(after)
        last = log.append(entries)
        if run.asked is not None:
            for e in entries:
                run.track(e)
        if reports:
            self._add_reports(reports)
        if change is not None:
            run.change(change, entries[-1].at if entries else run.updated_at)
        self._version += 1
        return last

    def _keep(self, run: Run, kept: Sequence[KeptText]) -> None:
        tenant = run.new.tenant
        for k in kept:
            there = self._kept.get((tenant, k.id))
            if there is not None and there.digest != k.digest:
                raise Fenced(f"another text is kept under {k.id} already")
        for k in kept:
            self._kept.setdefault((tenant, k.id), Kept(run, k.text, len(k.text), k.size, k.digest))

    async def post(self, tenant: str, run_id: str, entry: Entry, request: tuple[str, str] | None = None) -> RunRow:
        run = self._run(tenant, run_id)
        before = run.row()
        if run.ended and isinstance(entry, CancelEntry):
            return before
        run.check((entry,))
        if request is not None:
            key, digest = request
            if (found := run.log.sent.get((run_id, key))) is not None:
                return sent_before(before, digest, *found)
            run.log.sent[run_id, key] = digest, before.status
        run.log.append((entry,))
        if isinstance(entry, CancelEntry):
            for asked in (run.asked or {}).values():
                asked.open = False
        if not isinstance(entry, NoteEntry):
            run.wake()
            run.updated_at = entry.at
        self._version += 1
        return before

    async def decide(self, tenant: str, run_id: str, call_id: str, decision: Decision) -> tuple[Approval, bool]:
        run = self._run(tenant, run_id)
        of_call = [a for a in (run.asked or {}).values() if a.entry.call_id == call_id]
        if not of_call:
            raise NotPending(f"call {call_id} of run {run_id} awaits no decision; list the approvals that do")
        asked = of_call[meant([a.entry.approval for a in of_call], decision)]
        e = asked.entry
        if not settle(e.approval, asked.decision, decision, open_=asked.open):
            return e.approval, False
        decision = replace(decision, approval=e.approval.id)
        asked.decision = decision
        asked.open = False
        entry = DecidedEntry(
            run_id=run_id, thread_id=e.thread_id, at=decision.at, step=e.step, index=e.index, call_id=call_id,
            tool_name=e.tool_name, approval_id=e.approval.id, decision=decision,
        )  # fmt: skip
        run.log.append((entry,))
        run.wake()
        run.updated_at = decision.at
        self._version += 1
        return e.approval, True

    async def run(self, tenant: str, run_id: str) -> RunRow:
        return self._run(tenant, run_id).row()

    def _run(self, tenant: str, run_id: str) -> Run:
        run = self._runs.get((tenant, run_id))
        if run is None:
            raise NotFound(f"no run {run_id}")
        return run

    async def runs(
        self, tenant: str, *, status: str | None = None, agent: str | None = None, interaction_id: str | None = None,
        limit: int = 50, before: str | None = None, roots: bool = False,
    ) -> list[RunRow]:  # fmt: skip  # two rows
        needs_tenant(tenant)
        mine = [run for run in self._runs.values() if run.new.tenant == tenant]
        mine = mine if before is None else mine[: mine.index(self._run(tenant, before))]
        found = [
            run.row()
            for run in reversed(mine)
            if status in (None, run.status)
            and agent in (None, run.new.agent)
            and interaction_id in (None, run.new.interaction_id)
            and not (roots and run.new.parent)
        ]
        return found[:limit]

    async def open_runs(self, wanted: Wanted) -> list[RunRow]:
        return due.open_runs(self._runs.values(), self._watch, self._workers(), wanted)

    async def posted(self, owner: Owner) -> list[str]:
        return [run.new.run_id for run in self._runs.values() if run.owner == owner and run.runnable]

    async def counts(self, agents: Sequence[str], pool: str = "default", tenant: str | None = None) -> Counts:
        return due.counts(self._runs.values(), agents, pool, tenant)

    async def to_erase(self, agents: Sequence[str], at: int, limit: int) -> list[tuple[str, str]]:
        return due.to_erase(self._runs.values(), agents, at, limit)

    async def entries(self, tenant: str, interaction_id: str, after: int = 0) -> list[Entry]:
        return self._log(tenant, interaction_id).entries[max(after, 0) :]

    async def approvals(self, tenant: str, run_id: str | None = None) -> list[Approval]:
        needs_tenant(tenant)
        if run_id is None:
            runs = [run for run in self._runs.values() if run.asked and run.new.tenant == tenant]
        else:
            runs = self._run(tenant, run_id).with_below()
        found = [a.entry for run in runs for a in (run.asked or {}).values() if a.open]
        return [e.approval for e in sorted(found, key=lambda e: e.approval.requested_at)]

    async def kept(self, tenant: str, kept_id: str, offset: int = 0, limit: int | None = None) -> KeptRange:
        k = self._kept.get((tenant, kept_id))
        if k is None:
            raise NotFound(f"no text is kept under {kept_id}")
        offset = max(offset, 0)
        end = None if limit is None else offset + max(limit, 0)
        return KeptRange((k.text or "")[offset:end], offset, k.total, k.size, k.erased_at)

    async def erase(self, tenant: str, run_id: str, at: int) -> int:
        runs = self._run(tenant, run_id).with_below()
        must_have_ended(run_id, [(run.new.run_id, run.status) for run in runs])
        erased = 0
        for run in runs:
            erased += run.log.erase(run.new.run_id, at)
            for k in self._kept.values():
                if k.run is run and k.text is not None:
                    k.text, k.erased_at = None, at
                    erased += 1
            erased += self._erase_reports(tenant, run.new.run_id)
            # The waiting entries hold the inputs; after the end nothing asks for them.
            run.asked = None
            run.is_erased = True
        self._version += 1
        return erased

    async def rows(self) -> AsyncIterator[StoredRow]:
        for log in list(self._logs.values()):
            for e, (body, content, digest) in zip(list(log.entries), log.encode(), strict=False):
                yield StoredRow(
                    log.tenant, log.id, e.entry, e.run_id, e.kind, e.sequence, e.width, body, content,
                    log.erased.get(e.entry), digest,
                )  # fmt: skip

    async def kept_texts(self) -> AsyncIterator[tuple[str, str, bytes | None, int, str]]:
        for (tenant, kept_id), k in list(self._kept.items()):
            yield tenant, kept_id, None if k.text is None else k.text.encode(), k.size, k.digest

    async def heads(self) -> list[Head]:
        return [
            Head(log.tenant, log.id, len(log.entries), log.encode()[-1][2])
            for log in self._logs.values()
            if log.entries
        ]

    async def tips(self, interactions: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        return {place: len(self._logs[place].entries) for place in interactions if place in self._logs}

    async def version(self) -> object:
        return self._version


def open_store(url: str, **settings: object) -> MemoryStore:
    """A store for ``memory://``; each call makes a new one.

    Raises:
        DefinitionError: the URL names a place, or there are settings.
    """
    if url not in ("memory:", "memory://"):
        raise DefinitionError(f"expected memory://, got {url!r}; a store in memory has no place to name")
    if settings:
        raise DefinitionError(f"a store in memory has no settings, got {', '.join(sorted(settings))}")
    return MemoryStore()
