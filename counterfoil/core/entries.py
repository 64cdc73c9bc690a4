"""What is on record: the head of every entry, and the entries about a run and its conversation.

An entry's *body* is small JSON: every fact but what people and models wrote, and the SHA-256 of its *content*, which
retention may erase (contract 11); it is hashed with the hash before it. Those about one call are in call_entries.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from counterfoil.core.call import Caller
from counterfoil.core.content import Block, block_to_json
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.core.limits import Limits
from counterfoil.core.turn import NO_USAGE, AuthorType, Usage

Fields: TypeAlias = dict[str, JsonValue]

ERASED = "(erased)"
"""Stands in for every text whose content retention has erased."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
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

    width: ClassVar[int] = 0
    """How many reading numbers it takes; a property where that differs from entry to entry."""

    def facts(self) -> Fields:
        """The body without its content's digest: a new dict, which leaves out what is usual (core/usual.py)."""
        facts: Fields = {"kind": self.kind, "run": self.run_id, "at": self.at}
        if self.thread_id is not None:
            facts["thread"] = self.thread_id
        if self.sequence:
            facts["seq"] = self.sequence
        return facts

    def content(self) -> bytes | None:
        """The erasable part, as bytes."""
        return None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RunEntry(Entry):
    """A run begins."""

    kind: ClassVar[str] = "run"
    agent: str
    caller: Caller
    limits: Limits
    approvals: str = "any-order"
    on_disconnect: str = "go-on"
    parent: str | None = None
    call: tuple[int, int] | None = None
    """(step, index) of the parent's call that waits for this run."""
    direct: bool = False
    """One call without a model: a run of one step (contract 3)."""
    imported: Fields | None = None
    """Of a run from elsewhere: its ``format``, ``source`` and ``instructions``, and the ``repairs`` it needed."""

    def facts(self) -> Fields:
        marked: Fields = {} if self.imported is None else {"imported": self.imported.get("format")}
        return {
            **Entry.facts(self), "direct": self.direct, "agent": self.agent, "caller": self.caller.to_json(),
            "limits": self.limits.to_json(), "approvals": self.approvals, "onDisconnect": self.on_disconnect,
            "parent": self.parent, **marked, **({} if self.call is None else {"call": list(self.call)}),
        }  # fmt: skip  # rows by what belongs together

    def content(self) -> bytes | None:
        return None if self.imported is None else dumps(self.imported)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class MessageEntry(Entry):
    """A message that stands in the conversation."""

    kind: ClassVar[str] = "message"
    text: str
    blocks: tuple[Block, ...] = ()
    """What it consists of, where it is more than text; in its text media are placeholders."""
    author_type: AuthorType = "Human"
    author_name: str = "user"
    queued: int | None = None
    """The entry of the queued message that it delivers."""

    width: ClassVar[int] = 1

    def facts(self) -> Fields:
        own = {"authorType": self.author_type, "authorName": self.author_name, "queued": self.queued}
        return {**Entry.facts(self), **own}

    def content(self) -> bytes:
        return dumps([block_to_json(block) for block in self.blocks] if self.blocks else self.text)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class NoteEntry(Entry):
    """What somebody noted for the people who read the conversation; no model reads it."""

    kind: ClassVar[str] = "note"
    text: str
    author_name: str = "user"

    width: ClassVar[int] = 1

    def facts(self) -> Fields:
        return {**Entry.facts(self), "authorName": self.author_name}

    def content(self) -> bytes:
        return dumps(self.text)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QueuedEntry(Entry):
    """A message that waits until the batch is complete (contract 5)."""

    kind: ClassVar[str] = "queued"
    text: str
    blocks: tuple[Block, ...] = ()
    author_name: str = "user"

    def facts(self) -> Fields:
        return {**Entry.facts(self), "authorName": self.author_name}

    def content(self) -> bytes:
        return dumps([block_to_json(block) for block in self.blocks] if self.blocks else self.text)


@dataclass(slots=True)
class CallRecord:
    """One call as the model made it."""

    call_id: str
    provider_call_id: str | None
    tool_name: str
    raw: str
    offered: bool = True
    """The tool was offered in this turn."""

    def facts(self) -> JsonValue:
        """All but the raw input; most providers give ids that can be used as they are."""
        if self.offered and self.provider_call_id == self.call_id:
            return [self.call_id, self.tool_name]
        return [self.call_id, self.provider_call_id, self.tool_name, self.offered]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TurnEntry(Entry):
    """What the model answered. Reserves numbers: its reasoning and its text (if any), each call, each result."""

    kind: ClassVar[str] = "turn"
    step: int
    text: str
    calls: tuple[CallRecord, ...]
    stop: str
    """end, calls, length, refusal or other."""
    usage: Usage = NO_USAGE
    discarded: Usage = NO_USAGE
    """What answers to the same request cost that came to nothing: they broke off, and it was asked again."""
    model: str = ""
    offered: str = ""
    """Digest of the tools that were offered."""
    reasoning: JsonValue = None
    """Opaque items that the provider wants back."""
    thought: str = ""
    """What the provider lets people see of the reasoning; no model reads it again."""

    @property
    def head(self) -> int:
        """1 when the text takes a number of its own; a turn without calls always has one."""
        return 1 if self.text or not self.calls else 0

    @property
    def width(self) -> int:  # type: ignore[override]  # calls vary
        width = 2 * len(self.calls) + 1 if self.text else 2 * len(self.calls) or 1
        return width + 1 if self.thought else width

    def call_sequence(self, index: int) -> int:
        """The reading number of a call."""
        return self.sequence + bool(self.thought) + self.head + index

    def result_sequence(self, index: int) -> int:
        """The reading number of a call's result."""
        return self.call_sequence(len(self.calls) + index)

    def facts(self) -> Fields:
        facts = Entry.facts(self)
        facts["step"] = self.step
        facts["offered"] = self.offered
        facts["calls"] = [c.facts() for c in self.calls]
        if self.stop != "calls":
            facts["stop"] = self.stop
        if self.usage is not NO_USAGE:
            facts["usage"] = [*self.usage.facts()]
        if self.discarded is not NO_USAGE:
            facts["discarded"] = [*self.discarded.facts()]
        if self.model:
            facts["model"] = self.model
        if self.head:
            facts["head"] = 1
        if self.thought:
            facts["thought"] = 1
        return facts

    def content(self) -> bytes:
        raws = [c.raw for c in self.calls]
        if self.thought:
            return dumps([self.text, raws, self.reasoning, self.thought])
        return dumps([self.text, raws] if self.reasoning is None else [self.text, raws, self.reasoning])


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SummaryEntry(Entry):
    """What a model wrote of the older part of a conversation: later requests hold it in place of that part."""

    kind: ClassVar[str] = "summary"
    text: str
    first: int
    """The reading numbers that it stands for, as far as its run reads them: from this one on."""
    last: int
    """To this one."""
    usage: Usage = NO_USAGE
    model: str = ""

    def facts(self) -> Fields:
        own: Fields = {"first": self.first, "last": self.last, "model": self.model, "usage": [*self.usage.facts()]}
        return {**Entry.facts(self), **own}

    def content(self) -> bytes:
        return dumps(self.text)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class PausedEntry(Entry):
    """The run waits for people: every call of the batch that needs nobody has its result."""

    kind: ClassVar[str] = "paused"
    ended_run: tuple[int, int] | None = None
    """(step, index) of the call that will end the run, fixed here if it is known."""
    children: bool = False
    """It waits for child runs that are at work, and goes on being ``running``; nobody drives it meanwhile."""

    def facts(self) -> Fields:
        facts: Fields = {**Entry.facts(self), "endedRun": list(self.ended_run) if self.ended_run else None}
        return {**facts, "children": True} if self.children else facts


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ResumedEntry(Entry):
    """The run goes on, after a pause or, with new limits, after a limit."""

    kind: ClassVar[str] = "resumed"
    limits: Limits | None = None

    def facts(self) -> Fields:
        return {**Entry.facts(self), "limits": self.limits.to_json() if self.limits else None}


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class EndedEntry(Entry):
    """The run's end, and which rule ended it (contract 5)."""

    kind: ClassVar[str] = "ended"
    status: str
    ended_by: str
    ended_run: tuple[int, int] | None = None
    answer: str | None = None
    output: JsonValue = None
    null: bool = False
    """The output is null; without it, None means that there is no output."""
    reason: str | None = None
    """For people: which limit, which error, why cancelled."""
    seconds: float = 0.0
    """Seconds of work, pauses excluded."""
    discarded: Usage = NO_USAGE
    """What answers cost that came to nothing, and after which no turn followed."""

    def facts(self) -> Fields:
        facts: Fields = {
            **Entry.facts(self), "status": self.status, "endedBy": self.ended_by, "seconds": self.seconds,
            "endedRun": list(self.ended_run) if self.ended_run else None,
        }  # fmt: skip  # as above
        if self.discarded is not NO_USAGE:
            facts["discarded"] = [*self.discarded.facts()]
        return {**facts, "null": True} if self.null else facts

    def content(self) -> bytes:
        return dumps([self.answer, self.output, self.reason])


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CancelEntry(Entry):
    """The caller asked for the end."""

    kind: ClassVar[str] = "cancel"
    reason: str | None = None
    by: str | None = None

    def facts(self) -> Fields:
        return {**Entry.facts(self), "by": self.by}

    def content(self) -> bytes:
        return dumps(self.reason)
