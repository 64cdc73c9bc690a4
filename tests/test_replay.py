"""A run replayed: from the record alone as its model read it, and with today's code, of which no body runs."""

from typing import Any

import pytest

from counterfoil import Agent, Caller, Change, Hooks, Limits, Policy, Rule, Run, Runtime, Skip, ToolContext, tool
from counterfoil.core.errors import NotFound, UsageError
from counterfoil.replay import Replay, replay
from counterfoil.testing import FrozenEffects, call, say
from tests.helpers import Place, agent, both, broken, counted, fine, go, requests, told
from tests.marks import law
from tests.records import Book

TURNS = [
    [say("Both."), call("count", n=1, id="a"), call("count", n=2, id="b")],
    [call("broken", id="c"), call("nothing", id="d"), call("count", raw="{", id="e")],
    say("Done."),
]


def kinds(again: Replay) -> list[tuple[str, str | None]]:
    return [(d.kind, d.call_id) for d in again.differences]


async def ended(runtime: Runtime, desk: Agent, **options: Any) -> Run:
    return await (await runtime.start(desk, "Go on", **options)).wait()


# --------------------------------------------------------------------------------------- from the record alone


@both
def test_without_an_agent_each_request_is_what_the_model_read(place: Place) -> None:
    count, _ = counted()
    desk = agent(TURNS, count, broken, instructions="You count.")

    async def main() -> None:
        async with place.open(desk) as runtime:
            run = await ended(runtime, desk)
            del runtime.agents["desk"]
            again = await runtime.replay(run.id)
            assert (again.agent, again.ok, again.differences) == (None, True, ())
            # The record does not hold the instructions.
            assert [s.messages(all_=True) for s in again.steps] == [r[1:] for r in requests(desk)]
            assert [s.turn.text for s in again.steps] == ["Both.", "", "Done."]
            assert again.ended is not None
            assert again.ended.answer == "Done."

    go(main())


def test_a_step_tells_what_is_new_in_its_request() -> None:
    count, _ = counted()
    desk = agent(TURNS, count, broken)

    async def main() -> None:
        run = await desk.run("Go on")
        again = replay([*run._fold.record.items, *run._fold.record.runs[run.id].log], run.id)
        assert [s.read_before for s in again.steps] == [0, 1, 4]
        assert [[m["role"] for m in s.messages()] for s in again.steps] == [
            ["user"],
            ["assistant", "tool", "tool"],
            ["assistant", "tool", "tool", "tool"],
        ]

    go(main())


@both
def test_a_run_shows_what_it_read_of_the_runs_before_it(place: Place) -> None:
    desk = agent([say("One."), say("Two.")], fine)

    async def main() -> None:
        async with place.open(desk) as runtime:
            first = await ended(runtime, desk)
            second = await ended(runtime, desk, interaction=first.interaction_id)
            again = await runtime.replay(second.id)
            assert [m["content"] for m in again.steps[0].messages()] == ["Go on", "One.", "Go on"]
            assert again.ok

    go(main())


@law("2.1")
def test_a_request_that_holds_a_call_without_its_result_is_named() -> None:
    book = Book()
    book.begin()
    book.message()
    book.turn(("refund", "{}"))
    book.turn(text="Done.")
    book.end(answer="Done.")
    again = replay(book.entries, "run-1")
    assert not again.ok
    assert [s.broken is None for s in again.steps] == [True, False]
    assert "c0.0" in str(again.steps[1].broken)
    assert again.to_json()["ok"] is False


def test_a_call_without_a_model_has_no_step() -> None:
    count, seen = counted()
    desk = agent([], count)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await runtime.call("desk", "count", {"n": 3})
            again = await runtime.replay(run.id)
            assert (again.steps, again.ok, len(seen)) == ((), True, 1)
            del runtime.agents["desk"]
            assert (await runtime.replay(run.id)).steps == ()

    go(main())


# ------------------------------------------------------------------------------------------- with today's code


@both
def test_the_same_code_does_the_same_and_no_body_runs(place: Place) -> None:
    count, seen = counted()
    desk = agent(TURNS, count, broken, instructions="You count.", policy=Policy([Rule("all", "allow")]))

    async def main() -> None:
        async with place.open(desk) as runtime:
            run = await ended(runtime, desk)
            before, asked = len(seen), len(requests(desk))
            again = await runtime.replay(run.id)
            assert (again.ok, again.agent, again.differences) == (True, "desk", ())
            assert [s.messages(all_=True) for s in again.steps] == requests(desk)
            assert (len(seen), len(requests(desk))) == (before, asked) == (2, 3)
            assert [t.name for t in again.steps[0].request.tools] == ["count", "broken"]

    go(main())


@both
def test_a_replay_leaves_no_trace_in_the_store(place: Place) -> None:
    count, _ = counted(needs_approval=True)
    desk = agent(TURNS, count, broken)

    async def main() -> None:
        async with place.open(desk) as runtime:
            run = await ended(runtime, desk)
            before = await runtime.store.heads(), await runtime.runs(), await run.approvals()
            await runtime.replay(run.id)
            assert (await runtime.store.heads(), await runtime.runs(), await run.approvals()) == before

    go(main())


@tool(name="count")
async def stricter(n: int, why: str) -> str:
    """Count."""
    raise AssertionError


@both
def test_an_input_that_todays_schema_refuses_is_named_with_what_the_model_would_read(place: Place) -> None:
    count, _ = counted()
    then, now = agent(TURNS, count, broken), agent([], stricter, broken)

    async def main() -> None:
        async with place.open(then) as runtime:
            run = await ended(runtime, then)
            again = await runtime.replay(run.id, agent=now)
            assert kinds(again) == [("offered", None), ("outcome", "a"), ("outcome", "b")]
            difference = again.differences[1]
            assert difference.then == "succeeded"
            assert difference.now.startswith("failed 4003 INVALID_INPUT: The arguments of count do not fit")
            assert "why: expected" in str(again.steps[1].messages()[1]["content"])
            assert told(then, 1)["a"] == "count 1, time 1"

    go(main())


@both
def test_a_tool_that_is_gone_and_one_that_is_new_are_named(place: Place) -> None:
    count, seen = counted()

    @tool
    async def nothing() -> str:
        """Nothing."""
        raise AssertionError

    then, now = agent(TURNS, count, broken), agent([], nothing, broken)

    async def main() -> None:
        async with place.open(then) as runtime:
            run = await ended(runtime, then)
            again = await runtime.replay(run.id, agent=now)
            assert [k for k in kinds(again) if k[0] in ("gone", "new")] == [
                ("gone", "a"), ("gone", "b"), ("new", "d"), ("gone", "e"),
            ]  # fmt: skip
            (would,) = [d for d in again.differences if d.call_id == "d" and d.kind == "outcome"]
            assert would.now == "it would run"
            assert len(seen) == 2

    go(main())


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ([Rule("all", "allow")], []),
        ([Rule("all", "allow"), Rule("odd", "deny", when="input.n == 1")], ["revision", "verdict a", "outcome a"]),
        ([Rule("all", "allow"), Rule("two", "ask", when="input.n == 2")], ["revision", "verdict b"]),
        ([Rule("every", "allow")], ["revision", "verdict a", "verdict b", "verdict c"]),
        ([Rule("all", "allow", reason="So.")], ["revision"]),
        ([Rule("all", "allow", when="input.x == 1")], ["revision", "verdict a", "verdict b", "verdict c"]),
    ],
    ids=["the-same", "denies", "asks", "another-rule", "another-revision", "fails"],
)
def test_another_verdict_of_todays_policy_is_named(rules: list[Rule], found: list[str]) -> None:
    count, seen = counted()
    then = agent(TURNS, count, broken, policy=Policy([Rule("all", "allow")]))
    now = agent([], count, broken, policy=Policy(rules))

    async def main() -> None:
        async with Runtime(agents=[then]) as runtime:
            run = await ended(runtime, then)
            again = await runtime.replay(run.id, agent=now)
            named = [kind if call_id is None else f"{kind} {call_id}" for kind, call_id in kinds(again)]
            assert [n for n in named if not n.startswith("outcome") or n in found] == found
            assert len(seen) == 2

    go(main())


def test_a_policy_sees_the_hour_the_step_and_the_caller_of_then() -> None:
    effects = FrozenEffects()
    seen: list[Any] = []

    def look(facts: Any) -> bool:
        seen.append((facts.caller["user"], facts.run["step"], facts.run["calls"], facts.run["hour"]))
        return True

    def later(_: Any) -> Any:
        effects.advance(7200)
        return [call("count", n=2), call("count", n=3)]

    policy = Policy([Rule("r", "allow", when=look)])
    desk = agent([[call("count", n=1)], later, say("Done.")], counted()[0], policy=policy)

    async def main() -> None:
        async with Runtime(agents=[desk], effects=effects) as runtime:
            run = await ended(runtime, desk, caller=Caller(user="ada"))
            assert seen == [("ada", 0, 0, 12), ("ada", 1, 1, 14), ("ada", 1, 2, 14)]
            effects.advance(7200)
            assert (await runtime.replay(run.id)).ok
            assert seen[3:] == seen[:3]

    go(main())


def test_guards_before_a_call_are_asked_again_and_observers_and_later_guards_are_not() -> None:
    count, _ = counted()
    calls: list[str] = []
    change: list[Any] = [Change(input={"n": 5})]

    def before(_: Any) -> Any:
        calls.append("before")
        return change[0]

    hooks = Hooks(
        before_call=before,
        after_call=lambda _: calls.append("after"),
        before_model=lambda _: calls.append("model"),
        on_tool_error=lambda _: calls.append("error"),
        on_event=lambda _: calls.append("event"),
    )
    desk = agent([[call("count", n=1, id="a")], [call("nothing", id="b")], say("Done.")], count, hooks=hooks)

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await ended(runtime, desk)
            calls.clear()
            assert (await runtime.replay(run.id)).ok
            assert calls == ["model", "before", "model", "model"]
            change[0] = Change(input={"n": 6})
            (difference,) = (await runtime.replay(run.id)).differences
            assert (difference.kind, difference.then, difference.now) == ("input", '{"n":5}', '{"n":6}')
            change[0] = Skip("not today")
            assert ("outcome", "a") in kinds(await runtime.replay(run.id))

    go(main())


def test_deps_are_made_for_conditions_and_not_where_none_asks() -> None:
    made: list[Caller] = []

    def asks(ctx: ToolContext[str], value: dict[str, Any]) -> bool:
        return bool(ctx.deps == "shop" and value["n"] > 5)

    count, _ = counted(needs_approval=asks)
    desk, plain = (
        agent([[call("count", n=1, id="a")], say("Done.")], count),
        agent(TURNS, *[counted()[0], broken], name="plain"),
    )

    def deps(caller: Caller) -> str:
        made.append(caller)
        return "shop"

    async def main() -> None:
        async with Runtime(agents=[desk, plain], deps=deps) as runtime:
            run, other = await ended(runtime, desk), await ended(runtime, plain)
            made.clear()
            assert (await runtime.replay(run.id)).ok
            assert len(made) == 1
            # A body would get deps; none runs.
            assert (await runtime.replay(other.id)).ok
            assert len(made) == 1

    go(main())


@pytest.mark.parametrize(
    ("now", "then_words", "now_words"),
    [
        ({"ends_run": True}, "completed by answer: Done.", "completed by tool of call 0 in step 0: count 1, time 1"),
        ({"advisory": True}, None, None),
    ],
)
def test_another_end_is_named(now: dict[str, Any], then_words: str | None, now_words: str | None) -> None:
    count, _ = counted()
    other, seen = counted(**now)
    turns = [[call("count", n=1, id="a"), call("count", n=2, id="b")], say("Done.")]

    async def main() -> None:
        then = agent(turns, count)
        async with Runtime(agents=[then]) as runtime:
            run = await ended(runtime, then)
            again = await runtime.replay(run.id, agent=agent([], other))
            assert [(d.then, d.now) for d in again.differences] == ([(then_words, now_words)] if then_words else [])
            assert not seen

    go(main())


def test_an_answer_that_todays_output_type_refuses_is_named() -> None:
    then, now = agent([say("[1]")], output_type=list[int]), agent([], output_type=dict[str, int])

    async def main() -> None:
        async with Runtime(agents=[then]) as runtime:
            run = await ended(runtime, then)
            assert (await runtime.replay(run.id)).ok
            again = await runtime.replay(run.id, agent=now)
            assert [d.kind for d in again.differences] == ["message", "end"]
            assert again.differences[1].now == "it goes on"

    go(main())


# ---------------------------------------------------------------------------------------------------- refusals


@law("10.does-not-exist")
@both
def test_another_tenants_run_does_not_exist(place: Place) -> None:
    desk = agent([say("Hello.")])

    async def main() -> None:
        async with place.open(desk) as runtime:
            run = await ended(runtime, desk, caller=Caller(tenant="acme"))
            with pytest.raises(NotFound):
                await runtime.replay(run.id)
            assert (await runtime.replay(run.id, tenant="acme")).ok

    go(main())


@both
def test_what_was_erased_can_be_shown_and_not_be_asked_again(place: Place) -> None:
    count, _ = counted()
    desk = agent(TURNS, count, broken)

    async def main() -> None:
        async with place.open(desk) as runtime:
            run = await ended(runtime, desk)
            await runtime.erase(run.id)
            with pytest.raises(UsageError, match="erased"):
                await runtime.replay(run.id)
            del runtime.agents["desk"]
            again = await runtime.replay(run.id)
            assert again.steps[0].messages()[0]["content"] == "(erased)"
            assert again.ok

    go(main())


def test_a_replay_is_json() -> None:
    count, _ = counted()
    desk = agent(TURNS, count, broken, instructions="You count.")

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await ended(runtime, desk)
            data: Any = (await runtime.replay(run.id)).to_json()
            assert (data["ok"], data["runId"], data["agent"], data["differences"]) == (True, run.id, "desk", [])
            assert (data["status"], data["endedBy"], data["answer"]) == ("completed", "answer", "Done.")
            step = data["steps"][1]
            assert (step["step"], step["items"], step["readBefore"], step["stop"]) == (1, 4, 1, "calls")
            assert [m["role"] for m in step["messages"]] == ["assistant", "tool", "tool"]
            assert step["calls"][0] == {"callId": "c", "toolName": "broken", "arguments": "{}", "offered": True}
            whole: Any = (await runtime.replay(run.id)).to_json(all_=True)
            assert [m["role"] for m in whole["steps"][1]["messages"]] == [
                "system",
                "user",
                *["assistant"],
                "tool",
                "tool",
            ]

    go(main())


def test_a_context_that_was_cut_to_fit_is_cut_again_in_the_same_way() -> None:
    @tool
    async def much(n: int) -> str:
        """Much."""
        return f"{n} " * 400

    turns: list[Any] = [[call("much", n=n)] for n in range(6)]
    desk = agent([*turns, say("Done.")], much, limits=Limits(context_tokens=600))

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            run = await ended(runtime, desk)
            again = await runtime.replay(run.id)
            assert again.ok
            seen = desk.model.requests  # type: ignore[union-attr]  # a ScriptedModel
            assert [s.messages(all_=True) for s in again.steps] == [r.messages for r in seen]
            assert any("left out" in str(s.messages()) for s in again.steps)

    go(main())
