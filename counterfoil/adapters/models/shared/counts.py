"""Numbers of a server's usage."""

from __future__ import annotations

from typing import Final

MOST: Final = 2**53
"""The largest whole number that every reader of JSON takes (RFC 8259, 6)."""


def amount(given: object) -> float:
    """A number that counts something; 0 where it is none: nothing, below nothing, NaN, or beyond what can be read."""
    return given if isinstance(given, (int, float)) and 0 <= given <= MOST else 0


def count(given: object) -> int:
    """As `amount`, of what is counted one by one, such as tokens."""
    return int(amount(given))
