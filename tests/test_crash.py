"""Nothing lost, nothing twice: a process is killed at every boundary of a batch, the run driven again (contract 7)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from counterfoil import Run, Runtime
from tests.marks import case, law

ROOT = Path(__file__).parent.parent
SAFE = {"look", "put"}
ORDER = ["c-look", "c-put", "c-charge", "c-refund", "c-second"]


@dataclass(frozen=True)
class Story:
    """What was left after a kill, and after the recovery."""

    point: int
    name: str
    killed: int
    finished_before: dict[str, str]
    """Calls with a result when the process died, with what it says."""
    effects_before: list[list[object]]
    effects: list[list[object]]
    status: str
    results: dict[str, list[str]]
    errors: dict[str, int | None]
    problems: list[str]


def child(url: str, folder: Path, point: int, engine: str) -> subprocess.CompletedProcess[str]:
    """One process of the run."""
    command = [sys.executable, "-m", "tests.crash_child", url, str(folder / "effects"), str(point), engine]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def effects_of(folder: Path) -> list[list[object]]:
    """What the world saw."""
    path = folder / "effects"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def read(url: str) -> tuple[Run | None, list[str]]:
    """The only run on record, read by a process that drives nothing, and what verify says."""
    async with Runtime(url) as runtime:
        found = await runtime.verify()
        rows = await runtime.runs()
        run = await runtime.get(rows[0].run_id) if rows else None
        return run, [p.message for p in found.problems]


def story(url: str, folder: Path, point: int, name: str, engine: str) -> Story:
    """Kill at a point, look, drive again, look."""
    folder.mkdir()
    killed = child(url, folder, point, engine)
    run, problems = asyncio.run(read(url))
    assert not problems, f"{name}: {problems}"
    before = {r.call_id: r.result.model_output for r in run.results} if run else {}
    effects_before = effects_of(folder)
    again = child(url, folder, 0, engine)
    assert again.returncode == 0, f"{name}: {again.stderr[-2000:]}"
    run, problems = asyncio.run(read(url))
    assert run is not None
    results: dict[str, list[str]] = {}
    for part in run.results:
        results.setdefault(part.call_id, []).append(part.result.model_output)
    return Story(
        point, name, killed.returncode, before, effects_before, effects_of(folder), run.status, results,
        {part.call_id: part.error_code for part in run.results}, problems,
    )  # fmt: skip  # two rows


@pytest.fixture(scope="module", params=["sqlite", "postgres", "dbos"])
def stories(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    """One story for each point that a dry run counts; where it costs more time, for a part of them."""
    every, engine = {"sqlite": (1, "inline"), "postgres": (3, "inline"), "dbos": (5, "dbos")}[request.param]
    folder = tmp_path_factory.mktemp("crash")
    (folder / "dry").mkdir()
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None

    def url(name: str) -> str:
        return f"sqlite:///{folder}/{name}.db" if server is None else server.fresh()

    dry = child(url("dry"), folder / "dry", 0, engine)
    assert dry.returncode == 0, dry.stderr
    names = json.loads(dry.stdout.splitlines()[-1])
    print(f"\n{len(names)} kill points: {', '.join(names)}")
    points = list(enumerate(names, 1))[::every]
    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        return list(pool.map(lambda p: story(url(str(p[0])), folder / str(p[0]), *p, engine), points))


@law("7.6", "7.5")
@case("R002", "R025", "R040")
def test_a_process_can_die_at_every_boundary_and_the_run_comes_to_its_end(stories: list[Story]) -> None:
    assert len(stories) >= 7
    for s in stories:
        assert s.killed == -signal.SIGKILL, s.name
        assert s.status == "completed", s.name


@law("2.1")
@case("R013")
def test_every_call_has_exactly_one_result_after_every_kill(stories: list[Story]) -> None:
    for s in stories:
        assert list(s.results) == ORDER, s.name
        assert all(len(texts) == 1 for texts in s.results.values()), s.name


@law("2.3")
@case("R026")
def test_a_finished_call_is_never_repeated(stories: list[Story]) -> None:
    for s in stories:
        for call_id, text in s.finished_before.items():
            assert s.results[call_id] == [text], s.name
        done = {c.removeprefix("c-") for c in s.finished_before}
        if "second" in done:
            done.add("charge")
        before, after = Counter(e[1] for e in s.effects_before), Counter(e[1] for e in s.effects)
        for name, key, _ in s.effects_before:
            if name in done and name != "charge":
                assert after[key] == before[key], s.name


@law("7.6")
def test_an_effect_that_may_not_come_twice_comes_once_at_most(stories: list[Story]) -> None:
    for s in stories:
        times = Counter(e[1] for e in s.effects if e[0] not in SAFE)
        assert all(n == 1 for n in times.values()), f"{s.name}: {s.effects}"


@law("7.6")
def test_a_safe_body_that_died_runs_again_with_the_same_key(stories: list[Story]) -> None:
    repeated = 0
    for s in stories:
        for name in SAFE:
            keys = {e[1] for e in s.effects if e[0] == name}
            attempts = [e[2] for e in s.effects if e[0] == name]
            assert len(keys) == 1, s.name
            assert attempts == sorted(attempts), s.name
            repeated += len(attempts) > 1
    assert repeated > 0


@law("7.6")
def test_a_body_whose_end_nobody_saw_waits_for_a_person_and_says_so(stories: list[Story]) -> None:
    asked = 0
    for s in stories:
        for call_id, texts in s.results.items():
            lost = texts == ["looked: nobody knows"]
            name = "charge" if call_id == "c-second" else call_id.removeprefix("c-")
            assert not (lost and name in SAFE), s.name
            asked += lost
    assert asked > 0


@law("11.verify")
def test_verify_is_content_after_every_kill_and_recovery(stories: list[Story]) -> None:
    for s in stories:
        assert s.problems == [], s.name
