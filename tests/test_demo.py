"""The demo, as a person runs it: both acts in a folder of its own, and the record that it leaves."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from counterfoil import Run, Runtime
from counterfoil.doors.cli.demo_record import load_turns
from counterfoil.doors.cli.demo_tools import QUESTIONS
from tests.marks import case, law

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Played:
    """A demo that has been played."""

    folder: Path
    done: subprocess.CompletedProcess[str]
    runs: list[Run]
    problems: tuple[object, ...]


def counterfoil(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, with nobody at the terminal."""
    command = [sys.executable, "-c", "from counterfoil.doors.cli import main; main()", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def clone(folder: Path) -> None:
    """What act one looks into: a small clone with some history."""
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "README.md", folder)
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], cwd=folder, check=True)
    for number in range(3):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", f"Change {number}"], cwd=folder, check=True)


async def read(folder: Path) -> tuple[list[Run], tuple[object, ...]]:
    async with Runtime(f"sqlite:///{folder}/.counterfoil/counterfoil.db") as runtime:
        found = await runtime.verify()
        return [await runtime.get(row.run_id) for row in reversed(await runtime.runs())], found.problems


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("demo")
    clone(folder)
    done = counterfoil(folder, "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    return Played(folder, done, *asyncio.run(read(folder)))


def test_each_question_of_act_one_is_answered_by_the_tool_that_it_needs(played: Played) -> None:
    for question, run in zip(QUESTIONS, played.runs, strict=False):
        assert [(c.tool_name, c.input) for c in run.calls] == [(question.tool, question.input)]
        assert [r.executed for r in run.results] == [True]
        assert (run.status, run.ended_by) == ("completed", "answer")
        assert run.answer


def test_act_one_says_whether_the_model_is_live_or_recorded(played: Played) -> None:
    live = "runs on this machine" in played.done.stdout
    recorded = "recorded turns are played" in played.done.stdout
    assert live != recorded
    if os.environ.get("CI") == "true":
        assert live, "CI must have the small model's wheels"


@law("1.1.Succeeded", "1.1.Failed", "1.1.Denied")
@case("R164")
def test_act_two_shows_everything_that_can_happen_to_a_call(played: Played) -> None:
    run = played.runs[-1]
    ends = [(r.tool_name, type(r.result.outcome).__name__, r.error_code) for r in run.results]
    assert ends == [
        ("get_order", "Succeeded", None),
        ("get_order", "Failed", 4003),
        ("get_order", "Succeeded", None),
        ("carrier_status", "Failed", 5000),
        ("delete_order", "Denied", None),
        ("refund", "Succeeded", None),
        ("refund", "Succeeded", None),
        ("export_orders", "Succeeded", None),
        ("print_label", "Succeeded", None),
        ("read_result", "Succeeded", None),
        ("close_ticket", "Succeeded", None),
    ]
    assert [r.tool_name for r in run.results if r.tool_result_id] == ["export_orders"]
    assert [r.tool_name for r in run.results if r.ended_run] == ["close_ticket"]
    decisions = {c.tool_name: c.approval.decision for c in run.calls if c.approval}
    assert decisions == {"refund": "approve", "print_label": "record"}


@law("7.6.interrupted-ask")
def test_the_killed_call_is_not_run_again(played: Played) -> None:
    label = next(c for c in played.runs[-1].calls if c.tool_name == "print_label")
    assert label.attempt == 1
    assert "SIGKILL" in played.done.stdout


@law("11.verify")
def test_the_record_holds(played: Played) -> None:
    assert played.problems == ()
    assert "every law of the record holds" in played.done.stdout


def test_what_the_demo_says_to_type_next_works(played: Played) -> None:
    lines = [x.split() for x in played.done.stdout.splitlines() if x.startswith("  counterfoil ")]
    assert [line[1] for line in lines] == ["show", "errors", "result", "verify"]
    for line in lines:
        done = counterfoil(played.folder, *line[1:])
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_nothing_is_wider_than_the_terminal_and_what_wraps_does_so_once(played: Played) -> None:
    page = played.done.stdout
    assert max(map(len, page.splitlines())) <= 80
    assert min(map(len, page.partition("questions about")[2].partition("\n\n")[0].splitlines()[:-1])) > 50
    assert re.search(r"\n  [> ] [^\n]*SIGKILL", page)  # and stays behind its sign


def test_every_question_has_recorded_turns() -> None:
    turns = load_turns()
    for question in QUESTIONS:
        made = [(c["name"], c["arguments"]) for m in turns[question.text] for c in m.get("tool_calls", ())]
        assert made == [(question.tool, question.input)]
