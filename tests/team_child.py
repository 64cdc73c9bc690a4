"""One process of the crash tests of a team: drives a manager and its agents on a file, and dies at a chosen point.

    python -m tests.team_child STORE EFFECTS POINT

POINT: the name of the point (before or after a store call or an effect) at whose first time the process kills itself;
``none``: it prints the names of all.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from counterfoil import Agent, Approval, Caller, Runtime, ToolContext, ToolResult, tool
from counterfoil.effects import Effects
from counterfoil.testing import ScriptedModel, call, say
from tests import crash_child


@tool(read_only=True)
async def dig(ctx: ToolContext[Any], depth: int) -> str:
    """Dig so deep."""
    crash_child.effect("dig", ctx)
    return f"gold at {depth}"


@tool(needs_approval=True)
async def blast(ctx: ToolContext[Any], where: str) -> str:
    """Blast a rock."""
    crash_child.effect("blast", ctx)
    return f"blasted {where}"


def chief() -> Agent:
    """A manager of two, one of whom must ask people, who asks a person herself."""
    miner = Agent("miner", ScriptedModel([call("dig", depth=3, id="c"), say("gold")]), tools=[dig])
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


async def drive(url: str, effects: Effects) -> None:
    """Start the run, or find it, and bring it to its end with people's help."""
    async with Runtime(url, agents=[chief()], effects=effects) as runtime:
        run = await runtime.start("chief", "Make a ring.", key="the-only-one", caller=Caller(user="ada"))
        while (await run.wait(60)).status in ("running", "paused"):
            for approval in await run.approvals():
                await decide(runtime, approval)


def main() -> None:
    """Run as a program."""
    url, crash_child.EFFECTS, point = sys.argv[1:4]
    names: list[str] = []
    effects = Effects()

    def probe(name: str) -> None:
        names.append(name)
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    effects.probe = probe
    crash_child.AFTER_EFFECT.append(probe)
    asyncio.run(drive(url, effects))
    sys.stdout.write(json.dumps(names))


if __name__ == "__main__":
    main()
