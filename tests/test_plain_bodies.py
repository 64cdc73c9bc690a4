"""Plain entries have the bytes that their facts and their content amount to."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.core.call_entries import ResultEntry, StartEntry
from counterfoil.core.codec import decode, encode
from counterfoil.core.content import Text
from counterfoil.core.entries import CallRecord, Entry, TurnEntry
from counterfoil.core.jsontext import dumps
from counterfoil.core.outcome import SUCCEEDED
from counterfoil.core.plain_bodies import WRITERS
from counterfoil.core.result import seal
from counterfoil.core.turn import NO_USAGE, Usage
from tests.marks import law
from tests.records import NOON
from tests.test_codec import ENTRIES

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNTS = st.integers(0, 10**9)
HEAD = {"run_id": TEXTS, "at": st.integers(0, 4 * 10**15)}
CALL = HEAD | {"step": COUNTS, "index": COUNTS, "call_id": TEXTS, "tool_name": TEXTS, "attempt": COUNTS}
USAGES = st.just(NO_USAGE) | st.builds(Usage, COUNTS, COUNTS, COUNTS, st.floats(0, 1e9), COUNTS)
PLAIN: dict[type[Entry], st.SearchStrategy[Entry]] = {
    TurnEntry: st.builds(
        TurnEntry,
        **HEAD,
        sequence=st.integers(1, 10**9),
        step=COUNTS,
        text=TEXTS,
        calls=st.lists(st.builds(lambda i, n, r: CallRecord(i, i, n, r), TEXTS, TEXTS, TEXTS), min_size=1, max_size=3),
        stop=st.just("calls") | TEXTS,
        usage=USAGES,
        discarded=USAGES,
        model=st.just("") | TEXTS,
        offered=TEXTS,
    ),
    StartEntry: st.builds(
        lambda **given: StartEntry(**given, key=f"{given['run_id']}:{given['step']}:{given['index']}"),
        **CALL,
        safe=st.just(False),  # the field's usual value
        effective=st.dictionaries(TEXTS, TEXTS, max_size=2).map(dumps),
    ),
    ResultEntry: st.builds(
        ResultEntry,
        **CALL,
        result=TEXTS.map(lambda text: seal((Text(text),), SUCCEEDED)),
        size=COUNTS,
        started_at=COUNTS,
        duration=COUNTS,
    ),
}


def written(entry: Entry) -> tuple[bytes, bytes] | None:
    write = WRITERS.get(type(entry))
    return None if write is None else write(entry)


def by_way_of_a_dict(entry: Entry) -> tuple[bytes, bytes | None]:
    content = entry.content()
    body = entry.facts()
    if content is not None:
        body |= {"content": hashlib.sha256(content).hexdigest(), "size_": len(content)}
    return dumps(body), content


@law("11.chain")
@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_entry_has_the_same_bytes(kind: type[Entry]) -> None:
    @settings(max_examples=50, deadline=None)
    @given(PLAIN[kind])
    def same(entry: Entry) -> None:
        made = written(entry)
        assert made is not None
        assert made == by_way_of_a_dict(entry) == encode(entry)
        assert encode(decode(*made, entry.entry)) == made

    same()


@law("11.chain")
@pytest.mark.parametrize("kind", ENTRIES)
def test_any_other_is_left_to_the_dict_or_has_the_same_bytes(kind: type[Entry]) -> None:
    @settings(max_examples=50, deadline=None)
    @given(ENTRIES[kind])
    def same(entry: Entry) -> None:
        assert written(entry) in (None, by_way_of_a_dict(entry))
        assert encode(entry) == by_way_of_a_dict(entry)

    same()


UNUSUAL = {
    StartEntry: {
        "thread_id": "private:x", "sequence": 3, "safe": True, "key": "another", "decision": {"verdict": "allow"},
        "approval_id": "a", "lock": "l", "parsed": b"1", "most": 5, "child": "run-2",
    },
    ResultEntry: {
        "thread_id": "private:x", "sequence": 3, "kept_id": "k", "kept_digest": "d", "author_type": "Human",
        "author_name": "grace", "decision": {"verdict": "deny"}, "parsed": b"1", "effective": b"2", "replaced": "r",
        "over": False, "started_at": None, "duration": None,
        "result": seal((Text("a"),), SUCCEEDED, terminate=True),
    },
    TurnEntry: {
        "thread_id": "private:x", "sequence": 0, "reasoning": ["r"], "calls": (), "stop": "length", "text": "so",
        "usage": Usage(1, 2, 3, 0.00001, 4), "model": "m", "thought": "hm",
    },
}  # fmt: skip  # rows by what belongs together


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, facts in UNUSUAL.items() for name in facts])
def test_nothing_unusual_is_left_out(kind: type[Entry], name: str) -> None:
    call = {"step": 1, "index": 0, "call_id": "c", "tool_name": "t"}
    usual = {
        StartEntry: {**call, "attempt": 1, "key": "r:1:0", "safe": False, "effective": b"{}"},
        ResultEntry: {**call, "result": seal((Text("a"),), SUCCEEDED), "size": 1, "started_at": 1, "duration": 1},
        TurnEntry: {"step": 1, "text": "", "calls": (CallRecord("c", "c", "t", "{}"),), "stop": "calls", "sequence": 1},
    }[kind]
    entry = kind(**{"run_id": "r", "at": NOON, **usual, name: UNUSUAL[kind][name]})
    assert encode(entry) == by_way_of_a_dict(entry)
    read = decode(*encode(entry), 1)
    assert getattr(read, name) == UNUSUAL[kind][name]


def test_half_a_surrogate_pair_is_replaced_as_elsewhere() -> None:
    call = {"step": 1, "index": 0, "call_id": "c\ud800", "tool_name": "t"}
    start = StartEntry(run_id="r", at=NOON, **call, attempt=1, key="r:1:0", safe=False, effective=b"{}")
    assert encode(start) == by_way_of_a_dict(start)
    assert "c\ufffd".encode() in encode(start)[0]
