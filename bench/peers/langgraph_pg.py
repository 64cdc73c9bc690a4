"""As langgraph_sqlite, with LangGraph's PostgreSQL checkpointer."""

from __future__ import annotations

import os

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from peers import langgraph_sqlite
from peers.langgraph_sqlite import clerk, close

__all__ = ["build", "close", "run"]


async def build(spec):
    opened = AsyncPostgresSaver.from_conn_string(os.environ["BENCH_PG"])
    saver = await opened.__aenter__()
    await saver.setup()
    return clerk(spec, saver), opened


async def run(built, script, number):
    return await langgraph_sqlite.run(built, script, f"{os.getpid()}-{number}")
