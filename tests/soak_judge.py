"""What the record and the world say after a soak, held against the laws of the contract."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from counterfoil import Runtime
from counterfoil.core.call_entries import DecidedEntry, LateEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.entries import EndedEntry, Entry, MessageEntry, PausedEntry, QueuedEntry, ResumedEntry
from counterfoil.core.limits import DEAD_AFTER
from counterfoil.core.states import OPEN
from tests.soak_bodies import SAFE

Say = Callable[[str], None]
Seen = dict[str, Any]


@dataclass
class Verdict:
    """What was found."""

    problems: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Least:
    """What must have happened, else a soak has proved nothing."""

    started: int
    killed_in_a_body: int
    killed_in_an_unsafe_body: int
    frozen_until_dead: int
    interrupted: int = 1
    taken_over: int = 1


class World:
    """What the world saw so far: the traces, each read once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "traces"
        self._read = 0
        self._seen: list[Seen] = []
        self._running: dict[int, dict[tuple[str, int], str]] = defaultdict(dict)
        """By process, the bodies that run there and their tools."""

    def seen(self) -> list[Seen]:
        """All of it, in the order in which it came."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                fresh = file.read()
            self._read += len(fresh)
            for t in map(json.loads, fresh.splitlines()):
                self._seen.append(t)
                if t["kind"] == "begin":
                    self._running[t["pid"]][t["key"], t["attempt"]] = t["tool"]
                elif t["kind"] == "end":
                    self._running[t["pid"]].pop((t["key"], t["attempt"]), None)
        return self._seen

    def in_a_body(self, pid: int, *, unsafe: bool) -> bool:
        """Whether a body runs in this process (an unsafe one)."""
        self.seen()
        return any(not (unsafe and tool in SAFE) for tool in self._running[pid].values())


def take_overs(entries: Iterable[Entry]) -> list[ResumedEntry]:
    """Of one run's entries those with which somebody went on who had not left it: no pause, no decision before."""
    return [
        e
        for before, e in itertools.pairwise(entries)
        if isinstance(e, ResumedEntry) and not isinstance(before, (PausedEntry, DecidedEntry))
    ]


def spread(seconds: list[float]) -> dict[str, float]:
    """A few times in short."""
    if not seconds:
        return {"count": 0}
    return {"count": len(seconds), "median": round(median(seconds), 2), "max": round(max(seconds), 2)}


async def judge(world: World, runtime: Runtime, every: float, verdict: Verdict) -> None:
    """Hold the laws against the record and the world.

    Args:
        world: what it saw.
        runtime: reads the record.
        every: seconds between two heartbeats of the workers.
        verdict: is told.
    """
    say = verdict.problems.append
    found = await runtime.verify()
    verdict.problems += [f"verify: {p.message}" for p in found.problems]
    rows = await runtime.runs(limit=100_000)
    reruns: Counter[str] = Counter()
    started: set[tuple[str, int]] = set()
    statuses: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for row in rows:
        statuses[row.status] += 1
        if row.status in OPEN:
            say(f"run {row.run_id} is {row.status}: {row}")
        entries = [e for e in await runtime.store.entries("default", row.interaction_id) if e.run_id == row.run_id]
        # Not those that came late and count for nothing, which are of a type of their own.
        results = Counter((e.step, e.index) for e in entries if type(e) is ResultEntry)
        asked = [(e.step, i) for e in entries if e.kind == "turn" for i in range(len(e.calls))]  # type: ignore[attr-defined]
        if row.status not in OPEN and results != Counter(asked):
            say(f"run {row.run_id}: calls {asked} have the results {dict(results)}")
        count["calls"] += len(asked)
        count["interrupted"] += sum(isinstance(e, WaitingEntry) and e.approval.kind == "interrupted" for e in entries)
        count["late"] += sum(isinstance(e, LateEntry) for e in entries)
        count["taken_over"] += len(take_overs(entries))
        for e in entries:
            if isinstance(e, DecidedEntry) and e.decision.choice == "rerun":
                reruns[f"{row.run_id}:{e.step}:{e.index}"] += 1
            if isinstance(e, StartEntry):
                started.add((f"{row.run_id}:{e.step}:{e.index}", e.attempt))
    seen = world.seen()
    judge_bodies(seen, reruns, started, say)
    judge_locks(seen, silences(seen, every), say)
    await judge_messages(runtime, seen, say)
    verdict.figures |= {
        "runs": dict(statuses), **count, "bodies": sum(t["kind"] == "begin" for t in seen),
        "reruns": sum(reruns.values()),
    }  # fmt: skip  # two rows


def judge_bodies(seen: list[Seen], reruns: Counter[str], started: set[tuple[str, int]], say: Say) -> None:
    """A body begins once for each attempt whose start is on record, and an unsafe one again by a person's word only."""
    begun: dict[str, list[int]] = defaultdict(list)
    tools: dict[str, str] = {}
    for t in seen:
        if t["kind"] == "begin":
            begun[t["key"]].append(t["attempt"])
            tools[t["key"]] = t["tool"]
    for key, attempts in begun.items():
        if len(set(attempts)) != len(attempts):
            say(f"{tools[key]} {key}: attempts {attempts}, one of them twice")
        if any((key, attempt) not in started for attempt in attempts):
            say(f"{tools[key]} {key}: a body began whose start is not on record")
        if tools[key] not in SAFE and len(attempts) > 1 + reruns[key]:
            say(f"{tools[key]} {key}: began {len(attempts)} times, and people let it {1 + reruns[key]} times")


def silences(seen: list[Seen], every: float) -> dict[int, list[tuple[float, float]]]:
    """By process, from when on others could hold it for dead though it lives, until it was heard again."""
    heard: dict[int, float] = {}
    silent: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for t in seen:
        if t["kind"] == "beat":
            dead = heard.get(t["pid"], t["asked"]) + DEAD_AFTER * every
            if t["at"] > dead:
                silent[t["pid"]].append((dead, t["at"]))
            heard[t["pid"]] = t["asked"]
    for pid, asked in heard.items():
        silent[pid].append((asked + DEAD_AFTER * every, math.inf))
    return silent


def judge_locks(seen: list[Seen], silent: dict[int, list[tuple[float, float]]], say: Say) -> None:
    """Nobody is inside a lock with another one who still lives: a process that died left no trace after that.

    Whoever was silent for so long that it counted as dead has lost the locks of bodies that it had begun by then.
    """
    last = {t["pid"]: place for place, t in enumerate(seen)}
    inside: dict[str, list[Seen]] = defaultdict(list)
    for place, t in enumerate(seen):
        lock = t.get("lock")
        if lock is None:
            continue
        held = inside[lock]
        if t["kind"] == "end":
            held[:] = [h for h in held if (h["key"], h["attempt"]) != (t["key"], t["attempt"])]
            continue
        held[:] = [h for h in held if last[h["pid"]] > place and not lost(h, t, silent[h["pid"]])]
        for h in held:
            say(f"lock {lock}: {h} was inside when {t} came in")
        held.append(t)


def lost(holder: Seen, other: Seen, silent: list[tuple[float, float]]) -> bool:
    """The holder counted as dead between its begin and that of the other."""
    return any(holder["at"] < heard and other["at"] > dead for dead, heard in silent)


async def judge_messages(runtime: Runtime, seen: list[Seen], say: Say) -> None:
    """A message that was taken is on record once, and delivered unless it waits for the next run."""
    for sent in (t for t in seen if t["kind"] == "sent"):
        row = await runtime.store.run("default", sent["run"])
        entries = await runtime.store.entries("default", row.interaction_id)
        queued = [e for e in entries if isinstance(e, QueuedEntry) and e.text == sent["text"]]
        if len(queued) != 1:
            say(f"{sent['text']} of run {row.run_id} is on record {len(queued)} times")
            continue
        delivered = [e for e in entries if isinstance(e, MessageEntry) and e.queued == queued[0].entry]
        if len(delivered) > 1:
            say(f"{sent['text']} of run {row.run_id} was delivered {len(delivered)} times")
        end = next((e for e in reversed(entries) if isinstance(e, EndedEntry)), None)
        if not delivered and end is not None and end.ended_by == "answer" and end.entry > queued[0].entry:
            say(f"{sent['text']} of run {row.run_id} was not delivered, and an answer ended the conversation after it")


def judge_least(least: Least, verdict: Verdict) -> None:
    """A soak in which too little happened proves nothing."""
    for name, number in vars(least).items():
        if verdict.figures.get(name, 0) < number:
            verdict.problems.append(f"{name} is {verdict.figures.get(name, 0)}, and {number} are the least")


def cpu_seconds(pid: int) -> float:
    """What a process has used of processors (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
