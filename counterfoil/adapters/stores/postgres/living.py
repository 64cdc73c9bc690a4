"""Who lives, in the database: signs of life, and the locks that a dead owner loses. Times are the server's."""

from __future__ import annotations

from collections.abc import Sequence

from counterfoil.adapters.stores.postgres.database import Db
from counterfoil.adapters.stores.postgres.known import named
from counterfoil.adapters.stores.postgres.pool import fetch, fetch_one, send
from counterfoil.core.limits import DEAD_AFTER, FORGET_SECONDS
from counterfoil.owners import Watch, owner_of, owner_text
from counterfoil.store import Owner, Worker


async def beat(db: Db, owner: Owner, every: float, agents: Sequence[str]) -> None:
    """See `Store.beat`."""
    await send(db, "beat", owner_text(owner), every, DEAD_AFTER * every, FORGET_SECONDS, list(agents))


async def agents(db: Db) -> dict[str, bool]:
    """See `Store.agents`."""
    return dict(await fetch(db, "agents"))


async def leave(db: Db, owner: Owner) -> None:
    """See `Store.leave`."""
    await send(db, "leave", owner_text(owner))


async def workers(db: Db) -> list[Worker]:
    """See `Store.workers`."""
    return [Worker(owner_of(values[0]), *values[1:]) for values in await fetch(db, "workers")]


async def lives(db: Db, watch: Watch, owner: Owner, me: Owner) -> bool:
    """See `Store.lives`."""
    return owner == me or watch.lives(owner, me, await workers(db))


async def lock(db: Db, watch: Watch, tenant: str, name: str, owner: Owner) -> bool:
    """See `Store.lock`."""
    key, wanted = named(tenant, name), owner_text(owner)
    while True:
        made = await send(db, "new_lock", key, tenant, name, wanted)
        found = await fetch_one(db, "lock_holder", key)
        if made.rowcount == 1:
            return True
        if found is None:
            continue  # it was given back between the two statements
        if found[0] == wanted:
            return True
        if await lives(db, watch, owner_of(found[0]), owner):
            return False
        await send(db, "lock", key, wanted)
        return True


async def unlock(db: Db, tenant: str, name: str, owner: Owner) -> None:
    """See `Store.unlock`."""
    await send(db, "unlock", named(tenant, name), owner_text(owner))
