"""The error desk: reports counted by what went wrong."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from fastapi.responses import Response

from counterfoil.core.wire_live import group_json
from counterfoil.doors.http.access import Admin
from counterfoil.doors.http.bodies import Shape
from counterfoil.doors.http.common import ALWAYS, ASKED, PAGE, Held, Json, Limit, answers, plain
from counterfoil.doors.http.results import Code, Since, Tool

router = APIRouter(tags=["results"])


class ReportGroup(Shape):
    """Error reports of one tool with one code."""

    tool_name: str
    code: int | None
    count: int
    first_at: datetime
    last_at: datetime


class ReportGroups(Shape):
    """Groups of error reports, what was seen last first."""

    items: list[ReportGroup]
    next: None


@router.get("/v1/errors/groups", response_model=ReportGroups, responses=answers(ALWAYS, ASKED))
async def list_groups(
    access: Admin, runtime: Held, tool: Tool = None, code: Code = None, since: Since = None, limit: Limit = PAGE
) -> Response:
    """Error reports of the tenant counted by tool and code, in one page, what was seen last first."""
    found = await runtime.error_groups(
        tool=tool and plain(tool), code=code, since=since, limit=limit,
        main=not access.threads, tenant=access.tenant,
    )  # fmt: skip  # two rows
    return Json({"items": [group_json(group) for group in found], "next": None})
