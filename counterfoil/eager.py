"""Coroutines as tasks whose first step is done at once: often there is no second one to wait for."""

from __future__ import annotations

import asyncio
import sys
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any


class Starter:
    """Starts one piece of work after another, each in a task and a context of its own.

    On Python 3.11 the task of work that was over after its first step serves the next one too: to make one costs
    more than such work. `close` ends it.
    """

    __slots__ = ("_loop", "_reserve", "_task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._reserve: _Reserve | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run ``work`` until it first waits, in a task that is current meanwhile; None: it is over.

        A loop with a task factory decides for itself when a task begins. What ``work`` raises is the task's, but
        KeyboardInterrupt and SystemExit are raised here.
        """
        loop = self._loop
        if loop.get_task_factory() is not None:
            return loop.create_task(work)
        if sys.version_info >= (3, 12):
            return asyncio.Task(work, loop=loop, eager_start=True)
        reserve, task = self._reserve, self._task
        if reserve is None or task is None or task.cancelling():  # nobody else is to get that cancel
            self.close()
            reserve = _Reserve(loop)
            # A cancel that comes before the task's first turn must find the generator begun.
            rest = reserve.rest()
            rest.send(None)
            task = self._task = asyncio.Task(rest, loop=loop)
            self._reserve = reserve
        context = copy_context()
        outer = asyncio.current_task(loop)
        if outer is not None:
            _leave_task(loop, outer)
        _enter_task(loop, task)
        try:
            waits = context.run(work.send, None)
        except StopIteration:
            return None
        except (KeyboardInterrupt, SystemExit):
            self.close()
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it is, the task raises it
            waits = error
        finally:
            _leave_task(loop, task)
            if outer is not None:
                _enter_task(loop, outer)
        self._task = self._reserve = None
        reserve.take(work, context, waits)
        return task

    def close(self) -> None:
        """End the task that is kept."""
        if self._reserve is not None:
            self._reserve.let_go()
            self._task = self._reserve = None


class _Reserve:
    """A task's generator: it waits for work that has begun, and does the rest of it."""

    __slots__ = ("_begun", "_idle", "_loop", "_over")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._begun: tuple[Coroutine[Any, Any, None], Context, Any, bool] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._over = False

    def take(self, work: Coroutine[Any, Any, None], context: Context, waits: Any) -> None:
        """Do the rest of ``work``; ``waits`` is what its first step gave to the event loop, or raised."""
        is_future = getattr(waits, "_asyncio_future_blocking", None) is True
        if is_future:
            # The mark says that a task takes the future in this moment; until the task's own turn another one may.
            waits._asyncio_future_blocking = False
        self._begun = work, context, waits, is_future
        self.let_go()

    def let_go(self) -> None:
        """Wait no longer for work."""
        self._over = True
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    @types.coroutine
    def rest(self) -> Generator[Any, Any, None]:
        """What the task runs."""
        error: BaseException | None = None
        try:
            yield
            if not self._over:
                self._idle = self._loop.create_future()
                yield from self._idle
        except BaseException as e:  # noqa: BLE001  # what comes in is for the work
            error = e
        if self._begun is None:
            if error is not None and not self._over:
                raise error
            return
        work, context, waits, is_future = self._begun
        if isinstance(waits, BaseException):
            raise waits
        # A cancel goes to the future first, as Task.cancel does where it knows what the task waits for.
        if is_future and isinstance(error, asyncio.CancelledError) and waits.cancel(*error.args):
            error = None
        if error is None and waits is not None:
            if is_future:
                waits._asyncio_future_blocking = True
            try:
                yield waits
            except BaseException as e:  # noqa: BLE001  # as above
                error = e
        while True:
            try:
                waits = context.run(work.send, None) if error is None else context.run(work.throw, error)
            except StopIteration:
                return
            error = None
            try:
                yield waits
            except BaseException as e:  # noqa: BLE001  # as above
                error = e
