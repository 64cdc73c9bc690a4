"""Built-in tools. `read_result` reads on in a result that was kept apart (contract 6)."""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import Field
from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from counterfoil.core import words
from counterfoil.core.limits import READ_RESULT_CHARS
from counterfoil.core.record import CallState, Record
from counterfoil.core.result import ToolResult
from counterfoil.store import Store
from counterfoil.tool import Tool, _of_function

SCAN_CHARS = 256 * 1024
"""Characters that a search reads at once."""


def read_result_tool(record: Record, store: Store, tenant: str, thread_id: str | None) -> Tool:
    """The tool for one run: it sees this interaction's results on the run's thread and on the main one."""

    async def read_result(
        call_id: str,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=1)] = READ_RESULT_CHARS,
        pattern: str | None = None,
    ) -> ToolResult:
        call = _find(record, call_id, thread_id)
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


def _find(record: Record, call_id: str, thread_id: str | None) -> CallState | None:
    for run in reversed(record.runs.values()):
        call = run.call_ids.get(call_id)
        if call is not None and call.turn.thread_id in (None, thread_id):
            return call
    return None


@functools.lru_cache(maxsize=64)
def _matcher(pattern: str) -> SchemaValidator:
    # Pydantic's default engine is linear in text and pattern, as RE2 is, and takes RE2's syntax.
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


async def _search(pattern: str, text: str, kept_id: str | None, store: Store, tenant: str, offset: int) -> ToolResult:
    try:
        matcher = _matcher(pattern)
    except (SchemaError, ValueError) as e:
        return ToolResult.error(words.bad_pattern(pattern[:200], str(e).splitlines()[-1][:200]))
    found: list[tuple[int, str]] = []
    used = 0
    position, rest = offset, ""
    while True:
        if kept_id is None:
            piece, last = text[position:], True
        else:
            part = await store.kept(tenant, kept_id, position + len(rest), SCAN_CHARS)
            piece, last = rest + part.text, position + len(rest) + len(part.text) >= part.total
        lines = piece.split("\n")
        rest = "" if last else lines.pop()
        for line in lines:
            if _matches(matcher, line):
                used += len(line) + 12
                if used > READ_RESULT_CHARS and found:
                    return ToolResult.text(words.read_result_lines(found, more=True))
                found.append((position, line[:READ_RESULT_CHARS]))
            position += len(line) + 1
        if last:
            return ToolResult.text(words.read_result_lines(found, more=False))


def _matches(matcher: SchemaValidator, line: str) -> bool:
    try:
        matcher.validate_python(line)
    except ValidationError:
        return False
    return True
