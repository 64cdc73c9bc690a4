"""One request to a strict server, whole, for tests that are about what is sent and what comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from counterfoil.core.errors import ModelError
from counterfoil.model import ModelRequest
from counterfoil.testing.fake_server import Play
from counterfoil.testing.model_bench import At

T = TypeVar("T")


class Wire:
    """Asks the model of one wire.

    Args:
        serving: a server that plays a script, and a model that asks it; takes the settings of both.
    """

    def __init__(self, serving: Callable[..., AbstractAsyncContextManager[At]]) -> None:
        self._serving = serving

    def _ask(self, ask: Callable[[At], Awaitable[T]], script: tuple[Any, ...], settings: dict[str, Any]) -> T:
        async def main() -> T:
            async with self._serving(*script, **settings) as at:
                return await ask(at)

        return asyncio.run(main())

    def sent(self, asked: ModelRequest | None = None, **settings: Any) -> dict[str, Any]:
        """The body that the server got, which it found no fault in."""

        async def ask(at: At) -> dict[str, Any]:
            await at.turn(asked)
            return at.last.body

        return self._ask(ask, (Play("fine"),), settings)

    def answered(self, *script: Any, asked: ModelRequest | None = None, **settings: Any) -> list[Any]:
        """The events of the answer."""
        return self._ask(lambda at: at.events(asked), script, settings)

    def refused(self, *script: Any, asked: ModelRequest | None = None, **settings: Any) -> ModelError:
        """The error that it came to."""
        return self._ask(lambda at: at.refused(asked), script, settings)
