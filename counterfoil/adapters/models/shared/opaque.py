"""Reasoning that a provider wants back: kept on record with its origin, and given to that origin alone.

What is kept is ``{"wire": …, "origin": …, "items": […]}``. ``wire`` names the wire whose items they are. ``origin``
is a digest of server and model: signed or encrypted reasoning of one is refused by another. A turn that is read by
any other origin goes out without it, since no wire needs the reasoning of another (decision 30).
"""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

from counterfoil.core.jsontext import JsonValue, normal


def origin_of(*parts: str) -> str:
    """The origin of these parts, such as a server's address and a model's name; it tells none of them."""
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:16]


def origin_at(url: object, model: str) -> str:
    """The origin of a model at the base URL of its server."""
    place = urlsplit(str(url))
    return origin_of(f"{place.hostname}:{place.port}{place.path}", model)


def tagged(wire: str, origin: str, items: list[JsonValue]) -> JsonValue:
    """What goes on record of a turn with these items; None where there are none."""
    return {"wire": wire, "origin": origin, "items": items} if items else None


def own_items(reasoning: JsonValue, wire: str, origin: str) -> list[dict[str, JsonValue]]:
    """The items of a turn that this origin made on this wire, as copies; none of any other."""
    if not isinstance(reasoning, dict) or reasoning.get("wire") != wire or reasoning.get("origin") != origin:
        return []
    items = normal(reasoning.get("items"))
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
