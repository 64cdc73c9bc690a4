"""The writes of a run's driver: the laws of `Store.commit`, in SQL.

A function here checks and encodes before its first write: a refusal leaves nothing to take back.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeAlias

from counterfoil.adapters.stores.shared.sql_store import Commit
from counterfoil.adapters.stores.shared.sql_values import SETTLED, pieces_of
from counterfoil.adapters.stores.sqlite.database import SQL
from counterfoil.adapters.stores.sqlite.known import AT_ONCE, OF_CALL, OF_RUN, KnownRun, Tip, WritingConnection
from counterfoil.core.call_entries import CallEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.codec import by_dict, chain, encode
from counterfoil.core.entries import Entry, TurnEntry
from counterfoil.core.errors import Fenced, UsageError
from counterfoil.core.jsontext import dumps
from counterfoil.core.plain_bodies import WRITERS
from counterfoil.core.report import ToolErrorReport
from counterfoil.store import Behind, KeptText, Lease, LockLost, StatusChange

Row: TypeAlias = tuple[object, ...]

_ENTRY = 0xFFFFFFFF
"""Mask of the entry's number in its place."""
_NO_CALL = -1, -1, -1
"""For the statement: Python's sqlite3 looks for an adapter of each None."""
_CLOSE_OF_CALL = SQL["close_approvals_of_call"]


LARGE = 64 * 1024
"""Bytes of a result whose commit is a large job."""
_BLOB = bytearray
"""What bytes are bound as: Python's sqlite3 takes a bytearray as it is, and looks for an adapter of bytes each time."""


def rows_for(tip: Tip, run: int, entries: Sequence[Entry]) -> list[Row]:
    """Number the entries from the tip on, and move it; the rows to append."""
    rows: list[Row] = []
    place, digest, sequence = tip.place, tip.hash, tip.sequence
    for e in entries:
        place += 1
        e.entry = place & _ENTRY
        width = e.width
        if width:
            e.sequence = sequence
            sequence += width
        body, content = encode(e)
        digest = chain(digest, body)
        kind = type(e)
        if kind is StartEntry:
            call = e.step, e.index, e.attempt  # type: ignore[attr-defined]  # mypy: no narrowing by `is`
        elif kind is ResultEntry:
            call = e.step, e.index, 0  # type: ignore[attr-defined]  # as above
        else:
            call = _NO_CALL
        blob = None if content is None else _BLOB(content)
        rows.append((place, run, e.kind, *call, e.sequence, sequence, _BLOB(body), blob, _BLOB(digest)))
    tip.place, tip.hash, tip.sequence = place, digest, sequence
    return rows


def commit(db: WritingConnection, what: Commit) -> int:
    """See `Store.commit`."""
    lease, entries, change, reports, kept, expect = what
    run, tip = db.run_and_tip(lease.tenant, lease.run_id)
    if run.epoch != lease.epoch or not run.owned:
        raise Fenced(f"run {lease.run_id} is held by another worker, or by none; claim it again")
    if expect is not None and expect != tip.place & _ENTRY:
        raise Behind
    after, is_plain = check(db, run, tip, lease.run_id, entries)
    new_texts = _new_texts(db, lease.tenant, kept) if kept else ()
    told = [_report_row(lease.tenant, run.number, r) for r in reports] if reports else ()
    db.rows += rows_for(tip, run.number, entries)
    run.calls.update(after)
    if run.whole:
        run.seen = tip.place
    if not is_plain or run.is_asking is not False:
        track(db, run, entries)
    for report in told:
        db.execute(SQL["new_report"], report)
    for text in new_texts:
        keep(db, lease.tenant, run.number, text)
    if change is not None:
        apply_change(db, run, change, entries[-1].at if entries else run.at)
        db.drop(lease.tenant, lease.run_id)
    return tip.place & _ENTRY


def _report_row(tenant: str, run: int, r: ToolErrorReport) -> Row:
    return tenant, run, r.tool_name, None if r.code is None else str(r.code), r.at_us, dumps(r.to_json())


def at_once(db: WritingConnection, lease: Lease, entries: Sequence[Entry]) -> int | None:
    """As `commit`, in one statement, for turns, starts and results of a run that is well known and asks nobody.

    None: it is something else, or refused; `commit` says what. Nothing is written then.
    """
    run = db.runs.get((lease.tenant, lease.run_id))
    if run is None or not run.whole or run.is_asking is not False or run.epoch != lease.epoch or not run.owned:
        return None
    tip = db.tips.get(run.interaction)
    if tip is None or len(entries) > AT_ONCE:
        return None
    run_id, thread, number = lease.run_id, run.thread, run.number
    place, digest, sequence = tip.place, tip.hash, tip.sequence
    after: dict[tuple[int, int], int] = {}
    values: list[object] = []
    shape = ""
    for e in entries:
        # The laws are those of `check`, and a row is that of `rows_for`, without their cases that are not met here.
        if e.run_id != run_id or e.thread_id != thread:
            return None
        place += 1
        e.entry = place & _ENTRY
        kind = type(e)
        if kind is TurnEntry:
            e.sequence = sequence
            sequence += e.width
            body, content = WRITERS[kind](e) or by_dict(e)
            digest = sha256(digest + body).digest()  # as `chain`
            shape += OF_RUN
            values += place, number, "turn", e.sequence, sequence
            values += _BLOB(body), _BLOB(content), _BLOB(digest)  # type: ignore[arg-type]  # these have a content
            continue
        if kind is not StartEntry and kind is not ResultEntry:
            return None
        key = e.step, e.index  # type: ignore[attr-defined]  # mypy: no narrowing by `is`
        state, attempt = after[key] if key in after else run.calls.get(key, 0), e.attempt  # type: ignore[attr-defined]  # as above
        if kind is StartEntry:
            right = 0 <= state < attempt and e.approval_id is None and e.lock is None  # type: ignore[attr-defined]  # as above
            after[key] = slot = attempt
        else:
            right = 0 <= state == attempt and e.size <= LARGE  # type: ignore[attr-defined]  # as above
            after[key], slot = SETTLED, 0
        if not right:
            return None
        body, content = WRITERS[kind](e) or by_dict(e)
        digest = sha256(digest + body).digest()
        shape += OF_CALL
        values += place, number, e.kind, *key, slot, e.sequence, sequence
        values += _BLOB(body), _BLOB(content), _BLOB(digest)  # type: ignore[arg-type]  # these have a content
    values += number, run.epoch
    if not db.append_at_once(values, shape):
        db.doubt()
        return None
    tip.place = run.seen = place
    tip.hash, tip.sequence = digest, sequence
    run.calls.update(after)
    return place & _ENTRY


def check(
    db: WritingConnection, run: KnownRun, tip: Tip, run_id: str, entries: Sequence[Entry]
) -> tuple[dict[tuple[int, int], int], bool]:
    """Refuse entries that would break a law; else the new state of each call that they start or settle.

    True beside it: no entry opens or uses an approval.

    Raises:
        Fenced: a doubled start or result, a result of an old attempt, an approval that gives no start.
        LockLost: the run's owner has lost the lock of a start.
        UsageError: an entry belongs to another run or thread.
    """
    thread = run.thread
    after: dict[tuple[int, int], int] = {}
    used: list[str] = []
    is_plain = True
    for e in entries:
        if e.run_id != run_id or (e.thread_id != thread and isinstance(e, (TurnEntry, CallEntry))):
            raise UsageError(f"an entry of run {e.run_id}, thread {e.thread_id} is not of run {run_id}, {thread}")
        kind = type(e)
        if kind is StartEntry:
            key = (e.step, e.index)  # type: ignore[attr-defined]  # mypy: no narrowing by `is`
            state = after[key] if key in after else run.state(db, key, tip)
            if not 0 <= state < e.attempt or e.approval_id is not None or e.lock is not None:  # type: ignore[attr-defined]  # as above
                is_plain = False
                _check_start(db, run.number, e, state, used)  # type: ignore[arg-type]  # as above
            after[key] = e.attempt  # type: ignore[attr-defined]  # as above
        elif kind is ResultEntry:
            key = (e.step, e.index)  # type: ignore[attr-defined]  # as above
            state = after[key] if key in after else run.state(db, key, tip)
            if state < 0 or state != e.attempt:  # type: ignore[attr-defined]  # as above
                raise Fenced(f"a call of run {run_id} has a result or a newer start already; read the run again")
            after[key] = SETTLED
        elif kind is WaitingEntry:
            is_plain = False
    return after, is_plain


def _check_start(db: WritingConnection, run: int, e: StartEntry, state: int, used: list[str]) -> None:
    if not 0 <= state < e.attempt:
        raise Fenced(f"call {e.call_id} of run {e.run_id} was started or settled before; read the run again")
    if e.lock is not None and db.execute(SQL["has_lock"], (e.lock, run)).fetchone() is None:
        raise LockLost
    if e.approval_id is None:
        return
    asked = db.execute(SQL["approval_for_start"], (run, e.approval_id)).fetchone()
    key = (e.step, e.index)
    usable = asked is not None and asked[1:3] == key and asked[3] in ("approve", "rerun") and not asked[4]
    if not usable or e.approval_id in used:
        raise Fenced(f"approval {e.approval_id} of call {e.call_id} gives no start (any more); read the run again")
    used.append(e.approval_id)


def track(db: WritingConnection, run: KnownRun, entries: Sequence[Entry]) -> None:
    """Open, consume and close approvals as the entries say."""
    for e in entries:
        kind = type(e)
        if kind is ResultEntry:
            if run.asks(db):
                db.execute(_CLOSE_OF_CALL, (run.number, e.step, e.index))  # type: ignore[attr-defined]  # mypy: no narrowing by `is`
        elif kind is StartEntry:
            approval_id = e.approval_id  # type: ignore[attr-defined]  # as above
            if approval_id is not None:
                db.execute(SQL["consume"], (run.number, approval_id))
        elif isinstance(e, WaitingEntry):
            db.execute(_CLOSE_OF_CALL, (run.number, e.step, e.index))
            asked = dumps(e.approval.to_json())
            db.execute(
                SQL["new_approval"],
                (run.number, e.approval.id, e.call_id, e.step, e.index, e.thread_id, asked),
            )
            run.is_asking = True


def apply_change(db: WritingConnection, run: KnownRun, change: StatusChange, at: int) -> None:
    """Leave the run's row as the change says; an end closes what was open."""
    values = (change.status, change.ended_by, change.wake_at, at, run.number)
    if change.status in ("running", "paused"):
        leaves = change.leaves or change.status == "paused"
        db.execute(SQL["change_leaves" if leaves else "change_running"], values)
    else:
        db.execute(SQL["change_ended"], values)
        db.execute(SQL["close_approvals"], (run.number,))
        db.execute(SQL["release"], (run.interaction, run.number))
    if run.parent is not None and change.status != "running":
        db.execute(SQL["wake"], (run.interaction, run.parent))


def _new_texts(db: WritingConnection, tenant: str, kept: Sequence[KeptText]) -> list[KeptText]:
    new: dict[str, KeptText] = {}
    for k in kept:
        there = db.execute(SQL["kept_head"], (tenant, k.id)).fetchone()
        if there is None and k.id not in new:
            new[k.id] = k
        elif k.digest != (there[3] if there else new[k.id].digest):
            raise Fenced(f"another text is kept under {k.id} already")
    return list(new.values())


def keep(db: WritingConnection, tenant: str, run: int, text: KeptText) -> None:
    """Store a text in pieces that end where a character ends."""
    number = db.execute(SQL["new_kept"], (tenant, text.id, run, len(text.text), text.size, text.digest)).lastrowid
    assert number is not None  # noqa: S101  # an INSERT has one
    for first, piece in pieces_of(text.text):
        db.execute(SQL["new_piece"], ((number << 32) + first, piece))
