"""Failed calls told to a web address as they come: signed, retried, and never at the cost of a run.

The form is that of Standard Webhooks (standardwebhooks.com): receivers have libraries that check it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.core.outcome import ErrorCode
from counterfoil.core.report import ToolErrorReport, store_error
from counterfoil.core.turn import date_json
from counterfoil.core.wire_live import report_json
from counterfoil.hooks import Hooks

log = logging.getLogger("counterfoil")

TRIES: Final = 5
"""Requests for one message at most."""
BACK_OFF_SECONDS: Final = 1.0
"""Before the second request, doubling: 15 s in all."""
RETRY_AFTER_SECONDS: Final = 60.0
"""Of a receiver's own wish, at most: others wait behind it."""
TIMEOUT_SECONDS: Final = 10.0
MOMENT_SECONDS: Final = 0.2
"""For the thread to see that it is over, between two requests."""
QUEUE: Final = 1000
"""Messages that wait at most; what comes then is dropped and counted."""
SECRET_BYTES: Final = range(24, 65)
"""Of a key, as Standard Webhooks has it."""
AGAIN: Final = frozenset({408, 425, 429})
"""Statuses below 500 after which the same message may be taken."""


@dataclass(frozen=True, slots=True)
class _Message:
    id: str
    body: bytes


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A signed message goes where it was meant to go."""

    def redirect_request(self, *_: object) -> None:
        return None


class Webhook:
    """Posts each failed call of the runs that it observes, from a thread of its own.

    Args:
        url: where to, ``https://…`` or ``http://…``.
        secret: the key of the signature: ``whsec_`` and 24 to 64 bytes in base64; the word may be left out.
        content: the whole report, with inputs, messages and tracebacks. Off: names, numbers and ids alone.
        queue_size: messages that wait at most.
        back_off: seconds before the second request for a message, doubling.
        timeout: seconds for one request.

    Raises:
        DefinitionError: the address or the secret cannot be one.
    """

    def __init__(
        self, url: str, secret: str, *, content: bool = False, queue_size: int = QUEUE,
        back_off: float = BACK_OFF_SECONDS, timeout: float = TIMEOUT_SECONDS,
    ) -> None:  # fmt: skip  # two rows
        self._url, self._host, self._key, self._content = url, _host(url), _key(secret), content
        self._back_off, self._timeout = back_off, timeout
        self._queue: queue.Queue[_Message | None] = queue.Queue(queue_size)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = False
        self._over = threading.Event()
        self.sent = 0
        """Messages that were taken."""
        self.dropped = 0
        """Messages that were not: no room, refused, or too many tries."""
        self.hooks = Hooks(on_tool_error=self._failed)
        """What does it: for ``Runtime(hooks=…)``, ``Agent(hooks=…)`` or `Runtime.add_hooks`."""

    def close(self, seconds: float = 10.0) -> bool:
        """Take nothing more, and send what waits for so many seconds at most. Blocks; call it in a thread.

        Returns:
            Whether nothing was left.
        """
        with self._lock:
            self._closing, thread = True, self._thread
        if thread is None:
            return True
        until = time.monotonic() + seconds
        while thread.is_alive() and time.monotonic() < until:
            try:
                self._queue.put(None, timeout=max(until - time.monotonic(), 0))  # the last one
                thread.join(max(until - time.monotonic(), 0))
            except queue.Full:
                break
        self._over.set()
        if left := self._waiting():
            self._drop(left, "the webhook was closed")
        thread.join(MOMENT_SECONDS)
        if thread.is_alive():
            log.warning("whether a report reached the webhook at %s is not known: it was closed meanwhile", self._host)
        return not left and not thread.is_alive()

    def _waiting(self) -> int:
        found = 0
        while True:
            try:
                found += self._queue.get_nowait() is not None
            except queue.Empty:
                return found

    # the run's side

    def _failed(self, report: ToolErrorReport) -> None:
        message = _message(report, content=self._content)
        with self._lock:
            if self._closing:
                self._drop(1, "the webhook was closed")
                return
            if self._thread is None:
                # A daemon: a program that forgets to close it ends all the same.
                self._thread = threading.Thread(target=self._work, name="counterfoil-webhook", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self._drop(1, "too many wait")

    def _drop(self, number: int, why: str) -> None:
        self.dropped += number
        log.warning("%d reports were not sent to the webhook at %s: %s", number, self._host, why)

    # the thread's side

    def _work(self) -> None:
        opened = urllib.request.build_opener(_NoRedirects)
        while not self._over.is_set():
            message = self._queue.get()
            if message is None:
                return
            try:
                self._send(opened.open, message)
            except Exception:  # the thread outlives what nobody foresaw
                log.exception("the webhook at %s failed", self._host)
                self.dropped += 1

    def _send(self, post: Callable[..., http.client.HTTPResponse], message: _Message) -> None:
        pause, why = self._back_off, ""
        for number in range(TRIES):
            if number and self._over.wait(pause):
                break
            pause, wish = self._back_off * 2**number, 0.0
            try:
                with post(self._request(message), timeout=self._timeout):
                    self.sent += 1
                    return
            except urllib.error.HTTPError as error:
                with error:
                    why = f"it answered {error.code}"
                    if error.code not in AGAIN and error.code < 500:  # noqa: PLR2004  # below, it is refused for good
                        break
                    wish = _seconds(error.headers.get("Retry-After"))
            except (OSError, http.client.HTTPException) as error:
                why = f"{type(error).__name__}: {error}"
            pause = max(pause, min(wish, RETRY_AFTER_SECONDS))
        self._drop(1, why)

    def _request(self, message: _Message) -> urllib.request.Request:
        at = str(int(time.time()))
        signed = hmac.digest(self._key, f"{message.id}.{at}.".encode() + message.body, "sha256")
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "counterfoil",
            "Webhook-Id": message.id,
            "Webhook-Timestamp": at,
            "Webhook-Signature": f"v1,{base64.b64encode(signed).decode()}",
        }
        return urllib.request.Request(self._url, message.body, headers, method="POST")  # noqa: S310  # http and https alone


def _host(url: str) -> str:
    try:
        place = urlsplit(url)
        host, fits = place.hostname, place.scheme in ("http", "https") and place.port != 0 and "@" not in place.netloc
    except ValueError:
        host, fits = None, False
    if host is None or not fits or not (url.isascii() and url.isprintable()) or " " in url:
        raise DefinitionError(
            "a webhook's address begins with https:// or http://, has no user or password in it, and is ASCII without "
            f"spaces, got {url.rpartition('@')[2]!r:.100}"
        )
    return host


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.strip().removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) not in SECRET_BYTES:
        raise DefinitionError(
            "a webhook's secret is 24 to 64 random bytes in base64, perhaps with whsec_ before them; "
            "`openssl rand -base64 32` makes one"
        )
    return key


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isdecimal() and len(text) < 10 else 0.0  # noqa: PLR2004  # digits


def _message(report: ToolErrorReport, *, content: bool) -> _Message:
    whole, error = report_json(report), store_error(report.error)
    assert isinstance(error, dict)  # noqa: S101  # it gives nothing else
    made_up = report.code in (ErrorCode.INVALID_JSON, ErrorCode.UNKNOWN_TOOL)
    names = (
        "tenantId", "interactionId", "threadId", "runId", "stepIndex", "callId", "toolName", "code", "durationMs", "at",
    )  # fmt: skip  # a list
    data: dict[str, JsonValue] = whole
    if not content:
        data = {name: whole[name] for name in names}
        data |= {"errorType": error["type"], "attempts": len(report.attempts) + 1}
        # A name that the model may have made up is a text of the model like any other.
        data["toolName"] = None if made_up else report.tool_name
    told: JsonValue = {
        "type": "tool.failed",
        "timestamp": date_json(report.at),
        "data": data,
    }
    # The same for each request and each process that tells of the call: receivers know repeats by it.
    name = hashlib.sha256(f"{report.run_id} {report.call_id}".encode()).hexdigest()[:32]
    return _Message(f"msg_{name}", dumps(told))
