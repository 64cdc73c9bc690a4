"""As dbos_sqlite, on the PostgreSQL server that BENCH_PG names, in a database of this process."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import psycopg
from peers import dbos_sqlite
from peers.dbos_sqlite import close, run

__all__ = ["build", "close", "run"]


async def build(spec):
    url, name = os.environ["BENCH_PG"], f"dbos_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
    there = urlsplit(url)
    return await dbos_sqlite.build(spec, f"{there.scheme}://{there.netloc}/{name}?{there.query}")
