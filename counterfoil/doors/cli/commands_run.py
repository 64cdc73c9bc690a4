"""Commands that drive or follow runs: run, chat, watch."""

import asyncio
from contextlib import nullcontext
from typing import Annotated

import typer

from counterfoil.agent import Agent
from counterfoil.core.call import Caller
from counterfoil.core.wire_live import event_json
from counterfoil.doors import wiring
from counterfoil.doors.cli.common import FilesOption, RunArgument, Session, command, find_run, prompt_with
from counterfoil.doors.cli.errors import Code, Stop, code_of_status
from counterfoil.doors.cli.live import Follower, drive, print_end
from counterfoil.doors.cli.load import load_agent
from counterfoil.doors.cli.terminal import Terminal
from counterfoil.doors.cli.view import of_run

__all__ = ["app"]

app = typer.Typer()


_AGENT = Annotated[
    str, typer.Argument(metavar="MODULE:AGENT", help="A variable of a module that is found from this folder.")
]
_USER = Annotated[str | None, typer.Option("--user", metavar="NAME", help="On whose behalf; you unless given.")]
_ROLE = Annotated[list[str] | None, typer.Option("--role", metavar="NAME", help="A role of the user; repeatable.")]
_YES = Annotated[bool, typer.Option("--yes", help="Approve every call that waits for approval, and say so.")]
_INTERACTION = Annotated[
    str | None, typer.Option("--interaction", metavar="ID", help="Go on with an earlier conversation.")
]


@command(app, "run", server=True)
async def run_(
    session: Session,
    agent: _AGENT,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The first message; - reads standard input.")],
    *,
    file: FilesOption = None,
    user: _USER = None,
    role: _ROLE = None,
    interaction: _INTERACTION = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="A repeat with this key gives the first run.")
    ] = None,
    yes: _YES = False,
) -> int:
    """Run an agent and show its timeline as it happens.

    Asks on the terminal for approvals. Without a terminal it pauses (exit code 3) and says what to type next.
    """
    terminal = Terminal(session.out)
    loaded = _agent(session, agent)
    text = await _everything(terminal) if prompt == "-" else prompt
    if not text.strip():
        raise Stop(f"expected a prompt, got nothing{' on standard input' if prompt == '-' else ''}")
    said, caller = prompt_with(session, text, file), _caller(session, user, role)
    async with session.writer([loaded] if isinstance(loaded, Agent) else []) as runtime:
        run = await runtime.start(loaded, said, caller=caller, interaction=interaction, key=key)
        if not session.json:
            session.out.note(f"run {run.id}", style="dim")
        with _ToldOnInterrupt(session, run.id, agent):
            code = await drive(session, runtime, run, yes=yes, terminal=terminal)
        await print_end(session, run, agent)
        if session.json:
            session.out.data(of_run(run))
    return code


@command(app, server=True)
async def chat(
    session: Session,
    agent: _AGENT,
    *,
    user: _USER = None,
    role: _ROLE = None,
    interaction: _INTERACTION = None,
    yes: _YES = False,
) -> int:
    """Talk with an agent: each line is a turn of one conversation.

    Ctrl-D or /exit ends it.
    """
    terminal = Terminal(session.out)
    loaded = _agent(session, agent)
    caller = _caller(session, user, role)
    code = Code.DONE
    question = "> " if terminal.attended else ""
    async with session.writer([loaded] if isinstance(loaded, Agent) else []) as runtime:
        with session.out.array() if session.json else nullcontext() as add:
            while (text := await terminal.line(question)) is not None and text.strip() != "/exit":
                if not text.strip():
                    continue
                run = await runtime.start(loaded, text, caller=caller, interaction=interaction)
                interaction = run.interaction_id
                with _ToldOnInterrupt(session, run.id, agent):
                    follower = Follower(session, runtime, run, terse=True)
                    code = await drive(session, runtime, run, yes=yes, terminal=terminal, follower=follower)
                await print_end(session, run, agent)
                if add is not None:
                    add(of_run(run))
                if code is Code.PAUSED:
                    break  # the conversation has an open run: its calls are decided first
    if interaction is not None:
        session.out.note(f"conversation {interaction}", style="dim")
    return code


@command(app, server=True)
async def watch(session: Session, run: RunArgument) -> int:
    """Show a run's timeline live, until it ends.

    From its start and through pauses; the exit code says how it ended. With --json, the events as one array, written
    as they come.
    """
    async with session.reader() as runtime:
        found = await find_run(session, runtime, run)
        follower = Follower(session, runtime, found, to_end=True, below=True)
        with session.out.array() if session.json else nullcontext() as add:
            if add is None:
                await follower.rows()
            else:
                async for event in follower.events():
                    add(event_json(event))
                    if session.out.broken:
                        break
        await found.refresh()
        await print_end(session, found, "MODULE:AGENT")
        return code_of_status(found.status)


def _agent(session: Session, spec: str) -> Agent | str:
    """The agent that is meant; at a server, its name."""
    return load_agent(spec) if session.server is None else spec.rpartition(":")[2]


def _caller(session: Session, user: str | None, roles: list[str] | None) -> Caller:
    if session.server is not None and (user or roles):
        raise Stop("at a server a run works for the key's user; leave out --user and --role")
    return Caller(tenant=session.tenant, user=user or wiring.login(), roles=tuple(roles or ()))


async def _everything(terminal: Terminal) -> str:
    lines = []
    while (line := await terminal.line()) is not None:
        lines.append(line)
    return "\n".join(lines)


class _ToldOnInterrupt:
    """After Ctrl-C, says that the run is on record and what to type."""

    def __init__(self, session: Session, run_id: str, spec: str) -> None:
        self.session, self.run_id, self.spec = session, run_id, spec

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
            flags = self.session.store_flags()
            if self.session.server is not None:
                self.session.out.note(f"the run goes on: counterfoil cancel {self.run_id}{flags} ends it")
                return
            module = self.spec.partition(":")[0]
            self.session.out.note(
                f"run {self.run_id} is on record and unfinished: counterfoil work {module} --once{flags} "
                f"goes on with it, counterfoil cancel {self.run_id}{flags} ends it"
            )
