"""An interaction and a run as objects, and the laws of `Store.commit` over them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from counterfoil.core.approval import Decision
from counterfoil.core.call_entries import CallEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.codec import GENESIS, chain, decode, encode
from counterfoil.core.entries import Entry, TurnEntry
from counterfoil.core.errors import Fenced, UsageError
from counterfoil.core.limits import DEAD_AFTER
from counterfoil.core.turn import Author
from counterfoil.owners import still_drives
from counterfoil.store import InteractionRow, NewRun, RunRow, StatusChange

SETTLED = -1
"""State of a call with a result; otherwise the attempt of the call's newest start, 0 where there is none."""


@dataclass(slots=True, eq=False)
class Asked:
    """An approval and what became of it."""

    entry: WaitingEntry
    decision: Decision | None = None
    open: bool = True
    """Awaits a decision."""
    consumed: bool = False


@dataclass(slots=True, eq=False)
class Kept:
    """A text kept apart, and the run that it belongs to."""

    run: Run
    text: str | None
    total: int
    size: int
    digest: str
    erased_at: int | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """An owner's last sign of life. Seconds of a clock that never goes back."""

    at: float
    every: float
    since: float
    """When the first of those came that followed one another without a gap."""


def next_beat(last: Beat | None, every: float) -> Beat:
    """The sign of life that is left now."""
    now = time.monotonic()
    steady = last is not None and now - last.at <= DEAD_AFTER * every
    return Beat(now, every, last.since if last is not None and steady else now)


class Log:
    """One interaction."""

    __slots__ = (
        "created_at", "encoded", "entries", "erased", "id", "key_digest", "open_run", "participants", "sent",
        "sequence", "tenant",
    )  # fmt: skip  # names alone

    def __init__(self, tenant: str, interaction_id: str, created_at: int) -> None:
        self.created_at = created_at
        self.key_digest: str | None = None
        self.sent: dict[tuple[str, str], tuple[str, str]] = {}
        """By run and key: the digest of a message, and the run's status before it."""
        self.participants: tuple[Author, ...] = ()
        self.tenant = tenant
        self.id = interaction_id
        self.entries: list[Entry] = []
        self.sequence = 1
        self.open_run: Run | None = None
        self.encoded: list[tuple[bytes, bytes | None, bytes]] = []
        self.erased: dict[int, int] = {}

    def append(self, entries: Sequence[Entry]) -> int:
        number = len(self.entries)
        self.entries += entries
        for e in entries:
            number += 1
            e.entry = number
            width = e.width
            if width:
                e.sequence = self.sequence
                self.sequence += width
        return number

    def row(self) -> InteractionRow:
        open_run = None if self.open_run is None else self.open_run.new.run_id
        return InteractionRow(self.id, self.tenant, self.created_at, self.participants, open_run)

    def encode(self) -> list[tuple[bytes, bytes | None, bytes]]:
        """(body, content, hash) of every entry so far."""
        done = self.encoded
        previous = done[-1][2] if done else GENESIS
        for entry in self.entries[len(done) :]:
            body, content = encode(entry)
            previous = chain(previous, body)
            done.append((body, content, previous))
        return done

    def erase(self, run_id: str, at: int) -> int:
        """Put what is left of each entry of the run in its place; how many contents went."""
        erased = 0
        for i, (body, content, digest) in enumerate(self.encode()):
            if content is not None and self.entries[i].run_id == run_id:
                self.encoded[i] = (body, None, digest)
                self.entries[i] = decode(body, None, i + 1)
                self.erased[i + 1] = at
                erased += 1
        return erased


class Run:
    """One run: its row's changing fields, and what is needed to keep the laws of `commit`."""

    __slots__ = (
        "asked", "below", "calls", "ended_at", "ended_by", "epoch", "is_erased", "log", "new", "owner", "parent",
        "runnable", "started", "status", "thread", "updated_at", "wake_at",
    )  # fmt: skip  # names alone

    def __init__(self, new: NewRun, log: Log, parent: Run | None = None) -> None:
        if parent is not None and new.parent_epoch is not None:
            still_drives(parent.row(), new.parent_epoch)
        self.new = new
        self.log = log
        self.parent = parent
        self.below: tuple[Run, ...] = ()
        self.thread = new.entries[0].thread_id if new.entries else None
        self.status = "running"
        self.ended_by: str | None = None
        self.owner = new.owner
        self.epoch = 0 if new.owner is None else 1
        self.runnable = new.owner is None
        self.updated_at = new.created_at
        self.wake_at: int | None = None
        self.ended_at: int | None = None
        self.is_erased = False
        self.started: float | None = None if new.owner is None else time.monotonic()
        """When it was first claimed, in seconds of a clock that never goes back."""
        self.calls: dict[tuple[int, int], int] = {}
        self.asked: dict[str, Asked] | None = None

    @property
    def ended(self) -> bool:
        return self.status not in ("running", "paused")

    def with_below(self) -> list[Run]:
        """It, and the runs below it."""
        return [self, *(lower for run in self.below for lower in run.with_below())]

    def row(self) -> RunRow:
        new = self.new
        return RunRow(
            new.run_id, new.interaction_id, new.tenant, new.agent, self.status, self.ended_by, self.epoch,
            self.owner, self.runnable, new.created_at, self.updated_at, self.wake_at, new.key, new.parent,
            new.pool, new.priority, new.not_before,
        )  # fmt: skip  # one field a line would fill half a page

    def check(self, entries: Sequence[Entry]) -> dict[tuple[int, int], int]:
        """The new state of each call that the entries start or settle.

        Raises:
            Fenced: an entry would break a law.
            UsageError: an entry belongs to another run or thread.
        """
        run_id, thread, calls = self.new.run_id, self.thread, self.calls
        after: dict[tuple[int, int], int] = {}
        used: list[str] = []
        for e in entries:
            if e.run_id != run_id or (e.thread_id != thread and isinstance(e, (TurnEntry, CallEntry))):
                raise UsageError(f"an entry of run {e.run_id}, thread {e.thread_id} is not of run {run_id}, {thread}")
            kind = type(e)
            if kind is StartEntry:
                key = (e.step, e.index)  # type: ignore[attr-defined]  # mypy does not narrow by `is`
                state = after[key] if key in after else calls.get(key, 0)
                if not 0 <= state < e.attempt or e.approval_id is not None:  # type: ignore[attr-defined]  # as above
                    self._check_start(e, state, used)  # type: ignore[arg-type]  # as above
                after[key] = e.attempt  # type: ignore[attr-defined]  # as above
            elif kind is ResultEntry:
                key = (e.step, e.index)  # type: ignore[attr-defined]  # as above
                state = after[key] if key in after else calls.get(key, 0)
                if state < 0 or state != e.attempt:  # type: ignore[attr-defined]  # as above
                    raise Fenced(f"a call of run {run_id} has a result or a newer start already; read the run again")
                after[key] = SETTLED
            elif kind is WaitingEntry and self.asked is None:
                self.asked = {}
        return after

    def _check_start(self, e: StartEntry, state: int, used: list[str]) -> None:
        if not 0 <= state < e.attempt:
            raise Fenced(f"call {e.call_id} of run {e.run_id} was started or settled before; read the run again")
        if e.approval_id is None:
            return
        asked = (self.asked or {}).get(e.approval_id)
        if (
            asked is None
            or asked.consumed
            or e.approval_id in used
            or asked.decision is None
            or asked.decision.choice not in ("approve", "rerun")
            or (asked.entry.step, asked.entry.index) != (e.step, e.index)
        ):
            raise Fenced(f"approval {e.approval_id} of call {e.call_id} gives no start (any more); read the run again")
        used.append(e.approval_id)

    def track(self, e: Entry) -> None:
        """Open, consume or close approvals as an entry that is now on record says."""
        if self.asked is None:
            return
        if isinstance(e, WaitingEntry):
            self.close(e.step, e.index)
            self.asked[e.approval.id] = Asked(e)
        elif type(e) is ResultEntry:
            self.close(e.step, e.index)
        elif isinstance(e, StartEntry) and e.approval_id is not None:
            self.asked[e.approval_id].consumed = True

    def close(self, step: int | None = None, index: int | None = None) -> None:
        """Close the open approvals of one call, or all."""
        for asked in (self.asked or {}).values():
            if step is None or (asked.entry.step, asked.entry.index) == (step, index):
                asked.open = False

    def wake(self) -> None:
        """Something happened that the run's driver must see, and those of the runs above it."""
        run: Run | None = self
        while run is not None:
            run.runnable = not run.ended
            run = run.parent

    def change(self, change: StatusChange, at: int) -> None:
        self.status = change.status
        self.ended_by = change.ended_by
        self.wake_at = change.wake_at
        self.updated_at = at
        if change.status != "running" or change.leaves:
            self.owner = None
        if change.status != "running" and self.parent is not None:
            self.parent.runnable = not self.parent.ended
        if self.ended:
            self.runnable = False
            self.ended_at = at
            self.close()
            if self.log.open_run is self:
                self.log.open_run = None
