"""Keys of the HTTP API, in the file."""

from __future__ import annotations

from collections.abc import Collection
from sqlite3 import Connection

from counterfoil.adapters.stores.shared.sql_values import key_of, key_values
from counterfoil.adapters.stores.sqlite.database import SQL
from counterfoil.core.errors import NotFound
from counterfoil.core.keys import ApiKey


def add_key(db: Connection, key: ApiKey) -> None:
    """See `Store.add_key`."""
    db.execute(SQL["add_key"], key_values(key))


def key(db: Connection, digest: str) -> ApiKey | None:
    """See `Store.key`."""
    found = db.execute(SQL["key"], (digest,)).fetchone()
    return None if found is None else key_of(found)


def keys(db: Connection, tenant: str) -> list[ApiKey]:
    """See `Store.keys`."""
    return [key_of(values) for values in db.execute(SQL["keys"], (tenant,)).fetchall()]


def revoke_key(db: Connection, tenant: str, key_id: str, at: int) -> ApiKey:
    """See `Store.revoke_key`."""
    found = db.execute(SQL["revoke_key"], (at, tenant, key_id)).fetchall()
    if not found:
        raise NotFound(f"no key {key_id}")
    return key_of(found[0])


def has_keys(db: Connection, at: int) -> bool:
    """See `Store.has_keys`."""
    return db.execute(SQL["has_keys"], (at,)).fetchone() is not None


def tips(db: Connection, interactions: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """See `Store.tips`."""
    found = {place: db.execute(SQL["tip_of"], place).fetchone()[0] for place in interactions}
    return {place: tip for place, tip in found.items() if tip is not None}
