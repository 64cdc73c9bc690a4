"""As raw_pg, with one task that commits all waiting rows together: the floor for many runs at once."""

from __future__ import annotations

import asyncio
import json

import core

from floors.raw import text_of, validate
from floors.raw_pg import FIRST, INSERT, connect


class Writer:
    """One connection, and the rows that wait for it."""

    def __init__(self, db: object) -> None:
        self.db = db
        self.waiting: list[tuple[tuple[int, int, str], asyncio.Future]] = []
        self.task: asyncio.Task | None = None

    def add(self, row: tuple[int, int, str]) -> asyncio.Future:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((row, future))
        if self.task is None:
            self.task = asyncio.create_task(self.write())
        return future

    async def write(self) -> None:
        while self.waiting:
            group, self.waiting = self.waiting, []
            async with self.db.pipeline():
                await self.db.execute("BEGIN")
                await self.db.cursor().executemany(INSERT, [row for row, _ in group])
                await self.db.execute("COMMIT")
            for _, future in group:
                future.set_result(None)
        self.task = None


async def build(spec: core.Spec) -> object:
    return core.TOOLS[spec.tool], Writer(await connect())


async def run(built: object, script: core.Script, number: int) -> str:
    fn, writer = built
    n = 0

    def keep(body: object) -> asyncio.Future:
        nonlocal n
        n += 1
        return writer.add((FIRST + number, n, json.dumps(body)))

    fresh: list[tuple[str, str]] = []
    await keep(core.PROMPT)
    while True:
        await asyncio.sleep(0)
        calls = script.next(fresh)
        await keep(core.FINAL if calls is None else [[c.id, c.name, c.args_json] for c in calls])
        if calls is None:
            return core.FINAL
        fresh = [(c.id, text_of(await fn(**validate(c.args_json)))) for c in calls]
        await keep(fresh)


async def close(built: object) -> None:
    await built[1].db.close()
