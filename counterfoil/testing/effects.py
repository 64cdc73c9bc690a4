"""Effects for tests: a clock that moves when it is told to or read, ids that repeat from run to run."""

from __future__ import annotations

import asyncio
from typing import Final

from counterfoil.effects import Effects

START: Final = 1_793_016_000_000_000
"""2026-10-26T12:00:00Z in microseconds since 1970."""


class FrozenEffects(Effects):
    """Time, ids and sleep that are the same in every run of a test.

    Args:
        start: microseconds since 1970 of the first reading.
        tick: microseconds by which each reading of `now` moves the clock; 0 lets it stand still.
        seed: 0 to 16383; two of these at work on one store need different ones, so that their ids differ.

    `sleep` moves the clock at once and waits for nothing. Ids are UUIDs of version 7 that increase. `probe`
    is as in `Effects`.
    """

    __slots__ = ("_ids", "_now", "_seed", "slept", "tick")

    def __init__(self, start: int = START, tick: int = 1, *, seed: int = 0) -> None:
        super().__init__()
        self._now = start
        self._ids = 0
        self._seed = seed & 0x3FFF
        self.tick = tick
        """Microseconds that each reading of `now` takes."""
        self.slept: list[float] = []
        """Seconds of each sleep so far."""

    def now(self) -> int:
        at = self._now
        self._now += self.tick
        return at

    def clock(self) -> float:
        return self._now / 1_000_000

    def new_id(self) -> str:
        # The counter stands in both random parts, so that ids also increase where the clock stands.
        self._ids += 1
        high, low = divmod(self._ids, 1 << 48)
        first, last = (self._now // 1000) << 16 | 0x7000 | high, (0x8000 | self._seed) << 48 | low
        text = f"{first << 64 | last:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Move the clock; ids stay in order only if it is not moved back."""
        self._now += round(seconds * 1_000_000)

    def set(self, at: int) -> None:
        """Set the clock to microseconds since 1970."""
        self._now = at
