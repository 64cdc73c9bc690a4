"""Messages of Anthropic's Messages, in and out (the request types of its SDK)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Final, Literal

from counterfoil.core.content import Block, File, Image, Link, Text, block_text
from counterfoil.core.jsontext import JsonValue, clean_text, dumps
from counterfoil.model import ModelCall, arguments_of
from counterfoil.transcripts.layout import laid_out, layout_of
from counterfoil.transcripts.pairing import with_ids
from counterfoil.transcripts.values import (
    Answered,
    Reading,
    Reply,
    Said,
    Transcript,
    failed,
    id_of,
    obj,
    objects,
    plain,
    text,
    wrong,
)

WIRE: Final = "anthropic-messages"
IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_THINKING: Final = ("thinking", "redacted_thinking")
_LEGAL: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_KNOWN: Final = frozenset({"role", "content"})


def read(messages: list[JsonValue]) -> Reading:
    """The conversation of these messages.

    Raises:
        DefinitionError: one of them is no such message; the text names it.
    """
    read = Reading()
    for place, message in objects(messages, "messages"):
        read.rest(place, message, _KNOWN)
        role, content = message.get("role"), message.get("content")
        given: JsonValue = [{"type": "text", "text": content}] if isinstance(content, str) else content
        blocks = list(objects(given, f"{place}.content"))
        if role in ("user", "system"):
            side: Literal["user", "system"] = "user" if role == "user" else "system"
            pieces: list[tuple[str, Block]] = []
            for at, block in blocks:
                said = _said(read, block, at)
                if isinstance(said, Answered):
                    read.tell(pieces, side)
                    pieces = []
                    read.items.append(said)
                else:
                    pieces.append((at, said))
            read.tell(pieces, side)
        elif role == "assistant":
            said_ = [piece for at, block in blocks for piece in _piece(read, block, at)]
            thoughts = [block.get("thinking") for _, block in blocks]
            thought = clean_text("\n\n".join(said for said in thoughts if isinstance(said, str)))
            read.items.append(Reply(layout_of(said_, WIRE, "text"), place, thought))
        else:
            raise wrong(f"{place}.role", "user, assistant or system", role)
        if not blocks and role != "assistant":
            read.say("", "user" if role == "user" else "system", place)
    return read


def system_text(given: JsonValue) -> str:
    """The text of a request's ``system``: a text, or a list of text blocks."""
    if isinstance(given, str):
        return text(given, "system")
    return "\n\n".join(text(block.get("text"), f"{at}.text") for at, block in objects(given, "system"))


def _said(read: Reading, block: dict[str, JsonValue], place: str) -> Answered | Block:
    match block.get("type"):
        case "text":
            return Text(text(block.get("text"), f"{place}.text"))
        case "tool_result":
            content = tuple(read.blocks(block.get("content"), f"{place}.content", ("text",), _medium, "block"))
            call_id = id_of(block.get("tool_use_id"), f"{place}.tool_use_id")
            failure = failed("") if block.get("is_error") is True else None
            return Answered(call_id, content or plain(""), failure, None, place)
        case _:
            return read.shown(_medium(block, place), block, place)


def _piece(read: Reading, block: dict[str, JsonValue], place: str) -> Iterator[tuple[str, JsonValue]]:
    match block.get("type"):
        case "text":
            yield "text", text(block.get("text"), f"{place}.text")
        case "tool_use":
            call_id, name = id_of(block.get("id"), f"{place}.id"), text(block.get("name"), f"{place}.name")
            arguments = obj(block.get("input", {}), f"{place}.input")
            yield "call", {"id": call_id, "name": name, "arguments": dumps(arguments).decode()}
        case "thinking" | "redacted_thinking":
            yield "opaque", block
        case kind:
            read.leave(place, f"a block of type {kind}", block)


def _medium(block: dict[str, JsonValue], place: str) -> Block | None:
    source = block.get("source")
    if block.get("type") not in ("image", "document") or not isinstance(source, dict):
        return None
    match source:
        case {"type": "base64", "media_type": str(mime), "data": str(data)}:
            try:
                raw = base64.b64decode(data, validate=True)
            except binascii.Error as error:
                raise wrong(f"{place}.source.data", f"base64 ({error})", data) from error
            title = block.get("title")
            return (
                Image(raw, mime)
                if block["type"] == "image"
                else File(raw, mime, title if isinstance(title, str) else None)
            )
        case {"type": "url", "url": str(url)}:
            return Link(url)
        case {"type": "text", "data": str(data)}:
            return Text(data)
        case _:
            return None


def write(transcript: Transcript) -> list[JsonValue]:
    """The messages, without the system text; what one side says in a row is one message.

    A system's message within the conversation is the user's text. Arguments that are no JSON object are ``{}``.
    """
    out: list[tuple[str, list[JsonValue]]] = []

    def add(role: str, blocks: list[JsonValue]) -> None:
        if out and out[-1][0] == role:
            out[-1][1].extend(blocks)
        else:
            out.append((role, blocks))

    for item in with_ids(transcript.items, None, _LEGAL):
        match item:
            case Said():
                add("user", [_block(block) for block in item.blocks or (Text(item.text),)])
            case Reply(turn):
                add("assistant", [_out(value) for _, value in laid_out(turn, WIRE, "text")])
            case Answered():
                block: dict[str, JsonValue] = {"type": "tool_result", "tool_use_id": item.call_id}
                block["content"] = _content(item)
                if item.failure is not None:
                    block["is_error"] = True
                add("user", [block])
    return [{"role": role, "content": blocks} for role, blocks in out]


def _out(value: object) -> JsonValue:
    match value:
        case str():
            return {"type": "text", "text": value}
        case ModelCall():
            return {
                "type": "tool_use",
                "id": value.id,
                "name": value.name,
                "input": arguments_of(value.arguments or ""),
            }
        case _:
            return value  # type: ignore[return-value]  # an opaque block


def _content(item: Answered) -> JsonValue:
    if item.failure is not None or not any(map(_shown, item.content)):
        return item.text
    return [_block(block) for block in item.content if _shown(block) or block_text(block)]


def _shown(block: Block) -> bool:
    return (isinstance(block, Image) and block.mime in IMAGES) or (
        isinstance(block, File) and block.mime == "application/pdf"
    )


def _block(block: Block) -> JsonValue:
    if not isinstance(block, (Image, File)) or not _shown(block):
        return {"type": "text", "text": block_text(block)}
    data = base64.b64encode(block.data).decode()
    source: JsonValue = {"type": "base64", "media_type": block.mime, "data": data}
    if isinstance(block, Image):
        return {"type": "image", "source": source}
    title: dict[str, JsonValue] = {"title": block.name} if block.name else {}
    return {"type": "document", "source": source, **title}
