"""A request as the Chat Completions wire takes it.

What the wire forces on us, decided here once:

* A call's id goes back as the provider gave it. Where it is missing, over 40 characters (OpenAI refuses
  those) or was used before in the request, ours stands in, in the call and in its result alike.
* A call whose name is outside ``[A-Za-z0-9_-]{1,64}`` was made up by a model. It is replayed under a
  legal name.
* Arguments that are no JSON object are replayed as ``{}``: llama.cpp parses the arguments of past calls and
  answers 500 to others. The result that follows tells the model what was wrong.
* A tool's message holds text alone, so media are replayed as the placeholder of their block.
* A message without text is replayed as ``(empty)``; several servers refuse blank messages.
* Reasoning that a server showed is never sent back: the wire has no place for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.context import wire_ids
from counterfoil.core.entries import MessageEntry, TurnEntry
from counterfoil.core.jsontext import JsonValue, clean_text, dumps, loads
from counterfoil.core.words import elided
from counterfoil.model import ModelRequest

EMPTY: Final = "(empty)"
"""Stands in for a message without text."""

MAX_ID: Final = 40
"""Characters of a call's id that OpenAI takes."""

FIXED: Final = frozenset({"messages", "model", "n", "stream", "tools"})
"""Fields of the body that no parameter may set: the answer could not be read, or a law would be broken."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LOOSE: Final = re.compile(r"NaN|Infinity|\\u[dD][89a-fA-F]")
"""In JSON text that we can read: what stricter readers may refuse. Half a surrogate pair may be an escape."""


def body_of(
    model: str,
    request: ModelRequest,
    parameters: Mapping[str, JsonValue],
    extra_body: Mapping[str, JsonValue],
) -> dict[str, Any]:
    """The request's body.

    Args:
        model: the model's name on the server.
        request: what to ask.
        parameters: fields that the request's own parameters may replace.
        extra_body: fields that replace all others. A field that is None in the end is left out.

    Raises:
        ValueError: the request's own parameters set a field of `FIXED`.
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
                    "parameters": offer.input_schema,
                },
            }
            for offer in request.tools
        ]
        body["tool_choice"] = request.tool_choice
    if request.output_schema is not None:
        schema = {"name": "answer", "schema": request.output_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    own = dict(request.parameters)
    extra = own.pop("extra_body", None)  # the form of the SDK's own calls
    for named in (parameters, own, extra if isinstance(extra, dict) else {}, extra_body):
        check_parameters(named)
        body |= named
    if not request.tools:
        body.pop("tool_choice", None)
        body.pop("parallel_tool_calls", None)
    return {name: value for name, value in body.items() if value is not None}


def check_parameters(parameters: Mapping[str, object]) -> None:
    """Refuse parameters that are not for others to set.

    Raises:
        ValueError: one of them is in `FIXED`; the message names it.
    """
    if taken := sorted(FIXED & parameters.keys()):
        raise ValueError(f"openai-chat sets {', '.join(taken)} by itself; take it out of the parameters")


def _messages(request: ModelRequest) -> Iterator[dict[str, Any]]:
    if not _is_blank(request.instructions):
        yield {"role": "system", "content": clean_text(request.instructions)}
    ids = wire_ids(request.items, MAX_ID)
    for position, item in enumerate(request.items):
        match item:
            case MessageEntry():
                role = "user" if item.author_type == "Human" else "system"
                yield {"role": role, "content": _filled(item.text)}
            case TurnEntry() if item.calls:
                yield {
                    "role": "assistant",
                    "content": None if _is_blank(item.text) else item.text,
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
                yield {"role": "assistant", "content": _filled(item.text)}
            case ResultEntry():
                left_out = position in request.elided
                text = elided(item.call_id, item.size) if left_out else item.result.model_output
                wire_id = ids[item.run_id, item.step, item.index]
                yield {"role": "tool", "tool_call_id": wire_id, "content": text}


def _filled(text: str) -> str:
    return EMPTY if _is_blank(text) else text


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


def legal_name(name: str) -> str:
    """``name`` as the wire takes it: other characters than letters, digits, _ and - become _, 64 at most."""
    return name if _NAME.fullmatch(name) else re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"


def replayed(raw: str) -> str:
    """A call's arguments as the wire takes them: the model's own text if it is a JSON object, else ``{}``."""
    try:
        value = loads(raw)
    except (ValueError, RecursionError):
        return "{}"
    if not isinstance(value, dict):
        return "{}"
    return dumps(value).decode() if _LOOSE.search(raw) else raw
