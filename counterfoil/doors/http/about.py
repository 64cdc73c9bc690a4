"""What this server has."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from counterfoil.core.jsontext import JsonValue
from counterfoil.doors.http.access import needs
from counterfoil.doors.http.bodies import Shape
from counterfoil.doors.http.common import ALWAYS, Held, Json
from counterfoil.tool import Tool as AgentTool

router = APIRouter(tags=["server"])


class Agent(Shape):
    """An agent of this server."""

    name: str
    """Unique; a run is started by it."""
    model: str
    """Its model, as the agent names it."""
    tools: list[str]
    """Their names."""
    output_schema: dict[str, Any] | None
    """JSON Schema of its output; null: it answers with text."""


class Agents(Shape):
    """The agents of this server."""

    items: list[Agent]
    """By name."""
    next: None
    """There is one page."""


class Tool(Shape):
    """A tool of an agent."""

    agent: str
    """Whose it is."""
    name: str
    """Unique among the agent's."""
    description: str
    """What a model reads of it."""
    input_schema: dict[str, Any]
    """JSON Schema of its arguments."""
    read_only: bool
    """It changes nothing."""
    idempotent: bool
    """Twice does what once does."""
    destructive: bool
    """What it changes may be lost."""
    needs_approval: bool | None
    """A person must decide first; null: it depends on the input."""
    ends_run: bool
    """The run ends when it succeeds."""


class Tools(Shape):
    """The tools of the agents of this server."""

    items: list[Tool]
    """By agent and name."""
    next: None
    """There is one page."""


READ = [Depends(needs("read"))]


def _model(agent: Any) -> str:
    return agent.model if isinstance(agent.model, str) else type(agent.model).__name__


@router.get("/v1/agents", response_model=Agents, responses=ALWAYS, dependencies=READ)
async def list_agents(runtime: Held) -> Response:
    """The agents of this server, by name."""
    agents = [runtime.agents[name] for name in sorted(runtime.agents)]
    items: list[JsonValue] = [
        {
            "name": agent.name,
            "model": _model(agent),
            "tools": sorted(agent.tool_map),
            "outputSchema": agent.output_schema,
        }
        for agent in agents
    ]
    return Json({"items": items, "next": None})


def _tool(agent: str, tool: AgentTool) -> dict[str, JsonValue]:
    return {
        "agent": agent,
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "readOnly": tool.read_only,
        "idempotent": tool.idempotent,
        "destructive": tool.destructive,
        "needsApproval": None if callable(tool.needs_approval) else tool.needs_approval,
        "endsRun": tool.ends_run,
    }


@router.get("/v1/tools", response_model=Tools, responses=ALWAYS, dependencies=READ)
async def list_tools(runtime: Held) -> Response:
    """The tools of each agent of this server."""
    items: list[JsonValue] = [
        _tool(name, tool)
        for name in sorted(runtime.agents)
        for _, tool in sorted(runtime.agents[name].tool_map.items())
    ]
    return Json({"items": items, "next": None})
