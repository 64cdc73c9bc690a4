"""Execute: one body under a clock, and what the gateway makes of its end (contract 3, 4, 6 and 8)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import hashlib
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal, TypeAlias, cast

from counterfoil.core import words
from counterfoil.core.content import Block, Json, Kept, Text, block_to_json
from counterfoil.core.errors import ToolError, check_own_code
from counterfoil.core.jsontext import JsonValue, clean_text, dumps, loads, utf8_size
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
from counterfoil.env import Env, Finished, Ready, asked, told
from counterfoil.hooks import UNCHANGED, AfterCall, Change
from counterfoil.pool import NeverStarted
from counterfoil.render import GIVEN, Unrenderable, combine, content_size, render
from counterfoil.schema import FunctionSchema
from counterfoil.store import KeptText

log = logging.getLogger("counterfoil")

Stop: TypeAlias = Literal["timeout", "cancel", "limit", "abandon"]
"""Why a body was told to stop; ``abandon``: this process stops driving, and the record keeps the start alone."""


class TimedOut(Exception):  # noqa: N818  # what a report shows as the error of a time-out
    """The body took longer than its tool's time-out, or the run's time was used up; the cause is how it was stopped."""


End: TypeAlias = "tuple[object, BaseException | None]"
"""What a body returned, and what it raised."""


class Execution:
    """One attempt at one call: its body, its clock and its end."""

    __slots__ = (
        "fatal", "body_over", "broken", "call", "clock0", "closing", "ctx", "end", "env", "finished", "finishing", "hooks",
        "in_thread", "items", "late_end", "on_end", "over", "process", "ready", "started_at", "stop", "task", "timer",
    )  # fmt: skip  # a list of names reads better in rows

    def __init__(self, env: Env, call: CallState, ready: Ready, hooks: ExecutionHooks, on_end: Callable[[Execution], None]) -> None:
        self.env = env
        self.call = call
        self.ready = ready
        self.hooks = hooks
        self.on_end = on_end
        self.stop: Stop | None = None
        self.finished: Finished | None = None
        self.finishing = False
        self.over = False
        """Its end was handed to the loop, or is about to be."""
        self.body_over = False
        """No body of it runs any more."""
        self.in_thread = False
        """A thread runs the body, and cannot be stopped."""
        self.end: End | None = None
        """How the body ended; None for one that was given up."""
        self.late_end: End | None = None
        """What the body gave after its time-out, in the moment that it had to stop."""
        self.broken: BaseException | None = None
        """What failed in the gateway itself, or in a guard, after the body."""
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.closing: asyncio.Task[None] | None = None
        self.process: Any = None
        self.items: list[object] | None = None
        self.ctx: Any = None
        self.fatal: BaseException | None = None
        """KeyboardInterrupt or SystemExit, which ends the program once the call is settled."""
        self.started_at = 0
        self.clock0 = 0.0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the body; `on_end` is called once, on the loop's thread."""
        self.started_at = self.env.effects.now()
        self.clock0 = self.env.effects.clock()
        self.task = loop.create_task(self._run())
        if self.ready.tool.timeout is not None:
            wait = max(self.ready.not_before - self.clock0, 0.0) if self.ready.not_before else 0.0
            self.timer = loop.call_later(self.ready.tool.timeout + wait, self.tell, "timeout")

    def tell(self, why: Stop) -> None:
        """Tell the body to stop; its end, whenever it comes, is seen by `on_end`."""
        if self.over or self.finishing or self.stop is not None:
            return
        self.stop = why
        if self.task is not None:
            self.task.cancel()
        if why == "timeout":
            # A body that does not stop when it is told must not hold the run; a moment for one that does.
            asyncio.get_running_loop().call_later(TELL_SECONDS, self.give_up)

    def give_up(self) -> None:
        """Stop waiting for the body: its call ends now, and what it still gives is late."""
        if self.over or self.finishing:
            return
        self.over = True
        self._disarm()
        self.closing = asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        try:
            self.finished = await finish(self, None)
        finally:
            self.on_end(self)

    def _disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _ended(self) -> None:
        if self.timer is not None:
            self._disarm()
        if not self.over:
            self.over = True
            self.on_end(self)
        if self.body_over and self.ready.lock is not None:
            self.hooks.released(self)

    async def _run(self) -> None:
        # The end is told from here and not from a callback of the task: a turn of the event loop less for each call.
        try:
            await self._attempt()
        except asyncio.CancelledError:
            raise
        except BaseException as e:  # what may fail here is ours, or a guard's: the call must still end
            log.exception("call %s of run %s failed in the gateway", self.call.record.call_id, self.env.run_id)
            self.broken = e
            if isinstance(e, (KeyboardInterrupt, SystemExit)):
                self.fatal = e
        finally:
            self._ended()

    async def _attempt(self) -> None:
        probe = self.env.effects.probe
        if probe is not None:
            probe("body:before")
        error: BaseException | None = None
        value: object = None
        try:
            value = await self._body()
        except asyncio.CancelledError as e:
            if self.stop == "abandon" or (self.stop is None and _told_to_stop()):
                self.stop = "abandon"
                self.body_over = self.body_over or not self.in_thread
                raise
            error = e
        except (KeyboardInterrupt, SystemExit) as e:
            self.fatal = error = e
        except BaseException as e:  # noqa: BLE001  # whatever a body raises is its call's failure
            error = e
        if probe is not None:
            probe("body:after")
        self.body_over = self.body_over or self.stop is None or not self.in_thread
        stopped_by_us = self.stop is not None and isinstance(error, asyncio.CancelledError)
        if self.over:
            if not stopped_by_us:
                self.hooks.late(self, await finish(self, (value, error), late=True))
            return
        # A body that ended by itself keeps its real end, even when it had been told to stop; but not after its time.
        self.finishing = True
        if self.stop == "timeout" and not stopped_by_us:
            self.late_end = value, error
            value, error = None, asyncio.CancelledError()
        self.end = value, error
        self.finished = (finish_plain(self, value) if error is None else None) or await finish(self, self.end)

    def _thread_over(self, value: object, error: BaseException | None) -> None:
        self.in_thread = False
        if not self.body_over and self.stop is not None:
            self.body_over = True
            if self.over:
                if self.stop != "abandon" and not isinstance(error, NeverStarted):
                    self.hooks.thread_ended(self, value, error)
                self.hooks.released(self)
        self.body_over = True

    def _context(self) -> Any:
        self.ctx = self.env.context(
            self.call, self.ready.attempt, self._progress, self.hooks.memo(self), lambda: self.stop is not None
        )
        return self.ctx

    def _progress(self, text: str, done: float | None, total: float | None) -> None:
        self.hooks.progress(self, text, done, total)

    async def _body(self) -> object:
        ready = self.ready
        tool = ready.tool
        schema = tool.schema
        if ready.not_before:
            await self.env.effects.sleep(max(ready.not_before - self.env.effects.clock(), 0.0))
        if tool.isolation == "process":
            return await self._in_process()
        if not isinstance(schema, FunctionSchema):
            return await self._dynamic()
        ctx = self._context() if schema.context is not None or schema.deps is not None else None
        deps = None if schema.deps is None or ctx is None else ctx.deps
        args, kwargs = schema.bind(ready.arguments, ctx, deps)
        if schema.is_async:
            value = await tool.fn(*args, **kwargs)
            return value if isinstance(value, PLAIN) else await self._whole(value)
        if schema.is_async_generator:
            return await self._drain(tool.fn(*args, **kwargs))
        body = functools.partial(tool.fn, *args, **kwargs)
        return await self._iterated(body) if schema.is_generator else await self._threaded(body)

    async def _dynamic(self) -> object:
        tool = self.ready.tool
        call = dynamic_caller(tool.fn)
        body = functools.partial(call, self._context(), self.ready.arguments)
        if inspect.iscoroutinefunction(tool.fn) or inspect.iscoroutinefunction(getattr(tool.fn, "__call__", None)):
            return await self._whole(await body())
        if inspect.isasyncgenfunction(tool.fn) or inspect.isasyncgenfunction(getattr(tool.fn, "__call__", None)):
            return await self._drain(body())
        return await self._threaded(body)

    async def _threaded(self, body: Callable[[], object]) -> object:
        self.in_thread = True
        return await self._whole(await self.env.pool.submit(body, on_done=self._thread_over))

    async def _iterated(self, make: Callable[[], Any]) -> object:
        self.in_thread = True
        return await self._drain(self.env.pool.iterate(make, on_done=self._thread_over))

    async def _whole(self, value: object) -> object:
        """What a function returned, where that is more work: an awaitable, or a generator that it made."""
        if isinstance(value, PLAIN):
            return value
        if inspect.isawaitable(value):
            value = await value
        if inspect.isgenerator(value):
            return await self._iterated(functools.partial(iter, value))
        if inspect.isasyncgen(value):
            return await self._drain(value)
        return value

    async def _drain(self, items: AsyncIterator[object]) -> object:
        self.items = kept = []
        size = 0
        limit = self.max_bytes() if self.ready.tool.on_oversize == "fail" else None
        async with contextlib.aclosing(cast("AsyncGenerator[object, None]", items)):
            async for item in items:
                kept.append(item)
                if isinstance(item, ToolResult):
                    continue
                text = item if isinstance(item, str) else _short(item)
                self.hooks.progress(self, text, None, None)
                if limit is not None:
                    size += utf8_size(clean_text(item)) if isinstance(item, str) else _least_size(item)
                    if size > limit:
                        break
        return combine(kept)

    def max_bytes(self) -> int:
        """The most bytes that the output may have."""
        return self.ready.tool.max_output_bytes or self.env.limits.output_bytes

    async def _in_process(self) -> object:
        from counterfoil.process import ProcessBody  # only tools that ask for a process pay for the import

        tool, ready = self.ready.tool, self.ready
        body = self.process = ProcessBody(shared_children())
        memo = self.hooks.memo(self)

        async def on_memo(name: str, compute: Callable[[], Awaitable[object]]) -> object:
            return await memo(name, compute)

        async def on_progress(text: str, *, done: float | None, total: float | None) -> None:
            self._progress(text, done, total)

        items: list[object] = []

        def on_item(item: object) -> None:
            items.append(item)
            if not isinstance(item, ToolResult):
                self._progress(item if isinstance(item, str) else _short(item), None, None)

        context = {
            "caller": self.env.caller.to_json(), "run_id": self.env.run_id, "thread_id": self.env.thread_id,
            "interaction_id": self.env.interaction_id,
            "step_index": self.call.turn.step, "call_id": self.call.record.call_id,
            "idempotency_key": self.env.key(self.call), "attempt": ready.attempt,
        }  # fmt: skip  # rows by what belongs together
        schema = cast("FunctionSchema", tool.schema)
        if schema.is_generator or schema.is_async_generator:
            self.items = items
        value = await body.run(
            tool.target, ready.arguments, context, schema.context,
            on_progress=on_progress, on_memo=on_memo, on_item=on_item,
        )  # fmt: skip  # as above
        return combine(items) if self.items is not None else value


TELL_SECONDS = 0.25
"""Seconds that an async body has to end after its time-out before the call ends without it."""


class ExecutionHooks:
    """What an execution needs of the loop that drives its run."""

    def memo(self, execution: Execution) -> Callable[[str, Callable[[], Any]], Any]:
        """The body's durable sub-steps."""
        raise NotImplementedError

    def progress(self, execution: Execution, text: str, done: float | None, total: float | None) -> None:
        """The body says how far it is."""

    def late(self, execution: Execution, finished: Finished) -> None:
        """A body that was given up has ended after all."""

    def thread_ended(self, execution: Execution, value: object, error: BaseException | None) -> None:
        """A thread that was given up has ended after all."""

    def released(self, execution: Execution) -> None:
        """No body of the call runs any more: its lock may go."""


@functools.lru_cache(maxsize=1)
def shared_children() -> Any:
    """Child processes of this program that are kept for the next body: a warm one starts in a hundredth of the time."""
    from counterfoil.process import Children  # as in `_in_process`

    children = Children()
    atexit.register(children.close)
    return children


@functools.lru_cache(maxsize=1024)
def dynamic_caller(fn: Callable[..., Any]) -> Callable[[Any, dict[str, Any]], Any]:
    """How a dynamic tool's body takes (context, arguments): by two parameters, by one, or by ``**kwargs``."""
    parameters = list(inspect.signature(fn).parameters.values())
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return lambda _, arguments: fn(**arguments)
    return (lambda ctx, arguments: fn(ctx, arguments)) if len(parameters) >= 2 else (lambda _, arguments: fn(arguments))  # noqa: PLR2004


PLAIN: tuple[type, ...] = (str, int, float, dict, list, tuple, ToolResult, type(None))
"""What most tools return: it is looked at no further."""


def _told_to_stop() -> bool:
    """Somebody cancelled this very task; else a CancelledError is the body's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _short(item: object) -> str:
    try:
        return dumps(item).decode()[:200]
    except ValueError:
        return type(item).__name__


def _least_size(item: object) -> int:
    """Bytes of an item, at least 1; what cannot be rendered is found out when all items are there."""
    try:
        return max(content_size(render(item)), 1)
    except Unrenderable:
        return 1


def may_try_again(x: Execution, result: ToolResult) -> bool:
    """Whether a failed attempt may have a successor, if nothing stops the run meanwhile."""
    tool, outcome = x.ready.tool, result.outcome
    return (
        tool.retries > 0
        and isinstance(outcome, Failed)
        and outcome.failure.retryable is not False
        and x.ready.attempt <= tool.retries
        and x.stop in (None, "timeout")
        and x.fatal is None
    )


def outcome_of(x: Execution, end: End | None) -> tuple[ToolResult, BaseException | None]:
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


def finish_plain(x: Execution, value: object) -> Finished | None:
    """What `finish` gives for the way of nearly all calls: a value that renders, and nobody who looks at it first."""
    env, ready = x.env, x.ready
    if env.hooks.after_call or x.ctx is not None or ready.edited_by is not None or x.fatal is not None:
        return None
    if isinstance(value, ToolResult):
        return None
    try:
        content = render(value)
    except Unrenderable:
        return None
    size = content_size(content)
    if size > env.limits.keep_apart_bytes or size > (ready.tool.max_output_bytes or env.limits.output_bytes):
        return None
    duration = int((env.effects.clock() - x.clock0) * 1_000_000)
    return Finished(seal(content, SUCCESS), size, x.started_at, duration)


async def finish(x: Execution, end: End | None, *, last: bool = False, late: bool = False) -> Finished:
    """Render, after-guards, size, report: what the end of a body amounts to.

    Args:
        x: the attempt.
        end: how its body ended; None when it was given up.
        last: there is no further attempt, whatever the tool allows.
        late: it does not count and is only logged: nothing is reported or kept apart.
    """
    env, ready = x.env, x.ready
    duration = int((env.effects.clock() - x.clock0) * 1_000_000)
    result, cause = outcome_of(x, end)
    if not last and not late and may_try_again(x, result):
        return Finished(result, 0, x.started_at, duration, error=cause, again=True)
    if x.ctx is not None and x.ctx._scratch is not None:
        result = seal(
            result.content, result.outcome, result.details, x.ctx._scratch.merged(result.extensions),
            result.terminate, result.narration,
        )  # fmt: skip  # two rows
    replaced: JsonValue = None
    if env.hooks.after_call and x.broken is None:
        result, replaced, guard_error = await _after_guards(x, result)
        if guard_error is not None:
            # As if it had been raised while the tool's own error was handled: the report shows both.
            guard_error.__context__ = guard_error.__context__ or cause
            cause = guard_error
    size = content_size(result.content)
    kept = None
    if size > x.max_bytes() and ready.tool.on_oversize == "fail" and isinstance(result.outcome, Succeeded):
        result = gateway_failure(ErrorCode.OUTPUT_TOO_LARGE, ready.tool.name, size=size, limit=x.max_bytes())
    elif size > env.limits.keep_apart_bytes and not ready.tool.builtin and not late:
        result, kept = keep_apart(result, env, x.call.record.call_id)
    if ready.edited_by is not None:
        # The model is told what was changed; what the tool gave, and its size, stay what they are.
        note = Text(words.edited(ready.tool.name, ready.effective.decode()))
        result = seal((note, *result.content), result.outcome, result.details, result.extensions, result.terminate, result.narration)
    done = Finished(result, size, x.started_at, duration, kept, None, replaced, cause, x.fatal)
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


SUCCESS = Succeeded()


def gateway_failure(code: ErrorCode, tool: str, *, message: str = "", body: Any = "ended", **values: Any) -> ToolResult:
    """A failure of the gateway's after a body began."""
    failure = ToolFailure(code, message or f"{code.name} of {tool}", retryable(code, safe=False), "gateway", body)
    return seal((Text(words.failure(code, tool, **values)),), Failed(failure))


def failed(x: Execution, error: BaseException) -> ToolResult:
    """The result of a body that raised."""
    tool = x.ready.tool
    if isinstance(error, ToolError):
        return _declared(error)
    # A class that could not come out of its process has a stand-in that carries its name.
    shown = type(error).__name__
    if type(error).__module__ == "counterfoil.crossing":
        shown = str(getattr(error, "class_name", shown))
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


def stopped(x: Execution, *, ended: bool) -> ToolResult:
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
        return seal((Text(words.limit_in_body(tool.name)),), Failed(failure))
    outcome: ToolOutcome = Cancelled("the run was cancelled")
    return seal((Text(words.cancelled(tool.name, started=True, ended=ended)),), outcome)


async def _after_guards(x: Execution, result: ToolResult) -> tuple[ToolResult, JsonValue, BaseException | None]:
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
                raise TypeError(f"a guard after a call returns None or Change(content=…, …), got {answer!r:.80}")  # noqa: TRY301  # one way out for every error
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


