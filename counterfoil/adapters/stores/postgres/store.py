"""A `Store` in a PostgreSQL database: a small pool of connections for each event loop."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import psycopg

from counterfoil.adapters.stores.postgres import appending, changing, due, keys, living, reading, telling
from counterfoil.adapters.stores.postgres.database import Db, connect, explain, migrate, prepare
from counterfoil.adapters.stores.postgres.known import Known
from counterfoil.adapters.stores.postgres.pool import Pool
from counterfoil.core.approval import Approval, Decision
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
    Worker,
    needs_tenant,
)

T = TypeVar("T")
P = ParamSpec("P")

POOL = 8
"""Connections of a process, at most: a PostgreSQL server has 100 unless told otherwise."""
SCHEMA = "counterfoil"
"""Where the record's tables lie in the database."""
_FORM = "postgresql://user:password@host:5432/database?pool=8"


class PostgresStore:
    """A `Store` in a PostgreSQL database, which many processes of many machines may have open.

    What was acknowledged is as durable as the server's ``synchronous_commit`` makes it. A write runs to its end
    even when whoever waits for it is cancelled.

    Args:
        conninfo: where the server is, as a URL or as libpq takes it.
        pool: connections at most.
        schema: the PostgreSQL schema of the record's tables; it is made where it is missing.

    Raises:
        DefinitionError: an argument is none of these.
    """

    shared = True

    def __init__(self, conninfo: str, *, pool: int = POOL, schema: str = SCHEMA) -> None:
        try:
            given = psycopg.conninfo.conninfo_to_dict(conninfo)
        except psycopg.Error as error:
            # The error may quote the URL, which may hold a password.
            raise DefinitionError(f"expected {_FORM}, and what libpq takes as settings behind the ?") from error
        if pool < 1:
            raise DefinitionError(f"pool is a number of connections, 1 or more, not {pool}")
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
            raise DefinitionError(f"schema is a name of small letters, digits and _, not {schema!r:.80}")
        self.pool = pool
        self.schema = schema
        self.place = f"the database {given.get('dbname', '')} at {given.get('host') or 'the local server'}"
        self._conninfo = conninfo
        self._is_open = False
        self._now: Pool | None = None
        self._known = Known()
        self._watch = Watch()
        self._word = uuid.uuid4().hex
        """What this process tells begins with it."""
        self._ear = 0
        """The server's process that this one listens by."""

    async def open(self) -> None:
        """See `Store.open`."""
        if self._is_open:
            return
        pool = self._pool_here()
        try:
            async with pool.connection() as db:
                await prepare(db, self.schema, self.place)
        except BaseException:
            pool.abandon()
            raise
        self._is_open = True

    async def upgrade(self) -> tuple[int, int]:
        """Bring the schema of a store that is not open up to date; its version before and now. Raises StoreError."""
        try:
            async with self._pool_here().connection() as db:
                return await migrate(db, self.schema, self.place)
        finally:
            await self.close()

    async def close(self) -> None:
        """See `Store.close`. What waits to be written is written first."""
        pool, self._now, self._is_open = self._now, None, False
        if pool is None:
            return
        if pool.loop is asyncio.get_running_loop():
            await pool.close()
        else:
            pool.abandon()

    def _pool_here(self) -> Pool:
        """The running loop's connections; a loop that was here before has ended."""
        pool = self._now
        if pool is None or pool.loop is not asyncio.get_running_loop():
            if pool is not None:
                pool.abandon()
            pool = self._now = Pool(self._conninfo, self.schema, self.place, self.pool)
            self._known = Known()
        return pool

    @property
    def _pool(self) -> Pool:
        if not self._is_open:
            raise UsageError("the store is not open; use it between open() and close()")
        return self._pool_here()

    async def _read(self, work: Callable[Concatenate[Db, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._pool.connection() as db:
            return await work(db, *args, **kwargs)

    async def _write(self, work: Callable[Concatenate[Db, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        pool = self._pool
        return await pool.finish(pool.transact(lambda db: work(db, *args, **kwargs)))

    async def create(self, new: NewRun) -> tuple[RunRow, bool]:
        """See `Store.create`."""
        pool = self._pool
        return await pool.finish(changing.create(pool, self._known, new))

    async def open_interaction(
        self, tenant: str, interaction_id: str, participants: Sequence[Author], at: int, digest: str | None = None
    ) -> bool:
        """See `Store.open_interaction`."""
        return await self._write(changing.open_interaction, tenant, interaction_id, participants, at, digest)

    async def interaction(self, tenant: str, interaction_id: str) -> InteractionRow:
        """See `Store.interaction`."""
        return await self._read(reading.interaction, tenant, interaction_id)

    async def interactions(self, tenant: str, *, limit: int = 50, before: str | None = None) -> list[InteractionRow]:
        """See `Store.interactions`."""
        needs_tenant(tenant)
        return await self._read(reading.interactions, tenant, before, max(limit, 0))

    async def claim(self, row: RunRow, owner: Owner, quota: Quota | None = None) -> Lease | None:
        """See `Store.claim`."""
        return await self._write(changing.claim, row, owner, quota)

    async def release(self, lease: Lease) -> None:
        """See `Store.release`."""
        await self._write(changing.release, lease)

    async def reopen(self, row: RunRow, owner: Owner) -> Lease | None:
        """See `Store.reopen`."""
        return await self._write(changing.reopen, row, owner)

    async def lock(self, tenant: str, name: str, owner: Owner) -> bool:
        """See `Store.lock`."""
        return await self._write(living.lock, self._watch, tenant, name, owner)

    async def unlock(self, tenant: str, name: str, owner: Owner) -> None:
        """See `Store.unlock`."""
        await self._write(living.unlock, tenant, name, owner)

    async def beat(self, owner: Owner, every: float = HEARTBEAT, agents: Sequence[str] = ()) -> None:
        """See `Store.beat`."""
        await self._write(living.beat, owner, every, agents)

    async def agents(self) -> dict[str, bool]:
        """See `Store.agents`."""
        return await self._read(living.agents)

    async def leave(self, owner: Owner) -> None:
        """See `Store.leave`."""
        await self._write(living.leave, owner)

    async def workers(self) -> list[Worker]:
        """See `Store.workers`."""
        return await self._read(living.workers)

    async def lives(self, owner: Owner, me: Owner) -> bool:
        """See `Store.lives`."""
        return await self._read(living.lives, self._watch, owner, me)

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
        pool = self._pool
        what = appending.Commit(lease, entries, change, reports, kept, expect)
        return await appending.commit(pool, self._known, what)

    async def post(self, tenant: str, run_id: str, entry: Entry, request: tuple[str, str] | None = None) -> RunRow:
        """See `Store.post`."""
        return await self._write(changing.post, tenant, run_id, entry, request)

    async def decide(self, tenant: str, run_id: str, call_id: str, decision: Decision) -> tuple[Approval, bool]:
        """See `Store.decide`."""
        return await self._write(changing.decide, tenant, run_id, call_id, decision)

    async def erase(self, tenant: str, run_id: str, at: int) -> int:
        """See `Store.erase`. PostgreSQL keeps the bytes of old rows until VACUUM, and in its log and backups."""
        return await self._write(changing.erase, tenant, run_id, at)

    async def run(self, tenant: str, run_id: str) -> RunRow:
        """See `Store.run`."""
        return await self._read(reading.run_row, tenant, run_id)

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
        where = status, agent, interaction_id, roots
        return await self._read(reading.runs, tenant, before, where, max(limit, 0))

    async def open_runs(self, wanted: Wanted) -> list[RunRow]:
        """See `Store.open_runs`."""
        return await self._read(due.open_runs, self._watch, wanted)

    async def posted(self, owner: Owner) -> list[str]:
        """See `Store.posted`."""
        return await self._read(due.posted, owner)

    async def counts(self, agents: Sequence[str], pool: str = "default", tenant: str | None = None) -> Counts:
        """See `Store.counts`."""
        return await self._read(due.counts, agents, pool, tenant)

    async def to_erase(self, agents: Sequence[str], at: int, limit: int) -> list[tuple[str, str]]:
        """See `Store.to_erase`."""
        return await self._read(due.to_erase, agents, at, limit)

    async def entries(self, tenant: str, interaction_id: str, after: int = 0) -> list[Entry]:
        """See `Store.entries`."""
        return await self._read(reading.entries, tenant, interaction_id, after)

    async def approvals(self, tenant: str, run_id: str | None = None) -> list[Approval]:
        """See `Store.approvals`."""
        needs_tenant(tenant)
        return await self._read(reading.approvals, tenant, run_id)

    async def reports(self, tenant: str, where: ReportFilter = EVERY_REPORT) -> list[ToolErrorReport]:
        """See `Store.reports`."""
        needs_tenant(tenant)
        return await self._read(reading.reports, tenant, where)

    async def report_groups(self, tenant: str, where: ReportFilter = EVERY_REPORT) -> list[ReportGroup]:
        """See `Store.report_groups`."""
        needs_tenant(tenant)
        return await self._read(reading.report_groups, tenant, where)

    async def kept(self, tenant: str, kept_id: str, offset: int = 0, limit: int | None = None) -> KeptRange:
        """See `Store.kept`."""
        return await self._read(reading.kept, tenant, kept_id, offset, limit)

    async def rows(self) -> AsyncIterator[StoredRow]:
        """See `Store.rows`. Holds a page at a time."""
        after = 0
        while page := await self._read(reading.rows, after):
            for place, row in page:
                yield row
                after = place

    async def kept_texts(self) -> AsyncIterator[tuple[str, str, bytes | None, int, str]]:
        """See `Store.kept_texts`. Holds one at a time."""
        after = 0
        while (found := await self._read(reading.kept_text, after)) is not None:
            after, text = found
            yield text

    async def heads(self) -> list[Head]:
        """See `Store.heads`."""
        return await self._read(reading.heads)

    async def tips(self, interactions: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """See `Store.tips`."""
        return await self._read(keys.tips, interactions)

    async def listen(self, heard: Callable[[Collection[str] | None], None]) -> None:
        """See `counterfoil.relay.Tells.listen`."""
        db = await connect(self._conninfo, self.schema, self.place)
        try:
            self._ear = db.info.backend_pid
            await telling.listen(db, self.schema, self._word, lambda: self.tell(()), heard)
        except psycopg.Error as error:
            raise explain(error, self.place) from error
        finally:
            db.pgconn.finish()

    async def listened(self) -> bool:
        """See `counterfoil.relay.Tells.listened`."""
        return await self._read(telling.listened, self.schema, self._ear)

    async def tell(self, run_ids: Collection[str]) -> None:
        """See `counterfoil.relay.Tells.tell`."""
        await self._read(telling.tell, self.schema, self._word, run_ids)

    async def add_key(self, key: ApiKey) -> None:
        """See `Store.add_key`."""
        await self._write(keys.add_key, key)

    async def key(self, digest: str) -> ApiKey | None:
        """See `Store.key`."""
        return await self._read(keys.key_of, digest)

    async def keys(self, tenant: str) -> list[ApiKey]:
        """See `Store.keys`."""
        needs_tenant(tenant)
        return await self._read(keys.keys, tenant)

    async def revoke_key(self, tenant: str, key_id: str, at: int) -> ApiKey:
        """See `Store.revoke_key`."""
        return await self._write(keys.revoke_key, tenant, key_id, at)

    async def has_keys(self, at: int) -> bool:
        """See `Store.has_keys`."""
        return await self._read(keys.has_keys, at)

    async def version(self) -> object:
        """See `Store.version`."""
        return await self._read(reading.version)


def open_store(url: str, **settings: object) -> PostgresStore:
    """The store of ``postgresql://user:password@host/database?pool=8``.

    Args:
        url: as libpq takes it; what stands behind the ``?`` and is none of ours is for libpq, such as ``sslmode``.
        settings: ``pool`` and ``schema``, as in the URL.

    Raises:
        DefinitionError: the URL has another form, or a setting is unknown.
    """
    base, _, query = url.partition("?")
    if not base.startswith(("postgresql://", "postgres://")):
        raise DefinitionError(f"expected {_FORM}")
    found = parse_qsl(query, keep_blank_values=True)
    given: dict[str, object] = {name: value for name, value in found if name in ("pool", "schema")}
    given.update(settings)
    rest = urlencode([(name, value) for name, value in found if name not in ("pool", "schema")], quote_via=quote)
    pool, schema = str(given.pop("pool", POOL)), str(given.pop("schema", SCHEMA))
    if given:
        raise DefinitionError(f"a PostgreSQL store has the settings pool and schema; got {', '.join(sorted(given))}")
    if not re.fullmatch(r"[0-9]{1,4}", pool):
        raise DefinitionError(f"pool is a number of connections, 1 or more, not {pool!r:.80}")
    return PostgresStore(f"{base}?{rest}" if rest else base, pool=int(pool), schema=schema)
