"""What this server has."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from counterfoil.core.jsontext import JsonValue
from counterfoil.doors.http import shapes
from counterfoil.doors.http.access import needs
from counterfoil.doors.http.common import ALWAYS, Held, Json
from counterfoil.tool import Tool

router = APIRouter(tags=["server"])

READ = [Depends(needs("read"))]


def _model(agent: Any) -> str:
    return agent.model if isinstance(agent.model, str) else type(agent.model).__name__


@router.get("/v1/agents", response_model=shapes.Agents, responses=ALWAYS, dependencies=READ)
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


def _tool(agent: str, tool: Tool) -> dict[str, JsonValue]:
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


@router.get("/v1/tools", response_model=shapes.Tools, responses=ALWAYS, dependencies=READ)
async def list_tools(runtime: Held) -> Response:
    """The tools of each agent of this server."""
    items: list[JsonValue] = [
        _tool(name, tool)
        for name in sorted(runtime.agents)
        for _, tool in sorted(runtime.agents[name].tool_map.items())
    ]
    return Json({"items": items, "next": None})
