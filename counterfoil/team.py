"""Managed agents: the tools `dispatch` and `ask`, whom they reach, and the run that a call waits for (contract 9)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, cast
from uuid import UUID, uuid5

from pydantic import Field

from counterfoil.core import words
from counterfoil.core.entries import Entry, MessageEntry, RunEntry
from counterfoil.core.errors import DefinitionError, NotFound
from counterfoil.core.limits import CHILDREN_DEEP, Limits
from counterfoil.core.outcome import ErrorCode
from counterfoil.core.record import CallState, Record, RunState
from counterfoil.core.states import left_of
from counterfoil.core.turn import Author, author
from counterfoil.env import Asks, Env, Ready, Refused
from counterfoil.judge import fail
from counterfoil.store import InteractionRow, Lease
from counterfoil.tool import Tool, _of_function

_NAMESPACE = UUID("0b9b8f4e-9a52-5f0c-8d7e-3f6a0c1d2e4b")
"""Ours; the id of a child run is derived from its call, so that a recovery finds the same one."""


class Member(Protocol):
    """What a team needs of an agent."""

    name: str
    description: str | None
    manages: tuple[Any, ...]
    limits: Limits | None


class Host(Protocol):
    """The Runtime that a team works in."""

    def begin_child(self, lease: Lease, first: Sequence[Entry]) -> Awaitable[None]:
        """Put a run below the lease's run on record, unless it is there, and see to it that it is driven."""

    def budget_of(self, agent: str) -> Limits:
        """The limits of an agent's run."""

    def cancel(self, run_id: str, *, reason: str | None, by: str | None, tenant: str) -> Awaitable[None]:
        """End a run."""

    def interaction(self, interaction_id: str, *, tenant: str) -> Awaitable[InteractionRow]:
        """A conversation's row."""


def tools_of(name: str, members: Sequence[Member]) -> dict[str, Tool]:
    """The tools of a manager; with no members, of one that managed others when it made its calls.

    Raises:
        DefinitionError: two agents below it have one name, one is its own manager, or the team is too deep.
    """
    _check(name, members, [name])
    names = tuple(member.name for member in members)

    async def dispatch(agent: str, task: str) -> str:
        raise NotImplementedError  # the call waits for another run

    async def ask(participant: str, question: str) -> str:
        raise NotImplementedError  # as above

    task = Annotated[str, Field(min_length=1, description="what to do, with all that the agent needs to know")]
    dispatch.__annotations__ = {"agent": Literal[names] if names else str, "task": task, "return": str}
    question = Annotated[str, Field(min_length=1)]
    ask.__annotations__ = {"participant": str, "question": question, "return": str}
    about = words.dispatch_description([(member.name, member.description or "") for member in members])
    made = [_tool(dispatch, about), _tool(ask, words.ask_description(names))]
    return {tool.name: tool for tool in made}


def _tool(fn: Any, description: str) -> Tool:
    # A policy takes it for what it is by itself: a word to somebody, whose own calls are judged on their own.
    made = _of_function(fn, None, description, {"read_only": True}, builtin=True)
    made.builtin, made.waits = False, True
    return made


def _check(name: str, members: Sequence[Member], above: list[str]) -> None:
    names = [member.name for member in members]
    twice = sorted({one for one in names if names.count(one) > 1})
    if twice:
        raise DefinitionError(f"{name}: manages two agents of the name {twice[0]!r}; give one of them another")
    for member in members:
        chain = " manages ".join([*above, member.name])
        if member.name in above:
            raise DefinitionError(
                f"{name}: {chain}; an agent cannot be below itself: take {member.name!r} out of manages= of "
                f"{above[-1]!r}"
            )
        if len(above) > CHILDREN_DEEP:
            raise DefinitionError(
                f"{name}: {chain}; {CHILDREN_DEEP} agents below one another are the most: have one further up manage "
                f"{member.name!r}"
            )
        _check(name, member.manages, [*above, member.name])


class Team:
    """Whom one run may hand work to, and how that is put on record.

    Args:
        host: the Runtime.
        lease: the run's.
        members: the agents that its agent manages.
    """

    def __init__(self, host: Host, lease: Lease, members: Sequence[Member]) -> None:
        self._host = host
        self._lease = lease
        self._members = {member.name: member for member in members}

    async def route(self, env: Env, call: CallState, ready: Ready) -> Ready | Asks | Refused:
        """What a call that waits for somebody comes to: a child run, a question to a person, or a refusal."""
        tool, wanted = ready.tool.name, _wanted(ready.arguments)
        found = [one for one in await self._known(env) if wanted in (one.id, one.name)]
        if tool == words.DISPATCH:
            found = [one for one in found if one.type == "Agent"]
        if len(found) != 1:
            return self._unknown(tool, found, ready, await self._known(env), wanted)
        who = found[0]
        if who.type == "Human":
            return Asks(ready.tool, ready.effective, ready.parsed, ready.verdict, who)
        at_work = [run.agent for run in (env.run, *env.run.above())]
        if who.name in at_work:
            others = f"an agent that is not at work on this already ({' for '.join(at_work)})"
            return _refuse(ready, tool, [("agent", others, wanted)])
        if len(at_work) > CHILDREN_DEEP:
            limit = words.team_limit(CHILDREN_DEEP)
            return fail(
                ErrorCode.LIMIT_REACHED, tool, limit=limit, message=limit, verdict=ready.verdict,
                parsed=ready.effective, before=ready.parsed,
            )  # fmt: skip  # two rows
        ready.child, ready.child_id = who, child_id(env, call)
        return ready

    async def _known(self, env: Env) -> list[Author]:
        """Whom the run may reach: the agents of its team, and the people of its conversation."""
        tenant = env.caller.tenant
        row = await self._host.interaction(env.interaction_id, tenant=tenant)
        people = [one for one in row.participants if one.type == "Human"]
        return [*(author("Agent", name, tenant) for name in self._members), *people]

    def _unknown(self, tool: str, found: Sequence[Author], ready: Ready, known: Sequence[Author], got: str) -> Refused:
        one_of = ", ".join(f"{one.name} ({one.type})" for one in known if tool == words.ASK or one.type == "Agent")
        expected = f"one of: {one_of}" if not found else f"an id: {' or '.join(one.id for one in found)}"
        return _refuse(ready, tool, [("agent" if tool == words.DISPATCH else "participant", expected, got)])

    def again(self, env: Env, ready: Ready) -> bool:
        """Find once more whom a call on record was handed to; False: the agent is no member any more."""
        member = self._members.get(_wanted(ready.arguments))
        if member is None:
            ids = {author("Agent", name, env.caller.tenant).id: one for name, one in self._members.items()}
            member = ids.get(_wanted(ready.arguments))
        ready.child = None if member is None else author("Agent", member.name, env.caller.tenant)
        return member is not None

    async def begin(self, env: Env, call: CallState, ready: Ready) -> None:
        """Put the run that a call waits for on record, unless it is there."""
        who, child = cast("Author", ready.child), cast("str", ready.child_id)
        thread = thread_of(ready.tool.name, who, child)
        head = cast("RunEntry", env.run.head)
        first: list[Entry] = [
            RunEntry(
                run_id=child, thread_id=thread, at=env.effects.now(), agent=who.name, caller=env.caller,
                limits=left_of(self._host.budget_of(who.name), env.run), approvals=head.approvals,
                on_disconnect=head.on_disconnect, parent=env.run_id, call=call.key,
            ),
            MessageEntry(
                run_id=child, thread_id=thread, at=env.effects.now(), text=_said(ready.arguments),
                author_type="Agent", author_name=env.agent,
            ),
        ]  # fmt: skip  # rows by what belongs together
        await self._host.begin_child(self._lease, first)

    async def cancel(self, run_id: str, reason: str | None) -> bool:
        """End a run below; False: it had not begun, and now it never will."""
        try:
            await self._host.cancel(run_id, reason=reason, by=None, tenant=self._lease.tenant)
        except NotFound:
            return False
        return True


def remembered(record: Record, run: RunState, answer: str, at: int) -> list[Entry]:
    """What stays of a child run on its agent's private thread: the task, and what it came to."""
    head = cast("RunEntry", run.head)
    thread = cast("str", head.thread_id)
    task = next((item.text for item in record.thread(thread) if isinstance(item, MessageEntry)), "")
    manager = "" if run.parent is None else run.parent.agent
    private = f"private:{thread.split(':')[1]}"
    return [
        MessageEntry(run_id=run.run_id, thread_id=private, at=at, text=text, author_type="Agent", author_name=name)
        for text, name in ((task, manager), (answer, head.agent))
    ]


def _wanted(arguments: Mapping[str, Any]) -> str:
    return cast("str", arguments.get("agent") or arguments.get("participant"))


def _said(arguments: Mapping[str, Any]) -> str:
    return cast("str", arguments.get("task") or arguments.get("question"))


def _refuse(ready: Ready, tool: str, rows: Sequence[tuple[str, str, str]]) -> Refused:
    text = words.complaints(rows)
    return fail(
        ErrorCode.INVALID_INPUT, tool, complaints=text, message=text.strip(), verdict=ready.verdict,
        parsed=ready.effective, before=ready.parsed,
    )  # fmt: skip  # two rows


def child_id(env: Env, call: CallState) -> str:
    """The id of the run that a call waits for."""
    return str(uuid5(_NAMESPACE, "\x1f".join((env.caller.tenant, env.run_id, *map(str, call.key)))))


def thread_of(tool: str, who: Author, child: str) -> str:
    """The thread on which a participant works at what it was told or asked."""
    return f"{'dispatch' if tool == words.DISPATCH else 'question'}:{who.id}:{child}"
