"""A request as the Chat Completions wire takes it.

What the wire forces on us, beside what holds for all (shared/replay.py):

* A call's id goes back as the provider gave it. Where it is missing, over 40 characters (OpenAI refuses
  those) or was used before in the request, ours stands in, in the call and in its result alike.
* A tool's message holds text alone, so media are replayed as the placeholder of their block.
* Reasoning that a server showed is never sent back: the wire has no place for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from counterfoil.adapters.models.shared.replay import filled, is_blank, legal_name, replayed
from counterfoil.adapters.models.shared.strict import Dialect
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.context import wire_ids
from counterfoil.core.entries import MessageEntry, TurnEntry
from counterfoil.core.jsontext import clean_text
from counterfoil.core.words import elided
from counterfoil.model import ModelRequest

MAX_ID: Final = 40
"""Characters of a call's id that OpenAI takes."""


def body_of(model: str, request: ModelRequest, dialect: Dialect) -> dict[str, Any]:
    """The request's body, without the parameters of anybody.

    Args:
        model: the model's name on the server.
        request: what to ask.
        dialect: how schemas are written.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": list(_messages(request)),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": offer.name,
                    "description": clean_text(offer.description),
                    **dialect.tool(offer.input_schema).fields("parameters"),
                },
            }
            for offer in request.tools
        ]
        body["tool_choice"] = request.tool_choice
    if request.output_schema is not None:
        schema = {"name": "answer", **dialect.output(request.output_schema).fields("schema")}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _messages(request: ModelRequest) -> Iterator[dict[str, Any]]:
    if not is_blank(request.instructions):
        yield {"role": "system", "content": clean_text(request.instructions)}
    ids = wire_ids(request.items, MAX_ID)
    for position, item in enumerate(request.items):
        match item:
            case MessageEntry():
                role = "system" if item.author_type == "System" else "user"
                yield {"role": role, "content": filled(item.text)}
            case TurnEntry() if item.calls:
                yield {
                    "role": "assistant",
                    "content": None if is_blank(item.text) else item.text,
                    "tool_calls": [
                        {
                            "id": ids[item.run_id, item.step, index],
                            "type": "function",
                            "function": {"name": legal_name(c.tool_name), "arguments": replayed(c.raw)},
                        }
                        for index, c in enumerate(item.calls)
                    ],
                }
            case TurnEntry():
                yield {"role": "assistant", "content": filled(item.text)}
            case ResultEntry():
                left_out = position in request.elided
                text = elided(item.call_id, item.size) if left_out else item.result.model_output
                wire_id = ids[item.run_id, item.step, item.index]
                yield {"role": "tool", "tool_call_id": wire_id, "content": text}
