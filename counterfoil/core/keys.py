"""Keys of the HTTP API: whose they are, what they may do, and how the secret part is known again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from counterfoil.core.call import Caller
from counterfoil.core.jsontext import JsonValue, clean_text

SCOPES = ("run", "approve", "read", "threads", "admin")
"""What a key may do: start, cancel and write into runs; decide; read; read other threads than the main one; read error
reports, and what a guard replaced."""


def token_digest(token: str) -> str:
    """What a store keeps of a key's secret: its SHA-256 (hex).

    A slow hash protects words that people choose. The secret is 256 random bits, which no guessing finds at any speed,
    and each request has to be looked up by it.
    """
    return hashlib.sha256(clean_text(token).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, without its secret.

    Raises:
        ValueError: a scope is unknown, or tenant, user and roles are none of a `Caller`.
    """

    id: str
    tenant: str
    user: str
    """Who starts and decides with it."""
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    digest: str
    """See `token_digest`."""
    created_at: int
    """Microseconds since 1970, UTC."""
    expires_at: int | None = None
    revoked_at: int | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.scopes) - set(SCOPES))
        if unknown:
            raise ValueError(f"there is no scope {unknown[0]!r:.80}; the scopes are {', '.join(SCOPES)}")
        if any("\x00" in name or not name for name in (self.tenant, self.user, *self.roles)):
            raise ValueError("tenant, user and roles of a key are names that are not empty and hold no NUL")
        Caller(self.tenant, self.user, self.roles)

    def fault(self, now: int) -> str | None:
        """Why it does not count; None: it does."""
        if self.revoked_at is not None:
            return "was revoked"
        return "has expired" if self.expires_at is not None and now >= self.expires_at else None

    def to_json(self) -> dict[str, JsonValue]:
        """The key by field, without the digest; times in microseconds since 1970."""
        return {
            "id": self.id,
            "tenant": self.tenant,
            "user": self.user,
            "roles": list(self.roles),
            "scopes": list(self.scopes),
            "createdAt": self.created_at,
            "expiresAt": self.expires_at,
            "revokedAt": self.revoked_at,
        }
