"""The command that works: a worker without HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from counterfoil.agent import Agent
from counterfoil.doors import http, wiring
from counterfoil.doors.cli.ages import age, rate
from counterfoil.doors.cli.common import Session, command
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.load import load_agents
from counterfoil.doors.cli.observing import GRACE_SECONDS, Grace, LogForm, Traces, WebhookUrl, observed
from counterfoil.doors.cli.signals import told_to_end
from counterfoil.doors.cli.view import counted
from counterfoil.runtime import Runtime

__all__ = ["app"]

app = typer.Typer()

IDLE_SECONDS = 0.1
"""How often `work --once` looks whether anything is left to do."""
_MODULES = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODULE …",
        help="Modules with agents, or MODULE:AGENT.",
        envvar="COUNTERFOIL_WORK_MODULES",
        show_envvar=False,
    ),
]
_RETAIN = Annotated[
    str | None, typer.Option("--retain", metavar="AGE", help="Erase what ended runs hold after so long: 30d.")
]
_LISTEN = Annotated[
    str | None,
    typer.Option("--listen", metavar="ADDRESS:PORT", help="Serve /healthz, /readyz and /metrics there."),
]


@command(app, data=False)
async def work(
    session: Session,
    modules: _MODULES = None,
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
    retain: _RETAIN = None,
    grace: Grace = GRACE_SECONDS,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left to do but for people.")] = False,
    listen: _LISTEN = None,
    log: LogForm = None,
    traces: Traces = False,
    webhook: WebhookUrl = None,
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
    async with observed(runtime, log=log, traces=traces, webhook=webhook), runtime, _probes(session, runtime, listen):
        names = ", ".join(agent.name for agent in agents)
        session.out.note(
            f"working for {names} on {wiring.shown(session.store.value)}{'' if pool == 'default' else f', pool {pool}'}"
        )
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


@asynccontextmanager
async def _probes(session: Session, runtime: Runtime, listen: str | None) -> AsyncIterator[None]:
    """Serve how the process is, until its work is done or given back."""
    if listen is None:
        yield
        return
    http.needs_extra()
    from counterfoil.doors.http.serving import bind, serve

    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        raise Stop(f"--listen: expected an address and a port, such as 127.0.0.1:9090, got {listen!r:.80}")
    over = asyncio.Event()
    with bind(host or "127.0.0.1", int(port)) as listening:
        place = "{}:{}".format(*listening.getsockname()[:2])
        serving = asyncio.create_task(
            serve(
                http.create_app(runtime, only_probes=True), runtime, listening, over, grace=0,
                started=lambda: session.out.note(f"probes on http://{place}"),
            )
        )  # fmt: skip  # two rows
        try:
            yield
        finally:
            over.set()
            await serving


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
