"""What a process that goes on for ever logs: lines for people, or JSON for programs, without content."""

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from counterfoil.core.errors import StoreError

__all__ = ["Form", "JsonLines", "logging_as"]

FIELDS: Final = {
    "run": "runId", "call": "callId", "request": "requestId", "agent": "agent", "tool": "tool", "outcome": "outcome",
    "code": "code", "status": "status", "decision": "decision", "took": "tookMs", "by": "endedBy",
}  # fmt: skip  # a table
"""Words of our messages before a value, and the field in which the value stands too."""
_VALUE = re.compile(r"(?:\b(\w+) )?(%%|%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z])")


class Form(StrEnum):
    """How a log is written."""

    TEXT = "text"
    JSON = "json"


class JsonLines(logging.Formatter):
    """A line of JSON for each record.

    Of an exception it has the class and where it was raised, and the message where that is the store's or the system's:
    any other may repeat what a person, a model or a tool wrote. The same goes for values in messages.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        message, fields = _told(record)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
            **fields,
        }
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            line["error"] = {
                "type": f"{type(error).__module__}.{type(error).__qualname__}",
                "message": str(error) if isinstance(error, (StoreError, OSError)) else None,
                "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
            }
        return json.dumps(line, ensure_ascii=False, default=str)


def _told(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """The message, and those of its values that have a field."""
    ours = record.name.startswith("counterfoil")
    values = list(record.args) if isinstance(record.args, tuple) else []
    if not ours or not values:
        return record.getMessage(), {}
    fields: dict[str, Any] = {}

    def put(found: re.Match[str]) -> str:
        word, form = found[1], found[2]
        before = "" if word is None else f"{word} "
        if form == "%%":
            return f"{before}%"
        value = values.pop(0)
        if word in FIELDS:
            fields[FIELDS[word]] = value
        elif not isinstance(value, (int, float)) and record.name != "counterfoil.http":  # a path holds ids alone
            return f"{before}…"
        return before + form % (value,)

    return _VALUE.sub(put, str(record.msg)), fields


@contextmanager
def logging_as(form: Form | None) -> Iterator[None]:
    """What the library logs from INFO on: as lines on standard error, or as JSON on standard output.

    Args:
        form: None leaves what there is: warnings, and what a command itself adds.
    """
    if form is None:
        yield
        return
    handler = logging.StreamHandler(sys.stdout if form is Form.JSON else sys.stderr)
    handler.setFormatter(
        JsonLines() if form is Form.JSON else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    loggers = [logging.getLogger(name) for name in ("counterfoil", "uvicorn.error")]
    before = [(log, log.handlers[:], log.level, log.propagate) for log in loggers]
    for log in loggers:
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for log, handlers, level, propagate in before:
            log.handlers, log.propagate = handlers, propagate
            log.setLevel(level)
