"""A `Store` in one SQLite file: a thread that writes, a thread that reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from sqlite3 import Connection
from urllib.parse import parse_qsl, unquote

from counterfoil.adapters.stores.sqlite import appending, changing, due, keys, living, reading
from counterfoil.adapters.stores.sqlite.database import SYNCHRONOUS, connect, migrations, version_of
from counterfoil.adapters.stores.sqlite.known import WritingConnection
from counterfoil.adapters.stores.sqlite.worker import Worker, Writer
from counterfoil.core.approval import Approval, Decision
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.entries import Entry
from counterfoil.core.errors import DefinitionError, UsageError
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
    NewRun,
    Owner,
    Quota,
    ReportFilter,
    RunRow,
    StatusChange,
    StoredRow,
    Wanted,
    needs_tenant,
)
from counterfoil.store import (
    Worker as Beating,
)


class SqliteStore:
    """A `Store` in one SQLite file, which several processes of one machine may have open.

    Writes that come at once share a transaction, so a commit costs a part of one sync of the disk. What was
    acknowledged survives the death of the process at any moment and, with FULL and EXTRA, a loss of power.

    Args:
        path: the file; its folder must exist.
        synchronous: FULL, EXTRA, or NORMAL, which may lose the last commits with the power.

    Raises:
        DefinitionError: ``path`` or ``synchronous`` is none of these.
    """

    shared = True

    def __init__(self, path: str, *, synchronous: str = "FULL") -> None:
        if not path or path == ":memory:" or "\x00" in path:
            raise DefinitionError(f"expected the path of a file, got {path!r}; in memory the record is memory://")
        if synchronous not in SYNCHRONOUS:
            raise DefinitionError(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}")
        self.path = path
        self.synchronous = synchronous
        self._writer: Writer | None = None
        self._reader: Worker[Connection] | None = None
        self._watch = Watch()

    async def open(self) -> None:
        """See `Store.open`."""
        if self._writer is not None:
            return

        def write_to() -> WritingConnection:
            return connect(self.path, self.synchronous, WritingConnection)

        def read_from() -> Connection:
            return connect(self.path, self.synchronous, Connection)

        writer = Writer("counterfoil-writer", self.path, write_to)
        reader = Worker("counterfoil-reader", self.path, read_from)
        await writer.start()
        try:
            await reader.start()
        except BaseException:
            await writer.close()
            raise
        self._writer, self._reader = writer, reader

    async def upgrade(self) -> tuple[int, int]:
        """Bring the schema of a store that is not open up to date, as `open` does; its version before and now."""
        before = await asyncio.to_thread(version_of, self.path)
        await self.open()
        await self.close()
        return before, migrations()[-1][0]

    async def close(self) -> None:
        """See `Store.close`. What waits to be written is written first."""
        writer, reader, self._writer, self._reader = self._writer, self._reader, None, None
        if writer is not None:
            await writer.close()
        if reader is not None:
            await reader.close()

    @property
    def _write(self) -> Writer:
        if self._writer is None:
            raise UsageError(f"the store {self.path} is not open; use it between open() and close()")
        return self._writer

    @property
    def _read(self) -> Worker[Connection]:
        if self._reader is None:
            raise UsageError(f"the store {self.path} is not open; use it between open() and close()")
        return self._reader

    async def create(self, new: NewRun) -> tuple[RunRow, bool]:
        """See `Store.create`."""
        return await self._write.submit(changing.create, new)

    async def open_interaction(
        self, tenant: str, interaction_id: str, participants: Sequence[Author], at: int, digest: str | None = None
    ) -> bool:
        """See `Store.open_interaction`."""
        begun = tenant, interaction_id, participants, at, digest
        return await self._write.submit(changing.open_interaction, *begun)

    async def interaction(self, tenant: str, interaction_id: str) -> InteractionRow:
        """See `Store.interaction`."""
        return (await self._read.submit(reading.interactions, tenant, interaction_id, None, 1))[0]

    async def interactions(self, tenant: str, *, limit: int = 50, before: str | None = None) -> list[InteractionRow]:
        """See `Store.interactions`."""
        needs_tenant(tenant)
        return await self._read.submit(reading.interactions, tenant, None, before, max(limit, 0))

    async def claim(self, row: RunRow, owner: Owner, quota: Quota | None = None) -> Lease | None:
        """See `Store.claim`."""
        return await self._write.submit(changing.claim, row, owner, quota)

    async def release(self, lease: Lease) -> None:
        """See `Store.release`."""
        await self._write.submit(changing.release, lease)

    async def reopen(self, row: RunRow, owner: Owner) -> Lease | None:
        """See `Store.reopen`."""
        return await self._write.submit(changing.reopen, row, owner)

    async def lock(self, tenant: str, name: str, owner: Owner) -> bool:
        """See `Store.lock`."""
        return await self._write.submit(living.lock, self._watch, tenant, name, owner)

    async def unlock(self, tenant: str, name: str, owner: Owner) -> None:
        """See `Store.unlock`."""
        await self._write.submit(living.unlock, tenant, name, owner)

    async def beat(self, owner: Owner, every: float = HEARTBEAT, agents: Sequence[str] = ()) -> None:
        """See `Store.beat`."""
        await self._write.submit(living.beat, owner, every, agents)

    async def agents(self) -> dict[str, bool]:
        """See `Store.agents`."""
        return await self._read.submit(living.agents)

    async def leave(self, owner: Owner) -> None:
        """See `Store.leave`."""
        await self._write.submit(living.leave, owner)

    async def workers(self) -> list[Beating]:
        """See `Store.workers`."""
        return await self._read.submit(living.workers)

    async def lives(self, owner: Owner, me: Owner) -> bool:
        """See `Store.lives`."""
        return await self._read.submit(living.lives, self._watch, owner, me)

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
        """See `Store.commit`."""
        if change is None and expect is None and not (kept or reports):
            done = self.commit_now(lease, entries)
            if done is not None:
                return done
        writer = self._writer or self._write
        is_large = bool(kept or reports) or any(type(e) is ResultEntry and e.size > appending.LARGE for e in entries)
        what = appending.Commit(lease, entries, change, reports, kept, expect)
        return await (writer.submit_large if is_large else writer.submit)(appending.commit, what)

    def commit_now(self, lease: Lease, entries: Sequence[Entry]) -> int | None:
        """See `store.CommitsNow`."""
        return (self._writer or self._write).at_once(lease, appending.at_once, lease, entries)

    async def post(self, tenant: str, run_id: str, entry: Entry, request: tuple[str, str] | None = None) -> RunRow:
        """See `Store.post`."""
        return await self._write.submit(changing.post, tenant, run_id, entry, request)

    async def decide(self, tenant: str, run_id: str, call_id: str, decision: Decision) -> tuple[Approval, bool]:
        """See `Store.decide`."""
        return await self._write.submit(changing.decide, tenant, run_id, call_id, decision)

    async def erase(self, tenant: str, run_id: str, at: int) -> int:
        """See `Store.erase`. The bytes leave the file and its log, unless another process reads just then."""
        erased = await self._write.submit_large(changing.erase, tenant, run_id, at)
        await self._read.submit(reading.empty_log)
        return erased

    async def run(self, tenant: str, run_id: str) -> RunRow:
        """See `Store.run`."""
        return await self._read.submit(reading.run_row, tenant, run_id)

    async def runs(
        self,
        tenant: str,
        *,
        status: str | None = None,
        agent: str | None = None,
        interaction_id: str | None = None,
        limit: int = 50,
        before: str | None = None,
        roots: bool = False,
    ) -> list[RunRow]:
        """See `Store.runs`."""
        needs_tenant(tenant)
        where = {"status": status, "agent": agent, "interaction": interaction_id, "roots": roots}
        return await self._read.submit(reading.runs, tenant, before, {**where, "limit": max(limit, 0)})

    async def open_runs(self, wanted: Wanted) -> list[RunRow]:
        """See `Store.open_runs`."""
        return await self._read.submit(due.open_runs, self._watch, wanted)

    async def posted(self, owner: Owner) -> list[str]:
        """See `Store.posted`."""
        return await self._read.submit(due.posted, owner)

    async def counts(self, agents: Sequence[str], pool: str = "default", tenant: str | None = None) -> Counts:
        """See `Store.counts`."""
        return await self._read.submit(due.counts, agents, pool, tenant)

    async def to_erase(self, agents: Sequence[str], at: int, limit: int) -> list[tuple[str, str]]:
        """See `Store.to_erase`."""
        return await self._read.submit(due.to_erase, agents, at, limit)

    async def entries(self, tenant: str, interaction_id: str, after: int = 0) -> list[Entry]:
        """See `Store.entries`."""
        return await self._read.submit(reading.entries, tenant, interaction_id, after)

    async def approvals(self, tenant: str, run_id: str | None = None) -> list[Approval]:
        """See `Store.approvals`."""
        needs_tenant(tenant)
        return await self._read.submit(reading.approvals, tenant, run_id)

    async def reports(self, tenant: str, where: ReportFilter = EVERY_REPORT) -> list[ToolErrorReport]:
        """See `Store.reports`."""
        needs_tenant(tenant)
        return await self._read.submit(reading.reports, tenant, where)

    async def report_groups(self, tenant: str, where: ReportFilter = EVERY_REPORT) -> list[ReportGroup]:
        """See `Store.report_groups`."""
        needs_tenant(tenant)
        return await self._read.submit(reading.report_groups, tenant, where)

    async def kept(self, tenant: str, kept_id: str, offset: int = 0, limit: int | None = None) -> KeptRange:
        """See `Store.kept`."""
        return await self._read.submit(reading.kept, tenant, kept_id, offset, limit)

    async def rows(self) -> AsyncIterator[StoredRow]:
        """See `Store.rows`. Holds a page at a time."""
        after = 0
        while page := await self._read.submit(reading.rows, after):
            for place, row in page:
                yield row
                after = place

    async def kept_texts(self) -> AsyncIterator[tuple[str, str, bytes | None, int, str]]:
        """See `Store.kept_texts`. Holds one at a time."""
        after = 0
        while (found := await self._read.submit(reading.kept_text, after)) is not None:
            after, text = found
            yield text

    async def heads(self) -> list[Head]:
        """See `Store.heads`."""
        return await self._read.submit(reading.heads)

    async def tips(self, interactions: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """See `Store.tips`."""
        return await self._read.submit(keys.tips, interactions)

    async def add_key(self, key: ApiKey) -> None:
        """See `Store.add_key`."""
        await self._write.submit(keys.add_key, key)

    async def key(self, digest: str) -> ApiKey | None:
        """See `Store.key`."""
        return await self._read.submit(keys.key_of, digest)

    async def keys(self, tenant: str) -> list[ApiKey]:
        """See `Store.keys`."""
        needs_tenant(tenant)
        return await self._read.submit(keys.keys, tenant)

    async def revoke_key(self, tenant: str, key_id: str, at: int) -> ApiKey:
        """See `Store.revoke_key`."""
        return await self._write.submit(keys.revoke_key, tenant, key_id, at)

    async def has_keys(self, at: int) -> bool:
        """See `Store.has_keys`."""
        return await self._read.submit(keys.has_keys, at)

    async def version(self) -> object:
        """See `Store.version`."""
        return await self._read.submit(reading.version)


def open_store(url: str, **settings: object) -> SqliteStore:
    """The store of ``sqlite:///relative.db`` or ``sqlite:////absolute.db?synchronous=NORMAL``.

    Args:
        url: characters that a URL cannot hold are written as ``%3F``.
        settings: ``synchronous``, as in the URL.

    Raises:
        DefinitionError: the URL has another form, or a setting is unknown.
    """
    head, separator, rest = url.partition(":///")
    path, _, query = rest.partition("?")
    if head != "sqlite" or not separator or not path or "#" in rest:
        raise DefinitionError(
            f"expected sqlite:///relative/path.db or sqlite:////absolute/path.db (four slashes), got {url!r}"
        )
    given = {**dict(parse_qsl(query, keep_blank_values=True)), **settings}
    synchronous = str(given.pop("synchronous", "FULL")).upper()
    if given:
        raise DefinitionError(f"a SQLite store has one setting, synchronous; got {', '.join(sorted(given))}")
    return SqliteStore(unquote(path), synchronous=synchronous)
