"""An agent for servers in processes of their own: `tests.http_desk:desk`."""

import asyncio
from pathlib import Path

from counterfoil import Agent, tool
from counterfoil.testing import ScriptedModel, call, say


@tool(read_only=True)
async def look(n: int) -> str:
    """Look; the third time, wait for a file."""
    while n == 2 and not await asyncio.to_thread(Path("go").exists):
        await asyncio.sleep(0.02)
    return f"seen {n}"


desk = Agent(
    "desk", ScriptedModel([*[call("look", n=n, id=f"look-{n}") for n in range(4)], say("Done.")]), tools=[look]
)
