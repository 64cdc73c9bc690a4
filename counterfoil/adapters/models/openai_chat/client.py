"""The model behind the Chat Completions wire, by way of OpenAI's SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from openai import AsyncOpenAI, AsyncStream, OpenAIError

from counterfoil.adapters.models.openai_chat.answer import Answer
from counterfoil.adapters.models.openai_chat.errors import cannot_send, failure_of
from counterfoil.adapters.models.openai_chat.request import body_of, check_parameters
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.jsontext import JsonValue
from counterfoil.model import ModelEvent, ModelRequest

NO_KEY: Final = "no-key"
"""What a server without keys is sent, since the SDK sends something."""


def open_model(spec: str, **settings: Any) -> OpenAIChat:
    """The model ``openai-chat:NAME``.

    Args:
        spec: ``openai-chat:NAME`` or the name alone; it may hold colons, such as ``llama3:8b``.
        **settings: those of `OpenAIChat`.

    Raises:
        DefinitionError: no name, or an unknown setting.
    """
    try:
        return OpenAIChat(spec.removeprefix("openai-chat:"), **settings)
    except TypeError as error:
        raise DefinitionError(f"openai-chat takes other settings ({error}); see OpenAIChat") from error


class OpenAIChat:
    """A model behind the Chat Completions wire. It keeps nothing between requests but connections.

    Args:
        model: the model's name on the server.
        base_url: where the server is, such as ``http://127.0.0.1:8080/v1``; None: OpenAI, or as the SDK reads
            it from OPENAI_BASE_URL.
        api_key: None: as the SDK reads it from OPENAI_API_KEY. With a ``base_url`` that key is never taken,
            so that it does not reach another server; none at all is needed there.
        client: an `AsyncOpenAI` that you made; it stays yours to close, and ``base_url``, ``api_key`` and
            ``timeout`` are not used.
        timeout: seconds to connect and between two pieces of an answer; None: the SDK's, ten minutes.
        parameters: fields of the request's body, such as ``temperature``; those of an agent replace them.
            None leaves out a field that we would send, such as ``stream_options`` where a server refuses it.
        extra_body: more fields of the body, that only this server knows; they win over all others.

    Raises:
        DefinitionError: no name, or parameters that this adapter sets by itself.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: AsyncOpenAI | None = None,
        timeout: float | None = None,
        parameters: Mapping[str, JsonValue] | None = None,
        extra_body: Mapping[str, JsonValue] | None = None,
    ) -> None:
        if not model or not isinstance(model, str):
            raise DefinitionError(f"expected the model's name after openai-chat:, got {model!r}")
        self.model = model
        """The model's name on the server."""
        self._options: dict[str, Any] = {"max_retries": 0}  # the loop retries, and on record
        if timeout is not None:
            self._options["timeout"] = timeout
        if base_url is not None:
            self._options |= {"base_url": base_url, "api_key": NO_KEY}
        if api_key is not None:
            self._options["api_key"] = api_key
        self._given = client
        # Connections belong to the event loop that opened them, and a program may have several in turn.
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = WeakKeyDictionary()
        self._parameters = dict(parameters or {})
        self._extra_body = dict(extra_body or {})
        try:
            check_parameters({**self._parameters, **self._extra_body})
        except ValueError as error:
            raise DefinitionError(str(error)) from error

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The model's answer as it comes, the finished turn last.

        Leaving the iterator, or cancelling the task that reads it, closes the connection.

        Raises:
            ModelError: the server refused, could not be reached, or ended amid the answer; ``retryable`` for
                HTTP status 408, 409, 429 and 5xx, time-outs, lost connections and answers without an end. The
                message holds the status and the server's own short message; never a header, never the key.
        """
        client = self._client()
        answer = Answer(self.model)
        stream = await self._ask(client, request)
        failure: ModelError | None = None
        try:
            async with stream, aclosing(cast("Any", aiter(stream))) as chunks:
                async for chunk in chunks:
                    for event in answer.add(chunk):
                        yield event
        except (OpenAIError, ValueError, TypeError, AttributeError) as error:  # the last three: no such chunk
            # What is lost after the end of the turn is its usage at most.
            failure = None if answer.finish else failure_of(error, client)
        # Raised out here so that it carries no cause: a cause may quote a header with the key.
        if failure is not None:
            raise failure
        for event in answer.rest():
            yield event
        yield answer.turn()

    async def _ask(self, client: AsyncOpenAI, request: ModelRequest) -> AsyncStream[object]:
        """Open the stream, as plain dicts: servers send fields that the SDK's classes do not know."""
        try:
            return await client.post(
                "/chat/completions",
                cast_to=object,
                body=body_of(self.model, request, self._parameters, self._extra_body),
                options={"max_retries": 0, "security": {"bearer_auth": True}},
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except OpenAIError as error:
            failure = failure_of(error, client)
        except (ValueError, TypeError) as error:
            failure = cannot_send(error, client)
        raise failure

    async def aclose(self) -> None:
        """Close the connections of this event loop; it can be used again. A given client is left alone."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _client(self) -> AsyncOpenAI:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            try:
                client = AsyncOpenAI(**self._options)
            except OpenAIError:
                raise ModelError(f"no key for the model {self.model}: set OPENAI_API_KEY or give api_key") from None
            self._clients[loop] = client
        return client

    def __repr__(self) -> str:
        return f"OpenAIChat({self.model!r})"
