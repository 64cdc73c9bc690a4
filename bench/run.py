"""``make bench``: our cost for each tool call beside hand-written floors, as ratios taken in one run.

Rounds are the outer loop and every figure comes from a process of its own, so that a machine that slows down slows all
alike. A ratio is ours over the floor's, each at its best of all rounds. Exit code 1 when a bound is broken.

    python bench/run.py [--rounds 5] [--only W1,D16] [--peers agno,langgraph]

What is durable has a part of its own, durable.py, and so has the HTTP API, service.py.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import durable
import service

HERE = Path(__file__).parent
SHARED = Path(os.environ.get("COUNTERFOIL_SHARED", HERE.parent.parent / "shared")) / "bench"

BOUNDS = (
    ("W1", "raw_gateway", 5.0),
    ("W2", "raw_gateway", 5.0),
    ("W4", "raw_gateway", 5.0),
    ("W3", "raw_gather", 2.0),
    ("W5o", "raw", 1.5),
    ("W6", "raw_sqlite", 2.0),
    ("W6c", "raw_sqlite_group", 4.0),
)
"""Workload, floor, and how many times its CPU a call of ours may cost."""

TEXT_FLOOR = """\
import hashlib, sys, time
sys.path.insert(0, sys.argv[1])
import core
core.fill_table()
text, best = core.TABLE_TEXT[0], 9.0
for _ in range(20):
    began = time.process_time()
    hashlib.sha256(text.encode()).digest()
    best = min(best, time.process_time() - began)
print(best * 1e6)
"""
IMPORT_BOUND = 1.25
GROWTH_BOUND = 1.1
W5T_BOUND = 1.5
STREAM_BOUND = 2.2
BASE_PACKAGES = 10


def child(adapter: str, workload: str, *more: str, python: str | None = None) -> dict[str, float]:
    """One measured process."""
    command = [python or sys.executable, str(HERE / "child.py"), adapter, workload, *more]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    if python:
        environment.pop("PYTHONPATH", None)  # another program's environment
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{adapter} on {workload} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def best(found: dict[tuple[str, str], list[float]], key: tuple[str, str], value: float) -> None:
    """Keep a figure."""
    found.setdefault(key, []).append(value)


def cpu_of(code: str) -> float:
    """CPU seconds of a new interpreter that runs some code, less that of one that runs none."""

    def once(text: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", text], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once(code) for _ in range(9)) - min(once("pass") for _ in range(9))


def text_floor(rounds: int) -> float:
    """One UTF-8 encode and one SHA-256 of the large text, in microseconds: what W5t may add to raw."""
    command = [sys.executable, "-c", TEXT_FLOOR, str(HERE)]
    return min(float(subprocess.check_output(command)) for _ in range(rounds))


def measure(rounds: int, only: set[str]) -> dict[tuple[str, str], list[float]]:
    """CPU microseconds a call by (adapter, workload), a figure for each round."""
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for workload, floor, _ in (*BOUNDS, ("W5t", "raw", 0.0)):
            if only and workload not in only:
                continue
            for adapter in (floor, "ours", floor) if number % 2 else ("ours", floor, "ours"):
                best(found, (adapter, workload), child(adapter, workload)["cpu"])
        if not only or "W7" in only:
            for steps in (50, 400):
                best(found, ("ours", f"W7/{steps}"), child("ours", "W7", "--steps", str(steps))["cpu"])
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


def report(found: dict[tuple[str, str], list[float]], rounds: int) -> bool:
    """Print the table; True when every bound holds."""
    good = True

    def row(name: str, ours: float, floor: float, bound: float, what: str) -> None:
        nonlocal good
        ratio = ours / floor
        good = good and ratio <= bound
        word = "ok" if ratio <= bound else "OVER"
        print(f"{name:8} {ours:10.1f} {floor:10.1f} {ratio:7.2f} {bound:7.2f}  {word}  {what}")

    print(f"{'':8} {'ours':>10} {'floor':>10} {'ratio':>7} {'bound':>7}")
    for workload, floor, bound in BOUNDS:
        if (floor, workload) in found:
            row(workload, min(found["ours", workload]), min(found[floor, workload]), bound, f"CPU µs a call, {floor}")
    if ("raw", "W5t") in found:
        floor_us = min(found["raw", "W5t"]) + text_floor(rounds)
        row("W5t", min(found["ours", "W5t"]), floor_us, W5T_BOUND, "CPU µs a call, raw + one encode + one SHA-256")
    if ("ours", "W7/400") in found:
        row("growth", min(found["ours", "W7/400"]), min(found["ours", "W7/50"]), GROWTH_BOUND, "400 steps beside 50")
    return good


def streamed() -> bool:
    """What a turn of 2 MB that is streamed costs beside one of 1 MB, on each wire."""
    good = True
    for wire in ("anthropic", "google", "openai", "openai-chat"):
        costs = []
        for size in ("1", "2"):
            command = [sys.executable, str(HERE / "stream.py"), wire, size]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            costs.append(json.loads(done.stdout))
        ratio = costs[1]["cpu"] / costs[0]["cpu"]
        word = "ok" if ratio <= STREAM_BOUND else "OVER"
        good = good and ratio <= STREAM_BOUND
        small, large = (cost["cpu"] * 1e3 for cost in costs)
        each = small / costs[0]["events"] * 1e3
        print(f"stream   {large:10.1f} {small:10.1f} {ratio:7.2f} {STREAM_BOUND:7.2f}  {word}", end="")
        print(f"  CPU ms of 2 MB beside 1 MB, {wire}: {each:.0f} µs an event")
    return good


def static() -> bool:
    """Import time, packages of the base installation, memory."""
    ours = cpu_of("import counterfoil")
    whole = cpu_of("from counterfoil import Agent, Runtime, tool")
    floor = cpu_of("import asyncio, pydantic; pydantic.TypeAdapter(int)")
    ratio = ours / floor
    word = "ok" if ratio <= IMPORT_BOUND else "OVER"
    print(f"import   {ours * 1e3:10.1f} {floor * 1e3:10.1f} {ratio:7.2f} {IMPORT_BOUND:7.2f}  {word}", end="")
    print("  CPU ms, asyncio + pydantic + a TypeAdapter")
    print(f"         {whole * 1e3:10.1f}  CPU ms for Agent, Runtime and tool, which load the engine")
    held = 20 * 1.0
    peak = child("ours", "W5o")["peak_mb"] - child("ours", "W1")["peak_mb"]
    print(f"memory   {peak:10.1f} {held:10.1f} {peak / held:7.2f}    4.00  "
          f"{'ok' if peak / held <= 4 else 'OVER'}  peak MB over W1's, beside the MB held")  # fmt: skip
    return ratio <= IMPORT_BOUND and peak / held <= 4


def peers(names: str, rounds: int) -> None:
    """The shared harness's peers beside ours, where it exists; needs its virtual environments."""
    if not (SHARED / "bench.py").exists():
        print(f"no peers: {SHARED} does not exist")
        return
    venvs = Path(os.environ.get("BENCH_VENVS", HERE / "out" / "venvs"))
    venvs.mkdir(parents=True, exist_ok=True)
    if not (venvs / "ours").exists():
        (venvs / "ours").symlink_to(sys.prefix)
    environment = {
        **os.environ,
        "BENCH_EXTRA": str(HERE / "adapters"),
        "BENCH_OUT": str(HERE / "out"),
        "BENCH_VENVS": f"{venvs}/",
    }
    setup = ["sh", str(SHARED / "setup.sh"), "raw", *names.split(",")]
    if any(not (venvs / name).exists() for name in names.split(",")):
        subprocess.run(setup, env=environment, check=True)
    what = ["--adapters", f"ours,{names}", "--workloads", "W1", "--rounds", str(rounds)]
    command = [sys.executable, str(SHARED / "bench.py"), *what]
    subprocess.run(command, env=environment, cwd=HERE, check=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="workloads, by comma")
    parser.add_argument("--peers", default="", help="adapters of the shared harness, by comma")
    options = parser.parse_args()
    began = time.time()
    chosen = set(filter(None, options.only.split(",")))
    holds = True
    if not chosen or chosen - set(durable.CPU_BOUNDS) - {"H1"}:
        holds = report(measure(options.rounds, chosen), options.rounds)
    if not chosen:
        holds = all([static(), streamed(), holds])
    if not chosen or "H1" in chosen:
        holds = service.run() and holds
    if not chosen or chosen & set(durable.CPU_BOUNDS):
        holds = durable.run(child, options.rounds, chosen) and holds
    if options.peers:
        peers(options.peers, options.rounds)
    print(f"{time.time() - began:.0f} s")
    sys.exit(0 if holds else 1)
