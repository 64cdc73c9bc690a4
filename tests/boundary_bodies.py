"""Tools whose bodies run in a child process; imported there by name."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from counterfoil import ToolContext, ToolError, ToolResult, tool


@tool(isolation="process")
def where(ctx: ToolContext[Any]) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "user": ctx.caller.user,
        "run_id": ctx.run_id,
        "call_id": ctx.call_id,
        "step": ctx.step_index,
        "key": ctx.idempotency_key,
        "attempt": ctx.attempt,
    }


class Awkward(Exception):
    """It cannot be rebuilt from its arguments, so it cannot cross over."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(left + right)


@tool(isolation="process")
def fails(kind: str) -> None:
    if kind == "declared":
        raise ToolError("No such shelf.", code=77)
    if kind == "exit":
        sys.exit(3)
    if kind == "awkward":
        raise Awkward("sec", "ret")
    if kind == "death":
        os._exit(3)
    raise ValueError("secret")


@tool(isolation="process")
def counts(upto: int) -> Iterator[str]:
    for number in range(upto):
        yield f"{number} "
    if upto > 2:
        raise ValueError("too far")


@tool(isolation="process", timeout=0.5)
def hangs() -> str:
    while True:
        time.sleep(60)


@tool(isolation="process")
def noted(ctx: ToolContext[Any]) -> ToolResult:
    ctx.progress("half", 1, 2)
    return ToolResult.text(str(ctx.memo("n", lambda: 7))).with_narration("Noted").with_details({"n": 7})


@tool(isolation="process")
def until_cancelled(ctx: ToolContext[Any], begun: str) -> str:
    Path(begun).touch()
    while not ctx.cancelled:
        time.sleep(0.001)
    return "stopped by itself"


def charged(ctx: ToolContext[Any], effects: str) -> str:
    """Charge once, in a durable sub-step; then go on until the file of effects says to end."""
    log = Path(effects)

    def add(line: str) -> None:
        with log.open("a", encoding="utf-8") as f:
            f.write(line + "\n")

    number = ctx.memo("charge", lambda: add("charged") or 7)
    add(f"attempt {ctx.attempt} has {number}")
    while "end" not in log.read_text(encoding="utf-8").splitlines():
        time.sleep(0.002)
    return f"charge {number}"


@tool(isolation="process")
def charge_in_process(ctx: ToolContext[Any], effects: str) -> str:
    return charged(ctx, effects)


@tool(isolation="process", idempotent=True)
def charge_in_process_again(ctx: ToolContext[Any], effects: str) -> str:
    return charged(ctx, effects)


@tool
def charge_in_thread(ctx: ToolContext[Any], effects: str) -> str:
    return charged(ctx, effects)


@tool(idempotent=True)
def charge_in_thread_again(ctx: ToolContext[Any], effects: str) -> str:
    return charged(ctx, effects)


@tool(isolation="process")
def for_ever(begun: str) -> None:
    Path(begun).touch()
    signal.pause()
