"""What the reader's connection does.

Rows are fetched whole before anything is made of them: an error that is kept with its frames would keep a cursor in
mid-way too, and with it the connection at what the file held then.
"""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Any, cast

from counterfoil.adapters.stores.shared.sql_values import PAGE_BYTES, PAGE_ROWS, approvals_of, interaction_row, range_of
from counterfoil.adapters.stores.sqlite.database import BUSY_SECONDS, SQL
from counterfoil.core.approval import Approval
from counterfoil.core.codec import decode
from counterfoil.core.entries import Entry, Fields
from counterfoil.core.errors import NotFound
from counterfoil.core.jsontext import loads
from counterfoil.core.report import ReportGroup, ToolErrorReport, report_from_json
from counterfoil.owners import owner_of
from counterfoil.store import Head, InteractionRow, KeptRange, ReportFilter, RunRow, StoredRow


def row_of(values: Sequence[Any]) -> RunRow:
    """A run's row as the statements give it."""
    owner = None if values[7] is None else owner_of(values[7])
    return RunRow(*values[:7], owner, bool(values[8]), *values[9:])  # type: ignore[call-arg]  # in its order


def run_row(db: Connection, tenant: str, run_id: str) -> RunRow:
    """See `Store.run`."""
    found = db.execute(SQL["run"], (tenant, run_id)).fetchone()
    if found is None:
        raise NotFound(f"no run {run_id}")
    return row_of(found)


def _number(db: Connection, tenant: str, run_id: str) -> int:
    found = db.execute(SQL["run_number"], (tenant, run_id)).fetchone()
    if found is None:
        raise NotFound(f"no run {run_id}")
    return cast("int", found[0])


def runs(db: Connection, tenant: str, before: str | None, *where: str | int | None) -> list[RunRow]:
    """See `Store.runs`; ``where``: status, agent, interaction, roots and limit."""
    given = tenant, None if before is None else _number(db, tenant, before), *where
    values = dict(zip(("tenant", "before", "status", "agent", "interaction", "roots", "limit"), given, strict=True))
    return [row_of(line) for line in db.execute(SQL["runs"], values).fetchall()]


def interaction(db: Connection, tenant: str, interaction_id: str) -> InteractionRow:
    """See `Store.interaction`."""
    return interactions(db, tenant, None, 1, interaction_id)[0]


def interactions(
    db: Connection, tenant: str, before: str | None, limit: int, interaction_id: str | None = None
) -> list[InteractionRow]:
    """See `Store.interactions`; with an id, that one alone. Raises NotFound."""
    values: dict[str, object] = {"tenant": tenant, "id": interaction_id, "before": None, "limit": limit}
    if before is not None:
        values["before"] = _interaction(db, tenant, before)
    found = db.execute(SQL["interactions"], values).fetchall()
    if interaction_id is not None and not found:
        raise NotFound(f"no interaction {interaction_id}")
    return [interaction_row(tenant, line) for line in found]


def _interaction(db: Connection, tenant: str, interaction_id: str) -> int:
    found = db.execute(SQL["interaction"], (tenant, interaction_id)).fetchone()
    if found is None:
        raise NotFound(f"no interaction {interaction_id}")
    return cast("int", found[0])


def entries(db: Connection, tenant: str, interaction_id: str, after: int) -> list[Entry]:
    """See `Store.entries`."""
    n = _interaction(db, tenant, interaction_id)
    stored = db.execute(SQL["entries"], (n, max(after, 0), n)).fetchall()
    return [decode(body, content, number) for number, body, content in stored]


def approvals(db: Connection, tenant: str, run_id: str | None) -> list[Approval]:
    """See `Store.approvals`."""
    if run_id is None:
        found = db.execute(SQL["approvals"], (tenant,)).fetchall()
    else:
        found = db.execute(SQL["approvals_of_run"], (_number(db, tenant, run_id),)).fetchall()
    return approvals_of(found)


def reports(db: Connection, tenant: str, where: ReportFilter) -> list[ToolErrorReport]:
    """See `Store.reports`."""
    return [report_from_json(cast("Fields", loads(data))) for (data,) in _reports(db, "reports", tenant, where)]


def report_groups(db: Connection, tenant: str, where: ReportFilter) -> list[ReportGroup]:
    """See `Store.report_groups`."""
    return [
        ReportGroup(tool, None if code is None else int(code), *rest)
        for tool, code, *rest in _reports(db, "report_groups", tenant, where)
    ]


def _reports(db: Connection, statement: str, tenant: str, where: ReportFilter) -> list[Any]:
    if where.run_id is not None:
        try:
            run = _number(db, tenant, where.run_id)
        except NotFound:
            return []
    else:
        run = None
    values = {
        "tenant": tenant,
        "run": run,
        "tool": where.tool_name,
        "code": None if where.code is None else str(where.code),
        "since": where.since,
        "until": where.until,
        "limit": max(where.limit, 0),
        "main": where.main,
    }
    return db.execute(SQL[statement], values).fetchall()


def kept(db: Connection, tenant: str, kept_id: str, offset: int, limit: int | None) -> KeptRange:
    """See `Store.kept`."""
    found = db.execute(SQL["kept_head"], (tenant, kept_id)).fetchone()
    if found is None:
        raise NotFound(f"no text is kept under {kept_id}")
    number, total, size, _, erased_at = found
    offset = max(offset, 0)
    end = total if limit is None else min(total, offset + max(limit, 0))
    where = {"kept": number, "first": offset, "end": end}
    pieces = db.execute(SQL["pieces"], where).fetchall() if offset < end else ()
    return KeptRange(range_of(pieces, offset, end), offset, total, size, erased_at)


def rows(db: Connection, after: int) -> list[tuple[int, StoredRow]]:
    """A page of `Store.rows`, each with its place; empty at the end."""
    page: list[tuple[int, StoredRow]] = []
    size = 0
    for (
        place,
        tenant,
        interaction_id,
        run_id,
        kind,
        sequence,
        following,
        stored_body,
        stored_content,
        erased_at,
        stored_digest,
    ) in db.execute(SQL["rows"], (after,)):
        # Somebody's hand may have left text where bytes were; `verify` is to name it, not to fail on it.
        body, content, digest = (
            v.encode("utf-8", "replace") if isinstance(v, str) else v
            for v in (stored_body, stored_content, stored_digest)
        )
        stored = StoredRow(
            tenant, interaction_id, place & 0xFFFFFFFF, run_id, kind, sequence,
            following - sequence if sequence else 0, body, content, erased_at, digest,
        )  # fmt: skip  # in the order of the fields
        page.append((place, stored))
        size += len(body) + len(content or b"")
        if len(page) >= PAGE_ROWS or size >= PAGE_BYTES:
            break
    return page


def kept_text(db: Connection, after: int) -> tuple[int, tuple[str, str, bytes | None, int, str]] | None:
    """The next text of `Store.kept_texts`, with its number; None at the end."""
    found = db.execute(SQL["kept_texts"], (after,)).fetchone()
    if found is None:
        return None
    number, tenant, kept_id, size, digest, erased_at = found
    data = None
    if erased_at is None:
        whole = {"kept": number, "first": 0, "end": 1 << 32}
        data = b"".join(piece for _, piece in db.execute(SQL["pieces"], whole))
    return number, (tenant, kept_id, data, size, digest)


def heads(db: Connection) -> list[Head]:
    """See `Store.heads`."""
    return [Head(*values) for values in db.execute(SQL["heads"])]


def version(db: Connection) -> object:
    """See `Store.version`: SQLite counts what other connections, of any process, have written."""
    return db.execute("PRAGMA data_version").fetchone()[0]


def empty_log(db: Connection) -> None:
    """Move what the log holds into the file and empty it; leaves it when others are busy with it."""
    db.execute("PRAGMA busy_timeout = 1000")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    db.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
