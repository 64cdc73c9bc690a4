"""What people do: the inbox, decisions, messages, the end of a run."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Query
from fastapi.responses import Response

from counterfoil.core.approval import Approval
from counterfoil.core.errors import Conflict, NotPending, UsageError
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import date_json
from counterfoil.core.wire_live import approval_json
from counterfoil.doors.http import bodies, shapes
from counterfoil.doors.http.access import Access, Decider, Inbox, Starter
from counterfoil.doors.http.common import (
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
    visible,
)
from counterfoil.doors.http.problems import Problem, documented, problem_of
from counterfoil.doors.http.runs import run_view

router = APIRouter(tags=["people"])


def _place(approval: Approval) -> str:
    return f"{date_json(approval.requested_at)} {approval.id}"


@router.get("/v1/approvals", response_model=shapes.Approvals, responses=answers(OF_RUN, ASKED))
async def list_approvals(
    access: Inbox,
    runtime: Held,
    run: Annotated[str | None, Query(max_length=200, description="Of this run alone.")] = None,
    cursor: Cursor = None,
    limit: Limit = PAGE,
) -> Response:
    """What waits for a decision, oldest first."""
    after = "" if cursor is None else place_of(cursor)
    waiting = sorted(await runtime.approvals(run and plain(run), tenant=access.tenant), key=_place)
    rest = [a for a in waiting if _place(a) > after]
    more = cursor_of(_place(rest[limit - 1])) if len(rest) > limit else None
    return Json({"items": [approval_json(a) for a in rest[:limit]], "next": more})


def _only(body: bodies.Decide) -> None:
    """Refuse a field that belongs to another decision.

    Raises:
        Problem
    """
    fits = {"input": "approve", "result": "record", "text": "answer"}
    for name, decision in fits.items():
        there = getattr(body, name) is not None
        if there and body.decision != decision:
            raise Problem(
                "invalid-request", f"body.{name}: only with the decision {decision}, not with {body.decision}"
            )
        if not there and body.decision == decision != "approve":
            raise Problem("invalid-request", f"body.{name}: the decision {decision} needs it")


def _result(given: str | bodies.Recorded) -> ToolResult:
    if isinstance(given, str):
        return ToolResult.text(given)
    try:
        made = ToolResult.from_dict(given.model_dump(exclude={"details", "narration"}))
        return made.with_details(given.details).with_narration(given.narration or "")
    except ValueError as error:
        raise Problem("invalid-request", f"body.result: {error}") from None


async def _decide(runtime: Held, run_id: str, call_id: str, body: bodies.Decide, access: Access) -> Approval:
    call = run_id, plain(call_id)
    who: dict[str, Any] = {
        "by": access.user, "roles": access.roles, "digest": body.digest, "tenant": access.tenant,
    }  # fmt: skip  # one row
    match body.decision:
        case "approve":
            return await runtime.approve(*call, reason=body.reason, input=body.input, **who)
        case "reject":
            return await runtime.reject(*call, reason=body.reason, **who)
        case "rerun":
            return await runtime.settle(*call, rerun=True, reason=body.reason, **who)
        case "record":
            return await runtime.settle(*call, result=_result(body.result or ""), reason=body.reason, **who)
        case "answer":
            return await runtime.answer(*call, text=body.text or "", **who)


@router.post(
    "/v1/runs/{run_id}/calls/{call_id}/decision",
    response_model=shapes.Decided,
    responses=answers(
        OF_RUN, SENT, documented("forbidden", "not-allowed", "decision-conflict", "ambiguous-call", "agent-elsewhere"),
        documented("not-pending", "invalid-request", "invalid-input"),
    ),
)  # fmt: skip
async def decide(run_id: str, call_id: str, body: bodies.Decide, access: Decider, runtime: Held) -> Response:
    """Decide on a call that waits. The first decision counts, for ever; an equal repeat is acknowledged."""
    _only(body)
    # Not only of what the key sees: what waits in a child run is asked in the parent's inbox.
    run = await runtime.get(plain(run_id), tenant=access.tenant)
    try:
        approval = await _decide(runtime, run.id, call_id, body, access)
    except (Conflict, NotPending) as error:
        problem = cast("Problem", problem_of(error))
        problem.more["waiting"] = [a.call_id for a in await run.approvals()]
        raise problem from error
    except UsageError as error:  # of an edit alone
        raise Problem("agent-elsewhere", f"{error}; send it to a server that has it") from error
    waiting = await run.approvals()
    hint = await runtime.nobody_has(run.agent)
    left = [approval_json(a) for a in waiting]
    return Json({"approval": approval_json(approval), "waiting": left, "hint": hint})


@router.post("/v1/runs/{run_id}/cancel", status_code=202, response_model=shapes.Run, responses=answers(OF_RUN, SENT))
async def cancel(run_id: str, access: Starter, runtime: Held, body: bodies.Cancel | None = None) -> Response:
    """End a run: nothing new starts, bodies are told and waited for, every call gets its result."""
    run = await visible(runtime, run_id, access)
    await run.cancel(body.reason if body else None, by=access.user)
    return Json(await run_view(await run.refresh()), 202)


@router.post(
    "/v1/runs/{run_id}/messages",
    status_code=202,
    response_model=shapes.Sent,
    responses=answers(OF_RUN, SENT, documented("conflict")),
)
async def send(run_id: str, body: bodies.Send, access: Starter, runtime: Held, key: Key = None) -> Response:
    """Queue a message for a run; the model reads it when the batch is complete."""
    run = await visible(runtime, run_id, access)
    open_ = await run.send(body.text, by=access.user, key=key)
    return Json({"delivered": open_, "hint": await runtime.nobody_has(run.agent) if open_ else None}, 202)
