"""A coroutine as a task whose first step is done at once: often there is no second one to wait for."""

from __future__ import annotations

import asyncio
import sys
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any


def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run ``work`` until it first waits, as a task that is current meanwhile; the loop does the rest.

    A loop with a task factory decides for itself when a task begins. What ``work`` raises is the task's, but
    KeyboardInterrupt and SystemExit are raised here.
    """
    if loop.get_task_factory() is not None:
        return loop.create_task(work)
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    begun: list[Any] = []
    rest = _rest(work, begun)
    context = copy_context()
    task = asyncio.Task(rest, loop=loop, context=context)
    outer = asyncio.current_task(loop)
    if outer is not None:
        _leave_task(loop, outer)
    _enter_task(loop, task)
    try:
        begun.append(context.run(work.send, None))
        # It waits. A cancel that comes before the task's first turn must find the generator begun.
        rest.send(None)
    except StopIteration:
        pass
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  # whatever it is, the task raises it
        begun.append(error)
    finally:
        _leave_task(loop, task)
        if outer is not None:
            _enter_task(loop, outer)
    return task


@types.coroutine
def _rest(work: Coroutine[Any, Any, None], begun: list[Any]) -> Generator[Any, Any, None]:
    """What is left of ``work`` for the task's own turns; ``begun`` has what its first step gave, if not its end."""
    if not begun:
        return
    waits = begun.pop()
    if isinstance(waits, BaseException):
        raise waits
    is_future = getattr(waits, "_asyncio_future_blocking", None) is True
    if is_future:
        # The mark says that a task takes the future in this moment; until the task's own turn another one may.
        waits._asyncio_future_blocking = False
    error: BaseException | None = None
    try:
        yield
    except asyncio.CancelledError as e:
        # As Task.cancel does where it knows what the task waits for.
        if not (is_future and waits.cancel(*e.args)):
            error = e
    except BaseException as e:  # noqa: BLE001  # what comes in is for the work
        error = e
    if error is None and waits is not None:
        if is_future:
            waits._asyncio_future_blocking = True
        try:
            yield waits
        except BaseException as e:  # noqa: BLE001  # as above
            error = e
    while error is not None:
        try:
            waits = work.throw(error)
        except StopIteration:
            return
        error = None
        try:
            yield waits
        except BaseException as e:  # noqa: BLE001  # as above
            error = e
    yield from work
