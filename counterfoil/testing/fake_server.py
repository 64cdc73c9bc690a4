"""What the fake servers of providers share: real HTTP on loopback, a script of replies, and no patience.

A fake answers requests with the replies of its script, in order. A request that breaks a rule of its wire gets the
provider's own error body and uses up no reply. A fake of a further wire is a subclass of `FakeServer` with a handful
of methods: where it listens, what its replies look like, which rules hold, and how a request is read back.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

from counterfoil.core.turn import Usage

Then: TypeAlias = Literal["done", "end", "drop", "hang", "tick"]
"""What follows a stream: its proper end, the end of the body without that, a connection that is torn down, nothing
until the client goes away, or until then signs of life that are no events."""
TICK: Final = 0.02
"""Seconds between two signs of life."""


@dataclass(frozen=True, slots=True)
class Play:
    """A reply on any wire: what the model says, in the words of our port."""

    text: str = ""
    calls: Sequence[tuple[str | None, str, str]] = ()
    """Each (id, name, arguments)."""
    stop: str = ""
    """As a turn's stop; empty: ``calls`` where there are calls, else ``end``. For ``refusal`` the text is the
    refusal."""
    usage: Usage = Usage(10, 5)  # noqa: RUF009  # it is frozen
    pieces: int = 2
    """Pieces in which text and arguments are streamed."""
    then: Then = "done"
    """``drop``, ``hang`` and ``tick`` come before the end of the turn."""
    reasoning: str = ""
    """What the model thinks first, on wires that show it; there it comes with an opaque item that holds it too."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """A stream as it stands on the wire."""

    chunks: Sequence[Mapping[str, Any] | str]
    """Each an event's data as JSON, or its text as it is."""
    then: Then = "done"


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer in one piece, for requests that ask for no stream."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer with another status than 200."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "server_error"
    """The error's ``type`` in the body."""
    code: str | None = None
    """The error's ``code`` in the body."""


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer at all until the client goes away."""


Reply: TypeAlias = "Play | Chunks | Whole | Refusal | Silence"
Script: TypeAlias = "Reply | Callable[[dict[str, Any]], Reply]"
"""A reply, or a function of the request's body that gives one."""


def rate_limit(seconds: float = 1) -> Refusal:
    """HTTP 429 with Retry-After."""
    return Refusal(429, "too many requests", {"Retry-After": f"{seconds:g}"}, "rate_limit_error")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a request, and where."""

    message: str
    param: str | None = None
    code: str | None = None
    """The error's ``code`` in the body."""


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that a model would read in a request, whatever the wire."""

    kind: Literal["system", "user", "assistant", "call", "result", "opaque"]
    text: str
    """Of a call its arguments; of an opaque item its JSON."""
    id: str = ""
    """Of a call and its result."""
    name: str = ""
    """Of a call."""
    media: tuple[str, ...] = ()
    """Media types of what a result shows as it is."""
    failed: bool | None = None
    """Of a result: whether the wire says that the call failed; None where it has no place for that."""


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
    target: str = ""
    """The path with its query."""


class FakeServer(ABC):
    """The server, as an async context manager; it listens on a free port of 127.0.0.1.

    Args:
        script: a reply for each request, in order. When it is used up, requests get HTTP 400.
        key: the key that requests must have; None: none is looked at.
    """

    path: ClassVar[str]
    """Of the one call that it knows, such as ``/v1/responses``."""
    base: ClassVar[str] = "/v1"
    """What a client is given as the path of its base URL."""
    ending: ClassVar[str | None] = None
    """The data of the event that ends a stream properly, beside those of the turn itself."""
    alive: ClassVar[str] = ": alive\n\n"
    """A sign of life that is no event."""
    objects: ClassVar[bool] = False
    """The arguments of calls are JSON objects on the wire and not text, so that broken ones cannot come."""

    def __init__(self, script: Iterable[Script] = (), *, key: str | None = None) -> None:
        self._script = list(script)
        self._next = 0
        self._key = key
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()
        self.asked: list[Asked] = []
        """Every request, refused ones included."""
        self.streaming = asyncio.Event()
        """Set when all was sent of a reply that waits for the client to go away."""
        self.gone = asyncio.Event()
        """Set when the client of such a reply closed its connection."""

    # what a wire says of itself

    @abstractmethod
    def stream_of(self, play: Play) -> Iterator[Mapping[str, Any]]:
        """The events of a reply; those of the end are left out where ``play.then`` is ``drop`` or ``hang``."""

    def whole_of(self, play: Play) -> Mapping[str, Any] | None:  # noqa: ARG002  # for wires that have it
        """The reply in one piece; None where this fake only streams."""
        return None

    @abstractmethod
    def fault_of(self, body: Any) -> Fault | None:
        """The first rule of the wire that a request's body breaks; None when it breaks none."""

    @abstractmethod
    def told(self, body: dict[str, Any]) -> list[Told]:
        """What a model would read in a request, in its order."""

    @abstractmethod
    def tools(self, body: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The schemas that a request offers, by the tool's name."""

    @abstractmethod
    def choice(self, body: dict[str, Any]) -> str:
        """Which choice of tools a request leaves: ``auto``, ``required`` or ``none``."""

    def form(self, body: dict[str, Any]) -> tuple[dict[str, Any], bool] | None:  # noqa: ARG002  # for wires that have one
        """The schema that an answer is asked to have, and whether all of it is required, as in a strict dialect."""
        return None

    def serves(self, target: str) -> bool:
        """Whether there is such a call."""
        return target == self.path

    def streams(self, asked: Asked) -> bool:
        """Whether a request asks for the answer as it comes."""
        return bool(asked.body.get("stream"))

    def key_of(self, headers: Mapping[str, str]) -> str:
        """The key that a request has; empty for none."""
        return headers.get("authorization", "").removeprefix("Bearer ")

    def error_body(self, refusal: Refusal, param: str | None) -> Mapping[str, Any]:
        """The body of a refusal."""
        error = {"message": refusal.message, "type": refusal.kind, "param": param, "code": refusal.code}
        return {"error": error}

    # the server

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT`` and the path of `base`.

        Raises:
            RuntimeError: it is not running.
        """
        if self._server is None:
            raise RuntimeError("the fake server is not running: enter it with `async with`")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self.base}"

    @property
    def faults(self) -> list[Fault]:
        """The rules that requests broke; a good client leaves this empty."""
        return [asked.fault for asked in self.asked if asked.fault is not None]

    def add(self, *script: Script) -> None:
        """Put more replies at the end of the script."""
        self._script += script

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
            self.gone.set()  # the client went away
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (name.partition(":") for name in rest if name)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        reply, fault = self._reply(line, headers, raw)
        match reply:
            case Refusal():
                body = self.error_body(reply, fault.param if fault else None)
                await _send(writer, f"{reply.status} Refused", body, reply.headers)
            case Silence():
                await self._wait_for_end(reader)
            case Whole():
                await _send(writer, "200 OK", reply.body, {})
            case Play():
                await self._play(reader, writer, reply, self.asked[-1])
            case Chunks():
                await self._stream(reader, writer, reply.chunks, reply.then)

    def _reply(self, line: str, headers: dict[str, str], raw: bytes) -> tuple[Reply, Fault | None]:
        def wrong(said: str, status: int = 400, fault: Fault | None = None) -> tuple[Reply, Fault | None]:
            return Refusal(status, said, kind="invalid_request_error", code=fault.code if fault else None), fault

        method, _, target = line.removesuffix(" HTTP/1.1").partition(" ")
        if method != "POST" or not self.serves(target):
            return wrong(f"no such call: {line}", 404)
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        fault = Fault("the body is no JSON") if body is None else self.fault_of(body)
        self.asked.append(Asked(raw, body if isinstance(body, dict) else {}, headers, fault, target))
        if self._key is not None and self.key_of(headers) != self._key:
            return wrong(f"the key {self.key_of(headers)} is wrong", 401)
        if fault is not None:
            return wrong(f"{fault.message} ({fault.param})" if fault.param else fault.message, fault=fault)
        if self._next >= len(self._script):
            return wrong(f"request {self._next + 1} came to a script of {len(self._script)} replies")
        reply = self._script[self._next]
        self._next += 1
        return (reply(body) if callable(reply) else reply), None

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, play: Play, asked: Asked) -> None:
        whole = None if self.streams(asked) else self.whole_of(play)
        if whole is not None and play.then in ("done", "end"):
            await _send(writer, "200 OK", whole, {})
        else:
            await self._stream(reader, writer, self.stream_of(play), play.then)

    async def _stream(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        chunks: Iterable[Mapping[str, Any] | str],
        then: Then,
    ) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        for piece in chunks:
            await _event(writer, piece)
        if then == "drop":
            writer.transport.abort()
        elif then == "hang":
            await self._wait_for_end(reader)
        elif then == "tick":
            ticks = asyncio.create_task(_tick(writer, self.alive.encode()))
            await self._wait_for_end(reader)
            ticks.cancel()
        else:
            if then == "done" and self.ending is not None:
                await _event(writer, self.ending)
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    async def _wait_for_end(self, reader: asyncio.StreamReader) -> None:
        self.streaming.set()
        with contextlib.suppress(ConnectionError):  # it had not read all
            await reader.read()  # until the client closes
        self.gone.set()


async def _tick(writer: asyncio.StreamWriter, data: bytes) -> None:
    while True:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()
        await asyncio.sleep(TICK)


async def _event(writer: asyncio.StreamWriter, piece: Mapping[str, Any] | str) -> None:
    """One event; its name stands before the data, where the data has a type."""
    named = "" if isinstance(piece, str) or "type" not in piece else f"event: {piece['type']}\n"
    data = f"{named}data: {piece if isinstance(piece, str) else json.dumps(piece)}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


async def _send(writer: asyncio.StreamWriter, status: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    data = json.dumps(body).encode()
    lines = {"Content-Type": "application/json", "Content-Length": str(len(data)), "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in (lines | dict(headers)).items())
    writer.write(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + data)
    await writer.drain()


STARTS: Final = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
    "application/pdf": b"%PDF-",
}
"""First bytes of images and documents, by their types."""


def decoded(data: str) -> bytes:
    """The bytes of a medium in base64; none where it is not that."""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        return b""


def cut(text: str, pieces: int) -> list[str]:
    """``text`` in at most ``pieces`` pieces of about one length; never an empty one."""
    size = max(1, -(-len(text) // max(pieces, 1)))
    return [text[i : i + size] for i in range(0, len(text), size)]


def surrogate_fault(body: Any) -> Fault | None:
    """The fault of a body that no UTF-8 can carry."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Fault("the body holds half of a surrogate pair")
    return None
