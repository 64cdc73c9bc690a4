"""Function calls for each tool call: the same on every machine, so no load moves this ratchet (speed is in bench/)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgres import Server

BENCH = Path(__file__).parent.parent / "bench"
MOST = 193
"""Calls of functions, built-in ones included, for one tool call of W1: one step, one async tool, in memory."""


def child(*words: str, **environment: str) -> dict[str, float]:
    """What a measured process found."""
    command = [sys.executable, str(BENCH / "child.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def function_calls(steps: int) -> float:
    """As the profiler counts them, in a process of its own."""
    return child("ours", "W1", "--profile", "--steps", str(steps))["function_calls"]


@pytest.fixture(scope="module")
def counts() -> dict[int, float]:
    return {steps: function_calls(steps) for steps in (50, 400)}


def test_a_tool_call_takes_no_more_function_calls_than_before(counts: dict[int, float]) -> None:
    assert counts[50] <= MOST


def test_a_step_costs_the_same_however_long_the_run_is(counts: dict[int, float]) -> None:
    assert round(counts[400] / counts[50], 2) <= 1.0


ONCE = ("--seconds", "0", "--pieces", "1")


def test_commits_are_counted_from_outside(postgres: Server) -> None:
    due = (2 * 25 + 2) / 25
    assert child("raw_sqlite", "D1", "--steps", "25", *ONCE)["commits"] == due
    # The server's own housekeeping may take a number meanwhile.
    assert due <= child("raw_pg", "D1", "--steps", "25", *ONCE, BENCH_PG=postgres.url)["commits"] <= due + 0.2


@pytest.mark.parametrize("adapter", ["ours", "ours_pg"])
def test_sixteen_runs_at_once_take_half_a_commit_for_a_call_at_most(adapter: str, postgres: Server) -> None:
    assert child(adapter, "D16", *ONCE, BENCH_PG=postgres.url)["commits"] <= 0.5
