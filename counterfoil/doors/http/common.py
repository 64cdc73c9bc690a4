"""What the routes share: the Runtime, JSON answers, cursors of pages, ids."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from fastapi import Depends, Header, Query, Request
from fastapi.responses import Response

from counterfoil.core.errors import NotFound
from counterfoil.core.jsontext import clean_text, dumps
from counterfoil.core.record import RunState
from counterfoil.doors.http.access import Access
from counterfoil.doors.http.problems import Problem, documented
from counterfoil.run import Run
from counterfoil.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE: Final = 50
MOST: Final = 500
"""Items of a page, unless asked for, and at most."""

ALWAYS: Final = documented("unauthorized", "forbidden", "rate-limited", "internal", "unavailable")
"""What every route with a key can answer."""
OF_RUN: Final = {**ALWAYS, **documented("not-found")}
"""And every route of one run."""
ASKED: Final = documented("invalid-request")
"""Where there is something to get wrong."""
SENT: Final = {**documented("body-too-large", "not-json"), **ASKED}
"""Where there is a body."""

Limit = Annotated[int, Query(ge=1, le=MOST, description="Items of a page at most.")]
Cursor = Annotated[str | None, Query(max_length=1000, description="`next` of the page before.")]


PACKED: Final = "-gzip"
"""Behind the ETag of what is compressed."""
Known = Annotated[str | None, Header(alias="If-None-Match", description="The ETag of an earlier answer.")]
UNCHANGED: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "It is as the client knows it by its ETag"}}


def revalidated(tag: str, known: str | None) -> tuple[dict[str, str], bool]:
    """The headers of an answer that a client may keep and has to ask about, and whether it knows it already."""
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    given = [] if known is None else [one.strip() for one in known.split(",")]
    bare = {one.removeprefix("W/").replace(f'{PACKED}"', '"') for one in given}
    return headers, "*" in given or tag.removeprefix("W/") in bare


Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A repeat with the same key gives what the first one made.",
    ),
]


def _runtime(request: Request) -> Runtime:
    return cast("Runtime", request.app.state.runtime)


Held = Annotated[Runtime, Depends(_runtime)]
"""The Runtime of this server."""


class Json(Response):
    """JSON, written as the record writes it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Its bytes."""
        return dumps(content)


def plain(text: str) -> str:
    """A text of an address, as a store can look for it."""
    return clean_text(text).replace("\x00", "\ufffd")


async def visible(runtime: Runtime, run_id: str, access: Access) -> Run:
    """A run that the request may see.

    Raises:
        NotFound: there is none for its tenant, or it is a child's and the key lacks the scope ``threads``.
    """
    run = await runtime.get(plain(run_id), tenant=access.tenant)
    may_see(run._fold.record.runs[run.id], access)  # the fold is what a view is made of
    return run


def may_see(run: RunState, access: Access) -> None:
    """Raises NotFound, as of `visible`."""
    if run.head is not None and run.head.thread_id is not None and not access.threads:
        raise NotFound(f"no run {run.run_id}")


def cursor_of(place: str) -> str:
    """A place in a list as text that says nothing."""
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def place_of(cursor: str) -> str:
    """The place that a cursor stands for.

    Raises:
        Problem: it is none of ours.
    """
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise bad_cursor() from None


def bad_cursor() -> Problem:
    """What a cursor that is none of ours is answered with."""
    return Problem(
        "invalid-request", "query.cursor: expected `next` of the page before; leave it out for the first page"
    )


def answers(*parts: Mapping[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """The documented problems of a route together."""
    found: dict[int | str, dict[str, Any]] = {}
    for part in parts:
        found.update(part)
    return found
