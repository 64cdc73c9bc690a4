"""Live events of a run as server-sent events."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from starlette.datastructures import State
from starlette.types import Receive, Scope, Send

from counterfoil.core.errors import CounterfoilError, StoreError, UsageError
from counterfoil.core.events import CallProgress, Event, TurnDelta
from counterfoil.core.jsontext import dumps
from counterfoil.core.record import RunState
from counterfoil.core.states import OPEN
from counterfoil.core.wire_live import event_json
from counterfoil.doors.http.access import Access, Reader, counts_yet
from counterfoil.doors.http.common import ASKED, OF_RUN, Held, answers, may_see, plain
from counterfoil.doors.http.problems import Problem
from counterfoil.runtime import Runtime

log = logging.getLogger("counterfoil.http")

router = APIRouter(tags=["runs"])

_LINE: Final = {"type": "string"}
EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"id": _LINE, "event": _LINE, "data": {**_LINE, "contentMediaType": "application/json"}},
    "required": ["event", "data"],
}
"""An event on the wire, as OpenAPI 3.2 has it."""

HEARTBEAT: Final = 15.0
"""Seconds between two comments on a quiet stream: proxies cut what is silent for 30 to 60."""
DISCONNECT_GRACE: Final = 30.0
"""Seconds that a client has to come back to a run that is cancelled with it."""
PIECE: Final = 64 * 1024
"""Bytes after which what is written waits for a slow reader: as much as the server holds for it by itself."""
RETRY_MS: Final = 1000
"""Milliseconds that a client waits before it connects again."""


FRAMES: Final = 4 * 1024 * 1024
"""Bytes of events on the wire that are kept for others who follow the same run."""


def frame(event: Event) -> bytes:
    """An event on the wire. What is not on record has no id: a reader goes on after the last entry that it saw."""
    id_ = b"" if isinstance(event, (TurnDelta, CallProgress)) else b"id: %d\n" % event.entry
    return id_ + b"event: " + type(event).__name__.encode() + b"\ndata: " + dumps(event_json(event)) + b"\n\n"


class Frames:
    """Events on the wire: each is written once for all who follow the same run at about the same time."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Event, bytes]] = {}
        """By the event's identity, which is its own as long as it is held here."""
        self._size = 0

    def of(self, event: Event) -> bytes:
        """See `frame`."""
        known = self._kept.get(id(event))
        if known is not None:
            return known[1]
        data = frame(event)
        self._kept[id(event)] = event, data
        self._size += len(data)
        while self._size > FRAMES:
            self._size -= len(self._kept.pop(next(iter(self._kept)))[1])
        return data


class Followers:
    """Who follows runs that are cancelled when nobody does any more.

    Args:
        runtime: whose runs.
        grace: seconds that a client has to come back.
    """

    def __init__(self, runtime: Runtime, grace: float) -> None:
        self._runtime = runtime
        self._grace = grace
        self._here: Counter[str] = Counter()
        self._going: dict[str, asyncio.Task[None]] = {}

    def come(self, run_id: str) -> None:
        """A client follows the run."""
        self._here[run_id] += 1
        if task := self._going.pop(run_id, None):
            task.cancel()

    def leave(self, run_id: str, tenant: str, *, dropped: bool) -> None:
        """It does no more.

        Args:
            run_id: the run.
            tenant: whose.
            dropped: the client went away before the run's end, and was not sent away by this server.
        """
        self._here[run_id] -= 1
        if self._here[run_id]:
            return
        del self._here[run_id]
        if dropped:
            self._going[run_id] = asyncio.create_task(self._cancel(run_id, tenant))

    async def _cancel(self, run_id: str, tenant: str) -> None:
        await asyncio.sleep(self._grace)
        del self._going[run_id]
        try:
            await self._runtime.cancel(run_id, reason="the client that followed the run went away", tenant=tenant)
        except CounterfoilError:
            log.exception("run %s could not be cancelled for the client that went away", run_id)

    def close(self) -> None:
        """The server leaves: clients go on elsewhere."""
        for task in self._going.values():
            task.cancel()


class EventStream(Response):
    """Writes events as they come, until they end, the reader goes away or the server leaves.

    Args:
        run: whose.
        events: what comes.
        state: of the application.
        access: the reader's.
        counts: whether it counts yet; asked as often as a quiet stream has a comment.
    """

    media_type = "text/event-stream"

    def __init__(
        self, run: RunState, events: AsyncGenerator[list[Event], None], state: State, access: Access,
        counts: Callable[[], Awaitable[bool]],
    ) -> None:  # fmt: skip  # two rows
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._run_id, self._events, self._state, self._access = run.run_id, events, state, access
        self._counts = counts
        self._cancels = run.head is not None and run.head.on_disconnect == "cancel"

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Write them."""
        followers: Followers | None = self._state.followers if self._cancels else None
        if followers is not None:
            followers.come(self._run_id)
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._write(send, gone)
        finally:
            if followers is not None:
                followers.leave(self._run_id, self._access.tenant, dropped=gone.done())
            await _end(gone)
            await self._events.aclose()
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, gone: asyncio.Future[None]) -> None:
        coming: asyncio.Task[list[Event]] | None = None
        leaving: asyncio.Future[None] = self._state.leaving
        try:
            await _body(send, b"retry: %d\n\n" % RETRY_MS)
            clock, every = asyncio.get_running_loop().time, self._state.heartbeat
            due = clock() + every
            while not (gone.done() or leaving.done()):
                if clock() >= due:
                    due = clock() + every
                    if not await self._counts():
                        break
                coming = coming or asyncio.create_task(_next(self._events))
                ends: set[asyncio.Future[Any]] = {coming, gone, leaving}
                done, _ = await asyncio.wait(ends, timeout=every, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    await _body(send, b": alive\n\n")
                elif coming in done:
                    events, coming = coming.result(), None
                    shown = (e for e in events if self._access.threads or e.thread_id is None)
                    for data in _pieces(map(self._state.frames.of, shown)):
                        await _body(send, data)
        except StopAsyncIteration:
            pass
        except StoreError as error:  # the reader connects again, and is told then what is wrong
            log.warning("a stream of run %s is cut off: the store failed", self._run_id, exc_info=error)
        finally:
            await _end(coming)


async def _next(events: AsyncIterator[list[Event]]) -> list[Event]:
    return await anext(events)


def _pieces(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Many in one piece."""
    piece = bytearray()
    for data in frames:
        piece += data
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


async def _body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(task: asyncio.Future[Any] | None) -> None:
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task])


@router.get(
    "/v1/runs/{run_id}/events",
    response_class=Response,
    responses=answers(
        OF_RUN,
        ASKED,
        {
            200: {
                "description": "Events, each with the number of its entry as id; deltas and progress have none",
                "content": {"text/event-stream": {"itemSchema": EVENT}},
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
    last: Annotated[
        int | None, Header(alias="Last-Event-ID", ge=0, le=2**53, description="The id of the last event that came.")
    ] = None,
    after: Annotated[int | None, Query(ge=0, le=2**53, description="As Last-Event-ID, which counts before it.")] = None,
    until: Annotated[
        Literal["end", "pause"], Query(description="pause: the stream ends also where the run waits for people.")
    ] = "end",
) -> Response:
    """A run's events from the first, or after an entry, until it ends; over pauses too."""
    seen = last if last is not None else after or 0
    row, trail = await runtime.trail(plain(run_id), access.tenant)
    run = trail.record.runs[row.run_id]
    may_see(run, access)
    try:
        events = runtime.event_lists(row, trail, seen, to_end=until == "end")
    except UsageError as error:
        raise Problem("invalid-request", str(error)) from None
    if run.status not in OPEN and run.ended is not None and run.ended.entry <= seen:
        return Response(status_code=204)
    return EventStream(run, events, request.app.state, access, functools.partial(counts_yet, request))
