"""The durable part of ``make bench``: ours beside bare commits and other frameworks, on SQLite and PostgreSQL.

PostgreSQL is the server that BENCH_PG names as a URL, else one that is started for this. The frameworks have
environments of their own (``make bench-peers``) in the folder that BENCH_VENVS names.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
VENVS = Path(os.environ.get("BENCH_VENVS", HERE / "out" / "venvs"))

STORES = {
    "SQLite": ("ours", {"D1": "raw_sqlite", "D16": "raw_sqlite_group"}),
    "PostgreSQL": ("ours_pg", {"D1": "raw_pg", "D16": "raw_pg_group"}),
}
"""Ours on each store, and its floor for each workload."""
CPU_BOUNDS = {"D1": 2.0, "D16": 4.0}
"""How many times the CPU of its bare commits a durable call may cost."""
COMMITS_BOUND = 0.5
"""Commits for each call of 16 runs at once."""
SPEED_BOUNDS = {"SQLite": 1 / 3}
"""Calls a second of 16 runs at once beside those of the floor, at least; a server's speed is its machine's."""
PEERS = {
    "LangGraph": ("langgraph", "langgraph_durable"),
    "Pydantic AI on DBOS": ("dbos", "dbos_durable"),
}
"""The adapters of each framework begin with the first word; the second is its environment."""
ENDS = {"SQLite": "sqlite", "PostgreSQL": "pg"}
"""How an adapter for a store ends."""

Child = Callable[..., dict[str, float]]
Found = dict[tuple[str, str], list[dict[str, float]]]


@contextmanager
def server() -> Iterator[str | None]:
    """The URL of a database; None where there is none, and why."""
    if url := os.environ.get("BENCH_PG"):
        yield url
        return
    sys.path.append(str(HERE.parent))
    import pytest

    from tests.postgres import serving

    try:
        with serving() as started:
            yield started.url
    except pytest.skip.Exception as reason:
        print(f"PostgreSQL is not measured: {reason}")
        yield None


def peer_python(environment: str) -> str | None:
    """The interpreter of an environment, if that exists."""
    python = VENVS / environment / "bin" / "python"
    return str(python) if python.exists() else None


def measure(child: Child, rounds: int, only: set[str], stores: list[str]) -> Found:
    """What each process found, by adapter and workload; rounds are the outer loop."""
    found: Found = {}

    def one(adapter: str, workload: str, *more: str, python: str | None = None) -> None:
        found.setdefault((adapter, workload), []).append(child(adapter, workload, *more, python=python))

    for number in range(rounds):
        for workload in CPU_BOUNDS:
            if only and workload not in only:
                continue
            for store in stores:
                ours, floors = STORES[store]
                floor = floors[workload]
                for adapter in (floor, ours, floor) if number % 2 else (ours, floor, ours):
                    one(adapter, workload)
                for name, environment in PEERS.values():
                    if number == 0 and (python := peer_python(environment)):
                        # So much slower that one piece says enough.
                        one(f"{name}_{ENDS[store]}", workload, "--seconds", "0", "--pieces", "1", python=python)
        print(f"durable round {number + 1} of {rounds}", file=sys.stderr)
    return found


def best(found: Found, key: tuple[str, str], what: str) -> float:
    """The least of all rounds."""
    return min(one[what] for one in found[key])


def commits(found: Found, key: tuple[str, str]) -> float:
    """Commits a call, of the round in the middle."""
    return statistics.median(one["commits"] for one in found[key])


def report(found: Found, stores: list[str]) -> bool:
    """Print the table; True when every bound holds."""
    good = True

    def row(name: str, ours: float, floor: float, bound: float, what: str, *, holds: bool) -> None:
        nonlocal good
        good = good and holds
        word = "ok" if holds else "OVER"
        print(f"{name:15} {ours:10.2f} {floor:10.2f} {ours / floor:7.2f} {bound:7.2f}  {word:4}  {what}")

    print(f"{'':15} {'ours':>10} {'floor':>10} {'ratio':>7} {'bound':>7}")
    for store in stores:
        ours, floors = STORES[store]
        for workload, floor in floors.items():
            if (ours, workload) not in found:
                continue
            name = f"{workload} {store}"
            mine, bare = (ours, workload), (floor, workload)
            cpu, bare_cpu = best(found, mine, "cpu"), best(found, bare, "cpu")
            bound = CPU_BOUNDS[workload]
            row(name, cpu, bare_cpu, bound, f"CPU µs a call, {floor}", holds=cpu <= bare_cpu * bound)
            if workload == "D16":
                counted = commits(found, mine)
                what = "commits a call, counted; the bound is for ours"
                row(name, counted, commits(found, bare), COMMITS_BOUND, what, holds=counted <= COMMITS_BOUND)
                speed, bare_speed = 1e6 / best(found, mine, "wall"), 1e6 / best(found, bare, "wall")
                least = SPEED_BOUNDS.get(store, 0.0)
                row(name, speed, bare_speed, least, "calls a second, at least", holds=speed >= bare_speed * least)
    return good


def report_peers(found: Found, stores: list[str]) -> None:
    """The same work on other frameworks."""
    rows = []
    for store in stores:
        ours, floors = STORES[store]
        rows.append((store, "bare commits", floors))
        rows.append((store, "Counterfoil", dict.fromkeys(floors, ours)))
        rows += [(store, n, dict.fromkeys(floors, f"{adapter}_{ENDS[store]}")) for n, (adapter, _) in PEERS.items()]
    heads = (f"{w} {what}" for w in CPU_BOUNDS for what in ("CPU µs", "commits", "calls/s"))
    print(f"\n{'a durable call':33}" + "".join(f"{head:>13}" for head in heads))
    for store, name, adapters in rows:
        line = f"{store:11} {name:21}"
        for workload, adapter in adapters.items():
            key = (adapter, workload)
            if key in found:
                line += (
                    f"{best(found, key, 'cpu'):13.0f}{commits(found, key):13.2f}{1e6 / best(found, key, 'wall'):13.0f}"
                )
            else:
                line += f"{'-':>13}" * 3
        print(line)
    missing = [environment for _, environment in PEERS.values() if peer_python(environment) is None]
    if missing:
        print(f"not measured: {', '.join(missing)} in {VENVS} (make bench-peers)")


def run(child: Child, rounds: int, only: set[str]) -> bool:
    """Measure and report; True when every bound holds."""
    with server() as url:
        if url is not None:
            os.environ["BENCH_PG"] = url
        stores = [store for store in STORES if store == "SQLite" or url is not None]
        found = measure(child, rounds, only, stores)
    good = report(found, stores)
    report_peers(found, stores)
    return good
