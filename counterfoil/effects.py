"""All that may differ when a run is driven again: time, ids, sleep, and the points where tests kill the process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

_MOST = 0xFFF
"""The counter has 12 bits."""
_VARIANT = "89ab"
"""The digit of the variant, whose two bits are 10."""

_uuid_state = [0, 0]
"""Last millisecond and counter of `uuid7`: ids of one process increase strictly."""


def uuid7(now_us: int, random: bytes) -> str:
    """A UUID of version 7 (RFC 9562, section 5.7; a 12-bit counter in rand_a keeps one process's ids in order)."""
    ms = max(now_us // 1000, _uuid_state[0])
    count = _uuid_state[1] + 1 if ms == _uuid_state[0] else 0
    if count > _MOST:
        ms, count = ms + 1, 0
    _uuid_state[0], _uuid_state[1] = ms, count
    head, tail = f"{ms & 0xFFFF_FFFF_FFFF:012x}", random[:8].hex()
    return f"{head[:8]}-{head[8:]}-7{count:03x}-{_VARIANT[random[0] >> 4 & 3]}{tail[1:4]}-{tail[4:]}"


class Effects:
    """The real ones. Tests use `counterfoil.testing.FrozenEffects`."""

    __slots__ = ("probe",)

    def __init__(self) -> None:
        self.probe: Callable[[str], None] | None = None
        """Called with a point's name before and after every store call and body; a test may kill the process there."""

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        return time.time_ns() // 1000

    clock = staticmethod(time.perf_counter)
    """Seconds of a clock that never goes back."""

    def new_id(self) -> str:
        """A new UUID of version 7."""
        return uuid7(self.now(), os.urandom(8))

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


REAL = Effects()
