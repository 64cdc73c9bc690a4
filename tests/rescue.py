"""A process is killed at a point of a run, and the run driven on by the next one, or by a worker that was there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from counterfoil import Run, Runtime
from tests.soak_judge import take_overs

ROOT = Path(__file__).parent.parent
TRIES = 5
"""When a run waits for nobody any more, the other worker may take it up before the one that is to die."""


@dataclass(frozen=True)
class Recovery:
    """How a killed process's run is gone on with."""

    host: str | None = None
    """Of the worker that is there already; None: this one."""
    heartbeat: float | None = None
    """Of both; None: there is no such worker, and another process is started after the death."""
    engine: str = "inline"


@dataclass(frozen=True)
class Story:
    """What was left after a kill, and after the recovery."""

    point: int
    name: str
    recovery: Recovery
    killed: int
    finished_before: dict[str, str]
    """Calls with a result soon after the process died, with what it says."""
    effects_before: list[list[object]]
    effects: list[list[object]]
    status: str
    results: dict[str, list[str]]
    errors: dict[str, int | None]
    problems: list[str]
    seconds: float | None
    """From the death until another worker went on, where the dead one drove the run."""


def begin(url: str, folder: Path, point: int, recovery: Recovery, *task: str) -> subprocess.Popen[str]:
    """One process of the run."""
    command = [sys.executable, "-m", "tests.crash_child", url, str(folder / "effects"), str(point), recovery.engine]
    command += [str(recovery.heartbeat or 2.0), *task]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def child(url: str, folder: Path, point: int, recovery: Recovery) -> subprocess.CompletedProcess[str]:
    """One process of the run, to its end."""
    with begin(url, folder, point, recovery) as process:
        out, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def dry(url: str, folder: Path, recovery: Recovery) -> list[str]:
    """The names of all points of the run."""
    folder.mkdir(parents=True)
    done = child(url, folder, 0, recovery)
    assert done.returncode == 0, done.stderr
    return cast("list[str]", json.loads(done.stdout.splitlines()[-1]))


def effects_of(folder: Path) -> list[list[object]]:
    """What the world saw."""
    path = folder / "effects"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def read(url: str) -> tuple[Run | None, list[Any], list[str]]:
    """The only run on record with its entries, read by a process that drives nothing, and what verify says."""
    async with Runtime(url) as runtime:
        found = await runtime.verify()
        rows = await runtime.runs()
        run = await runtime.get(rows[0].run_id) if rows else None
        entries = await runtime.store.entries("default", rows[0].interaction_id) if rows else []
        return run, list(entries), [p.message for p in found.problems]


def story(fresh: Callable[[str], str], folder: Path, point: int, name: str, recovery: Recovery) -> Story:
    """What became of a kill at a point. Who lost the run to the other worker in time does not come to the point."""
    for number in range(TRIES):
        trial = f"{point}-{number}"
        told = one_story(fresh(trial), folder / trial, point, name, recovery)
        if told is not None:
            return told
    raise AssertionError(f"{name}: the process lived on {TRIES} times")


def one_story(url: str, folder: Path, point: int, name: str, recovery: Recovery) -> Story | None:
    """Kill at a point, look, have the run driven on, look. None: the process lived on."""
    folder.mkdir(parents=True)
    other = None
    if recovery.heartbeat is not None:
        other = begin(url, folder, 0, recovery, "rescue", *([recovery.host] if recovery.host else []))
        ready = cast("IO[str]", other.stdout).readline()
        assert ready == "ready\n", f"{name}: {other.communicate()}"
    killed = child(url, folder, point, recovery)
    run, _, problems = asyncio.run(read(url))
    assert not problems, f"{name}: {problems}"
    before = {r.call_id: r.result.model_output for r in run.results} if run else {}
    effects_before = effects_of(folder)
    with other or begin(url, folder, 0, recovery) as again:
        _, errors = again.communicate("go on\n", timeout=120)
    assert again.returncode == 0, f"{name}: {errors[-2000:]}"
    if other and not (folder / "effects.died").exists():
        assert killed.returncode == 0, f"{name}: {killed.stderr[-2000:]}"
        return None
    run, entries, problems = asyncio.run(read(url))
    assert run is not None
    results: dict[str, list[str]] = {}
    for part in run.results:
        results.setdefault(part.call_id, []).append(part.result.model_output)
    return Story(
        point, name, recovery, killed.returncode, before, effects_before, effects_of(folder), run.status, results,
        {part.call_id: part.error_code for part in run.results}, problems, recovered(folder, entries),
    )  # fmt: skip  # two rows


def recovered(folder: Path, entries: list[Any]) -> float | None:
    """Seconds from the death until somebody went on with what the dead one had driven."""
    died = int((folder / "effects.died").read_text())
    first = next((e for e in take_overs(entries) if e.at > died), None)
    return None if first is None else (first.at - died) / 1_000_000


def stories_of(fresh: Callable[[str], str], folder: Path, *recoveries: Recovery, every: int) -> list[Story]:
    """One story for every so many of the points that a dry run counts, with each recovery in turn."""
    names = dry(fresh("dry"), folder / "dry", Recovery(engine=recoveries[0].engine))
    print(f"\n{len(names)} kill points: {', '.join(names)}")
    points = list(enumerate(names, 1))[::every]
    told = [(p, n, recoveries[i % len(recoveries)]) for i, (p, n) in enumerate(points)]
    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        return list(pool.map(lambda one: story(fresh, folder, *one), told))


def recoveries(fresh: Callable[[str], str], folder: Path, recovery: Recovery, *, every: int) -> list[float]:
    """The seconds of every recovery of a run that a dead worker drove."""
    stories = stories_of(lambda name: fresh(f"{folder.name}-{name}"), folder, recovery, every=every)
    assert all(s.killed == -signal.SIGKILL and s.status == "completed" for s in stories), stories
    return [s.seconds for s in stories if s.seconds is not None]
