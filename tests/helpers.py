"""What tests of runs share: one file or memory to run on, agents of scripted turns, bodies that are watched."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Agent, Approval, Run, Runtime, Tool, ToolContext, tool
from counterfoil.model import ModelEvent, ModelRequest, ModelTurn
from counterfoil.testing import ScriptedModel

SOON = 30.0
"""Seconds after which a test that hangs fails; nothing is measured against it."""

both = pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
"""The test runs on every store."""
shared = pytest.mark.parametrize("kind", ["sqlite", "postgres"])
"""The test runs on every store that several processes may have open."""


class Place:
    """Where the runs of one test are on record; each Runtime of a test opens the same one."""

    def __init__(self, kind: str, folder: Path, url: str | None = None) -> None:
        self.url = url or ("memory://" if kind == "memory" else f"sqlite:///{folder}/runs.db")
        self._store: Any = None
        self.kind = kind

    def runtime(self, *agents: Agent, **options: Any) -> Runtime:
        """A Runtime on this record that is not open yet."""
        if self.kind == "memory" and self._store is not None:
            options["store"] = self._store
        made = Runtime(self.url, agents=agents, **options)
        self._store = made.store
        return made

    @asynccontextmanager
    async def open(self, *agents: Agent, **options: Any) -> AsyncIterator[Runtime]:
        """A Runtime; when the test is through, the whole record keeps the laws of the contract."""
        async with self.runtime(*agents, **options) as runtime:
            yield runtime
            await content(runtime)


class Child:
    """Another process on the record of a test; see `tests.run_child`."""

    def __init__(self, folder: Path, *words: str, url: str | None = None) -> None:
        self.effects = folder / "effects"
        self.effects.touch()
        url = url or f"sqlite:///{folder}/runs.db"
        command = [sys.executable, "-m", "tests.run_child", url, str(self.effects), *words]
        pipe = subprocess.PIPE
        root = Path(__file__).parent.parent
        self.process = subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._is_ready = False

    def ready(self) -> None:
        """Wait until it is."""
        if not self._is_ready:
            assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()
        self._is_ready = True

    def begin(self) -> None:
        """Let it go on, once it is ready."""
        self.ready()
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def lines(self) -> list[str]:
        """What the world saw so far."""
        return self.effects.read_text().splitlines()

    def end(self) -> list[str]:
        """Wait for its end; the words of its last line."""
        out, error = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, error
        return out.split()

    def kill(self) -> None:
        """As the kernel does it when memory is short."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)


def go(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a test's coroutine; one that hangs fails."""

    async def bounded() -> Any:
        async with asyncio.timeout(SOON):
            return await main

    return asyncio.run(bounded())


async def content(runtime: Runtime) -> None:
    """Verify finds nothing on the whole record."""
    found = await runtime.verify()
    assert not found.problems, [p.message for p in found.problems]


def agent(turns: Sequence[Any] = (), *tools: Tool | Callable[..., Any], name: str = "desk", **options: Any) -> Agent:
    """An agent whose model plays these turns."""
    return Agent(name, model=ScriptedModel(turns), tools=tools, **options)


def requests(of: Agent) -> list[list[dict[str, Any]]]:
    """The messages of each request that its model got."""
    return [seen.messages for seen in of.model.requests]  # type: ignore[union-attr]  # a ScriptedModel


def told(of: Agent, number: int = -1) -> dict[str, str]:
    """What the model read of each call in one of its requests, by call id."""
    return {m["tool_call_id"]: m["content"] for m in requests(of)[number] if m["role"] == "tool"}


def outcomes(run: Run) -> dict[str, str]:
    """How each call ended, by call id, in the order of the calls."""
    return {r.call_id: type(r.result.outcome).__name__ for r in run.results}


def codes(run: Run) -> dict[str, int | None]:
    """The error code of each call."""
    return {r.call_id: r.error_code for r in run.results}


async def pending(run: Run) -> list[str]:
    """Ids of the calls that wait for a person."""
    return [a.call_id for a in await run.approvals()]


async def the_approval(run: Run, call_id: str | None = None) -> Approval:
    """The one approval that waits (of this call)."""
    found = [a for a in await run.approvals() if call_id in (None, a.call_id)]
    assert len(found) == 1, found
    return found[0]


async def until(true: Callable[[], object]) -> None:
    """Give the event loop turns until something is so."""
    while not true():
        await asyncio.sleep(0.001)


async def arrives(run: Run, status: str) -> Run:
    """Wait until a run has a status, whoever drives it."""
    while (await run.wait()).status != status:
        await asyncio.sleep(0.001)
    return run


async def so(true: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """As `until`, of what has to be awaited."""
    while not await true():
        await asyncio.sleep(0.001)


class Gate:
    """Bodies that wait to be let go, and the order in which they began and ended."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.running: set[str] = set()
        self.most = 0
        self._opened: set[str] = set()
        self._changed = asyncio.Event()

    def open(self, *names: str) -> None:
        """Let bodies of these names end, now or when they come."""
        self._opened.update(names)
        self._changed.set()

    def close(self, *names: str) -> None:
        """Let bodies of these names wait from now on."""
        self._opened.difference_update(names)

    async def enter(self, name: str) -> None:
        """Called by a body."""
        self.log.append(f"+{name}")
        self.running.add(name)
        self.most = max(self.most, len(self.running))
        try:
            while name not in self._opened:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.running.discard(name)
            self.log.append(f"-{name}")

    async def began(self, *names: str) -> None:
        """Wait until bodies of these names have begun."""
        await until(lambda: all(f"+{name}" in self.log for name in names))

    def tool(self, name: str = "work", **settings: Any) -> Tool:
        """A tool whose body waits at this gate under the name that it is given."""

        @tool(name=name, description="Wait at the gate.", **settings)
        async def body(ctx: ToolContext, at: str) -> str:
            await self.enter(at)
            return f"{at} done"

        return body


class Hanging:
    """A model that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.stopped = False

    async def respond(self, _: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Wait until it is cancelled."""
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped = True
        yield ModelTurn(text="never")


def counted(name: str = "count", **settings: Any) -> tuple[Tool, list[dict[str, Any]]]:
    """A tool and the list of what its body was called with."""
    seen: list[dict[str, Any]] = []
    number = itertools.count(1)

    @tool(name=name, description="Count.", **settings)
    async def body(ctx: ToolContext, n: int = 0) -> str:
        seen.append(
            {
                "n": n,
                "key": ctx.idempotency_key,
                "attempt": ctx.attempt,
                "caller": ctx.caller,
                "deps": ctx.deps,
            }
        )
        return f"{name} {n}, time {next(number)}"

    return body, seen


@tool
async def fine(n: int = 0) -> str:
    """Succeed."""
    return f"fine {n}"


@tool
async def broken(n: int = 0) -> str:
    """Raise."""
    raise ValueError(f"secret {n}")
