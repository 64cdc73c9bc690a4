"""What is read, each by statements that commit by themselves: what they see is on record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from counterfoil.adapters.stores.postgres.database import Db
from counterfoil.adapters.stores.postgres.known import named, row_of
from counterfoil.adapters.stores.postgres.pool import fetch, fetch_one
from counterfoil.adapters.stores.shared.sql_values import PAGE_BYTES, PAGE_ROWS, approvals_of, interaction_row, range_of
from counterfoil.core.approval import Approval
from counterfoil.core.codec import decode
from counterfoil.core.entries import Entry, Fields
from counterfoil.core.errors import NotFound
from counterfoil.core.jsontext import loads
from counterfoil.core.report import ReportGroup, ToolErrorReport, report_from_json
from counterfoil.store import Head, InteractionRow, KeptRange, ReportFilter, RunRow, StoredRow

_WHOLE = 1 << 32
"""More characters than a text kept apart has."""


async def run_row(db: Db, tenant: str, run_id: str) -> RunRow:
    """See `Store.run`."""
    found = await fetch_one(db, "run", named(tenant, run_id))
    if found is None:
        raise NotFound(f"no run {run_id}")
    return row_of(found)


async def _number(db: Db, tenant: str, run_id: str) -> int:
    found = await fetch_one(db, "run_number", named(tenant, run_id))
    if found is None:
        raise NotFound(f"no run {run_id}")
    return cast("int", found[0])


async def runs(db: Db, tenant: str, before: str | None, *where: str | int | None) -> list[RunRow]:
    """See `Store.runs`; ``where``: status, agent, interaction, roots and limit."""
    number = None if before is None else await _number(db, tenant, before)
    return [row_of(values) for values in await fetch(db, "runs", tenant, number, *where)]


async def interactions(db: Db, tenant: str, before: str | None, limit: int) -> list[InteractionRow]:
    """See `Store.interactions`."""
    number = None
    if before is not None:
        found = await fetch_one(db, "interaction_number", named(tenant, before))
        if found is None:
            raise NotFound(f"no interaction {before}")
        number = cast("int", found[0])
    return [interaction_row(tenant, line) for line in await fetch(db, "interactions", tenant, number, limit)]


async def interaction(db: Db, tenant: str, interaction_id: str) -> InteractionRow:
    """See `Store.interaction`."""
    found = await fetch_one(db, "interaction_row", named(tenant, interaction_id))
    if found is None:
        raise NotFound(f"no interaction {interaction_id}")
    return interaction_row(tenant, found)


async def entries(db: Db, tenant: str, interaction_id: str, after: int) -> list[Entry]:
    """See `Store.entries`."""
    found = await fetch(db, "entries", named(tenant, interaction_id), max(after, 0))
    if not found:
        raise NotFound(f"no interaction {interaction_id}")
    # An interaction without any gives one line of nulls.
    return [decode(body, content, number) for number, body, content in found if number is not None]


async def approvals(db: Db, tenant: str, run_id: str | None) -> list[Approval]:
    """See `Store.approvals`."""
    if run_id is None:
        found = await fetch(db, "approvals", tenant)
    else:
        found = await fetch(db, "approvals_of_run", await _number(db, tenant, run_id))
    return approvals_of(found)


async def reports(db: Db, tenant: str, where: ReportFilter) -> list[ToolErrorReport]:
    """See `Store.reports`."""
    return [report_from_json(cast("Fields", loads(data))) for (data,) in await _reports(db, "reports", tenant, where)]


async def report_groups(db: Db, tenant: str, where: ReportFilter) -> list[ReportGroup]:
    """See `Store.report_groups`."""
    return [
        ReportGroup(tool, None if code is None else int(code), *rest)
        for tool, code, *rest in await _reports(db, "report_groups", tenant, where)
    ]


async def _reports(db: Db, statement: str, tenant: str, where: ReportFilter) -> Sequence[Any]:
    run = None
    if where.run_id is not None:
        try:
            run = await _number(db, tenant, where.run_id)
        except NotFound:
            return []
    code = None if where.code is None else str(where.code)
    within = where.since, where.until
    return await fetch(db, statement, tenant, run, where.tool_name, code, *within, max(where.limit, 0), where.main)


async def kept(db: Db, tenant: str, kept_id: str, offset: int, limit: int | None) -> KeptRange:
    """See `Store.kept`."""
    found = await fetch_one(db, "kept_head", named(tenant, kept_id))
    if found is None:
        raise NotFound(f"no text is kept under {kept_id}")
    number, total, size, erased_at = found
    offset = max(offset, 0)
    end = total if limit is None else min(total, offset + max(limit, 0))
    pieces = await fetch(db, "pieces", number, offset, end) if offset < end else ()
    return KeptRange(range_of(pieces, offset, end), offset, total, size, erased_at)


async def rows(db: Db, after: int) -> list[tuple[int, StoredRow]]:
    """A page of `Store.rows`, each with its place; empty at the end."""
    page: list[tuple[int, StoredRow]] = []
    for (
        place,
        tenant,
        interaction_id,
        run_id,
        kind,
        sequence,
        following,
        body,
        content,
        erased_at,
        digest,
    ) in await fetch(db, "rows", after, PAGE_ROWS, PAGE_BYTES):
        stored = StoredRow(
            tenant, interaction_id, place & 0xFFFFFFFF, run_id, kind, sequence,
            following - sequence if sequence else 0, body, content, erased_at, digest,
        )  # fmt: skip  # in the order of the fields
        page.append((place, stored))
    return page


async def kept_text(db: Db, after: int) -> tuple[int, tuple[str, str, bytes | None, int, str]] | None:
    """The next text of `Store.kept_texts`, with its number; None at the end."""
    found = await fetch_one(db, "kept_texts", after)
    if found is None:
        return None
    number, tenant, kept_id, size, digest, erased_at = found
    data = None
    if erased_at is None:
        data = b"".join(piece for _, piece in await fetch(db, "pieces", number, 0, _WHOLE))
    return number, (tenant, kept_id, data, size, digest)


async def heads(db: Db) -> list[Head]:
    """See `Store.heads`: as the interactions' own rows say, so a last entry that somebody took away is missed."""
    return [Head(*values) for values in await fetch(db, "heads")]


async def version(db: Db) -> object:
    """See `Store.version`: which transactions are over. A number counted up inside them would be seen too early."""
    found = await fetch_one(db, "version")
    return None if found is None else found[0]
