"""Around every request: its id, its line in the log, the size of its body, and an answer to what nobody foresaw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
import uuid
from collections import Counter
from contextvars import ContextVar
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterfoil.core.shorten import clip
from counterfoil.doors.http.common import PACKED
from counterfoil.doors.http.problems import KINDS, Problem, answer

log = logging.getLogger("counterfoil.http")

REQUEST_ID: ContextVar[str] = ContextVar("counterfoil_request_id", default="")
"""Of the request that is answered now; empty outside of one."""
HEADER: Final = "X-Request-Id"
BODY_SECONDS: Final = 60.0
"""For a body to come whole: a mobile client sends the most that one may have in less."""
_GIVEN = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
"""An id of the client's own that goes into the log as it is."""

_NO_GZIP = re.compile(r"gzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)
"""A client that has no use for what is compressed."""


class _Enough(Exception):  # a signal of this file's own
    """The client asked for the head of an answer alone, and has it."""


class Edge:
    """The outermost layer of the application. It answers HEAD as GET, without a body.

    Args:
        app: what is inside.
        max_body: bytes that a body may have.
        patience: seconds for it to come.
    """

    def __init__(self, app: ASGIApp, *, max_body: int, patience: float = BODY_SECONDS) -> None:
        self.app = app
        self.max_body, self.patience = max_body, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(HEADER, "")
        request_id = given if _GIVEN.fullmatch(given) else str(uuid.uuid4())
        REQUEST_ID.set(request_id)
        status, began, method = 0, time.perf_counter(), scope["method"]
        if method == "HEAD":
            scope["method"] = "GET"  # the routes know no other
        if _NO_GZIP.search(headers.get("accept-encoding", "")):
            MutableHeaders(scope=scope)["accept-encoding"] = "identity"  # inside, the word alone counts

        async def answering(message: Message) -> None:
            nonlocal status
            begins = message["type"] == "http.response.start"
            if begins:
                status, scope["method"] = message["status"], method
                _finish(MutableHeaders(scope=message), request_id)
            await send(message)
            if begins and method == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                raise _Enough

        try:
            await self._answer(headers, scope, receive, answering, request_id)
        except _Enough:
            pass
        except Exception:
            log.exception("request %s failed", request_id)
            if not status:
                internal = answer(Problem("internal", KINDS["internal"].example), request_id)
                with contextlib.suppress(_Enough):
                    await internal(scope, receive, answering)
        finally:
            scope["method"] = method
            ms = (time.perf_counter() - began) * 1000
            path = scope.get("raw_path", b"?").decode("ascii", "replace")  # what it escapes cannot forge a line
            log.info("%s %s %d in %.1f ms, request %s", scope["method"], path, status, ms, request_id)

    async def _answer(self, headers: Headers, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        try:
            body = await self._body(headers, receive)
            if body:
                with contextlib.suppress(ValueError, RecursionError):  # what is no JSON is refused inside
                    json.loads(body, object_pairs_hook=_once)
            await self.app(scope, _again(body, receive), send)
        except Problem as problem:
            await answer(problem, request_id)(scope, receive, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body.

        Raises:
            Problem: it is too large, or does not come.
        """
        told = headers.get("content-length", "0")
        large = told.isdecimal() and int(told) > self.max_body
        if large and "100-continue" in headers.get("expect", "").lower():
            raise self._too_large()
        found = bytearray()
        try:
            async with asyncio.timeout(self.patience):
                more = True
                while more and (message := await receive())["type"] != "http.disconnect":
                    piece, more = message.get("body", b""), message.get("more_body", False)
                    large = large or len(found) + len(piece) > self.max_body
                    # The rest is read too: most clients hear nothing before they have sent all, and a connection that
                    # is closed with something unread takes the answer along.
                    found += b"" if large else piece
        except TimeoutError:
            if not large:
                told = f"the body did not come within {self.patience:g} s; send it again, and faster"
                raise Problem("too-slow", told, {"Connection": "close"}) from None
        if large:
            raise self._too_large()
        return bytes(found)

    def _too_large(self) -> Problem:
        return Problem(
            "body-too-large", f"a body has at most {self.max_body} bytes; send less", {"Connection": "close"}
        )


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object that names a field twice: readers differ in which of them counts."""
    counts = Counter(name for name, _ in pairs)
    if len(counts) < len(pairs):
        twice = counts.most_common(1)[0][0]
        raise Problem("invalid-request", f"the body has {clip(twice, 100)!a} twice in one object; send it once")


def _finish(headers: MutableHeaders, request_id: str) -> None:
    """What each answer has."""
    headers[HEADER] = request_id
    headers["X-Content-Type-Options"] = "nosniff"  # what a tool returned is never a page of ours
    if (tag := headers.get("etag")) is not None:
        headers["Vary"] = "Accept-Encoding"  # of the 304 too
        if "content-encoding" in headers and tag.startswith('"'):
            headers["ETag"] = f'{tag[:-1]}{PACKED}"'  # other bytes than those that a Range counts


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives the body, then what comes after it."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
