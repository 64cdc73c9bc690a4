"""What the wires of providers' SDKs have in common: settings, a client for each event loop, asking, the last touch."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.turn import Usage
from counterfoil.model import ModelEvent, ModelRequest, ModelTurn

NO_KEY: Final = "no-key"
"""What a server without keys is sent, since the SDKs send something."""


IDLE: Final = 600.0
"""Seconds between two pieces of an answer, as the SDKs have it."""


class Answering(Protocol):
    """A turn that is put together from pieces. The work for a piece does not grow with the turn."""

    @property
    def finish(self) -> str:
        """The server's reason for the end; empty until it says so."""

    def add(self, piece: object) -> Iterator[ModelEvent]:
        """Take a piece and give the events that it makes."""

    def rest(self) -> Iterator[ModelEvent]:
        """The last events, when no piece comes any more. Raises ModelError where the answer has no end."""

    def spent(self) -> Usage:
        """What the answer has cost, as far as the server has said it."""


class _SilentError(Exception):
    """No piece came in time."""


_UNREADABLE: Final = (ValueError, TypeError, AttributeError, LookupError)
"""What a piece raises that has not the form of its wire, beside the SDK's own errors."""


class SdkModel(ABC):
    """A model behind the wire of a provider's SDK. It keeps nothing between requests but connections.

    Args:
        model: the model's name on the server.
        base_url: where the server is, such as ``http://127.0.0.1:8080/v1``; None: the provider's own, or as the SDK
            reads it from the environment.
        api_key: None: as the SDK reads it from the environment. With a ``base_url`` that key is never taken, so that
            it does not reach another server; none at all is needed there.
        client: the SDK's asynchronous client, made by you; it stays yours to close, and ``base_url``, ``api_key`` and
            ``timeout`` are not used to connect.
        timeout: seconds to connect and between two pieces of an answer; None: ten minutes, and the SDK's to connect.
        parameters: fields of the request's body, such as ``temperature``; those of an agent replace them.
            None leaves out a field that we would send.
        extra_body: more fields of the body, that only this server knows; they win over all others.

    Raises:
        DefinitionError: no name, or parameters that the adapter sets by itself.
    """

    wire: ClassVar[str]
    """The wire's name, which is the scheme of its models too."""
    fixed: ClassVar[frozenset[str]]
    """Fields of the body that no parameter may set: the answer could not be read, or a law would be broken."""
    failures: ClassVar[type[Exception] | tuple[type[Exception], ...]]
    """What every error of the SDK is, and those of its connections where they are none."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: Any = None,
        timeout: float | None = None,
        parameters: Mapping[str, JsonValue] | None = None,
        extra_body: Mapping[str, JsonValue] | None = None,
    ) -> None:
        if not model or not isinstance(model, str):
            raise DefinitionError(f"expected the model's name after {self.wire}:, got {model!r}")
        self.model = model
        """The model's name on the server."""
        self._options: dict[str, Any] = {"max_retries": 0}  # the loop retries, and on record
        self._idle = timeout or IDLE
        if timeout is not None:
            self._options["timeout"] = timeout
        if base_url is not None:
            self._options |= {"base_url": base_url, "api_key": NO_KEY}
        if api_key is not None:
            self._options["api_key"] = api_key
        self._given = client
        # Connections belong to the event loop that opened them, and a program may have several in turn.
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        self._parameters = dict(parameters or {})
        self._extra_body = dict(extra_body or {})
        try:
            self._check({**self._parameters, **self._extra_body})
        except ValueError as error:
            raise DefinitionError(str(error)) from error

    # what an SDK says of itself

    @abstractmethod
    def made(self, options: Mapping[str, Any]) -> Any:
        """A client of the SDK with these options. Raises ModelError where it finds no key."""

    @abstractmethod
    async def sent(self, client: Any, body: dict[str, Any]) -> object:
        """The server's answer as plain JSON, or an async iterable of its pieces, which is a context manager too."""

    @abstractmethod
    def failure_of(self, error: Exception, client: Any) -> ModelError:
        """The error for the operator: what happened, and what the server said of it; no header, no key."""

    @abstractmethod
    def cannot_send(self, error: Exception, client: Any) -> ModelError:
        """The error for a request that does not get as far as the wire."""

    def mended(self, error: Exception, body: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG002  # for wires that can
        """Another body to ask with at once, where the refusal says what the server cannot take; else None."""
        return None

    # asking

    def with_parameters(self, body: dict[str, Any], own: Mapping[str, JsonValue]) -> dict[str, Any]:
        """The body with the model's parameters, the request's ``own`` and the extra ones; None leaves a field out.

        Raises:
            ValueError: the request's own parameters set a field of `fixed`.
        """
        own = dict(own)
        extra = own.pop("extra_body", None)  # the form of the SDK's own calls
        for named in (self._parameters, own, extra if isinstance(extra, dict) else {}, self._extra_body):
            self._check(named)
            body = body | named
        return {name: value for name, value in body.items() if value is not None}

    def _check(self, parameters: Mapping[str, object]) -> None:
        if taken := sorted(self.fixed & parameters.keys()):
            raise ValueError(f"{self.wire} sets {', '.join(taken)} by itself; take it out of the parameters")

    async def answered(
        self,
        request: ModelRequest,
        client: Any,
        build: Callable[[], dict[str, Any]],
        answer: Answering,
        finish: Callable[[], ModelTurn],
    ) -> AsyncGenerator[ModelEvent]:
        """As `events`, with the turn that ``finish`` makes at its end.

        What an answer has cost that breaks off, or that nobody waits for any more, is told to the request.
        """
        failure: ModelError | None = None
        try:
            async with aclosing(self.events(client, build, answer)) as events:
                async for event in events:
                    yield event
            turn = finish()
        except BaseException as error:
            spent = answer.spent()
            if spent.tokens:
                request.discard(self.model, spent)
            if not isinstance(error, _UNREADABLE):
                raise
            failure = self.failure_of(error, client)
        if failure is not None:
            raise failure
        yield turn

    async def events(
        self, client: Any, build: Callable[[], dict[str, Any]], answer: Answering
    ) -> AsyncGenerator[ModelEvent]:
        """Ask, and give what ``answer`` makes of the pieces, all but the finished turn.

        Leaving the iterator, or cancelling the task that reads it, closes the connection.

        Args:
            client: see `client`.
            build: makes the body; a ValueError of it says why the request cannot be sent.
            answer: takes the pieces.

        Raises:
            ModelError: the server refused, could not be reached, or ended amid the answer; ``retryable`` for
                HTTP status 408, 409, 429 and 5xx, time-outs, lost connections and answers without an end. The
                message holds the status and the server's own short message; never a header, never the key.
        """
        failure: ModelError | None = None
        try:
            async with aclosing(self._pieces(client, build)) as pieces:
                async for piece in pieces:
                    for event in answer.add(piece):
                        yield event
        except Exception as error:
            if not isinstance(error, (_SilentError, self.failures, *_UNREADABLE)):
                raise
            # What is lost after the end of the turn is its usage at most.
            if not answer.finish:
                failure = self.failure_of(error, client)
                if isinstance(error, _SilentError):
                    failure = ModelError(
                        f"no piece of the answer came in time ({self._idle:g} seconds)", retryable=True
                    )
        # Raised out here so that it carries no cause: a cause may quote a header with the key.
        if failure is not None:
            raise failure
        for event in answer.rest():
            yield event

    async def _pieces(self, client: Any, build: Callable[[], dict[str, Any]]) -> AsyncGenerator[object]:
        """The pieces of the answer as plain JSON, one where it is not streamed.

        Plain, since servers send fields that the SDK's classes do not know.
        """
        answer = await self._ask(client, build)
        if not isinstance(answer, AsyncIterable):
            yield answer
            return
        async with cast("Any", answer), aclosing(cast("Any", aiter(answer))) as chunks:
            while True:
                # The SDKs' clocks begin anew with each byte, and a server may send signs of life for ever.
                clock = asyncio.timeout(self._idle)
                try:
                    async with clock:
                        chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    if not clock.expired():
                        raise
                    raise _SilentError from None
                yield chunk

    async def _ask(self, client: Any, build: Callable[[], dict[str, Any]]) -> object:
        body: dict[str, Any] | None = None
        while True:
            mended = None
            try:
                body = build() if body is None else body
                return await self.sent(client, body)
            except self.failures as error:
                failure = self.failure_of(error, client)
                mended = self.mended(error, body or {})
            except (ValueError, TypeError) as error:
                failure = self.cannot_send(error, client)
            if mended is None:
                raise failure
            body = mended

    async def aclose(self) -> None:
        """Let go of what it holds; it can be used again."""
        await self.disconnect()

    async def disconnect(self) -> None:
        """Close the connections of this event loop, which may end; a given client is left alone."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await self.closed(client)

    async def closed(self, client: Any) -> None:
        """Close a client that `made` made."""
        await client.close()

    def client(self) -> Any:
        """The client of this event loop.

        Raises:
            ModelError: there is no key.
        """
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = self.made(self._options)
        return client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"


M = TypeVar("M", bound=SdkModel)


def opened(kind: type[M], /, spec: str, **settings: Any) -> M:
    """A model by its name: what ``open_model`` of each adapter is.

    Args:
        kind: the model's class.
        spec: such as ``openai:gpt-6``, or the name alone; it may hold colons, such as ``llama3:8b``.
        **settings: those of the class.

    Raises:
        DefinitionError: no name, or an unknown setting.
    """
    try:
        return kind(spec.removeprefix(f"{kind.wire}:"), **settings)
    except TypeError as error:
        raise DefinitionError(f"{kind.wire} takes other settings ({error}); see {kind.__name__}") from error
