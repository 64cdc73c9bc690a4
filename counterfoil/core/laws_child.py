"""The laws of runs that other runs wait for: one for a call, on its thread, and both tell the same (contract 9)."""

from __future__ import annotations

from counterfoil.core.laws_facts import Facts, Found, place, text, text_or_none
from counterfoil.core.laws_state import CallFacts, Interaction, RunFacts
from counterfoil.core.outcome import ErrorCode
from counterfoil.core.turn import author, thread_kind

_LOST = "?"
"""The status of a run whose end cannot be trusted, as in laws_run."""


def check_child(at: Interaction, run_id: str, run: RunFacts, facts: Facts) -> list[Found]:
    """A run begins: a child was begun by a call that waits for it, and works on a thread of its agent."""
    thread, call = run.thread, place(facts, "call")
    try:
        kind = thread_kind(thread)
    except ValueError:
        return [("child", f"{thread!r:.80} is no thread")]
    if run.parent is None:
        return [] if kind in ("main", "private") else [("child", f"a root run stands on the thread {thread}")]
    if call is None:
        return []  # whoever wrote it had no managers
    found: list[Found] = []
    who = author("Agent", text(facts, "agent"), at.tenant).id
    if kind not in ("dispatch", "question") or str(thread).split(":")[1:] != [who, run_id]:
        found.append(("child", f"the thread {thread} is not this run's: its agent is {who}"))
    parent = at.runs.get(run.parent)
    if parent is None:
        return [*found, ("child", f"its parent {run.parent} is not on record")]
    turn = parent.turns.get(call[0])
    waits = turn.calls[call[1]] if turn is not None and 0 <= call[1] < len(turn.calls) else None
    if "start" not in parent.blind and (waits is None or waits.child != run_id) and "turn" not in parent.blind:
        found.append(("child", f"call {call} (step, index) of run {run.parent} does not wait for it"))
    elif waits is not None and waits.outcome:
        found.append(("child", f"call {call} (step, index) of run {run.parent} had its result before it began"))
    return found


def check_thread(run: RunFacts, facts: Facts) -> list[Found]:
    """What a run does stands on its thread."""
    thread = text_or_none(facts, "thread")
    if thread == run.thread or "run" in run.blind:
        return []
    return [("child", f"an entry of the thread {thread} in a run of the thread {run.thread}")]


def check_start(at: Interaction, call: CallFacts, facts: Facts) -> list[Found]:
    """A call begins to wait for a run: for that one alone, and no other call does."""
    child = text_or_none(facts, "child")
    if child is None:
        return []
    if child in at.children and call.child != child:
        return [("child", f"another call waits for run {child}")]
    at.children.add(child)
    call.child = child
    return []


def check_answer(at: Interaction, call: CallFacts, facts: Facts) -> list[Found]:
    """What a call gave that waited for a run agrees with the end of that run."""
    if call.child is None:
        return []
    outcome, child = text(facts, "outcome"), at.runs.get(call.child)
    ended = None if child is None else child.ended
    failed = outcome == "failed" and facts.get("code") == ErrorCode.CHILD_FAILED
    if ended == _LOST or (child is not None and "ended" in child.blind):
        return []
    if (outcome == "succeeded" and ended != "completed") or (failed and child and ended in (None, "completed")):
        return [("child", f"the call {outcome}, and run {call.child} {_standing(ended)}")]
    return []


def _standing(ended: str | None) -> str:
    return "has not ended" if ended is None else f"is {ended}"
