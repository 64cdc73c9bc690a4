"""Pause, decisions and what became of them (contract 7.1 to 7.5, 10), through the public face."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import pytest

from counterfoil import (
    Caller,
    DecisionConflict,
    ErrorCode,
    Hooks,
    InvalidInput,
    Limits,
    NotPending,
    Policy,
    Rule,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)  # fmt: skip  # names in rows
from counterfoil.core.approval import Decision
from counterfoil.core.errors import DefinitionError, NotAllowed, UsageError
from counterfoil.testing import FrozenEffects, call, say
from tests.helpers import (
    Gate,
    Place,
    agent,
    arrives,
    both,
    broken,
    codes,
    counted,
    fine,
    go,
    outcomes,
    pending,
    requests,
    so,
    the_approval,
    told,
    until,
)  # fmt: skip  # names in rows
from tests.marks import case, law


def payer(*turns, **options):
    """An agent whose tool `pay` needs an approval, and what the bodies saw."""
    pay, seen = counted("pay", needs_approval=True)
    script = list(turns) or [[call("pay", n=1, id="a")], say("done")]
    return agent(script, pay, fine, broken, **options), seen


@both
@law("7.1")
@case("R058", "R037", "R020")
def test_a_run_pauses_when_all_that_is_open_waits_and_holds_nothing(place):
    desk, seen = payer([call("pay", n=1, id="a"), call("fine", id="b")], say("done"))

    async def main():
        async with place.open(desk) as runtime:
            before = asyncio.all_tasks()
            run = await (await runtime.start("desk", "go")).wait()
            await until(lambda: asyncio.all_tasks() <= before)
            assert run.status == "paused"
            assert outcomes(run) == {"b": "Succeeded"}
            assert [c.state for c in run.calls] == ["waiting", "settled"]
            row = await runtime.store.run("default", run.id)
            assert (row.owner, row.runnable) == (None, False)
            approval = await the_approval(run)
            assert (approval.kind, approval.tool_name, approval.input) == ("approval", "pay", {"n": 1})
            assert approval.effective_input == {"n": 1}
            assert (approval.run_id, approval.call_id) == (run.id, "a")
            await run.approve("a", by="grace", reason="fine by me")
            await run.wait()
            assert [x["n"] for x in seen] == [1]
            assert (run.answer, run.steps) == ("done", 2)
            mark = run.calls[0].approval
            assert (mark.decision, mark.by, mark.reason) == ("approve", "grace", "fine by me")
            items = desk.model.requests[1].items
            assert len({i.entry for i in items}) == len(items) == 4

    go(main())


@both
@law("7.2.one-by-one", "7.2")
@case("R029", "R031", "R043", "R049", "R050", "R073", "R070", "R071")
@pytest.mark.parametrize("order", [["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"]])
def test_several_calls_wait_at_once_and_are_decided_in_any_order(place, order):
    desk, seen = payer([call("pay", n=i, id=x) for i, x in enumerate("abc")], say("done"))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            approvals = await run.approvals()
            assert [a.call_id for a in approvals] == ["a", "b", "c"]
            assert len({a.id for a in approvals}) == 3
            for number, call_id in enumerate(order):
                await run.approve(call_id, by="grace")
                await run.wait()
                assert len(run.results) == number + 1
                assert await pending(run) == sorted(order[number + 1 :])
                assert run.status == ("paused" if number < 2 else "completed")
                assert len(requests(desk)) == (1 if number < 2 else 2)
            assert [x["n"] for x in seen] == ["abc".index(x) for x in order]
            assert list(told(desk)) == ["a", "b", "c"]

    go(main())


@both
@law("7.2.one-by-one")
def test_a_decided_call_runs_without_waiting_for_the_others(place):
    async def main():
        gate = Gate()
        pay, seen = counted("pay", needs_approval=True)
        desk = agent(
            [[call("work", at="w", id="w"), call("pay", id="a"), call("pay", n=2, id="b")], say("done")],
            gate.tool(),
            pay,
        )
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("w")
            while len(await pending(run)) < 2:
                await asyncio.sleep(0.001)
            await run.approve("b", by="grace")
            await until(lambda: seen)
            assert gate.running == {"w"}
            assert await pending(run) == ["a"]
            gate.open("w")
            await run.wait()
            assert run.status == "paused"
            await run.reject("a")
            await run.wait()
            assert outcomes(run) == {"w": "Succeeded", "a": "Rejected", "b": "Succeeded"}

    go(main())


@both
@law("7.2", "7.2.digest")
def test_the_first_decision_stands_for_ever(place):
    desk, seen = payer()

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            approval = await the_approval(run)
            with pytest.raises(DecisionConflict):
                await run.approve("a", by="eve", digest="0" * 64)
            assert await pending(run) == ["a"]
            await run.approve("a", by="grace", digest=approval.digest)
            for by in ("grace", "heidi"):
                assert (await run.approve("a", by=by, digest=approval.digest)).id == approval.id
            await run.approve("a", by="ivan")
            with pytest.raises(DecisionConflict):
                await run.reject("a", by="grace")
            with pytest.raises(DecisionConflict):
                await run.approve("a", by="grace", input={"n": 5})
            with pytest.raises(DecisionConflict):
                await run.approve("a", by="grace", digest="0" * 64)
            await run.wait()
            assert run.answer == "done"
            await run.approve("a", by="late", digest=approval.digest)
            with pytest.raises(DecisionConflict):
                await run.reject("a", by="late")
            assert len(seen) == 1
            assert run.calls[0].approval.by == "grace"

    go(main())


@both
@law("7.2")
def test_where_no_decision_is_awaited_there_is_nothing_to_decide(place):
    desk, _ = payer([call("fine", id="f"), call("pay", id="a")], say("done"))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            for call_id in ("f", "nobody"):
                with pytest.raises(NotPending):
                    await run.approve(call_id, by="grace")
                with pytest.raises(NotPending):
                    await run.approve(call_id, by="grace", input={"n": "x"})
                with pytest.raises(NotPending):
                    await run.reject(call_id, by="grace")
                with pytest.raises(NotPending):
                    await run.settle(call_id, by="grace", rerun=True)
            with pytest.raises(NotPending):
                await run.settle("a", by="grace", rerun=True)
            for nothing in (None, ToolResult.denied("no")):
                with pytest.raises(UsageError):
                    await run.settle("a", by="grace", result=nothing)
            await run.cancel()
            await run.wait()
            with pytest.raises(NotPending):
                await run.approve("a", by="grace")

    go(main())


@both
@law("7.2", "7.5")
@case("R076")
def test_of_fifty_decisions_at_once_one_counts_and_the_body_runs_once(place):
    desk, seen = payer()

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()

            async def decide(i):
                try:
                    await (run.approve("a", by=f"p{i}") if i % 2 else run.reject("a", by=f"p{i}"))
                except DecisionConflict:
                    return "conflict"
                return "approve" if i % 2 else "reject"

            answers = await asyncio.gather(*(decide(i) for i in range(50)))
            await run.wait()
            stands = run.calls[0].approval
            assert answers.count("conflict") == 25
            assert answers.count(stands.decision) == 25
            assert len(seen) == (stands.decision == "approve")
            assert outcomes(run) == {"a": "Succeeded" if stands.decision == "approve" else "Rejected"}

    go(main())


@both
@law("7.3", "1.2.call-part")
@case("R065")
def test_an_edited_input_is_what_runs_and_the_model_is_told(place):
    desk, seen = payer()

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.approve("a", by="grace", input={"n": 7})
            await run.approve("a", by="grace", input={"n": 7})  # an equal repeat
            await run.wait()
            assert [x["n"] for x in seen] == [7]
            part = run.calls[0]
            assert (part.input, part.effective_input, part.raw_input) == ({"n": 1}, {"n": 7}, '{"n":1}')
            assert '{"n":7}' in told(desk)["a"]
            assert "person changed" in told(desk)["a"]

    go(main())


@both
@law("7.3")
def test_an_edit_that_schema_or_policy_refuses_leaves_the_call_pending(place):
    policy = Policy(
        [
            Rule("cap", "deny", tool="pay", when=lambda f: f.input["n"] > 100, reason="too much"),
            Rule("ask", "ask", tool="pay"),
        ]
    )
    desk, seen = payer(policy=policy)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            for edited, why in (({"n": "many"}, "n"), ({"m": 1}, "m"), ({"n": 101}, "too much"), ([1], "input")):
                with pytest.raises(InvalidInput, match=why):
                    await run.approve("a", by="grace", input=edited)
                assert await pending(run) == ["a"]
            async with place.runtime() as reader:
                with pytest.raises(UsageError):
                    await reader.approve(run.id, "a", by="grace", input={"n": 2})
            await run.approve("a", by="grace", input={"n": 100})
            await run.wait()
            assert [x["n"] for x in seen] == [100]

    go(main())


@both
@law("7.3", "2.7.lock")
def test_an_edited_call_takes_the_lock_of_what_it_became(place):
    async def main():
        gate = Gate()

        @tool(lock="account:{name}", needs_approval=True)
        async def book(name: str, at: str) -> str:
            """Book."""
            await gate.enter(at)
            return at

        desk = agent(
            [[call("book", name="x", at="one", id="a"), call("book", name="y", at="two", id="b")], say("done")], book
        )
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.approve("a", by="grace", input={"name": "y", "at": "one"})
            await gate.began("one")
            await run.approve("b", by="grace")
            await asyncio.sleep(0.05)
            assert gate.running == {"one"}
            gate.open("one", "two")
            await run.wait()
            assert gate.most == 1

    go(main())


def two_policies():
    ask = Rule("ask", "ask", tool="pay")
    return ask, Policy([ask])


@both
@law("7.4")
@case("R064")
def test_a_policy_that_denies_meanwhile_denies(place):
    _, before = two_policies()
    desk, seen = payer(policy=before)
    strict, seen_after = payer(policy=Policy([Rule("stop", "deny", tool="pay", reason="frozen")]))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        async with place.open(strict) as runtime:
            again = await runtime.get(run.id)
            await again.approve("a", by="grace")
            await again.wait()
            assert outcomes(again) == {"a": "Denied"}
            assert again.results[0].result.outcome.rule == "stop"
            assert "frozen" in told(strict)["a"]
            assert again.calls[0].approval.by == "grace"
            assert (seen, seen_after) == ([], [])
            assert await again.errors() == []

    go(main())


@both
@law("7.4")
@case("R064")
def test_another_rule_that_asks_opens_a_new_approval_linked_to_the_old(place):
    _, before = two_policies()
    desk, _ = payer(policy=before)
    stricter, seen = payer(policy=Policy([Rule("second look", "ask", tool="pay", reason="since Monday")]))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            first = await the_approval(run)
        async with place.open(stricter) as runtime:
            again = await runtime.get(run.id)
            await again.approve("a", by="grace")
            await again.wait()
            assert again.status == "paused"
            second = await the_approval(again)
            assert (second.after, second.rule, second.reason) == (first.id, "second look", "since Monday")
            assert second.id != first.id
            assert seen == []
            await again.approve("a", by="heidi")
            await again.wait()
            assert len(seen) == 1
            assert again.status == "completed"

    go(main())


@both
@law("7.2.digest", "7.4")
@case("R064", "R070")
@pytest.mark.parametrize("named", ["digest", "approval"])
def test_a_repeat_of_the_first_decision_does_not_count_as_the_second(place, named):
    _, before = two_policies()
    desk, _ = payer(policy=before)
    stricter, seen = payer(policy=Policy([Rule("second look", "ask", tool="pay")]))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            first = await the_approval(run)
        async with place.open(stricter) as runtime:
            again = await runtime.get(run.id)
            mine = {named: first.id if named == "approval" else first.digest}
            await again.approve("a", by="grace", **mine)
            await again.wait()
            second = await the_approval(again)
            assert (second.effective_input, second.digest == first.digest) == (first.effective_input, False)
            tip = len(await runtime.store.entries("default", run.interaction_id))
            assert await again.approve("a", by="grace", **mine) == first
            for other in ({"input": {"n": 5}}, {"input": {"n": "not even a number"}}):
                with pytest.raises(DecisionConflict):
                    await again.approve("a", by="grace", **mine, **other)
            with pytest.raises(DecisionConflict):
                await again.reject("a", by="grace", **mine)
            assert len(await runtime.store.entries("default", run.interaction_id)) == tip
            assert (await pending(again), seen) == (["a"], [])
            await again.reject("a", by="heidi", digest=second.digest, approval=second.id)
            await again.wait()
            assert (outcomes(again), seen) == ({"a": "Rejected"}, [])
            assert await again.approve("a", by="grace", **mine) == first

    go(main())


@both
@law("7.3", "7.4", "1.2.call-part")
@case("R064", "R065")
def test_an_edit_that_another_rule_asks_about_again_is_told_to_the_model_all_the_same(place):
    policy = Policy(
        [
            Rule("large", "ask", tool="pay", when=lambda f: f.input["n"] > 5),
            Rule("small", "ask", tool="pay", when=lambda f: f.input["n"] <= 5),
        ]
    )
    desk, seen = payer(policy=policy)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            first = await the_approval(run)
            await run.approve("a", by="grace", input={"n": 7}, digest=first.digest)
            await run.wait()
            second = await the_approval(run)
            assert (second.rule, second.after) == ("large", first.id)
            assert (second.input, second.effective_input) == ({"n": 1}, {"n": 7})
            await run.approve("a", by="heidi", digest=second.digest)
            await run.wait()
            assert [x["n"] for x in seen] == [7]
            assert 'person changed the arguments of pay before it ran: {"n":7}' in told(desk)["a"]
            part = run.calls[0]
            assert (part.input, part.effective_input, part.approval.by) == ({"n": 1}, {"n": 7}, "heidi")
            assert run.results[0].output == "pay 7, time 1"
            (row,) = [row for row in await runtime.timeline(run.id) if row.kind == "call"]
            assert row.notes == ("edited by grace: n: 1 → 7",)

    go(main())


@both
@law("7.3", "7.6")
@pytest.mark.parametrize("how", ["again", "rerun", "record"])
def test_an_edit_is_told_also_where_the_body_died_and_the_call_went_on_elsewhere(place, how):
    async def main():
        gate = Gate()
        book = gate.tool("book", needs_approval=True, idempotent=how == "again")
        script = [[call("book", at="x", id="a")], say("done")]
        async with place.runtime(agent(script, book)) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.approve("a", by="grace", input={"at": "y"})
            await gate.began("y")
        desk = agent(script, book)
        async with place.open(desk) as runtime:
            gate.open("y")
            again = await runtime.get(run.id)
            if how != "again":
                await arrives(again, "paused")
                given = {"rerun": True} if how == "rerun" else {"result": ToolResult.text("y done")}
                await again.settle("a", by="heidi", **given)
            await arrives(again, "completed")
            assert told(desk)["a"] == '[A person changed the arguments of book before it ran: {"at":"y"}]\ny done'
            assert again.results[0].output == "y done"
            (row,) = [row for row in await runtime.timeline(run.id) if row.kind == "call"]
            assert row.notes[0] == 'edited by grace: at: "x" → "y"'

    go(main())


@both
@law("7.4", "7.6", "3.after-start")
@pytest.mark.parametrize("how", ["denied", "gone", "changed"])
def test_where_a_further_attempt_is_refused_the_model_reads_that_an_earlier_one_ran(place, how):
    async def main():
        gate = Gate()
        script = [[call("work", at="x", id="a")], say("done")]
        async with place.runtime(agent(script, gate.tool())) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("x")

        @tool
        async def work(where: str) -> str:
            """Work, as of today."""
            return where

        tools = {"denied": [gate.tool()], "gone": [fine], "changed": [work]}[how]
        policy = Policy([Rule("stop", "deny", tool="work", reason="frozen")]) if how == "denied" else None
        desk = agent(script, *tools, policy=policy)
        async with place.open(desk) as runtime:
            again = await arrives(await runtime.get(run.id), "paused")
            await again.settle("a", by="grace", rerun=True)
            await arrives(again, "completed")
            assert outcomes(again) == {"a": "Denied" if how == "denied" else "Failed"}
            assert "Nothing ran" not in told(desk)["a"]
            assert "an earlier attempt may have had an effect" in told(desk)["a"]
            assert again.results[0].failure is None or again.results[0].failure.body == "unknown"
            assert gate.log == ["+x", "-x"]

    go(main())


@both
@law("7.4", "1.2.call-part")
def test_an_approval_and_its_call_name_the_policy_as_it_was(place):
    ask, before = two_policies()
    desk, _ = payer(policy=before)
    after = Policy([ask, Rule("other", "deny", tool="fine")])
    same, _ = payer(policy=after)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            approval = await the_approval(run)
            assert (approval.revision, approval.rule) == (before.revision, "ask")
            assert approval.to_json()["revision"] == before.revision
            assert run.calls[0].decision["revision"] == before.revision
        async with place.open(same) as runtime:
            again = await runtime.get(run.id)
            assert (await again.approve("a", by="grace")).revision == before.revision
            await again.wait()
            # What judged it when it started is on record too.
            assert again.calls[0].decision["revision"] == after.revision != before.revision

    go(main())


@both
@law("10.who-decides")
@pytest.mark.parametrize("rule", [None, {}, {"approvers": ("ivan",)}], ids=["the tool asks", "a rule asks", "names"])
def test_a_tool_names_who_may_decide_on_its_calls_unless_the_rule_that_asks_does(place, rule):
    pay, seen = counted("pay", needs_approval=rule is None, approvers=["role:lead"], not_caller=True)
    policy = None if rule is None else Policy([Rule("ask", "ask", tool="pay", **rule)])
    desk = agent([[call("pay", n=1, id="a")], say("done")], pay, policy=policy)
    allowed = "ivan" if rule else "grace"

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go", caller=Caller(user="ada"))).wait()
            approval = await the_approval(run)
            assert (approval.approvers, approval.not_user) == (("ivan",) if rule else ("role:lead",), "ada")
            for by, roles in (("ada", ("lead",)), ("eve", ()), ("heidi", ("clerk",))):
                with pytest.raises(NotAllowed):
                    await run.approve("a", by=by, roles=roles)
            await run.approve("a", by=allowed, roles=("lead",))
            await run.wait()
            assert len(seen) == 1

    go(main())


@both
@law("10.who-decides", "7.6.interrupted-ask")
def test_who_might_not_let_a_call_run_may_not_let_it_run_again(place):
    async def main():
        gate = Gate()
        policy = Policy([Rule("lead", "ask", tool="book", approvers=("role:lead",), not_caller=True)])
        script = [[call("book", at="x", id="a")], say("done")]
        desk = agent(script, gate.tool("book"), policy=policy)
        async with place.runtime(desk) as runtime:
            run = await (await runtime.start("desk", "go", caller=Caller(user="ada"))).wait()
            await run.approve("a", by="grace", roles=("lead",))
            await gate.began("x")
        async with place.open(desk) as runtime:
            again = await arrives(await runtime.get(run.id), "paused")
            approval = await the_approval(again)
            assert (approval.kind, approval.approvers, approval.not_user) == ("interrupted", ("role:lead",), "ada")
            for by, roles in (("ada", ("lead",)), ("eve", ())):
                with pytest.raises(NotAllowed):
                    await again.settle("a", by=by, roles=roles, rerun=True)
            await again.settle(
                "a", by="grace", roles=("lead",), result=ToolResult.text("booked"), digest=approval.digest
            )
            await again.wait()
            assert again.results[0].output == "booked"

    go(main())


@both
@law("7.4")
@case("R064")
@pytest.mark.parametrize("now", [{"approvers": ("heidi",)}, {"when": "input.n > 0"}], ids=["approvers", "condition"])
def test_a_rule_of_the_same_name_that_was_tightened_asks_again(place, now):
    _, before = two_policies()
    desk, _ = payer(policy=before)
    stricter, seen = payer(policy=Policy([Rule("ask", "ask", tool="pay", **now)]))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            first = await the_approval(run)
        async with place.open(stricter) as runtime:
            again = await runtime.get(run.id)
            await again.approve("a", by="grace")
            await again.wait()
            assert (again.status, seen) == ("paused", [])
            assert (await the_approval(again)).after == first.id
            await again.approve("a", by="heidi")
            await again.wait()
            assert (again.status, len(seen)) == ("completed", 1)

    go(main())


@both
@law("7.4")
@case("R038")
def test_the_same_unchanged_rule_lets_the_approval_hold(place):
    ask, before = two_policies()
    desk, _ = payer(policy=before)
    same, seen = payer(policy=Policy([ask, Rule("other", "deny", tool="fine")], default="allow"))

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        async with place.open(same) as runtime:
            again = await runtime.get(run.id)
            await again.approve("a", by="grace")
            await again.wait()
            assert (again.status, len(seen)) == ("completed", 1)
            assert again.calls[0].decision["rule"] == "ask"

    go(main())


@both
@law("3.resume-no-guard", "3.no-rewrite", "7.4")
def test_resuming_runs_no_guard_again(place):
    guarded = []
    pay, seen = counted("pay", needs_approval=True)
    desk = agent(
        [[call("pay", n=1, id="a")], say("done")], pay, hooks=Hooks(before_call=lambda b: guarded.append(b.input))
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.approve("a", by="grace")
            await run.wait()
            assert (guarded, len(seen)) == ([{"n": 1}], 1)

    go(main())


@both
@law("2.9", "3.4002")
@case("R046")
def test_a_tool_that_is_gone_after_a_deploy_is_not_offered(place):
    desk, _ = payer()
    without = agent([[call("pay")], say("went on")], fine)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        async with place.open(without) as runtime:
            again = await runtime.get(run.id)
            await again.approve("a", by="grace")
            await again.wait()
            assert codes(again) == {"a": ErrorCode.NOT_OFFERED}
            assert again.answer == "went on"

    go(main())


@both
@law("2.9")
def test_an_input_must_also_fit_the_schema_of_now(place):
    desk, _ = payer([call("pay", n=1, id="a")], say("done"))

    @tool(needs_approval=True)
    async def pay(cents: int) -> str:
        """Pay, as of today."""
        return "paid"

    changed = agent([[call("pay")], say("went on")], pay)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        async with place.open(changed) as runtime:
            again = await runtime.get(run.id)
            await again.approve("a", by="grace")
            await again.wait()
            assert codes(again) == {"a": ErrorCode.INVALID_INPUT}
            assert "cents" in told(changed)["a"]

    go(main())


@both
@law("3.4081")
def test_an_approval_that_nobody_decides_expires_by_itself(place):
    effects = FrozenEffects()
    policy = Policy([Rule("ask", "ask", tool="pay", expires_in=60)])
    desk, seen = payer([call("pay", n=1, id="a")], say("went on"), policy=policy)

    async def main():
        async with place.open(desk, effects=effects) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            assert (await the_approval(run)).expires_at is not None
            effects.advance(61)
            assert await run.approvals() == []
            with pytest.raises(NotPending):
                await run.approve("a", by="grace")
            await run.wait()
            assert codes(run) == {"a": ErrorCode.APPROVAL_EXPIRED}
            assert run.answer == "went on"
            assert seen == []
            with pytest.raises(NotPending):
                await run.approve("a", by="grace")

    go(main())


@both
@law("3.4081", "2.5")
def test_an_expiry_settles_that_call_alone_while_others_run_or_wait(place):
    policy = Policy(
        [
            Rule("soon", "ask", tool="pay", when=lambda f: f.input["n"] == 1, expires_in=0.02),
            Rule("ask", "ask", tool="pay"),
        ]
    )

    async def main():
        gate = Gate()
        pay, seen = counted("pay")
        desk = agent(
            [[call("pay", n=1, id="a"), call("pay", n=2, id="b"), call("work", at="w", id="w")], say("done")],
            pay, gate.tool(read_only=True), policy=policy,
        )  # fmt: skip  # rows by what belongs together
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            await gate.began("w")
            while codes(await run.refresh()) != {"a": ErrorCode.APPROVAL_EXPIRED}:
                await asyncio.sleep(0.001)
            gate.open("w")
            await run.wait()
            assert await pending(run) == ["b"]
            await run.approve("b", by="grace")
            await run.wait()
            assert [x["n"] for x in seen] == [2]

    go(main())


@both
@law("7.2", "3.4081")
def test_a_decision_of_another_process_in_time_counts_though_the_driver_sees_it_after_the_time(place):
    async def main():
        gate, effects = Gate(), FrozenEffects()
        pay, paid = counted("pay", needs_approval=True)
        desk = agent([[call("pay", id="p"), call("work", at="w", id="w")], say("done")], pay, gate.tool())
        limits = Limits(approval_seconds=10)
        async with place.open(desk, effects=effects, limits=limits) as runtime, place.runtime(effects=effects) as other:
            run = await runtime.start("desk", "go")
            await gate.began("w")
            await so(run.approvals)
            # Straight into the record, so that the driver has not looked when the time is over.
            decision = Decision("approve", "grace", at=effects.now())
            await other.store.decide("default", run.id, "p", decision)
            effects.advance(20)
            gate.open("w")
            await run.wait()
            assert outcomes(run) == {"p": "Succeeded", "w": "Succeeded"}
            assert len(paid) == 1

    go(main())


@both
@law("3.4081")
def test_a_paused_run_goes_on_by_itself_when_its_approval_expires(place):
    desk, _ = payer([call("pay", n=1, id="a")], say("went on"), limits=Limits(approval_seconds=0.02))

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go")
            while (await run.refresh()).status != "completed":
                await asyncio.sleep(0.001)
            assert codes(run) == {"a": ErrorCode.APPROVAL_EXPIRED}

    go(main())


@both
@law("7.2.one-by-one")
@case("R074")
def test_one_by_one_opens_one_approval_at_a_time(place):
    desk, seen = payer(
        [call("pay", n=1, id="a"), call("fine", id="f"), call("pay", n=2, id="b"), call("pay", n=3, id="c")],
        say("done"),
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go", approvals="one-by-one")).wait()
            assert run.status == "paused"
            for call_id in ("a", "b", "c"):
                assert await pending(run) == [call_id]
                with pytest.raises(NotPending):
                    await run.approve("nobody", by="grace")
                await (run.reject(call_id, by="grace") if call_id == "b" else run.approve(call_id, by="grace"))
                await run.wait()
            assert outcomes(run) == {"a": "Succeeded", "f": "Succeeded", "b": "Rejected", "c": "Succeeded"}
            assert [x["n"] for x in seen] == [1, 3]
            with pytest.raises(ValueError, match="any-order"):
                await runtime.start("desk", "go", approvals="never")

    go(main())


@both
@law("10.who-decides")
def test_who_may_decide_can_be_limited(place):
    policy = Policy([Rule("lead", "ask", tool="pay", approvers=("grace", "role:lead"), not_caller=True)])
    desk, seen = payer(policy=policy)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go", caller=Caller(user="ada", roles=("lead",)))).wait()
            for by, roles in (("eve", ()), ("eve", ("clerk",)), ("ada", ("lead",)), (None, ())):
                with pytest.raises(NotAllowed):
                    await run.approve("a", by=by, roles=roles)
                with pytest.raises(NotAllowed):
                    await run.reject("a", by=by, roles=roles)
            assert await pending(run) == ["a"]
            await run.approve("a", by="heidi", roles=("lead",))
            await run.wait()
            assert len(seen) == 1
            assert run.calls[0].approval.by == "heidi"

    go(main())


@both
@law("4.rejection", "1.2.rejectionReason")
@case("R056")
@pytest.mark.parametrize("block", [True, False])
def test_the_very_call_that_a_person_rejected_can_be_blocked(place, block):
    policy = Policy([Rule("ask", "ask", tool="pay")], default="allow", repeat_block=block)
    desk, seen = payer(
        [call("pay", n=1, id="a")], [call("pay", n=1, id="b"), call("pay", n=2, id="c")], say("done"), policy=policy
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.reject("a", by="grace", reason="too early")
            await run.wait()
            text = told(desk)["a"]
            assert "person refused" in text
            assert "too early" in text
            assert "not try" in text
            assert run.results[0].rejection_reason == "too early"
            assert await pending(run) == (["c"] if block else ["b", "c"])
            if block:
                assert outcomes(run)["b"] == "Denied"
            await run.cancel()
            await run.wait()
            assert seen == []

    go(main())


@both
@law("4.rejection", "7.9")
@case("R056")
def test_a_call_that_a_person_rejected_stays_blocked_when_another_process_goes_on(place):
    policy = Policy([Rule("ask", "ask", tool="pay")], repeat_block=True)
    turns = [
        [call("pay", n=1, id="a")], [call("pay", n=2, id="b")],
        [call("pay", raw='{ "n": 1 }', id="c"), call("pay", n=3, id="d")], say("done"),
    ]  # fmt: skip  # rows by what belongs together

    async def main():
        async with place.open(payer(*turns, policy=policy)[0]) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.reject("a", by="grace")
            await run.wait()
            assert await pending(run) == ["b"]
        desk, seen = payer(*turns, policy=policy)
        async with place.open(desk) as runtime:
            again = await runtime.get(run.id)
            await again.approve("b", by="grace")
            await again.wait()
            assert outcomes(again) == {"a": "Rejected", "b": "Succeeded", "c": "Denied"}
            assert await pending(again) == ["d"]
            assert "Do not try the same call again" in told(desk, 0)["a"]
            assert [x["n"] for x in seen] == [2]

    go(main())


@both
@law("2.9", "7.2.digest")
@case("R052", "R053")
def test_a_rejected_dynamic_tool_is_never_called(place):
    ran = []
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False}
    tool_ = Tool(
        "made", "Made elsewhere.", schema, lambda arguments: ran.append(arguments) or "ran", needs_approval=True
    )
    desk = agent([[call("made", x=1, id="a")], [call("made", x=2, id="b")], say("done")], tool_)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.reject("a")
            await run.wait()
            assert (ran, outcomes(run)) == ([], {"a": "Rejected"})
            assert run.results[0].rejection_reason
            await run.approve("b", by="grace", input={"x": 3})
            await run.wait()
            assert ran == [{"x": 3}]

    go(main())


@both
@law("7.9", "7.4")
@case("R052")
def test_a_rejection_counts_where_no_policy_asks_any_more(place):
    ask = Policy([Rule("ask", "ask", tool="count")])
    count, seen = counted()
    script = [[call("count", n=1, id="a")], say("done")]

    async def main():
        async with place.open(agent(script, count, policy=ask)) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        async with place.open(agent(script, count)) as runtime:
            again = await runtime.get(run.id)
            await again.reject("a", by="grace")
            await again.wait()
            assert (seen, outcomes(again), again.answer) == ([], {"a": "Rejected"}, "done")

    go(main())


@both
@law("7.1", "7.2.digest")
@case("R059", "R061", "R067", "R068")
def test_an_approval_is_of_one_call_alone_and_the_model_waits_for_each(place):
    pay, paid = counted("pay", needs_approval=True)
    send, sent = counted("send", needs_approval=True)
    edits = []
    schema = {"type": "object", "properties": {"file": {"type": "string"}}}
    edit = Tool("edit", "Edit a file.", schema, lambda given: edits.append(given["file"]) or "ok", needs_approval=True)
    turns = [
        [call("pay", n=10, id="a")],
        # The same arguments once more under another id, more of them, another tool, another object.
        [
            call("pay", n=10, id="b"), call("pay", n=1000, id="c"), call("send", n=10, id="d"),
            call("edit", file="A", id="e"),
        ],
        [call("edit", file="B", id="f")],
        say("done"),
    ]  # fmt: skip  # what comes together
    desk = agent(turns, pay, send, edit)

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            first = await the_approval(run)
            with pytest.raises(TypeError, match="scope"):
                await run.approve("a", by="grace", scope="run")
            assert (await pending(run), len(requests(desk))) == (["a"], 1)
            await run.approve("a", by="grace", digest=first.digest)
            await run.wait()
            assert [x["n"] for x in paid] == [10]
            assert (await pending(run), len(requests(desk))) == (["b", "c", "d", "e"], 2)
            seen = {a.call_id: a.digest for a in await run.approvals()}
            # What is bound is tool and input, and not the id that a model happened to give.
            assert {call_id for call_id, digest in seen.items() if digest == first.digest} == {"b"}
            for other in ("c", "d", "e"):
                with pytest.raises(DecisionConflict):
                    await run.approve(other, by="grace", digest=first.digest)
                with pytest.raises(NotPending):
                    await run.approve(other, by="grace", approval=first.id)
            for call_id in "bcd":
                await run.reject(call_id, by="grace")
            await run.approve("e", by="grace")
            await run.wait()
            assert (await pending(run), edits, len(requests(desk))) == (["f"], ["A"], 3)
            await run.reject("f", by="grace")
            await run.wait()
            assert ([x["n"] for x in paid], sent, edits, run.answer) == ([10], [], ["A"], "done")

    go(main())


@law("7.2.digest", "7.4")
@case("R062")
def test_an_input_that_was_changed_in_the_store_after_its_approval_never_runs(tmp_path):
    place = Place("sqlite", tmp_path)
    desk, seen = payer()

    async def main():
        async with place.runtime(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
        async with place.runtime() as reader:
            await reader.approve(run.id, "a", by="grace")
        with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as db, db:
            forged = '"effectiveInput":{"n":1}', '"effectiveInput":{"n":9}'
            db.execute("UPDATE entries SET content = CAST(replace(content, ?, ?) AS BLOB)", forged)
            db.execute("UPDATE approvals SET asked = CAST(replace(asked, ?, ?) AS BLOB)", forged)
        async with place.runtime(desk) as runtime:
            again = await arrives(await runtime.get(run.id), "completed")
            assert (seen, outcomes(again)) == ([], {"a": "Denied"})
            assert "not the one that was approved" in told(desk)["a"]
            assert (await runtime.verify()).problems

    go(main())


@both
@law("8.surrogate", "7.2")
@case("R137", "R139", "R140")
def test_half_a_surrogate_in_a_name_or_a_key_breaks_no_reader_on_any_store(place):
    half, whole = "a\ud800", "a\ufffd"
    pay, seen = counted("pay", needs_approval=True)
    desk = agent([[call("pay", n=1, id="a"), call("pay", n=2, id="b")], say("done")], pay)

    async def main():
        async with place.open(desk) as runtime:
            run = await runtime.start("desk", "go", caller=Caller(user=half, roles=(half,)), key=half)
            await run.wait()
            again = await runtime.start("desk", "go", caller=Caller(user=half), key=half)
            assert again.id == run.id
            await run.approve("a", by=half, roles=(half,))
            await run.reject("b", by=half)
            await run.send("hurry", by=half)
            await arrives(run, "completed")
            names = [i.author.name for i in run.items if i.kind != "TOOL_CALL"]
            assert names == [whole, "desk", whole, whole, "desk"]
            assert [(c.approval.decision, c.approval.by) for c in run.calls] == [("approve", whole), ("reject", whole)]
            assert seen[0]["caller"] == Caller(user=whole, roles=(whole,))
            assert len(await runtime.context(run.id)) == len(run.items)
            assert await runtime.timeline(run.id)
            paused = await (await runtime.start("desk", "go")).wait()
            await paused.cancel(by=half)
            await arrives(paused, "cancelled")
            with pytest.raises(DefinitionError, match="half a surrogate"):
                agent([], name=half)

    go(main())


@both
@case("R035")
@law("7.9")
def test_what_a_tool_stored_before_a_pause_and_after_it_is_all_there(place):
    memo = []

    @tool
    async def note(ctx: ToolContext, text: str) -> str:
        """Note."""
        return await ctx.memo("note", lambda: memo.append(text) or text)

    pay, _ = counted("pay", needs_approval=True)
    desk = agent(
        [[call("note", text="before", id="n"), call("pay", id="a")], [call("note", text="after", id="m")], say("done")],
        note,
        pay,
    )

    async def main():
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", "go")).wait()
            await run.approve("a", by="grace")
            await run.wait()
            assert [r.output for r in run.results if r.tool_name == "note"] == ["before", "after"]
            assert memo == ["before", "after"]

    go(main())
