"""Who asks: the key of a request, whose it is and what it may do."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from counterfoil.core.call import Caller
from counterfoil.core.errors import StoreError
from counterfoil.core.keys import token_digest
from counterfoil.doors.http.problems import KINDS, Problem
from counterfoil.runtime import Runtime

KEYS = 10_000
"""Keys whose requests are counted at once."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a request may do, and in whose name."""

    tenant: str
    user: str | None
    roles: tuple[str, ...]
    scopes: frozenset[str]
    key_id: str | None = None
    """None without a key."""

    @property
    def caller(self) -> Caller:
        """On whose behalf a run of this request works."""
        return Caller(self.tenant, self.user, self.roles)

    @property
    def threads(self) -> bool:
        """Whether it may see other threads than the main one."""
        return "threads" in self.scopes


_bearer = HTTPBearer(auto_error=False, description="A key of `counterfoil keys create`.")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_own(request: Request) -> bool:
    """Whether the request means this machine by one of its own names, and comes from no page of another site.

    A browser on this machine reaches a loopback address for any page that it shows: by a form, or by a name of the
    page's own that is made to lead here.
    """
    origin = request.headers.get("origin")
    try:
        asked = [request.url.hostname] if origin is None else [request.url.hostname, urlsplit(origin).hostname]
    except ValueError:  # no address at all
        return False
    return all(is_loopback(host or "") for host in asked)


class Rate:
    """How many requests each key may make: so many at once, and as many again within the time.

    Args:
        most: requests; None: as many as it likes.
        seconds: the time.
    """

    def __init__(self, most: int | None, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._left: dict[str | None, tuple[float, float]] = {}

    def take(self, key_id: str | None) -> None:
        """Count a request.

        Raises:
            Problem: it is one too many; says when to try again.
        """
        if self._most is None:
            return
        now, each = time.monotonic(), self._seconds / self._most
        left, then = self._left.pop(key_id, (float(self._most), now))
        left = min(left + (now - then) / each, self._most)
        self._left[key_id] = (left - 1 if left >= 1 else left), now
        while len(self._left) > KEYS:  # the one that was silent for longest has all its requests again
            del self._left[next(iter(self._left))]
        if left < 1:
            wait = max(1, math.ceil((1 - left) * each))
            told = f"this key may make {self._most} requests in {self._seconds:g} s; try again in {wait} s"
            raise Problem("rate-limited", told, {"Retry-After": str(wait)})


async def access_of(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Access:
    """The access of a request.

    Raises:
        Problem: it has no key, or none that counts, or asks too often.
    """
    access = await _access(request, given)
    request.app.state.rate.take(access.key_id)
    return access


async def _access(request: Request, given: HTTPAuthorizationCredentials | None) -> Access:
    dev: Access | None = request.app.state.dev
    if given is None and "authorization" not in request.headers and dev is not None:
        if not _is_own(request):
            raise _unauthorized("without a key only http://127.0.0.1, http://[::1] and http://localhost are served")
        return dev
    if given is None:
        raise _unauthorized(KINDS["unauthorized"].example)
    runtime: Runtime = request.app.state.runtime
    key = await runtime.store.key(token_digest(given.credentials))
    fault = "is unknown" if key is None else key.fault(runtime.effects.now())
    if key is None or fault is not None:
        raise _unauthorized(f"this key {fault}; `counterfoil keys create` makes one")
    return Access(key.tenant, key.user, key.roles, frozenset(key.scopes), key.id)


async def counts_yet(request: Request) -> bool:
    """Whether a request that was let in would be now: its key may have expired or been revoked since."""
    try:
        await _access(request, await _bearer(request))
    except Problem:
        return False
    except StoreError:  # nobody can tell now
        return True
    return True


def _unauthorized(detail: str) -> Problem:
    return Problem("unauthorized", detail, {"WWW-Authenticate": "Bearer"})


def needs(*scopes: str) -> Callable[..., Awaitable[Access]]:
    """A dependency that gives the request's access if it has one of these scopes."""

    async def check(access: Annotated[Access, Depends(access_of)]) -> Access:
        if not access.scopes.intersection(scopes):
            has = ", ".join(sorted(access.scopes)) or "none"
            told = f"this needs the scope {' or '.join(scopes)}, and the key has {has}"
            raise Problem("forbidden", f"{told}; use one that was made with --scope {scopes[0]}")
        return access

    return check


Reader = Annotated[Access, Depends(needs("read"))]
Starter = Annotated[Access, Depends(needs("run"))]
Decider = Annotated[Access, Depends(needs("approve"))]
Inbox = Annotated[Access, Depends(needs("read", "approve"))]
Admin = Annotated[Access, Depends(needs("admin"))]
