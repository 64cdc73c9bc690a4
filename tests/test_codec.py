"""Entries as bytes and back, and the hash chain over them (contract 11)."""

import dataclasses
import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.core.approval import Approval, Decision
from counterfoil.core.call import Caller
from counterfoil.core.call_entries import DecidedEntry, LateEntry, MemoEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.codec import GENESIS, chain, decode, encode
from counterfoil.core.content import Audio, File, Image, Json, Kept, Link, Text, block_text
from counterfoil.core.entries import (
    ERASED,
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
    SummaryEntry,
    TurnEntry,
)
from counterfoil.core.jsontext import dumps, loads
from counterfoil.core.limits import DEFAULT_LIMITS, Limits
from counterfoil.core.outcome import (
    SUCCEEDED,
    Cancelled,
    Denied,
    Failed,
    Rejected,
    Skipped,
    ToolFailure,
)
from counterfoil.core.record import Record
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.turn import NO_USAGE, Usage, moment
from tests.marks import law
from tests.records import NOON, Book

KINDS: tuple[type[Entry], ...] = (
    RunEntry, MessageEntry, QueuedEntry, TurnEntry, StartEntry, WaitingEntry, DecidedEntry, ResultEntry,
    LateEntry, MemoEntry, PausedEntry, ResumedEntry, EndedEntry, CancelEntry, NoteEntry, SummaryEntry,
)  # fmt: skip  # a list of names


def facts_of(entry: Entry) -> dict[str, Any]:
    """Every field of an entry, so that two can be compared."""
    return {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry)} | {"type": type(entry)}


def again(entry: Entry) -> Entry:
    body, content = encode(entry)
    return decode(body, content, entry.entry)


# -------------------------------------------------------------------------------- any entry of any kind

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
"""Any text that is on record: lone surrogates never get there."""
MAYBE = st.none() | TEXTS
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
INPUTS = st.dictionaries(TEXTS, JSON, max_size=3).map(dumps)
COUNTS = st.integers(0, 10**9)
TIMES = st.integers(0, 4 * 10**15)
PAIRS = st.none() | st.tuples(COUNTS, COUNTS)
LIMITS = st.builds(Limits, steps=st.none() | COUNTS, cost=st.none() | st.floats(0, 1e6), concurrency=st.just(3))
CALLERS = st.builds(
    Caller,
    tenant=TEXTS.filter(bool),
    user=MAYBE,
    roles=st.lists(TEXTS, max_size=2).map(tuple),
    attributes=st.dictionaries(TEXTS, JSON, max_size=2),
)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS, st.floats(0, 1e6), COUNTS)
BLOCKS = st.one_of(
    st.builds(Text, TEXTS),
    st.builds(Json, JSON),
    st.builds(Link, TEXTS, MAYBE),
    st.builds(Image, st.binary(max_size=9), TEXTS),
    st.builds(Audio, st.binary(max_size=9), TEXTS),
    st.builds(File, st.binary(max_size=9), TEXTS, MAYBE),
    st.builds(Kept, TEXTS, COUNTS, TEXTS, st.booleans()),
)
SAID = st.lists(BLOCKS, min_size=1, max_size=3).map(lambda found: ("\n".join(map(block_text, found)), tuple(found)))
FAILURES = st.builds(
    ToolFailure,
    st.none() | COUNTS,
    TEXTS,
    st.none() | st.booleans(),
    st.sampled_from(["tool", "gateway"]),
    st.sampled_from(["not_started", "ended", "unknown"]),
    JSON,
)
OUTCOMES = st.one_of(
    st.just(SUCCEEDED),
    st.builds(Failed, FAILURES),
    st.builds(Denied, st.sampled_from(["policy", "tool"]), MAYBE, MAYBE),
    st.builds(Rejected, MAYBE, MAYBE),
    st.builds(Skipped, TEXTS, TEXTS),
    st.builds(Cancelled, MAYBE),
)
RESULTS = st.builds(
    lambda blocks, outcome, details, terminate, narration: seal(
        tuple(blocks), outcome, details, terminate=terminate, narration=narration
    ),
    st.lists(BLOCKS, min_size=1, max_size=3),
    OUTCOMES,
    JSON,
    st.booleans(),
    MAYBE,
)
APPROVALS = st.builds(
    Approval,
    id=TEXTS,
    kind=st.sampled_from(["approval", "question", "interrupted"]),
    run_id=TEXTS,
    call_id=TEXTS,
    tool_name=TEXTS,
    input=JSON,
    effective_input=JSON,
    digest=TEXTS,
    rule=MAYBE,
    reason=MAYBE,
    requested_at=TIMES.map(moment),
    expires_at=st.none() | TIMES.map(moment),
    after=MAYBE,
    agent=TEXTS,
    tenant=TEXTS,
)
HEAD = {"run_id": TEXTS, "thread_id": MAYBE, "at": TIMES, "entry": COUNTS, "sequence": COUNTS}
CALL = HEAD | {"step": COUNTS, "index": COUNTS, "call_id": TEXTS, "tool_name": TEXTS}
RESULT = CALL | {
    "result": RESULTS,
    "size": COUNTS,
    "attempt": COUNTS,
    "started_at": st.none() | TIMES,
    "duration": st.none() | COUNTS,
    "kept_id": MAYBE,
    "kept_digest": MAYBE,
    "author_type": st.sampled_from(["Human", "Agent", "System"]),
    "author_name": TEXTS,
    "decision": JSON,
    "parsed": st.none() | INPUTS,
    "replaced": JSON,
    "over": st.none() | st.booleans(),
}


@st.composite
def decided(draw: st.DrawFn) -> DecidedEntry:
    """A decision is stored with the time of its entry, and names the entry's approval."""
    at, approval_id = draw(TIMES), draw(TEXTS)
    decision = Decision(
        choice=draw(st.sampled_from(["approve", "reject", "rerun", "record", "answer"])),
        by=draw(MAYBE),
        reason=draw(MAYBE),
        input=draw(st.none() | INPUTS),
        digest=draw(MAYBE),
        value=draw(JSON),
        at=at,
        approval=approval_id,
    )
    rest = draw(st.fixed_dictionaries({**CALL, "at": st.just(at), "approval_id": st.just(approval_id)}))
    return DecidedEntry(**rest, decision=decision)


ENTRIES: dict[type[Entry], st.SearchStrategy[Entry]] = {
    RunEntry: st.builds(
        RunEntry,
        **HEAD,
        agent=TEXTS,
        caller=CALLERS,
        limits=LIMITS,
        approvals=TEXTS,
        on_disconnect=TEXTS,
        parent=MAYBE,
        call=PAIRS,
    ),
    MessageEntry: st.builds(
        MessageEntry,
        **HEAD,
        text=TEXTS,
        author_type=st.sampled_from(["Human", "Agent", "System"]),
        author_name=TEXTS,
        queued=st.none() | COUNTS,
    )
    | SAID.map(lambda said: MessageEntry(run_id="r", at=NOON, text=said[0], blocks=said[1])),
    QueuedEntry: st.builds(QueuedEntry, **HEAD, text=TEXTS, author_name=TEXTS)
    | SAID.map(lambda said: QueuedEntry(run_id="r", at=NOON, text=said[0], blocks=said[1])),
    NoteEntry: st.builds(NoteEntry, **HEAD, text=TEXTS, author_name=TEXTS),
    SummaryEntry: st.builds(SummaryEntry, **HEAD, text=TEXTS, first=COUNTS, last=COUNTS, model=TEXTS, usage=USAGES),
    TurnEntry: st.builds(
        TurnEntry,
        **HEAD,
        step=COUNTS,
        text=TEXTS,
        calls=st.lists(st.builds(CallRecord, TEXTS, MAYBE, TEXTS, TEXTS, st.booleans()), max_size=3).map(tuple),
        stop=TEXTS,
        usage=USAGES,
        discarded=USAGES,
        model=TEXTS,
        offered=TEXTS,
        reasoning=JSON,
        thought=TEXTS,
    ),
    StartEntry: st.builds(
        StartEntry,
        **CALL,
        attempt=COUNTS,
        key=TEXTS,
        safe=st.booleans(),
        effective=INPUTS,
        parsed=st.none() | INPUTS,
        decision=JSON,
        approval_id=MAYBE,
        lock=MAYBE,
        child=MAYBE,
    ),
    WaitingEntry: st.builds(WaitingEntry, **CALL, approval=APPROVALS, decision=JSON),
    DecidedEntry: decided(),
    ResultEntry: st.builds(ResultEntry, **RESULT),
    LateEntry: st.builds(LateEntry, **RESULT),
    MemoEntry: st.builds(MemoEntry, **CALL, name=TEXTS, value=JSON),
    PausedEntry: st.builds(PausedEntry, **HEAD, ended_run=PAIRS, children=st.booleans()),
    ResumedEntry: st.builds(ResumedEntry, **HEAD, limits=st.none() | LIMITS),
    EndedEntry: st.builds(
        EndedEntry,
        **HEAD,
        discarded=USAGES,
        status=TEXTS,
        ended_by=TEXTS,
        ended_run=PAIRS,
        answer=MAYBE,
        output=JSON,
        null=st.booleans(),
        reason=MAYBE,
        seconds=st.floats(0, 1e9),
    ),
    CancelEntry: st.builds(CancelEntry, **HEAD, reason=MAYBE, by=MAYBE),
}


@law("11.entries")
def test_every_kind_of_entry_is_tested_here() -> None:
    def kinds(base: type[Entry]) -> set[type[Entry]]:
        return {base, *(kind for sub in base.__subclasses__() for kind in kinds(sub))}

    stored = {kind for kind in kinds(Entry) if isinstance(getattr(kind, "kind", None), str)}
    assert stored == set(KINDS) == set(ENTRIES)


@law("11.chain")
@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_comes_back_as_it_went_and_has_the_same_bytes_again(kind: type[Entry]) -> None:
    @settings(max_examples=60)
    @given(ENTRIES[kind])
    def comes_back(entry: Entry) -> None:
        body, content = encode(entry)
        read = decode(body, content, entry.entry)
        assert facts_of(read) == facts_of(entry)
        assert encode(read) == (body, content)
        facts = loads(body)
        assert isinstance(facts, dict)
        assert facts.get("content") == (None if content is None else hashlib.sha256(content).hexdigest())
        assert facts.get("size_") == (None if content is None else len(content))

    comes_back()


@law("11.erased")
@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_whose_content_was_erased_can_still_be_read(kind: type[Entry]) -> None:
    @settings(max_examples=60)
    @given(ENTRIES[kind])
    def reads(entry: Entry) -> None:
        body, _ = encode(entry)
        erased = decode(body, None, entry.entry)
        assert type(erased) is kind
        assert erased.facts().keys() == entry.facts().keys()
        for name, value in entry.facts().items():
            # Whether an input was edited or parsed anew can no longer be seen, since the inputs are gone.
            if name not in ("edited", "same"):
                assert erased.facts()[name] == value
        assert erased.width == entry.width

    reads()


# ----------------------------------------------------------------------------------------- what is hashed


@law("11.erased")
def test_what_people_and_models_wrote_is_content_and_never_body() -> None:
    book = Book()
    secret = "what somebody wrote"  # noqa: S105  # a secret in the common sense
    book.begin()
    book.message(secret)
    book.queue(secret)
    book.turn(("refund", f'{{"x":"{secret}"}}'), text=secret, reasoning=[secret])
    book.wait(0, input={"x": secret}, reason=secret)
    book.decide(0, reason=secret, input=dumps({"y": secret}), value=secret)
    book.start(0, input={"y": secret}, parsed=dumps({"x": secret}))
    result = seal((Text(secret),), Failed(ToolFailure(1, secret, data=secret)), {"d": secret}, narration=secret)
    book.result(0, result, replaced=secret, parsed=dumps(secret))
    book.put(SummaryEntry(run_id=book.run_id, at=book.at, text=secret, first=1, last=1))
    book.cancel(secret)
    book.end(answer=secret, output=secret, reason=secret)
    bodies = [encode(entry)[0] for entry in book.entries]
    assert not any(secret.encode() in body for body in bodies)
    assert sum(secret.encode() in (encode(entry)[1] or b"") for entry in book.entries) == 10


@law("11.erased")
def test_an_erased_record_folds_and_shows_that_it_was_erased() -> None:
    book = Book()
    book.begin()
    book.message("hello")
    book.turn(("refund", "{}"), text="Let me see.")
    book.wait()
    book.decide(input=b"{}")
    book.start()
    book.result(0, ToolResult.error("no", ToolFailure(17, "why")))
    book.end(answer="bye")
    record = Record(decode(encode(entry)[0], None, entry.entry) for entry in book.entries)
    call = record.runs["run-1"].calls[0]
    assert call.result is not None
    assert call.result.result.model_output == ERASED
    assert isinstance(call.result.result.outcome, Failed)
    assert (call.result.result.outcome.failure.code, call.record.raw, call.state) == (17, ERASED, "settled")
    assert record.runs["run-1"].ended is not None
    assert (record.runs["run-1"].ended.answer, record.runs["run-1"].ended.reason) == (ERASED, None)
    body, _ = encode(book.end("limit", "limited", reason="steps"))
    cut = decode(body, None, 9)
    assert isinstance(cut, EndedEntry)
    assert (cut.answer, cut.reason) == (None, ERASED), "what was cut short has no answer"
    assert [getattr(item, "text", ERASED) for item in record.items] == [ERASED] * 3


def test_what_is_usual_is_left_out_and_comes_back() -> None:
    call = {"run_id": "r", "at": NOON, "step": 2, "index": 1, "call_id": "c", "tool_name": "t"}
    turn = TurnEntry(run_id="r", at=NOON, step=2, text="", calls=(CallRecord("c", "c", "t", "{}"),), stop="calls")
    start = StartEntry(**call, attempt=1, key="r:2:1", safe=False, effective=b"{}")
    result = ResultEntry(**call, result=ToolResult.text("yes"), size=3, attempt=1)
    digest = {content: hashlib.sha256(content).hexdigest() for content in (b'["",["{}"]]', b"{}", b'[["yes"]]')}
    expected = {
        turn: {"step": 2, "offered": "", "calls": [["c", "t"]]},
        start: {"step": 2, "index": 1, "callId": "c", "toolName": "t", "attempt": 1},
        result: {
            "step": 2, "index": 1, "callId": "c", "toolName": "t", "outcome": "succeeded", "attempt": 1,
            "startedAt": None, "duration": None, "size": 3,
        },
    }  # fmt: skip  # rows by what belongs together
    for (entry, facts), (content, hashed) in zip(expected.items(), digest.items(), strict=True):
        head = {"kind": entry.kind, "run": "r", "at": NOON}
        assert encode(entry) == (dumps({**head, **facts, "content": hashed, "size_": len(content)}), content)
        assert facts_of(again(entry)) == facts_of(entry)
        assert encode(again(entry)) == encode(entry)
    assert again(turn).usage is NO_USAGE  # type: ignore[attr-defined]  # a turn comes back


def test_a_start_without_a_number_of_attempts_means_three_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    start = StartEntry(run_id="r", at=NOON, step=0, index=0, call_id="c", tool_name="t", attempt=1, key="k",
                       safe=True, effective=b"{}", most=3)  # fmt: skip  # two rows
    assert b"most" not in encode(start)[0]
    monkeypatch.setattr("counterfoil.core.call_entries.ATTEMPTS", 5)
    assert again(start).most == 3  # type: ignore[attr-defined]  # a start comes back


@law("11.chain")
@given(st.binary(min_size=1), st.integers(0), st.integers(0, 255))
def test_a_changed_body_or_a_changed_past_gives_another_hash(body: bytes, place: int, flip: int) -> None:
    changed = bytearray(body)
    changed[place % len(body)] ^= flip
    assert (chain(GENESIS, bytes(changed)) == chain(GENESIS, body)) is (flip == 0)
    assert chain(chain(GENESIS, b"{}"), body) != chain(GENESIS, body)
    assert chain(GENESIS, body) == hashlib.sha256(bytes(32) + body).digest()


def test_a_text_with_a_lone_surrogate_is_stored_as_a_replacement() -> None:
    assert again(MessageEntry(run_id="r", at=NOON, text="a\ud800b")).text == "a\ufffdb"  # type: ignore[attr-defined]  # a message comes back


@law("8.big-int")
def test_numbers_stay_exact() -> None:
    entry = MemoEntry(run_id="r", at=NOON, step=0, index=0, call_id="c", tool_name="t", name="n", value=10**40)
    assert again(entry).value == 10**40  # type: ignore[attr-defined]  # a memo comes back


# ------------------------------------------------------------------------------------------- bad bytes


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[]", "expected an entry's body, got list"),
        (b'{"kind":"future"}', "expected an entry of a known kind, got 'future'; is the program too old"),
        (b"{}", "expected an entry of a known kind, got None"),
        (b"{", "EOF|Expecting"),
    ],
)
def test_bytes_that_are_no_entry_are_a_value_error(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(body, None, 1)


def test_limits_of_another_version_are_read_with_defaults_for_what_is_missing() -> None:
    entry = ResumedEntry(run_id="r", at=NOON, limits=DEFAULT_LIMITS)
    facts = loads(encode(entry)[0])
    assert isinstance(facts, dict)
    facts["limits"] = {"steps": 7, "invented_later": 1}
    read = decode(dumps(facts), None, 1)
    assert isinstance(read, ResumedEntry)
    assert read.limits == Limits(steps=7)
