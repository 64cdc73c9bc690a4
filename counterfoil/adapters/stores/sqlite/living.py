"""Who lives, in the file: signs of life, and the locks that a dead owner loses. Times are the database's."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from counterfoil.adapters.stores.sqlite.database import SQL
from counterfoil.adapters.stores.sqlite.known import WritingConnection
from counterfoil.core.limits import DEAD_AFTER, FORGET_SECONDS
from counterfoil.owners import Watch, owner_of, owner_text
from counterfoil.store import Owner, Worker


def beat(db: WritingConnection, owner: Owner, every: float, agents: Sequence[str]) -> None:
    """See `Store.beat`."""
    name = owner_text(owner)
    for agent in agents:
        db.execute(SQL["has_agent"], (agent, DEAD_AFTER * every * 1_000_000))
    db.execute(SQL["forget_agents"], (FORGET_SECONDS * 1_000_000,))
    db.execute(SQL["beat"], {"owner": name, "every": every, "gap": DEAD_AFTER * every * 1_000_000})
    db.execute(SQL["forget_workers"], (name, FORGET_SECONDS * 1_000_000))


def agents(db: Connection) -> dict[str, bool]:
    """See `Store.agents`."""
    return {name: bool(lives) for name, lives in db.execute(SQL["agents"]).fetchall()}


def leave(db: WritingConnection, owner: Owner) -> None:
    """See `Store.leave`."""
    db.execute(SQL["leave"], (owner_text(owner),))


def workers(db: Connection) -> list[Worker]:
    """See `Store.workers`."""
    return [Worker(owner_of(values[0]), *values[1:]) for values in db.execute(SQL["workers"]).fetchall()]


def lives(db: Connection, watch: Watch, owner: Owner, me: Owner) -> bool:
    """See `Store.lives`."""
    return owner == me or watch.lives(owner, me, workers(db))


def lock(db: WritingConnection, watch: Watch, tenant: str, name: str, owner: Owner) -> bool:
    """See `Store.lock`."""
    found = db.execute(SQL["lock_holder"], (tenant, name)).fetchone()
    holder = None if found is None else owner_of(found[0])
    if holder == owner:
        return True
    if holder is not None and lives(db, watch, holder, owner):
        return False
    db.execute(SQL["lock"], (tenant, name, owner_text(owner)))
    return True


def unlock(db: WritingConnection, tenant: str, name: str, owner: Owner) -> None:
    """See `Store.unlock`."""
    db.execute(SQL["unlock"], (tenant, name, owner_text(owner)))
