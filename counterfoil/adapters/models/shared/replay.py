"""What of a record has to change before any provider takes it back.

* A call whose name is outside ``[A-Za-z0-9_-]{1,64}`` was made up by a model. It is replayed under a legal name.
* Arguments that are no JSON object are replayed as ``{}``: llama.cpp parses the arguments of past calls and answers
  500 to others. The result that follows tells the model what was wrong.
* A message without text is replayed as ``(empty)``; several servers refuse blank messages.
"""

from __future__ import annotations

import re
from typing import Final

from counterfoil.core.jsontext import dumps, loads

EMPTY: Final = "(empty)"
"""Stands in for a message without text."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LOOSE: Final = re.compile(r"NaN|Infinity|\\u[dD][89a-fA-F]")
"""In JSON text that we can read: what stricter readers may refuse. Half a surrogate pair may be an escape."""


def is_blank(text: str) -> bool:
    """Whether there is nothing to read in it."""
    return not text or text.isspace()


def filled(text: str) -> str:
    """``text``, or what stands in for it where it is blank."""
    return EMPTY if is_blank(text) else text


def legal_name(name: str) -> str:
    """``name`` as a wire takes it: other characters than letters, digits, _ and - become _, 64 at most."""
    return name if _NAME.fullmatch(name) else re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"


def replayed(raw: str) -> str:
    """A call's arguments as a wire takes them: the model's own text if it is a JSON object, else ``{}``."""
    try:
        value = loads(raw)
    except (ValueError, RecursionError):
        return "{}"
    if not isinstance(value, dict):
        return "{}"
    return dumps(value).decode() if _LOOSE.search(raw) else raw
