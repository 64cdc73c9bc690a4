"""A Gemini server for tests: real HTTP on loopback, no model, as strict as Google's own.

    async with FakeGoogle([Play(calls=[("c1", "get_order", '{"order_id": "W100"}')]), Play("Done.")]) as server:
        model = GoogleGemini("any", base_url=server.base_url)

The rules (`fault_of`) are those of the Gemini API: roles alternate, no part is empty, the results of a turn stand in
the content right after it, as many as its calls and under their names; a thought signature is this server's own and on
the part that carried it; images are what they are called; and the request has the SDK's own types, where it is
installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from counterfoil.testing.fake_server import (
    Asked,
    Chunks,
    FakeServer,
    Fault,
    Play,
    Refusal,
    Script,
    Told,
    Whole,
    cut,
    rate_limit,
)
from counterfoil.testing.google_rules import UNSIGNED, fault_of, seal

__all__ = ["Chunks", "FakeGoogle", "Fault", "Play", "Refusal", "Whole", "rate_limit"]

_TARGET: Final = re.compile(
    r"/v1(?:beta)?/(?:models|tunedModels)/[\w.%-]+:(generateContent|streamGenerateContent\?alt=sse)"
)
_FINISH: Final = {"length": "MAX_TOKENS", "refusal": "SAFETY", "other": "UNHEARD_OF"}
_STATUS: Final = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip  # as above


class FakeGoogle(FakeServer):
    """The server; see `FakeServer` for what it is given.

    Args:
        script: see `FakeServer`.
        key: see `FakeServer`.
        signs: the model insists on signatures; see `fault_of`.
        forms: the model takes tools and the form of an answer together; see `fault_of`.
    """

    path = "/v1/models"
    base = ""
    objects = True
    alive = "\n\n"  # the SDK takes no comments

    def __init__(
        self, script: Iterable[Script] = (), *, key: str | None = None, signs: bool = False, forms: bool = True
    ) -> None:
        super().__init__(script, key=key)
        self._signs = signs
        self._forms = forms

    def serves(self, target: str) -> bool:
        return _TARGET.fullmatch(target) is not None

    def streams(self, asked: Asked) -> bool:
        return "streamGenerateContent" in asked.target

    def fault_of(self, body: Any) -> Fault | None:
        return fault_of(body, signs=self._signs, forms=self._forms)

    def key_of(self, headers: Mapping[str, str]) -> str:
        return headers.get("x-goog-api-key", "")

    def error_body(self, refusal: Refusal, param: str | None) -> Mapping[str, Any]:
        """The body of a refusal; ``code`` of the refusal stands for the status, where it has one."""
        status = refusal.code or _STATUS.get(refusal.status, "UNKNOWN")
        error: dict[str, Any] = {"code": refusal.status, "message": refusal.message, "status": status}
        if param is not None:
            violation = {"field": param, "description": refusal.message}
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}]
        return {"error": error}

    def stream_of(self, play: Play) -> Iterator[Mapping[str, Any]]:
        parts = list(_parts(play, play.pieces))
        done = play.then in ("done", "end")
        for number, part in enumerate(parts):
            yield _response(play, [part], end=done and number == len(parts) - 1)
        if done and not parts:
            yield _response(play, [], end=True)

    def whole_of(self, play: Play) -> Mapping[str, Any]:
        return _response(play, list(_parts(play, 1)), end=True)

    def told(self, body: dict[str, Any]) -> list[Told]:
        out = [Told("system", part["text"]) for part in body.get("systemInstruction", {}).get("parts", ())]
        ids: dict[str, list[str]] = {}
        """Of calls without an id, by their names."""
        for content in body["contents"]:
            for part in content["parts"]:
                if part.get("thoughtSignature", next(iter(UNSIGNED))) not in UNSIGNED:
                    out.append(Told("opaque", part["thoughtSignature"]))
                if "functionCall" in part:
                    call = part["functionCall"]
                    identity = call.get("id") or f"without an id {len(out)}"
                    if "id" not in call:
                        ids.setdefault(call["name"], []).append(identity)
                    out.append(Told("call", json.dumps(call.get("args", {})), identity, call["name"]))
                elif "functionResponse" in part:
                    given = part["functionResponse"]
                    identity = given.get("id") or ids[given["name"]].pop(0)
                    out.append(_told_result(given, identity))
                elif "inlineData" in part:
                    out.append(Told("user", "", media=(part["inlineData"]["mimeType"],)))
                elif part["text"]:
                    out.append(Told("assistant" if content["role"] == "model" else "user", part["text"]))
        return out

    def tools(self, body: dict[str, Any]) -> dict[str, dict[str, Any]]:
        declared = [one for tool in body.get("tools", ()) for one in tool["functionDeclarations"]]
        return {one["name"]: one["parametersJsonSchema"] for one in declared}

    def form(self, body: dict[str, Any]) -> tuple[dict[str, Any], bool] | None:
        form = body.get("generationConfig", {}).get("responseJsonSchema")
        return None if form is None else (form, False)

    def choice(self, body: dict[str, Any]) -> str:
        mode = body.get("toolConfig", {}).get("functionCallingConfig", {}).get("mode", "AUTO")
        return {"AUTO": "auto", "ANY": "required", "NONE": "none"}[mode]


def _told_result(given: dict[str, Any], identity: str) -> Told:
    ((word, text),) = given["response"].items()
    media = tuple(part["inlineData"]["mimeType"] for part in given.get("parts", ()))
    return Told("result", text, identity, media=media, failed=word == "error")


def _parts(play: Play, pieces: int) -> Iterator[dict[str, Any]]:
    """The parts of an answer. In a stream the signature of a text comes after it, on a part of its own."""
    calls = [_call(*call) for call in play.calls]
    for piece in cut(play.reasoning, pieces):
        yield {"text": piece, "thought": True}
    texts: list[dict[str, Any]] = [{"text": piece} for piece in cut(play.text, pieces)]
    if play.reasoning:
        if not calls:
            texts = texts if pieces == 1 and texts else [*texts, {"text": ""}]
        signed = calls[0] if calls else texts[-1]
        signed["thoughtSignature"] = seal(signed, play.reasoning)
    yield from texts
    yield from calls


def _call(identity: str | None, name: str, arguments: str) -> dict[str, Any]:
    try:
        args = json.loads(arguments)
    except ValueError:
        args = {}  # what the model wrote could not be read
    call: dict[str, Any] = {"name": name, "args": args}
    return {"functionCall": call | ({"id": identity} if identity else {})}


def _response(play: Play, parts: list[dict[str, Any]], *, end: bool) -> dict[str, Any]:
    spent = play.usage
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    usage = {"promptTokenCount": spent.input_tokens, "totalTokenCount": spent.tokens}
    if end:
        candidate["finishReason"] = _FINISH.get(play.stop, "STOP")
        usage["candidatesTokenCount"] = spent.output_tokens - spent.reasoning_tokens
        usage["cachedContentTokenCount"] = spent.cached_tokens
        usage["thoughtsTokenCount"] = spent.reasoning_tokens
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "fake-1", "responseId": "r1"}
