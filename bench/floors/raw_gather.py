"""As raw, but each call in a task of its own, and sync tools in a thread."""

from __future__ import annotations

import asyncio

import core

from floors.raw import build, text_of, validate

__all__ = ["build", "run"]


async def run(built: object, script: core.Script, number: int) -> str:
    fn, is_async = built

    async def one(call: core.Call) -> tuple[str, str]:
        arguments = validate(call.args_json)
        return call.id, text_of(await fn(**arguments) if is_async else await asyncio.to_thread(fn, **arguments))

    history: list[object] = [core.PROMPT]
    fresh: list[tuple[str, str]] = []
    while True:
        await asyncio.sleep(0)
        calls = script.next(fresh)
        if calls is None:
            return core.FINAL
        history.append(calls)
        fresh = await asyncio.gather(*map(one, calls))
        history.extend(fresh)
