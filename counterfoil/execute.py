"""Execute: one body under a clock (contract 3 and 7)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Literal, TypeAlias, cast

from counterfoil.core.jsontext import clean_text, dumps, utf8_size
from counterfoil.core.record import CallState
from counterfoil.core.result import ToolResult
from counterfoil.eager import Starter
from counterfoil.ending import End, finish, finish_plain, max_bytes
from counterfoil.env import Env, Finished, Ready
from counterfoil.pool import NeverStarted
from counterfoil.render import Unrenderable, combine, content_size, render
from counterfoil.schema import FunctionSchema
from counterfoil.signature import call_of, dynamic_caller

log = logging.getLogger("counterfoil")

Stop: TypeAlias = Literal["timeout", "cancel", "limit", "abandon"]
"""Why a body was told to stop; ``abandon``: this process stops driving, and the record keeps the start alone."""


class Execution:
    """One attempt at one call: its body, its clock and its end."""

    __slots__ = (
        "asked", "begun", "body_over", "broken", "call", "clock0", "closing", "ctx", "end", "entered", "env", "fatal",
        "finished", "finishing", "hooks", "in_thread", "items", "late_end", "on_end", "over", "process", "ready",
        "started_at", "stop", "task", "timer",
    )  # fmt: skip  # a list of names reads better in rows

    def __init__(
        self, env: Env, call: CallState, ready: Ready, hooks: ExecutionHooks, on_end: Callable[[Execution], None]
    ) -> None:
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
        """A thread runs the body, or is about to, and cannot be stopped."""
        self.begun = False
        """The body has begun in its thread, where it is told by ``ctx.cancelled`` alone."""
        self.entered = False
        """Its task has had its first turn."""
        self.asked = False
        """It was only asked to stop: its task goes on waiting for it, until it is given up."""
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

    def begin(self, loop: asyncio.AbstractEventLoop, at_once: Starter | None = None) -> None:
        """Start the body; `on_end` is called once, on the loop's thread.

        ``at_once`` does its first step in here, and all of it where it never waits.
        """
        self.started_at = self.env.effects.now()
        self.clock0 = self.env.effects.clock()
        timeout = self.ready.tool.timeout
        if timeout is not None:
            wait = max(self.ready.not_before - self.clock0, 0.0) if self.ready.not_before else 0.0
            until = loop.time() + timeout + wait
        self.task = loop.create_task(self._run()) if at_once is None else at_once.start(self._run())
        if timeout is not None and not self.over:
            self.timer = loop.call_at(until, self.tell, "timeout")

    def tell(self, why: Stop) -> None:
        """Tell the body to stop; its end, whenever it comes, is seen by `on_end`."""
        if self.over or self.finishing or (self.stop is not None and not (self.asked and why == "abandon")):
            return
        self.stop = why
        if why in ("cancel", "limit") and not self.asked and self._ask():
            return
        self.asked = False
        # A task that is cancelled before its first turn ends without a word: it looks at `stop` in that turn instead.
        if self.task is not None and self.entered:
            self.task.cancel()
        if why == "timeout":
            # A body that does not stop when it is told must not hold the run; a moment for one that does.
            asyncio.get_running_loop().call_later(TELL_SECONDS, self.give_up)

    def _ask(self) -> bool:
        """Ask a body in a thread or in a process to stop: cancelling the task would only end the waiting for it."""
        if self.process is not None:
            self.process.cancel()
            self.asked = True
        else:
            self.asked = self.in_thread and self.begun
        return self.asked

    def give_up(self) -> None:
        """Stop waiting for the body: its call ends now, and what it still gives is late."""
        if self.over or self.finishing:
            return
        if self.asked and self.task is not None and (self.in_thread or self.process is not None):
            self.asked = False
            self.task.cancel()
            if self.process is not None:
                # Its process is killed; a moment for that, so that nothing of it runs any more when its call ends.
                asyncio.get_running_loop().call_later(TELL_SECONDS, self.give_up)
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
        self.entered = True
        try:
            probe = self.env.probe
            if probe is not None:
                probe(self, "body:before")
            error: BaseException | None = None
            value: object = None
            try:
                if self.stop is not None:
                    raise asyncio.CancelledError
                tool = self.ready.tool
                if tool.bare and not self.ready.not_before:
                    value = await tool.fn(**self.ready.arguments)
                    if type(value) is not str and not isinstance(value, PLAIN):
                        value = await self._whole(value)
                else:
                    value = await self._body()
            except BaseException as e:
                if isinstance(e, asyncio.CancelledError) and self._abandoned():
                    raise
                error = e  # whatever a body raises is its call's failure
                if isinstance(e, (KeyboardInterrupt, SystemExit)):
                    self.fatal = e
            if probe is not None:
                probe(self, "body:after")
            if error is None and self.stop is None and not self.over:
                self.body_over = self.finishing = True
                self.end = value, None
                self.finished = finish_plain(self, value) or await finish(self, self.end)
            else:
                await self._stopped(value, error)
        except asyncio.CancelledError:
            raise
        except BaseException as e:  # what may fail here is ours, or a guard's: the call must still end
            log.exception("call %s of run %s failed in the gateway", self.call.record.call_id, self.env.run_id)
            self.broken = e
            if isinstance(e, (KeyboardInterrupt, SystemExit)):
                self.fatal = e
        finally:
            self._ended()

    def _abandoned(self) -> bool:
        """The process stops driving; else a CancelledError is the body's own, or that of a stop with another reason."""
        if self.stop != "abandon" and (self.stop is not None or not _told_to_stop()):
            return False
        self.stop = "abandon"
        self.body_over = self.body_over or not self.in_thread
        return True

    async def _stopped(self, value: object, error: BaseException | None) -> None:
        """A body has ended that raised, or that was told to stop."""
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
        made = call_of(tool.fn)
        if inspect.iscoroutinefunction(made):
            return await self._whole(await body())
        if inspect.isasyncgenfunction(made):
            return await self._drain(body())
        return await self._threaded(body)

    async def _threaded(self, body: Callable[[], object]) -> object:
        self.in_thread = True
        begin = functools.partial(self._begin_in_thread, body)
        return await self._whole(await self.env.pool.submit(begin, on_done=self._thread_over))

    async def _iterated(self, make: Callable[[], Any]) -> object:
        self.in_thread = True
        begin = functools.partial(self._begin_in_thread, make)
        return await self._drain(self.env.pool.iterate(begin, on_done=self._thread_over))

    def _begin_in_thread(self, body: Callable[[], Any]) -> Any:
        self.begun = True
        return body()

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
        limit = max_bytes(self) if self.ready.tool.on_oversize == "fail" else None
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

    async def _in_process(self) -> object:
        from counterfoil.process import (  # only tools that ask for a process pay for the import
            ProcessBody,
            shared_children,
        )

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
