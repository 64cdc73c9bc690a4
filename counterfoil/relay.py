"""Word between processes that share a store: which runs one has written to, while others follow runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol, cast

from counterfoil.core.errors import StoreError
from counterfoil.core.limits import HEARTBEAT

if TYPE_CHECKING:
    from counterfoil.hub import Hub
    from counterfoil.store import Store

log = logging.getLogger("counterfoil")

SPREAD_SECONDS = 0.03
"""Between two words of one process, at least: what changes meanwhile goes with the next."""
SETTLE_SECONDS = 2 * HEARTBEAT
"""Until every writer has seen that somebody listens: it looks once a heartbeat."""
AGAIN_SECONDS = (0.1, 30.0)
"""Before a connection that was lost is made anew: at first, doubling, and at most."""
LINGER_SECONDS = 10.0
"""For which a process listens yet when nobody follows a run here any more."""


class Tells(Protocol):
    """What a store may have beside `counterfoil.store.Store`: its processes tell one another what they write.

    Words may get lost.
    """

    async def listen(self, heard: Callable[[Collection[str] | None], None]) -> None:
        """Hear which runs other processes write to, as long as this can be done; `listened` is true for them then.

        Args:
            heard: is given ids of runs; None: perhaps any, also before the first word.

        Raises:
            StoreError: nothing is heard any more, or could be.
        """

    async def listened(self) -> bool:
        """Whether another process listens."""

    async def tell(self, run_ids: Collection[str]) -> None:
        """Tell who listens which runs this process has written to."""


class Relay:
    """Tells others and hears them, where the store can do that (`Tells`); else it does nothing.

    Args:
        store: open, while anything is asked of this.
        hub: of this process.
    """

    def __init__(self, store: Store, hub: Hub) -> None:
        self._tells = cast("Tells", store) if hasattr(store, "listen") else None
        self._hub = hub
        self._changed: set[str] = set()
        self._telling: asyncio.Task[None] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._since: float | None = None
        """When what is told began to be heard, on the loop's clock; None: it is not."""
        self._idle: asyncio.TimerHandle | None = None

    # telling

    async def look(self) -> None:
        """See whether anybody listens elsewhere; only then is anything told. Asked once a heartbeat."""
        if self._tells is None:
            return
        try:
            self._hub.relay(self._note if await self._tells.listened() else None)
        except Exception:  # signs of life must go on
            log.warning("it could not be seen whether others follow runs; it is tried again", exc_info=True)

    def _note(self, run_id: str) -> None:
        self._changed.add(run_id)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell(cast("Tells", self._tells)))

    async def _tell(self, tells: Tells) -> None:
        try:
            while self._changed:
                changed, self._changed = self._changed, set()
                try:
                    await tells.tell(changed)
                except StoreError:  # who follows looks for itself, a little later
                    log.warning("others could not be told what is on record", exc_info=True)
                await asyncio.sleep(SPREAD_SECONDS)
        finally:
            self._telling = None

    # hearing

    @property
    def works(self) -> bool:
        """Whether what others write is heard; who follows need hardly look then."""
        return self._since is not None and asyncio.get_running_loop().time() - self._since >= SETTLE_SECONDS

    def want(self) -> None:
        """Somebody here follows a run that others may write to."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._tells is not None and self._hearing is None:
            self._hearing = asyncio.get_running_loop().create_task(self._hear(self._tells))

    def rest(self) -> None:
        """Nobody does now."""
        if self._hearing is not None and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.stop_hearing)

    async def _hear(self, tells: Tells) -> None:
        wait, most = AGAIN_SECONDS
        while True:
            try:
                await tells.listen(self._heard)
            except StoreError:
                log.warning("what others write is not heard for now; the record is looked at instead", exc_info=True)
            if self._since is not None:
                wait, self._since = AGAIN_SECONDS[0], None
            await asyncio.sleep(wait)
            wait = min(2 * wait, most)

    def _heard(self, run_ids: Collection[str] | None) -> None:
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
        if run_ids is None:
            self._hub.rouse_all()
        else:
            for run_id in run_ids:
                self._hub.rouse(run_id)

    def stop_hearing(self) -> None:
        """Listen no more."""
        self._since = self._idle = None
        if self._hearing is not None:
            self._hearing.cancel()
            self._hearing = None

    def close(self) -> None:
        """The store is about to be closed."""
        self._hub.relay(None)
        if self._idle is not None:
            self._idle.cancel()
        self.stop_hearing()
        if self._telling is not None:
            self._telling.cancel()
