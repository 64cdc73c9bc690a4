"""Port: who drives a runnable run.

The record alone says what may be driven (`RunRow`), and a claim decides who does it. An engine only sees to it that
every run that may be driven is handed to some worker soon. It stores ids and nothing else, so whatever it loses, tells
twice or tells late does no harm: the sweep tells it again, and a segment that is not the run's current one is refused.

A *segment* is the driving of a run from one claim to the pause, the end or the release that follows. Its number is the
epoch that the row has before the claim, which the claim ends: two workers with one number cannot both go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from counterfoil.store import Owner, RunRow

STALE = "stale"
"""`Host.drive`: the segment is over, or its run has ended. It need not be tried again."""
REFUSED = "refused"
"""`Host.drive`: the run cannot be driven here now: its agent is missing, its time has not come, a quota is used up."""


class Host(Protocol):
    """The Runtime that an engine works for."""

    url: str
    """Of the record; an engine may keep its own data beside it."""
    pool: str
    """Whose runs this process drives."""
    owner: Owner
    """This process, as it stands in the rows of runs that it drives."""
    agents: Mapping[str, Any]
    """By name: the agents whose runs can be driven here."""
    max_runs: int | None
    """How many of them at once; more are `REFUSED`."""

    async def take_up(self, row: RunRow) -> None:
        """Claim a run and begin to drive it in a task of this process; nothing where that cannot be done."""

    async def drive(self, tenant: str, run_id: str, segment: int) -> str:
        """Drive one segment here, to its end.

        Returns:
            The run's status then (``running``: it was given back undone), `STALE` or `REFUSED`.

        Raises:
            NotFound: no such run.
        """

    async def lives(self, owner: Owner) -> bool:
        """Whether a worker lives, as far as this one can know."""


class Dispatch(Protocol):
    """An engine. One object belongs to one Runtime, its `Host`; all its methods are called in the Host's event loop."""

    here: bool
    """The process that starts or resumes a run may claim it at once and drive it itself."""

    async def open(self) -> None:
        """Begin to work: the Runtime's store is open. Where the Runtime has no agents it only tells others.

        Raises:
            UsageError: it cannot work with this record or in this process.
        """

    async def enqueue(self, row: RunRow) -> None:
        """This run may be driven now: have somebody call `Host.drive` with ``row.epoch``, or `Host.take_up`.

        Told again for the same segment before it was driven it does nothing; told again after `REFUSED`, it tries
        again.
        """

    async def hand_over(self, owner: Owner) -> None:
        """This worker is dead: what the engine has given to it must not wait for it. May be told often."""

    async def forget(self, row: RunRow) -> None:
        """This run has ended without a segment of the engine's: let go of what it keeps for it."""

    async def drain(self) -> None:
        """Give this process nothing more; what it drives goes on."""

    async def close(self) -> None:
        """Stop; no call into the Runtime comes after it."""
