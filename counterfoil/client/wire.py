"""Requests and answers: the address and the key, what is tried again, problems as our own errors."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import os
import random
import re
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, urlsplit

from counterfoil.core.errors import (
    AmbiguousCall,
    Conflict,
    CounterfoilError,
    DecisionConflict,
    DefinitionError,
    InvalidInput,
    NotAllowed,
    NotFound,
    NotPending,
    ServerError,
    UnknownAgent,
    UsageError,
)
from counterfoil.core.jsontext import dumps, loads

if TYPE_CHECKING:
    import httpx2

URL_VARIABLE: Final = "COUNTERFOIL_URL"
"""The server's address, where none is given."""
KEY_VARIABLE: Final = "COUNTERFOIL_KEY"
"""The key, where none is given."""
QUIET_SECONDS: Final = 45.0
"""A stream of events on which nothing came for so long is dead: the server sends a comment every 15 seconds."""
FIRST_PAUSE = 0.2
LONGEST_PAUSE: Final = 5.0
"""Seconds between two attempts, at first and at most, unless the server asks for more."""
MOST_ASKED: Final = 60.0
"""Seconds that a server may ask to wait; it asks for more where nobody should wait."""
BUSY: Final = (429, 502, 503, 504)
"""Answers after which the same request may succeed."""

PREFIX: Final = "urn:counterfoil:problem:"
_ERRORS: Final[Mapping[str, type[CounterfoilError]]] = {
    "not-found": NotFound,
    "erased": NotFound,
    "conflict": Conflict,
    "decision-conflict": DecisionConflict,
    "ambiguous-call": AmbiguousCall,
    "not-allowed": NotAllowed,
    "not-pending": NotPending,
    "invalid-input": InvalidInput,
    "unknown-agent": UnknownAgent,
    **dict.fromkeys(("invalid-request", "method-not-allowed", "body-too-large", "not-json", "range"), UsageError),
}
"""What a problem is raised as; a `ServerError` where it is not here."""
_NAMED: Final = {"ambiguous-call": "runs", "unknown-agent": "agents"}
"""The field of a problem that its error has too."""


def needs_extra() -> None:
    """Refuse to go on without the extra.

    Raises:
        DefinitionError: it is not installed; says what to type.
    """
    try:
        importlib.import_module("httpx2")
    except ImportError as error:  # it, or what it needs itself
        raise DefinitionError(
            f"the client needs {error.name or 'httpx2'}, not installed for {sys.executable}; "
            "type: pip install 'counterfoil[client]'"
        ) from error


def address(given: str | None) -> str:
    """The server's address without a slash at its end.

    Raises:
        UsageError: there is none, or it is no address.
    """
    url = given or os.environ.get(URL_VARIABLE)
    if not url:
        raise UsageError(f"no server is named; give base_url, or set {URL_VARIABLE}")
    parts = urlsplit(url)
    if "@" in url:
        raise UsageError("the server's address holds a name or a password; leave them out, and give the key by itself")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"expected an address such as http://127.0.0.1:8000, got {url!r:.200}")
    return url.rstrip("/")


def secret(given: str | None) -> str | None:
    """The key; None: requests have none.

    Raises:
        UsageError: it cannot be one. The message does not hold it.
    """
    key = (given if given is not None else os.environ.get(KEY_VARIABLE, "")).strip()
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise UsageError("the key has characters that no key has; copy it again from where it was printed")
    return key or None


def part(text: str) -> str:
    """A text as one piece of a path."""
    return quote(text, safe="")


class Way(Protocol):
    """How requests go out: for asyncio, or in the thread that asks."""

    http: Any

    def open(self, **options: Any) -> None:
        """Make the connections' pool."""

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, whose body is still to be read."""

    async def read(self, answer: httpx2.Response) -> bytes:
        """Its whole body."""

    def pieces(self, answer: httpx2.Response) -> AsyncIterator[bytes]:
        """Its body piece by piece."""

    def events(self, answer: httpx2.Response) -> AsyncIterator[httpx2.ServerSentEvent]:
        """Its server-sent events."""

    async def end(self, answer: httpx2.Response) -> None:
        """Leave its body."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def close(self) -> None:
        """Close the connections."""


class Calm:
    """For asyncio. Connections have no bound: a stream of events keeps one, and any number may be followed."""

    http: httpx2.AsyncClient

    def open(self, **options: Any) -> None:
        import httpx2

        self.http = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None), **options)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        return await self.http.send(request, stream=True)

    async def read(self, answer: httpx2.Response) -> bytes:
        return await answer.aread()

    def pieces(self, answer: httpx2.Response) -> AsyncIterator[bytes]:
        return answer.aiter_bytes()

    async def events(self, answer: httpx2.Response) -> AsyncIterator[httpx2.ServerSentEvent]:
        import httpx2

        async for event in httpx2.EventSource(answer, max_event_size=None):
            yield event

    async def end(self, answer: httpx2.Response) -> None:
        await answer.aclose()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self.http.aclose()


class Blocking:
    """In the thread that asks. Its coroutines never wait for a loop, so `now` can end them."""

    http: httpx2.Client

    def open(self, **options: Any) -> None:
        import httpx2

        self.http = httpx2.Client(limits=httpx2.Limits(max_connections=None), **options)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        return self.http.send(request, stream=True)

    async def read(self, answer: httpx2.Response) -> bytes:
        return answer.read()

    async def pieces(self, answer: httpx2.Response) -> AsyncIterator[bytes]:
        for piece in answer.iter_bytes():
            yield piece

    async def events(self, answer: httpx2.Response) -> AsyncIterator[httpx2.ServerSentEvent]:
        import httpx2

        for event in httpx2.EventSource(answer, max_event_size=None):
            yield event

    async def end(self, answer: httpx2.Response) -> None:
        answer.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # its coroutines are driven by no loop

    async def close(self) -> None:
        self.http.close()


class Wire:
    """A server, and how it is asked.

    Args:
        way: a `Calm` or a `Blocking`.
        base_url: see `AsyncClient`, as of the others.
        key: None: without one.
        timeout: seconds.
        retries: how often a request is tried again.
        verify: of TLS.
    """

    def __init__(
        self, way: Way, base_url: str | None, key: str | None, timeout: float, retries: int,
        verify: ssl.SSLContext | None,
    ) -> None:  # fmt: skip  # two rows
        needs_extra()
        self.url, self.retries, self.timeout = address(base_url), retries, timeout
        headers = {"User-Agent": f"counterfoil/{_version()}"}
        if (known := secret(key)) is not None:
            headers["Authorization"] = f"Bearer {known}"
        if verify is None and self.url.startswith("http:"):
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not used; the default one reads every root certificate
        more = {} if verify is None else {"verify": verify}
        self.way = way
        way.open(base_url=self.url, headers=headers, timeout=timeout, **more)

    async def ask(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: object = None,
        headers: Mapping[str, str] | None = None, again: bool | None = None, quiet: float | None = None,
    ) -> httpx2.Response:  # fmt: skip  # two rows
        """The answer; one that is no success is raised.

        Args:
            method: of HTTP.
            path: from the server's address.
            params: what is None, or the dots ``...``, is left out.
            body: as JSON.
            headers: further ones.
            again: asking twice does what asking once does; None: of a GET.
            quiet: its body is still to be read, and may be quiet for so many seconds.

        Raises:
            CounterfoilError: the problem that the server answered with; `ServerError` where it did not answer.
        """
        import httpx2

        more = {name: str(value) for name, value in (params or {}).items() if value not in (None, ...)}
        sent = dict(headers or {})
        if body is not None:
            sent["Content-Type"] = "application/json"
        again = method == "GET" if again is None else again
        for attempt in range(self.retries + 1):
            last = attempt == self.retries
            request = self.way.http.build_request(
                method, path, params=more, content=None if body is None else dumps(body), headers=sent,
                timeout=httpx2.Timeout(self.timeout, read=quiet or self.timeout),
            )  # fmt: skip  # two rows
            try:
                answer = await self.way.send(request)
                good = answer.status_code < 300  # noqa: PLR2004  # a success
                if not (good and quiet):
                    await self._whole(answer)
                if good:
                    return answer
            except httpx2.RequestError as fault:
                # What never came to the server can be asked again, whatever it is.
                if last or not (again or isinstance(fault, (httpx2.ConnectError, httpx2.ConnectTimeout))):
                    raise self.lost(fault) from None  # its message has what the layers below say
                await self.way.sleep(pause(attempt))
                continue
            wanted = _retry_after(answer)
            # A request that was refused for its rate has done nothing.
            fits = answer.status_code in BUSY and (again or answer.status_code == BUSY[0])
            if last or not fits or (wanted or 0) > MOST_ASKED:
                raise self.problem(answer.status_code, answer.content)
            await self.way.sleep(pause(attempt) if wanted is None else wanted)
        raise AssertionError  # the last attempt returns or raises

    async def json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The object that the server answers with."""
        answer = await self.ask(method, path, **options)
        try:
            found = loads(answer.content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self.strange("a JSON object")
        return found

    def strange(self, expected: str) -> ServerError:
        """What an answer of another form is raised as."""
        return ServerError(f"{self.url} answered with something else than {expected}; is it a Counterfoil server?")

    async def _whole(self, answer: httpx2.Response) -> None:
        try:
            await self.way.read(answer)
        finally:
            await self.way.end(answer)

    def lost(self, fault: Exception) -> ServerError:
        """What a fault of the connection is raised as."""
        return ServerError(
            f"{self.url} cannot be reached ({str(fault) or type(fault).__name__}); is the server running, "
            "and is this its address?"
        )

    def problem(self, status: int, body: bytes) -> CounterfoilError:
        """What an answer that is no success is raised as."""
        try:
            told = loads(body)
        except ValueError:
            told = None
        if not isinstance(told, dict) or not isinstance(told.get("detail"), str):
            return ServerError(
                f"{self.url} answered {status} and said nothing of it; is it the address of a Counterfoil "
                "server, with nothing in between that answers for it?",
                status=status,
            )
        name, detail = str(told.get("type")).removeprefix(PREFIX), str(told["detail"])
        if (kind := _ERRORS.get(name)) is not None:
            named = told.get(_NAMED.get(name, ""))
            found = kind(detail, named) if isinstance(named, list) else kind(detail)
            found.problem = told
            return found
        request = str(told.get("requestId") or "")
        text = f"{detail} (request {request})" if status >= 500 and request else detail  # noqa: PLR2004  # its fault
        return ServerError(text, status=status, type=name, request_id=request or None)


def pause(attempt: int) -> float:
    """Seconds before the next attempt: longer each time, and not the same for all who wait."""
    return float(min(FIRST_PAUSE * 2 ** min(attempt, 10), LONGEST_PAUSE) * random.uniform(0.75, 1.25))  # noqa: S311  # spreads, hides nothing


def _retry_after(answer: httpx2.Response) -> float | None:
    told = answer.headers.get("retry-after", "")
    return float(told) if re.fullmatch(r"\d{1,6}", told) else None


def _version() -> str:
    try:
        return importlib.metadata.version("counterfoil")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
