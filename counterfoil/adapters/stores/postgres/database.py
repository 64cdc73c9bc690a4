"""A connection to the server: how it is made, what a text and a number are there, what its errors mean."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import Any, TypeAlias

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8BinaryDumper

from counterfoil.adapters.stores.shared.sql_values import migrations_in, not_newer, statements_in
from counterfoil.core.errors import CounterfoilError, NotFound, StoreError, UsageError

Db: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

CONNECT_SECONDS = 10
"""Seconds to wait for a server that does not answer, unless the URL says ``connect_timeout``."""
BUSY_SECONDS = 30
"""Seconds to wait for another session's lock, or for a process that stands still in mid-write."""
_GIVEN: Mapping[str, str | int] = {
    "connect_timeout": CONNECT_SECONDS,
    "application_name": "counterfoil",
    # A server that is gone without a word is noticed, whatever the system's own patience.
    "keepalives_idle": BUSY_SECONDS,
    "tcp_user_timeout": BUSY_SECONDS * 1000,
}
"""What the URL may say otherwise."""
_SET = """
SELECT set_config('search_path', $1, false), set_config('default_transaction_isolation', 'read committed', false),
    set_config('lock_timeout', $2, false), set_config('idle_in_transaction_session_timeout', $2, false)
"""
_MIGRATING = 0x43544652
"""Key of the advisory lock that one process at a time holds to bring the schema up to date."""
_SQL = files(__package__) / "sql"


SQL = statements_in(_SQL)
"""Every statement of statements.sql, by name."""
migrations = partial(migrations_in, _SQL)
"""Each numbered migration with its text, in order."""


def as_text(text: str) -> bytes:
    """A text, with NUL and ESC as ESC and a letter: PostgreSQL's text holds every character but NUL."""
    data = text.encode()
    if b"\x00" in data or b"\x1b" in data:
        data = data.replace(b"\x1b", b"\x1be").replace(b"\x00", b"\x1b0")
    return data


class _TextDumper(Dumper):
    """See `as_text`."""

    oid = 25

    def dump(self, obj: str) -> bytes:
        return as_text(obj)


class _TextLoader(Loader):
    """The text that `as_text` was given."""

    def load(self, data: Buffer) -> str:
        found = bytes(data)
        if b"\x1b" in found:
            found = found.replace(b"\x1b0", b"\x00").replace(b"\x1be", b"\x1b")
        return found.decode()


class _BinaryTextDumper(_TextDumper):
    format = pq.Format.BINARY


class _BinaryTextLoader(_TextLoader):
    format = pq.Format.BINARY


class _Context:
    """What psycopg asks for the types of a connection."""

    connection = None

    def __init__(self) -> None:
        self.adapters = AdaptersMap(psycopg.adapters)
        for dumper in (_TextDumper, _BinaryTextDumper):
            self.adapters.register_dumper(str, dumper)
        for loader in (_TextLoader, _BinaryTextLoader):
            self.adapters.register_loader("text", loader)
        # One type for every number: a statement is prepared once, not once for each size of its numbers.
        self.adapters.register_dumper(int, Int8BinaryDumper)


_CONTEXT = _Context()


async def connect(conninfo: str, schema: str, place: str) -> Db:
    """A connection that commits each statement by itself unless told otherwise, in the schema of the record.

    Raises:
        StoreError: there is no server, it does not let us in, or its texts are not Unicode.
    """
    given: dict[str, Any] = {**_GIVEN, **conninfo_to_dict(conninfo)}
    try:
        db = await psycopg.AsyncConnection.connect(
            make_conninfo(**given),
            autocommit=True,
            client_encoding="utf8",
            context=_CONTEXT,
            cursor_factory=psycopg.AsyncRawCursor,
        )
    except psycopg.Error as error:
        raise explain(error, place) from error
    try:
        await db.execute(_SET, (f'"{schema}"', f"{BUSY_SECONDS}s"))
        encoding = db.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreError(
                f"{place} keeps texts as {encoding}; create a database with ENCODING 'UTF8' for the record"
            )
    except BaseException as error:
        db.pgconn.finish()
        if isinstance(error, psycopg.Error):
            raise explain(error, place) from error
        raise
    return db


async def prepare(db: Db, schema: str, place: str) -> None:
    """Make the tables where there are none. What an older program may have open is migrated by hand (decision 10).

    Raises:
        StoreError: the schema is another program's, or one of another version of this.
    """
    version, newest = await _version(db, schema, place), migrations()[-1][0]
    if version == 0:
        await migrate(db, schema, place)
    elif version < newest:
        raise StoreError(
            f"{place} has schema {version}, this program needs {newest}; end the older programs that have it open, "
            "then run `counterfoil db upgrade --store URL`"
        )


async def migrate(db: Db, schema: str, place: str) -> tuple[int, int]:
    """Bring the schema up to date: each migration once, whoever else tries at the same time.

    Returns:
        Its version before and now.

    Raises:
        StoreError: it is another program's, or a newer one's.
    """
    newest = migrations()[-1][0]
    await db.execute("BEGIN")
    try:
        await db.execute("SELECT pg_advisory_xact_lock($1)", (_MIGRATING,))
        version = await _version(db, schema, place)
        if version == 0:
            found = await db.execute("SELECT to_regnamespace($1) IS NULL", (f'"{schema}"',))
            # Who may not make schemas may have been given one.
            if await found.fetchone() == (True,):
                await db.execute(f'CREATE SCHEMA "{schema}"')
            await db.execute("CREATE TABLE counterfoil_schema (version BIGINT NOT NULL)")
            await db.execute("INSERT INTO counterfoil_schema VALUES (0)")
        for number, text in migrations():
            if number > version:
                await db.execute(text.encode())
                await db.execute("UPDATE counterfoil_schema SET version = $1", (number,))
        await db.execute("COMMIT")
        return version, newest
    except BaseException:
        if not db.closed:
            await db.execute("ROLLBACK")
        raise


async def _version(db: Db, schema: str, place: str) -> int:
    """The schema's version, 0 where there is nothing yet."""
    found = await db.execute(
        "SELECT to_regclass('counterfoil_schema') IS NOT NULL, EXISTS ("
        "SELECT FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1))",
        (schema,),
    )
    row = await found.fetchone()
    is_ours, has_tables = row or (False, False)
    if not is_ours:
        if has_tables:
            raise StoreError(
                f"the schema {schema} of {place} is another program's; name one of the record's own, as ?schema=record"
            )
        return 0
    found = await db.execute("SELECT version FROM counterfoil_schema")
    version: int = (await found.fetchone() or (0,))[0]
    return not_newer(version, migrations()[-1][0], place)


_ADVICE: Mapping[str, str] = {
    "42501": "the user may not do that; grant it CREATE on the database, or all on the record's schema",
    "25006": "the server only reads; name the primary one",
    "53100": "the server's disk is full; make room and try again",
    "53300": "the server has no connection left; make ?pool= smaller, or max_connections larger",
    "55P03": f"another session held it for over {BUSY_SECONDS} seconds; find it in pg_stat_activity, and end it",
    "25P03": f"the process stood still for over {BUSY_SECONDS} seconds in the middle of a write; try again",
    "57": "the server ends or ended the connection; try again when it is up",
    "XX": "the server found damage; see its log, and restore the database from a copy",
}
"""What to do, by the code of an error (PostgreSQL's appendix A) or the first letters of it."""


def explain(error: BaseException, place: str) -> CounterfoilError:
    """What an error of the server or the connection means."""
    if isinstance(error, UnicodeEncodeError):
        return NotFound("no such id: it holds half a surrogate pair, which no stored text does")
    if isinstance(error, (OverflowError, struct.error, psycopg.errors.NumericValueOutOfRange)):
        return UsageError("a number is out of the range that PostgreSQL keeps, 64 bits")
    if isinstance(error, psycopg.errors.ProgramLimitExceeded):
        return UsageError(f"an id or a text is larger than PostgreSQL takes ({_said(error)}); give a shorter one")
    code = getattr(error, "sqlstate", None) or ""
    advice = _ADVICE.get(code) or _ADVICE.get(code[:2])
    if advice is None and isinstance(error, psycopg.OperationalError):
        advice = "check that the server runs, and that address, database, user and password are right"
    return StoreError(f"{place}: {_said(error)}: {advice or 'see the cause'}")


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())


MEANT = (psycopg.Error, UnicodeEncodeError, OverflowError, struct.error)
"""Errors that `explain` explains."""
