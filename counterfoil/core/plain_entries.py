"""Turns, starts and results, made by position: a class that is called with a score of keywords takes twice as long.

What a function here does not take has the value that the class gives it; a test compares them.
"""

from __future__ import annotations

from counterfoil.core.call_entries import ResultEntry, StartEntry
from counterfoil.core.entries import CallRecord, TurnEntry
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.limits import ATTEMPTS
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import Usage


def turn(
    run_id: str, thread_id: str | None, at: int, step: int, text: str, calls: tuple[CallRecord, ...], stop: str,
    usage: Usage, discarded: Usage, model: str, offered: str, reasoning: JsonValue, thought: str, /,
) -> TurnEntry:  # fmt: skip  # rows by what belongs together
    """A turn."""
    e = TurnEntry.__new__(TurnEntry)
    e.run_id, e.thread_id, e.at = run_id, thread_id, at
    e.entry = e.sequence = 0
    e.step, e.text, e.calls, e.stop = step, text, calls, stop
    e.usage, e.discarded, e.model, e.offered = usage, discarded, model, offered
    e.reasoning, e.thought = reasoning, thought
    return e


def start(
    run_id: str, thread_id: str | None, at: int, step: int, index: int, call_id: str, tool_name: str, attempt: int,
    key: str, safe: bool, effective: bytes, parsed: bytes | None, /,  # noqa: FBT001  # as it stands on record
) -> StartEntry:  # fmt: skip  # as above
    """The start of a body."""
    e = StartEntry.__new__(StartEntry)
    e.run_id, e.thread_id, e.at = run_id, thread_id, at
    e.entry = e.sequence = 0
    e.step, e.index, e.call_id, e.tool_name = step, index, call_id, tool_name
    e.attempt, e.key, e.safe, e.effective, e.parsed = attempt, key, safe, effective, parsed
    e.decision = e.approval_id = e.lock = e.child = None
    e.most = ATTEMPTS
    return e


def result(
    run_id: str, thread_id: str | None, at: int, step: int, index: int, call_id: str, tool_name: str,
    given: ToolResult, size: int, attempt: int, started_at: int, duration: int, kind: type[ResultEntry], /,
) -> ResultEntry:  # fmt: skip  # as above
    """The result of a body."""
    e = kind.__new__(kind)
    e.run_id, e.thread_id, e.at = run_id, thread_id, at
    e.entry = e.sequence = 0
    e.step, e.index, e.call_id, e.tool_name = step, index, call_id, tool_name
    e.result, e.size, e.attempt, e.started_at, e.duration = given, size, attempt, started_at, duration
    e.kept_id = e.kept_digest = e.decision = e.parsed = e.effective = e.replaced = e.over = None
    e.author_type, e.author_name = "Agent", ""
    return e
