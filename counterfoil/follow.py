"""Following a run: what is on record in order, then live, with nothing lost and nothing twice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from counterfoil.core.entries import PausedEntry
from counterfoil.core.events import Event, event_of
from counterfoil.core.record import Record
from counterfoil.core.states import OPEN
from counterfoil.hub import Hub
from counterfoil.store import RunRow, Store

POLL_SECONDS = 0.1
"""How often the record is read where the run is driven by another process."""
DRIVEN_SECONDS = 1.0
"""How often it is read where this process drives, or looks whether it can: commits here wake who listens, but a look
that ends without a drive wakes nobody."""


class Followed(Protocol):
    """What `follow` needs of a Runtime."""

    store: Store
    hub: Hub

    def driving(self, run_id: str) -> bool:
        """Whether this process drives the run now."""


async def follow(runtime: Followed, row: RunRow, after: int, *, to_end: bool = False) -> AsyncIterator[Event]:
    """Events of a run after an entry until it ends or pauses; deltas and progress only while they happen here.

    Args:
        runtime: of this process.
        row: the run's.
        after: the entry.
        to_end: go on over pauses.
    """
    store, run_id = runtime.store, row.run_id
    listener = runtime.hub.add(run_id)
    record = Record()
    try:
        while True:
            listener.signal.clear()
            fresh = [e for e in await store.entries(row.tenant, row.interaction_id, record.tip) if e.entry > record.tip]
            # What is on record is folded whole first: an event may show what a later entry of its commit says.
            for entry in fresh:
                record.apply(entry)
            # Deltas and progress say after which entry they came; what is newer than this reading waits for the next.
            live: deque[Event] = deque()
            while listener.live and listener.live[0].entry <= record.tip:
                live.append(listener.live.popleft())
            paused = False
            for entry in fresh:
                if entry.run_id != run_id:
                    continue
                while live and live[0].entry < entry.entry:
                    yield live.popleft()
                paused = isinstance(entry, PausedEntry)
                event = event_of(entry, record.runs[run_id]) if entry.entry > after else None
                if event is not None:
                    yield event
            for event in live:
                yield event
            state = record.runs.get(run_id)
            if state is not None and state.status not in OPEN:
                return
            if not to_end and state is not None and state.status == "paused" and (paused or not fresh):
                current = await store.run(row.tenant, run_id)
                if current.status == "paused" and not current.runnable and not runtime.driving(run_id):
                    return
            await _signal(listener.signal, DRIVEN_SECONDS if runtime.driving(run_id) else POLL_SECONDS)
    finally:
        runtime.hub.remove(run_id, listener)


async def _signal(signal: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await signal.wait()
    except TimeoutError:
        pass
