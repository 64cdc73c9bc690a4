"""Reader: a PERSON. The sentences of a timeline: what a call did, what was edited, what somebody decided.

They are made of typed facts alone: tool, outcome, code, size, time, rule, a person's words. Never of a
model's reasoning, and never of the operator's message of a failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from counterfoil.core.approval import Decision
from counterfoil.core.items import ToolResultPart
from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.core.outcome import Cancelled, Denied, ErrorCode, Failed, Rejected, Skipped, Succeeded
from counterfoil.core.parts import call_part
from counterfoil.core.record import CallState
from counterfoil.core.shorten import clip
from counterfoil.core.states import OPEN
from counterfoil.core.waits import Wait

LINE = 200
"""Characters of a row's text: two lines of a terminal."""
WORD = 60
"""Characters of a value inside a line."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
"""What could move a terminal's cursor or turn the direction of a text."""

STILL_RUNNING = "may have had an effect, and may still be running"
STOPPED = "was stopped before its end, and may have had an effect"

ENDED_BY: Mapping[str, str] = {
    "tool": "a tool ended it",
    "vote": "all its calls voted to end",
    "answer": "the model answered",
    "limit": "a limit was reached",
    "cancelled": "it was cancelled",
    "error": "it failed",
    "import": "what was imported ends here",
}
"""How a run ended, for a person."""

TURN_ENDS: Mapping[str, str] = {"length": "cut off by its token limit", "refusal": "refused"}
"""How a turn ended that ran nothing, for a person."""


def one_line(text: str, most: int = LINE) -> str:
    """``text`` on one line of at most ``most`` characters, without what could move a terminal's cursor."""
    head = text[: 4 * most]
    line = " ".join(_CONTROL.sub(" ", head).split())
    return clip(line if len(head) == len(text) else f"{line} …", most)


def size_text(size: int) -> str:
    """A number of bytes in words, such as ``1.2 MB``."""
    if size < 1000:  # noqa: PLR2004  # a thousand bytes are a kilobyte
        return "1 byte" if size == 1 else f"{size} bytes"
    value, unit = size / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if value < 999.95:  # noqa: PLR2004  # from here on it would be written 1000.0
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}"


def time_text(ms: float) -> str:
    """Milliseconds in words, such as ``1.2 s``."""
    if ms < 1:
        return "under 1 ms"
    if ms < 999.5:  # noqa: PLR2004  # as above
        return f"{ms:.0f} ms"
    if ms < 59_950:  # noqa: PLR2004  # as above
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def value_text(value: JsonValue) -> str:
    """A JSON value inside a line, clipped."""
    return one_line(dumps(value).decode(), WORD)


def edits(before: JsonValue, after: JsonValue) -> str:
    """What changed between two inputs: ``field: old → new`` for each field, or the whole."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return f"{value_text(before)} → {value_text(after)}"
    changes = [
        f"{one_line(key, WORD)}: "
        f"{value_text(before[key]) if key in before else '(none)'} → "
        f"{value_text(after[key]) if key in after else '(none)'}"
        for key in {**before, **after}
        if (key in before) != (key in after) or dumps(before[key]) != dumps(after[key])
    ]
    return one_line(", ".join(changes)) or "nothing"


def narration(part: ToolResultPart) -> str:
    """What a settled call did: the tool's own narration, or a sentence made of the facts."""
    return one_line(part.result.narration or "") or one_line(_default(part))


def _default(part: ToolResultPart) -> str:
    tool = one_line(part.tool_name, WORD)
    took = "" if part.duration_ms is None else f" after {time_text(part.duration_ms)}"
    match part.result.outcome:
        case Succeeded():
            took = "" if part.duration_ms is None else f" in {time_text(part.duration_ms)}"
            return f"{tool} gave {size_text(part.result_size)}{took}"
        case Failed():
            return f"{tool} {failed_text(part)}{took}"
        case Denied(by="policy", rule=rule, reason=reason):
            named = f" (rule {rule})" if rule else ""
            return f"{tool} was denied by the policy{named}{_because(reason)}"
        case Denied(reason=reason):
            return f"{tool} refused the call{_because(reason)}"
        case Rejected(reason=reason, by=by):
            return f"{by or 'A person'} rejected {tool}{_because(reason)}"
        case Skipped(reason=reason, by=by):
            who = "the framework" if by == "framework" else "a guard"
            return f"{tool} was skipped by {who}{_because(reason)}"
        case Cancelled(reason=reason):
            return f"{tool} was cancelled{took}{_because(reason)}"


def failed_text(part: ToolResultPart) -> str:
    """``failed`` with name and code of the failure."""
    code = part.error_code
    if code is None:
        return "failed"
    if code in ErrorCode._value2member_map_:
        return f"failed: {ErrorCode(code).name} ({code})"
    return f"failed with code {code}"


def _because(reason: str | None) -> str:
    return f": {one_line(reason)}" if reason else ""


def open_text(call: CallState) -> str:
    """Where a call stands that has no result yet."""
    tool = one_line(call.record.tool_name, WORD)
    approval = call.waiting.approval if call.waiting else None
    if call.in_flight and call.start is not None:
        again = f" (attempt {call.start.attempt})" if call.start.attempt > 1 else ""
        return f"{tool} has started{again} and has no result yet"
    if call.child is not None:
        return f"{tool} waits for the answer of another agent"
    if approval is None:
        return f"{tool} has not started"
    if call.decided is not None:
        return one_line(f"{tool} is decided ({call.decided.decision.choice}) and goes on")
    if approval.kind == "interrupted":
        return f"{tool} was interrupted: nobody can say what it did, so a person decides"
    if approval.kind == "question":
        return f"{tool} waits for a person's answer"
    rule = f" (rule {approval.rule})" if approval.rule else ""
    return one_line(f"{tool} waits for a person's approval{rule}{_because(approval.reason)}")


def waits_text(waits: Sequence[Wait], run_id: str) -> str:
    """What a run waits for, behind "waits for"; empty where that is nothing."""
    asked = [
        f"{w.tool_name} ({w.call_id})" if w.run_id == run_id else f"{w.tool_name} ({w.call_id} of {w.agent})"
        for w in waits
        if w.kind != "run"
    ]
    at_work = [w.agent or "one that has not begun" for w in waits if w.kind == "run"]
    people = [f"a person: {', '.join(asked)}"] if asked else []
    return " and for ".join([*people, *([f"agents at work: {', '.join(at_work)}"] if at_work else [])])


def child_text(tool_name: str, agent: str, status: str, waits: str) -> str:
    """Where a call stands that waits for a run of another agent; ``waits`` is what that run waits for, in words."""
    at_work = "is at work" if status in OPEN else f"is {status}"
    return one_line(f"{tool_name} waits for {agent}, which {f'waits for {waits}' if waits else at_work}")


def notes(call: CallState, part: ToolResultPart | None, run_id: str) -> tuple[str, ...]:
    """What a person should know of a call beside its one line."""
    found: list[str] = []
    asked = call_part(call)
    before = call.waiting.approval.effective_input if call.waiting else asked.effective_input
    if call.edits:
        before = call.edits[0][0].approval.effective_input
    if asked.effective_input is not None and dumps(asked.input) != dumps(before):
        found.append(f"edited by a guard: {edits(asked.input, before)}")
    for seen, made in call.edits:
        after = loads(made.decision.input or b"null")
        by = made.decision.by or "a person"
        found.append(f"edited by {by}: {edits(seen.approval.effective_input, after)}")
    if part is None:
        return tuple(found)
    if part.failed and part.result.narration:
        found.append(failed_text(part))
    if part.tool_result_id is not None:
        size = size_text(part.result_size)
        found.append(f"kept apart: {size}, read with `counterfoil result {run_id} {part.sequence}`")
    failure = part.failure
    over = bool(call.late)
    if failure is not None and failure.body == "unknown" and failure.code == ErrorCode.INTERRUPTED:
        found.append("nobody can say whether it had its effect")
    elif part.started_at is not None and not over and (part.cancelled or (failure and failure.body == "unknown")):
        # Version 0.1.0 did not write down which: what may be so is said.
        found.append(STOPPED if call.result is not None and call.result.over else STILL_RUNNING)
    if part.attempt is not None and part.attempt > 1:
        found.append(f"took {part.attempt} attempts")
    if over:
        found.append("a result came too late and does not count")
    if part.replaced is not None:
        found.append("a guard changed the result")
    return tuple(found)


def import_notes(imported: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """What was repaired in a history from elsewhere, a line each."""
    repairs = imported.get("repairs")
    rows = [one for one in repairs if isinstance(one, dict)] if isinstance(repairs, list) else []
    return tuple(one_line(f"repaired {one.get('place')}: {one.get('why')}") for one in rows)


def decision_text(tool_name: str, decision: Decision, before: JsonValue) -> str:
    """What a person decided about a call.

    Args:
        tool_name: the call's tool.
        decision: what was decided.
        before: the input that the person saw.
    """
    who, tool = decision.by or "A person", one_line(tool_name, WORD)
    match decision.choice:
        case "approve":
            if decision.input is None:
                return one_line(f"{who} approved {tool}{_because(decision.reason)}")
            changes = edits(before, loads(decision.input))
            return one_line(f"{who} approved {tool} with changes: {changes}{_because(decision.reason)}")
        case "reject":
            return one_line(f"{who} rejected {tool}{_because(decision.reason)}")
        case "rerun":
            return one_line(f"{who} had {tool} run again{_because(decision.reason)}")
        case "record":
            return one_line(f"{who} recorded what {tool} did{_because(decision.reason)}")
        case "answer":
            return one_line(f"{who} answered {tool}: {value_text(decision.value)}")
