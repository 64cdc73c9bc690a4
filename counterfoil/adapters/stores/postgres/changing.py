"""The other writes: create, claim, post, decide, erase. Each locks its interaction first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import psycopg

from counterfoil.adapters.stores.postgres.appending import append, check, insert, move, rows_for, track
from counterfoil.adapters.stores.postgres.database import Db
from counterfoil.adapters.stores.postgres.known import Held, Known, KnownRun, Talk, hold, named, row_of
from counterfoil.adapters.stores.postgres.pool import Pool, fetch, fetch_one, send
from counterfoil.adapters.stores.postgres.reading import run_row
from counterfoil.adapters.stores.shared.sql_values import decided, decision_json, new_row
from counterfoil.core.approval import Approval, Decision
from counterfoil.core.codec import GENESIS
from counterfoil.core.entries import CancelEntry, Entry, NoteEntry
from counterfoil.core.errors import Conflict, NotFound, StoreError
from counterfoil.core.jsontext import dumps, loads
from counterfoil.core.states import must_have_ended
from counterfoil.core.turn import Author, joined, participants_from_json, participants_json
from counterfoil.owners import owner_text, still_drives
from counterfoil.store import Lease, NewRun, OverQuota, Owner, Quota, RunRow, needs_tenant, sent_before


async def create(pool: Pool, known: Known, new: NewRun) -> tuple[RunRow, bool]:
    """See `Store.create`."""
    needs_tenant(new.tenant)
    try:
        return await pool.transact(lambda db: _create(db, known, new))
    except BaseException as error:
        known.forget(new.tenant, new.interaction_id)
        twice = isinstance(error, StoreError) and isinstance(error.__cause__, psycopg.errors.UniqueViolation)
        if not (twice or (isinstance(error, Conflict) and new.key is not None)):
            raise
    # Somebody else has just made what this one wanted to make, or the same request: now it is there to be seen.
    return await pool.transact(lambda db: _create(db, known, new))


async def _create(db: Db, known: Known, new: NewRun) -> tuple[RunRow, bool]:
    tenant, owner = new.tenant, new.owner
    if new.key is not None:
        first = await fetch_one(db, "run_by_key", named(tenant, new.key))
        if first is not None:
            if first[1] != new.key_digest:
                raise Conflict(f"key {new.key!r} was used for another request; give a new key")
            made = await fetch_one(db, "run", named(tenant, first[0]))
            return row_of(cast("tuple[object, ...]", made)), False
    # What is asked before the first answer is fetched goes to the server together.
    there = await send(db, "interaction", named(tenant, new.interaction_id))
    same = await send(db, "run_number", named(tenant, new.run_id))
    next_ones = await send(db, "new_numbers")
    found = await there.fetchone()
    talk = _interaction_for(found, new)
    if await same.fetchone() is not None:
        raise Conflict(f"run {new.run_id} exists already")
    if new.parent is not None and new.parent_epoch is not None:
        still_drives(await run_row(db, tenant, new.parent), new.parent_epoch)
    thread = new.entries[0].thread_id if new.entries else None
    numbers = cast("tuple[int, int]", await next_ones.fetchone())
    run = KnownRun(numbers[1], thread, new.parent, 0 if owner is None else 1, owned=owner is not None)
    run.calls = check(run, new.run_id, new.entries, {})
    occupied = run.number if new.parent is None else None
    if is_new := talk is None:
        talk = Talk(numbers[0], 1, 0, GENESIS, 1)
    rows = rows_for(talk, run.number, new.entries)
    if is_new:
        await send(
            db, "new_interaction", talk.number, named(tenant, new.interaction_id), tenant, new.interaction_id,
            occupied, talk.entry, talk.hash, talk.following, dumps(participants_json(new.participants)), new.created_at,
        )  # fmt: skip  # in the order of the statement
    await send(
        db, "new_run", run.number, named(tenant, new.run_id), tenant, new.run_id, talk.number, thread, new.agent,
        run.epoch, None if owner is None else owner_text(owner), owner is None, new.created_at, new.key,
        None if new.key is None else named(tenant, new.key), new.key_digest,
        new.parent, new.pool, new.priority, new.not_before,
    )  # fmt: skip  # in the order of the statement
    await insert(db, rows)
    if not is_new:
        if occupied is not None:
            await send(db, "occupy", occupied, talk.number)
        there_now = None if found is None else cast("bytes | None", found[6])
        before = participants_from_json(loads(there_now or b"[]"), tenant)
        now = dumps(participants_json(joined(before, new.participants)))
        if now != there_now:
            await send(db, "join", talk.number, now)
        await move(db, talk)
    await track(db, run, new.entries)
    known.wrote(tenant, new.interaction_id, talk, new.run_id, run)
    return new_row(new, run.epoch), True


def _interaction_for(found: Sequence[Any] | None, new: NewRun) -> Talk | None:
    """The interaction from its row, which is locked; None where it is to be made."""
    if new.new_interaction:
        if found is not None:
            raise Conflict(f"interaction {new.interaction_id} exists already")
        return None
    if found is None:
        raise NotFound(f"no interaction {new.interaction_id}")
    number, version, open_run, entry, digest, following, _ = found
    if open_run is not None and new.parent is None:
        raise Conflict(f"interaction {new.interaction_id} has an open run; wait for its end")
    return Talk(number, version, entry, digest, following)


async def open_interaction(
    db: Db, tenant: str, interaction_id: str, participants: Sequence[Author], at: int, digest: str | None
) -> bool:  # fmt: skip  # one row
    """See `Store.open_interaction`."""
    needs_tenant(tenant)
    who = dumps(participants_json(participants))
    name = named(tenant, interaction_id)
    if await fetch_one(db, "open_interaction", name, tenant, interaction_id, GENESIS, who, at, digest) is not None:
        return True
    if digest is None or await fetch_one(db, "interaction_digest", name) != (digest,):
        raise Conflict(f"interaction {interaction_id} exists already")
    return False


async def _take(db: Db, held: Held, owner: Owner) -> Lease:
    """Give a run that is held to an owner."""
    await send(db, "take", held.number, owner_text(owner))
    await send(db, "touch", held.talk.number)
    row = held.row
    return Lease(row.tenant, row.run_id, row.interaction_id, row.epoch + 1)


async def claim(db: Db, row: RunRow, owner: Owner, quota: Quota | None = None) -> Lease | None:
    """See `Store.claim`."""
    if quota is not None:
        # Before the rows, as by every other claim of the tenant: what they count stands still meanwhile.
        await send(db, "hold_tenant", row.tenant)
    held = await hold(db, row.tenant, row.run_id)
    if held.row.epoch != row.epoch or held.row.status not in ("running", "paused"):
        return None
    if quota is not None and not await _is_within(db, quota, held):
        raise OverQuota
    return await _take(db, held, owner)


async def _is_within(db: Db, quota: Quota, held: Held) -> bool:
    tenant = held.row.tenant
    if quota.running is not None:
        running = cast("tuple[int]", await fetch_one(db, "at_work", tenant, held.number))
        if running[0] >= quota.running:
            return False
    # A run that was claimed before has had its start.
    if quota.starts is not None and held.row.epoch == 0:
        starts = cast("tuple[int]", await fetch_one(db, "started_lately", tenant, quota.seconds))
        return starts[0] < quota.starts
    return True


async def release(db: Db, lease: Lease) -> None:
    """See `Store.release`."""
    held = await hold(db, lease.tenant, lease.run_id)
    if held.row.epoch == lease.epoch and held.row.owner is not None:
        await send(db, "release_run", held.number)
        await send(db, "touch", held.talk.number)


async def reopen(db: Db, row: RunRow, owner: Owner) -> Lease | None:
    """See `Store.reopen`."""
    held = await hold(db, row.tenant, row.run_id)
    now = held.row
    if now.epoch != row.epoch or now.status != "limited":
        return None
    if now.parent is None:
        if held.open_run is not None:
            raise Conflict(f"interaction {now.interaction_id} has another open run; wait for its end")
        await send(db, "occupy", held.number, held.talk.number)
    return await _take(db, held, owner)


async def post(
    db: Db, tenant: str, run_id: str, entry: Entry, request: tuple[str, str] | None = None
) -> RunRow:  # fmt: skip  # one row
    """See `Store.post`."""
    held = await hold(db, tenant, run_id)
    before = held.row
    if isinstance(entry, CancelEntry) and before.status not in ("running", "paused"):
        return before
    if request is not None:
        key, digest = request
        if (found := await fetch_one(db, "sent", held.number, key)) is not None:
            return sent_before(before, digest, *found)
        await send(db, "new_sent", held.number, key, digest, before.status)
    check(held.known((), is_asking=False), run_id, (entry,), {})
    await append(db, held.talk, held.number, (entry,))
    if isinstance(entry, CancelEntry):
        await send(db, "close_approvals", held.number)
    if not isinstance(entry, NoteEntry):
        await _wake(db, held, entry.at)
    return before


async def _wake(db: Db, held: Held, at: int) -> None:
    """The run and those above it are runnable."""
    await send(db, "runnable", held.number, at)
    if held.row.parent is not None:
        await send(db, "wake_all", held.talk.number, held.row.parent)


async def decide(db: Db, tenant: str, run_id: str, call_id: str, decision: Decision) -> tuple[Approval, bool]:
    """See `Store.decide`."""
    held = await hold(db, tenant, run_id)
    asked = await fetch(db, "approvals_of_call", named(tenant, run_id), call_id)
    approval, entry, number = decided(run_id, call_id, asked, decision)
    if entry is None:
        return approval, False
    await append(db, held.talk, held.number, (entry,))
    await send(db, "decided", number, decision_json(entry.decision), decision.choice)
    await _wake(db, held, decision.at)
    return approval, True


async def erase(db: Db, tenant: str, run_id: str, at: int) -> int:
    """See `Store.erase`."""
    held = await hold(db, tenant, run_id)
    runs = await fetch(db, "with_below", held.number)
    must_have_ended(run_id, [(below, status) for _, below, status in runs])
    counted = []
    for run, *_ in runs:
        counted.append(await send(db, "erase_entries", at, run, held.talk.number))
        await send(db, "erase_pieces", run)
        counted.append(await send(db, "erase_kept", at, run))
        counted.append(await send(db, "erase_reports", run))
        await send(db, "erase_approvals", run)
        await send(db, "erased", run, at)
    await send(db, "touch", held.talk.number)
    await fetch_one(db, "run_number", named(tenant, run_id))
    return sum(cursor.rowcount for cursor in counted)
