"""Reader: the DEVELOPER. ToolErrorReport says why a call failed, with nothing held back (contract 1.3)."""

from __future__ import annotations

import traceback as tb
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, cast

from counterfoil.core.call import Caller, caller_from_json
from counterfoil.core.jsontext import JsonValue, clean_text
from counterfoil.core.outcome import ToolFailure
from counterfoil.core.turn import moment


@dataclass(frozen=True, slots=True)
class StoredError:
    """An exception as the store keeps it."""

    type: str
    """Module and class name."""
    message: str
    traceback: str
    causes: tuple[str, ...] = ()
    """``type: message`` of each exception behind it, nearest first."""


AnyError: TypeAlias = "BaseException | ToolFailure | StoredError"

MAX_TRACEBACK = 64 * 1024
"""Characters of a stored traceback; recursion errors print megabytes."""
MAX_CAUSES = 20


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return clean_text(str(error))
    except Exception as e:  # noqa: BLE001  # an exception whose own text raises must not hide the failure
        return f"(its message could not be read: {type(e).__name__})"


def store_error(error: AnyError) -> JsonValue:
    """The error as JSON: type, message, traceback and cause chain."""
    if isinstance(error, ToolFailure):
        return {
            "type": "ToolFailure",
            "message": error.message,
            "traceback": "",
            "causes": [],
            "data": error.data,
        }
    if isinstance(error, StoredError):
        return {
            "type": error.type,
            "message": error.message,
            "traceback": error.traceback,
            "causes": list(error.causes),
        }
    causes: list[JsonValue] = []
    seen = {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen and len(causes) < MAX_CAUSES:
        causes.append(f"{_name(cause)}: {_message(cause)}")
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    try:
        text = "".join(tb.format_exception(error))
    except Exception as e:  # noqa: BLE001  # as in _message
        text = f"(the traceback could not be written: {type(e).__name__})"
    return {
        "type": _name(error),
        "message": _message(error),
        "traceback": clean_text(text)[-MAX_TRACEBACK:],
        "causes": causes,
    }


@dataclass(frozen=True, slots=True)
class ToolErrorReport:
    """Everything that is known about one failed call. Written for the developer; the model reads ``model_text``."""

    tenant_id: str
    user_context: Caller
    """Who was calling."""
    interaction_id: str
    thread_id: str
    """``main`` for the main thread."""
    run_id: str
    step_index: int
    """0-based step in which the model asked for the call."""
    call_id: str
    tool_name: str
    """As the model named it."""
    input: JsonValue
    """Parsed and effective when the schema took it, raw for codes 4000 to 4003."""
    error: AnyError
    """The exception itself, untouched; a ToolFailure where nothing was raised; a StoredError when read back."""
    code: int | None
    model_text: str
    """What the model reads as the call's result."""
    duration_ms: float
    """From the gateway's start on the call to the failure, less any wait for a person."""
    at_us: int
    """Microseconds since 1970, UTC."""
    attempts: tuple[str, ...] = ()
    """What earlier attempts ended with, oldest first."""
    partial: JsonValue = None
    """What a generator had given before it failed."""

    @property
    def at(self) -> datetime:
        """When the failure was recorded (UTC)."""
        return moment(self.at_us)

    def to_json(self) -> dict[str, JsonValue]:
        """The report by field, in camelCase."""
        return {
            "tenantId": self.tenant_id,
            "userContext": self.user_context.to_json(),
            "interactionId": self.interaction_id,
            "threadId": self.thread_id,
            "runId": self.run_id,
            "stepIndex": self.step_index,
            "callId": self.call_id,
            "toolName": self.tool_name,
            "input": self.input,
            "error": store_error(self.error),
            "code": self.code,
            "modelText": self.model_text,
            "durationMs": self.duration_ms,
            "at": self.at_us,
            "attempts": list(self.attempts),
            "partial": self.partial,
        }


@dataclass(frozen=True, slots=True)
class ReportGroup:
    """The reports of one tool with one code."""

    tool_name: str
    code: int | None
    count: int
    first_us: int
    """When the oldest of them was made, in microseconds since 1970, UTC."""
    last_us: int

    @property
    def first_at(self) -> datetime:
        """When the oldest of them was made (UTC)."""
        return moment(self.first_us)

    @property
    def last_at(self) -> datetime:
        """When the newest of them was made (UTC)."""
        return moment(self.last_us)


def report_from_json(data: Mapping[str, JsonValue]) -> ToolErrorReport:
    """The report that ``to_json`` wrote; its error is a StoredError."""
    text = cast("Mapping[str, str]", data)
    error = cast("Mapping[str, str]", data["error"])
    return ToolErrorReport(
        tenant_id=text["tenantId"],
        user_context=caller_from_json(cast("dict[str, JsonValue]", data["userContext"])),
        interaction_id=text["interactionId"],
        thread_id=text["threadId"],
        run_id=text["runId"],
        step_index=cast("int", data["stepIndex"]),
        call_id=text["callId"],
        tool_name=text["toolName"],
        input=data["input"],
        error=StoredError(error["type"], error["message"], error["traceback"], tuple(error["causes"])),
        code=cast("int | None", data["code"]),
        model_text=text["modelText"],
        duration_ms=cast("float", data["durationMs"]),
        at_us=cast("int", data["at"]),
        attempts=tuple(cast("list[str]", data["attempts"])),
        partial=data["partial"],
    )
