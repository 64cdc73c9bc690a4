"""Built-in tools. `read_result` reads on in a result that was kept apart (contract 6)."""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import Field
from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from counterfoil.core import words
from counterfoil.core.limits import READ_RESULT_CHARS
from counterfoil.core.record import CallState, Record, RunState
from counterfoil.core.result import ToolResult
from counterfoil.core.threads import may_read
from counterfoil.store import Store
from counterfoil.tool import Tool, _of_function

SCAN_CHARS = 256 * 1024
"""Characters that a search reads at once."""
LINE_CHARS = 4_000
"""A longer line is searched in parts of so many characters, each beginning in the middle of the one before."""
HALF = LINE_CHARS // 2


def read_result_tool(record: Record, store: Store, tenant: str, run_id: str) -> Tool:
    """The tool for one run: it reads what the run may see of its interaction."""

    async def read_result(
        call_id: str,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=1)] = READ_RESULT_CHARS,
        pattern: str | None = None,
    ) -> ToolResult:
        call = _find(record, call_id, record.runs[run_id])
        if call is None or call.result is None:
            return ToolResult.error(words.read_result_unknown(call_id))
        kept_id = call.result.kept_id
        text = call.result.result.model_output if kept_id is None else ""
        if pattern is not None:
            return await _search(pattern, text, kept_id, store, tenant, offset)
        size = min(limit, READ_RESULT_CHARS)
        if kept_id is None:
            return ToolResult.text(words.read_result_slice(text[offset : offset + size], offset, len(text)))
        part = await store.kept(tenant, kept_id, offset, size)
        return ToolResult.text(words.read_result_slice(part.text, part.offset, part.total))

    return _of_function(
        read_result, None, words.READ_RESULT_DESCRIPTION, {"read_only": True, "advisory": True}, builtin=True
    )


def _find(record: Record, call_id: str, reader: RunState) -> CallState | None:
    for run in reversed(record.runs.values()):
        call = run.call_ids.get(call_id)
        if call is not None and call.result is not None and may_read(reader, call.result):
            return call
    return None


@functools.lru_cache(maxsize=64)
def _matcher(pattern: str) -> SchemaValidator:
    # Pydantic's default engine is linear in text and pattern, as RE2 is, and takes RE2's syntax.
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


async def _search(pattern: str, text: str, kept_id: str | None, store: Store, tenant: str, offset: int) -> ToolResult:
    try:
        search = _Search(_matcher(pattern), offset)
    except (SchemaError, ValueError) as e:
        return ToolResult.error(words.bad_pattern(pattern[:200], str(e).splitlines()[-1][:200]))
    more, last = False, False
    while not more and not last:
        if kept_id is None:
            piece, last = text[offset:], True
        else:
            part = await store.kept(tenant, kept_id, offset, SCAN_CHARS)
            piece, offset = part.text, offset + len(part.text)
            last = not piece or offset >= part.total
        more = search.read(piece, last=last)
    return ToolResult.text(words.read_result_lines(search.found, more=more))


class _Search:
    """Lines that match, as the text comes in piece by piece; of a long line, the parts that match."""

    def __init__(self, matcher: SchemaValidator, offset: int) -> None:
        self.found: list[tuple[int, str]] = []
        self._matcher = matcher
        self._position = offset
        """Of `_rest`, in characters."""
        self._rest = ""
        """The beginning of a line whose end has not come yet, or the last half part of a long one."""
        self._matched = False
        """The part before `_rest` matched."""
        self._used = 0

    def read(self, piece: str, *, last: bool) -> bool:
        """Search the next piece; True when there are more matches than fit."""
        lines = (self._rest + piece).split("\n")
        self._rest = "" if last else lines.pop()
        for line in lines:
            if self._line(line, self._position):
                return True
            self._position += len(line) + 1
            self._matched = False
        if len(self._rest) > LINE_CHARS:
            # Only as much of a line without end is kept as may belong to a match that goes on.
            done = (len(self._rest) // HALF - 1) * HALF
            if self._line(self._rest[: done + HALF], self._position):
                return True
            self._position, self._rest = self._position + done, self._rest[done:]
        return False

    def _line(self, line: str, at: int) -> bool:
        for start in range(0, max(len(line) - HALF, 1), HALF):
            part = line[start : start + LINE_CHARS]
            before, self._matched = self._matched, self._matches(part)
            if not self._matched or (before and self._matches(part[:HALF])):
                continue  # nothing, or what the part before has shown already
            self._used += len(part) + 12
            if self._used > READ_RESULT_CHARS and self.found:
                return True
            self.found.append((at + start, part))
        return False

    def _matches(self, text: str) -> bool:
        try:
            self._matcher.validate_python(text)
        except ValidationError:
            return False
        return True
