"""A model on this machine, behind a server that speaks Chat Completions.

What the server was seen to do, and what is done about it:

* Tools are dropped without a word where the chat template says nothing of any: the request is refused in words.
* Prose may come before a call that is required, without end: a request always has ``max_tokens``, and a turn that these
  cut off is no answer and runs no call.
* The choice of a named tool is read as "auto": that tool alone is offered then, and required.
* Several calls come where parallel calls are off: the first counts, and a warning is logged.
* Arguments that ``max_tokens`` cut off are no JSON: their turn ends with ``length`` and runs nothing.
* At temperature 0 equal requests are answered differently while prompts are cached, as a prompt is then evaluated in
  differently cut batches: ``cache_prompt`` is false.

Of the small model, measured: left to itself it talks about a tool where it should call one, so a run's first turn is
made to call ("required" is enforced by a grammar) and the later ones to answer. Without ``frequency_penalty`` one list
in eight repeats its last words without end. A tool whose text arguments have a `maxLength` gets them closed by the
grammar, and one whose argument has `examples` is shown in worked calls.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from counterfoil.adapters.models.local import server as servers
from counterfoil.adapters.models.local.server import LocalServer, Served
from counterfoil.adapters.models.openai_chat.client import OpenAIChat
from counterfoil.adapters.models.shared.sdk_model import opened
from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import JsonValue
from counterfoil.model import CallDelta, ModelEvent, ModelRequest, ModelTurn

log = logging.getLogger("counterfoil")

SMALL_PARAMETERS: Final[Mapping[str, JsonValue]] = {
    "temperature": 0,
    "frequency_penalty": 0.2,
    "max_tokens": 256,
    "parallel_tool_calls": False,
}
"""Of the small model."""
MAX_TOKENS: Final = 2048
"""Of an answer of any other model, unless set: a text without an end stays possible."""
CONTEXT_TOKENS: Final = 4096
"""Unless set: SmolLM2 was trained for 8192, and memory grows with it."""


def open_model(spec: str, **settings: Any) -> LocalModel:
    """The model ``local``, which is SmolLM2, or ``local:FILE.gguf``.

    Args:
        spec: empty, or the file.
        **settings: those of `LocalModel`.

    Raises:
        DefinitionError: no such file, something is not installed, or an unknown setting; the message says which.
    """
    return opened(LocalModel, "" if spec == LocalModel.wire else spec, **settings)


class LocalModel(OpenAIChat):
    """A model on this machine, without a key. Its server starts with the first request and stops with `aclose`.

    Models of the same file and settings share one server in a process; it stops when the last of them is closed, or
    with the process.

    Args:
        file: a GGUF file; empty: SmolLM2-135M-Instruct.
        template: a file with another chat template (Jinja) than the model's own.
        threads: threads that compute; None: one for the small model, which keeps the machine usable, else all.
        context_tokens: tokens of prompt and answer together.
        server: a server that you started and will stop.
        parameters: fields of the request's body; those of an agent replace them.
        **settings: ``timeout``, ``extra_body`` and ``strict`` as of `OpenAIChat`.

    Raises:
        DefinitionError: no such file, or parameters that this adapter sets by itself.
        LocalModelMissing: something is not installed; the message says how to install it.
    """

    wire = "local"

    def __init__(
        self,
        file: str | os.PathLike[str] = "",
        *,
        template: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        context_tokens: int = CONTEXT_TOKENS,
        server: LocalServer | None = None,
        parameters: Mapping[str, JsonValue] | None = None,
        extra_body: Mapping[str, JsonValue] | None = None,
        **settings: Any,
    ) -> None:
        self._small = not os.fspath(file)
        if server is None:
            servers.need_server()
        weights = Path(file).expanduser().resolve() if server or not self._small else servers.find_weights()
        if server is None and not weights.is_file():
            raise DefinitionError(f"local: expected a GGUF file, and there is none at {weights}")
        if template is None and self._small:
            template = servers.TEMPLATE
        super().__init__(
            servers.SMALL if self._small else weights.stem,
            parameters={**(SMALL_PARAMETERS if self._small else {}), **(parameters or {})},
            extra_body={"cache_prompt": False, **(extra_body or {})},
            media=False,  # the server runs without what models see with
            **settings,
        )
        try:
            text = None if template is None else Path(template).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise DefinitionError(f"local: the chat template cannot be read: {error}") from error
        threads = threads or (1 if self._small else os.cpu_count() or 1)
        self._served = Served(weights, self.model, text, threads, context_tokens)
        self._own = server
        self._server = server
        if server is not None:
            self._options |= {"base_url": server.base_url, "api_key": server.api_key}

    async def start(self) -> LocalServer:
        """The server, started where it does not run; `respond` does it by itself.

        Raises:
            LocalServerError: it did not come up.
        """
        server = self._server
        if server is None or (self._own is None and not server.alive):
            server = self._server = await asyncio.to_thread(servers.SHARED.server, self._served, self)
            self._options |= {"base_url": server.base_url, "api_key": server.api_key}
            self._clients.clear()  # they know the address of one that is gone
        return server

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The model's answer as it comes, the finished turn last; see `SdkModel.events`."""
        await self.start()
        answer = cast("Any", super().respond(request))
        async with aclosing(answer) as events:
            async for event in events:
                if isinstance(event, CallDelta) and event.index and self._one_call(request):
                    continue
                yield self._first(event, request) if isinstance(event, ModelTurn) else event

    def _one_call(self, request: ModelRequest) -> bool:
        return self.with_parameters({}, request.parameters).get("parallel_tool_calls") is False

    def _first(self, turn: ModelTurn, request: ModelRequest) -> ModelTurn:
        """The turn with one call at most, where parallel calls are off."""
        if len(turn.calls) < 2 or not self._one_call(request):  # noqa: PLR2004  # more than one
            return turn
        log.warning("%s made %d calls where parallel calls are off; the first counts", self.model, len(turn.calls))
        return replace(turn, calls=turn.calls[:1])

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body = super()._body(request)
        if not {"max_tokens", "max_completion_tokens"} & body.keys():
            body["max_tokens"] = MAX_TOKENS
        if "tools" not in body:
            return body
        choice = body.get("tool_choice")
        if isinstance(choice, dict):
            name = (choice.get("function") or {}).get("name")
            named = [tool for tool in body["tools"] if tool["function"]["name"] == name]
            if not named:
                raise ValueError(f"tool_choice names {name!r}, which is not offered")
            body |= {"tools": named, "tool_choice": "required"}
        elif choice == "auto" and self._small:
            body["tool_choice"] = "none" if request.turns else "required"
        if body["tool_choice"] != "none" and self._server is not None and not self._server.knows_tools:
            names = ", ".join(tool["function"]["name"] for tool in body["tools"])
            raise ValueError(
                f"the chat template of {self.model} says nothing of tools, so its server would drop {names} without a "
                "word; give a template that does, as LocalModel(FILE, template=…), or another model"
            )
        return body

    async def aclose(self) -> None:
        """Close the connections of this event loop, and stop the server if nobody else uses it."""
        await super().aclose()
        if self._own is None and self._server is not None:
            self._server = None
            await asyncio.to_thread(servers.SHARED.leave, self._served, self)
