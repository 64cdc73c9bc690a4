"""Word between processes by NOTIFY, on a channel of the schema's name; who listens holds an advisory lock to say so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from counterfoil.adapters.stores.postgres.database import SQL, Db
from counterfoil.adapters.stores.postgres.pool import fetch_one
from counterfoil.core.errors import StoreError

CHECK_SECONDS = 5.0
"""In which a connection must hear what another one tells; a pooler that shares connections lets that get lost."""
MOST_BYTES = 7900
"""Of a NOTIFY; PostgreSQL takes 8000. What is more is told as "look at everything"."""
ALL = "*"
_LISTENING = 0x43544C4E
"""First half of the key of the shared advisory lock of each who listens; the schema is the other."""


async def tell(db: Db, channel: str, word: str, run_ids: Collection[str]) -> None:
    """Say which runs were written to. It waits for no disk: the server's lock of all NOTIFYs is held for that long."""
    told = "\n".join((word, *run_ids))
    if len(told.encode()) > MOST_BYTES:
        told = f"{word}\n{ALL}"
    await db.execute(SQL["tell"], (channel, told))


async def listened(db: Db, channel: str, pid: int) -> bool:
    """Whether any connection but this process's own listens."""
    found = await fetch_one(db, "listened", _LISTENING, channel, pid)
    return found == (True,)


async def listen(
    db: Db, channel: str, word: str, ping: Callable[[], Awaitable[None]],
    heard: Callable[[Collection[str] | None], None],
) -> None:  # fmt: skip  # two rows
    """Hear what others tell until the connection is lost; None at first, for what was told before.

    Args:
        db: used for nothing else.
        channel: the schema's.
        word: stands before what this process tells itself, which it need not hear.
        ping: tells it by another connection.
        heard: is given the runs that were written to; None: perhaps all.

    Raises:
        StoreError: what is told does not come here.
    """
    await db.execute(f'LISTEN "{channel}"')
    await ping()
    async for note in db.notifies(timeout=CHECK_SECONDS):
        if note.payload == word:
            break
    else:
        raise StoreError("NOTIFY is not heard on this connection; a pooler must give each client one of its own")
    await db.execute(SQL["listening"], (_LISTENING, channel))
    heard(None)
    async for note in db.notifies():
        of, _, ids = note.payload.partition("\n")
        if of != word and ids:
            heard(None if ids == ALL else ids.split("\n"))
