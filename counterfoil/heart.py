"""A worker's signs of life in a store that it shares with others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from counterfoil.store import Owner, Store

log = logging.getLogger("counterfoil")

AGAIN = 4
"""A sign that failed is tried again after this part of a heartbeat."""


class Heart:
    """Beats for an owner from `start` until `stop`. It keeps still where no other process has the store.

    It beats in the owner's own event loop: one that hangs drives nothing, so others are to take over.

    Args:
        store: where.
        owner: for whom.
        every: seconds between two beats.
        agents: those that it has, by name; they may become more.
        look: is called after each beat.
    """

    def __init__(
        self, store: Store, owner: Owner, every: float, agents: Mapping[str, object],
        look: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip  # two rows
        self._store = store
        self._owner = owner
        self._every = every
        self._agents = agents
        self._look = look
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Task[bool] | None = None

    async def start(self) -> None:
        """Beat, and go on with it: whoever claims a run has done this before. A beat that fails raises nothing."""
        if self._task is not None or not self._store.shared:
            return
        if self._first is None:
            self._first = asyncio.create_task(self._beat())
        done = await asyncio.shield(self._first)
        if self._task is None and self._first is not None:
            self._task = asyncio.create_task(self._go_on(done=done))

    async def _go_on(self, *, done: bool) -> None:
        clock = asyncio.get_running_loop().time
        last = clock()
        while True:
            await self._look()
            await asyncio.sleep(last + (self._every if done else self._every / AGAIN) - clock())
            last = clock()
            done = await self._beat()

    async def _beat(self) -> bool:
        try:
            await self._store.beat(self._owner, self._every, list(self._agents))
        except Exception:  # a full disk or a server that starts anew must not end it
            log.warning("no sign of life could be left; it is tried again", exc_info=True)
            return False
        return True

    async def stop(self) -> None:
        """Beat no more, and have the owner forgotten."""
        if self._first is None:
            return
        first, task, self._first, self._task = self._first, self._task, None, None
        await first
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            await self._store.leave(self._owner)
        except Exception:  # it falls silent, which is as good
            log.warning("the last sign of life could not be taken back", exc_info=True)
