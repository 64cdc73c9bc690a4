"""The error report: what the developer gets of a failed call, field by field (contract 1.3 and 4)."""

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from counterfoil import (
    Agent,
    Caller,
    Cancelled,
    Change,
    Hooks,
    Run,
    Runtime,
    ToolContext,
    ToolError,
    ToolErrorReport,
    ToolFailure,
    ToolResult,
    tool,
)
from counterfoil.core.report import StoredError
from counterfoil.testing import FrozenEffects, ScriptedModel, call, say
from tests.boundary import Ran, go
from tests.marks import case, law

SECRET = "password=hunter2 in /srv/shop.db"  # noqa: S105  # made up, to be looked for where it must not be


class StockError(Exception):
    pass


raised: list[BaseException] = []


@tool
def broken(word: str = "a") -> str:
    """Raises."""
    try:
        {}["shelf"]
    except KeyError as cause:
        error = StockError(SECRET)
        raised.append(error)
        raise error from cause
    return "never"


@pytest.fixture
def seen() -> Ran:
    """A run whose second step has one call that raises."""
    raised.clear()
    caller = Caller(tenant="acme", user="ada", roles=("clerk",), attributes={"desk": 7})
    return go([broken, fine], call("fine"), call("broken", word="b", id="c7"), caller=caller)


@tool
def fine() -> str:
    return "fine"


def both(ran: Ran) -> tuple[ToolErrorReport, ToolErrorReport]:
    """The report as the handler got it, and as the store gives it back."""
    (handled,), (stored,) = ran.handled, ran.stored
    return handled, stored


@law("1.3.tenant_id", "source.001.tenantId")
def test_it_names_the_tenant(seen):
    assert [r.tenant_id for r in both(seen)] == ["acme", "acme"]


@law("1.3.user_context", "source.001.userContext")
def test_it_holds_the_caller(seen):
    caller = Caller(tenant="acme", user="ada", roles=("clerk",), attributes={"desk": 7})
    assert [r.user_context for r in both(seen)] == [caller, caller]


@law("1.3.interaction_id")
def test_it_names_the_interaction(seen):
    assert [r.interaction_id for r in both(seen)] == [seen.run.interaction_id] * 2


@law("1.3.thread_id", "source.001.threadId")
def test_it_names_the_thread_main_for_the_main_one(seen):
    assert [r.thread_id for r in both(seen)] == ["main", "main"]


@law("1.3.run_id", "source.001.runId")
def test_it_names_the_run(seen):
    assert [r.run_id for r in both(seen)] == [seen.run.id] * 2


@law("1.3.step_index", "source.001.stepIndex")
def test_it_has_the_step_counted_from_0(seen):
    assert [r.step_index for r in both(seen)] == [1, 1]
    assert go([broken], call("broken")).report.step_index == 0


@law("1.3.call_id", "source.001.callId")
def test_it_has_the_id_of_the_call(seen):
    assert [r.call_id for r in both(seen)] == ["c7", "c7"]
    assert seen.results[1].call_id == "c7"


@law("1.3.tool_name", "source.001.toolName")
def test_it_has_the_tool_as_the_model_named_it(seen):
    assert [r.tool_name for r in both(seen)] == ["broken", "broken"]
    assert go([broken], call("Broken tool!\x00")).report.tool_name == "Broken tool!\x00"


@law("1.3.input", "source.001.input")
def test_its_input_is_effective_where_the_schema_took_it_and_raw_where_it_did_not(seen):
    assert [r.input for r in both(seen)] == [{"word": "b"}] * 2
    changed = go([broken], call("broken"), hooks=[Hooks(before_call=lambda _: Change(input={"word": "c"}))])
    assert changed.report.input == {"word": "c"}
    for raw in ("{", '{"word": 7}'):
        assert go([broken], call("broken", raw=raw)).report.input == raw
    assert go([broken], call("other", raw='{"a":1}')).report.input == '{"a":1}'


@law("1.3.error", "source.001.error", "4.report")
def test_the_handler_gets_the_very_exception_and_the_store_its_type_message_traceback_and_causes(seen):
    handled, stored = both(seen)
    assert handled.error is raised[0]
    assert isinstance(stored.error, StoredError)
    assert stored.error.type == f"{__name__}.StockError"
    assert stored.error.message == SECRET
    assert "raise error from cause" in stored.error.traceback
    assert stored.error.causes == ("KeyError: 'shelf'",)


@law("1.3.error", "source.003.failed")
def test_where_nothing_was_raised_the_error_is_the_failure():
    failure = ToolFailure(77, "shelf 9 has no scales", retryable=True, data={"shelf": 9})

    @tool
    def weigh() -> ToolResult:
        return ToolResult.error("It could not be weighed.", failure)

    seen = go([weigh], call("weigh"))
    assert seen.report.error == seen.failure == failure
    assert isinstance(seen.stored[0].error, StoredError)
    assert seen.stored[0].error.message == "shelf 9 has no scales"
    assert seen.read == "It could not be weighed."


@law("1.3.code", "source.000.errorCode")
@pytest.mark.parametrize(
    ("error", "code"), [(ToolError("no", code=77), 77), (ToolError("no"), None), (ValueError("no"), 5000)]
)
def test_its_code_is_that_of_the_failure_and_of_the_result(error, code):
    @tool
    def fails() -> None:
        raise error

    seen = go([fails], call("fails"))
    assert [r.code for r in both(seen)] == [code, code]
    assert seen.failure.code == code
    assert seen.part.error_code == code


@law("1.3.model_text", "source.001.modelText")
def test_it_has_the_text_that_the_model_reads(seen):
    assert [r.model_text for r in both(seen)] == [seen.reads[1]] * 2


@law("1.3.duration_ms", "source.001.durationMs")
def test_its_duration_runs_from_the_gateway_s_start_to_the_failure_without_the_wait_for_a_person():
    effects = FrozenEffects(tick=0)
    handled: list[ToolErrorReport] = []

    @tool(needs_approval=True)
    async def slow() -> None:
        effects.advance(2)
        raise ValueError

    agent = Agent("desk", ScriptedModel([call("slow"), say("done")]), tools=[slow])

    async def main() -> None:
        async with Runtime(agents=[agent], effects=effects, hooks=Hooks(on_tool_error=handled.append)) as runtime:
            run = await runtime.start("desk", "Go.")
            await run.wait(60)
            effects.advance(3600)
            await run.approve(run.calls[0].call_id, by="grace")
            await run.wait(60)
            assert run.status == "completed"

    asyncio.run(main())
    assert handled[0].duration_ms == pytest.approx(2000, abs=1)


@law("1.3.duration_ms")
def test_its_duration_counts_the_guards_before_the_call_and_after_it_and_every_attempt():
    effects = FrozenEffects(tick=0)
    handled: list[ToolErrorReport] = []

    def takes_a_second(_: object) -> None:
        effects.advance(1)

    @tool(read_only=True, retries=1)
    async def slow() -> None:
        effects.advance(2)
        raise ValueError

    hooks = Hooks(before_call=takes_a_second, after_call=takes_a_second, on_tool_error=handled.append)
    agent = Agent("desk", ScriptedModel([call("slow"), say("done")]), tools=[slow], hooks=hooks)

    async def main() -> None:
        async with Runtime(agents=[agent], effects=effects) as runtime:
            await (await runtime.start("desk", "Go.")).wait(60)

    asyncio.run(main())
    assert handled[0].duration_ms == pytest.approx((1 + 2 + 2 + 1 + sum(effects.slept)) * 1000, abs=1)


@law("1.3.at", "source.001.at")
def test_it_has_the_time_in_utc(seen):
    for report in both(seen):
        assert report.at.tzinfo is UTC
        assert abs((report.at - datetime.now(UTC)).total_seconds()) < 600
    assert both(seen)[0].at == both(seen)[1].at


# ----------------------------------------------------------------------------------------- one, or none


@law("1.3.one-per-failure")
@case("R107")
def test_retried_attempts_give_one_report_at_the_end_with_the_attempts_in_it():
    attempts: list[int] = []

    @tool(read_only=True, retries=2)
    def flaky(ctx: ToolContext[Any]) -> str:
        attempts.append(ctx.attempt)
        raise ValueError(f"failed the {ctx.attempt}.")

    seen = go([flaky], call("flaky"))
    assert attempts == [1, 2, 3]
    assert seen.report.attempts == ("attempt 1: failed the 1.", "attempt 2: failed the 2.")
    assert str(seen.report.error) == "failed the 3."
    assert len(seen.stored) == 1
    assert seen.stored[0].attempts == seen.report.attempts
    assert seen.part.attempt == 3


@law("1.3.one-per-failure")
def test_an_attempt_that_succeeds_after_others_failed_leaves_no_report():
    @tool(idempotent=True, retries=2)
    async def flaky(ctx: ToolContext[Any]) -> str:
        if ctx.attempt < 3:
            raise ValueError
        return f"the {ctx.attempt}."

    seen = go([flaky], call("flaky"))
    assert (seen.read, seen.part.attempt) == ("the 3.", 3)
    assert (seen.handled, seen.stored) == ([], [])


@law("1.3.one-per-failure", "2.1")
def test_a_batch_of_refusals_and_failures_gives_one_report_each():
    calls = [call("broken", id="a"), call("none", id="b"), call("fine", id="c"), call("fine", raw="[", id="d")]
    seen = go([broken, fine], calls)
    assert {r.call_id: r.code for r in seen.handled} == {"a": 5000, "b": 4001, "d": 4000}
    assert {r.call_id: r.code for r in seen.stored} == {"a": 5000, "b": 4001, "d": 4000}


@law("1.3.never", "1.1.Cancelled")
@case("R112")
def test_a_cancelled_call_gives_no_report_whatever_its_body_catches():
    started = asyncio.Event()

    @tool
    async def waits() -> str:
        try:
            started.set()
            await asyncio.Event().wait()
        except Exception:  # noqa: BLE001  # a cancel must pass through
            return "carried on"
        return "never"

    cancelled = _cancelled_in_body(waits, started)
    assert isinstance(cancelled.part.result.outcome, Cancelled)
    assert (cancelled.handled, cancelled.stored) == ([], [])
    assert (cancelled.run.status, len(cancelled.model.requests)) == ("cancelled", 1)


def _cancelled_in_body(waits: Any, started: asyncio.Event) -> Ran:
    ran = Ran(ScriptedModel([call(waits.name)]))
    agent = Agent("desk", ran.model, tools=[waits], hooks=Hooks(on_tool_error=ran.handled.append))

    async def main() -> None:
        async with Runtime(agents=[agent]) as runtime:
            ran._run = run = await runtime.start("desk", "Go.")
            await started.wait()
            await run.cancel("enough")
            await run.wait(60)
            ran.stored = await run.errors()

    asyncio.run(main())
    return ran


@law("1.3.never")
def test_a_denial_by_the_tool_gives_no_report():
    @tool
    def guarded() -> ToolResult:
        return ToolResult.denied("Only a signed-in user may do this.")

    seen = go([guarded], call("guarded"))
    assert seen.part.denied
    assert (seen.handled, seen.stored) == ([], [])


# ------------------------------------------------------------------------------------------ the handler


@law("1.3.handler", "3.record")
def test_the_handler_is_called_right_before_the_result_is_on_record():
    found: list[tuple[int, int]] = []
    runs: list[Run] = []

    async def handler(report: ToolErrorReport) -> None:
        runtime = runs[0]._runtime
        entries = await runtime.store.entries("default", report.interaction_id)
        found.append((sum(e.kind == "start" for e in entries), sum(e.kind == "result" for e in entries)))

    agent = Agent("desk", ScriptedModel([call("broken"), say("done")]), tools=[broken])

    async def main() -> None:
        async with Runtime(agents=[agent], hooks=Hooks(on_tool_error=handler)) as runtime:
            runs.append(await runtime.start("desk", "Go."))
            await runs[0].wait(60)

    asyncio.run(main())
    assert found == [(1, 0)]


def _raises(_: object) -> None:
    raise LookupError("no pager")


async def _raises_later(_: object) -> None:
    raise LookupError("no pager")


def _leaves(_: object) -> None:
    raise asyncio.CancelledError


@law("1.3.handler")
@pytest.mark.parametrize("handler", [_raises, _raises_later, _leaves])
def test_a_handler_that_raises_is_logged_and_changes_nothing(handler, caplog):
    with caplog.at_level(logging.ERROR, "counterfoil"):
        seen = go([broken, fine], [call("broken"), call("fine")], hooks=[Hooks(on_tool_error=handler)])
    assert "on_tool_error failed" in caplog.text
    assert len(seen.handled) == len(seen.stored) == 1
    assert seen.run.answer == "done"
    assert seen.reads[1] == "fine"


@law("1.3.handler")
def test_a_handler_that_hangs_is_given_up_even_if_it_takes_no_cancel(monkeypatch, caplog):
    monkeypatch.setattr("counterfoil.ending.REPORT_SECONDS", 0.01)
    let_go = asyncio.Event()

    async def hangs(_: object) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    def turn(_: object) -> Any:
        let_go.set()
        return say("done")

    with caplog.at_level(logging.ERROR, "counterfoil"):
        seen = go([broken], call("broken"), turn, hooks=[Hooks(on_tool_error=hangs)])
    assert "on_tool_error failed" in caplog.text
    assert len(seen.handled) == len(seen.stored) == 1
    assert seen.failure.code == 5000


def test_a_handler_cannot_change_what_is_on_record():
    def spoils(report: ToolErrorReport) -> Any:
        report.input["word"] = "spoilt"  # type: ignore[call-overload,index]
        return Change(content="forged")

    seen = go([broken], call("broken", word="b"), hooks=[Hooks(on_tool_error=spoils)])
    assert seen.run.calls[0].effective_input == {"word": "b"}
    assert seen.stored[0].input == {"word": "b"}
    assert "forged" not in seen.read


# --------------------------------------------------------------------------- generators, details, guards


@law("8.generator-raises")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_generator_that_raises_midway_fails_with_the_partial_output_in_the_report(kind):
    def sync() -> Iterator[str]:
        yield "one "
        yield "two "
        raise ValueError("no third")

    async def asynchronous() -> Any:
        yield "one "
        yield "two "
        raise ValueError("no third")

    body = tool(name="counts")(sync if kind == "sync" else asynchronous)
    seen = go([body], call("counts"))
    assert seen.failure.code == 5000
    assert "one" not in seen.read
    assert seen.report.partial == seen.stored[0].partial == [{"type": "text", "text": "one two "}]
    assert str(seen.report.error) == "no third"


@case("R170")
@law("1.1.ToolError", "4.tool-error", "source.004.error")
def test_what_a_tool_error_carries_reaches_model_record_and_report_each_its_own():
    @tool
    def fails() -> None:
        raise ToolError(
            "Shelf 9 is locked; ask the keeper.", code=423, retryable=True, data={"shelf": 9}, details={"key": "k1"},
            narration="Could not open shelf 9",
        )  # fmt: skip

    seen = go([fails], call("fails"))
    assert seen.read == "Shelf 9 is locked; ask the keeper."
    assert (seen.failure.code, seen.failure.retryable, seen.failure.data) == (423, True, {"shelf": 9})
    assert (seen.part.result.details, seen.part.result.narration) == ({"key": "k1"}, "Could not open shelf 9")
    assert isinstance(seen.report.error, ToolError)
    assert seen.report.error.data == {"shelf": 9}
    assert seen.run.answer == "done"


@law("4.report")
def test_an_after_guard_that_raises_does_not_hide_the_tool_s_own_error():
    def checks(_: object) -> None:
        raise OSError("the scanner is down")

    seen = go([broken], call("broken"), hooks=[Hooks(after_call=checks)])
    assert seen.failure.code == 5002
    stored = seen.stored[0].error
    assert isinstance(stored, StoredError)
    assert stored.type == "OSError"
    assert any(SECRET in cause for cause in stored.causes)


@case("R136", "R137")
def test_hostile_text_in_an_exception_is_stored_and_its_class_is_all_that_a_model_reads():
    @tool
    def fails() -> None:
        raise ValueError("a\x00b \ud800 \U0001f378")

    seen = go([fails], call("fails"))
    assert isinstance(seen.stored[0].error, StoredError)
    assert seen.stored[0].error.message == "a\x00b \ufffd \U0001f378"
    assert "fails failed with ValueError" in seen.read


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_whose_own_text_raises_is_reported_all_the_same():
    @tool(expose=Unsayable)
    def fails() -> None:
        raise Unsayable

    seen = go([fails], call("fails"))
    assert "fails failed with Unsayable" in seen.read
    assert seen.failure.code == 5000
    assert len(seen.stored) == 1


def test_reports_are_found_by_run_tool_and_code():
    agent = Agent("desk", ScriptedModel([[call("broken"), call("none")], say("done")]), tools=[broken])

    async def main() -> None:
        async with Runtime(agents=[agent]) as runtime:
            run = await runtime.start("desk", "Go.")
            await run.wait(60)
            assert [r.tool_name for r in await runtime.errors(code=4001)] == ["none"]
            assert [r.code for r in await runtime.errors(run.id, tool="broken")] == [5000]
            assert await runtime.errors(tenant="other") == []

    asyncio.run(main())
