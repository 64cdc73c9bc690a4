"""A team whose process is killed at every boundary: each call finds its own run again (contract 9)."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from counterfoil import Run, Runtime
from counterfoil.core.entries import EndedEntry
from tests.marks import law
from tests.team_child import Task, begin


@dataclass(frozen=True)
class Story:
    """What was left after a kill, and after the next process had gone on."""

    name: str
    killed: int | None
    problems: list[str]
    run: Run
    below: dict[str, str]
    """Agent and status of each child run, by the thread's kind and the call's place."""
    private: list[str]
    effects: list[list[object]]
    ends: list[str]
    """The agents of the runs in the order of their ends."""


def story(task: Task) -> Story:
    """Kill at a point, and have another process go on."""
    task.folder.mkdir()
    name = str(task.point)
    killed = begin(task)
    assert begin(replace(task, point=None)) == 0, name
    return asyncio.run(read(task, name, killed))


async def read(task: Task, name: str, killed: int | None) -> Story:
    """What is on record."""
    async with Runtime(task.url) as runtime:
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
        lines = (task.folder / "effects").read_text().splitlines()
        agents = {row.run_id: row.agent for row in rows}
        entries = await runtime.store.entries("default", run.interaction_id)
        ends = [agents[e.run_id] for e in entries if isinstance(e, EndedEntry)]
        problems = [p.message for p in found.problems]
        return Story(name, killed, problems, run, below, private, [json.loads(line) for line in lines], ends)


def stories_of(fresh: Callable[[str], str], folder: Path, *, cancels: bool, every: int) -> list[Story]:
    """One story for every so many of the points that a dry run comes by.

    Nothing lies between after one point and before the next. How often a pause is tried is chance.
    """
    dry = Task(fresh("dry"), folder / "dry", cancels=cancels)
    dry.folder.mkdir()
    assert begin(dry) == 0
    names = cast("list[str]", json.loads((dry.folder / "names").read_text()))
    times = Counter[str]()
    points: list[tuple[str, int]] = []
    for name in names:
        times[name] += 1
        often = 1 if name.endswith(("paused", "resumed")) else 3
        if not name.startswith("store:before:") and times[name] <= often:
            points.append((name, times[name]))
    tasks = [Task(fresh(str(i)), folder / str(i), at, cancels) for i, at in enumerate(points[::every])]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(story, tasks))


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Gives the URL of a record that is not there yet."""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        return lambda _: cast("str", server.fresh())
    return lambda name: f"sqlite:///{tmp_path_factory.mktemp(name)}/t.db"


@pytest.fixture(scope="module")
def every(fresh: Callable[[str], str]) -> int:
    """In a server a story takes longer."""
    return 3 if "postgres" in fresh("some") else 1


@pytest.fixture(scope="module")
def stories(fresh: Callable[[str], str], every: int, tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    """Of teams that people help to their end."""
    return stories_of(fresh, tmp_path_factory.mktemp("team"), cancels=False, every=every)


@pytest.fixture(scope="module")
def cancelled(fresh: Callable[[str], str], every: int, tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    """Of teams that are cancelled at work."""
    return stories_of(fresh, tmp_path_factory.mktemp("cancelled"), cancels=True, every=every)


@law("9.recovery", "7.6")
def test_every_call_finds_its_own_run_again_and_there_is_never_a_second_one(stories: list[Story]) -> None:
    assert len(stories) > 5
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


@law("9.cancel", "7.8", "7.6")
def test_a_manager_that_was_cancelled_ends_after_those_below_it_wherever_the_process_died(
    cancelled: list[Story],
) -> None:
    assert len(cancelled) > 5
    for s in cancelled:
        assert (s.killed, s.run.status, s.run.reason) == (-signal.SIGKILL, "cancelled", "enough"), s.name
        assert s.below == {"miner (0, 0)": "cancelled", "smith (0, 1)": "cancelled"}, s.name
        assert [type(r.result.outcome).__name__ for r in s.run.results] == ["Cancelled"] * 2, s.name
        assert (len(s.ends), s.ends[-1]) == (3, "chief"), s.name
        assert "blast" not in [name for name, *_ in s.effects], s.name


@law("11.verify")
def test_the_record_keeps_its_laws_after_every_kill(stories: list[Story], cancelled: list[Story]) -> None:
    for s in (*stories, *cancelled):
        assert s.problems == [], s.name
