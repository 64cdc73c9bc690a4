"""Following a run: what is on record in order, then live, with nothing lost and nothing twice."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Protocol, TypeAlias

from counterfoil.core.entries import PausedEntry
from counterfoil.core.errors import StoreError
from counterfoil.core.events import Event, event_of
from counterfoil.core.record import Record
from counterfoil.core.states import OPEN
from counterfoil.hub import Hub
from counterfoil.store import RunRow, Store

log = logging.getLogger("counterfoil")

POLL_SECONDS = 0.1
"""How often the store is asked for what other processes have written to what is followed here."""
LOOK_SECONDS = 1.0
"""How often the row of a run is read that may have paused for good: nothing is written when its driver lets go."""

Place: TypeAlias = tuple[str, str]
"""Tenant and id of an interaction."""


class Lookout:
    """Looks for what other processes write: one question to the store for all who wait, however many they are.

    Args:
        store: open, while somebody waits.
        driving: whether this process drives a run; its commits wake who follows it by themselves.
    """

    def __init__(self, store: Store, driving: Callable[[str], bool]) -> None:
        self._store = store
        self._driving = driving
        self._waiting: dict[asyncio.Event, tuple[Place, str, int]] = {}
        self._task: asyncio.Task[None] | None = None

    async def wait(self, signal: asyncio.Event, place: Place, run_id: str, tip: int, seconds: float | None) -> None:
        """Wait for a signal, for an entry after ``tip``, or for a time."""
        self._waiting[signal] = (place, run_id, tip)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._go())
        try:
            async with asyncio.timeout(seconds):
                await signal.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(signal, None)

    async def _go(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(POLL_SECONDS)
                await self._look()
        finally:
            self._task = None
            self._wake()  # whoever waits yet finds out for itself what is wrong

    async def _look(self) -> None:
        places = {place for place, run_id, _ in self._waiting.values() if not self._driving(run_id)}
        if not places:
            return
        try:
            tips = await self._store.tips(places)
        except StoreError:
            log.exception("the record could not be read for who follows it; it is tried again")
            return
        for signal, (place, _, tip) in self._waiting.items():
            if tips.get(place, 0) > tip:
                signal.set()

    def _wake(self) -> None:
        for signal in self._waiting:
            signal.set()

    def close(self) -> None:
        """The store is about to be closed: whoever waits is woken, and finds that out."""
        if self._task is not None:
            self._task.cancel()
        self._wake()


class Followed(Protocol):
    """What `follow` needs of a Runtime."""

    store: Store
    hub: Hub
    lookout: Lookout

    def driving(self, run_id: str) -> bool:
        """Whether this process drives the run now."""


async def follow(
    runtime: Followed, row: RunRow, after: int, *, to_end: bool = False
) -> AsyncGenerator[list[Event], None]:
    """Events of a run after an entry until it ends or pauses; deltas and progress only while they happen here.

    They come in lists: what there is at once. A slow reader holds no run up: what is on record is read when it is
    wanted, and the rest is dropped.

    Args:
        runtime: of this process.
        row: the run's.
        after: the entry.
        to_end: go on over pauses.
    """
    store, run_id, place = runtime.store, row.run_id, (row.tenant, row.interaction_id)
    listener = runtime.hub.add(run_id)
    record, tip = Record(), 0
    try:
        while True:
            listener.signal.clear()
            # What is on record is folded whole first: an event may show what a later entry of its commit says.
            fresh = []
            for entry in await store.entries(*place, record.tip):
                if entry.entry > record.tip:
                    record.apply(entry)
                    if entry.entry > tip:
                        fresh.append(entry)
            tip = record.tip
            # Deltas and progress say after which entry they came; what is newer than this reading waits for the next.
            live: deque[Event] = deque()
            while listener.live and listener.live[0].entry <= tip:
                live.append(listener.live.popleft())
            paused, events = False, list[Event]()
            for entry in fresh:
                if entry.run_id != run_id:
                    continue
                while live and live[0].entry < entry.entry:
                    events.append(live.popleft())
                paused = isinstance(entry, PausedEntry) and not entry.children
                event = event_of(entry, record.runs[run_id]) if entry.entry > after else None
                if event is not None:
                    events.append(event)
            events += live
            if events:
                yield events
            status = record.runs[run_id].status if run_id in record.runs else "running"
            if status not in OPEN:
                return
            if status == "paused" and to_end:
                record = Record()  # a pause may last for days, and many may follow it; it is read again after that
            elif status == "paused" and (paused or not fresh):
                current = await store.run(row.tenant, run_id)
                if current.status == "paused" and not current.runnable and not runtime.driving(run_id):
                    return
            fresh, events = [], []
            await runtime.lookout.wait(listener.signal, place, run_id, tip, None if to_end else LOOK_SECONDS)
    finally:
        runtime.hub.remove(run_id, listener)
