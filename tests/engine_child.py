"""One process of the tests of engines: a worker with the agents of `tests.run_child`, or one without any that decides.

    python -m tests.engine_child STORE DISPATCH EFFECTS work
    python -m tests.engine_child STORE DISPATCH EFFECTS work missed
    python -m tests.engine_child STORE DISPATCH EFFECTS approve RUN CALL

A worker says `ready` and works until it reads a line. One that is to be `missed` counts as dead after a second
of silence.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from counterfoil import Runtime
from counterfoil.adapters.dispatch import temporal, temporal_run
from tests import run_child


async def work(url: str, dispatch: str, missed: str = "") -> None:
    """Drive what the engine gives."""
    if missed:
        temporal_run.DEAD, temporal.BEAT_SECONDS = timedelta(seconds=1), 0.1
    async with Runtime(url, agents=run_child.agents(), deps=run_child.deps, dispatch=dispatch):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


async def approve(url: str, dispatch: str, run_id: str, call_id: str) -> None:
    """Decide, with no agent here."""
    async with Runtime(url, dispatch=dispatch) as runtime:
        await (await runtime.get(run_id)).approve(call_id, by="another process")
        print("approved", flush=True)


if __name__ == "__main__":
    store, engine, run_child.EFFECTS, task, *arguments = sys.argv[1:]
    asyncio.run({"work": work, "approve": approve}[task](store, engine, *arguments))
