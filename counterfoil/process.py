"""A tool's body in a child process that can be killed: both ends, and what goes between them.

The ends exchange tuples whose first item names them. What is the user's travels in them as a pickle of its
own, so that a value that cannot be read spoils no message.

    to the child     run, cancel, compute (call the memo's function), memo (its value or error)
    to the parent    started, progress, item, memo (asked for), computed, value, error

A third voice is the thread that listens to a child: it says "died".
"""

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
import weakref
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Generator, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, TypeVar, cast

from counterfoil.core.call import Caller, caller_from_json
from counterfoil.core.errors import CounterfoilError, DefinitionError, ToolError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.connection import Connection
    from subprocess import Popen

T = TypeVar("T")

Message: TypeAlias = "tuple[Any, ...]"

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
        how = (
            f"exit code {returncode}" if returncode >= 0 else f"signal {names.get(-returncode, -returncode)}"
        )
        super().__init__(f"the tool's process ended before its body did: {how}")


class ProcessBodyError(CounterfoilError):
    """In place of an exception that cannot cross over: ``class_name`` and ``message`` are the original's."""

    def __init__(self, class_name: str, message: str) -> None:
        super().__init__(class_name, message)
        self.class_name = class_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.class_name}: {self.message}"


class ProcessTraceback(CounterfoilError):
    """The cause of an exception that crossed over: its text is the traceback on the other side."""


class CannotCross(CounterfoilError, TypeError):
    """A value has no pickle, or none that the other process can read."""


class OnProgress(Protocol):
    """What a body's ``ctx.progress`` leads to; the shape of ToolContext.progress."""

    def __call__(self, text: str, *, done: float | None, total: float | None) -> Awaitable[None]: ...


OnMemo: TypeAlias = "Callable[[str, Callable[[], Awaitable[object]]], Awaitable[object]]"
"""What a body's ``ctx.memo`` leads to; the shape of ToolContext.memo. The function calls the body's."""


class _NotComputed(CounterfoilError):
    """A memo's function raised in the child, where the body has the exception already."""


def check_importable(fn: Callable[..., Any]) -> str:
    """``"module:qualname"`` of a function that a child process can import.

    Raises:
        DefinitionError: it cannot; the message names the function and says what to do.
    """
    name, module = getattr(fn, "__qualname__", None), getattr(fn, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str) or inspect.ismethod(fn):
        fault = "is a method or an object and has no name to import"
    elif "<lambda>" in name:
        fault = "is a lambda"
    elif "<locals>" in name:
        fault = "is defined inside a function"
    elif "." in name:
        fault = "is defined inside a class"
    elif module == "__main__":
        fault = "is defined in the program's main file, which a child cannot import"
    else:
        return f"{module}:{name}"
    raise DefinitionError(
        f'isolation="process" needs a function that can be imported, but {name or repr(fn)} {fault}; '
        'define it at the top level of a module of its own, or use isolation="thread"'
    )


def _pack(value: object, what: str) -> bytes:
    import pickle  # noqa: PLC0415  # few programs isolate a tool, and all import this file

    try:
        return pickle.dumps(value)
    except Exception as error:
        raise CannotCross(f"{what}, a {type(value).__name__}, cannot be pickled: {error}") from error


def _unpack(data: bytes, what: str) -> Any:
    import pickle  # noqa: PLC0415  # as in _pack

    try:
        return pickle.loads(data)  # noqa: S301  # made by the same user's code, in a child of this program
    except Exception as error:
        raise CannotCross(f"{what} cannot be unpickled: {type(error).__name__}: {error}") from error


def _pack_error(error: BaseException) -> tuple[bytes, str]:
    """The exception, or the nearest to it that the other side can read, and its traceback as text."""
    import traceback  # noqa: PLC0415  # as in _pack

    text = "".join(traceback.format_exception(error))
    forms: list[Callable[[], BaseException]] = []
    if isinstance(error, Exception):  # any other kind would mean something else to the loop over there
        forms.append(lambda: error)
    if isinstance(error, ToolError):  # a subclass with an __init__ of its own: the model's half still crosses
        fields = (error.message, error.code, error.retryable, error.data, error.details, error.narration)
        forms.append(lambda: ToolError(*fields))
    forms.append(lambda: ProcessBodyError(type(error).__qualname__, str(error)))
    for form in forms:
        try:
            data = _pack(form(), "the exception")
            _unpack(data, "the exception")
        except Exception:  # noqa: BLE001, S112  # whatever a user's class does: the next form is simpler
            continue
        return data, text
    return _pack(
        ProcessBodyError(type(error).__qualname__, "(its text cannot be read)"), "the exception"
    ), text


def _unpack_error(packed: tuple[bytes, str]) -> BaseException:
    data, text = packed
    try:
        error = cast("BaseException", _unpack(data, "the exception"))
    except CannotCross as unreadable:
        error = ProcessBodyError("Exception", str(unreadable))
    error.__cause__ = ProcessTraceback(text)
    return error


# ------------------------------------------------------------------------------------------- the parent


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
        from multiprocessing.connection import Pipe  # noqa: PLC0415  # as in _pack
        from subprocess import DEVNULL, Popen  # noqa: PLC0415  # as in _pack

        self._connection, theirs = Pipe()
        with theirs:
            program = (
                f"import sys; sys.path[:] = {path!r}\n"
                f"from counterfoil.process import serve; serve({theirs.fileno()}, {os.getpid()})"
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
        from subprocess import TimeoutExpired  # noqa: PLC0415  # as in _pack

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
        packed = _pack((dict(arguments), dict(context or {})), f"the input of {target}")
        try:
            here: str | None = os.getcwd()  # noqa: PTH109  # it goes over as text
        except FileNotFoundError:  # it was removed: the child stays where it is
            here = None
        path = [p for p in sys.path if isinstance(p, str)]
        request = ("run", path, here, target, packed, context_parameter)
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
                    return _unpack(data, "the returned value")
                case ("error", clean, packed):
                    self._clean = clean and await self._quiet()
                    raise _unpack_error(packed)
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
                self._on_item(_unpack(data, "an item"))
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
            return _unpack(data, what)

        try:
            answer: Message = ("memo", number, _pack(await self._on_memo(name, compute), what), None)
        except _NotComputed:
            return
        except Exception as error:  # noqa: BLE001  # raised where the body asked
            answer = ("memo", number, None, _pack_error(error))
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


# -------------------------------------------------------------------------------------------- the child


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
                data = _pack(value, what)
            except BaseException:
                self._wire.send(self._cancelled, "computed", number, None)
                raise
            answer = await self._wire.ask(self._cancelled, number, "computed", data)
        recorded, error = answer
        if error is not None:
            raise _unpack_error(error)
        return cast("object", _unpack(recorded, what))


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
        from multiprocessing.connection import Connection  # noqa: PLC0415  # as in _pack

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
        from concurrent.futures import Future  # noqa: PLC0415  # as in _pack

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
        import ctypes  # noqa: PLC0415  # needed in a child alone

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


def _perform(  # noqa: PLR0917  # the parts of the message, as they come
    wire: _Wire,
    body: threading.Event,
    path: list[str],
    here: str | None,
    target: str,
    packed: bytes,
    parameter: str | None,
) -> tuple[str, object]:
    try:
        sys.path[:] = path
        if here is not None:
            os.chdir(here)
        fn = _resolve(target)
        given, fields = _unpack(packed, f"the input of {target}")
        if parameter is not None:
            given[parameter] = ChildContext(wire, body, fields)
        wire.send(body, "started")
        value = _call(fn, given, lambda item: wire.send(body, "item", _pack(item, "an item")))
        return "value", _pack(value, f"what {target} returned")
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # it is raised in the parent
        return "error", _pack_error(error)


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
