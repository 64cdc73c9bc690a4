"""The writes of a run's driver: the laws of `Store.commit`, in SQL.

A commit of an interaction that is known is one statement, which writes if the interaction is as it was.
Any other is a transaction that locks the interaction, reads what it needs and checks it there.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from counterfoil.adapters.stores.postgres.database import SQL, Db, as_text, explain
from counterfoil.adapters.stores.postgres.known import Held, Known, KnownRun, Talk, hold, learn, named
from counterfoil.adapters.stores.postgres.lane import Appended
from counterfoil.adapters.stores.postgres.pool import Pool, fetch, send
from counterfoil.adapters.stores.shared.sql_store import Commit
from counterfoil.adapters.stores.shared.sql_values import SETTLED, pieces_of
from counterfoil.core.call_entries import CallEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.codec import chain, encode
from counterfoil.core.entries import Entry, TurnEntry
from counterfoil.core.errors import Fenced, UsageError
from counterfoil.core.jsontext import dumps
from counterfoil.core.states import OPEN
from counterfoil.owners import owner_text
from counterfoil.store import Behind, KeptText, LockLost, Owner, RunRow, StatusChange

Row: TypeAlias = tuple[Any, ...]

FEW = 8
"""Entries that one statement appends, at most: each number of them is a statement of its own to prepare."""
SMALL = 256 * 1024
"""Bytes that go along with others' commits, at most."""
_TYPES = ("bigint", "bigint", "text", "bigint", "bigint", "bigint", "bigint", "bigint", "bytea", "bytea", "bytea")
"""Of the columns of an entry."""


def rows_for(talk: Talk, run: int, entries: Sequence[Entry]) -> list[Row]:
    """Number the entries from the interaction's last one on, and move that; the rows to append."""
    rows: list[Row] = []
    number, digest, sequence = talk.entry, talk.hash, talk.following
    place = talk.number << 32
    for e in entries:
        number += 1
        e.entry = number
        width = e.width
        first = sequence if width else 0
        if width:
            e.sequence = sequence
            sequence += width
        body, content = encode(e)
        digest = chain(digest, body)
        step = idx = slot = None
        if type(e) is StartEntry:
            step, idx, slot = e.step, e.index, e.attempt
        elif type(e) is ResultEntry:  # a LateEntry is one too, and counts for nothing
            step, idx, slot = e.step, e.index, 0
        rows.append((place + number, run, e.kind, step, idx, slot, first, sequence, body, content, digest))
    talk.entry, talk.hash, talk.following = number, digest, sequence
    return rows


async def commit(pool: Pool, known: Known, what: Commit) -> int:
    """See `Store.commit`."""
    key = (what.lease.tenant, what.lease.interaction_id)
    if not known.take(key):
        return await pool.finish(_in_turn(pool, known, what))
    job = None
    try:
        job = _at_once(pool, known, what, whole=True)
    finally:
        if job is None:
            known.give(key)
    if job is None:
        return await pool.finish(_in_turn(pool, known, what))
    if await job.future:
        return job.last
    return await asyncio.shield(cast("asyncio.Task[int]", job.again))


async def _in_turn(pool: Pool, known: Known, what: Commit) -> int:
    await known.turn((what.lease.tenant, what.lease.interaction_id))
    return await _write(pool, known, what)


async def _write(pool: Pool, known: Known, what: Commit) -> int:
    """Do it by whoever's turn it is, and give the turn on."""
    key = (what.lease.tenant, what.lease.interaction_id)
    try:
        job = _at_once(pool, known, what, whole=False)
        if job is not None and await job.future:
            return job.last
        return await pool.transact(lambda db: _checked(db, known, what))
    except BaseException:
        known.forget(*key)
        raise
    finally:
        known.give(key)


def _is_plain(what: Commit, talk: Talk, run: KnownRun) -> bool:
    """Entries, and the run's end, by whoever holds it as far as is known; no approval has to do with them."""
    if what.reports or what.kept or run.is_asking or not 0 < len(what.entries) <= FEW:
        return False
    if what.change is not None and (what.change.status in OPEN or run.parent is not None):
        return False
    if run.epoch != what.lease.epoch or not run.owned or what.expect not in (None, talk.entry):
        return False
    for e in what.entries:
        if isinstance(e, WaitingEntry):
            return False
        if isinstance(e, StartEntry) and not (e.approval_id is None and e.lock is None):
            return False
    return True


class _Job(Appended):
    """A commit of an interaction that is known: its entries, and what is known once they are on record."""

    __slots__ = ("after", "again", "known", "last", "new", "pool", "run", "what", "whole")

    def __init__(
        self, values: list[bytes | None], pool: Pool, known: Known, what: Commit, new: Talk, run: KnownRun,
        after: Mapping[tuple[int, int], int], *, whole: bool,
    ) -> None:  # fmt: skip  # rows by what belongs together
        super().__init__(new.number, _append_sql(len(what.entries), ends=what.change is not None), values)
        self.pool, self.known, self.what, self.new, self.run, self.after = pool, known, what, new, run, after
        self.whole = whole
        """It is the whole write: it sees to the turn, and to what is to be done if the statement writes nothing."""
        self.again: asyncio.Task[int] | None = None
        """The write once more: something was otherwise by then."""
        self.last = new.entry

    def ended(self, *, done: bool, error: BaseException | None) -> None:
        lease = self.what.lease
        if done:
            self.run.calls.update(self.after)
            self.new.version += 1
            run = None if self.what.change is not None else self.run
            self.known.wrote(lease.tenant, lease.interaction_id, self.new, lease.run_id, run)
        else:
            self.known.forget(lease.tenant, lease.interaction_id)
        if self.whole and (done or error is not None):
            self.known.give((lease.tenant, lease.interaction_id))
        elif self.whole:
            # Whether or not somebody waits: a write is done to its end.
            self.again = self.pool.start(_write(self.pool, self.known, self.what))


def _at_once(pool: Pool, known: Known, what: Commit, *, whole: bool) -> _Job | None:
    """Have it appended by one statement, which writes nothing if something is otherwise by now; None: it cannot be."""
    lease = what.lease
    talk = known.get(lease.tenant, lease.interaction_id)
    run = None if talk is None else talk.runs.get(lease.run_id)
    if talk is None or run is None or not _is_plain(what, talk, run):
        return None
    try:
        after = check(run, lease.run_id, what.entries, {})
    except Fenced:
        # What is known may be old: the transaction says what is so.
        return None
    new = Talk(talk.number, talk.version, talk.entry, talk.hash, talk.following)
    rows = rows_for(new, run.number, what.entries)
    try:
        values: list[bytes | None] = [
            _number(talk.number), _number(talk.version), _number(new.entry), new.hash, _number(new.following)
        ]  # fmt: skip  # as the statement begins
        end = what.change
        if end is not None:
            values += (
                _number(run.number), as_text(end.status), None if end.ended_by is None else as_text(end.ended_by),
                None if end.wake_at is None else _number(end.wake_at), _number(what.entries[-1].at),
            )  # fmt: skip  # as it goes on where it ends the run
        size = 0
        for place, of, kind, step, idx, slot, sequence, following, body, content, digest in rows:
            size += len(body) + (0 if content is None else len(content))
            values += (
                _number(place), _number(of), kind.encode(), None if step is None else _number(step),
                None if idx is None else _number(idx), None if slot is None else _number(slot),
                _number(sequence), _number(following), body, content, digest,
            )  # fmt: skip  # a row of the statement
    except struct.error as error:
        raise explain(error, "") from error
    if size > SMALL:
        return None
    job = _Job(values, pool, known, what, new, run, after, whole=whole)
    pool.lane.add(job)
    return job


_number = struct.Struct(">q").pack


@functools.cache
def _append_sql(rows: int, *, ends: bool) -> str:
    """The statement that appends so many rows if the interaction has the version that was known."""
    return SQL["append_and_end_if" if ends else "append_if"].replace("ROWS", _parameters(11 if ends else 6, rows))


@functools.cache
def _insert_sql(rows: int) -> str:
    return SQL["append"].replace("ROWS", _parameters(1, rows))


def _parameters(first: int, rows: int) -> str:
    """A list of rows of parameters, from one number on."""
    starts = range(first, first + rows * len(_TYPES), len(_TYPES))
    return ", ".join("(" + ", ".join(f"${at + i}::{kind}" for i, kind in enumerate(_TYPES)) + ")" for at in starts)


async def _checked(db: Db, known: Known, what: Commit) -> int:
    lease, entries, change, reports, kept, expect = what
    held = await hold(db, lease.tenant, lease.run_id)
    row, talk = held.row, held.talk
    if row.epoch != lease.epoch or row.owner is None:
        raise Fenced(f"run {lease.run_id} is held by another worker, or by none; claim it again")
    if expect is not None and expect != talk.entry:
        raise Behind
    there = known.get(row.tenant, row.interaction_id)
    run = None if there is None or there.version != talk.version else there.runs.get(row.run_id)
    if run is None:
        run = await learn(db, held)
    after = check(run, lease.run_id, entries, await usable_approvals(db, run.number, entries))
    await _hold_locks(db, row, entries)
    new_texts = await _new_texts(db, lease.tenant, kept) if kept else ()
    await append(db, talk, run.number, entries)
    await track(db, run, entries)
    for r in reports:
        code = None if r.code is None else str(r.code)
        await send(db, "new_report", lease.tenant, run.number, r.tool_name, code, r.at_us, dumps(r.to_json()))
    for text in new_texts:
        await keep(db, lease.tenant, run.number, text)
    if change is not None:
        await _apply_change(db, held, change, entries[-1].at if entries else row.updated_at)
    run.calls.update(after)
    known.wrote(row.tenant, row.interaction_id, talk, row.run_id, None if change is not None else run)
    return talk.entry


async def _hold_locks(db: Db, row: RunRow, entries: Sequence[Entry]) -> None:
    """See that the run's owner has the locks of the starts, and keeps them until the end of this transaction."""
    wanted = {named(row.tenant, e.lock) for e in entries if isinstance(e, StartEntry) and e.lock is not None}
    if wanted:
        owner = owner_text(cast("Owner", row.owner))
        held = {name for name, holder in await fetch(db, "hold_locks", sorted(wanted)) if holder == owner}
        if held != wanted:
            raise LockLost


async def append(db: Db, talk: Talk, run: int, entries: Sequence[Entry]) -> None:
    """Append to an interaction that is held; ``talk`` is its row from then on."""
    await insert(db, rows_for(talk, run, entries))
    await move(db, talk)


async def insert(db: Db, rows: Sequence[Row]) -> None:
    """Put rows on record; whoever holds the interaction moves its end."""
    for first in range(0, len(rows), FEW):
        some = rows[first : first + FEW]
        await db.execute(_insert_sql(len(some)), [value for row in some for value in row])


async def move(db: Db, talk: Talk) -> None:
    """Put the interaction's new end on record."""
    await send(db, "tip", talk.number, talk.entry, talk.hash, talk.following)
    talk.version += 1


Approvals: TypeAlias = Mapping[str, tuple[Any, ...]]
"""By id: step, index, choice and whether it is consumed."""


async def usable_approvals(db: Db, run: int, entries: Sequence[Entry]) -> Approvals:
    """What is on record of the approvals that the entries' starts name."""
    ids = [e.approval_id for e in entries if isinstance(e, StartEntry) and e.approval_id is not None]
    if not ids:
        return {}
    return {found[0]: found[1:] for found in await fetch(db, "approvals_for_start", run, ids)}


def check(run: KnownRun, run_id: str, entries: Sequence[Entry], approvals: Approvals) -> dict[tuple[int, int], int]:
    """Refuse entries that would break a law; else the new state of each call that they start or settle.

    Raises:
        Fenced: a doubled start or result, a result of an old attempt, an approval that gives no start.
        UsageError: an entry belongs to another run or thread.
    """
    thread = run.thread
    after: dict[tuple[int, int], int] = {}
    used: set[str] = set()
    for e in entries:
        if e.run_id != run_id or (e.thread_id != thread and isinstance(e, (TurnEntry, CallEntry))):
            raise UsageError(f"an entry of run {e.run_id}, thread {e.thread_id} is not of run {run_id}, {thread}")
        if isinstance(e, StartEntry):
            key = (e.step, e.index)
            _check_start(e, after[key] if key in after else run.calls.get(key, 0), approvals, used)
            after[key] = e.attempt
        elif type(e) is ResultEntry:  # a LateEntry is one too, and counts for nothing
            key = (e.step, e.index)
            state = after[key] if key in after else run.calls.get(key, 0)
            if state < 0 or state != e.attempt:
                raise Fenced(f"a call of run {run_id} has a result or a newer start already; read the run again")
            after[key] = SETTLED
    return after


def _check_start(e: StartEntry, state: int, approvals: Approvals, used: set[str]) -> None:
    if not 0 <= state < e.attempt:
        raise Fenced(f"call {e.call_id} of run {e.run_id} was started or settled before; read the run again")
    if e.approval_id is None:
        return
    asked = approvals.get(e.approval_id)
    usable = asked is not None and asked[:2] == (e.step, e.index) and asked[2] in ("approve", "rerun") and not asked[3]
    if not usable or e.approval_id in used:
        raise Fenced(f"approval {e.approval_id} of call {e.call_id} gives no start (any more); read the run again")
    used.add(e.approval_id)


async def track(db: Db, run: KnownRun, entries: Sequence[Entry]) -> None:
    """Open, consume and close approvals as the entries say."""
    for e in entries:
        if type(e) is ResultEntry:
            if run.is_asking:
                await send(db, "close_approvals_of_call", run.number, e.step, e.index)
        elif isinstance(e, StartEntry):
            if e.approval_id is not None:
                await send(db, "consume", run.number, e.approval_id)
        elif isinstance(e, WaitingEntry):
            await send(db, "close_approvals_of_call", run.number, e.step, e.index)
            asked = dumps(e.approval.to_json())
            await send(
                db, "new_approval", run.number, e.approval.id, e.call_id, e.step, e.index, e.thread_id, asked
            )  # fmt: skip  # in the order of the statement
            run.is_asking = True


async def _apply_change(db: Db, held: Held, change: StatusChange, at: int) -> None:
    """Leave the run's row as the change says; an end closes what was open."""
    ended = change.status not in OPEN
    leaves = change.leaves or change.status == "paused"
    name = "change_ended" if ended else "change_leaves" if leaves else "change_running"
    await send(db, name, held.number, change.status, change.ended_by, change.wake_at, at)
    if ended:
        await send(db, "close_approvals", held.number)
        await send(db, "release", held.talk.number, held.number)
    if held.row.parent is not None and change.status != "running":
        await send(db, "wake", held.talk.number, held.row.parent)


async def _new_texts(db: Db, tenant: str, kept: Sequence[KeptText]) -> list[KeptText]:
    digests = dict(await fetch(db, "kept_digests", [named(tenant, k.id) for k in kept]))
    new: list[KeptText] = []
    for k in kept:
        there = digests.setdefault(k.id, None)
        if there is None:
            new.append(k)
            digests[k.id] = k.digest
        elif k.digest != there:
            raise Fenced(f"another text is kept under {k.id} already")
    return new


async def keep(db: Db, tenant: str, run: int, text: KeptText) -> None:
    """Store a text in pieces that end where a character ends."""
    await send(db, "new_kept", named(tenant, text.id), tenant, text.id, run, len(text.text), text.size, text.digest)
    for first, piece in pieces_of(text.text):
        await send(db, "new_piece", first, piece)
