"""What answers look like, for OpenAPI. Every field is always there."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from counterfoil.doors.http.bodies import Shape


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    """Stable; programs look at this."""
    title: str
    status: int
    detail: str
    """A sentence that says what to do."""
    requestId: str  # noqa: N815  # the name on the wire
    """The log of the server has this id."""


class Author(Shape):
    """Who wrote an item."""

    id: str
    name: str
    type: Literal["Human", "Agent", "System"]


class Usage(Shape):
    """What the turns of a run cost."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost: float


class Item(Shape):
    """What each item of a context has."""

    kind: str
    run_id: str
    sequence: int
    author: Author
    date: datetime
    thread_id: str | None


class Message(Item):
    """A message or a text of the model; a note, or what is shown of the model's reasoning, which no model reads."""

    kind: Literal["Message", "Reasoning", "Note"]
    text: str


class ToolCall(Item):
    """A call of the model."""

    kind: Literal["ToolCall"]
    tool_call_id: str
    tool_name: str
    input: Any
    raw_input: str
    state: Literal["judged", "waiting", "started", "interrupted", "settled"]


class ToolResult(Item):
    """The result of a call (contract 1.4)."""

    kind: Literal["ToolResult"]
    outcome: Literal["succeeded", "failed", "denied", "rejected", "skipped", "cancelled"]
    tool_call_id: str
    result: str | None
    is_error: bool
    tool_result_id: str | None
    result_size: int | None
    rejection_reason: str | None


ContextItem = Annotated[Message | ToolCall | ToolResult, Field(discriminator="kind")]


class Context(Shape):
    """Items in reading order."""

    items: list[ContextItem]
    next: int | None
    """The next page is the one ``after`` this sequence; null: this is the last."""
    tip: int
    """Number of the newest entry; with ``since`` set to it, only what arrived later is given."""


class RunFacts(Shape):
    """What each answer says of a run."""

    run_id: str
    interaction_id: str
    parent_run_id: str | None
    agent: str
    status: Status
    ended_by: Literal["tool", "vote", "answer", "limit", "cancelled", "error", "import"] | None
    created_at: datetime
    updated_at: datetime


Status = Literal["running", "paused", "completed", "limited", "cancelled", "failed"]


class RunSummary(RunFacts):
    """A run in a list."""

    tenant: str
    key: str | None
    """The `Idempotency-Key` of its start."""


class Wait(Shape):
    """What a run waits for: a person's word on a call, in it or below it, or an agent at work below it."""

    kind: Literal["approval", "question", "interrupted", "run"]
    run_id: str
    agent: str
    call_id: str
    tool_name: str
    approvers: list[str]


class Run(RunFacts):
    """A run."""

    thread_id: str | None
    user: str | None
    answer: str | None
    output: Any
    reason: str | None
    steps: int
    calls: int
    waiting: int
    """Calls that wait for a person, in it or below it."""
    waits_for: list[Wait]
    usage: Usage
    seconds: float
    ended_at: datetime | None


class RunWithContext(Run):
    """A run with the first page of its context."""

    context: Context


class Runs(Shape):
    """A page of runs, newest first."""

    items: list[RunSummary]
    next: str | None
    """Give it back as ``cursor``; null: this is the last page."""


class Interaction(Shape):
    """A conversation."""

    interaction_id: str
    created_at: datetime
    participants: list[Author]
    """In the order of their coming."""
    open_run_id: str | None
    """The run that keeps others from starting."""


class Interactions(Shape):
    """A page of conversations, newest first."""

    items: list[Interaction]
    next: str | None
    """Give it back as ``cursor``; null: this is the last page."""


class Mark(Shape):
    """What a person decided about a call, or is asked."""

    id: str
    decision: Literal["approve", "reject", "rerun", "record", "answer"] | None
    by: str | None
    at: datetime | None
    reason: str | None


class Row(Shape):
    """What happened, in a sentence. What does not apply to its kind is null, false or empty."""

    at: datetime
    kind: str
    thread_id: str | None
    author: Author
    text: str
    sequence: int | None
    step_index: int | None
    call_id: str | None
    tool_name: str | None
    state: str | None
    outcome: str | None
    code: int | None
    approval: Mark | None
    attempt: int | None
    started_at: datetime | None
    ended_at: datetime | None
    duration_ms: float | None
    size: int | None
    kept: bool
    ended_run: bool
    notes: list[str]
    input: Any
    details: Any
    run_id: str


class Timeline(Shape):
    """A run's items with everything that is on record of them, and its rows for a person."""

    items: list[dict[str, Any]]
    rows: list[Row]


class Approval(Shape):
    """A call that waits for a person."""

    id: str
    kind: Literal["approval", "question", "interrupted"]
    run_id: str
    call_id: str
    tool_name: str
    input: Any
    effective_input: Any
    digest: str
    rule: str | None
    reason: str | None
    requested_at: datetime
    expires_at: datetime | None
    after: str | None
    agent: str
    tenant: str
    approvers: list[str]
    not_user: str | None
    revision: str | None


class Approvals(Shape):
    """What waits for a decision, oldest first."""

    items: list[Approval]
    next: str | None
    """Give it back as ``cursor``; null: this is the last page."""


class Decided(Shape):
    """A decision that counts, and what waits yet in the run."""

    approval: Approval
    waiting: list[Approval]


class Sent(Shape):
    """What becomes of a message."""

    delivered: bool
    """True: the run is open and reads it. False: it has ended, and the next run of the interaction reads it."""


class Agent(Shape):
    """An agent of this server."""

    name: str
    model: str
    tools: list[str]
    output_schema: dict[str, Any] | None


class Agents(Shape):
    """The agents of this server."""

    items: list[Agent]
    next: None


class Tool(Shape):
    """A tool of an agent."""

    agent: str
    name: str
    description: str
    input_schema: dict[str, Any]
    read_only: bool
    idempotent: bool
    destructive: bool
    needs_approval: bool | None
    """null: it depends on the input."""
    ends_run: bool


class Tools(Shape):
    """The tools of the agents of this server."""

    items: list[Tool]
    next: None


class Health(Shape):
    """How this server is."""

    status: Literal["ok"]


class Report(Shape):
    """Everything that is known about one failed call (contract 1.3)."""

    tenant_id: str
    user_context: dict[str, Any]
    interaction_id: str
    thread_id: str
    """``main`` for the main thread."""
    run_id: str
    step_index: int
    call_id: str
    tool_name: str
    input: Any
    error: dict[str, Any]
    """The exception: ``type``, ``message``, ``traceback``, ``causes``."""
    code: int | None
    model_text: str
    duration_ms: float
    at: datetime
    attempts: list[str]
    partial: Any


class Reports(Shape):
    """A page of error reports, newest first."""

    items: list[Report]
    next: str | None
    """Give it back as ``cursor``; null: this is the last page."""


class Asked(Shape):
    """What a model read."""

    messages: list[dict[str, Any]]
    items: int
    """Of the request in all."""
    read_before: int
    """How many of them an earlier step had read; they are left out unless ``all`` is asked for."""


class Answered(Shape):
    """What a model answered."""

    at: datetime
    model: str
    text: str
    stop: str
    calls: list[dict[str, Any]]
    usage: Usage


class Step(Shape):
    """A step of a run: one turn of its model."""

    step: int
    request: Asked
    response: Answered


class Trace(Shape):
    """The steps of a run."""

    items: list[Step]
    next: str | None
