"""Reader: a PERSON. What happened in a run, a row each: messages, calls, decisions, pauses, the end.

A call's row tells in the tool's own narration what was done; where the tool gave none, `narrate` makes a
sentence of tool, outcome, size and time. A model's reasoning and an operator's text of a failure never stand
here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from counterfoil.core.approval import Approval
from counterfoil.core.call_entries import DecidedEntry, WaitingEntry
from counterfoil.core.entries import (
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
from counterfoil.core.narrate import (
    ENDED_BY,
    TURN_ENDS,
    child_text,
    decision_text,
    import_notes,
    narration,
    notes,
    one_line,
    open_text,
    waits_text,
)
from counterfoil.core.outcome import outcome_to_json
from counterfoil.core.parts import call_part, participant, result_part
from counterfoil.core.record import CallState, Record, RunState
from counterfoil.core.row import Row, Summary
from counterfoil.core.threads import Thread, family, lines, runs_on
from counterfoil.core.turn import AuthorType, moment
from counterfoil.core.waits import waits_of

__all__ = ["Row", "Summary", "rows", "summary"]

OUTCOMES = ("succeeded", "failed", "denied", "rejected", "skipped", "cancelled", "open")
"""In the order of a summary; ``open``: no result yet."""

SYSTEM: tuple[AuthorType, str] = ("System", "")


def rows(record: Record, run_id: str, thread: Thread = ..., now: datetime | None = None) -> list[Row]:
    """The timeline of a run and the runs below it in reading order; with a thread, what happened there.

    A call has one row, right after its turn, with its approval, start and result folded in; what people
    decided and when the run paused stands where it happened. ``now``: of `waits_of`.

    Raises:
        KeyError: the record has no such run.
    """
    entries: list[Entry] = list(lines(record, run_id, thread))
    for one in runs_on(record, run_id, thread).values():
        if one.head is not None and thread in (..., one.head.thread_id):
            entries += [one.head, *one.log]
    # An entry without a number is not on record yet, so it comes last.
    entries.sort(key=lambda entry: (entry.entry == 0, entry.entry))
    asked: dict[tuple[str, str], Approval] = {}
    found: list[Row] = []
    for entry in entries:
        run = record.runs[entry.run_id]
        match entry:
            case WaitingEntry():
                asked[entry.run_id, entry.call_id] = entry.approval
            case DecidedEntry():
                found.append(_decided_row(entry, run, asked.pop((entry.run_id, entry.call_id), None)))
            case PausedEntry():
                waits = waits_text(waits_of(record, run, moment(entry.at), entry.entry or math.inf), run.run_id)
                found.append(_row(entry, run, "paused", SYSTEM, f"waits for {waits}" if waits else "paused"))
            case TurnEntry():
                found += _turn_rows(entry, run, record, now)
            case QueuedEntry() if entry.entry not in record.queued:
                pass  # its message stands where it was delivered
            case _:
                found.append(_plain_row(entry, run))
    return found


def summary(record: Record, run_id: str, now: datetime | None = None) -> Summary:
    """A run in numbers, those of the runs below it included; ``now``: of `waits_of`.

    Raises:
        KeyError: the record has no such run.
    """
    run, of = record.runs[run_id], family(record, run_id)
    outcomes = Counter(_outcome(call) for one in of.values() for call in one.calls)
    return Summary(
        status=run.status,
        ended_by=run.ended.ended_by if run.ended else None,
        outcomes={name: outcomes[name] for name in OUTCOMES if outcomes[name]},
        calls=outcomes.total(),
        steps=sum(one.turns for one in of.values()),
        usage=run.usage,
        seconds=run.seconds,
        runs=len(of) - 1,
        waits_for=tuple(waits_of(record, run, now)),
        run_id=run_id,
    )


def _outcome(call: CallState) -> str:
    return "open" if call.result is None else str(outcome_to_json(call.result.result.outcome)["type"])


def _row(entry: Entry, run: RunState, kind: str, who: tuple[AuthorType, str], text: str) -> Row:
    at = moment(entry.at)
    return Row(at, kind, entry.thread_id, participant(run, *who), one_line(text), run_id=run.run_id)


def _plain_row(entry: Entry, run: RunState) -> Row:
    match entry:
        case RunEntry():
            user = entry.caller.user
            began = "began" if entry.imported is None else "was imported"
            row = _row(entry, run, "run", SYSTEM, f"{entry.agent} {began}" + (f" for {user}" if user else ""))
            return replace(row, notes=import_notes(entry.imported or {}))
        case MessageEntry():
            row = _row(entry, run, "message", (entry.author_type, entry.author_name), entry.text)
            return replace(row, sequence=entry.sequence)
        case NoteEntry():
            return replace(_row(entry, run, "note", ("Human", entry.author_name), entry.text), sequence=entry.sequence)
        case QueuedEntry():
            return _row(entry, run, "queued", ("Human", entry.author_name), entry.text)
        case ResumedEntry():
            text = "went on with new limits" if entry.limits is not None else "went on"
            return _row(entry, run, "resumed", SYSTEM, text)
        case SummaryEntry():
            row = _row(entry, run, "summary", ("Agent", ""), entry.text)
            covered = f"the model reads it from here on in place of {entry.first} to {entry.last}"
            return replace(row, notes=(covered,))
        case CancelEntry():
            text = f"{entry.by or 'The caller'} cancelled the run{_because(entry.reason)}"
            return _row(entry, run, "cancel", ("Human", entry.by or ""), text)
        case EndedEntry():
            how = ENDED_BY.get(entry.ended_by, entry.ended_by)
            # A reason of an end that nobody wished says all that the general words say.
            said = entry.reason if entry.reason and entry.status != "completed" else f"{how}{_because(entry.reason)}"
            return _row(entry, run, "ended", SYSTEM, f"{entry.status}: {said}")
        case _:
            return _row(entry, run, entry.kind, SYSTEM, entry.kind)


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _decided_row(entry: DecidedEntry, run: RunState, seen: Approval | None) -> Row:
    text = decision_text(entry.tool_name, entry.decision, seen.effective_input if seen else None)
    row = _row(entry, run, "decision", ("Human", entry.decision.by or ""), text)
    return replace(row, step_index=entry.step, call_id=entry.call_id, tool_name=entry.tool_name)


def _turn_rows(turn: TurnEntry, run: RunState, record: Record, now: datetime | None) -> Iterator[Row]:
    if turn.head:
        row = _row(turn, run, "turn", ("Agent", ""), turn.text or "(no text)")
        said = (TURN_ENDS[turn.stop],) if turn.stop in TURN_ENDS else ()
        yield replace(row, sequence=turn.sequence + bool(turn.thought), step_index=turn.step, notes=said)
    for call in turn.calls:
        made = run.call_ids[call.call_id]
        child = record.runs.get(made.start.child) if made.start is not None and made.start.child else None
        row = _call_row(made, run)
        yield row if child is None else _over_child(row, made, child, record, now)


def _over_child(row: Row, call: CallState, child: RunState, record: Record, now: datetime | None) -> Row:
    """The row of a call that waits for another run, or waited: with how that stands, and no word of it."""
    told = f"child run {child.run_id} of {child.agent}: {replace(summary(record, child.run_id), waits_for=()).line}"
    text = row.text
    if call.result is None:
        waits = waits_text(waits_of(record, child, now), child.run_id)
        text = child_text(call.record.tool_name, child.agent, child.status, waits)
    return replace(row, text=text, notes=(*row.notes, one_line(told)))


def _call_row(call: CallState, run: RunState) -> Row:
    asked = call_part(call)
    known = asked.effective_input if asked.effective_input is not None else asked.input
    row = Row(
        at=moment(call.turn.at),
        kind="call",
        thread_id=call.turn.thread_id,
        author=participant(run, "Agent", ""),
        text=open_text(call),
        sequence=asked.sequence,
        step_index=asked.step_index,
        call_id=asked.call_id,
        tool_name=asked.tool_name,
        state=asked.state,
        approval=asked.approval,
        attempt=asked.attempt or None,
        notes=notes(call, None, run.run_id),
        input=asked.raw_input if known is None else known,
        run_id=run.run_id,
    )
    if call.result is None:
        return row
    part = result_part(call, run)
    return replace(
        row,
        author=part.author,
        text=narration(part),
        sequence=part.sequence,
        outcome=_outcome(call),
        code=part.error_code,
        attempt=part.attempt,
        started_at=part.started_at,
        ended_at=part.date,
        duration_ms=part.duration_ms,
        size=part.result_size,
        kept=part.tool_result_id is not None,
        ended_run=part.ended_run,
        notes=notes(call, part, run.run_id),
        details=part.result.details,
    )
