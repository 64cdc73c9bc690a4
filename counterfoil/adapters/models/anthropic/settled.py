"""The last touch on a body: what depends on the parameters of agent and model, and what a refusal says to leave out.

* Thinking with a budget is refused with a forced tool, and in a row of calls that did not begin with thinking, such as
  one that another wire began. Such a request goes out without, as Anthropic's guide to thinking advises.
* A budget counts within ``max_tokens``, so ours comes on top of it where nobody set one.
* ``cache_control`` marks what is sent again with each request: the tools, the system text, the newest message, and the
  user's message before that, where the last request ended. The API allows four marks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from counterfoil.adapters.models.anthropic.request import MAX_TOKENS, THINKING
from counterfoil.adapters.models.shared.replay import EMPTY

_MEDIA = ("image", "document")


def settled(body: dict[str, Any], ours: Mapping[str, Any], answer: str | None) -> dict[str, Any]:
    """The body that goes out.

    Args:
        body: with all parameters in it; its messages may be changed.
        ours: as it was without them.
        answer: the name of the tool that a model calls to answer.
    """
    if "output_config" in ours and isinstance(body.get("output_config"), dict):
        body["output_config"] = ours["output_config"] | body["output_config"]
    _choose(body, ours, answer)
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        if isinstance(budget, int) and body.get("max_tokens") == MAX_TOKENS:
            body["max_tokens"] = MAX_TOKENS + budget
        if not _begins_with_thinking(body["messages"]):
            del body["thinking"]
    mark = body.pop("cache_control", None)
    if isinstance(mark, dict):
        _mark(body, mark)
    return body


def _choose(body: dict[str, Any], ours: Mapping[str, Any], answer: str | None) -> None:
    """Our choice of tools, with what a parameter says of parallel calls; and no thinking beside a forced one."""
    if "tools" not in body:
        body.pop("tool_choice", None)
        return
    own, choice = body.get("tool_choice"), dict(ours["tool_choice"])
    if isinstance(own, dict) and "disable_parallel_tool_use" in own and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = own["disable_parallel_tool_use"]
    if body.get("thinking", {}).get("type", "disabled") != "disabled" and choice["type"] in ("any", "tool"):
        if answer is None:
            del body["thinking"]
        else:  # thinking was asked for, and an answer comes without force too
            choice["type"] = "auto"
            choice.pop("name", None)
    body["tool_choice"] = choice


def _begins_with_thinking(messages: list[dict[str, Any]]) -> bool:
    """Whether the calls that the newest message answers began with thinking; True where it answers none."""
    first: dict[str, Any] | None = None
    for message in reversed(messages):
        if message["role"] == "assistant":
            first = message
        elif any(block["type"] != "tool_result" for block in message["content"]):
            break
    return first is None or first["content"][0]["type"] in THINKING


def _mark(body: dict[str, Any], mark: Mapping[str, Any]) -> None:
    if isinstance(body.get("system"), str):
        body["system"] = [{"type": "text", "text": body["system"], "cache_control": mark}]
    if body.get("tools"):
        body["tools"][-1] = body["tools"][-1] | {"cache_control": mark}
    for message in [m for m in body["messages"] if m["role"] == "user"][-2:]:
        message["content"][-1] = message["content"][-1] | {"cache_control": mark}


# ---------------------------------------------------------------------------------------------- refusals


def without_thinking(body: dict[str, Any]) -> dict[str, Any]:
    """The body without thinking of the past, and without a budget for more, which would need it."""
    messages = []
    for message in body["messages"]:
        kept = [block for block in message["content"] if block["type"] not in THINKING]
        messages.append(message | {"content": kept or [{"type": "text", "text": EMPTY}]})
    return without_budget(body | {"messages": messages})


def without_budget(body: dict[str, Any]) -> dict[str, Any]:
    """The body without thinking that has a budget."""
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return body
    return {name: value for name, value in body.items() if name != "thinking"}


def without_media(body: dict[str, Any]) -> dict[str, Any]:
    """The body with media named in text."""
    messages = []
    for message in body["messages"]:
        blocks = []
        for block in message["content"]:
            parts = block.get("content")
            named = block | {"content": [_named(p) for p in parts]} if isinstance(parts, list) else _named(block)
            blocks.append(named)
        messages.append(message | {"content": blocks})
    return body | {"messages": messages}


def without_strict(body: dict[str, Any]) -> dict[str, Any]:
    """The body with tools that are not strict."""
    tools = [{name: value for name, value in tool.items() if name != "strict"} for tool in body.get("tools", ())]
    return body | {"tools": tools} if tools else body


def _named(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] not in _MEDIA:
        return part
    source = part["source"]
    try:
        size = len(base64.b64decode(source["data"]))
    except binascii.Error:
        size = 0
    name = f"file {part['title']}" if part.get("title") else "file" if part["type"] == "document" else "image"
    return {"type": "text", "text": f"[{name}, {source['media_type']}, {size} bytes]"}
