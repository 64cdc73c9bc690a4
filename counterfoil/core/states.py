"""The life of a run as tables and rules: pure functions of the folded record (contract 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from counterfoil.core.entries import QueuedEntry
from counterfoil.core.errors import Conflict
from counterfoil.core.limits import Limits
from counterfoil.core.outcome import Skipped, Succeeded
from counterfoil.core.record import CallState, Record, RunState
from counterfoil.core.turn import micros

OPEN = frozenset({"running", "paused"})
"""A run with one of these goes on, or can."""

ENDED = ("completed", "limited", "cancelled", "failed")
"""All other statuses."""

STATUS_OF: Mapping[str, str] = {
    "tool": "completed",
    "vote": "completed",
    "answer": "completed",
    "limit": "limited",
    "cancelled": "cancelled",
    "error": "failed",
    "import": "completed",
}
"""The status that each way of ending gives."""


def must_have_ended(run_id: str, below: Iterable[tuple[str, str]]) -> None:
    """Refuse to erase a run that goes on, or one below it: id and status of each, its own among them.

    Raises:
        Conflict
    """
    for other, status in below:
        if status in OPEN:
            under = "" if other == run_id else f", which is below run {run_id},"
            raise Conflict(f"run {other}{under} is {status}; erase after its end")


def ending_call(batch: Sequence[CallState], ends: Callable[[str], bool]) -> CallState | None:
    """The first call in call order, of those with a result, whose tool ends the run and succeeded."""
    for call in batch:
        result = call.result
        if result is not None and type(result.result.outcome) is Succeeded and ends(call.record.tool_name):
            return call
    return None


DUPLICATE = "duplicate"
"""The reason of a result that repeats another call of its turn."""


def is_duplicate(call: CallState) -> bool:
    """The framework skipped it as a repeat within its turn (contract 2.8)."""
    outcome = call.result.result.outcome if call.result is not None else None
    return type(outcome) is Skipped and outcome.by == "framework" and outcome.reason == DUPLICATE


def unanimous(batch: Sequence[CallState], advisory: Callable[[str], bool]) -> CallState | None:
    """The last call that voted, when every call that counts voted to end the run; at least one must.

    Advisory tools and skipped duplicates do not count. Failed, denied, rejected, skipped and cancelled calls vote no.
    """
    for call in batch:
        if call.result is not None and call.result.result.terminate:
            break
    else:
        return None
    last = None
    for call in batch:
        result = call.result
        if result is None:
            return None
        if result.result.terminate and type(result.result.outcome) is Succeeded:
            if not advisory(call.record.tool_name):
                last = call
        elif not advisory(call.record.tool_name) and not is_duplicate(call):
            return None
    return last


def next_expiry(run: RunState, runs: Mapping[str, RunState] | None = None) -> datetime | None:
    """When the first approval that waits in a run expires, or (with ``runs``, by id) in one that it waits for.

    None where none waits, or none expires.
    """
    times = [c.waiting.approval.expires_at for c in run.batch if c.pending and c.waiting]
    times += [next_expiry(runs[c.child], runs) for c in run.batch if runs and c.child in runs]  # type: ignore[index]  # it is in there
    return min((at for at in times if at is not None), default=None)


def waits_for_people(run: RunState, runs: Mapping[str, RunState], now: datetime) -> bool:
    """Whether nothing of a batch can go on before a person decides: neither here nor in the runs that it waits for."""
    for call in run.batch:
        if call.result is not None:
            continue
        if call.child is not None:
            child = runs.get(call.child)
            if child is None or child.status != "paused" or child.cancel or not waits_for_people(child, runs, now):
                return False
            continue
        expires = call.waiting.approval.expires_at if call.waiting is not None else None
        if not call.pending or (expires is not None and expires <= now):
            return False
    return True


def to_deliver(record: Record, run: RunState) -> list[QueuedEntry]:
    """Messages that a run delivers: its own and, of a root run, those that came too late for runs that have ended."""
    of = [record.queued[number] for number in sorted(record.queued)]
    return [
        m for m in of if m.run_id == run.run_id or (run.parent is None and record.runs[m.run_id].status not in OPEN)
    ]


def pause_of(run: RunState, runs: Mapping[str, RunState], now: datetime) -> tuple[bool, int | None]:
    """How a run pauses whose open calls all wait.

    Returns:
        Whether it waits for runs that are at work, and not for people alone; when it must be looked at again though
        nobody decided, in microseconds since 1970. A run at work wakes it by itself, when it ends or pauses.
    """
    children = any(call.child is not None for call in run.batch) and not waits_for_people(run, runs, now)
    expiry = next_expiry(run, None if children else runs)
    return children, None if expiry is None else micros(expiry)


def limit_reached(run: RunState, limits: Limits) -> str | None:
    """Which budget forbids another model turn, its own or one of a run above it, in words; None while all allow it."""
    if limits.steps is not None and run.turns >= limits.steps:
        return f"{limits.steps} steps"
    if limits.consecutive_failures is not None and run.failed_steps >= limits.consecutive_failures > 0:
        return f"{limits.consecutive_failures} failed steps in a row"
    if limits.calls is not None and len(run.calls) > limits.calls:
        return f"{limits.calls} tool calls"
    counted = limits.tokens is not None or limits.cost is not None or limits.seconds is not None
    used = spent(run, limits) if counted else None
    if used is None and run.parent is not None:
        return next(filter(None, (spent(above, above.limits) for above in run.above())), None)
    return used


def left_of(limits: Limits, run: RunState) -> Limits:
    """The limits with no more tokens, cost and seconds than a run and those above it have left."""
    for one in (run, *run.above()):
        given, used = one.limits, (one.usage.tokens, one.usage.cost, one.seconds)
        for name, gone in zip(("tokens", "cost", "seconds"), used, strict=True):
            most, own = getattr(given, name), getattr(limits, name)
            if most is not None and (own is None or own > most - gone):
                limits = replace(limits, **{name: max(most - gone, 0)})
    return limits


def spent(run: RunState, limits: Limits) -> str | None:
    """Which budget of tokens, cost or time is used up, in words."""
    if limits.tokens is not None and run.usage.tokens >= limits.tokens:
        return f"{limits.tokens} tokens"
    if limits.cost is not None and run.usage.cost >= limits.cost:
        return f"a cost of {limits.cost}"
    if limits.seconds is not None and run.seconds >= limits.seconds:
        return f"{limits.seconds:g} seconds"
    return None
