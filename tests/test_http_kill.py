"""A server that is killed in the middle of fifty runs: its clients go on and end with the whole record."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from counterfoil import Runtime
from tests.floors import ROOT
from tests.helpers import Place, content, shared, until
from tests.marks import case, law
from tests.served import NO_TLS, follow

RUNS = 50
PATIENCE = 90.0
"""Seconds until the test gives up on something that takes a few."""


@asynccontextmanager
async def a_server(place: Place, folder: Path, port: int = 0) -> AsyncIterator[tuple[Any, int]]:
    """A server in a process of its own, and its port."""
    command = [sys.executable, "-c", "from counterfoil.doors.cli import main; main()"]
    process = await asyncio.create_subprocess_exec(
        *command, "serve", "--dev", "--port", str(port), "--store", place.url, "tests.http_desk",
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE,
    )  # fmt: skip  # two rows
    drained = None
    try:
        line = (await process.stderr.readline()).decode()
        found = re.search(r"serving http://[\d.]+:(\d+)", line)
        assert found, line
        drained = asyncio.create_task(process.stderr.read())  # it logs each request; a full pipe would hold it up
        yield process, int(found[1])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if drained is not None:
            await drained


class Client:
    """Follows one run to its end, whatever becomes of the server, as a browser does."""

    def __init__(self, client: httpx2.AsyncClient, run_id: str) -> None:
        self.client, self.run_id = client, run_id
        self.seen: list[dict[str, Any]] = []
        self.broken = 0

    @property
    def last(self) -> int | None:
        return self.seen[-1]["id"] if self.seen else None

    @property
    def waits(self) -> bool:
        """Its run is in the middle of the body that waits for the file."""
        return any(e["event"] == "CallStarted" and e["data"]["callId"] == "look-2" for e in self.seen)

    async def go(self) -> None:
        while not self.seen or self.seen[-1]["event"] != "RunEnded":
            try:
                async for event in follow(self.client, self.run_id, self.last):
                    if event["id"] is not None:
                        self.seen.append(event)
            except httpx2.TransportError:
                self.broken += 1
                await asyncio.sleep(0.05)


@shared
@law("7.6")
def test_clients_of_a_server_that_is_killed_in_the_middle_of_fifty_runs_end_with_the_whole_record(place, tmp_path):
    async def main():
        limits = httpx2.Limits(max_connections=None)
        async with a_server(place, tmp_path) as (first, port):
            address = f"http://127.0.0.1:{port}"
            async with httpx2.AsyncClient(base_url=address, verify=NO_TLS, timeout=PATIENCE, limits=limits) as client:
                body = {"agent": "desk", "prompt": "go"}
                begun = await asyncio.gather(*(client.post("/v1/runs", json=body) for _ in range(RUNS)))
                clients = [Client(client, answer.json()["runId"]) for answer in begun]
                going = [asyncio.create_task(c.go()) for c in clients]
                await until(lambda: all(c.waits for c in clients))
                first.send_signal(signal.SIGKILL)
                await first.wait()
                await until(lambda: all(c.broken for c in clients))
                (tmp_path / "go").touch()
                async with a_server(place, tmp_path, port):
                    await asyncio.gather(*going)
                    for one in clients:
                        whole = [e async for e in follow(client, one.run_id, 0)]
                        assert [e for e in whole if e["id"] is not None] == one.seen
                        run = (await client.get(f"/v1/runs/{one.run_id}")).json()
                        assert (run["status"], run["answer"]) == ("completed", "Done.")
                        assert one.seen[-1]["data"]["answer"] == "Done."
                        assert [e["data"]["attempt"] for e in one.seen if e["event"] == "CallStarted"] == [
                            1,
                            1,
                            1,
                            2,
                            1,
                        ]
        async with Runtime(place.url) as runtime:
            await content(runtime)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


PAYMENTS = 20


@shared
@law("7.2", "7.5", "7.6")
@case("R077", "R076")
def test_decisions_that_are_on_their_way_when_a_server_is_killed_can_be_sent_again_and_pay_once(place, tmp_path):
    answered: list[int] = []

    async def decide(client: httpx2.AsyncClient, run: str, **body: str) -> None:
        """Send it until a server has an answer."""
        while True:
            with suppress(httpx2.TransportError):
                answer = await client.post(f"/v1/runs/{run}/calls/p/decision", json=body)
                answered.append(answer.status_code)
                return
            await asyncio.sleep(0.05)

    async def ends(client: httpx2.AsyncClient, run: str) -> dict[str, Any]:
        """The run at its end; a person looks after a payment of which nobody knows."""
        while (found := (await client.get(f"/v1/runs/{run}")).json())["status"] in ("running", "paused"):
            for asked in (await client.get("/v1/approvals", params={"run": run})).json()["items"]:
                assert asked["kind"] == "interrupted"
                await decide(client, run, decision="record", result="Somebody looked.")
            await asyncio.sleep(0.01)
        return found

    async def main():
        async with a_server(place, tmp_path) as (first, port):
            address = f"http://127.0.0.1:{port}"
            async with httpx2.AsyncClient(base_url=address, verify=NO_TLS, timeout=PATIENCE) as client:
                body = {"agent": "till", "prompt": "go"}
                runs = [(await client.post("/v1/runs", json=body)).json()["runId"] for _ in range(PAYMENTS)]
                while len((await client.get("/v1/approvals")).json()["items"]) < PAYMENTS:
                    await asyncio.sleep(0.01)
                few = asyncio.Semaphore(4)

                async def approve(run: str) -> None:
                    async with few:
                        await decide(client, run, decision="approve")
                        if len(answered) == PAYMENTS // 2:
                            first.send_signal(signal.SIGKILL)

                going = [asyncio.create_task(approve(run)) for run in runs]
                await first.wait()
                async with a_server(place, tmp_path, port):
                    await asyncio.gather(*going)
                    await asyncio.gather(*(decide(client, run, decision="approve") for run in runs))
                    assert set(answered) == {200}
                    found = [await ends(client, run) for run in runs]
                    paid = Counter((tmp_path / "paid").read_text(encoding="utf-8").split())
                    for run in found:
                        (item,) = [i for i in run["context"]["items"] if i["kind"] == "ToolResult"]
                        assert (run["status"], item["isError"]) == ("completed", False)
                        known = item["author"]["type"] == "Agent"
                        assert paid[run["runId"]] == 1 or (paid[run["runId"]] == 0 and not known)
        async with Runtime(place.url) as runtime:
            await content(runtime)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
