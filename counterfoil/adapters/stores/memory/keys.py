"""Keys of the HTTP API, in this process."""

from __future__ import annotations

from dataclasses import replace

from counterfoil.core.errors import NotFound
from counterfoil.core.keys import ApiKey
from counterfoil.store import needs_tenant


class Keys:
    """The part of the store that holds them."""

    def __init__(self) -> None:
        super().__init__()
        self._api_keys: dict[str, ApiKey] = {}

    async def add_key(self, key: ApiKey) -> None:
        self._api_keys[key.digest] = key

    async def key(self, digest: str) -> ApiKey | None:
        return self._api_keys.get(digest)

    async def keys(self, tenant: str) -> list[ApiKey]:
        needs_tenant(tenant)
        return [key for key in self._api_keys.values() if key.tenant == tenant]

    async def revoke_key(self, tenant: str, key_id: str, at: int) -> ApiKey:
        for key in await self.keys(tenant):
            if key.id == key_id:
                self._api_keys[key.digest] = key = replace(key, revoked_at=key.revoked_at or at)  # noqa: PLW2901
                return key
        raise NotFound(f"no key {key_id}")

    async def has_keys(self, at: int) -> bool:
        return any(key.fault(at) is None for key in self._api_keys.values())
