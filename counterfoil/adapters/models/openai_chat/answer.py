"""A streamed answer of the Chat Completions wire, put together from its pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from counterfoil.adapters.models.shared.counts import amount, count
from counterfoil.adapters.models.shared.pieces import Joined
from counterfoil.core.errors import ModelError
from counterfoil.core.jsontext import clean_text, dumps
from counterfoil.core.turn import NO_USAGE, Usage
from counterfoil.model import (
    CallDelta,
    ModelCall,
    ModelEvent,
    ModelTurn,
    ReasoningDelta,
    StopReason,
    TextDelta,
)

_STOP: Final[Mapping[str, StopReason]] = {
    # "end" or "calls" is decided by whether there are calls, since servers mix the two up.
    "stop": "end",
    "tool_calls": "end",
    "function_call": "end",
    "eos": "end",
    "eos_token": "end",
    "end_turn": "end",
    "stop_sequence": "end",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "refusal",
}


class _Call:
    """A call of which pieces come."""

    __slots__ = ("arguments", "id", "name", "place")

    def __init__(self, place: int, identity: str | None) -> None:
        self.place = place
        self.id = identity
        self.name = ""
        self.arguments = Joined()

    def add_name(self, name: str) -> None:
        # Some servers repeat the whole name; one that cuts it does so before the arguments.
        if name != self.name and not self.arguments.begun:
            self.name += name


class Answer:
    """The turn as its pieces make it. The work for a piece does not grow with the turn."""

    def __init__(self, model: str) -> None:
        self.finish = ""
        """The server's reason for the end; empty until it says so."""
        self._model = model
        self._text = Joined()
        self._reasoning = Joined()
        self._refused = False
        self._usage = NO_USAGE
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def add(self, chunk: Any) -> Iterator[ModelEvent]:
        """Take a chunk and give the events that it makes."""
        if not isinstance(chunk, dict):
            return
        if isinstance(chunk.get("model"), str) and chunk["model"]:
            self._model = chunk["model"]
        if isinstance(chunk.get("usage"), dict):
            self._usage = _usage(chunk["usage"])
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                continue
            delta = choice.get("delta") or {}
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            if isinstance(thought, str) and (piece := self._reasoning.add(thought)):
                yield ReasoningDelta(piece)
            for said in (delta.get("content"), delta.get("refusal")):
                if isinstance(said, str) and (piece := self._text.add(said)):
                    yield TextDelta(piece)
            self._refused = self._refused or bool(delta.get("refusal"))
            for fragment in delta.get("tool_calls") or ():
                yield self._add_call(fragment)
            self.finish = choice.get("finish_reason") or self.finish

    def _add_call(self, fragment: dict[str, Any]) -> CallDelta:
        function = fragment.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments")
        call = self._slot(fragment.get("index"), fragment.get("id") or None, name)
        call.add_name(name)
        if arguments is not None and not isinstance(arguments, str):
            arguments = dumps(arguments).decode()  # a server that sends the object itself
        return CallDelta(call.place, call.name or None, call.arguments.add(arguments or ""))

    def _slot(self, index: Any, identity: str | None, name: str) -> _Call:
        """The call that a fragment belongs to.

        By its index; without one by its id; without both it goes on with the last. A name together with
        another id begins a new call, since some servers give every call the index 0.
        """
        if isinstance(index, int):
            known = self._by_index.get(index)
        elif identity is not None:
            known = self._by_id.get(identity)
        else:
            known = self._calls[-1] if self._calls and not name else None
        if known is not None and not (name and identity and known.id and known.id != identity):
            known.id = known.id or identity
            return known
        call = _Call(index if isinstance(index, int) else len(self._calls), identity)
        self._calls.append(call)
        self._by_index[call.place] = call
        if identity is not None:
            self._by_id[identity] = call
        return call

    def rest(self) -> Iterator[ModelEvent]:
        """The last events, when no chunk comes any more.

        Raises:
            ModelError: the answer has no end.
        """
        if not self.finish:
            raise ModelError("the server ended the answer without a finish_reason", retryable=True)
        for call in self._calls:
            call.arguments.rest()
        self._reasoning.rest()
        if piece := self._text.rest():
            yield TextDelta(piece)

    def spent(self) -> Usage:
        """What the turn has cost."""
        return self._usage

    def turn(self) -> ModelTurn:
        """The finished turn."""
        stop = _STOP.get(self.finish, "other")
        if self._refused and stop == "end":
            stop = "refusal"
        if self._calls and stop == "end":
            stop = "calls"
        calls = sorted(self._calls, key=lambda c: c.place)  # stable: calls of one index stay as they came
        return ModelTurn(
            text=str(self._text),
            calls=tuple(ModelCall(c.id, clean_text(c.name), str(c.arguments)) for c in calls),
            stop=stop,
            usage=self._usage,
            model=self._model,
        )


def _usage(given: dict[str, Any]) -> Usage:
    read, written = given.get("prompt_tokens_details"), given.get("completion_tokens_details")
    return Usage(
        count(given.get("prompt_tokens")),
        count(given.get("completion_tokens")),
        count(read.get("cached_tokens")) if isinstance(read, dict) else 0,
        float(amount(given.get("cost"))),
        count(written.get("reasoning_tokens")) if isinstance(written, dict) else 0,
    )
