"""What answers look like, for OpenAPI. Every field is always there."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from counterfoil.doors.http.bodies import Shape


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    type: str
    """Stable; programs look at this."""
    title: str
    """The same for each of this type."""
    status: int
    """The status of the answer."""
    detail: str
    """A sentence that says what to do."""
    requestId: str  # noqa: N815  # the name on the wire
    """The log of the server has this id."""


class Author(Shape):
    """Who wrote an item."""

    id: str
    """A UUID, the same in all conversations of the tenant."""
    name: str
    """Of a person the user's, of an agent the agent's."""
    type: Literal["Human", "Agent", "System"]
    """What it is."""


class Usage(Shape):
    """What the turns of a run cost."""

    input_tokens: int
    """Of requests."""
    output_tokens: int
    """Of answers."""
    cached_tokens: int
    """Of the input, those that the provider had in its cache."""
    reasoning_tokens: int
    """Of the output, those of the model's reasoning."""
    cost: float
    """In the currency of the agent's prices; 0 where it has none."""


class Item(Shape):
    """What each item of a context has."""

    kind: str
    """What it is; the other fields depend on it."""
    run_id: str
    """The run that it stands in."""
    sequence: int
    """Its place in the reading order of the conversation."""
    author: Author
    """Who wrote it; of a result who decided what it is."""
    date: datetime
    """When, in UTC."""
    thread_id: str | None
    """The thread that it stands on; null: the main one."""


class Message(Item):
    """A message or a text of the model; a note, or what is shown of the model's reasoning, which no model reads."""

    kind: Literal["Message", "Reasoning", "Note"]
    """What it is."""
    text: str
    """What it says; of media a placeholder."""


class ToolCall(Item):
    """A call of the model."""

    kind: Literal["ToolCall"]
    """What it is."""
    tool_call_id: str
    """Unique in its run; its result has the same."""
    tool_name: str
    """As the model named it."""
    input: Any
    """The model's arguments; null where they are no JSON."""
    raw_input: str
    """The same as the model wrote them."""
    state: Literal["judged", "waiting", "started", "interrupted", "settled"]
    """How far it is; settled: it has its result."""


class ToolResult(Item):
    """The result of a call (contract 1.4)."""

    kind: Literal["ToolResult"]
    """What it is."""
    outcome: Literal["succeeded", "failed", "denied", "rejected", "skipped", "cancelled"]
    """How the call ended."""
    tool_call_id: str
    """Of the call that it answers."""
    result: str | None
    """The text that the model read, media as a placeholder; null when it is kept apart."""
    is_error: bool
    """The call failed, or was denied, rejected or cancelled."""
    tool_result_id: str | None
    """A UUID where it is kept apart: the run's tool-results call gives it by ``sequence``."""
    result_size: int | None
    """Bytes of the whole."""
    rejection_reason: str | None
    """Why a person refused the call, in the person's words."""


ContextItem = Annotated[Message | ToolCall | ToolResult, Field(discriminator="kind")]


class Context(Shape):
    """Items in reading order."""

    items: list[ContextItem]
    """Messages, calls and their results."""
    next: int | None
    """The next page is the one ``after`` this sequence; null: this is the last."""
    tip: int
    """Number of the newest entry; with ``since`` set to it, only what arrived later is given."""


class RunFacts(Shape):
    """What each answer says of a run."""

    run_id: str
    """Its id, a UUID."""
    interaction_id: str
    """The conversation that it goes on with."""
    parent_run_id: str | None
    """The run that waits for it; null: it was started by a client."""
    agent: str
    """The name of its agent."""
    status: Status
    """How it stands; running also where it waits for a worker."""
    ended_by: Literal["tool", "vote", "answer", "limit", "cancelled", "error", "import"] | None
    """What ended it; null: it has not ended."""
    created_at: datetime
    """When it was started, in UTC."""
    updated_at: datetime
    """When something of it came on record last, in UTC."""


Status = Literal["running", "paused", "completed", "limited", "cancelled", "failed"]


class RunSummary(RunFacts):
    """A run in a list."""

    tenant: str
    """Whose it is."""
    key: str | None
    """The `Idempotency-Key` of its start."""


class Wait(Shape):
    """What a run waits for: a person's word on a call, in it or below it, or an agent at work below it."""

    kind: Literal["approval", "question", "interrupted", "run"]
    """What a person is asked for; run: an agent is at work."""
    run_id: str
    """The run whose call waits for a person; or the run at work."""
    agent: str
    """Whose run that is; empty of a run that has not begun."""
    call_id: str
    """The call that waits."""
    tool_name: str
    """Its tool."""
    approvers: list[str]
    """Who may decide; empty: whoever has the scope."""


class Run(RunFacts):
    """A run."""

    thread_id: str | None
    """The thread that it works on; null: the main one."""
    user: str | None
    """Who started it."""
    answer: str | None
    """The text that it ended with."""
    output: Any
    """The same as the agent's output type has it, as JSON."""
    reason: str | None
    """Why it was cancelled, limited or failed."""
    steps: int
    """Turns of its model."""
    calls: int
    """Calls in them."""
    waiting: int
    """Calls that wait for a person, in it or below it."""
    waits_for: list[Wait]
    """Those, and agents at work below it."""
    usage: Usage
    """What they cost."""
    seconds: float
    """Of work: pauses do not count."""
    ended_at: datetime | None
    """When it ended, in UTC."""
    hint: str | None
    """Why it waits though nothing of its own holds it up: no process has its agent now."""


class RunWithContext(Run):
    """A run with the first page of its context."""

    context: Context
    """Its first items."""


class Runs(Shape):
    """A page of runs, newest first."""

    items: list[RunSummary]
    """The runs."""
    next: str | None
    """Give it back as ``cursor``; null: this is the last page."""


class Interaction(Shape):
    """A conversation."""

    interaction_id: str
    """Its id, a UUID."""
    created_at: datetime
    """When it began, in UTC."""
    participants: list[Author]
    """In the order of their coming."""
    open_run_id: str | None
    """The run that keeps others from starting."""


class Interactions(Shape):
    """A page of conversations, newest first."""

    items: list[Interaction]
    """The conversations."""
    next: str | None
    """Give it back as ``cursor``; null: this is the last page."""


class Mark(Shape):
    """What a person decided about a call, or is asked."""

    id: str
    """Of the approval."""
    decision: Literal["approve", "reject", "rerun", "record", "answer"] | None
    """What was decided; null: it waits."""
    by: str | None
    """Who decided."""
    at: datetime | None
    """When, in UTC."""
    reason: str | None
    """Why, in the person's words."""


class Row(Shape):
    """What happened, in a sentence. What does not apply to its kind is null, false or empty."""

    at: datetime
    """When, in UTC."""
    kind: str
    """What happened."""
    thread_id: str | None
    """On which thread; null: the main one."""
    author: Author
    """Who did it."""
    text: str
    """What is said of it: of a call its narration, where it has one."""
    sequence: int | None
    """Its place in the reading order."""
    step_index: int | None
    """The step of the run, from 0."""
    call_id: str | None
    """Of a call."""
    tool_name: str | None
    """Of a call: its tool, as the model named it."""
    state: str | None
    """Of a call: how far it is."""
    outcome: str | None
    """Of a call: how it ended."""
    code: int | None
    """Of a call that failed."""
    approval: Mark | None
    """Of a call that a person decides, or decided."""
    attempt: int | None
    """Of a call: how often its body was begun."""
    started_at: datetime | None
    """Of a call: when its body began, in UTC."""
    ended_at: datetime | None
    """Of a call: when it had its result, in UTC."""
    duration_ms: float | None
    """Of a call: how long its body ran, in milliseconds."""
    size: int | None
    """Of a result: bytes of the whole."""
    kept: bool
    """Of a result: it is kept apart."""
    ended_run: bool
    """Of a call: it ended the run."""
    notes: list[str]
    """What else is worth knowing, a sentence each."""
    input: Any
    """Of a call: what its body got."""
    details: Any
    """Of a result: what its tool says to programs."""
    run_id: str
    """The run that it happened in."""


class Timeline(Shape):
    """A run's items with everything that is on record of them, and its rows for a person."""

    items: list[dict[str, Any]]
    """In reading order, each with the fields of contract 1.2 for its ``kind``."""
    rows: list[Row]
    """In order of time."""


class Approval(Shape):
    """A call that waits for a person."""

    id: str
    """Its own, a UUID."""
    kind: Literal["approval", "question", "interrupted"]
    """What is to be decided: whether the call runs, the answer to a question, or what became of an interrupted call."""
    run_id: str
    """The run of the call."""
    call_id: str
    """The call."""
    tool_name: str
    """Its tool."""
    input: Any
    """The model's arguments."""
    effective_input: Any
    """What the body would get: after guards."""
    digest: str
    """Of what is decided on; a decision that names it counts for nothing else."""
    rule: str | None
    """The rule of the policy that asks."""
    reason: str | None
    """Why it asks."""
    requested_at: datetime
    """Since when it waits, in UTC."""
    expires_at: datetime | None
    """When it fails for want of a decision, in UTC; null: never."""
    after: str | None
    """The id of the approval that it stands in place of."""
    agent: str
    """The agent whose call it is."""
    tenant: str
    """Whose it is."""
    approvers: list[str]
    """Users, and roles as ``role:NAME``, who may decide; empty: whoever has the scope."""
    not_user: str | None
    """Who may not decide: the one that asked."""
    revision: str | None
    """Of the policy that asks."""


class Approvals(Shape):
    """What waits for a decision, oldest first."""

    items: list[Approval]
    """The approvals."""
    next: str | None
    """Give it back as ``cursor``; null: this is the last page."""


class Decided(Shape):
    """A decision that counts, and what waits yet in the run."""

    approval: Approval
    """What was decided on."""
    waiting: list[Approval]
    """What waits for a decision in the run now."""
    hint: str | None
    """Why the run waits whatever was decided: no process has its agent now."""


class Sent(Shape):
    """What becomes of a message."""

    delivered: bool
    """True: the run is open and reads it. False: it has ended, and the next run of the interaction reads it."""
    hint: str | None
    """Why the message waits: no process has the run's agent now."""
