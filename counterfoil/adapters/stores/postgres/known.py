"""What a process knows of the interactions that it has lately written: a commit then needs no look-up.

It is right as long as the interaction's row has the version at which it was learnt, for every write to an
interaction or one of its runs, by whatever process, makes that larger. A commit asks for that version in the
statement that writes, and where it is another one now, nothing is written and everything is read again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from counterfoil.adapters.stores.postgres.database import Db
from counterfoil.adapters.stores.postgres.pool import fetch, fetch_one
from counterfoil.adapters.stores.shared.sql_values import SETTLED
from counterfoil.core.errors import NotFound
from counterfoil.owners import owner_of
from counterfoil.store import RunRow

INTERACTIONS = 2_000
"""Interactions that are known at once, at most; then all are forgotten, which costs each a look-up."""


class KnownRun:
    """What a commit needs of a run."""

    __slots__ = ("calls", "epoch", "is_asking", "number", "owned", "parent", "thread")

    def __init__(self, number: int, thread: str | None, parent: str | None, epoch: int, *, owned: bool) -> None:
        self.number = number
        self.thread = thread
        self.parent = parent
        self.epoch = epoch
        self.owned = owned
        self.calls: dict[tuple[int, int], int] = {}
        """Every call of the run that has a start or a result."""
        self.is_asking = False
        """Some approval is open."""


class Talk:
    """An interaction: its row, and those of its runs that are known."""

    __slots__ = ("entry", "following", "hash", "number", "runs", "version")

    def __init__(self, number: int, version: int, entry: int, digest: bytes, following: int) -> None:
        self.number = number
        self.version = version
        self.entry = entry
        self.hash = digest
        self.following = following
        self.runs: dict[str, KnownRun] = {}


class Known:
    """The interactions, by tenant and id, and whose turn it is to write to each."""

    def __init__(self) -> None:
        self._talks: dict[tuple[str, str], Talk] = {}
        self._turns: dict[tuple[str, str], deque[asyncio.Future[None]] | None] = {}

    def take(self, key: tuple[str, str]) -> bool:
        """Whether it is the caller's turn to write to this interaction, until it gives it on.

        Commits of one interaction wait here, where they hold no connection.
        """
        if key in self._turns:
            return False
        self._turns[key] = None
        return True

    async def turn(self, key: tuple[str, str]) -> None:
        """Wait until it is the caller's turn. Whoever waits is not cancelled."""
        if not self.take(key):
            mine = asyncio.get_running_loop().create_future()
            waiting = self._turns[key]
            if waiting is None:
                waiting = self._turns[key] = deque()
            waiting.append(mine)
            await mine

    def give(self, key: tuple[str, str]) -> None:
        """It is the next one's turn."""
        waiting = self._turns[key]
        if waiting:
            waiting.popleft().set_result(None)
        else:
            del self._turns[key]

    def get(self, tenant: str, interaction_id: str) -> Talk | None:
        """What is known."""
        return self._talks.get((tenant, interaction_id))

    def forget(self, tenant: str, interaction_id: str) -> None:
        """Its state is in doubt."""
        self._talks.pop((tenant, interaction_id), None)

    def wrote(self, tenant: str, interaction_id: str, talk: Talk, run_id: str, run: KnownRun | None) -> None:
        """A write is on record; ``talk`` is the interaction's row after it, ``run`` None if that must be read again."""
        before = self._talks.get((tenant, interaction_id))
        if before is not None and before is not talk:
            if before.version == talk.version - 1:
                talk.runs = before.runs
            elif before.version >= talk.version:
                # Two writes of this process were told of in the other order.
                del self._talks[tenant, interaction_id]
                return
        talk.runs.pop(run_id, None)
        if run is not None:
            talk.runs[run_id] = run
        if len(self._talks) >= INTERACTIONS:
            self._talks.clear()
        self._talks[tenant, interaction_id] = talk


class Held:
    """A run whose row and whose interaction's row this transaction has locked."""

    __slots__ = ("number", "open_run", "row", "talk", "thread")

    def __init__(self, values: Sequence[Any]) -> None:
        self.row = row_of(values[:17])
        self.number: int = values[17]
        self.thread: str | None = values[18]
        number, version, self.open_run, entry, digest, following = values[19:]
        self.talk = Talk(number, version, entry, digest, following)

    def known(self, calls: Sequence[tuple[Any, ...]], *, is_asking: bool) -> KnownRun:
        """The run, with the calls as the statement ``calls`` gave them."""
        run = KnownRun(self.number, self.thread, self.row.parent, self.row.epoch, owned=self.row.owner is not None)
        run.calls = {(step, idx): SETTLED if least == 0 else most for step, idx, least, most in calls}
        run.is_asking = is_asking
        return run


def row_of(values: Sequence[Any]) -> RunRow:
    """A run's row as the statements give it."""
    owner = None if values[7] is None else owner_of(values[7])
    return RunRow(*values[:7], owner, *values[8:])  # type: ignore[call-arg]  # in its order


def named(tenant: str, name: str) -> bytes:
    """What stands in a column ``name``. For no tenant it is what no row has."""
    if not tenant:
        return b""
    owner = tenant.encode()
    return hashlib.sha256(b"%d:%b%b" % (len(owner), owner, name.encode())).digest()


async def hold(db: Db, tenant: str, run_id: str) -> Held:
    """Lock the run and its interaction for the rest of the transaction. Raises NotFound."""
    found = await fetch_one(db, "held", named(tenant, run_id))
    if found is None:
        raise NotFound(f"no run {run_id}")
    return Held(found)


async def learn(db: Db, held: Held) -> KnownRun:
    """What a commit needs of a run that is held."""
    row = held.row
    name = named(row.tenant, row.run_id)
    calls = await fetch(db, "calls", name)
    asking = await fetch_one(db, "is_asking", name)
    return held.known(calls, is_asking=cast("tuple[bool]", asking)[0])
