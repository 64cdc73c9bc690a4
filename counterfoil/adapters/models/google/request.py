"""A request as the Gemini API takes it (``generateContent``).

What the wire forces on us, beside what holds for all (shared/replay.py):

* Roles are ``user`` and ``model``, and alternate; the first content is the user's. There is no role for a message of
  a system amid the conversation, so it is the user's.
* The results of a turn stand together in the content right after it, as many as its calls. An id is optional: a call
  whose provider gave it none goes without, and is paired with its result by name and order.
* A result is an object: ``output`` or ``error`` (`FunctionResponse` of the SDK), and beside it images and PDF files,
  which models before Gemini 3 do not take. A message takes them with every model, and sounds too.
* A thought signature goes back on the very part that carried it (the guide to thought signatures). In place of one
  that no origin of ours gave stands, where a model insists, the value that the guide names for calls of others.
* No part is empty, except a text that carries a signature.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from counterfoil.adapters.models.google.names import wire_name, wire_schema
from counterfoil.adapters.models.shared.media import encoded, parts_of
from counterfoil.adapters.models.shared.opaque import own_items
from counterfoil.adapters.models.shared.replay import EMPTY, filled, is_blank, replayed
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.content import Audio, Block, File, Image, block_text
from counterfoil.core.entries import MessageEntry, TurnEntry
from counterfoil.core.jsontext import JsonValue, clean_text, dumps, loads
from counterfoil.core.media import shown_as
from counterfoil.core.pairs import CallKey, wire_ids
from counterfoil.core.words import elided
from counterfoil.model import ModelRequest

WIRE: Final = "google"
"""The name under which signatures of this wire are kept."""

UNSIGNED: Final = "skip_thought_signature_validator"
"""Stands where a signature has to be, on a call that this model did not make (the guide to thought signatures)."""

MAX_MEDIUM: Final = 12 * 1024 * 1024
"""Bytes of an image or file; a request has 20 MB at most, and base64 adds a third."""

_KINDS: Final = {kind: kind for kind in ("image/png", "image/jpeg", "image/webp", "application/pdf")}
"""What a result may show (the guide to function calling, multimodal responses)."""
_SOUNDS: Final = {
    "audio/wav": "audio/wav",
    "audio/mpeg": "audio/mp3",
    "audio/flac": "audio/flac",
    "audio/ogg": "audio/ogg",
}
"""What a message may show beside that, by the guide's names (the guide to audio understanding)."""
_BLIND: Final = re.compile(r"(models/)?gemini-[12]\b.*")
"""Models whose results are text alone."""
_CHOICE: Final = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
_FORM: Final = "\n\nAnswer with JSON of this schema and with nothing else: "


@dataclass(slots=True)
class Settings:
    """How one model is asked; see `GoogleGemini`."""

    media: bool
    """Results may show media."""
    prompts: bool = True
    """Messages may show media."""
    unsigned: str | None = None
    """What stands on calls without a signature of their own; None until a model insists."""
    forms_with_tools: bool = True
    """The model takes tools and the form of an answer in one request; those before Gemini 3 do not."""
    known: dict[int, tuple[dict[str, JsonValue], JsonValue]] = field(default_factory=dict)
    """Schemas as they go out, by the identity of those that they were made of."""

    def schema(self, given: dict[str, JsonValue]) -> JsonValue:
        """A schema as it goes out; one of a tool is written once."""
        found = self.known.get(id(given))
        if found is None or found[0] is not given:
            if len(self.known) > 1_000:  # noqa: PLR2004  # schemas that a program makes anew for each request
                self.known.clear()
            found = self.known[id(given)] = given, wire_schema(given)
        return found[1]


def takes_media(model: str) -> bool:
    """Whether results of this model may show images and PDF files, by its name."""
    return _BLIND.fullmatch(model) is None


def body_of(request: ModelRequest, settings: Settings, origin: str) -> dict[str, Any]:
    """The request's body, without the parameters of anybody.

    Args:
        request: what to ask.
        settings: how.
        origin: whose signatures go back.
    """
    body: dict[str, Any] = {"contents": _contents(request, settings, origin)}
    system = "" if is_blank(request.instructions) else clean_text(request.instructions)
    if request.tools:
        body["tools"] = [
            {
                "functionDeclarations": [
                    {
                        "name": wire_name(offer.name),
                        "description": clean_text(offer.description),
                        "parametersJsonSchema": settings.schema(offer.input_schema),
                    }
                    for offer in request.tools
                ]
            }
        ]
        body["toolConfig"] = {"functionCallingConfig": {"mode": _CHOICE[request.tool_choice]}}
    if request.output_schema is not None:
        form = settings.schema(request.output_schema)
        if settings.forms_with_tools or not request.tools:
            body["generationConfig"] = {"responseMimeType": "application/json", "responseJsonSchema": form}
        else:
            system = _with_form(system, form)
    if system:
        body["systemInstruction"] = {"parts": [{"text": system}]}
    return body


def form_as_text(body: dict[str, Any]) -> dict[str, Any]:
    """The body with the form of the answer told in the instructions, for models that take no tools beside it."""
    config = dict(body["generationConfig"])
    del config["responseMimeType"]
    form = config.pop("responseJsonSchema")
    system = body["systemInstruction"]["parts"][0]["text"] if "systemInstruction" in body else ""
    out = body | {"generationConfig": config, "systemInstruction": {"parts": [{"text": _with_form(system, form)}]}}
    if not config:
        del out["generationConfig"]
    return out


def _with_form(system: str, form: JsonValue) -> str:
    return (system + _FORM + dumps(form).decode()).strip()


def with_unsigned(body: dict[str, Any], *, fresh: bool) -> dict[str, Any]:
    """The body with `UNSIGNED` on the first call of each content that has no signature.

    Args:
        body: stays as it is.
        fresh: take out all other signatures first, where the server cannot verify them any more.
    """
    contents = copy.deepcopy(body["contents"])
    for content in contents:
        if fresh:
            for part in content["parts"]:
                part.pop("thoughtSignature", None)
            kept = [part for part in content["parts"] if part.get("text") != ""]
            content["parts"] = kept or [{"text": EMPTY}]
        _sign_first(content["parts"], UNSIGNED)
    return body | {"contents": contents}


def _sign_first(parts: list[dict[str, Any]], unsigned: str) -> None:
    """Of parallel calls the first alone carries a signature."""
    first = next((part for part in parts if "functionCall" in part), None)
    if first is not None:
        first.setdefault("thoughtSignature", unsigned)


def _contents(request: ModelRequest, settings: Settings, origin: str) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for role, parts in _pieces(request, settings, origin):
        if out and out[-1]["role"] == role:
            out[-1]["parts"] += parts
        else:
            out.append({"role": role, "parts": parts})
    if not out or out[0]["role"] != "user":
        out.insert(0, {"role": "user", "parts": [{"text": EMPTY}]})
    return out


def _pieces(request: ModelRequest, settings: Settings, origin: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    ids = _ids(request)
    names: dict[CallKey, str] = {}
    """By call: a result goes under the name of its own call."""
    for position, item in enumerate(request.items):
        match item:
            case MessageEntry():
                yield "user", _said(item, settings) if item.blocks else [{"text": filled(item.text)}]
            case TurnEntry():
                names |= {(item.run_id, item.step, n): call.tool_name for n, call in enumerate(item.calls)}
                parts = _turn(item, ids, own_items(item.reasoning, WIRE, origin))
                if settings.unsigned is not None:
                    _sign_first(parts, settings.unsigned)
                yield "model", parts
            case ResultEntry():
                key = item.run_id, item.step, item.index
                pointer = elided(item.call_id, item.size) if position in request.elided else None
                named = _named(ids, key, names.get(key, item.tool_name))
                yield "user", [{"functionResponse": named | _result(item, settings, pointer)}]


def _ids(request: ModelRequest) -> dict[CallKey, str]:
    """The ids of the calls to which the provider gave one; of the others none."""
    given = {
        (item.run_id, item.step, index)
        for item in request.items
        if isinstance(item, TurnEntry)
        for index, call in enumerate(item.calls)
        if not is_blank(call.provider_call_id or "")
    }
    return {key: name for key, name in wire_ids(request.items).items() if key in given}


def _named(ids: dict[CallKey, str], key: CallKey, name: str) -> dict[str, Any]:
    named = {"name": wire_name(name)}
    return named | {"id": ids[key]} if key in ids else named


def _result(item: ResultEntry, settings: Settings, pointer: str | None) -> dict[str, Any]:
    word = "error" if item.result.is_error else "output"
    if pointer is not None:
        return {"response": {word: pointer}}
    shown = [(block, _medium(block, _KINDS) if settings.media else None) for block in item.result.content]
    parts = [part for _, part in shown if part is not None]
    if not parts:
        return {"response": {word: item.result.model_output}}
    texts = [block_text(block) for block, part in shown if part is None]
    said = "\n".join(text for text in texts if not is_blank(text))
    return {"response": {word: said or EMPTY}, "parts": parts}


def _said(message: MessageEntry, settings: Settings) -> list[dict[str, Any]]:
    """A message that is more than text."""
    kinds = {**_KINDS, **_SOUNDS} if settings.prompts else {}
    return parts_of(message.blocks, lambda _, block: _medium(block, kinds), lambda text: {"text": text})


def _medium(block: Block, kinds: Mapping[str, str]) -> dict[str, Any] | None:
    kind = kinds.get(shown_as(block) or "")
    if kind is None or not isinstance(block, (Image, Audio, File)) or len(block.data) > MAX_MEDIUM:
        return None
    return {"inlineData": {"mimeType": kind, "data": encoded(block.data)}}


def _turn(turn: TurnEntry, ids: dict[CallKey, str], layout: list[dict[str, JsonValue]]) -> list[dict[str, Any]]:
    """A turn's parts, in the order in which they came where the layout says so, else text before calls."""
    calls = [
        {
            "functionCall": _named(ids, (turn.run_id, turn.step, index), call.tool_name)
            | {"args": loads(replayed(call.raw))}
        }
        for index, call in enumerate(turn.calls)
    ]
    parts = _as_it_came(turn, calls, layout)
    if parts is None:
        parts = [*([] if is_blank(turn.text) else [{"text": turn.text}]), *calls]
    return parts or [{"text": EMPTY}]


def _as_it_came(
    turn: TurnEntry, calls: list[dict[str, Any]], layout: list[dict[str, JsonValue]]
) -> list[dict[str, Any]] | None:
    """The parts by the layout's places; None where text or calls are not those of the layout.

    They are not when a hook changed them, or retention erased them.
    """
    sizes = [place["chars"] for place in layout if isinstance(place.get("chars"), int)]
    count = sum(place.get("type") == "call" for place in layout)
    if not layout or count != len(calls) or sum(sizes) != len(turn.text):  # type: ignore[arg-type]  # numbers, as seen
        return None
    left, at = iter(calls), 0
    out: list[dict[str, Any]] = []
    for place in layout:
        if place.get("type") == "call":
            part = next(left)
        else:
            size = place.get("chars")
            text = turn.text[at : at + size] if isinstance(size, int) else ""
            at += len(text)
            part = {"text": text}
        signature = place.get("signature")
        if isinstance(signature, str):
            part["thoughtSignature"] = signature
        elif "text" in part and is_blank(part["text"]):
            continue
        out.append(part)
    return out
