"""An answer of the Responses wire, streamed or whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from counterfoil.adapters.models.openai.request import WIRE
from counterfoil.adapters.models.shared.counts import count
from counterfoil.adapters.models.shared.layout import BETWEEN
from counterfoil.adapters.models.shared.opaque import tagged
from counterfoil.adapters.models.shared.pieces import Joined
from counterfoil.core.errors import ModelError
from counterfoil.core.jsontext import JsonValue, clean_text, dumps
from counterfoil.core.turn import NO_USAGE, Usage
from counterfoil.model import CallDelta, ModelCall, ModelEvent, ModelTurn, ReasoningDelta, StopReason, TextDelta

_STOP: Final[Mapping[str, StopReason]] = {"max_output_tokens": "length", "content_filter": "refusal"}
"""Why an answer is incomplete."""
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_OPAQUE: Final = ("type", "id", "summary", "content", "encrypted_content")
"""Fields of a reasoning item that go back; its status is none of a request's."""


class Answer:
    """The turn as its events make it. What counts is the whole item at its end; deltas are for whoever watches."""

    def __init__(self, model: str) -> None:
        self.finish = ""
        """The status at the end; empty until it comes."""
        self.failed: dict[str, Any] | None = None
        """What the server said of an answer that failed: its ``code`` and ``message``."""
        self._model = model
        self._shown = Joined()
        self._thought = Joined()
        self._message: object = None
        """The output index of the message that was shown last."""
        self._pieces: dict[object, Joined] = {}
        """Arguments by output index, for the halves of characters."""
        self._calls: dict[object, tuple[int, str]] = {}
        """Number and name of the calls, by output index."""
        self._items: dict[object, dict[str, Any]] = {}
        self._response: dict[str, Any] = {}

    def add(self, piece: object) -> Iterator[ModelEvent]:
        """Take an event, or a whole response, and give the events that it makes."""
        if not isinstance(piece, dict):
            return
        kind = piece.get("type")
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            yield from self._show(piece.get("output_index"), piece["delta"])
        elif kind == "response.function_call_arguments.delta":
            yield self._show_call(piece.get("output_index"), piece["delta"])
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            if shown := self._thought.add(piece["delta"]):
                yield ReasoningDelta(shown)
        elif kind == "response.output_item.added":
            item = piece["item"]
            if item.get("type") == "function_call":
                self._calls[piece.get("output_index")] = len(self._calls), item.get("name") or ""
        elif kind == "response.output_item.done":
            self._items[piece.get("output_index")] = piece["item"]
        elif kind == "error":
            self.finish, self.failed = "failed", piece
        elif kind in _ENDS:
            self._end(piece["response"])
        elif kind is None and piece.get("object") == "response":
            yield from self._whole(piece)

    def _show(self, index: object, delta: str) -> Iterator[ModelEvent]:
        if index != self._message:
            if self._shown.begun:
                yield TextDelta(self._shown.add(BETWEEN))
            self._message = index
        if shown := self._shown.add(delta):
            yield TextDelta(shown)

    def _show_call(self, index: object, delta: str) -> CallDelta:
        number, name = self._calls.setdefault(index, (len(self._calls), ""))
        return CallDelta(number, name or None, self._pieces.setdefault(index, Joined()).add(delta))

    def _whole(self, response: dict[str, Any]) -> Iterator[ModelEvent]:
        self._end(response)
        text = self.failed is None and _text(self._output())
        if text:
            yield TextDelta(text)

    def _end(self, response: dict[str, Any]) -> None:
        self.finish, self._response = response.get("status") or "completed", response
        if self.finish in ("failed", "cancelled"):
            self.failed = response.get("error") or {"message": f"the response is {self.finish}"}

    def rest(self) -> Iterator[ModelEvent]:
        """The last events, when no event comes any more.

        Raises:
            ModelError: the answer has no end.
        """
        if self.finish not in ("completed", "incomplete", "failed", "cancelled"):
            raise ModelError("the server ended the answer without a completed response", retryable=True)
        if shown := self._shown.rest():
            yield TextDelta(shown)

    def _output(self) -> list[dict[str, Any]]:
        """The items of the answer: those of its end, else those that came one by one."""
        whole = self._response.get("output")
        if isinstance(whole, list) and whole:
            return [item for item in whole if isinstance(item, dict)]
        return list(self._items.values())

    def spent(self) -> Usage:
        """What the turn has cost; the wire says it at its end."""
        return _usage(self._response.get("usage"))

    def turn(self, origin: str) -> ModelTurn:
        """The finished turn; its reasoning is ``origin``'s."""
        output = self._output()
        calls = [item for item in output if item.get("type") == "function_call"]
        refused = any(part.get("type") == "refusal" for item in output for part in _content(item))
        stop: StopReason = "refusal" if refused else "calls" if calls else "end"
        if self.finish == "incomplete":
            # Of whatever is incomplete the last call may be half of one, which must not run.
            why = (self._response.get("incomplete_details") or {}).get("reason", "")
            stop = _STOP.get(why, "length" if calls else "other")
        layout = list(_layout(output))
        worth = any(place["type"] == "reasoning" or "phase" in place for place in layout)
        return ModelTurn(
            text=_text(output),
            calls=tuple(
                ModelCall(c.get("call_id"), clean_text(c.get("name") or ""), _arguments(c.get("arguments")))
                for c in calls
            ),
            stop=stop,
            usage=self.spent(),
            model=self._response.get("model") or self._model,
            reasoning=tagged(WIRE, origin, [*layout]) if worth else None,
        )


def _arguments(given: object) -> str | None:
    if given is None or isinstance(given, str):
        return None if given is None else clean_text(given)
    return dumps(given).decode()  # a server that sends the object itself


def _content(item: dict[str, Any]) -> list[dict[str, Any]]:
    content = item.get("content") if item.get("type") == "message" else None
    return [part for part in content or () if isinstance(part, dict)]


def _said(item: dict[str, Any]) -> str:
    parts = (part.get("text") or part.get("refusal") or "" for part in _content(item))
    return clean_text("".join(parts))


def _text(output: list[dict[str, Any]]) -> str:
    return BETWEEN.join(text for item in output if (text := _said(item)))


def _layout(output: list[dict[str, Any]]) -> Iterator[dict[str, JsonValue]]:
    """The items of an answer in their order: reasoning as it came, of the others what our record does not say."""
    for item in output:
        match item.get("type"):
            case "reasoning" if item.get("encrypted_content") or item.get("content"):
                # Without either it is but a pointer to what the server has not stored.
                kept = {name: item[name] for name in _OPAQUE if item.get(name) is not None}
                yield {"id": "", "summary": [], **kept}
            case "message" if text := _said(item):
                place: dict[str, JsonValue] = {"type": "message", "chars": len(text)}
                yield place | ({"phase": item["phase"]} if item.get("phase") else {})
            case "function_call":
                yield {"type": "call"}
            case _:
                pass


def _usage(given: object) -> Usage:
    if not isinstance(given, dict):
        return NO_USAGE
    read, written = given.get("input_tokens_details"), given.get("output_tokens_details")
    return Usage(
        count(given.get("input_tokens")),
        count(given.get("output_tokens")),
        count(read.get("cached_tokens")) if isinstance(read, dict) else 0,
        reasoning_tokens=count(written.get("reasoning_tokens")) if isinstance(written, dict) else 0,
    )
