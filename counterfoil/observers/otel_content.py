"""What was said to a model and by it, in the form that the conventions for generative AI give messages."""

from __future__ import annotations

from counterfoil.core.entries import MessageEntry, TurnEntry
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.model import ModelRequest, ModelTurn, arguments_of


def as_text(value: JsonValue) -> str:
    """An attribute: they hold no objects."""
    return dumps(value).decode()


def input_messages(request: ModelRequest) -> JsonValue:
    """What the model was asked, in the form of the conventions."""
    found: list[JsonValue] = []
    for item in request.items:
        match item:
            case MessageEntry():
                role = "user" if item.author_type == "Human" else "system"
                found.append({"role": role, "parts": [{"type": "text", "content": item.text}]})
            case TurnEntry():
                calls = [_call_part(c.call_id, c.tool_name, c.raw) for c in item.calls]
                text: list[JsonValue] = [{"type": "text", "content": item.text}] if item.text else []
                found.append({"role": "assistant", "parts": [*text, *calls]})
            case _:
                told: JsonValue = {
                    "type": "tool_call_response",
                    "id": item.call_id,
                    "response": item.result.model_output,
                }
                found.append({"role": "tool", "parts": [told]})
    return found


def _call_part(call_id: str | None, name: str, raw: str | None) -> JsonValue:
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments_of(raw or "")}


def output_messages(turn: ModelTurn) -> JsonValue:
    """What it answered."""
    text: list[JsonValue] = [{"type": "text", "content": turn.text}] if turn.text else []
    parts = [*text, *(_call_part(c.id, c.name, c.arguments) for c in turn.calls)]
    return [{"role": "assistant", "parts": parts, "finish_reason": str(turn.stop)}]
