"""A connection to the file: how it is made ready, brought up to date, and what its errors mean."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from counterfoil.adapters.stores.shared.sql_values import migrations_in, not_newer, statements_in
from counterfoil.core.errors import StoreError

T = TypeVar("T")
C = TypeVar("C", bound=sqlite3.Connection)

SYNCHRONOUS = ("FULL", "NORMAL", "EXTRA")
"""How a commit meets the disk. FULL: it is on it. NORMAL: the last commits may go with the power."""
BUSY_SECONDS = 30.0
"""Seconds to wait for another process that writes; its transactions take milliseconds."""
CACHE_KIB = 16 * 1024
"""KiB of pages that a connection keeps: the working set of a few hundred runs."""
_APPLICATION = 0x43544652
"""Stands in the header of our files (PRAGMA application_id)."""
_SQL = files(__package__) / "sql"
_NOW = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
"""Microseconds since 1970; SQLite knows milliseconds."""


SQL = {name: text.replace("{now}", _NOW) for name, text in statements_in(_SQL).items()}
"""Every statement of statements.sql, by name."""
migrations = partial(migrations_in, _SQL)
"""Each numbered migration with its text, in order."""


def connect(path: str, synchronous: str, kind: type[C]) -> C:
    """A connection of this kind in WAL mode, with the newest schema.

    Raises:
        StoreError: the file cannot be opened, is none of ours or belongs to a newer program.
    """
    try:
        db = sqlite3.connect(
            path,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=kind,
        )
    except sqlite3.Error as error:
        raise explain(error, path) from error
    try:
        _patiently(lambda: _prepare(db, path, synchronous))
    except sqlite3.Error as error:
        db.close()
        raise explain(error, path) from error
    except BaseException:
        db.close()
        raise
    return db


def _patiently(work: Callable[[], T]) -> T:
    """Do it again while others hold the file.

    The switch to WAL and the recovery after a crash need the file for themselves, and SQLite refuses them at
    once, whatever the time-out of the connection.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > deadline:
                raise
        # Processes that were started at once must not try at once for ever.
        time.sleep(random.uniform(0.002, 0.02))  # noqa: S311  # no secret


def _prepare(db: sqlite3.Connection, path: str, synchronous: str) -> None:
    # Before anything is written: a database of another program stays as it is.
    version = _check(db, path)
    if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(f"{path} cannot be used by several processes here ({mode}); put it on a local disk")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute(f"PRAGMA cache_size = {-CACHE_KIB}")
    # What is erased must not stay in free pages.
    db.execute("PRAGMA secure_delete = ON")
    if version < migrations()[-1][0]:
        migrate(db, path)


def _check(db: sqlite3.Connection, path: str) -> int:
    """The schema's version in the file, 0 where it is empty."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    application: int = db.execute("PRAGMA application_id").fetchone()[0]
    if application != _APPLICATION:
        if version or application or db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise StoreError(f"{path} is a database of another program; give a path of its own to the record")
        return 0
    return not_newer(version, migrations()[-1][0], path)


def version_of(path: str) -> int:
    """The version of a file's schema, 0 where it is empty. Raises StoreError, as `connect`."""
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as db:
            return _check(db, path)
    except sqlite3.Error as error:
        raise explain(error, path) from error


def migrate(db: sqlite3.Connection, path: str) -> None:
    """Apply what is missing, each migration once, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _check(db, path)
        for number, text in migrations():
            if number > version:
                for statement in _split(text):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number}")
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _split(script: str) -> Iterator[str]:
    """The script's statements: `executescript` would commit the transaction around them."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def explain(error: sqlite3.Error, path: str) -> StoreError:
    """What to do about an error of SQLite."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    folder = Path(path).parent
    if code == sqlite3.SQLITE_CANTOPEN:
        if not folder.is_dir():
            return StoreError(f"{path} cannot be opened: there is no folder {folder}; create it")
        return StoreError(f"{path} cannot be opened ({error}); check that it is a file and its permissions")
    busy = f"another process held it for over {BUSY_SECONDS:.0f} seconds; find and end it"
    advice = {
        sqlite3.SQLITE_NOTADB: "it is no SQLite database; give another path",
        sqlite3.SQLITE_READONLY: "it or its folder is read-only; make both writable for this user",
        sqlite3.SQLITE_PERM: "this user may not; change the file's permissions",
        sqlite3.SQLITE_FULL: "the disk is full; make room and try again",
        sqlite3.SQLITE_IOERR: "the disk failed; check it, and the space on it",
        sqlite3.SQLITE_CORRUPT: "it is damaged; restore it from a copy",
        sqlite3.SQLITE_BUSY: busy,
        sqlite3.SQLITE_LOCKED: busy,
        sqlite3.SQLITE_TOOBIG: "a text is larger than SQLite takes; keep it in a file and record its path",
    }.get(code, "see the cause")
    return StoreError(f"{path}: {error}: {advice}")
