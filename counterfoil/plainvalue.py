"""Whether a value is plain JSON already, found at the speed of C; what is said of one that has no form."""

from __future__ import annotations

import gc
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import cast
from uuid import UUID

from counterfoil.core.jsontext import MAX_DEPTH
from counterfoil.core.shorten import clip


class Formless(Exception):
    """A value without a JSON form: what came, what to do about it, and the way to it, innermost step first.

    Nobody outside meets it: `counterfoil.render` makes an ``Unrenderable`` of it.
    """

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.way: list[str] = []

    def sentence(self) -> str:
        """What came, where in the value, what to do."""
        return f"cannot render {self.what} at {clip('value' + ''.join(reversed(self.way)), 200)}: {self.hint}"


def too_deep() -> Formless:
    """What is said of a cycle, which cannot be told from deep nesting."""
    return Formless(f"a value that holds itself or nests over {MAX_DEPTH} levels", "return a flatter value")


_CONTAINERS: frozenset[type] = frozenset({dict, list, tuple})
_PLAIN: frozenset[type] = _CONTAINERS | {str, int, float, bool, type(None), datetime, date, time, timedelta}
"""Types, exactly these, that the writer writes by our rules, and in which `gc` sees nothing but contents."""
_LEAVES: frozenset[type] = frozenset({UUID, Decimal, type(Path())})
"""Types that it writes so too, but for a Decimal that is no number; what `gc` sees in them is theirs."""

_MANY = 1_000_000
"""Values on one level from which on a cycle is looked for: a wide one would fill the memory by level 200."""
_TOO_MANY = 100_000_000
"""Values that may be written: a few objects that hold one another again and again make an endless text."""
_NUMBERS = frozenset({int, float, bool})
_WORTH_IT = 100
"""Values on a level from which on to look at its columns."""
_WIDEST = 32
"""Columns of a table, at most."""
_LONG = 1000
"""Characters of a text from which on its type is found sooner than its copy is made."""


def is_plain(value: object) -> bool:
    """Whether the writer alone does right by a value.

    Goes down level by level, each in a few calls that loop in C: what the objects of a level hold is the next
    one. So the number of levels is the depth.
    """
    level: list[object] = [value]
    depth = columns = 0
    while level:
        types = _types(level, columns)
        if not types <= _PLAIN:
            if not types <= _PLAIN | _LEAVES:
                return False
            if Decimal in types and not all(x.is_finite() for x in level if isinstance(x, Decimal)):
                return False
            level = [x for x in level if type(x) not in _LEAVES]
        if depth >= MAX_DEPTH and not types.isdisjoint(_CONTAINERS):
            raise too_deep()
        below = gc.get_referents(*level)
        if len(below) > _MANY:
            _measure(value, 0, {})
        columns = len(below) // len(level) if level else 0
        level = below
        depth += 1
    return True


def _types(level: list[object], columns: int) -> set[type]:
    """The types on a level, except that columns of text alone and of numbers alone may be left out.

    Rows of one shape lie on a level as a table with so many columns; a wrong number costs time, nothing else.
    """
    if len(level) < _WORTH_IT:
        return set(map(type, level))
    if not 0 < columns <= _WIDEST:
        columns = 1
    types: set[type] = set()
    for first in range(columns):
        column = level[first::columns] if columns > 1 else level
        if not _is_of_one_kind(column):
            types.update(map(type, column))
    return types


def _is_of_one_kind(column: list[object]) -> bool:
    """Whether a column is text alone, or numbers alone: a join and a sum tell sooner than all the types.

    They let subclasses pass. Those written in Python give themselves away on the next level, where `gc` shows
    the class; those written in C are written as their base is; a Decimal changes the type of the sum.
    """
    first = column[0]
    try:
        if type(first) is str:
            if len(first) > _LONG:
                return False
            "".join(cast("list[str]", column))
            return True
        return type(first) in _NUMBERS and type(sum(cast("list[int]", column))) in _NUMBERS
    except Exception:  # noqa: BLE001  # an addition in a class of somebody else may raise anything
        return False


def _measure(value: object, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Levels and values of a container, itself included; each object is looked into once."""
    if type(value) not in _CONTAINERS:
        return 0, 1
    if (found := known.get(id(value))) is None:
        if depth >= MAX_DEPTH:
            raise too_deep()
        levels, count = 0, 1
        for item in gc.get_referents(value):
            below = _measure(item, depth + 1, known)
            levels, count = max(levels, below[0]), count + below[1]
        found = known[id(value)] = levels + 1, count
    if depth + found[0] > MAX_DEPTH:
        raise too_deep()
    if found[1] > _TOO_MANY:
        raise Formless(f"a value that is written as more than {_TOO_MANY:,} values", "return a part of it")
    return found
