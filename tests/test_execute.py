"""Bodies of every kind under the gateway's clock: what they are given, and what becomes of their ends."""

import asyncio
import contextvars
import functools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from counterfoil import (
    Agent,
    Caller,
    CallProgress,
    Cancelled,
    Hooks,
    Limits,
    Run,
    Runtime,
    Succeeded,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    tool,
)
from counterfoil.adapters.stores.memory import MemoryStore
from counterfoil.ending import TimedOut
from counterfoil.testing import FrozenEffects, ScriptedModel, call, say
from counterfoil.tool import Deps
from tests import boundary_bodies as children
from tests.boundary import SECONDS, Ran, go, until
from tests.marks import case, law

# ------------------------------------------------------------------------------------------ kinds of body


def sync(word: str) -> str:
    return f"read {word}"


async def asynchronous(word: str) -> str:
    await asyncio.sleep(0)
    return f"read {word}"


def generator(word: str) -> Iterator[str]:
    yield "read "
    yield word


async def async_generator(word: str) -> AsyncIterator[str]:
    yield "read "
    yield word


class Reader:
    def __init__(self, verb: str) -> None:
        self.verb = verb

    def method(self, word: str) -> str:
        return f"{self.verb} {word}"

    @tool
    def marked(self, word: str) -> str:
        return f"{self.verb} {word}"

    def __call__(self, word: str) -> str:
        return f"{self.verb} {word}"


def bound(verb: str, word: str) -> str:
    return f"{verb} {word}"


def decorated(fn: Any) -> Any:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


async def dynamic_async(arguments: dict[str, Any]) -> str:
    return f"read {arguments['word']}"


def dynamic_sync(ctx: Any, arguments: dict[str, Any]) -> str:
    assert ctx.attempt == 1
    return f"read {arguments['word']}"


def dynamic_generator(arguments: dict[str, Any]) -> Iterator[str]:
    yield "read "
    yield arguments["word"]


async def dynamic_async_generator(arguments: dict[str, Any]) -> AsyncIterator[str]:
    yield "read "
    yield arguments["word"]


def dynamic_with_a_context(context: Any, arguments: dict[str, Any]) -> str:
    return f"read {arguments['word']}" if context.attempt else ""


def dynamic_with_a_context_behind(arguments: dict[str, Any], context: ToolContext[Any]) -> str:
    return dynamic_with_a_context(context, arguments)


def dynamic_by_name_with_a_context(context: ToolContext, **given: Any) -> str:
    return dynamic_with_a_context(context, given)


BODIES = {
    "sync": sync,
    "async": asynchronous,
    "generator": generator,
    "async generator": async_generator,
    "method": Reader("read").method,
    "marked method": Reader("read").marked,
    "callable": tool(name="reader")(Reader("read")),
    "partial": tool(name="reader")(functools.partial(bound, "read")),
    "decorated sync": decorated(sync),
    "decorated async": decorated(asynchronous),
    "decorated generator": decorated(generator),
    "decorated async generator": decorated(async_generator),
    "dynamic async": Tool("reader", "Reads.", WORD, dynamic_async),
    "dynamic sync": Tool("reader", "Reads.", WORD, dynamic_sync),
    "dynamic generator": Tool("reader", "Reads.", WORD, dynamic_generator),
    "dynamic async generator": Tool("reader", "Reads.", WORD, dynamic_async_generator),
    "dynamic with a context": Tool("reader", "Reads.", WORD, dynamic_with_a_context),
    "dynamic with a context behind": Tool("reader", "Reads.", WORD, dynamic_with_a_context_behind),
    "dynamic by name with a context": Tool("reader", "Reads.", WORD, dynamic_by_name_with_a_context),
    "dynamic by name": Tool("reader", "Reads.", WORD, lambda **given: f"read {given['word']}"),
}


@law("1.1.plain-value", "1.1.Succeeded", "8.generator", "source.003.success", "source.004.text")
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_of_any_kind_runs_and_its_value_is_what_the_model_reads(body):
    name = body.name if isinstance(body, Tool) else body.__name__
    seen = go([body], call(name, word="a"))
    assert seen.outcome == Succeeded()
    assert seen.read == "read a"
    assert seen.part.output == "read a"
    assert seen.part.attempt == 1
    assert (seen.handled, seen.stored) == ([], [])


@law("8.generator")
def test_a_generator_s_items_that_are_not_all_text_make_an_array_and_a_final_result_is_the_result():
    def numbers() -> Iterator[Any]:
        yield 1
        yield {"two": 2}

    async def ends() -> AsyncIterator[Any]:
        yield "on the way"
        yield ToolResult.text("there").with_narration("Arrived").with_terminate()

    def nothing() -> Iterator[str]:
        yield from ()

    seen = go([numbers, ends, nothing], [call("numbers"), call("ends"), call("nothing")])
    assert seen.reads == ['[1,{"two":2}]', "there", "(no output)"]
    assert seen.results[1].result.narration == "Arrived"
    assert seen.results[1].result.terminate


@law("8.generator")
@pytest.mark.parametrize("item", ["x" * 100, {"x": "y" * 100}], ids=["text", "json"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_generator_without_end_is_stopped_by_the_size_and_closed(item, kind):
    closed: list[bool] = []

    def endless() -> Iterator[Any]:
        try:
            while True:
                yield item
        finally:
            closed.append(True)

    async def endless_async() -> AsyncIterator[Any]:
        try:
            while True:
                yield item
        finally:
            closed.append(True)

    body = endless if kind == "sync" else endless_async
    made = tool(name="pours", max_output_bytes=1000, on_oversize="fail")(body)

    async def closed_soon(_: Run) -> None:
        await until(lambda: bool(closed))

    seen = go([made], call("pours"), then=closed_soon)
    assert seen.failure.code == 4130
    assert closed == [True]


@law("8.generator")
def test_a_generator_without_end_is_stopped_by_the_time_out():
    @tool(timeout=0.05)
    async def endless() -> AsyncIterator[str]:
        while True:
            yield "drop"
            await asyncio.sleep(0)

    seen = go([endless], call("endless"))
    assert seen.failure.code == 4080
    assert seen.report.partial is not None


# ------------------------------------------------------------------------------------------- the time-out


SHORT = 0.1
"""A time-out that a body which hangs runs into, and before which its thread has begun."""


def check_timed_out(seen: Ran, *, may_run: bool) -> None:
    assert (seen.failure.code, seen.failure.origin, seen.failure.body) == (4080, "gateway", "unknown")
    assert f"took longer than {SHORT} seconds" in seen.read
    assert "may have had an effect" in seen.read
    assert ("may still be running" in seen.read) is may_run
    (call,) = seen.run._state.calls
    assert call.result is not None
    assert call.result.over is not may_run
    stopped = "was stopped before its end, and may have had an effect"
    assert seen.notes == (("a result came too late and does not count",) if seen.late else (stopped,))
    assert isinstance(seen.report.error, TimedOut)
    assert len(seen.handled) == len(seen.stored) == 1
    assert seen.run.answer == "done"


@law("3.4080", "3.after-start", "1.3.error")
@case("R100")
def test_an_async_body_that_obeys_is_stopped_at_its_time_out():
    ended: list[str] = []

    @tool(timeout=SHORT)
    async def hangs() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")
        return "never"

    seen = go([hangs], call("hangs"))
    check_timed_out(seen, may_run=False)
    assert ended == ["cleaned up"]
    assert seen.late == []
    assert "Event().wait()" in seen.stored[0].error.traceback  # type: ignore[union-attr]  # where it hung


@law("3.4080", "7.7")
@pytest.mark.parametrize("end", ["returns", "raises"])
def test_what_a_body_gives_in_the_moment_that_it_had_to_stop_is_late_and_no_result(end):
    @tool(timeout=SHORT)
    async def swallows() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if end == "raises":
                raise ValueError("while it stopped") from None
        return "all the same"

    seen = go([swallows], call("swallows"), then=_late_is_there(asyncio.Event()))
    check_timed_out(seen, may_run=False)
    assert len(seen.late) == 1
    assert ("all the same" if end == "returns" else "swallows failed with ValueError") in seen.late[0]


@law("3.4080", "7.7")
def test_an_async_body_that_ignores_the_cancel_is_given_up_and_its_late_end_is_logged_beside_the_call():
    let_go = asyncio.Event()

    @tool(timeout=SHORT)
    async def ignores() -> str:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    seen = go([ignores], call("ignores"), then=_late_is_there(let_go))
    check_timed_out(seen, may_run=True)
    assert seen.late == ["at last"]


def _late_is_there(let_go: Any) -> Any:
    """Let the body end after the run, and wait until its end is on record."""

    async def wait(run: Run) -> None:
        assert run.status == "completed"
        let_go.set()
        async with asyncio.timeout(SECONDS):
            while not any(c.late for c in run._state.calls):
                await asyncio.sleep(0.001)
                await run.refresh()

    return wait


@law("3.4080", "7.7")
@case("R098")
@pytest.mark.parametrize("dynamic", [False, True], ids=["function", "dynamic"])
def test_a_sync_body_that_hangs_in_its_thread_may_still_be_running_and_its_late_end_is_logged(dynamic):
    let_go = threading.Event()

    def hangs(*_: Any) -> str:
        let_go.wait(SECONDS)
        return "at last"

    def plain() -> str:
        return hangs()

    def hangs_given(given: Any) -> str:
        return hangs(given)

    body = (
        Tool("hangs", "Hangs.", {"type": "object"}, hangs_given, timeout=SHORT)
        if dynamic
        else tool(name="hangs", timeout=SHORT)(plain)
    )
    seen = go([body], call("hangs"), then=_late_is_there(let_go))
    check_timed_out(seen, may_run=True)
    assert seen.late == ["at last"]


@law("1.3.one-per-failure", "7.7")
def test_a_late_failure_is_logged_and_not_reported_again():
    let_go = threading.Event()

    @tool(timeout=SHORT)
    def hangs() -> str:
        let_go.wait(SECONDS)
        raise ValueError("late")

    seen = go([hangs], call("hangs"), then=_late_is_there(let_go))
    check_timed_out(seen, may_run=True)
    assert "hangs failed with ValueError" in seen.late[0]


@law("3.4080")
@pytest.mark.parametrize(
    ("marks", "retryable"), [({}, False), ({"read_only": True}, True), ({"idempotent": True}, True)]
)
def test_a_time_out_is_retryable_if_the_tool_is_read_only_or_idempotent(marks, retryable):
    @tool(timeout=0.01, **marks)
    async def hangs() -> None:
        await asyncio.Event().wait()

    assert go([hangs], call("hangs")).failure.retryable is retryable


@law("3.4080")
def test_a_body_within_its_time_is_not_stopped_and_its_time_out_leaves_no_trace():
    @tool(timeout=SECONDS)
    async def quick() -> str:
        return "quick"

    assert go([quick], call("quick")).read == "quick"


@law("3.4080", "2.5")
def test_a_body_that_hangs_holds_up_no_sibling_and_not_the_run():
    let_go = threading.Event()

    @tool(timeout=SHORT)
    def hangs() -> str:
        let_go.wait(SECONDS)
        return "at last"

    seen = go([hangs, sync], [call("hangs"), call("sync", word="a")], then=_late_is_there(let_go))
    assert seen.results[0].failed
    assert seen.reads[1] == "read a"
    assert seen.run.answer == "done"


# --------------------------------------------------------------------------------- exceptions of all sorts


@law("3.5000", "1.1.Failed", "4.other", "3.after-start")
@case("R008", "R163")
@pytest.mark.parametrize("error", [ValueError("/etc/secret"), KeyError("secret"), RecursionError("secret")])
def test_of_another_exception_the_model_reads_the_tool_s_name_and_the_class_alone(error):
    @tool
    def fails() -> None:
        raise error

    seen = go([fails], call("fails"))
    assert (seen.failure.code, seen.failure.retryable, seen.failure.body) == (5000, None, "ended")
    assert f"fails failed with {type(error).__name__}" in seen.read
    assert "secret" not in seen.read
    assert "may have had an effect" in seen.read
    assert "secret" in seen.failure.message
    assert seen.run.answer == "done"


@law("4.expose")
def test_expose_lets_chosen_classes_reach_the_model():
    @tool(expose=(FileNotFoundError,))
    def opens(name: str) -> str:
        if name == "number":
            return str(int("secret"))
        return Path(f"/nowhere/{name}").read_text(encoding="utf-8")

    seen = go([opens], [call("opens", name="a.txt"), call("opens", name="number")])
    assert "/nowhere/a.txt" in seen.reads[0]
    assert "FileNotFoundError" in seen.reads[0]
    assert "may have had an effect" in seen.reads[0]
    assert "secret" not in seen.reads[1]
    assert [r.code for r in seen.handled] == [5000, 5000]


@law("4.tool-error", "3.5000")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_tool_error_reaches_the_model_whole_and_keeps_its_code(kind):
    def fails() -> None:
        raise ToolError("Shelf 9 in /srv is locked: ask\nthe keeper.", code=77, retryable=False)

    async def fails_async() -> None:
        fails()

    body = tool(name="fails")(fails if kind == "sync" else fails_async)
    seen = go([body], call("fails"))
    assert seen.read == "Shelf 9 in /srv is locked: ask\nthe keeper."
    assert (seen.failure.code, seen.failure.retryable, seen.failure.origin) == (77, False, "tool")


class Changed(ToolError):
    def __init__(self) -> None:
        super().__init__("fine when it was made")
        self.code = 4001
        self.data = object()  # type: ignore[assignment]


def test_a_tool_error_that_was_changed_after_its_making_cannot_take_a_code_of_ours():
    @tool
    def fails() -> None:
        raise Changed

    seen = go([fails], call("fails"))
    assert (seen.failure.code, seen.failure.data) == (None, None)
    assert seen.read == "fine when it was made"


@law("4.never-empty")
@pytest.mark.parametrize("error", [ToolError(""), ToolError("  \n"), ValueError()])
def test_the_text_of_a_failure_is_never_empty(error):
    @tool
    def fails() -> None:
        raise error

    assert go([fails], call("fails")).read.strip()


@law("3.5000", "2.1")
@pytest.mark.parametrize("how", ["raises it", "awaits a task that was cancelled", "cancels itself", "in a thread"])
def test_a_cancelled_error_of_the_body_s_own_is_its_failure_and_does_not_hang_the_run(how):
    async def fails() -> str:
        if how == "raises it":
            raise asyncio.CancelledError
        if how == "cancels itself":
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(0)
            return "never"
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task
        return "never"

    def in_thread() -> None:
        raise asyncio.CancelledError

    body = tool(name="fails")(in_thread if how == "in a thread" else fails)
    seen = go([body, sync], [call("fails"), call("sync", word="a")])
    assert seen.results[0].result.outcome.failure.code == 5000  # type: ignore[union-attr]
    assert seen.reads[1] == "read a"
    assert seen.run.answer == "done"
    assert seen.report.code == 5000
    if how != "cancels itself":
        assert "in fails" in str(seen.stored[0].error.traceback) or "in in_thread" in str(
            seen.stored[0].error.traceback
        )


@case("R097", "R094")
def test_after_success_failure_and_success_the_model_reads_three_results_and_no_task_is_left():
    left: list[str] = []

    @tool
    async def fails() -> None:
        raise ValueError

    async def turn(_: object) -> Any:
        await asyncio.sleep(0)
        left.extend(t.get_coro().__qualname__ for t in asyncio.all_tasks() if "Execution" in str(t.get_coro()))
        return say("done")

    calls = [call("asynchronous", word="a"), call("fails"), call("asynchronous", word="b")]
    seen = go([asynchronous, fails], calls, turn)
    assert seen.reads[0] == "read a"
    assert "fails failed with ValueError" in seen.reads[1]
    assert seen.reads[2] == "read b"
    assert left == []


@law("4.exit")
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit(7)"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_what_ends_a_program_ends_it_after_the_call_is_settled(error, kind, tmp_path):
    program = textwrap.dedent(f"""
        import asyncio
        from counterfoil import Agent, Limits, Runtime, tool
        from counterfoil.testing import ScriptedModel, call, say

        @tool
        {kind} leaves() -> str:
            raise {error}

        @tool
        def other() -> str:
            print("other ran")
            return "other"

        async def main():
            model = ScriptedModel([[call("leaves"), call("other")], say("done")])
            agent = Agent("desk", model, tools=[leaves, other], limits=Limits(concurrency=1))
            async with Runtime("sqlite:///{tmp_path}/shop.db", agents=[agent]) as runtime:
                await (await runtime.start("desk", "Go.")).wait()
            print("went on")

        asyncio.run(main())
    """)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode in ((7,) if "Exit" in error else (-2, 130))
    assert ended.stdout == ""
    assert ("KeyboardInterrupt" in ended.stderr) == (error == "KeyboardInterrupt")
    assert "never retrieved" not in ended.stderr  # Python's own traceback is all there is

    async def read() -> None:
        async with Runtime(f"sqlite:///{tmp_path}/shop.db") as runtime:
            (row,) = await runtime.runs()
            run = await runtime.get(row.run_id)
            part = next(p for p in run.results if p.tool_name == "leaves")
            assert part.error_code == 5000
            assert f"leaves failed with {error.partition('(')[0]}" in part.result.model_output
            assert [r.code for r in await run.errors()] == [5000]
            assert [c.state for c in run.calls] == ["settled", "judged"]  # nothing was begun any more

    asyncio.run(read())


@law("4.exit", "3.5002")
def test_an_after_guard_that_ends_the_program_ends_it_after_the_call_is_settled():
    def leaves(_: object) -> None:
        raise SystemExit(7)

    store = MemoryStore()
    agent = Agent("desk", ScriptedModel([call("sync", word="a"), say("done")]), tools=[sync])

    async def main() -> None:
        async with Runtime(agents=[agent], hooks=Hooks(after_call=leaves), store=store) as runtime:
            await (await runtime.start("desk", "Go.")).wait(SECONDS)

    async def read() -> None:
        async with Runtime(store=store) as runtime:
            (row,) = await runtime.runs()
            run = await runtime.get(row.run_id)
            assert [p.error_code for p in run.results] == [5000]
            assert "read a" not in run.results[0].result.model_output

    with pytest.raises(SystemExit):
        asyncio.run(main())
    asyncio.run(read())


@law("3.4080")
def test_a_guard_that_takes_its_time_over_a_time_out_sees_it_once(monkeypatch):
    monkeypatch.setattr("counterfoil.execute.TELL_SECONDS", 0.01)
    seen_by: list[str] = []

    @tool(timeout=SHORT)
    async def hangs() -> None:
        await asyncio.Event().wait()

    async def guard(after: Any) -> None:
        seen_by.append(after.result.model_output)
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, later.set)  # after the moment in which a body must stop
        await later.wait()

    seen = go([hangs], call("hangs"), hooks=[Hooks(after_call=guard)])
    check_timed_out(seen, may_run=False)
    assert len(seen_by) == 1


# ---------------------------------------------------------------------------------------------- attempts


@case("R107")
@pytest.mark.parametrize("error", [ValueError("x"), ToolError("x", retryable=True), TimeoutError("x"), OSError("x")])
def test_a_tool_that_is_not_safe_runs_once_whatever_it_raises(error):
    sent: list[int] = []

    @tool
    def mail(ctx: ToolContext[Any]) -> None:
        sent.append(ctx.attempt)
        raise error

    seen = go([mail], call("mail"))
    assert sent == [1]
    assert seen.part.attempt == 1
    assert seen.report.attempts == ()


def test_a_failure_that_is_not_retryable_is_not_tried_again():
    tries: list[int] = []

    @tool(read_only=True, retries=5)
    def looks(ctx: ToolContext[Any]) -> None:
        tries.append(ctx.attempt)
        raise ToolError("no such order", retryable=False)

    assert go([looks], call("looks")).part.attempt == 1
    assert tries == [1]


def test_a_time_out_is_tried_again_and_every_attempt_has_the_same_key_and_a_clock_of_its_own():
    keys: list[str] = []

    @tool(idempotent=True, retries=1, timeout=0.5)
    async def slow(ctx: ToolContext[Any]) -> str:
        keys.append(ctx.idempotency_key)
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "second"

    seen = go([slow], call("slow"))
    assert seen.read == "second"
    assert seen.notes == ("took 2 attempts",)
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_each_attempt_takes_the_lock_of_its_call_and_gives_it_back():
    events: list[str] = []

    @tool(read_only=True, retries=1, lock="shelf")
    async def counts(ctx: ToolContext[Any], who: str) -> str:
        events.append(f"{who} in")
        for _ in range(200 if who == "b" else 1):  # long enough for an attempt that waits for no lock
            await asyncio.sleep(0)
        events.append(f"{who} out")
        if who == "a" and ctx.attempt == 1:
            raise ValueError
        return who

    calls = [call("counts", who="a"), call("counts", who="b")]
    seen = go([counts], calls, effects=FrozenEffects())
    assert seen.reads == ["a", "b"]
    assert events == ["a in", "a out", "b in", "b out", "a in", "a out"]


@law("2.7.lock", "3.4080")
def test_a_body_that_may_still_run_keeps_its_lock_and_no_further_attempt_waits_for_it():
    let_go = threading.Event()
    tries: list[int] = []

    @tool(read_only=True, retries=2, timeout=SHORT, lock="shelf")
    def hangs(ctx: ToolContext[Any]) -> str:
        tries.append(ctx.attempt)
        let_go.wait(SECONDS)
        return "at last"

    seen = go([hangs], call("hangs"), then=_late_is_there(let_go))
    check_timed_out(seen, may_run=True)
    assert (tries, seen.part.attempt) == ([1], 1)


def test_each_attempt_is_a_start_on_record_and_guards_see_the_last_end_alone():
    ends: list[Any] = []

    @tool(read_only=True, retries=2)
    def flaky(ctx: ToolContext[Any]) -> str:
        if ctx.attempt < 3:
            raise ValueError
        return "third"

    starts: list[int] = []

    async def look(run: Run) -> None:
        entries = await run._runtime.store.entries("default", run.interaction_id)
        starts.extend(e.attempt for e in entries if e.kind == "start")  # type: ignore[attr-defined]

    hooks = [Hooks(after_call=lambda after: ends.append(after.result.model_output))]
    go([flaky], call("flaky"), hooks=hooks, then=look)
    assert starts == [1, 2, 3]
    assert ends == ["third"]


# -------------------------------------------------------------------------- what a body is given: context


@law("1.1.extensions")
def test_the_context_names_caller_run_call_step_key_and_attempt():
    seen_by: list[Any] = []

    @tool
    def looks(ctx: ToolContext[Any]) -> str:
        seen_by.append((ctx.caller.user, ctx.run_id, ctx.interaction_id, ctx.thread_id, ctx.step_index, ctx.call_id))
        seen_by.append((ctx.idempotency_key, ctx.attempt, ctx.cancelled))
        return "looked"

    caller = Caller(tenant="acme", user="ada")
    seen = go([looks], call("looks", id="c1"), call("looks", id="c2"), caller=caller)
    run = seen.run
    assert seen_by == [
        ("ada", run.id, run.interaction_id, None, 0, "c1"), (f"{run.id}:0:0", 1, False),
        ("ada", run.id, run.interaction_id, None, 1, "c2"), (f"{run.id}:1:0", 1, False),
    ]  # fmt: skip


@case("R034")
def test_deps_are_made_for_the_caller_and_given_by_context_or_by_mark():
    made: list[Caller] = []

    def deps(caller: Caller) -> dict[str, Any]:
        made.append(caller)
        return {"shop of": caller.user}

    @tool
    async def by_context(ctx: ToolContext[dict[str, Any]]) -> Any:
        return ctx.deps["shop of"]

    @tool
    def by_mark(shop: Annotated[dict[str, Any], Deps], word: str) -> Any:
        return [shop["shop of"], word]

    caller = Caller(user="ada")
    seen = go([by_context, by_mark], [call("by_context"), call("by_mark", word="a")], caller=caller, deps=deps)
    assert seen.reads == ["ada", '["ada","a"]']
    assert made == [caller]
    assert "shop" not in seen.model.requests[0].tools[1]["input_schema"]["properties"]  # type: ignore[index,call-overload,operator]


def test_deps_that_cannot_be_made_fail_the_call_that_wants_them():
    def deps(_: Caller) -> Any:
        raise ConnectionError("secret")

    @tool
    def by_mark(shop: Annotated[Any, Deps]) -> str:
        return "never"

    seen = go([by_mark, sync], [call("by_mark"), call("sync", word="a")], deps=deps)
    assert "by_mark failed with ConnectionError" in seen.reads[0]
    assert "secret" not in seen.reads[0]
    assert seen.reads[1] == "read a"


def test_a_memo_is_computed_once_within_an_attempt_and_given_back_in_the_next_one():
    computed: list[str] = []

    @tool(read_only=True, retries=1)
    async def steps(ctx: ToolContext[Any]) -> list[Any]:
        first = await ctx.memo("first", lambda: computed.append("first") or {"n": 1})
        again = await ctx.memo("first", lambda: computed.append("again") or 2)
        if ctx.attempt == 1:
            raise ValueError
        return [first, again]

    @tool
    def in_thread(ctx: ToolContext[Any]) -> Any:
        async def later() -> str:
            computed.append("later")
            return "later"

        return [ctx.memo("m", later), ctx.memo("m", later)]

    seen = go([steps, in_thread], [call("steps"), call("in_thread")])
    assert seen.reads == ['[{"n":1},{"n":1}]', '["later","later"]']
    assert computed.count("first") == computed.count("later") == 1
    assert "again" not in computed


@pytest.mark.parametrize("bad", ["raises", "no JSON"])
def test_a_memo_that_fails_raises_in_the_body_and_records_nothing(bad):
    def compute() -> Any:
        if bad == "raises":
            raise LookupError
        return object()

    @tool
    async def steps(ctx: ToolContext[Any]) -> str:
        try:
            await ctx.memo("m", compute)
        except (LookupError, ValueError):
            return str(await ctx.memo("m", lambda: "second try"))
        return "never"

    assert go([steps], call("steps")).read == "second try"


def test_progress_is_told_while_the_body_runs_from_bodies_of_both_kinds():
    @tool
    async def looks(ctx: ToolContext[Any]) -> str:
        await ctx.progress("one", 1, 2)
        ctx.progress("two", 2, 2)
        return "looked"

    @tool
    def counts() -> Iterator[str]:
        yield "a"
        yield "b"

    @tool
    def in_thread(ctx: ToolContext[Any]) -> str:
        ctx.progress("threaded", done=0.5)
        return "x"

    model = ScriptedModel([[call("looks", id="l"), call("counts", id="c"), call("in_thread", id="t")], say("done")])
    agent = Agent("desk", model, tools=[looks, counts, in_thread])

    async def main() -> list[CallProgress]:
        return [e async for e in agent.stream("Go.") if isinstance(e, CallProgress)]

    told = [(e.call_id, e.text, e.done, e.total) for e in asyncio.run(main())]
    assert [t for t in told if t[0] == "l"] == [("l", "one", 1, 2), ("l", "two", 2, 2)]
    assert [t for t in told if t[0] == "c"] == [("c", "a", None, None), ("c", "b", None, None)]
    assert [t for t in told if t[0] == "t"] == [("t", "threaded", 0.5, None)]


@law("1.1.extensions")
@case("R167")
def test_extensions_of_context_and_result_reach_after_guards_and_nobody_else():
    class Span:
        def __init__(self, name: str) -> None:
            self.name = name

    found: list[Any] = []

    @tool
    def traced(ctx: ToolContext[Any]) -> ToolResult:
        ctx.extensions.add(Span("canary-ctx"))
        ctx.extensions.add(7)
        made = ToolResult.terminal("ok").with_extension("canary-text").with_narration("Traced")
        return made.with_details({"note": "canary-details"})

    def guard(after: Any) -> None:
        extensions = after.result.extensions
        if after.tool.name == "traced":
            found.append((extensions.get(Span).name, extensions.get(int), extensions.get(str)))

    @tool
    def plain() -> str:
        return "no vote"

    seen = go([traced, plain], [call("traced"), call("plain")], hooks=[Hooks(after_call=guard)])
    assert found == [("canary-ctx", 7, "canary-text")]
    assert "canary" not in str(seen.model.requests[-1].messages)
    result = seen.results[0].result
    assert "canary-text" not in result.to_json()
    assert (result.details, result.terminate, result.narration) == ({"note": "canary-details"}, True, "Traced")


tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@case("R106")
def test_every_kind_of_body_sees_the_context_variables_of_its_caller_and_what_it_sets_stays_inside():
    @tool
    def threaded() -> str:
        found = tenant.get()
        tenant.set("leaked")
        return found

    @tool(timeout=SECONDS)
    async def looped() -> str:
        found = tenant.get()
        tenant.set("leaked")
        return found

    @tool
    def generated() -> Iterator[str]:
        yield tenant.get()
        tenant.set("leaked")

    tenant.set("acme")
    tools = [threaded, looped, generated]
    once = [call(t.name) for t in tools]
    seen = go(tools, [*once, *once], once)
    assert seen.reads == ["acme"] * 9
    assert tenant.get() == "acme"


@case("R104")
@law("2.7")
def test_a_sync_body_never_blocks_the_loop():
    release = threading.Event()
    beats: list[int] = []

    @tool
    def blocks() -> str:
        release.wait(SECONDS)
        return "released"

    @tool
    async def beats_on() -> str:
        for n in range(10):
            await asyncio.sleep(0)
            beats.append(n)
        release.set()
        return "ten beats"

    seen = go([blocks, beats_on], [call("blocks"), call("beats_on")])
    assert seen.reads == ["released", "ten beats"]
    assert len(beats) == 10


# ----------------------------------------------------------------------------------------- other processes


def test_a_process_body_gets_caller_ids_attempt_and_key_and_runs_elsewhere():
    seen = go([children.where], call("where", id="c1"), caller=Caller(user="ada"))
    found: Any = seen.part.output
    assert found.pop("pid") != os.getpid()
    run = seen.run.id
    key = f"{run}:0:0"
    assert found == {"user": "ada", "run_id": run, "call_id": "c1", "step": 0, "key": key, "attempt": 1}


@law("4.other", "4.tool-error")
@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("declared", "No such shelf.", 77),
        ("other", "fails failed with ValueError", 5000),
        ("awkward", "fails failed with Awkward.", 5000),
        ("exit", "fails failed with", 5000),
        ("death", "fails failed with", 5000),
    ],
)
def test_a_process_body_fails_as_any_other_and_takes_nothing_down(kind, text, code):
    seen = go([children.fails], call("fails", kind=kind))
    assert text in seen.read
    assert "secret" not in seen.read
    assert seen.failure.code == code
    assert seen.run.answer == "done"


@law("3.4080")
def test_a_process_body_that_hangs_is_killed_at_its_time_out_and_does_not_run_on():
    seen = go([children.hangs], call("hangs"))
    assert seen.failure.code == 4080
    assert "was stopped before its end" in seen.read
    assert "may still be running" not in seen.read


@law("8.generator-raises")
def test_a_process_generator_gives_its_items_and_its_partial_output():
    seen = go([children.counts], [call("counts", upto=2), call("counts", upto=3)])
    assert seen.reads[0] == "0 1 "
    assert seen.report.partial == [{"type": "text", "text": "0 1 2 "}]


def test_a_process_body_s_result_memo_and_progress_cross_over():
    agent = Agent("desk", ScriptedModel([call("noted"), say("done")]), tools=[children.noted])

    async def main() -> list[Any]:
        return [e async for e in agent.stream("Go.")]

    events = asyncio.run(main())
    assert [e.text for e in events if isinstance(e, CallProgress)] == ["half"]
    (part,) = [e.part for e in events if type(e).__name__ == "CallEnded"]
    assert (part.output, part.result.narration, part.result.details) == ("7", "Noted", {"n": 7})


# ------------------------------------------------------------------------------------------- cancelling


@law("1.1.Cancelled", "7.8")
def test_a_body_that_ends_within_the_grace_keeps_its_real_result_and_one_that_does_not_may_still_run():
    let_go = threading.Event()
    started: list[str] = []

    @tool
    async def tidy() -> str:
        started.append("tidy")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "tidied up"
        return "never"

    @tool
    def stuck(ctx: ToolContext[Any]) -> str:
        started.append("stuck")
        let_go.wait(SECONDS)
        return f"cancelled: {ctx.cancelled}"

    ran = Ran(ScriptedModel([[call("tidy"), call("stuck")]]))
    agent = Agent("desk", ran.model, tools=[tidy, stuck], limits=Limits(cancel_grace=0.05))

    async def main() -> None:
        async with Runtime(agents=[agent]) as runtime:
            ran._run = run = await runtime.start("desk", "Go.")
            await until(lambda: len(started) == 2)
            await run.cancel("enough")
            await run.wait(SECONDS)
            tidied, given_up = run.results
            assert (tidied.result.outcome, tidied.result.model_output) == (Succeeded(), "tidied up")
            assert isinstance(given_up.result.outcome, Cancelled)
            assert "may still be running" in given_up.result.model_output
            assert await run.errors() == []
            let_go.set()
            while not ran.late:
                await asyncio.sleep(0.001)
                await run.refresh()
            assert ran.late == ["cancelled: True"]

    asyncio.run(main())
