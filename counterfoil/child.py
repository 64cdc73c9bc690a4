"""A tool's body in a child process: the child's side. Its messages are explained in process.py."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import itertools
import os
import signal
import sys
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from counterfoil.core.call import Caller, caller_from_json
from counterfoil.core.errors import UsageError
from counterfoil.crossing import Message, pack, pack_error, unpack, unpack_error

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class ChildContext:
    """What a body in a child has as its ToolContext.

    Sync and async bodies use `progress` and `memo` alike: where a loop runs they are awaited, elsewhere they
    block and give the value itself.
    """

    caller: Caller
    run_id: str
    interaction_id: str
    thread_id: str | None
    step_index: int
    call_id: str
    idempotency_key: str
    attempt: int

    def __init__(self, wire: _Wire, cancelled: threading.Event, fields: dict[str, Any]) -> None:
        if "caller" in fields:
            fields = {**fields, "caller": caller_from_json(fields["caller"])}
        self.__dict__.update(fields)
        self._wire = wire
        self._cancelled = cancelled

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled: the body should end soon."""
        return self._cancelled.is_set()

    @property
    def deps(self) -> NoReturn:
        """Raises UsageError: deps stay in the program's own process."""
        raise UsageError('a tool with isolation="process" has no ctx.deps: make what it needs in its process')

    @property
    def extensions(self) -> NoReturn:
        """Raises UsageError: extensions stay in the program's own process."""
        raise UsageError('a tool with isolation="process" has no ctx.extensions: give values as arguments')

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> Awaitable[None]:
        """Report progress, at once; the outcome may be awaited and need not be."""
        numbers = (None if number is None else float(number) for number in (done, total))
        self._wire.send(self._cancelled, "progress", str(text), *numbers)
        return _Reply(None)

    def memo(self, name: str, fn: Callable[[], Any]) -> Any:
        """The value of ``fn()``, recorded once and given back in every later attempt.

        ``fn`` may be async.

        Raises:
            CannotCross: the value cannot be pickled.
        """
        steps = self._memo(name, fn)
        return steps if _loop_runs() else _finish(steps)

    async def _memo(self, name: str, fn: Callable[[], Any]) -> object:
        what = f"the value of memo {name!r}"
        number = next(self._wire.numbers)
        answer = await self._wire.ask(self._cancelled, number, "memo", str(name))
        if not answer:  # nothing is on record: compute it here
            try:
                value = fn()
                if inspect.isawaitable(value):
                    value = await value if _loop_runs() else asyncio.run(_awaited(value))
                data = pack(value, what)
            except BaseException:
                self._wire.send(self._cancelled, "computed", number, None)
                raise
            answer = await self._wire.ask(self._cancelled, number, "computed", data)
        recorded, error = answer
        if error is not None:
            raise unpack_error(error)
        return cast("object", unpack(recorded, what))


def _finish(steps: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine that waits for nothing but a _Reply, where no loop runs."""
    try:
        steps.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError(steps)


async def _awaited(value: Awaitable[T]) -> T:
    return await value


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Reply:
    """Something to await; without a running loop, awaiting blocks and never suspends."""

    def __init__(self, future: Future[Any] | None) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        if self._future is None:
            return None
        if _loop_runs():
            return (yield from asyncio.wrap_future(self._future).__await__())
        return self._future.result()


class _Wire:
    """The child's end. A body is known by its cancel event; one that has ended sends nothing more."""

    def __init__(self, fd: int) -> None:
        from multiprocessing.connection import Connection  # as in crossing.pack

        self.jobs: SimpleQueue[tuple[threading.Event, Message]] = SimpleQueue()
        self.numbers = itertools.count()
        self._connection = Connection(fd)
        self._sending = threading.Lock()
        self._body: threading.Event | None = None
        self._replies: dict[int, Future[Message]] = {}
        # What a body forks must not hold the line open when this process dies, nor be its child's.
        os.set_inheritable(fd, False)  # noqa: FBT003  # the function takes no keyword
        os.register_at_fork(after_in_child=self._connection.close)

    def send(self, body: threading.Event, *message: object, last: bool = False) -> None:
        with self._sending:
            if body is not self._body:
                raise UsageError("this tool call has ended; its ToolContext serves it alone")
            if last:  # before it is sent, since the next one may come at once
                self._body = None
            self._connection.send(message)

    def ask(self, body: threading.Event, number: int, kind: str, value: object) -> Awaitable[Message]:
        from concurrent.futures import Future  # as in crossing.pack

        future: Future[Message] = Future()
        self._replies[number] = future
        self.send(body, kind, number, value)
        return _Reply(future)

    def listen(self) -> None:
        """Take what comes, in a thread of its own; when the parent is gone, end this process."""
        try:
            while True:
                match self._connection.recv():
                    case ("run", *job):
                        self._body = threading.Event()
                        self.jobs.put((self._body, tuple(job)))
                    case ("cancel",):
                        if self._body is not None:
                            self._body.set()
                    case (_, number, *answer):  # compute, memo
                        future = self._replies.pop(number, None)
                        if future is not None and future.set_running_or_notify_cancel():
                            future.set_result(tuple(answer))
                    case other:
                        raise AssertionError(other)
        finally:
            os._exit(1)


def serve(fd: int, parent: int) -> None:
    """The whole life of a child: one body after the other, from the socket ``fd``, while ``parent`` lives."""
    with contextlib.suppress(ImportError, OSError, AttributeError, TypeError):  # where there is no prctl
        import ctypes  # needed in a child alone

        pdeathsig = 1
        ctypes.CDLL(None).prctl(pdeathsig, signal.SIGKILL)  # also ends a body that lets no other thread run
    if os.getppid() != parent:  # it died before that
        os._exit(1)
    wire = _Wire(fd)
    threading.Thread(target=wire.listen, daemon=True).start()
    threads = threading.active_count()
    while True:
        body, job = wire.jobs.get()
        kind, payload = _perform(wire, body, *job)
        clean = threading.active_count() == threads  # else something of this body still runs
        wire.send(body, kind, clean, payload, last=True)


def _perform(  # the parts of the message, as they come
    wire: _Wire,
    body: threading.Event,
    path: list[str],
    here: str | None,
    target: str,
    packed: bytes,
    parameter: str | None,
    carried: dict[str, object],
) -> tuple[str, object]:
    try:
        sys.path[:] = path
        if here is not None:
            os.chdir(here)
        fn = _resolve(target)
        given, fields = unpack(packed, f"the input of {target}")
        if parameter is not None:
            given[parameter] = ChildContext(wire, body, fields)
        wire.send(body, "started")
        values = copy_context()  # the next body in this process has none of it
        for observer, carries in carried.items():
            with contextlib.suppress(Exception):  # an observer changes nothing
                values.run(_resolve(observer), carries)
        value = values.run(_call, fn, given, lambda item: wire.send(body, "item", pack(item, "an item")))
        return "value", pack(value, f"what {target} returned")
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # it is raised in the parent
        return "error", pack_error(error)


def _resolve(target: str) -> Callable[..., Any]:
    module, _, names = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return cast("Callable[..., Any]", found if inspect.isfunction(found) else getattr(found, "fn", found))


def _call(fn: Callable[..., Any], arguments: dict[str, Any], on_item: Callable[[object], None]) -> object:
    value = fn(**arguments)
    if inspect.isawaitable(value):
        return asyncio.run(_awaited(value))
    if inspect.isasyncgen(value):
        return asyncio.run(_each(value, on_item))
    if inspect.isgenerator(value):
        for item in value:
            on_item(item)
        return None
    return cast("object", value)


async def _each(items: AsyncIterable[object], on_item: Callable[[object], None]) -> None:
    async for item in items:
        on_item(item)
