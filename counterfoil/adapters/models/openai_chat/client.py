"""The model behind the Chat Completions wire, by way of OpenAI's SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from counterfoil.adapters.models.openai_chat.answer import Answer
from counterfoil.adapters.models.openai_chat.request import body_of
from counterfoil.adapters.models.shared.openai_sdk import OpenAIModel
from counterfoil.adapters.models.shared.sdk_model import opened
from counterfoil.adapters.models.shared.strict import Dialect
from counterfoil.model import ModelEvent, ModelRequest


class OpenAIChat(OpenAIModel):
    """A model behind the Chat Completions wire, of OpenAI or of any server that speaks it.

    Args:
        model: the model's name on the server.
        strict: offer tools and the form of an answer in OpenAI's strict dialect of JSON Schema (see `Dialect`);
            off, since many other servers do not know it.
        media: send images, sounds and PDF files of messages; False, for models without eyes, names them in text.
        **settings: those of `SdkModel`; the parameter ``stream_options`` None serves servers that refuse it.

    Raises:
        DefinitionError: no name, or parameters that this adapter sets by itself.
    """

    wire = "openai-chat"
    path = "/chat/completions"
    fixed = frozenset({"messages", "model", "n", "stream", "tools"})

    def __init__(self, model: str, *, strict: bool = False, media: bool = True, **settings: Any) -> None:
        super().__init__(model, **settings)
        self._media = media
        self._dialect = Dialect(strict=strict)

    def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The model's answer as it comes, the finished turn last; see `SdkModel.events`."""
        client = self.client()
        answer = Answer(self.model)
        finish = lambda: self._dialect.restored(answer.turn(), request)  # noqa: E731  # a name for one of five
        return self.answered(request, client, lambda: self._body(request), answer, finish)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        return self.settled(body_of(self.model, request, self._dialect, media=self._media), request)


open_model = partial(opened, OpenAIChat)
