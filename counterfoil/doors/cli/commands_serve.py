"""The command that serves: the HTTP API, with a worker inside."""

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from counterfoil.doors import http, wiring
from counterfoil.doors.cli.ages import rate
from counterfoil.doors.cli.common import Session, command
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.load import load_agents
from counterfoil.doors.cli.observing import GRACE_SECONDS, Grace, LogForm, Traces, WebhookUrl, observed
from counterfoil.doors.cli.signals import told_to_end
from counterfoil.runtime import Runtime

__all__ = ["app"]

app = typer.Typer()

_MODULES = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODULE …]",
        help="Modules with agents, or MODULE:AGENT.",
        envvar="COUNTERFOIL_SERVE_MODULES",
        show_envvar=False,
    ),
]
_DISCONNECT = Annotated[
    float | None,
    typer.Option(
        "--disconnect-grace",
        metavar="SECONDS",
        min=0,
        help="Before a run is cancelled whose client has gone, where it was started so.",
    ),
]


@command(app, data=False)
async def serve(
    session: Session,
    modules: _MODULES = None,
    *,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 8000,
    dev: Annotated[
        bool, typer.Option("--dev", help="Requests without a key may do everything; on this machine alone.")
    ] = False,
    disconnect_grace: _DISCONNECT = None,
    max_body: Annotated[
        int | None, typer.Option("--max-body", metavar="BYTES", min=1, help="Of a request; 1 MiB unless given.")
    ] = None,
    max_rate: Annotated[
        str | None,
        typer.Option("--max-rate", metavar="N/TIME", help="Requests of each key; 6000/m unless given."),
    ] = None,
    grace: Grace = GRACE_SECONDS,
    log: LogForm = None,
    traces: Traces = False,
    webhook: WebhookUrl = None,
) -> int:
    """Serve the HTTP API, and drive the runs of the modules' agents.

    Until Ctrl-C or SIGTERM. Then it takes up nothing more, ends the streams of events, lets bodies end, and gives each
    run back where its next step would begin; a second Ctrl-C ends it at once.
    """
    http.needs_extra()
    from counterfoil.doors.http.access import is_loopback
    from counterfoil.doors.http.serving import bind

    if dev and not is_loopback(host):
        raise Stop(f"--dev asks for no key, so it listens on this machine alone; leave out --dev or --host {host}")
    agents = list(dict.fromkeys(agent for spec in modules or () for agent in load_agents(spec)))
    allowed = None if max_rate is None else rate("--max-rate", max_rate)
    given = {"disconnect_grace": disconnect_grace, "max_body": max_body, "rate": allowed}
    settings = {name: value for name, value in given.items() if value is not None}
    stop = told_to_end()
    runtime = wiring.open_runtime(session.store, agents)
    requests = _requests_logged() if log is None else contextlib.nullcontext()
    async with observed(runtime, log=log, traces=traces, webhook=webhook), runtime:
        if not dev and not await runtime.store.has_keys(runtime.effects.now()):
            raise Stop(
                "no key counts in this store, so nobody could ask anything; type counterfoil keys create, "
                "or serve this machine alone with --dev"
            )
        served = http.create_app(runtime, dev=wiring.login() if dev else None, traces=traces, **settings)
        with requests, bind(host, port) as listening:
            await _serve(session, served, runtime, listening, stop, grace)
    return Code.DONE


async def _serve(
    session: Session, served: Any, runtime: Runtime, listening: socket.socket, stop: asyncio.Event, grace: float
) -> None:
    from counterfoil.doors.http.serving import serve as serve_app

    host, port = listening.getsockname()[:2]
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    whole = await serve_app(
        served, runtime, listening, stop, grace=grace,
        started=lambda: session.out.note(f"serving {place} on {wiring.shown(session.store.value)}"),
    )  # fmt: skip  # two rows
    session.out.note("stopped" if whole else "bodies that did not end in time are told to stop")


@contextlib.contextmanager
def _requests_logged() -> Iterator[None]:
    """A line for each request, with its id, to standard error."""
    logs = logging.getLogger("counterfoil.http")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = logs.level, logs.propagate
    logs.addHandler(handler)
    logs.setLevel(logging.INFO)
    logs.propagate = False
    try:
        yield
    finally:
        logs.removeHandler(handler)
        logs.setLevel(before[0])
        logs.propagate = before[1]
