"""Function calls for each tool call: the same on every machine, so no load moves this ratchet (speed is in bench/)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
MOST = 250
"""Calls of functions, built-in ones included, for one tool call of W1: one step, one async tool, in memory."""


def function_calls(steps: int) -> float:
    """As the profiler counts them, in a process of its own."""
    command = [sys.executable, str(BENCH / "child.py"), "ours", "W1", "--profile", "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return float(json.loads(done.stdout.splitlines()[-1])["function_calls"])


@pytest.fixture(scope="module")
def counts() -> dict[int, float]:
    return {steps: function_calls(steps) for steps in (50, 400)}


def test_a_tool_call_takes_no_more_function_calls_than_before(counts: dict[int, float]) -> None:
    assert counts[50] <= MOST


def test_a_step_costs_the_same_however_long_the_run_is(counts: dict[int, float]) -> None:
    assert round(counts[400] / counts[50], 2) <= 1.0
