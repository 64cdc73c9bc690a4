"""Following a run: what is on record in order, then live, with nothing lost and nothing twice."""

from __future__ import annotations

import asyncio
import heapq
import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator
from operator import attrgetter
from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary, proxy

from counterfoil.core.entries import Entry
from counterfoil.core.errors import StoreError, UsageError
from counterfoil.core.events import Event, event_of
from counterfoil.core.record import Record
from counterfoil.core.states import OPEN
from counterfoil.hub import Hub, Listener
from counterfoil.relay import Relay
from counterfoil.store import RunRow, Store

log = logging.getLogger("counterfoil")

POLL_SECONDS = 0.1
"""How often the store is asked for what other processes have written to what is followed here."""
REPAIR_SECONDS = 1.0
"""How often that is where they tell it: a word may get lost, and a process that only decides looks for no listeners."""
LOOK_SECONDS = 1.0
"""How often the row of a run is read that may have paused for good: nothing is written when its driver lets go."""

Place: TypeAlias = tuple[str, str]
"""Tenant and id of an interaction."""
_entry = attrgetter("entry")


class Trail:
    """What is on record of an interaction: read, folded and made into events once for all who follow its runs here.

    Args:
        store: open.
        hub: of this process.
        place: the interaction's.
    """

    __slots__ = ("__weakref__", "_hub", "_place", "_read", "_steps", "_store", "_turn", "record")

    def __init__(self, store: Store, hub: Hub, place: Place) -> None:
        self.record = Record()
        self._store, self._hub, self._place = store, hub, place
        self._steps: defaultdict[str, list[Entry | Event]] = defaultdict(list)
        """Of each run, in order; an event once somebody has wanted it."""
        self._turn = asyncio.Lock()
        self._read = 0
        """The hub's tick when the last reading began."""

    async def read(self, due: int | None = None) -> None:
        """Read what was on record by a tick of the hub; None: by now."""
        due = due or self._hub.tick()
        if self._read >= due:
            return
        async with self._turn:
            if self._read < due:
                began = self._hub.ticks
                for entry in await self._store.entries(*self._place, self.record.tip):
                    self.record.apply(entry)
                    self._steps[entry.run_id].append(entry)
                self._read = began

    def events(self, run_id: str, after: int) -> list[Event]:
        """What has happened in a run after an entry, as far as it was read."""
        steps, found = self._steps[run_id], list[Event]()
        for at in range(bisect_right(steps, after, key=_entry), len(steps)):
            step = steps[at]
            if isinstance(step, Entry):
                # Read on before: an event may show what a later entry of its commit says.
                steps[at] = step = event_of(step, self.record) or step
            if isinstance(step, Event):
                found.append(step)
        return found


class Lookout:
    """Looks for what is on record of what is followed here, and for what other processes write to it.

    That is one question to the store for all who wait, however many they are.

    Args:
        store: open, while somebody waits.
        hub: of this process.
        of: the Runtime. What it drives itself wakes who follows it by its commits.
    """

    def __init__(self, store: Store, hub: Hub, of: Followed) -> None:
        self._store, self._hub = store, hub
        self._of: Followed = proxy(of)  # it has this; and whoever follows has it
        self._waiting: dict[Listener, tuple[Place, str, int]] = {}
        self.relay = Relay(store, hub)
        self._trails: WeakValueDictionary[Place, Trail] = WeakValueDictionary()
        self._task: asyncio.Task[None] | None = None
        self._away = False
        """The store could not be read the last time, and that was said."""

    def trail(self, place: Place) -> Trail:
        """What is on record of an interaction; the same one for all who hold it at once."""
        return self._trails.get(place) or self._trails.setdefault(place, Trail(self._store, self._hub, place))

    async def wait(self, listener: Listener, place: Place, run_id: str, tip: int, seconds: float | None) -> None:
        """Wait until the listener is woken, by an entry after ``tip`` at the latest, or for a time."""
        self._waiting[listener] = (place, run_id, tip)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._go())
        try:
            async with asyncio.timeout(seconds):
                await listener.signal.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(listener, None)

    async def _go(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(REPAIR_SECONDS if self.relay.works else POLL_SECONDS)
                await self._look()
        finally:
            self._task = None
            self.relay.rest()
            self._wake()  # whoever waits yet finds out for itself what is wrong

    async def _look(self) -> None:
        places = {place for place, run_id, _ in self._waiting.values() if not self._of.driving(run_id)}
        if not places:
            return
        self.relay.want()
        try:
            tips = await self._store.tips(places)
        except StoreError as error:
            if not self._away:
                self._away = True
                log.warning("the record could not be read for who follows it; it is tried again: %s", error)
            return
        self._away = False
        due = self._hub.tick()
        for listener, (place, _, tip) in self._waiting.items():
            if tips.get(place, 0) > tip:
                listener.wake(due)

    def _wake(self) -> None:
        due = self._hub.tick()
        for listener in self._waiting:
            listener.wake(due)

    def close(self) -> None:
        """The store is about to be closed: whoever waits is woken, and finds that out."""
        self.relay.close()
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


def follow(
    runtime: Followed, row: RunRow, trail: Trail, after: int, *, to_end: bool = False
) -> AsyncGenerator[list[Event], None]:
    """Events of a run after an entry until it ends or pauses; deltas and progress only while they happen here.

    They come in lists: what there is at once. A slow reader holds no run up: what is on record is read when it is
    wanted, and the rest is dropped.

    Args:
        runtime: of this process.
        row: the run's.
        trail: of its interaction, read.
        after: the entry.
        to_end: go on over pauses.

    Raises:
        UsageError: there is no such entry yet.
    """
    if after > trail.record.tip:
        raise UsageError(
            f"no event {after} can have come of run {row.run_id}: the newest entry has the number {trail.record.tip}; "
            "is it another run's? leave it out to read from the first"
        )
    return _events(runtime, row, trail, after, to_end=to_end)


async def _events(
    runtime: Followed, row: RunRow, trail: Trail | None, after: int, *, to_end: bool
) -> AsyncGenerator[list[Event], None]:
    run_id, place = row.run_id, (row.tenant, row.interaction_id)
    listener = runtime.hub.add(run_id)
    try:
        while True:
            listener.signal.clear()
            trail = trail or runtime.lookout.trail(place)
            await trail.read(listener.due)
            # Others read on in the same trail while this one is slow: what it says of the run is of one moment.
            tip, status = trail.record.tip, trail.record.runs[run_id].status
            events = trail.events(run_id, after)
            # Deltas and progress say after which entry they came; what is newer than this reading waits for the next.
            live = list[Event]()
            while listener.live and listener.live[0].entry <= tip:
                live.append(listener.take())
            after = tip
            if events or live:
                yield list(heapq.merge(events, live, key=_entry)) if live else events
            events, live = [], []
            if status not in OPEN:
                return
            if status == "paused":
                if to_end:
                    trail = None  # a pause may last for days, and many may follow it; it is read again after that
                elif await _rests(runtime, row):
                    return
            await runtime.lookout.wait(listener, place, run_id, tip, None if to_end else LOOK_SECONDS)
    finally:
        runtime.hub.remove(run_id, listener)


async def _rests(runtime: Followed, row: RunRow) -> bool:
    """Whether a run that has paused waits for people alone, and nobody is about to go on with it."""
    now = await runtime.store.run(row.tenant, row.run_id)
    return now.status == "paused" and not now.runnable and not runtime.driving(row.run_id)
