"""A request as the Messages wire takes it.

What the wire forces on us, beside what holds for all (shared/replay.py):

* Users and the model take turns, a user first and last; what one side says in a row is one message. A message of the
  system within the conversation is the user's text here, since not every model takes the role.
* All results of a turn stand in the one message right after it, before any text.
* Blank text blocks are refused, and so is a turn that ends with thinking.
* Thinking is signed and goes back as it came, in its place among text and calls (`ThinkingBlockParam` of the SDK).
* A call's id is of ``[A-Za-z0-9_-]``. Where it is missing, other or used before, ours stands in.
* A result is text, or a list of texts, images and PDF documents; that of an error is text alone.
* A conversation with calls in it is refused without tools, so calls of tools that are no longer offered stand in,
  with a choice of none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from counterfoil.adapters.models.anthropic.schema import MAX_OPTIONAL, MAX_TOOLS, MAX_UNIONS, in_dialect
from counterfoil.adapters.models.shared.layout import texts_of, woven
from counterfoil.adapters.models.shared.media import encoded, parts_of
from counterfoil.adapters.models.shared.opaque import own_items
from counterfoil.adapters.models.shared.replay import EMPTY, filled, is_blank, legal_name, replayed
from counterfoil.adapters.models.shared.strict import WRAP, rooted
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.content import Block, File, Image, block_text
from counterfoil.core.entries import MessageEntry, TurnEntry
from counterfoil.core.jsontext import JsonValue, clean_text, loads
from counterfoil.core.media import read_as, shown_as
from counterfoil.core.pairs import CallKey, wire_ids
from counterfoil.core.words import elided
from counterfoil.model import Item, ModelRequest

WIRE: Final = "anthropic-messages"
"""The name under which thinking of this wire is kept."""

MAX_TOKENS: Final = 16_000
"""Tokens of an answer unless told: each model that the SDK names takes it, and an answer that is asked for whole comes
within the ten minutes that the SDK gives it (21,333 at its 128,000 an hour)."""

MAX_IMAGE: Final = 5 * 1024 * 1024 * 3 // 4
"""Bytes of an image; Anthropic takes 5 MiB of base64."""

MAX_MEDIA: Final = 20 * 1024 * 1024
"""Bytes of all media of a request, the newest first; Anthropic takes 32 MB in one, and base64 adds a third."""

MAX_COUNT: Final = 100
"""Media of a request, the newest first, as Anthropic's guides to images and PDF allow."""

THINKING: Final = ("thinking", "redacted_thinking")

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_OPEN: Final[dict[str, Any]] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Settings:
    """How one model is asked; see `AnthropicMessages`."""

    stream: bool
    media: bool
    strict: bool
    formats: bool


def body_of(model: str, request: ModelRequest, settings: Settings, origin: str) -> dict[str, Any]:
    """The request's body, without the parameters of anybody.

    Args:
        model: the model's name on the server.
        request: what to ask.
        settings: how.
        origin: whose thinking goes back.
    """
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": MAX_TOKENS,
        "messages": _messages(request, settings, origin),
        "stream": settings.stream,
    }
    if not is_blank(request.instructions):
        body["system"] = clean_text(request.instructions)
    form = _form(request, settings)
    if form is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": form}}
    if tools := _tools(request, settings):
        body["tools"] = tools
        body["tool_choice"] = _choice(request, settings)
    elif called := _called(request):
        body["tools"] = [{"name": name, "input_schema": _OPEN} for name in called]
        body["tool_choice"] = {"type": "none"}
    return body


# --------------------------------------------------------------------------------- tools and the answer


def answer_tool(request: ModelRequest, settings: Settings) -> str | None:
    """The name of the tool that a model calls to answer, where the form of the answer can be told in no other way."""
    schema = request.output_schema
    if schema is None or request.tool_choice == "required" or _form(request, settings) is not None:
        return None
    name, taken = "answer", {offer.name for offer in request.tools}
    while name in taken:
        name += "_"
    return name


def wraps(schema: dict[str, JsonValue]) -> bool:
    """Whether an answer has to be wrapped to be a tool's arguments, which are an object."""
    return schema.get("type") != "object"


def _form(request: ModelRequest, settings: Settings) -> dict[str, JsonValue] | None:
    schema = request.output_schema if settings.formats else None
    said = in_dialect(schema) if schema is not None else None
    return said.schema if said is not None else None


def _tools(request: ModelRequest, settings: Settings) -> list[dict[str, Any]]:
    strict = _Strict(request, settings)
    tools = [_tool(offer.name, offer.description, *strict.of(offer.input_schema)) for offer in request.tools]
    name = answer_tool(request, settings)
    if name is not None:
        schema: dict[str, Any] = request.output_schema or {}
        if wraps(schema):
            inner = {k: v for k, v in schema.items() if k not in ("$defs", "definitions", "$schema")}
            homes: dict[str, Any] = {k: schema[k] for k in ("$defs", "definitions") if k in schema}
            schema = {"type": "object", "properties": {WRAP: inner}, "required": [WRAP], **homes}
        tools.append(_tool(name, "", schema, strict=False))
    return tools


def _tool(name: str, description: str, schema: dict[str, Any], strict: bool) -> dict[str, Any]:  # noqa: FBT001  # as `_Strict.of` gives it
    out: dict[str, Any] = {"name": name, "input_schema": schema}
    if not is_blank(description):
        out["description"] = clean_text(description)
    return out | {"strict": True} if strict else out


class _Strict:
    """Which tools of a request are strict: those that can be, from the first on, within the request's limits."""

    def __init__(self, request: ModelRequest, settings: Settings) -> None:
        answer = in_dialect(request.output_schema or _OPEN) if settings.formats else None
        self._optional = answer.optional if answer is not None else 0
        self._unions = answer.unions if answer is not None else 0
        self._left = MAX_TOOLS if settings.strict else 0

    def of(self, schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """The schema as it goes out, and whether it is strict."""
        if (plain := rooted(schema)) is not schema:
            return plain, False
        said = in_dialect(schema) if self._left else None
        if said is None or self._optional + said.optional > MAX_OPTIONAL or self._unions + said.unions > MAX_UNIONS:
            return schema, False
        self._left -= 1
        self._optional += said.optional
        self._unions += said.unions
        return said.schema, True


def _choice(request: ModelRequest, settings: Settings) -> dict[str, Any]:
    answer = answer_tool(request, settings)
    if answer is not None:
        # One of the tools, the answer among them; where none may be called, the answer alone.
        return {"type": "tool", "name": answer} if request.tool_choice == "none" else {"type": "any"}
    return {"type": {"auto": "auto", "required": "any", "none": "none"}[request.tool_choice]}


def _called(request: ModelRequest) -> list[str]:
    calls = (call for item in request.items if isinstance(item, TurnEntry) for call in item.calls)
    return list(dict.fromkeys(legal_name(call.tool_name) for call in calls))


# --------------------------------------------------------------------------------------------- messages


def _messages(request: ModelRequest, settings: Settings, origin: str) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []

    def add(role: str, blocks: list[dict[str, Any]]) -> None:
        if out and out[-1]["role"] == role:
            out[-1]["content"] += blocks
        else:
            out.append({"role": role, "content": blocks})

    ids = wire_ids(request.items, None, _ID)
    whole = _whole(request) if settings.media else frozenset()
    for position, item in enumerate(request.items):
        match item:
            case MessageEntry():
                add("user", _parts(item.blocks, position, whole) if item.blocks else [_text(filled(item.text))])
            case TurnEntry():
                if not out:
                    add("user", [_text(EMPTY)])
                add("assistant", list(_turn(item, ids, own_items(item.reasoning, WIRE, origin))))
            case ResultEntry():
                content = (
                    elided(item.call_id, item.size)
                    if position in request.elided
                    else _content(item, position, whole)
                )  # fmt: skip  # one value
                call_id = ids[item.run_id, item.step, item.index]
                failed = {"is_error": True} if item.result.is_error else {}
                add("user", [{"type": "tool_result", "tool_use_id": call_id, "content": content, **failed}])
    if not out or out[-1]["role"] != "user":
        add("user", [_text(EMPTY)])
    return out


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _turn(turn: TurnEntry, ids: dict[CallKey, str], layout: list[dict[str, JsonValue]]) -> Iterator[dict[str, Any]]:
    """A turn's blocks, in the order in which they came where the layout says so, else thinking, text, calls."""
    calls = iter([
        {
            "type": "tool_use",
            "id": ids[turn.run_id, turn.step, index],
            "name": legal_name(call.tool_name),
            "input": loads(replayed(call.raw)),
        }
        for index, call in enumerate(turn.calls)
    ])  # fmt: skip  # one item
    texts = _texts(turn, layout)
    otherwise = [] if texts is not None or is_blank(turn.text) else [_text(turn.text)]
    return woven(layout, THINKING, texts, calls, otherwise, _text(EMPTY))


def _texts(turn: TurnEntry, layout: list[dict[str, JsonValue]]) -> Iterator[dict[str, Any] | None] | None:
    """The turn's texts by the layout's places; None where text or calls are not those of the layout.

    They are not when a hook changed them, or retention erased them.
    """
    sizes = [place.get("chars") for place in layout if place["type"] == "text"]
    if sum(place["type"] == "call" for place in layout) != len(turn.calls):
        return None
    if not sizes:
        return iter(()) if is_blank(turn.text) else None
    texts = texts_of(turn.text, sizes)
    if texts is None:
        return None
    return iter([None if is_blank(text) else _text(text) for text in texts])


# ---------------------------------------------------------------------------------------------- results


def _whole(request: ModelRequest) -> frozenset[tuple[int, int]]:
    """Which media go out as they are, by position of the item and place in it: the newest, within the limits."""
    found: set[tuple[int, int]] = set()
    size = 0
    for position in range(len(request.items) - 1, -1, -1):
        item = request.items[position]
        for place, block in enumerate(_blocks(item) if position not in request.elided else ()):
            if not _is_medium(block):
                continue
            size += len(block.data)  # type: ignore[union-attr]  # a medium
            if size > MAX_MEDIA or len(found) == MAX_COUNT:
                return frozenset(found)
            found.add((position, place))
    return frozenset(found)


def _blocks(item: Item) -> Sequence[Block]:
    match item:
        case MessageEntry():
            return item.blocks
        case ResultEntry() if not item.result.is_error:  # all of an error's result must be text, says the API
            return item.result.content
        case _:
            return ()


def _is_medium(block: Block) -> bool:
    return shown_as(block) is not None and (
        isinstance(block, File) or (isinstance(block, Image) and len(block.data) <= MAX_IMAGE)
    )


def _medium(block: Block) -> dict[str, Any] | None:
    if not isinstance(block, (Image, File)):
        return None
    source = {"type": "base64", "media_type": shown_as(block), "data": encoded(block.data)}
    if isinstance(block, Image):
        return {"type": "image", "source": source}
    title = {} if is_blank(block.name or "") else {"title": block.name}
    return {"type": "document", "source": source, **title}


def _content(entry: ResultEntry, position: int, whole: frozenset[tuple[int, int]]) -> str | list[dict[str, Any]]:
    blocks = entry.result.content
    if not any((position, place) in whole for place in range(len(blocks))):
        return filled(entry.result.model_output)
    return _parts(blocks, position, whole, block_text)


def _parts(
    blocks: Sequence[Block], position: int, whole: frozenset[tuple[int, int]], read: Callable[[Block], str] = read_as
) -> list[dict[str, Any]]:
    return parts_of(blocks, lambda at, block: _medium(block) if (position, at) in whole else None, _text, read)
