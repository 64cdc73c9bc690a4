"""Counterfoil in the shared harness: public names, default settings (W5 alone keeps its 1 MB results inline)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import core

from counterfoil import Agent, Limits, Runtime, tool
from counterfoil.model import ModelCall, ModelTurn

NAME = "ours"
VENV = "ours"
IMPORT = "counterfoil"
DIST = "counterfoil"
INSTALL = ["-e", "PATH-OF-THIS-REPOSITORY"]
DURABLE = "every start, result and turn, before the next step"


class Scripted:
    """The harness's script as a model: it suspends once and reads the new results' text."""

    async def respond(self, request):
        await asyncio.sleep(0)
        script = core.CURRENT.get()
        items = request.items
        fresh = []
        if request.turns:
            width = len(script.plan[script.i - 1])
            fresh = [(r.call_id, r.result.model_output) for r in items[len(items) - width :]]
        calls = script.next(fresh)
        if calls is None:
            yield ModelTurn(text=core.FINAL)
        else:
            yield ModelTurn(calls=tuple(ModelCall(c.id, c.name, c.args_json) for c in calls), stop="calls")


def clerk(spec):
    """The agent of a workload."""
    inline = 50_000_000 if spec.tool.startswith("big") else Limits().keep_apart_bytes
    limits = Limits(steps=None, calls=None, keep_apart_bytes=inline)
    tools = [tool(core.TOOLS[spec.tool])]
    return Agent("clerk", model=Scripted(), instructions=core.SYSTEM, tools=tools, limits=limits)


async def build(spec):
    agent = clerk(spec)
    if spec.durable is None:
        return agent, None
    runtime = Runtime(f"sqlite:///{Path(spec.durable, 'ours.db')}", agents=[agent])
    await runtime.open()
    return agent, runtime


async def run(built, script, run_id):
    agent, runtime = built
    if runtime is None:
        return (await agent.run(core.PROMPT)).answer
    handle = await runtime.start("clerk", core.PROMPT)
    await handle.wait()
    return handle.answer


async def close(built):
    _, runtime = built
    if runtime is not None:
        found = await runtime.verify()
        if not found.ok:
            raise core.Mismatch(f"verify found {len(found.problems)} problems: {found.problems[0]}")
        await runtime.close()
