"""How long a server asks to wait, from the headers of its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds until a further request may help; None where the server says nothing that can be read.

    ``Retry-After`` is a number of seconds or a date (RFC 9110, 10.2.3); a date is held against the server's own
    ``Date``, so that our clock does not matter. ``retry-after-ms`` is OpenAI's, in milliseconds, and comes first.
    """
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    try:
        until, now = (parsedate_to_datetime(headers.get(name, "")) for name in ("retry-after", "date"))
        return max((until - now).total_seconds(), 0.0)
    except (ValueError, TypeError):  # no date, or one without a zone beside one with
        return None
