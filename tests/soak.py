"""Workers on one file are killed, frozen and closed while runs go on and people decide; then the record is judged.

    python -m tests.soak [--seconds 120] [--seed N] [--workers 3] [--folder F]

The seed repeats every choice of the model, the people and the one who kills; the clock of the machine still decides
what a choice meets. The last line is a summary; problems come before it, and then it exits with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from counterfoil import DecisionConflict, InvalidInput, Limits, NotPending, Runtime, ToolResult
from counterfoil.core.call_entries import DecidedEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.entries import EndedEntry, MessageEntry, PausedEntry, QueuedEntry, ResumedEntry
from counterfoil.core.errors import Conflict
from counterfoil.core.states import OPEN
from tests.soak_bodies import SAFE, clerk, trace

ROOT = Path(__file__).parent.parent
DRAIN_SECONDS = 90
"""After the last kill, so long may it take until every run has ended."""
LEAST = 2
"""Workers that are killed in the middle of a body that may not run twice, at least."""
PAUSED = 200
"""Runs that wait for people while it is measured what idle workers cost."""
IDLE_SECONDS = 4.0
IDLE_MOST = 0.1
"""Of one processor, for each idle worker, at most."""


def url_of(folder: Path) -> str:
    """The record of a soak."""
    return f"sqlite:///{folder}/soak.db"


# ------------------------------------------------------------------------------------------- the processes


async def work(folder: Path, seed: int) -> None:
    """Drive runs until the file `stop` is there, or until told to end."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with Runtime(url_of(folder), agents=[clerk(seed)], concurrency=24):
        while not told.is_set() and not (folder / "stop").exists():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), 0.1)


async def decide(folder: Path, seed: int, number: int) -> None:
    """Be people: decide what waits, send, cancel. Its pool is not that of the workers, so it drives nothing."""
    dice = random.Random(f"people:{seed}:{number}")
    done: Counter[str] = Counter()
    async with Runtime(url_of(folder), agents=[clerk(seed)], pool="people") as runtime:
        while not (folder / "stop").exists():
            draining = (folder / "drain").exists()
            for approval in await runtime.approvals():
                if dice.random() < (0.9 if draining else 0.4):
                    done[await _decided(runtime, approval, dice, number)] += 1
            if not draining and dice.random() < 0.3:
                done[await _meddled(runtime, dice, f"{number}-{sum(done.values())}")] += 1
            await asyncio.sleep(0.03)
    (folder / f"people-{number}.json").write_text(json.dumps(done))


async def _decided(runtime: Runtime, approval: Any, dice: random.Random, number: int) -> str:
    by, run_id, call_id = f"person-{number}", approval.run_id, approval.call_id
    choice = dice.choice(["approve", "approve", "approve", "reject", "edit"])
    if approval.kind == "interrupted":
        choice = dice.choice(["rerun", "record"])
    try:
        match choice:
            case "approve":
                await runtime.approve(run_id, call_id, by=by, digest=approval.digest)
            case "edit":
                ms = dice.choice([1, 7, "no number"])
                await runtime.approve(run_id, call_id, by=by, input={**approval.effective_input, "ms": ms})
            case "reject":
                await runtime.reject(run_id, call_id, by=by, reason="not today")
            case "rerun":
                await runtime.settle(run_id, call_id, by=by, rerun=True)
            case _:
                await runtime.settle(run_id, call_id, by=by, result=ToolResult.text("somebody looked"))
    except (DecisionConflict, NotPending, InvalidInput) as e:
        return type(e).__name__
    return choice


async def _meddled(runtime: Runtime, dice: random.Random, name: str) -> str:
    rows = [r for r in await runtime.runs(limit=40) if r.key and r.key.startswith("run")]
    if not rows:
        return "nothing"
    live = [r for r in rows if r.status in OPEN]
    row = dice.choice(live if live and dice.random() < 0.8 else rows)
    if dice.random() < 0.15:
        await runtime.cancel(row.run_id, reason="enough")
        return "cancel"
    await runtime.send(row.run_id, f"message {name}")
    trace("sent", run=row.run_id, text=f"message {name}")
    return "send"


def spawn(folder: Path, *task: object) -> subprocess.Popen[bytes]:
    """A process of the soak; what it writes to its error output is kept."""
    with (folder / f"stderr-{task[0]}").open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.soak", "--folder", str(folder), "--task", *map(str, task)],
            cwd=ROOT, stderr=errors, env={**os.environ, "SOAK_TRACES": str(folder / "traces")},
        )  # fmt: skip  # two rows


# ------------------------------------------------------------------------------------------------ the harm


@dataclass
class Harm:
    """What was done to the workers."""

    killed: int = 0
    killed_in_a_body: int = 0
    killed_in_an_unsafe_body: int = 0
    frozen: int = 0
    closed: int = 0


def traces(folder: Path) -> list[dict[str, Any]]:
    """What the world saw so far."""
    path = folder / "traces"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def in_a_body(folder: Path, pid: int, *, unsafe: bool) -> bool:
    """Whether a body runs in this process (an unsafe one)."""
    running: Counter[tuple[str, int]] = Counter()
    for t in traces(folder):
        if t["pid"] == pid and t["kind"] in ("begin", "end") and not (unsafe and t["tool"] in SAFE):
            running[t["key"], t["attempt"]] += 1 if t["kind"] == "begin" else -1
    return any(n > 0 for n in running.values())


class Workers:
    """The workers, and what becomes of them."""

    def __init__(self, folder: Path, seed: int, count: int) -> None:
        self.folder, self.seed = folder, seed
        self.dice = random.Random(f"harm:{seed}")
        self.harm = Harm()
        self.alive = [self.new() for _ in range(count)]

    def new(self) -> subprocess.Popen[bytes]:
        """One more."""
        return spawn(self.folder, "work", self.seed)

    async def hurt(self) -> None:
        """Kill, freeze or close one."""
        place = self.dice.randrange(len(self.alive))
        worker = self.alive[place]
        what = self.dice.choice(["aim", "aim", "kill", "freeze", "freeze", "close"])
        if what == "freeze":
            worker.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self.dice.uniform(0.1, 1.5))
            worker.send_signal(signal.SIGCONT)
            self.harm.frozen += 1
            return
        if what == "aim":  # in the middle of a body that may not run twice
            until = time.monotonic() + 3
            while not in_a_body(self.folder, worker.pid, unsafe=True) and time.monotonic() < until:
                await asyncio.sleep(0.01)
        if what == "close":
            worker.terminate()
            self.harm.closed += 1
        else:
            worker.kill()
            self.harm.killed += 1
        while worker.poll() is None:
            await asyncio.sleep(0.01)
        if what != "close":
            self.harm.killed_in_a_body += in_a_body(self.folder, worker.pid, unsafe=False)
            self.harm.killed_in_an_unsafe_body += in_a_body(self.folder, worker.pid, unsafe=True)
        self.alive[place] = self.new()


async def start_runs(runtime: Runtime, dice: random.Random, until: float) -> int:
    """Start runs, new conversations and old ones, some by two starters at once."""
    number = 0
    while time.monotonic() < until:
        number += 1
        ended = [r for r in await runtime.runs(limit=20) if r.status not in OPEN]
        old = dice.choice(ended).interaction_id if ended and dice.random() < 0.4 else None
        options: dict[str, Any] = {
            "interaction": old,
            "key": f"run-{number}",
            "approvals": dice.choice(["any-order", "any-order", "one-by-one"]),
            "limits": Limits(
                approval_seconds=dice.choice([None, None, 1.0]), cancel_grace=0.3,
                seconds=dice.choice([None, None, 20.0]), concurrency=dice.choice([2, 16]),
            ),
        }  # fmt: skip  # rows by what belongs together
        both = [runtime.start("clerk", f"run {number}", **options) for _ in range(2)]
        started = await asyncio.gather(*both, return_exceptions=True)
        for one in started:
            if isinstance(one, BaseException) and not isinstance(one, Conflict):
                raise one
        await asyncio.sleep(dice.uniform(0.0, 0.3))
    return number


def cpu_seconds(pid: int) -> float:
    """What a process has used of processors (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def idle_cost(runtime: Runtime, workers: Workers) -> float:
    """What the busiest idle worker uses of one processor while many runs are paused."""
    for i in range(PAUSED):
        await runtime.start("clerk", f"pause {i}")
    while len(await runtime.runs(status="paused", limit=PAUSED)) < PAUSED:
        await asyncio.sleep(0.1)
    before = [cpu_seconds(w.pid) for w in workers.alive]
    began = time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    used = [cpu_seconds(w.pid) - b for w, b in zip(workers.alive, before, strict=True)]
    return max(used) / (time.monotonic() - began)


# ---------------------------------------------------------------------------------------------- the judge


@dataclass
class Verdict:
    """What was found."""

    problems: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


async def judge(folder: Path, runtime: Runtime, verdict: Verdict) -> None:
    """The laws of the contract on what the record and the world say."""
    say = verdict.problems.append
    found = await runtime.verify()
    verdict.problems += [f"verify: {p.message}" for p in found.problems]
    rows = await runtime.runs(limit=100_000)
    calls = interrupted = taken_over = 0
    reruns: Counter[str] = Counter()
    started: set[tuple[str, int]] = set()
    statuses: Counter[str] = Counter()
    for row in rows:
        statuses[row.status] += 1
        if row.status in OPEN:
            say(f"run {row.run_id} is {row.status}: {row}")
        entries = [e for e in await runtime.store.entries("default", row.interaction_id) if e.run_id == row.run_id]
        # Not those that came late and count for nothing, which are of a type of their own.
        results = Counter((e.step, e.index) for e in entries if type(e) is ResultEntry)
        asked = [(e.step, i) for e in entries if e.kind == "turn" for i in range(len(e.calls))]  # type: ignore[attr-defined]
        calls += len(asked)
        if row.status not in OPEN and results != Counter(asked):
            say(f"run {row.run_id}: calls {asked} have the results {dict(results)}")
        interrupted += sum(isinstance(e, WaitingEntry) and e.approval.kind == "interrupted" for e in entries)
        for before, e in itertools.pairwise(entries):
            taken_over += isinstance(e, ResumedEntry) and not isinstance(before, (PausedEntry, DecidedEntry))
        for e in entries:
            if isinstance(e, DecidedEntry) and e.decision.choice == "rerun":
                reruns[f"{row.run_id}:{e.step}:{e.index}"] += 1
            if isinstance(e, StartEntry):
                started.add((f"{row.run_id}:{e.step}:{e.index}", e.attempt))
    seen = traces(folder)
    judge_bodies(seen, reruns, started, say)
    judge_locks(seen, say)
    await judge_messages(runtime, seen, say)
    verdict.figures |= {
        "runs": dict(statuses), "calls": calls, "interrupted": interrupted, "taken_over": taken_over,
        "bodies": sum(t["kind"] == "begin" for t in seen), "reruns": sum(reruns.values()),
    }  # fmt: skip  # two rows


def judge_bodies(seen: list[dict[str, Any]], reruns: Counter[str], started: set[tuple[str, int]], say: Any) -> None:
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


def judge_locks(seen: list[dict[str, Any]], say: Any) -> None:
    """Nobody is inside a lock with another one who still lives: a process that died left no trace after that."""
    last = {t["pid"]: place for place, t in enumerate(seen)}
    inside: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for place, t in enumerate(seen):
        lock = t.get("lock")
        if lock is None:
            continue
        held = inside[lock]
        if t["kind"] == "end":
            held[:] = [h for h in held if (h["key"], h["attempt"]) != (t["key"], t["attempt"])]
            continue
        for h in held:
            if last[h["pid"]] > place:
                say(f"lock {lock}: {h} was inside when {t} came in")
        held[:] = [h for h in held if last[h["pid"]] > place]
        held.append(t)


async def judge_messages(runtime: Runtime, seen: list[dict[str, Any]], say: Any) -> None:
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


# ----------------------------------------------------------------------------------------------- the soak


async def soak(folder: Path, seed: int, seconds: float, workers: int, *, idle: bool) -> Verdict:
    """All of it."""
    verdict = Verdict()
    async with Runtime(url_of(folder)) as runtime:
        crew = Workers(folder, seed, workers)
        people: list[subprocess.Popen[bytes]] = []
        try:
            if idle:
                verdict.figures["idle"] = round(await idle_cost(runtime, crew), 3)
                if verdict.figures["idle"] > IDLE_MOST:
                    verdict.problems.append(f"an idle worker used {verdict.figures['idle']:.0%} of a processor")
            people += [spawn(folder, "decide", seed, number) for number in range(2)]
            until = time.monotonic() + seconds
            latest = until + DRAIN_SECONDS
            starting = asyncio.create_task(start_runs(runtime, random.Random(f"starts:{seed}"), until))
            while time.monotonic() < until:
                await asyncio.sleep(crew.dice.uniform(0.1, 0.8))
                await crew.hurt()
                if crew.harm.killed_in_an_unsafe_body < LEAST:  # else it would prove nothing
                    until = max(until, min(time.monotonic() + 1, latest))
            verdict.figures["started"] = await starting
            (folder / "drain").touch()
            until = time.monotonic() + DRAIN_SECONDS
            while await open_runs(runtime) and time.monotonic() < until:
                await asyncio.sleep(0.1)
            (folder / "stop").touch()
            for process in (*crew.alive, *people):
                while process.poll() is None:
                    await asyncio.sleep(0.01)
                if process.returncode:
                    verdict.problems.append(f"a process ended with {process.returncode}")
        finally:
            for process in (*crew.alive, *people):
                process.kill()
                process.wait()
        await judge(folder, runtime, verdict)
    verdict.figures |= asdict(crew.harm)
    read_files(folder, verdict)
    return verdict


def read_files(folder: Path, verdict: Verdict) -> None:
    """What the processes left: what people did, and whatever a process had to complain of."""
    people_did = [Counter(json.loads(p.read_text())) for p in folder.glob("people-*.json")]
    verdict.figures["people"] = dict(sum(people_did, Counter()))
    for file in folder.glob("stderr-*"):
        if text := file.read_text():
            verdict.problems.append(f"{file.name}: {text[:3000]}")


async def open_runs(runtime: Runtime) -> int:
    """How many have not ended."""
    return sum([len(await runtime.runs(status=status, limit=100_000)) for status in OPEN])


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="A soak of several workers on one file.")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--no-idle", action="store_true", help="do not measure what idle workers cost")
    parser.add_argument(
        "--folder", type=Path, help="where its files are kept; a new folder that is removed, unless given"
    )
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        role, *numbers = given.task
        asyncio.run({"work": work, "decide": decide}[role](given.folder, *map(int, numbers)))
        return
    seed = random.SystemRandom().randrange(10_000) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, in {folder}", flush=True)
    verdict = asyncio.run(soak(folder, seed, given.seconds, given.workers, idle=not given.no_idle))
    for problem in verdict.problems:
        print(problem)
    print(json.dumps({"seed": seed, "problems": len(verdict.problems), **verdict.figures}))
    if not given.folder and not verdict.problems:
        shutil.rmtree(folder)
    sys.exit(1 if verdict.problems else 0)


if __name__ == "__main__":
    main()
