"""A `Store` in one SQLite file: a thread that writes, a thread that reads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from sqlite3 import Connection
from urllib.parse import parse_qsl, unquote

from counterfoil.adapters.stores.shared.sql_store import Commit, SqlStore
from counterfoil.adapters.stores.sqlite import appending, changing, due, keys, living, reading
from counterfoil.adapters.stores.sqlite.database import SYNCHRONOUS, connect, migrations, version_of
from counterfoil.adapters.stores.sqlite.known import WritingConnection
from counterfoil.adapters.stores.sqlite.worker import Worker, Writer
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.entries import Entry
from counterfoil.core.errors import DefinitionError, StoreError, UsageError
from counterfoil.core.limits import HEARTBEAT
from counterfoil.core.report import ToolErrorReport
from counterfoil.store import KeptText, Lease, NewRun, Owner, RunRow, StatusChange


class SqliteStore(SqlStore):
    """A `Store` in one SQLite file, which several processes of one machine may have open.

    Writes that come at once share a transaction, so a commit costs a part of one sync of the disk. What was
    acknowledged survives the death of the process at any moment and, with FULL and EXTRA, a loss of power.

    Args:
        path: the file; its folder must exist.
        synchronous: FULL, EXTRA, or NORMAL, which may lose the last commits with the power.

    Raises:
        DefinitionError: ``path`` or ``synchronous`` is none of these.
    """

    changing, due, key_ring, living, reading = changing, due, keys, living, reading

    def __init__(self, path: str, *, synchronous: str = "FULL") -> None:
        if not path or path == ":memory:" or "\x00" in path:
            raise DefinitionError(f"expected the path of a file, got {path!r}; in memory the record is memory://")
        if synchronous not in SYNCHRONOUS:
            raise DefinitionError(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}")
        super().__init__()
        self.path = path
        self.synchronous = synchronous
        self._writer: Writer | None = None
        self._reader: Worker[Connection] | None = None
        self._file: tuple[str, int, int] | None = None
        """Where the file was when it was opened, and which one it is."""

    async def open(self) -> None:
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
        self._file = _found(self.path)

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
        return await self._write.submit(changing.create, new)

    async def beat(self, owner: Owner, every: float = HEARTBEAT, agents: Sequence[str] = ()) -> None:
        """See `Store.beat`. Raises StoreError where the file is not at its place any more."""
        self._look()
        await super().beat(owner, every, agents)

    async def version(self) -> object:
        """See `Store.version`. Raises StoreError, as `beat`."""
        self._look()
        return await super().version()

    def _look(self) -> None:
        """Refuse everything from now on where the path leads to another file or none: what is written would be lost."""
        if self._file is None or self._writer is None:
            return
        try:
            there = _found(self._file[0]) == self._file
        except FileNotFoundError:
            there = False
        if not there:
            gone = StoreError(
                f"{self._file[0]} was moved, deleted or replaced while this program had it open; stop the programs "
                "that use it, put the file back, and start them again"
            )
            for worker in (self._write, self._read):
                worker.refuse(gone)
            raise gone

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
        if change is None and expect is None and not (kept or reports):
            done = self.commit_now(lease, entries)
            if done is not None:
                return done
        writer = self._writer or self._write
        is_large = bool(kept or reports) or any(type(e) is ResultEntry and e.size > appending.LARGE for e in entries)
        what = Commit(lease, entries, change, reports, kept, expect)
        return await (writer.submit_large if is_large else writer.submit)(appending.commit, what)

    def commit_now(self, lease: Lease, entries: Sequence[Entry]) -> int | None:
        return (self._writer or self._write).at_once(lease, appending.at_once, lease, entries)

    async def erase(self, tenant: str, run_id: str, at: int) -> int:
        """See `Store.erase`. The bytes leave the file and its log, unless another process reads just then."""
        erased = await self._write.submit_large(changing.erase, tenant, run_id, at)
        await self._read.submit(reading.empty_log)
        return erased


def _found(path: str) -> tuple[str, int, int]:
    found = os.stat(path)  # noqa: PTH116  # each sign of life comes by here
    return os.path.abspath(path), found.st_dev, found.st_ino  # noqa: PTH100  # as above


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
