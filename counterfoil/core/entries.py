"""What is on record: the kinds of entries, each with its hashed body and its erasable content.

An entry's *body* is small JSON with every fact but what people and models wrote; it is hashed with the hash of the
entry before it and holds the SHA-256 of its *content*, which retention may erase (contract 11).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias, cast

from counterfoil.core.approval import Approval, Decision
from counterfoil.core.call import Caller
from counterfoil.core.content import Json, block_to_json
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.core.limits import ATTEMPTS, Limits
from counterfoil.core.outcome import outcome_to_json
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import NO_USAGE, AuthorType, Usage

Fields: TypeAlias = dict[str, JsonValue]


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """The head that all entries share."""

    kind: ClassVar[str]
    run_id: str
    thread_id: str | None = None
    at: int
    """Microseconds since 1970, UTC."""
    entry: int = 0
    """Order of arrival in the interaction, from 1; set by the store."""
    sequence: int = 0
    """The first reading number that it takes; 0 where it takes none; set by the store."""

    @property
    def width(self) -> int:
        """How many reading numbers it takes."""
        return 0

    def facts(self) -> Fields:
        """What only this kind has, without content."""
        return {}

    def content(self) -> bytes | None:
        """The erasable part, as bytes."""
        return None


@dataclass(slots=True, kw_only=True, eq=False)
class RunEntry(Entry):
    """A run begins."""

    kind: ClassVar[str] = "run"
    agent: str
    caller: Caller
    limits: Limits
    approvals: str = "any-order"
    on_disconnect: str = "go-on"
    parent: str | None = None

    def facts(self) -> Fields:
        return {
            "agent": self.agent,
            "caller": self.caller.to_json(),
            "limits": self.limits.to_json(),
            "approvals": self.approvals,
            "onDisconnect": self.on_disconnect,
            "parent": self.parent,
        }


@dataclass(slots=True, kw_only=True, eq=False)
class MessageEntry(Entry):
    """A message that stands in the conversation."""

    kind: ClassVar[str] = "message"
    text: str
    author_type: AuthorType = "Human"
    author_name: str = "user"
    queued: int | None = None
    """The entry of the queued message that it delivers."""

    @property
    def width(self) -> int:
        return 1

    def facts(self) -> Fields:
        return {"authorType": self.author_type, "authorName": self.author_name, "queued": self.queued}

    def content(self) -> bytes:
        return dumps(self.text)


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedEntry(Entry):
    """A message that waits until the batch is complete (contract 5)."""

    kind: ClassVar[str] = "queued"
    text: str
    author_name: str = "user"

    def facts(self) -> Fields:
        return {"authorName": self.author_name}

    def content(self) -> bytes:
        return dumps(self.text)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call as the model made it."""

    call_id: str
    provider_call_id: str | None
    tool_name: str
    raw: str
    offered: bool = True
    """The tool was offered in this turn."""


@dataclass(slots=True, kw_only=True, eq=False)
class TurnEntry(Entry):
    """What the model answered. Reserves numbers: its text (if any), each call, each result."""

    kind: ClassVar[str] = "turn"
    step: int
    text: str
    calls: tuple[CallRecord, ...]
    stop: str
    """end, calls, length, refusal or other."""
    usage: Usage = NO_USAGE
    model: str = ""
    offered: str = ""
    """Digest of the tools that were offered."""
    reasoning: JsonValue = None
    """Opaque items that the provider wants back."""

    @property
    def head(self) -> int:
        """1 when the text takes a number of its own; a turn without calls always has one."""
        return 1 if self.text or not self.calls else 0

    @property
    def width(self) -> int:
        return self.head + 2 * len(self.calls)

    def call_sequence(self, index: int) -> int:
        """The reading number of a call."""
        return self.sequence + self.head + index

    def result_sequence(self, index: int) -> int:
        """The reading number of a call's result."""
        return self.sequence + self.head + len(self.calls) + index

    def facts(self) -> Fields:
        u = self.usage
        return {
            "step": self.step,
            "stop": self.stop,
            "usage": [u.input_tokens, u.output_tokens, u.cached_tokens, u.cost],
            "model": self.model,
            "offered": self.offered,
            "head": self.head,
            "calls": [[c.call_id, c.provider_call_id, c.tool_name, c.offered] for c in self.calls],
        }

    def content(self) -> bytes:
        return dumps([self.text, [c.raw for c in self.calls], self.reasoning])


@dataclass(slots=True, kw_only=True, eq=False)
class CallEntry(Entry):
    """The head that entries about one call share: (run, step, index) is our key of it."""

    step: int
    index: int
    call_id: str
    tool_name: str

    def facts(self) -> Fields:
        return {"step": self.step, "index": self.index, "callId": self.call_id, "toolName": self.tool_name}


@dataclass(slots=True, kw_only=True, eq=False)
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


@dataclass(slots=True, kw_only=True, eq=False)
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
            "decision": self.decision,
        }

    def content(self) -> bytes:
        return dumps(self.approval.to_json())


@dataclass(slots=True, kw_only=True, eq=False)
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


@dataclass(slots=True, kw_only=True, eq=False)
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

    def facts(self) -> Fields:
        outcome = outcome_to_json(self.result.outcome)
        failure = cast("Fields", outcome.get("failure") or {})
        return {
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

    def content(self) -> bytes:
        r = self.result
        # A json block goes in as its text: parsing a large value only to write it again would double the cost.
        blocks = [{"type": "json", "text": b.text} if isinstance(b, Json) else block_to_json(b) for b in r.content]
        parsed = None if self.parsed is None else self.parsed.decode()
        changed = () if self.effective is None else (self.effective.decode(),)
        return dumps([blocks, outcome_to_json(r.outcome), r.details, r.narration, self.replaced, parsed, *changed])


@dataclass(slots=True, kw_only=True, eq=False)
class LateEntry(ResultEntry):
    """A result that came too late to count: logged beside the call, never in its place (contract 7.7)."""

    kind: ClassVar[str] = "late"


@dataclass(slots=True, kw_only=True, eq=False)
class MemoEntry(CallEntry):
    """What a durable sub-step of a body returned."""

    kind: ClassVar[str] = "memo"
    name: str
    value: JsonValue

    def facts(self) -> Fields:
        return {**CallEntry.facts(self), "name": self.name}

    def content(self) -> bytes:
        return dumps(self.value)


@dataclass(slots=True, kw_only=True, eq=False)
class PausedEntry(Entry):
    """The run waits for people: every call of the batch that needs nobody has its result."""

    kind: ClassVar[str] = "paused"
    ended_run: tuple[int, int] | None = None
    """(step, index) of the call that will end the run, fixed here if it is known."""

    def facts(self) -> Fields:
        return {"endedRun": list(self.ended_run) if self.ended_run else None}


@dataclass(slots=True, kw_only=True, eq=False)
class ResumedEntry(Entry):
    """The run goes on, after a pause or, with new limits, after a limit."""

    kind: ClassVar[str] = "resumed"
    limits: Limits | None = None

    def facts(self) -> Fields:
        return {"limits": self.limits.to_json() if self.limits else None}


@dataclass(slots=True, kw_only=True, eq=False)
class EndedEntry(Entry):
    """The run's end, and which rule ended it (contract 5)."""

    kind: ClassVar[str] = "ended"
    status: str
    ended_by: str
    ended_run: tuple[int, int] | None = None
    answer: str | None = None
    output: JsonValue = None
    reason: str | None = None
    """For people: which limit, which error, why cancelled."""
    seconds: float = 0.0
    """Seconds of work, pauses excluded."""

    def facts(self) -> Fields:
        return {
            "status": self.status,
            "endedBy": self.ended_by,
            "endedRun": list(self.ended_run) if self.ended_run else None,
            "seconds": self.seconds,
        }

    def content(self) -> bytes:
        return dumps([self.answer, self.output, self.reason])


@dataclass(slots=True, kw_only=True, eq=False)
class CancelEntry(Entry):
    """The caller asked for the end."""

    kind: ClassVar[str] = "cancel"
    reason: str | None = None
    by: str | None = None

    def facts(self) -> Fields:
        return {"by": self.by}

    def content(self) -> bytes:
        return dumps(self.reason)
