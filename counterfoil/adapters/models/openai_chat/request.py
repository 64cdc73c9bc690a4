"""A request as the Chat Completions wire takes it.

What the wire forces on us, beside what holds for all (shared/replay.py):

* A call's id goes back as the provider gave it. Where it is missing, over 40 characters (OpenAI refuses
  those) or was used before in the request, ours stands in, in the call and in its result alike.
* A tool's message holds text alone, so media are replayed as the placeholder of their block. A person's takes images,
  PDF files, and sounds in WAV and MP3 (`ChatCompletionContentPartParam` of the SDK).
* Reasoning that a server showed is never sent back: the wire has no place for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from counterfoil.adapters.models.shared.media import data_url, encoded, parts_of
from counterfoil.adapters.models.shared.replay import filled, is_blank, legal_name, replayed
from counterfoil.adapters.models.shared.strict import Dialect
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.content import Audio, Block, File, Image
from counterfoil.core.entries import MessageEntry, TurnEntry
from counterfoil.core.jsontext import clean_text
from counterfoil.core.media import shown_as
from counterfoil.core.pairs import wire_ids
from counterfoil.core.words import elided
from counterfoil.model import ModelRequest

MAX_ID: Final = 40
"""Characters of a call's id that OpenAI takes."""

_SOUNDS: Final = {"audio/wav": "wav", "audio/mpeg": "mp3"}


def body_of(model: str, request: ModelRequest, dialect: Dialect, *, media: bool = True) -> dict[str, Any]:
    """The request's body, without the parameters of anybody.

    Args:
        model: the model's name on the server.
        request: what to ask.
        dialect: how schemas are written.
        media: show the media of messages, or name them.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": list(_messages(request, media=media)),
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


def _messages(request: ModelRequest, *, media: bool) -> Iterator[dict[str, Any]]:
    if not is_blank(request.instructions):
        yield {"role": "system", "content": clean_text(request.instructions)}
    ids = wire_ids(request.items, MAX_ID)
    for position, item in enumerate(request.items):
        match item:
            case MessageEntry():
                role = "system" if item.author_type == "System" else "user"
                yield {"role": role, "content": _said(item, media=media) if item.blocks else filled(item.text)}
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


def _said(message: MessageEntry, *, media: bool) -> str | list[dict[str, Any]]:
    """A message that is more than text; one text where nothing of it is shown, which every server takes."""
    parts = parts_of(message.blocks, lambda _, block: _medium(block) if media else None, _text)
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _medium(block: Block) -> dict[str, Any] | None:
    kind = shown_as(block)
    match block:
        case Image(data=data) if kind is not None:
            return {"type": "image_url", "image_url": {"url": data_url(data, kind)}}
        case Audio(data=data) if kind in _SOUNDS:
            return {"type": "input_audio", "input_audio": {"data": encoded(data), "format": _SOUNDS[kind]}}
        case File(data=data, name=name) if kind is not None:
            return {"type": "file", "file": {"filename": name or "file.pdf", "file_data": data_url(data, kind)}}
        case _:
            return None
