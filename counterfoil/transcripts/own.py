"""Counterfoil's own messages, as `ModelRequest.messages` and recordings have them, in and out."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from counterfoil.core.jsontext import JsonValue
from counterfoil.model import ModelCall, arguments_of
from counterfoil.transcripts.files import turn_of
from counterfoil.transcripts.values import (
    Answered,
    Reading,
    Reply,
    Said,
    Transcript,
    failed,
    id_of,
    objects,
    plain,
    text,
    wrong,
)

_KNOWN: Final = frozenset({
    "role", "content", "tool_calls", "tool_call_id", "tool_name", "error", "stop", "usage",
})  # fmt: skip  # rows of names


def read(messages: list[JsonValue]) -> Reading:
    """The conversation of these messages.

    Raises:
        DefinitionError: one of them is no such message; the text names it.
    """
    read = Reading()
    for place, message in objects(messages, "messages"):
        read.rest(place, message, _KNOWN)
        role, content = message.get("role"), message.get("content")
        said = "" if content is None else text(content, f"{place}.content")
        match role:
            case "system" | "user":
                read.say(said, "user" if role == "user" else "system", place)
            case "assistant":
                turn = turn_of(message, place)
                calls = tuple(_clean(call) for call in turn.calls)
                read.items.append(Reply(replace(turn, text=said, calls=calls, model=""), place))
            case "tool":
                error = id_of(message.get("error"), f"{place}.error")
                call_id = id_of(message.get("tool_call_id"), f"{place}.tool_call_id")
                name = id_of(message.get("tool_name"), f"{place}.tool_name")
                # Some recordings have what the model read of a failure in `error` alone.
                blocks = plain(said or error or "")
                read.items.append(Answered(call_id, blocks, None if error is None else failed(error), name, place))
            case _:
                raise wrong(f"{place}.role", "system, user, assistant or tool", role)
    return read


def _clean(call: ModelCall) -> ModelCall:
    return ModelCall(call.id and text(call.id, ""), text(call.name, ""), text(call.arguments or "", ""))


def write(transcript: Transcript) -> list[JsonValue]:
    """The messages, the system's first. Ids are as they are, so some may repeat from turn to turn, or be missing."""
    out: list[JsonValue] = []
    if transcript.instructions:
        out.append({"role": "system", "content": transcript.instructions})
    for item in transcript.items:
        match item:
            case Said():
                out.append({"role": item.role, "content": item.text})
            case Reply(turn):
                message: dict[str, JsonValue] = {"role": "assistant", "content": turn.text or None}
                if turn.calls:
                    message["tool_calls"] = [_call(call) for call in turn.calls]
                if turn.stop not in ("end", "calls"):
                    message["stop"] = turn.stop
                out.append(message)
            case Answered():
                error = None if item.failure is None else item.text
                out.append({
                    "role": "tool", "content": item.text, "tool_call_id": item.call_id, "tool_name": item.tool_name,
                    "error": error,
                })  # fmt: skip  # rows by what belongs together
    return out


def _call(call: ModelCall) -> JsonValue:
    raw = call.arguments or ""
    return {"id": call.id, "name": call.name, "arguments": arguments_of(raw), "arguments_raw": raw}
