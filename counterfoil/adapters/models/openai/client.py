"""The model behind the Responses wire, by way of OpenAI's SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from openai import APIStatusError

from counterfoil.adapters.models.openai.answer import Answer
from counterfoil.adapters.models.openai.request import Settings, body_of, without_reasoning
from counterfoil.adapters.models.shared.opaque import origin_at
from counterfoil.adapters.models.shared.openai_errors import broken_off
from counterfoil.adapters.models.shared.openai_sdk import OpenAIModel
from counterfoil.adapters.models.shared.sdk_model import opened
from counterfoil.adapters.models.shared.strict import Dialect
from counterfoil.model import ModelEvent, ModelRequest, ModelTurn


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
        origin = origin_at(client.base_url, self.model)
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
        return self.settled(body, request)

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


open_model = partial(opened, OpenAIResponses)
