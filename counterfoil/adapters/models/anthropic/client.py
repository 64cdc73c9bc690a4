"""The model behind Anthropic's Messages, by way of Anthropic's SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

from anthropic import AnthropicError, APIConnectionError, APIStatusError, AsyncAnthropic, AsyncStream

from counterfoil.adapters.models.anthropic import errors
from counterfoil.adapters.models.anthropic.answer import Answer
from counterfoil.adapters.models.anthropic.request import Settings, answer_tool, body_of, wraps
from counterfoil.adapters.models.anthropic.settled import (
    settled,
    without_budget,
    without_media,
    without_strict,
    without_thinking,
)
from counterfoil.adapters.models.shared.opaque import origin_at
from counterfoil.adapters.models.shared.sdk_model import SdkModel, opened
from counterfoil.adapters.models.shared.strict import WRAP
from counterfoil.core.errors import ModelError
from counterfoil.core.jsontext import dumps, loads
from counterfoil.model import ModelEvent, ModelRequest, ModelTurn

_TOO_LARGE = 413


class AnthropicMessages(SdkModel):
    """A model behind the Messages wire. Nothing is stored on the server; a request holds the whole conversation.

    Args:
        model: the model's name on the server.
        stream: ask for the answer as it comes; False asks for it whole, for servers without streams.
        strict: offer tools in Anthropic's strict dialect of JSON Schema, as far as it can say them and a request may
            hold them (see `in_dialect`).
        formats: ask for the form of an answer with ``output_config``; False, for models that do not know it, has the
            answer given as a call of a tool, as it is anyway where the dialect cannot say its schema.
        media: send images and PDF files; False names them in text.
        **settings: those of `SdkModel`; the client is an `AsyncAnthropic`. Of the parameters ``max_tokens`` is 16,000
            unless set, and ``cache_control`` marks tools, system text and the newest messages for the server's cache.

    Raises:
        DefinitionError: no name, or parameters that this adapter sets by itself.
    """

    wire = "anthropic"
    # The last two would run tools of the server's own, whose results are not on our record.
    fixed = frozenset({"messages", "system", "model", "stream", "tools", "container", "mcp_servers"})
    failures = AnthropicError

    def __init__(
        self,
        model: str,
        *,
        stream: bool = True,
        strict: bool = False,
        formats: bool = True,
        media: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(model, **settings)
        self._settings = Settings(stream=stream, media=media, strict=strict, formats=formats)

    def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The model's answer as it comes, the finished turn last; see `SdkModel.events`."""
        client = self.client()
        origin = origin_at(client.base_url, self.model)
        name = answer_tool(request, self._settings)
        answer = Answer(self.model, name)

        def finish() -> ModelTurn:
            turn = answer.turn(origin)
            return turn if name is None else _unwrapped(turn, request)

        return self.answered(request, client, lambda: self._body(request, origin, name), answer, finish)

    def _body(self, request: ModelRequest, origin: str, answer: str | None) -> dict[str, Any]:
        ours = body_of(self.model, request, self._settings, origin)
        return settled(self.with_parameters(ours, request.parameters), ours, answer)

    # the SDK

    def made(self, options: Mapping[str, Any]) -> AsyncAnthropic:
        try:
            client = AsyncAnthropic(**options)
        except AnthropicError:  # a profile that is named and cannot be read
            client = None
        if client is None or (client.api_key is None and client.auth_token is None and client.credentials is None):
            raise ModelError(f"no key for the model {self.model}: set ANTHROPIC_API_KEY or give api_key")
        return client

    async def sent(self, client: AsyncAnthropic, body: dict[str, Any]) -> object:
        for secret in (client.api_key, client.auth_token):
            # The SDK sends others as UTF-8, and a server that quotes them as it read them would give them away.
            (secret or "").encode("ascii")
        # Not `messages.create`: it refuses fields that only a server knows, and long answers that are not streamed.
        answer: object = await client.post(
            "/v1/messages",
            cast_to=object,
            body=body,
            options={"max_retries": 0},
            stream=bool(body.get("stream")),
            stream_cls=cast("Any", AsyncStream[object]),
        )
        return _Stream(answer) if isinstance(answer, AsyncStream) else answer

    def failure_of(self, error: Exception, client: AsyncAnthropic) -> ModelError:
        return errors.failure_of(error, client)

    def cannot_send(self, error: Exception, client: AsyncAnthropic) -> ModelError:
        return errors.cannot_send(error, client)

    def mended(self, error: Exception, body: dict[str, Any]) -> dict[str, Any] | None:
        """The body without what the server says that it cannot take: else the record would send it for ever."""
        if not isinstance(error, APIStatusError) or error.status_code not in (400, _TOO_LARGE):
            return None
        said = str(errors.said(error)).lower()
        if "thinking" in said and ("signature" in said or "cannot be modified" in said or "`data`" in said):
            other = without_thinking(body)
        elif "must start with a thinking block" in said:
            other = without_budget(body)
        elif error.status_code == _TOO_LARGE or any(word in said for word in ("image", "pdf", "document")):
            other = without_media(body)
        elif any(word in said for word in ("strict", "schema", "grammar")):
            other = without_strict(body)
        else:
            return None
        return None if other == body else other


open_model = partial(opened, AnthropicMessages)


class _Stream:
    """A stream whose lost connection is an error of the SDK, as one is that is lost before the stream begins."""

    def __init__(self, stream: AsyncStream[object]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncGenerator[object]:
        try:
            async with aclosing(cast("Any", aiter(self._stream))) as chunks:
                async for chunk in chunks:
                    yield chunk
        except (AnthropicError, ValueError, TypeError, AttributeError, LookupError):
            raise
        except Exception as error:
            raise APIConnectionError(request=self._stream.response.request) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.close()


def _unwrapped(turn: ModelTurn, request: ModelRequest) -> ModelTurn:
    """The turn with an answer by call as its schema wants it."""
    if turn.calls or not wraps(request.output_schema or {}):
        return turn
    try:
        value = loads(turn.text)
    except ValueError:
        return turn
    if not isinstance(value, dict) or list(value) != [WRAP]:
        return turn
    return replace(turn, text=dumps(value[WRAP]).decode())
