"""The SQLite store passes the store suite; what only it does."""

import pytest

from counterfoil.adapters.stores.sqlite import SqliteStore
from counterfoil.testing.store_suite import StoreSuite
from tests.marks import case, law


@law("7.5", "7.2", "8.NUL", "11.entries", "11.chain", "11.erased", "1.2.key", "5.one-root-run")
@law("10.every-record", "10.does-not-exist", "1.3.transaction", "6.kept-apart", "2.3")
@case("R013", "R023", "R080", "R187")
class TestSqliteStore(StoreSuite):
    @pytest.fixture
    def make_store(self, tmp_path):
        return lambda: SqliteStore(str(tmp_path / "record.db"))
