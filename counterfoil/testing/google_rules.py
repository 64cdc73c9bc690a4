"""The rules of the Gemini API, as its server has them; see `counterfoil.testing.fake_google`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from counterfoil.testing.fake_server import STARTS, Fault, decoded, surrogate_fault
from counterfoil.testing.sdk_types import sdk_model_fault

_HOME: Final = "google.genai.types"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
_FIELDS: Final = {
    "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent",
    "labels", "serviceTier", "store", "continuationToken",
}  # fmt: skip  # names in rows
_DATA: Final = ("text", "functionCall", "functionResponse", "inlineData")
_STARTS: Final = {kind: start for kind, start in STARTS.items() if kind != "image/gif"}
_SOUNDS: Final = {"audio/wav": b"RIFF", "audio/mp3": (b"ID3", b"\xff"), "audio/flac": b"fLaC", "audio/ogg": b"OggS"}
UNSIGNED: Final = {"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"}
"""What the guide to thought signatures names for calls that another model made."""
_AFTER: Final = "Please ensure that function response turn comes immediately after a function call turn."
_COUNT: Final = (
    "Please ensure that the number of function response parts is equal to the number of function call parts of the "
    "function call turn."
)


def fault_of(body: Any, *, signs: bool = False, forms: bool = True) -> Fault | None:
    """The first rule of the wire that a request's body breaks; None when it breaks none.

    Args:
        body: the body.
        signs: calls of the current turn need a signature, as from Gemini 3 on.
        forms: tools and the form of an answer may stand in one request, as from Gemini 3 on.
    """
    if not isinstance(body, dict):
        return Fault("the body is no object")
    if strange := sorted(body.keys() - _FIELDS):
        return Fault(f'Invalid JSON payload received. Unknown name "{strange[0]}": Cannot find field.')
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return Fault("* GenerateContentRequest.contents: contents is not specified", "contents")
    return (
        surrogate_fault(body)
        or _fault_of_types(body)
        or _fault_of_tools(body)
        or _fault_of_form(body, forms=forms)
        or _fault_of_system(body)
        or _fault_of_contents(contents)
        or (_fault_of_unsigned(contents) if signs else None)
    )


def _fault_of_types(body: dict[str, Any]) -> Fault | None:
    one = {"systemInstruction": "Content", "toolConfig": "ToolConfig", "generationConfig": "GenerateContentConfig"}
    many = {"contents": "Content", "tools": "Tool", "safetySettings": "SafetySetting"}
    held = [(name, kind, body[name]) for name, kind in one.items() if name in body]
    held += [
        (f"{name}[{place}]", kind, value)
        for name, kind in many.items()
        for place, value in enumerate(body.get(name, ()))
    ]
    faults = (sdk_model_fault(_HOME, kind, value, name) for name, kind, value in held)
    return next((fault for fault in faults if fault is not None), None)


def _fault_of_tools(body: dict[str, Any]) -> Fault | None:
    if "tools" not in body:
        if "toolConfig" in body:
            return Fault("Function calling config is set without function_declarations.", "toolConfig")
        return None
    declared = [one for tool in body["tools"] for one in tool.get("functionDeclarations", ())]
    if not declared:
        return Fault("tools holds no function", "tools")
    names = set()
    for place, one in enumerate(declared):
        where = f"tools[0].function_declarations[{place}]"
        name, schema = one.get("name"), one.get("parametersJsonSchema")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return Fault("Invalid function name. Must start with a letter or an underscore.", f"{where}.name")
        if name in names:
            return Fault(f"Duplicate function declaration found: {name}", where)
        names.add(name)
        if not isinstance(schema, dict) or schema.get("type") != "object":
            return Fault("the schema is of no object", f"{where}.parameters")
        if (fault := _fault_of_schema(schema, where)) is not None:
            return fault
    return None


def _fault_of_schema(schema: Any, place: str) -> Fault | None:
    """Beside a reference only words that begin with $ may stand."""
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str) and any(not word.startswith("$") for word in schema):
            return Fault("reference to schema must have no other fields", place)
        inner = [value for word, value in schema.items() if word not in ("enum", "const", "default", "examples")]
    else:
        inner = schema if isinstance(schema, list) else []
    return next((fault for one in inner if (fault := _fault_of_schema(one, place)) is not None), None)


def _fault_of_form(body: dict[str, Any], *, forms: bool) -> Fault | None:
    config = body.get("generationConfig", {})
    if "responseJsonSchema" not in config:
        return None
    if config.get("responseMimeType") != "application/json":
        return Fault("response_json_schema needs response_mime_type application/json", "generation_config")
    if "tools" in body and not forms:
        return Fault("Function calling with a response mime type: 'application/json' is unsupported")
    return _fault_of_schema(config["responseJsonSchema"], "generation_config.response_json_schema")


def _fault_of_system(body: dict[str, Any]) -> Fault | None:
    if "systemInstruction" not in body:
        return None
    parts = body["systemInstruction"].get("parts")
    if not parts or not all(str(part.get("text") or "").strip() for part in parts):
        return Fault("the instruction is blank", "system_instruction")
    return None


def _fault_of_contents(contents: list[dict[str, Any]]) -> Fault | None:
    open_: list[dict[str, Any]] = []
    before = "model"
    for place, content in enumerate(contents):
        where, role, parts = f"contents[{place}]", content.get("role"), content.get("parts")
        if role not in ("user", "model"):
            return Fault("Please use a valid role: user, model.", f"{where}.role")
        if role == before:
            return Fault("Please ensure that multiturn requests alternate between user and model.", where)
        before = role
        if not parts:
            return Fault("contents.parts must not be empty.", f"{where}.parts")
        for number, part in enumerate(parts):
            if (fault := _fault_of_part(part, role, f"{where}.parts[{number}]")) is not None:
                return fault
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if (open_ and not answers) or (answers and not open_):
            return Fault(_AFTER, where)
        if (fault := _fault_of_pairs(open_, answers, where)) is not None:
            return fault
        open_ = [part["functionCall"] for part in parts if "functionCall" in part]
    return Fault(_AFTER) if open_ else None


def _fault_of_pairs(calls: list[dict[str, Any]], answers: list[dict[str, Any]], place: str) -> Fault | None:
    if len(calls) != len(answers):
        return Fault(_COUNT, place)
    left = list(calls)
    for answer in answers:
        found = next((c for c in left if (c.get("id"), c["name"]) == (answer.get("id"), answer["name"])), None)
        if found is None:
            return Fault(f"no call of {answer['name']} has the id {answer.get('id')}", place)
        left.remove(found)
    ids = [call["id"] for call in calls if "id" in call]
    return Fault("two calls have one id", place) if len(set(ids)) < len(ids) else None


def _fault_of_part(part: dict[str, Any], role: str, place: str) -> Fault | None:
    kinds = [name for name in _DATA if name in part]
    signature = part.get("thoughtSignature")
    if len(kinds) != 1 or part.get("thought"):
        return Fault("required oneof field 'data' must have one initialized field", f"{place}.data")
    (kind,) = kinds
    if kind == "text" and not part["text"].strip() and not signature:
        return Fault("the text is empty", f"{place}.text")
    if (kind == "functionCall") is not (role == "model") and kind != "text":
        return Fault(f"a {kind} is not of the role {role}", place)
    if kind == "inlineData" and (fault := _fault_of_data(part[kind], {**_STARTS, **_SOUNDS}, place)) is not None:
        return fault
    if kind in ("functionCall", "functionResponse") and not _NAME.fullmatch(str(part[kind].get("name"))):
        return Fault("the name is missing or illegal", f"{place}.{kind}.name")
    if kind == "functionCall" and not isinstance(part[kind].get("args", {}), dict):
        return Fault("the arguments are no object", f"{place}.function_call.args")
    if kind == "functionResponse" and (fault := _fault_of_response(part[kind], place)) is not None:
        return fault
    if signature is None or (kind == "functionCall" and signature in UNSIGNED):
        return None
    return None if _is_own(signature, part) else Fault("Thought signature is not valid.", place)


def _fault_of_response(given: dict[str, Any], place: str) -> Fault | None:
    response = given.get("response")
    if not isinstance(response, dict) or len(response.keys() & {"output", "error"}) != 1:
        return Fault("the response is no object with output or error", f"{place}.function_response.response")
    if "id" in given and not str(given["id"]).strip():
        return Fault("the id is blank", f"{place}.function_response.id")
    parts = (part.get("inlineData", {}) for part in given.get("parts", ()))
    faults = (_fault_of_data(inline, _STARTS, f"{place}.function_response.parts") for inline in parts)
    return next((fault for fault in faults if fault is not None), None)


def _fault_of_data(inline: dict[str, Any], starts: Mapping[str, Any], place: str) -> Fault | None:
    start = starts.get(inline.get("mimeType", ""))
    if start is None or not decoded(inline.get("data", "")).startswith(start):
        return Fault("Unable to process input image. Please retry or report.", place)
    return None


def _fault_of_unsigned(contents: list[dict[str, Any]]) -> Fault | None:
    """Of each step since the last text of a person the first call has a signature."""
    spoken = [
        place
        for place, content in enumerate(contents)
        if content["role"] == "user" and any("text" in part for part in content["parts"])
    ]
    for place in range(spoken[-1] if spoken else 0, len(contents)):
        first = next((part for part in contents[place]["parts"] if "functionCall" in part), None)
        if first is not None and "thoughtSignature" not in first:
            return Fault(
                "Function call is missing a thought_signature in functionCall parts. Additional data, function call "
                f"`default_api:{first['functionCall']['name']}` , position {place + 1}."
            )
    return None


def seal(part: Mapping[str, Any], thought: str) -> str:
    """The signature of a part, which holds for no other."""
    return base64.b64encode(f"fake-seal:{_digest(part)}:{thought}".encode("utf-8", "replace")).decode()


def _is_own(signature: str, part: Mapping[str, Any]) -> bool:
    try:
        held = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return False
    return held.startswith(f"fake-seal:{_digest(part)}:".encode())


def _digest(part: Mapping[str, Any]) -> str:
    call = part.get("functionCall")
    said = part.get("text") if call is None else [call["name"], call.get("args", {})]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
