"""Around every request: its id, its line in the log, the size of its body, and an answer to what nobody foresaw."""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextvars import ContextVar
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterfoil.doors.http.problems import KINDS, Problem, answer

log = logging.getLogger("counterfoil.http")

REQUEST_ID: ContextVar[str] = ContextVar("counterfoil_request_id", default="")
"""Of the request that is answered now; empty outside of one."""
HEADER: Final = "X-Request-Id"
_GIVEN = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
"""An id of the client's own that goes into the log as it is."""


class Edge:
    """The outermost layer of the application.

    Args:
        app: what is inside.
        max_body: bytes that a body may have.
    """

    def __init__(self, app: ASGIApp, *, max_body: int) -> None:
        self.app = app
        self.max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(HEADER, "")
        request_id = given if _GIVEN.fullmatch(given) else str(uuid.uuid4())
        REQUEST_ID.set(request_id)
        status, began = 0, time.perf_counter()

        async def answering(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                headers["X-Content-Type-Options"] = "nosniff"  # what a tool returned is never a page of ours
            await send(message)

        try:
            body = await self._body(headers, receive)
            await self.app(scope, _again(body, receive), answering)
        except Problem as problem:
            await answer(problem, request_id)(scope, receive, answering)
        except Exception:
            log.exception("request %s failed", request_id)
            if not status:
                await answer(Problem("internal", KINDS["internal"].example), request_id)(scope, receive, answering)
        finally:
            ms = (time.perf_counter() - began) * 1000
            path = scope.get("raw_path", b"?").decode("ascii", "replace")  # what it escapes cannot forge a line
            log.info("%s %s %d in %.1f ms, request %s", scope["method"], path, status, ms, request_id)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body.

        Raises:
            Problem: it is too large, or the client went away before its end.
        """
        told = headers.get("content-length", "0")
        if told.isdecimal() and int(told) > self.max_body:
            raise self._too_large()
        found = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            found += message.get("body", b"")
            more = message.get("more_body", False)
            if len(found) > self.max_body:
                raise self._too_large()
        return bytes(found)

    def _too_large(self) -> Problem:
        return Problem(
            "body-too-large", f"a body has at most {self.max_body} bytes; send less", {"Connection": "close"}
        )


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
