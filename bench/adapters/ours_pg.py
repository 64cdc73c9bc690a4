"""Counterfoil on PostgreSQL: as ours, on the server that BENCH_PG names, in a schema of this process."""

from __future__ import annotations

import os

from adapters.ours import clerk, close, run

from counterfoil import Runtime

__all__ = ["build", "close", "run"]


async def build(spec):
    url = os.environ["BENCH_PG"]
    runtime = Runtime(f"{url}{'&' if '?' in url else '?'}schema=bench_{os.getpid()}", agents=[clerk(spec)])
    await runtime.open()
    return None, runtime
