"""What every store must do, as tests: a class to inherit from.

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path / "record")

``make_store`` is a fixture that gives a function of no arguments, which gives a store that is not open.
"""

from __future__ import annotations

from counterfoil.testing.store_commits import CommitTests
from counterfoil.testing.store_decisions import DecisionTests
from counterfoil.testing.store_due import DueTests
from counterfoil.testing.store_family import FamilyTests
from counterfoil.testing.store_keys import KeyTests
from counterfoil.testing.store_living import LivingTests
from counterfoil.testing.store_reads import ReadTests
from counterfoil.testing.store_runs import RunTests


class StoreSuite(RunTests, CommitTests, DecisionTests, DueTests, FamilyTests, KeyTests, LivingTests, ReadTests):
    """Every sentence of `counterfoil.store.Store`."""
