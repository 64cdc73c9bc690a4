"""What a batch needs of the one who drives its run."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from counterfoil.core.entries import Entry
from counterfoil.core.record import CallState, Record
from counterfoil.hub import Hub, Locks, Slots


class Driver(Protocol):
    """A run's driver, as its batch sees it."""

    loop: AbstractEventLoop
    record: Record
    hub: Hub
    locks: Locks
    slots: Slots
    slow_judge: bool
    """Judging may wait for somebody's code."""
    one_by_one: bool
    """People are asked about one call at a time."""
    stopping: str | None
    """Why nothing new may start."""
    fatal: BaseException | None
    """What the program is to die of, once every call is settled."""

    def wake(self) -> None:
        """Look again: something ended, or may begin."""

    def write(self, entries: Sequence[Entry], *, reports: Sequence[Any] = (), exact: bool = False) -> Awaitable[None]:
        """Append entries and take them into the fold; ``exact``: only if nobody else has appended meanwhile."""

    def refresh(self) -> Awaitable[None]:
        """Take in what others have put on record."""

    def write_later(self, entry: Entry) -> None:
        """Append an entry that nobody waits for."""

    def tell_progress(self, call: CallState, text: str, done: float | None, total: float | None) -> None:
        """Hand progress to whoever listens."""

    def finish_late(self, batch: Any, x: Any, value: object, error: BaseException | None) -> None:
        """Log the end of an attempt that was given up beside its call."""
