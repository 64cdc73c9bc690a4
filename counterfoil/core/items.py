"""What stands in the conversation: messages, calls and their results (contract 1.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from counterfoil.core.content import Block
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.outcome import Cancelled, Denied, Failed, Rejected, Skipped, ToolFailure
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import Author, date_json

CallStateName: TypeAlias = Literal["judged", "waiting", "started", "interrupted", "settled"]
"""The life of a call; the table of its moves is in `states`."""


@dataclass(frozen=True, slots=True)
class Words:
    """What messages, reasoning and notes have."""

    text: str
    """With media as placeholders."""
    author: Author
    date: datetime
    sequence: int
    thread_id: str | None
    run_id: str
    step_index: int | None = None
    """The step of a model's text or reasoning; None for what somebody else wrote."""
    blocks: tuple[Block, ...] = ()
    """What a message consists of, where it is more than text."""

    @property
    def kind(self) -> str:
        """``MESSAGE``, ``REASONING`` or ``NOTE``."""
        return type(self).__name__.upper()


class Message(Words):
    """A text that stands in the conversation: somebody's message, or what a model said."""

    __slots__ = ()


class Reasoning(Words):
    """What a provider lets people see of a model's reasoning; no model reads it again."""

    __slots__ = ()


class Note(Words):
    """What somebody noted for the people who read the conversation; no model reads it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ApprovalMark:
    """What a call's part shows of its approval."""

    id: str
    decision: str | None
    """approve, reject, rerun, record or answer; None while undecided."""
    by: str | None
    at: datetime | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """One call of a model turn (contract 1.2)."""

    call_id: str
    """Unique in its run."""
    provider_call_id: str | None
    """The provider's own id; may repeat, may be missing."""
    tool_name: str
    """As the model named it."""
    raw_input: str
    """The model's text, untouched."""
    state: CallStateName
    step_index: int
    index: int
    sequence: int
    input: JsonValue = None
    """Parsed, once judged."""
    effective_input: JsonValue = None
    """What the body gets: after guards or a person's edit."""
    decision: JsonValue = None
    """The policy's: verdict, rule, revision."""
    approval: ApprovalMark | None = None
    attempt: int = 0
    """Starts so far."""
    child_run_id: str | None = None
    """The run of another agent whose answer is, or will be, its result."""

    @property
    def kind(self) -> str:
        """``TOOL_CALL``."""
        return "TOOL_CALL"

    def to_json(self) -> dict[str, JsonValue]:
        """The part by field, in camelCase; every one is present, empty ones null."""
        a = self.approval
        return {
            "kind": self.kind,
            "callId": self.call_id,
            "providerCallId": self.provider_call_id,
            "toolName": self.tool_name,
            "rawInput": self.raw_input,
            "state": self.state,
            "stepIndex": self.step_index,
            "sequence": self.sequence,
            "input": self.input,
            "effectiveInput": self.effective_input,
            "decision": self.decision,
            "childRunId": self.child_run_id,
            "approval": None
            if a is None
            else {
                "id": a.id,
                "decision": a.decision,
                "by": a.by,
                "at": date_json(a.at) if a.at else None,
                "reason": a.reason,
            },
        }


FLAGS: tuple[tuple[str, type], ...] = (
    ("rejected", Rejected),
    ("denied", Denied),
    ("failed", Failed),
    ("skipped", Skipped),
    ("cancelled", Cancelled),
)
"""Each flag of a result part, and the outcome from which it is derived."""


@dataclass(frozen=True, slots=True)
class ToolResultPart:
    """The answer to one ToolCallPart (contract 1.2)."""

    call_id: str
    tool_name: str
    output: JsonValue
    """What the tool returned, as JSON; the model's text where it did not succeed; None when kept apart."""
    result: ToolResult
    result_size: int
    """Bytes (UTF-8) of the whole output, before any shortening."""
    sequence: int
    author: Author
    date: datetime
    rejection_text: str = ""
    """The fixed sentence that stands in where a person rejected without words."""
    tool_result_id: str | None = None
    """Set when the result is kept apart."""
    ended_run: bool = False
    """This call ended the run; at most one a run."""
    started_at: datetime | None = None
    """None when the body never ran, as are duration_ms and attempt."""
    duration_ms: float | None = None
    attempt: int | None = None
    replaced: JsonValue = field(default=None, repr=False)
    """What an after-guard replaced; for the scope admin."""

    @property
    def kind(self) -> str:
        """``TOOL_RESULT``."""
        return "TOOL_RESULT"

    @property
    def rejected(self) -> bool:
        """A person refused it."""
        return isinstance(self.result.outcome, Rejected)

    @property
    def denied(self) -> bool:
        """A policy or the tool's own check refused it."""
        return isinstance(self.result.outcome, Denied)

    @property
    def failed(self) -> bool:
        """It failed."""
        return isinstance(self.result.outcome, Failed)

    @property
    def skipped(self) -> bool:
        """It was passed over: nothing ran."""
        return isinstance(self.result.outcome, Skipped)

    @property
    def cancelled(self) -> bool:
        """The caller ended the run first."""
        return isinstance(self.result.outcome, Cancelled)

    @property
    def executed(self) -> bool:
        """The tool ran to its end and succeeded."""
        return self.result.executed

    @property
    def is_error(self) -> bool:
        """True unless the call succeeded or was skipped."""
        return self.result.is_error

    @property
    def failure(self) -> ToolFailure | None:
        """The failure of a failed call."""
        return self.result.outcome.failure if isinstance(self.result.outcome, Failed) else None

    @property
    def error_code(self) -> int | None:
        """The failure's code, if it has one."""
        failure = self.failure
        return None if failure is None or failure.code is None else int(failure.code)

    @property
    def rejection_reason(self) -> str | None:
        """The person's words alone; a fixed sentence when none were given; None unless rejected."""
        outcome = self.result.outcome
        return (outcome.reason or self.rejection_text) if isinstance(outcome, Rejected) else None

    def to_json(self) -> dict[str, JsonValue]:
        """The part by field, in camelCase; an absent flag means false."""
        out: dict[str, JsonValue] = {
            "kind": self.kind,
            "callId": self.call_id,
            "toolName": self.tool_name,
            "output": self.output,
            "result": self.result.to_dict(),
            "resultSize": self.result_size,
        }
        for name, kind in FLAGS:
            if isinstance(self.result.outcome, kind):
                out[name] = True
        if self.rejected:
            out["rejectionReason"] = self.rejection_reason
        if self.ended_run:
            out["endedRun"] = True
        if self.error_code is not None:
            out["errorCode"] = self.error_code
        if self.tool_result_id is not None:
            out["toolResultId"] = self.tool_result_id
        if self.started_at is not None:
            out["startedAt"] = date_json(self.started_at)
            out["durationMs"] = self.duration_ms
            out["attempt"] = self.attempt
        return out
