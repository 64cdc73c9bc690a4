"""What spans of several processes know of each other: ids that are the same in each (decision 43), and parents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import context, propagate
from opentelemetry.trace import Tracer

_WANTED: ContextVar[tuple[int, int | None] | None] = ContextVar("counterfoil_span_ids", default=None)


class RunIds:
    """Gives the ids that a run has in every process, else those of the program's own generator."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def generate_trace_id(self) -> int:
        wanted = _WANTED.get()
        return int(self._own.generate_trace_id()) if wanted is None else wanted[0]

    def generate_span_id(self) -> int:
        wanted = _WANTED.get()
        return int(self._own.generate_span_id()) if wanted is None or wanted[1] is None else wanted[1]

    def is_trace_id_random(self) -> bool:
        return _WANTED.get() is not None or bool(self._own.is_trace_id_random())


def is_ours(tracer: Tracer) -> bool:
    """Whether its spans get the ids of `wanted_ids`: a tracer of another SDK makes its own."""
    return isinstance(getattr(tracer, "id_generator", None), RunIds)


@contextmanager
def wanted_ids(trace_id: int, span_id: int | None) -> Iterator[None]:
    """A root span that starts within has this trace's id, and this span's where one is given."""
    token = _WANTED.set((trace_id, span_id))
    try:
        yield
    finally:
        _WANTED.reset(token)


def attach(carrier: dict[str, str]) -> None:
    """Go on within the span that a carrier of the propagators names: for a body in a process of its own."""
    context.attach(propagate.extract(carrier))


def ids_of(run_id: str) -> tuple[int, int]:
    """The trace of a run and the span of its first segment. A digest: samplers need every bit of a trace id random."""
    digest = hashlib.sha256(b"counterfoil run " + run_id.encode()).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])
