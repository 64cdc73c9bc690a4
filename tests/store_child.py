"""Another process that writes to a record: `python -m tests.store_child PATH_OR_URL NAME TASKS RESULTS`.

It prints a line `run step entry` for each result that was acknowledged, at once. RESULTS 0: for ever.
"""

import asyncio
import itertools
import sys

from counterfoil.adapters.stores.sqlite import SqliteStore
from counterfoil.registry import resolve
from counterfoil.store import Store
from counterfoil.testing import records as r
from counterfoil.testing.store_bench import claimed


async def write(store: Store, run_id: str, results: int) -> None:
    lease = await claimed(store, run_id, f"talk-{run_id}")
    for step in itertools.count() if not results else range(results):
        await store.commit(lease, [r.turn(run_id, step), r.start(run_id, step)])
        entry = await store.commit(lease, [r.result(run_id, step, text="x" * (step % 700))])
        print(run_id, step, entry, flush=True)  # noqa: T201  # its parent reads it


async def main(path: str, name: str, tasks: int, results: int) -> None:
    scheme, is_url, _ = path.partition("://")
    store: Store = resolve("store", scheme)(path) if is_url else SqliteStore(path)
    await store.open()
    await asyncio.gather(*(write(store, f"{name}-{i}", results) for i in range(tasks)))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
