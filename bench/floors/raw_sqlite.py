"""As raw, with a row committed (WAL, synchronous FULL) for each answer of the model and for each step's results."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import core

from floors.raw import text_of, validate

SQL = "CREATE TABLE IF NOT EXISTS item (run INTEGER, n INTEGER, body TEXT, PRIMARY KEY (run, n)) WITHOUT ROWID"


def connect(folder: str) -> sqlite3.Connection:
    """The floor's own store."""
    db = sqlite3.connect(Path(folder) / "floor.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(SQL)
    return db


async def build(spec: core.Spec) -> object:
    return core.TOOLS[spec.tool], connect(str(spec.durable))


async def run(built: object, script: core.Script, number: int) -> str:
    fn, db = built
    n = 0

    def keep(body: object) -> None:
        nonlocal n
        db.execute("INSERT INTO item VALUES (?, ?, ?)", (number, n, json.dumps(body)))
        n += 1

    fresh: list[tuple[str, str]] = []
    keep(core.PROMPT)
    while True:
        await asyncio.sleep(0)
        calls = script.next(fresh)
        keep(core.FINAL if calls is None else [[c.id, c.name, c.args_json] for c in calls])
        if calls is None:
            return core.FINAL
        fresh = [(c.id, text_of(await fn(**validate(c.args_json)))) for c in calls]
        keep(fresh)
