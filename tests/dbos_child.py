"""A process of the tests of DBOS.

    python -m tests.dbos_child STORE DISPATCH EFFECTS TASK [POINT]

TASK: ``work``, until its input ends, or ``start``: put a run on record. POINT: where it kills itself, a point of
`Effects.probe` or ``dequeued``, when DBOS gives it a segment. EFFECTS gets a line for each beginning of a body.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from counterfoil import Agent, Runtime, ToolContext, tool
from counterfoil.effects import Effects
from counterfoil.testing import ScriptedModel, call, say


def agent(effects: Path) -> Agent:
    """The agent of these processes. Its body ends when EFFECTS has a line `end`."""

    @tool(idempotent=True)
    async def hang(ctx: ToolContext) -> str:
        """Hang."""
        with effects.open("a", encoding="utf-8") as f:
            f.write(f"hang {ctx.attempt}\n")
        while "end" not in effects.read_text(encoding="utf-8").splitlines():  # noqa: ASYNC240  # a test's child
            await asyncio.sleep(0.005)
        return "hung"

    return Agent("hanger", model=ScriptedModel([[call("hang", id="h")], say("done")]), tools=[hang])


def die(*_: object) -> None:
    """As kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, dispatch: str, lines: str, task: str, point: str = "") -> None:
    """Do the task."""
    effects = Effects()
    effects.probe = lambda name: die() if name == point else None
    agents = [agent(Path(lines))] if task == "work" else []
    async with Runtime(url, agents=agents, dispatch=dispatch, effects=effects) as runtime:
        if point == "dequeued":
            runtime.drive = die  # type: ignore[method-assign]  # a kill at the port itself
        if task == "start":
            await runtime.start("hanger", "go")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
