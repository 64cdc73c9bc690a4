"""What the HTTP API writes, as values again: our own where there are such, else records with the names of the wire."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import datetime
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

from counterfoil.core import events
from counterfoil.core.approval import Decision
from counterfoil.core.events import CallEnded, Decided, Event, TurnRecorded
from counterfoil.core.items import ToolResultPart
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.core.report import ReportGroup, ToolErrorReport, report_from_json
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import NO_USAGE, Author, Usage, micros
from counterfoil.core.waits import Wait
from counterfoil.core.words import REJECTION_FALLBACK

T = TypeVar("T")
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as it stood when the server answered. What a list leaves out is None, 0 or empty."""

    run_id: str
    interaction_id: str
    parent_run_id: str | None
    agent: str
    status: str
    """running, paused, completed, limited, cancelled or failed."""
    ended_by: str | None
    created_at: datetime
    updated_at: datetime
    user: str | None = None
    answer: str | None = None
    output: JsonValue = None
    """The answer as the agent's output type, as JSON."""
    reason: str | None = None
    steps: int = 0
    calls: int = 0
    waiting: int = 0
    """Calls that wait for a person, in it or below it."""
    waits_for: tuple[Wait, ...] = ()
    """Those, and agents at work below it."""
    usage: Usage = NO_USAGE
    seconds: float = 0.0
    """Of work, pauses excluded."""
    ended_at: datetime | None = None
    key: str | None = None
    """The idempotency key of its start; lists alone tell it."""
    hint: str | None = None
    """Why it waits though nothing of its own holds it up: no process has its agent now. Lists do not tell."""
    data: dict[str, JsonValue] = field(default_factory=dict, repr=False, compare=False)
    """The answer as it came."""

    @property
    def id(self) -> str:
        """The run's id (a UUID)."""
        return self.run_id

    @property
    def open(self) -> bool:
        """It is running or paused."""
        return self.status in ("running", "paused")


@dataclass(frozen=True, slots=True)
class InteractionInfo:
    """A conversation."""

    interaction_id: str
    created_at: datetime
    participants: tuple[Author, ...]
    """In the order of their coming."""
    open_run_id: str | None
    """The run that keeps others from starting."""


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent of the server."""

    name: str
    model: str
    tools: tuple[str, ...]
    output_schema: JsonValue


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """A tool of an agent of the server."""

    agent: str
    name: str
    description: str
    input_schema: JsonValue
    read_only: bool
    idempotent: bool
    destructive: bool
    needs_approval: bool | None
    """None: it depends on the input."""
    ends_run: bool


def made(kind: type[T], data: Fields, **given: Any) -> T:
    """The dataclass whose fields stand in ``data`` in camelCase, but for those that are given.

    A field that is not there has its default.
    """
    rows = _fields(cast("Hashable", kind))
    return kind(**{n: _value(hint, data[wire]) for n, wire, hint in rows if wire in data and n not in given}, **given)


@functools.cache
def _fields(kind: Hashable) -> list[tuple[str, str, Any]]:
    return [(name, camel(name), hint) for name, hint in get_type_hints(kind).items()]


def camel(name: str) -> str:
    """A name as JSON has it."""
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


def _value(hint: Any, value: Any) -> Any:
    kinds = get_args(hint)
    if value is None:
        return None
    if type(None) in kinds:
        return _value(next(kind for kind in kinds if kind is not type(None)), value)
    if hint is datetime:
        return datetime.fromisoformat(value)
    if get_origin(hint) is tuple:
        return tuple(_value(kinds[0], item) for item in value)
    return made(hint, value) if is_dataclass(hint) and isinstance(hint, type) else value


def run_info(data: Fields) -> RunInfo:
    """A run."""
    kept = {name: value for name, value in data.items() if name != "context"}
    return made(RunInfo, {**kept, "data": kept})


def report_of(data: Fields) -> ToolErrorReport:
    """An error report."""
    return report_from_json({**data, "at": micros(datetime.fromisoformat(data["at"]))})


def group_of(data: Fields) -> ReportGroup:
    """Error reports of one tool with one code."""
    first, last = (micros(datetime.fromisoformat(data[name])) for name in ("firstAt", "lastAt"))
    return ReportGroup(data["toolName"], data["code"], data["count"], first, last)


_EVENTS: Final = {name: kind for name, kind in vars(events).items() if isinstance(kind, type)}


def event_of(text: str) -> Event | None:
    """The event that a server-sent event holds; None for a kind that this version does not know."""
    data = json.loads(text)
    kind = _EVENTS.get(data["type"])
    if kind is None or not issubclass(kind, Event):
        return None
    given: dict[str, Any] = {}
    if kind is TurnRecorded:
        given["calls"] = tuple((call["callId"], call["toolName"]) for call in data["calls"])
    elif kind is CallEnded:
        given["part"] = _part(data["part"])
    elif kind is Decided:
        given["decision"] = _decision(data["decision"])
    return made(kind, data, **given)


def _part(data: Fields) -> ToolResultPart:
    return ToolResultPart(
        call_id=data["callId"],
        tool_name=data["toolName"],
        output=data["output"],
        result=ToolResult.from_dict(data["result"]),
        result_size=data["resultSize"],
        sequence=data["sequence"],
        author=made(Author, data["author"]),
        date=datetime.fromisoformat(data["date"]),
        rejection_text=REJECTION_FALLBACK,
        tool_result_id=data.get("toolResultId"),
        ended_run=data.get("endedRun", False),
        started_at=_value(datetime, data.get("startedAt")),
        duration_ms=data.get("durationMs"),
        attempt=data.get("attempt"),
    )


def _decision(data: Fields) -> Decision:
    edited = data["input"]
    return Decision(
        choice=data["decision"],
        by=data["by"],
        reason=data["reason"],
        input=None if edited is None else dumps(edited),
        digest=data["digest"],
        value=data["value"],
        at=micros(datetime.fromisoformat(data["at"])),
        roles=tuple(data["roles"]),
        approval=data["approval"],
    )
