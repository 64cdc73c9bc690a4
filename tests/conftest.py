"""Fixtures of tests of runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import Place
from tests.postgres import Server, serving


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Place:
    """Where the runs of one test are on record; `helpers.both` gives the kind."""
    return Place(kind, tmp_path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server: the one that COUNTERFOIL_TEST_POSTGRES names, else one of this process."""
    with serving() as server:
        yield server
