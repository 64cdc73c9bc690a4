"""Events: what happens in a run, as frozen records. All but deltas and progress are read from the record."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from counterfoil.core.approval import Approval, Decision
from counterfoil.core.call_entries import DecidedEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.entries import EndedEntry, Entry, PausedEntry, ResumedEntry, RunEntry, TurnEntry
from counterfoil.core.items import ToolResultPart
from counterfoil.core.jsontext import JsonValue, loads
from counterfoil.core.parts import result_part
from counterfoil.core.record import Record
from counterfoil.core.turn import Usage, moment
from counterfoil.core.waits import waits_of


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
    """The call ids that wait, here and in the runs below it: each can be decided in this run."""


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


def event_of(entry: Entry, record: Record) -> Event | None:
    """The event that an entry amounts to; None for entries that are no event.

    Args:
        entry: an entry of the interaction.
        record: the interaction, folded at least up to ``entry``.
    """
    head = (entry.entry, entry.run_id, entry.thread_id, moment(entry.at))
    match entry:
        case ResultEntry(kind="result"):
            run = record.runs[entry.run_id]
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
            asked = waits_of(record, record.runs[entry.run_id], head[-1], entry.entry)
            return RunPaused(*head, tuple(one.call_id for one in asked if one.kind != "run"))
        case ResumedEntry():
            begun = record.runs[entry.run_id].head
            return RunResumed(*head, "" if begun is None else begun.agent)
        case EndedEntry():
            return RunEnded(*head, entry.status, entry.ended_by, entry.answer, entry.reason)
        case RunEntry():
            return RunStarted(*head, entry.agent)
        case _:
            return None
