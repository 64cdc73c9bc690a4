"""How this process is: for whoever looks after it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response

from counterfoil.core.call import DEFAULT_CALLER
from counterfoil.doors.http.access import Admin
from counterfoil.doors.http.bodies import Shape
from counterfoil.doors.http.common import ALWAYS, Held, Json, answers
from counterfoil.doors.http.problems import Problem, documented
from counterfoil.observers.prometheus import CONTENT_TYPE, Metrics

router = APIRouter(tags=["server"])


class Health(Shape):
    """How this server is."""

    status: Literal["ok"]
    """Anything else is a problem."""


@router.get("/healthz", response_model=Health)
async def health() -> Response:
    """This process answers."""
    return Json({"status": "ok"})


@router.get("/readyz", response_model=Health, responses=documented("internal", "not-ready"))
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
async def metrics(access: Admin, request: Request) -> Response:
    """What this process does, and what waits in the store, as metrics of Prometheus.

    The process is for keys of the tenant ``default``, the operator's; any other tenant is told what waits of its own.
    """
    told: Metrics = request.app.state.metrics
    whole = access.tenant == DEFAULT_CALLER.tenant
    return Response(await (told.text() if whole else told.text_of(access.tenant)), media_type=CONTENT_TYPE)
