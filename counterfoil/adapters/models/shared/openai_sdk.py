"""What the wires of OpenAI's SDK have in common beside what all wires have: its client, its calls, its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from openai import AsyncOpenAI, AsyncStream, OpenAIError

from counterfoil.adapters.models.shared import openai_errors
from counterfoil.adapters.models.shared.sdk_model import SdkModel
from counterfoil.core.errors import ModelError
from counterfoil.model import ModelRequest


class OpenAIModel(SdkModel):
    """A model behind one of OpenAI's wires; see `SdkModel`. Its client is an `AsyncOpenAI`."""

    path: ClassVar[str]
    """Of the call, below the base URL."""
    failures = OpenAIError

    def made(self, options: Mapping[str, Any]) -> AsyncOpenAI:
        try:
            return AsyncOpenAI(**options)
        except OpenAIError:
            raise ModelError(f"no key for the model {self.model}: set OPENAI_API_KEY or give api_key") from None

    def settled(self, body: dict[str, Any], request: ModelRequest) -> dict[str, Any]:
        """The body with parameters; without those of tools where none are offered, which the server refuses."""
        body = self.with_parameters(body, request.parameters)
        if not request.tools:
            body.pop("tool_choice", None)
            body.pop("parallel_tool_calls", None)
        return body

    async def sent(self, client: AsyncOpenAI, body: dict[str, Any]) -> object:
        return await client.post(
            self.path,
            cast_to=object,
            body=body,
            options={"max_retries": 0, "security": {"bearer_auth": True}},
            stream=bool(body.get("stream")),
            stream_cls=cast("Any", AsyncStream[object]),
        )

    def failure_of(self, error: Exception, client: AsyncOpenAI) -> ModelError:
        return openai_errors.failure_of(error, client)

    def cannot_send(self, error: Exception, client: AsyncOpenAI) -> ModelError:
        return openai_errors.cannot_send(error, client)
