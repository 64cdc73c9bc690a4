"""A Runtime served over HTTP in the event loop of a test, and a client of it."""

from __future__ import annotations

import asyncio
import json
import queue
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn

from counterfoil import Runtime
from counterfoil.doors.http import create_app
from counterfoil.doors.http.serving import bind

PROBLEM = "application/problem+json"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that speak no TLS: the default one reads every root certificate first."""


@dataclass
class Served:
    """What a test holds of a server."""

    client: httpx2.AsyncClient
    runtime: Runtime
    app: Any

    async def start(self, agent: str = "desk", prompt: str = "go", **fields: Any) -> dict[str, Any]:
        """A run that was just started."""
        answer = await self.client.post("/v1/runs", json={"agent": agent, "prompt": prompt, **fields})
        assert answer.status_code == 202, answer.text
        return answer.json()

    async def rests(self, run_id: str, tenant: str = "default") -> dict[str, Any]:
        """The run, once it has ended or paused."""
        await (await self.runtime.get(run_id, tenant)).wait()
        return (await self.client.get(f"/v1/runs/{run_id}")).json()

    async def decide(self, run_id: str, call_id: str, **body: Any) -> httpx2.Response:
        """The answer to a decision."""
        return await self.client.post(f"/v1/runs/{run_id}/calls/{call_id}/decision", json=body)

    async def events(self, run_id: str, last: int | None = None, **headers: str) -> list[dict[str, Any]]:
        """A run's events to its end."""
        return [event async for event in follow(self.client, run_id, last, **headers)]


@asynccontextmanager
async def served(runtime: Runtime, **options: Any) -> AsyncIterator[Served]:
    """The Runtime, open or not, on a port of this machine; a request without a key is ada's unless said otherwise."""
    app = create_app(runtime, **{"dev": "ada", **options})
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=1)
    )
    with bind("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server._serve([listening]))
        while not server.started:
            assert not serving.done(), serving.result()
            await asyncio.sleep(0.001)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            async with httpx2.AsyncClient(base_url=url, timeout=30, verify=NO_TLS) as client:
                yield Served(client, runtime, app)
        finally:
            server.should_exit = True
            await serving


@contextmanager
def in_thread(make: Callable[[], Runtime], **options: Any) -> Iterator[str]:
    """The address of a server that another thread runs, for what waits in this one."""
    told: queue.Queue[Any] = queue.Queue()

    async def main() -> None:
        stop = asyncio.Event()
        async with served(make(), **options) as http:
            told.put((str(http.client.base_url), asyncio.get_running_loop(), stop))
            await stop.wait()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(asyncio.run, main())
        done.add_done_callback(told.put)  # where it did not come to serve
        url, loop, stop = told.get()
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(stop.set)
            done.result()


async def follow(
    client: httpx2.AsyncClient, run_id: str, last: int | None = None, **headers: str
) -> AsyncIterator[dict[str, Any]]:
    """Events as they come: ``id`` (None without one), ``event``, and their ``data``."""
    if last is not None:
        headers["Last-Event-ID"] = str(last)
    async with client.stream("GET", f"/v1/runs/{run_id}/events", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                id_ = fields.get("id")
                yield {
                    "id": None if id_ is None else int(id_),
                    "event": fields["event"],
                    "data": json.loads(fields["data"]),
                }
                fields = {}
            else:
                fields = {}
