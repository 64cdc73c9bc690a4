"""A Responses server for tests: real HTTP on loopback, no model, as strict as OpenAI's own.

    async with FakeResponses([Play(calls=[("c1", "get_order", '{"order_id": "W100"}')]), Play("Done.")]) as server:
        model = OpenAIResponses("any", base_url=server.base_url)

The rules (`fault_of`) are those of OpenAI's server: every call has one output after it, before anything else is said;
ids are unique; reasoning is this server's own, encrypted, and followed by what it led to; images are what they are
called; strict schemas keep to the dialect; and the request has the SDK's own type, where the SDK is installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from counterfoil.testing.fake_server import (
    STARTS,
    Chunks,
    FakeServer,
    Fault,
    Play,
    Refusal,
    Script,
    Told,
    Whole,
    cut,
    decoded,
    rate_limit,
    surrogate_fault,
)
from counterfoil.testing.sdk_types import sdk_fault
from counterfoil.testing.strict_dialect import NAME, arguments_fault, dialect_fault, tools_fault

__all__ = ["Chunks", "FakeResponses", "Fault", "Play", "Refusal", "Whole", "rate_limit"]

_MAX_ID: Final = 64
_HOME: Final = "openai.types.responses.response_create_params"
_SEAL: Final = "fake-seal:"
_DATA: Final = re.compile(r"data:([a-z/]+);base64,([A-Za-z0-9+/=]+)")
_INCOMPLETE: Final = {"length": "max_output_tokens", "other": "unheard_of"}


# ----------------------------------------------------------------------------------------------- rules


def fault_of(body: Any) -> Fault | None:
    """The first rule of the wire that a request's body breaks; None when it breaks none."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return Fault("the body needs a model", "model")
    items = body.get("input")
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        return Fault("the body needs at least one item", "input")
    if "instructions" in body and not str(body["instructions"] or "").strip():
        return Fault("the instructions are blank", "instructions")
    own = surrogate_fault(body) or tools_fault(body) or _fault_of_form(body) or _fault_of_items(items)
    name = "ResponseCreateParamsStreaming" if body.get("stream") else "ResponseCreateParamsNonStreaming"
    return own or sdk_fault(_HOME, name, body)


def _fault_of_form(body: dict[str, Any]) -> Fault | None:
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") != "json_schema":
        return None
    schema = form.get("schema")
    if not NAME.fullmatch(form.get("name", "")) or not isinstance(schema, dict) or schema.get("type") != "object":
        return Fault("the form of the answer has no name, or is of no object", "text.format")
    return dialect_fault(schema, "text.format.schema") if form.get("strict") else None


def _fault_of_items(items: list[dict[str, Any]]) -> Fault | None:
    open_ids: list[str] = []
    used: set[str] = set()
    thought = ""
    said = False
    for place, item in enumerate(items):
        param, kind = f"input[{place}]", item.get("type", "message")
        assistant = kind in ("function_call", "reasoning") or item.get("role") == "assistant"
        if thought and not assistant:
            return _alone(thought)
        if kind != "reasoning":
            thought = ""
        if open_ids and kind != "function_call_output" and (said or not assistant):
            return Fault(f"No tool output found for function call {open_ids[0]}.", "input")
        fault = None
        match kind:
            case "function_call":
                said = False
                fault = _fault_of_call(item, used, param)
                open_ids.append(str(item.get("call_id")))
            case "function_call_output":
                said = True
                identity = item.get("call_id")
                if identity not in open_ids:
                    return Fault(f"No tool call found for function call output with call_id {identity}.", "input")
                open_ids.remove(identity)
                fault = _fault_of_output(item.get("output"), f"{param}.output")
            case "reasoning":
                thought = str(item.get("id"))
                fault = _fault_of_reasoning(item, param)
            case "message":
                if isinstance(item.get("content"), list) and item.get("role") == "user":
                    fault = _fault_of_output(item["content"], f"{param}.content")
                elif not str(item.get("content") or "").strip():
                    fault = Fault("the content is missing or blank", f"{param}.content")
            case _:
                fault = Fault(f"Invalid value: '{kind}'.", f"{param}.type")
        if fault is not None:
            return fault
    if thought:
        return _alone(thought)
    return Fault(f"No tool output found for function call {open_ids[0]}.", "input") if open_ids else None


def _alone(identity: str) -> Fault:
    return Fault(f"Item '{identity}' of type 'reasoning' was provided without its required following item.", "input")


def _fault_of_call(item: dict[str, Any], used: set[str], param: str) -> Fault | None:
    identity, name = item.get("call_id"), item.get("name")
    if "id" in item:
        return Fault(f"Item with id '{item['id']}' not found. Items are not persisted when `store` is false.", param)
    if not isinstance(identity, str) or not 0 < len(identity) <= _MAX_ID or identity in used:
        return Fault(f"the id {identity!r} is missing, too long or not the first", f"{param}.call_id")
    used.add(identity)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return Fault(f"the name {name!r} is illegal", f"{param}.name")
    return arguments_fault(item, param)


def _fault_of_output(output: Any, param: str) -> Fault | None:
    if isinstance(output, str):
        return None if output.strip() else Fault("the output is blank", param)
    if not isinstance(output, list) or not output:
        return Fault("the output is missing", param)
    for place, part in enumerate(output):
        here = f"{param}[{place}]"
        match part.get("type"):
            case "input_text":
                fault = None if part.get("text", "").strip() else Fault("the text is blank", here)
            case "input_image":
                fault = _fault_of_data(part.get("image_url"), "image/", here)
            case "input_file" if part.get("filename"):
                fault = _fault_of_data(part.get("file_data"), "application/pdf", here)
            case kind:
                fault = Fault(f"Invalid value: '{kind}'.", f"{here}.type")
        if fault is not None:
            return fault
    return None


def _fault_of_data(url: Any, family: str, param: str) -> Fault | None:
    found = _DATA.fullmatch(url) if isinstance(url, str) else None
    if found is None or not found[1].startswith(family) or found[1] not in STARTS:
        return Fault("no data URL of a supported type", param)
    if not decoded(found[2]).startswith(STARTS[found[1]]):
        return Fault("The image data you provided does not represent a valid image.", param)
    return None


def _fault_of_reasoning(item: dict[str, Any], param: str) -> Fault | None:
    sealed = item.get("encrypted_content")
    if sealed is None:
        return Fault(
            f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is false.", param
        )
    if not str(sealed).startswith(_SEAL):
        return Fault("The encrypted content could not be verified.", param, "invalid_encrypted_content")
    return None


# ---------------------------------------------------------------------------------------------- server


class FakeResponses(FakeServer):
    """The server; see `FakeServer` for what it is given.

    Args:
        script: see `FakeServer`.
        key: see `FakeServer`.
        reasons: the model reasons; one that does not refuses to be asked for encrypted reasoning.
    """

    path = "/v1/responses"

    def __init__(self, script: Iterable[Script] = (), *, key: str | None = None, reasons: bool = True) -> None:
        super().__init__(script, key=key)
        self._reasons = reasons

    def fault_of(self, body: Any) -> Fault | None:
        fault = fault_of(body)
        if fault is None and not self._reasons and "reasoning.encrypted_content" in body.get("include", ()):
            return Fault("Encrypted content is not supported with this model.", "include")
        return fault

    def stream_of(self, play: Play) -> Iterator[Mapping[str, Any]]:
        """The events of a reply, numbered."""
        for number, event in enumerate(_events(play)):
            yield {**event, "sequence_number": number}

    def whole_of(self, play: Play) -> Mapping[str, Any]:
        return _response(play, _output(play))

    def told(self, body: dict[str, Any]) -> list[Told]:
        out = [Told("system", body["instructions"])] if body.get("instructions") else []
        for item in body["input"]:
            match item.get("type", "message"):
                case "function_call":
                    out.append(Told("call", item["arguments"], item["call_id"], item["name"]))
                case "function_call_output":
                    text, media = _told_parts(item["output"])
                    out.append(Told("result", text, item["call_id"], media=media))
                case "reasoning":
                    out.append(Told("opaque", json.dumps(item)))
                case _:
                    text, media = _told_parts(item["content"])
                    out.append(Told(item["role"], text, media=media))
        return out

    def tools(self, body: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {tool["name"]: tool["parameters"] for tool in body.get("tools", ())}

    def form(self, body: dict[str, Any]) -> tuple[dict[str, Any], bool] | None:
        form = body.get("text", {}).get("format")
        return None if form is None else (form["schema"], bool(form.get("strict")))

    def choice(self, body: dict[str, Any]) -> str:
        return str(body.get("tool_choice", "auto"))


def _told_parts(content: str | list[dict[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """The text of a content, and the media types of what it shows."""
    if isinstance(content, str):
        return content, ()
    texts = [part["text"] for part in content if part["type"] == "input_text"]
    urls = [part.get("image_url") or part.get("file_data") for part in content if part["type"] != "input_text"]
    return "\n".join(texts), tuple(str(url)[5:].partition(";")[0] for url in urls)


def _output(play: Play) -> list[dict[str, Any]]:
    """The items of an answer, done."""
    status = "incomplete" if play.stop in _INCOMPLETE else "completed"
    out: list[dict[str, Any]] = []
    if play.reasoning:
        summary = [{"type": "summary_text", "text": play.reasoning}]
        sealed = f"{_SEAL}{play.reasoning}"
        out.append({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": sealed, "status": None})
    if play.text:
        if play.stop == "refusal":
            part: dict[str, Any] = {"type": "refusal", "refusal": play.text}
        else:
            part = {"type": "output_text", "text": play.text, "annotations": [], "logprobs": []}
        out.append({"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": [part]})
    for number, (identity, name, arguments) in enumerate(play.calls):
        call = {"id": f"fc_{number}", "call_id": identity or "", "name": name, "arguments": arguments}
        out.append({"type": "function_call", **call, "status": status})
    return out


def _response(play: Play, output: list[dict[str, Any]], status: str = "") -> dict[str, Any]:
    """The response as it is at its end, or with another ``status``."""
    reason = _INCOMPLETE.get(play.stop)
    spent = play.usage
    usage = {
        "input_tokens": spent.input_tokens,
        "input_tokens_details": {"cached_tokens": spent.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": spent.output_tokens,
        "output_tokens_details": {"reasoning_tokens": spent.reasoning_tokens},
        "total_tokens": spent.tokens,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "status": status or ("incomplete" if reason else "completed"),
        "error": None,
        "incomplete_details": {"reason": reason} if reason and not status else None,
        "instructions": None,
        "metadata": {},
        "model": "fake-1",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None if status else usage,
    }


def _events(play: Play) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": _response(play, [], "in_progress")}
    done = play.then in ("done", "end")
    output = _output(play)
    for index, item in enumerate(output):
        at = {"item_id": item["id"], "output_index": index}
        bare: dict[str, Any] = (
            {"content": []} if item["type"] == "message" else {"arguments": ""} if "arguments" in item else {}
        )
        begun = item | bare | ({} if item["type"] == "reasoning" else {"status": "in_progress"})
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        match item["type"]:
            case "reasoning":
                for piece in cut(play.reasoning, play.pieces):
                    yield {"type": "response.reasoning_summary_text.delta", **at, "summary_index": 0, "delta": piece}
            case "message":
                yield from _message(item["content"][0], at, play, done=done)
            case _:
                for piece in cut(item["arguments"], play.pieces):
                    yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
        if done:
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
    if done:
        end = _response(play, output)
        yield {"type": f"response.{end['status']}", "response": end}


def _message(part: dict[str, Any], at: dict[str, Any], play: Play, *, done: bool) -> Iterator[dict[str, Any]]:
    here = at | {"content_index": 0}
    field = "refusal" if part["type"] == "refusal" else "text"
    name = "refusal" if field == "refusal" else "output_text"
    logs: dict[str, Any] = {} if field == "refusal" else {"logprobs": []}
    yield {"type": "response.content_part.added", **here, "part": part | {field: ""}}
    for piece in cut(play.text, play.pieces):
        yield {"type": f"response.{name}.delta", **here, "delta": piece, **logs}
    if done:
        yield {"type": f"response.{name}.done", **here, field: play.text, **logs}
        yield {"type": "response.content_part.done", **here, "part": part}
