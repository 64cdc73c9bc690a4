"""Messages of OpenAI's Chat Completions and items of its Responses, in and out (the request types of its SDK)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Final

from counterfoil.core.content import Audio, Block, File, Image, Link, Text, block_text, block_to_json
from counterfoil.core.jsontext import JsonValue, clean_text, dumps
from counterfoil.core.media import shown_as
from counterfoil.model import ModelCall, ModelTurn, StopReason
from counterfoil.transcripts.layout import BETWEEN, laid_out, layout_of
from counterfoil.transcripts.pairing import with_ids
from counterfoil.transcripts.values import (
    Answered,
    Reading,
    Reply,
    Said,
    Transcript,
    id_of,
    obj,
    objects,
    plain,
    text,
    wrong,
)

WIRE: Final = "openai-responses"
MAX_CHAT_ID: Final = 40
MAX_ID: Final = 64
_TEXTS: Final = ("text", "input_text", "output_text", "refusal")
_CHAT: Final = frozenset({"role", "content"})
_SAID: Final = _CHAT | {"tool_calls", "function_call", "refusal", "reasoning_content", "reasoning"}
"""Of an assistant; servers that show a model's reasoning do it under one of the last two."""
_TOOL: Final = _CHAT | {"name", "tool_call_id"}
_ITEM: Final = frozenset({
    "type", "role", "content", "id", "status", "call_id", "name", "arguments", "input", "output", "phase",
})  # fmt: skip  # rows of names
_OWN: Final = ("function_call", "custom_tool_call", "reasoning")
"""Items of the model's turn, beside its messages."""
_ITEMS: Final = ("message", "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output")
"""Types whose fields we know; a reasoning item is kept as it is."""
STEPS: Final = re.compile(r"[a-z_]+_call(_output)?|mcp_[a-z_]+|item_reference|compaction")
"""Types of items with which a server tells of its own tools and of its own state."""
_SOUNDS: Final = {"audio/wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}
_DATA: Final = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


# ------------------------------------------------------------------------------------- Chat Completions


def read_chat(messages: list[JsonValue]) -> Reading:
    """The conversation of these messages.

    Raises:
        DefinitionError: one of them is no such message; the text names it.
    """
    read = Reading()
    for place, message in objects(messages, "messages"):
        role = message.get("role")
        read.rest(place, message, _SAID if role == "assistant" else _TOOL if role in ("tool", "function") else _CHAT)
        match role:
            case "system" | "developer" | "user":
                blocks = list(_pieces(read, message.get("content"), f"{place}.content"))
                read.tell([(place, block) for block in blocks], "user" if role == "user" else "system")
            case "assistant":
                thought = message.get("reasoning_content") or message.get("reasoning") or ""
                read.items.append(
                    Reply(_turn(read, message, place), place, text(thought, f"{place}.reasoning_content"))
                )
            case "tool" | "function":
                content = tuple(read.blocks(message.get("content"), f"{place}.content", _TEXTS, medium, "part"))
                name = id_of(message.get("name"), f"{place}.name")
                call_id = id_of(message.get("tool_call_id"), f"{place}.tool_call_id")
                read.items.append(Answered(call_id, content or plain(""), None, name, place))
            case _:
                raise wrong(f"{place}.role", "system, developer, user, assistant, tool or function", role)
    return read


def _turn(read: Reading, message: dict[str, JsonValue], place: str) -> ModelTurn:
    said = [*_texts(read, message.get("content"), f"{place}.content")]
    refusal = message.get("refusal")
    said += [text(refusal, f"{place}.refusal")] if refusal else []
    calls = []
    for at, call in objects(message.get("tool_calls"), f"{place}.tool_calls"):
        kind = call.get("type", "function")
        if kind not in ("function", "custom"):
            raise wrong(f"{at}.type", "function or custom", kind)
        calls.append(_call(obj(call.get(str(kind)), f"{at}.{kind}"), call.get("id"), at))
    if message.get("function_call") is not None:
        calls.append(_call(obj(message["function_call"], f"{place}.function_call"), None, f"{place}.function_call"))
    stop: StopReason = "refusal" if refusal else "calls" if calls else "end"
    return ModelTurn(BETWEEN.join(said), tuple(calls), stop)


def _call(function: dict[str, JsonValue], call_id: JsonValue, place: str) -> ModelCall:
    raw = function.get("arguments", function.get("input"))  # a custom tool takes text of any form
    raw = dumps(raw).decode() if isinstance(raw, dict) else text("" if raw is None else raw, f"{place}.arguments")
    return ModelCall(id_of(call_id, f"{place}.id"), text(function.get("name"), f"{place}.name"), raw)


def _texts(read: Reading, content: JsonValue, place: str) -> Iterator[str]:
    """The texts of what a model said; a medium is named, and noted."""
    for block in _pieces(read, content, place):
        if shown_as(block):
            read.leave(place, "a medium of the model", block_to_json(block))
        yield block_text(block)


def _pieces(read: Reading, content: JsonValue, place: str) -> Iterator[Block]:
    """The pieces of a message."""
    if isinstance(content, str):
        yield Text(text(content, place))
        return
    for at, part in objects(content, place):
        if part.get("type") in _TEXTS:
            yield Text(text(part.get("refusal" if part["type"] == "refusal" else "text"), at))
        else:
            yield read.shown(medium(part, at), part, at)


def medium(part: dict[str, JsonValue], place: str) -> Block | None:
    """The image, sound or file of a part of either wire; None where it is none that we know."""
    sound = part.get("input_audio")
    if isinstance(sound, dict) and isinstance(sound.get("data"), str):
        return Audio(_decoded(str(sound["data"]), place), f"audio/{sound.get('format')}")
    given = part.get("image_url")
    inner = part.get("file")
    file = inner if isinstance(inner, dict) else part
    url = given.get("url") if isinstance(given, dict) else given if given is not None else file.get("file_data")
    if not isinstance(url, str):
        return None
    data = _DATA.fullmatch(url)
    if data is None:
        return Link(url)
    raw, name = _decoded(data[2], place), file.get("filename")
    return File(raw, data[1], name if isinstance(name, str) else None) if given is None else Image(raw, data[1])


def _decoded(data: str, place: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise wrong(place, f"data in base64 ({error})", data) from error


def write_chat(transcript: Transcript) -> list[JsonValue]:
    """The messages, the system's first.

    A result is text here: media are named. What a model was told of a failure is the text of its result.
    """
    out: list[JsonValue] = []
    if transcript.instructions:
        out.append({"role": "system", "content": transcript.instructions})
    for item in with_ids(transcript.items, MAX_CHAT_ID):
        match item:
            case Said():
                chat: JsonValue = [_part(block) for block in item.blocks] or item.text
                out.append({"role": item.role, "content": chat})
            case Reply(turn):
                message: dict[str, JsonValue] = {"role": "assistant", "content": turn.text}
                if turn.calls:
                    message["content"] = turn.text if turn.text.strip() else None
                    message["tool_calls"] = [
                        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments or ""}}
                        for c in turn.calls
                    ]
                out.append(message)
            case Answered():
                out.append({"role": "tool", "tool_call_id": item.call_id, "content": item.text})
    return out


def _part(block: Block) -> JsonValue:
    """A piece of a message; a sound of another kind than WAV and MP3, for which there is no place, is named."""
    data = base64.b64encode(block.data).decode() if isinstance(block, (Image, Audio, File)) else ""
    match block:
        case Image():
            return {"type": "image_url", "image_url": {"url": f"data:{block.mime};base64,{data}"}}
        case Audio() if block.mime in _SOUNDS:
            return {"type": "input_audio", "input_audio": {"data": data, "format": _SOUNDS[block.mime]}}
        case File():
            file: JsonValue = {"filename": block.name or "file", "file_data": f"data:{block.mime};base64,{data}"}
            return {"type": "file", "file": file}
        case _:
            return {"type": "text", "text": block_text(block)}


# -------------------------------------------------------------------------------------------- Responses


def read_responses(items: list[JsonValue]) -> Reading:
    """The conversation of these items; what the model made between two others is one turn.

    Raises:
        DefinitionError: as `read_chat`.
    """
    read = Reading()
    own: list[tuple[str, JsonValue]] = []
    """Pieces of the turn that is being read: text, call or reasoning."""
    began = ""

    def close() -> None:
        if own:
            thought = "\n\n".join(filter(None, (_summary(item) for kind, item in own if kind == "opaque")))
            read.items.append(Reply(layout_of(own, WIRE, "message"), began, thought))
            own.clear()

    for place, item in objects(items, "input"):
        kind, role = item.get("type", "message"), item.get("role")
        if kind in _ITEMS:
            read.rest(place, item, _ITEM)
        if (kind == "message" and role == "assistant") or kind in _OWN:
            began = began if own else place
        elif kind in _ITEMS or str(kind).endswith("_output"):  # else a step of the server within the turn
            close()
        match kind:
            case "message" if role == "assistant":
                said = BETWEEN.join(_texts(read, item.get("content"), f"{place}.content"))
                own.append(("text", said))
            case "message" if role in ("user", "system", "developer"):
                blocks = list(_pieces(read, item.get("content"), f"{place}.content"))
                read.tell([(place, block) for block in blocks], "user" if role == "user" else "system")
            case "message":
                raise wrong(f"{place}.role", "user, system, developer or assistant", role)
            case "function_call" | "custom_tool_call":
                call = _call(item, item.get("call_id"), place)
                own.append(("call", {"id": call.id, "name": call.name, "arguments": call.arguments}))
            case "reasoning":
                own.append(("opaque", item))
            case "function_call_output" | "custom_tool_call_output":
                content = tuple(read.blocks(item.get("output"), f"{place}.output", _TEXTS, medium, "part"))
                call_id = id_of(item.get("call_id"), f"{place}.call_id")
                read.items.append(Answered(call_id, content or plain(""), None, None, place))
            case str() if STEPS.fullmatch(kind):
                read.leave(place, f"an item of type {kind}", item)
            case _:
                raise wrong(f"{place}.type", "message, function_call, function_call_output or reasoning", kind)
    close()
    return read


def _summary(item: JsonValue) -> str:
    parts = item.get("summary") if isinstance(item, dict) else None
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n\n".join(clean_text(said) for said in texts if isinstance(said, str))


def write_responses(transcript: Transcript) -> list[JsonValue]:
    """The items of a request's ``input``, without the instructions."""
    out: list[JsonValue] = []
    for item in with_ids(transcript.items, MAX_ID):
        match item:
            case Said():
                said: JsonValue = [_output(block) for block in item.blocks] or item.text
                out.append({"role": item.role, "content": said})
            case Reply(turn):
                for kind, value in laid_out(turn, WIRE, "message"):
                    if kind == "text":
                        out.append({"role": "assistant", "content": str(value)})
                    elif isinstance(value, ModelCall):
                        arguments = value.arguments or ""
                        named: dict[str, JsonValue] = {"type": "function_call", "call_id": value.id, "name": value.name}
                        out.append({**named, "arguments": arguments})
                    else:
                        out.append(value)  # type: ignore[arg-type]  # an opaque item
            case Answered():
                output: JsonValue = item.text
                if any(isinstance(block, (Image, File)) for block in item.content):
                    output = [_output(block) for block in item.content]
                out.append({"type": "function_call_output", "call_id": item.call_id, "output": output})
    return out


def _output(block: Block) -> JsonValue:
    if not isinstance(block, (Image, File)):
        return {"type": "input_text", "text": block_text(block)}
    url = f"data:{block.mime};base64,{base64.b64encode(block.data).decode()}"
    if isinstance(block, Image):
        return {"type": "input_image", "image_url": url}
    return {"type": "input_file", "filename": block.name or "file", "file_data": url}
