"""As raw_sqlite, on PostgreSQL: a prepared INSERT, committed by itself, for each answer and each step's results."""

from __future__ import annotations

import asyncio
import json
import os

import core
import psycopg

from floors.raw import text_of, validate

TABLE = "CREATE TABLE IF NOT EXISTS floor (run BIGINT, n BIGINT, body TEXT, PRIMARY KEY (run, n))"
INSERT = "INSERT INTO floor VALUES (%s, %s, %s)"
FIRST = os.getpid() << 32
"""The runs of one process are not another's."""


async def connect() -> psycopg.AsyncConnection:
    """The floor's own store."""
    db = await psycopg.AsyncConnection.connect(os.environ["BENCH_PG"], autocommit=True, prepare_threshold=0)
    await db.execute(TABLE)
    return db


async def build(spec: core.Spec) -> object:
    return core.TOOLS[spec.tool], await connect()


async def run(built: object, script: core.Script, number: int) -> str:
    fn, db = built
    n = 0

    async def keep(body: object) -> None:
        nonlocal n
        await db.execute(INSERT, (FIRST + number, n, json.dumps(body)))
        n += 1

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
    await built[1].close()
