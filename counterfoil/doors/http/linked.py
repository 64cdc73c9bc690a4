"""Around every request, where runs are traced: the trace that its sender is in (W3C Trace Context, `traceparent`)."""

from __future__ import annotations

from opentelemetry import context, propagate
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send


class Linked:
    """Takes the sender's trace along, so that a run which the request starts is linked to it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        token = context.attach(propagate.extract(Headers(scope=scope)))
        try:
            await self.app(scope, receive, send)
        finally:
            context.detach(token)
