"""The client without asyncio: each method is one of `AsyncClient`, run to its end in the thread that asks."""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from counterfoil.client.calls import AsyncClient
from counterfoil.client.wire import Blocking

P = ParamSpec("P")
T = TypeVar("T")


class _Source(AsyncClient):
    _way = Blocking


def _end(work: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine that never waits for a loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    work.close()
    raise AssertionError("a blocking client waited for an event loop")


def _each(items: AsyncGenerator[T]) -> Iterator[T]:
    try:
        while True:
            try:
                item = _end(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        _end(items.aclose())


def _now(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _end(method(self._source, *args, **kwargs))

    return functools.update_wrapper(call, method)


def _one_by_one(
    method: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _each(method(self._source, *args, **kwargs))

    return functools.update_wrapper(call, method)


class Client:
    """A client of the HTTP API that waits in the thread that asks. A context manager.

    Its methods are those of `AsyncClient` without ``await``; its arguments too.
    """

    def __init__(
        self, base_url: str | None = None, key: str | None = None, *, timeout: float = 30.0, retries: int = 3,
        patience: float = 60.0, verify: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip  # two rows
        self._source = _Source(base_url, key, timeout=timeout, retries=retries, patience=patience, verify=verify)

    @property
    def base_url(self) -> str:
        """The server's address."""
        return self._source.base_url

    def __repr__(self) -> str:
        return f"Client({self.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = _now(AsyncClient.close)
    start = _now(AsyncClient.start)
    get = _now(AsyncClient.get)
    wait = _now(AsyncClient.wait)
    runs = _one_by_one(AsyncClient.runs)
    create_interaction = _now(AsyncClient.create_interaction)
    interaction = _now(AsyncClient.interaction)
    interactions = _one_by_one(AsyncClient.interactions)
    context = _one_by_one(AsyncClient.context)
    timeline = _now(AsyncClient.timeline)
    items = _now(AsyncClient.items)
    events = _one_by_one(AsyncClient.events)
    approvals = _one_by_one(AsyncClient.approvals)
    approve = _now(AsyncClient.approve)
    reject = _now(AsyncClient.reject)
    settle = _now(AsyncClient.settle)
    answer = _now(AsyncClient.answer)
    cancel = _now(AsyncClient.cancel)
    send = _now(AsyncClient.send)
    trace = _now(AsyncClient.trace)
    tool_result = _now(AsyncClient.tool_result)
    save_result = _now(AsyncClient.save_result)
    errors = _one_by_one(AsyncClient.errors)
    error_groups = _now(AsyncClient.error_groups)
    agents = _now(AsyncClient.agents)
    tools = _now(AsyncClient.tools)
