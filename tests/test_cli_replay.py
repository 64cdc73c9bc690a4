"""`replay` as a person types it: the steps in 80 columns, and what today's code would do otherwise."""

from pathlib import Path

import pytest

from tests.test_cli import folder, run_of, type_  # noqa: F401  # a fixture that every test uses
from tests.test_cli_plain import moves_or_hides

OTHER = """
from tests import cli_desk
from counterfoil import Agent, Policy, Rule, tool
from counterfoil.testing import ScriptedModel

@tool(needs_approval=True)
def refund(order_id: str, cents: int, why: str) -> str:
    "Refund part of an order."
    raise AssertionError

desk = Agent("desk", ScriptedModel([]), tools=[cli_desk.get_order, refund])
"""


def wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line.rstrip()) > 80]


def test_without_an_agent_the_steps_are_shown_and_the_code_is_0() -> None:
    run = run_of("desk", "--yes")
    typed = type_("replay", run)
    assert typed.code == 0
    assert "from the record alone" in typed.out
    assert "step 0: the model read 1 item\n" in typed.out
    assert "step 1: the model read 3 items, 1 of them as before" in typed.out
    assert "= get_order" in typed.out
    assert "✓ ok: 3 steps, calls and results pair in each request" in typed.out
    assert not wide(typed.out)


def test_with_the_same_agent_nothing_differs() -> None:
    run_of("desk", "--yes")
    typed = type_("replay", "last", "tests.cli_desk:desk")
    assert typed.code == 0
    assert "with desk of today; no tool ran" in typed.out
    assert "✓ ok: 3 steps, nothing differs from the record" in typed.out


def test_a_difference_is_shown_with_then_and_now_and_the_code_is_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_of("desk", "--yes")
    Path("other_desk.py").write_text(OTHER, encoding="utf-8")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    typed = type_("replay", "last", "other_desk:desk")
    assert typed.code == 1
    assert "≠ outcome: step 1, refund (pay-1)" in typed.out
    assert "then  succeeded" in typed.out
    assert "now   failed 4003 INVALID_INPUT: The arguments of refund do not fit." in typed.out
    assert "differences in 3 steps" in typed.out
    assert not wide(typed.out)
    data = type_("replay", "last", "other_desk:desk", "--json")
    assert (data.code, data.data["ok"], data.data["agent"]) == (1, False, "desk")
    assert {"offered", "outcome"} <= {d["kind"] for d in data.data["differences"]}


def test_full_shows_each_request_whole() -> None:
    run_of("desk", "--yes")
    assert type_("replay", "last").out.count("Go on") == 1
    assert type_("replay", "last", "--full").out.count("Go on") == 3
    data = type_("replay", "last", "--full", "--json").data
    assert [len(step["messages"]) for step in data["steps"]] == [1, 3, 5]


def test_with_json_the_steps_are_one_object() -> None:
    run = run_of("clumsy")
    typed = type_("replay", run, "--json")
    assert (typed.code, typed.data["runId"], typed.data["ok"]) == (0, run, True)
    assert [step["readBefore"] for step in typed.data["steps"]] == [0, 1]
    assert typed.data["steps"][0]["calls"][0]["callId"] == "e1"


def test_what_strangers_wrote_neither_steers_the_terminal_nor_hides() -> None:
    run_of("hostile", "--yes")
    for flag in ([], ["--full"]):
        typed = type_("replay", "last", "tests.cli_desk:hostile", *flag)
        assert typed.code == 0
        assert not moves_or_hides(typed.out)


def test_an_unknown_run_is_not_found_and_an_unknown_agent_is_wrong_use() -> None:
    run_of("hello")
    assert type_("replay", "0000").code == 5
    assert type_("replay", "last", "tests.cli_desk:nobody").code == 2
