"""Awaiting somebody's coroutine that may not heed a cancel, and being able to leave it."""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

log = logging.getLogger("counterfoil")

T = TypeVar("T")


class Leash:
    """Holds one coroutine after another, in the task that awaits: a cancel of that task reaches it as ever.

    One that swallows the cancel and goes on can be left by `let_go`. A task of its own would do the same, but cost each
    coroutine a turn of the event loop, also one that never waits for anything.
    """

    __slots__ = ("_gate", "_left")

    def __init__(self) -> None:
        self._gate: asyncio.Future[None] | None = None
        self._left = False

    def let_go(self) -> None:
        """Leave what is held: whoever awaits it gets a CancelledError, and it is closed."""
        self._left = True
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)

    @types.coroutine
    def hold(self, coro: Coroutine[Any, Any, T], waits: Any) -> Generator[Any, None, T]:
        """What a coroutine returns that has begun in this task.

        Args:
            coro: the coroutine.
            waits: what it gave to the event loop when it first had to wait.

        Raises:
            CancelledError: it was left. And what the coroutine raises.
        """
        self._left = False
        try:
            while True:
                if waits is None:
                    try:
                        yield  # the next turn of the event loop
                        told = None
                    except asyncio.CancelledError as error:
                        told = error
                else:
                    told = yield from self._ready(waits)
                if self._left:
                    _close(coro)
                    raise asyncio.CancelledError
                waits = coro.send(None) if told is None else coro.throw(told)
        except StopIteration as end:
            value: T = end.value
            return value

    def _ready(self, waits: Any) -> Generator[Any, None, asyncio.CancelledError | None]:
        """Wait for a future; what to raise where it is awaited, if that is no future that was cancelled."""
        # As a task does it, but on a future of our own, which can be opened whatever becomes of the other one.
        waits._asyncio_future_blocking = False
        while not (waits.done() or self._left):
            gate = self._gate = asyncio.get_running_loop().create_future()
            waits.add_done_callback(self._open)
            try:
                yield from gate
            except asyncio.CancelledError as error:
                if not waits.cancel(*error.args):
                    return error
            finally:
                self._gate = None
                waits.remove_done_callback(self._open)
        return None

    def _open(self, _: object) -> None:
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)


def _close(coro: Coroutine[Any, Any, Any]) -> None:
    try:
        # In Python 3.11 a close alone leaves an async generator that is awaited as one that runs for ever.
        coro.throw(asyncio.CancelledError())
        coro.close()
    except (StopIteration, asyncio.CancelledError):
        return
    except Exception:  # it goes on in spite of everything: it is left where it is
        log.warning("a coroutine that was left did not end", exc_info=True)
