"""Keys of the HTTP API, in the database."""

from __future__ import annotations

from collections.abc import Collection

from counterfoil.adapters.stores.postgres.database import Db
from counterfoil.adapters.stores.postgres.known import named
from counterfoil.adapters.stores.postgres.pool import fetch, fetch_one, send
from counterfoil.adapters.stores.shared.sql_values import key_of, key_values
from counterfoil.core.errors import NotFound
from counterfoil.core.keys import ApiKey


async def add_key(db: Db, key: ApiKey) -> None:
    """See `Store.add_key`."""
    await send(db, "add_key", named(key.tenant, key.id), *key_values(key))


async def key(db: Db, digest: str) -> ApiKey | None:
    """See `Store.key`."""
    found = await fetch_one(db, "key", digest)
    return None if found is None else key_of(found)


async def keys(db: Db, tenant: str) -> list[ApiKey]:
    """See `Store.keys`."""
    return [key_of(values) for values in await fetch(db, "keys", tenant)]


async def revoke_key(db: Db, tenant: str, key_id: str, at: int) -> ApiKey:
    """See `Store.revoke_key`."""
    found = await fetch_one(db, "revoke_key", named(tenant, key_id), at)
    if found is None:
        raise NotFound(f"no key {key_id}")
    return key_of(found)


async def has_keys(db: Db, at: int) -> bool:
    """See `Store.has_keys`."""
    return await fetch_one(db, "has_keys", at) is not None


async def tips(db: Db, interactions: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """See `Store.tips`."""
    names = [named(*place) for place in interactions]
    return {(tenant, id_): tip for tenant, id_, tip in await fetch(db, "tips", names)}
