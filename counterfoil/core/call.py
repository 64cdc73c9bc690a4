"""Who calls, from where, what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from counterfoil.core.jsontext import JsonValue, clean_text


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a run works. Survives pauses and moves with the run (contract 7.9)."""

    tenant: str = "default"
    """Every record belongs to one; never empty."""
    user: str | None = None
    roles: tuple[str, ...] = ()
    attributes: Mapping[str, JsonValue] = field(default_factory=dict)
    """Anything else, as JSON; available to policies, tools and reports."""

    def __post_init__(self) -> None:
        if not isinstance(self.tenant, str) or not self.tenant:
            raise ValueError(f"Caller.tenant must be a text that is not empty, got {self.tenant!r}")
        if clean_text(self.tenant) is not self.tenant:
            raise ValueError(f"Caller.tenant must be a text that can be stored, got half a surrogate: {self.tenant!r}")
        if isinstance(self.roles, str):
            raise TypeError(f"Caller.roles must be a sequence of names, got the text {self.roles!r}")
        object.__setattr__(self, "roles", tuple(clean_text(role) for role in self.roles))
        if self.user is not None:
            object.__setattr__(self, "user", clean_text(self.user))

    def to_json(self) -> dict[str, JsonValue]:
        """The caller by field."""
        return {
            "tenant": self.tenant,
            "user": self.user,
            "roles": list(self.roles),
            "attributes": dict(self.attributes),
        }


DEFAULT_CALLER = Caller()


def caller_from_json(data: Mapping[str, JsonValue]) -> Caller:
    """The caller that ``to_json`` wrote."""
    return Caller(
        cast("str", data["tenant"]),
        cast("str | None", data["user"]),
        tuple(cast("list[str]", data["roles"])),
        cast("dict[str, JsonValue]", data["attributes"]),
    )


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a call: our key of it is (run, step, index)."""

    interaction_id: str
    thread_id: str | None
    """None is the main thread (contract 9)."""
    run_id: str
    step: int
    """0-based step of the run in which the model asked for the call."""
    index: int
    """0-based place in its batch."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as a model is offered it."""

    name: str
    description: str
    input_schema: dict[str, JsonValue]
    """JSON Schema of the arguments: an object."""
