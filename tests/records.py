"""Records built by hand, entry by entry, as a store would number them."""

from dataclasses import dataclass, field
from typing import Any

from counterfoil.core.approval import Approval, Decision, input_digest
from counterfoil.core.call import Caller
from counterfoil.core.call_entries import DecidedEntry, LateEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.content import Text
from counterfoil.core.entries import (
    CallRecord,
    CancelEntry,
    EndedEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    PausedEntry,
    QueuedEntry,
    ResumedEntry,
    RunEntry,
    TurnEntry,
)
from counterfoil.core.jsontext import dumps
from counterfoil.core.limits import DEFAULT_LIMITS
from counterfoil.core.outcome import (
    SUCCEEDED,
    Cancelled,
    Denied,
    ErrorCode,
    Failed,
    Rejected,
    Skipped,
    ToolFailure,
    ToolOutcome,
)
from counterfoil.core.record import CallState, Record
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.turn import Usage, moment

NOON = 1_793_016_000_000_000
"""2026-10-26T12:00:00Z in microseconds."""

TIMEOUT = Failed(ToolFailure(ErrorCode.TIMEOUT, "secret", retryable=True, origin="gateway", body="unknown"))

OUTCOMES: dict[str, ToolOutcome] = {
    "succeeded": SUCCEEDED,
    "failed": Failed(ToolFailure(ErrorCode.TOOL_ERROR, "secret", retryable=None)),
    "denied": Denied("policy", "no-refunds", "Refunds wait."),
    "rejected": Rejected("too much", "grace"),
    "skipped": Skipped("duplicate", "framework"),
    "cancelled": Cancelled("enough"),
}
"""One outcome of each kind."""


def ended(outcome: ToolOutcome, text: str = "what the model reads", **more: Any) -> ToolResult:
    """A result with this outcome."""
    return seal((Text(text),), outcome, **more)


@dataclass
class Book:
    """One interaction under construction; each method puts one entry on record and returns it."""

    run_id: str = "run-1"
    thread: str | None = None
    tenant: str = "acme"
    record: Record = field(default_factory=Record)
    entries: list[Entry] = field(default_factory=list)
    at: int = NOON
    sequence: int = 1
    steps: int = 0

    def put(self, entry: Entry) -> Any:
        self.at += 1_000_000
        entry.entry = len(self.entries) + 1
        if entry.width:
            entry.sequence = self.sequence
            self.sequence += entry.width
        self.entries.append(entry)
        self.record.apply(entry)
        return entry

    def _head(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "thread_id": self.thread, "at": self.at}

    def _of(self, index: int, step: int | None) -> dict[str, Any]:
        call = self.call(index, step)
        return self._head() | {
            "step": call.turn.step,
            "index": index,
            "call_id": call.record.call_id,
            "tool_name": call.record.tool_name,
        }

    def call(self, index: int, step: int | None = None) -> CallState:
        run = self.record.runs[self.run_id]
        return run.batch[index] if step is None else next(c for c in run.calls if c.key == (step, index))

    def begin(self, agent: str = "support", user: str | None = "ada", **more: Any) -> RunEntry:
        caller = Caller(self.tenant, user)
        self.steps = 0
        return self.put(RunEntry(**self._head(), agent=agent, caller=caller, limits=DEFAULT_LIMITS, **more))

    def note(self, text: str = "Mind the gap", **more: Any) -> NoteEntry:
        return self.put(NoteEntry(**self._head(), text=text, **more))

    def on(self, run_id: str, thread: str | None = None) -> "Book":
        """Go on with another run, on its thread."""
        self.run_id, self.thread = run_id, thread
        return self

    def message(self, text: str = "Refund order W100", **more: Any) -> MessageEntry:
        return self.put(MessageEntry(**self._head(), text=text, **more))

    def queue(self, text: str = "And hurry") -> QueuedEntry:
        return self.put(QueuedEntry(**self._head(), text=text))

    def turn(self, *calls: tuple[str, str] | CallRecord, text: str = "", **more: Any) -> TurnEntry:
        """A turn of calls: (tool, raw input) each, or a record of one."""
        step = more.pop("step", self.record.runs[self.run_id].turns if self.run_id in self.record.runs else 0)
        made = tuple(
            call if isinstance(call, CallRecord) else CallRecord(f"c{step}.{i}", f"p{step}.{i}", call[0], call[1])
            for i, call in enumerate(calls)
        )
        more = {"stop": "calls" if calls else "end", "usage": Usage(100, 20)} | more
        return self.put(TurnEntry(**self._head(), step=step, text=text, calls=made, **more))

    def start(self, index: int = 0, step: int | None = None, input: Any = None, **more: Any) -> StartEntry:
        more = {"attempt": 1, "key": f"key-{index}", "safe": False} | more
        effective = dumps({"order": "W100"} if input is None else input)
        return self.put(StartEntry(**self._of(index, step), effective=effective, **more))

    def result(
        self, index: int = 0, result: ToolResult | None = None, step: int | None = None, **more: Any
    ) -> ResultEntry:
        result = ToolResult.text("done") if result is None else result
        start = self.call(index, step).start
        if start is not None:
            more = {"attempt": start.attempt, "started_at": start.at, "duration": 12_000} | more
        more.setdefault("size", len(result.model_output.encode()))
        return self.put(ResultEntry(**self._of(index, step), result=result, **more))

    def late(self, index: int = 0, step: int | None = None) -> LateEntry:
        return self.put(LateEntry(**self._of(index, step), result=ToolResult.text("late"), size=4))

    def wait(self, index: int = 0, step: int | None = None, input: Any = None, **more: Any) -> WaitingEntry:
        of = self._of(index, step)
        shown = {"order": "W100"} if input is None else input
        fields = {
            "id": f"approval-{len(self.entries)}",
            "kind": "approval",
            "run_id": self.run_id,
            "call_id": of["call_id"],
            "tool_name": of["tool_name"],
            "input": shown,
            "effective_input": shown,
            "digest": input_digest(of["tool_name"], dumps(shown)),
            "rule": "big-refunds",
            "reason": "Over the limit.",
            "requested_at": moment(self.at),
            "tenant": self.tenant,
        } | more
        return self.put(WaitingEntry(**of, approval=Approval(**fields), decision={"verdict": "ask"}))

    def decide(
        self,
        index: int = 0,
        choice: Any = "approve",
        step: int | None = None,
        by: str | None = "grace",
        **more: Any,
    ) -> DecidedEntry:
        waiting = self.call(index, step).waiting
        assert waiting is not None
        decision = Decision(choice, by, at=self.at, **more)
        return self.put(DecidedEntry(**self._of(index, step), approval_id=waiting.approval.id, decision=decision))

    def pause(self, ended_run: tuple[int, int] | None = None) -> PausedEntry:
        return self.put(PausedEntry(**self._head(), ended_run=ended_run))

    def resume(self, **more: Any) -> ResumedEntry:
        return self.put(ResumedEntry(**self._head(), **more))

    def cancel(self, reason: str | None = "enough", by: str | None = "ada") -> CancelEntry:
        return self.put(CancelEntry(**self._head(), reason=reason, by=by))

    def end(self, by: str = "answer", status: str = "completed", **more: Any) -> EndedEntry:
        return self.put(EndedEntry(**self._head(), status=status, ended_by=by, **more))


def a_call(result: ToolResult | None = None, *, started: bool = True, **more: Any) -> Book:
    """A run of one call that has this result."""
    book = Book()
    book.begin()
    book.message()
    book.turn(("refund", '{"order": "W100"}'))
    if started:
        book.start()
    book.result(0, result, **more)
    return book
