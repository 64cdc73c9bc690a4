"""The fold: entries in order of arrival become what loop and readers work with, and only here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias, cast

from counterfoil.core.call_entries import DecidedEntry, LateEntry, MemoEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.entries import (
    CallRecord,
    CancelEntry,
    EndedEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    PausedEntry,
    QueuedEntry,
    ResumedEntry,
    RunEntry,
    SummaryEntry,
    TurnEntry,
)
from counterfoil.core.items import CallStateName
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.limits import DEFAULT_LIMITS, Limits
from counterfoil.core.outcome import Failed
from counterfoil.core.turn import NO_USAGE, RUNS_NOTHING, Usage

Item: TypeAlias = "MessageEntry | TurnEntry | ResultEntry"


@dataclass(slots=True, eq=False, repr=False)
class CallState:
    """All that is on record about one call."""

    turn: TurnEntry
    index: int
    record: CallRecord
    waiting: WaitingEntry | None = None
    """The newest approval of the call."""
    decided: DecidedEntry | None = None
    """The decision on `waiting`."""
    edits: tuple[tuple[WaitingEntry, DecidedEntry], ...] = ()
    """What people changed in its input, each with the approval that they saw."""
    start: StartEntry | None = None
    """The newest start."""
    result: ResultEntry | None = None
    late: list[LateEntry] | None = None
    memos: dict[str, JsonValue] | None = None

    @property
    def key(self) -> tuple[int, int]:
        """(step, index): our key of the call in its run."""
        return self.turn.step, self.index

    @property
    def pending(self) -> bool:
        """It waits for a decision that has not come."""
        return self.result is None and self.waiting is not None and self.decided is None

    @property
    def in_flight(self) -> bool:
        """Its newest start has neither a result nor an approval after it: a body runs, or died."""
        return (
            self.result is None
            and self.start is not None
            and self.start.child is None
            and (self.waiting is None or self.waiting.entry < self.start.entry)
        )

    @property
    def child(self) -> str | None:
        """The run that it waits for."""
        return self.start.child if self.start is not None and self.result is None else None

    @property
    def state(self) -> CallStateName:
        """Where the call stands."""
        if self.result is not None:
            return "settled"
        if self.in_flight:
            return "started"
        if self.waiting is None:
            return "judged" if self.start is None else "waiting"
        return "interrupted" if self.waiting.approval.kind == "interrupted" else "waiting"


@dataclass(slots=True, eq=False, repr=False)
class RunState:
    """One run, folded."""

    run_id: str
    head: RunEntry | None = None
    limits: Limits = DEFAULT_LIMITS
    status: str = "running"
    turns: int = 0
    usage: Usage = NO_USAGE
    """With that of the runs below it, as are `seconds`."""
    calls: list[CallState] = field(default_factory=list)
    batch: list[CallState] = field(default_factory=list)
    """The calls of the newest turn."""
    open: int = 0
    """Calls of the batch without a result."""
    last_turn: TurnEntry | None = None
    failed_steps: int = 0
    """Steps in a row that failed."""
    seconds: float = 0.0
    """Seconds of work so far, pauses and downtime excluded."""
    last_at: int = 0
    ended_run: tuple[int, int] | None = None
    cancel: CancelEntry | None = None
    ended: EndedEntry | None = None
    call_ids: dict[str, CallState] = field(default_factory=dict)
    parent: RunState | None = None
    """The run whose call waits for this one."""
    left: bool = False
    """Nobody drives it: it waits for child runs that are at work."""
    log: list[Entry] = field(default_factory=list)
    """What readers show beside the items, in order of arrival: approvals and decisions (also those that later
    ones replaced), queued messages, summaries, pauses, resumes, cancels and ends."""

    @property
    def agent(self) -> str:
        """The name of its agent."""
        return "" if self.head is None else self.head.agent

    def above(self) -> Iterator[RunState]:
        """The runs that wait for it, from its parent to the root."""
        run = self.parent
        while run is not None:
            yield run
            run = run.parent

    def spend(self, usage: Usage) -> None:
        """Count it, here and in the runs that wait for it: spending counts up (contract 9)."""
        for run in (self, *self.above()):
            run.usage = run.usage + usage


class Record:
    """An interaction, folded. Append-only: `apply` each entry once, in order of arrival."""

    __slots__ = ("items", "kept", "notes", "queued", "runs", "threads", "tip")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.runs: dict[str, RunState] = {}
        self.items: list[Item] = []
        """The main thread in reading order; a batch's results join when it is complete."""
        self.threads: dict[str, list[Item]] = {}
        """Every other thread in the same way."""
        self.notes: list[NoteEntry] = []
        self.queued: dict[int, QueuedEntry] = {}
        """Messages that wait to be delivered, by entry."""
        self.kept: list[ResultEntry] | None = None
        """Results that are kept apart, of every run."""
        self.tip = 0
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: Entry) -> None:
        """Take one more entry in."""
        run = self.runs.get(entry.run_id)
        at, kind = entry.at, type(entry)
        if run is None:
            run = self.runs[entry.run_id] = RunState(entry.run_id, last_at=at)
        self.tip = entry.entry
        if run.status == "running" and kind is not ResumedEntry and not run.left:
            seconds = (at - run.last_at) / 1_000_000
            run.seconds += seconds
            if run.parent is not None:
                for above in run.above():
                    above.seconds += seconds
        run.last_at = at
        try:
            self._APPLY[kind](self, run, entry)
        except KeyError:
            call_id = getattr(entry, "call_id", None)
            if call_id is None or call_id in run.call_ids:
                raise
            # About a call that no turn on record made: it is shown to nobody, and `verify` reports it.

    def said(self) -> Sequence[Item | NoteEntry]:
        """All threads in reading order, with the notes; what is not on record yet comes last."""
        if not (self.threads or self.notes):
            return self.items
        every = [*self.items, *self.notes, *itertools.chain(*self.threads.values())]
        return sorted((e for e in every if type(e) is not ResultEntry), key=lambda e: (e.sequence == 0, e.sequence))

    def thread(self, thread: str | None) -> list[Item]:
        """One thread, in the way of `items`; empty where nothing was said on it."""
        return self.items if thread is None else self.threads.setdefault(thread, [])

    def _run(self, run: RunState, entry: RunEntry) -> None:
        run.head = entry
        run.limits = entry.limits
        if entry.parent is not None:
            run.parent = self.runs.get(entry.parent)

    def _note(self, _run: RunState, entry: NoteEntry) -> None:
        self.notes.append(entry)

    def _message(self, run: RunState, entry: MessageEntry) -> None:
        self.thread(entry.thread_id).append(entry)
        if entry.queued is not None:
            self.queued.pop(entry.queued, None)
        if entry.author_type == "System":
            run.failed_steps += 1

    def _queued(self, run: RunState, entry: QueuedEntry) -> None:
        self.queued[entry.entry] = entry
        run.log.append(entry)

    def _turn(self, run: RunState, entry: TurnEntry) -> None:
        run.turns += 1
        if entry.usage is not NO_USAGE or entry.discarded is not NO_USAGE:
            run.spend(entry.usage + entry.discarded)
        run.last_turn = entry
        run.batch = batch = []
        for index, record in enumerate(entry.calls):
            call = run.call_ids[record.call_id] = CallState(entry, index, record)
            batch.append(call)
        run.open = len(batch)
        run.calls += batch
        (self.items if entry.thread_id is None else self.thread(entry.thread_id)).append(entry)

    def _summary(self, run: RunState, entry: SummaryEntry) -> None:
        run.log.append(entry)
        for one in (run, *run.above()):
            one.usage = one.usage + entry.usage

    def _waiting(self, run: RunState, entry: WaitingEntry) -> None:
        call = run.call_ids[entry.call_id]
        call.waiting, call.decided = entry, None
        run.log.append(entry)

    def _decided(self, run: RunState, entry: DecidedEntry) -> None:
        call = run.call_ids[entry.call_id]
        call.decided = entry
        if entry.decision.input is not None and call.waiting is not None:
            call.edits += ((call.waiting, entry),)
        run.log.append(entry)

    def _start(self, run: RunState, entry: StartEntry) -> None:
        run.call_ids[entry.call_id].start = entry

    def _result(self, run: RunState, entry: ResultEntry) -> None:
        call = run.call_ids[entry.call_id]
        call.result = entry
        if entry.kept_id is not None:
            self.kept = self.kept or []
            self.kept.append(entry)
        run.open -= 1
        if not run.open:
            failed = True
            items = self.items if entry.thread_id is None else self.thread(entry.thread_id)
            for done in run.batch:
                result: ResultEntry = done.result  # type: ignore[assignment]  # none of the batch is open
                items.append(result)
                failed = failed and type(result.result.outcome) is Failed
            run.failed_steps = run.failed_steps + 1 if failed or call.turn.stop in RUNS_NOTHING else 0

    def _late(self, run: RunState, entry: LateEntry) -> None:
        call = run.call_ids[entry.call_id]
        call.late = [*(call.late or ()), entry]

    def _memo(self, run: RunState, entry: MemoEntry) -> None:
        call = run.call_ids[entry.call_id]
        call.memos = {**(call.memos or {}), entry.name: entry.value}

    def _paused(self, run: RunState, entry: PausedEntry) -> None:
        run.left = entry.children
        run.status = "running" if entry.children else "paused"
        run.log.append(entry)
        run.ended_run = run.ended_run or entry.ended_run

    def _resumed(self, run: RunState, entry: ResumedEntry) -> None:
        run.status = "running"
        run.left = False
        run.ended = None
        run.log.append(entry)
        if entry.limits is not None:
            run.limits = entry.limits

    def _ended(self, run: RunState, entry: EndedEntry) -> None:
        run.status = entry.status
        run.ended = entry
        if entry.discarded is not NO_USAGE:
            run.spend(entry.discarded)
        run.log.append(entry)
        run.ended_run = run.ended_run or entry.ended_run

    def _cancel(self, run: RunState, entry: CancelEntry) -> None:
        run.cancel = run.cancel or entry
        run.log.append(entry)

    _APPLY: ClassVar[Mapping[type[Entry], Callable[[Record, RunState, Entry], None]]] = cast(
        "Mapping[type[Entry], Callable[[Record, RunState, Entry], None]]",
        {
            RunEntry: _run,
            MessageEntry: _message,
            NoteEntry: _note,
            QueuedEntry: _queued,
            TurnEntry: _turn,
            SummaryEntry: _summary,
            WaitingEntry: _waiting,
            DecidedEntry: _decided,
            StartEntry: _start,
            ResultEntry: _result,
            LateEntry: _late,
            MemoEntry: _memo,
            PausedEntry: _paused,
            ResumedEntry: _resumed,
            EndedEntry: _ended,
            CancelEntry: _cancel,
        },
    )
