"""What `serve` and `work` share: their end, and what they tell those who look after them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from counterfoil.doors import wiring
from counterfoil.doors.cli.logs import Form, logging_as
from counterfoil.runtime import Runtime

__all__ = ["GRACE_SECONDS", "Grace", "LogForm", "Traces", "WebhookUrl", "observed"]

GRACE_SECONDS = 30.0
"""For bodies when a process is told to end: as long as container platforms wait before they kill."""
Grace = Annotated[
    float, typer.Option("--grace", metavar="SECONDS", min=0, help="For bodies to end when it is told to end.")
]
LogForm = Annotated[
    Form | None,
    typer.Option("--log", metavar="text|json", help="Log requests, runs and calls; json on standard output."),
]
Traces = Annotated[bool, typer.Option("--traces", help="Export traces, as the variables OTEL_… say.")]
WebhookUrl = Annotated[
    str | None,
    typer.Option("--webhook", metavar="URL", help="Post failed calls there; COUNTERFOIL_WEBHOOK_SECRET signs them."),
]


@asynccontextmanager
async def observed(runtime: Runtime, *, log: Form | None, traces: bool, webhook: str | None) -> AsyncIterator[None]:
    """Tell of a Runtime that is not open yet, until it is closed; then send what is left to send."""
    if log is not None:
        wiring.log_runs(runtime)
    ends = []
    if traces:
        ends.append(wiring.trace_runs(runtime))
    if webhook is not None:
        ends.append(wiring.post_errors(runtime, webhook))
    with logging_as(log):
        try:
            yield
        finally:
            for end in ends:
                await asyncio.to_thread(end)
