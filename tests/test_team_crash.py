"""A team whose process is killed at every kind of boundary: each call finds its own run again (contract 9)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from counterfoil import Run, Runtime
from tests.marks import law

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Story:
    """What was left after a kill, and after the next process had gone on."""

    name: str
    killed: int
    problems: list[str]
    run: Run
    below: dict[str, str]
    """Agent and status of each child run, by the thread's kind and the call's place."""
    private: list[str]
    effects: list[list[object]]


def child(folder: Path, point: str) -> subprocess.CompletedProcess[str]:
    """One process of the run, to its end."""
    command = [sys.executable, "-m", "tests.team_child", f"sqlite:///{folder}/t.db", f"{folder}/effects", point]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def story(folder: Path, name: str) -> Story:
    """Kill at a point, and have another process go on."""
    folder.mkdir()
    killed = child(folder, name)
    again = child(folder, "none")
    assert again.returncode == 0, f"{name}: {again.stderr[-2000:]}"
    return asyncio.run(read(folder, name, killed.returncode))


async def read(folder: Path, name: str, killed: int) -> Story:
    """What is on record."""
    async with Runtime(f"sqlite:///{folder}/t.db") as runtime:
        found = await runtime.verify()
        rows = await runtime.runs()
        run = await runtime.get(next(row.run_id for row in rows if row.parent is None))
        below = {}
        for row in rows:
            head = run._fold.record.runs[row.run_id].head
            if row.parent is not None and head is not None:
                below[f"{head.agent} {head.call}"] = row.status
        every = await runtime.context(run.id, thread=...)
        private = [cast("str", i["text"]) for i in every if str(i["threadId"]).startswith("private:")]
        lines = (folder / "effects").read_text().splitlines()
        problems = [p.message for p in found.problems]
        return Story(name, killed, problems, run, below, private, [json.loads(line) for line in lines])


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    """One story for each kind of point that a dry run comes by; nothing lies between after one and before the next."""
    folder = tmp_path_factory.mktemp("team")
    (folder / "dry").mkdir()
    dry = child(folder / "dry", "none")
    assert dry.returncode == 0, dry.stderr
    names = cast("list[str]", json.loads(dry.stdout.splitlines()[-1]))
    kinds = [name for name in dict.fromkeys(names) if not name.startswith("store:before:")]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda one: story(folder / str(one[0]), one[1]), enumerate(kinds)))


@law("9.recovery", "7.6")
def test_every_call_finds_its_own_run_again_and_there_is_never_a_second_one(stories: list[Story]) -> None:
    assert len(stories) > 10
    for s in stories:
        assert (s.killed, s.run.status) == (-signal.SIGKILL, "completed"), s.name
        assert s.below == {"miner (0, 0)": "completed", "smith (0, 1)": "completed"}, s.name
        assert [r.call_id for r in s.run.results] == ["m", "s", "a"], s.name
        assert [r.result.model_output for r in s.run.results] == ["gold", "ring", "Well."], s.name


@law("9.recovery", "9.private")
def test_what_an_agent_did_is_remembered_once_after_every_kill(stories: list[Story]) -> None:
    for s in stories:
        assert sorted(s.private) == ["Dig.", "Forge.", "gold", "ring"], s.name


@law("9.recovery", "7.5")
def test_an_effect_of_a_child_that_may_not_come_twice_comes_once_at_most(stories: list[Story]) -> None:
    for s in stories:
        assert Counter(name for name, *_ in s.effects)["blast"] <= 1, s.name
        assert len({key for name, key, _ in s.effects if name == "dig"}) == 1, s.name


@law("11.verify")
def test_the_record_keeps_its_laws_after_every_kill(stories: list[Story]) -> None:
    for s in stories:
        assert s.problems == [], s.name
