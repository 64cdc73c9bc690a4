"""Pairs of call and result in a request, and their ids on the wire (contract 2.1 and 1.2)."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.entries import CallRecord
from counterfoil.core.pairs import check_pairs, wire_ids
from counterfoil.core.record import Item
from tests.marks import law
from tests.records import Book
from tests.test_context import conversation


def ids_of(*turns: Sequence[tuple[str | None, str]], most: int | None = None) -> list[str]:
    book = Book()
    for calls in turns:
        book.turn(*[CallRecord(ours, given, "get", "{}") for given, ours in calls])
    return list(wire_ids(book.record.items, most).values())


@law("1.2.provider_call_id")
def test_the_provider_gets_its_own_id_back() -> None:
    assert ids_of([("p1", "p1"), ("p2", "p2")], [("p3", "p3")]) == ["p1", "p2", "p3"]


@law("1.2.provider_call_id", "1.2.call_id")
def test_an_id_that_is_used_in_the_request_gives_way_to_ours() -> None:
    assert ids_of([("p", "p"), ("p", "ours-1")], [("p", "ours-2")]) == ["p", "ours-1", "ours-2"]


@pytest.mark.parametrize("missing", [None, "", "  "])
def test_a_missing_id_gives_way_to_ours(missing: str | None) -> None:
    assert ids_of([(missing, "ours")]) == ["ours"]


def test_where_ours_is_used_too_a_number_stands_in() -> None:
    assert ids_of([("p", "p"), ("ours", "x")], [("p", "ours")]) == ["p", "ours", "call_2"]


def test_an_id_too_long_for_the_provider_is_replaced() -> None:
    assert ids_of([("p" * 41, "ours"), ("q" * 40, "ours-2")], most=40) == ["ours", "q" * 40]
    assert ids_of([("p" * 41, "o" * 41), ("p" * 41, "o" * 41)], most=40) == ["call_0", "call_1"]


def test_the_ids_of_two_runs_are_told_apart() -> None:
    book = Book()
    for run in ("run-1", "run-2"):
        book.run_id = run
        book.begin()
        book.turn(CallRecord("c1", "c1", "get", "{}"), step=0)
        book.result(0, step=0)
    assert wire_ids(book.record.items) == {("run-1", 0, 0): "c1", ("run-2", 0, 0): "call_1"}


TEXTS = st.text(alphabet="ab_ 0", max_size=3)


@law("1.2.provider_call_id")
@given(st.lists(st.lists(st.tuples(st.none() | TEXTS, TEXTS), max_size=3), max_size=5))
def test_ids_are_unique_in_a_request_and_one_for_each_call(turns: list[list[tuple[str | None, str]]]) -> None:
    ids = ids_of(*turns)
    assert len(ids) == len(set(ids)) == sum(map(len, turns))
    assert all(name.strip() for name in ids)


@law("2.1")
def test_pairs_are_checked() -> None:
    items: list[Item] = conversation([1, 1], [1]).record.items
    check_pairs([])
    check_pairs(items)
    with pytest.raises(ValueError, match=r"calls without a result: c0\.1"):
        check_pairs([*items[:3], *items[4:]])
    with pytest.raises(ValueError, match=r"the result of call c0\.0 has no open call"):
        check_pairs([items[0], *items[2:]])
    with pytest.raises(ValueError, match=r"the result of call c1\.0 has no open call"):
        check_pairs([*items, items[-1]])
    with pytest.raises(ValueError, match="has no open call before it"):
        check_pairs([items[-1], *items[:-1]])
