"""A run's events over connections that come and go."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, cast

from counterfoil.client.values import event_of
from counterfoil.client.wire import BUSY, QUIET_SECONDS, Wire, pause
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
        patience: seconds for which a server that does not answer is asked again.
        ends: when it is given up, by the monotonic clock.

    Raises:
        TimeoutError: it went on until then.
    """
    import httpx2

    path, seen, last = f"{run}/events", after, False
    lost, attempt, rest = None, 0, 0.0
    while True:
        try:
            answer = await wire.ask(
                "GET", path, params={"until": "end" if to_end else "pause"}, quiet=_quiet(ends),
                headers={"Last-Event-ID": str(seen), "Accept": "text/event-stream"},
            )  # fmt: skip  # two rows
            if answer.status_code == 204:  # noqa: PLR2004  # nothing more will come
                return
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                await wire.way.end(answer)
                raise wire.strange("a stream of events")
            stream = cast("AsyncGenerator[httpx2.ServerSentEvent]", wire.way.events(answer))
            try:
                async for sent in stream:
                    lost, attempt, rest = None, 0, rest if sent.retry is None else sent.retry / 1000
                    number = int(sent.id) if sent.id.isdecimal() else 0
                    event = event_of(sent.data) if sent.data else None
                    fresh, seen = number > seen, max(seen, number)
                    _quiet(ends)
                    if event is not None and (fresh or isinstance(event, _PASSING)):
                        last = isinstance(event, RunEnded if to_end else (RunEnded, RunPaused))
                        yield event
            finally:
                await stream.aclose()
                await wire.way.end(answer)
            lost, fault = time.monotonic(), ServerError(f"{wire.url} ends each stream of events at once")
            if last or (not to_end and (await wire.json("GET", run))["status"] != "running"):
                return
        except httpx2.RequestError as error:
            fault = wire.lost(error)
            _quiet(ends)
        except ServerError as error:
            if lost is None or error.status not in (None, *BUSY):
                raise
            fault = error
        lost = lost or time.monotonic()
        if time.monotonic() - lost > patience:
            raise fault
        await wire.way.sleep(max(pause(attempt), rest))
        attempt += 1


def _quiet(ends: float | None) -> float:
    """Seconds for which nothing may come. Shorter than the server's comments where there is an end to look for."""
    left = QUIET_SECONDS if ends is None else ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left if ends is None else min(left, LOOK_SECONDS)
