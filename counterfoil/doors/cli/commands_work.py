"""The command that works: a worker without HTTP."""

import asyncio
from typing import Annotated

import typer

from counterfoil.agent import Agent
from counterfoil.doors import wiring
from counterfoil.doors.cli.ages import age, rate
from counterfoil.doors.cli.common import Session, command
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.load import load_agents
from counterfoil.doors.cli.signals import told_to_end
from counterfoil.doors.cli.view import counted
from counterfoil.runtime import Runtime

__all__ = ["app"]

app = typer.Typer()

IDLE_SECONDS = 0.1
"""How often `work --once` looks whether anything is left to do."""
GRACE_SECONDS = 30.0
"""For a worker that is told to end: as long as container platforms wait before they kill."""


@command(app, data=False)
async def work(
    session: Session,
    modules: Annotated[
        list[str] | None, typer.Argument(metavar="MODULE …", help="Modules with agents, or MODULE:AGENT.")
    ] = None,
    *,
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="Whose runs it takes up.")] = "default",
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", min=1, help="Runs that it drives at once.")
    ] = None,
    dispatch: Annotated[
        str, typer.Option("--dispatch", metavar="NAME", help="inline, dbos or temporal[:HOST:PORT].")
    ] = "inline",
    tenant_running: Annotated[
        int | None,
        typer.Option("--tenant-running", metavar="N", min=0, help="Runs of one tenant at once."),
    ] = None,
    tenant_starts: Annotated[
        str | None,
        typer.Option("--tenant-starts", metavar="N/TIME", help="Runs of one tenant that begin: 60/m."),
    ] = None,
    retain: Annotated[
        str | None, typer.Option("--retain", metavar="AGE", help="Erase what ended runs hold after so long: 30d.")
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", min=0, help="For bodies to end when it is told to end.")
    ] = GRACE_SECONDS,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left to do but for people.")] = False,
) -> int:
    """Take up unfinished runs of the modules' agents.

    Of all tenants, until Ctrl-C or SIGTERM. Then it takes up nothing more, lets bodies end, and gives each run back
    where its next step would begin; a second Ctrl-C ends it at once.
    """
    if not modules:
        raise Stop("expected at least one module with agents; type counterfoil work MODULE")
    agents = list(dict.fromkeys(agent for spec in modules for agent in load_agents(spec)))
    starts, seconds = (None, 60.0) if tenant_starts is None else rate("--tenant-starts", tenant_starts)
    runtime = wiring.open_worker(
        session.store, agents, pool=pool, max_runs=concurrency, dispatch=dispatch,
        quota=(tenant_running, starts, seconds), retain=None if retain is None else age("--retain", retain),
    )  # fmt: skip  # two rows
    stop = told_to_end()
    async with runtime:
        names = ", ".join(agent.name for agent in agents)
        session.out.note(f"working for {names} on {session.store.value}{'' if pool == 'default' else f', pool {pool}'}")
        stopped = asyncio.create_task(stop.wait())
        idle = asyncio.create_task(_idle(runtime, agents)) if once else None
        await asyncio.wait([stopped, *([idle] if idle else [])], return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, idle):
            if task is not None:
                task.cancel()
        if idle and not stop.is_set():
            session.out.note(await _left(runtime, agents))
        else:
            session.out.note("stopping")
            if not await runtime.drain(grace):
                session.out.note("bodies that did not end in time are told to stop")
    return Code.DONE


async def _left(runtime: Runtime, agents: list[Agent]) -> str:
    paused = (await runtime.store.counts([agent.name for agent in agents], runtime.pool)).paused
    waits = f" but for people: {counted(paused, 'run')} paused; `counterfoil approvals` lists the calls"
    return f"nothing is left to do{waits if paused else ''}"


async def _idle(runtime: Runtime, agents: list[Agent]) -> None:
    """Wait until every unfinished run of the agents waits for people alone."""
    names = [agent.name for agent in agents]
    while True:
        left = await runtime.store.counts(names, runtime.pool)
        if not left.driven + left.queued:
            return
        await asyncio.sleep(IDLE_SECONDS)
