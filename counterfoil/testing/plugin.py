"""A pytest plugin.

Switch it on with ``pytest_plugins = ["counterfoil.testing.plugin"]`` in the conftest.py at the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from counterfoil.testing.effects import FrozenEffects
from counterfoil.testing.models import ScriptedModel, Turn


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedModel]]:
    """``scripted(turn, turn, …)`` makes a `ScriptedModel`; after the test all turns must have been played."""
    made: list[ScriptedModel] = []

    def make(*turns: Turn) -> ScriptedModel:
        model = ScriptedModel(turns)
        made.append(model)
        return model

    yield make
    for model in made:
        model.assert_complete()


@pytest.fixture
def frozen_effects() -> FrozenEffects:
    """Time, ids and sleep that are the same in every run of the test."""
    return FrozenEffects()
