"""What the check of a record reads and says: rows as they are stored, facts of their bodies, problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, get_args

from counterfoil.core.jsontext import JsonValue, loads
from counterfoil.core.usual import filled

Kind: TypeAlias = Literal[
    "changed-bytes",
    "broken-chain",
    "unreadable",
    "column",
    "missing-result",
    "doubled-result",
    "doubled-start",
    "orphan-result",
    "approval",
    "sequence",
    "order",
    "dropped-tail",
    "kept",
    "child",
    "summary",
]
"""What can be wrong with a record; the names are a promise."""

KINDS: tuple[Kind, ...] = get_args(Kind)

Found: TypeAlias = "tuple[Kind, str]"
"""A problem before its place is known: kind and sentence."""

Facts: TypeAlias = "dict[str, JsonValue]"
"""The parsed body of an entry."""


class Tip(Protocol):
    """Where an entry stands, and its hash: the end of an interaction's chain, as it was once."""

    @property
    def tenant(self) -> str: ...
    @property
    def interaction_id(self) -> str: ...
    @property
    def entry(self) -> int: ...
    @property
    def hash(self) -> bytes: ...


class Row(Tip, Protocol):
    """One entry exactly as it lies in a store. Its columns may differ from its body: that is checked."""

    @property
    def run_id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def sequence(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def content(self) -> bytes | None: ...
    @property
    def erased_at(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Problem:
    """One law that a record breaks, where, and how."""

    kind: Kind
    tenant: str
    interaction_id: str | None
    """None for a text kept apart to which no entry points."""
    entry: int | None
    """The entry at fault; for a missing result, the turn that made the call."""
    run_id: str | None
    call_id: str | None
    message: str
    """One sentence for the operator."""

    def to_json(self) -> dict[str, JsonValue]:
        """The problem by field, in camelCase."""
        return {
            "kind": self.kind,
            "tenant": self.tenant,
            "interactionId": self.interaction_id,
            "entry": self.entry,
            "runId": self.run_id,
            "callId": self.call_id,
            "message": self.message,
        }


def read_facts(body: bytes) -> Facts:
    """The parsed body, with what it leaves out as usual.

    Raises:
        ValueError: the bytes are no JSON object.
    """
    facts = loads(body)
    if not isinstance(facts, dict):
        raise ValueError(f"expected an object, got {type(facts).__name__}")
    return filled(facts)


def number(facts: Facts, name: str) -> int:
    """The integer ``name``. Raises ValueError, as its siblings do: the body has no such fact."""
    value = facts.get(name)
    if type(value) is not int:
        raise ValueError(f"expected an integer {name}, got {value!r:.80}")
    return value


def text(facts: Facts, name: str) -> str:
    """The text ``name``."""
    value = facts.get(name)
    if not isinstance(value, str):
        raise ValueError(f"expected a text {name}, got {value!r:.80}")
    return value


def text_or_none(facts: Facts, name: str) -> str | None:
    """The text ``name``, or None."""
    return None if facts.get(name) is None else text(facts, name)


def flag(facts: Facts, name: str) -> bool:
    """The truth value ``name``."""
    value = facts.get(name)
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false for {name}, got {value!r:.80}")
    return value


def place(facts: Facts, name: str) -> tuple[int, int] | None:
    """The (step, index) ``name``, or None."""
    match facts.get(name):
        case None:
            return None
        case [int(step), int(index)]:
            return step, index
        case other:
            raise ValueError(f"expected step and index as {name}, got {other!r:.80}")
