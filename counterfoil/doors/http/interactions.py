"""Interactions: conversations of participants, before and between their runs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from counterfoil.core.wire import Fields, interaction_json
from counterfoil.doors.http import bodies, shapes
from counterfoil.doors.http.access import Reader, Starter
from counterfoil.doors.http.common import (
    ALWAYS,
    ASKED,
    OF_RUN,
    PAGE,
    SENT,
    Cursor,
    Held,
    Json,
    Key,
    Limit,
    answers,
    cursor_of,
    place_of,
    plain,
)
from counterfoil.doors.http.problems import documented

router = APIRouter(tags=["interactions"])


def _view(row: Any) -> Fields:
    return interaction_json(row.interaction_id, row.created_at, row.participants, row.open_run)


@router.post(
    "/v1/interactions",
    status_code=201,
    response_model=shapes.Interaction,
    responses=answers(ALWAYS, SENT, documented("conflict")),
)
async def create_interaction(
    body: bodies.NewInteraction, access: Starter, runtime: Held, request: Request, key: Key = None
) -> Response:
    """Begin a conversation before its first run."""
    who = [(one.type, one.name) for one in body.participants]
    row = await runtime.open_interaction(who, key=key, by=access.user, tenant=access.tenant)
    place = str(request.url_for("read_interaction", interaction_id=row.interaction_id).path)
    return Json(_view(row), 201, {"Location": place})


@router.get("/v1/interactions", response_model=shapes.Interactions, responses=answers(OF_RUN, ASKED))
async def list_interactions(access: Reader, runtime: Held, cursor: Cursor = None, limit: Limit = PAGE) -> Response:
    """Conversations, newest first."""
    before = None if cursor is None else plain(place_of(cursor))
    rows = await runtime.interactions(tenant=access.tenant, limit=limit + 1, before=before)
    more = cursor_of(rows[limit - 1].interaction_id) if len(rows) > limit else None
    return Json({"items": [_view(row) for row in rows[:limit]], "next": more})


@router.get(
    "/v1/interactions/{interaction_id}", name="read_interaction", response_model=shapes.Interaction, responses=OF_RUN
)
async def read_interaction(interaction_id: str, access: Reader, runtime: Held) -> Response:
    """A conversation and who takes part in it."""
    return Json(_view(await runtime.interaction(plain(interaction_id), tenant=access.tenant)))
