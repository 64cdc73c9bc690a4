"""A `Store` in a PostgreSQL database: a small pool of connections for each event loop."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Collection, Sequence
from urllib.parse import parse_qsl, quote, urlencode

import psycopg

from counterfoil.adapters.stores.postgres import appending, changing, due, keys, living, reading, telling
from counterfoil.adapters.stores.postgres.database import connect, explain, migrate, prepare
from counterfoil.adapters.stores.postgres.known import Known
from counterfoil.adapters.stores.postgres.pool import Pool, Transactions
from counterfoil.adapters.stores.shared.sql_store import Commit, SqlStore
from counterfoil.core.entries import Entry
from counterfoil.core.errors import DefinitionError, UsageError
from counterfoil.core.report import ToolErrorReport
from counterfoil.store import KeptText, Lease, NewRun, RunRow, StatusChange

POOL = 8
"""Connections of a process, at most: a PostgreSQL server has 100 unless told otherwise."""
SCHEMA = "counterfoil"
"""Where the record's tables lie in the database."""
_FORM = "postgresql://user:password@host:5432/database?pool=8"


class PostgresStore(SqlStore):
    """A `Store` in a PostgreSQL database, which many processes of many machines may have open.

    What was acknowledged is as durable as the server's ``synchronous_commit`` makes it. A write runs to its end
    even when whoever waits for it is cancelled. PostgreSQL keeps the bytes of rows that were erased until VACUUM, and
    in its log and backups.

    Args:
        conninfo: where the server is, as a URL or as libpq takes it.
        pool: connections at most.
        schema: the PostgreSQL schema of the record's tables; it is made where it is missing.

    Raises:
        DefinitionError: an argument is none of these.
    """

    changing, due, key_ring, living, reading = changing, due, keys, living, reading

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
        super().__init__()
        self.pool = pool
        self.schema = schema
        self.place = f"the database {given.get('dbname', '')} at {given.get('host') or 'the local server'}"
        self._conninfo = conninfo
        self._is_open = False
        self._now: Pool | None = None
        self._known = Known()
        self._word = uuid.uuid4().hex
        """What this process tells begins with it."""
        self._ear = 0
        """The server's process that this one listens by."""

    async def open(self) -> None:
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

    _read = _pool

    @property
    def _write(self) -> Transactions:
        return self._pool.transactions

    async def create(self, new: NewRun) -> tuple[RunRow, bool]:
        pool = self._pool
        return await pool.finish(changing.create(pool, self._known, new))

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
        pool = self._pool
        what = Commit(lease, entries, change, reports, kept, expect)
        return await appending.commit(pool, self._known, what)

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
        return await self._read.submit(telling.listened, self.schema, self._ear)

    async def tell(self, run_ids: Collection[str]) -> None:
        """See `counterfoil.relay.Tells.tell`."""
        await self._read.submit(telling.tell, self.schema, self._word, run_ids)


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
