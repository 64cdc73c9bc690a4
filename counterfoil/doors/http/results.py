"""What stands behind a run: results whole or in part, error reports, and what the model was asked."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import Response
from pydantic import AwareDatetime

from counterfoil.core.entries import RunEntry
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.turn import date_json, micros, moment
from counterfoil.core.wire import usage_json
from counterfoil.core.wire_live import report_json
from counterfoil.doors.http import shapes
from counterfoil.doors.http.access import Admin, Reader
from counterfoil.doors.http.bodies import Shape
from counterfoil.doors.http.common import (
    ALWAYS,
    ASKED,
    OF_RUN,
    PAGE,
    UNCHANGED,
    Cursor,
    Held,
    Json,
    Known,
    Limit,
    answers,
    bad_cursor,
    cursor_of,
    place_of,
    plain,
    revalidated,
    visible,
)
from counterfoil.doors.http.problems import Problem, documented
from counterfoil.replay import ReplayStep, replay

router = APIRouter(tags=["results"])


class Report(Shape):
    """Everything that is known about one failed call (contract 1.3)."""

    tenant_id: str
    """Whose it is."""
    user_context: dict[str, Any]
    """On whose behalf the run works: ``tenant``, ``user``, ``roles``, ``attributes``."""
    interaction_id: str
    """The conversation."""
    thread_id: str
    """``main`` for the main thread."""
    run_id: str
    """The run."""
    step_index: int
    """Its step, from 0."""
    call_id: str
    """The call."""
    tool_name: str
    """As the model named it."""
    input: Any
    """The arguments, parsed and effective; raw where the schema did not take them."""
    error: dict[str, Any]
    """The exception: ``type``, ``message``, ``traceback``, ``causes``."""
    code: int | None
    """4000 to 5999 are the gateway's, others the tool's own; null: the failure has none."""
    model_text: str
    """What the model read of it."""
    duration_ms: float
    """From the gateway's start on the call to the failure, without the wait for a person, in milliseconds."""
    at: datetime
    """When it failed, in UTC."""
    attempts: list[str]
    """What went wrong in each attempt before the last."""
    partial: Any
    """What a generator had given before it raised."""


class Reports(Shape):
    """A page of error reports, newest first."""

    items: list[Report]
    """The reports."""
    next: str | None
    """Give it back as ``cursor``; null: this is the last page."""


class Asked(Shape):
    """What a model read."""

    messages: list[dict[str, Any]]
    """As a model reads them: each with its ``role``."""
    items: int
    """Of the request in all."""
    read_before: int
    """How many of them an earlier step had read; they are left out unless ``all`` is asked for."""


class Answered(Shape):
    """What a model answered."""

    at: datetime
    """When it was on record, in UTC."""
    model: str
    """Which model answered."""
    text: str
    """What it wrote."""
    stop: str
    """Why it stopped."""
    calls: list[dict[str, Any]]
    """The calls that it made, with what became of them."""
    usage: shapes.Usage
    """What the turn cost."""


class Step(Shape):
    """A step of a run: one turn of its model."""

    step: int
    """From 0."""
    request: Asked
    """What the model was asked."""
    response: Answered
    """What it answered."""


class Trace(Shape):
    """The steps of a run."""

    items: list[Step]
    """In their order."""
    next: str | None
    """Give it back as ``cursor``; null: this is the last page."""


_BYTES = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_TEXT: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}, "example": "Refunded 1500 cents."}}
BIGGEST = 2**53


def byte_range(asked: str | None, size: int) -> tuple[int, int] | None:
    """The bytes from the first to before the last that a Range asks for; None: the whole.

    A range that is not understood counts for nothing, as RFC 9110 has it, and so do several.

    Raises:
        Problem: there are no such bytes.
    """
    found = _BYTES.fullmatch(asked.strip()) if asked else None
    if found is None or not (found[1] or found[2]) or (found[1] and found[2] and int(found[2]) < int(found[1])):
        return None
    if found[1]:
        first, end = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
    else:
        first, end = max(size - int(found[2]), 0), size
    if first >= end:
        raise Problem("range", f"the result has {size} bytes; ask for a range within them", _range(f"*/{size}"))
    return first, end


def _range(text: str) -> dict[str, str]:
    return {"Content-Range": f"bytes {text}"}


@router.get(
    "/v1/runs/{run_id}/tool-results/{sequence}",
    response_class=Response,
    responses=answers(
        OF_RUN, UNCHANGED, documented("erased", "range", "invalid-request"),
        {
            200: {"description": "The text of the result", "content": _TEXT},
            206: {"description": "The bytes of it that Range asked for", "content": _TEXT},
        },
    ),
)  # fmt: skip  # as it reads best
async def read_result(
    run_id: str,
    sequence: Annotated[int, Path(ge=0, le=BIGGEST, description="Of the result, as its item has it.")],
    access: Reader,
    runtime: Held,
    offset: Annotated[int, Query(ge=0, le=BIGGEST, description="The first character.")] = 0,
    limit: Annotated[int | None, Query(ge=0, le=BIGGEST, description="Characters at most.")] = None,
    range_: Annotated[str | None, Header(alias="Range", description="Such as bytes=0-999.")] = None,
    if_range: Annotated[
        str | None, Header(alias="If-Range", description="The Range counts while the result has this ETag.")
    ] = None,
    known: Known = None,
) -> Response:
    """A result, whole also where it is kept apart; a Range in bytes, or `offset` and `limit` in characters."""
    run = await visible(runtime, run_id, access)
    piece = await runtime.tool_result(run.id, sequence, offset=offset, limit=limit, tenant=access.tenant)
    if piece.erased_at is not None:
        at = date_json(moment(piece.erased_at))
        told: dict[str, JsonValue] = {"erasedAt": at, "size": piece.size}
        raise Problem("erased", f"it was erased at {at}; its size is {piece.size}", more=told)
    data = piece.text.encode("utf-8", "replace")
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers, same = revalidated(tag, known)
    if same:
        return Response(status_code=304, headers=headers)
    headers |= {"Accept-Ranges": "bytes", "X-Characters": str(piece.total), "X-Bytes": str(piece.size)}
    ranged = limit is None and not offset and if_range in (None, tag)
    within = byte_range(range_, len(data)) if ranged else None
    if within is None:
        return Response(data, headers=headers, media_type="text/plain; charset=utf-8")
    first, end = within
    headers |= _range(f"{first}-{end - 1}/{len(data)}")
    return Response(data[first:end], 206, headers, "text/plain; charset=utf-8")


async def _reports(
    runtime: Held, access: Admin, run_id: str | None, tool: str | None, code: int | None,
    since: AwareDatetime | None, until: AwareDatetime | None, cursor: str | None, limit: int,
) -> Response:  # fmt: skip  # two rows
    # A cursor is a time, and how many reports of that very time were given.
    last, given = _reports_place(cursor)
    at = last if last is not None or until is None else micros(until)
    found = await runtime.errors(
        run_id, tool=tool and plain(tool), code=code, since=since, until=at,
        limit=given + limit + 1, main=not access.threads, tenant=access.tenant,
    )  # fmt: skip  # two rows
    page = found[given : given + limit]
    more = None
    if len(found) > given + limit:
        oldest = page[-1].at_us
        seen = sum(report.at_us == oldest for report in page) + (given if oldest == last else 0)
        more = cursor_of(f"{oldest} {seen}")
    return Json({"items": [report_json(report) for report in page], "next": more})


def _reports_place(cursor: str | None) -> tuple[int | None, int]:
    if cursor is None:
        return None, 0
    found = re.fullmatch(r"(\d{1,18}) (\d{1,9})", place_of(cursor))
    if found is None:
        raise bad_cursor()
    return int(found[1]), int(found[2])


Tool = Annotated[str | None, Query(max_length=200, description="Of this tool alone.")]
Code = Annotated[int | None, Query(ge=-BIGGEST, le=BIGGEST, description="With this error code alone.")]
Since = Annotated[AwareDatetime | None, Query(description="None that are older.")]
Until = Annotated[AwareDatetime | None, Query(description="None that are newer.")]


@router.get("/v1/errors", response_model=Reports, responses=answers(ALWAYS, ASKED))
async def list_errors(
    access: Admin, runtime: Held, tool: Tool = None, code: Code = None, since: Since = None, until: Until = None,
    cursor: Cursor = None, limit: Limit = PAGE,
) -> Response:  # fmt: skip  # two rows
    """Error reports of the tenant, newest first: everything that is known about each failed call."""
    return await _reports(runtime, access, None, tool, code, since, until, cursor, limit)


@router.get("/v1/runs/{run_id}/errors", response_model=Reports, responses=answers(OF_RUN, ASKED))
async def list_errors_of_run(
    run_id: str, access: Admin, runtime: Held, tool: Tool = None, code: Code = None, since: Since = None,
    until: Until = None, cursor: Cursor = None, limit: Limit = PAGE,
) -> Response:  # fmt: skip  # two rows
    """Error reports of one run, newest first."""
    run = await visible(runtime, run_id, access)
    return await _reports(runtime, access, run.id, tool, code, since, until, cursor, limit)


def _step(step: ReplayStep, *, all_: bool) -> dict[str, JsonValue]:
    told, turn = step.to_json(all_=all_), step.turn
    return {
        "step": step.step,
        "request": {"messages": told["messages"], "items": told["items"], "readBefore": told["readBefore"]},
        "response": {
            "at": date_json(moment(turn.at)),
            "model": turn.model,
            "text": turn.text,
            "stop": turn.stop,
            "calls": told["calls"],
            "usage": usage_json(turn.usage),
        },
    }


@router.get("/v1/runs/{run_id}/trace", response_model=Trace, responses=answers(OF_RUN, ASKED))
async def read_trace(
    run_id: str,
    access: Reader,
    runtime: Held,
    *,
    all_: Annotated[
        bool, Query(alias="all", description="Every message of each request, also those read before.")
    ] = False,
    cursor: Cursor = None,
    limit: Limit = PAGE,
) -> Response:
    """What the model was asked in each step, and what it answered, as it is on record.

    A key without the scope `threads` sees of a request what stands on the main thread.
    """
    run = await visible(runtime, run_id, access)
    entries = await runtime.store.entries(access.tenant, run.interaction_id)
    if not access.threads:  # an agent that was handed tasks before reads its private thread too
        roots = {e.run_id for e in entries if isinstance(e, RunEntry) and e.thread_id is None}
        entries = [e for e in entries if e.thread_id is None and e.run_id in roots]
    first = 0 if cursor is None else _step_of(cursor)
    rest = [step for step in replay(entries, run.id).steps if step.step >= first]
    more = cursor_of(str(rest[limit].step)) if len(rest) > limit else None
    return Json({"items": [_step(step, all_=all_) for step in rest[:limit]], "next": more})


def _step_of(cursor: str) -> int:
    place = place_of(cursor)
    if re.fullmatch(r"\d{1,9}", place, re.ASCII) is None:
        raise bad_cursor()
    return int(place)
