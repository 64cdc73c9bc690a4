"""The half of a `Store` in a database that is alike whatever the database: which function does what, and where."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

from counterfoil.core.approval import Approval, Decision
from counterfoil.core.entries import Entry
from counterfoil.core.keys import ApiKey
from counterfoil.core.limits import HEARTBEAT
from counterfoil.core.report import ReportGroup, ToolErrorReport
from counterfoil.core.turn import Author
from counterfoil.owners import Watch
from counterfoil.store import (
    EVERY_REPORT,
    Counts,
    Head,
    InteractionRow,
    KeptRange,
    KeptText,
    Lease,
    Owner,
    Quota,
    ReportFilter,
    RunRow,
    StatusChange,
    StoredRow,
    Wanted,
    Worker,
    needs_tenant,
)

T = TypeVar("T")


class Commit(NamedTuple):
    """The arguments of `Store.commit`."""

    lease: Lease
    entries: Sequence[Entry]
    change: StatusChange | None
    reports: Sequence[ToolErrorReport]
    kept: Sequence[KeptText]
    expect: int | None


class Jobs(Protocol):
    """Has functions done that take a connection first; a write is one transaction."""

    def submit(self, work: Any, *arguments: Any) -> Awaitable[T]:
        """What it gives, or raises."""


class SqlStore:
    """All of `Store` but ``open``, ``close``, ``create`` and ``commit``.

    The modules have a function for each method here. They are told apart by their database alone, which makes the one
    wait and the other not, so their types cannot be said in one place: `StoreSuite` calls every one of them.
    """

    changing: ModuleType
    due: ModuleType
    key_ring: ModuleType
    living: ModuleType
    reading: ModuleType

    shared = True

    def __init__(self) -> None:
        self._watch = Watch()

    @property
    def _read(self) -> Jobs:
        """Raises UsageError, as `_write`: the store is not open."""
        raise NotImplementedError

    @property
    def _write(self) -> Jobs:
        raise NotImplementedError

    async def open_interaction(
        self, tenant: str, interaction_id: str, participants: Sequence[Author], at: int, digest: str | None = None
    ) -> bool:
        begun = tenant, interaction_id, participants, at, digest
        return await self._write.submit(self.changing.open_interaction, *begun)

    async def interaction(self, tenant: str, interaction_id: str) -> InteractionRow:
        return await self._read.submit(self.reading.interaction, tenant, interaction_id)

    async def interactions(self, tenant: str, *, limit: int = 50, before: str | None = None) -> list[InteractionRow]:
        needs_tenant(tenant)
        return await self._read.submit(self.reading.interactions, tenant, before, max(limit, 0))

    async def claim(self, row: RunRow, owner: Owner, quota: Quota | None = None) -> Lease | None:
        return await self._write.submit(self.changing.claim, row, owner, quota)

    async def release(self, lease: Lease) -> None:
        await self._write.submit(self.changing.release, lease)

    async def reopen(self, row: RunRow, owner: Owner) -> Lease | None:
        return await self._write.submit(self.changing.reopen, row, owner)

    async def lock(self, tenant: str, name: str, owner: Owner) -> bool:
        return await self._write.submit(self.living.lock, self._watch, tenant, name, owner)

    async def unlock(self, tenant: str, name: str, owner: Owner) -> None:
        await self._write.submit(self.living.unlock, tenant, name, owner)

    async def beat(self, owner: Owner, every: float = HEARTBEAT, agents: Sequence[str] = ()) -> None:
        await self._write.submit(self.living.beat, owner, every, agents)

    async def agents(self) -> dict[str, bool]:
        return await self._read.submit(self.living.agents)

    async def leave(self, owner: Owner) -> None:
        await self._write.submit(self.living.leave, owner)

    async def workers(self) -> list[Worker]:
        return await self._read.submit(self.living.workers)

    async def lives(self, owner: Owner, me: Owner) -> bool:
        return await self._read.submit(self.living.lives, self._watch, owner, me)

    async def post(self, tenant: str, run_id: str, entry: Entry, request: tuple[str, str] | None = None) -> RunRow:
        return await self._write.submit(self.changing.post, tenant, run_id, entry, request)

    async def decide(self, tenant: str, run_id: str, call_id: str, decision: Decision) -> tuple[Approval, bool]:
        return await self._write.submit(self.changing.decide, tenant, run_id, call_id, decision)

    async def erase(self, tenant: str, run_id: str, at: int) -> int:
        return await self._write.submit(self.changing.erase, tenant, run_id, at)

    async def run(self, tenant: str, run_id: str) -> RunRow:
        return await self._read.submit(self.reading.run_row, tenant, run_id)

    async def runs(
        self, tenant: str, *, status: str | None = None, agent: str | None = None, interaction_id: str | None = None,
        limit: int = 50, before: str | None = None, roots: bool = False,
    ) -> list[RunRow]:  # fmt: skip  # two rows
        needs_tenant(tenant)
        where = status, agent, interaction_id, roots, max(limit, 0)
        return await self._read.submit(self.reading.runs, tenant, before, *where)

    async def open_runs(self, wanted: Wanted) -> list[RunRow]:
        return await self._read.submit(self.due.open_runs, self._watch, wanted)

    async def posted(self, owner: Owner) -> list[str]:
        return await self._read.submit(self.due.posted, owner)

    async def counts(self, agents: Sequence[str], pool: str = "default", tenant: str | None = None) -> Counts:
        return await self._read.submit(self.due.counts, agents, pool, tenant)

    async def to_erase(self, agents: Sequence[str], at: int, limit: int) -> list[tuple[str, str]]:
        return await self._read.submit(self.due.to_erase, agents, at, limit)

    async def entries(self, tenant: str, interaction_id: str, after: int = 0) -> list[Entry]:
        return await self._read.submit(self.reading.entries, tenant, interaction_id, after)

    async def approvals(self, tenant: str, run_id: str | None = None) -> list[Approval]:
        needs_tenant(tenant)
        return await self._read.submit(self.reading.approvals, tenant, run_id)

    async def reports(self, tenant: str, where: ReportFilter = EVERY_REPORT) -> list[ToolErrorReport]:
        needs_tenant(tenant)
        return await self._read.submit(self.reading.reports, tenant, where)

    async def report_groups(self, tenant: str, where: ReportFilter = EVERY_REPORT) -> list[ReportGroup]:
        needs_tenant(tenant)
        return await self._read.submit(self.reading.report_groups, tenant, where)

    async def kept(self, tenant: str, kept_id: str, offset: int = 0, limit: int | None = None) -> KeptRange:
        return await self._read.submit(self.reading.kept, tenant, kept_id, offset, limit)

    async def rows(self) -> AsyncIterator[StoredRow]:
        """See `Store.rows`. Holds a page at a time."""
        after = 0
        page: list[tuple[int, StoredRow]]
        while page := await self._read.submit(self.reading.rows, after):
            for place, row in page:
                yield row
                after = place

    async def kept_texts(self) -> AsyncIterator[tuple[str, str, bytes | None, int, str]]:
        """See `Store.kept_texts`. Holds one at a time."""
        after = 0
        found: tuple[int, tuple[str, str, bytes | None, int, str]] | None
        while (found := await self._read.submit(self.reading.kept_text, after)) is not None:
            after, text = found
            yield text

    async def heads(self) -> list[Head]:
        return await self._read.submit(self.reading.heads)

    async def tips(self, interactions: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        return await self._read.submit(self.key_ring.tips, interactions)

    async def add_key(self, key: ApiKey) -> None:
        await self._write.submit(self.key_ring.add_key, key)

    async def key(self, digest: str) -> ApiKey | None:
        return await self._read.submit(self.key_ring.key, digest)

    async def keys(self, tenant: str) -> list[ApiKey]:
        needs_tenant(tenant)
        return await self._read.submit(self.key_ring.keys, tenant)

    async def revoke_key(self, tenant: str, key_id: str, at: int) -> ApiKey:
        return await self._write.submit(self.key_ring.revoke_key, tenant, key_id, at)

    async def has_keys(self, at: int) -> bool:
        return await self._read.submit(self.key_ring.has_keys, at)

    async def version(self) -> object:
        return await self._read.submit(self.reading.version)
