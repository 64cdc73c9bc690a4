"""Who lives, and who holds which lock, as far as this process knows."""

from __future__ import annotations

import time
from collections.abc import Sequence

from counterfoil.adapters.stores.memory.state import Beat, next_beat
from counterfoil.core.limits import DEAD_AFTER, FORGET_SECONDS, HEARTBEAT
from counterfoil.owners import Watch
from counterfoil.store import Owner, Worker


class Living:
    """The part of the store that is about owners."""

    def __init__(self) -> None:
        super().__init__()
        self._locks: dict[tuple[str, str], Owner] = {}
        self._beats: dict[Owner, Beat] = {}
        self._agents: dict[str, float] = {}
        self._watch = Watch()

    async def lock(self, tenant: str, name: str, owner: Owner) -> bool:
        holder = self._locks.get((tenant, name))
        if holder not in (None, owner) and self._watch.lives(holder, owner, self._workers()):
            return False
        self._locks[tenant, name] = owner
        return True

    async def unlock(self, tenant: str, name: str, owner: Owner) -> None:
        if self._locks.get((tenant, name)) == owner:
            del self._locks[tenant, name]

    async def beat(self, owner: Owner, every: float = HEARTBEAT, agents: Sequence[str] = ()) -> None:
        now = time.monotonic()
        for agent in agents:
            self._agents[agent] = max(now + DEAD_AFTER * every, self._agents.get(agent, now))
        self._agents = {agent: until for agent, until in self._agents.items() if now - until <= FORGET_SECONDS}
        beat = self._beats[owner] = next_beat(self._beats.get(owner), every)
        self._beats = {o: b for o, b in self._beats.items() if beat.at - b.at <= FORGET_SECONDS}

    async def agents(self) -> dict[str, bool]:
        return {agent: until >= time.monotonic() for agent, until in sorted(self._agents.items())}

    async def leave(self, owner: Owner) -> None:
        self._beats.pop(owner, None)

    async def workers(self) -> list[Worker]:
        return self._workers()

    def _workers(self) -> list[Worker]:
        now = time.monotonic()
        return [Worker(o, now - b.at, b.every, b.at - b.since) for o, b in self._beats.items()]

    async def lives(self, owner: Owner, me: Owner) -> bool:
        return self._watch.lives(owner, me, self._workers())
