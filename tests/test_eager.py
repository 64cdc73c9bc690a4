"""A coroutine as a task whose first step is done at once."""

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from counterfoil.eager import Starter

PLACE: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def begun(work: Coroutine[Any, Any, None], starter: Starter | None = None) -> "asyncio.Task[None]":
    task = (starter or Starter(asyncio.get_running_loop())).start(work)
    assert task is not None
    return task


def test_work_that_never_waits_is_done_when_it_was_started() -> None:
    async def body() -> None:
        said: list[str] = []

        async def work() -> None:
            said.append("work")

        starter = Starter(asyncio.get_running_loop())
        task = starter.start(work())
        said.append("after")
        assert said == ["work", "after"]
        if task is not None:
            await task
        starter.close()
        assert said == ["work", "after"]

    run(body)


def test_inside_the_task_is_the_current_one_and_outside_it_is_the_old_one_again() -> None:
    async def body() -> None:
        seen: list[object] = []

        async def work() -> None:
            seen.append(asyncio.current_task())
            await asyncio.sleep(0)
            seen.append(asyncio.current_task())

        outer = asyncio.current_task()
        task = begun(work())
        assert seen == [task]
        assert asyncio.current_task() is outer
        await task
        assert seen == [task, task]

    run(body)


def test_it_can_be_started_where_no_task_is_current() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        async def work() -> None:
            await asyncio.sleep(0)
            done.set_result(asyncio.current_task())

        loop.call_soon(lambda: begun(work()))
        assert isinstance(await done, asyncio.Task)

    run(body)


@pytest.mark.parametrize("marked_by_another", [False, True])
def test_what_it_waits_for_reaches_it(marked_by_another: bool) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        got: list[int] = []

        async def work() -> None:
            got.append(await future)
            got.append(await future)
            await asyncio.sleep(0)

        async def other() -> None:
            got.append(await future)

        another = loop.create_task(other()) if marked_by_another else None
        task = begun(work())
        assert got == []
        await asyncio.sleep(0)
        future.set_result(7)
        await task
        if another is not None:
            await another
        assert got == [7] * (3 if marked_by_another else 2)

    run(body)


def test_a_future_that_is_done_before_the_task_s_own_turn_is_waited_for_as_well() -> None:
    async def body() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        got: list[int] = []

        async def work() -> None:
            got.append(await future)

        task = begun(work())
        future.set_result(1)
        await task
        assert got == [1]

    run(body)


def test_its_context_is_its_own_from_the_first_step_on() -> None:
    async def body() -> None:
        seen: list[str] = []

        async def work() -> None:
            seen.append(PLACE.get())
            PLACE.set("inside")
            await asyncio.sleep(0)
            seen.append(PLACE.get())

        PLACE.set("outside")
        task = begun(work())
        assert PLACE.get() == "outside"
        await task
        assert seen == ["outside", "inside"]

    run(body)


def test_a_cancel_before_the_task_s_own_turn_reaches_what_it_waits_for() -> None:
    async def body() -> None:
        ends: list[str] = []

        async def inner() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ends.append("inner")
                raise

        child = asyncio.get_running_loop().create_task(inner())
        await asyncio.sleep(0)

        async def work() -> None:
            try:
                await child
            except asyncio.CancelledError:
                ends.append("work")
                raise

        task = begun(work())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert ends == ["inner", "work"]

    run(body)


@pytest.mark.parametrize("waits_for", ["a turn", "a done future", "a future"])
def test_work_that_takes_a_cancel_goes_on(waits_for: str) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        said: list[str] = []
        future = loop.create_future()

        async def work() -> None:
            try:
                await (asyncio.sleep(0) if waits_for == "a turn" else future)
            except asyncio.CancelledError as e:
                said.append(f"told {e}")
            await asyncio.sleep(0)
            try:
                await loop.create_future()
            except asyncio.CancelledError:
                said.append("told again")
            said.append("end")

        task = begun(work())
        if waits_for == "a done future":
            future.set_result(None)
        task.cancel("now")
        for _ in range(5):
            await asyncio.sleep(0)
        assert said == ["told now"]
        task.cancel()
        await task
        assert said == ["told now", "told again", "end"]

    run(body)


def test_what_it_raises_is_the_task_s() -> None:
    async def body() -> None:
        async def at_once() -> None:
            raise ValueError("at once")

        async def later() -> None:
            await asyncio.sleep(0)
            raise ValueError("later")

        async def by_itself() -> None:
            raise asyncio.CancelledError

        for work, message in ((at_once(), "at once"), (later(), "later")):
            task = begun(work)
            with pytest.raises(ValueError, match=message):
                await task
        task = begun(by_itself())
        with pytest.raises(asyncio.CancelledError):
            await task

    run(body)


def test_the_end_of_the_program_is_raised_where_it_was_started() -> None:
    async def body() -> None:
        async def work() -> None:
            raise KeyboardInterrupt

        outer = asyncio.current_task()
        with pytest.raises(KeyboardInterrupt):
            begun(work())
        assert asyncio.current_task() is outer

    run(body)


def test_a_clock_and_a_group_in_the_first_step_know_their_task() -> None:
    async def body() -> None:
        said: list[str] = []

        async def slow() -> None:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60)
            except TimeoutError:
                said.append("timed out")

        async def group() -> None:
            try:
                async with asyncio.TaskGroup() as g:
                    g.create_task(fails())
                    await asyncio.sleep(60)
            except ExceptionGroup:
                said.append("group")

        async def fails() -> None:
            raise ValueError("no")

        tasks = [begun(slow()), begun(group())]
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert sorted(said) == ["group", "timed out"]

    run(body)


def test_a_loop_with_a_task_factory_makes_the_task() -> None:
    async def body() -> None:
        made: list[str] = []
        loop = asyncio.get_running_loop()

        def factory(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> "asyncio.Task[Any]":
            made.append("task")
            return asyncio.Task(work, loop=loop, **more)

        async def work() -> None:
            made.append("step")

        loop.set_task_factory(factory)
        task = begun(work())
        assert made == ["task"]
        await task
        assert made == ["task", "step"]

    run(body)


def test_what_cannot_be_waited_for_is_told_to_the_work() -> None:
    async def body() -> None:
        class Odd:
            def __await__(self) -> Generator[str, None, None]:
                yield "no future"

        async def work() -> None:
            with pytest.raises(RuntimeError, match="bad yield"):
                await Odd()

        await begun(work())

    run(body)


def test_work_is_told_when_the_loop_ends_right_after_its_first_step() -> None:
    said: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            said.append("told")

    async def body() -> None:
        begun(work())

    run(body)
    assert said == ["told"]


ON_3_11 = pytest.mark.skipif(sys.version_info >= (3, 12), reason="asyncio begins tasks at once itself")


@ON_3_11
def test_the_task_of_work_that_was_over_serves_the_next_with_a_context_of_its_own() -> None:
    async def body() -> None:
        seen: list[object] = []

        async def work(name: str, *, waits: bool = False) -> None:
            seen.extend((PLACE.get(), asyncio.current_task()))
            PLACE.set(name)
            if waits:
                await asyncio.sleep(0)
                seen.extend((PLACE.get(), asyncio.current_task()))

        starter = Starter(asyncio.get_running_loop())
        assert starter.start(work("one")) is None
        task = begun(work("two", waits=True), starter)
        assert starter.start(work("three")) is None
        await task
        first, second = seen[1], seen[5]
        assert seen == ["nowhere", first, "nowhere", first, "nowhere", second, "two", first]
        assert task is first is not second
        starter.close()

    run(body)


@ON_3_11
@pytest.mark.parametrize("turns", [0, 1])
def test_a_cancel_by_work_that_is_over_reaches_no_other(turns: int) -> None:
    async def body() -> None:
        said: list[str] = []
        theirs: list[asyncio.Task[Any]] = []

        async def first(*, cancels: bool) -> None:
            task = asyncio.current_task()
            assert task is not None
            theirs.append(task)
            if cancels:
                task.cancel()

        async def second() -> None:
            await asyncio.sleep(0)
            said.append("second")

        starter = Starter(asyncio.get_running_loop())
        for cancels in (True, False):
            starter.start(first(cancels=cancels))
            for _ in range(turns):
                await asyncio.sleep(0)
            if not cancels:
                theirs[-1].cancel()
            await begun(second(), starter)
        assert said == ["second"] * 2

    run(body)


@ON_3_11
@pytest.mark.parametrize("turns", [0, 1])
def test_a_closed_starter_leaves_no_task(turns: int) -> None:
    async def body() -> None:
        async def work() -> None:
            pass

        starter = Starter(asyncio.get_running_loop())
        starter.start(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        starter.close()
        starter.close()
        for _ in range(2):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(body)
