"""No engine: each process takes up what it starts, and what its sweep finds in the record."""

from __future__ import annotations

from weakref import proxy

from counterfoil.dispatch import Dispatch, Host
from counterfoil.store import Owner, RunRow


class Inline:
    """See `counterfoil.dispatch.Dispatch`."""

    here = True

    def __init__(self, host: Host) -> None:
        self._host: Host = proxy(host)  # the Host has it

    async def open(self) -> None:
        """Nothing to open."""

    async def enqueue(self, row: RunRow) -> None:
        """Drive it here, where that can be done."""
        await self._host.take_up(row)

    async def hand_over(self, owner: Owner) -> None:
        """Nothing was given to anybody."""

    async def forget(self, row: RunRow) -> None:
        """Nothing is kept."""

    async def drain(self) -> None:
        """The Runtime itself takes up nothing more."""

    async def close(self) -> None:
        """Nothing is open."""


def make_dispatch(_name: str, host: Host) -> Dispatch:
    """For the registry."""
    return Inline(host)
