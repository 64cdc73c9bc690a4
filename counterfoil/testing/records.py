"""Records for tests, made in one line each; every field can be given otherwise."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from counterfoil.core.approval import Approval, ApprovalKind, Choice, Decision, input_digest
from counterfoil.core.call import Caller
from counterfoil.core.call_entries import LateEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.entries import (
    CallRecord,
    CancelEntry,
    EndedEntry,
    MessageEntry,
    QueuedEntry,
    ResumedEntry,
    RunEntry,
    TurnEntry,
)
from counterfoil.core.jsontext import dumps
from counterfoil.core.limits import DEFAULT_LIMITS
from counterfoil.core.outcome import ToolFailure
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import moment
from counterfoil.store import KeptText, Lease, NewRun, Owner, RunRow, StatusChange

TENANT = "acme"
NOON = 1_792_584_000_000_000
"""Microseconds since 1970: noon of a day in 2026."""
WORKER = Owner("host-1", 101, 1001)
OTHER_WORKER = Owner("host-2", 102, 1002)


def new_run(run_id: str = "run-1", interaction_id: str = "talk-1", **other: Any) -> NewRun:
    """A run that this process drives, with a message; ``text`` and ``thread_id`` go into the entries."""
    text, thread = other.pop("text", "Hello"), other.pop("thread_id", None)
    tenant = other.setdefault("tenant", TENANT)
    given = {"new_interaction": True, "agent": "support", "created_at": NOON, "owner": WORKER, **other}
    first = RunEntry(
        run_id=run_id,
        thread_id=thread,
        at=NOON,
        agent=given["agent"],
        caller=Caller(tenant),
        limits=DEFAULT_LIMITS,
    )
    message = MessageEntry(run_id=run_id, thread_id=thread, at=NOON, text=text)
    return NewRun(run_id=run_id, interaction_id=interaction_id, entries=(first, message), **given)


def lease_of(row: RunRow) -> Lease:
    """What the run's owner holds."""
    return Lease(row.tenant, row.run_id, row.interaction_id, row.epoch)


def turn(run_id: str = "run-1", step: int = 0, calls: int = 1, text: str = "", **other: Any) -> TurnEntry:
    """A turn with so many calls, named ``call-<step>-<index>``."""
    made = tuple(CallRecord(f"call-{step}-{i}", f"p{i}", "get_order", '{"id": 7}') for i in range(calls))
    stop = "calls" if calls else "end"
    return TurnEntry(run_id=run_id, at=NOON, step=step, text=text, calls=made, stop=stop, **other)


def _call(run_id: str, step: int, index: int) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "at": NOON,
        "step": step,
        "index": index,
        "call_id": f"call-{step}-{index}",
        "tool_name": "get_order",
    }


def start(run_id: str = "run-1", step: int = 0, index: int = 0, attempt: int = 1, **other: Any) -> StartEntry:
    """The start of a call."""
    given = {"key": f"{run_id}/{step}/{index}", "safe": False, "effective": b'{"id":7}', **other}
    return StartEntry(**{**_call(run_id, step, index), "attempt": attempt, **given})


def result(
    run_id: str = "run-1", step: int = 0, index: int = 0, attempt: int = 1, text: str = "fine", **other: Any
) -> ResultEntry:
    """The result of a call."""
    given = {"result": ToolResult.text(text), "size": len(text.encode("utf-8", "replace")), **other}
    return ResultEntry(**{**_call(run_id, step, index), "attempt": attempt, **given})


def late(run_id: str = "run-1", step: int = 0, index: int = 0, text: str = "late") -> LateEntry:
    """A result that came too late."""
    size = len(text.encode())
    return LateEntry(**_call(run_id, step, index), attempt=1, result=ToolResult.text(text), size=size)


def approval(
    run_id: str = "run-1", step: int = 0, index: int = 0, kind: ApprovalKind = "approval", **other: Any
) -> Approval:
    """What waits for a person; its id is ``ask-<step>-<index>`` unless given."""
    given: dict[str, Any] = {
        "id": f"ask-{step}-{index}",
        "input": {"id": 7},
        "effective_input": {"id": 7},
        "digest": input_digest("get_order", b'{"id":7}'),
        "rule": "ask-first",
        "reason": None,
        "requested_at": moment(NOON),
        "tenant": TENANT,
    }
    call = {"run_id": run_id, "call_id": f"call-{step}-{index}", "tool_name": "get_order"}
    return Approval(**{**given, **call, "kind": kind, **other})


def waiting(run_id: str = "run-1", step: int = 0, index: int = 0, **other: Any) -> WaitingEntry:
    """The entry that opens an approval; ``other`` is for the approval."""
    return WaitingEntry(**_call(run_id, step, index), approval=approval(run_id, step, index, **other))


def decision(choice: Choice = "approve", by: str | None = "grace", **other: Any) -> Decision:
    """What a person decided."""
    return Decision(choice, by, **{"at": NOON, **other})


def ended(run_id: str = "run-1", status: str = "completed", ended_by: str = "answer") -> EndedEntry:
    """The run's end."""
    return EndedEntry(run_id=run_id, at=NOON, status=status, ended_by=ended_by, answer="Done.")


def paused(wake_at: int | None = None) -> StatusChange:
    """The run waits for people, or for a time."""
    return StatusChange("paused", wake_at=wake_at)


def cancel(run_id: str = "run-1") -> CancelEntry:
    """A wish to end."""
    return CancelEntry(run_id=run_id, at=NOON + 1, reason="enough", by="ada")


def queued(run_id: str = "run-1", text: str = "One more thing") -> QueuedEntry:
    """A message into a live run."""
    return QueuedEntry(run_id=run_id, at=NOON + 1, text=text)


def resumed(run_id: str = "run-1") -> ResumedEntry:
    """New limits for a limited run."""
    return ResumedEntry(run_id=run_id, at=NOON + 1, limits=DEFAULT_LIMITS)


def report(run_id: str = "run-1", step: int = 0, index: int = 0, **other: Any) -> ToolErrorReport:
    """The report of a failed call."""
    given: dict[str, Any] = {
        "tenant_id": TENANT,
        "user_context": Caller(TENANT),
        "interaction_id": "talk-1",
        "thread_id": "main",
        "run_id": run_id,
        "step_index": step,
        "call_id": f"call-{step}-{index}",
        "tool_name": "get_order",
        "input": {"id": 7},
        "error": ToolFailure(message="no such order", code=404),
        "code": 404,
        "model_text": "There is no such order.",
        "duration_ms": 1.5,
        "at_us": NOON,
    }
    return ToolErrorReport(**{**given, **other})


def kept_text(text: str, kept_id: str = "kept-1") -> KeptText:
    """A text kept apart."""
    data = text.encode()
    return KeptText(kept_id, text, len(data), hashlib.sha256(data).hexdigest())


def later(microseconds: int) -> datetime:
    """So long after noon."""
    return moment(NOON + microseconds)


def json_bytes(value: object) -> bytes:
    """A value as the record writes it."""
    return dumps(value)
