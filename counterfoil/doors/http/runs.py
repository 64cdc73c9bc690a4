"""Runs: starting, listing, reading them and what stands in them."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from counterfoil.core.jsontext import JsonValue
from counterfoil.core.limits import Limits
from counterfoil.core.timeline import Row, rows
from counterfoil.core.turn import date_json, thread_named
from counterfoil.core.wire import context_items, run_json, timeline_items
from counterfoil.doors.http import bodies, shapes
from counterfoil.doors.http.access import Access, Reader, Starter
from counterfoil.doors.http.common import (
    ALWAYS,
    ASKED,
    MOST,
    OF_RUN,
    PAGE,
    SENT,
    UNCHANGED,
    Cursor,
    Held,
    Json,
    Key,
    Known,
    Limit,
    answers,
    cursor_of,
    place_of,
    plain,
    revalidated,
    visible,
)
from counterfoil.doors.http.problems import Problem, documented
from counterfoil.run import Run

router = APIRouter(tags=["runs"])

STARTED = documented("conflict", "invalid-request", "unknown-agent")

Thread = Annotated[
    str | None, Query(max_length=200, description="Of this thread alone; `main` is the main one. Needs `threads`.")
]


async def run_view(run: Run) -> dict[str, JsonValue]:
    """A run by field."""
    return {**run_json(run._fold.record, run.id, run.interaction_id, run._now), "hint": await run.hint()}


async def _start(
    body: bodies.StartRun, access: Access, runtime: Held, request: Request, key: str | None, interaction: str | None
) -> Response:
    known = runtime.agents.get(body.agent)
    limits = None
    if body.limits is not None:
        base = (known.limits if known is not None else None) or runtime.limits or Limits()
        given = {name: getattr(body.limits, name) for name in body.limits.model_fields_set}
        limits = Limits(**{**base.to_json(), **given})
    run = await runtime.start(
        body.agent, body.prompt, caller=access.caller, interaction=interaction, key=key, pool=body.pool,
        priority=body.priority, not_before=body.not_before, approvals=body.approvals,
        on_disconnect=body.on_disconnect, limits=limits,
    )  # fmt: skip  # rows by what belongs together
    return Json(await run_view(run), 202, {"Location": str(request.url_for("read_run", run_id=run.id).path)})


@router.post("/v1/runs", status_code=202, response_model=shapes.Run, responses=answers(ALWAYS, SENT, STARTED))
async def start_run(
    body: bodies.StartRun, access: Starter, runtime: Held, request: Request, key: Key = None
) -> Response:
    """Start a run in an interaction of its own."""
    return await _start(body, access, runtime, request, key, None)


@router.post(
    "/v1/interactions/{interaction_id}/runs",
    status_code=202,
    response_model=shapes.Run,
    responses=answers(OF_RUN, SENT, STARTED),
)
async def go_on(
    interaction_id: str, body: bodies.StartRun, access: Starter, runtime: Held, request: Request, key: Key = None
) -> Response:
    """Start a run that goes on with an interaction."""
    return await _start(body, access, runtime, request, key, plain(interaction_id))


@router.get("/v1/runs", response_model=shapes.Runs, responses=answers(OF_RUN, ASKED))
async def list_runs(
    access: Reader,
    runtime: Held,
    *,
    status: Annotated[shapes.Status | None, Query(description="These alone.")] = None,
    agent: Annotated[str | None, Query(max_length=200, description="Of this agent alone.")] = None,
    interaction: Annotated[str | None, Query(max_length=200, description="Of this interaction alone.")] = None,
    before: Annotated[str | None, Query(max_length=200, description="Older than this run.")] = None,
    roots: Annotated[bool, Query(description="None that another run waits for; so it is without `threads`.")] = False,
    cursor: Cursor = None,
    limit: Limit = PAGE,
) -> Response:
    """Runs, newest first."""
    older = before and plain(before) if cursor is None else plain(place_of(cursor))
    found = await runtime.runs(
        tenant=access.tenant, status=status, agent=agent and plain(agent),
        interaction=interaction and plain(interaction), limit=limit + 1, before=older,
        roots=roots or not access.threads,
    )  # fmt: skip  # rows by what belongs together
    items: list[JsonValue] = [row.to_json() for row in found[:limit]]
    return Json({"items": items, "next": cursor_of(found[limit - 1].run_id) if len(found) > limit else None})


def _thread(access: Access, thread: str | None) -> Any:
    """The thread that is asked for, as `context_items` takes it."""
    if thread in (None, "main") or not thread:
        return ... if thread is None and access.threads else None
    if not access.threads:
        raise Problem("forbidden", "other threads than the main one need the scope threads; leave out `thread`")
    try:
        return thread_named(thread)
    except ValueError as error:
        raise Problem("invalid-request", f"query.thread: {error}") from None


def _context(
    run: Run, access: Access, *, after: int = 0, since: int = 0, thread: str | None = None, limit: int = MOST
) -> dict[str, JsonValue]:
    record = run._fold.record
    items = context_items(
        record, run.id, after=after, since=since, thread=_thread(access, thread), limit=limit + 1
    )  # fmt: skip
    more = len(items) > limit
    return {"items": list(items[:limit]), "next": items[limit - 1]["sequence"] if more else None, "tip": record.tip}


@router.get(
    "/v1/runs/{run_id}",
    name="read_run",
    response_model=shapes.RunWithContext,
    responses=answers(OF_RUN, UNCHANGED),
)
async def read_run(
    run_id: str,
    access: Reader,
    runtime: Held,
    known: Known = None,
) -> Response:
    """A run, with the first page of its context."""
    run = await visible(runtime, run_id, access)
    answer = Json({**await run_view(run), "context": _context(run, access, limit=PAGE)})
    headers, same = revalidated(f'W/"{hashlib.sha256(answer.body).hexdigest()[:32]}"', known)
    if same:
        return Response(status_code=304, headers=headers)
    answer.headers.update(headers)
    return answer


@router.get("/v1/runs/{run_id}/context", response_model=shapes.Context, responses=answers(OF_RUN, ASKED))
async def read_context(
    run_id: str,
    access: Reader,
    runtime: Held,
    after: Annotated[int, Query(ge=0, le=2**53, description="Items with a larger sequence.")] = 0,
    since: Annotated[int, Query(ge=0, le=2**53, description="Items that arrived after this `tip`.")] = 0,
    thread: Thread = None,
    limit: Limit = PAGE,
) -> Response:
    """The items of a run in reading order: messages, calls, and their results."""
    run = await visible(runtime, run_id, access)
    return Json(_context(run, access, after=after, since=since, thread=thread, limit=limit))


@router.get("/v1/runs/{run_id}/timeline", response_model=shapes.Timeline, responses=answers(OF_RUN, ASKED))
async def read_timeline(run_id: str, access: Reader, runtime: Held, thread: Thread = None) -> Response:
    """The items of a run with all that is on record of them: outcome, narration, details, decisions, times.

    `rows` tells the same to a person, a sentence each.
    """
    run = await visible(runtime, run_id, access)
    admin, of = "admin" in access.scopes, _thread(access, thread)
    items = timeline_items(run._fold.record, run.id, thread=of, admin=admin)
    told = [_row(row) for row in rows(run._fold.record, run.id, of, run._now)]
    return Json({"items": list(items), "rows": told})


def _row(row: Row) -> dict[str, JsonValue]:
    times = {"at": row.at, "startedAt": row.started_at, "endedAt": row.ended_at}
    mark = row.to_json()["approval"]
    if isinstance(mark, dict) and row.approval is not None and row.approval.at is not None:
        mark["at"] = date_json(row.approval.at)
    dates: dict[str, JsonValue] = {name: None if at is None else date_json(at) for name, at in times.items()}
    return {**row.to_json(), **dates, "approval": mark}
