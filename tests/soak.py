"""Workers on one record are killed, frozen and closed while runs go on and people decide; then the record is judged.

    python -m tests.soak [--store both] [--seconds 120] [--runs 500] [--seed N] [--workers 4] [--folder F]

Then it is measured how soon another worker goes on with the run of one that was killed. The seed repeats every choice
of the model, the people and the one who kills; the clock of the machine still decides what a choice meets. Each store
has a summary of one line; problems come before it, and then it exits with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from os import environ
from pathlib import Path
from typing import Any

from counterfoil import DecisionConflict, InvalidInput, Limits, NotPending, Runtime, ToolResult
from counterfoil.core.errors import Conflict
from counterfoil.core.limits import DEAD_AFTER, HEARTBEAT
from counterfoil.core.states import OPEN
from counterfoil.store import Owner
from tests.postgres import serving
from tests.rescue import Recovery, recoveries
from tests.soak_bodies import clerk, trace
from tests.soak_judge import Least, Verdict, World, cpu_seconds, judge, judge_least, spread

ROOT = Path(__file__).parent.parent
DRAIN_SECONDS = 90
"""After the last kill, so long may it take until every run has ended."""
LONG = Least(
    started=500, killed_in_a_body=20, killed_in_an_unsafe_body=5, frozen_until_dead=3, interrupted=1, taken_over=1
)
HOSTS = ("", "", "annexe", "attic")
"""Where the workers are, by their places, as they see it: of those elsewhere nothing but their heartbeats is known."""
RECOVERY_MOST = 5.0
"""Seconds from a worker's death to the first step of the one who goes on with its run, at most."""
PAUSED = 200
"""Runs that wait for people while it is measured what idle workers cost."""
IDLE_SECONDS = 4.0
IDLE_MOST = 0.1
"""Of one processor, for each idle worker, at most."""


# ------------------------------------------------------------------------------------------- the processes


@dataclass(frozen=True)
class Task:
    """What a process of the soak is told."""

    url: str
    seed: int
    heartbeat: float
    number: int = 0
    host: str = ""


async def work(folder: Path, task: Task) -> None:
    """Drive runs until the file `stop` is there, or until told to end."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    runtime = Runtime(
        task.url, agents=[clerk(task.seed)], concurrency=24, heartbeat=task.heartbeat, host=task.host or None
    )
    tell_beats(runtime)
    async with runtime:
        while not told.is_set() and not (folder / "stop").exists():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), 0.1)


def tell_beats(runtime: Runtime) -> None:
    """Leave a trace of each sign of life: the judge must know who may have counted as dead."""
    beat = runtime.store.beat

    async def told(owner: Owner, every: float, agents: Sequence[str]) -> None:
        asked = time.monotonic()
        await beat(owner, every, agents)
        trace("beat", asked=asked)

    runtime.store.beat = told  # type: ignore[method-assign]


async def decide(folder: Path, task: Task) -> None:
    """Be people: decide what waits, send, cancel. Its pool is not that of the workers, so it drives nothing."""
    number = task.number
    dice = random.Random(f"people:{task.seed}:{number}")
    done: Counter[str] = Counter()
    async with Runtime(task.url, agents=[clerk(task.seed)], pool="people") as runtime:
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


def spawn(folder: Path, role: str, task: Task) -> subprocess.Popen[bytes]:
    """A process of the soak; what it writes to its error output is kept."""
    told = json.dumps(asdict(task))
    with (folder / f"stderr-{role}").open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.soak", "--folder", str(folder), "--task", role, told],
            cwd=ROOT, stderr=errors, env={**environ, "SOAK_TRACES": str(folder / "traces")},
        )  # fmt: skip  # two rows


# ------------------------------------------------------------------------------------------------ the harm


@dataclass
class Harm:
    """What was done to the workers."""

    killed: int = 0
    killed_in_a_body: int = 0
    killed_in_an_unsafe_body: int = 0
    frozen: int = 0
    frozen_until_dead: int = 0
    """Of those, for longer than the heartbeats that they may miss."""
    closed: int = 0

    def lacking(self, least: Least) -> list[str]:
        """What there has been too little of to prove something."""
        return [name for name, count in vars(self).items() if count < getattr(least, name, 0)]


class Workers:
    """The workers, and what becomes of them."""

    def __init__(self, folder: Path, world: World, task: Task, count: int) -> None:
        self.folder, self.world, self.task = folder, world, task
        self.dice = random.Random(f"harm:{task.seed}")
        self.harm = Harm()
        self.thaws: dict[int, asyncio.Task[None]] = {}
        """By place, who is frozen for long, and what ends it."""
        self.alive = [self.new(place) for place in range(count)]

    def new(self, place: int) -> subprocess.Popen[bytes]:
        """One more."""
        return spawn(self.folder, "work", replace(self.task, host=HOSTS[place % len(HOSTS)]))

    async def hurt(self, lacking: list[str]) -> None:
        """Kill, freeze or close one, unless it is frozen already.

        Args:
            lacking: what there has been too little of, when nothing else is to be done any more.
        """
        place = self.dice.randrange(len(self.alive))
        what = self.dice.choice(["aim", "aim", "aim", "kill", "freeze", "freeze", "freeze until dead", "close"])
        part = self.dice.random()
        if lacking:
            what = "freeze until dead" if "frozen_until_dead" in lacking and not self.thaws else "aim"
        worker = self.alive[place]
        if place in self.thaws:
            return
        if what == "freeze":
            worker.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.1 + 1.4 * part)
            worker.send_signal(signal.SIGCONT)
            self.harm.frozen += 1
            return
        if what == "freeze until dead":
            if not self.thaws:  # else too few were left to go on
                await self.until_in_a_body(worker.pid, unsafe=part < 0.7)
                worker.send_signal(signal.SIGSTOP)
                self.thaws[place] = asyncio.create_task(self.thaw(place, worker, 1 + part))
            return
        if what == "aim":
            await self.until_in_a_body(worker.pid, unsafe=part < 0.7)
        if what == "close":
            worker.terminate()
            self.harm.closed += 1
        else:
            worker.kill()
            self.harm.killed += 1
        while worker.poll() is None:
            await asyncio.sleep(0.01)
        if what != "close":
            self.harm.killed_in_a_body += self.world.in_a_body(worker.pid, unsafe=False)
            self.harm.killed_in_an_unsafe_body += self.world.in_a_body(worker.pid, unsafe=True)
        self.alive[place] = self.new(place)

    async def until_in_a_body(self, pid: int, *, unsafe: bool) -> None:
        """Wait until this one is in the middle of a body (that may not run twice), but not for ever."""
        until = time.monotonic() + 3
        while not self.world.in_a_body(pid, unsafe=unsafe) and time.monotonic() < until:
            await asyncio.sleep(0.01)

    async def thaw(self, place: int, worker: subprocess.Popen[bytes], more: float) -> None:
        """Let one go on when others have had the time to hold it for dead."""
        await asyncio.sleep((DEAD_AFTER + more) * self.task.heartbeat)
        worker.send_signal(signal.SIGCONT)
        self.harm.frozen += 1
        self.harm.frozen_until_dead += 1
        del self.thaws[place]


async def start_runs(runtime: Runtime, plan: Plan, enough: asyncio.Event) -> int:
    """Start the plan's runs in about its time, or more, until it is enough: in new conversations and old ones.

    Each has two starters at once.
    """
    dice = random.Random(f"starts:{plan.seed}")
    began, number, made = time.monotonic(), 0, 0
    while made < plan.runs or not enough.is_set():
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
        made += not all(isinstance(one, Conflict) for one in started)  # the old conversation may have an open run
        due = began + plan.seconds * (number + dice.uniform(-2.0, 2.0)) / plan.runs
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
    return made


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


# ----------------------------------------------------------------------------------------------- the soak


@dataclass
class Plan:
    """What a soak is to be."""

    url: str
    folder: Path
    seed: int
    seconds: float
    runs: int
    workers: int
    least: Least = LONG
    heartbeat: float = HEARTBEAT
    idle: bool = False
    """Also measure what idle workers cost."""


async def soak(plan: Plan) -> Verdict:
    """All of it."""
    verdict = Verdict()
    folder, world = plan.folder, World(plan.folder)
    task = Task(plan.url, plan.seed, plan.heartbeat)
    async with Runtime(plan.url) as runtime:
        crew = Workers(folder, world, task, plan.workers)
        people: list[subprocess.Popen[bytes]] = []
        try:
            if plan.idle:
                verdict.figures["idle"] = round(await idle_cost(runtime, crew), 3)
                if verdict.figures["idle"] > IDLE_MOST:
                    verdict.problems.append(f"an idle worker used {verdict.figures['idle']:.0%} of a processor")
            people += [spawn(folder, "decide", replace(task, number=number)) for number in range(2)]
            await harm(plan, runtime, crew, verdict)
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
        await judge(world, runtime, plan.heartbeat, verdict)
    verdict.figures |= asdict(crew.harm)
    judge_least(plan.least, verdict)
    read_files(folder, verdict)
    return verdict


async def harm(plan: Plan, runtime: Runtime, crew: Workers, verdict: Verdict) -> None:
    """Start the runs and hurt their workers, for as long as the plan says and until enough has happened."""
    until = time.monotonic() + plan.seconds
    over = asyncio.Event()
    starting = asyncio.create_task(start_runs(runtime, plan, over))
    while not over.is_set():
        await asyncio.sleep(crew.dice.uniform(0.1, 0.8))
        late = time.monotonic() - until
        lacking = crew.harm.lacking(plan.least) if late > 0 else []
        if starting.done() or late > DRAIN_SECONDS or (late > 0 and not lacking):
            over.set()
        else:
            await crew.hurt(lacking)
    await asyncio.gather(*crew.thaws.values())
    verdict.figures["started"] = await starting


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


def measure(folder: Path, fresh: Callable[[str], str], verdict: Verdict) -> None:
    """How soon another worker, of this host and of another, goes on with the run of one that was killed."""
    for name, host in (("here", None), ("elsewhere", "elsewhere")):
        found = recoveries(fresh, folder / name, Recovery(host, HEARTBEAT), every=3)
        verdict.figures[f"recovery {name}"] = spread(found)
        if not found or max(found) > RECOVERY_MOST:
            verdict.problems.append(f"the recovery of workers {name} took {sorted(found)} seconds")


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Workers on one record, hurt.")
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--runs", type=int, default=LONG.started)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--no-idle", action="store_true", help="do not measure what idle workers cost")
    parser.add_argument("--no-recovery", action="store_true", help="do not measure how soon others go on")
    parser.add_argument(
        "--folder", type=Path, help="where its files are kept; a new folder that is removed, unless given"
    )
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        role, told = given.task
        asyncio.run({"work": work, "decide": decide}[role](given.folder, Task(**json.loads(told))))
        return
    seed = random.SystemRandom().randrange(10_000) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"seed {seed}, in {folder}", flush=True)
    stores = ["sqlite", "postgres"] if given.store == "both" else [given.store]
    bad = [store for store in stores if not one(store, folder / store, seed, given)]
    if not given.folder and not bad:
        shutil.rmtree(folder)
    sys.exit(1 if bad else 0)


def one(store: str, folder: Path, seed: int, given: argparse.Namespace) -> bool:
    """The soak on one store, said to whoever reads it; whether it is without problems."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        server = stack.enter_context(serving()) if store == "postgres" else None

        def fresh(name: str) -> str:
            return server.fresh() if server else f"sqlite:///{folder}/{name}.db"

        plan = Plan(
            fresh("soak"), folder, seed, given.seconds, given.runs, given.workers, replace(LONG, started=given.runs),
            idle=not given.no_idle,
        )  # fmt: skip  # rows by what belongs together
        verdict = asyncio.run(soak(plan))
        print(json.dumps({"store": store, "seed": seed, **verdict.figures}), flush=True)
        if not given.no_recovery:
            measure(folder, fresh, verdict)
    for problem in verdict.problems:
        print(problem)
    recovery = {name: figure for name, figure in verdict.figures.items() if name.startswith("recovery")}
    print(json.dumps({"store": store, "problems": len(verdict.problems), **recovery}), flush=True)
    return not verdict.problems


if __name__ == "__main__":
    main()
