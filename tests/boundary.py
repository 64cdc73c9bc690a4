"""One run through the boundary: what a model asks, a tool does, and model, record and developer get."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from counterfoil import Agent, Caller, Hooks, Limits, Policy, Run, Runtime, Tool, ToolErrorReport
from counterfoil.core.items import ToolResultPart
from counterfoil.core.timeline import rows
from counterfoil.effects import REAL, Effects
from counterfoil.testing import ScriptedModel, say
from counterfoil.testing.models import SeenRequest, Turn

SECONDS = 60
"""A run of a test that takes longer hangs."""


@dataclass
class Ran:
    """A run that ended or paused."""

    model: ScriptedModel
    handled: list[ToolErrorReport] = field(default_factory=list)
    """What on_tool_error was called with."""
    stored: list[ToolErrorReport] = field(default_factory=list)
    """What the store gives back, oldest first."""
    _run: Run | None = None

    @property
    def run(self) -> Run:
        assert self._run is not None
        return self._run

    @property
    def results(self) -> list[ToolResultPart]:
        return self.run.results

    @property
    def part(self) -> ToolResultPart:
        """The one result."""
        (part,) = self.run.results
        return part

    @property
    def outcome(self) -> Any:
        return self.part.result.outcome

    @property
    def failure(self) -> Any:
        return self.outcome.failure

    @property
    def report(self) -> ToolErrorReport:
        """The one report, as the handler got it."""
        (report,) = self.handled
        return report

    @property
    def read(self) -> str:
        """What the model read of the one result."""
        (text,) = self.reads
        return text

    @property
    def reads(self) -> list[str]:
        """What the model read of each result, in its last request."""
        return reads(self.model.requests[-1])

    @property
    def notes(self) -> tuple[str, ...]:
        """What the timeline notes beside the one call."""
        return next(row for row in rows(self.run._fold.record, self.run.id) if row.kind == "call").notes

    @property
    def late(self) -> list[str]:
        """Texts of what came too late, call by call."""
        return [e.result.model_output for c in self.run._state.calls for e in c.late or ()]


def reads(request: SeenRequest) -> list[str]:
    return [str(m["content"]) for m in request.messages if m["role"] == "tool"]


def go(
    tools: Sequence[Tool | Callable[..., Any]],
    *turns: Turn,
    policy: Policy | None = None,
    hooks: Sequence[Hooks] = (),
    limits: Limits | None = None,
    caller: Caller | None = None,
    deps: Callable[[Caller], Any] | None = None,
    then: Callable[[Run], Awaitable[object]] | None = None,
    effects: Effects = REAL,
) -> Ran:
    """Run an agent with these tools and turns, then `say("done")`; the record must hold to every law."""
    ran = Ran(ScriptedModel([*turns, say("done")]))
    watch = Hooks(on_tool_error=ran.handled.append)
    agent = Agent("desk", ran.model, "Be brief.", tools, policy=policy, hooks=[*hooks, watch], limits=limits)

    async def main() -> None:
        async with Runtime("memory://", agents=[agent], deps=deps, effects=effects) as runtime:
            ran._run = run = await runtime.start("desk", "Go.", caller=caller)
            await run.wait(SECONDS)
            if then is not None:
                await then(run)
                await run.wait(SECONDS)
            await run.refresh()
            ran.stored = (await run.errors())[::-1]
            proved = await runtime.verify()
            assert proved.ok, proved

    asyncio.run(main())
    return ran


async def until(true: Callable[[], bool]) -> None:
    """Let the loop go on until something is so."""
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.001)
