"""Models without a model: a script that you write, or the assistant turns of a recorded conversation.

Both choose their turn by the number of model turns that the run already has in the request, and keep nothing
between requests. So another process goes on where the first one died, and runs at once do not mix.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from counterfoil.core.entries import TurnEntry
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.core.turn import NO_USAGE, Usage
from counterfoil.core.words import elided
from counterfoil.model import (
    Item,
    ModelCall,
    ModelEvent,
    ModelRequest,
    ModelTurn,
    StopReason,
    TextDelta,
)
from counterfoil.transcripts.files import read_values, turn_of

_UNSET: Final[Any] = object()


@dataclass(frozen=True, slots=True)
class Say:
    """Text of a turn, made by `say`."""

    text: str
    stop: StopReason | None = None
    usage: Usage = NO_USAGE
    deltas: int = 1


def say(text: str, *, stop: StopReason | None = None, usage: Usage = NO_USAGE, deltas: int = 1) -> Say:
    """A turn with this text, or the text beside the calls of a turn.

    Args:
        text: what the model says; may be empty.
        stop: why the turn ends; None: ``calls`` where the turn has calls, else ``end``.
        usage: what the turn costs.
        deltas: pieces in which the text is streamed; 0 streams nothing before the finished turn.
    """
    if not isinstance(text, str):
        raise DefinitionError(f"say takes a str, got {type(text).__name__}; a call is made with call(…)")
    return Say(text, stop, usage, deltas)


def call(
    tool: str,
    arguments: Mapping[str, object] | None = None,
    /,
    *,
    id: str | None = None,
    raw: str | None = _UNSET,
    **named: object,
) -> ModelCall:
    """A call of a turn.

    Args:
        tool: the tool's name; it need not exist.
        arguments: arguments whose names are taken here, such as ``id``.
        id: the provider's id of the call; None as from one that gives none; two calls may have the same.
        raw: the arguments' JSON text, verbatim, in place of the others; may be broken, empty or None.
        **named: the arguments.
    """
    if raw is not _UNSET:
        if arguments or named:
            raise DefinitionError(f"call({tool!r}) has raw and arguments; give one of them")
        return ModelCall(id, tool, raw)
    return ModelCall(id, tool, dumps({**(arguments or {}), **named}).decode())


class SeenRequest:
    """A request as the model read it. It costs nothing until it is read: messages are made when asked for."""

    __slots__ = ("request",)

    def __init__(self, request: ModelRequest) -> None:
        self.request: Final = request
        """The request itself, as the port has it."""

    @property
    def messages(self) -> list[dict[str, JsonValue]]:
        """The conversation as dicts, instructions first; a result that was left out for space is its pointer.

        ``role``, ``content``, ``tool_calls`` [{``id``, ``name``, ``arguments``, ``arguments_raw``}],
        ``tool_call_id``, ``tool_name``, ``error``.
        """
        request = self.request
        messages = request.messages
        first = len(messages) - request.length
        for position in request.elided:
            item = request.history[position]
            if not isinstance(item, TurnEntry) and "tool_call_id" in (message := messages[first + position]):
                result = cast("Any", item)
                message["content"] = elided(result.call_id, result.size)
                message["error"] = message["content"] if message["error"] is not None else None
        return messages

    @property
    def tools(self) -> list[dict[str, JsonValue]]:
        """What was offered: ``{name, description, input_schema}`` each."""
        return [
            {"name": o.name, "description": o.description, "input_schema": o.input_schema} for o in self.request.tools
        ]

    @property
    def instructions(self) -> str:
        """The system text."""
        return self.request.instructions

    @property
    def items(self) -> Sequence[Item]:
        """The conversation as entries of the record."""
        return self.request.items

    @property
    def turns(self) -> int:
        """Model turns that the run has in the request."""
        return self.request.turns

    @property
    def run_id(self) -> str:
        """The run that asks."""
        return self.request.run_id

    @property
    def tool_choice(self) -> str:
        """``auto``, ``required`` or ``none``."""
        return self.request.tool_choice

    @property
    def parameters(self) -> dict[str, JsonValue]:
        """The agent's settings for the provider."""
        return self.request.parameters

    @property
    def output_schema(self) -> dict[str, JsonValue] | None:
        """JSON Schema that the answer should have, if any."""
        return self.request.output_schema

    def __repr__(self) -> str:
        return f"SeenRequest(turns={self.turns}, items={self.request.length}, tools={len(self.request.tools)})"


Piece: TypeAlias = "Say | ModelCall"
FixedTurn: TypeAlias = "Piece | Sequence[Piece] | ModelTurn"
TurnFunction: TypeAlias = Callable[[SeenRequest], "FixedTurn | Awaitable[FixedTurn]"]
Turn: TypeAlias = "FixedTurn | TurnFunction"
"""What a script is made of: `say`, `call`, a list of them, or a function of the request that returns such."""

_Played: TypeAlias = "tuple[tuple[TextDelta, ...], ModelTurn]"


class ScriptedModel:
    """A model that plays turns which you write.

        ScriptedModel([
            [call("get_order", order_id="W100", id="c1"), call("get_order", order_id="W101", id="c2")],
            lambda request: say(f"I read: {request.messages[-1]['content']}"),
        ])

    A turn is `say`, a `call`, a list of them, a finished `ModelTurn`, or a function of the request (see
    `SeenRequest`), sync or async, that returns one of these.

    Args:
        turns: the turns in order.
        across_runs: choose the turn by all model turns in the request, those of earlier runs of the
            interaction included, and not by those of this run alone.

    Raises:
        DefinitionError: a turn is none of these.
    """

    def __init__(self, turns: Sequence[Turn], *, across_runs: bool = False) -> None:
        if isinstance(turns, (str, Say, ModelCall)):
            raise DefinitionError(f"a script is a list of turns, got {type(turns).__name__}; put it into a list")
        self._turns: list[_Played | TurnFunction] = [_prepare(turn, n) for n, turn in enumerate(turns, 1)]
        self._across_runs = across_runs
        self._played: set[int] = set()
        self.requests: list[SeenRequest] = []
        """Each request as the model read it, in the order of asking."""

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The turn of the script that is due.

        Raises:
            ModelError: the script has no such turn.
        """
        seen = SeenRequest(request)
        self.requests.append(seen)
        number = sum(isinstance(item, TurnEntry) for item in request.items) if self._across_runs else request.turns
        if number >= len(self._turns):
            raise ModelError(
                f"turn {number + 1} was asked of a script that has {len(self._turns)}; "
                "add a turn, or find out why the run did not end"
            )
        self._played.add(number)
        turn = self._turns[number]
        if callable(turn):
            made = turn(seen)
            turn = _fixed(await made if inspect.isawaitable(made) else made, number + 1)
        deltas, finished = turn
        for delta in deltas:
            yield delta
        yield finished

    def assert_complete(self) -> None:
        """Check that every turn was played.

        Raises:
            AssertionError: some were not; the message names them, from 1.
        """
        missing = [n for n in range(len(self._turns)) if n not in self._played]
        if missing:
            named = "; ".join(f"turn {n + 1}: {_summary(self._turns[n])}" for n in missing)
            raise AssertionError(f"{len(missing)} of {len(self._turns)} turns were not played: {named}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._turns)} turns, {len(self._played)} played)"


class RecordedModel(ScriptedModel):
    """A model that plays the assistant turns of a recorded conversation; the other messages are passed over.

    Args:
        messages: ``{"role": "assistant", "content": str or null, "tool_calls": [{"id": str or null, "name",
            "arguments", "arguments_raw"}]}`` and messages of other roles. ``arguments_raw``, where it is
            present, is given verbatim in place of ``arguments``; a null id stays None.
        across_runs: as in `ScriptedModel`.

    Raises:
        DefinitionError: an assistant message does not have this form.
    """

    def __init__(self, messages: Sequence[Mapping[str, Any]], *, across_runs: bool = False) -> None:
        turns = [
            turn_of(message, f"message {n}")
            for n, message in enumerate(messages, 1)
            if isinstance(message, Mapping) and message.get("role") == "assistant"
        ]
        super().__init__(turns, across_runs=across_runs)


def _prepare(turn: Turn, number: int) -> _Played | TurnFunction:
    return turn if callable(turn) else _fixed(turn, number)


def _fixed(turn: FixedTurn, number: int) -> _Played:
    if isinstance(turn, ModelTurn):
        return ((TextDelta(turn.text),) if turn.text else ()), turn
    pieces: Sequence[Piece] = (turn,) if isinstance(turn, (Say, ModelCall)) else turn
    if not isinstance(pieces, (list, tuple)) or not pieces:
        raise DefinitionError(
            f"turn {number} of the script is {turn!r:.80}; expected say(…), call(…), a list of at least one, "
            "or a function that returns one of these"
        )
    for piece in pieces:
        if not isinstance(piece, (Say, ModelCall)):
            raise DefinitionError(f"turn {number} of the script holds {piece!r:.80}; expected say(…) or call(…)")
    says = [piece for piece in pieces if isinstance(piece, Say)]
    calls = tuple(piece for piece in pieces if isinstance(piece, ModelCall))
    stop = next((s.stop for s in says if s.stop is not None), "calls" if calls else "end")
    finished = ModelTurn(
        text="".join(s.text for s in says),
        calls=calls,
        stop=stop,
        usage=sum((s.usage for s in says), NO_USAGE),
        model="scripted",
    )
    return tuple(TextDelta(text) for s in says for text in _split(s.text, s.deltas)), finished


def _split(text: str, parts: int) -> list[str]:
    """``text`` in ``parts`` pieces of about one length; never an empty one."""
    if not text or parts < 1:
        return []
    size = -(-len(text) // parts)
    return [text[i : i + size] for i in range(0, len(text), size)]


def _summary(turn: _Played | TurnFunction) -> str:
    if callable(turn):
        return f"the function {getattr(turn, '__name__', type(turn).__name__)}"
    finished = turn[1]
    said = [f"say({finished.text!r:.40})"] if finished.text or not finished.calls else []
    return ", ".join([*said, *(f"call({c.name!r})" for c in finished.calls)])


# ----------------------------------------------------------------------------------------------- files


_OF_A_TURN = ("content", "tool_calls", "stop", "usage")


def open_scripted(spec: str, **settings: Any) -> ScriptedModel:
    """The model ``scripted:FILE``.

    The file is a JSON array of turns, or JSON Lines with a turn a line. A turn is a string (what the model
    says) or an object ``{"content": str or null, "tool_calls": [{"id", "name", "arguments" or
    "arguments_raw"}], "stop", "usage": {"input_tokens", "output_tokens", "cached_tokens", "cost"}}`` in which
    every field may be absent, though not all.

    Args:
        spec: ``scripted:FILE`` or the file alone.
        **settings: those of `ScriptedModel`.

    Raises:
        DefinitionError: the file cannot be read or holds something else; the message names the place.
    """
    path = Path(spec.removeprefix("scripted:"))
    turns: list[Turn] = []
    for value, place in read_values(path):
        if isinstance(value, dict) and not value.keys() & {*_OF_A_TURN}:
            raise DefinitionError(f"{place} has none of {', '.join(_OF_A_TURN)}; got {', '.join(value) or 'nothing'}")
        turns.append(say(value) if isinstance(value, str) else turn_of(value, place))
    return ScriptedModel(turns, **settings)


def open_recorded(spec: str, **settings: Any) -> RecordedModel:
    """The model ``recorded:FILE`` or ``recorded:FILE#RUN``.

    The file is a JSON array of messages or JSON Lines with a message a line, in the form of `RecordedModel`;
    or an object with ``messages``, or JSON Lines with such an object a line, each one run. Where there are
    several runs, ``#RUN`` chooses one by its ``id`` or by its number from 0.

    Args:
        spec: ``recorded:FILE`` or ``recorded:FILE#RUN``, or the same without the scheme.
        **settings: those of `RecordedModel`.

    Raises:
        DefinitionError: the file cannot be read or holds something else, or no one run is chosen.
    """
    name, chosen = spec.removeprefix("recorded:"), ""
    if "#" in name and not Path(name).is_file():
        name, _, chosen = name.rpartition("#")
    rows = read_values(Path(name))
    for value, place in rows:
        if not isinstance(value, dict):
            raise DefinitionError(f"{place} is {type(value).__name__}; expected a message or an object with messages")
    values = [cast("dict[str, Any]", value) for value, _ in rows]
    runs = [value for value in values if isinstance(value.get("messages"), list)]
    if not runs:
        if not any(value.get("role") == "assistant" for value in values):
            raise DefinitionError(f"{name} holds no message of the role assistant, so there is nothing to play")
        return RecordedModel(values, **settings)
    return RecordedModel(_choose(runs, chosen, name)["messages"], **settings)


def _choose(runs: list[dict[str, Any]], chosen: str, name: str) -> dict[str, Any]:
    if not chosen and len(runs) == 1:
        return runs[0]
    for number, run in enumerate(runs):
        if chosen and chosen in (str(run.get("id")), str(number)):
            return run
    what = f"no run {chosen!r} in {name}" if chosen else f"{name} holds {len(runs)} runs"
    raise DefinitionError(f"{what}; choose one with recorded:{name}#N, N from 0 to {len(runs) - 1}, or by its id")
