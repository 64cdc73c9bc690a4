"""The laws of the contract on rows: what a faithful record is, and each way in which one can be unfaithful.

A record is written here as entries. `rows` makes of them what a store holds, with a chain that is whole: as
somebody would do who changes a record and mends its hashes. What breaks the chain is done to rows afterwards.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.approval import Approval, Decision, input_digest
from counterfoil.core.call import Caller
from counterfoil.core.call_entries import DecidedEntry, LateEntry, MemoEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.codec import GENESIS, chain, encode
from counterfoil.core.content import Text
from counterfoil.core.entries import (
    CallRecord,
    CancelEntry,
    EndedEntry,
    Entry,
    MessageEntry,
    PausedEntry,
    QueuedEntry,
    ResumedEntry,
    RunEntry,
    SummaryEntry,
    TurnEntry,
)
from counterfoil.core.jsontext import dumps, loads
from counterfoil.core.laws import Checker
from counterfoil.core.laws_chain import MAX_BREAKS
from counterfoil.core.laws_facts import KINDS, Kind, Problem
from counterfoil.core.limits import DEFAULT_LIMITS
from counterfoil.core.outcome import SUCCEEDED, Cancelled, ErrorCode, Failed, Rejected, ToolFailure, ToolOutcome
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.turn import author
from counterfoil.store import Head, StoredRow
from tests.marks import law

# ------------------------------------------------------------------------------------- writing a record


@dataclass
class Write:
    """Entries of one run, one sentence each."""

    run_id: str = "r1"
    tenant: str = "default"
    entries: list[Entry] = field(default_factory=list)
    thread: str | None = None

    def put(self, kind: type[Entry], **facts: Any) -> "Write":
        head = {"run_id": self.run_id, "thread_id": self.thread, "at": 1_000_000 + len(self.entries)}
        self.entries.append(kind(**head, **facts))
        return self

    def begin(self, text: str = "Refund W100", *, parent: str | None = None, **facts: Any) -> "Write":
        caller = Caller(tenant=self.tenant)
        self.put(RunEntry, agent="support", caller=caller, limits=DEFAULT_LIMITS, parent=parent, **facts)
        return self.put(MessageEntry, text=text)

    def turn(self, *calls: str, step: int = 0, text: str = "", stop: str = "calls") -> "Write":
        made = tuple(CallRecord(c, c, "refund", "{}") for c in calls)
        return self.put(TurnEntry, step=step, text=text, calls=made, stop=stop)

    def summary(self, first: int, last: int) -> "Write":
        return self.put(SummaryEntry, text="In short.", first=first, last=last)

    def call(self, kind: type[Entry], index: int = 0, step: int = 0, **facts: Any) -> "Write":
        facts = {"call_id": f"c{step}{index}", "tool_name": "refund", **facts}
        return self.put(kind, step=step, index=index, **facts)

    def start(self, index: int = 0, step: int = 0, **facts: Any) -> "Write":
        facts = {"attempt": 1, "key": f"k{step}{index}", "safe": False, "effective": INPUT, **facts}
        return self.call(StartEntry, index, step, **facts)

    def result(self, index: int = 0, step: int = 0, kind: type[Entry] = ResultEntry, **facts: Any) -> "Write":
        facts = {"result": ToolResult.text("Refunded."), "size": 9, "attempt": 1, **facts}
        return self.call(kind, index, step, **facts)

    def done(self, index: int = 0, step: int = 0, **facts: Any) -> "Write":
        return self.start(index, step, **facts).result(index, step)

    def waiting(self, index: int = 0, step: int = 0, *, id: str = "a1", kind: str = "approval") -> "Write":
        approval = Approval(
            id=id, kind=kind, run_id=self.run_id, call_id=f"c{step}{index}", tool_name="refund", input={},
            effective_input={}, digest=DIGEST, rule=None, reason=None,
            requested_at=datetime(2026, 1, 1, tzinfo=UTC),
        )  # fmt: skip
        return self.call(WaitingEntry, index, step, approval=approval)

    def decided(
        self, choice: str = "approve", index: int = 0, step: int = 0, *, id: str = "a1", **facts: Any
    ) -> "Write":
        decision = Decision(choice, "grace", **facts)
        return self.call(DecidedEntry, index, step, approval_id=id, decision=decision)

    def ended(self, status: str = "completed", ended_by: str = "answer", **facts: Any) -> "Write":
        return self.put(EndedEntry, status=status, ended_by=ended_by, **facts)

    def answer(self, step: int = 1) -> "Write":
        return self.turn(step=step, text="Done.", stop="end").ended(answer="Done.")


INPUT = b'{"cents":100,"order":"W100"}'
DIGEST = input_digest("refund", INPUT)
TEXT = b"A long text."
TEXT_DIGEST = hashlib.sha256(TEXT).hexdigest()


def outcome(of: ToolOutcome) -> ToolResult:
    return seal((Text("No."),), of)


def story(*runs: "Write | Entry") -> list[Entry]:
    """The entries of one interaction in their order."""
    return [entry for run in runs for entry in (run.entries if isinstance(run, Write) else [run])]


def rows(*runs: "Write | Entry", interaction: str = "i1", tenant: str = "default") -> list[StoredRow]:
    """The entries as a store holds them."""
    stored, previous, free = [], GENESIS, 1
    for at, entry in enumerate(story(*runs), 1):
        entry.entry = at
        if entry.width:
            entry.sequence = entry.sequence or free
            free = max(free, entry.sequence + entry.width)
        body, content = encode(entry)
        previous = chain(previous, body)
        stored.append(
            StoredRow(
                tenant, interaction, at, entry.run_id, entry.kind, entry.sequence, entry.width, body, content,
                None, previous,
            )
        )  # fmt: skip
    return stored


def mended(stored: Iterable[StoredRow]) -> list[StoredRow]:
    """The rows numbered and chained anew."""
    out, previous = [], GENESIS
    for at, row in enumerate(stored, 1):
        previous = chain(previous, row.body)
        out.append(replace(row, entry=at, hash=previous))
    return out


def other(row: StoredRow, **facts: Any) -> StoredRow:
    """The row with other facts in its body; its hash stays."""
    return replace(row, body=dumps({**loads(row.body), **facts}))  # type: ignore[dict-item]  # an object


def check(
    stored: Iterable[StoredRow],
    *,
    tips: Iterable[Head] = (),
    kept: Iterable[tuple[str, str, bytes | None, int, str]] = (),
) -> list[Problem]:
    checker = Checker(tips)
    found = [p for row in stored for p in checker.feed(row)]
    found += checker.finish()
    found += [p for text in kept for p in checker.kept(*text)]
    return found + checker.finish_kept()


def kinds(found: Iterable[Problem]) -> list[Kind]:
    return [p.kind for p in found]


def position(stored: list[StoredRow], kind: str) -> int:
    return next(i for i, row in enumerate(stored) if row.kind == kind)


def plain() -> Write:
    """Two calls at once, whose results come in the other order; then the answer."""
    w = Write().begin().turn("c00", "c01", text="Let me see.")
    return w.start(0).start(1).result(1).result(0).answer()


def approved() -> Write:
    return Write().begin().turn("c00").waiting().put(PausedEntry).decided().put(ResumedEntry)


def apart_story(run_id: str = "r1") -> list[Entry]:
    """A run with a text kept apart."""
    w = Write(run_id).begin().turn("c00").start()
    return story(w.result(kept_id="t1", kept_digest=TEXT_DIGEST, size=len(TEXT)).answer())


CHILD_FAILED = ToolFailure(ErrorCode.CHILD_FAILED)
MINER = author("Agent", "support", "default").id
THREAD = f"dispatch:{MINER}:r2"


def managed(*calls: str) -> Write:
    """A run whose calls each wait for a run: r2, r3 and so on."""
    w = Write().begin().turn(*calls)
    for index in range(len(calls)):
        w.start(index, child=f"r{index + 2}")
    return w


def child(run_id: str, thread: str = THREAD, call: tuple[int, int] = (0, 0), parent: str = "r1") -> Write:
    return Write(run_id, thread=thread).begin(parent=parent, call=call)


def a_task(
    ended: str = "completed", gave: ToolOutcome = SUCCEEDED, thread: str = THREAD, call: tuple[int, int] = (0, 0)
) -> list[Entry]:
    """A run hands a task on, which ends so; what the call gave then."""
    ends = {"completed": "answer", "limited": "limit", "failed": "error"}
    below = child("r2", thread, call).turn(text="Dug.", stop="end").ended(ended, ends[ended])
    return story(managed("c00"), below, Write().result(result=outcome(gave)).answer())


# ------------------------------------------------------------------------------- what is a faithful record

FAITHFUL: dict[str, Callable[[], list[Entry]]] = {
    "calls at once": lambda: story(plain()),
    "a run that is open, with calls on their way": lambda: story(Write().begin().turn("c00", "c01").start(0)),
    "an answer and no call": lambda: story(Write().begin().answer(0)),
    "a pause and an approval": lambda: story(approved().done(approval_id="a1").answer()),
    "one approved, one rejected": lambda: story(
        Write().begin().turn("c00", "c01").waiting(0).waiting(1, id="a2").put(PausedEntry)
        .decided("reject", 1, id="a2", reason="No.")
        .result(1, result=outcome(Rejected("No.", "grace")), attempt=0)
        .decided(digest=DIGEST).done(approval_id="a1").answer()
    ),
    "an edited input": lambda: story(
        Write().begin().turn("c00").waiting().decided(input=b'{"cents":5}')
        .done(effective=b'{"cents":5}', parsed=b'{"x":"a,]\\"}"}', approval_id="a1").answer()
    ),
    "another approval in place of the first": lambda: story(
        approved().waiting(id="a2").decided(id="a2").done(approval_id="a2").answer()
    ),
    "an expired approval": lambda: story(
        Write().begin().turn("c00").waiting().put(PausedEntry).result(attempt=0).answer()
    ),
    "a safe call, three attempts": lambda: story(
        Write().begin().turn("c00").start(safe=True).start(safe=True, attempt=2)
        .start(safe=True, attempt=3).result(attempt=3).answer()
    ),
    "interrupted, run again by a person": lambda: story(
        Write().begin().turn("c00").start().waiting(kind="interrupted").put(PausedEntry)
        .decided("rerun").start(attempt=2, approval_id="a1").result(attempt=2).answer()
    ),
    "interrupted, recorded by a person": lambda: story(
        Write().begin().turn("c00").start().waiting(kind="interrupted")
        .decided("record", value={"content": []}).result().answer()
    ),
    "a question answered": lambda: story(
        Write().begin().turn("c00").waiting(kind="question").decided("answer", value="Yes.")
        .result(attempt=0).answer()
    ),
    "late results": lambda: story(
        Write().begin().turn("c00").start(safe=True).start(safe=True, attempt=2)
        .result(kind=LateEntry).result(attempt=2).answer().result(kind=LateEntry, attempt=2)
    ),
    "a run cancelled": lambda: story(
        Write().begin().turn("c00", "c01").start().put(CancelEntry, reason="Enough.").result()
        .result(1, attempt=0, result=outcome(Cancelled())).ended("cancelled", "cancelled")
    ),
    "a turn cut off": lambda: story(
        Write().begin().turn("c00", stop="length").result(attempt=0).answer()
    ),
    "a tool ends the run, over a pause": lambda: story(
        Write().begin().turn("c00", "c01").done().waiting(1).put(PausedEntry, ended_run=(0, 0))
        .decided("approve", 1).done(1, approval_id="a1").ended("completed", "tool", ended_run=(0, 0))
    ),
    "memos": lambda: story(
        Write().begin().turn("c00").start().call(MemoEntry, name="n", value=1).result().answer()
    ),
    "a queued message, delivered": lambda: story(
        Write().begin().turn("c00").start().put(QueuedEntry, text="And W101.").result()
        .put(MessageEntry, text="And W101.", queued=5).answer()
    ),
    "a queued message, for the next run": lambda: story(
        Write().begin().answer(0).put(QueuedEntry, text="More."), Write("r2").begin().put(
            MessageEntry, text="More.", queued=5
        ).answer(0)
    ),
    "a limited run that goes on": lambda: story(
        Write().begin().turn("c00").done().ended("limited", "limit").put(ResumedEntry, limits=DEFAULT_LIMITS)
        .answer()
    ),
    "a child run within its parent's call": lambda: story(
        Write().begin().turn("c00").start(), Write("r2").begin(parent="r1").answer(0),
        *Write().result().answer().entries
    ),
    "a task, handed on": a_task,
    "a task that was not done": lambda: a_task("limited", Failed(CHILD_FAILED)),
    "a task whose run was cancelled with it": lambda: story(
        managed("c00"), child("r2"), Write().result(result=outcome(Cancelled())).ended("cancelled", "cancelled"),
        Write("r2", thread=THREAD).ended("cancelled", "cancelled"),
    ),
    "a text kept apart": apart_story,
    "nothing": list,
}  # fmt: skip  # a line a step


@law("11.verify", "11.entries")
@pytest.mark.parametrize("entries", FAITHFUL.values(), ids=FAITHFUL.keys())
def test_a_faithful_record_has_no_problem(entries: Callable[[], list[Entry]]) -> None:
    assert check(rows(*entries()), kept=[("default", "t1", TEXT, 12, TEXT_DIGEST)]) == []


def test_what_was_read_is_counted() -> None:
    checker = Checker()
    for row in [*rows(plain()), *rows(Write().begin().turn("c00"), interaction="i2")]:
        checker.feed(row)
    checker.finish()
    c = checker.counts
    assert (c.interactions, c.runs, c.calls, c.results, c.entries) == (2, 2, 3, 2, 12)
    assert [(h.interaction_id, h.entry) for h in checker.heads] == [("i1", 9), ("i2", 3)]


# ---------------------------------------------------------- each law broken, with a chain that was mended


def two_steps() -> Write:
    """A message is 1, the turns with their results are 2 to 3 and 4 to 5."""
    return Write().begin().turn("c00").done().turn("c10", step=1).done(0, 1)


def test_a_summary_of_whole_turns_before_the_newest_is_well() -> None:
    assert check(rows(two_steps().summary(1, 1).summary(1, 3))) == []
    assert check(rows(two_steps().summary(1, 3).turn(step=2, text="Done.", stop="end"))) == []


BROKEN: dict[str, tuple[Kind, Callable[[], list[StoredRow]]]] = {
    # a summary stands for what is there, in whole turns, and for ever more
    "a summary of what is not there": ("summary", lambda: rows(Write().begin().summary(1, 2))),
    "a summary of nothing": ("summary", lambda: rows(two_steps().summary(2, 1))),
    "a summary that parts a call from its result": ("summary", lambda: rows(two_steps().summary(1, 2))),
    "a summary from amid a turn": ("summary", lambda: rows(two_steps().turn("c20", step=2).summary(3, 5))),
    "a summary of the newest turn": ("summary", lambda: rows(two_steps().summary(1, 5))),
    "a summary of what one stands for": ("summary", lambda: rows(two_steps().summary(1, 3).summary(1, 3))),
    "a summary on another thread than its run's": (
        "child", lambda: rows(managed("c00"), child("r2"), Write("r2").summary(1, 1))
    ),
    # one run for a call, on its thread, and both tell the same
    "a task done whose run was limited": ("child", lambda: rows(*a_task("limited"))),
    "a task not done whose run was completed": ("child", lambda: rows(*a_task(gave=Failed(CHILD_FAILED)))),
    "an answer before the end of its run": (
        "child", lambda: rows(managed("c00"), child("r2"), Write().result().answer())
    ),
    "an answer without its run": ("child", lambda: rows(managed("c00"), Write().result().answer())),
    "a task of another agent's thread": (
        "child", lambda: rows(*a_task(thread=f"dispatch:{author('Agent', 'other', 'default').id}:r2"))
    ),
    "a task of another run's thread": ("child", lambda: rows(*a_task(thread=f"dispatch:{MINER}:r3"))),
    "a task on the main thread": (
        "child", lambda: rows(managed("c00"), Write("r2").begin(parent="r1", call=(0, 0)))
    ),
    "a task of a call that is not there": ("child", lambda: rows(managed("c00"), child("r2", call=(0, 1)))),
    "a task that begins after its call's result": (
        "child", lambda: rows(managed("c00"), Write().result(result=outcome(Cancelled(None))), child("r2"))
    ),
    "a task of a call that waits for another run": (
        "child", lambda: rows(managed("c00", "c01"), child("r2", call=(0, 1)))
    ),
    "two calls that wait for one run": (
        "child", lambda: rows(Write().begin().turn("c00", "c01").start(0, child="r2").start(1, child="r2"))
    ),
    "a task of a run that is not on record": (
        "child", lambda: rows(managed("c00"), child("r2", parent="r9"))
    ),
    "a turn on another thread than its run's": (
        "child", lambda: rows(managed("c00"), child("r2"), Write("r2").turn(text="Dug.", stop="end"))
    ),
    "a result on another thread than its call's": (
        "child", lambda: rows(Write().begin().turn("c00").start(), Write(thread=f"private:{MINER}").result())
    ),
    "a root run on the thread of a task": ("child", lambda: rows(Write("r2", thread=THREAD).begin())),
    "a thread of no kind": ("child", lambda: rows(Write(thread="elsewhere").begin())),
    # every call has one result
    "an ended run lacks a result": (
        "missing-result", lambda: rows(Write().begin().turn("c00", "c01").done().ended("limited", "limit"))
    ),
    "a turn comes before a result": (
        "missing-result", lambda: rows(Write().begin().turn("c00").start().turn("c10", step=1))
    ),
    "a result twice": ("doubled-result", lambda: rows(Write().begin().turn("c00").done().result().answer())),
    "a result of an earlier step twice": (
        "doubled-result", lambda: rows(Write().begin().turn("c00").done().turn("c10", step=1).result())
    ),
    "a result without its call": ("orphan-result", lambda: rows(Write().begin().turn("c00").result(1))),
    "a result of another call's id": (
        "orphan-result", lambda: rows(Write().begin().turn("c00").start().result(call_id="c99"))
    ),
    "a start of another tool": (
        "orphan-result", lambda: rows(Write().begin().turn("c00").start(tool_name="delete"))
    ),
    "a start without its turn": ("orphan-result", lambda: rows(Write().begin().done().answer(0))),
    # started as allowed
    "an attempt twice": (
        "doubled-start", lambda: rows(Write().begin().turn("c00").start(safe=True).start(safe=True))
    ),
    "an unsafe call again": (
        "doubled-start", lambda: rows(Write().begin().turn("c00").start().start(attempt=2))
    ),
    "a call that was unsafe again": (
        "doubled-start", lambda: rows(Write().begin().turn("c00").start().start(attempt=2, safe=True))
    ),
    "an unsafe call again, approved but not to run again": (
        "doubled-start",
        lambda: rows(
            Write().begin().turn("c00").start().waiting().decided().start(attempt=2, approval_id="a1")
        ),
    ),
    "a fourth attempt": (
        "doubled-start",
        lambda: rows(
            Write().begin().turn("c00").start(safe=True).start(safe=True, attempt=2)
            .start(safe=True, attempt=3).start(safe=True, attempt=4)
        ),
    ),
    "a start after the result": (
        "doubled-start", lambda: rows(Write().begin().turn("c00").done(safe=True).start(safe=True, attempt=2))
    ),
    "another key": (
        "doubled-start",
        lambda: rows(Write().begin().turn("c00").start(safe=True).start(safe=True, attempt=2, key="k2")),
    ),
    "an attempt left out": ("order", lambda: rows(Write().begin().turn("c00").start(attempt=2))),
    "a start in a turn cut off": (
        "order", lambda: rows(Write().begin().turn("c00", stop="length").start())
    ),
    "a start in a turn that was refused": (
        "order", lambda: rows(Write().begin().turn("c00", stop="refusal").start())
    ),
    "a result that never started": ("order", lambda: rows(Write().begin().turn("c00").result())),
    "a result of an earlier attempt": (
        "order",
        lambda: rows(Write().begin().turn("c00").start(safe=True).start(safe=True, attempt=2).result()),
    ),
    "a late result that never started": (
        "order", lambda: rows(Write().begin().turn("c00").start().result(kind=LateEntry, attempt=2))
    ),
    # approved once, for this input
    "an approval that is not on record": (
        "approval", lambda: rows(Write().begin().turn("c00").start(approval_id="a1"))
    ),
    "an approval that nobody decided": (
        "approval", lambda: rows(Write().begin().turn("c00").waiting().start(approval_id="a1"))
    ),
    "a start past its approval": ("approval", lambda: rows(Write().begin().turn("c00").waiting().start())),
    "a start that does not consume": ("approval", lambda: rows(approved().start())),
    "a rejected call starts": (
        "approval",
        lambda: rows(Write().begin().turn("c00").waiting().decided("reject").start(approval_id="a1")),
    ),
    "an approval consumed twice": (
        "approval",
        lambda: rows(
            approved().start(safe=True, approval_id="a1").start(safe=True, attempt=2, approval_id="a1")
        ),
    ),
    "another call's approval": (
        "approval",
        lambda: rows(Write().begin().turn("c00", "c01").waiting().decided().start(1, approval_id="a1")),
    ),
    "an approval that was replaced": (
        "approval", lambda: rows(approved().waiting(id="a2").start(approval_id="a1"))
    ),
    "another input than was approved": (
        "approval",
        lambda: rows(approved().start(approval_id="a1", effective=b'{"cents":900,"order":"W100"}')),
    ),
    "another input than the edit": (
        "approval",
        lambda: rows(
            Write().begin().turn("c00").waiting().decided(input=b'{"cents":5}')
            .start(approval_id="a1", parsed=b"{}", effective=INPUT)
        ),
    ),
    "a decision on nothing": ("approval", lambda: rows(Write().begin().turn("c00").decided())),
    "a second decision": ("approval", lambda: rows(approved().decided("reject"))),
    "a decision after the result": (
        "approval", lambda: rows(Write().begin().turn("c00").waiting().result(attempt=0).decided())
    ),
    "a decision on another call's approval": (
        "approval", lambda: rows(Write().begin().turn("c00", "c01").waiting().decided("approve", 1))
    ),
    "a decision on an approval that was replaced": (
        "approval", lambda: rows(Write().begin().turn("c00").waiting().waiting(id="a2").decided())
    ),
    "a decision of the wrong kind": (
        "approval", lambda: rows(Write().begin().turn("c00").waiting(kind="question").decided())
    ),
    "a decision on another input": (
        "approval", lambda: rows(Write().begin().turn("c00").waiting().decided(digest="0" * 64))
    ),
    "an approval opened twice": (
        "approval", lambda: rows(Write().begin().turn("c00").waiting().waiting())
    ),
    "an approval after the result": ("approval", lambda: rows(Write().begin().turn("c00").done().waiting())),
    "a rejection by nobody": (
        "approval",
        lambda: rows(Write().begin().turn("c00").result(attempt=0, result=outcome(Rejected()))),
    ),
    # reading order
    "a reading number twice": (
        "sequence", lambda: rows(Write().begin().put(MessageEntry, text="x", sequence=1))
    ),
    "a message within a turn's numbers": (
        "sequence", lambda: rows(Write().begin().turn("c00").put(MessageEntry, text="x", sequence=3))
    ),
    "a result elsewhere": ("sequence", lambda: rows(Write().begin().turn("c00").start().result(sequence=2))),
    "a number for what stands nowhere": (
        "sequence", lambda: rows(Write().begin().turn("c00").start(sequence=2))
    ),
    # columns
    "another run in the column": (
        "column", lambda: [replace(r, run_id="r9") if r.kind == "message" else r for r in rows(plain())]
    ),
    "another kind in the column": (
        "column", lambda: [replace(r, kind="late") if r.kind == "ended" else r for r in rows(plain())]
    ),
    "another number in the column": (
        "column", lambda: [replace(r, sequence=9) if r.kind == "message" else r for r in rows(plain())]
    ),
    "another width in the column": (
        "column", lambda: [replace(r, width=0) if r.kind == "message" else r for r in rows(plain())]
    ),
    "another tenant in the column": ("column", lambda: rows(plain(), tenant="acme")),
    # the life of a run
    "no beginning": ("order", lambda: rows(*plain().entries[1:])),
    "two beginnings": ("order", lambda: rows(Write().begin().begin())),
    "an entry after the end": ("order", lambda: rows(plain().put(MessageEntry, text="x"))),
    "two ends": ("order", lambda: rows(plain().ended())),
    "a completed run goes on": ("order", lambda: rows(plain().put(ResumedEntry))),
    "a step left out": ("order", lambda: rows(Write().begin().turn("c20", step=2))),
    "a step twice": ("order", lambda: rows(Write().begin().turn("c00").done().turn("c01", step=0))),
    "a call id twice": ("order", lambda: rows(Write().begin().turn("c00", "c00"))),
    "the ending call moves": (
        "order",
        lambda: rows(
            Write().begin().turn("c00", "c01").done().done(1).put(PausedEntry, ended_run=(0, 0))
            .ended("completed", "tool", ended_run=(0, 1))
        ),
    ),
    "the ending call did not succeed": (
        "order",
        lambda: rows(
            Write().begin().turn("c00").start().result(result=ToolResult.error("No."))
            .ended("completed", "tool", ended_run=(0, 0))
        ),
    ),
    "the ending call is none": (
        "order", lambda: rows(Write().begin().turn("c00").done().ended("completed", "tool"))
    ),
    "a status that its end does not give": (
        "order", lambda: rows(Write().begin().ended("completed", "limit"))
    ),
    "two open root runs": ("order", lambda: rows(Write().begin(), Write("r2").begin())),
    "a queued message delivered twice": (
        "order",
        lambda: rows(
            Write().begin().put(QueuedEntry, text="x").put(MessageEntry, text="x", queued=3)
            .put(MessageEntry, text="x", queued=3)
        ),
    ),
    "a queued message that nobody sent": (
        "order", lambda: rows(Write().begin().put(MessageEntry, text="x", queued=1))
    ),
    # bodies and contents
    "a body that is no JSON": (
        "unreadable", lambda: mended([*rows(plain()), replace(rows(plain())[-1], body=b"{", entry=10)])
    ),
    "a body that lacks a fact": (
        "unreadable",
        lambda: mended(
            other(r, attempt="1") if r.kind == "result" else r
            for r in rows(Write().begin().turn("c00").done())
        ),
    ),
    "a body of an unknown kind": (
        "unreadable", lambda: mended(other(r, kind="x") if r.kind == "paused" else r for r in rows(
            Write().begin().put(PausedEntry)
        ))
    ),
    "a changed content": (
        "changed-bytes",
        lambda: [replace(r, content=b'"Refund all"') if r.kind == "message" else r for r in rows(plain())],
    ),
    "a content that is gone": (
        "changed-bytes", lambda: [replace(r, content=None) if r.entry == 3 else r for r in rows(plain())]
    ),
    "a content where there was none": (
        "changed-bytes",
        lambda: [
            replace(r, content=b"1") if r.entry == 3 else r for r in rows(Write().begin().put(PausedEntry))
        ],
    ),
    "a content that is said to be erased": (
        "changed-bytes",
        lambda: [replace(r, erased_at=5) if r.kind == "message" else r for r in rows(plain())],
    ),
}  # fmt: skip  # a line a step


@law("11.verify", "11.entries")
@pytest.mark.parametrize(("kind", "stored"), BROKEN.values(), ids=BROKEN.keys())
def test_each_broken_law_is_named_once(kind: Kind, stored: Callable[[], list[StoredRow]]) -> None:
    found = check(stored())
    assert kinds(found) == [kind], found
    assert found[0].tenant in ("default", "acme")
    assert found[0].interaction_id == "i1"
    assert found[0].entry


def test_a_problem_names_its_place() -> None:
    (problem,) = check(rows(Write().begin().turn("c00", "c01").done().ended("limited", "limit")))
    assert problem.to_json() == {
        "kind": "missing-result",
        "tenant": "default",
        "interactionId": "i1",
        "entry": 3,
        "runId": "r1",
        "callId": "c01",
        "message": "the call of refund has no result before the end of its run",
    }


# ------------------------------------------------------------------------------------------- the chain


def swapped(stored: list[StoredRow], i: int, j: int) -> list[StoredRow]:
    out = list(stored)
    out[i], out[j] = replace(stored[j], entry=stored[i].entry), replace(stored[i], entry=stored[j].entry)
    return out


@law("11.chain")
@given(st.sampled_from(sorted(FAITHFUL.keys() - {"nothing"})), st.data())
def test_a_changed_byte_of_a_body_is_one_problem(name: str, data: st.DataObject) -> None:
    stored = rows(*FAITHFUL[name]())
    i = data.draw(st.integers(0, len(stored) - 1))
    body = bytearray(stored[i].body)
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    stored[i] = replace(stored[i], body=bytes(body))
    found = check(stored, kept=[("default", "t1", TEXT, 12, TEXT_DIGEST)])
    assert [p.entry for p in found] == [i + 1], found
    assert found[0].kind in ("changed-bytes", "unreadable")


@given(st.sampled_from(sorted(FAITHFUL.keys() - {"nothing"})), st.data())
def test_a_body_with_any_fact_in_it_is_checked_to_the_end(name: str, data: st.DataObject) -> None:
    stored = rows(*FAITHFUL[name]())
    i = data.draw(st.integers(0, len(stored) - 1))
    fact = data.draw(st.sampled_from(sorted(loads(stored[i].body))))  # type: ignore[arg-type]  # an object
    value = data.draw(st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers() | st.text()))
    stored[i] = other(stored[i], **{fact: value})
    checker = Checker()
    for row in mended(stored):
        checker.feed(row)
    checker.finish()
    assert checker.counts.entries == len(stored)


@law("11.chain")
@given(st.data())
def test_a_changed_hash_is_one_problem(data: st.DataObject) -> None:
    stored = rows(plain())
    i = data.draw(st.integers(0, len(stored) - 1))
    stored[i] = replace(stored[i], hash=hashlib.sha256(b"x").digest())
    found = check(stored)
    assert len(found) == 1, found
    assert found[0].kind == ("broken-chain" if i + 1 < len(stored) else "changed-bytes")
    assert found[0].entry == i + 1


@law("11.chain")
@given(st.data())
def test_two_entries_that_changed_places_are_one_problem(data: st.DataObject) -> None:
    stored = rows(plain())
    i, j = sorted(data.draw(st.lists(st.integers(0, len(stored) - 1), min_size=2, max_size=2, unique=True)))
    (problem,) = check(swapped(stored, i, j))
    assert (problem.kind, problem.entry) == ("broken-chain", i + 1)
    assert problem.message == f"entries {i + 1} and {j + 1} have changed places"


@law("11.chain")
@given(st.data())
def test_two_bodies_that_changed_places_are_one_problem(data: st.DataObject) -> None:
    stored = rows(plain())
    i, j = sorted(data.draw(st.lists(st.integers(0, len(stored) - 1), min_size=2, max_size=2, unique=True)))
    hashes = [row.hash for row in stored]
    changed = [replace(row, hash=h) for row, h in zip(swapped(stored, i, j), hashes, strict=True)]
    (problem,) = check(changed)
    assert (problem.kind, problem.entry) == ("broken-chain", i + 1)
    assert problem.message == f"entries {i + 1} and {j + 1} have changed places"


@law("11.chain")
def test_entries_that_moved_are_one_problem() -> None:
    stored = rows(plain())
    moved = [*stored[:3], *stored[5:7], *stored[3:5], *stored[7:]]
    (problem,) = check([replace(row, entry=at) for at, row in enumerate(moved, 1)])
    assert (problem.kind, problem.entry) == ("broken-chain", 4)
    assert problem.message == "entries 4 to 5, 6 to 7 are not where they were written"


@law("11.chain")
def test_an_entry_that_is_missing_is_named_with_the_law_that_it_breaks() -> None:
    stored = rows(plain())
    del stored[position(stored, "result")]
    found = check(stored)
    assert sorted(kinds(found)) == ["broken-chain", "missing-result"]
    assert "entry 6 is missing" in [p.message for p in found]


@law("11.chain")
def test_an_entry_removed_and_the_rest_numbered_anew_breaks_the_chain() -> None:
    stored = rows(plain())
    del stored[2]
    found = check([replace(row, entry=at) for at, row in enumerate(stored, 1)])
    assert "changed-bytes" in kinds(found)


@law("11.chain")
def test_numbers_alone_that_were_changed_break_the_chain() -> None:
    stored = rows(plain())
    stored[-1] = replace(stored[-1], entry=12)
    assert kinds(check(stored)) == ["broken-chain"]


@law("11.chain")
def test_an_entry_number_twice_breaks_the_chain() -> None:
    stored = rows(plain())
    assert "broken-chain" in kinds(check([*stored, stored[-1]]))


@law("11.chain")
@pytest.mark.parametrize("kind", ["start", "result"])
def test_a_copy_of_an_entry_at_the_end_is_doubled(kind: str) -> None:
    stored = rows(Write().begin().turn("c00", "c01").done())
    copy = replace(stored[position(stored, kind)], entry=len(stored) + 1)
    assert kinds(check([*stored, copy])) == [f"doubled-{kind}"]


@law("11.chain")
def test_each_of_several_changes_is_named() -> None:
    stored = rows(plain())
    for i in (1, 4, 7):
        stored[i] = other(stored[i], at=5)
    assert [(p.kind, p.entry) for p in check(stored)] == [("changed-bytes", i) for i in (2, 5, 8)]


@law("11.chain")
def test_very_many_changes_are_counted_together() -> None:
    w = Write().begin()
    for _ in range(200):
        w.put(MessageEntry, text="x")
    found = check(other(row, at=5) for row in rows(w))
    assert len(found) == MAX_BREAKS + 1
    assert found[-1].message.startswith(f"{202 - MAX_BREAKS} more")


@law("11.chain")
@pytest.mark.parametrize("kind", ["run", "message", "turn", "start", "waiting", "decided", "result", "ended"])
def test_what_a_changed_entry_may_have_said_is_not_missed(kind: str) -> None:
    stored = rows(approved().done(approval_id="a1").answer())
    i = position(stored, kind)
    stored[i] = replace(stored[i], body=stored[i].body[:-1] + b",}")
    assert kinds(check(stored)) == ["unreadable"]


@law("11.chain")
def test_a_changed_result_hides_no_other_missing_one() -> None:
    stored = rows(Write().begin().turn("c00", "c01").done().ended("limited", "limit"))
    i = position(stored, "result")
    stored[i] = other(stored[i], at=5)
    assert sorted(kinds(check(stored))) == ["changed-bytes", "missing-result"]


# ------------------------------------------------------------------------------------ erased and kept apart


@law("11.erased")
def test_erased_contents_are_counted_and_are_no_problem() -> None:
    stored = [
        replace(row, content=None, erased_at=7) if row.content is not None else row
        for row in rows(approved().done(approval_id="a1").answer())
    ]
    checker = Checker()
    assert [p for row in stored for p in checker.feed(row)] + checker.finish() == []
    assert checker.counts.erased == 8


@law("11.verify")
@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (("default", "t1", TEXT, 12, TEXT_DIGEST), None),
        (("default", "t1", None, 12, TEXT_DIGEST), None),
        (("default", "t1", b"A short text", 12, TEXT_DIGEST), "its bytes do not give its digest"),
        (("default", "t1", TEXT, 13, TEXT_DIGEST), "it has 12 bytes, expected 13"),
        (("default", "t1", b"x", 1, hashlib.sha256(b"x").hexdigest()), "its digest is not the one on record"),
        (("acme", "t1", TEXT, 12, TEXT_DIGEST), "it is not in the store"),
    ],
)
def test_a_text_kept_apart_is_whole(kept: tuple[str, str, bytes | None, int, str], message: str | None) -> None:
    found = check(rows(*apart_story()), kept=[kept])
    assert [(p.kind, p.entry, p.call_id, p.message) for p in found] == (
        [] if message is None else [("kept", 5, "c00", f"text t1, kept apart: {message}")]
    )


def test_a_text_kept_apart_to_which_nothing_points_must_be_whole_too() -> None:
    (problem,) = check([], kept=[("default", "t9", b"x", 1, TEXT_DIGEST)])
    assert (problem.kind, problem.interaction_id) == ("kept", None)


def test_two_entries_agree_on_a_text_kept_apart() -> None:
    stored = rows(
        Write().begin().turn("c00", "c01").start().start(1).result(kept_id="t1", kept_digest=TEXT_DIGEST)
        .result(1, kept_id="t1", kept_digest="0" * 64)
    )  # fmt: skip
    assert kinds(check(stored, kept=[("default", "t1", TEXT, 12, TEXT_DIGEST)])) == ["kept"]


# -------------------------------------------------------------------------------------------------- heads


def tip(stored: list[StoredRow]) -> Head:
    last = stored[-1]
    return Head(last.tenant, last.interaction_id, last.entry, last.hash)


@law("11.head")
def test_a_record_that_has_grown_since_its_head_is_well() -> None:
    stored = rows(plain())
    assert check(stored, tips=[tip(stored[:4]), tip(stored)]) == []


@law("11.head")
@pytest.mark.parametrize("left", [1, 4, 7])
def test_a_dropped_tail_is_named(left: int) -> None:
    stored = rows(Write().begin().turn("c00").start().result().turn("c10", step=1).done(0, 1))
    (problem,) = check(stored[:left], tips=[tip(stored), tip(stored[:5])])
    assert (problem.kind, problem.entry) == ("dropped-tail", left)
    assert problem.message == f"the interaction ends at entry {left}; it had 8 entries"


@law("11.head")
def test_a_dropped_interaction_is_named() -> None:
    first, second = rows(plain()), rows(plain(), interaction="i2")
    (problem,) = check(second, tips=[tip(first), tip(second)])
    assert (problem.kind, problem.interaction_id) == ("dropped-tail", "i1")


@law("11.head")
def test_a_past_that_was_written_anew_is_named() -> None:
    stored = rows(plain())
    rewritten = mended([*stored[:1], replace(stored[1], body=other(stored[1], at=5).body), *stored[2:]])
    assert check(rewritten) == []
    found = check(rewritten, tips=[tip(stored)])
    assert [(p.kind, p.entry) for p in found] == [("dropped-tail", 9)]


@law("11.head")
def test_heads_are_told_apart_by_tenant() -> None:
    stored = rows(plain())
    assert kinds(check(stored, tips=[replace(tip(stored), tenant="acme")])) == ["dropped-tail"]


# -------------------------------------------------------------------------------------------- completeness


def test_each_kind_of_problem_has_a_record_that_shows_it() -> None:
    elsewhere = {"broken-chain", "dropped-tail", "kept"}
    assert {kind for kind, _ in BROKEN.values()} | elsewhere == set(KINDS)
