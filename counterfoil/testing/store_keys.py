"""The store suite: keys of the HTTP API, and the newest entry of what is followed."""

# ruff: noqa: S101  # tests, as those in tests/

from __future__ import annotations

import pytest

from counterfoil.core.errors import NotFound, UsageError
from counterfoil.core.keys import ApiKey, token_digest
from counterfoil.store import Store
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import Bench, stored


def a_key(number: int, tenant: str = "acme", **fields: object) -> ApiKey:
    """A key that differs from others by its number."""
    digest = token_digest(f"secret {number}")
    return ApiKey(f"key-{number}", tenant, "ada", ("finance", "grüße"), ("read", "run"), digest, number, **fields)  # type: ignore[arg-type]  # its own


class KeyTests(Bench):
    """add_key, key, keys, revoke_key, has_keys; tips."""

    @stored
    async def test_a_key_is_found_by_its_digest_whole(self, store: Store) -> None:
        assert not await store.has_keys(0)
        one = a_key(1, expires_at=50)
        await store.add_key(one)
        assert await store.key(one.digest) == one
        assert await store.key(token_digest("secret 2")) is None

    @stored
    async def test_a_tenant_lists_its_own_keys_alone(self, store: Store) -> None:
        for key in (a_key(1), a_key(2, "globex"), a_key(3)):
            await store.add_key(key)
        assert [k.id for k in await store.keys("acme")] == ["key-1", "key-3"]
        assert [k.id for k in await store.keys("globex")] == ["key-2"]
        assert await store.keys("ACME") == []
        with pytest.raises(UsageError):
            await store.keys("")

    @stored
    async def test_a_key_is_revoked_once_by_its_own_tenant(self, store: Store) -> None:
        await store.add_key(a_key(1))
        with pytest.raises(NotFound):
            await store.revoke_key("globex", "key-1", 5)
        with pytest.raises(NotFound):
            await store.revoke_key("acme", "key-2", 5)
        assert (await store.revoke_key("acme", "key-1", 7)).revoked_at == 7  # noqa: PLR2004  # the time above
        assert (await store.revoke_key("acme", "key-1", 9)).revoked_at == 7  # noqa: PLR2004  # as above
        found = await store.key(token_digest("secret 1"))
        assert found is not None
        assert found.fault(0) == "was revoked"

    @stored
    async def test_whether_there_is_a_key_that_counts(self, store: Store) -> None:
        await store.add_key(a_key(1, expires_at=50))
        assert await store.has_keys(49)
        assert not await store.has_keys(50)
        await store.add_key(a_key(2, "globex"))
        assert await store.has_keys(50)
        await store.revoke_key("globex", "key-2", 60)
        assert not await store.has_keys(50)

    @stored
    async def test_the_newest_entry_of_each_interaction_that_exists(self, store: Store) -> None:
        row, _ = await store.create(r.new_run())
        lease = r.lease_of(row)
        places = [(row.tenant, row.interaction_id), ("globex", row.interaction_id), (row.tenant, "none")]
        before = len(await store.entries(row.tenant, row.interaction_id))
        assert await store.tips(places) == {places[0]: before}
        await store.commit(lease, [r.turn()])
        assert await store.tips(places) == {places[0]: before + 1}
        assert await store.tips([]) == {}
