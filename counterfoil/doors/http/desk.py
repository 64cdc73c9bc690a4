"""The error desk: reports counted by what went wrong."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from fastapi.responses import Response

from counterfoil.core.wire_live import group_json
from counterfoil.doors.http.access import Admin
from counterfoil.doors.http.bodies import Shape
from counterfoil.doors.http.common import ALWAYS, ASKED, PAGE, Held, Json, Limit, answers, plain
from counterfoil.doors.http.results import Code, Since, Tool, Until

router = APIRouter(tags=["results"])


class ReportGroup(Shape):
    """Error reports of one tool with one code."""

    tool_name: str
    """As the model named it."""
    code: int | None
    """The error code; null: the failures have none."""
    count: int
    """How many reports."""
    first_at: datetime
    """When the oldest of them was made, in UTC."""
    last_at: datetime
    """When the newest was."""


class ReportGroups(Shape):
    """Groups of error reports, what was seen last first."""

    items: list[ReportGroup]
    """The groups."""
    next: None
    """There is one page."""


@router.get("/v1/errors/groups", response_model=ReportGroups, responses=answers(ALWAYS, ASKED))
async def list_groups(
    access: Admin, runtime: Held, tool: Tool = None, code: Code = None, since: Since = None, until: Until = None,
    limit: Limit = PAGE,
) -> Response:  # fmt: skip  # two rows
    """Error reports of the tenant counted by tool and code, in one page, what was seen last first."""
    found = await runtime.error_groups(
        tool=tool and plain(tool), code=code, since=since, until=until, limit=limit,
        main=not access.threads, tenant=access.tenant,
    )  # fmt: skip  # two rows
    return Json({"items": [group_json(group) for group in found], "next": None})
