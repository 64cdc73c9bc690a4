"""In-process wake-ups: who listens to a run, and locks that calls of one tenant share."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container, Coroutine
from typing import TYPE_CHECKING, Protocol

from counterfoil.core.errors import StoreError

if TYPE_CHECKING:
    from counterfoil.core.events import CallProgress, TurnDelta
    from counterfoil.store import Owner, Store

log = logging.getLogger("counterfoil")

MAX_LIVE = 2_000_000
"""Characters of what is not on record that wait for a slow reader; beyond it the oldest are dropped."""
SMALLEST = 200
"""As so many each of them counts at least."""


class Listener:
    """One reader of one run's events: woken by every commit, and handed what is never stored."""

    __slots__ = ("_held", "due", "live", "signal")

    def __init__(self, due: int) -> None:
        self.live: deque[TurnDelta | CallProgress] = deque()
        self._held = 0
        self.signal = asyncio.Event()
        self.due = due
        """What it has to show was on record by this tick of the hub at the latest."""

    def hand(self, event: TurnDelta | CallProgress) -> None:
        """Have it read what is not stored."""
        self.live.append(event)
        self._held += max(len(event.text), SMALLEST)
        while self._held > MAX_LIVE:
            self.take()
        self.signal.set()

    def take(self) -> TurnDelta | CallProgress:
        """The oldest of it that waits."""
        event = self.live.popleft()
        self._held -= max(len(event.text), SMALLEST)
        return event

    def wake(self, due: int) -> None:
        """Something is on record, or may be."""
        self.due = due
        self.signal.set()


class _Every:
    def __contains__(self, _: object) -> bool:
        return True


_EVERY = _Every()


class Hub:
    """Listeners by run."""

    __slots__ = ("_listeners", "_relay", "ticks", "wanted")

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}
        self.wanted: Container[str] = self._listeners
        """Runs of which anybody, here or elsewhere, may want to know what is on record."""
        self._relay: Callable[[str], object] | None = None
        self.ticks = 0
        """Counts what is told of the record: who has read after a tick has read what was on record by it."""

    def tick(self) -> int:
        """The next one."""
        self.ticks += 1
        return self.ticks

    def relay(self, to: Callable[[str], object] | None) -> None:
        """Hand each run's id on when something of it is on record: others follow runs too; None: nobody does."""
        self._relay = to
        self.wanted = self._listeners if to is None else _EVERY

    def listened(self, run_id: str) -> bool:
        """Whether anybody reads this run's events now."""
        return run_id in self._listeners

    def add(self, run_id: str) -> Listener:
        """Begin to listen."""
        listener = Listener(self.tick())
        self._listeners.setdefault(run_id, []).append(listener)
        return listener

    def remove(self, run_id: str, listener: Listener) -> None:
        """Stop listening."""
        left = [x for x in self._listeners.get(run_id, ()) if x is not listener]
        if left:
            self._listeners[run_id] = left
        else:
            self._listeners.pop(run_id, None)

    def wake(self, run_id: str) -> None:
        """Something was put on record here."""
        self.rouse(run_id)
        if self._relay is not None:
            self._relay(run_id)

    def rouse(self, run_id: str) -> None:
        """Something is on record, whoever put it there."""
        due = self.tick()
        for listener in self._listeners.get(run_id, ()):
            listener.wake(due)

    def rouse_all(self) -> None:
        """Something may be, of any run."""
        for run_id in self._listeners:
            self.rouse(run_id)

    def tell(self, run_id: str, event: TurnDelta | CallProgress) -> None:
        """Hand out what is not stored."""
        for listener in self._listeners.get(run_id, ()):
            listener.hand(event)


class Slots:
    """How many bodies of this process may run at once, over all its runs."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: list[Callable[[], None]] = []

    def take(self, wake: Callable[[], None]) -> bool:
        """Take one; where there is none, ``wake`` is called when there may be."""
        if self._free > 0:
            self._free -= 1
            return True
        self._waiting.append(wake)
        return False

    def give(self) -> None:
        """Give one back."""
        self._free += 1
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for wake in waiting:
                wake()


class Holder(Protocol):
    """Whoever waits for a lock."""

    def locked(self, index: int) -> None:
        """It is taken now for this call."""


POLL_SECONDS = 0.05
"""How often a lock that another process holds is asked for again."""


class Locks:
    """Locks by (tenant, name): in order of asking in this process, and by the store between processes."""

    def __init__(self, store: Store, owner: Owner, left: Callable[[], object]) -> None:
        self._store = store
        self._owner = owner
        self._left = left
        self._closed = False
        self._held: dict[tuple[str, str], tuple[Holder, int]] = {}
        self._waiting: dict[tuple[str, str], deque[tuple[Holder, int]]] = {}
        self._going: deque[tuple[tuple[str, str], tuple[Holder, int]]] = deque()
        """What is being given back in this very moment."""
        self._tasks: dict[asyncio.Task[None], tuple[str, str]] = {}
        """Locks that are asked of the store, or given back to it."""

    def take(self, tenant: str, name: str, holder: Holder, index: int) -> None:
        """Ask for a lock; `Holder.locked` is called when it is taken, perhaps at once."""
        key = (tenant, name)
        if key in self._held:
            self._waiting.setdefault(key, deque()).append((holder, index))
            return
        self._held[key] = (holder, index)
        self._acquire(key)

    def _acquire(self, key: tuple[str, str]) -> None:
        if not self._store.shared:
            holder, index = self._held[key]
            holder.locked(index)
            return
        self._begin(self._acquire_shared(key), key)

    def _begin(self, work: Coroutine[None, None, None], key: tuple[str, str]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = key
        task.add_done_callback(self._tasks.pop)

    async def _acquire_shared(self, key: tuple[str, str]) -> None:
        while not await self._taken(key):  # noqa: ASYNC110  # another process may hold it
            await asyncio.sleep(POLL_SECONDS)
        holder, index = self._held[key]
        holder.locked(index)

    async def _taken(self, key: tuple[str, str]) -> bool:
        try:
            return await self._store.lock(*key, self._owner)
        except StoreError:  # a call must not wait for ever because the disk was full for a moment
            log.exception("lock %s of tenant %s could not be asked for; it is asked for again", key[1], key[0])
            return False

    async def _give_back(self, key: tuple[str, str]) -> None:
        while key not in self._held:  # else it is wanted here again, and goes back after that
            try:
                await self._store.unlock(*key, self._owner)
                return
            except StoreError:
                log.exception("lock %s of tenant %s could not be given back; it is tried again", key[1], key[0])
            await asyncio.sleep(POLL_SECONDS)

    def give(self, tenant: str, holder: Holder, index: int) -> None:
        """Give back whatever this call holds; the next one in order takes it."""
        mine = (holder, index)
        under_way = bool(self._going)
        self._going.extend((key, mine) for key, held in self._held.items() if key[0] == tenant and held == mine)
        # Who takes it may give it back at once, and so may a thousand others after it: they come round here.
        while self._going and not under_way:
            key, mine = self._going[0]
            try:
                if self._held.get(key) == mine:
                    self._pass_on(key)
            finally:
                self._going.popleft()

    def _pass_on(self, key: tuple[str, str]) -> None:
        waiting = self._waiting.get(key)
        if waiting:
            self._held[key] = waiting.popleft()
            if not waiting:
                del self._waiting[key]
            self._acquire(key)  # asked of the store again: who was silent for too long has lost it
            return
        del self._held[key]
        if self._closed:
            if not self._held:
                self._left()
        elif self._store.shared:
            self._begin(self._give_back(key), key)

    async def close(self) -> None:
        """Give back what no body uses. A body that cannot be stopped keeps its lock; at its end this owner has left."""
        self._closed = True
        self._waiting.clear()
        idle = [key for task, key in self._tasks.items() if task.cancel()]
        for key in idle:
            self._held.pop(key, None)
            try:
                await self._store.unlock(*key, self._owner)
            except StoreError:
                log.exception("lock %s of tenant %s could not be given back", key[1], key[0])
        if not (self._held and self._store.shared):
            self._left()
