"""Port: a model. A request goes in, events come out; the last one is the finished turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from counterfoil.core.call import Offer
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.entries import MessageEntry, TurnEntry
from counterfoil.core.jsontext import JsonValue, loads
from counterfoil.core.media import read_as
from counterfoil.core.turn import NO_USAGE, Usage
from counterfoil.core.words import elided

Item: TypeAlias = "MessageEntry | TurnEntry | ResultEntry"
"""What a request holds, in reading order: messages, the model's turns, and each call's result."""

StopReason: TypeAlias = Literal["end", "calls", "length", "refusal", "other"]
"""Why a turn ended. ``length``: cut off by its token limit; ``refusal``: the provider stopped it for its content, or
the model refused. None of the calls of either runs (contract 2.1, decision 9)."""


@dataclass(slots=True, eq=False, repr=False)
class ModelRequest:
    """What a model is asked. Everything in it is the model's half: no details, no narration, no other thread."""

    instructions: str
    """The system text; may be empty."""
    history: Sequence[Item]
    """The conversation. It may grow after this request: only the first ``length`` items belong to it."""
    length: int
    tools: tuple[Offer, ...]
    run_id: str = ""
    turns: int = 0
    """Model turns that this run has in the request."""
    output_schema: dict[str, JsonValue] | None = None
    """JSON Schema that the answer should have, where the agent has an output type."""
    parameters: dict[str, JsonValue] = field(default_factory=dict)
    """The agent's own settings for the provider, such as temperature."""
    tool_choice: Literal["auto", "required", "none"] = "auto"
    elided: frozenset[int] = frozenset()
    """Positions in ``items`` of results that are shown as a pointer, to fit the context budget."""
    discarded: tuple[tuple[str, Usage], ...] = ()
    """Model and usage of answers that came to nothing; see `discard`."""

    def discard(self, model: str, usage: Usage) -> None:
        """Say what an answer has cost that breaks off: the run counts it, whatever becomes of the request."""
        self.discarded += ((model, usage),)

    @property
    def items(self) -> Sequence[Item]:
        """The items of this request."""
        return self.history if len(self.history) == self.length else self.history[: self.length]

    @property
    def messages(self) -> list[dict[str, JsonValue]]:
        """The request as plain dicts.

        Their keys are ``role``, ``content``, ``tool_calls`` (a list of ``id``, ``name``, ``arguments`` and
        ``arguments_raw``), ``tool_call_id``, ``tool_name`` and ``error``. What a wire would show as media is named in
        text here; a result that was left out to fit the context is its pointer.
        """
        out: list[dict[str, JsonValue]] = []
        if self.instructions:
            out.append({"role": "system", "content": self.instructions})
        for position, item in enumerate(self.items):
            match item:
                case MessageEntry():
                    said = "\n".join(map(read_as, item.blocks)) if item.blocks else item.text
                    out.append({"role": "system" if item.author_type == "System" else "user", "content": said})
                case TurnEntry():
                    message: dict[str, JsonValue] = {"role": "assistant", "content": item.text or None}
                    if item.calls:
                        message["tool_calls"] = [
                            {
                                "id": c.call_id,
                                "name": c.tool_name,
                                "arguments": arguments_of(c.raw),
                                "arguments_raw": c.raw,
                            }
                            for c in item.calls
                        ]
                    out.append(message)
                case _:
                    left_out = position in self.elided
                    text = elided(item.call_id, item.size) if left_out else item.result.model_output
                    out.append(
                        {
                            "role": "tool",
                            "content": text,
                            "tool_call_id": item.call_id,
                            "tool_name": item.tool_name,
                            "error": text if item.result.is_error else None,
                        }
                    )
        return out


def arguments_of(raw: str) -> JsonValue:
    """A call's arguments as a JSON object; ``{}`` where the text is none (the raw text stands beside it)."""
    return json_object(raw) or {}


def json_object(raw: str) -> dict[str, JsonValue] | None:
    """The JSON object that a text is; None where it is none."""
    try:
        value = loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the turn's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the turn's visible reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a call's arguments."""

    index: int
    tool_name: str | None
    text: str


@dataclass(slots=True)
class ModelCall:
    """A call as the provider gave it."""

    id: str | None
    """None or empty where the provider gives none; may repeat."""
    name: str
    arguments: str | None
    """The JSON text, untouched."""


@dataclass(slots=True)
class ModelTurn:
    """The finished turn."""

    text: str = ""
    calls: tuple[ModelCall, ...] = ()
    stop: StopReason = "end"
    usage: Usage = NO_USAGE
    model: str = ""
    """The model's name, as the provider reports it."""
    reasoning: JsonValue = None
    """Opaque items that this provider wants back, as ``{"wire": …, "origin": …, "items": […]}``: a record outlives a
    choice of model, and each adapter sends back only what has its own wire and origin (decision 30)."""


ModelEvent: TypeAlias = "TextDelta | ReasoningDelta | CallDelta | ModelTurn"


class Model(Protocol):
    """Anything that answers requests."""

    def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The answer as events: deltas in any number, then one ModelTurn, the last.

        Raises:
            ModelError: it could not be asked; ``retryable`` says whether asking again may help.
        """
