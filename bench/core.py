"""What every measured program shares: workloads, tools, and a script that checks what it is told.

An adapter gives ``build(spec)`` (once a process, not timed), ``run(built, script, number)`` (one whole run, timed) and
``close(built)``. The module's name is that of the shared harness, so that ``adapters/ours.py`` runs under both.
"""

from __future__ import annotations

import json
import threading
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

PROMPT = "Record the items."
SYSTEM = "You are a careful clerk."
FINAL = "all done"
BIG = 1_000_000
"""Bytes of a large result, about."""


class Mismatch(Exception):
    """A program dropped, changed or invented a result: its figures would mean nothing."""


@dataclass(frozen=True)
class Spec:
    """One workload."""

    name: str
    steps: int
    width: int = 1
    tool: str = "record"
    concurrency: int = 1
    durable: str | None = None
    """A folder for the store; None: memory."""

    @property
    def calls(self) -> int:
        """Tool calls of one measured piece."""
        return self.steps * self.width * self.concurrency


WORKLOADS = {
    s.name: s
    for s in (
        Spec("W1", 50),
        Spec("W2", 5, width=32),
        Spec("W3", 50, tool="record_sync"),
        Spec("W4", 10, concurrency=200),
        Spec("W5o", 20, tool="big_obj"),
        Spec("W5t", 20, tool="big_text"),
        Spec("W6", 50, durable=""),
        Spec("W6c", 10, concurrency=50, durable=""),
        Spec("D1", 50, durable=""),
        Spec("D16", 25, concurrency=16, durable=""),
        Spec("W7", 400),
    )
}


class Count:
    """Executions of tools."""

    n = 0
    main = threading.get_ident()
    on_main = 0


def _line(item_id: int, label: str, weight: float) -> str:
    Count.n += 1
    return f"{item_id}|{label}|{weight}"


async def record(item_id: int, label: str, weight: float) -> str:
    """Record an item."""
    return _line(item_id, label, weight)


def record_sync(item_id: int, label: str, weight: float) -> str:
    """Record an item, slowly for all the caller knows."""
    Count.on_main += threading.get_ident() == Count.main
    return _line(item_id, label, weight)


TABLE: list[dict[str, Any]] = []
TABLE_TEXT: list[str] = []


def fill_table() -> None:
    """Make the large result, once."""
    size = 0
    while size < BIG:
        n = len(TABLE)
        row = {"id": n, "name": f"article {n}", "stock": n % 7 > 2, "kilos": n / 8, "marks": ["x", "y\u00e9", f"{n}"]}
        TABLE.append(row)
        size += len(json.dumps(row, ensure_ascii=False, separators=(",", ":"))) + 1
    TABLE_TEXT.append(json.dumps(TABLE, ensure_ascii=False, separators=(",", ":")))


async def big_obj(item_id: int, label: str, weight: float) -> dict[str, Any]:
    """Read a large table."""
    Count.n += 1
    return {"step": item_id, "rows": TABLE}


async def big_text(item_id: int, label: str, weight: float) -> str:
    """Read a large table as text."""
    Count.n += 1
    return f'{{"step":{item_id},"rows":{TABLE_TEXT[0]}}}'


TOOLS = {f.__name__: f for f in (record, record_sync, big_obj, big_text)}


@dataclass(frozen=True)
class Call:
    """A call that the script makes, and what must come back."""

    id: str
    name: str
    args: dict[str, Any]
    args_json: str
    expect: str | None


def plan_for(spec: Spec, number: int = 0) -> list[list[Call]]:
    """The calls of every step; made before the clock starts."""
    steps = []
    for step in range(spec.steps):
        row = []
        for index in range(spec.width):
            n = step * spec.width + index
            args = {"item_id": n, "label": f"item-{n}", "weight": n + 0.5}
            expect = None if spec.tool.startswith("big") else f"{n}|item-{n}|{n + 0.5}"
            row.append(Call(f"c{number}-{step}-{index}", spec.tool, args, json.dumps(args), expect))
        steps.append(row)
    return steps


class Script:
    """A model's part in one run: it checks the new results and gives the next calls, or None at the end."""

    def __init__(self, plan: list[list[Call]]) -> None:
        self.plan = plan
        self.i = 0
        self.finished = False

    def next(self, results: Any) -> list[Call] | None:
        """The next step's calls."""
        if self.i:
            want = self.plan[self.i - 1]
            got = dict(results)
            if len(got) != len(want):
                raise Mismatch(f"step {self.i}: {len(got)} results for {len(want)} calls")
            for call in want:
                text = got[call.id]
                if (len(text) < BIG * 0.9) if call.expect is None else (text != call.expect):
                    raise Mismatch(f"step {self.i}: {call.id} says {text[:80]!r}")
        if self.i == len(self.plan):
            self.finished = True
            return None
        self.i += 1
        return self.plan[self.i - 1]


CURRENT: ContextVar[Script] = ContextVar("script")
"""The script of the run in this task."""

__all__ = [
    "CURRENT", "FINAL", "PROMPT", "SYSTEM", "TOOLS", "WORKLOADS", "Call", "Count", "Mismatch", "Script", "Spec",
    "fill_table", "plan_for", "replace",
]  # fmt: skip  # names in rows
