"""Ending: what the end of a body amounts to: result, after-guards, size, report (contract 3, 4, 6 and 8)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, cast

from counterfoil.core import words
from counterfoil.core.content import Block, Json, Kept, Text, block_to_json
from counterfoil.core.errors import ToolError, check_own_code
from counterfoil.core.jsontext import JsonValue, clean_text, dumps, loads
from counterfoil.core.limits import GUARD_SECONDS, PREVIEW_BYTES, REPORT_SECONDS
from counterfoil.core.outcome import (
    Cancelled,
    Denied,
    ErrorCode,
    Failed,
    Succeeded,
    ToolFailure,
    ToolOutcome,
    retryable,
)
from counterfoil.core.record import CallState
from counterfoil.core.report import AnyError, ToolErrorReport
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.shorten import head_and_tail
from counterfoil.crossing import ProcessBodyError
from counterfoil.env import ChildFailed, Env, Finished, Ready, asked, told
from counterfoil.hooks import UNCHANGED, AfterCall, Change
from counterfoil.render import GIVEN, Unrenderable, combine, content_size, render
from counterfoil.store import KeptText

log = logging.getLogger("counterfoil")
SUCCESS = Succeeded()


class TimedOut(Exception):  # what a report shows as the error of a time-out
    """The body took longer than its tool's time-out, or the run's time was used up; the cause is how it was stopped."""


End: TypeAlias = "tuple[object, BaseException | None]"
"""What a body returned, and what it raised."""


class Attempt(Protocol):
    """What is known of an attempt whose body has ended, or was given up."""

    env: Env
    call: CallState
    ready: Ready
    stop: Any
    """Why the body was told to stop, if it was: timeout, cancel, limit or abandon."""
    fatal: BaseException | None
    broken: BaseException | None
    body_over: bool
    late_end: End | None
    items: list[object] | None
    ctx: Any
    started_at: int
    clock0: float


def max_bytes(x: Attempt) -> int:
    """The most bytes that the output may have."""
    return x.ready.tool.max_output_bytes or x.env.limits.output_bytes


def may_try_again(x: Attempt, result: ToolResult) -> bool:
    """Whether a failed attempt may have a successor, if nothing stops the run meanwhile."""
    tool, outcome = x.ready.tool, result.outcome
    return (
        tool.retries > 0
        and isinstance(outcome, Failed)
        and outcome.failure.retryable is not False
        and x.ready.attempt <= tool.retries
        and x.stop in (None, "timeout")
        and x.fatal is None
        # The lock stays with a body that may still run: a further attempt would wait for it, perhaps for ever.
        and (x.body_over or x.ready.lock is None)
    )


def outcome_of(x: Attempt, end: End | None) -> tuple[ToolResult, BaseException | None]:
    """What the end of a body amounts to, before anybody else sees it; ``end`` is None for one that was given up."""
    tool = x.ready.tool
    if x.broken is not None:
        shown, message = type(x.broken).__name__, told(x.broken)
        return gateway_failure(ErrorCode.TOOL_ERROR, tool.name, message=message, error=shown), x.broken
    value, error = end or (None, asyncio.CancelledError())
    if error is None:
        return accept(tool.name, value)
    if isinstance(error, asyncio.CancelledError) and x.stop not in (None, "abandon"):
        result = stopped(x, ended=x.body_over)
        if not isinstance(result.outcome, Failed):
            return result, None
        cause = TimedOut(result.outcome.failure.message)
        cause.__cause__ = (x.late_end[1] if x.late_end is not None else None) or error
        return result, cause
    return failed(x, error), error


def finish_plain(x: Attempt, value: object) -> Finished | None:
    """What `finish` gives for the way of nearly all calls: a value that renders, and nobody who looks at it first."""
    env, ready = x.env, x.ready
    if env.hooks.after_call or x.ctx is not None or ready.edited_by is not None or x.fatal is not None:
        return None
    if type(value) is not str and isinstance(value, ToolResult):
        return None
    try:
        content = render(value)
    except Unrenderable:
        return None
    size = content_size(content)
    if size > env.limits.keep_apart_bytes or size > max_bytes(x):
        return None
    duration = int((env.effects.clock() - x.clock0) * 1_000_000)
    return Finished(seal(content, SUCCESS), size, x.started_at, duration)


async def finish(x: Attempt, end: End | None, *, last: bool = False, late: bool = False) -> Finished:
    """Render, after-guards, size, report: what the end of a body amounts to.

    Args:
        x: the attempt.
        end: how its body ended; None when it was given up.
        last: there is no further attempt, whatever the tool allows.
        late: it does not count and is only logged: nothing is reported or kept apart.
    """
    env, ready, over = x.env, x.ready, x.body_over
    duration = int((env.effects.clock() - x.clock0) * 1_000_000)
    result, cause = outcome_of(x, end)
    if not last and not late and may_try_again(x, result):
        return Finished(result, 0, x.started_at, duration, error=cause, again=True)
    if x.ctx is not None:
        if x.ctx._scratch is not None:
            added = x.ctx._scratch.merged(result.extensions)
            result = seal(result.content, result.outcome, result.details, added, result.terminate, result.narration)
        if late or (over and x.late_end is None):
            x.ctx = None  # they have each other, and nobody asks for it any more
    replaced: JsonValue = None
    if env.hooks.after_call and x.broken is None:
        result, replaced, guard_error = await _after_guards(x, result)
        if guard_error is not None:
            # As if it had been raised while the tool's own error was handled: the report shows both.
            guard_error.__context__ = guard_error.__context__ or cause
            cause = guard_error
    size = content_size(result.content)
    kept = None
    if size > max_bytes(x) and ready.tool.on_oversize == "fail" and isinstance(result.outcome, Succeeded):
        result = gateway_failure(ErrorCode.OUTPUT_TOO_LARGE, ready.tool.name, size=size, limit=max_bytes(x))
    elif size > env.limits.keep_apart_bytes and not ready.tool.builtin and not late:
        result, kept = keep_apart(result, env, x.call.record.call_id)
    if ready.edited_by is not None:
        result = with_edit(result, ready.tool.name, ready.effective)
    done = Finished(result, size, x.started_at, duration, kept, None, replaced, cause, x.fatal)
    if without_end(result.outcome):
        done.over = over
    if isinstance(result.outcome, Failed) and not late:
        done.report = await make_report(
            env, x.call, result, cause, loads(ready.effective), env.effects.clock() - ready.began,
            attempts=ready.attempts, partial=x.items,
        )  # fmt: skip  # two rows
    return done


def accept(tool: str, value: object) -> tuple[ToolResult, BaseException | None]:
    """A returned value as a sealed result, and what was wrong with it."""
    if not isinstance(value, ToolResult):
        try:
            return seal(render(value), SUCCESS), None
        except Unrenderable as e:
            return gateway_failure(ErrorCode.UNRENDERABLE_OUTPUT, tool, message=str(e)), e
    why = _forged(value.outcome)
    if why is not None:
        forged = TypeError(f"a tool returned {why}; only the gateway makes those")
        return gateway_failure(ErrorCode.TOOL_ERROR, tool, message=str(forged), error="a forged result"), forged
    if value.details is not None or value.narration is not None or isinstance(value.outcome, Failed):
        data = value.outcome.failure.data if isinstance(value.outcome, Failed) else None
        try:
            dumps([value.details, value.narration, data])
        except ValueError as e:
            if isinstance(value.outcome, Succeeded):
                return gateway_failure(ErrorCode.UNRENDERABLE_OUTPUT, tool, message=f"details: {e}"), e
            # A declared failure or denial keeps its outcome (contract 3): what cannot be stored is left out.
            kept: ToolOutcome = value.outcome
            if isinstance(kept, Failed):
                f = kept.failure
                kept = Failed(ToolFailure(f.code, f.message, f.retryable, f.origin, f.body))
            return seal(value.content, kept, None, value.extensions, value.terminate), e
    if any(not isinstance(b, GIVEN) for b in value.content):
        return gateway_failure(ErrorCode.UNRENDERABLE_OUTPUT, tool, message="content that is no block"), None
    outcome = value.outcome
    if isinstance(outcome, Failed) and (outcome.failure.origin != "tool" or outcome.failure.body != "ended"):
        f = outcome.failure
        return value_with(value, Failed(ToolFailure(f.code, f.message, f.retryable, "tool", "ended", f.data))), None
    return value, None


def value_with(result: ToolResult, outcome: ToolOutcome) -> ToolResult:
    """The same result with another outcome."""
    return seal(result.content, outcome, result.details, result.extensions, result.terminate, result.narration)


def without_end(outcome: ToolOutcome) -> bool:
    """Whether the body had no end of its own: it was stopped, or given up."""
    return isinstance(outcome, Cancelled) or (isinstance(outcome, Failed) and outcome.failure.body == "unknown")


def not_again(result: ToolResult) -> ToolResult:
    """The refusal of a further attempt, which says what is true of a call that began before."""
    outcome = result.outcome
    if isinstance(outcome, Failed) and outcome.failure.body == "not_started":
        outcome = Failed(replace(outcome.failure, body="unknown"))
    return seal((Text(result.model_output.replace(words.NOTHING_RAN, words.NOT_AGAIN)),), outcome)


def with_edit(result: ToolResult, tool: str, effective: bytes) -> ToolResult:
    """The result, before it the line that tells the model what a person changed; its size stays what the tool gave."""
    note = Text(words.edited(tool, effective.decode()))
    return seal(
        (note, *result.content), result.outcome, result.details, result.extensions, result.terminate, result.narration
    )


def _forged(outcome: object) -> str | None:
    """What is wrong with an outcome that a tool gave: whose it really is to give."""
    match outcome:
        case Succeeded() | Denied(by="tool"):
            return None
        case Failed(failure):
            try:
                check_own_code(failure.code)
            except ValueError:
                return f"a failure with the code {failure.code!r}"
            return None
        case _:
            return f"a {type(outcome).__name__} result"


def gateway_failure(code: ErrorCode, tool: str, *, message: str = "", body: Any = "ended", **values: Any) -> ToolResult:
    """A failure of the gateway's after a body began."""
    failure = ToolFailure(code, message or f"{code.name} of {tool}", retryable(code, safe=False), "gateway", body)
    return seal((Text(words.failure(code, tool, **values)),), Failed(failure))


def failed(x: Attempt, error: BaseException) -> ToolResult:
    """The result of a body that raised."""
    tool = x.ready.tool
    if isinstance(error, ToolError):
        return _declared(error)
    if isinstance(error, ChildFailed):
        return gateway_failure(ErrorCode.CHILD_FAILED, tool.name, message=error.shown, reason=error.shown)
    # A class that could not come out of its process has a stand-in that carries its name.
    shown = error.class_name if isinstance(error, ProcessBodyError) else type(error).__name__
    code = ErrorCode.TOOL_ERROR
    failure = ToolFailure(code, told(error), retryable(code, safe=tool.safe), "tool", "ended")
    if tool.expose and isinstance(error, tool.expose):
        shown = f"{shown}: {told(error)}"
    return seal((Text(words.tool_error(tool.name, shown)),), Failed(failure))


def _declared(error: ToolError) -> ToolResult:
    """A failure that its author declared. Its fields are the author's, so they are looked at again."""
    text = clean_text(str(error.message))
    code, data, details = error.code, error.data, error.details
    try:
        check_own_code(code)
        dumps([data, details, error.narration])
    except ValueError:
        code, data, details = None, None, None
    result = seal((Text(text),), Failed(ToolFailure(code, text, error.retryable, "tool", "ended", data)), details)
    return result.with_narration(error.narration) if isinstance(error.narration, str) else result


def stopped(x: Attempt, *, ended: bool) -> ToolResult:
    """The result of a body that was told to stop: it ended without an end of its own, or may still run."""
    tool = x.ready.tool
    if x.stop == "timeout":
        code = ErrorCode.TIMEOUT
        failure = ToolFailure(
            code, f"longer than {tool.timeout:g} s", retryable(code, safe=tool.safe), "gateway", "unknown"
        )
        effect = words.STOPPED if ended else words.MAY_HAVE_RUN
        return seal((Text(words.failure(code, tool.name, seconds=tool.timeout, effect=effect)),), Failed(failure))
    if x.stop == "limit":
        code = ErrorCode.LIMIT_REACHED
        failure = ToolFailure(code, "the time of the run is used up", retryable=False, origin="gateway", body="unknown")
        return seal((Text(words.limit_in_body(tool.name, ended=ended)),), Failed(failure))
    why = x.env.run.cancel.reason if x.env.run.cancel else None
    return seal((Text(words.cancelled(tool.name, started=True, ended=ended)),), Cancelled(why))


async def _after_guards(x: Attempt, result: ToolResult) -> tuple[ToolResult, JsonValue, BaseException | None]:
    """What after-guards make of a result: content, details, narration and vote, never the outcome."""
    env, tool = x.env, x.ready.tool
    original = result
    for guard in env.hooks.after_call:
        seen = AfterCall(env.where(x.call), env.caller, x.call.record.call_id, tool, loads(x.ready.effective), result)
        try:
            answer = await asked(guard, GUARD_SECONDS, seen)
            if answer is None:
                continue
            if not isinstance(answer, Change) or answer.input is not UNCHANGED:
                raise TypeError(f"a guard after a call returns None or Change(content=…, …), got {answer!r:.80}")
            result = _changed(result, answer)
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except BaseException as e:  # noqa: BLE001  # whatever a guard raises refuses the call (contract 3)
            refused = gateway_failure(ErrorCode.GUARD_ERROR, tool.name, message=told(e), effect=words.HAS_ENDED)
            return refused, _replaced(original), e
    return result, (None if result is original else _replaced(original)), None


def _replaced(result: ToolResult) -> JsonValue:
    return {
        "content": [block_to_json(b) for b in result.content],
        "details": result.details,
        "narration": result.narration,
        "terminate": result.terminate,
    }


def _changed(result: ToolResult, change: Change) -> ToolResult:
    content = result.content
    if change.content is not UNCHANGED:
        given = change.content
        content = (Text(given),) if isinstance(given, str) else render(given)
    details = result.details if change.details is UNCHANGED else change.details
    narration = result.narration if change.narration is UNCHANGED else change.narration
    terminate = result.terminate if change.terminate is UNCHANGED else bool(change.terminate)
    made = seal(content, result.outcome, None, result.extensions, terminate, None)
    made = made.with_details(details)
    return made.with_narration(cast("str", narration)) if narration is not None else made


def keep_apart(result: ToolResult, env: Env, call_id: str) -> tuple[ToolResult, KeptText | None]:
    """A result whose text goes into a store of its own, once; its content keeps head, tail and pointer (contract 6)."""
    texts = [b for b in result.content if isinstance(b, (Text, Json))]
    text = texts[0].text if len(texts) == 1 else "\n".join(b.text for b in texts)
    data = text.encode()
    if len(data) <= env.limits.keep_apart_bytes:
        return result, None
    piece = min(PREVIEW_BYTES, env.limits.keep_apart_bytes // 4)
    head, left_out, tail = head_and_tail(text, piece, piece)
    preview = f"{head}{words.left_out(left_out, call_id, len(data))}{tail}"
    kept = KeptText(env.effects.new_id(), text, len(data), hashlib.sha256(data).hexdigest())
    is_json = len(texts) == 1 and isinstance(texts[0], Json)
    media: tuple[Block, ...] = tuple(b for b in result.content if not isinstance(b, (Text, Json)))
    content = (Kept(kept.id, len(data), preview, is_json), *media)
    return seal(content, result.outcome, result.details, result.extensions, result.terminate, result.narration), kept


async def make_report(
    env: Env, call: CallState, result: ToolResult, error: AnyError | None, shown: JsonValue, seconds: float,
    *, attempts: tuple[str, ...] = (), partial: list[object] | None = None,
) -> ToolErrorReport:  # fmt: skip  # two rows
    """The report of a failed call; its handlers are called here, bounded in time, and change nothing."""
    failure = cast("Failed", result.outcome).failure
    report = ToolErrorReport(
        tenant_id=env.caller.tenant,
        user_context=env.caller,
        interaction_id=env.interaction_id,
        thread_id=env.thread_id or "main",
        run_id=env.run_id,
        step_index=call.turn.step,
        call_id=call.record.call_id,
        tool_name=call.record.tool_name,
        input=shown,
        error=error if error is not None else failure,
        code=None if failure.code is None else int(failure.code),
        model_text=result.model_output,
        duration_ms=seconds * 1000,
        at_us=env.effects.now(),
        attempts=attempts,
        partial=None if not partial else _partial(partial),
    )
    if not env.hooks.on_tool_error:
        return report
    kept = dumps([report.input, report.partial])
    for handler in env.hooks.on_tool_error:
        try:
            await asked(handler, REPORT_SECONDS, report)
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except BaseException:  # a handler changes nothing
            log.exception("on_tool_error failed on call %s of run %s", report.call_id, report.run_id)
    # What a handler did to the values that it saw does not go on record.
    given, items = cast("list[JsonValue]", loads(kept))
    return replace(report, input=given, partial=items)


def _partial(items: list[object]) -> JsonValue:
    try:
        content = render(combine([i for i in items if not isinstance(i, ToolResult)]))
    except Unrenderable as e:
        return f"(cannot be shown: {e})"
    return [block_to_json(b) for b in content]
