"""An answer of the Gemini API, streamed or whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from counterfoil.adapters.models.google.request import WIRE
from counterfoil.adapters.models.shared.counts import count
from counterfoil.adapters.models.shared.opaque import tagged
from counterfoil.adapters.models.shared.pieces import Joined
from counterfoil.core.errors import ModelError
from counterfoil.core.jsontext import JsonValue, clean_text, dumps
from counterfoil.core.turn import NO_USAGE, Usage
from counterfoil.model import CallDelta, ModelCall, ModelEvent, ModelTurn, ReasoningDelta, StopReason, TextDelta

_REFUSALS: Final = (
    "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY",
    "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "ESCALATION", "MODEL_ARMOR",
)  # fmt: skip  # names in rows
_STOP: Final[Mapping[str, StopReason]] = {"STOP": "end", "MAX_TOKENS": "length", **dict.fromkeys(_REFUSALS, "refusal")}
"""By `FinishReason` of the SDK; any other is ``other``."""
_BROKEN_CALLS: Final = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"})
"""The model called what cannot be called; the API gives no call then, and a message that quotes it."""
_WORD: Final = re.compile(r"[A-Za-z_][\w-]*")


class Answer:
    """The turn as its pieces make it.

    Args:
        model: the model's name, where the server says none.
        names: the tools' names by those on the wire.
    """

    def __init__(self, model: str, names: Mapping[str, str]) -> None:
        self.finish = ""
        """The reason for the end; empty until it comes."""
        self.failed: dict[str, Any] | None = None
        """The server's ``error``, where one came amid the answer."""
        self._model = model
        self._names = names
        self._text = Joined()
        self._thought = Joined()
        self._calls: list[ModelCall] = []
        self._layout: list[dict[str, JsonValue]] = []
        """A place for each text and each call, with its signature; texts without one that follow each other are one."""
        self._usage: object = None
        self._blocked = self._message = ""

    def add(self, piece: object) -> Iterator[ModelEvent]:
        """Take a piece, or a whole answer, and give the events that it makes."""
        if isinstance(piece, list) and len(piece) == 1:
            piece = piece[0]  # the form of errors amid a stream
        if not isinstance(piece, dict):
            return
        if isinstance(piece.get("error"), dict):
            self.finish, self.failed = "error", piece["error"]
            return
        self._usage = piece.get("usageMetadata") or self._usage
        self._model = piece.get("modelVersion") or self._model
        candidate = (piece.get("candidates") or [{}])[0]
        for part in (candidate.get("content") or {}).get("parts") or ():
            yield from self._part(part)
        self._message = candidate.get("finishMessage") or self._message
        blocked = (piece.get("promptFeedback") or {}).get("blockReason")
        if blocked:
            self.finish = self._blocked = str(blocked)
        self.finish = candidate.get("finishReason") or self.finish

    def _part(self, part: dict[str, Any]) -> Iterator[ModelEvent]:
        signature = part.get("thoughtSignature")
        if isinstance(part.get("functionCall"), dict):
            yield self._call(part["functionCall"])
            self._layout.append({"type": "call"})
        elif part.get("thought"):
            if shown := self._thought.add(part.get("text") or ""):
                yield ReasoningDelta(shown)
            return  # a summary for people, which no request needs
        elif isinstance(part.get("text"), str):
            shown = self._text.add(part["text"])
            last = self._layout[-1] if self._layout else {}
            if last.get("type") == "text" and "signature" not in last and not signature:
                last["chars"] += len(shown)  # type: ignore[operator]  # our own number
            elif shown or signature:
                self._layout.append({"type": "text", "chars": len(shown)})
            if shown:
                yield TextDelta(shown)
        else:
            return
        if isinstance(signature, str) and signature:
            self._layout[-1]["signature"] = signature

    def _call(self, given: dict[str, Any]) -> CallDelta:
        name = clean_text(given.get("name") or "")
        name = self._names.get(name, name)
        raw = dumps(given.get("args") or {}).decode()
        self._calls.append(ModelCall(given.get("id"), name, raw))
        return CallDelta(len(self._calls) - 1, name or None, raw)

    def rest(self) -> Iterator[ModelEvent]:
        """The last events, when no piece comes any more.

        Raises:
            ModelError: the answer has no end.
        """
        if not self.finish:
            raise ModelError("the server ended the answer without a finish reason", retryable=True)
        if shown := self._text.rest():
            if self._layout and self._layout[-1].get("type") == "text":
                self._layout[-1]["chars"] += len(shown)  # type: ignore[operator]  # our own number
            yield TextDelta(shown)
        if self.finish in _BROKEN_CALLS and not self._calls:
            yield self._broken_call()

    def _broken_call(self) -> CallDelta:
        """The call that could not be read, as one whose arguments are no JSON, so that the model is told (law 2.1)."""
        said = clean_text(self._message or self.finish)
        # The message quotes what the model wrote, such as ``print(default_api.look(a=``.
        quoted = _WORD.findall(said.partition("call:")[2])
        name = next((self._names[word] for word in quoted if word in self._names), "")
        self._calls.append(ModelCall(None, name, said))
        self._layout.append({"type": "call"})
        return CallDelta(len(self._calls) - 1, name or None, said)

    def spent(self) -> Usage:
        """What the turn has cost."""
        return _usage(self._usage)

    def turn(self, origin: str) -> ModelTurn:
        """The finished turn; its signatures are ``origin``'s."""
        stop: StopReason = _STOP.get(self.finish, "other")
        if self._blocked:
            stop = "refusal"
        elif self._calls and (stop == "end" or self.finish in _BROKEN_CALLS):
            stop = "calls"
        signed = any("signature" in place for place in self._layout)
        return ModelTurn(
            text=str(self._text),
            calls=tuple(self._calls),
            stop=stop,
            usage=self.spent(),
            model=self._model,
            reasoning=tagged(WIRE, origin, [*self._layout]) if signed else None,
        )


def _usage(given: object) -> Usage:
    """Tokens of thoughts are beside those of the answer, and tokens of a cache within those of the prompt."""
    if not isinstance(given, dict):
        return NO_USAGE
    thoughts = count(given.get("thoughtsTokenCount"))
    return Usage(
        count(given.get("promptTokenCount")) + count(given.get("toolUsePromptTokenCount")),
        count(given.get("candidatesTokenCount")) + thoughts,
        count(given.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
    )
