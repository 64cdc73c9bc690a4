"""Managers: tasks and questions to other agents and to people, each on its own thread (contract 9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from counterfoil import (
    Agent,
    AmbiguousCall,
    Caller,
    DecisionConflict,
    Limits,
    NotFound,
    NotPending,
    Policy,
    Rule,
    Run,
    Runtime,
    ToolContext,
    ToolError,
    tool,
)
from counterfoil.core.entries import PausedEntry
from counterfoil.core.errors import DefinitionError, ModelError, NotAllowed
from counterfoil.core.outcome import ErrorCode
from counterfoil.core.record import RunState
from counterfoil.core.timeline import summary
from counterfoil.core.turn import Usage, author
from counterfoil.model import ModelEvent, ModelRequest
from counterfoil.store import Quota
from counterfoil.testing import ScriptedModel, call, say
from tests.helpers import Gate, Place, agent, arrives, both, codes, go, outcomes, requests, shared, so, told, until
from tests.marks import case, law

MINER, SMITH = author("Agent", "miner", "default").id, author("Agent", "smith", "default").id


def give(to: str, task: str, id: str, tool: str = "dispatch") -> Any:  # as `call` names it
    """A call that hands a task on."""
    return call(tool, agent=to, task=task, id=id)


def asks(whom: str, question: str, id: str = "q") -> Any:  # as above
    """A call that asks a question."""
    return call("ask", participant=whom, question=question, id=id)


def team(
    *members: Agent, calls: list[Any] | None = None, then: Any = None, name: str = "chief", **options: Any
) -> Agent:
    """A manager that hands a task to each member, or makes these calls, and tells what came."""
    given = calls or [give(m.name, f"Task of {m.name}.", m.name) for m in members]

    def tells(request: Any) -> Any:
        return say(" | ".join(str(m["content"]) for m in request.messages if m["role"] == "tool"))

    return Agent(name, ScriptedModel([given, *(then or [tells])]), manages=members, **options)


def child_of(run: Run, call_id: str = "miner") -> RunState:
    """The run that a call of a run waits for, or waited for."""
    part = next(c for c in run.calls if c.call_id == call_id)
    return run._fold.record.runs[part.child_run_id or ""]


# --------------------------------------------------------------------------------------------- dispatch


@both
@law("9.dispatch", "9.threads", "6.kept-apart")
@case("R197")
def test_a_task_is_a_run_on_its_own_thread_and_its_answer_is_the_result(place: Place) -> None:
    @tool(read_only=True)
    async def dig(depth: int) -> str:
        return f"gold at {depth}"

    long = "g" * 5_000
    miner = agent([call("dig", depth=3, id="d"), say(long)], dig, name="miner")
    smith = agent([say("Forged.")], name="smith")
    chief = team(miner, smith, limits=Limits(keep_apart_bytes=1_000))

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Make a ring.", caller=Caller(user="ada"))
            await run.wait()
            assert run.status == "completed", run.reason
            assert [r.result.model_output for r in run.results][1] == "Forged."
            kept = run.results[0]
            assert (kept.output, kept.result_size, kept.error_code) == (None, 5_000, None)
            assert (await runtime.tool_result(run.id, kept.sequence)).text == long
            child = child_of(run)
            thread = f"dispatch:{MINER}:{child.run_id}"
            assert child.head is not None
            assert (child.head.thread_id, child.head.parent, child.head.agent) == (thread, run.id, "miner")
            assert child.head.caller == Caller(user="ada")
            alone = await runtime.context(run.id, thread=thread)
            assert [i["kind"] for i in alone] == ["Message", "ToolCall", "ToolResult", "Message"]
            assert (alone[0]["text"], alone[0]["author"]["name"]) == ("Task of miner.", "chief")
            assert (alone[2]["result"], alone[3]["text"]) == ("gold at 3", long)
            assert alone == await runtime.context(child.run_id)
            main_thread = await runtime.context(run.id)
            assert [i["kind"] for i in main_thread] == ["Message", *["ToolCall"] * 2, *["ToolResult"] * 2, "Message"]
            assert "gold at 3" not in str(main_thread)
            row = await runtime.interaction(run.interaction_id)
            assert [p.name for p in row.participants] == ["ada", "chief", "miner", "smith"]

    go(main())


@law("9.dispatch", "2.7")
def test_several_tasks_are_worked_at_at_once() -> None:
    gate = Gate()
    miner = agent([call("work", at="m", id="w"), say("m")], gate.tool(), name="miner")
    smith = agent([call("work", at="s", id="w"), say("s")], gate.tool(), name="smith")
    chief = team(miner, smith, limits=Limits(concurrency=1))

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            run = await runtime.start(chief, "Go.")
            await gate.began("m", "s")
            await until(lambda: not runtime.driving(run.id))
            assert (run.status, (await runtime.store.run("default", run.id)).owner) == ("running", None)
            gate.open("m", "s")
            assert (await run.wait()).answer == "m | s"

    go(main())


@law("9.sees", "9.private", "2.6")
@case("R194")
@both
def test_an_agent_remembers_its_tasks_and_reads_nothing_of_another(place: Place) -> None:
    miner = agent([lambda r: say(f"mined {len(r.messages)}")], name="miner")
    smith = agent([say("canary")], name="smith")
    chief = Agent(
        "chief", ScriptedModel([[give("miner", "Dig.", "a"), give("smith", "Heat.", "b")], say("Well.")]),
        manages=[miner, smith],
    )  # fmt: skip  # two rows

    async def main() -> None:
        async with place.open(chief) as runtime:
            first = await (await runtime.start(chief, "One.")).wait()
            again = await runtime.start(chief, "Two.", interaction=first.interaction_id)
            await again.wait()
            assert [m["content"] for m in requests(miner)[0]] == ["One.", "Dig."]
            seen = [m["content"] for m in requests(miner)[1]]
            assert seen == [
                "One.",
                "[chief used dispatch, which gave:] mined 2\n[chief used dispatch, which gave:] canary",
                "Dig.",
                "mined 2",
                "[chief] Well.",
                "Two.",
                "Dig.",
            ]
            private = await runtime.context(again.id, thread=f"private:{MINER}")
            assert [i["text"] for i in private] == ["Dig.", "mined 2", "Dig.", "mined 7"]
            assert [i["author"]["name"] for i in private] == ["chief", "miner"] * 2
            assert f"dispatch:{SMITH}" not in str(await runtime.context(again.id))

    go(main())


@law("3.5004", "9.rises", "1.3.code")
@both
def test_a_child_that_gives_no_answer_is_a_failure_and_says_no_private_word(place: Place) -> None:
    @tool(read_only=True)
    async def dig() -> str:
        raise ToolError("the private reason")

    miner = agent([call("dig", id="d")] * 3, dig, name="miner", limits=Limits(steps=2))
    smith = agent(name="smith")  # its script has no turn: the run fails
    chief = team(miner, smith)

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await (await runtime.start(chief, "Go.")).wait()
            assert codes(run) == {"miner": ErrorCode.CHILD_FAILED, "smith": ErrorCode.CHILD_FAILED}
            texts = told(chief)
            assert texts["miner"] == (
                "The task that dispatch handed on did not come to its end: miner was stopped, since the limit of "
                "2 steps is reached. It may have had effects."
            )
            assert "smith failed" in texts["smith"]
            assert "private" not in str(requests(chief))
            mine = [r for r in await run.errors() if r.tool_name == "dispatch"]
            assert {r.code for r in mine} == {5004}
            assert any("script" in str(r.error) for r in mine)
            assert run.results[0].failure is not None
            assert run.results[0].failure.retryable is False
            assert summary(run._fold.record, run.id).outcomes["failed"] == 4

    go(main())


def needing(log: list[str]) -> Any:
    """A tool that a person must approve; what it did is in the log."""

    @tool(needs_approval=True)
    async def blast(ctx: ToolContext[Any], where: str) -> str:
        log.append(f"{where}:{ctx.attempt}")
        return f"blasted {where}"

    return blast


@law("9.pause", "9.rises")
@case("R032", "R083")
@both
def test_a_child_that_waits_for_a_person_pauses_its_parent_and_each_decision_resumes_its_own(place: Place) -> None:
    log: list[str] = []
    blast = needing(log)
    miner = agent([call("blast", where="m", id="m1"), say("mined")], blast, name="miner")
    smith = agent([call("blast", where="s", id="s1"), say("forged")], blast, name="smith")

    def ends(request: Any) -> Any:
        return call("blast", where="c", id="c1") if request.turns == 1 else say("done")

    chief = team(miner, smith, then=[ends, ends])
    chief.tool_map["blast"] = blast

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await (await runtime.start(chief, "Go.")).wait()
            await arrives(run, "paused")
            inbox = await run.approvals()
            assert [(a.call_id, a.agent) for a in inbox] == [("m1", "miner"), ("s1", "smith")]
            assert {a.run_id for a in inbox} == {child_of(run, "miner").run_id, child_of(run, "smith").run_id}
            assert await runtime.approvals() == inbox
            await run.approve("s1", by="grace")
            await run.wait()
            assert (run.status, log) == ("paused", ["s:1"])
            assert outcomes(run) == {"smith": "Succeeded"}
            await runtime.approve(inbox[0].run_id, "m1", by="grace")
            await run.wait()
            assert (run.status, [a.call_id for a in await run.approvals()]) == ("paused", ["c1"])
            await run.approve("c1", by="grace")
            assert (await run.wait()).answer == "done"
            assert log == ["s:1", "m:1", "c:1"]

    go(main())


@both
@law("9.rises", "7.2")
def test_a_call_id_of_several_runs_below_says_which_runs_until_the_decision_says_which(place: Place) -> None:
    log: list[str] = []

    def blasts(request: Any) -> Any:
        return call("blast", where=request.messages[-1]["content"], id="m1")

    miner = agent([blasts, say("mined")], needing(log), name="miner")
    chief = team(miner, calls=[give("miner", "a", "d1"), give("miner", "b", "d2"), give("miner", "b", "d3")])

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await (await runtime.start(chief, "Go.")).wait()
            await arrives(run, "paused")
            first, second, third = inbox = sorted(await run.approvals(), key=lambda a: str(a.input))

            async def names(*runs: str, **how: Any) -> None:
                with pytest.raises(AmbiguousCall, match=f"m1 of runs .*{runs[-1]}.*decide in the run") as told:
                    await run.approve("m1", by="grace", **how)
                assert set(told.value.runs) == set(runs)

            every = [a.run_id for a in inbox]
            await names(*every)
            await names(*every, input={"where": "c"})
            await names(*every, digest="f" * 64)
            with pytest.raises(AmbiguousCall):
                await run.reject("m1", by="grace")
            await names(second.run_id, third.run_id, digest=second.digest)
            assert await run.approvals() == inbox, "nothing was decided"
            assert (await run.approve("m1", by="grace", digest=first.digest)).run_id == first.run_id
            assert (await run.approve("m1", by="ada", digest=first.digest)).run_id == first.run_id
            await names(second.run_id, third.run_id)
            assert (await run.approve("m1", by="grace", approval=second.id)).run_id == second.run_id
            assert (await run.approve("m1", by="grace")).run_id == third.run_id
            await names(*every)
            assert (await run.approve("m1", by="ada", approval=second.id)).run_id == second.run_id
            assert (await arrives(run, "completed")).answer == "mined | mined | mined"
            assert sorted(log) == ["a:1", "b:1", "b:1"]

    go(main())


@shared
@law("7.5", "9.rises")
def test_two_that_approve_at_once_by_a_run_and_by_the_one_above_it_start_its_call_once(place: Place) -> None:
    log: list[str] = []

    def made() -> Agent:
        return team(agent([call("blast", where="m", id="m1"), say("mined")], needing(log), name="miner"))

    async def main() -> None:
        async with place.open(made()) as first, place.runtime(made()) as second:
            run = await arrives(await (await first.start("chief", "Go.")).wait(), "paused")
            (asked,) = await run.approvals()
            both = first.approve(run.id, "m1", by="ada"), second.approve(asked.run_id, "m1", by="grace")
            assert [a.id for a in await asyncio.gather(*both)] == [asked.id, asked.id]
            assert (await arrives(run, "completed")).answer == "mined"
            assert log == ["m:1"]

    go(main())


@case("R044")
@law("9.pause", "7.9")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_another_process_decides_by_the_parents_run_and_goes_on(place: Place) -> None:
    log: list[str] = []

    def made() -> Agent:
        miner = agent([call("blast", where="m", id="m1"), say("mined")], needing(log), name="miner")
        return team(miner)

    async def main() -> None:
        async with place.open(first := made()) as runtime:
            run = await (await runtime.start(first, "Go.")).wait()
            await arrives(run, "paused")
        async with place.open() as reader:
            assert (await (await reader.get(run.id)).approvals())[0].call_id == "m1"
            first_one = await reader.approve(run.id, "m1", by="grace")
            assert (await reader.approve(run.id, "m1", by="ada")).id == first_one.id
            with pytest.raises(DecisionConflict):
                await reader.reject(run.id, "m1", by="ada")
            with pytest.raises(NotPending):
                await reader.approve(run.id, "m9", by="grace")
        async with place.open(made()) as runtime:
            run = await runtime.get(run.id)
            assert (await arrives(run, "completed")).answer == "mined"
            assert log == ["m:1"]
            assert outcomes(run) == {"miner": "Succeeded"}

    go(main())


@both
@law("9.recovery", "7.9")
@pytest.mark.parametrize("ends", ["answers", "is cancelled"])
def test_a_manager_that_manages_nobody_any_more_still_gets_what_it_waits_for(place: Place, ends: str) -> None:
    miner = agent([call("blast", where="m", id="m1"), say("mined")], needing([]), name="miner")
    before = team(miner)
    after = Agent("chief", before.model)

    async def main() -> None:
        async with place.open(before) as runtime:
            run = await runtime.start(before, "Go.")
            await arrives(run, "paused")
        async with place.open(after, miner) as runtime:
            run = await runtime.get(run.id)
            if ends == "answers":
                await run.approve("m1", by="grace")
                assert (await arrives(run, "completed")).answer == "mined"
            else:
                await run.cancel()
                assert outcomes(await arrives(run, "cancelled")) == {"miner": "Cancelled"}

    go(main())


@law("9.rises")
@case("R089")
def test_a_denial_below_shows_in_the_summary_and_a_policy_sees_thread_and_depth() -> None:
    seen: list[dict[str, Any]] = []

    def looks(facts: Any) -> bool:
        seen.append({**facts.run, **{f"thread_{k}": v for k, v in facts.thread.items()}})
        return True

    @tool
    async def dig() -> str:
        return "never"

    rules = Policy([Rule("no-digging", tool="dig", when=looks, then="deny", reason="Not today.")], default="allow")
    miner = agent([call("dig", id="d"), say("I may not.")], dig, name="miner", policy=rules)
    chief = team(miner)

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            run = await (await runtime.start(chief, "Go.")).wait()
            numbers = summary(run._fold.record, run.id)
            assert numbers.outcomes == {"succeeded": 1, "denied": 1}
            child = child_of(run)
            assert [(f["id"], f["parent"], f["depth"]) for f in seen] == [(child.run_id, run.id, 1)]
            assert seen[0]["thread_kind"] == "dispatch"
            assert "Not today." not in str(requests(chief))

    go(main())


@law("9.cancel", "7.8")
@both
def test_cancelling_goes_down(place: Place) -> None:
    gate = Gate()
    miner = agent([call("work", at="m", id="w"), say("m")], gate.tool(), name="miner", limits=Limits(cancel_grace=0))
    smith = agent([call("blast", where="s", id="s1"), say("s")], needing([]), name="smith")
    chief = team(miner, smith)

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await gate.began("m")
            while not await run.approvals():
                await asyncio.sleep(0.001)
            await run.cancel("enough", by="ada")
            await arrives(run, "cancelled")
            assert outcomes(run) == {"miner": "Cancelled", "smith": "Cancelled"}
            for call_id in ("miner", "smith"):
                child = await runtime.get(child_of(run, call_id).run_id)
                await arrives(child, "cancelled")
                assert list(outcomes(child).values()) == ["Cancelled"]
                assert child.reason == "enough"
            assert await runtime.approvals() == []

    go(main())


@law("9.spending")
def test_limits_flow_down_and_spending_counts_up() -> None:
    cost = Usage(100, 10, cost=0.5)
    miner = agent([say("m", usage=cost)], name="miner")
    turns = [[give("miner", "Dig.", i), say("", usage=cost)] for i in ("a", "b")]
    chief = Agent("chief", ScriptedModel([*turns, say("end")]), manages=[miner], limits=Limits(tokens=350, cost=9.0))

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            run = await (await runtime.start(chief, "Go.", caller=Caller("acme", "ada"))).wait()
            first, second = (child_of(run, i) for i in ("a", "b"))
            assert first.head is not None
            assert second.head is not None
            assert (first.head.limits.tokens, first.head.limits.cost) == (240, 8.5)
            assert (second.head.limits.tokens, second.head.limits.cost) == (20, 7.5)
            assert first.head.caller == Caller("acme", "ada")
            assert first.usage == cost
            assert (run.usage.tokens, run.usage.cost) == (440, 2.0)
            assert (run.status, run.reason) == ("limited", "the limit of 350 tokens is reached")
            assert run._state.seconds >= first.seconds + second.seconds

    go(main())


@shared
@law("9.spending", "7.9", "10.every-record")
def test_every_body_below_works_for_the_caller_and_the_tenant_of_the_manager_also_after_a_pause(place: Place) -> None:
    ada, seen = Caller("acme", "ada", roles=("clerk",)), []

    def made() -> Agent:
        @tool(needs_approval=True)
        async def dig(ctx: ToolContext[Any]) -> str:
            seen.append((ctx.caller, ctx.deps))
            return "dug"

        miner = agent([call("dig", id="d"), say("mined")], dig, name="miner")
        return team(team(miner, name="foreman"))

    async def main() -> None:
        def deps(caller: Caller) -> str:
            return f"for {caller.user}"

        async with place.open(first := made(), deps=deps) as runtime:
            run = await runtime.start(first, "Go.", caller=ada)
            await arrives(run, "paused")
        async with place.open(made(), deps=deps) as runtime:
            run = await runtime.get(run.id, tenant="acme")
            with pytest.raises(NotFound):
                await runtime.approve(run.id, "d", by="eve", tenant="other")
            await run.approve("d", by="grace")
            await arrives(run, "completed")
            assert seen == [(ada, "for ada")]
            assert {row.tenant for row in await runtime.runs(tenant="acme")} == {"acme"}
            assert len(await runtime.runs(tenant="acme")) == 3
            assert await runtime.runs() == []

    go(main())


@both
@law("9.spending")
def test_what_a_childs_answers_cost_that_came_to_nothing_counts_up(place: Place) -> None:
    class Lost:
        async def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            request.discard("m", Usage(100, 7))
            raise ModelError("lost")
            yield  # what makes it a stream

    chief = Agent("chief", ScriptedModel([[give("miner", "Dig.", "a")], say("end")]), manages=[Agent("miner", Lost())])

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await (await runtime.start(chief, "Go.")).wait()
            assert (run.answer, run.usage) == ("end", Usage(100, 7))
            assert child_of(run, "a").usage == Usage(100, 7)

    go(main())


@law("9.spending")
def test_a_child_stops_when_the_budget_of_its_parent_is_used_up_by_another() -> None:
    gate = Gate()
    dear = Usage(100, 0)
    miner = agent([[call("work", at="m", id="w")], say("m")], gate.tool(), name="miner")
    smith = agent(
        [[call("work", at="s", id="w"), say("", usage=dear)], say("s", usage=dear)], gate.tool(), name="smith"
    )
    chief = team(miner, smith, limits=Limits(tokens=150))

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            run = await runtime.start(chief, "Go.")
            await gate.began("m", "s")
            gate.open("s")
            other = await runtime.get(child_of(run, "smith").run_id)
            assert (await other.wait()).status == "completed"
            gate.open("m")
            await run.wait()
            end = child_of(run, "miner").ended
            assert end is not None
            assert (end.status, end.reason) == ("limited", "the limit of 150 tokens is reached")
            assert (outcomes(run), run.status) == ({"miner": "Failed", "smith": "Succeeded"}, "limited")

    go(main())


@law("9.waiting")
def test_a_task_takes_no_slot_of_its_worker_and_no_place_of_its_tenant() -> None:
    miner = agent([say("m")], name="miner")
    chief = team(miner)

    async def main() -> None:
        quota: Callable[[str], Quota] = lambda _: Quota(running=1)  # noqa: E731  # typed
        async with Runtime(agents=[chief], max_runs=1, concurrency=1, quotas=quota) as runtime:
            run = await runtime.start(chief, "Go.")
            assert (await arrives(run, "completed")).answer == "m"

    go(main())


@law("9.waiting", "2.7.sequential")
def test_a_task_is_no_barrier_and_waits_for_none() -> None:
    gate = Gate()
    miner = agent([call("work", at="m", id="w"), say("m")], gate.tool(), name="miner")
    first = gate.tool("first", sequential=True)
    calls = [call("first", at="f", id="f"), give("miner", "Dig.", "g"), call("first", at="l", id="l")]
    chief = team(miner, calls=calls)
    chief.tool_map["first"] = first

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            run = await runtime.start(chief, "Go.")
            await gate.began("f", "m")
            gate.open("f")
            await gate.began("l")
            gate.open("l", "m")
            await run.wait()
            assert run.status == "completed"

    go(main())


@law("9.pause")
@both
def test_a_run_that_waits_for_another_is_running_and_says_so_on_record(place: Place) -> None:
    gate = Gate()
    miner = agent([call("work", at="m", id="w"), say("m")], gate.tool(), name="miner")
    chief = team(miner)

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await gate.began("m")
            await until(lambda: not runtime.driving(run.id))
            await run.refresh()
            assert (run.status, run.calls[0].state) == ("running", "waiting")
            left = [e for e in run._state.log if isinstance(e, PausedEntry)]
            assert [e.children for e in left] == [True]
            texts = [row.text for row in await runtime.timeline(run.id)]
            assert texts[-2:] == ["dispatch waits for miner, which is at work", "waits for agents at work: miner"]
            gate.open("m")
            assert (await run.wait()).answer == "m"
            assert [row.kind for row in await runtime.timeline(run.id)].count("paused") == 1
            names = [type(e).__name__ async for e in runtime.events(run.id)]
            assert "RunPaused" not in names

    go(main())


# ------------------------------------------------------------------------------------------------- ask


@law("9.ask", "7.2")
@both
def test_a_question_to_a_person_waits_and_the_answer_is_recorded(place: Place) -> None:
    chief = team(agent(name="miner"), calls=[asks("grace", "Which metal?")])
    grace = author("Human", "grace", "default")

    async def main() -> None:
        async with place.open(chief) as runtime:
            talk = await runtime.open_interaction([("Human", "ada"), ("Human", "grace")])
            run = await runtime.start(chief, "Go.", caller=Caller(user="ada"), interaction=talk.interaction_id)
            await run.wait()
            (asked,) = await run.approvals()
            assert (run.status, asked.kind, asked.approvers) == ("paused", "question", ("grace",))
            assert asked.input == {"participant": "grace", "question": "Which metal?"}
            with pytest.raises(NotAllowed):
                await run.answer_question("q", by="ada", text="Lead.")
            await run.answer("q", by="grace", text="Gold.")  # by either name
            await run.answer_question("q", by="grace", text="Gold.")
            await run.answer("q", by="grace", text="Gold.")
            with pytest.raises(DecisionConflict):
                await run.answer("q", by="grace", text="Lead.")
            await run.wait()
            assert (run.status, run.answer) == ("completed", "Gold.")
            items = await runtime.context(run.id, thread=...)
            thread = next(i["threadId"] for i in items if i["threadId"])
            assert thread.startswith(f"question:{grace.id}:")
            alone = await runtime.context(run.id, thread=thread)
            assert [(i["author"]["name"], i["text"]) for i in alone] == [("chief", "Which metal?"), ("grace", "Gold.")]
            (result,) = (i for i in items if i["kind"] == "ToolResult")
            assert (result["author"]["type"], result["author"]["name"]) == ("Human", "grace")
            assert (result["result"], result["isError"], result["threadId"]) == ("Gold.", False, None)
            assert run.results[0].attempt is None

    go(main())


@law("9.ask", "6.kept-apart")
def test_a_long_answer_is_kept_apart_and_a_person_may_refuse_to_answer() -> None:
    calls = [asks("ada", "Why?", "q1"), asks("ada", "How?", "q2")]
    chief = team(agent(name="miner"), calls=calls, limits=Limits(keep_apart_bytes=100))

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            run = await (await runtime.start(chief, "Go.", caller=Caller(user="ada"))).wait()
            await run.answer_question("q1", text="because " * 50)
            await run.reject("q2", by="ada", reason="No time.")
            await run.wait()
            assert outcomes(run) == {"q1": "Succeeded", "q2": "Rejected"}
            assert (run.results[0].tool_result_id is not None, run.results[0].result_size) == (True, 400)
            assert run.results[0].author.name == "ada"
            assert run.results[1].rejection_reason == "No time."

    go(main())


@law("9.ask", "9.threads")
def test_a_question_to_an_agent_is_a_run_on_a_thread_of_its_own() -> None:
    miner = agent([say("At 3.")], name="miner")
    chief = team(miner, calls=[asks("miner", "How deep?"), asks(MINER, "How wide?", "q2")])

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            run = await (await runtime.start(chief, "Go.")).wait()
            assert run.answer == "At 3. | At 3."
            child = child_of(run, "q")
            assert child.head is not None
            assert child.head.thread_id == f"question:{MINER}:{child.run_id}"
            private = await runtime.context(run.id, thread=f"private:{MINER}")
            assert [i["text"] for i in private] == ["How deep?", "At 3.", "How wide?", "At 3."]

    go(main())


@law("9.unknown", "3.4003")
@case("R196", "R091")
@pytest.mark.parametrize("wrong", ["smith", "clock", "chief", "nobody", ""])
def test_a_question_to_an_unknown_participant_is_a_failure_and_reaches_nobody(wrong: str) -> None:
    miner = agent([say("never")], name="miner")
    chief = team(miner, calls=[asks(wrong, "Who?"), give(wrong, "Dig.", "d")])

    async def main() -> None:
        async with Runtime(agents=[chief, agent(name="smith")]) as runtime:
            talk = await runtime.open_interaction([("Human", "ada"), ("System", "clock")])
            run = await runtime.start(chief, "Go.", caller=Caller(user="ada"), interaction=talk.interaction_id)
            await run.wait()
            assert codes(run) == {"q": ErrorCode.INVALID_INPUT, "d": ErrorCode.INVALID_INPUT}
            assert "miner (Agent), ada (Human)" in told(chief)["q"]
            assert "miner" in told(chief)["d"]
            assert requests(miner) == []
            assert len(await runtime.runs()) == 1

    go(main())


@law("9.unknown")
def test_a_name_of_two_participants_is_asked_by_its_id() -> None:
    miner = agent([say("I am the agent.")], name="miner")
    chief = team(miner, calls=[asks("miner", "Who?")])

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            run = await (await runtime.start(chief, "Go.", caller=Caller(user="miner"))).wait()
            assert codes(run) == {"q": ErrorCode.INVALID_INPUT}
            assert author("Human", "miner", "default").id in told(chief)["q"]

    go(main())


# ---------------------------------------------------------------------------------------------- limits


@law("9.depth")
def test_a_team_that_cannot_be_is_a_fault_of_its_definition() -> None:
    miner, other = agent(name="miner"), agent(name="miner")
    with pytest.raises(DefinitionError, match="two agents of the name 'miner'"):
        team(miner, other)
    with pytest.raises(
        DefinitionError, match=r"chief manages smith manages chief; .* take 'chief' out of manages= of 'smith'"
    ):
        team(team(agent(name="chief"), name="smith"))
    deep = agent(name="a0")
    for n in range(1, 5):
        deep = team(deep, name=f"a{n}")
    with pytest.raises(
        DefinitionError, match=r"4 agents below one another are the most: have one further up manage 'a0'"
    ):
        team(deep)
    with pytest.raises(DefinitionError, match="manages= takes agents, got str"):
        Agent("chief", ScriptedModel([]), manages=["miner"])  # type: ignore[list-item]  # what is refused
    with pytest.raises(DefinitionError, match="two agents have this name"):
        Runtime(agents=[team(miner), team(other, name="second")])


@law("9.depth")
def test_runs_that_wait_for_one_another_without_end_are_refused_with_a_clear_word() -> None:
    miner = agent(name="miner")
    chief = team(miner)
    again = team(agent(name="chief"), name="miner")

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            runtime.agents["miner"] = again  # of another version of the program, say
            run = await (await runtime.start("chief", "Go.")).wait()
            text = "expected an agent that is not at work on this already (miner for chief), got chief"
            assert text in told(again)["chief"]
            assert run.status == "completed"

    go(main())


@law("9.depth", "3.4290")
def test_the_depth_of_a_chain_is_limited() -> None:
    agents = [agent([say("deep")], name="a5")]
    for n in range(4, 0, -1):
        agents.append(team(agents[-1], name=f"a{n}"))
    top = agents[-1]
    over = team(agent(name="a6"), name="a5")

    async def main() -> None:
        async with Runtime(agents=[top]) as runtime:
            runtime.agents["a5"] = over  # as above
            run = await (await runtime.start(top.name, "Go.")).wait()
            assert (
                "the limit of 4 agents that wait for one another (do the work yourself) is reached" in told(over)["a6"]
            )
            assert run.status == "completed"

    go(main())


def test_what_a_manager_is_offered_names_its_team() -> None:
    miner = Agent("miner", ScriptedModel([]), description="finds ore")
    chief = team(miner, agent(name="smith"))
    offers = {t.name: t.offer for t in chief.tools}
    assert set(offers) == {"dispatch", "ask"}
    assert "- miner: finds ore\n- smith" in offers["dispatch"].description
    assert offers["dispatch"].input_schema["properties"]["agent"]["enum"] == ["miner", "smith"]  # type: ignore[index,call-overload]  # JSON
    assert miner.tools == ()


def test_in_memory_a_manager_runs_as_any_agent() -> None:
    chief = team(agent([say("m")], name="miner"))
    assert chief.run_sync("Go.").answer == "m"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@law("9.pause", "9.waiting")
def test_another_worker_may_do_the_task_and_the_manager_goes_on_here(place: Place) -> None:
    chief = team(agent([say("never")], name="miner"))
    miner = agent([say("dug elsewhere")], name="miner")

    async def main() -> None:
        async with place.open(chief) as here, place.runtime(miner) as there:
            del here.agents["miner"]
            run = await here.start("chief", "Go.")
            assert (await arrives(run, "completed")).answer == "dug elsewhere"
            assert not there.driving(run.id)

    go(main())


@law("9.dispatch")
def test_an_engine_hands_each_run_of_a_team_on(tmp_path: Path) -> None:
    miner = agent([call("blast", where="m", id="m1"), say("mined")], needing([]), name="miner")
    chief = team(miner, calls=[give("miner", "Dig.", "miner"), asks("user", "Well?")])

    async def main() -> None:
        async with Runtime(f"sqlite:///{tmp_path}/r.db", agents=[chief], dispatch="dbos") as runtime:
            run = await (await runtime.start("chief", "Go.")).wait()
            while (await run.wait()).status == "paused":
                for approval in await run.approvals():
                    if approval.kind == "question":
                        await run.answer_question(approval.call_id, text="Well.")
                    else:
                        await run.approve(approval.call_id, by="grace")
            assert (run.status, run.answer) == ("completed", "mined | Well.")

    go(main())


@law("9.dispatch", "9.ask", "9.sees")
def test_each_run_of_a_team_can_be_replayed_as_it_was() -> None:
    dig = tool(read_only=True, name="dig")(lambda: "gold")
    miner = agent([call("dig", id="d"), say("mined")], dig, name="miner")
    smith = agent([call("none", id="n")] * 2, name="smith", limits=Limits(steps=1))
    calls = [give("miner", "Dig.", "m"), give("smith", "Heat.", "s"), asks("ada", "Well?"), asks("nobody", "?", "n")]
    chief = team(miner, smith, calls=calls)

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            run = await (await runtime.start(chief, "Go.", caller=Caller(user="ada"))).wait()
            await arrives(run, "paused")
            await run.answer_question("q", by="ada", text="Well.")
            assert (await run.wait()).status == "completed"
            assert codes(run) == {"m": None, "s": 5004, "q": None, "n": 4003}
            for row in await runtime.runs():
                read = requests(runtime.agents[row.agent])
                again = await runtime.replay(row.run_id)
                assert again.ok, again.differences
                assert [step.request.messages for step in again.steps] == read
                async with Runtime(store=runtime.store) as reader:
                    alone = await reader.replay(row.run_id)
                assert [step.request.messages for step in alone.steps] == read
                assert all(step.broken is None for step in alone.steps)

    go(main())


@law("9.rises", "9.cancel", "9.threads")
@case("R089")
@both
def test_a_manager_of_managers_says_what_it_waits_for_and_each_run_is_read_and_replayed(place: Place) -> None:
    word, gate = "a private word", Gate()

    @tool
    def fail() -> str:
        raise ToolError(word)

    breaker = agent([call("fail", id="f")] * 2, fail, name="breaker", limits=Limits(steps=2))
    deep = agent([call("blast", where=word, id="b"), say(word)], needing([]), name="deep")
    slow = agent([call("work", at="s", id="w"), say("s")], gate.tool(), name="slow")
    hands = [give("deep", word, "d"), give("breaker", word, "f"), give("slow", word, "s")]
    middle = team(deep, breaker, slow, calls=hands, name="middle")
    chief = team(middle, calls=[give("middle", "Do.", "m")])

    async def main() -> None:
        async with place.open(chief) as runtime:
            first = await runtime.start(chief, "Go.")
            await gate.began("s")
            there = [("approval", "deep", "b"), ("run", "slow", "s")]

            async def waits() -> bool:
                await first.refresh()
                return [(w.kind, w.agent, w.call_id) for w in first.waits_for] == there

            await so(waits)
            told = [await runtime.timeline(first.id), first.waits_for, summary(first._fold.record, first.id)]
            says = "waits for middle, which waits for a person: blast (b of deep) and for agents at work: slow"
            assert says in str(told)
            assert word not in str(told)
            await first.cancel("Enough.")
            await arrives(first, "cancelled")
            assert first.waits_for == ()
            again = await runtime.start(chief, "Again.", interaction=first.interaction_id)
            gate.open("s")
            await arrives(again, "paused")
            (asked,) = again.waits_for
            paused = [e async for e in runtime.events(again.id)][-1]
            assert (asked.agent, paused.waiting) == ("deep", ("b",))
            await again.approve("b", by="grace")
            await arrives(again, "completed")
            for row in await runtime.runs():
                replayed = await runtime.replay(row.run_id)
                assert replayed.ok, replayed.differences
                threads = {i["threadId"] for i in await runtime.context(row.run_id, thread=...)} - {None}
                for thread in (None, "main", ..., *threads):
                    items = await runtime.context(row.run_id, thread=thread)
                    told = [r for r in await runtime.timeline(row.run_id, thread=thread) if r.kind in WRITTEN]
                    assert sorted({(i["runId"], str(i["threadId"])) for i in items}) == sorted(
                        {(r.run_id, str(r.thread_id)) for r in told}
                    )

    go(main())


WRITTEN = ("message", "turn", "call")
"""Rows of what stands in the conversation."""


@law("6.read_result-sees", "9.sees")
@both
def test_what_reads_on_is_offered_for_what_a_run_may_see_and_a_replay_says_the_same(place: Place) -> None:
    gate, long = Gate(), "g" * 5_000
    apart = Limits(keep_apart_bytes=1_000)
    dig = tool(read_only=True, name="dig")(lambda: long)
    # The miner keeps a result apart, and its answer is kept apart in its manager; the smith works on meanwhile.
    miner = agent([call("dig", id="d"), say(long)], dig, name="miner", limits=apart)
    smith = agent([call("work", at=at, id=at) for at in "ab"] + [say("s")], gate.tool(), name="smith")
    more = [give("miner", "Again.", "again"), say("done")]
    chief = team(miner, smith, then=more, limits=apart)

    def offered(of: Agent) -> list[bool]:
        return ["read_result" in [t["name"] for t in r.tools] for r in of.model.requests]  # type: ignore[union-attr]  # as `requests`

    async def main() -> None:
        async with place.open(chief) as runtime:
            run = await runtime.start(chief, "Go.")
            await gate.began("a")
            await until(lambda: "completed" in {r.status for r in run._fold.record.runs.values()})
            gate.open("a", "b")
            await run.wait()
            assert run.status == "completed", run.reason
            # Neither the other's thread nor what came to the main one after it began is the smith's to read.
            assert offered(smith) == [False, False, False]
            assert offered(miner) == [False, True, True, True]  # in its second task from the first turn on
            assert offered(chief) == [False, True, True]
            for row in await runtime.runs():
                again = await runtime.replay(row.run_id)
                assert again.ok, again.differences

    go(main())


@law("9.sees", "5.queued-message")
def test_a_message_to_a_run_is_delivered_to_that_run_alone() -> None:
    gate = Gate()
    miner = agent([call("work", at="m", id="w"), say("mined")], gate.tool(), name="miner")
    chief = team(miner)

    async def main() -> None:
        async with Runtime(agents=[chief]) as runtime:
            run = await runtime.start(chief, "Go.")
            await gate.began("m")
            assert await run.send("Hurry, chief.")
            assert await runtime.send(child_of(run).run_id, "Deeper, miner.")
            gate.open("m")
            await run.wait()
            assert [m["content"] for m in requests(miner)[-1]][-1] == "Deeper, miner."
            assert "chief" not in str(requests(miner)[-1])
            assert [m["content"] for m in requests(chief)[-1]] == ["Go.", None, "mined", "Hurry, chief."]
            for row in await runtime.runs():
                again = await runtime.replay(row.run_id)
                assert again.ok, again.differences

    go(main())
