"""Commands of people: what waits, decisions, messages, the end of a run, erasure."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import typer

from counterfoil.agent import Agent
from counterfoil.core.approval import Approval
from counterfoil.core.errors import Conflict
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import date_json
from counterfoil.core.wire_live import approval_json
from counterfoil.doors import wiring
from counterfoil.doors.cli.ages import ago
from counterfoil.doors.cli.common import FilesOption, RunArgument, Session, command, find_call, find_run, prompt_with
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.live import Follower, drive, json_object, print_end
from counterfoil.doors.cli.load import load_agent
from counterfoil.doors.cli.plain import line
from counterfoil.doors.cli.terminal import Terminal
from counterfoil.doors.cli.view import approval_lines, counted, of_run, when
from counterfoil.run import Run
from counterfoil.runtime import Runtime

__all__ = ["app"]

app = typer.Typer()

CANCEL_SECONDS = 10.0
"""How long `cancel` waits for the end: bodies have five seconds unless set otherwise."""

_CALL = Annotated[
    str | None,
    typer.Argument(metavar="CALL", help="A call's id or a unique beginning; the only one that waits."),
]
_BY = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides; you unless given.")]
_DIGEST = Annotated[
    str | None,
    typer.Option("--digest", metavar="HEX", help="Only for the approval with this digest, of this input."),
]
_WITH = Annotated[
    str | None,
    typer.Option("--with", metavar="MODULE:AGENT", help="Go on with the run here, until it ends or pauses."),
]

RERUN = "to run again"
ANSWERED = "answered"
RECORDED = "recorded"

Decide = Callable[[Run, str], Awaitable[Approval]]


@command(app, server=True)
async def approvals(
    session: Session,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Of this run alone.")] = None,
) -> int:
    """What waits for a person, each with its exact input."""
    async with session.reader() as runtime:
        found = None if run is None else await find_run(session, runtime, run)
        waiting = await runtime.approvals(found.id if found else None, tenant=session.tenant)
    if session.json:
        session.out.data([approval_json(approval) for approval in waiting])
    elif not waiting:
        session.out.note("nothing waits for a person")
    else:
        for number, approval in enumerate(waiting):
            if number:
                session.out.console.print()
            session.out.console.print(approval_lines(approval))
    return Code.DONE


@command(app, server=True)
async def approve(
    session: Session,
    run: RunArgument,
    call: _CALL = None,
    *,
    input: Annotated[  # the contract's own word
        str | None,
        typer.Option("--input", metavar="JSON", help="Run with this input instead; needs --with, which checks it."),
    ] = None,
    by: _BY = None,
    digest: _DIGEST = None,
    agent: _WITH = None,
) -> int:
    """Let a call run, perhaps with an edited input.

    The first decision on a call counts, for ever.
    """
    edited = None
    if input is not None:
        try:
            edited = json_object(input)
        except ValueError as error:
            raise Stop(f"--input: {error}") from error
        if agent is None and session.server is None:
            raise Stop("--input is checked by the run's agent; name it: --with MODULE:AGENT")

    async def decide(found: Run, call_id: str) -> Approval:
        return await found.approve(call_id, by=_who(session, by), input=edited, digest=digest)

    return await _decided(
        session,
        run,
        call,
        spec=agent,
        decide=decide,
        word="approved" if edited is None else "approved, edited",
    )


@command(app, server=True)
async def reject(
    session: Session,
    run: RunArgument,
    call: _CALL = None,
    *,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; the model reads it.")] = None,
    by: _BY = None,
    digest: _DIGEST = None,
    agent: _WITH = None,
) -> int:
    """Refuse a call; the model reads why."""

    async def decide(found: Run, call_id: str) -> Approval:
        return await found.reject(call_id, by=_who(session, by), reason=reason, digest=digest)

    return await _decided(session, run, call, spec=agent, decide=decide, word="rejected")


@command(app, server=True)
async def settle(
    session: Session,
    run: RunArgument,
    call: _CALL = None,
    *,
    rerun: Annotated[bool, typer.Option("--rerun", help="Run it again.")] = False,
    result: Annotated[
        str | None, typer.Option("--result", metavar="TEXT", help="It did its work: this came out.")
    ] = None,
    failed: Annotated[
        str | None, typer.Option("--failed", metavar="TEXT", help="It failed: the model reads this.")
    ] = None,
    by: _BY = None,
    digest: _DIGEST = None,
    agent: _WITH = None,
) -> int:
    """Settle an interrupted call: run it again, or record what was."""
    if rerun + (result is not None) + (failed is not None) != 1:
        raise Stop("expected one of --rerun, --result TEXT and --failed TEXT")
    known = None
    if not rerun:
        known = ToolResult.text(result) if result is not None else ToolResult.error(failed or "")

    async def decide(found: Run, call_id: str) -> Approval:
        return await found.settle(call_id, by=_who(session, by), rerun=rerun, result=known, digest=digest)

    return await _decided(session, run, call, spec=agent, decide=decide, word=RERUN if rerun else RECORDED)


@command(app, server=True)
async def answer(
    session: Session,
    run: RunArgument,
    call: Annotated[str, typer.Argument(metavar="CALL", help="The call that asks, or the beginning of its id.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What whoever asked reads.")],
    *,
    by: _BY = None,
    digest: _DIGEST = None,
    agent: _WITH = None,
) -> int:
    """Answer a question that an agent asks a person."""

    async def decide(found: Run, call_id: str) -> Approval:
        return await found.answer_question(call_id, by=_who(session, by), text=text, digest=digest)

    return await _decided(session, run, call, spec=agent, decide=decide, word=ANSWERED)


def _who(session: Session, by: str | None) -> str:
    """Who does it."""
    if by is not None and session.server is not None:
        raise Stop("at a server it is the key's user who does it; leave out --by")
    return by or wiring.login()


async def _decided(session: Session, run: str, call: str | None, *, spec: str | None, decide: Decide, word: str) -> int:
    if spec is not None and session.server is not None:
        raise Stop("the server goes on with its runs; leave out --with")
    agents: list[Agent] = [] if spec is None else [load_agent(spec)]
    async with session.reader(agents) as runtime:
        found = await find_run(session, runtime, run)
        driven = await _driven(runtime, found, agents[0].name) if agents else found
        call_id = await find_call(session, runtime, found, call)
        await _fits(found, call_id, word, session.store_flags())
        follower = Follower(session, runtime, driven)
        await follower.pass_over()
        approval = await decide(found, call_id)
        if not session.json:
            session.out.say(f"{word}: {line(approval.tool_name, 100)} (call {call_id} of run {found.id})")
        if spec is None:
            await found.refresh()
            if session.json:
                session.out.data({"decision": word, "approval": approval_json(approval)})
            else:
                here = "a worker with its agent goes on: counterfoil work MODULE"
                session.out.note(here if session.server is None else "the server goes on with it", style="dim")
            return Code.DONE
        terminal = Terminal(session.out)
        code = await drive(session, runtime, driven, yes=False, terminal=terminal, follower=follower)
        await print_end(session, driven, spec)
        if session.json:
            session.out.data({"decision": word, "approval": approval_json(approval), "run": of_run(driven)})
        return code


async def _driven(runtime: Runtime, run: Run, agent: str) -> Run:
    """The run of this agent: the one that is decided on, or one that waits for it. Raises Stop where none is."""
    of = run
    while of.agent != agent:
        above = of_run(of)["parentRunId"]
        if above is None:
            raise Stop(f"run {run.id} is of agent {run.agent!r}, and --with names {agent!r}")
        of = await runtime.get(str(above), run.tenant)
    return of


async def _fits(run: Run, call_id: str, word: str, flags: str) -> None:
    """Whether this command decides on what waits; else the one that does is named."""
    settles = word in (RERUN, RECORDED)
    kind = next((a.kind for a in await run.approvals() if a.call_id == call_id), None)
    if kind == "question":
        if word not in (ANSWERED, "rejected"):
            told = f"call {call_id} is a question; type counterfoil answer {run.id} {call_id} TEXT{flags}"
            raise Stop(told, Code.CONFLICT)
        return
    if kind == "interrupted" and not settles:
        what = f"call {call_id} was interrupted, so its effect is unknown"
        how = f"counterfoil settle {run.id} {call_id}{flags} with --rerun, --result TEXT or --failed TEXT"
        raise Stop(f"{what}; type {how}", Code.CONFLICT)
    if kind == "approval" and settles:
        told = f"call {call_id} has not begun; type counterfoil approve or reject {run.id} {call_id}{flags}"
        raise Stop(told, Code.CONFLICT)


@command(app, server=True)
async def cancel(
    session: Session,
    run: RunArgument,
    *,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why.")] = None,
    by: _BY = None,
) -> int:
    """End a run.

    Nothing new starts, bodies are told and waited for, every call gets its result.
    """
    async with session.reader() as runtime:
        found = await find_run(session, runtime, run)
        if found.status not in ("running", "paused", "cancelled"):
            raise Stop(f"run {found.id} is {found.status} already; there is nothing to cancel", Code.CONFLICT)
        await found.cancel(reason, by=_who(session, by))
        try:
            await found.wait(CANCEL_SECONDS)
        except TimeoutError:
            session.out.note("asked for; the worker that drives the run has not ended it yet")
        await found.refresh()
        if session.json:
            session.out.data(of_run(found, await found.hint()))
        else:
            session.out.say(f"run {found.id} is {found.status}")
    return Code.DONE


@command(app, server=True)
async def send(
    session: Session,
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the model reads next.")],
    *,
    file: FilesOption = None,
    by: _BY = None,
) -> int:
    """Send a message into a run.

    It is read when the batch that is under way is complete.
    """
    async with session.reader() as runtime:
        found = await find_run(session, runtime, run)
        open_ = await found.send(prompt_with(session, text, file), by=_who(session, by))
        hint = await found.hint() if open_ else None
    if session.json:
        session.out.data(
            {
                "runId": found.id,
                "interactionId": found.interaction_id,
                "delivered": "queued" if open_ else "next run",
                "hint": hint,
            }
        )
    elif open_:
        session.out.say(f"queued for run {found.id}")
        if hint is not None:
            session.out.note(hint)
    else:
        session.out.say(f"run {found.id} has ended; the message waits for the next run of its conversation")
    return Code.DONE


@command(app)
async def erase(
    session: Session,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Of this run, which has ended.")] = None,
    *,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Of every run that ended longer ago: 12h, 30d, 8w."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask on the terminal.")] = False,
) -> int:
    """Erase what was written in an ended run and in those below it, or in all of the tenant that are older than that.

    What people, models and tools wrote goes for ever; digests and sizes stay.
    """
    if (run is None) == (older_than is None):
        raise Stop("name a RUN, or an age such as --older-than 30d")
    before = None if older_than is None else ago("--older-than", older_than)
    async with session.reader() as runtime:
        if before is not None:
            runs = await runtime.ended_before(before, tenant=session.tenant)
            what = f"{counted(len(runs), 'run')} that ended before {when(before, day=True)} UTC"
        else:
            runs = [(await find_run(session, runtime, str(run))).id]
            what = f"run {runs[0]}"
        if runs:
            await _sure(session, what, yes=yes)
        contents = [await _erased(session, runtime, run_id, all_=before is not None) for run_id in runs]
    count, erased = sum(contents), sum(one > 0 for one in contents)
    if session.json:
        whose: dict[str, JsonValue] = {"runId": runs[0]} if before is None else {"before": date_json(before)}
        session.out.data({**whose, "runs": erased, "erased": count})
    else:
        session.out.say(
            f"erased {counted(count, 'content')} of {_of_how_many(what, erased, before)}; their digests stay"
        )
    return Code.DONE


def _of_how_many(what: str, erased: int, before: datetime | None) -> str:
    return what if before is None else f"{counted(erased, 'run')} that ended before {when(before, day=True)} UTC"


async def _sure(session: Session, what: str, *, yes: bool) -> None:
    """Ask on a terminal. Raises Stop where the answer is not yes."""
    terminal = Terminal(session.out)
    if terminal.attended and not yes:
        answer = await terminal.line(f"erase the contents of {what} for ever [y/N]? ")
        if (answer or "").strip().lower() not in ("y", "yes"):
            raise Stop("nothing was erased", Code.FAILED)


async def _erased(session: Session, runtime: Runtime, run_id: str, *, all_: bool) -> int:
    try:
        return await runtime.erase(run_id, tenant=session.tenant)
    except Conflict:
        if not all_:
            raise
        return 0  # it was resumed since it was looked for, or a run below it goes on
