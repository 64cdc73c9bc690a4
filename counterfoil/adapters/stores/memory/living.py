"""Who lives, and who holds which lock, as far as this process knows."""

from __future__ import annotations

import time

from counterfoil.adapters.stores.memory.state import Beat, next_beat
from counterfoil.core.limits import FORGET_SECONDS, HEARTBEAT
from counterfoil.owners import Watch
from counterfoil.store import Owner, Worker


class Living:
    """The part of the store that is about owners."""

    def __init__(self) -> None:
        super().__init__()
        self._locks: dict[tuple[str, str], Owner] = {}
        self._beats: dict[Owner, Beat] = {}
        self._watch = Watch()

    async def lock(self, tenant: str, name: str, owner: Owner) -> bool:
        """See `Store.lock`."""
        holder = self._locks.get((tenant, name))
        if holder not in (None, owner) and self._watch.lives(holder, owner, self._workers()):
            return False
        self._locks[tenant, name] = owner
        return True

    async def unlock(self, tenant: str, name: str, owner: Owner) -> None:
        """See `Store.unlock`."""
        if self._locks.get((tenant, name)) == owner:
            del self._locks[tenant, name]

    async def beat(self, owner: Owner, every: float = HEARTBEAT) -> None:
        """See `Store.beat`."""
        beat = self._beats[owner] = next_beat(self._beats.get(owner), every)
        self._beats = {o: b for o, b in self._beats.items() if beat.at - b.at <= FORGET_SECONDS}

    async def leave(self, owner: Owner) -> None:
        """See `Store.leave`."""
        self._beats.pop(owner, None)

    async def workers(self) -> list[Worker]:
        """See `Store.workers`."""
        return self._workers()

    def _workers(self) -> list[Worker]:
        now = time.monotonic()
        return [Worker(o, now - b.at, b.every, b.at - b.since) for o, b in self._beats.items()]

    async def lives(self, owner: Owner, me: Owner) -> bool:
        """See `Store.lives`."""
        return self._watch.lives(owner, me, self._workers())
