"""As raw_sqlite, with one writer thread that commits all waiting rows together: the floor for many runs at once."""

from __future__ import annotations

import asyncio
import json
import threading
from queue import Empty, SimpleQueue

import core

from floors.raw import text_of, validate
from floors.raw_sqlite import connect


def _write(db: object, waiting: SimpleQueue, loop: asyncio.AbstractEventLoop) -> None:
    while True:
        group = [waiting.get()]
        while True:
            try:
                group.append(waiting.get_nowait())
            except Empty:
                break
        db.execute("BEGIN")
        db.executemany("INSERT INTO item VALUES (?, ?, ?)", [row for row, _ in group])
        db.execute("COMMIT")
        loop.call_soon_threadsafe(_answer, [future for _, future in group])


def _answer(futures: list[asyncio.Future]) -> None:
    for future in futures:
        future.set_result(None)


async def build(spec: core.Spec) -> object:
    waiting: SimpleQueue = SimpleQueue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_write, args=(connect(str(spec.durable)), waiting, loop), daemon=True).start()
    return core.TOOLS[spec.tool], waiting, loop


async def run(built: object, script: core.Script, number: int) -> str:
    fn, waiting, loop = built
    n = 0

    def keep(body: object) -> asyncio.Future:
        nonlocal n
        future = loop.create_future()
        waiting.put(((number, n, json.dumps(body)), future))
        n += 1
        return future

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
