"""The laws of one call: started as allowed, approved once, answered once (contract 2.1, 7.2, 7.5 to 7.7).

Each check takes the facts of one entry, says what is wrong with it, and takes the entry in. What an entry
that cannot be trusted may have said is not missed: see `RunFacts.blind`.
"""

from __future__ import annotations

import json
from typing import cast

from counterfoil.core.approval import CHOICES, input_digest
from counterfoil.core.jsontext import loads
from counterfoil.core.laws_child import check_answer, check_start, check_thread
from counterfoil.core.laws_facts import Facts, Found, flag, number, text, text_or_none
from counterfoil.core.laws_state import Asked, CallFacts, Interaction, RunFacts
from counterfoil.core.limits import ATTEMPTS
from counterfoil.core.turn import RUNS_NOTHING


def check_call(at: Interaction, run: RunFacts, facts: Facts, content: bytes | None) -> None:
    """An entry about a call. ``content``: None where it was erased or is not what was written."""
    kind, step, index = text(facts, "kind"), number(facts, "step"), number(facts, "index")
    call_id, tool_name = text(facts, "callId"), text(facts, "toolName")
    at.at_call(call_id)
    at.results += kind == "result"
    turn = run.turns.get(step)
    if turn is None:
        if step not in run.turns and step not in run.lost_turns and "turn" not in run.blind:
            at.say("orphan-result", f"an entry ({kind}) of a call of step {step}, which has no turn")
        run.lost_turns.add(step)
        return
    call = turn.calls[index] if 0 <= index < len(turn.calls) else None
    if call is None or (call.call_id, call.tool_name) != (call_id, tool_name):
        message = f"an entry ({kind}) of a call of {tool_name} that step {step} did not make at place {index}"
        at.say("orphan-result", message)
    elif kind == "start":
        at.say_all(check_start(at, call, facts))
        if turn.stop in RUNS_NOTHING:
            how = "its token limit cut off" if turn.stop == "length" else "ended as a refusal"
            at.say("order", f"a call of a turn that {how} has started")
        at.say_all(_start(run, call, facts, content))
    elif kind == "waiting":
        at.say_all(_waiting(run, call, facts))
    elif kind == "decided":
        at.say_all(_decided(run, call, facts, content))
    elif kind == "result":
        at.say_all([*check_thread(run, facts), *check_answer(at, call, facts)])
        at.say_all(_result(run, call, facts, turn.first_result + index))
    elif kind == "late":
        at.say_all(_late(run, call, facts))


def _start(run: RunFacts, call: CallFacts, facts: Facts, content: bytes | None) -> list[Found]:
    """A body starts."""
    attempt, key, safe = number(facts, "attempt"), text(facts, "key"), flag(facts, "safe")
    approval_id, same = text_or_none(facts, "approvalId"), flag(facts, "same")
    found: list[Found] = []
    asked = run.approvals.get(approval_id or "")
    rerun = asked is not None and asked.choice == "rerun"
    if approval_id is not None and run.blind & {"waiting", "decided"}:
        rerun = rerun or asked is None or asked.choice is None
    if call.outcome:
        found.append(("doubled-start", f"attempt {attempt} started after the call had its result"))
    elif attempt <= call.attempt:
        found.append(("doubled-start", f"attempt {attempt} started after attempt {call.attempt} had"))
    elif attempt != call.attempt + 1 and "start" not in run.blind:
        found.append(("order", f"attempt {attempt} follows attempt {call.attempt}"))
    elif call.attempt and not rerun:
        if not (safe and call.safe):
            found.append(("doubled-start", "a call that is not safe to repeat started again, and nobody decided so"))
        elif attempt > max(ATTEMPTS, number(facts, "most")):
            found.append(("doubled-start", f"attempt {attempt} started, {number(facts, 'most')} are allowed"))
    if not found and call.key not in (None, key):
        found.append(("doubled-start", f"attempt {attempt} has another idempotency key than the one before"))
    effective = None
    if approval_id is not None and content is not None:
        effective = _effective(content, same=same)
    found += _consume(run, call, approval_id, text(facts, "toolName"), effective)
    call.attempt, call.key, call.safe = max(attempt, call.attempt), key, call.safe and safe
    return found


def _effective(content: bytes, *, same: bool) -> bytes:
    """The exact bytes of the effective input: alone, or second of a pair with the parsed input."""
    if same:
        return content
    pair = content.decode()
    _, end = json.JSONDecoder().raw_decode(pair, 1)
    return pair[end + 1 : -1].encode()


def _consume(
    run: RunFacts, call: CallFacts, approval_id: str | None, tool_name: str, effective: bytes | None
) -> list[Found]:
    """The approval that a start consumes, or must. ``effective``: the input; None: unknown."""
    if approval_id is None:
        asked = call.asked
        if asked is None or asked.consumed or "decided" in run.blind or "start" in run.blind:
            return []
        return [("approval", f"started without approval {asked.id}, which {_standing(asked)}")]
    asked = run.approvals.get(approval_id)
    if asked is None:
        if "waiting" in run.blind:
            return []
        return [("approval", f"started with approval {approval_id}, which is not on record")]
    wrong = None
    if asked.call is not call:
        wrong = f"is of call {asked.call.call_id}"
    elif asked.consumed:
        wrong = "an earlier start has consumed"
    elif asked.choice not in ("approve", "rerun"):
        wrong = None if asked.choice is None and "decided" in run.blind else _standing(asked)
    elif call.asked is not asked:
        wrong = "a later approval has replaced"
    elif None not in (effective, asked.digest) and not _bound(asked, tool_name, cast("bytes", effective)):
        wrong = "was given for another input"
    asked.consumed = True
    return [("approval", f"started with approval {approval_id}, which {wrong}")] if wrong else []


def _bound(asked: Asked, tool_name: str, effective: bytes) -> bool:
    """Whether the digest is of this input; without the approval that it replaced as version 0.1.0 made it."""
    return asked.digest in (input_digest(tool_name, effective, asked.after), input_digest(tool_name, effective))


def _standing(asked: Asked) -> str:
    return "nobody has decided" if asked.choice is None else f"was decided: {asked.choice}"


def _waiting(run: RunFacts, call: CallFacts, facts: Facts) -> list[Found]:
    """An approval opens."""
    asked = Asked(text(facts, "approvalId"), text(facts, "approvalKind"), text(facts, "digest"), call)
    asked.after = text_or_none(facts, "after")
    found: list[Found] = []
    if asked.id in run.approvals:
        found.append(("approval", f"approval {asked.id} opened twice"))
    elif call.outcome:
        found.append(("approval", f"approval {asked.id} opened after the call had its result"))
    run.approvals[asked.id] = call.asked = asked
    return found


def _decided(run: RunFacts, call: CallFacts, facts: Facts, content: bytes | None) -> list[Found]:
    """A person decides."""
    approval_id, choice = text(facts, "approvalId"), text(facts, "choice")
    digest, edited = text_or_none(facts, "digest"), flag(facts, "edited")
    asked = run.approvals.get(approval_id)
    if asked is None:
        if "waiting" in run.blind:
            run.approvals[approval_id] = call.asked = Asked(approval_id, "", None, call, choice)
            return []
        return [("approval", f"approval {approval_id} was decided, but is not on record")]
    wrong = _no_decision(asked, call, choice, digest)
    if wrong:
        return [("approval", f"approval {approval_id} was decided {choice}, but {wrong}")]
    asked.choice = choice
    if edited:
        # What runs is what the person wrote: the start must have exactly that.
        asked.digest, asked.after = None, None
        if content is not None:
            asked.digest = _edited_digest(text(facts, "toolName"), content)
    return []


def _no_decision(asked: Asked, call: CallFacts, choice: str, digest: str | None) -> str | None:
    """Why the approval could not be decided so; None: it could."""
    if asked.call is not call:
        return f"it is of call {asked.call.call_id}"
    if asked.choice is not None:
        return f"it was decided {asked.choice} before"
    if call.outcome:
        return "the call had its result"
    if call.asked is not asked:
        return "a later approval had replaced it"
    if asked.kind and choice not in CHOICES.get(asked.kind, ()):
        return f"an approval of kind {asked.kind} cannot be"
    if None not in (digest, asked.digest) and digest != asked.digest:
        return "the person saw another input"
    return None


def _edited_digest(tool_name: str, content: bytes) -> str:
    match loads(content):
        case [_, str(edited), _]:
            return input_digest(tool_name, edited.encode())
        case _:
            raise ValueError("expected reason, edited input and value of a decision")


def _result(run: RunFacts, call: CallFacts, facts: Facts, reserved: int) -> list[Found]:
    """How the call ended."""
    outcome, attempt, sequence = text(facts, "outcome"), number(facts, "attempt"), number(facts, "seq")
    if call.outcome:
        return [("doubled-result", "the call has a result already")]
    call.outcome = outcome
    found: list[Found] = []
    if sequence not in (0, reserved):  # 0: it stands where its turn reserved a place
        found.append(("sequence", f"the result has reading number {sequence}; its turn reserved {reserved}"))
    if attempt != call.attempt and "start" not in run.blind:
        if attempt > call.attempt:
            found.append(("order", f"the result is of attempt {attempt}, which never started"))
        else:
            found.append(("order", f"the result is of attempt {attempt}, but attempt {call.attempt} had started"))
    if (
        outcome == "rejected"
        and not (call.asked and call.asked.choice == "reject")
        and not run.blind & {"decided", "waiting"}
    ):
        found.append(("approval", "the result says that a person refused the call, and nobody did"))
    return found


def _late(run: RunFacts, call: CallFacts, facts: Facts) -> list[Found]:
    """A result that came too late to count."""
    attempt = number(facts, "attempt")
    if attempt > call.attempt and "start" not in run.blind:
        return [("order", f"a late result is of attempt {attempt}, which never started")]
    return []
