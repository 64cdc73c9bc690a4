"""Hooks: guards that may change or stop, observers that may do neither, and where each is asked."""

import asyncio
import dataclasses
import logging
from contextvars import ContextVar
from typing import Any

import pytest

from counterfoil import Agent, CallEnded, Caller, Change, Hooks, Run, Runtime, Skip, ToolResult, tool
from counterfoil.hooks import AfterCall, AfterModel, BeforeCall, BeforeModel, BodyBegins, join_hooks
from counterfoil.testing import ScriptedModel, call, say
from tests.boundary import go
from tests.marks import case


@tool
def look(word: str = "a") -> str:
    return word


def run_with(of_runtime: Any, of_agent: Any = None, turns: Any = None) -> tuple[Run, ScriptedModel]:
    model = ScriptedModel(turns or [call("look"), say("done")])
    agent = Agent("desk", model, tools=[look], hooks=of_agent)

    async def main() -> Run:
        async with Runtime(agents=[agent], hooks=of_runtime) as runtime:
            run = await runtime.start("desk", "Go.", caller=Caller(user="ada"))
            await run.wait(60)
            return run

    return asyncio.run(main()), model


def test_hooks_of_the_runtime_come_before_those_of_the_agent_and_each_place_takes_one_or_many():
    order: list[str] = []

    def noted(name: str) -> Any:
        return lambda _: order.append(name)

    first = Hooks(before_call=noted("r1"), after_call=[noted("r2"), noted("r3")])
    second = [Hooks(before_call=(noted("a1"),)), Hooks(after_call=noted("a2"))]
    run_with(first, second)
    assert order == ["r1", "a1", "r2", "r3", "a2"]


def test_hooks_of_one_run_in_memory_are_asked_too():
    order: list[str] = []
    agent = Agent("desk", ScriptedModel([call("look"), say("done")]), tools=[look])
    agent.run_sync("Go.", hooks=Hooks(before_call=lambda _: order.append("run")))
    assert order == ["run"]


def test_a_hook_takes_one_frozen_record_with_named_fields():
    seen: dict[str, Any] = {}

    def keep(name: str) -> Any:
        return lambda record: seen.__setitem__(name, record)

    places = ("before_call", "after_call", "before_model", "after_model")
    run, _ = run_with(Hooks(**{place: keep(place) for place in places}))
    assert {name: type(record) for name, record in seen.items()} == {
        "before_call": BeforeCall, "after_call": AfterCall, "before_model": BeforeModel, "after_model": AfterModel,
    }  # fmt: skip
    for record in seen.values():
        with pytest.raises(dataclasses.FrozenInstanceError):
            record.caller = None
        assert record.caller.user == "ada"
    before = seen["before_call"]
    assert (before.where.run_id, before.where.step, before.where.index) == (run.id, 0, 0)
    assert (before.tool.name, before.input, before.call_id) == ("look", {"word": "a"}, run.calls[0].call_id)
    assert (seen["before_model"].step, seen["before_model"].run_id) == (1, run.id)
    assert seen["after_model"].turn.text == "done"


@case("R169")
@pytest.mark.parametrize("action", [Change, Skip])
def test_what_a_guard_answers_is_a_value_of_named_fields_and_nothing_else_can_be_written(action):
    fields = {f.name for f in dataclasses.fields(action)}
    assert "outcome" not in fields
    with pytest.raises(TypeError):
        action(outcome="succeeded")
    assert not hasattr(action("x"), "__dict__")


def test_before_and_after_the_model_a_guard_that_raises_fails_the_run_and_changes_nothing_else():
    def raises(_: object) -> None:
        raise PermissionError("no model today")

    run, model = run_with(Hooks(before_model=raises))
    assert (run.status, run.ended_by, model.requests) == ("failed", "error", [])
    assert "no model today" in str(run.reason)
    run, model = run_with(Hooks(after_model=raises))
    assert (run.status, run.ended_by, run.calls) == ("failed", "error", [])


def raises(_: object) -> None:
    raise LookupError("no screen")


async def raises_later(_: object) -> None:
    raise LookupError("no screen")


@pytest.mark.parametrize("place", ["on_event", "on_body"])
@pytest.mark.parametrize("observer", [raises, raises_later])
def test_an_observer_that_raises_is_logged_and_changes_nothing(observer, place, caplog):
    with caplog.at_level(logging.ERROR, "counterfoil"):
        run, _ = run_with(Hooks(**{place: observer}))
    assert f"{place} failed" in caplog.text
    assert (run.status, run.answer) == ("completed", "done")


def test_a_body_and_no_other_has_what_an_observer_sets_in_context_variables():
    key: ContextVar[str] = ContextVar("key", default="none")

    @tool
    async def inside() -> str:
        return key.get()

    @tool
    def in_a_thread() -> str:
        return key.get()

    @tool
    async def untold() -> str:
        return key.get()

    def tells(begins: BodyBegins) -> None:
        if begins.tool is not untold:
            key.set(f"{begins.call_id} {begins.attempt} {begins.where.index} {begins.caller.user}")

    turn = [call("inside", id="a"), call("in_a_thread", id="b"), call("untold", id="c")]
    seen = go([inside, in_a_thread, untold], turn, hooks=[Hooks(on_body=tells)], caller=Caller(user="ada"))
    assert [part.output for part in seen.run.results] == ["a 1 0 ada", "b 1 1 ada", "none"]
    assert key.get() == "none"


def test_observers_see_every_event_that_is_on_record_in_order():
    events: list[Any] = []
    run_with(Hooks(on_event=events.append))
    names = [type(e).__name__ for e in events]
    assert [n for n in names if n.startswith("Call")] == ["CallStarted", "CallEnded"]
    assert names[-1] == "RunEnded"
    assert [e.entry for e in events] == sorted(e.entry for e in events)


def test_what_an_observer_returns_is_nothing_to_anybody():
    answers = Hooks(on_event=lambda _: Change(content="x"), on_tool_error=lambda _: Skip("x"))
    run, _ = run_with(answers)
    assert run.results[0].output == "a"


def test_a_guard_sees_a_copy_that_it_may_spoil():
    def spoils(record: Any) -> None:
        record.input["word"] = "spoilt"

    seen = go([look], call("look"), hooks=[Hooks(before_call=spoils, after_call=spoils)])
    assert seen.run.calls[0].effective_input == {"word": "a"}
    assert seen.read == "a"


def test_details_that_a_hook_or_a_reader_changes_in_place_are_changed_for_nobody():
    @tool
    async def weighs() -> ToolResult:
        """Weigh."""
        return ToolResult.text("3").with_details({"scale": [1]})

    def spoils(seen: Any) -> None:
        seen.details["scale"].append(2)

    hooks = Hooks(
        after_call=lambda seen: spoils(seen.result),
        on_event=lambda event: spoils(event.part.result) if isinstance(event, CallEnded) else None,
    )
    seen = go([weighs], call("weighs"), hooks=[hooks])
    spoils(seen.run.results[0].result)
    assert seen.run.results[0].result.details == {"scale": [1]}


def test_no_hooks_at_all_is_an_empty_list_for_each_place():
    joined = join_hooks(None, Hooks(), [])
    assert all(getattr(joined, f.name) == () for f in dataclasses.fields(joined))
