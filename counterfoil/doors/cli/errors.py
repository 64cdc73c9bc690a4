"""Exit codes, and what a person reads of an error: one sentence; the traceback only when it is asked for."""

import asyncio
import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from enum import IntEnum

from counterfoil.core.errors import (
    Conflict,
    CounterfoilError,
    DefinitionError,
    InvalidInput,
    NotFound,
    NotPending,
    UsageError,
)
from counterfoil.doors.cli.plain import block

__all__ = ["EXIT_TEXT", "Code", "Stop", "code_of_status", "guarded"]


class Code(IntEnum):
    """What the process ends with."""

    DONE = 0
    FAILED = 1
    """The run failed, `verify` found something, or the store or the machine would not do."""
    USAGE = 2
    PAUSED = 3
    LIMITED = 4
    """Limited or cancelled."""
    NOT_FOUND = 5
    CONFLICT = 6
    INTERRUPTED = 130
    """Ctrl-C, as shells have it: 128 and the signal's number."""


EXIT_TEXT = """Exit codes:
  0  done
  1  the run failed, verify, replay or policy test found something, or the store
     cannot be used
  2  wrong use
  3  paused: a call waits for a person
  4  limited or cancelled
  5  not found
  6  conflict: decided differently before, or no decision is awaited
"""

_STATUS = {
    "completed": Code.DONE,
    "failed": Code.FAILED,
    "paused": Code.PAUSED,
    "limited": Code.LIMITED,
    "cancelled": Code.LIMITED,
    "running": Code.DONE,
}


def code_of_status(status: str) -> Code:
    """The exit code that says how a run stands."""
    return _STATUS[status]


class _OneLine(logging.Formatter):
    """A message with the last line of its exception, made fit for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        told = f"{record.getMessage()}: {type(error).__name__}: {error}" if error else record.getMessage()
        return f"counterfoil: {block(told)}"


@contextlib.contextmanager
def logged(*, debug: bool) -> Iterator[None]:
    """What the library logs goes to standard error, without tracebacks unless they are asked for."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("counterfoil: %(message)s") if debug else _OneLine())
    log = logging.getLogger("counterfoil")
    before, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before


class Stop(Exception):
    """Ends the command with a sentence on standard error and a code.

    Args:
        message: what was expected, what came, what to do.
        code: the exit code.
    """

    def __init__(self, message: str, code: Code = Code.USAGE) -> None:
        super().__init__(message)
        self.code = code


def guarded(work: Callable[[], int | None], *, debug: bool) -> int:
    """Do the work of a command; whatever goes wrong becomes one sentence and an exit code.

    Args:
        work: gives an exit code; None is 0.
        debug: print the traceback too.
    """
    try:
        with logged(debug=debug):
            return int(work() or Code.DONE)
    except (KeyboardInterrupt, asyncio.CancelledError):
        _tell("interrupted")
        return Code.INTERRUPTED
    except (Stop, CounterfoilError) as error:
        _trace(debug=debug)
        _tell(str(error))
        return _code(error)
    except OSError as error:
        _trace(debug=debug)
        _tell(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return Code.FAILED
    except Exception as error:  # noqa: BLE001  # the last line of defence: a traceback helps nobody who only typed
        _trace(debug=debug)
        _tell(f"unexpected {type(error).__name__}: {error}; --debug shows where")
        return Code.FAILED


def _code(error: Exception) -> int:
    match error:
        case Stop():
            return error.code
        case NotFound():
            return Code.NOT_FOUND
        case Conflict() | NotPending():
            return Code.CONFLICT
        case DefinitionError() | UsageError() | InvalidInput():
            return Code.USAGE
        case _:
            return Code.FAILED


def _trace(*, debug: bool) -> None:
    if debug:
        traceback.print_exc(file=sys.stderr)


def _tell(message: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody reads; the exit code still says it
        print(f"counterfoil: {block(message)}", file=sys.stderr, flush=True)
