"""A conversation between the forms in which it comes and goes: who said what, each call, each result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from counterfoil.core.content import Block, Text, block_text
from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import JsonValue, clean_text
from counterfoil.core.media import shown_as
from counterfoil.core.outcome import ToolFailure
from counterfoil.core.result import NO_OUTPUT
from counterfoil.model import ModelTurn

RepairKind: TypeAlias = Literal[
    "unanswered",
    "orphan-result",
    "doubled-result",
    "moved-result",
    "other-id",
    "duplicate-id",
    "empty",
    "left-out",
]
"""What was wrong: a call without a result, a result without a call, a second result of a call, a result out of its
place, one that names another id than its call, an id that two calls of a turn share, a message without content, or
what our record has no place for."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing that an import changed."""

    kind: RepairKind
    place: str
    """Where in what was given, such as ``messages[3]``."""
    why: str
    """What was found, and what became of it."""
    removed: JsonValue = None
    """What is in the conversation no more."""

    def to_json(self) -> dict[str, JsonValue]:
        """The repair by field."""
        return {"kind": self.kind, "place": self.place, "why": self.why, "removed": self.removed}


@dataclass(frozen=True, slots=True)
class Said:
    """A message of anybody but the model."""

    text: str
    role: Literal["user", "system"] = "user"
    place: str = field(default="", compare=False)
    blocks: tuple[Block, ...] = ()
    """What it consists of, where it is more than text; in its text media are placeholders."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A turn of the model."""

    turn: ModelTurn
    place: str = field(default="", compare=False)
    thought: str = ""
    """What people may see of its reasoning; no model reads it again."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a call."""

    call_id: str | None
    """The id that the call has; None or empty where the form gives none."""
    content: tuple[Block, ...]
    failure: ToolFailure | None = None
    """None where nothing says that the call failed."""
    tool_name: str | None = None
    place: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """What a model reads of it; never empty."""
        text = "\n".join(map(block_text, self.content))
        return text if text.strip() else NO_OUTPUT


Part: TypeAlias = "Said | Reply | Answered"


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation as a file or a program gave it, or as it is on record."""

    items: tuple[Part, ...]
    instructions: str = ""
    """The system text before all; may be empty."""
    model: str = ""
    """The model that made its turns, where that is known."""
    format: str = ""
    """The form from which it was read."""
    source: str = ""
    """What the file calls it."""
    repairs: tuple[Repair, ...] = ()


class Reading:
    """What is common to the readers: places, notes on what has no place on our record, and errors."""

    def __init__(self) -> None:
        self.items: list[Part] = []
        self.notes: list[Repair] = []

    def leave(self, place: str, what: str, removed: JsonValue) -> None:
        """Note what cannot stand in the conversation."""
        self.notes.append(Repair("left-out", place, f"{what} has no place in the conversation on record", removed))

    def rest(self, place: str, given: Mapping[str, JsonValue], known: frozenset[str]) -> None:
        """Note fields that say something and that nobody here reads."""
        more: dict[str, JsonValue] = {k: v for k, v in given.items() if k not in known and v not in (None, "", [], {})}
        if more:
            self.leave(place, f"the field {', '.join(more)}", more)

    def say(self, text: str, role: Literal["user", "system"], place: str) -> None:
        """Take in a message of somebody but the model."""
        self.items.append(Said(clean_text(text), role, place))

    def tell(self, blocks: Sequence[tuple[str, Block]], role: Literal["user", "system"]) -> None:
        """Take in the pieces of a message, each with its place: texts one by one, or all in one with its media."""
        if any(shown_as(block) for _, block in blocks):
            whole = tuple(block for _, block in blocks)
            self.items.append(Said("\n".join(map(block_text, whole)), role, blocks[0][0], whole))
            return
        for place, block in blocks:
            self.say(block_text(block), role, place)

    def blocks(
        self, content: JsonValue, place: str, texts: Collection[str], medium: Callable[..., Block | None], one: str
    ) -> Iterator[Block]:
        """The blocks of a result; what is none that we know is named, and noted.

        Args:
            content: a text, or a list of parts.
            place: where it stands.
            texts: types of parts that are texts.
            medium: makes a block of any other part and its place; None: it is none that we know.
            one: what the form calls a part.
        """
        if isinstance(content, str):
            yield Text(text(content, place))
            return
        for at, part in objects(content, place):
            block = Text(text(part.get("text"), at)) if part.get("type") in texts else medium(part, at)
            if block is None:
                self.leave(at, f"a {one} of type {part.get('type')}", part)
                block = Text(f"[{part.get('type')}]")
            yield block

    def shown(self, block: Block | None, part: dict[str, JsonValue], place: str) -> Block:
        """A medium of a message; a text that names it, and a note, where it is of no kind that providers read."""
        if block is not None and shown_as(block):
            return block
        self.leave(place, f"a part of type {part.get('type')}", part)
        return Text(block_text(block) if block is not None else f"[{part.get('type')}]")


def joined(transcript: Transcript) -> Transcript:
    """The system's messages before all others as the instructions."""
    items, texts = list(transcript.items), [transcript.instructions] if transcript.instructions else []
    while items and isinstance(items[0], Said) and items[0].role == "system":
        texts.append(items.pop(0).text)  # type: ignore[union-attr]  # just seen
    return replace(transcript, items=tuple(items), instructions="\n\n".join(texts))


def wrong(place: str, expected: str, came: object) -> DefinitionError:
    """The error of a message that cannot be read."""
    kind = "nothing" if came is None else f"{came!r:.60}" if isinstance(came, str) else type(came).__name__
    return DefinitionError(f"{place}: expected {expected}, got {kind}")


def obj(value: JsonValue, place: str) -> dict[str, JsonValue]:
    """An object, or the error."""
    if not isinstance(value, dict):
        raise wrong(place, "an object", value)
    return value


def array(value: JsonValue, place: str) -> list[JsonValue]:
    """A list, or the error; nothing is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(place, "a list", value)
    return value


def objects(values: JsonValue, place: str) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    """The objects of a list, each with its place; or the error, as of `array` and `obj`."""
    for number, value in enumerate(array(values, place)):
        at = f"{place}[{number}]"
        yield at, obj(value, at)


def text(value: JsonValue, place: str) -> str:
    """A text that can be stored, or the error."""
    if not isinstance(value, str):
        raise wrong(place, "a text", value)
    return clean_text(value)


def id_of(value: JsonValue, place: str) -> str | None:
    """The id of a call: a text or nothing."""
    return None if value is None else text(value, place)


def failed(message: str) -> ToolFailure:
    """The failure of a call of which a transcript says no more than that it failed."""
    return ToolFailure(message=message, body="unknown")


def plain(content: str) -> tuple[Block, ...]:
    """A result of this text."""
    return (Text(content),)
