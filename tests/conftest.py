"""Fixtures of tests of runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import Place
from tests.postgres import Server, serving


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """Where the runs of one test are on record; `helpers.both` and `helpers.shared` give the kind."""
    return Place(kind, tmp_path, request.getfixturevalue("postgres").fresh() if kind == "postgres" else None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server: the one that COUNTERFOIL_TEST_POSTGRES names, else one of this process."""
    with serving() as server:
        yield server
