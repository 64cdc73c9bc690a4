"""Judge: parse, find, offered, validate, before-guards, validate, policy, approval, limits (contract 3).

The answer is a value: Ready, Asks or Refused. Nothing rewrites an input after policy has judged it.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

from counterfoil.arguments import InvalidArguments, NotAnObject, decode
from counterfoil.core import words
from counterfoil.core.approval import input_digest
from counterfoil.core.content import Text
from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.core.limits import GUARD_SECONDS
from counterfoil.core.outcome import Denied, ErrorCode, Failed, Rejected, Skipped, ToolFailure, ToolOutcome, retryable
from counterfoil.core.policy import Facts
from counterfoil.core.record import CallState
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.shorten import clip
from counterfoil.core.states import DUPLICATE, spent
from counterfoil.core.turn import thread_kind
from counterfoil.core.verdict import Verdict
from counterfoil.env import Asks, Env, Ready, Refused, asked, told
from counterfoil.hooks import UNCHANGED, BeforeCall, Change, Skip
from counterfoil.policy import no_policy
from counterfoil.tool import Tool

NAME_CHARS = 100
"""Of a tool's name that a model made up, so many characters come back to it; a real one has 64 at most."""


def refuse(outcome: ToolOutcome, text: str, **more: Any) -> Refused:
    """A call that ends here."""
    return Refused(seal((Text(text),), outcome), **more)


def fail(
    code: ErrorCode, tool: str, *, message: str = "", error: BaseException | None = None, **values: Any
) -> Refused:
    """A failure of the gateway's before any body ran; ``values`` fill the sentence of the code."""
    more = {k: values.pop(k) for k in ("verdict", "parsed", "before", "raw_input") if k in values}
    name = clip(tool, NAME_CHARS)
    message = message or f"{code.name} of {name}"
    failure = ToolFailure(code, message, retryable(code, safe=False), "gateway", "not_started")
    return refuse(Failed(failure), words.failure(code, name, **values), error=error, **more)


def needs_time(env: Env) -> bool:
    """Whether judging may have to wait for somebody's code, so that the turn goes on record before it."""
    return bool(env.hooks.before_call) or any(callable(t.needs_approval) for t in env.tools.values())


Word: TypeAlias = "Ready | Asks | Refused | Coroutine[Any, Any, Ready | Asks | Refused]"
"""The gateway's word on a call, or what gives it where somebody's code may have to be waited for."""


async def judged(word: Word) -> Ready | Asks | Refused:
    """The gateway's word itself."""
    return word if isinstance(word, (Ready, Asks, Refused)) else await word


def judge(env: Env, call: CallState) -> Word:
    """The gateway's word on a call that is new."""
    name = call.record.tool_name
    tool = env.tools.get(name)
    if tool is None or not call.record.offered:
        return _unknown(env, call, tool)
    try:
        arguments = tool.schema.parse(call.record.raw)
    except NotAnObject as e:
        return fail(ErrorCode.INVALID_JSON, name, reason=e.reason, error=e, message=e.reason, raw_input=True)
    except InvalidArguments as e:
        return invalid(name, e)
    try:
        effective = tool.schema.write(arguments)
    except ValueError as e:
        return fail(ErrorCode.INVALID_INPUT, name, complaints=f"\n- {e}", error=e, raw_input=True)
    if env.hooks.before_call:
        return _guarded(env, call, tool, arguments, effective)
    if env.policy is None and tool.needs_approval is False and not tool.builtin and over_budget(env, call) is None:
        # What `admit` says of a call that nobody has a rule for: the way of most calls.
        lock = None if tool.lock is None else lock_of(tool, arguments)
        return Ready(tool, arguments, effective, None, no_policy(tool.read_only, needs_approval=False), lock)
    return admit(env, call, tool, arguments, effective, None)


def _unknown(env: Env, call: CallState, tool: Tool | None) -> Refused:
    name = call.record.tool_name
    try:
        decode(call.record.raw)
    except NotAnObject as e:
        return fail(ErrorCode.INVALID_JSON, name, reason=e.reason, error=e, message=e.reason, raw_input=True)
    if tool is not None or call.record.offered:
        return fail(ErrorCode.NOT_OFFERED, name, raw_input=True)
    offered = sorted(env.offered)
    close = difflib.get_close_matches(name[:NAME_CHARS], offered, n=3)
    return fail(ErrorCode.UNKNOWN_TOOL, name, hint=words.close_matches(close, offered[:50]), raw_input=True)


def invalid(name: str, e: InvalidArguments) -> Refused:
    """The schema's complaints, whole: they are about the model's own input."""
    rows = [(c.path, c.expected, c.got) for c in e.complaints]
    text = words.complaints(rows) + (f"\n- and {e.left_out} more" if e.left_out else "")
    return fail(ErrorCode.INVALID_INPUT, name, complaints=text, error=e, message=str(e), raw_input=True)


async def _guarded(
    env: Env, call: CallState, tool: Tool, arguments: dict[str, Any], parsed: bytes
) -> Ready | Asks | Refused:
    effective = parsed
    for guard in env.hooks.before_call:
        seen = BeforeCall(env.where(call), env.caller, call.record.call_id, tool, loads(effective))
        try:
            answer = await asked(guard, GUARD_SECONDS, seen)
            if isinstance(answer, Skip):
                by, reason = str(getattr(guard, "__name__", type(guard).__name__)), str(answer.reason)
                before = None if effective == parsed else parsed
                return refuse(Skipped(reason, by), words.skipped(tool.name, reason), parsed=effective, before=before)
            if isinstance(answer, Change):
                if answer.input is UNCHANGED or answer.after_only:
                    raise TypeError("a guard before a call may change the input alone; give Change(input=…)")
                arguments = tool.schema.validate(cast("dict[str, Any]", answer.input))
                effective = dumps(tool.schema.dump(arguments))
            elif answer is not None:
                raise TypeError(f"a guard before a call returns None, Change(input=…) or Skip(…), got {answer!r:.80}")
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except BaseException as e:  # noqa: BLE001  # whatever a guard raises refuses the call (contract 3)
            return fail(
                ErrorCode.GUARD_ERROR, tool.name, effect=words.NOTHING_RAN, error=e, message=told(e),
                parsed=effective, before=None if effective == parsed else parsed,
            )  # fmt: skip  # two rows
    return await admit(env, call, tool, arguments, effective, None if effective == parsed else parsed)


def facts_of(env: Env, call: CallState, tool: Tool, arguments: JsonValue) -> Facts:
    """What a policy's conditions see."""
    now = datetime.fromtimestamp(env.effects.now() / 1_000_000, UTC)
    return Facts(
        tool=tool.facts,
        input=arguments,
        caller=env.caller.to_json(),
        run={
            "id": env.run_id,
            "agent": env.agent,
            "step": max(env.run.turns - 1, 0),
            "calls": len(env.run.calls) - len(env.run.batch) + call.index,
            "hour": now.hour,
            "weekday": now.weekday(),
            "parent": env.run.parent.run_id if env.run.parent is not None else None,
            "depth": sum(1 for _ in env.run.above()),
        },
        thread={"id": env.thread_id, "kind": thread_kind(env.thread_id)},
    )


async def verdict_of(env: Env, call: CallState, tool: Tool, effective: bytes) -> tuple[Verdict, BaseException | None]:
    """The policy's word on an effective input, and what the tool's own ``needs_approval`` raised.

    An error of ``needs_approval`` is one of the policy.
    """
    asks = tool.needs_approval
    if callable(asks):
        try:
            answer = await asked(asks, GUARD_SECONDS, env.judging_context(call), loads(effective))
            if not isinstance(answer, bool):
                raise TypeError(f"needs_approval of {tool.name} must give True or False, got {answer!r:.80}")
            asks = answer
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except BaseException as e:  # noqa: BLE001  # refused, never let through
            error = f"needs_approval raised {type(e).__name__}: {told(e)}"
            return Verdict("deny", None, None, env.policy.revision if env.policy else None, error=error), e
    if env.policy is None:
        return no_policy(tool.read_only, asks), None
    verdict = env.policy.judge(
        facts_of(env, call, tool, loads(effective)), read_only=tool.read_only, needs_approval=asks
    )
    return (await verdict if isinstance(verdict, Awaitable) else verdict), None


async def admit(
    env: Env, call: CallState, tool: Tool, arguments: dict[str, Any], effective: bytes, parsed: bytes | None
) -> Ready | Asks | Refused:
    """Policy, approval and limits, for an input that nothing changes any more."""
    if tool.builtin:
        return Ready(tool, arguments, effective, parsed, no_policy(True, False))  # noqa: FBT003  # read-only, asks nobody
    if env.policy is None and not callable(tool.needs_approval):
        verdict = no_policy(tool.read_only, tool.needs_approval)
    else:
        verdict, error = await verdict_of(env, call, tool, effective)
        refused = by_policy(tool, verdict, effective, parsed, error)
        if refused is not None:
            return refused
    digest = input_digest(tool.name, effective) if env.rejected else ""
    if digest in env.rejected and env.policy is not None and env.policy.repeat_block:
        return refuse(
            Denied("policy", "repeat_block", "a person refused this very call before"),
            words.repeat_blocked(tool.name), verdict=verdict, parsed=effective, before=parsed,
        )  # fmt: skip  # two rows
    if verdict.verdict == "ask":
        return Asks(tool, effective, parsed, verdict)
    used = over_budget(env, call)
    if used is not None:
        return fail(
            ErrorCode.LIMIT_REACHED, tool.name, limit=used, message=used, verdict=verdict, parsed=effective,
            before=parsed,
        )  # fmt: skip  # two rows
    lock = None if tool.lock is None else lock_of(tool, arguments)
    return Ready(tool, arguments, effective, parsed, verdict, lock=lock)


def by_policy(
    tool: Tool, verdict: Verdict, effective: bytes, parsed: bytes | None, error: BaseException | None
) -> Refused | None:
    """The refusal that a verdict amounts to, if it is one."""
    if verdict.error is not None:
        return fail(
            ErrorCode.POLICY_ERROR, tool.name, error=error, message=verdict.error,
            verdict=verdict, parsed=effective, before=parsed,
        )  # fmt: skip  # two rows
    if verdict.verdict == "deny":
        outcome = Denied("policy", verdict.rule, verdict.reason)
        return refuse(
            outcome, words.denied(tool.name, verdict.reason), verdict=verdict, parsed=effective, before=parsed
        )
    return None


def over_budget(env: Env, call: CallState) -> str | None:
    """Which budget forbids this call, in words."""
    calls = env.limits.calls
    if calls is not None and len(env.run.calls) > calls:
        position = len(env.run.calls) - len(env.run.batch) + call.index + 1
        if position > calls:
            return f"{calls} tool calls"
    limits = env.limits
    counted = limits.tokens is not None or limits.cost is not None or limits.seconds is not None
    return spent(env.run, limits) if counted else None


def out_of_budget(call: CallState, known: Ready | Asks | None, why: str, *, ended: bool) -> Refused:
    """A call that is open when a budget of the run is used up.

    Args:
        call: the call.
        known: what was judged of it.
        why: the budget.
        ended: nothing of it runs any more, neither an earlier attempt nor a run that it waited for.
    """
    name = call.record.tool_name
    parsed = known.effective if known is not None else None
    before = known.parsed if known is not None else None
    if known is None and call.waiting is not None:
        approval = call.waiting.approval
        parsed, before = dumps(approval.effective_input), dumps(approval.input)
        before = None if parsed == before else before
    if call.start is None:
        return fail(ErrorCode.LIMIT_REACHED, name, limit=why, message=why, parsed=parsed, before=before)
    # An attempt of it ran and another one was to come, or another run did.
    failure = ToolFailure(ErrorCode.LIMIT_REACHED, why, retryable=False, origin="gateway", body="unknown")
    text = words.limit_in_body(name, ended=ended)
    return refuse(Failed(failure), text, parsed=call.start.effective, before=call.start.parsed)


def lock_of(tool: Tool, arguments: dict[str, Any]) -> str | None:
    """The formatted lock of a call."""
    return None if tool.lock is None else tool.lock.format_map(arguments)


async def readmit(env: Env, call: CallState) -> Ready | Asks | Refused:
    """The gateway's word on a call that a person has decided (contract 7.3 and 7.4). Guards do not run again."""
    waiting, decided = call.waiting, call.decided
    if waiting is None or decided is None:
        raise ValueError(f"call {call.record.call_id} has no decision")
    approval, decision = waiting.approval, decided.decision
    name = call.record.tool_name
    match decision.choice:
        case "reject":
            env.rejected.add(approval.of_input)
            outcome = Rejected(decision.reason, decision.by)
            return refuse(
                outcome, words.rejected(name, decision.reason), parsed=dumps(approval.effective_input),
                before=None if approval.input == approval.effective_input else dumps(approval.input),
                human=decision.by or "somebody", author="Human",
            )  # fmt: skip  # two rows
        case "answer":
            result = ToolResult.text(cast("str", decision.value))
            by = decision.by or next(iter(approval.approvers), "somebody")
            return Refused(result, parsed=dumps(approval.effective_input), human=by, author="Human")
        case "record":
            result = ToolResult.from_dict(cast("dict[str, JsonValue]", decision.value))
            return Refused(result, human=decision.by or "somebody", author="Human")
        case _:
            pass
    tool = env.tools.get(name)
    if tool is None:
        return fail(ErrorCode.NOT_OFFERED, name, raw_input=True)
    effective = decision.input if decision.input is not None else dumps(approval.effective_input)
    if decision.input is None and not approval.binds(effective):
        reason = "The input on record is not the one that was approved."
        return refuse(Denied("policy", None, reason), words.denied(name, reason), parsed=effective)
    try:
        arguments = tool.schema.parse(effective.decode())
    except NotAnObject as e:
        return fail(ErrorCode.INVALID_JSON, name, reason=e.reason, error=e, raw_input=True)
    except InvalidArguments as e:
        return invalid(name, e)
    given = dumps(approval.input)
    parsed = None if given == effective else given
    verdict, error = await verdict_of(env, call, tool, effective)
    refused = by_policy(tool, verdict, effective, parsed, error)
    if refused is not None:
        return refused
    if verdict.verdict == "ask" and not _holds(waiting.decision, verdict, tool) and decision.choice == "approve":
        return Asks(tool, effective, parsed, verdict)
    used = over_budget(env, call)
    if used is not None:
        return fail(
            ErrorCode.LIMIT_REACHED, name, limit=used, message=used, verdict=verdict, parsed=effective, before=parsed
        )
    return Ready(
        tool, arguments, effective, parsed, verdict,
        approval_id=approval.id, lock=lock_of(tool, arguments),
        edited_by=edited_by(call),
        attempt=call.start.attempt + 1 if call.start else 1,
    )  # fmt: skip  # rows by what belongs together


def edited_by(call: CallState) -> str | None:
    """Who changed a call's input last; None: nobody."""
    return (call.edits[-1][1].decision.by or "somebody") if call.edits else None


def _holds(before: JsonValue, now: Verdict, tool: Tool) -> bool:
    """An approval holds when the same unchanged rule asks again, or the tool's own needs_approval does."""
    if now.rule is None and tool.needs_approval:
        return True
    return isinstance(before, dict) and (before.get("rule"), before.get("rule_digest")) == (now.rule, now.rule_digest)


def duplicates(batch: list[CallState]) -> set[int]:
    """Indexes of calls that repeat an earlier one of their turn: same provider id, same input (contract 2.8)."""
    ids = [c.record.provider_call_id for c in batch]
    if len(set(ids)) == len(ids):
        return set()
    seen: set[tuple[str, str, bytes]] = set()
    out: set[int] = set()
    for call, provider_id in zip(batch, ids, strict=True):
        if provider_id:
            mine = (provider_id, call.record.tool_name, _canonical(call.record.raw))
            if mine in seen:
                out.add(call.index)
            seen.add(mine)
    return out


def _canonical(raw: str) -> bytes:
    try:
        value = decode(raw)
    except NotAnObject:
        return raw.encode("utf-8", "replace")
    return dumps(_sorted(value))


def _sorted(value: JsonValue) -> JsonValue:
    """The same value with the keys of its objects in one order: JSON objects have none."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def repeated(name: str) -> Refused:
    """The result of a duplicate."""
    return refuse(Skipped(DUPLICATE, "framework"), words.duplicate(clip(name, NAME_CHARS)))


def cut_off(name: str, stop: str) -> Refused:
    """The result of a call whose turn was cut off, or refused."""
    name = clip(name, NAME_CHARS)
    if stop == "refusal":
        return refuse(Skipped("the answer was refused", "framework"), words.refused(name))
    return refuse(Skipped("cut off by the token limit", "framework"), words.cut_off(name))
