"""A tool's body in a child process that can be killed: the program's side; the other is child.py.

The sides exchange tuples whose first item names them.

    to the child     run, cancel, compute (call the memo's function), memo (its value or error)
    to the parent    started, progress, item, memo (asked for), computed, value, error

A third voice is the thread that listens to a child: it says "died".
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, cast

from counterfoil.core.errors import CounterfoilError, UsageError
from counterfoil.crossing import CARRIED, Message, pack, pack_error, unpack, unpack_error

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from subprocess import Popen

IDLE = 4
"""Children that wait for a further body; each holds the imported program, some tens of MiB."""
AHEAD = 64
"""Messages of a child that may wait for the loop; then the child waits."""
EXIT_SECONDS = 2.0
"""Seconds that a child which hung up has to exit by itself before it is killed."""
QUIET_SECONDS = 0.1
"""Seconds that answers to a body that has ended may take; a child with one under way serves no other."""


class ProcessDied(CounterfoilError):
    """The child ended before its body: by ``signal``, a number, or with ``exit_code``; one is None."""

    def __init__(self, returncode: int) -> None:
        self.signal = -returncode if returncode < 0 else None
        self.exit_code = returncode if returncode >= 0 else None
        names = {s.value: s.name for s in signal.Signals}
        how = f"exit code {returncode}" if returncode >= 0 else f"signal {names.get(-returncode, -returncode)}"
        super().__init__(f"the tool's process ended before its body did: {how}")


class OnProgress(Protocol):
    """What a body's ``ctx.progress`` leads to; the shape of ToolContext.progress."""

    def __call__(self, text: str, *, done: float | None, total: float | None) -> Awaitable[None]: ...


OnMemo: TypeAlias = "Callable[[str, Callable[[], Awaitable[object]]], Awaitable[object]]"
"""What a body's ``ctx.memo`` leads to; the shape of ToolContext.memo. The function calls the body's."""


class _NotComputed(CounterfoilError):
    """A memo's function raised in the child, where the body has the exception already."""


class _Child:
    """A child process, and the thread that starts it, listens to it and reaps it.

    The thread is the child's own, since Linux ends a child with the *thread* that started it.
    """

    def __init__(self) -> None:
        self.used = False
        self._jobs: SimpleQueue[tuple[Message, Callable[[Message], None]] | None] = SimpleQueue()
        self._process: Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._sending = threading.Lock()
        self._killed = False
        threading.Thread(target=self._work, name="counterfoil-child", daemon=True).start()

    def run(self, request: Message, post: Callable[[Message], None]) -> None:
        """Have the child run one body; ``post`` gets each message, in the child's thread."""
        self._jobs.put((request, post))

    def send(self, message: Message) -> None:
        """Send a message; blocks while the child does not read. A dead child gets none."""
        with self._sending, contextlib.suppress(OSError):  # the listening thread learns it as well
            if self._connection is not None:
                self._connection.send(message)

    def kill(self) -> None:
        """SIGKILL to the child and to what it started; its thread reaps it."""
        self._killed = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the child and let its thread end."""
        self.kill()
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            request, post = job
            try:
                if self._connection is None:
                    self._start(request[1])
                self.send(request)
                message: Message = ("",)
                while message[0] not in ("value", "error"):
                    message = cast("Connection", self._connection).recv()
                    post(message)
            except Exception as error:  # noqa: BLE001  # it hung up, could not start, or a body wrote to the line
                post(("died", self._reap(), error))
        self._reap()

    def _start(self, path: list[str]) -> None:
        from multiprocessing.connection import Pipe  # as in crossing.pack
        from subprocess import DEVNULL, Popen  # as in crossing.pack

        self._connection, theirs = Pipe()
        with theirs:
            program = (
                f"import sys; sys.path[:] = {path!r}\n"
                f"from counterfoil.child import serve; serve({theirs.fileno()}, {os.getpid()})"
            )
            try:
                os.fstat(2)
                output = 2  # what a body prints is no part of this program's output
            except OSError:
                output = DEVNULL
            self._process = Popen(  # noqa: S603  # this interpreter, our own program
                [sys.executable, "-c", program],
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # a group of its own: what the body started is killed with it
            )
        if self._killed:  # before there was a process to kill
            self.kill()

    def _reap(self) -> int | None:
        """The child's return code; None when it could not be started."""
        with self._sending:
            if self._connection is not None:
                self._connection.close()
        if self._process is None:
            return None
        from subprocess import TimeoutExpired  # as in crossing.pack

        try:
            return self._process.wait(EXIT_SECONDS)
        except TimeoutExpired:
            self.kill()
            return self._process.wait()


class Children:
    """Child processes for bodies; one whose body ended cleanly is kept for the next. Any thread may use it.

    Args:
        idle: how many may wait for a body; with 0 each body has a child of its own.
    """

    def __init__(self, idle: int = IDLE) -> None:
        self._limit = idle
        self._idle: list[_Child] = []
        self._end = weakref.finalize(self, _close_all, self._idle)

    def take(self) -> _Child:
        """A child that waits, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            return _Child()

    def give(self, child: _Child) -> None:
        """Keep ``child`` for the next body, or end it."""
        child.used = True
        if self._end.alive and len(self._idle) < self._limit:
            self._idle.append(child)
        else:
            child.close()

    def close(self) -> None:
        """End the children that wait; from now on one ends with its body."""
        self._end()


def _close_all(children: list[_Child]) -> None:
    while children:
        children.pop().close()


async def _drop_progress(text: str, *, done: float | None, total: float | None) -> None:
    """Nobody wants to know."""


async def _no_memo(name: str, _fn: Callable[[], Awaitable[object]]) -> NoReturn:
    raise UsageError(f"this call keeps no memos, so it cannot keep {name!r}")


def _drop_item(item: object) -> None:
    """Nobody wants it."""


class ProcessBody:
    """One body in a child process.

    Args:
        children: where the child comes from and goes to; None for one of its own.
    """

    def __init__(self, children: Children | None = None) -> None:
        self._children = Children(0) if children is None else children
        self._child: _Child | None = None
        self._room = threading.Semaphore(AHEAD)
        self._tasks: set[asyncio.Task[None]] = set()
        self._computed: dict[int, asyncio.Future[bytes | None]] = {}
        self._on_progress: OnProgress = _drop_progress
        self._on_memo: OnMemo = _no_memo
        self._on_item: Callable[[object], object] = _drop_item
        self._killed = self._cancelled = self._clean = False
        self.started = False
        """Whether the body began; False when its process or its module could not be loaded."""

    async def run(
        self,
        target: str,
        arguments: Mapping[str, object],
        context: Mapping[str, object] | None = None,
        context_parameter: str | None = None,
        *,
        on_progress: OnProgress = _drop_progress,
        on_memo: OnMemo = _no_memo,
        on_item: Callable[[object], object] = _drop_item,
    ) -> object:
        """Run a function, sync or async, in a child and give its value. Cancelling this kills the child.

        SystemExit and KeyboardInterrupt end the child, as they end any program: a ProcessDied here. Of a
        generator, each item goes to ``on_item``, and the value is None.

        Args:
            target: from `check_importable`; an object that has ``fn``, such as a Tool, stands for that.
            arguments: by name; all that can be pickled.
            context: the attributes of the ChildContext; ``caller`` as JSON.
            context_parameter: the parameter that takes the ChildContext, if there is one.
            on_progress: awaited for each report of progress, in order.
            on_memo: awaited for each memo; several at once when the body asks so.
            on_item: called with each item of a generator.

        Raises:
            ProcessDied: the child ended before the body did.
            CannotCross: the arguments or the value cannot go over.
            ProcessBodyError: the body raised what cannot go over.
            Exception: what the body or its module's import raised; the cause has the traceback there.
        """
        if self._child is not None or self.started:
            raise UsageError("a ProcessBody runs one body; make another one")
        self._on_progress, self._on_memo, self._on_item = on_progress, on_memo, on_item
        packed = pack((dict(arguments), dict(context or {})), f"the input of {target}")
        try:
            here: str | None = os.getcwd()  # noqa: PTH109  # it goes over as text
        except FileNotFoundError:  # it was removed: the child stays where it is
            here = None
        path = [p for p in sys.path if isinstance(p, str)]
        request = ("run", path, here, target, packed, context_parameter, dict(CARRIED.get()))
        while not self._killed:
            child = self._child = self._children.take()
            try:
                return await self._follow(child, request)
            except ProcessDied:
                # An idle child died while nobody looked. Nothing of the body ran, so another may.
                if self.started or self._killed or not child.used:
                    raise
            finally:
                self._release(child)
        raise ProcessDied(-signal.SIGKILL)

    def cancel(self) -> None:
        """Make the body's ``ctx.cancelled`` true; on the loop's thread."""
        self._cancelled = True
        if self._child is not None and self.started:
            self._later(self._send(("cancel",)))

    def kill(self) -> None:
        """Kill the child and what it started, whatever they do; `run` raises ProcessDied."""
        self._killed = True
        if self._child is not None:
            self._child.kill()

    async def _follow(self, child: _Child, request: Message) -> object:
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Message] = asyncio.Queue()

        def post(message: Message) -> None:
            if self._child is child:  # else nobody takes messages any more
                self._room.acquire()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(inbox.put_nowait, message)

        child.run(request, post)
        while True:
            message = await inbox.get()
            self._room.release()
            match message:
                case ("value", clean, data):
                    self._clean = clean and await self._quiet()
                    return unpack(data, "the returned value")
                case ("error", clean, packed):
                    self._clean = clean and await self._quiet()
                    raise unpack_error(packed)
                case ("died", None, error):
                    raise error
                case ("died", code, _):
                    raise ProcessDied(code)
                case _:
                    await self._take(message)

    async def _take(self, message: Message) -> None:
        match message:
            case ("started",):
                self.started = True
                if self._cancelled:
                    self.cancel()
            case ("progress", text, done, total):
                await self._on_progress(text, done=done, total=total)
            case ("item", data):
                self._on_item(unpack(data, "an item"))
            case ("memo", number, name):
                self._later(self._memo(number, name))
            case ("computed", number, data):
                reply = self._computed.pop(number)
                if not reply.done():  # else on_memo has given up
                    reply.set_result(data)
            case other:
                raise AssertionError(other)

    async def _memo(self, number: int, name: str) -> None:
        what = f"the value of memo {name!r}"

        async def compute() -> object:
            reply = self._computed[number] = asyncio.get_running_loop().create_future()
            await self._send(("compute", number))
            data = await reply
            if data is None:
                raise _NotComputed
            return unpack(data, what)

        try:
            answer: Message = ("memo", number, pack(await self._on_memo(name, compute), what), None)
        except _NotComputed:
            return
        except Exception as error:  # noqa: BLE001  # raised where the body asked
            answer = ("memo", number, None, pack_error(error))
        await self._send(answer)

    async def _send(self, message: Message) -> None:
        if self._child is not None:
            # In a thread: the child may be slow to read, and then the loop must not wait.
            await asyncio.to_thread(self._child.send, message)

    async def _quiet(self) -> bool:
        """Whether nothing is on its way to the child; what the body did not wait for may be for ever."""
        return not self._tasks or not (await asyncio.wait(self._tasks, timeout=QUIET_SECONDS))[1]

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _release(self, child: _Child) -> None:
        self._child = None
        self._room.release()  # should the child's thread wait for it
        for task in self._tasks:
            task.cancel()
        if self._clean and not self._killed:
            self._children.give(child)
        else:
            child.close()


@functools.lru_cache(maxsize=1)
def shared_children() -> Children:
    """Child processes of this program that are kept for the next body: a warm one starts in a hundredth of the time."""
    children = Children()
    atexit.register(children.close)
    return children
