"""Reader: a PERSON. What happened in a run, a row each: messages, calls, decisions, pauses, the end.

A call's row tells in the tool's own narration what was done; where the tool gave none, `narrate` makes a
sentence of tool, outcome, size and time. A model's reasoning and an operator's text of a failure never stand
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from counterfoil.core.approval import Approval
from counterfoil.core.call_entries import DecidedEntry, ResultEntry, WaitingEntry
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
    decision_text,
    import_notes,
    narration,
    notes,
    one_line,
    open_text,
)
from counterfoil.core.outcome import outcome_to_json
from counterfoil.core.parts import call_part, participant, result_part
from counterfoil.core.record import CallState, Record, RunState
from counterfoil.core.row import Row, Summary
from counterfoil.core.threads import Thread, family
from counterfoil.core.turn import AuthorType, moment

__all__ = ["Row", "Summary", "rows", "summary"]

OUTCOMES = ("succeeded", "failed", "denied", "rejected", "skipped", "cancelled", "open")
"""In the order of a summary; ``open``: no result yet."""

SYSTEM: tuple[AuthorType, str] = ("System", "")


def rows(record: Record, run_id: str, thread: Thread = ...) -> list[Row]:
    """The timeline of a run in reading order; with a thread, what happened there in the run and the runs below it.

    A call has one row, right after its turn, with its approval, start and result folded in; what people
    decided and when the run paused stands where it happened.

    Raises:
        KeyError: the record has no such run.
    """
    of = {run_id: record.runs[run_id]} if thread is ... else family(record, run_id)
    entries: list[Entry] = []
    for one in of.values():
        if thread is ... or (one.head is not None and one.head.thread_id == thread):
            entries += [one.head] if one.head is not None else []
            entries += one.log
    said = (e for e in record.said() if not isinstance(e, ResultEntry) and thread in (..., e.thread_id))
    entries += [e for e in said if e.run_id in of or isinstance(thread, str)]
    # An entry without a number is not on record yet, so it comes last.
    entries.sort(key=lambda entry: (entry.entry == 0, entry.entry))
    pending: dict[str, Approval] = {}
    found: list[Row] = []
    for entry in entries:
        run = record.runs[entry.run_id]
        match entry:
            case WaitingEntry():
                pending[entry.call_id] = entry.approval
            case DecidedEntry():
                found.append(_decided_row(entry, run, pending.pop(entry.call_id, None)))
            case PausedEntry():
                found.append(_row(entry, run, "paused", SYSTEM, _paused_text(entry, run, pending)))
            case TurnEntry():
                found += _turn_rows(entry, run)
            case QueuedEntry() if entry.entry not in record.queued:
                pass  # its message stands where it was delivered
            case _:
                found.append(_plain_row(entry, run))
    return found


def summary(record: Record, run_id: str) -> Summary:
    """A run in numbers, those of the runs below it included.

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
    )


def _outcome(call: CallState) -> str:
    return "open" if call.result is None else str(outcome_to_json(call.result.result.outcome)["type"])


def _row(entry: Entry, run: RunState, kind: str, who: tuple[AuthorType, str], text: str) -> Row:
    return Row(moment(entry.at), kind, entry.thread_id, participant(run, *who), one_line(text))


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


def _paused_text(entry: PausedEntry, run: RunState, pending: dict[str, Approval]) -> str:
    """What the run waits for, as it stood when it paused."""
    if entry.children:
        return "waits for its child runs"
    waits = []
    for call_id, approval in pending.items():
        result = run.call_ids[call_id].result
        if result is None or result.entry > entry.entry:
            waits.append(f"{approval.tool_name} ({call_id})")
    return f"waits for a person: {', '.join(waits)}" if waits else "paused"


def _turn_rows(turn: TurnEntry, run: RunState) -> Iterator[Row]:
    if turn.head:
        row = _row(turn, run, "turn", ("Agent", ""), turn.text or "(no text)")
        said = (TURN_ENDS[turn.stop],) if turn.stop in TURN_ENDS else ()
        yield replace(row, sequence=turn.sequence + bool(turn.thought), step_index=turn.step, notes=said)
    for call in turn.calls:
        yield _call_row(run.call_ids[call.call_id], run)


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
