"""The past of one run: what is on record of it, by what a replay asks, and the time that it was then."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import cast

from counterfoil.core.call_entries import DecidedEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.differences import CallKey, of_its_hour
from counterfoil.core.entries import (
    CancelEntry,
    EndedEntry,
    Entry,
    MessageEntry,
    QueuedEntry,
    ResumedEntry,
    RunEntry,
    SummaryEntry,
    TurnEntry,
)
from counterfoil.effects import Effects


class Past(Effects):
    """Time as it was then, and the ids that were made then."""

    __slots__ = ("_count", "at", "ids")

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        """Microseconds since 1970, UTC."""
        self.ids: deque[str] = deque()
        """What comes next; afterwards ids are counted."""
        self._count = 0

    def reach(self, at: int) -> None:
        """It is that time now, unless it is later."""
        self.at = max(self.at, at)

    def now(self) -> int:
        return self.at

    def clock(self) -> float:
        return self.at / 1_000_000

    def new_id(self) -> str:
        if self.ids:
            return self.ids.popleft()
        self._count += 1
        return f"00000000-0000-7000-8000-{self._count:012x}"

    async def sleep(self, seconds: float) -> None:
        self.at += round(seconds * 1_000_000)
        await asyncio.sleep(0)


class Script:
    """What is on record of the run, by what it answers."""

    def __init__(self, entries: Sequence[Entry], run_id: str) -> None:
        mine = [e for e in entries if e.run_id == run_id]
        self.head = cast("RunEntry", mine[0])
        begun = next((i for i, e in enumerate(mine[1:], 1) if not _is_first(e, self.head)), len(mine))
        self.first = mine[:begun]
        """What the run was created with."""
        self.turns = {e.step: e for e in mine if isinstance(e, TurnEntry)}
        waiting = [e for e in mine if isinstance(e, WaitingEntry)]
        self.asked = {(e.step, e.index): e.approval for e in waiting if e.approval.kind == "question"}
        """Questions to people."""
        self.summaries = self._summaries(mine)
        self.results = {(e.step, e.index): e for e in mine if type(e) is ResultEntry}
        self.decisions = deque(e for e in mine if isinstance(e, DecidedEntry) and e.decision.choice in _OF_APPROVALS)
        self.resumed = deque(e for e in mine if isinstance(e, ResumedEntry) and e.limits is not None)
        self.ended = next((e for e in reversed(mine) if isinstance(e, EndedEntry)), None)
        self.queued = self._queued(entries, run_id)
        self.cancel = next((e for e in mine if isinstance(e, CancelEntry)), None)
        before = [] if self.cancel is None else mine[: mine.index(self.cancel)]
        self.before_cancel: set[CallKey] = {
            (e.step, e.index) for e in before if isinstance(e, StartEntry | ResultEntry)
        }
        """Calls that were started or had ended when it came."""
        self.cancel_step = max((e.step for e in before if isinstance(e, TurnEntry)), default=-1)
        self.after_cancel = {(e.step, e.index) for e in mine[len(before) :] if type(e) is ResultEntry and self.cancel}
        """Calls that ended after it."""

    @staticmethod
    def _summaries(mine: Sequence[Entry]) -> dict[int, deque[SummaryEntry]]:
        """Summaries by the step before whose turn they were made."""
        out: dict[int, deque[SummaryEntry]] = {}
        step = 0
        for entry in mine:
            if isinstance(entry, TurnEntry):
                step = entry.step + 1
            elif isinstance(entry, SummaryEntry):
                out.setdefault(step, deque()).append(entry)
        return out

    @staticmethod
    def _queued(entries: Sequence[Entry], run_id: str) -> dict[int, list[QueuedEntry]]:
        """Messages that came from outside, by the step of whose turn they are there; -1: from the start."""
        step, place, open_now, begun = -1, {}, False, False
        waits: dict[int, QueuedEntry] = {}
        here = {e.queued for e in entries if isinstance(e, MessageEntry) and e.run_id == run_id}
        for entry in entries:
            if isinstance(entry, QueuedEntry):
                # After the run's end it is for the next one, or for this one where it was resumed and read it.
                if (open_now and entry.run_id == run_id) or (begun and entry.entry in here):
                    waits[entry.entry] = entry
                    place[entry.entry] = step
                continue
            if entry.run_id != run_id:
                continue
            begun, open_now = True, not isinstance(entry, EndedEntry)
            if isinstance(entry, TurnEntry):
                step = entry.step
            elif isinstance(entry, MessageEntry) and entry.queued in place:
                # It may have come while the model was asked; what counts is when it was delivered.
                place[entry.queued] = step
        out: dict[int, list[QueuedEntry]] = {}
        for number, entry in waits.items():
            out.setdefault(place[number], []).append(entry)
        return out

    def given(self, key: CallKey) -> ResultEntry | None:
        """The result that stands in for a body."""
        result = self.results.get(key)
        if result is None:
            return None
        return result if result.attempt or of_its_hour(result.result) else None


_OF_APPROVALS = ("approve", "reject", "answer")


def _is_first(entry: Entry, head: RunEntry) -> bool:
    return isinstance(entry, TurnEntry) if head.direct else isinstance(entry, MessageEntry) and entry.queued is None
