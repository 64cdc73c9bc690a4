"""Several models as one: the next is asked where the one before cannot answer now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

from counterfoil.core.errors import ModelError
from counterfoil.model import Model, ModelEvent, ModelRequest, ModelTurn


class Fallback:
    """Models that stand in for each other, in this order.

    The next one is asked when one fails with an error that may pass, or that says that its provider is out
    (`ModelError.elsewhere`). An answer that broke off is left as a whole: a turn is one model's. When the last has
    failed too the run waits and begins anew with the first, as it asks a single model again.

    Args:
        models: each makes a model on its first use.
    """

    def __init__(self, models: Sequence[Callable[[], Model]]) -> None:
        self._models = models

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The first answer that comes to an end.

        Raises:
            ModelError: none did; of the last model. ``retryable`` if that of any is, after the shortest wait of those.
        """
        failures: list[ModelError] = []
        for make in self._models:
            try:
                stream = make().respond(request)
                if not hasattr(stream, "__aiter__"):
                    stream = await cast("Any", stream)
                finished = False
                async for event in stream:
                    finished = finished or isinstance(event, ModelTurn)
                    yield event
                if finished:
                    return
                failures.append(ModelError("the model's stream ended without a finished turn", retryable=True))
            except ModelError as error:
                failures.append(error)
                if not (error.retryable or error.elsewhere):
                    break
        last, passing = failures[-1], [error for error in failures if error.retryable]
        wait = min((error.retry_after or 0.0 for error in passing), default=0.0)
        raise ModelError(
            str(last),
            retryable=bool(passing) and (last.retryable or last.elsewhere),
            retry_after=wait or None,
            elsewhere=last.elsewhere,
        )
