"""One process of the crash tests of a team: drives a manager and its agents on a record, and dies at a chosen point.

It is forked from a process that has this module: see `begin`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterfoil import Agent, Approval, Caller, Runtime, ToolContext, ToolResult, tool
from counterfoil.effects import Effects
from counterfoil.testing import ScriptedModel, call, say
from tests import crash_child

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])
LOCK = threading.Lock()
"""Who starts a process looks at the others too, and two who read an exit code at once lose it."""


@dataclass(frozen=True)
class Task:
    """What one process does."""

    url: str
    folder: Path
    """Gets the effects of bodies and, of a process that lives on, the names of the points that it came by."""
    point: tuple[str, int] | None = None
    """The name of a point (before or after a store call or an effect), and at its how manieth time the process dies."""
    cancels: bool = False
    """The manager is cancelled while one agent works and another waits for a person; else people help it to its end."""


def begin(task: Task) -> int | None:
    """Have a process do it, to its end; its exit code, or None of one that hung."""
    process, until = FORKS.Process(target=main, args=(task,)), time.monotonic() + 120
    with LOCK:
        process.start()
    while time.monotonic() < until:
        with LOCK:
            if process.exitcode is not None:
                return process.exitcode
        time.sleep(0.005)
    process.kill()
    return None


@tool(read_only=True)
async def dig(ctx: ToolContext[Any], depth: int) -> str:
    """Dig so deep."""
    crash_child.effect("dig", ctx)
    return f"gold at {depth}"


@tool(read_only=True)
async def drill(ctx: ToolContext[Any]) -> str:
    """Drill until told to stop, and put the drill away."""
    crash_child.effect("drill", ctx)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        crash_child.effect("tidy", ctx)
    return "tidied"


@tool(needs_approval=True)
async def blast(ctx: ToolContext[Any], where: str) -> str:
    """Blast a rock."""
    crash_child.effect("blast", ctx)
    return f"blasted {where}"


def chief(task: Task) -> Agent:
    """A manager of two, one of whom must ask people, who asks a person herself."""
    works = call("drill", id="c") if task.cancels else call("dig", depth=3, id="c")
    miner = Agent("miner", ScriptedModel([works, say("gold")]), tools=[dig, drill])
    smith = Agent("smith", ScriptedModel([call("blast", where="rock", id="c"), say("ring")]), tools=[blast])
    model = ScriptedModel([
        [call("dispatch", agent="miner", task="Dig.", id="m"), call("dispatch", agent="smith", task="Forge.", id="s")],
        [call("ask", participant="ada", question="Well?", id="a")],
        say("all done"),
    ])  # fmt: skip  # a turn a row
    return Agent("chief", model, manages=[miner, smith])


async def decide(runtime: Runtime, approval: Approval) -> None:
    """What people do: approve, answer, and record of an interrupted call that nobody knows."""
    where = (approval.run_id, approval.call_id)
    if approval.kind == "question":
        await runtime.answer(*where, by="ada", text="Well.")
    elif approval.kind == "approval":
        await runtime.approve(*where, by="grace")
    else:
        await runtime.settle(*where, by="grace", result=ToolResult.error("nobody knows"))


async def drive(task: Task, effects: Effects, drills: asyncio.Event) -> None:
    """Start the run, or find it, and bring it to its end."""
    async with Runtime(task.url, agents=[chief(task)], effects=effects) as runtime:
        run = await runtime.start("chief", "Make a ring.", key="the-only-one", caller=Caller(user="ada"))
        if not task.cancels:
            while (await run.wait(60)).status in ("running", "paused"):
                for approval in await run.approvals():
                    await decide(runtime, approval)
            return
        while run.status in ("running", "paused"):
            if drills.is_set() and await run.approvals():
                await run.cancel("enough", by="ada")
            await asyncio.sleep(0.002)
            await run.refresh()


def main(task: Task) -> None:
    """What the process does."""
    names: list[str] = []
    times = Counter[str]()
    drills = asyncio.Event()
    effects = Effects()

    def probe(name: str) -> None:
        names.append(name)
        times[name] += 1
        if name == "effect:drill":
            drills.set()
        if (name, times[name]) == task.point:
            os.kill(os.getpid(), signal.SIGKILL)

    effects.probe = probe
    crash_child.EFFECTS = str(task.folder / "effects")
    crash_child.AFTER_EFFECT.append(probe)
    asyncio.run(drive(task, effects, drills))
    (task.folder / "names").write_text(json.dumps(names))
