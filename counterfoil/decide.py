"""A person's edit: validated and judged before it counts (contract 7.3)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, cast

from counterfoil.arguments import InvalidArguments, NotAnObject
from counterfoil.core.approval import Decision
from counterfoil.core.entries import RunEntry
from counterfoil.core.errors import InvalidInput, NotPending, UsageError
from counterfoil.core.jsontext import dumps, loads
from counterfoil.core.record import Record
from counterfoil.effects import Effects
from counterfoil.env import Env
from counterfoil.hooks import HookList
from counterfoil.judge import verdict_of
from counterfoil.run import Run
from counterfoil.store import Store
from counterfoil.tool import Tool


class Deciding(Protocol):
    """What an edit needs of a Runtime."""

    agents: dict[str, Any]
    effects: Effects
    store: Store

    def get(self, run_id: str, tenant: str = "default") -> Awaitable[Run]:
        """A handle on a run."""


async def check_edit(
    runtime: Deciding, run_id: str, call_id: str, edited: object, tenant: str, made: Decision
) -> bytes:
    """The JSON bytes of an edited input that schema and policy take; ``made`` says which approval the person saw.

    Raises:
        InvalidInput: they do not; the call stays pending.
        NotPending: no such call of the run ever waited.
        UsageError: the run's agent is not registered here, so that nobody can check the edit.
    """
    run = await runtime.get(run_id, tenant)
    state = run._fold.record.runs[run_id]
    call = state.call_ids.get(call_id)
    if call is None or call.waiting is None:
        # A driver at work here takes its own entries in a moment after they are on record.
        state = Record(await runtime.store.entries(tenant, run.interaction_id)).runs[run_id]
        call = state.call_ids.get(call_id)
    if call is None or call.waiting is None:
        raise NotPending(f"run {run_id} has no call {call_id} that waits; list its approvals")
    agent = runtime.agents.get(run.agent)
    if agent is None:
        raise UsageError(f"an edited input is checked by agent {run.agent!r}, which is not registered here")
    tool = agent.tool_map.get(call.record.tool_name)
    asked = call.waiting.approval
    if not call.pending or made.approval not in (None, asked.id) or made.digest not in (None, asked.digest):
        return _as_it_was(tool, edited)
    if tool is None:
        raise InvalidInput(f"the agent has no tool {call.record.tool_name} any more; reject the call")
    try:
        effective = dumps(tool.schema.dump(tool.schema.validate(loads(dumps(edited)))))
    except (InvalidArguments, NotAnObject, ValueError) as e:
        raise InvalidInput(f"{tool.name} does not take this input: {e}") from e
    head: RunEntry | None = state.head
    if head is None:
        raise NotPending(f"run {run_id} has no beginning on record")
    env = Env(
        head.caller, run.interaction_id, run_id, head.thread_id, agent.name, state, agent.tool_map, agent.policy,
        HookList(), state.limits, runtime.effects, None, None,  # type: ignore[arg-type]  # judging runs no body
    )  # fmt: skip  # rows by what belongs together
    verdict, _ = await verdict_of(env, call, tool, effective)
    if verdict.error is not None or verdict.verdict == "deny":
        why = verdict.error or verdict.reason or "no reason given"
        raise InvalidInput(f"the policy does not allow {tool.name} with this input: {why}")
    return effective


def _as_it_was(tool: Tool | None, edited: object) -> bytes:
    """An edit of a call that was decided or settled before: nothing to check, but an equal repeat has equal bytes."""
    try:
        shown = loads(dumps(edited))
    except ValueError as e:
        raise InvalidInput(f"the input is none that could run: {e}") from e
    try:
        return dumps(shown if tool is None else tool.schema.dump(tool.schema.validate(cast("dict[str, Any]", shown))))
    except (InvalidArguments, NotAnObject, ValueError):
        return dumps(shown)
