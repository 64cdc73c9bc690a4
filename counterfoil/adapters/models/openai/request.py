"""A request as the Responses wire takes it.

What the wire forces on us, beside what holds for all (shared/replay.py):

* With ``store`` false the server keeps nothing, so each request holds the whole conversation, without the ids of its
  items: an id without a stored item is refused. Reasoning comes encrypted and goes back as it came, ahead of the
  message or call that it led to; the last item of a turn it must not be (`ResponseReasoningItemParam` of the SDK).
* Messages of an answer have a ``phase`` that goes back with them (`EasyInputMessageParam`).
* A call's id has at most 64 characters. Where it is missing, longer or used before, ours stands in.
* A result or a message is text, or a list of texts, images and files (`ResponseFunctionCallOutputItemParam`). Sound has
  no place, nor has an image that is none of PNG, JPEG, GIF and WebP by its own bytes; their text says what they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from counterfoil.adapters.models.shared.layout import texts_of, woven
from counterfoil.adapters.models.shared.media import data_url, parts_of
from counterfoil.adapters.models.shared.opaque import own_items
from counterfoil.adapters.models.shared.replay import EMPTY, filled, is_blank, legal_name, replayed
from counterfoil.adapters.models.shared.strict import Dialect
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.content import Block, File, Image, block_text
from counterfoil.core.entries import MessageEntry, TurnEntry
from counterfoil.core.jsontext import JsonValue, clean_text
from counterfoil.core.media import shown_as
from counterfoil.core.pairs import CallKey, wire_ids
from counterfoil.core.words import elided
from counterfoil.model import ModelRequest

WIRE: Final = "openai-responses"
"""The name under which reasoning of this wire is kept."""

MAX_ID: Final = 64
"""Characters of a call's id that OpenAI takes."""

MAX_MEDIUM: Final = 20 * 1024 * 1024
"""Bytes of an image or file; OpenAI takes 50 MB in one request, and base64 adds a third."""

ENCRYPTED: Final = "reasoning.encrypted_content"


@dataclass(frozen=True, slots=True)
class Settings:
    """How one model is asked; see `OpenAIResponses`."""

    stream: bool
    media: bool
    dialect: Dialect


def body_of(model: str, request: ModelRequest, settings: Settings, origin: str) -> dict[str, Any]:
    """The request's body, without the parameters of anybody.

    Args:
        model: the model's name on the server.
        request: what to ask.
        settings: how.
        origin: whose reasoning goes back.
    """
    body: dict[str, Any] = {
        "model": model,
        "input": list(_items(request, settings, origin)),
        "store": False,
        "include": [ENCRYPTED],
        "stream": settings.stream,
    }
    if request.run_id:
        # The requests of a run begin alike, so they are sent to where the beginning is cached.
        body["prompt_cache_key"] = request.run_id
    if not is_blank(request.instructions):
        body["instructions"] = clean_text(request.instructions)
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": offer.name,
                "description": clean_text(offer.description),
                **settings.dialect.tool(offer.input_schema).fields("parameters"),
            }
            for offer in request.tools
        ]
        body["tool_choice"] = request.tool_choice
    if request.output_schema is not None:
        form = {
            "type": "json_schema",
            "name": "answer",
            **settings.dialect.output(request.output_schema).fields("schema"),
        }
        body["text"] = {"format": form}
    return body


def without_reasoning(body: dict[str, Any]) -> dict[str, Any]:
    """The body without reasoning, and without asking for more of it."""
    out = body | {"input": [item for item in body["input"] if item.get("type") != "reasoning"]}
    asked = [name for name in out.pop("include", None) or () if name != ENCRYPTED]
    return out | {"include": asked} if asked else out


def _items(request: ModelRequest, settings: Settings, origin: str) -> Iterator[dict[str, Any]]:
    ids = wire_ids(request.items, MAX_ID)
    for position, item in enumerate(request.items):
        match item:
            case MessageEntry():
                role = "system" if item.author_type == "System" else "user"
                yield {"role": role, "content": _told(item, settings) if item.blocks else filled(item.text)}
            case TurnEntry():
                yield from _turn(item, ids, own_items(item.reasoning, WIRE, origin))
            case ResultEntry():
                output: str | list[dict[str, Any]]
                if position in request.elided:
                    output = elided(item.call_id, item.size)
                else:
                    blocks = item.result.content
                    shown = settings.media and any(map(_medium, blocks))
                    parts = parts_of(blocks, lambda _, block: _medium(block), _text, block_text) if shown else None
                    output = parts or item.result.model_output
                call_id = ids[item.run_id, item.step, item.index]
                yield {"type": "function_call_output", "call_id": call_id, "output": output}


def _turn(turn: TurnEntry, ids: dict[CallKey, str], layout: list[dict[str, JsonValue]]) -> Iterator[dict[str, Any]]:
    """A turn's items, in the order in which they came where the layout says so, else text before calls."""
    calls = iter([
        {
            "type": "function_call",
            "call_id": ids[turn.run_id, turn.step, index],
            "name": legal_name(call.tool_name),
            "arguments": replayed(call.raw),
        }
        for index, call in enumerate(turn.calls)
    ])  # fmt: skip  # one item
    said = _said(turn, layout)
    otherwise = [] if said is not None or is_blank(turn.text) else [_message(turn.text)]
    return woven(layout, ("reasoning",), said, calls, otherwise, _message(EMPTY))


def _said(turn: TurnEntry, layout: list[dict[str, JsonValue]]) -> Iterator[dict[str, Any] | None] | None:
    """The turn's messages by the layout's places; None where the text or the calls are not those of the layout.

    They are not when a hook changed them, or retention erased them.
    """
    places = [place for place in layout if place["type"] == "message"]
    if sum(place["type"] == "call" for place in layout) != len(turn.calls):
        return None
    if not places and not is_blank(turn.text):
        return None
    texts = [turn.text] if len(places) < 2 else texts_of(turn.text, [place.get("chars") for place in places])  # noqa: PLR2004  # one is all of it
    if texts is None:
        return None
    return iter([
        None if is_blank(text) else _message(text, place.get("phase"))
        for text, place in zip(texts, places, strict=False)
    ])  # fmt: skip  # one value


def _message(text: str, phase: JsonValue = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return message if phase is None else message | {"phase": phase}


def _told(message: MessageEntry, settings: Settings) -> list[dict[str, Any]]:
    """A message that is more than text."""

    def shown(_: int, block: Block) -> dict[str, Any] | None:
        part = _medium(block) if settings.media else None
        return part | {"detail": "auto"} if part is not None and isinstance(block, Image) else part

    return parts_of(message.blocks, shown, _text)


def _medium(block: Block) -> dict[str, Any] | None:
    kind = shown_as(block)
    if kind is None or not isinstance(block, (Image, File)) or len(block.data) > MAX_MEDIUM:
        return None
    url = data_url(block.data, kind)
    if isinstance(block, Image):
        return {"type": "input_image", "image_url": url}
    return {"type": "input_file", "filename": block.name or "file.pdf", "file_data": url}


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}
