"""What is on record about one call: its starts, approvals, decisions, memos and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from counterfoil.core.approval import Approval, Decision
from counterfoil.core.content import Json, Text, block_to_json
from counterfoil.core.entries import Entry, Fields
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.core.limits import ATTEMPTS
from counterfoil.core.outcome import OUTCOMES, Failed, Succeeded, outcome_to_json
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import AuthorType
from counterfoil.core.usual import USUAL_MOST, usual_key


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CallEntry(Entry):
    """The head that entries about one call share: (run, step, index) is our key of it."""

    step: int
    index: int
    call_id: str
    tool_name: str

    def facts(self) -> Fields:
        facts = Entry.facts(self)
        facts["step"] = self.step
        facts["index"] = self.index
        facts["callId"] = self.call_id
        facts["toolName"] = self.tool_name
        return facts


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
    child: str | None = None
    """The run that the call waits for: it has no body."""
    most: int = ATTEMPTS
    """Attempts that the call may have: more than after crashes for a tool with retries of its own."""

    def facts(self) -> Fields:
        # In one piece, as in a result: nearly every entry is one of these.
        facts: Fields = {
            "kind": "start", "run": self.run_id, "at": self.at, "step": self.step, "index": self.index,
            "callId": self.call_id, "toolName": self.tool_name, "attempt": self.attempt,
        }  # fmt: skip  # rows by what belongs together
        if self.thread_id is not None or self.sequence:
            facts |= Entry.facts(self)
        if self.key != usual_key(self.run_id, self.step, self.index):
            facts["key"] = self.key
        if self.child is not None:
            facts["child"] = self.child
        if self.most != USUAL_MOST:
            facts["most"] = self.most
        if self.safe:
            facts["safe"] = True
        if self.decision is not None:
            facts["decision"] = self.decision
        if self.approval_id is not None:
            facts["approvalId"] = self.approval_id
        if self.lock is not None:
            facts["lock"] = self.lock
        if self.parsed is not None:
            facts["same"] = False
        return facts

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
        result = self.result
        outcome = result.outcome
        facts: Fields = {
            "kind": self.kind, "run": self.run_id, "at": self.at, "step": self.step, "index": self.index,
            "callId": self.call_id, "toolName": self.tool_name, "outcome": OUTCOMES[type(outcome)],
            "attempt": self.attempt, "startedAt": self.started_at, "duration": self.duration, "size": self.size,
        }  # fmt: skip  # as above
        if self.thread_id is not None or self.sequence:
            facts |= Entry.facts(self)
        if type(outcome) is Failed:
            facts["code"] = outcome.failure.code
        if result.terminate:
            facts["terminate"] = True
        if self.kept_id is not None or self.kept_digest is not None:
            facts["keptId"] = self.kept_id
            facts["keptDigest"] = self.kept_digest
        if self.author_type != "Agent":
            facts["authorType"] = self.author_type
        if self.author_name:
            facts["authorName"] = self.author_name
        if self.decision is not None:
            facts["decision"] = self.decision
        if self.over is not None:
            facts["over"] = self.over
        return facts

    def content(self) -> bytes:
        """Blocks, then outcome, details, narration, what was replaced and both inputs, up to the last that is there."""
        r = self.result
        if type(r.outcome) is Succeeded and len(r.content) == 1 and type(r.content[0]) is Text:
            inputs = self.parsed is None and self.effective is None
            if inputs and r.details is None and r.narration is None and self.replaced is None:
                return dumps([[r.content[0].text]])  # as below, for most results
        # A json block goes in as its text: parsing a large value only to write it again would double the cost.
        blocks = [
            b.text if type(b) is Text else {"type": "json", "text": b.text} if type(b) is Json else block_to_json(b)
            for b in r.content
        ]
        parts = [
            blocks, None if type(r.outcome) is Succeeded else outcome_to_json(r.outcome), r.details, r.narration,
            self.replaced, self.parsed and self.parsed.decode(), self.effective and self.effective.decode(),
        ]  # fmt: skip  # in the order of the format
        while parts[-1] is None:
            parts.pop()
        return dumps(parts)


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
