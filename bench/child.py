"""One measured process: ``python child.py ADAPTER WORKLOAD [--steps N] [--seconds S] [--profile]``; prints JSON."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import importlib
import json
import os
import pstats
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
sys.modules.pop("core", None)
import commits  # noqa: E402  # found by the path above
import core  # noqa: E402  # the harness's own


def adapter(name: str) -> object:
    """The module of a floor, a peer or of ours."""
    folder = next(f for f in ("floors", "adapters", "peers") if (HERE / f / f"{name}.py").exists())
    return importlib.import_module(f"{folder}.{name}")


async def piece(module: object, built: object, spec: core.Spec, scripts: list[core.Script], base: int) -> None:
    """All runs of a workload once, checked."""

    async def one(script: core.Script, number: int) -> None:
        core.CURRENT.set(script)
        answer = await module.run(built, script, number)
        if not script.finished or answer != core.FINAL:
            raise core.Mismatch(f"run {number} ended with {answer!r:.80}")

    before = core.Count.n
    if len(scripts) == 1:
        await one(scripts[0], base)
    else:
        await asyncio.gather(*(one(s, base + n) for n, s in enumerate(scripts)))
    if core.Count.n - before != spec.calls:
        raise core.Mismatch(f"the tool ran {core.Count.n - before} times, {spec.calls} were due")


async def measure(options: argparse.Namespace) -> dict[str, object]:
    """The best of several pieces, in microseconds a call; the commits of a further one."""
    spec = core.WORKLOADS[options.workload]
    if options.steps:
        spec = replace(spec, steps=options.steps)
    if spec.durable is not None:
        spec = replace(spec, durable=tempfile.mkdtemp(prefix="bench-"))
    if spec.tool.startswith("big"):
        core.fill_table()
    module = adapter(options.adapter)
    built = await module.build(spec)
    plans = [core.plan_for(spec, n) for n in range(spec.concurrency)]
    short = replace(spec, steps=min(spec.steps, 2))
    await piece(module, built, short, [core.Script(p[: short.steps]) for p in plans], 0)
    cpu: list[float] = []
    wall: list[float] = []
    base = spec.concurrency
    profile = cProfile.Profile() if options.profile else None
    until = time.perf_counter() + options.seconds
    while len(cpu) < options.pieces or time.perf_counter() < until:
        scripts = [core.Script(p) for p in plans]
        gc.collect()
        t, c = time.perf_counter(), time.process_time()
        if profile:
            profile.enable()
        await piece(module, built, spec, scripts, base)
        if profile:
            profile.disable()
        cpu.append((time.process_time() - c) / spec.calls * 1e6)
        wall.append((time.perf_counter() - t) / spec.calls * 1e6)
        base += spec.concurrency
        if profile:
            break
    found: dict[str, object] = {"adapter": options.adapter, "workload": spec.name, "cpu": min(cpu), "wall": min(wall)}
    if profile:
        found["function_calls"] = pstats.Stats(profile).total_calls / spec.calls
    if spec.durable is not None:
        counted = commits.Postgres() if "pg" in options.adapter.split("_") else commits.Sqlite(spec.durable)
        await piece(module, built, spec, [core.Script(p) for p in plans], base)
        found["commits"] = counted.since() / spec.calls
    if hasattr(module, "close"):
        await module.close(built)
    if spec.durable is not None:
        shutil.rmtree(spec.durable, ignore_errors=True)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("adapter")
    parser.add_argument("workload", choices=core.WORKLOADS)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--pieces", type=int, default=3, help="at least")
    parser.add_argument("--profile", action="store_true", help="count function calls; one piece, slowed down")
    print(json.dumps(asyncio.run(measure(parser.parse_args()))), flush=True)
    os._exit(0)  # the floors' threads need no farewell
