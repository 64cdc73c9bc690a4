"""What went wrong on the way to a model, for the operator: no header, no key, no address."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

RETRYABLE: Final = frozenset({408, 409, 429})
"""Statuses below 500 with which asking again may help."""
USED_UP: Final = frozenset({402, 429})
"""Statuses that speak of a quota or a payment, so that another provider may answer."""
OURS: Final = frozenset({"LocalProtocolError", "UnsupportedProtocol"})
"""Causes of a failed connection that stay: a header or an address that cannot be used."""

_MAX_TEXT: Final = 400
"""Characters of a message; a server may answer with a whole page."""


def words_of(message: object) -> str:
    """A server's message in one line; what stands in where it said nothing."""
    return " ".join(message.split()) if isinstance(message, str) and message.strip() else "no message"


def may_help(status: int, headers: Mapping[str, str], *, used_up: bool) -> bool:
    """Whether asking again may help, by the server's own word (as the SDKs read it), its code or the status."""
    word = headers.get("x-should-retry")
    if word in ("true", "false"):
        return word == "true"
    return not used_up and (status in RETRYABLE or status >= 500)  # noqa: PLR2004 - 5xx, with 529 for overloaded


def why_not_sent(error: Exception) -> str:
    """Why a request does not get as far as the wire."""
    match error:
        case UnicodeEncodeError(encoding="ascii"):
            why = "a header, such as the key, holds other characters than ASCII"
        case UnicodeEncodeError():
            why = "it holds half of a surrogate pair, such as in a tool's schema"
        case _:
            why = str(error)
    return f"the request cannot be sent: {why}"


def secrets_of(headers: Mapping[str, str]) -> set[str]:
    """The values of headers that may be secret, with and without the word before them."""
    found = set()
    for name, value in headers.items():
        if re.search(r"auth|key|token|secret|cookie", name, re.IGNORECASE):
            found |= {value, value.rpartition(" ")[2]}
    return found


def shown(text: str, secrets: Iterable[str | None]) -> str:
    """The text without secrets, and then cut: the other way round half a secret could stay."""
    for secret in sorted({secret for secret in secrets if secret}, key=len, reverse=True):
        if len(secret) >= 4:  # noqa: PLR2004 - a shorter one is no secret, and would tear words apart
            text = text.replace(secret, "[key]")
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
