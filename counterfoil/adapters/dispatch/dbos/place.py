"""Where DBOS keeps its own data: beside the record, or where the user says."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

from counterfoil.core.errors import UsageError

SCHEMA = "counterfoil"
"""The record's schema in PostgreSQL, unless its URL names another."""
SUFFIX = "_dbos"
"""What DBOS's schema has behind the name of the record's."""
BUSY_SECONDS = 30
"""Seconds to wait for another process's lock, and for one that stands still inside a transaction."""
CONNECTIONS = 4
"""Connections that stay open to a server; further ones are made for a moment."""
_LONGEST = 63
"""Characters of a PostgreSQL identifier."""
_GIVEN = {
    "connect_timeout": 10,
    "application_name": "counterfoil-dbos",
    "keepalives_idle": BUSY_SECONDS,
    "tcp_user_timeout": BUSY_SECONDS * 1000,
}
"""What the URL may say otherwise."""


def open_place(record: str, given: str | None) -> tuple[sa.Engine, str | None]:
    """The database of DBOS and, in PostgreSQL, its schema.

    Args:
        record: the URL of the record.
        given: the URL of a database of DBOS's own, which another engine's data may be in too.

    Raises:
        UsageError: DBOS can keep nothing there.
    """
    url = record if given is None else given
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        return _sqlite(unquote(url.partition(":///")[2].partition("?")[0]) + (".dbos" if given is None else "")), None
    if scheme in ("postgresql", "postgres"):
        return _postgres(url)
    where = f"the record {scheme}://" if given is None else f"{scheme}:"
    raise UsageError(
        f"DBOS needs a database that processes share, and {where} is none; "
        "open the record as sqlite:/// or postgresql://, or write dispatch='inline'"
    )


def _sqlite(path: str) -> sa.Engine:
    if not path:
        raise UsageError("expected dispatch='dbos:sqlite:///path.db'")
    engine = sa.create_engine(sa.URL.create("sqlite", database=path))

    @sa.event.listens_for(engine, "connect")
    def prepare(db: sqlite3.Connection, _record: object) -> None:
        # Who writes waits for its turn before it reads; else two that read could not both go on to write.
        db.isolation_level = "IMMEDIATE"
        db.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
        db.execute("PRAGMA foreign_keys=ON")
        # A hint that a power cut takes away is told again, so no write waits for the disk.
        db.execute("PRAGMA synchronous=NORMAL")
        with contextlib.suppress(sqlite3.OperationalError):  # another process is changing it at this moment
            db.execute("PRAGMA journal_mode=WAL")

    return engine


def _postgres(url: str) -> tuple[sa.Engine, str]:
    base, _, query = url.partition("?")
    found = parse_qsl(query, keep_blank_values=True)
    schema = dict(found).get("schema", SCHEMA) + SUFFIX
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", schema) or len(schema) > _LONGEST:
        raise UsageError(f"DBOS's schema would be {schema!r:.80}; give the record's a name of {_LONGEST - 5} letters")
    rest = urlencode([(name, value) for name, value in found if name not in ("pool", "schema")], quote_via=quote)
    conninfo = f"{base}?{rest}" if rest else base
    settings: dict[str, Any] = {**_GIVEN, **conninfo_to_dict(conninfo)}

    def connect() -> psycopg.Connection[Any]:
        db = psycopg.connect(**settings)
        db.execute(
            "SELECT set_config('default_transaction_isolation', 'read committed', false),"
            " set_config('idle_in_transaction_session_timeout', %s, false)",
            (f"{BUSY_SECONDS}s",),
        )
        db.commit()  # the pool rolls back what is not
        return db

    # By way of libpq: it knows hosts in a list, sockets and service files, and no password is written into a URL again.
    engine = sa.create_engine(
        "postgresql+psycopg://", creator=connect, pool_size=CONNECTIONS, max_overflow=4 * CONNECTIONS,
        pool_pre_ping=True,
    )  # fmt: skip  # two rows
    return engine, schema
