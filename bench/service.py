"""The HTTP API under load: many clients follow live runs of one server while others start; many wait at paused ones.

    python bench/service.py [--clients 200] [--starts 50] [--seconds 10]

Held: no client loses or doubles an event of the record; the slowest read of a hundred costs under ten times that of an
empty route; an event stream on which nothing happens costs the server under 100 KB. Exit code 1 when one does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from counterfoil import Runtime

READ_BOUND = 10.0
"""Times an empty route's, at the 99th percentile of each."""
IDLE_BOUND = 100_000
"""Bytes of the server for each stream on which nothing happens."""

AGENTS = """\
import asyncio
from counterfoil import Agent, tool
from counterfoil.testing import ScriptedModel, call, say

@tool(read_only=True)
async def tick() -> str:
    "Wait a moment."
    await asyncio.sleep(0.5)
    return "tick"

@tool(read_only=True)
async def look() -> str:
    "Look."
    return "seen"

@tool(needs_approval=True)
async def pay() -> str:
    "Pay."
    return "paid"

live = Agent("live", ScriptedModel([*[call("tick")] * 20, say("Done.")]), tools=[tick])
short = Agent("short", ScriptedModel([call("look"), say("Done.")]), tools=[look])
asks = Agent("asks", ScriptedModel([call("pay"), say("Done.")]), tools=[pay])
"""


class Link:
    """One connection that is kept, with no more of HTTP than this needs."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = b"" if body is None else json.dumps(body).encode()
        kind = f"Content-Type: application/json\r\nContent-Length: {len(data)}"
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n"
        self.writer.write(head.encode() + data)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        return int(answer[9:12]), await self.reader.readexactly(int(length[1]) if length else 0)

    async def start(self, agent: str) -> str:
        status, data = await self.ask("POST", "/v1/runs", {"agent": agent, "prompt": "go"})
        if status != 202:
            raise RuntimeError(data)
        return json.loads(data)["runId"]


async def follow(port: int, run_id: str, seen: list[int], begun: asyncio.Event | None = None) -> None:
    """The ids of a run's events, to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    async for line in reader:
        if line.startswith(b"id: "):
            seen.append(int(line[4:]))
        elif begun is not None and line.startswith(b"event: RunPaused"):
            begun.set()
        elif line.startswith(b"data: ") and b'"type":"RunEnded"' in line:
            break
    writer.close()


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


async def idle(port: int, pid: int, clients: int) -> bool:
    link = Link(port)
    runs = [await link.start("asks") for _ in range(clients)]
    for path in ("/healthz", f"/v1/runs/{runs[0]}", "/v1/approvals?limit=500"):
        await link.ask("GET", path)
    await asyncio.sleep(1)
    before = resident(pid)
    events = [asyncio.Event() for _ in runs]
    tasks = [asyncio.create_task(follow(port, run, [], event)) for run, event in zip(runs, events, strict=True)]
    await asyncio.gather(*(event.wait() for event in events))
    await asyncio.sleep(1)
    each = (resident(pid) - before) / clients
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(f"{clients} streams of paused runs: {each / 1000:.0f} KB each (under {IDLE_BOUND / 1000:.0f})")
    return each < IDLE_BOUND


async def loaded(port: int, store: str, clients: int, starts: int, seconds: float) -> bool:
    link = Link(port)
    runs = [await link.start("live") for _ in range(clients)]
    seen: list[list[int]] = [[] for _ in runs]
    following = [asyncio.create_task(follow(port, run, one)) for run, one in zip(runs, seen, strict=True)]
    took: dict[str, list[float]] = {"/healthz": [], f"/v1/runs/{runs[0]}": []}
    began, started = time.perf_counter(), 0
    starters = [Link(port) for _ in range(starts)]

    async def start_each_second(link: Link, offset: float) -> None:
        nonlocal started
        for second in range(int(seconds)):
            await asyncio.sleep(max(0.0, second + offset - (time.perf_counter() - began)))
            await link.start("short")
            started += 1

    # Each has a connection of its own: one that is slow to begin holds no other up.
    starting = [asyncio.create_task(start_each_second(one, at / starts)) for at, one in enumerate(starters)]
    while time.perf_counter() - began < seconds:
        for path, times in took.items():
            then = time.perf_counter()
            await link.ask("GET", path)
            times.append(time.perf_counter() - then)
    await asyncio.gather(*starting)
    took_all = time.perf_counter() - began
    await asyncio.gather(*following)
    whole = True
    async with Runtime(store) as record:
        for run, ids in zip(runs, seen, strict=True):
            whole = whole and ids == [event.entry async for event in record.events(run)]
    empty, read = (p99(times) for times in took.values())
    events = sum(map(len, seen))
    print(f"{clients} clients, {events} events while {started / took_all:.0f} runs a second began: whole {whole}")
    told = f"a read {read * 1e3:.1f} ms, an empty route {empty * 1e3:.1f} ms at p99"
    print(f"{told}: {read / empty:.1f} times (under {READ_BOUND})")
    return whole and read / empty < READ_BOUND and started / took_all >= 0.9 * starts


async def serve(clients: int, starts: int, seconds: float) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "load.py").write_text(AGENTS)
        store = f"sqlite:///{folder}/load.db"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from counterfoil.doors.cli import main; main()", "serve", "--dev", "--port", "0",
            "--max-rate", "1000000/s", "--store", store, "load",
            cwd=folder, env=dict(os.environ), stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip  # rows by what belongs together
        found = re.search(r":(\d+) on", (await process.stderr.readline()).decode())
        reading = asyncio.create_task(process.stderr.read())
        try:
            held = await idle(int(found[1]), process.pid, clients)
            return await loaded(int(found[1]), store, clients, starts, seconds) and held
        finally:
            process.kill()
            await process.wait()
            reading.cancel()


def run(clients: int = 200, starts: int = 50, seconds: float = 10.0) -> bool:
    return asyncio.run(serve(clients, starts, seconds))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("clients", 200), ("starts", 50), ("seconds", 10)):
        options.add_argument(f"--{name}", type=int, default=value)
    sys.exit(0 if run(**vars(options.parse_args())) else 1)
