"""How a call can end: one closed union, and the table of failure codes (contract 1.1 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias, cast

from counterfoil.core.jsontext import JsonValue, clean_text, normal


class ErrorCode(IntEnum):
    """The gateway's own failure codes. Codes from 4000 to 5999 are reserved for it."""

    INVALID_JSON = 4000
    UNKNOWN_TOOL = 4001
    NOT_OFFERED = 4002
    INVALID_INPUT = 4003
    TIMEOUT = 4080
    APPROVAL_EXPIRED = 4081
    OUTPUT_TOO_LARGE = 4130
    UNRENDERABLE_OUTPUT = 4220
    LIMIT_REACHED = 4290
    TOOL_ERROR = 5000
    INTERRUPTED = 5001
    GUARD_ERROR = 5002
    POLICY_ERROR = 5003
    CHILD_FAILED = 5004


RESERVED_CODES = range(4000, 6000)
"""An author's own code must lie outside."""


@dataclass(frozen=True, slots=True)
class CodeRow:
    """What the table says of one code."""

    code: ErrorCode
    retryable: bool | None
    """Whether the same call may succeed when tried again; None when nobody can know."""
    if_safe: bool = False
    """True: retryable only for a tool that is read_only or idempotent."""


CODE_TABLE: Mapping[int, CodeRow] = {
    row.code: row
    for row in (
        CodeRow(ErrorCode.INVALID_JSON, retryable=False),
        CodeRow(ErrorCode.UNKNOWN_TOOL, retryable=False),
        CodeRow(ErrorCode.NOT_OFFERED, retryable=False),
        CodeRow(ErrorCode.INVALID_INPUT, retryable=False),
        CodeRow(ErrorCode.TIMEOUT, retryable=True, if_safe=True),
        CodeRow(ErrorCode.APPROVAL_EXPIRED, retryable=False),
        CodeRow(ErrorCode.OUTPUT_TOO_LARGE, retryable=False),
        CodeRow(ErrorCode.UNRENDERABLE_OUTPUT, retryable=False),
        CodeRow(ErrorCode.LIMIT_REACHED, retryable=False),
        CodeRow(ErrorCode.TOOL_ERROR, retryable=None),
        CodeRow(ErrorCode.INTERRUPTED, retryable=False),
        CodeRow(ErrorCode.GUARD_ERROR, retryable=False),
        CodeRow(ErrorCode.POLICY_ERROR, retryable=False),
        CodeRow(ErrorCode.CHILD_FAILED, retryable=False),
    )
}


def retryable(code: ErrorCode, *, safe: bool) -> bool | None:
    """The table's word on ``code``; ``safe``: the tool is read_only or idempotent."""
    row = CODE_TABLE[code]
    return row.retryable and (safe or not row.if_safe) if row.retryable is not None else None


BodyState: TypeAlias = Literal["not_started", "ended", "unknown"]
"""What is known of the body of a failed call: it never ran, it ran to an end, or nobody can say."""


def _clean(outcome: ToolFailure | Denied | Rejected | Skipped | Cancelled) -> None:
    """Clean the texts, which come from people and programs of any kind, so that storing changes nothing."""
    for name in outcome.__dataclass_fields__:
        value: object = getattr(outcome, name)
        if isinstance(value, str) and not value.isascii():
            object.__setattr__(outcome, name, clean_text(value))


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """Why a call failed, for a program: nothing here is written for the model."""

    code: int | None = None
    """A code of the table, the author's own, or None."""
    message: str = ""
    """The operator's sentence; never sent to a model."""
    retryable: bool | None = None
    """None when nobody can know."""
    origin: Literal["tool", "gateway"] = "tool"
    """Who decided that it failed."""
    body: BodyState = "ended"
    data: JsonValue = None
    """Whatever the author attached, as JSON."""

    def __post_init__(self) -> None:
        _clean(self)
        if self.data is not None:
            object.__setattr__(self, "data", normal(self.data))


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The tool ran to its end and says that it worked."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The tool or the gateway says that it did not work."""

    failure: ToolFailure


@dataclass(frozen=True, slots=True)
class Denied:
    """A policy, or the tool's own check, refused the call."""

    by: Literal["policy", "tool"] = "tool"
    rule: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        _clean(self)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A person refused the call."""

    reason: str | None = None
    """The person's words alone; None when none were given."""
    by: str | None = None

    def __post_init__(self) -> None:
        _clean(self)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A guard of the application, or the framework, passed the call over: nothing ran."""

    reason: str = ""
    by: str = "framework"

    def __post_init__(self) -> None:
        _clean(self)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller ended the run before the call could end by itself."""

    reason: str | None = None

    def __post_init__(self) -> None:
        _clean(self)


ToolOutcome: TypeAlias = "Succeeded | Failed | Denied | Rejected | Skipped | Cancelled"
"""How a call ended: exactly one of these."""

SUCCEEDED = Succeeded()

OUTCOMES: Mapping[type[ToolOutcome], str] = {
    Succeeded: "succeeded",
    Failed: "failed",
    Denied: "denied",
    Rejected: "rejected",
    Skipped: "skipped",
    Cancelled: "cancelled",
}
"""What each is called where it is written."""


def outcome_to_json(outcome: ToolOutcome) -> dict[str, JsonValue]:
    """The outcome as ``{"type": …}`` with its fields."""
    match outcome:
        case Succeeded():
            return {"type": "succeeded"}
        case Failed(f):
            return {
                "type": "failed",
                "failure": {
                    "code": f.code,
                    "message": f.message,
                    "retryable": f.retryable,
                    "origin": f.origin,
                    "body": f.body,
                    "data": f.data,
                },
            }
        case Denied():
            return {"type": "denied", "by": outcome.by, "rule": outcome.rule, "reason": outcome.reason}
        case Rejected():
            return {"type": "rejected", "reason": outcome.reason, "by": outcome.by}
        case Skipped():
            return {"type": "skipped", "reason": outcome.reason, "by": outcome.by}
        case Cancelled():
            return {"type": "cancelled", "reason": outcome.reason}


def outcome_from_json(data: Mapping[str, JsonValue]) -> ToolOutcome:
    """The outcome that `outcome_to_json` wrote.

    Raises:
        ValueError: ``data`` is no outcome.
    """
    try:
        return _outcome_from_json(data)
    except (KeyError, TypeError) as error:
        kind = data.get("type")
        raise ValueError(f"not an outcome of type {kind!r}: {type(error).__name__} {error}") from error


def _outcome_from_json(data: Mapping[str, JsonValue]) -> ToolOutcome:
    text = cast("Mapping[str, str]", data)
    match data.get("type"):
        case "succeeded":
            return SUCCEEDED
        case "failed":
            f = cast("dict[str, JsonValue]", data["failure"])
            return Failed(
                ToolFailure(
                    cast("int | None", f["code"]),
                    cast("str", f["message"]),
                    cast("bool | None", f["retryable"]),
                    cast("Literal['tool', 'gateway']", f["origin"]),
                    cast("BodyState", f["body"]),
                    f["data"],
                )
            )
        case "denied":
            return Denied("policy" if text["by"] == "policy" else "tool", text["rule"], text["reason"])
        case "rejected":
            return Rejected(text["reason"], text["by"])
        case "skipped":
            return Skipped(text["reason"], text["by"])
        case "cancelled":
            return Cancelled(text["reason"])
        case other:
            raise ValueError(f"expected an outcome with a known type, got type {other!r}")
