"""Reader: a PERSON. The values of a timeline: a row, and a run in numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import cast

from counterfoil.core.items import ApprovalMark
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.narrate import time_text, waits_text
from counterfoil.core.turn import Author, Usage, date_json
from counterfoil.core.waits import Wait


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a timeline. What does not apply to its kind is None, or empty."""

    at: datetime
    """UTC. Of a call: when the model asked for it."""
    kind: str
    """run, message, turn (a model's text), note, call, decision, summary, queued, paused, resumed, cancel or ended."""
    thread_id: str | None
    author: Author
    text: str
    """One line, clipped."""
    sequence: int | None = None
    """The reading number; of a call with a result, the result's."""
    step_index: int | None = None
    call_id: str | None = None
    tool_name: str | None = None
    state: str | None = None
    """Where a call stands: judged, waiting, started, interrupted or settled."""
    outcome: str | None = None
    """succeeded, failed, denied, rejected, skipped or cancelled."""
    code: int | None = None
    """The code of a failure."""
    approval: ApprovalMark | None = None
    attempt: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration_ms: float | None = None
    size: int | None = None
    """Bytes of the whole result."""
    kept: bool = False
    """The result is kept apart."""
    ended_run: bool = False
    notes: tuple[str, ...] = ()
    """What else a person should know, a line each: what was edited, where the rest is, what may still run."""
    input: JsonValue = field(default=None, repr=False)
    """What the body got, or would get; what the model sent where it is not judged."""
    details: JsonValue = field(default=None, repr=False)
    run_id: str = ""
    """Whose row it is: the run's, or of one below it."""

    def to_json(self) -> dict[str, JsonValue]:
        """The row by field, in camelCase; every field present."""
        return _fields_json(self)


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers."""

    status: str
    ended_by: str | None
    outcomes: dict[str, int]
    """Calls by outcome; those without a result under ``open``."""
    calls: int
    steps: int
    usage: Usage
    seconds: float
    """Of work, pauses excluded."""
    runs: int = 0
    """Runs below it, whose calls and steps are counted here too."""
    waits_for: tuple[Wait, ...] = ()
    """People's words and agents at work, here and below."""
    run_id: str = ""

    @property
    def line(self) -> str:
        """All of it in one line."""
        parts = [f"{count} {name}" for name, count in self.outcomes.items()]
        calls = f"{_count(self.calls, 'call')}" + (f" ({', '.join(parts)})" if parts else "")
        spent = f"{self.usage.tokens:,} tokens, {time_text(self.seconds * 1000)}"
        below = f", {_count(self.runs, 'child run')}" if self.runs else ""
        waits = f", waits for {waits_text(self.waits_for, self.run_id)}" if self.waits_for else ""
        return f"{self.status}: {_count(self.steps, 'step')}, {calls}{below}, {spent}{waits}"

    def to_json(self) -> dict[str, JsonValue]:
        """The summary by field, in camelCase."""
        return _fields_json(self)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _fields_json(value: Row | Summary) -> dict[str, JsonValue]:
    return {_camel(f.name): _json(getattr(value, f.name)) for f in fields(value)}


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


def _json(value: object) -> JsonValue:
    match value:
        case datetime():
            return date_json(value)
        case Author() | ApprovalMark() | Usage() | Wait():
            return {_camel(f.name): _json(getattr(value, f.name)) for f in fields(value)}
        case tuple():
            return [_json(item) for item in value]
        case _:
            return cast("JsonValue", value)
