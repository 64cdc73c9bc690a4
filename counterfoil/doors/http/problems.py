"""Every error as a problem of RFC 9457: a stable ``type``, a status, and a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi.responses import Response

from counterfoil.core.errors import (
    AmbiguousCall,
    Conflict,
    DecisionConflict,
    InvalidInput,
    NotAllowed,
    NotFound,
    NotPending,
    StoreError,
    UnknownAgent,
)
from counterfoil.core.jsontext import JsonValue, dumps

PREFIX: Final = "urn:counterfoil:problem:"
"""Before the name of a kind in ``type``."""
MEDIA_TYPE: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table of problems."""

    status: int
    title: str
    example: str
    """A detail as it may stand in an answer."""


KINDS: Final[Mapping[str, Kind]] = {
    "unauthorized": Kind(401, "No valid key", "send Authorization: Bearer KEY; `counterfoil keys create` makes one"),
    "forbidden": Kind(
        403,
        "The key may not do this",
        "this needs the scope approve, and the key has read, run; use one that was made with --scope approve",
    ),
    "not-allowed": Kind(403, "This person may not decide", "call c1 may be decided by role:finance, not by ada"),
    "not-found": Kind(404, "No such thing", "no run 0199aaaa-0000-7000-8000-000000000000"),
    "no-route": Kind(404, "No such route", "there is no GET /v1/run; /openapi.json lists the routes"),
    "method-not-allowed": Kind(405, "Not with this method", "DELETE is not possible here; use GET, POST"),
    "too-slow": Kind(408, "The body did not come", "the body did not come within 60 s; send it again, and faster"),
    "conflict": Kind(409, "Another one was first", "the interaction has an open run; wait for its end or cancel it"),
    "decision-conflict": Kind(
        409, "Decided differently before", "call c1 was decided before (approve by grace); the first decision stands"
    ),
    "ambiguous-call": Kind(
        409, "Several runs below have such a call",
        "run r1 has below it calls c1 of runs r2, r3; decide in the run that is meant",
    ),
    "agent-elsewhere": Kind(
        409, "The agent is not here", "an edit is checked by agent 'desk', which this server lacks; ask one that has it"
    ),
    "not-pending": Kind(410, "No decision is awaited", "call c1 awaits no decision any more; list those that do"),
    "erased": Kind(410, "The content was erased", "it was erased at 2026-10-26T12:00:00.0000000Z; its size is 52"),
    "body-too-large": Kind(413, "The body is too large", "a body has at most 1048576 bytes; send less"),
    "not-json": Kind(415, "The body is not JSON", "send the body as Content-Type: application/json"),
    "range": Kind(416, "No such range", "the result has 52 bytes; ask for a range within them"),
    "invalid-request": Kind(422, "The request is not as expected", "body.prompt: a text is expected, and nothing came"),
    "unknown-agent": Kind(
        422, "Nobody has this agent", "there is no agent 'suport', here or at a worker; there are: support"
    ),
    "invalid-input": Kind(422, "The edited input is refused", "cents: expected an integer over 0, got -1"),
    "rate-limited": Kind(429, "Too many requests", "this key may make 6000 requests in 60 s; try again in 2 s"),
    "internal": Kind(500, "The server failed", "something went wrong here; the log has it under this requestId"),
    "not-ready": Kind(503, "Not ready", "send nothing here now: its store does not answer"),
    "unavailable": Kind(503, "The store cannot be used now", "the record cannot be read or written; try again soon"),
}  # fmt: skip  # a table
"""What can go wrong, by name. The names are a promise."""

_ERRORS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (NotFound, "not-found"),
    (DecisionConflict, "decision-conflict"),
    (AmbiguousCall, "ambiguous-call"),
    (Conflict, "conflict"),
    (NotAllowed, "not-allowed"),
    (NotPending, "not-pending"),
    (InvalidInput, "invalid-input"),
    (UnknownAgent, "unknown-agent"),
    (StoreError, "unavailable"),
)


@dataclass(eq=False)
class Problem(Exception):
    """Ends a request with a problem."""

    kind: str
    detail: str
    headers: dict[str, str] = field(default_factory=dict)
    more: dict[str, JsonValue] = field(default_factory=dict)
    """Further members of the problem."""


def problem_of(error: Exception) -> Problem | None:
    """The problem that an error of the library amounts to; None: nobody foresaw it."""
    if isinstance(error, Problem):
        return error
    for kind, name in _ERRORS:
        if isinstance(error, kind):
            # What a store says of itself may name a place; the log has it.
            detail = KINDS[name].example if name == "unavailable" else str(error)
            more: dict[str, JsonValue] = {}
            if isinstance(error, UnknownAgent):
                more["agents"] = list(error.agents)
            elif isinstance(error, AmbiguousCall):
                more["runs"] = list(error.runs)
            return Problem(name, detail, {"Retry-After": "2"} if name == "unavailable" else {}, more)
    return None


def answer(problem: Problem, request_id: str) -> Response:
    """The problem as a response."""
    row = KINDS[problem.kind]
    body = {**body_of(problem.kind, problem.detail, request_id), **problem.more}
    return Response(dumps(body), row.status, headers=problem.headers, media_type=MEDIA_TYPE)


def body_of(kind: str, detail: str, request_id: str) -> dict[str, JsonValue]:
    """The members that each problem has."""
    row = KINDS[kind]
    return {
        "type": PREFIX + kind,
        "title": row.title,
        "status": row.status,
        "detail": detail,
        "requestId": request_id,
    }


EXAMPLE_ID: Final = "0199a3f2-6f1e-7000-8000-5d0c7b1e2a34"


def documented(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of these problems, by status."""
    found: dict[int | str, dict[str, Any]] = {}
    for name in kinds:
        row = KINDS[name]
        known = found.setdefault(
            row.status,
            {
                "description": row.title,
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}},
            },
        )
        if row.title not in known["description"]:
            known["description"] += f"; {row.title[0].lower()}{row.title[1:]}"
        known["content"][MEDIA_TYPE]["examples"][name] = {"value": body_of(name, row.example, EXAMPLE_ID)}
    return found
