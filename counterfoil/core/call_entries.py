"""What is on record about one call: its starts, approvals, decisions, memos and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from counterfoil.core.approval import Approval, Decision
from counterfoil.core.content import Json, block_to_json
from counterfoil.core.entries import Entry, Fields
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.core.limits import ATTEMPTS
from counterfoil.core.outcome import outcome_to_json
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import AuthorType


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CallEntry(Entry):
    """The head that entries about one call share: (run, step, index) is our key of it."""

    step: int
    index: int
    call_id: str
    tool_name: str

    def facts(self) -> Fields:
        return {"step": self.step, "index": self.index, "callId": self.call_id, "toolName": self.tool_name}


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class StartEntry(CallEntry):
    """The intent to run a body: on record before it runs."""

    kind: ClassVar[str] = "start"
    attempt: int
    key: str
    """The idempotency key, the same in every attempt."""
    safe: bool
    """Replay class: True for read_only or idempotent."""
    effective: bytes
    """JSON bytes of the effective input."""
    parsed: bytes | None = None
    """JSON bytes of the parsed input, where it differs."""
    decision: JsonValue = None
    """The policy's verdict on it."""
    approval_id: str | None = None
    """The approval that this start consumes."""
    lock: str | None = None
    most: int = ATTEMPTS
    """Attempts that the call may have: more than after crashes for a tool with retries of its own."""

    def facts(self) -> Fields:
        return {
            **CallEntry.facts(self),
            "attempt": self.attempt,
            "most": self.most,
            "key": self.key,
            "safe": self.safe,
            "decision": self.decision,
            "approvalId": self.approval_id,
            "lock": self.lock,
            "same": self.parsed is None,
        }

    def content(self) -> bytes:
        return self.effective if self.parsed is None else b"[" + self.parsed + b"," + self.effective + b"]"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WaitingEntry(CallEntry):
    """A call waits for a person."""

    kind: ClassVar[str] = "waiting"
    approval: Approval
    decision: JsonValue = None
    """The policy's verdict that asks."""

    def facts(self) -> Fields:
        a = self.approval
        return {
            **CallEntry.facts(self),
            "approvalId": a.id,
            "approvalKind": a.kind,
            "digest": a.digest,
            "after": a.after,
            "decision": self.decision,
        }

    def content(self) -> bytes:
        return dumps(self.approval.to_json())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DecidedEntry(CallEntry):
    """What a person decided; binds the author, the time and the exact input."""

    kind: ClassVar[str] = "decided"
    approval_id: str
    decision: Decision

    def facts(self) -> Fields:
        d = self.decision
        return {
            **CallEntry.facts(self),
            "approvalId": self.approval_id,
            "choice": d.choice,
            "by": d.by,
            "digest": d.digest,
            "edited": d.input is not None,
        }

    def content(self) -> bytes:
        d = self.decision
        return dumps([d.reason, None if d.input is None else d.input.decode(), d.value])


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ResultEntry(CallEntry):
    """How a call ended: exactly one for each call."""

    kind: ClassVar[str] = "result"
    result: ToolResult
    size: int
    """Bytes of the whole output."""
    attempt: int = 0
    """0 when the body never ran."""
    started_at: int | None = None
    """Microseconds since 1970; None when the body never ran."""
    duration: int | None = None
    """Microseconds of the body."""
    kept_id: str | None = None
    kept_digest: str | None = None
    """SHA-256 (hex) of the text kept apart."""
    author_type: AuthorType = "Agent"
    author_name: str = ""
    decision: JsonValue = None
    """The policy's verdict, where no start carries it."""
    parsed: bytes | None = None
    """JSON bytes of the parsed input, where no start carries it."""
    effective: bytes | None = None
    """JSON bytes of the effective input, where it differs from `parsed`."""
    replaced: JsonValue = None
    """What an after-guard replaced."""
    over: bool | None = None
    """Of a body without an end of its own: False where it may still have been running when its call ended."""

    def facts(self) -> Fields:
        outcome = outcome_to_json(self.result.outcome)
        failure = cast("Fields", outcome.get("failure") or {})
        facts: Fields = {
            **CallEntry.facts(self),
            "outcome": outcome["type"],
            "code": failure.get("code"),
            "attempt": self.attempt,
            "startedAt": self.started_at,
            "duration": self.duration,
            "size": self.size,
            "terminate": self.result.terminate,
            "keptId": self.kept_id,
            "keptDigest": self.kept_digest,
            "authorType": self.author_type,
            "authorName": self.author_name,
            "decision": self.decision,
        }
        if self.over is not None:
            facts["over"] = self.over
        return facts

    def content(self) -> bytes:
        r = self.result
        # A json block goes in as its text: parsing a large value only to write it again would double the cost.
        blocks = [{"type": "json", "text": b.text} if isinstance(b, Json) else block_to_json(b) for b in r.content]
        parsed = None if self.parsed is None else self.parsed.decode()
        changed = () if self.effective is None else (self.effective.decode(),)
        return dumps([blocks, outcome_to_json(r.outcome), r.details, r.narration, self.replaced, parsed, *changed])


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class LateEntry(ResultEntry):
    """A result that came too late to count: logged beside the call, never in its place (contract 7.7)."""

    kind: ClassVar[str] = "late"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class MemoEntry(CallEntry):
    """What a durable sub-step of a body returned."""

    kind: ClassVar[str] = "memo"
    name: str
    value: JsonValue

    def facts(self) -> Fields:
        return {**CallEntry.facts(self), "name": self.name}

    def content(self) -> bytes:
        return dumps(self.value)
