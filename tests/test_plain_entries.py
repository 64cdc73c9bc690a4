"""An entry made by position is the one that its class makes of the same values."""

from dataclasses import MISSING, fields
from typing import Any

import pytest

from counterfoil.core import plain_entries
from counterfoil.core.call_entries import LateEntry, ResultEntry, StartEntry
from counterfoil.core.content import Text
from counterfoil.core.entries import CallRecord, Entry, TurnEntry
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import Usage

HEAD = ("run", "question:x:1", 17)
CALL = (*HEAD, 2, 1, "c1", "look")
START = (*CALL, 3, "key", True, b"{}", b"[]")
RESULT = (*CALL, ToolResult((Text("told"),)), 4, 3, 18, 9)
TURN = (*HEAD, 2, "text", (CallRecord("c1", "c1", "look", "{}"),), "calls", Usage(1), Usage(2), "m", "of", ["r"], "t")
MADE = [
    (TurnEntry, TURN, plain_entries.turn(*TURN)),
    (StartEntry, START, plain_entries.start(*START)),
    (ResultEntry, RESULT, plain_entries.result(*RESULT, ResultEntry)),
    (LateEntry, RESULT, plain_entries.result(*RESULT, LateEntry)),
]


def told(entry: Entry) -> dict[str, Any]:
    return {field.name: getattr(entry, field.name) for field in fields(entry)}


@pytest.mark.parametrize(("kind", "given", "made"), MADE)
def test_an_entry_made_by_position_has_every_field_that_its_class_gives_it(kind, given, made):
    set_by_the_store = {"entry", "sequence"}
    names = [field.name for field in fields(kind) if field.name not in set_by_the_store]
    assert type(made) is kind
    assert told(made) == told(kind(**dict(zip(names, given, strict=False))))


@pytest.mark.parametrize(("kind", "given", "made"), MADE)
def test_it_takes_at_least_what_the_class_must_be_given(kind, given, made):
    must = [f for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    assert len(given) > len(must)
