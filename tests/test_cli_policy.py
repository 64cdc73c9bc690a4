"""`policy test` as a person types it: what a policy would have decided, beside what was decided."""

from pathlib import Path
from typing import Any

import pytest

from counterfoil import Agent, Caller, Policy, Rule, Runtime
from counterfoil.testing import call, say
from tests.helpers import agent, broken, counted, go
from tests.test_cli import STORE, Typed, folder, run_of, type_  # noqa: F401  # `folder` is a fixture that all use
from tests.test_cli_plain import moves_or_hides

TURNS = [
    [call("count", n=1, id="a"), call("count", n=2, id="b")],
    [call("count", n=3, id="c"), call("broken", id="x"), call("nothing", id="u"), call("count", raw="{", id="i")],
    say("Done."),
]


def recorded(desk: Agent, *, caller: Caller | None = None) -> str:
    """The id of a run of this agent on the store of the command."""

    async def main() -> str:
        async with Runtime(STORE, agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on", caller=caller)).wait()
            return run.id

    return str(go(main()))


def tried(policy: str, *arguments: str) -> Typed:
    Path("policy.toml").write_text(policy, encoding="utf-8")
    return type_("policy", "test", "policy.toml", *arguments)


ALLOW = 'default = "allow"\n'
BIG = '[[rule]]\nname = "big"\ntool = "count"\nwhen = "input.n > 2"\nthen = "deny"\n'


def test_a_policy_that_decides_alike_ends_with_0() -> None:
    run = recorded(agent(TURNS, counted()[0], broken))
    typed = tried(ALLOW, run)
    assert typed.code == 0
    assert "✓ 4 calls, none differ from the record; 2 that came to no policy left out" in typed.out


def test_each_call_of_a_named_run_is_shown_beside_what_was_decided() -> None:
    run = recorded(agent(TURNS, counted()[0], broken, policy=Policy([Rule("all", "allow")])))
    typed = tried(ALLOW + BIG, run)
    assert typed.code == 1
    assert f"= count (a), run {run[:8]}" in typed.out
    assert f"≠ count (c), run {run[:8]}" in typed.out
    shown = typed.out.partition("≠ count (c)")[2].splitlines()
    assert [line.strip() for line in shown[1:4]] == [
        'input  {"n":3}', "then   allow (rule all)", "now    deny (rule big)",
    ]  # fmt: skip
    assert "✗ 4 calls, 1 differs from the record" in typed.out
    assert not [line for line in typed.out.splitlines() if len(line.rstrip()) > 80]


def test_of_all_runs_only_the_calls_that_differ_are_shown() -> None:
    first, second = (recorded(agent(TURNS, counted()[0], broken)) for _ in range(2))
    for arguments in ([], ["--all"]):
        typed = tried(ALLOW + BIG, *arguments)
        assert typed.code == 1
        assert typed.out.count("≠ count (c)") == 2
        assert "= count" not in typed.out
        assert "✗ 8 calls, 2 differ" in typed.out
    data = tried(ALLOW + BIG, "--all", "--json").data
    assert {one["runId"] for one in data["judged"]} == {first, second}
    assert (data["calls"], data["differing"], data["leftOut"], len(data["judged"])) == (8, 2, 4, 8)
    assert tried(ALLOW, "--all", first).code == 2


def test_conditions_see_what_they_saw_then() -> None:
    seen: list[Any] = []

    def look(facts: Any) -> bool:
        seen.append((facts.input, facts.caller, facts.run, facts.tool["name"]))
        return True

    caller = Caller(user="ada", roles=("support",))
    run = recorded(agent(TURNS, counted()[0], broken, policy=Policy([Rule("all", "allow", when=look)])), caller=caller)
    data = tried(ALLOW, run, "--json").data
    assert [(one["input"], one["caller"], one["run"], one["toolName"]) for one in data["judged"]] == seen
    assert [facts["calls"] for _, _, facts, _ in seen] == [0, 1, 2, 3]


def test_what_was_decided_without_a_policy_has_words_too() -> None:
    asks, _ = counted(needs_approval=True)

    async def main() -> str:
        desk = agent(TURNS, asks, broken)
        async with Runtime(STORE, agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            await run.approve("a", by="grace")
            return run.id

    run = str(go(main()))
    data = tried(ALLOW, run, "--json").data
    assert [(one["callId"], one["recorded"], one["differs"]) for one in data["judged"]] == [
        ("a", "ask", True), ("b", "ask", True),
    ]  # fmt: skip
    run = recorded(agent(TURNS, counted()[0], broken))
    assert "then   allow (no policy)" in tried(ALLOW, run).out


def test_a_call_that_a_person_refused_is_refused_when_it_comes_again() -> None:
    count, _ = counted()
    turns = [call("count", n=1, id="a"), call("count", n=1, id="b"), say("Done.")]
    policy = Policy([Rule("all", "ask")], repeat_block=True)

    async def main() -> str:
        desk = agent([[t] if isinstance(t, dict) else t for t in turns], count, policy=policy)
        async with Runtime(STORE, agents=[desk]) as runtime:
            run = await (await runtime.start(desk, "Go on")).wait()
            await run.reject("a", by="grace")
            await run.wait()
            return run.id

    run = str(go(main()))
    rules = '[[rule]]\nname = "all"\nthen = "ask"\n'
    typed = tried("repeat_block = true\n" + rules, run)
    assert typed.code == 0, typed.out
    assert "then   deny (rule repeat_block)" in typed.out
    assert tried(rules, run).code == 1


def test_a_rule_that_fails_differs_and_says_why() -> None:
    run = recorded(agent(TURNS, counted()[0], broken))
    typed = tried(ALLOW + BIG.replace("input.n", "input.m"), run)
    assert typed.code == 1
    assert "now    deny (rule big failed): " in typed.out


def test_what_strangers_wrote_neither_steers_the_terminal_nor_hides() -> None:
    run = run_of("hostile", "--yes")
    typed = tried(ALLOW, run)
    assert typed.code == 1
    assert not moves_or_hides(typed.out)


def test_without_a_run_there_is_nothing_to_judge() -> None:
    run_of("hello")
    assert tried(ALLOW).code == 0
    assert tried(ALLOW, "0000").code == 5


@pytest.mark.parametrize("store", ["sqlite:///other.db"])
def test_an_empty_store_has_no_run(store: str) -> None:
    async def main() -> None:
        async with Runtime(store):
            pass

    go(main())
    Path("policy.toml").write_text(ALLOW, encoding="utf-8")
    assert type_("policy", "test", "policy.toml", "--all", store=store).code == 5
