"""One process of the tests that need two on one file.

    python -m tests.run_child STORE EFFECTS TASK [ARGUMENT …]

It writes lines to EFFECTS, as the world would see them, and reads a line from its input before it does anything that
must come at the same time as in another process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from counterfoil import Agent, DecisionConflict, NotPending, Runtime, ToolContext, tool
from counterfoil.testing import ScriptedModel, call, say
from tests import boundary_bodies as bodies

EFFECTS = ""


def effect(line: str) -> None:
    """What the world sees."""
    with Path(EFFECTS).open("a", encoding="utf-8") as f:
        f.write(line + "\n")
        f.flush()
        os.fsync(f.fileno())


def ready() -> None:
    """Say so, and wait for the word."""
    print("ready", flush=True)
    sys.stdin.readline()


@tool(needs_approval=True)
async def pay(ctx: ToolContext, n: int) -> str:
    """Pay."""
    effect(f"pay {n} {ctx.caller.tenant} {ctx.caller.user} {ctx.deps} {os.getpid()}")
    return f"paid {n}"


@tool
async def hang(ctx: ToolContext, n: int = 0) -> str:
    """Begin, and never end while EFFECTS has no line `end`."""
    effect(f"hang {n} attempt {ctx.attempt}")
    while "end" not in Path(EFFECTS).read_text(encoding="utf-8").splitlines():  # noqa: ASYNC240  # a test's child
        await asyncio.sleep(0.005)
    return f"hung {n}"


@tool(lock="till:{till}")
async def locked(till: str, n: int) -> str:
    """Hold the till for some turns of the loop."""
    effect(f"+ {till} {n}")
    for _ in range(5):
        await asyncio.sleep(0.002)
    effect(f"- {till} {n}")
    return f"{till} {n}"


@tool(lock="till:{till}")
async def keep(till: str) -> str:
    """Hold the till until the process dies."""
    effect(f"+ {till}")
    await asyncio.Event().wait()
    return "never"


def agents() -> list[Agent]:
    """The agents of these tests."""
    tools = [pay, hang, locked, keep]
    hanger = Agent("hanger", model=ScriptedModel([[call("hang", id="h")], say("done")]), tools=tools)
    payer = Agent(
        "payer", model=ScriptedModel([[call("pay", n=1, id="a"), call("pay", n=2, id="b")], say("done")]), tools=tools
    )
    waits = [call("dispatch", agent="hanger", task="Hang.", id="d")]
    both = [call("dispatch", agent=one, task="Go.", id=f"{one[0]}0") for one in ("hanger", "payer")]
    return [
        payer,
        hanger,
        Agent("foreman", model=ScriptedModel([waits, say("done")]), manages=[hanger]),
        Agent("boss", model=ScriptedModel([both, say("done")]), manages=[hanger, payer]),
        Agent(
            "teller",
            model=ScriptedModel([[call("locked", till="x", n=i) for i in range(6)], say("done")]),
            tools=tools,
        ),
        Agent(
            "charger",
            model=ScriptedModel([[call("charge_in_thread", effects=EFFECTS, id="c")], say("done")]),
            tools=[bodies.charge_in_thread],
        ),
        Agent("keeper", model=ScriptedModel([[call("keep", till="x")], say("done")]), tools=tools),
    ]


def deps(caller: object) -> str:
    """Made anew by each process."""
    return f"deps-{os.getpid()}"


async def drive(runtime: Runtime, agent: str) -> None:
    """Start a run of an agent and bring it to its end or pause."""
    ready()
    run = await runtime.start(agent, "go")
    await run.wait()
    print(run.status, run.id, flush=True)


async def approve(runtime: Runtime, run_id: str, *call_ids: str) -> None:
    """Approve calls, and drive on."""
    run = await runtime.get(run_id)
    ready()
    answers = []
    for call_id in call_ids:
        try:
            await run.approve(call_id, by=str(os.getpid()))
        except (DecisionConflict, NotPending) as e:
            answers.append(type(e).__name__)
        else:
            answers.append("taken")
    while run.status in ("paused", "running"):
        await run.wait()
        await asyncio.sleep(0.005)
    print(run.status, *answers, flush=True)


async def contest(runtime: Runtime, run_id: str, number: str, of: str, decisions: str) -> None:
    """Make this process's share of so many decisions on two calls at once, and drive on; print how each was answered.

    Decisions on `a` approve or reject; those on `b` approve as it is or edited, so that one of them starts it.
    """
    run = await runtime.get(run_id)
    seen = {a.call_id: a.digest for a in await run.approvals()}
    mine = [i for i in range(int(decisions)) if i % int(of) == int(number)]
    ready()

    async def decide(call_id: str, i: int) -> str:
        kind = ("approve", "reject" if call_id == "a" else "edit")[i // int(of) % 2]
        given = {"by": f"p{i}", "digest": seen[call_id]}
        try:
            if kind == "reject":
                await run.reject(call_id, **given)
            else:
                await run.approve(call_id, **given, **({"input": {"n": 9}} if kind == "edit" else {}))
        except DecisionConflict:
            return f"{call_id}:{kind}:conflict"
        return f"{call_id}:{kind}:taken"

    answers = await asyncio.gather(*(decide(call_id, i) for i in mine for call_id in "ab"))
    while run.status in ("paused", "running"):
        await run.wait()
        await asyncio.sleep(0.005)
    print(run.status, *answers, flush=True)


async def main(url: str, task: str, *arguments: str) -> None:
    """Do the task."""
    heartbeat = 0.2 if task == "drive_quickly" else 2.0
    tasks = {"drive": drive, "drive_quickly": drive, "approve": approve, "contest": contest}
    async with Runtime(url, agents=agents(), deps=deps, heartbeat=heartbeat) as runtime:
        await tasks[task](runtime, *arguments)


if __name__ == "__main__":
    EFFECTS = sys.argv[2]
    asyncio.run(main(sys.argv[1], *sys.argv[3:]))
