"""What a worker looks for again and again: runs to take up, within the quotas of tenants, and runs to erase."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from weakref import proxy

from counterfoil.core.errors import Conflict, NotFound
from counterfoil.store import SWEEP_ROWS, Quota, Wanted

if TYPE_CHECKING:
    from counterfoil.dispatch import Dispatch
    from counterfoil.effects import Effects
    from counterfoil.heart import Heart
    from counterfoil.store import Owner, RunRow, Store

log = logging.getLogger("counterfoil")

POLL_SECONDS = 0.1
"""How often a Runtime looks whether another process has written to a shared store."""
SWEEP_SECONDS = 0.5
"""How often it looks for runs of dead owners, and of tenants with a quota, though nothing was written."""
TELLING_SECONDS = 1.0
"""What lies untold for so long after a change, it tells an engine: whoever changed it has died before."""
COMPLAINT_SECONDS = 10.0
"""How often it says that it fails, while it does: a store may be away for hours."""
HAND_OVER_SECONDS = 5.0
"""How often it tells an engine of workers that are dead, those included that had no run."""
ERASE_SECONDS = 10.0
"""How often it looks for runs that ended long ago, unless it has just found some."""
ERASE_ROWS = 10
"""How many it erases then, at most: each is a write that others wait for."""


class Works(Protocol):
    """The Runtime that sweeps."""

    store: Store
    effects: Effects
    dispatch: Dispatch
    heart: Heart
    owner: Owner
    pool: str
    agents: dict[str, Any]
    _drives: dict[str, Any]
    _lost: dict[str, str]
    _put_off: dict[str, tuple[float, float]]
    _claims: int

    async def _sweep_row(self, row: RunRow) -> None:
        """Have a run driven."""


class Sweep:
    """The looking around of one Runtime.

    Args:
        of: the Runtime.
        quotas: of a tenant; None: no tenant has one.
        max_runs: that are driven here at once.
        retain: after so long the contents of a run that has ended are erased.
    """

    def __init__(
        self, of: Works, quotas: Callable[[str], Quota | None] | None, max_runs: int | None, retain: timedelta | None
    ) -> None:
        self._of: Works = proxy(of)  # it has this
        self._quotas = quotas
        self._max_runs = max_runs
        self._retain = retain
        self.always = not (quotas is None and max_runs is None and retain is None)
        """It has something to look for though nobody else has the store."""
        self.chooses = max_runs is not None
        """Runs are more than there is room for: it takes them by priority, whoever waits for one."""
        self._full: dict[str, float] = {}
        """Tenants whose quota was used up, and when they are tried again, on the loop's clock."""
        self._erase_at = 0.0
        self._unerased = 0
        """Runs that were due the last time and could not be erased: they keep no others waiting."""

    # room

    def quota(self, tenant: str) -> Quota | None:
        """What a tenant may use."""
        return None if self._quotas is None else self._quotas(tenant)

    def has_room(self, tenant: str | None = None) -> bool:
        """Whether one more run (of this tenant) may be driven here, as far as is known without asking the store."""
        of = self._of
        if self._max_runs is not None and len(of._drives) + of._claims >= self._max_runs:
            return False
        return tenant not in self._full or self._full[tenant] <= asyncio.get_running_loop().time()

    def refused(self, tenant: str) -> None:
        """The tenant's quota is used up: it is not tried for a moment, so that its runs keep no others waiting."""
        self._full[tenant] = asyncio.get_running_loop().time() + SWEEP_SECONDS

    def freed(self, tenant: str) -> None:
        """A run of the tenant is driven here no more."""
        self._full.pop(tenant, None)

    # looking

    async def go(self, of: Works) -> None:
        """Look around until the task is cancelled; the Runtime, which is to be given, is held as long."""
        seen: object = None
        last = handed = -HAND_OVER_SECONDS
        said = -COMPLAINT_SECONDS
        if not of.dispatch.here:
            await of.heart.start()  # an engine may give it runs at any time
        while True:
            try:
                version = await of.store.version()
                clock = of.effects.clock()
                if version != seen or clock - last >= SWEEP_SECONDS:
                    first, changed, seen, last = seen is None, version != seen, version, clock
                    if changed and of._drives:
                        await self._tell_drives()
                    await self.look(first=first)
                    if not of.dispatch.here and clock - handed >= HAND_OVER_SECONDS:
                        handed = clock
                        await self._hand_over_the_dead()
                    await self._erase()
            except asyncio.CancelledError:
                raise
            except Exception:  # the sweep must outlive a locked file or a full disk
                if (clock := of.effects.clock()) - said >= COMPLAINT_SECONDS:
                    said = clock
                    log.exception("the sweep for runs to take up failed; it tries again")
            await asyncio.sleep(POLL_SECONDS)

    async def _tell_drives(self) -> None:
        """Have those drivers look whose run somebody else has written to."""
        for run_id in await self._of.store.posted(self._of.owner):
            drive = self._of._drives.get(run_id)
            if drive is not None:
                drive.notify()

    async def look(self, *, first: bool = False) -> None:
        """Take up what may be taken up, by priority; page by page as long as tenants without room fill a page.

        Args:
            first: also what somebody else may be telling an engine just now.
        """
        of = self._of
        await self._look_for_lost()
        while self.has_room() or not of.dispatch.here:
            clock = asyncio.get_running_loop().time()
            self._full = {tenant: until for tenant, until in self._full.items() if until > clock}
            without = set(self._full)
            put_off = {run_id for run_id, (until, _) in of._put_off.items() if until > clock}
            limit = SWEEP_ROWS + len(put_off)
            rows = await of.store.open_runs(
                Wanted(of.owner, of.effects.now(), list(of.agents), of.pool, sorted(without), limit)
            )
            for row in rows:
                told = not (first or of.dispatch.here) and self._is_being_told(row)
                if row.run_id not in put_off and not told and (self.has_room(row.tenant) or not of.dispatch.here):
                    await of._sweep_row(row)
            if len(rows) < limit or set(self._full) <= without:
                return

    def _is_being_told(self, row: RunRow) -> bool:
        """Whoever made it runnable tells the engine so just now; not every worker need."""
        changed = self._of.effects.now() - row.updated_at
        return row.owner is None and changed < TELLING_SECONDS * 1_000_000

    async def _hand_over_the_dead(self) -> None:
        of = self._of
        for worker in await of.store.workers():
            if not await of.store.lives(worker.owner, of.owner):
                await of.dispatch.hand_over(worker.owner)

    async def _look_for_lost(self) -> None:
        of = self._of
        for run_id, tenant in list(of._lost.items()):
            try:
                row = await of.store.run(tenant, run_id)
            except NotFound:
                continue  # it may still come to be
            if row.owner != of.owner:
                of._lost.pop(run_id, None)
            elif run_id not in of._drives and of._put_off.get(run_id, (0.0,))[0] <= asyncio.get_running_loop().time():
                await of._sweep_row(row)

    async def _erase(self) -> None:
        """Erase a few of the runs that ended long enough ago."""
        of = self._of
        clock = asyncio.get_running_loop().time()
        if self._retain is None or clock < self._erase_at:
            return
        self._erase_at = clock + ERASE_SECONDS
        now = of.effects.now()
        until = now - self._retain // timedelta(microseconds=1)
        found = await of.store.to_erase(list(of.agents), until, ERASE_ROWS + self._unerased)
        self._unerased = 0
        for tenant, run_id in found:
            try:
                await of.store.erase(tenant, run_id, now)
            except Conflict:  # it was resumed since, or a run below it has not ended
                self._unerased += 1
        if len(found) - self._unerased >= ERASE_ROWS:
            self._erase_at = clock
