"""The rules of Anthropic's Messages wire, as its server has them, with its words."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from counterfoil.testing.fake_server import STARTS, Fault, decoded, surrogate_fault
from counterfoil.testing.sdk_types import sdk_fault

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_HOME: Final = "anthropic.types.message_create_params"
_THINKING: Final = ("thinking", "redacted_thinking")
_MAX_IMAGE: Final = 5 * 1024 * 1024
_MAX_MARKS: Final = 4
_MIN_BUDGET: Final = 1024
_MAX_STRICT: Final = 20


def signature(thinking: str) -> str:
    """What this server signs a thinking with."""
    return f"fake-sig:{hashlib.sha256(thinking.encode()).hexdigest()[:16]}"


def fault_of(body: Any) -> Fault | None:
    """The first rule of the wire that a request's body breaks; None when it breaks none."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return Fault("model: Field required")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        return Fault("max_tokens: Field required")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        return Fault("messages: at least one message is required")
    own = (
        surrogate_fault(body)
        or _fault_of_system(body.get("system"))
        or _fault_of_tools(body)
        or _fault_of_form(body)
        or _fault_of_messages(messages)
        or _fault_of_thinking(body)
        or _fault_of_marks(body)
    )
    name = "MessageCreateParamsStreaming" if body.get("stream") else "MessageCreateParamsNonStreaming"
    return own or sdk_fault(_HOME, name, body)


def _fault_of_system(system: Any) -> Fault | None:
    if system is None:
        return None
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    return next((f for n, b in enumerate(blocks) if (f := _fault_of_text(b, f"system.{n}")) is not None), None)


def _fault_of_tools(body: dict[str, Any]) -> Fault | None:
    tools = body.get("tools") or []
    if not tools:
        if "tool_choice" in body:
            return Fault("tool_choice: tool_choice may only be specified while providing tools")
        if any(block.get("type") in ("tool_use", "tool_result") for block in _blocks(body)):
            return Fault("Requests which include `tool_use` or `tool_result` blocks must define tools")
        return None
    names = set()
    for place, tool in enumerate(tools):
        name, schema = tool.get("name"), tool.get("input_schema")
        here = f"tools.{place}.custom"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return Fault(f"{here}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        if name in names:
            return Fault("tools: Tool names must be unique.")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            return Fault(f"{here}.input_schema.type: Input should be 'object'")
        if not schema.keys().isdisjoint(("oneOf", "allOf", "anyOf")):
            said = "input_schema does not support oneOf, allOf, or anyOf at the top level"
            return Fault(f"{here}.input_schema: {said}")
        if tool.get("strict") and (fault := _dialect_fault(schema, f"{here}.input_schema")) is not None:
            return fault
        names.add(name)
    if sum(bool(tool.get("strict")) for tool in tools) > _MAX_STRICT:
        return Fault("tools: Too many strict tools")
    choice = body.get("tool_choice") or {}
    if choice.get("type") == "tool" and choice.get("name") not in names:
        return Fault(f"tool_choice: Tool '{choice.get('name')}' not found in provided tools")
    return None


def _fault_of_form(body: dict[str, Any]) -> Fault | None:
    form = (body.get("output_config") or {}).get("format") or {}
    return _dialect_fault(form.get("schema"), "output_config.format.schema") if form else None


def _dialect_fault(schema: Any, place: str) -> Fault | None:
    """The first thing in a schema that the strict dialect refuses."""
    if not isinstance(schema, dict):
        return Fault(f"{place}: Input should be a valid dictionary")
    words = {"type", "properties", "required", "additionalProperties", "items", "minItems", "enum", "const", "anyOf"}
    if strange := sorted(schema.keys() - words - {"description", "title", "format", "$ref", "$defs", "allOf"}):
        return Fault(f"{place}: For '{schema.get('type')}' type, property '{strange[0]}' is not supported")
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return Fault(f"{place}: For 'object' type, 'additionalProperties' must be explicitly set to false")
    if schema.get("minItems", 0) not in (0, 1):
        return Fault(f"{place}: For 'array' type, 'minItems' values other than 0 or 1 are not supported")
    if not {"type", "enum", "const", "anyOf", "allOf", "$ref"} & schema.keys():
        return Fault(f"{place}: Schema type is missing")
    inner = [*schema.get("properties", {}).items(), *((f"anyOf.{n}", s) for n, s in enumerate(schema.get("anyOf", ())))]
    inner += [("items", schema["items"])] if "items" in schema else []
    return next((f for name, s in inner if (f := _dialect_fault(s, f"{place}.{name}")) is not None), None)


def _fault_of_messages(messages: list[dict[str, Any]]) -> Fault | None:
    if messages[0].get("role") != "user":
        return Fault('messages: first message must use the "user" role')
    used: set[str] = set()
    before: list[str] = []
    for place, message in enumerate(messages):
        role, here = message.get("role"), f"messages.{place}"
        if place and role == messages[place - 1].get("role"):
            return Fault(
                'messages: roles must alternate between "user" and "assistant", but found '
                f'multiple "{role}" roles in a row'
            )
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not content:
            return Fault(f"{here}: {role} messages must have non-empty content")
        fault = _fault_of_pairs(content, before, place)
        if fault is not None:
            return fault
        for number, block in enumerate(content):
            fault = _fault_of_block(block, str(role), f"{here}.content.{number}", used)
            if fault is not None:
                return fault
        if role == "assistant" and content[-1].get("type") in _THINKING:
            return Fault(f"{here}: The final block in an assistant message cannot be `{content[-1]['type']}`.")
        before = [str(block["id"]) for block in content if block.get("type") == "tool_use"]
    if before:
        return _without_results(len(messages) - 1, before)
    if messages[-1]["role"] != "user":
        return Fault(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )
    return None


def _without_results(place: int, ids: list[str]) -> Fault:
    return Fault(
        f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _fault_of_pairs(content: list[dict[str, Any]], before: list[str], place: int) -> Fault | None:
    """Whether a message has the results of the calls before it, each once, ahead of all else."""
    answered: list[str] = []
    for number, block in enumerate(content):
        if block.get("type") != "tool_result":
            continue
        identity, here = str(block.get("tool_use_id")), f"messages.{place}.content.{number}"
        if identity not in before:
            return Fault(
                f"{here}: unexpected `tool_use_id` found in `tool_result` blocks: {identity}. Each `tool_result` block "
                "must have a corresponding `tool_use` block in the previous message."
            )
        if identity in answered:
            return Fault(
                f"{here}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: "
                f"{identity}"
            )
        # One behind another block does not count as right after.
        if number == len(answered):
            answered.append(identity)
    missing = [identity for identity in before if identity not in answered]
    return _without_results(place - 1, missing) if missing else None


def _fault_of_block(block: dict[str, Any], role: str, here: str, used: set[str]) -> Fault | None:
    match block.get("type"), role:
        case "text", _:
            return _fault_of_text(block, here)
        case "tool_use", "assistant":
            return _fault_of_call(block, here, used)
        case "tool_result", "user":
            return _fault_of_result(block, here)
        case "image" | "document", "user":
            return _fault_of_data(block, here)
        case "thinking", "assistant":
            good = block.get("signature") == signature(str(block.get("thinking")))
            return None if good else Fault(f"{here}: Invalid `signature` in `thinking` block")
        case "redacted_thinking", "assistant":
            good = str(block.get("data")).startswith("fake-sealed:")
            return None if good else Fault(f"{here}: Invalid `data` in `redacted_thinking` block")
        case kind, _:
            return Fault(f"{here}: Input tag '{kind}' found using 'type' does not match any of the expected tags")


def _fault_of_text(block: dict[str, Any], here: str) -> Fault | None:
    text = block.get("text")
    if not isinstance(text, str) or not text:
        return Fault(f"{here.partition('.')[0]}: text content blocks must be non-empty")
    return (
        None
        if text.strip()
        else Fault(f"{here.partition('.')[0]}: text content blocks must contain non-whitespace text")
    )


def _fault_of_call(block: dict[str, Any], here: str, used: set[str]) -> Fault | None:
    identity, name = block.get("id"), block.get("name")
    if not isinstance(identity, str) or not _ID.fullmatch(identity):
        return Fault(f"{here}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if identity in used:
        return Fault("messages: `tool_use` ids must be unique")
    used.add(identity)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return Fault(f"{here}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    return (
        None
        if isinstance(block.get("input"), dict)
        else Fault(f"{here}.tool_use.input: Input should be a valid dictionary")
    )


def _fault_of_result(block: dict[str, Any], here: str) -> Fault | None:
    content = block.get("content")
    if isinstance(content, str):
        return None if content.strip() else Fault("messages: text content blocks must contain non-whitespace text")
    if not isinstance(content, list) or not content:
        return Fault(f"{here}.tool_result.content: Input should not be empty")
    if block.get("is_error") and any(part.get("type") != "text" for part in content):
        return Fault(f'{here}.tool_result: all content must be type "text" if "is_error" is true')
    for number, part in enumerate(content):
        place = f"{here}.tool_result.content.{number}"
        fault = _fault_of_text(part, place) if part.get("type") == "text" else _fault_of_data(part, place)
        if fault is not None:
            return fault
    return None


def _fault_of_data(block: dict[str, Any], here: str) -> Fault | None:
    kind, source = block.get("type"), block.get("source") or {}
    named = source.get("media_type")
    if kind not in ("image", "document") or (named == "application/pdf") != (kind == "document") or named not in STARTS:
        return Fault(f"{here}.{kind}.source.base64.media_type: Input should be one of the supported types")
    if kind == "image" and len(source["data"]) > _MAX_IMAGE:
        return Fault(
            f"{here}.image.source.base64: image exceeds 5 MB maximum: {len(source['data'])} bytes > 5242880 bytes"
        )
    if not decoded(source["data"]).startswith(STARTS[named]):
        return Fault("Could not process image" if kind == "image" else "The PDF specified was not valid.")
    return None


def _fault_of_thinking(body: dict[str, Any]) -> Fault | None:
    thinking = body.get("thinking") or {}
    if thinking.get("type") in ("enabled", "adaptive") and (body.get("tool_choice") or {}).get("type") in (
        "any",
        "tool",
    ):
        return Fault("Thinking may not be enabled when tool_choice forces tool use.")
    if thinking.get("type") != "enabled":
        return None
    budget = thinking.get("budget_tokens", 0)
    if budget < _MIN_BUDGET:
        return Fault("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
    if budget >= body["max_tokens"]:
        return Fault("`max_tokens` must be greater than `thinking.budget_tokens`.")
    first: tuple[int, dict[str, Any]] | None = None
    for place in range(len(body["messages"]) - 1, -1, -1):
        message = body["messages"][place]
        if message["role"] == "assistant":
            first = place, message
        elif isinstance(message["content"], str) or any(b["type"] != "tool_result" for b in message["content"]):
            break
    if first is None or isinstance(first[1]["content"], str) or first[1]["content"][0]["type"] in _THINKING:
        return None
    return Fault(
        f"messages.{first[0]}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
        f"`{first[1]['content'][0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with "
        "a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
    )


def _fault_of_marks(body: dict[str, Any]) -> Fault | None:
    system = body.get("system")
    marked = [*_blocks(body), *(body.get("tools") or []), *(system if isinstance(system, list) else [])]
    marks = [block for block in marked if block.get("cache_control") is not None]
    if any(block.get("type") in _THINKING for block in marks):
        return Fault("messages: `thinking` blocks cannot have cache_control set")
    count = len(marks) + ("cache_control" in body)
    if count > _MAX_MARKS:
        return Fault(f"A maximum of 4 blocks with cache_control may be provided. Found {count}.")
    return None


def _blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    contents = (m.get("content") for m in body["messages"])
    return [block for content in contents if isinstance(content, list) for block in content]
