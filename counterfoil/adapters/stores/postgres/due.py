"""What a worker looks for in the database: runs to take up, runs that somebody wrote to, runs to erase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from counterfoil.adapters.stores.postgres.database import Db
from counterfoil.adapters.stores.postgres.known import row_of
from counterfoil.adapters.stores.postgres.living import workers
from counterfoil.adapters.stores.postgres.pool import fetch, fetch_one
from counterfoil.owners import Watch, owner_of, owner_text
from counterfoil.store import Counts, Owner, RunRow, Wanted


async def open_runs(db: Db, watch: Watch, wanted: Wanted) -> list[RunRow]:
    """See `Store.open_runs`."""
    dead = await _dead(db, watch, wanted.me)
    agents, without = list(set(wanted.agents)), list(wanted.without)
    found = await fetch(db, "open_runs", agents, wanted.pool, wanted.now, max(wanted.limit, 0), without, dead)
    return [row_of(line) for line in found]


async def _dead(db: Db, watch: Watch, me: Owner) -> list[str]:
    owners = [text for (text,) in await fetch(db, "owners") if text != owner_text(me)]
    beats = await workers(db) if owners else []
    return [text for text in owners if not watch.lives(owner_of(text), me, beats)]


async def posted(db: Db, owner: Owner) -> list[str]:
    """See `Store.posted`."""
    return [run_id for (run_id,) in await fetch(db, "posted", owner_text(owner))]


async def counts(db: Db, agents: Sequence[str], pool: str, tenant: str | None) -> Counts:
    """See `Store.counts`."""
    return Counts(*cast("tuple[int, int, int, int]", await fetch_one(db, "counts", list(agents), pool, tenant)))


async def to_erase(db: Db, agents: Sequence[str], at: int, limit: int) -> list[tuple[str, str]]:
    """See `Store.to_erase`."""
    return [(tenant, run_id) for tenant, run_id in await fetch(db, "to_erase", list(agents), at, max(limit, 0))]
