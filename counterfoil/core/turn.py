"""Who speaks, in which thread, who sees it, and what a turn cost (contract 1.2 and 9)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias, cast
from uuid import UUID, uuid5

from counterfoil.core.jsontext import JsonValue

AuthorType: TypeAlias = Literal["Human", "Agent", "System"]

_NAMESPACE = UUID("6f0f3c2e-51c3-5d0f-9d5a-2f4b1a7c8e10")
"""Ours; a participant's id is derived from it, so that every reader computes the same."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(at: int) -> datetime:
    """The UTC time of ``at`` microseconds since 1970; exact."""
    return _EPOCH + timedelta(microseconds=at)


def micros(at: datetime) -> int:
    """Microseconds since 1970 of a time; what `moment` takes back."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def date_json(date: datetime) -> str:
    """A UTC time as ``2026-10-26T12:00:00.0000000Z``, seven decimals always (contract 1.4)."""
    return f"{date:%Y-%m-%dT%H:%M:%S}.{date.microsecond:06d}0Z"


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote an item."""

    id: str
    """A UUID, the same for the same type and name in a tenant."""
    name: str
    type: AuthorType


@functools.lru_cache(maxsize=4096)  # a run asks for its people and agents again and again
def author(kind: AuthorType, name: str, tenant: str) -> Author:
    """The participant of this type and name."""
    return Author(str(uuid5(_NAMESPACE, f"{tenant}\x1f{kind}\x1f{name}")), name, kind)


def participants_json(who: Iterable[Author]) -> JsonValue:
    """Participants as a store keeps them, each once; the tenant is its row's."""
    return [[one.type, one.name] for one in joined((), who)]


def participants_from_json(data: JsonValue, tenant: str) -> tuple[Author, ...]:
    """The participants that `participants_json` wrote."""
    return tuple(author(kind, name, tenant) for kind, name in cast("list[tuple[AuthorType, str]]", data or []))


def joined(there: Iterable[Author], new: Iterable[Author]) -> tuple[Author, ...]:
    """Participants, each once, in the order of their coming."""
    return tuple({one.id: one for one in (*there, *new)}.values())


_PARTICIPANT = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_THREAD = re.compile(rf"(private):({_PARTICIPANT})|(dispatch|question):({_PARTICIPANT}):([0-9A-Za-z_.-]+)")


def thread_kind(thread_id: str | None) -> Literal["main", "private", "dispatch", "question"]:
    """The kind of a thread.

    Raises:
        ValueError: ``thread_id`` is outside the grammar.
    """
    if thread_id is None:
        return "main"
    match = _THREAD.fullmatch(thread_id)
    if match is None:
        raise ValueError(
            "expected null, private:<participant>, dispatch:<participant>:<id> or "
            f"question:<participant>:<id>, got {thread_id!r}"
        )
    kind = match[1] or match[3]
    return "private" if kind == "private" else "dispatch" if kind == "dispatch" else "question"


def thread_named(name: str) -> str | None:
    """The thread that a reader asks for by its name: ``main`` is the main one.

    Raises:
        ValueError: as `thread_kind`.
    """
    thread_id = None if name == "main" else name
    thread_kind(thread_id)
    return thread_id


def sees_thread(participant_id: str, thread_id: str | None) -> bool:
    """Whether this participant may read the thread: the main one and its own, never another's."""
    return thread_kind(thread_id) == "main" or str(thread_id).split(":")[1] == participant_id


@dataclass(frozen=True, slots=True)
class Usage:
    """What a turn cost, as the provider counts it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float = 0.0
    reasoning_tokens: int = 0
    """Those of the output that nobody sees."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cost + other.cost,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def facts(self) -> tuple[float, ...]:
        """As a body holds it: its numbers in their order, the last left out where it is 0."""
        most = self.input_tokens, self.output_tokens, self.cached_tokens, self.cost
        return (*most, self.reasoning_tokens) if self.reasoning_tokens else most

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


NO_USAGE = Usage()

RUNS_NOTHING = ("length", "refusal")
"""Stops of a turn none of whose calls runs: its token limit cut it off, or the provider or the model refused."""
