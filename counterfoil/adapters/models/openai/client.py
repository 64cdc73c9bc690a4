"""The model behind the Responses wire, by way of OpenAI's SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from openai import APIStatusError, AsyncOpenAI

from counterfoil.adapters.models.openai.answer import Answer
from counterfoil.adapters.models.openai.request import Settings, body_of, without_reasoning
from counterfoil.adapters.models.shared.opaque import origin_of
from counterfoil.adapters.models.shared.openai_errors import broken_off
from counterfoil.adapters.models.shared.openai_sdk import OpenAIModel
from counterfoil.adapters.models.shared.sdk_model import opened
from counterfoil.adapters.models.shared.strict import Dialect
from counterfoil.model import ModelEvent, ModelRequest, ModelTurn


def open_model(spec: str, **settings: Any) -> OpenAIResponses:
    """The model ``openai:NAME``.

    Args:
        spec: ``openai:NAME`` or the name alone; it may hold colons.
        **settings: those of `OpenAIResponses`.

    Raises:
        DefinitionError: no name, or an unknown setting.
    """
    model: OpenAIResponses = opened(OpenAIResponses, spec, settings)
    return model


class OpenAIResponses(OpenAIModel):
    """A model behind the Responses wire. Nothing is stored on the server; a request holds the whole conversation.

    Args:
        model: the model's name on the server.
        stream: ask for the answer as it comes; False asks for it whole, for servers and accounts without streams.
        strict: offer tools and the form of an answer in OpenAI's strict dialect of JSON Schema (see `Dialect`).
        media: send images and PDF files; False, for models without eyes, names them in text.
        **settings: those of `SdkModel`. The parameters ``include`` and ``store`` may be set: ``include`` None asks
            for no encrypted reasoning. So may ``prompt_cache_key``, which is the run's id.

    Raises:
        DefinitionError: no name, or parameters that this adapter sets by itself.
    """

    wire = "openai"
    path = "/responses"
    # The last four would add to the conversation what is not on our record, or answer where nobody listens.
    fixed = frozenset({
        "input", "instructions", "model", "stream", "tools", "background", "conversation", "previous_response_id",
        "prompt",
    })  # fmt: skip  # names in rows

    def __init__(
        self, model: str, *, stream: bool = True, strict: bool = True, media: bool = True, **settings: Any
    ) -> None:
        super().__init__(model, **settings)
        self._settings = Settings(stream=stream, media=media, dialect=Dialect(strict=strict, said=True))
        self._encrypts = True

    def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The model's answer as it comes, the finished turn last; see `SdkModel.events`."""
        client = self.client()
        origin = self._origin(client)
        answer = Answer(self.model)

        def finish() -> ModelTurn:
            if answer.failed is not None:
                raise broken_off(answer.failed, client)
            return self._settings.dialect.restored(answer.turn(origin), request)

        return self.answered(request, client, lambda: self._body(request, origin), answer, finish)

    def _body(self, request: ModelRequest, origin: str) -> dict[str, Any]:
        body = body_of(self.model, request, self._settings, origin)
        if not self._encrypts:
            del body["include"]
        body = self.with_parameters(body, request.parameters)
        if not request.tools:
            body.pop("tool_choice", None)
            body.pop("parallel_tool_calls", None)
        return body

    def _origin(self, client: AsyncOpenAI) -> str:
        """Who can read the reasoning: this model on this server."""
        place = urlsplit(str(client.base_url))
        return origin_of(f"{place.hostname}:{place.port}{place.path}", self.model)

    def mended(self, error: Exception, body: dict[str, Any]) -> dict[str, Any] | None:
        """The body without encrypted reasoning, where that is what the server cannot take."""
        if not isinstance(error, APIStatusError) or error.status_code // 100 != 4:  # noqa: PLR2004 - 4xx
            return None
        if "encrypted content is not supported" in str(error).lower():
            self._encrypts = False  # a model that does not reason, and never will
        elif error.code != "invalid_encrypted_content":
            return None
        bare = without_reasoning(body)
        return None if bare == body else bare
