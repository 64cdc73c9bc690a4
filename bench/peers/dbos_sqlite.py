"""Pydantic AI on DBOS with a SQLite system database: each answer of the model and each tool call is a DBOS step."""

from __future__ import annotations

import asyncio

import core
from dbos import DBOS
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model


class Scripted(Model):
    """The harness's script as a model."""

    @property
    def model_name(self) -> str:
        return "scripted"

    @property
    def system(self) -> str:
        return "scripted"

    async def request(self, messages, model_settings, model_request_parameters):
        await asyncio.sleep(0)
        found = (p for p in messages[-1].parts if isinstance(p, ToolReturnPart))
        calls = core.CURRENT.get().next([(p.tool_call_id, p.model_response_str()) for p in found])
        if calls is None:
            return ModelResponse(parts=[TextPart(core.FINAL)])
        return ModelResponse(parts=[ToolCallPart(c.name, c.args_json, c.id) for c in calls])


async def build(spec, url=None):
    url = url or f"sqlite:///{spec.durable}/peer.db"
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
    agent = Agent(Scripted(), name="clerk", instructions=core.SYSTEM, capabilities=[DBOSDurability()])
    agent.tool_plain(DBOS.step()(core.TOOLS[spec.tool]))
    unlimited = UsageLimits(request_limit=None)

    @DBOS.workflow()
    async def flow(prompt: str) -> str:
        return (await agent.run(prompt, usage_limits=unlimited)).output

    DBOS.launch()
    return flow


async def run(flow, script, number):
    return await flow(core.PROMPT)


async def close(flow):
    DBOS.destroy()
