"""A Messages server for tests: real HTTP on loopback, no model, as strict as Anthropic's own.

    async with FakeAnthropic([Play(calls=[("c1", "get_order", '{"order_id": "W100"}')]), Play("Done.")]) as server:
        model = AnthropicMessages("any", base_url=server.base_url)

The rules (`fault_of`) are those of Anthropic's server, with its words: a user begins and ends; every call has one
result in the very next message, before anything else; nothing is blank; thinking is this server's own, unchanged, and
followed by what it led to; images are what they are called; strict schemas keep to the dialect; and the request has the
SDK's own type, where the SDK is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from counterfoil.testing.anthropic_rules import fault_of, signature
from counterfoil.testing.fake_server import (
    Chunks,
    FakeServer,
    Fault,
    Play,
    Refusal,
    Told,
    Whole,
    cut,
    rate_limit,
)

__all__ = ["Chunks", "FakeAnthropic", "Fault", "Play", "Refusal", "Whole", "fault_of", "rate_limit", "signature"]

_STOP: Final = {
    "end": "end_turn",
    "calls": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
    "other": "unheard_of",
}
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class FakeAnthropic(FakeServer):
    """The server; see `FakeServer` for what it is given."""

    path = "/v1/messages"
    base = ""

    def stream_of(self, play: Play) -> Iterator[Mapping[str, Any]]:
        """The events of a reply."""
        begun = self.whole_of(play) | {"content": [], "stop_reason": None}
        yield {"type": "message_start", "message": begun | {"usage": begun["usage"] | {"output_tokens": 1}}}
        yield {"type": "ping"}
        for index, block in enumerate(_output(play)):
            bare = {"text": "", "thinking": "", "signature": "", "input": {}}
            start = block | {name: empty for name, empty in bare.items() if name in block}
            yield {"type": "content_block_start", "index": index, "content_block": start}
            for delta in _deltas(block, play, index):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        if play.then in ("done", "end"):
            stop = {"stop_reason": _stop(play), "stop_sequence": None}
            details = {"thinking_tokens": play.usage.reasoning_tokens}
            spent = {"output_tokens": play.usage.output_tokens, "output_tokens_details": details}
            yield {"type": "message_delta", "delta": stop, "usage": spent}
            yield {"type": "message_stop"}

    def whole_of(self, play: Play) -> dict[str, Any]:
        spent = play.usage
        usage = {
            "input_tokens": spent.input_tokens - spent.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": spent.cached_tokens,
            "output_tokens": spent.output_tokens,
            "output_tokens_details": {"thinking_tokens": spent.reasoning_tokens},
            "service_tier": "standard",
        }
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "fake-1",
            "content": _output(play),
            "stop_reason": _stop(play),
            "stop_sequence": None,
            "usage": usage,
        }

    def fault_of(self, body: Any) -> Fault | None:
        return fault_of(body)

    def key_of(self, headers: Mapping[str, str]) -> str:
        return headers.get("x-api-key") or super().key_of(headers)

    def error_body(self, refusal: Refusal, param: str | None) -> Mapping[str, Any]:  # noqa: ARG002  # messages name the place
        kind = refusal.kind if refusal.kind != "server_error" else _KINDS.get(refusal.status, "api_error")
        if kind == "invalid_request_error":
            kind = _KINDS.get(refusal.status, kind)
        details = {} if refusal.code is None else {"details": {"error_code": refusal.code}}
        return {"type": "error", "error": {"type": kind, "message": refusal.message, **details}, "request_id": "req_1"}

    def told(self, body: dict[str, Any]) -> list[Told]:
        system = body.get("system")
        out = [Told("system", system if isinstance(system, str) else system[0]["text"])] if system else []
        for message in body["messages"]:
            content: Any = message["content"]
            blocks: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for block in blocks:
                match block["type"]:
                    case "text":
                        out.append(Told(message["role"], block["text"]))
                    case "tool_use":
                        out.append(Told("call", json.dumps(block["input"]), block["id"], block["name"]))
                    case "tool_result":
                        out.append(_told_result(block))
                    case "image" | "document":
                        out.append(Told(message["role"], "", media=(block["source"]["media_type"],)))
                    case _:
                        out.append(Told("opaque", json.dumps(block)))
        return out

    def tools(self, body: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {tool["name"]: tool["input_schema"] for tool in body.get("tools", ())}

    def form(self, body: dict[str, Any]) -> tuple[dict[str, Any], bool] | None:
        form = body.get("output_config", {}).get("format")
        return None if form is None else (form["schema"], False)

    def choice(self, body: dict[str, Any]) -> str:
        kind = (body.get("tool_choice") or {}).get("type", "auto")
        return "required" if kind in ("any", "tool") else str(kind)


def _told_result(block: dict[str, Any]) -> Told:
    content, failed = block["content"], block.get("is_error", False)
    if isinstance(content, str):
        return Told("result", content, block["tool_use_id"], failed=failed)
    texts = [part["text"] for part in content if part["type"] == "text"]
    media = tuple(part["source"]["media_type"] for part in content if part["type"] != "text")
    return Told("result", "\n".join(texts), block["tool_use_id"], media=media, failed=failed)


def _stop(play: Play) -> str:
    return _STOP[play.stop or ("calls" if play.calls else "end")]


def _output(play: Play) -> list[dict[str, Any]]:
    """The blocks of an answer, whole."""
    out: list[dict[str, Any]] = []
    if play.reasoning:
        out.append({"type": "thinking", "thinking": play.reasoning, "signature": signature(play.reasoning)})
        out.append({"type": "redacted_thinking", "data": f"fake-sealed:{play.reasoning}"})
    if play.text:
        out.append({"type": "text", "text": play.text})
    for identity, name, arguments in play.calls:
        try:
            given = json.loads(arguments)
        except ValueError:
            given = {}
        out.append({"type": "tool_use", "id": identity or "", "name": name, "input": given})
    return out


def _deltas(block: dict[str, Any], play: Play, index: int) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            for piece in cut(play.text, play.pieces):
                yield {"type": "text_delta", "text": piece}
        case "thinking":
            for piece in cut(play.reasoning, play.pieces):
                yield {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            # As it was written, which may be no JSON.
            _, _, arguments = play.calls[index - len(_output(play)) + len(play.calls)]
            for piece in cut(arguments, play.pieces):
                yield {"type": "input_json_delta", "partial_json": piece}
        case _:
            pass
