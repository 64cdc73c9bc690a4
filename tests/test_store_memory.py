"""The memory store passes the store suite; what only it does."""

import asyncio

import pytest

from counterfoil.adapters.stores.memory import MemoryStore, open_store
from counterfoil.core.errors import DefinitionError
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import claimed
from counterfoil.testing.store_suite import StoreSuite
from tests.marks import case, law


@law("7.5", "7.2", "8.NUL", "11.entries", "11.chain", "11.erased", "1.2.key", "5.one-root-run")
@law("10.every-record", "10.does-not-exist", "1.3.transaction", "6.kept-apart")
@case("R013", "R023", "R080", "R187")
class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def make_store(self):
        return MemoryStore


def test_a_url_gives_a_store_of_its_own():
    assert open_store("memory://") is not open_store("memory://")


@pytest.mark.parametrize(("url", "settings"), [("memory:///place", {}), ("memory://", {"synchronous": "FULL"})])
def test_a_place_or_a_setting_is_refused(url, settings):
    with pytest.raises(DefinitionError, match="memory"):
        open_store(url, **settings)


def test_an_exception_is_not_held():
    error = ValueError("boom")

    async def told() -> object:
        store = MemoryStore()
        await store.commit(await claimed(store), [], reports=[r.report(error=error)])
        return (await store.reports("acme"))[0].error

    assert asyncio.run(told()) is not error
