"""A run's events over connections that come and go."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, cast

from counterfoil.client.values import event_of
from counterfoil.client.wire import BUSY, LONGEST_PAUSE, MOST_ASKED, QUIET_SECONDS, Wire, pause
from counterfoil.core.errors import ServerError
from counterfoil.core.events import CallProgress, Event, RunEnded, RunPaused, TurnDelta

if TYPE_CHECKING:
    import httpx2

LOOK_SECONDS = 5.0
_PASSING = (TurnDelta, CallProgress)
"""Events that are never stored."""


async def follow(
    wire: Wire, run: str, after: int, *, to_end: bool, patience: float, ends: float | None = None
) -> AsyncGenerator[Event]:
    """See `AsyncClient.events`.

    Args:
        wire: the server.
        run: the run's path.
        after: the entry.
        to_end: go on over pauses.
        patience: seconds without anything new, and without a stream that lives, after which it is given up.
        ends: when it is given up, by the monotonic clock.

    Raises:
        TimeoutError: it went on until then.
        ServerError: the first connection failed, or ``patience`` is at its end.
    """
    import httpx2

    seen, since, attempt, rest, over, begun = after, time.monotonic(), 0, 0.0, False, False
    while True:
        try:
            opened, fault = None, _ends_early(wire)
            if (answer := await _open(wire, run, seen, "end" if to_end else "pause", _quiet(ends))) is None:
                return
            begun, opened = True, time.monotonic()
            stream = cast("AsyncGenerator[httpx2.ServerSentEvent]", wire.way.events(answer))
            try:
                async for sent in stream:
                    rest = rest if sent.retry is None else min(sent.retry / 1000, MOST_ASKED)
                    number = int(sent.id) if sent.id.isdecimal() else 0
                    event = _event(wire, sent.data)
                    fresh, seen = number > seen or isinstance(event, _PASSING), max(seen, number)
                    _left(ends)
                    if fresh and event is not None:
                        over = isinstance(event, RunEnded if to_end else (RunEnded, RunPaused))
                        yield event
                    if fresh:
                        since, attempt = time.monotonic(), 0
            finally:
                await stream.aclose()
                await wire.way.end(answer)
            if over or (not to_end and (await wire.json("GET", run))["status"] != "running"):
                return
        except httpx2.RequestError as error:
            fault = _ends_early(wire, error)
            dead = ends is None and isinstance(error, httpx2.ReadTimeout)  # not even a comment came
            opened = None if dead else opened
        except ServerError as error:
            _left(ends)  # who has no more time waited for an answer no longer than that
            if not begun or error.status not in (None, *BUSY):
                raise
            fault = error
        now = time.monotonic()
        if opened is not None and now - opened >= LONGEST_PAUSE:
            since, attempt = now, 0  # quiet runs are cut off by proxies again and again
        if now - since > patience:
            raise fault
        await wire.way.sleep(min(max(pause(attempt), rest), _left(ends)))
        attempt += 1


async def _open(wire: Wire, run: str, seen: int, until: str, quiet: float) -> httpx2.Response | None:
    """A stream of events after ``seen``; None: nothing more will come."""
    answer = await wire.ask(
        "GET", f"{run}/events", params={"until": until}, quiet=quiet,
        headers={"Last-Event-ID": str(seen), "Accept": "text/event-stream"},
    )  # fmt: skip  # two rows
    if answer.status_code == 204:  # noqa: PLR2004  # no content
        return None
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        await wire.way.end(answer)
        raise wire.strange("a stream of events")
    return answer


def _event(wire: Wire, data: str) -> Event | None:
    try:
        return event_of(data) if data else None
    except (ValueError, KeyError, TypeError) as error:
        raise wire.strange("an event of a run") from error


def _ends_early(wire: Wire, error: Exception | None = None) -> ServerError:
    said = "" if error is None else f" ({str(error) or type(error).__name__})"
    return ServerError(
        f"{wire.url} ends each stream of events before anything new comes{said}; does something stand in between that "
        "lets no long answers through?"
    )


def _left(ends: float | None) -> float:
    """Seconds until the end. Raises TimeoutError."""
    left = math.inf if ends is None else ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _quiet(ends: float | None) -> float:
    """Seconds for which nothing may come. Shorter than the server's comments where there is an end to look for."""
    return min(_left(ends), QUIET_SECONDS if ends is None else LOOK_SECONDS)
