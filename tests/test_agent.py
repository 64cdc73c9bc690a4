"""Agent: what a run is driven with (api.md, Agent)."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from counterfoil import Agent, Caller, Hooks, Limits, Policy, RunEnded, ToolContext, tool
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.testing import ScriptedModel, call, say
from tests.helpers import agent, broken, counted, fine, go, outcomes, requests, told
from tests.marks import case, law


@law("5.answer")
def test_run_gives_the_finished_run():
    desk = agent([[call("fine", n=1, id="f")], say("done")], fine, instructions="Be brief.")

    async def main():
        run = await desk.run("go", caller=Caller(user="ada"))
        assert (run.status, run.answer, outcomes(run)) == ("completed", "done", {"f": "Succeeded"})
        assert requests(desk)[0][0] == {"role": "system", "content": "Be brief."}
        assert desk.model.requests[0].tools[0]["name"] == "fine"

    go(main())


@law("7.1")
@case("R082")
def test_run_gives_a_paused_run_that_goes_on_after_its_decisions():
    pay, seen = counted("pay", needs_approval=True)
    desk = agent([[call("pay", n=1, id="a"), call("pay", n=2, id="b")], say("done")], pay)

    async def main():
        run = await desk.run("go", deps="the bank", approvals="one-by-one")
        assert run.status == "paused"
        for call_id in ("a", "b"):
            assert [a.call_id for a in await run.approvals()] == [call_id]
            await run.approve(call_id, by="grace")
            await run.wait()
        assert run.answer == "done"
        assert [x["deps"] for x in seen] == ["the bank", "the bank"]

    go(main())


def test_a_finished_run_that_nobody_has_any_more_is_gone_without_the_garbage_collector():
    pay, _ = counted("pay", needs_approval=True)

    async def main(desk):
        run = await desk.run("go")
        assert run.status == "paused"
        await run.approve("p", by="ada")
        await run.wait()
        assert run.answer == "done"
        left = [weakref.ref(one) for one in (run._runtime, run._fold)]
        del run
        await asyncio.sleep(0)
        assert [one() for one in left] == [None, None]
        return gc.collect()

    gc.disable()
    try:
        # The first one also leaves what modules and tools leave that are used for the first time.
        turns = [[call("fine", n=1), call("pay", id="p")], say("done")]
        desk = Agent("desk", model=ScriptedModel(turns * 2, across_runs=True), tools=[fine, pay])
        go(main(desk))
        assert go(main(desk)) == 0
    finally:
        gc.enable()


def test_run_sync_closes_the_connections_of_its_event_loop():
    class Connected(ScriptedModel):
        closed = 0

        async def disconnect(self):
            self.closed += 1

    model = Connected([say("done")], across_runs=True)
    desk = Agent("desk", model=model)
    assert desk.run_sync("go").answer == "done"
    assert model.closed == 1


def test_run_sync_needs_no_event_loop():
    run = agent([[call("fine")], say("done")], fine).run_sync("go", limits=Limits(steps=9))
    assert (run.status, run.answer) == ("completed", "done")


@pytest.mark.parametrize("last", ["wait", "events"])
def test_a_paused_run_goes_on_in_whatever_event_loop_is_there(last):
    pay, paid = counted("pay", needs_approval=True)
    run = agent([[call("pay", id="p"), call("pay", n=1, id="q")], say("done")], pay).run_sync("go")

    async def followed():
        return [event async for event in run.events()]

    asyncio.run(run.approve("p", by="grace"))  # this loop ends before the run goes on
    asyncio.run(run.approve("q", by="grace"))
    assert (run.status, paid) == ("paused", [])
    if last == "wait":
        asyncio.run(run.wait(30))
    else:
        assert isinstance(asyncio.run(asyncio.wait_for(followed(), 30))[-1], RunEnded)
    assert (run.status, run.answer, sorted(p["n"] for p in paid)) == ("completed", "done", [0, 1])


def test_many_runs_of_one_agent_at_once_do_not_mix():
    @tool
    async def echo(ctx: ToolContext, n: int) -> str:
        """Give it back."""
        await asyncio.sleep(0)
        return f"{ctx.caller.user} {n}"

    def answer(request):
        return say(request.messages[-1]["content"])

    desk = agent([lambda request: call("echo", n=len(request.messages[0]["content"])), answer], echo)

    async def main():
        runs = await asyncio.gather(*(desk.run("x" * n, caller=Caller(user=f"u{n}")) for n in range(1, 21)))
        assert [r.answer for r in runs] == [f"u{n} {n}" for n in range(1, 21)]

    go(main())


def test_stream_gives_events_until_the_end():
    async def main():
        events = [e async for e in agent([[call("fine")], say("done")], fine).stream("go")]
        assert isinstance(events[-1], RunEnded)
        assert events[-1].answer == "done"

    go(main())


def test_instructions_may_be_a_function_of_the_context():
    def by_user(ctx):
        return f"You help {ctx.caller.user}."

    async def later():
        return "You help."

    async def main():
        for instructions, text in ((by_user, "You help ada."), (later, "You help."), (None, None)):
            desk = agent([say("done")], instructions=instructions)
            await desk.run("go", caller=Caller(user="ada"))
            system = [m["content"] for m in requests(desk)[0] if m["role"] == "system"]
            assert system == ([text] if text else [])

    go(main())


@law("5.answer")
@pytest.mark.parametrize(
    ("kind", "text", "output"),
    [
        (int, "7", 7),
        (list[str], '["a"]', ["a"]),
        (str, "plain {", "plain {"),
        (dict[str, float], '{"x": 1}', {"x": 1.0}),
        (int | None, "null", None),
    ],
)
def test_output_types_of_many_kinds(kind, text, output):
    run = agent([say(text)], output_type=kind).run_sync("go")
    assert run.output == output
    assert run.answer == text


@law("3.no-rewrite", "4.tool-error")
def test_hooks_of_runtime_and_agent_both_count():
    seen = []
    desk = agent(
        [[call("broken", id="b")], say("done")], broken, hooks=Hooks(on_tool_error=lambda r: seen.append("agent"))
    )

    async def main():
        await desk.run("go", hooks=Hooks(on_tool_error=lambda r: seen.append("run")))
        assert seen == ["run", "agent"]
        assert "ValueError" in told(desk)["b"]

    go(main())


@law("5.error")
def test_guards_of_request_and_turn_fail_the_run_when_they_raise():
    def no(_):
        raise PermissionError("not this model")

    for hooks in (Hooks(before_model=no), Hooks(after_model=no)):
        run = agent([say("never")], hooks=hooks).run_sync("go")
        assert (run.status, run.ended_by) == ("failed", "error")
        assert "not this model" in run.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": " ", "model": ScriptedModel([])}, "name"),
        ({"name": "a"}, "no model"),
        ({"name": "a", "model": object()}, "respond"),
        ({"name": "a", "model": ScriptedModel([]), "policy": "strict.toml"}, "Policy"),
        ({"name": "a", "model": ScriptedModel([]), "tools": [fine, fine]}, "fine"),
        ({"name": "a", "model": ScriptedModel([]), "manages": [object()]}, "manages"),
    ],
)
def test_an_agent_that_cannot_be_used_as_written_is_refused(options, message):
    with pytest.raises(DefinitionError, match=message):
        Agent(**options)


def test_a_model_that_is_not_known_is_refused_when_the_agent_is_made():
    with pytest.raises(DefinitionError, match="no-such-scheme"):
        Agent("desk", model="no-such-scheme:X")


@law("5.error")
def test_a_model_that_cannot_be_opened_fails_the_run_and_says_why():
    run = Agent("desk", model="scripted:/no/such/file.json").run_sync("go")
    assert (run.status, run.ended_by) == ("failed", "error")
    assert "/no/such/file.json" in run.reason


@law("5.error")
def test_a_stream_without_a_turn_is_an_error():
    class Empty:
        async def respond(self, request):
            return
            yield

    from counterfoil import Runtime
    from counterfoil.testing import FrozenEffects

    async def main():
        async with Runtime(agents=[Agent("desk", model=Empty())], effects=FrozenEffects()) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert run.status == "failed"
            assert "without a finished turn" in run.reason

    go(main())


def test_plain_functions_are_tools_and_a_policy_judges_them():
    def double(n: int) -> int:
        """Double it."""
        return 2 * n

    desk = agent([[call("double", n=4, id="d")], say("done")], double, policy=Policy(default="deny"))
    run = desk.run_sync("go")
    assert outcomes(run) == {"d": "Denied"}
    assert "double" in repr(desk)
    assert [t.name for t in desk.tools] == ["double"]


def test_a_model_error_is_one_of_the_operator():
    assert ModelError("x", retryable=True).retryable
