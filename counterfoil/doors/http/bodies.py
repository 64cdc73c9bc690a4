"""What requests look like: their bodies, validated, and their part of OpenAPI."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StrictInt, StringConstraints
from pydantic.alias_generators import to_camel

from counterfoil.core.errors import check_own_code

Text = Annotated[str, StringConstraints(max_length=1_000_000)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


class Shape(BaseModel):
    """A JSON object with names in camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", use_attribute_docstrings=True)


BIGGEST: Final = 2**53
"""Every reader of JSON has numbers up to here exactly."""
Amount = Annotated[int, Field(ge=0, le=BIGGEST)] | None


def _base64(text: str) -> str:
    base64.b64decode(text, validate=True)
    return text


def _own_code(code: int | None) -> int | None:
    check_own_code(code)
    return code


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [fields]})


class Budget(Shape):
    """Budgets of a run; what is null is not limited, what is left out is as the agent has it."""

    model_config = _example(steps=20, cost=0.5)

    steps: Amount = None
    """Turns of the model."""
    calls: Amount = None
    """Calls of tools."""
    tokens: Amount = None
    """Tokens, those of requests and answers together."""
    cost: Annotated[float, Field(ge=0, le=BIGGEST, allow_inf_nan=False)] | None = None
    """What the turns cost, in the currency of the agent's prices."""
    seconds: Annotated[float, Field(ge=0, le=BIGGEST, allow_inf_nan=False)] | None = None
    """Of work: pauses do not count."""
    consecutive_failures: Amount = None
    """Steps one after another in which every call failed."""


class StartRun(Shape):
    """A run to start."""

    model_config = _example(agent="support", prompt="Refund order W100")

    agent: Name
    """The name of an agent; GET /v1/agents lists those of this server."""
    prompt: Text
    """The first message."""
    pool: Name = "default"
    """Which workers may take it up."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Higher goes first where workers choose."""
    not_before: AwareDatetime | None = None
    """It begins then."""
    approvals: Literal["any-order", "one-by-one"] = "any-order"
    """one-by-one: one open approval at a time."""
    on_disconnect: Literal["go-on", "cancel"] = "go-on"
    """cancel: when the last client that followed its events is gone for longer than a grace time."""
    limits: Budget | None = None
    """Budgets of this run; null: the agent's."""


class TextBlock(Shape):
    """Text of a result."""

    type: Literal["text"]
    """What it is."""
    text: Text
    """What the model reads."""


class JsonBlock(Shape):
    """A value of a result."""

    type: Literal["json"]
    """What it is."""
    value: Any
    """Any JSON; the model reads it as text."""


class LinkBlock(Shape):
    """An address in a result."""

    type: Literal["link"]
    """What it is."""
    uri: Text
    """The address."""
    title: Text | None = None
    """What stands there."""


class MediaBlock(Shape):
    """Bytes of a result."""

    type: Literal["image", "audio", "file"]
    """What it is."""
    data: Annotated[str, AfterValidator(_base64)]
    """In base64."""
    mime: Name
    """Such as image/png."""
    name: Name | None = None
    """Of a file."""


class Failure(Shape):
    """Why a call failed, for programs."""

    code: Annotated[StrictInt | None, AfterValidator(_own_code)] = None
    """The tool's own: outside 4000 to 5999."""
    message: Text = ""
    """The operator's; never sent to a model."""
    retryable: bool | None = None
    """Whether the same call may succeed later; null: unknown."""
    origin: Literal["tool"] = "tool"
    """Where it failed."""
    body: Literal["not_started", "ended", "unknown"] = "ended"
    """How far the body came."""
    data: Any = None
    """Any JSON."""


class Success(Shape):
    """It worked."""

    type: Literal["succeeded"] = "succeeded"
    """How the call ended."""


class Failed(Shape):
    """It did not."""

    type: Literal["failed"]
    """How the call ended."""
    failure: Failure = Failure()
    """Why."""


class Recorded(Shape):
    """What became of a call, in the form that ``result`` of a timeline's item has."""

    content: Annotated[
        list[Annotated[TextBlock | JsonBlock | LinkBlock | MediaBlock, Field(discriminator="type")]],
        Field(min_length=1),
    ]
    """What the model reads."""
    outcome: Annotated[Success | Failed, Field(discriminator="type")] = Success()
    """How the call ended."""
    details: Any = None
    """JSON for programs; never sent to a model."""
    terminate: bool = False
    """The call's vote to end the run."""
    narration: Text | None = None
    """One sentence for a person."""


class Decide(Shape):
    """A decision on a call. Who decides is the key's user."""

    model_config = _example(
        decision="approve", digest="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    )

    decision: Literal["approve", "reject", "rerun", "record", "answer"]
    """approve or reject a call that waits for approval; rerun an interrupted one, or record what became of it; answer a
    question."""
    reason: Text | None = None
    """Why; the model reads it where the call is rejected."""
    input: dict[str, Any] | None = None
    """approve: what runs instead; schema and policy must take it."""
    result: str | Recorded | None = None
    """record: what became of the call, as text or as a whole result."""
    text: Text | None = None
    """answer: the answer."""
    digest: Annotated[str, StringConstraints(max_length=200)] | None = None
    """Of the approval that the person saw: the decision counts for no other input."""


class Cancel(Shape):
    """Why a run is cancelled."""

    model_config = _example(reason="The order was withdrawn.")

    reason: Text | None = None
    """Why; it stands in the run and in its calls that are cancelled."""


class Send(Shape):
    """A message into a run."""

    model_config = _example(text="Use the new address.")

    text: Text
    """What the model reads next."""


class Participant(Shape):
    """Who takes part in a conversation."""

    type: Literal["Human", "Agent", "System"]
    """What it is."""
    name: Name
    """Of a person the user's name, of an agent the agent's: so they are the same as those whom runs bring in."""


class NewInteraction(Shape):
    """A conversation to begin."""

    model_config = _example(participants=[{"type": "Human", "name": "ada"}, {"type": "Agent", "name": "support"}])

    participants: Annotated[list[Participant], Field(max_length=1000)] = []
    """Whoever a run brings in comes to them."""
