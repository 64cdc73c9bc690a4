"""ProcessBody: a tool's body in a child process, with real processes and real kills."""

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from counterfoil.core.call import Caller
from counterfoil.core.errors import DefinitionError, ToolError, UsageError
from counterfoil.core.result import ToolResult
from counterfoil.crossing import CannotCross, ProcessBodyError, ProcessTraceback, check_importable
from counterfoil.process import Children, ProcessBody, ProcessDied
from tests import process_bodies as bodies
from tests.floors import ROOT
from tests.marks import case

T = TypeVar("T")

CONTEXT = {
    "caller": Caller("acme", "ada", ("support",), {"shift": "night"}).to_json(),
    "run_id": "r1",
    "thread_id": "main",
    "step_index": 2,
    "call_id": "c7",
    "idempotency_key": "key",
    "attempt": 3,
}

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child whose parent is gone")


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children for all tests of this file: most bodies leave theirs fit for the next one."""
    kept = Children()
    yield kept
    kept.close()


class Pipe:
    """A named pipe that a child opens: it tells what the child wrote, and when the child is gone."""

    def __init__(self, path: Path, closing: contextlib.ExitStack) -> None:
        self.path = str(path)
        self._closing = closing
        os.mkfifo(self.path)

    async def line(self, running: asyncio.Task[Any]) -> str:
        """The first line, as soon as the body writes it; what ``running`` raises when it ends before that."""
        line = asyncio.create_task(asyncio.to_thread(self._read))
        await asyncio.wait({line, running}, return_when=asyncio.FIRST_COMPLETED)
        if not line.done():  # perhaps nobody will ever write: then this writer lets the reader go
            await asyncio.to_thread(lambda: os.close(os.open(self.path, os.O_WRONLY)))
        return await line or pytest.fail(f"ended without a word: {await running!r}")

    def _read(self) -> str:
        self._lines = self._closing.enter_context(Path(self.path).open())  # noqa: SIM115
        return self._lines.readline().strip()

    def gone(self) -> None:
        """Until no process holds the other end any more; blocks."""
        assert self._lines.read() == ""


@pytest.fixture
def pipes(tmp_path: Path) -> Iterator[list[Pipe]]:
    with contextlib.ExitStack() as closing:
        yield [Pipe(tmp_path / f"pipe{n}", closing) for n in range(3)]


@pytest.fixture
def pipe(pipes: list[Pipe]) -> Pipe:
    return pipes[0]


def target(fn: Callable[..., Any]) -> str:
    return f"tests.process_bodies:{fn.__name__}"


def run(children: Children, fn: Callable[..., Any], /, **arguments: object) -> object:
    return asyncio.run(ProcessBody(children).run(target(fn), arguments))


def run_with_context(children: Children, fn: Callable[..., Any], /, *, on: dict[str, Any] | None = None, **arguments):
    return asyncio.run(ProcessBody(children).run(target(fn), arguments, CONTEXT, "ctx", **(on or {})))


# ---------------------------------------------------------------------------------- what can be isolated


def test_a_function_at_the_top_of_a_module_has_a_name_to_import() -> None:
    assert check_importable(bodies.add) == "tests.process_bodies:add"


def in_main() -> None: ...


in_main.__module__ = "__main__"


@pytest.mark.parametrize(
    ("fn", "named"),
    [
        (lambda: None, "<lambda>"),
        (functools.partial(bodies.add, 1), "functools.partial"),
        (Pipe.gone, "Pipe.gone"),
        (bodies.kept.append, "append"),
        (Children().take, "Children.take"),
        (in_main, "in_main"),
    ],
)
def test_what_a_child_cannot_import_is_refused_by_name_with_what_to_do(fn: Callable[..., Any], named: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        check_importable(fn)
    assert named in str(refused.value)
    assert "top level of a module" in str(refused.value)


def test_a_function_inside_another_is_refused() -> None:
    def inner() -> None: ...

    with pytest.raises(DefinitionError, match=r"inner.*inside a function"):
        check_importable(inner)


# ------------------------------------------------------------------------------------ values and errors


def test_a_body_runs_in_another_process_and_its_value_comes_back(children: Children) -> None:
    assert run(children, bodies.add, a=1, b=2) == 3
    assert run(children, bodies.pid) != os.getpid()


def test_an_async_body_runs_in_a_loop_of_its_own(children: Children) -> None:
    assert run(children, bodies.add_later, a=1, b=2) == 3


def test_a_name_that_a_decorator_took_stands_for_the_function_inside(children: Children) -> None:
    assert asyncio.run(ProcessBody(children).run("tests.process_bodies:decorated", {"word": "loud"})) == "LOUD"


def test_a_child_has_the_parents_directory_and_path_and_no_input(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):  # the second time with a child that has been elsewhere
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.syspath_prepend(f"/added/{name}")
        directory, path, stdin = run(children, bodies.surroundings)  # type: ignore[misc]
        assert directory == str(tmp_path / name)
        assert path == sys.path
        assert stdin == b""


def test_what_a_body_prints_goes_to_the_error_output_and_spoils_nothing() -> None:
    program = (
        "import asyncio\n"
        "from counterfoil.process import ProcessBody\n"
        "print(asyncio.run(ProcessBody().run('tests.process_bodies:noisy', {})))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "quiet\n"
    assert sorted(done.stderr.splitlines()) == ["printed by the body", "written to descriptor 1"]


def test_large_values_cross_in_both_directions(children: Children) -> None:
    value = {"bytes": os.urandom(5_000_000), "text": "ä\ud800\0" * 1000, "number": 2**80}
    assert run(children, bodies.echo, value=value) == value


def test_a_tool_result_crosses_whole(children: Children) -> None:
    result = ToolResult.error("no").with_details({"a": [1]}).with_narration("Asked in vain")
    assert run(children, bodies.echo, value=result) == result


def test_a_tool_error_crosses_whole(children: Children) -> None:
    with pytest.raises(ToolError) as raised:
        run(children, bodies.refuse)
    assert type(raised.value) is ToolError
    assert vars(raised.value) == {
        "message": "closed", "code": 7, "retryable": False, "data": {"a": 1}, "details": ["x"],
        "narration": "Found the shop closed",
    }  # fmt: skip


def test_a_tool_error_whose_class_cannot_be_rebuilt_is_still_a_tool_error_with_all_its_fields(
    children: Children,
) -> None:
    with pytest.raises(ToolError) as raised:
        run(children, bodies.refuse_specially)
    error = raised.value
    assert (error.message, error.code, error.retryable, error.data) == (
        "The till is closed until 9", 77, True, {"till": 9},
    )  # fmt: skip
    assert "Refusal" in str(error.__cause__)


def test_another_exception_keeps_its_class_and_its_cause_tells_the_traceback(children: Children) -> None:
    with pytest.raises(FileNotFoundError, match="No such file") as raised:
        run(children, bodies.miss)
    assert raised.value.filename == "/nowhere"
    cause = raised.value.__cause__
    assert isinstance(cause, ProcessTraceback)
    assert "in miss" in str(cause)
    assert 'raise FileNotFoundError(2, "No such file", "/nowhere")' in str(cause)


@pytest.mark.parametrize(
    ("fn", "class_name", "message"),
    [
        (bodies.awkward, "Awkward", "leftright"),
        (bodies.local_exception, "local_exception.<locals>.Hidden", "nobody can import me"),
        (bodies.cancel_itself, "CancelledError", ""),
    ],
)
def test_an_exception_that_cannot_cross_is_stood_in_for_under_its_name(
    children: Children, fn: Callable[..., Any], class_name: str, message: str
) -> None:
    with pytest.raises(ProcessBodyError) as raised:
        run(children, fn)
    assert (raised.value.class_name, raised.value.message) == (class_name, message)
    assert f"in {fn.__name__}" in str(raised.value.__cause__)


def test_a_value_that_cannot_cross_is_an_error_that_names_the_function_and_the_type(
    children: Children,
) -> None:
    with pytest.raises(CannotCross, match=r"what tests.process_bodies:unsendable returned, a lock"):
        run(children, bodies.unsendable)


def test_a_value_that_only_the_child_can_read_is_an_error(children: Children) -> None:
    with pytest.raises(CannotCross, match="not in the parent"):
        run(children, bodies.echo, value=bodies.OnlyHere(os.getpid()))


def test_arguments_that_cannot_cross_are_an_error_and_nothing_starts(children: Children) -> None:
    body = ProcessBody(children)
    with pytest.raises(CannotCross, match="the input of"):
        asyncio.run(body.run(target(bodies.echo), {"value": threading.Lock()}))
    assert not body.started


def test_a_module_that_cannot_be_imported_is_the_import_error_and_nothing_has_started(
    children: Children,
) -> None:
    body = ProcessBody(children)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        asyncio.run(body.run("no_such_module:fn", {}))
    assert not body.started


def test_a_body_runs_once(children: Children) -> None:
    body = ProcessBody(children)
    asyncio.run(body.run(target(bodies.pid), {}))
    with pytest.raises(UsageError, match="one body"):
        asyncio.run(body.run(target(bodies.pid), {}))


# -------------------------------------------------------------------------------------------- generators


def test_the_items_of_a_generator_come_as_they_are_made_and_its_exception_after_them(
    children: Children,
) -> None:
    items: list[object] = []
    with pytest.raises(ValueError, match="no further letter"):
        asyncio.run(ProcessBody(children).run(target(bodies.letters), {"upto": 3}, on_item=items.append))
    assert items == ["a", "b", "c"]


def test_an_async_generator_gives_its_items_too(children: Children) -> None:
    items: list[object] = []
    body = ProcessBody(children)
    assert asyncio.run(body.run(target(bodies.numbers), {"upto": 500}, on_item=items.append)) is None
    assert items == list(range(500))


def test_a_reader_that_wants_no_more_items_ends_the_child(children: Children) -> None:
    class Enough(Exception):
        pass

    def refuse(item: object) -> None:
        raise Enough

    with pytest.raises(Enough):
        asyncio.run(ProcessBody(children).run(target(bodies.numbers), {"upto": 10**9}, on_item=refuse))


# ------------------------------------------------------------------------------------ death of the child


@pytest.mark.parametrize("code", [0, 3])
def test_a_child_that_leaves_in_mid_body_is_a_death_with_its_exit_code(children: Children, code: int) -> None:
    body = ProcessBody(children)
    with pytest.raises(ProcessDied, match=f"exit code {code}") as died:
        asyncio.run(body.run(target(bodies.leave), {"code": code}))
    assert (died.value.exit_code, died.value.signal) == (code, None)
    assert body.started


def test_sys_exit_ends_the_child_and_not_this_program(children: Children) -> None:
    with pytest.raises(ProcessDied) as died:
        run(children, bodies.leave_politely)
    assert died.value.exit_code == 4


@pytest.mark.parametrize("fn", [bodies.crash, bodies.null_pointer])
def test_a_crash_is_a_death_by_its_signal_and_takes_nothing_else_down(
    children: Children, fn: Callable[..., Any]
) -> None:
    with pytest.raises(ProcessDied, match="SIGSEGV") as died:
        run(children, fn)
    assert (died.value.exit_code, died.value.signal) == (None, signal.SIGSEGV)
    assert run(children, bodies.add, a=1, b=2) == 3


def test_a_child_that_somebody_kills_is_a_death(children: Children, pipe: Pipe) -> None:
    async def test() -> None:
        running = asyncio.create_task(ProcessBody(children).run(target(bodies.hang), {"pipe": pipe.path}))
        os.kill(int(await pipe.line(running)), signal.SIGKILL)
        with pytest.raises(ProcessDied) as died:
            await running
        assert died.value.signal == signal.SIGKILL

    asyncio.run(test())
    pipe.gone()


def test_a_fork_of_the_body_that_lives_on_does_not_hide_its_death(children: Children, pipe: Pipe) -> None:
    async def test() -> None:
        work = ProcessBody(children).run(target(bodies.kill_after_forking), {"pipe": pipe.path})
        running = asyncio.create_task(work)
        fork = int(await pipe.line(running))
        with pytest.raises(ProcessDied) as died:
            await running
        assert died.value.signal == signal.SIGKILL
        os.kill(fork, signal.SIGKILL)

    asyncio.run(test())
    pipe.gone()


def test_an_idle_child_that_died_is_replaced(children: Children) -> None:
    first = run(children, bodies.pid)
    assert isinstance(first, int)
    os.kill(first, signal.SIGKILL)
    second = run(children, bodies.pid)
    assert second not in (first, os.getpid())


# -------------------------------------------------------------------------------------- kill and cancel


@pytest.mark.parametrize("fn", [bodies.hang, bodies.hang_without_letting_go])
def test_a_body_that_hangs_is_killed_whatever_it_does_and_reaped(
    children: Children, pipe: Pipe, fn: Callable[..., Any]
) -> None:
    async def test() -> int:
        body = ProcessBody(children)
        running = asyncio.create_task(body.run(target(fn), {"pipe": pipe.path}))
        pid = int(await pipe.line(running))
        body.kill()
        with pytest.raises(ProcessDied) as died:
            await running
        assert died.value.signal == signal.SIGKILL
        return pid

    pid = asyncio.run(test())
    pipe.gone()
    with pytest.raises(ProcessLookupError):  # not even a zombie is left
        os.kill(pid, 0)


@case("R098")
def test_giving_up_waiting_kills_the_child(children: Children, pipe: Pipe) -> None:
    async def test() -> None:
        running = asyncio.create_task(ProcessBody(children).run(target(bodies.hang), {"pipe": pipe.path}))
        await pipe.line(running)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(test())
    pipe.gone()


def test_a_body_killed_before_it_runs_never_starts(children: Children) -> None:
    body = ProcessBody(children)
    body.kill()
    with pytest.raises(ProcessDied):
        asyncio.run(body.run(target(bodies.pid), {}))
    assert not body.started


def test_a_late_kill_does_not_touch_the_next_body_of_the_same_child(children: Children, pipe: Pipe) -> None:
    async def test() -> str:
        first = ProcessBody(children)
        await first.run(target(bodies.pid), {})
        second = ProcessBody(children)
        running = asyncio.create_task(second.run(target(bodies.until_cancelled), {"pipe": pipe.path}, CONTEXT, "ctx"))
        await pipe.line(running)
        first.kill()
        first.cancel()
        second.cancel()
        return await running  # type: ignore[return-value]

    assert asyncio.run(test()) == "stopped in time"


@case("R098")
@pytest.mark.parametrize("early", [True, False])
def test_a_cancel_is_seen_by_the_body_whenever_it_comes(children: Children, pipe: Pipe, early: bool) -> None:
    async def test() -> object:
        body = ProcessBody(children)
        if early:
            body.cancel()
        work = body.run(target(bodies.until_cancelled), {"pipe": pipe.path}, CONTEXT, "ctx")
        running = asyncio.create_task(work)
        await pipe.line(running)
        body.cancel()
        return await running

    assert asyncio.run(test()) == "stopped in time"


@linux
@pytest.mark.parametrize("fn", [bodies.hang, bodies.hang_without_letting_go])
def test_a_child_dies_with_its_parent(pipe: Pipe, fn: Callable[..., Any]) -> None:
    program = (
        "import asyncio\n"
        "from counterfoil.process import ProcessBody\n"
        f"asyncio.run(ProcessBody().run({target(fn)!r}, {{'pipe': {pipe.path!r}}}))\n"
    )

    async def test() -> None:
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=ROOT)
        ended = asyncio.create_task(parent.wait())
        await pipe.line(ended)
        parent.kill()
        await ended

    asyncio.run(test())
    pipe.gone()


# --------------------------------------------------------------------------------------- children again


def test_a_child_is_used_again_after_a_clean_end_also_by_another_loop_and_thread(children: Children) -> None:
    first = run(children, bodies.pid)
    with pytest.raises(FileNotFoundError):
        run(children, bodies.miss)  # an exception is a clean end too
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(run(children, bodies.pid)))
    thread.start()
    thread.join()
    assert found == [first]


def test_a_child_whose_body_left_a_thread_behind_is_not_used_again(children: Children) -> None:
    left = run(children, bodies.leave_a_thread)
    assert run(children, bodies.pid) != left


def test_without_children_to_share_a_body_has_a_child_of_its_own(pipe: Pipe) -> None:
    async def test() -> None:
        work = ProcessBody().run(target(bodies.tell), {"pipe": pipe.path})
        running = asyncio.create_task(work)
        assert await pipe.line(running) == "ready"
        await running

    asyncio.run(test())
    pipe.gone()  # it ended with its body


def test_closing_ends_the_idle_children(pipe: Pipe) -> None:
    kept = Children()

    async def test() -> None:
        running = asyncio.create_task(ProcessBody(kept).run(target(bodies.tell), {"pipe": pipe.path}))
        await pipe.line(running)
        await running

    asyncio.run(test())
    kept.close()
    pipe.gone()


def test_bodies_run_at_once_each_in_a_child_of_its_own(children: Children, pipes: list[Pipe]) -> None:
    async def test() -> list[object]:
        started = [ProcessBody(children) for _ in pipes]
        running = [
            asyncio.create_task(body.run(target(bodies.until_cancelled), {"pipe": pipe.path}, CONTEXT, "ctx"))
            for body, pipe in zip(started, pipes, strict=True)
        ]
        for task, pipe in zip(running, pipes, strict=True):
            await pipe.line(task)
        for body in started:
            body.cancel()
        return await asyncio.gather(*running)

    assert asyncio.run(test()) == ["stopped in time"] * 3


# ----------------------------------------------------------------------------------------- its context


def test_caller_ids_attempt_and_key_cross_over(children: Children) -> None:
    assert run_with_context(children, bodies.who, word="hello") == (
        Caller("acme", "ada", ("support",), {"shift": "night"}),
        "r1", "main", 2, "c7", "key", 3, False, "hello",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["deps", "extensions"])
def test_deps_and_extensions_do_not_cross_and_say_so(children: Children, name: str) -> None:
    with pytest.raises(UsageError, match=rf'isolation="process" has no ctx.{name}'):
        run_with_context(children, bodies.want, name=name)


@pytest.mark.parametrize("fn", [bodies.report, bodies.report_later])
def test_progress_arrives_in_order_awaited_or_not(children: Children, fn: Callable[..., Any]) -> None:
    seen: list[object] = []

    async def on_progress(text: str, *, done: float | None, total: float | None) -> None:
        seen.append((text, done, total))

    assert run_with_context(children, fn, on={"on_progress": on_progress}) == "reported"
    assert seen == [("half", 1, 2), ("whole", 2, 2)]
    assert run_with_context(children, fn) == "reported"  # also when nobody wants to know


class Memos:
    """A record of memos as the gateway keeps one."""

    def __init__(self, **recorded: object) -> None:
        self.recorded = recorded

    async def __call__(self, name: str, fn: Callable[[], Awaitable[object]]) -> object:
        if name not in self.recorded:
            self.recorded[name] = await fn()
        return self.recorded[name]


def test_a_memo_is_computed_once_and_then_given_back(children: Children) -> None:
    memos = Memos()
    assert run_with_context(children, bodies.remember, on={"on_memo": memos}, name="price") == "computed price"
    assert memos.recorded == {"price": "computed price"}
    memos.recorded["price"] = "as recorded"
    assert run_with_context(children, bodies.remember, on={"on_memo": memos}, name="price") == "as recorded"


def test_a_child_that_asked_for_memos_is_used_again(children: Children) -> None:
    for _ in range(20):
        before = run(children, bodies.pid)
        run_with_context(children, bodies.remember, on={"on_memo": Memos()}, name="price")
        assert run(children, bodies.pid) == before


def test_a_body_that_writes_on_the_line_itself_is_a_death_and_not_a_hang(children: Children) -> None:
    with pytest.raises(ProcessDied):
        run(children, bodies.scribble)


def test_an_async_body_awaits_several_memos_at_once(children: Children) -> None:
    memos = Memos(known="as recorded")
    names = ["async price", "plain", "known"]
    assert run_with_context(children, bodies.remember_later, on={"on_memo": memos}, names=names) == [
        "computed asynchronously", "computed at once", "as recorded",
    ]  # fmt: skip
    assert set(memos.recorded) == set(names)


def test_a_memo_whose_function_raises_raises_in_the_body_and_records_nothing(children: Children) -> None:
    memos = Memos()
    said = run_with_context(children, bodies.remember_a_failure, on={"on_memo": memos})
    assert said == "the body saw LookupError('not today')"
    assert memos.recorded == {}


def test_a_record_that_fails_raises_in_the_body(children: Children) -> None:
    async def on_memo(name: str, fn: Callable[[], Awaitable[object]]) -> object:
        raise ConnectionRefusedError("the store is away")

    with pytest.raises(ConnectionRefusedError, match="the store is away"):
        run_with_context(children, bodies.remember, on={"on_memo": on_memo}, name="price")


def test_a_sync_body_may_give_a_memo_an_async_function(children: Children) -> None:
    memos = Memos()
    said = run_with_context(children, bodies.remember_asynchronously, on={"on_memo": memos})
    assert said == "computed in a loop of its own"
    assert memos.recorded == {"price": said}


def test_a_call_that_keeps_no_memos_says_so_in_the_body(children: Children) -> None:
    with pytest.raises(UsageError, match="keeps no memos"):
        run_with_context(children, bodies.remember, name="price")


def test_a_context_that_is_kept_serves_no_later_call(children: Children) -> None:
    run_with_context(children, bodies.keep_the_context)
    with pytest.raises(UsageError, match="this tool call has ended"):
        run(children, bodies.use_the_kept_context)


@case("R104")
def test_the_loop_goes_on_while_a_process_blocks(children: Children, pipe: Pipe) -> None:
    async def test() -> None:
        body = ProcessBody(children)
        running = asyncio.create_task(body.run(target(bodies.hang), {"pipe": pipe.path}))
        await pipe.line(running)
        assert [await asyncio.sleep(0, n) for n in range(10)] == list(range(10))
        assert not running.done()
        body.kill()
        with pytest.raises(ProcessDied):
            await running

    asyncio.run(test())
    pipe.gone()


def test_importing_the_module_imports_nothing_heavy() -> None:
    heavy = {"multiprocessing", "pickle", "ctypes"}
    program = f"import sys, counterfoil.process, counterfoil.pool; print(sorted({heavy} & set(sys.modules)))"
    imported = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert imported.stdout == "[]\n"
