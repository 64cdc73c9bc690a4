"""A whole boundary by hand, and nothing beyond.

Look-up, validation, a policy call, a time-out, a result object, a size check, a line of trace. No record, no events, no
approvals, no hooks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import core

from floors.raw import text_of, validate

LARGEST = 64_000_000


@dataclass(slots=True)
class Outcome:
    call_id: str
    tool: str
    text: str
    kind: str
    began: float
    ended: float
    size: int
    step: int


@dataclass(slots=True)
class Offered:
    fn: Callable
    is_async: bool
    seconds: float


def allowed(name: str, arguments: dict) -> bool:
    return True


async def build(spec: core.Spec) -> object:
    fn = core.TOOLS[spec.tool]
    return {spec.tool: Offered(fn, asyncio.iscoroutinefunction(fn), 30.0)}


async def call_tool(tools: dict, call: core.Call, step: int, trace: list) -> Outcome:
    began = time.perf_counter()

    def end(kind: str, text: str) -> Outcome:
        made = Outcome(call.id, call.name, text, kind, began, time.perf_counter(), len(text), step)
        trace.append(made)
        return made

    tool = tools.get(call.name)
    if tool is None:
        return end("unknown", "there is no such tool")
    try:
        arguments = validate(call.args_json)
    except ValueError as error:
        return end("invalid", str(error))
    if not allowed(call.name, arguments):
        return end("denied", "not allowed")
    try:
        async with asyncio.timeout(tool.seconds):
            value = await (tool.fn(**arguments) if tool.is_async else asyncio.to_thread(tool.fn, **arguments))
    except Exception:  # noqa: BLE001  # whatever a body raises is the result of its call
        return end("failed", "the tool failed")
    text = text_of(value)
    return end("too large", "") if len(text) > LARGEST else end("ok", text)


async def run(tools: dict, script: core.Script, number: int) -> str:
    history: list[object] = [core.PROMPT]
    trace: list[Outcome] = []
    fresh: list[Outcome] = []
    for step in range(1_000_000):
        await asyncio.sleep(0)
        calls = script.next([(o.call_id, o.text) for o in fresh])
        if calls is None:
            break
        history.append(calls)
        if len(calls) == 1:
            fresh = [await call_tool(tools, calls[0], step, trace)]
        else:
            fresh = await asyncio.gather(*(call_tool(tools, c, step, trace) for c in calls))
        history.extend(fresh)
    return core.FINAL
