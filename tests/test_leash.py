"""Awaiting somebody's coroutine, and leaving one that does not heed a cancel."""

import asyncio
import contextlib

import pytest

from counterfoil.leash import Leash
from tests.boundary import SECONDS, until


async def held(coro, leash=None):
    """Await it on a leash, from its first wait on."""
    try:
        waits = coro.send(None)
    except StopIteration as end:
        return end.value
    return await (leash or Leash()).hold(coro, waits)


def go(main):
    async def bounded():
        async with asyncio.timeout(SECONDS):
            return await main

    return asyncio.run(bounded())


async def deaf(began, log):
    """Goes on whatever it is told."""
    while True:
        try:
            began.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("told")
        finally:
            log.append("again")


def test_what_the_coroutine_gives_is_what_the_await_gives():
    async def main():
        async def at_once():
            return 1

        async def waits():
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            return await asyncio.create_task(at_once())

        return await held(at_once()), await held(waits())

    assert go(main()) == (1, 1)


@pytest.mark.parametrize("wait", [0, 1, 2])
def test_what_the_coroutine_raises_is_raised(wait):
    async def fails():
        for _ in range(wait):
            await asyncio.sleep(0.001 * (wait - 1))
        raise ValueError("mine")

    async def fails_elsewhere():
        await asyncio.create_task(fails())

    async def main():
        for made in (fails, fails_elsewhere):
            with pytest.raises(ValueError, match="mine"):
                await held(made())

    go(main())


def test_it_runs_in_the_task_that_awaits_and_its_own_time_outs_are_its_own():
    async def main():
        async def limited():
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.Event().wait()
            except TimeoutError:
                return asyncio.current_task()

        assert await held(limited()) is asyncio.current_task()
        assert asyncio.current_task().cancelling() == 0

    go(main())


@pytest.mark.parametrize("inner", ["future", "task", "turn"])
def test_a_cancel_reaches_it_and_what_it_waits_for(inner):
    log = []

    async def deep():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("deep")

    async def obeys(began):
        began.set()
        try:
            if inner == "future":
                await asyncio.get_running_loop().create_future()
            elif inner == "task":
                await asyncio.create_task(deep())
            while True:
                await asyncio.sleep(0)
        finally:
            log.append("told")

    async def main():
        began = asyncio.Event()

        task = asyncio.create_task(held(obeys(began)))
        await began.wait()
        await asyncio.sleep(0)
        task.cancel("why")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == (["deep", "told"] if inner == "task" else ["told"])

    go(main())


@pytest.mark.parametrize("inner", ["itself", "a task of its own"])
def test_one_that_swallows_its_cancel_can_be_left(inner):
    async def main():
        began, log = asyncio.Event(), []

        async def waits():
            await asyncio.create_task(deaf(began, log))

        leash = Leash()
        task = asyncio.create_task(held(deaf(began, log) if inner == "itself" else waits(), leash))
        await began.wait()
        task.cancel()
        await until(lambda: "told" in log)
        assert not task.done()
        leash.let_go()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert len(left) == (inner != "itself")
        for one in left:  # what it had begun is its own; nobody waits for it
            one._coro.close()

    go(main())


def test_one_that_goes_on_after_its_close_is_left_where_it_is(caplog):
    async def main():
        began, let_go = asyncio.Event(), []

        async def undying():
            while not let_go:
                with contextlib.suppress(BaseException):
                    began.set()
                    await asyncio.Event().wait()

        made, leash = undying(), Leash()
        task = asyncio.create_task(held(made, leash))
        await began.wait()
        leash.let_go()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "did not end" in caplog.text
        let_go.append(1)
        made.close()

    go(main())


def test_one_that_has_ended_is_let_go_of_without_a_word():
    async def main():
        async def soon():
            await asyncio.sleep(0)
            return 1

        leash = Leash()
        assert await held(soon(), leash) == 1
        leash.let_go()
        assert await held(soon(), leash) == 1

    go(main())


def test_an_async_generator_that_is_left_ends_and_nothing_is_logged(caplog):
    ended = []

    async def stream():
        try:
            yield await asyncio.Event().wait()
        finally:
            ended.append(1)

    async def read():
        async for _ in stream():
            pass

    async def main():
        leash, coro = Leash(), read()
        asyncio.get_running_loop().call_soon(leash.let_go)
        with pytest.raises(asyncio.CancelledError):
            await leash.hold(coro, coro.send(None))
        assert ended == [1]

    asyncio.run(main())
    assert caplog.text == ""
