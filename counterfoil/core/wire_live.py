"""Reader: the CLIENT. Events, approvals and error reports as JSON; the names are a promise."""

from __future__ import annotations

from counterfoil.core.approval import Approval, Decision
from counterfoil.core.events import (
    CallEnded,
    CallProgress,
    CallStarted,
    CallWaiting,
    Decided,
    Event,
    RunEnded,
    RunPaused,
    RunResumed,
    RunStarted,
    TurnDelta,
    TurnRecorded,
)
from counterfoil.core.jsontext import JsonValue, loads
from counterfoil.core.report import ReportGroup, ToolErrorReport
from counterfoil.core.turn import date_json, moment
from counterfoil.core.wire import Fields, author_json, usage_json


def approval_json(approval: Approval) -> Fields:
    """What waits for a person, by field; times as `date_json` writes them."""
    expires = approval.expires_at
    return {
        **approval.to_json(),
        "requestedAt": date_json(approval.requested_at),
        "expiresAt": None if expires is None else date_json(expires),
    }


def report_json(report: ToolErrorReport) -> Fields:
    """An error report by field; its time as `date_json` writes it."""
    return {**report.to_json(), "at": date_json(report.at)}


def group_json(group: ReportGroup) -> Fields:
    """A group of error reports by field; times as `date_json` writes them."""
    return {
        "toolName": group.tool_name,
        "code": group.code,
        "count": group.count,
        "firstAt": date_json(group.first_at),
        "lastAt": date_json(group.last_at),
    }


def event_json(event: Event) -> Fields:
    """An event by field: ``type``, what all events have, and what its kind has."""
    return {
        "type": type(event).__name__,
        "entry": event.entry,
        "runId": event.run_id,
        "threadId": event.thread_id,
        "at": date_json(event.at),
        **_own(event),
    }


def _own(event: Event) -> Fields:
    match event:
        case RunStarted() | RunResumed():
            return {"agent": event.agent}
        case TurnDelta():
            return {"text": event.text, "reasoning": event.reasoning, "toolName": event.tool_name}
        case TurnRecorded():
            calls: list[JsonValue] = [{"callId": call_id, "toolName": name} for call_id, name in event.calls]
            return {
                "stepIndex": event.step_index,
                "text": event.text,
                "calls": calls,
                "usage": usage_json(event.usage),
                "stop": event.stop,
            }
        case CallWaiting():
            return {**_call(event), "approval": approval_json(event.approval)}
        case CallStarted():
            return {**_call(event), "attempt": event.attempt, "input": event.input}
        case CallProgress():
            return {**_call(event), "text": event.text, "done": event.done, "total": event.total}
        case CallEnded():
            part = event.part
            place: Fields = {
                "sequence": part.sequence,
                "author": author_json(part.author),
                "date": date_json(part.date),
            }
            return {**_call(event), "part": {**part.to_json(), **place}}
        case Decided():
            return {**_call(event), "decision": _decision(event.decision)}
        case RunPaused():
            return {"waiting": list(event.waiting)}
        case RunEnded():
            return {
                "status": event.status,
                "endedBy": event.ended_by,
                "answer": event.answer,
                "reason": event.reason,
            }
        case _:
            return {}


def _call(event: CallWaiting | CallStarted | CallProgress | CallEnded | Decided) -> Fields:
    return {"callId": event.call_id, "toolName": event.tool_name}


def _decision(decision: Decision) -> Fields:
    return {
        "decision": decision.choice,
        "by": decision.by,
        "roles": list(decision.roles),
        "approval": decision.approval,
        "reason": decision.reason,
        "input": None if decision.input is None else loads(decision.input),
        "value": decision.value,
        "digest": decision.digest,
        "at": date_json(moment(decision.at)),
    }
