"""The agent of the soak: tools of every replay class that leave a trace, and a model that plays dice.

Each trace is a line in the file of SOAK_TRACES, on the disk before the body goes on: what the world saw.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import AsyncIterator
from typing import Any

from counterfoil import Agent, ToolContext, ToolError, ToolResult, tool
from counterfoil.core.entries import MessageEntry
from counterfoil.model import ModelCall, ModelEvent, ModelRequest, ModelTurn, TextDelta

SAFE = {"look", "put", "big", "keep", "flaky"}
"""Tools whose bodies may run again by themselves."""


def trace(kind: str, **facts: object) -> None:
    """Put a line on the disk. One write of a file that is open for appending is whole, whoever else writes."""
    line = json.dumps({"kind": kind, "pid": os.getpid(), "at": time.monotonic(), **facts}) + "\n"
    file = os.open(os.environ["SOAK_TRACES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
        os.fdatasync(file)
    finally:
        os.close(file)


class Body:
    """A body's stay in the world: a trace when it begins and one when it ends, however that comes."""

    def __init__(self, name: str, ctx: Any, lock: str | None = None) -> None:
        self.facts = {"tool": name, "key": ctx.idempotency_key, "attempt": ctx.attempt, "lock": lock}

    def __enter__(self) -> None:
        trace("begin", **self.facts)

    def __exit__(self, *_: object) -> None:
        trace("end", **self.facts)


async def pause(ms: int) -> None:
    """Let time pass in a body on the loop."""
    import asyncio  # child processes of bodies need none of it

    await asyncio.sleep(ms / 1000)


@tool(read_only=True)
async def look(ctx: ToolContext, ms: int) -> str:
    """Look something up."""
    with Body("look", ctx):
        await pause(ms)
        return "seen"


@tool(idempotent=True)
def put(ctx: ToolContext, ms: int) -> str:
    """Put something where it is already; in a thread."""
    with Body("put", ctx):
        time.sleep(ms / 1000)
        return "put"


@tool(idempotent=True, retries=2)
async def flaky(ctx: ToolContext, ms: int) -> str:
    """Fail the first time."""
    with Body("flaky", ctx):
        await pause(ms)
        if ctx.attempt == 1:
            raise ToolError("not now", retryable=True)
        return "at last"


@tool(read_only=True)
async def big(ctx: ToolContext, ms: int) -> str:
    """Give a text that is kept apart."""
    with Body("big", ctx):
        return f"{ms} " * 20_000


@tool(idempotent=True)
async def keep(ctx: ToolContext, ms: int) -> str:
    """Work in two steps, of which the first is recorded."""
    with Body("keep", ctx):
        first = await ctx.memo("first", lambda: f"{ctx.attempt}")
        await pause(ms)
        again = await ctx.memo("first", lambda: "made again")
        if first != again:
            raise RuntimeError(f"a step was recorded as {first!r} and given back as {again!r}")
        return f"first in attempt {first}"


@tool
async def charge(ctx: ToolContext, ms: int) -> ToolResult:
    """Do what may not be done twice."""
    with Body("charge", ctx):
        await ctx.progress("charging")
        await pause(ms)
        return ToolResult.text("charged").with_narration("Charged")


@tool
def slip(ctx: ToolContext, ms: int) -> str:
    """Do what may not be done twice, in a thread."""
    with Body("slip", ctx):
        time.sleep(ms / 1000)
        return "slipped"


@tool(isolation="process")
def press(ctx: ToolContext, ms: int) -> str:
    """Do what may not be done twice, in a process."""
    with Body("press", ctx):
        time.sleep(ms / 1000)
        return "pressed"


@tool(lock="till:{till}")
async def till(ctx: ToolContext, ms: int, till: int) -> str:
    """Be alone at a till."""
    with Body("till", ctx, f"till:{till}"):
        await pause(ms)
        return "counted"


@tool(lock="till:{till}", timeout=0.1)
def drawer(ctx: ToolContext, ms: int, till: int) -> str:
    """Be alone at a till in a thread, perhaps for longer than is allowed."""
    with Body("drawer", ctx, f"till:{till}"):
        time.sleep(ms * 3 / 1000)
        return "drawn"


@tool(sequential=True)
async def alone(ctx: ToolContext, ms: int) -> str:
    """Be alone in the batch."""
    with Body("alone", ctx):
        await pause(ms)
        return "alone"


@tool(timeout=0.05)
async def slow(ctx: ToolContext, ms: int) -> str:
    """Take longer than is allowed, often."""
    with Body("slow", ctx):
        await pause(ms * 2)
        return "in time"


@tool(on_interrupted="tell")
async def tell(ctx: ToolContext, ms: int) -> str:
    """Do what may not be done twice; where nobody knows, the model is told."""
    with Body("tell", ctx):
        await pause(ms)
        return "told"


@tool(needs_approval=True)
async def pay(ctx: ToolContext, ms: int) -> str:
    """Pay, when a person lets it."""
    with Body("pay", ctx):
        await pause(ms)
        return "paid"


@tool(needs_approval=True, lock="till:{till}")
def refund(ctx: ToolContext, ms: int, till: int) -> str:
    """Pay back at a till, when a person lets it; in a thread."""
    with Body("refund", ctx, f"till:{till}"):
        time.sleep(ms / 1000)
        return "paid back"


@tool
async def broken(ctx: ToolContext, ms: int) -> str:
    """Raise."""
    with Body("broken", ctx):
        raise RuntimeError("a fault of this tool")


@tool(ends_run=True)
async def close(ctx: ToolContext, ms: int) -> str:
    """End the run."""
    with Body("close", ctx):
        return "closed"


TOOLS = [look, put, flaky, big, keep, charge, slip, press, till, drawer, alone, slow, tell, pay, refund, broken, close]
WEIGHTS = {"press": 0.3, "close": 0.15, "big": 0.5, "pay": 2.0, "charge": 2.0}
TILLS = {"till", "drawer", "refund"}
TURNS = 4
"""Of a run that nothing ends earlier, at most; messages may make it longer."""


class Dice:
    """A model whose turns follow from the seed, the run's prompt and the turn's number alone.

    So a run goes on as it would have, whichever process drives it.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The turn that the dice give."""
        prompt = next(
            item.text
            for item in request.items
            if isinstance(item, MessageEntry) and item.run_id == request.run_id and item.author_type == "Human"
        )
        dice = random.Random(f"{self.seed}:{prompt}:{request.turns}")
        yield TextDelta("Let me see.")
        await pause(dice.randrange(10))
        if prompt.startswith("pause"):
            pay_once = (ModelCall("c", "pay", '{"ms": 1}'),) if request.turns == 0 else ()
            yield ModelTurn("That is all.", pay_once)
        elif request.turns >= TURNS or dice.random() < 0.1:
            yield ModelTurn("That is all.")
        else:
            names = dice.choices(
                [t.name for t in TOOLS], [WEIGHTS.get(t.name, 1.0) for t in TOOLS], k=dice.randint(1, 6)
            )
            yield ModelTurn("", tuple(_call(dice, i, name) for i, name in enumerate(names)))


def _call(dice: random.Random, index: int, name: str) -> ModelCall:
    arguments: dict[str, object] = {"ms": dice.randrange(5, 60)}
    if name in TILLS:
        arguments["till"] = dice.randrange(2)
    raw = json.dumps(arguments)
    odd = dice.random()
    if odd < 0.02:
        raw = '{"broken'
    elif odd < 0.04:
        arguments["unknown"] = 1
        raw = json.dumps(arguments)
    identity: str | None = f"c{index}"
    if dice.random() < 0.05:
        identity = dice.choice([None, "c0"])
    return ModelCall(identity, name if dice.random() > 0.02 else "no_such_tool", raw)


def clerk(seed: int) -> Agent:
    """The agent."""
    return Agent("clerk", model=Dice(seed), tools=TOOLS)
