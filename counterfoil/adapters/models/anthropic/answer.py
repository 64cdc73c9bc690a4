"""An answer of the Messages wire, streamed or whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from counterfoil.adapters.models.anthropic.request import WIRE
from counterfoil.adapters.models.shared.counts import count
from counterfoil.adapters.models.shared.layout import BETWEEN
from counterfoil.adapters.models.shared.opaque import tagged
from counterfoil.adapters.models.shared.pieces import Joined
from counterfoil.core.errors import ModelError
from counterfoil.core.jsontext import JsonValue, clean_text, dumps
from counterfoil.core.turn import Usage
from counterfoil.model import CallDelta, ModelCall, ModelEvent, ModelTurn, ReasoningDelta, StopReason, TextDelta

_STOP: Final[Mapping[str, StopReason]] = {
    # "end" or "calls" is decided by whether there are calls.
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "end",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
"""Other reasons are "other": of a turn that paused on the server's own tools we cannot ask for the rest."""


class _Block:
    """A block of which pieces come."""

    __slots__ = ("given", "kind", "number", "text")

    def __init__(self, given: dict[str, Any], number: int) -> None:
        self.kind = given.get("type")
        self.given = given
        """As it began; of thinking the signature is added."""
        self.number = number
        """Of a call."""
        self.text = Joined()
        """Of a text or thinking its text, of a call its arguments."""

    def opaque(self) -> dict[str, JsonValue] | None:
        """Thinking as it goes back; None where it was cut off before its signature."""
        if self.kind == "redacted_thinking":
            return {"type": "redacted_thinking", "data": self.given.get("data") or ""}
        signature = self.given.get("signature")
        return {"type": "thinking", "thinking": str(self.text), "signature": signature} if signature else None


class Answer:
    """The turn as its events make it. The work for an event does not grow with the turn.

    Args:
        model: the name that counts where the server tells none.
        answer: the name of the tool that a model calls to answer.
    """

    def __init__(self, model: str, answer: str | None = None) -> None:
        self.finish = ""
        """The server's reason for the end; empty until it comes."""
        self._model = model
        self._answer = answer
        self._blocks: dict[object, _Block] = {}
        self._shown = Joined()
        """The text of the turn."""
        self._layout: list[_Block | dict[str, JsonValue]] = []
        """What came in which order: blocks of thinking, and of the others what our record does not say."""
        self._run: dict[str, JsonValue] | None = None
        """The newest place of the layout, where it is a text."""
        self._calls = 0
        self._usage: dict[str, Any] = {}
        self._refused = ""
        """What the server says of a refusal."""

    def add(self, piece: object) -> Iterator[ModelEvent]:
        """Take an event, or a whole message, and give the events that it makes."""
        if not isinstance(piece, dict):
            return
        match piece.get("type"):
            case "message_start":
                self._take(piece["message"])
            case "content_block_start":
                yield from self._begin(piece.get("index"), piece["content_block"])
            case "content_block_delta":
                yield from self._grow(piece.get("index"), piece["delta"])
            case "content_block_stop":
                yield from self._end(piece.get("index"))
            case "message_delta":
                self._take(piece["delta"])
                self._spend(piece.get("usage"))
            case "message_stop":
                self.finish = self.finish or "end_turn"
            case "message":
                for index, block in enumerate(piece["content"]):
                    yield from self._begin(index, block)
                    yield from self._end(index)
                self._take(piece)
                self.finish = self.finish or "end_turn"
            case _:
                pass

    def _take(self, said: dict[str, Any]) -> None:
        """What a message, or the end of one, says of the whole turn."""
        self._model = said.get("model") or self._model
        self.finish = said.get("stop_reason") or self.finish
        self._refused = (said.get("stop_details") or {}).get("explanation") or self._refused
        self._spend(said.get("usage"))

    def _spend(self, usage: object) -> None:
        if isinstance(usage, dict):  # each number is that of the whole turn so far
            self._usage |= {name: value for name, value in usage.items() if value is not None}

    def _begin(self, index: object, given: dict[str, Any]) -> Iterator[ModelEvent]:
        kind = given.get("type")
        counts = kind == "tool_use" and given.get("name") != self._answer
        block = self._blocks[index] = _Block(dict(given), self._calls)
        self._calls += counts
        match kind:
            case "text":
                yield from self._grow(index, {"type": "text_delta", "text": given.get("text") or ""})
            case "thinking":
                self._place(block)
                yield from self._grow(index, {"type": "thinking_delta", "thinking": given.get("thinking") or ""})
            case "redacted_thinking":
                self._place(block)
            case "tool_use":
                if counts:
                    self._place({"type": "call"})
                if given.get("input"):  # whole; it is empty where pieces follow
                    yield from self._write(block, dumps(given["input"]).decode())
            case _:
                pass

    def _place(self, item: _Block | dict[str, JsonValue]) -> None:
        self._layout.append(item)
        self._run = None

    def _grow(self, index: object, delta: dict[str, Any]) -> Iterator[ModelEvent]:
        block = self._blocks[index]
        match delta.get("type"):
            case "text_delta":
                yield from self._say(block.text.add(delta["text"]))
            case "thinking_delta":
                if piece := block.text.add(delta["thinking"]):
                    yield ReasoningDelta(piece)
            case "signature_delta":
                block.given["signature"] = (block.given.get("signature") or "") + delta["signature"]
            case "input_json_delta":
                yield from self._write(block, delta["partial_json"])
            case _:
                pass

    def _say(self, piece: str) -> Iterator[ModelEvent]:
        if not piece:
            return
        if self._run is None:
            if self._shown.begun:
                yield TextDelta(self._shown.add(BETWEEN))
            self._run = {"type": "text", "chars": 0}
            self._layout.append(self._run)
        self._run["chars"] = int(str(self._run["chars"])) + len(piece)
        yield TextDelta(self._shown.add(piece))

    def _write(self, block: _Block, text: str) -> Iterator[ModelEvent]:
        piece = block.text.add(text)
        name = clean_text(block.given.get("name") or "")
        if block.kind == "tool_use" and name != self._answer and piece:
            yield CallDelta(block.number, name or None, piece)

    def _end(self, index: object) -> Iterator[ModelEvent]:
        block = self._blocks.get(index)
        half = block.text.rest() if block is not None else ""
        if half and block is not None and block.kind == "text":
            yield from self._say(half)

    def rest(self) -> Iterator[ModelEvent]:
        """The last events, when no event comes any more.

        Raises:
            ModelError: the answer has no end.
        """
        if not self.finish:
            raise ModelError("the server ended the answer without a reason for its end", retryable=True)
        for index in self._blocks:
            yield from self._end(index)

    def turn(self, origin: str) -> ModelTurn:
        """The finished turn; its thinking is ``origin``'s. An answer by call is its text, and no call."""
        called = [block for block in self._blocks.values() if block.kind == "tool_use"]
        calls = [block for block in called if block.given.get("name") != self._answer]
        answers = [str(block.text) for block in called if block.given.get("name") == self._answer]
        stop = _STOP.get(self.finish, "other")
        text = answers[0] if answers and not calls else str(self._shown)
        return ModelTurn(
            text=text or (clean_text(self._refused) if stop == "refusal" else ""),
            calls=tuple(
                ModelCall(
                    clean_text(c.given["id"]) if isinstance(c.given.get("id"), str) else None,
                    clean_text(c.given.get("name") or ""),
                    str(c.text),
                )
                for c in calls
            ),
            stop="calls" if stop == "end" and calls else stop,
            usage=self.spent(),
            model=self._model,
            reasoning=self._kept(origin),
        )

    def _kept(self, origin: str) -> JsonValue:
        """The layout, where there is thinking in it."""
        out: list[JsonValue] = []
        worth = False
        for place in self._layout:
            kept = place.opaque() if isinstance(place, _Block) else place
            if kept is not None:
                worth = worth or isinstance(place, _Block)
                out.append(kept)
        return tagged(WIRE, origin, out) if worth else None

    def spent(self) -> Usage:
        """What the turn has cost. The API counts what came from a cache, or went into it, beside the other input."""
        read, written = self._count("cache_read_input_tokens"), self._count("cache_creation_input_tokens")
        details = self._usage.get("output_tokens_details")
        return Usage(
            self._count("input_tokens") + read + written,
            self._count("output_tokens"),
            read,
            reasoning_tokens=count(details.get("thinking_tokens")) if isinstance(details, dict) else 0,
        )

    def _count(self, name: str) -> int:
        return count(self._usage.get(name))
