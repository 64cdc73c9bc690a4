"""A Chat Completions server for tests: real HTTP on loopback, no model, as strict as the strictest server.

    async with FakeOpenAI([tool_calls(("c1", "get_order", '{"order_id": "W100"}')), text("Done.")]) as server:
        model = OpenAIChat("any", base_url=server.base_url)

It answers requests with the replies of a script, in order. A request that breaks a rule of the wire gets HTTP
400 and uses up no reply. The rules (`fault_of`): every call is answered once, right after it, by a message of
the role tool; ids are unique; no content is blank; names are legal; arguments are a JSON object; no text has
half of a surrogate pair; and the request has the SDK's own type, where the SDK is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from counterfoil.testing.fake_server import (
    STARTS,
    Asked,
    Chunks,
    FakeServer,
    Fault,
    Play,
    Refusal,
    Then,
    Told,
    cut,
    decoded,
    rate_limit,
    surrogate_fault,
)
from counterfoil.testing.sdk_types import sdk_fault
from counterfoil.testing.strict_dialect import NAME, arguments_fault, tools_fault

__all__ = [
    "Asked",
    "Chunks",
    "FakeOpenAI",
    "Fault",
    "Play",
    "Refusal",
    "chunk",
    "fault_of",
    "rate_limit",
    "text",
    "tool_calls",
    "usage",
]

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_MAX_ID: Final = 40
_STARTS: Final[Mapping[str, Any]] = {**STARTS, "audio/wav": b"RIFF", "audio/mp3": (b"ID3", b"\xff")}
_SDK: Final = "openai.types.chat.completion_create_params", "CompletionCreateParamsStreaming"
_FINISH: Final = {"end": "stop", "calls": "tool_calls", "length": "length", "refusal": "stop", "other": "unheard_of"}


# --------------------------------------------------------------------------------------------- replies


def chunk(delta: Mapping[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a stream.

    Args:
        delta: what it adds; None: a chunk without choices.
        finish: its finish_reason.
        **more: other fields of the chunk, such as ``usage``.
    """
    choices = [] if delta is None else [{"index": 0, "delta": dict(delta), "finish_reason": finish}]
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "fake-1",
        "choices": choices,
        **more,
    }


def usage(prompt: int = 10, completion: int = 5, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    """The last chunk of a stream, with its count of tokens."""
    details = {
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    total = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return chunk(usage=total | details)


def text(said: str, *, pieces: int = 1, finish: str | None = "stop", then: Then = "done") -> Chunks:
    """A text, in pieces; ``finish`` None cuts it off."""
    first = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": piece}) for piece in cut(said, pieces))]
    return Chunks([*first, *([] if finish is None else [chunk({}, finish), usage()])], then)


def tool_calls(
    *calls: tuple[str | None, str, str],
    pieces: int = 2,
    finish: str | None = "tool_calls",
    then: Then = "done",
) -> Chunks:
    """Calls, each (id, name, arguments), their arguments in pieces that come by turns."""
    out = [chunk({"role": "assistant", "content": None})]
    for index, (identity, name, _) in enumerate(calls):
        head = {"index": index, "type": "function", "function": {"name": name, "arguments": ""}}
        out.append(chunk({"tool_calls": [head if identity is None else head | {"id": identity}]}))
    cut = [[a[len(a) * n // pieces : len(a) * (n + 1) // pieces] for n in range(pieces)] for _, _, a in calls]
    for n in range(pieces):
        for index, parts in enumerate(cut):
            out.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": parts[n]}}]}))
    return Chunks([*out, *([] if finish is None else [chunk({}, finish), usage()])], then)


# ----------------------------------------------------------------------------------------------- rules


def fault_of(body: Any) -> Fault | None:
    """The first rule of the wire that a request's body breaks; None when it breaks none."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return Fault("the body needs a model", "model")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return Fault("the body needs at least one message", "messages")
    if body.get("stream") is not True:
        return Fault("this server only streams", "stream")
    own = surrogate_fault(body) or tools_fault(body, ".function") or _fault_of_messages(messages)
    return own or sdk_fault(*_SDK, body)


def _fault_of_messages(messages: list[Any]) -> Fault | None:
    open_ids: list[str] = []
    used: set[str] = set()
    for place, message in enumerate(messages):
        param = f"messages[{place}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            return Fault(f"unknown role {role!r}", f"{param}.role")
        if role == "tool":
            identity = message.get("tool_call_id")
            if identity not in open_ids:
                return Fault(f"a result answers {identity!r}, which is no open call", f"{param}.tool_call_id")
            open_ids.remove(identity)
        elif open_ids:
            return Fault(f"the calls {', '.join(open_ids)} have no result before this message", param)
        calls = message.get("tool_calls")
        if not (calls and message.get("content") is None) and not _has_text(message.get("content")):
            return Fault("the content is missing or blank", f"{param}.content")
        if isinstance(message.get("content"), list) and (fault := _fault_of_parts(message["content"], role, param)):
            return fault
        if calls is not None:
            fault = _fault_of_calls(role, calls, used, param)
            if fault is not None:
                return fault
            open_ids = [c["id"] for c in calls]
    return Fault(f"the calls {', '.join(open_ids)} have no result", "messages") if open_ids else None


def _has_text(content: Any) -> bool:
    if isinstance(content, list):
        return bool(content) and all(_has_text(p.get("text")) for p in content if p.get("type") == "text")
    return isinstance(content, str) and bool(content.strip())


def _fault_of_parts(content: list[Any], role: str, param: str) -> Fault | None:
    for number, part in enumerate(content):
        place = f"{param}.content[{number}]"
        if part.get("type") != "text" and role != "user":
            return Fault(f"Invalid value: '{part.get('type')}'. Supported values are: 'text'.", place)
        medium = medium_of(part)
        if medium is None:
            continue
        kind, data = medium
        start = _STARTS.get(kind)
        if start is None or not data.startswith(start) or (part["type"] == "file" and not part["file"].get("filename")):
            return Fault(f"You uploaded an unsupported {part['type']}: {kind}.", place)
    return None


def medium_of(part: dict[str, Any]) -> tuple[str, bytes] | None:
    """The media type and the bytes of a part of a message; None of a text."""
    match part:
        case {"type": "image_url", "image_url": {"url": str() as url}}:
            pass
        case {"type": "file", "file": {"file_data": str() as url}}:
            pass
        case {"type": "input_audio", "input_audio": {"data": str() as data, "format": "wav" | "mp3" as form}}:
            url = f"data:audio/{form};base64,{data}"
        case _:
            return None if part.get("type") == "text" else (str(part.get("type")), b"")
    head, _, data = url.partition(";base64,")
    return head.removeprefix("data:"), decoded(data)


def _fault_of_calls(role: str, calls: Any, used: set[str], param: str) -> Fault | None:
    if role != "assistant" or not isinstance(calls, list) or not calls:
        return Fault("tool_calls is empty, or of another role than assistant", f"{param}.tool_calls")
    for number, made in enumerate(calls):
        place = f"{param}.tool_calls[{number}]"
        identity, function = made.get("id"), made.get("function") or {}
        if not isinstance(identity, str) or not 0 < len(identity) <= _MAX_ID or identity in used:
            return Fault(f"the id {identity!r} is missing, too long or not the first", f"{place}.id")
        used.add(identity)
        if not isinstance(function.get("name"), str) or not NAME.fullmatch(function["name"]):
            return Fault(f"the name {function.get('name')!r} is illegal", f"{place}.function.name")
        if (fault := arguments_fault(function, f"{place}.function")) is not None:
            return fault
    return None


# ---------------------------------------------------------------------------------------------- server


class FakeOpenAI(FakeServer):
    """The server; see `FakeServer` for what it is given."""

    path = "/v1/chat/completions"
    ending = "[DONE]"

    def stream_of(self, play: Play) -> Iterator[Mapping[str, Any]]:
        """The chunks of a reply."""
        yield chunk({"role": "assistant", "content": None if play.calls else ""})
        if play.reasoning:
            yield chunk({"reasoning_content": play.reasoning})
        field = "refusal" if play.stop == "refusal" else "content"
        for piece in cut(play.text, play.pieces):
            yield chunk({field: piece})
        for index, (identity, name, _) in enumerate(play.calls):
            head = {"index": index, "type": "function", "function": {"name": name, "arguments": ""}}
            yield chunk({"tool_calls": [head if identity is None else head | {"id": identity}]})
        for index, (_, _, arguments) in enumerate(play.calls):
            for piece in cut(arguments, play.pieces):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        if play.then in ("done", "end"):
            yield chunk({}, _FINISH[play.stop or ("calls" if play.calls else "end")])
            spent = play.usage
            yield usage(spent.input_tokens, spent.output_tokens, spent.cached_tokens, spent.reasoning_tokens)

    def fault_of(self, body: Any) -> Fault | None:
        return fault_of(body)

    def told(self, body: dict[str, Any]) -> list[Told]:
        out: list[Told] = []
        for message in body["messages"]:
            role, content = message["role"], message.get("content")
            if role == "tool":
                out.append(Told("result", content, message["tool_call_id"]))
                continue
            if isinstance(content, list):
                said = "\n".join(part["text"] for part in content if part["type"] == "text")
                media = tuple(medium[0] for part in content if (medium := medium_of(part)) is not None)
                out.append(Told(role, said, media=media))
            elif content is not None:
                out.append(Told(role, content))
            for made in message.get("tool_calls", ()):
                function = made["function"]
                out.append(Told("call", function["arguments"], made["id"], function["name"]))
        return out

    def tools(self, body: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {tool["function"]["name"]: tool["function"]["parameters"] for tool in body.get("tools", ())}

    def form(self, body: dict[str, Any]) -> tuple[dict[str, Any], bool] | None:
        form = body.get("response_format", {}).get("json_schema")
        return None if form is None else (form["schema"], bool(form.get("strict")))

    def choice(self, body: dict[str, Any]) -> str:
        return str(body.get("tool_choice", "auto"))
