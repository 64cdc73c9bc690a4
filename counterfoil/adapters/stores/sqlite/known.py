"""What the writer knows of the runs it has lately written, so that a commit need not look it up again.

All of it is true as long as no other connection writes to the file: the writer asks SQLite for that at the
start of each transaction (PRAGMA data_version). When one did, a run's row is read again before its next use, and the
entries since; after a rollback everything is forgotten.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Sequence

from counterfoil.adapters.stores.shared.sql_values import SETTLED
from counterfoil.adapters.stores.sqlite.database import SQL
from counterfoil.core.codec import GENESIS
from counterfoil.core.errors import NotFound

RUNS = 2_000
"""Runs that are known at once, at most; then all are forgotten, which costs each a look-up."""
_RUN_AND_TIP = SQL["run_and_tip"]
_CALLS_SINCE = SQL["calls_since"]
_APPEND = SQL["append"]
_COLUMNS = _APPEND[: _APPEND.index("VALUES ")]
AT_ONCE = 3
"""Entries that are appended as one statement, at most; a batch of many is a transaction."""
OF_RUN, OF_CALL = "r", "c"
"""The shape of a row whose entry is about the run, or about a call."""
_ROWS = {
    # Python's sqlite3 looks for an adapter of each None, which takes longer than the rest of a row.
    OF_RUN: "(?, ?, ?, NULL, NULL, NULL, ?, ?, ?, ?, ?)",
    OF_CALL: "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
}


@functools.cache
def _at_once(shape: str) -> str:
    """What appends rows of these shapes."""
    # A list of values with one row costs more than a row, and half of all commits have one.
    rows = [_ROWS[one] for one in shape]
    if len(rows) == 1:
        return f"{_COLUMNS}SELECT {rows[0].strip('()')} {SQL['if_held']}"  # our own texts
    return f"{_COLUMNS}SELECT * FROM (VALUES {', '.join(rows)}) {SQL['if_held']}"  # noqa: S608  # as above


class Tip:
    """Where an interaction's next entry goes."""

    __slots__ = ("hash", "place", "sequence")

    def __init__(self, interaction: int, place: int | None, digest: bytes | None, sequence: int | None) -> None:
        """Place, hash and next reading number of the last entry; None where there is none."""
        self.place = interaction << 32 if place is None else place
        self.hash = digest or GENESIS
        self.sequence = sequence or 1


class KnownRun:
    """A run's row as far as a commit needs it, its calls and whether people may be asked about them."""

    __slots__ = (
        "at", "calls", "epoch", "interaction", "is_asking", "number", "owned", "parent", "seen", "thread", "whole",
    )  # fmt: skip  # names alone

    def __init__(
        self, number: int, interaction: int, thread: str | None, parent: str | None, epoch: int, *, owned: bool, at: int
    ) -> None:
        self.number = number
        self.interaction = interaction
        self.thread = thread
        self.parent = parent
        self.epoch = epoch
        self.owned = owned
        self.at = at
        self.calls: dict[tuple[int, int], int] = {}
        """The state of each call that has one."""
        self.seen = interaction << 32
        """``calls`` holds what entries say up to this place."""
        self.whole = False
        """``calls`` holds what all entries say."""
        self.is_asking: bool | None = None
        """Some approval may be open; None: not looked up yet."""

    def state(self, db: WritingConnection, key: tuple[int, int], tip: Tip) -> int:
        """The state of a call."""
        if not self.whole:
            db.write_rows()
            for step, index, slot in db.execute(_CALLS_SINCE, (self.seen, tip.place, self.number)).fetchall():
                self.calls[step, index] = slot or SETTLED
            self.seen, self.whole = tip.place, True
        return self.calls.get(key, 0)

    def asks(self, db: WritingConnection) -> bool:
        """Whether an approval of the run may be open."""
        if self.is_asking is None:
            self.is_asking = db.execute(SQL["is_asking"], (self.number,)).fetchone() is not None
        return self.is_asking


class WritingConnection(sqlite3.Connection):
    """The writer's connection and what it knows."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]  # what sqlite3.connect was given
        self.runs: dict[tuple[str, str], KnownRun] = {}
        self.tips: dict[int, Tip] = {}
        self._earlier: dict[tuple[str, str], KnownRun] = {}
        """Runs that others may have changed since."""
        self.rows: list[tuple[object, ...]] = []
        """Entries of this transaction that are not written yet: all at once costs less than one by one."""
        self._version: object = None
        self._cursor = self.cursor()
        """Of statements that give no rows: a new one for each costs a twentieth of a commit."""

    def begin(self) -> None:
        """Start a transaction; what others may have changed is read again."""
        self.execute("BEGIN IMMEDIATE")
        version = self.execute("PRAGMA data_version").fetchone()[0]
        if len(self.runs) + len(self._earlier) > RUNS:
            self.forget()
        if version != self._version:
            self.doubt()
            self._version = version

    def write_rows(self) -> None:
        """Write the entries that wait: before anything reads entries, and before the end."""
        if self.rows:
            self.executemany(_APPEND, self.rows)
            self.rows.clear()

    def append_at_once(self, values: Sequence[object], shape: str) -> bool:
        """Append as one statement, a transaction by itself; False: what was known is not so, and nothing is written.

        Another connection that has taken or released the run has changed its row; one that has appended to its
        interaction has taken the first place.

        Args:
            values: those of each row, as in `rows`, without the three of a call where it is of none, and the run's
                number and epoch.
            shape: `OF_RUN` or `OF_CALL` for each row.
        """
        try:
            return self._cursor.execute(_at_once(shape), values).rowcount == len(shape)
        except sqlite3.IntegrityError:
            return False

    def end(self) -> None:
        """End the transaction: everything is on the disk."""
        self.write_rows()
        self.execute("COMMIT")

    def doubt(self) -> None:
        """Read runs and interactions again before their next use."""
        self._earlier.update(self.runs)
        self.runs.clear()
        self.tips.clear()

    def forget(self) -> None:
        """Know nothing, and write nothing of what waits."""
        self.rows.clear()
        self.runs.clear()
        self.tips.clear()
        self._earlier.clear()

    def drop(self, tenant: str, run_id: str) -> None:
        """Know nothing of a run."""
        self.runs.pop((tenant, run_id), None)
        self._earlier.pop((tenant, run_id), None)

    def run_and_tip(self, tenant: str, run_id: str) -> tuple[KnownRun, Tip]:
        """A run and its interaction's tip. Raises NotFound."""
        run = self.runs.get((tenant, run_id))
        if run is not None:
            tip = self.tips.get(run.interaction)
            if tip is not None:
                return run, tip
        self.write_rows()
        found = self.execute(_RUN_AND_TIP, (tenant, run_id)).fetchone()
        if found is None:
            raise NotFound(f"no run {run_id}")
        number, interaction, thread, parent, epoch, owner, at, place, digest, sequence = found
        if run is None:
            run = self._earlier.pop((tenant, run_id), None)
            if run is None:
                run = KnownRun(number, interaction, thread, parent, epoch, owned=owner is not None, at=at)
            else:
                run.epoch, run.owned, run.at, run.is_asking = epoch, owner is not None, at, None
            run.whole = run.seen == place
            self.runs[tenant, run_id] = run
        tip = self.tips.get(interaction)
        if tip is None:
            tip = self.tips[interaction] = Tip(interaction, place, digest, sequence)
        return run, tip
