"""Where a command writes: standard output for what it is asked for, standard error for all else."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, cast

from rich.console import Console
from rich.text import Text

from counterfoil.core.jsontext import normal
from counterfoil.doors.cli.plain import ascii_only, block, escaped

__all__ = ["Out"]


class _Steady(io.TextIOBase):
    """A stream whose reader may go away: what is written afterwards is dropped.

    So the command goes on to its end, and neither a run nor an exit code depends on who reads along.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.broken = False

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base has an attribute
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not self.broken:
            try:
                self._stream.write(text)
            except BrokenPipeError:
                self._drop()
            except UnicodeEncodeError:
                self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        if not self.broken:
            try:
                self._stream.flush()
            except BrokenPipeError:
                self._drop()

    def _drop(self) -> None:
        self.broken = True
        with suppress(OSError, ValueError):
            # The interpreter flushes at its end what is still buffered, and would complain of the pipe then.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class Out:
    """The two streams of a command.

    Args:
        as_json: standard output takes JSON alone.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.json = as_json
        self._stdout = _Steady(sys.stdout)
        self._stderr = _Steady(sys.stderr)
        self.console = _console(self._stdout)
        """For people, on standard output."""
        self.notes = _console(self._stderr)
        """For people, on standard error: it never mixes with data."""

    @property
    def broken(self) -> bool:
        """Nobody reads standard output any more."""
        return self._stdout.broken

    @property
    def terminal(self) -> bool:
        """Standard output is a terminal."""
        return self._stdout.isatty()

    def say(self, text: str, style: str = "") -> None:
        """A line for people about what was done: on standard output, or beside the JSON on standard error."""
        console = self.notes if self.json else self.console
        console.print(Text(block(text), style=style), soft_wrap=True)

    def note(self, text: str, style: str = "") -> None:
        """A line for people on standard error."""
        self.notes.print(Text(block(text), style=style), soft_wrap=True)

    def raw(self, text: str) -> None:
        """Text on standard output, verbatim."""
        self._stdout.write(text)
        self._stdout.flush()

    def data(self, value: object) -> None:
        """One JSON value on standard output."""
        self.raw(self._written(value) + "\n")

    @contextmanager
    def array(self) -> Iterator[Callable[[object], None]]:
        """One JSON array whose items come one after another; it is closed whatever happens."""
        before = "["

        def add(value: object) -> None:
            nonlocal before
            self.raw(f"{before}\n{self._written(value)}")
            before = ","

        try:
            yield add
        finally:
            self.raw("[]\n" if before == "[" else "\n]\n")

    def _written(self, value: object) -> str:
        text = escaped(json.dumps(normal(value), ensure_ascii=False, indent=2))
        return text if self._stdout.encoding.lower().replace("-", "").startswith("utf") else ascii_only(text)


def _console(stream: _Steady) -> Console:
    # No markup, highlighting or emoji codes: nothing that is printed is a language.
    return Console(file=cast("IO[str]", stream), markup=False, highlight=False, emoji=False)
