"""Around every request: its place in the metrics."""

from __future__ import annotations

import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterfoil.observers.prometheus import OTHER, Metrics

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
GONE: Final = "gone"
"""For the status of a request whose client went away before there was one."""


class Measured:
    """Counts each request, and the streams of events that are open."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, streams, began = GONE, False, time.perf_counter()

        async def answering(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = str(message["status"])
                streams = any(
                    name == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message["headers"]
                )
                if streams:
                    self.metrics.streams.inc()
            await send(message)

        try:
            await self.app(scope, receive, answering)
        finally:
            if streams:
                self.metrics.streams.dec()
            method = scope["method"] if scope["method"] in METHODS else OTHER
            # The pattern of the route: an address holds ids, and there are as many as anybody likes to send.
            route = getattr(scope.get("route"), "path", OTHER)
            self.metrics.answered(method, route, status, None if streams else time.perf_counter() - began)
