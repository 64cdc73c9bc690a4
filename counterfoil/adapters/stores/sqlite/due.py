"""What a worker looks for in the file: runs to take up, runs that somebody wrote to, runs to erase."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sqlite3 import Connection

from counterfoil.adapters.stores.sqlite.database import SQL
from counterfoil.adapters.stores.sqlite.living import workers
from counterfoil.adapters.stores.sqlite.reading import row_of
from counterfoil.owners import Watch, owner_of, owner_text
from counterfoil.store import Counts, Owner, RunRow, Wanted


def open_runs(db: Connection, watch: Watch, wanted: Wanted) -> list[RunRow]:
    """See `Store.open_runs`."""
    dead = {f"dead{i}": owner for i, owner in enumerate(_dead(db, watch, wanted.me))}
    without = {f"without{i}": tenant for i, tenant in enumerate(wanted.without)}
    statement = SQL["open_runs"].replace("{dead}", _names(dead)).replace("{without}", _names(without))
    values = {"pool": wanted.pool, "now": wanted.now, "limit": max(wanted.limit, 0), **dead, **without}
    found = [
        (row_of(line[:-1]), line[-1])
        for agent in set(wanted.agents)
        for line in db.execute(statement, {**values, "agent": agent}).fetchall()
    ]
    found.sort(key=lambda one: (-one[0].priority, one[1]))
    return [row for row, _ in found[: max(wanted.limit, 0)]]


def _names(values: Iterable[str]) -> str:
    return ", ".join(f":{name}" for name in values)


def _dead(db: Connection, watch: Watch, me: Owner) -> list[str]:
    owners = [text for (text,) in db.execute(SQL["owners"]).fetchall() if text != owner_text(me)]
    beats = workers(db) if owners else []
    return [text for text in owners if not watch.lives(owner_of(text), me, beats)]


def posted(db: Connection, owner: Owner) -> list[str]:
    """See `Store.posted`."""
    return [run_id for (run_id,) in db.execute(SQL["posted"], (owner_text(owner),)).fetchall()]


def counts(db: Connection, agents: Sequence[str], pool: str, tenant: str | None) -> Counts:
    """See `Store.counts`."""
    where = [{"agent": agent, "pool": pool, "tenant": tenant} for agent in set(agents)]
    found = [db.execute(SQL["counts"], values).fetchone() for values in where]
    return Counts(*map(sum, zip(*found, strict=True))) if found else Counts(0, 0, 0, 0)


def to_erase(db: Connection, agents: Sequence[str], at: int, limit: int) -> list[tuple[str, str]]:
    """See `Store.to_erase`."""
    found = [line for a in set(agents) for line in db.execute(SQL["to_erase"], (a, at, max(limit, 0))).fetchall()]
    found.sort(key=lambda line: line[2])
    return [(tenant, run_id) for tenant, run_id, _ in found[: max(limit, 0)]]
