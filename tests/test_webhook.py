"""The webhook of failed calls: signed, retried, bounded, without content, and never at the cost of a run."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from counterfoil import Runtime, ToolError, tool
from counterfoil.core.errors import DefinitionError
from counterfoil.observers.webhook import TRIES, Webhook
from counterfoil.testing import call, say
from tests.helpers import agent, go

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Receiver:
    """A server that answers with statuses one after another, then with 204, and keeps what came."""

    def __init__(self, *statuses, held=False, headers=None):
        self.statuses = list(statuses)
        self.headers = headers or {}
        self.seen = []
        self.may = threading.Event()
        self.came = threading.Semaphore(0)
        if not held:
            self.may.set()

    @contextmanager
    def serving(self):
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.seen.append((dict(self.headers), body))
                receiver.came.release()
                receiver.may.wait(30)
                status = receiver.statuses.pop(0) if receiver.statuses else 204
                if status == "drop":
                    self.connection.close()
                    return
                self.send_response(status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815  # the name that the server looks for

            def log_message(self, *_):
                """Says nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/hook?a=1"
        finally:
            self.may.set()
            server.shutdown()
            thread.join()
            server.server_close()


@tool
def fails(word: str) -> str:
    """Fails."""
    raise ToolError("no secret-word here", code=404) from KeyError("secret-cause")


def failing(number=1):
    return agent([[call("fails", word="secret-input", id=f"c{i}") for i in range(number)], say("Done.")], fails)


async def ran(webhook, number=1):
    async with Runtime(agents=[failing(number)], hooks=webhook.hooks) as runtime:
        return await (await runtime.start("desk", "secret-prompt")).wait()


def test_a_failed_call_is_told_signed_and_without_content():
    receiver = Receiver()
    with receiver.serving() as url:
        webhook = Webhook(url, SECRET)
        run = go(ran(webhook))
        assert webhook.close() is True
    ((headers, body),) = receiver.seen
    assert b"secret" not in body
    told = json.loads(body)
    assert (told["type"], told["timestamp"]) == ("tool.failed", told["data"]["at"])
    assert told["data"] == {
        "tenantId": "default", "interactionId": run.interaction_id, "threadId": "main", "runId": run.id, "stepIndex": 0,
        "callId": "c0", "toolName": "fails", "code": 404, "durationMs": told["data"]["durationMs"],
        "at": told["data"]["at"], "errorType": "counterfoil.core.errors.ToolError", "attempts": 1,
    }  # fmt: skip  # a table
    at = headers["Webhook-Timestamp"]
    assert abs(int(at) - time.time()) < 3600
    signed = f"{headers['Webhook-Id']}.{at}.".encode() + body
    assert (
        headers["Webhook-Signature"]
        == "v1," + base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    )
    assert headers["Content-Type"] == "application/json"
    assert (webhook.sent, webhook.dropped) == (1, 0)


def test_a_tool_that_the_model_made_up_is_not_named():
    receiver = Receiver()
    with receiver.serving() as url:
        webhook = Webhook(url, SECRET)
        made_up = agent([[call("secret-tool"), call("secret-tool", raw="{")], say("Done.")], fails)

        async def main():
            async with Runtime(agents=[made_up], hooks=webhook.hooks) as runtime:
                await (await runtime.start("desk", "go")).wait()

        go(main())
        webhook.close()
    told = [json.loads(body)["data"] for _, body in receiver.seen]
    assert sorted((data["code"], data["toolName"]) for data in told) == [(4000, None), (4001, None)]
    assert all(b"secret" not in body for _, body in receiver.seen)


def test_the_whole_report_is_told_where_it_is_asked_for():
    receiver = Receiver()
    with receiver.serving() as url:
        webhook = Webhook(url, SECRET, content=True)
        go(ran(webhook))
        webhook.close()
    data = json.loads(receiver.seen[0][1])["data"]
    assert (data["input"], data["modelText"]) == ({"word": "secret-input"}, "no secret-word here")
    assert data["error"]["causes"] == ["KeyError: 'secret-cause'"]


@pytest.mark.parametrize("first", [500, 503, 429, 408, "drop"])
def test_a_message_is_sent_again_with_the_same_id_where_that_may_help(first):
    receiver = Receiver(first, first)
    with receiver.serving() as url:
        webhook = Webhook(url, SECRET, back_off=0.001)
        go(ran(webhook))
        assert webhook.close() is True
    assert len(receiver.seen) == 3
    assert len({(headers["Webhook-Id"], body) for headers, body in receiver.seen}) == 1
    assert (webhook.sent, webhook.dropped) == (1, 0)


@pytest.mark.parametrize("status", [400, 401, 404, 410, 302, 307])
def test_what_is_refused_for_good_or_sent_elsewhere_is_not_sent_again(status, caplog):
    receiver = Receiver(status, headers={"Location": "/elsewhere"})
    with receiver.serving() as url:
        webhook = Webhook(url, SECRET, back_off=0.001)
        go(ran(webhook))
        webhook.close()
    assert len(receiver.seen) == 1
    assert (webhook.sent, webhook.dropped) == (0, 1)
    assert f"it answered {status}" in caplog.text
    assert "secret" not in caplog.text


def test_a_receiver_that_is_away_costs_tries_and_then_the_message_alone():
    receiver = Receiver(*[500] * TRIES)
    with receiver.serving() as url:
        webhook = Webhook(url, SECRET, back_off=0.001)
        go(ran(webhook, 2))
        webhook.close()
    assert len(receiver.seen) == TRIES + 1
    assert (webhook.sent, webhook.dropped) == (1, 1)


def test_a_slow_receiver_slows_no_run_and_what_has_no_room_is_dropped(caplog):
    receiver = Receiver(held=True)
    with receiver.serving() as url:
        webhook = Webhook(url, SECRET, queue_size=2)
        go(ran(webhook))
        receiver.came.acquire()  # one is under way, and the receiver holds it
        run = go(ran(webhook, 5))
        assert not receiver.may.is_set()
        assert run.answer == "Done."
        assert webhook.dropped == 3
        receiver.may.set()
        assert webhook.close() is True
    assert (len(receiver.seen), webhook.sent) == (3, 3)
    assert "too many wait" in caplog.text


def test_what_waits_when_it_is_closed_is_dropped_in_time_and_what_is_on_its_way_is_said(caplog):
    receiver = Receiver(held=True)
    with receiver.serving() as url:
        webhook = Webhook(url, SECRET, queue_size=5)
        go(ran(webhook, 3))
        receiver.came.acquire()
        assert webhook.close(0.01) is False
        assert webhook.dropped == 2
        assert "whether a report reached the webhook at 127.0.0.1 is not known" in caplog.text
        go(ran(webhook))
        assert webhook.dropped == 3
        receiver.may.set()
        webhook._thread.join()
    assert webhook.sent == 1


def test_the_receiver_of_the_page_takes_what_is_sent_and_nothing_else():
    page = (Path(__file__).parent.parent / "docs" / "operations.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(# desk.py\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    space = {"__name__": "desk"}
    exec(compile(program, "operations.md", "exec"), space)  # noqa: S102  # the page's own program
    checked = space["checked"]
    receiver = Receiver()
    with receiver.serving() as url:
        webhook = Webhook(url, SECRET)
        go(ran(webhook))
        assert webhook.close()
    ((headers, body),) = receiver.seen
    assert checked(SECRET, headers, body)["type"] == "tool.failed"
    assert checked(SECRET.replace("AA", "BB"), headers, body) is None
    assert checked(SECRET, headers, body + b" ") is None
    assert checked(SECRET, {**headers, "Webhook-Id": "msg_other"}, body) is None
    old = str(int(headers["Webhook-Timestamp"]) - 600)
    assert checked(SECRET, {**headers, "Webhook-Timestamp": old}, body) is None
    signature = hmac.digest(KEY, f"{headers['Webhook-Id']}.{old}.".encode() + body, "sha256")
    signed = {"Webhook-Timestamp": old, "Webhook-Signature": f"v1,{base64.b64encode(signature).decode()}"}
    assert checked(SECRET, {**headers, **signed}, body) is None
    assert checked(SECRET, {}, body) is None


def test_one_that_had_nothing_to_send_is_closed_at_once():
    assert Webhook("https://example.test/", SECRET).close() is True


@pytest.mark.parametrize(
    ("url", "secret", "told"),
    [
        ("ftp://example.test", SECRET, "begins with https:// or http://"),
        ("example.test/hook", SECRET, "begins with https:// or http://"),
        ("https://secret words@example.test", SECRET, "no user or password"),
        ("https://[example.test", SECRET, "begins with https:// or http://"),
        ("https://example.test:99999", SECRET, "begins with https:// or http://"),
        ("https://example.test/a b", SECRET, "ASCII without spaces"),
        ("https://example.test/é", SECRET, "ASCII without spaces"),
        ("https://example.test", "whsec_", "24 to 64 random bytes"),
        ("https://example.test", "secret words", "24 to 64 random bytes"),
        ("https://example.test", base64.b64encode(b"x" * 23).decode(), "24 to 64 random bytes"),
    ],
)
def test_an_address_or_a_secret_that_is_none_is_refused_and_the_secret_is_not_repeated(url, secret, told):
    with pytest.raises(DefinitionError, match=told) as caught:
        Webhook(url, secret)
    assert not secret.strip() or "secret words" not in str(caught.value)
