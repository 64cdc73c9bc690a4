"""The model behind the Gemini API, by way of Google's SDK."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from google import genai
from google.genai.errors import APIError
from google.genai.types import HttpOptions

from counterfoil.adapters.models.google import failures
from counterfoil.adapters.models.google.answer import Answer
from counterfoil.adapters.models.google.names import names_back
from counterfoil.adapters.models.google.request import (
    UNSIGNED,
    Settings,
    body_of,
    form_as_text,
    takes_media,
    with_unsigned,
)
from counterfoil.adapters.models.shared.opaque import origin_at
from counterfoil.adapters.models.shared.sdk_model import SdkModel, opened
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.jsontext import JsonValue, loads
from counterfoil.model import ModelEvent, ModelRequest, ModelTurn

TIMEOUT: Final = 600.0
"""Seconds; the SDK itself would wait for ever."""

_TOP: Final = frozenset({"safetySettings", "labels", "serviceTier", "store"})
"""Parameters that stand beside ``generationConfig`` and not in it."""


class GoogleGemini(SdkModel):
    """A model behind the Gemini API. Nothing is stored on the server; a request holds the whole conversation.

    Args:
        model: the model's name, such as ``gemini-3-pro``, also with ``models/`` or ``tunedModels/`` before it.
        stream: ask for the answer as it comes; False asks for it whole.
        media: send images, sounds and PDF files, or name them in text; None: those of messages, and those of results
            as the model's name says, since models before Gemini 3 take text alone.
        parameters: settings of the SDK's ``GenerateContentConfig``, in its spelling or the wire's, such as
            ``temperature`` and ``max_output_tokens``.
        **settings: those of `SdkModel`. ``client`` is a `google.genai.Client` of the Gemini API.

    Raises:
        DefinitionError: no name, a client of another API, or parameters that this adapter sets by itself.
    """

    wire = "google"
    # Those after the first row would put into the conversation what is not on our record, or give several answers.
    fixed = frozenset({
        "contents", "systemInstruction", "tools", "toolConfig", "model", "responseSchema", "responseJsonSchema",
        "cachedContent", "continuationToken", "candidateCount",
    })  # fmt: skip  # names in rows
    failures = (APIError, *failures.LOST)

    def __init__(
        self,
        model: str,
        *,
        stream: bool = True,
        media: bool | None = None,
        parameters: Mapping[str, JsonValue] | None = None,
        extra_body: Mapping[str, JsonValue] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, parameters=_camel(parameters), extra_body=_camel(extra_body), **settings)
        if getattr(settings.get("client"), "vertexai", False):
            raise DefinitionError("google takes a client of the Gemini API; this one is of another API of Google's")
        self._stream = stream
        self._settings = Settings(media=takes_media(model) if media is None else media, prompts=media is not False)

    def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The model's answer as it comes, the finished turn last; see `SdkModel.events`."""
        client = self.client()
        origin = origin_at(client._api_client._http_options.base_url, self.model)
        answer = Answer(self.model, names_back(offer.name for offer in request.tools))

        def finish() -> ModelTurn:
            if answer.failed is not None:
                raise failures.broken_off(answer.failed, client)
            return answer.turn(origin)

        return self.answered(request, client, lambda: self._body(request, origin), answer, finish)

    def _body(self, request: ModelRequest, origin: str) -> dict[str, Any]:
        body = body_of(request, self._settings, origin)
        own = dict(request.parameters)
        extra = own.pop("extra_body", None)
        own = _camel(own) | (_camel(extra) if isinstance(extra, dict) else {})
        config: dict[str, Any] = dict(body.get("generationConfig", {}))
        for name, value in self.with_parameters({}, own).items():
            if name == "generationConfig" and isinstance(value, dict):
                given = _camel(value)
                self._check(given)
                config |= given
            elif name in _TOP:
                body[name] = value
            else:
                config[name] = value
        return body | {"generationConfig": config} if config else body

    # the SDK

    def made(self, options: Mapping[str, Any]) -> genai.Client:
        timeout = options.get("timeout", TIMEOUT)
        http: dict[str, Any] = {
            "timeout": max(round(timeout * 1000), 1),
            "retry_options": {"attempts": 1},  # the loop retries, and on record
            # Ours, since the SDK's would follow a server that sends it elsewhere, and take the key along.
            "httpx_async_client": failures.HTTP[0].AsyncClient(event_hooks={"request": [_quiet]}),
        }
        if "base_url" in options:
            http["base_url"] = options["base_url"]
        try:
            client = genai.Client(vertexai=False, api_key=options.get("api_key"), http_options=HttpOptions(**http))
        except ValueError:
            raise ModelError(
                f"no key for the model {self.model}: set GOOGLE_API_KEY or GEMINI_API_KEY, or give api_key"
            ) from None
        return client

    async def sent(self, client: genai.Client, body: dict[str, Any]) -> object:
        # The public calls read an answer into classes, which lose what they do not know, and leave a stream that is
        # not read to its end to the garbage collector. So these calls are a floor below them.
        api = client._api_client
        name = self.model if self.model.startswith(("models/", "tunedModels/")) else f"models/{self.model}"
        path = quote(name, safe="/")
        if not self._stream:
            answer = await api.async_request("post", f"{path}:generateContent", dict(body))
            return loads(answer.body or "{}")
        asked = api._build_request("post", f"{path}:streamGenerateContent?alt=sse", dict(body))
        return _Pieces(await api._async_request(asked, stream=True))

    def mended(self, error: Exception, body: dict[str, Any]) -> dict[str, Any] | None:
        """The body as this model takes it, where the refusal says what it does not take."""
        said = failures.refusal_of(error)
        if re.search(r"thought[_ ]?signature", said):
            fresh = "missing" not in said  # else one that came from here cannot be verified any more
            if not fresh:
                self._settings.unsigned = UNSIGNED
            mended = with_unsigned(body, fresh=fresh)
            return None if mended == body else mended
        config = body.get("generationConfig", {})
        if "mime type" in said and "unsupported" in said and body.get("tools") and "responseJsonSchema" in config:
            self._settings.forms_with_tools = False
            return form_as_text(body)
        return None

    def failure_of(self, error: Exception, client: genai.Client) -> ModelError:
        return failures.failure_of(error, client)

    def cannot_send(self, error: Exception, client: genai.Client) -> ModelError:
        return failures.cannot_send(error, client)

    async def closed(self, client: genai.Client) -> None:
        await client._api_client._http_options.httpx_async_client.aclose()  # type: ignore[union-attr]  # we gave it
        client.close()


open_model = partial(opened, GoogleGemini)


class _Pieces:
    """The pieces of a streamed answer as plain JSON; leaving it closes the connection."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __aiter__(self) -> AsyncIterator[Any]:
        segments: AsyncIterator[Any] = self._answer.async_segments()
        return segments

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stream = self._answer.response_stream
        if hasattr(stream, "aclose"):
            await stream.aclose()
        else:
            stream.close()  # a given client that has aiohttp


async def _quiet(request: Any) -> None:
    """Take out what the SDK tells of itself and of this machine."""
    request.headers.pop("x-goog-api-client", None)


def _camel(named: Mapping[str, JsonValue] | None) -> dict[str, JsonValue]:
    """Names as the wire spells them: the SDK's ``top_p`` is ``topP``."""
    return {re.sub(r"_([a-z])", lambda found: found[1].upper(), name): value for name, value in (named or {}).items()}
