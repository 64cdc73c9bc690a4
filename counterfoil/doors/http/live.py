"""Live events of a run as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from counterfoil.core.events import CallProgress, Event, TurnDelta
from counterfoil.core.jsontext import dumps
from counterfoil.core.states import OPEN
from counterfoil.core.wire_live import event_json
from counterfoil.doors.http.access import Reader
from counterfoil.doors.http.common import ASKED, OF_RUN, Held, answers, visible

router = APIRouter(tags=["runs"])

HEARTBEAT: Final = 15.0
"""Seconds between two comments on a quiet stream: proxies cut what is silent for 30 to 60."""
RETRY_MS: Final = 1000
"""Milliseconds that a client waits before it connects again."""


def frame(event: Event) -> bytes:
    """An event on the wire. What is not on record has no id: a reader goes on after the last entry that it saw."""
    id_ = b"" if isinstance(event, (TurnDelta, CallProgress)) else b"id: %d\n" % event.entry
    return id_ + b"event: " + type(event).__name__.encode() + b"\ndata: " + dumps(event_json(event)) + b"\n\n"


class EventStream(Response):
    """Writes events as they come, until they end, the reader goes away or the server leaves."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[Event], leaving: asyncio.Future[None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._leaving = leaving

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Write them."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.ensure_future(_gone(receive))
        coming: asyncio.Task[Event] | None = None
        try:
            await _body(send, b"retry: %d\n\n" % RETRY_MS)
            while True:
                coming = coming or asyncio.create_task(_next(self._events))
                ends: set[asyncio.Future[Any]] = {coming, gone, self._leaving}
                await asyncio.wait(ends, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
                if gone.done() or self._leaving.done():
                    break
                if not coming.done():
                    await _body(send, b": alive\n\n")
                    continue
                done, coming = coming, None
                try:
                    event = done.result()
                except StopAsyncIteration:
                    break
                await _body(send, frame(event))
        finally:
            await _end(coming, gone)
            await self._events.aclose()  # type: ignore[attr-defined]  # it is a generator
        await send({"type": "http.response.body", "body": b""})


async def _next(events: AsyncIterator[Event]) -> Event:
    return await anext(events)


async def _body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any] | None) -> None:
    for task in tasks:
        if task is not None and not task.done():
            task.cancel()
        if task is not None:
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await task


@router.get(
    "/v1/runs/{run_id}/events",
    response_class=Response,
    responses=answers(
        OF_RUN,
        ASKED,
        {
            200: {
                "description": "Events, each with the number of its entry as id; deltas and progress have none",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            204: {"description": "The run has ended and its last event was seen: do not connect again"},
        },
    ),
)
async def follow(
    run_id: str,
    access: Reader,
    runtime: Held,
    request: Request,
    last: Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=2**53)] = None,
    after: Annotated[int | None, Query(ge=0, le=2**53, description="As Last-Event-ID, which counts before it.")] = None,
) -> Response:
    """A run's events from the first, or after an entry, until it ends; over pauses too."""
    run = await visible(runtime, run_id, access)
    seen = last if last is not None else after or 0
    ended = run._fold.record.runs[run.id].ended
    if run.status not in OPEN and ended is not None and ended.entry <= seen:
        return Response(status_code=204)
    events = runtime.events(run.id, after=seen, tenant=access.tenant, to_end=True)
    return EventStream(events, request.app.state.leaving)
