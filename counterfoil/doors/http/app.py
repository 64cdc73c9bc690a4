"""The application: all routes over one Runtime."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Match, Route

from counterfoil.core.errors import CounterfoilError
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.keys import SCOPES
from counterfoil.doors.http import about, desk, interactions, live, people, probes, results, runs, shapes
from counterfoil.doors.http.access import Access, Rate
from counterfoil.doors.http.edge import BODY_SECONDS, REQUEST_ID, Edge
from counterfoil.doors.http.measured import Measured
from counterfoil.doors.http.problems import KINDS, Problem, answer, problem_of
from counterfoil.observers.prometheus import Metrics
from counterfoil.runtime import Runtime

log = logging.getLogger("counterfoil.http")

MAX_BODY: Final = 1024 * 1024
"""Bytes of a body, 1 MiB: a message of a person is a few thousand."""
RATE: Final = (6000, 60.0)
"""Requests of a key within so many seconds: a hundred a second, and a minute's worth at once."""
GZIP_OVER: Final = 1000
"""Bytes of an answer from which on it is compressed; below, the head of a packet costs as much."""


def create_app(
    runtime: Runtime, *, dev: str | None = None, max_body: int = MAX_BODY, heartbeat: float = live.HEARTBEAT,
    disconnect_grace: float = live.DISCONNECT_GRACE, rate: tuple[int | None, float] = RATE, only_probes: bool = False,
    traces: bool = False, patience: float = BODY_SECONDS,
) -> FastAPI:  # fmt: skip  # two rows
    """The ASGI application.

    Args:
        runtime: open already, or opened and closed with the application.
        dev: the user of requests without a key, who may do everything in the tenant ``default``: for a machine of
            one's own, never for an address that others reach. None: every request needs a key.
        max_body: bytes of a body.
        heartbeat: seconds between two comments on a stream of events that is quiet.
        disconnect_grace: seconds after which a run with ``on_disconnect="cancel"`` is cancelled when the last client
            that followed it here has gone.
        rate: requests of each key, and the seconds within which it may make so many; None: any number.
        traces: runs are linked to the traces of the requests that start them; needs the extra ``otel``.
        patience: seconds for a body to come.
        only_probes: nothing but how the process is: /healthz, /readyz and /metrics.
    """

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.state.leaving = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            if not runtime.opened:
                await stack.enter_async_context(runtime)
            stack.callback(app.state.followers.close)
            yield

    app = FastAPI(
        title="Counterfoil", version=_version(), summary="Accountable tool calls: every call gets exactly one result.",
        lifespan=life, docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip  # two rows
    app.state.rate = Rate(*rate)
    app.state.runtime, app.state.heartbeat = runtime, heartbeat
    app.state.followers, app.state.frames = live.Followers(runtime, disconnect_grace), live.Frames()
    app.state.dev = None if dev is None else Access("default", dev, (), frozenset(SCOPES))
    parts = (probes,) if only_probes else (interactions, runs, live, results, desk, people, about, probes)
    for part in parts:
        app.include_router(part.router)
    app.state.own = [*app.routes, *(route for part in parts for route in part.router.routes)]
    for kind, handler in ((Problem, _told), (CounterfoilError, _told), (HTTPException, _http)):
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(GZipMiddleware, minimum_size=GZIP_OVER)
    app.add_middleware(Edge, max_body=max_body, patience=patience)
    app.state.metrics = Metrics(runtime)
    app.add_middleware(Measured, metrics=app.state.metrics)
    if traces:
        from counterfoil.doors.http.linked import Linked

        app.add_middleware(Linked)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's own way
    return app


def _version() -> str:
    try:
        return importlib.metadata.version("counterfoil")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


async def _told(_: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem is None:
        raise error
    if problem.kind == "unavailable":
        log.error("request %s: the store failed", REQUEST_ID.get(), exc_info=error)
    return answer(problem, REQUEST_ID.get())


async def _http(request: Request, error: Exception) -> Response:
    """What the router itself says."""
    assert isinstance(error, HTTPException)  # noqa: S101  # it is registered for it alone
    if error.status_code == 405:  # noqa: PLR2004  # not with this method
        allowed = ", ".join(_methods(request))
        problem = Problem("method-not-allowed", f"{request.method} is not possible here; use {allowed}")
        problem.headers["Allow"] = allowed
    elif error.status_code == 404:  # noqa: PLR2004  # no such route
        problem = Problem("no-route", f"there is no route {request.url.path:.200}; /openapi.json lists them")
    else:
        problem = Problem("invalid-request", str(error.detail))
    return answer(problem, REQUEST_ID.get())


def _methods(request: Request) -> list[str]:
    """What the routes of an address take."""
    here = [r for r in request.app.state.own if isinstance(r, Route) and r.matches(request.scope)[0] is not Match.NONE]
    found = {method for route in here for method in route.methods or ()}
    return sorted(found | {"HEAD"} if "GET" in found else found)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # as in _http
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    at_body = any(row["loc"][0] == "body" for row in error.errors())
    if at_body and kind and kind != "application/json" and not kind.endswith("+json"):
        problem = Problem("not-json", f"expected Content-Type: application/json, got {kind:.80}")
        return answer(problem, REQUEST_ID.get())
    rows = cast("list[JsonValue]", [_complaint(row) for row in error.errors()[:20]])
    told = "; ".join(f"{row['where']}: {row['message']}" for row in rows if isinstance(row, dict))
    return answer(Problem("invalid-request", told, more={"errors": rows}), REQUEST_ID.get())


def _complaint(row: dict[str, Any]) -> dict[str, str]:
    """What is not as expected, and where."""
    where, said = ".".join(map(str, row["loc"]))[:200], row["msg"][:1000]
    if row["type"] == "json_invalid":
        where, said = "body", f"it is not JSON at character {row['loc'][-1]}: {row['ctx']['error']}"
    elif row["type"] == "model_attributes_type":  # Pydantic speaks of dictionaries and of what it would do with one
        said = "Input should be an object"
    return {"where": where, "message": said}


_IDS: Final = {
    "run_id": "The run's id.",
    "interaction_id": "The interaction's id.",
    "call_id": "The call's id, unique in its run.",
}
"""What the pieces of an address are."""


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The description of all routes, with problems in place of FastAPI's own errors."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = made["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        problem = shapes.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas["Problem"] = {**problem, "properties": {**problem["properties"]}}
        for path in made["paths"].values():
            for operation in path.values():
                said = operation["responses"]
                if "application/json" in said.get("422", {}).get("content", {}):
                    del said["422"]  # FastAPI adds one wherever there is a parameter
                for one in operation.get("parameters", ()):
                    if one["in"] == "path":
                        one.setdefault("description", _IDS.get(one["name"]))
        app.openapi_schema = made
    return app.openapi_schema


__all__ = ["KINDS", "create_app"]
