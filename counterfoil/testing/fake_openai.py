"""A Chat Completions server for tests: real HTTP on loopback, no model, as strict as the strictest server.

    async with FakeOpenAI([tool_calls(("c1", "get_order", '{"order_id": "W100"}')), text("Done.")]) as server:
        model = OpenAIChat("any", base_url=server.base_url)

It answers requests with the replies of a script, in order. A request that breaks a rule of the wire gets HTTP
400 and uses up no reply. The rules (`fault_of`): every call is answered once, right after it, by a message of
the role tool; ids are unique; no content is blank; names are legal; arguments are a JSON object; no text has
half of a surrogate pair.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_MAX_ID: Final = 40


# --------------------------------------------------------------------------------------------- replies


@dataclass(frozen=True, slots=True)
class Chunks:
    """A stream of chunks as they stand on the wire."""

    chunks: Sequence[Mapping[str, Any] | str]
    """Each a chunk, or the text of an event's data as it is."""
    then: str = "done"
    """What follows: ``done`` ([DONE] and the end), ``end`` (the end alone), ``drop`` (the connection is torn
    down) or ``hang`` (nothing, until the client goes away)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer with another status than 200."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "server_error"
    """The error's ``type`` in the body."""


Reply: TypeAlias = "Chunks | Refusal"
Script: TypeAlias = "Reply | Callable[[dict[str, Any]], Reply]"
"""A reply, or a function of the request's body that gives one."""


def chunk(delta: Mapping[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a stream.

    Args:
        delta: what it adds; None: a chunk without choices.
        finish: its finish_reason.
        **more: other fields of the chunk, such as ``usage``.
    """
    choices = [] if delta is None else [{"index": 0, "delta": dict(delta), "finish_reason": finish}]
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "fake-1",
        "choices": choices,
        **more,
    }


def usage(prompt: int = 10, completion: int = 5, cached: int = 0) -> dict[str, Any]:
    """The last chunk of a stream, with its count of tokens."""
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    total = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return chunk(usage=total | details)


def text(said: str, *, pieces: int = 1, finish: str | None = "stop", then: str = "done") -> Chunks:
    """A text, in pieces; ``finish`` None cuts it off."""
    size = max(1, -(-len(said) // pieces))
    cut = [said[i : i + size] for i in range(0, len(said), size)]
    first = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": piece}) for piece in cut)]
    return Chunks([*first, *([] if finish is None else [chunk({}, finish), usage()])], then)


def tool_calls(
    *calls: tuple[str | None, str, str],
    pieces: int = 2,
    finish: str | None = "tool_calls",
    then: str = "done",
) -> Chunks:
    """Calls, each (id, name, arguments), their arguments in pieces that come by turns."""
    out = [chunk({"role": "assistant", "content": None})]
    for index, (identity, name, _) in enumerate(calls):
        head = {"index": index, "type": "function", "function": {"name": name, "arguments": ""}}
        out.append(chunk({"tool_calls": [head if identity is None else head | {"id": identity}]}))
    cut = [[a[len(a) * n // pieces : len(a) * (n + 1) // pieces] for n in range(pieces)] for _, _, a in calls]
    for n in range(pieces):
        for index, parts in enumerate(cut):
            out.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": parts[n]}}]}))
    return Chunks([*out, *([] if finish is None else [chunk({}, finish), usage()])], then)


def rate_limit(seconds: int = 1) -> Refusal:
    """HTTP 429 with Retry-After."""
    return Refusal(429, "too many requests", {"Retry-After": str(seconds)}, "rate_limit_error")


# ----------------------------------------------------------------------------------------------- rules


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a request, and where."""

    message: str
    param: str | None = None


def fault_of(body: Any) -> Fault | None:
    """The first rule of the wire that a request's body breaks; None when it breaks none."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return Fault("the body needs a model", "model")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return Fault("the body needs at least one message", "messages")
    if body.get("stream") is not True:
        return Fault("this server only streams", "stream")
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Fault("the body holds half of a surrogate pair")
    return _fault_of_tools(body) or _fault_of_messages(messages)


def _fault_of_tools(body: dict[str, Any]) -> Fault | None:
    tools = body.get("tools")
    if tools is None:
        needless = {"tool_choice", "parallel_tool_calls"} & body.keys()
        return Fault("only allowed with tools", needless.pop()) if needless else None
    if not isinstance(tools, list) or not tools:
        return Fault("tools is an empty list", "tools")
    names = set()
    for place, tool in enumerate(tools):
        function = tool.get("function") or {}
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in names:
            return Fault(f"the tool's name {name!r} is illegal or not the first", f"tools[{place}].function.name")
        if function.get("parameters", {"type": "object"}).get("type") != "object":
            return Fault("the schema is of no object", f"tools[{place}].function.parameters")
        names.add(name)
    return None


def _fault_of_messages(messages: list[Any]) -> Fault | None:
    open_ids: list[str] = []
    used: set[str] = set()
    for place, message in enumerate(messages):
        param = f"messages[{place}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            return Fault(f"unknown role {role!r}", f"{param}.role")
        if role == "tool":
            identity = message.get("tool_call_id")
            if identity not in open_ids:
                return Fault(f"a result answers {identity!r}, which is no open call", f"{param}.tool_call_id")
            open_ids.remove(identity)
        elif open_ids:
            return Fault(f"the calls {', '.join(open_ids)} have no result before this message", param)
        calls = message.get("tool_calls")
        if not (calls and message.get("content") is None) and not _has_text(message.get("content")):
            return Fault("the content is missing or blank", f"{param}.content")
        if calls is not None:
            fault = _fault_of_calls(role, calls, used, param)
            if fault is not None:
                return fault
            open_ids = [c["id"] for c in calls]
    return Fault(f"the calls {', '.join(open_ids)} have no result", "messages") if open_ids else None


def _has_text(content: Any) -> bool:
    if isinstance(content, list):
        return bool(content) and all(_has_text(p.get("text")) for p in content if p.get("type") == "text")
    return isinstance(content, str) and bool(content.strip())


def _fault_of_calls(role: str, calls: Any, used: set[str], param: str) -> Fault | None:
    if role != "assistant" or not isinstance(calls, list) or not calls:
        return Fault("tool_calls is empty, or of another role than assistant", f"{param}.tool_calls")
    for number, made in enumerate(calls):
        place = f"{param}.tool_calls[{number}]"
        identity, function = made.get("id"), made.get("function") or {}
        if not isinstance(identity, str) or not 0 < len(identity) <= _MAX_ID or identity in used:
            return Fault(f"the id {identity!r} is missing, too long or not the first", f"{place}.id")
        used.add(identity)
        if not isinstance(function.get("name"), str) or not _NAME.fullmatch(function["name"]):
            return Fault(f"the name {function.get('name')!r} is illegal", f"{place}.function.name")
        try:
            arguments = json.loads(function["arguments"], parse_constant=_no_constant)
        except (KeyError, TypeError, ValueError):
            arguments = None
        if not isinstance(arguments, dict):
            return Fault("the arguments are no JSON object", f"{place}.function.arguments")
    return None


def _no_constant(name: str) -> None:
    raise ValueError(name)


# ---------------------------------------------------------------------------------------------- server


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    raw: bytes
    """The body's bytes."""
    body: dict[str, Any]
    headers: dict[str, str]
    """By lower-case name."""
    fault: Fault | None
    """The rule that it broke."""


class FakeOpenAI:
    """The server, as an async context manager; it listens on a free port of 127.0.0.1.

    Args:
        script: a reply for each request, in order. When it is used up, requests get HTTP 400.
        key: the key that requests must have; None: none is looked at.
    """

    def __init__(self, script: Iterable[Script] = (), *, key: str | None = None) -> None:
        self._script = list(script)
        self._next = 0
        self._key = key
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()
        self.asked: list[Asked] = []
        """Every request, refused ones included."""
        self.streaming = asyncio.Event()
        """Set when the last chunk of a reply that hangs was sent."""
        self.gone = asyncio.Event()
        """Set when a client closed its connection amid a reply that hangs."""

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT/v1``.

        Raises:
            RuntimeError: it is not running.
        """
        if self._server is None:
            raise RuntimeError("the fake server is not running: enter it with `async with`")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    @property
    def faults(self) -> list[Fault]:
        """The rules that requests broke; a good client leaves this empty."""
        return [asked.fault for asked in self.asked if asked.fault is not None]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)
        if server is not None:
            server.close()
            await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._busy.add(task)
            task.add_done_callback(self._busy.discard)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (name.partition(":") for name in rest if name)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        reply = self._reply(line, headers, raw)
        if isinstance(reply, Refusal):
            await _refuse(writer, reply)
        else:
            await self._stream(reader, writer, reply)

    def _reply(self, line: str, headers: dict[str, str], raw: bytes) -> Reply:
        if not line.startswith("POST /v1/chat/completions "):
            return Refusal(404, f"no such call: {line}", kind="invalid_request_error")
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        fault = Fault("the body is no JSON") if body is None else fault_of(body)
        self.asked.append(Asked(raw, body if isinstance(body, dict) else {}, headers, fault))
        if self._key is not None and headers.get("authorization") != f"Bearer {self._key}":
            said = f"the key {headers.get('authorization', '')} is wrong"
            return Refusal(401, said, kind="invalid_request_error")
        if fault is not None:
            said = f"{fault.message} ({fault.param})" if fault.param else fault.message
            return Refusal(400, said, kind="invalid_request_error")
        if self._next >= len(self._script):
            said = f"request {self._next + 1} came to a script of {len(self._script)} replies"
            return Refusal(400, said, kind="invalid_request_error")
        reply = self._script[self._next]
        self._next += 1
        return reply(body) if callable(reply) else reply

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Chunks) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        for piece in [*reply.chunks, *(["[DONE]"] if reply.then == "done" else [])]:
            data = f"data: {piece if isinstance(piece, str) else json.dumps(piece)}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        if reply.then == "drop":
            writer.transport.abort()
        elif reply.then == "hang":
            self.streaming.set()
            await reader.read()  # until the client closes
            self.gone.set()
        else:
            writer.write(b"0\r\n\r\n")
            await writer.drain()


async def _refuse(writer: asyncio.StreamWriter, reply: Refusal) -> None:
    error = {"message": reply.message, "type": reply.kind, "param": None, "code": None}
    body = json.dumps({"error": error}).encode()
    lines = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in (lines | dict(reply.headers)).items())
    writer.write(f"HTTP/1.1 {reply.status} Refused\r\n{head}\r\n".encode() + body)
    await writer.drain()
