"""The server process: an address, uvicorn on it, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from counterfoil.core.errors import OperatorError
from counterfoil.runtime import Runtime


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
        OperatorError: the address is in use or is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        told = getattr(error, "strerror", None) or error
        raise OperatorError(
            f"cannot listen on {host} port {port}: {told}; choose another with --host and --port (0: a free one)"
        ) from error


class _Server(uvicorn.Server):
    """Leaves the signals to whoever started it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: FastAPI, runtime: Runtime, listening: socket.socket, stop: asyncio.Event, *, grace: float,
    started: Callable[[], None],
) -> bool:  # fmt: skip  # two rows
    """Serve until told to stop; then end streams, whose readers go on elsewhere, and give back what is driven here.

    Returns:
        Whether every body ended within ``grace`` seconds.
    """
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", server_header=False, ws="none",
        timeout_graceful_shutdown=5,
    )  # fmt: skip  # two rows
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    stopped = asyncio.create_task(stop.wait())
    while not server.started and not serving.done():  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    if not serving.done():
        started()
    await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    drained = await runtime.drain(grace)
    if not app.state.leaving.done():
        app.state.leaving.set_result(None)
    server.should_exit = True
    await serving
    return drained
