"""The laws of runs: their turns, their reading order, their ends (contract 2, 5 and 7), entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from counterfoil.core.jsontext import JsonValue
from counterfoil.core.laws_call import check_call
from counterfoil.core.laws_child import check_child, check_thread
from counterfoil.core.laws_facts import Facts, Row, number, place, text, text_or_none
from counterfoil.core.laws_state import CallFacts, Interaction, RunFacts, TurnFacts
from counterfoil.core.states import STATUS_OF

_AFTER_THE_END = frozenset({"late", "memo", "note", "queued", "resumed"})
"""What may still come for a run that has ended: of a body that outlived it, for the next run, new limits, a note."""

_LOST = "?"
"""Stands for the status of a run whose end cannot be trusted."""


def apply(at: Interaction, row: Row, facts: Facts, content: bytes | None) -> None:
    """Take in an entry whose body can be trusted, and say what is wrong with it.

    Args:
        at: what is known so far; `Interaction.at` was told of the row.
        row: the entry as stored.
        facts: its body, parsed.
        content: its content; None where it has none, was erased or is not what was written.

    Raises:
        ValueError: the body lacks a fact that its kind has.
    """
    run_id, kind, sequence = text(facts, "run"), text(facts, "kind"), number(facts, "seq")
    check = _CHECKS.get(kind)
    if check is None:
        raise ValueError(f"expected an entry of a known kind, got {kind!r:.80}")
    run = at.runs.get(run_id)
    if run is None:
        run = at.runs[run_id] = RunFacts()
        if kind != "run":
            at.say("order", "the run has no beginning")
    elif run.ended is not None and kind not in _AFTER_THE_END:
        at.say("order", f"an entry ({kind}) of a run that has ended")
    elif kind == "run" and "run" not in run.blind:
        at.say("order", "the run begins twice")
    if kind in _NUMBERED:
        width = _width(facts)
        if row.width != width:
            at.say("column", f"the row takes {row.width} reading numbers, its body {width}")
        at.take(sequence, width)
    elif sequence and kind not in ("result", "late"):
        at.say("sequence", f"an entry ({kind}) that takes no reading number has {sequence}")
    if kind == "queued":
        at.queued[row.entry] = False
    check(at, run, facts, content)


def skip(at: Interaction, row: Row) -> None:
    """An entry is there whose bytes cannot be trusted: what it may have said is not missed later."""
    run = at.runs.setdefault(row.run_id, RunFacts())
    run.blind.add(row.kind)
    if row.kind == "result":
        run.lost_results += 1
    elif row.kind == "turn":
        step = _end_step(at, run)
        run.turns[step] = None
    elif row.kind == "ended":
        run.ended = _LOST
    elif row.kind == "resumed":
        run.ended = None
    elif row.kind == "queued":
        at.queued[row.entry] = False
    if row.kind in _NUMBERED:
        at.free = max(at.free, row.sequence + row.width)


_NUMBERED = frozenset({"message", "note", "turn"})
"""Kinds that take reading numbers of their own; a result stands where its turn reserved it."""


def _width(facts: Facts) -> int:
    """How many reading numbers the entry takes."""
    return _lead(facts) + 2 * len(_calls(facts)) if facts["kind"] == "turn" else 1


def _lead(facts: Facts) -> int:
    """How many reading numbers a turn takes before its calls."""
    return number(facts, "head") + number(facts, "thought")


def _calls(facts: Facts) -> list[CallFacts]:
    """The calls of a turn."""
    calls = facts.get("calls")
    if not isinstance(calls, list):
        raise ValueError(f"expected a list of calls, got {calls!r:.80}")
    return [_call(call) for call in calls]


def _call(call: JsonValue) -> CallFacts:
    match call:
        case [str(call_id), str(tool_name)] | [str(call_id), _, str(tool_name), *_]:
            return CallFacts(call_id, tool_name)
        case _:
            raise ValueError(f"expected id, provider's id and tool of a call, got {call!r:.80}")


def _end_step(at: Interaction, run: RunFacts) -> int:
    """Another turn comes, so the newest one has all its results; the number of the step that comes."""
    last = max(run.turns, default=-1)
    newest = run.turns.get(last)
    if newest is not None:
        at.miss(run, newest, "a later turn of its run")
    return last + 1


def _run(at: Interaction, run: RunFacts, facts: Facts, _: bytes | None) -> None:
    caller = facts.get("caller")
    tenant = caller.get("tenant") if isinstance(caller, dict) else None
    if tenant != at.tenant:
        at.say("column", f"the run is of tenant {at.tenant!r:.80} in the store, {tenant!r:.80} in its body")
    at.started += 1
    run.parent, run.thread = text_or_none(facts, "parent"), text_or_none(facts, "thread")
    run.root = run.parent is None
    at.say_all(check_child(at, text(facts, "run"), run, facts))
    _only_open_root(at, run)


def _only_open_root(at: Interaction, run: RunFacts) -> None:
    """An interaction has one open root run."""
    if run.root:
        for run_id, other in at.runs.items():
            if other is not run and other.root and other.ended is None:
                at.say("order", f"the run goes on while run {run_id} of the same interaction is open")


def _message(at: Interaction, _run: RunFacts, facts: Facts, _: bytes | None) -> None:
    if facts.get("queued") is None:
        return
    queued = number(facts, "queued")
    if queued not in at.queued:
        at.say("order", f"the message was queued as entry {queued}, and no message was")
    elif at.queued[queued]:
        at.say("order", f"the message that was queued as entry {queued} is delivered again")
    at.queued[queued] = True


def _turn(at: Interaction, run: RunFacts, facts: Facts, _: bytes | None) -> None:
    at.say_all(check_thread(run, facts))
    step, stop, calls = number(facts, "step"), text(facts, "stop"), _calls(facts)
    first_result = number(facts, "seq") + _lead(facts) + len(calls)
    expected = _end_step(at, run)
    if step != expected:
        at.say("order", f"the turn is of step {step}, expected {expected}")
    at.calls += len(calls)
    for call in calls:
        if call.call_id in run.call_ids:
            at.say("order", "the id of the call is used twice in the run", call_id=call.call_id)
        run.call_ids.add(call.call_id)
    if step not in run.turns:
        run.turns[step] = TurnFacts(at.entry, stop, first_result, calls, number(facts, "seq"))


def _summary(at: Interaction, run: RunFacts, facts: Facts, _: bytes | None) -> None:
    """It stands for what is there, whole turns with their results, never the newest, and more than the one before."""
    at.say_all(check_thread(run, facts))
    first, last = number(facts, "first"), number(facts, "last")
    if not 0 < first <= last < at.free:
        at.say("summary", f"it stands for {first} to {last}, and the conversation has 1 to {at.free - 1}")
    if last <= run.summed:
        at.say("summary", f"it stands for what is up to {last}, and the one before for what is up to {run.summed}")
    run.summed = max(run.summed, last)
    newest = run.turns.get(max(run.turns, default=-1))
    if newest is not None and last >= newest.first and "turn" not in run.blind:
        at.say(
            "summary", f"it stands for what is up to {last}, and the newest turn of its run begins at {newest.first}"
        )
    said = (turn for other in at.runs.values() if other.thread == run.thread for turn in other.turns.values())
    for turn in said:
        if turn is not None and any(turn.first <= cut < turn.end for cut in (first - 1, last)):
            at.say("summary", f"it stands for {first} to {last}, which parts the turn {turn.first} to {turn.end}")


def _paused(at: Interaction, run: RunFacts, facts: Facts, _: bytes | None) -> None:
    _ending_call(at, run, place(facts, "endedRun"))


def _ending_call(at: Interaction, run: RunFacts, ending: tuple[int, int] | None) -> None:
    """The call that ends the run succeeded, and is fixed once."""
    if ending is None:
        return
    if run.ended_run not in (None, ending):
        at.say("order", f"the call that ends the run was {run.ended_run} (step, index), now it is {ending}")
    step, index = ending
    turn = run.turns.get(step)
    if turn is not None:
        call = turn.calls[index] if 0 <= index < len(turn.calls) else None
        if (call is None or call.outcome not in ("succeeded", "")) and "result" not in run.blind:
            at.say("order", f"the call that ends the run, {ending} (step, index), did not succeed")
    run.ended_run = run.ended_run or ending


def _resumed(at: Interaction, run: RunFacts, _facts: Facts, _: bytes | None) -> None:
    if run.ended not in (None, "limited", _LOST):
        at.say("order", f"the run was {run.ended} and goes on; only a limited one can")
    run.ended = None
    _only_open_root(at, run)


def _ended(at: Interaction, run: RunFacts, facts: Facts, _: bytes | None) -> None:
    status, ended_by, ending = text(facts, "status"), text(facts, "endedBy"), place(facts, "endedRun")
    if STATUS_OF.get(ended_by) != status:
        at.say("order", f"the run ended by {ended_by!r:.80} with status {status!r:.80}")
    for turn in run.turns.values():
        if turn is not None:
            at.miss(run, turn, "the end of its run")
    _ending_call(at, run, ending)
    if ended_by == "tool" and ending is None and run.ended_run is None and "paused" not in run.blind:
        at.say("order", "a call ended the run, and none is named")
    run.ended = status


def _cancel(_at: Interaction, _run: RunFacts, _facts: Facts, _: bytes | None) -> None:
    """There is no law for it beyond those of every entry; nor for a note or a queued message."""


_CHECKS: Mapping[str, Callable[[Interaction, RunFacts, Facts, bytes | None], None]] = {
    "run": _run,
    "message": _message,
    "note": _cancel,
    "queued": _cancel,
    "turn": _turn,
    "summary": _summary,
    "start": check_call,
    "waiting": check_call,
    "decided": check_call,
    "result": check_call,
    "late": check_call,
    "memo": check_call,
    "paused": _paused,
    "resumed": _resumed,
    "ended": _ended,
    "cancel": _cancel,
}
"""One check for each kind of entry."""
