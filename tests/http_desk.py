"""Agents for servers in processes of their own: `tests.http_desk`."""

import asyncio
from pathlib import Path

from counterfoil import Agent, ToolContext, tool
from counterfoil.testing import ScriptedModel, call, say


@tool(read_only=True)
async def look(n: int) -> str:
    """Look; the third time, wait for a file."""
    while n == 2 and not await asyncio.to_thread(Path("go").exists):
        await asyncio.sleep(0.02)
    return f"seen {n}"


@tool(needs_approval=True)
def pay(ctx: ToolContext) -> str:
    """Pay: a line in a file."""
    with Path("paid").open("a", encoding="utf-8") as file:
        file.write(f"{ctx.run_id}\n")
    return "paid"


till = Agent("till", ScriptedModel([call("pay", id="p"), say("Done.")]), tools=[pay])
desk = Agent(
    "desk", ScriptedModel([*[call("look", n=n, id=f"look-{n}") for n in range(4)], say("Done.")]), tools=[look]
)
