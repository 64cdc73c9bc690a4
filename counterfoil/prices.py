"""What a turn costs by a table of prices, where its provider does not say it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from counterfoil.core.errors import DefinitionError
from counterfoil.core.turn import Usage

PER: Final = 1_000_000
"""Tokens that a price is for."""
_NAMES: Final = frozenset({"input", "cached_input", "output"})
_DATED: Final = re.compile(r"[-@:](?:latest|[\d-]+)")
"""What providers put behind a name for one state of the model."""


class Prices:
    """Prices by model.

    Args:
        table: by the model's name, a mapping of ``input``, ``output`` and, unless it is the price of ``input``,
            ``cached_input``: money for a million tokens, in one currency for all.

    Raises:
        DefinitionError: a name or a price is none.
    """

    def __init__(self, table: Mapping[str, Mapping[str, float]]) -> None:
        for model, prices in table.items():
            if not isinstance(prices, Mapping) or not {"input", "output"} <= prices.keys() <= _NAMES:
                raise DefinitionError(
                    f"prices of {model!r}: expected input, output and cached_input, got {prices!r:.200}"
                )
            for name, price in prices.items():
                if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price < float("inf"):
                    raise DefinitionError(f"prices of {model!r}: {name} must be a number of at least 0, got {price!r}")
        self._table = {model: dict(prices) for model, prices in table.items()}

    def cost(self, model: str, usage: Usage) -> float | None:
        """What this usage costs; None where the table does not know the model.

        A model is known by its own name, or by that of which it is a dated state: ``some-2026-08-01`` by ``some``,
        and never ``some-mini``.
        """
        prices = self._table.get(model)
        if prices is None:
            dated = (
                p for name, p in self._table.items() if model.startswith(name) and _DATED.fullmatch(model, len(name))
            )
            prices = next(dated, None)
        if prices is None:
            return None
        cached = min(usage.cached_tokens, usage.input_tokens)
        fresh = (usage.input_tokens - cached) * prices["input"] + cached * prices.get("cached_input", prices["input"])
        return (fresh + usage.output_tokens * prices["output"]) / PER


def counted(usage: Usage) -> Usage:
    """The usage in numbers that every reader of the record takes. Raises ValueError or TypeError where it is none."""
    tokens = int(usage.input_tokens), int(usage.output_tokens), int(usage.cached_tokens)
    cost, reasoning = float(usage.cost), int(usage.reasoning_tokens)
    if min(*tokens, reasoning) < 0 or not 0 <= cost < math.inf:
        raise ValueError(f"usage must be finite numbers of at least 0, got {usage!r:.200}")
    return Usage(*tokens, cost, reasoning)


def priced(usage: Usage, model: str, prices: Prices | None, *, must: bool = False) -> Usage:
    """The usage with its cost by the table, where its provider does not say it.

    Raises:
        DefinitionError: it ``must`` have one, for a limit, and nobody says it.
    """
    if usage.cost or not usage.tokens:
        return usage
    cost = None if prices is None else prices.cost(model, usage)
    if cost is None and must:
        raise DefinitionError(
            f"the run has a limit of cost, and nobody says what {model or 'its model'} costs; give the agent "
            f"prices={{{model!r}: {{'input': …, 'output': …}}}}, in money for a million tokens"
        )
    return usage if cost is None else replace(usage, cost=cost)
