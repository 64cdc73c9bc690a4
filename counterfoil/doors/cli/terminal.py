"""Asking a person on the terminal without stopping the event loop."""

import asyncio
import os
import sys
from collections.abc import Callable

from counterfoil.doors.cli.output import Out
from counterfoil.doors.cli.plain import block

__all__ = ["Terminal"]


class Terminal:
    """Standard input, line by line. Questions go to standard error, so that standard output stays data.

    Args:
        out: where questions are written.
    """

    def __init__(self, out: Out) -> None:
        self._out = out
        self._read = b""
        self._ended = False

    @property
    def attended(self) -> bool:
        """A person can be asked: standard input and standard error are terminals."""
        return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()

    async def line(self, question: str = "") -> str | None:
        """The next line without its end; None when there is none any more (Ctrl-D)."""
        if question:
            self._out.notes.file.write(block(question))
            self._out.notes.file.flush()
        while b"\n" not in self._read and not self._ended:
            piece = await _bytes_of(_input())
            self._read += piece
            self._ended = not piece
        first, separator, self._read = self._read.partition(b"\n")
        if not separator and not first:
            return None
        return first.decode("utf-8", "replace").rstrip("\r")


def _input() -> int | None:
    """The descriptor of standard input; None where it is only an object, as under a test."""
    try:
        return sys.stdin.fileno()
    except (OSError, ValueError, AttributeError):
        return None


async def _bytes_of(descriptor: int | None) -> bytes:
    """What standard input has next; empty at its end."""
    if descriptor is None:
        return b"" if sys.stdin is None else sys.stdin.readline().encode()
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    if not _watched(loop, descriptor, wake):
        # A file is always ready, and where descriptors cannot be watched a thread has to wait.
        return await asyncio.to_thread(os.read, descriptor, 65536)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, 65536)


def _watched(loop: asyncio.AbstractEventLoop, descriptor: int, wake: Callable[[], None]) -> bool:
    try:
        loop.add_reader(descriptor, wake)
    except (NotImplementedError, OSError):
        return False
    return True
