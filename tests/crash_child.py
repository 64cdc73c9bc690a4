"""One process of the crash tests: drives the order run on a file, and dies at a chosen point.

    python -m tests.crash_child STORE EFFECTS POINT [DISPATCH [HEARTBEAT [rescue [HOST]]]]

POINT: the number of the point (before or after a store call or a body) at which the process kills itself; 0 counts.
EFFECTS: a file that gets a line for each effect of a body, synced, as a bank would keep it; the time of the death is in
another one beside it.
rescue: be a worker that is there before, prints a line when it could hold others for dead, takes up what it finds, and
helps the run to its end when it has read a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from counterfoil import Agent, Approval, Runtime, ToolContext, ToolResult, tool
from counterfoil.core.limits import DEAD_AFTER
from counterfoil.effects import Effects
from counterfoil.testing import ScriptedModel, call, say

EFFECTS = ""
AFTER_EFFECT: list[object] = []


def effect(name: str, ctx: ToolContext) -> None:
    """What the world sees: on disk before the body goes on."""
    with Path(EFFECTS).open("a", encoding="utf-8") as f:
        f.write(json.dumps([name, ctx.idempotency_key, ctx.attempt]) + "\n")
        f.flush()
        os.fsync(f.fileno())
    for after in AFTER_EFFECT:
        after(f"effect:{name}")  # type: ignore[operator]  # the probe


@tool(read_only=True)
async def look(ctx: ToolContext, order: str) -> str:
    """Look up an order."""
    effect("look", ctx)
    return f"order {order}"


@tool(idempotent=True)
async def put(ctx: ToolContext, order: str) -> str:
    """Put a note on an order."""
    effect("put", ctx)
    return "noted"


@tool
async def charge(ctx: ToolContext, cents: int) -> ToolResult:
    """Charge a card."""
    effect("charge", ctx)
    return ToolResult.text(f"charged {cents}").with_details({"cents": cents})


@tool(needs_approval=True)
async def refund(ctx: ToolContext, cents: int) -> str:
    """Pay back."""
    effect("refund", ctx)
    return f"refunded {cents}"


def agent() -> Agent:
    """The agent of all crash tests: a batch of every replay class, one call waiting for a person, then an answer."""
    model = ScriptedModel([
        [
            call("look", order="W1", id="c-look"),
            call("put", order="W1", id="c-put"),
            call("charge", cents=5, id="c-charge"),
            call("refund", cents=7, id="c-refund"),
        ],
        [call("charge", cents=9, id="c-second")],
        say("all done"),
    ])  # fmt: skip  # a row for each call
    return Agent("desk", model=model, tools=[look, put, charge, refund])


async def decide(runtime: Runtime, approval: Approval) -> None:
    """What the people of the crash tests do: approve, and record of an interrupted call that nobody knows."""
    if approval.kind == "approval":
        await runtime.approve(approval.run_id, approval.call_id, by="grace")
    else:
        await runtime.settle(
            approval.run_id, approval.call_id, by="grace", result=ToolResult.error("looked: nobody knows")
        )


async def ready(runtime: Runtime) -> None:
    """Wait until this worker has been heard for so long that its word on others counts; say so; wait to be told."""
    while not any(w.owner == runtime.owner and w.steady > DEAD_AFTER * w.every for w in await runtime.store.workers()):
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def drive(url: str, effects: Effects, dispatch: str, heartbeat: float, task: list[str]) -> None:
    """Start the run, or find it, and bring it to its end with people's help."""
    host = task[1] if len(task) > 1 else None
    async with Runtime(
        url, agents=[agent()], effects=effects, dispatch=dispatch, heartbeat=heartbeat, host=host
    ) as runtime:
        if task:
            await ready(runtime)
        run = await runtime.start("desk", "go", key="the-only-one")
        while True:
            await run.wait(60)
            if run.status != "paused":
                break
            for approval in await run.approvals():
                await decide(runtime, approval)
    print(json.dumps({"status": run.status, "answer": run.answer, "id": run.id}))


def main() -> None:
    """Run as a program."""
    global EFFECTS
    url, EFFECTS, point = sys.argv[1], sys.argv[2], int(sys.argv[3])
    names: list[str] = []
    effects = Effects()

    def probe(name: str) -> None:
        names.append(name)
        if len(names) == point:
            Path(EFFECTS + ".died").write_text(str(effects.now()), encoding="ascii")
            os.kill(os.getpid(), signal.SIGKILL)

    effects.probe = probe
    AFTER_EFFECT.append(probe)
    dispatch, heartbeat, *task = [*sys.argv[4:], *["inline", "2.0"][len(sys.argv[4:]) :]]
    asyncio.run(drive(url, effects, dispatch, float(heartbeat), task))
    print(json.dumps(names))


if __name__ == "__main__":
    main()
