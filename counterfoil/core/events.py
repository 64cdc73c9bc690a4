"""Events: what happens in a run, as frozen records. All but deltas and progress are read from the record."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from counterfoil.core.approval import Approval, Decision
from counterfoil.core.call_entries import DecidedEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.entries import EndedEntry, Entry, PausedEntry, ResumedEntry, RunEntry, TurnEntry
from counterfoil.core.items import ToolResultPart
from counterfoil.core.jsontext import JsonValue, loads
from counterfoil.core.parts import result_part
from counterfoil.core.record import RunState
from counterfoil.core.turn import Usage, moment


@dataclass(frozen=True, slots=True)
class Event:
    """What all events have."""

    entry: int
    """The number of the entry that says so; of one that is not stored, the newest entry before it."""
    run_id: str
    thread_id: str | None
    at: datetime
    """UTC."""


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """A run is on record."""

    agent: str


@dataclass(frozen=True, slots=True)
class TurnDelta(Event):
    """A piece of a model's turn while it is made; never stored."""

    text: str
    reasoning: bool = False
    tool_name: str | None = None
    """Set when the piece belongs to a call's arguments."""


@dataclass(frozen=True, slots=True)
class TurnRecorded(Event):
    """A model turn is on record."""

    step_index: int
    text: str
    calls: tuple[tuple[str, str], ...]
    """(call_id, tool_name) of each."""
    usage: Usage
    stop: str


@dataclass(frozen=True, slots=True)
class CallWaiting(Event):
    """A call waits for a person."""

    call_id: str
    tool_name: str
    approval: Approval


@dataclass(frozen=True, slots=True)
class CallStarted(Event):
    """A body is about to run."""

    call_id: str
    tool_name: str
    attempt: int
    input: JsonValue


@dataclass(frozen=True, slots=True)
class CallProgress(Event):
    """A body says how far it is, or a generator gave an item; not stored."""

    call_id: str
    tool_name: str
    text: str
    done: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class CallEnded(Event):
    """A call has its one result."""

    call_id: str
    tool_name: str
    part: ToolResultPart


@dataclass(frozen=True, slots=True)
class Decided(Event):
    """A person decided."""

    call_id: str
    tool_name: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class RunPaused(Event):
    """The run waits for people alone."""

    waiting: tuple[str, ...]
    """The call ids that wait."""


@dataclass(frozen=True, slots=True)
class RunResumed(Event):
    """The run goes on."""

    agent: str


@dataclass(frozen=True, slots=True)
class RunEnded(Event):
    """The run is over."""

    status: str
    ended_by: str
    answer: str | None
    reason: str | None


AnyEvent: TypeAlias = (
    "RunStarted | TurnDelta | TurnRecorded | CallWaiting | CallStarted | CallProgress | CallEnded | Decided"
    " | RunPaused | RunResumed | RunEnded"
)


def event_of(entry: Entry, run: RunState) -> Event | None:
    """The event that an entry amounts to; None for entries that are no event.

    Args:
        entry: an entry of ``run``.
        run: the run, folded at least up to ``entry``.
    """
    head = (entry.entry, entry.run_id, entry.thread_id, moment(entry.at))
    match entry:
        case ResultEntry(kind="result"):
            call = run.call_ids.get(entry.call_id)
            return None if call is None else CallEnded(*head, entry.call_id, entry.tool_name, result_part(call, run))
        case StartEntry():
            return CallStarted(*head, entry.call_id, entry.tool_name, entry.attempt, loads(entry.effective))
        case TurnEntry():
            calls = tuple((c.call_id, c.tool_name) for c in entry.calls)
            return TurnRecorded(*head, entry.step, entry.text, calls, entry.usage, entry.stop)
        case WaitingEntry():
            return CallWaiting(*head, entry.call_id, entry.tool_name, entry.approval)
        case DecidedEntry():
            return Decided(*head, entry.call_id, entry.tool_name, entry.decision)
        case PausedEntry(children=False):
            return RunPaused(*head, _waiting_at(entry, run))
        case ResumedEntry():
            return RunResumed(*head, "" if run.head is None else run.head.agent)
        case EndedEntry():
            return RunEnded(*head, entry.status, entry.ended_by, entry.answer, entry.reason)
        case RunEntry():
            return RunStarted(*head, entry.agent)
        case _:
            return None


def _waiting_at(pause: PausedEntry, run: RunState) -> tuple[str, ...]:
    """The calls that waited at a pause, in the order of asking, however far the run is folded by now."""
    waiting: dict[str, None] = {}
    for entry in run.log:
        if entry.entry >= pause.entry:
            break
        if isinstance(entry, WaitingEntry):
            waiting[entry.call_id] = None
        elif isinstance(entry, DecidedEntry):
            waiting.pop(entry.call_id, None)
    results = {call_id: run.call_ids[call_id].result for call_id in waiting}
    return tuple(i for i, result in results.items() if result is None or result.entry > pause.entry)
