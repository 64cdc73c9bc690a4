"""Threads for synchronous tool bodies: bounded, reused, daemon, with context variables carried over.

A body that was given up (a time-out, a cancel) cannot be stopped: it keeps its thread until it ends, and an
``on_done`` is told then. Daemon threads, so that a body that hangs for ever keeps no program from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import copy_context
from typing import Generic, TypeAlias, TypeVar

from counterfoil.core.errors import UsageError
from counterfoil.core.limits import THREADS

T = TypeVar("T")

OnDone: TypeAlias = "Callable[[object, BaseException | None], object]"
"""Called once for each body, on its loop's thread: what it returned (or None), what it raised (or None)."""

AHEAD = 64
"""Items that a generator may be ahead of its reader; enough that one wake-up of the loop carries many."""


class NeverStarted(UsageError):
    """Given to ``on_done`` for a body that was cancelled while it waited for a thread: nothing of it ran."""


class Body(asyncio.Future[T]):
    """The result of one body, for the loop that submitted it.

    Cancelling it before it has started takes it out of the queue. Cancelling it later gives the body up: it
    runs on, and ``on_done`` alone sees its end.
    """

    started = False
    """Whether a thread has begun the body."""

    def __init__(self, pool: ThreadPool, fn: Callable[[], T], on_done: OnDone | None) -> None:
        mail = self._mail = pool.mail()
        super().__init__(loop=mail.loop)
        self._pool = pool
        self._fn: Callable[[], T] | None = fn
        self._values = copy_context()
        self._on_done = on_done
        self._value: T | None = None
        self._error: BaseException | None = None

    def cancel(self, msg: object = None) -> bool:
        """Give the body up; one that waits for a thread never starts. True unless it was done already."""
        if not super().cancel(msg):
            return False
        with self._pool.lock:
            withdrawn = not self.started  # it stays in the queue as a blank, which threads pass over
        if withdrawn:
            self._fn = None
            self._error = NeverStarted("the body was cancelled before a thread was free for it")
            # Soon and not now: a callback must not run inside the cancel of somebody else's task.
            self._mail.loop.call_soon(self._settle)
        return True

    def perform(self) -> None:
        """Run the body, in a thread; never raises, whatever the body raises."""
        fn, self._fn = self._fn, None
        try:
            self._value = self._values.run(fn)  # type: ignore[arg-type]  # it had one until now
        except BaseException as error:  # noqa: BLE001  # also SystemExit: whoever awaits it decides
            # Without this frame, which would hold the exception that holds it.
            self._error = _awaitable(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))

    def deliver(self) -> None:
        """Send the loop how the body ended; from its thread."""
        self._mail.post(self._settle)

    def _settle(self) -> None:
        value, error, on_done = self._value, self._error, self._on_done
        self._value = self._error = self._on_done = None
        try:
            if self.done():
                pass  # given up meanwhile
            elif error is None:
                self.set_result(value)  # type: ignore[arg-type]  # T may be None
            else:
                self.set_exception(error)
                self.exception()  # counts as seen, so asyncio complains of none that nobody awaits any more
            if on_done is not None:
                on_done(value, error)
        finally:
            del error  # its traceback may come to hold this frame


def _awaitable(error: BaseException) -> BaseException:
    """What to raise at an await for ``error``: three kinds would mean something else there."""
    if not isinstance(error, (StopIteration, GeneratorExit, asyncio.CancelledError)):
        return error
    instead = RuntimeError(f"the body raised {type(error).__name__}")
    instead.__cause__ = error
    return instead


class _Mail:
    """What threads send to one loop; however many letters come at once, the loop is woken once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._letters: deque[Callable[[], None]] = deque()
        self._rung = False

    def post(self, letter: Callable[[], None]) -> None:
        """Have the loop call ``letter`` soon; from any thread. A closed loop calls nothing."""
        self._letters.append(letter)
        # The loop takes the flag down before it looks, so what comes after its last look rings again. Two
        # threads that both see it down ring twice, which does no harm: no lock is needed.
        if not self._rung:
            self._rung = True
            try:
                self.loop.call_soon_threadsafe(self._open)
            except RuntimeError:  # the loop was closed: nobody waits any more
                self._letters.clear()

    def _open(self) -> None:
        self._rung = False
        while self._letters:
            try:
                self._letters.popleft()()
            except Exception as error:  # noqa: BLE001  # one callback's mistake keeps no other letter back
                self.loop.call_exception_handler({"message": "on_done of a body raised", "exception": error})


class ThreadPool:
    """At most ``limit`` daemon threads, started when needed; the thread that was idle last is used first.

    Loops of several threads may share a pool. Bodies that find no thread wait in the order of their coming.
    """

    def __init__(self, limit: int = THREADS) -> None:
        if limit < 1:
            raise ValueError(f"ThreadPool.limit must be at least 1, got {limit!r}")
        self.lock = threading.Lock()
        self._limit = limit
        self._queue: deque[Body[object]] = deque()
        self._idle: list[threading.Lock] = []  # each is held by the thread that sleeps on it
        self._threads = 0
        # A thread is on its way to the queue. It calls the next one before it begins a body, so a burst of
        # short bodies takes few threads, a burst of long ones still gets a thread each, and one body after
        # the other finds the same thread awake.
        self._coming = False
        self._closed = False
        self._local = threading.local()

    def submit(self, fn: Callable[[], T], *, on_done: OnDone | None = None) -> Body[T]:
        """Run ``fn`` in a thread, under a copy of the context variables of now; what it sets stays there.

        What it raises, SystemExit and KeyboardInterrupt included, is raised where the Body is awaited
        (StopIteration, GeneratorExit and CancelledError, which mean something else there, as the cause of a
        RuntimeError).

        Args:
            fn: the body.
            on_done: called on this loop's thread when the body has ended, also when nobody waits any more,
                or with a `NeverStarted` when it never will start; not called once the loop is closed.

        Raises:
            UsageError: the pool is closed.
            RuntimeError: no loop runs here, or the system gives not even one thread.
        """
        body = Body(self, fn, on_done)
        with self.lock:
            if self._closed:
                raise UsageError("this ThreadPool is closed; make another one")
            self._queue.append(body)  # type: ignore[arg-type]  # the queue reads no result
            call = self._next_thread()
        if call is not None:
            call()
        return body

    async def iterate(self, make: Callable[[], Iterable[T]], *, on_done: OnDone | None = None) -> AsyncIterator[T]:
        """The items of ``make()``, taken in one thread that is at most 64 items ahead of the reader.

        An exception of the generator is raised after the items before it. When the reader stops (``aclose``),
        the generator is closed in its thread when it gives its next item; nobody waits for that.
        ``on_done`` is that of `submit`, for the generator as a whole.
        """
        stream = _Stream(self.mail(), make)
        body = self.submit(stream.drain, on_done=on_done)
        body.add_done_callback(stream.wake)
        try:
            while True:
                while stream.items:
                    yield stream.items.popleft()
                    stream.room.release()
                if body.done():  # and every item was here before the last look
                    break
                await stream.arrival()
            await body
        finally:
            stream.stopped = True
            stream.room.release()
            body.cancel()

    def close(self) -> None:
        """Take no more bodies; threads end when they have nothing to do. Waits for none."""
        with self.lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for sleeper in idle:
            sleeper.release()

    def mail(self) -> _Mail:
        """The way from any thread to the loop that runs in this one."""
        loop = asyncio.get_running_loop()
        found: _Mail | None = getattr(self._local, "mail", None)
        if found is None or found.loop is not loop:
            found = self._local.mail = _Mail(loop)
        return found

    def _next_thread(self) -> Callable[[], None] | None:
        """What calls a thread to the queue, if one should come and can; the lock is held."""
        if self._coming:
            return None
        if self._idle:
            self._coming = True
            return self._idle.pop().release
        if self._threads < self._limit:
            self._coming = True
            self._threads += 1
            return self._start
        return None

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name="counterfoil-tool", daemon=True).start()
        except RuntimeError:
            with self.lock:
                self._coming = False
                self._threads -= 1
                if self._threads:
                    return  # those that there are will come to it
                self._queue.clear()
            raise

    def _work(self) -> None:
        sleeper = threading.Lock()
        sleeper.acquire()
        called = True
        while True:
            body = self._take(sleeper, called=called)
            if body is not None:
                body.perform()
                # Before the delivery: what its reader submits next is taken by this thread, without a call.
                # Two threads that both think it is theirs lead to a call too many, which does no harm.
                called = not self._coming
                self._coming = True
                body.deliver()
                del body  # an idle thread keeps nothing of the last call alive
            elif self._closed:
                return
            else:
                sleeper.acquire()
                called = True

    def _take(self, sleeper: threading.Lock, *, called: bool) -> Body[object] | None:
        """The next body; None when there is none, and then this thread is idle (in a closed pool, gone)."""
        with self.lock:
            if called:
                self._coming = False
            while self._queue:
                body = self._queue.popleft()
                if not body.cancelled():
                    body.started = True
                    call = self._next_thread() if self._queue else None
                    break
            else:
                if self._closed:
                    self._threads -= 1
                else:
                    self._idle.append(sleeper)
                return None
        if call is not None:
            call()
        return body


class _Stream(Generic[T]):
    """Items on their way from a generator's thread to a loop."""

    def __init__(self, mail: _Mail, make: Callable[[], Iterable[T]]) -> None:
        self.items: deque[T] = deque()
        self.room = threading.Semaphore(AHEAD)
        self.stopped = False
        self._mail = mail
        self._make = make
        self._waiter: asyncio.Future[None] | None = None

    def drain(self) -> None:
        """Take items while there is room for them; in the generator's thread."""
        items = iter(self._make())
        try:
            while self.room.acquire() and not self.stopped:
                try:
                    self.items.append(next(items))
                except StopIteration:
                    break
                if self._waiter is not None:
                    self._mail.post(self.wake)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    async def arrival(self) -> None:
        """Until there may be an item, or the end."""
        waiter = self._waiter = self._mail.loop.create_future()
        # The thread looks for a waiter after it has put an item down, so one of the two sees the other.
        if not self.items:
            await waiter
        self._waiter = None

    def wake(self, _body: object = None) -> None:
        """Something has arrived; on the loop's thread."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
