"""What the parts of the model suite share: requests made of entries, a fake at work, strings that break things."""

# ruff: noqa: S101  # tests, as those in tests/

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from counterfoil.core.call import Offer
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.content import Block, block_text
from counterfoil.core.entries import CallRecord, MessageEntry, TurnEntry
from counterfoil.core.errors import ModelError
from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import AuthorType
from counterfoil.model import Item, Model, ModelEvent, ModelRequest, ModelTurn
from counterfoil.testing.fake_server import Asked, FakeServer, Script, Told

MakeModel = Callable[..., Model]
"""A model of a base URL and a key; where it takes ``timeout`` too, the suite tests what becomes of silence."""

KEY: Final = "sk-canary-5d1c7a0e93b24f68"
"""The key; no text of ours may hold it or a part of it."""

PNG: Final = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
"""How an image of one pixel begins."""

WAV: Final = b"RIFF\x24\x00\x00\x00WAVEfmt "
"""How a sound begins."""

SOON: Final = 20.0
"""Seconds after which a test that hangs fails; nothing is measured against it."""

LOOK: Final = Offer(
    "look", "Look it up.", {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
)

HOSTILE: Final = (
    "", " ", "\n\t\r", "\u2003", "\x00", "\x00\x1f\x7f", "\ufeffmark", "\u202eright to left\u202c", "a\u0301\u0300",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e6\U0001f1fa", "\ufffd", "\uffff", "\u2028a\u2029b",
    "data: [DONE]\n\n", "event: error\ndata: {}\n\n", "</tool_call>", "<|im_end|>", '{"role":"system"}', '"', "\\",
    "'; DROP TABLE runs; --", "\\u0000", "%s%n{0}${HOME}", "null", "NaN", "\r\nX-Header: 1\r\n\r\n", "x" * 70_000,
)  # fmt: skip  # texts in rows
"""Texts that have broken programs of this kind: nothing, white space, controls, marks of other wires, a long one."""


def said(words: str, author: AuthorType = "Human", *blocks: Block) -> MessageEntry:
    """A message; with blocks its text is theirs."""
    text = "\n".join(map(block_text, blocks)) if blocks else words
    return MessageEntry(run_id="r", at=0, text=text, blocks=blocks, author_type=author)


def made(identity: str, provider: str | None = None, name: str = "look", raw: str = "{}") -> CallRecord:
    """A call of a turn: our id, the provider's, the tool, the arguments."""
    return CallRecord(identity, provider, name, raw)


def turn(
    *calls: CallRecord, words: str = "", step: int = 0, run: str = "r", stop: str = "", reasoning: JsonValue = None
) -> TurnEntry:
    """A turn of the model."""
    stop = stop or ("calls" if calls else "end")
    return TurnEntry(run_id=run, at=0, step=step, text=words, calls=calls, stop=stop, reasoning=reasoning)


def result(
    identity: str, given: ToolResult, *, index: int = 0, step: int = 0, run: str = "r", size: int = 4
) -> ResultEntry:
    """The result of a call."""
    return ResultEntry(
        run_id=run, at=0, step=step, index=index, call_id=identity, tool_name="look", result=given, size=size
    )


def request(
    *items: Item, tools: tuple[Offer, ...] = (LOOK,), instructions: str = "Be brief.", **more: Any
) -> ModelRequest:
    """A request with these items, or with a greeting."""
    held = list(items) or [said("Hello")]
    return ModelRequest(instructions, held, len(held), tools, **more)


def causes(error: BaseException | None) -> str:
    """All that an error and those behind it say."""
    out = []
    while error is not None:
        out += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return "\n".join(out)


def awaited(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The async test as one that pytest runs by itself; one that hangs fails."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(SOON):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


class At:
    """A fake at work, and a model that asks it."""

    def __init__(self, server: FakeServer, model: Model) -> None:
        self.server = server
        self.model = model

    async def events(self, asked: ModelRequest | None = None) -> list[ModelEvent]:
        """All events of one request; the server must have found no fault in it."""
        try:
            return [event async for event in self.model.respond(asked or request())]
        finally:
            assert self.server.faults == []

    async def turn(self, asked: ModelRequest | None = None) -> ModelTurn:
        """The finished turn of one request."""
        last = (await self.events(asked))[-1]
        assert isinstance(last, ModelTurn)
        return last

    async def refused(self, asked: ModelRequest | None = None) -> ModelError:
        """The error of one request."""
        with pytest.raises(ModelError) as caught:
            async for _ in self.model.respond(asked or request()):
                pass
        return caught.value

    def came(self, arguments: str) -> str:
        """Arguments as they come over this wire: the text itself, or the same JSON as we write it."""
        return dumps(loads(arguments)).decode() if self.server.objects else arguments

    @property
    def last(self) -> Asked:
        """The newest request."""
        return self.server.asked[-1]

    @property
    def told(self) -> list[Told]:
        """What a model would read in it."""
        return self.server.told(self.last.body)


class ModelBench:
    """The two fixtures that a suite's subclass gives, and what tests do with them."""

    @pytest.fixture
    def fake(self) -> type[FakeServer]:
        """The strict server of the wire."""
        raise NotImplementedError("give a fixture `fake`: the class of the wire's strict server")

    @pytest.fixture
    def make_model(self) -> MakeModel:
        """A function of base URL and key that gives a model of the wire."""
        raise NotImplementedError("give a fixture `make_model`: a function of base URL and key")

    @pytest.fixture
    def serve(self, fake: type[FakeServer], make_model: MakeModel) -> Serve:
        """A function that starts the fake with a script, and a model that asks it."""

        @asynccontextmanager
        async def start(*script: Script, key: str = KEY, **settings: Any) -> AsyncIterator[At]:
            async with fake(script, key=KEY) as server:
                model = make_model(server.base_url, key, **settings)
                try:
                    yield At(server, model)
                finally:
                    close = getattr(model, "aclose", None)
                    if close is not None:
                        await close()

        return start


Serve = Callable[..., Any]
"""What the fixture `serve` gives: ``async with serve(reply, …) as at``."""
