"""Reader: the MODEL. Calls and results in a request: their ids on the wire, and that each has its other half."""

from __future__ import annotations

import re
from collections.abc import Iterable

from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.entries import TurnEntry
from counterfoil.core.record import Item

CallKey = tuple[str, int, int]
"""(run, step, index): our key of a call."""


_SAID = re.compile(r"(?s).*\S.*")


def wire_ids(items: Iterable[Item], most: int | None = None, legal: re.Pattern[str] = _SAID) -> dict[CallKey, str]:
    """The id of each call on the wire, for the call and its result alike: unique in the request.

    The provider gets its own id back where that is free; else our call id stands in, else ``call_`` and a
    number.

    Args:
        items: what the request holds.
        most: characters of an id that the provider takes; a longer one is replaced.
        legal: what a whole id must match for the provider; ``call_`` and a number does.

    Returns:
        The ids by (run, step, index), since a call id is unique in its run alone.
    """
    used: set[str] = set()
    ids: dict[CallKey, str] = {}
    for item in items:
        if type(item) is not TurnEntry:
            continue
        for index, call in enumerate(item.calls):
            name = next(
                name
                for name in _names(call.provider_call_id, call.call_id, len(ids))
                if name and name not in used and (not most or len(name) <= most) and legal.fullmatch(name)
            )
            used.add(name)
            ids[item.run_id, item.step, index] = name
    return ids


def _names(given: str | None, ours: str, number: int) -> Iterable[str | None]:
    yield given
    yield ours
    while True:
        yield f"call_{number}"
        number += 1


def check_pairs(items: Iterable[Item]) -> None:
    """Refuse a conversation that no model may be sent (contract 2.1).

    Raises:
        ValueError: a call without its result, a result without its call before it, or a second result.
    """
    open_: dict[CallKey, str] = {}
    for item in items:
        if isinstance(item, TurnEntry):
            open_ |= {(item.run_id, item.step, i): c.call_id for i, c in enumerate(item.calls)}
        elif isinstance(item, ResultEntry) and open_.pop((item.run_id, item.step, item.index), None) is None:
            raise ValueError(f"the result of call {item.call_id} has no open call before it in the request")
    if open_:
        raise ValueError(f"the request holds calls without a result: {', '.join(open_.values())}")
