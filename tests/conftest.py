"""Fixtures of tests of runs."""

from pathlib import Path

import pytest

from tests.helpers import Place


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Place:
    """Where the runs of one test are on record; `helpers.both` gives the kind."""
    return Place(kind, tmp_path)
