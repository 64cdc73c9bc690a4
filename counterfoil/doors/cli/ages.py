"""Ages and rates, as people type them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from counterfoil.doors.cli.errors import Stop

__all__ = ["age", "ago", "rate"]

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def age(flag: str, text: str) -> timedelta:
    """How long ``text`` means, such as 30d.

    Raises:
        Stop: it is no age.
        OverflowError: it is longer than the calendar.
    """
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text.strip())
    if found is None:
        raise Stop(f"{flag}: expected a number and one of s, m, h, d, w, such as 30d, got {text!r:.80}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def ago(flag: str, text: str) -> datetime:
    """When that age began. Raises Stop for what is no age."""
    try:
        return datetime.now(UTC) - age(flag, text)
    except OverflowError:
        raise Stop(f"{flag}: {text!r:.80} is longer ago than the calendar reaches") from None


def rate(flag: str, text: str) -> tuple[int, float]:
    """How many within how many seconds, such as 60/m.

    Raises:
        Stop: it is no rate.
    """
    found = re.fullmatch(r"(\d{1,9})/(\d{0,6})([smhd])", text.strip())
    if found is None:
        raise Stop(f"{flag}: expected a number for each time, such as 60/m or 100/15m, got {text!r:.80}")
    return int(found[1]), timedelta(**{_UNITS[found[3]]: int(found[2] or 1)}).total_seconds()
