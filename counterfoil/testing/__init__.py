"""For tests of agents: models without a model, time that stands still, and suites for ports of your own."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "FrozenEffects": "counterfoil.testing.effects",
    "ModelSuite": "counterfoil.testing.model_suite",
    "RecordedModel": "counterfoil.testing.models",
    "ScriptedModel": "counterfoil.testing.models",
    "StoreSuite": "counterfoil.testing.store_suite",
    "call": "counterfoil.testing.models",
    "say": "counterfoil.testing.models",
}
"""Name and module. A module is imported when its name is first used."""

# Without the suites, so that a star import needs no pytest.
__all__ = ["FrozenEffects", "RecordedModel", "ScriptedModel", "call", "say"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
