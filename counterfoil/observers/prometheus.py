"""What a Runtime does as metrics of Prometheus, of the extra ``http``. Names and units are by its conventions."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, Final, get_args
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0, generate_latest

from counterfoil.core.errors import StoreError
from counterfoil.core.events import (
    CallEnded,
    Decided,
    Event,
    RunEnded,
    RunPaused,
    RunStarted,
    TurnRecorded,
)
from counterfoil.core.items import ToolResultPart
from counterfoil.core.outcome import RESERVED_CODES, Failed
from counterfoil.hooks import Hooks
from counterfoil.model import StopReason
from counterfoil.store import Counts

log = logging.getLogger("counterfoil")

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_1_0_0
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Buckets: the client library's own, and those of a tool that asks another service or a person."""
OWN_CODES: Final = 100
"""Codes of tools' authors that have a series of their own; what comes after them is ``other``."""
OTHER: Final = "other"
"""A tool that the agent has not (a model may ask for any name), an agent that is not here, a code too many."""
STOPS: Final = get_args(StopReason)


class Metrics:
    """Counts what the runs do that this process drives, from now on, and asks the store what waits.

    No series has a tenant, a user, an id or a word of anybody: the number of series depends on agents and tools alone.

    Args:
        runtime: a Runtime; its hooks get one more.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._codes: set[int] = set()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, told: str, *labels: str) -> Counter:
            return Counter(f"counterfoil_{name}", told, labels, registry=registry)

        def gauge(name: str, told: str, *labels: str) -> Gauge:
            return Gauge(f"counterfoil_{name}", told, labels, registry=registry)

        def seconds(name: str, told: str, *labels: str) -> Histogram:
            return Histogram(f"counterfoil_{name}_seconds", told, labels, buckets=SECONDS, registry=registry)

        self._started = counter("runs_started", "Runs that began here", "agent")
        self._paused = counter("runs_paused", "Pauses of runs", "agent")
        self._ended = counter("runs_ended", "Runs that ended here", "agent", "status", "ended_by")
        self._turns = counter("model_turns", "Turns of models on record", "agent", "stop")
        self._turn_took = seconds(
            "model_turn_duration", "From what came before it in its run to a turn on record", "agent"
        )
        self._before: WeakKeyDictionary[Any, datetime] = WeakKeyDictionary()
        """When the newest event of a run was, by who drives it."""
        self._tokens = counter("model_tokens", "Tokens of those turns", "agent", "kind")
        self._calls = counter("calls", "Calls that have their result", "tool", "outcome", "code")
        self._took = seconds("call_duration", "How long a body ran, of the attempt that counts", "tool")
        self._decided = counter("decisions", "Decisions of people", "decision")
        self._driven = gauge("runs_driven", "Runs that this process drives")
        self._gauges = _gauges(registry)
        self._up = gauge("store_up", "1: the store answered when this was read")
        self.streams = gauge("event_streams", "Clients that follow a run's events")
        self._requests = counter("http_requests", "Answered requests", "method", "route", "status")
        self._request_took = seconds(
            "http_request_duration", "Seconds to the end of an answer, streams of events left out", "method", "route"
        )
        runtime.add_hooks(Hooks(on_event=self._see))

    def answered(self, method: str, route: str, status: str, seconds: float | None) -> None:
        """Count a request; no seconds where it was a stream."""
        self._requests.labels(method, route, status).inc()
        if seconds is not None:
            self._request_took.labels(method, route).observe(seconds)

    async def text_of(self, tenant: str) -> bytes:
        """What waits of one tenant's runs alone: what this process counts is of all of them."""
        found = await self._runtime.store.counts(list(self._runtime.agents), self._runtime.pool, tenant)
        registry = CollectorRegistry()
        _waits(*_gauges(registry), found)
        return generate_latest(registry)

    async def text(self) -> bytes:
        """All of it in Prometheus' text format. What the store does not tell is NaN."""
        runtime = self._runtime
        try:
            found: Counts | None = await runtime.store.counts(list(runtime.agents), runtime.pool)
        except StoreError:
            log.warning("the store could not be asked for metrics", exc_info=True)
            found = None
        self._up.set(found is not None)
        self._driven.set(len(runtime._drives))
        _waits(*self._gauges, found)
        return generate_latest(self.registry)

    def _see(self, event: Event) -> None:
        drive = self._runtime._drives.get(event.run_id)
        before = self._before.get(drive) if drive is not None else None
        if drive is not None:
            self._before[drive] = event.at
        agent = drive.head.agent if drive is not None and drive.head.agent in self._runtime.agents else OTHER
        match event:
            case CallEnded():
                self._call(event.part, drive)
            case TurnRecorded():
                usage = event.usage
                if before is not None:
                    self._turn_took.labels(agent).observe((event.at - before).total_seconds())
                self._turns.labels(agent, event.stop if event.stop in STOPS else OTHER).inc()
                tokens = (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens)
                for kind, number in zip(("input", "output", "cached", "reasoning"), tokens, strict=True):
                    self._tokens.labels(agent, kind).inc(number)
            case RunStarted():
                self._started.labels(agent).inc()
            case RunPaused():
                self._paused.labels(agent).inc()
            case RunEnded():
                self._ended.labels(agent, event.status, event.ended_by).inc()
            case Decided():
                self._decided.labels(event.decision.choice).inc()
            case _:
                pass

    def _call(self, part: ToolResultPart, drive: Any) -> None:
        tool = part.tool_name if drive is not None and part.tool_name in drive.env.tools else OTHER
        outcome = part.result.outcome
        code = outcome.failure.code if isinstance(outcome, Failed) else None
        self._calls.labels(tool, type(outcome).__name__.lower(), self._code(code)).inc()
        if part.duration_ms is not None:
            self._took.labels(tool).observe(part.duration_ms / 1000)

    def _code(self, code: int | None) -> str:
        if code is None:
            return ""
        if code not in RESERVED_CODES and code not in self._codes:
            if len(self._codes) == OWN_CODES:
                return OTHER
            self._codes.add(code)
        return str(int(code))


def _gauges(registry: CollectorRegistry) -> tuple[Gauge, Gauge]:
    told = "Runs of the agents of this process in the whole store, by what they wait for"
    return (
        Gauge("counterfoil_runs_unfinished", told, ("state",), registry=registry),
        Gauge("counterfoil_approvals_waiting", "Calls of those runs that wait for a decision", registry=registry),
    )


def _waits(unfinished: Gauge, asked: Gauge, found: Counts | None) -> None:
    nan = float("nan")
    for state in ("driven", "queued", "paused"):
        unfinished.labels(state).set(nan if found is None else getattr(found, state))
    asked.set(nan if found is None else found.asked)
