"""How this process is: for whoever looks after it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from counterfoil.doors.http import shapes
from counterfoil.doors.http.access import Admin
from counterfoil.doors.http.common import ALWAYS, Held, Json, answers
from counterfoil.doors.http.problems import Problem, documented
from counterfoil.observers.prometheus import CONTENT_TYPE

router = APIRouter(tags=["server"])


@router.get("/healthz", response_model=shapes.Health)
async def health() -> Response:
    """This process answers."""
    return Json({"status": "ok"})


@router.get("/readyz", response_model=shapes.Health, responses=documented("internal", "not-ready"))
async def ready(runtime: Held) -> Response:
    """The record can be read, the worker lives, and the server is not about to end."""
    fault = await runtime.unready()
    if fault is not None:
        raise Problem("not-ready", f"send nothing here now: {fault}", {"Retry-After": "2"})
    return Json({"status": "ok"})


@router.get(
    "/metrics",
    response_class=Response,
    responses=answers(
        ALWAYS,
        {200: {"description": "Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}}},
    ),
)
async def metrics(_: Admin, request: Request) -> Response:
    """What this process does, and what waits in the store, as metrics of Prometheus. They are of all tenants."""
    return Response(await request.app.state.metrics.text(), media_type=CONTENT_TYPE)
