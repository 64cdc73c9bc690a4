"""ThreadPool: where synchronous bodies run, so that none of them ever blocks a loop."""

import asyncio
import contextlib
import contextvars
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from counterfoil.core.errors import UsageError
from counterfoil.core.limits import THREADS
from counterfoil.pool import AHEAD, NeverStarted, ThreadPool
from tests.marks import case

T = TypeVar("T")

tenant = contextvars.ContextVar("tenant", default="nobody")


def with_pool(test: Callable[[ThreadPool], Coroutine[Any, Any, T]], limit: int = THREADS) -> T:
    """Run ``test`` in a loop, and fail on what asyncio would only have logged."""
    complaints: list[dict[str, Any]] = []

    async def main() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        pool = ThreadPool(limit)
        try:
            return await test(pool)
        finally:
            pool.close()

    outcome = asyncio.run(main())
    gc.collect()
    assert complaints == []
    return outcome


class Endings:
    """An ``on_done`` that can be awaited."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[tuple[object, BaseException | None]] = asyncio.Queue()
        self.threads: list[threading.Thread] = []

    def __call__(self, value: object, error: BaseException | None) -> None:
        self.threads.append(threading.current_thread())
        self.seen.put_nowait((value, error))


# --------------------------------------------------------------------------------------- values and errors


def test_a_body_runs_in_another_thread_and_its_value_is_awaited() -> None:
    async def test(pool: ThreadPool) -> threading.Thread:
        return await pool.submit(threading.current_thread)

    thread = with_pool(test)
    assert thread is not threading.current_thread()
    assert thread.daemon


def test_the_very_exception_of_a_body_is_raised_with_the_body_in_its_traceback() -> None:
    error = LookupError("no such order")

    def body() -> None:
        raise error

    async def test(pool: ThreadPool) -> None:
        with pytest.raises(LookupError) as caught:
            await pool.submit(body)
        assert caught.value is error
        assert [frame.name for frame in caught.traceback][-1] == "body"

    with_pool(test)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_would_end_a_program_is_delivered_and_the_thread_goes_on(kind: type[BaseException]) -> None:
    def body() -> None:
        raise kind("from the body")

    async def test(pool: ThreadPool) -> None:
        first = await pool.submit(threading.get_ident)
        with pytest.raises(kind, match="from the body"):
            await pool.submit(body)
        assert await pool.submit(threading.get_ident) == first

    with_pool(test, limit=1)


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit, asyncio.CancelledError])
def test_what_means_something_else_to_a_coroutine_is_the_cause_of_an_error(kind: type[BaseException]) -> None:
    def body() -> None:
        raise kind

    async def test(pool: ThreadPool) -> None:
        with pytest.raises(RuntimeError, match=kind.__name__) as caught:
            await pool.submit(body)
        assert isinstance(caught.value.__cause__, kind)

    with_pool(test)


def test_nothing_of_a_call_is_kept_alive_after_it() -> None:
    class Thing:
        pass

    async def test(pool: ThreadPool) -> list[weakref.ref[object]]:
        def body(thing: object) -> object:
            return thing

        def failing(thing: object) -> object:
            raise LookupError

        given, failed = Thing(), Thing()
        references: list[weakref.ref[object]] = [weakref.ref(given), weakref.ref(failed)]
        await pool.submit(lambda thing=given: body(thing))
        with contextlib.suppress(LookupError):
            await pool.submit(lambda thing=failed: failing(thing))
        del given, failed
        await pool.submit(int)  # the thread has let go of the calls before it took this one
        return references

    gc.disable()  # reference counts alone free it: there is no cycle
    try:
        assert [reference() for reference in with_pool(test)] == [None, None]
    finally:
        gc.enable()


# -------------------------------------------------------------------------------------- the loop stays free


@case("R104")
def test_the_loop_goes_on_while_bodies_block() -> None:
    async def test(pool: ThreadPool) -> None:
        go = threading.Event()
        blocked = [pool.submit(go.wait) for _ in range(10)]
        answers = [await asyncio.sleep(0, n) for n in range(10)]  # the loop answers while all ten block
        assert answers == list(range(10))
        assert not any(body.done() for body in blocked)
        go.set()  # this line runs on the loop: had a body blocked it, nobody would ever set it
        assert await asyncio.gather(*blocked) == [True] * 10

    with_pool(test)


@case("R104")
def test_more_bodies_than_threads_leave_the_loop_free_and_start_in_order() -> None:
    started: list[int] = []

    async def test(pool: ThreadPool) -> None:
        go = threading.Event()
        pool.submit(go.wait)
        queued = [pool.submit(lambda n=n: started.append(n)) for n in range(20)]
        await asyncio.sleep(0)
        assert started == []
        assert not any(body.started for body in queued)
        go.set()
        await asyncio.gather(*queued)
        assert started == list(range(20))

    with_pool(test, limit=1)


def test_as_many_bodies_as_the_limit_run_at_once_and_not_one_more() -> None:
    async def test(pool: ThreadPool) -> None:
        together = threading.Barrier(4)  # passes only when four bodies are inside
        bodies = [pool.submit(together.wait) for _ in range(4)]
        assert sorted(await asyncio.gather(*bodies)) == [0, 1, 2, 3]
        inside = threading.Semaphore(4)

        def body() -> bool:
            entered = inside.acquire(blocking=False)
            inside.release()
            return entered

        assert all(await asyncio.gather(*(pool.submit(body) for _ in range(200))))
        threads = await asyncio.gather(*(pool.submit(threading.get_ident) for _ in range(200)))
        assert len(set(threads)) <= 4

    with_pool(test, limit=4)


def test_a_thread_starts_when_it_is_needed_and_is_used_again() -> None:
    async def test(pool: ThreadPool) -> None:
        before = threading.active_count()
        first = await pool.submit(threading.get_ident)
        assert {await pool.submit(threading.get_ident) for _ in range(50)} == {first}
        assert threading.active_count() == before + 1

    with_pool(test)


def test_a_burst_of_bodies_that_block_gets_a_thread_each_also_from_idle_threads() -> None:
    async def test(pool: ThreadPool) -> None:
        for _ in range(20):
            together = threading.Barrier(8)
            await asyncio.gather(*(pool.submit(together.wait) for _ in range(8)))

    with_pool(test, limit=8)


def test_several_loops_use_one_pool_and_each_gets_its_own_results() -> None:
    pool = ThreadPool(3)
    outcomes: dict[int, list[int]] = {}

    def loop_of(n: int) -> None:
        async def main() -> list[int]:
            here = threading.get_ident()
            values = []
            for number in range(100):
                body = pool.submit(lambda number=number: n * 1000 + number)
                values.append(await body)
                assert threading.get_ident() == here
            return values

        outcomes[n] = asyncio.run(main())

    threads = [threading.Thread(target=loop_of, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert outcomes == {n: [n * 1000 + number for number in range(100)] for n in range(4)}


def test_one_loop_after_the_other_in_one_thread_uses_the_same_pool() -> None:
    pool = ThreadPool(2)

    async def main() -> int:
        return sum(await asyncio.gather(*(pool.submit(lambda: 1) for _ in range(5))))

    assert [asyncio.run(main()) for _ in range(3)] == [5, 5, 5]
    pool.close()


# ---------------------------------------------------------------------------------------- context variables


@case("R106")
def test_a_body_sees_the_context_variables_of_its_caller() -> None:
    async def call(pool: ThreadPool, name: str) -> str:
        tenant.set(name)
        return await asyncio.wait_for(pool.submit(tenant.get), timeout=60)

    async def test(pool: ThreadPool) -> None:
        names = [f"tenant {n}" for n in range(20)]
        assert await asyncio.gather(*(call(pool, name) for name in names)) == names
        assert await pool.submit(tenant.get) == "nobody"

    with_pool(test, limit=3)


@case("R106")
def test_what_a_body_sets_does_not_leak_out_to_the_caller_or_the_next_body() -> None:
    async def test(pool: ThreadPool) -> None:
        tenant.set("acme")
        await pool.submit(lambda: tenant.set("evil") and None)
        assert tenant.get() == "acme"
        assert await pool.submit(tenant.get) == "acme"

    with_pool(test, limit=1)


@case("R106")
def test_a_generator_sees_its_callers_context_at_each_item_and_keeps_its_own_changes() -> None:
    def generator():
        yield tenant.get()
        tenant.set("mine")
        yield tenant.get()

    async def test(pool: ThreadPool) -> None:
        tenant.set("acme")
        assert [item async for item in pool.iterate(generator)] == ["acme", "mine"]
        assert tenant.get() == "acme"

    with_pool(test)


# ----------------------------------------------------------------------------------------- bodies given up


@case("R098")
def test_giving_up_a_running_body_keeps_its_thread_and_tells_its_late_value_once() -> None:
    async def test(pool: ThreadPool) -> None:
        inside, go, endings = asyncio.Event(), threading.Event(), Endings()
        loop = asyncio.get_running_loop()

        def run() -> str:
            loop.call_soon_threadsafe(inside.set)
            go.wait()
            return "late"

        body = pool.submit(run, on_done=endings)
        await inside.wait()
        body.cancel()
        assert body.cancelled()
        behind = pool.submit(lambda: "next")
        await asyncio.sleep(0)
        assert not behind.started  # the only thread is still taken
        go.set()
        assert await behind == "next"
        assert await endings.seen.get() == ("late", None)
        assert endings.seen.empty()
        assert endings.threads == [threading.current_thread()]

    with_pool(test, limit=1)


def test_the_late_exception_of_a_body_given_up_is_told_and_is_no_forgotten_exception() -> None:
    async def test(pool: ThreadPool) -> None:
        inside, go, endings = asyncio.Event(), threading.Event(), Endings()
        loop = asyncio.get_running_loop()

        def run() -> None:
            loop.call_soon_threadsafe(inside.set)
            go.wait()
            raise LookupError("late")

        cancelled = pool.submit(run, on_done=endings)
        await inside.wait()
        cancelled.cancel()
        ignored = pool.submit(run, on_done=endings)  # nobody awaits this one, and nobody cancels it
        del ignored
        go.set()
        for _ in range(2):
            value, error = await endings.seen.get()
            assert value is None
            assert isinstance(error, LookupError)

    with_pool(test)  # fails on "exception was never retrieved"


def test_a_body_cancelled_while_it_waits_never_starts_and_is_told_so_at_once() -> None:
    ran: list[str] = []

    async def test(pool: ThreadPool) -> None:
        go, endings = threading.Event(), Endings()
        first = pool.submit(go.wait)
        waiting = pool.submit(lambda: ran.append("ran"), on_done=endings)
        waiting.cancel()
        assert endings.seen.empty()  # not inside the cancel of somebody else
        value, error = await endings.seen.get()  # while the only thread is still taken
        assert value is None
        assert isinstance(error, NeverStarted)
        assert not waiting.started
        go.set()
        await first
        await pool.submit(int)
        assert ran == []

    with_pool(test, limit=1)


def test_on_done_is_told_of_a_usual_end_too() -> None:
    def fail() -> None:
        raise LookupError

    async def test(pool: ThreadPool) -> None:
        endings = Endings()
        assert await pool.submit(lambda: 7, on_done=endings) == 7
        with pytest.raises(LookupError) as caught:
            await pool.submit(fail, on_done=endings)
        assert [endings.seen.get_nowait() for _ in range(2)] == [(7, None), (None, caught.value)]

    with_pool(test)


def test_an_on_done_that_raises_is_reported_to_the_loop_and_keeps_no_other_result_back() -> None:
    def bad(value: object, error: BaseException | None) -> None:
        raise ZeroDivisionError

    async def main() -> tuple[list[int], list[BaseException]]:
        pool, reported = ThreadPool(), []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        values = await asyncio.gather(*(pool.submit(lambda n=n: n, on_done=bad) for n in range(3)))
        pool.close()
        return values, reported

    values, reported = asyncio.run(main())
    assert values == [0, 1, 2]
    assert [type(error) for error in reported] == [ZeroDivisionError] * 3


def test_a_loop_that_was_closed_before_its_body_ended_causes_no_trouble() -> None:
    pool, go, told = ThreadPool(1), threading.Event(), []

    async def leave() -> None:
        inside = asyncio.Event()
        loop = asyncio.get_running_loop()

        def body() -> None:
            loop.call_soon_threadsafe(inside.set)
            go.wait()

        pool.submit(body, on_done=lambda *ending: told.append(ending))
        await inside.wait()

    async def come_back() -> str:
        return await pool.submit(lambda: "the same thread goes on")

    asyncio.run(leave())  # its loop is closed now
    go.set()
    assert asyncio.run(come_back()) == "the same thread goes on"
    assert told == []
    pool.close()


def test_a_body_that_hangs_for_ever_does_not_keep_the_program_from_ending() -> None:
    program = (
        "import asyncio, threading\n"
        "from counterfoil.pool import ThreadPool\n"
        "async def main():\n"
        "    loop, inside = asyncio.get_running_loop(), asyncio.Event()\n"
        "    hang = lambda: (loop.call_soon_threadsafe(inside.set), threading.Event().wait())\n"
        "    ThreadPool().submit(hang)\n"
        "    await inside.wait()\n"
        "asyncio.run(main())\n"
        "print('ended')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("ended\n", "")


def test_a_closed_pool_takes_no_body_finishes_what_it_has_and_its_threads_end() -> None:
    async def test(pool: ThreadPool) -> list[threading.Thread]:
        go = threading.Event()
        running = pool.submit(lambda: go.wait() and threading.current_thread())
        queued = pool.submit(threading.current_thread)
        pool.close()
        with pytest.raises(UsageError, match="closed"):
            pool.submit(int)
        go.set()
        return [await running, await queued]

    for thread in with_pool(test, limit=1):
        thread.join()


def test_a_pool_without_a_thread_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ThreadPool(0)


# --------------------------------------------------------------------------------------------- generators


def test_the_items_of_a_generator_come_in_order_from_one_thread() -> None:
    def generator():
        for n in range(1000):
            yield n, threading.get_ident()

    async def test(pool: ThreadPool) -> None:
        items = [item async for item in pool.iterate(generator)]
        assert [n for n, _ in items] == list(range(1000))
        assert len({thread for _, thread in items}) == 1
        assert items[0][1] != threading.get_ident()

    with_pool(test)


def test_any_iterable_will_do() -> None:
    async def test(pool: ThreadPool) -> None:
        assert [item async for item in pool.iterate(lambda: "abc")] == ["a", "b", "c"]
        assert [item async for item in pool.iterate(list)] == []

    with_pool(test)


@case("R104")
def test_an_item_is_read_while_the_generator_blocks_on_the_next_one() -> None:
    go = threading.Event()

    def generator():
        yield "first"
        go.wait()
        yield "second"

    async def test(pool: ThreadPool) -> None:
        async with contextlib.aclosing(pool.iterate(generator)) as items:
            assert await anext(items) == "first"
            go.set()
            assert await anext(items) == "second"
            with pytest.raises(StopAsyncIteration):
                await anext(items)

    with_pool(test)


def test_a_generator_is_at_most_so_many_items_ahead_of_its_reader() -> None:
    made, full = 0, threading.Event()

    def generator():
        nonlocal made
        while True:
            made += 1
            if made == AHEAD:
                full.set()
            yield made

    async def test(pool: ThreadPool) -> None:
        async with contextlib.aclosing(pool.iterate(generator)) as items:
            for n in range(1, 500):
                assert await anext(items) == n
                assert made <= n + AHEAD
            await pool.submit(full.wait)
            assert made >= AHEAD

    with_pool(test)


def test_an_exception_of_a_generator_is_raised_after_the_items_before_it() -> None:
    def generator():
        yield 1
        yield 2
        raise LookupError("the third is missing")

    async def test(pool: ThreadPool) -> None:
        async with contextlib.aclosing(pool.iterate(generator)) as items:
            assert [await anext(items), await anext(items)] == [1, 2]
            with pytest.raises(LookupError, match="the third is missing"):
                await anext(items)

    with_pool(test)


def test_an_exception_in_making_the_generator_is_raised_too() -> None:
    def make():
        raise LookupError("no generator")

    async def test(pool: ThreadPool) -> None:
        with pytest.raises(LookupError, match="no generator"):
            await anext(pool.iterate(make))

    with_pool(test)


def test_a_reader_that_stops_closes_the_generator_in_its_own_thread() -> None:
    closed: list[int] = []

    def generator():
        try:
            while True:
                yield threading.get_ident()
        finally:
            closed.append(threading.get_ident())

    async def test(pool: ThreadPool) -> None:
        endings = Endings()
        async with contextlib.aclosing(pool.iterate(generator, on_done=endings)) as items:
            thread = await anext(items)
        assert await endings.seen.get() == (None, None)
        assert closed == [thread]

    with_pool(test)


@case("R098")
def test_a_reader_that_times_out_leaves_a_hanging_generator_and_learns_its_end() -> None:
    go = threading.Event()
    closed = threading.Event()

    def generator():
        try:
            yield "first"
            go.wait()
            yield "nobody reads this"
        finally:
            closed.set()

    async def read(items: AsyncIterator[str], first: asyncio.Event) -> None:
        async for _ in items:
            first.set()

    async def test(pool: ThreadPool) -> None:
        endings, first = Endings(), asyncio.Event()
        reader = asyncio.create_task(read(pool.iterate(generator, on_done=endings), first))
        await first.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert not closed.is_set()
        go.set()
        assert await endings.seen.get() == (None, None)
        assert closed.is_set()

    with_pool(test)
