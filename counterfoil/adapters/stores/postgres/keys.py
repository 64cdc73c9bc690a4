"""Keys of the HTTP API, in the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

from counterfoil.adapters.stores.postgres.database import Db
from counterfoil.adapters.stores.postgres.known import named
from counterfoil.adapters.stores.postgres.pool import fetch, fetch_one, send
from counterfoil.core.errors import NotFound
from counterfoil.core.jsontext import dumps, loads
from counterfoil.core.keys import ApiKey


def _key(values: Sequence[Any]) -> ApiKey:
    id_, tenant, user, roles, scopes, *rest = values
    return ApiKey(id_, tenant, user, _names(roles), _names(scopes), *rest)


def _names(text: str) -> tuple[str, ...]:
    return tuple(cast("list[str]", loads(text)))


async def add_key(db: Db, key: ApiKey) -> None:
    """See `Store.add_key`."""
    lists = (dumps(names).decode() for names in (key.roles, key.scopes))
    times = key.created_at, key.expires_at, key.revoked_at
    name = named(key.tenant, key.id)
    await send(db, "add_key", name, key.id, key.tenant, key.user, *lists, key.digest, *times)


async def key_of(db: Db, digest: str) -> ApiKey | None:
    """See `Store.key`."""
    found = await fetch_one(db, "key", digest)
    return None if found is None else _key(found)


async def keys(db: Db, tenant: str) -> list[ApiKey]:
    """See `Store.keys`."""
    return [_key(values) for values in await fetch(db, "keys", tenant)]


async def revoke_key(db: Db, tenant: str, key_id: str, at: int) -> ApiKey:
    """See `Store.revoke_key`."""
    found = await fetch_one(db, "revoke_key", named(tenant, key_id), at)
    if found is None:
        raise NotFound(f"no key {key_id}")
    return _key(found)


async def has_keys(db: Db, at: int) -> bool:
    """See `Store.has_keys`."""
    return await fetch_one(db, "has_keys", at) is not None


async def tips(db: Db, interactions: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """See `Store.tips`."""
    names = [named(*place) for place in interactions]
    return {(tenant, id_): tip for tenant, id_, tip in await fetch(db, "tips", names)}
