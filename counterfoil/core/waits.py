"""What a run waits for: people's words on its calls and on those of the runs below it, and agents at work there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from counterfoil.core.approval import expired
from counterfoil.core.call_entries import DecidedEntry, WaitingEntry
from counterfoil.core.entries import EndedEntry, ResumedEntry
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.record import CallState, Record, RunState


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that a run waits for. It holds no word of a run below it, so whoever sees the run may see it."""

    kind: Literal["approval", "question", "interrupted", "run"]
    """What a person is asked for, as of an `Approval`; ``run``: an agent is at work."""
    run_id: str
    """Where a call waits for a person; or the run at work."""
    agent: str
    """Whose run that is; empty of a run that has not begun."""
    call_id: str
    """The call that waits for the person, or for the run."""
    tool_name: str
    approvers: tuple[str, ...] = ()
    """Who may decide; empty: whoever may at all."""

    def to_json(self) -> dict[str, JsonValue]:
        """By field, in camelCase."""
        return {
            "kind": self.kind,
            "runId": self.run_id,
            "agent": self.agent,
            "callId": self.call_id,
            "toolName": self.tool_name,
            "approvers": list(self.approvers),
        }


def waits_of(record: Record, run: RunState, now: datetime | None = None, before: float = math.inf) -> list[Wait]:
    """What a run waits for, its own calls first and then those below.

    Args:
        record: the interaction.
        run: a run of it.
        now: what expired by then waits for nobody any more, whether it is settled yet or not; None: nothing does.
        before: an entry's number: as it stood then, however far the run is folded by now.
    """
    found = [
        Wait(e.approval.kind, run.run_id, run.agent, e.call_id, e.tool_name, e.approval.approvers)
        for e in _asked(run, now, before)
    ]
    for call in _open(run, before):
        child_id = _child(call, before)
        if child_id is None:
            continue
        child = record.runs.get(child_id)
        if child is None or _works(record, child, now, before):
            agent = "" if child is None else child.agent
            found.append(Wait("run", child_id, agent, call.record.call_id, call.record.tool_name))
        if child is not None and child.parent is run:
            found += waits_of(record, child, now, before)
    return found


def _open(run: RunState, before: float) -> list[CallState]:
    return [c for c in run.calls if c.turn.entry < before and (c.result is None or c.result.entry > before)]


def _child(call: CallState, before: float) -> str | None:
    return call.start.child if call.start is not None and call.start.entry < before else None


def _asked(run: RunState, now: datetime | None, before: float) -> list[WaitingEntry]:
    waiting: dict[str, WaitingEntry] = {}
    for entry in run.log:
        if entry.entry >= before:
            break
        if isinstance(entry, WaitingEntry):
            waiting[entry.call_id] = entry
        elif isinstance(entry, DecidedEntry):
            waiting.pop(entry.call_id, None)
    still = {call.record.call_id for call in _open(run, before)}
    return [
        entry
        for call_id, entry in waiting.items()
        if call_id in still and (now is None or not expired(entry.approval, now))
    ]


def _works(record: Record, run: RunState, now: datetime | None, before: float) -> bool:
    """It has not ended, and does more than to wait for people and for runs below it that have not ended."""
    if _ended(run, before):
        return False
    waiting = {entry.call_id for entry in _asked(run, now, before)}
    calls = _open(run, before)
    for call in calls:
        child_id = _child(call, before)
        if child_id is not None and not (child_id in record.runs and _ended(record.runs[child_id], before)):
            waiting.add(call.record.call_id)
    return len(waiting) < max(len(calls), 1)


def _ended(run: RunState, before: float) -> bool:
    ends = [e for e in run.log if e.entry < before and isinstance(e, EndedEntry | ResumedEntry)]
    return bool(ends) and isinstance(ends[-1], EndedEntry)
