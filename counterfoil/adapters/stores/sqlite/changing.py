"""The other writes: create, claim, post, decide, erase. As in `appending`, checks come before writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from counterfoil.adapters.stores.shared.sql_values import decided, decision_json, new_row
from counterfoil.adapters.stores.sqlite.appending import check, rows_for, track
from counterfoil.adapters.stores.sqlite.database import SQL
from counterfoil.adapters.stores.sqlite.known import KnownRun, Tip, WritingConnection
from counterfoil.adapters.stores.sqlite.reading import run_row
from counterfoil.core.approval import Approval, Decision
from counterfoil.core.entries import CancelEntry, Entry, NoteEntry
from counterfoil.core.errors import Conflict, NotFound
from counterfoil.core.jsontext import dumps, loads
from counterfoil.core.states import must_have_ended
from counterfoil.core.turn import Author, joined, participants_from_json, participants_json
from counterfoil.owners import owner_text, still_drives
from counterfoil.store import Lease, NewRun, OverQuota, Owner, Quota, RunRow, needs_tenant, sent_before


def create(db: WritingConnection, new: NewRun) -> tuple[RunRow, bool]:
    """See `Store.create`."""
    tenant = new.tenant
    needs_tenant(tenant)
    if new.key is not None:
        first = db.execute(SQL["run_by_key"], (tenant, new.key)).fetchone()
        if first is not None:
            if first[1] != new.key_digest:
                raise Conflict(f"key {new.key!r} was used for another request; give a new key")
            return run_row(db, tenant, first[0]), False
    interaction, there = _interaction_for(db, new)
    if db.execute(SQL["run_number"], (tenant, new.run_id)).fetchone() is not None:
        raise Conflict(f"run {new.run_id} exists already")
    thread = new.entries[0].thread_id if new.entries else None
    run = KnownRun(
        0,
        interaction or 0,
        thread,
        new.parent,
        0 if new.owner is None else 1,
        owned=new.owner is not None,
        at=new.created_at,
    )
    run.whole, run.is_asking = True, False
    if interaction is None:
        made = (tenant, new.interaction_id, dumps(participants_json(new.participants)), new.created_at)
        interaction = cast("int", db.execute(SQL["new_interaction"], made).lastrowid)
        run.interaction = interaction
        tip = Tip(interaction, None, None, None)
    else:
        tip = db.tips.get(interaction) or Tip(interaction, *_last(db, interaction))
    run.calls, _ = check(db, run, tip, new.run_id, new.entries)
    if not new.new_interaction:
        _join(db, interaction, tenant, there, new.participants)
    owner = new.owner
    run.number = cast(
        "int",
        db.execute(
            SQL["new_run"],
            (
                tenant, new.run_id, interaction, thread, new.agent, run.epoch,
                None if owner is None else owner_text(owner), owner is None,
                new.created_at, new.created_at, new.key, new.key_digest, new.parent, new.pool, new.priority,
                new.not_before,
            ),
        ).lastrowid,
    )  # fmt: skip  # in the order of the statement
    if new.parent is None:
        db.execute(SQL["occupy"], (run.number, interaction))
    db.rows += rows_for(tip, run.number, new.entries)
    run.seen = tip.place
    track(db, run, new.entries)
    db.runs[tenant, new.run_id] = run
    db.tips[interaction] = tip
    return new_row(new, run.epoch), True


def _join(db: WritingConnection, interaction: int, tenant: str, there: bytes | None, new: Sequence[Author]) -> None:
    """Have these take part too; ``there``: who does, as it is stored."""
    now = dumps(participants_json(joined(participants_from_json(loads(there or b"[]"), tenant), new)))
    if now != there:
        db.execute(SQL["join"], (now, interaction))


def _last(db: WritingConnection, interaction: int) -> tuple[int | None, bytes | None, int | None]:
    db.write_rows()
    found = db.execute(SQL["tip"], (interaction, interaction)).fetchone()
    return found or (None, None, None)


def open_interaction(
    db: WritingConnection, tenant: str, interaction_id: str, participants: Sequence[Author], at: int,
    digest: str | None,
) -> bool:  # fmt: skip  # two rows
    """See `Store.open_interaction`."""
    needs_tenant(tenant)
    found = db.execute(SQL["interaction_digest"], (tenant, interaction_id)).fetchone()
    if found is None:
        values = tenant, interaction_id, dumps(participants_json(participants)), at, digest
        db.execute(SQL["begin_interaction"], values)
    elif digest is None or found[0] != digest:
        raise Conflict(f"interaction {interaction_id} exists already")
    return found is None


def _interaction_for(db: WritingConnection, new: NewRun) -> tuple[int | None, bytes | None]:
    """The number of the interaction, None where it is to be made, and its participants as they are stored."""
    found = db.execute(SQL["interaction"], (new.tenant, new.interaction_id)).fetchone()
    if new.new_interaction:
        if found is not None:
            raise Conflict(f"interaction {new.interaction_id} exists already")
        return None, None
    if found is None:
        raise NotFound(f"no interaction {new.interaction_id}")
    if found[1] is not None and new.parent is None:
        raise Conflict(f"interaction {new.interaction_id} has an open run; wait for its end")
    if new.parent is not None and new.parent_epoch is not None:
        still_drives(run_row(db, new.tenant, new.parent), new.parent_epoch)
    return found[0], found[2]


def claim(db: WritingConnection, row: RunRow, owner: Owner, quota: Quota | None = None) -> Lease | None:
    """See `Store.claim`."""
    if quota is not None and not _is_within(db, quota, row):
        now = run_row(db, row.tenant, row.run_id)
        if now.epoch == row.epoch and now.status in ("running", "paused"):
            raise OverQuota
        return None
    db.drop(row.tenant, row.run_id)
    claimed = db.execute(SQL["claim"], (owner_text(owner), row.tenant, row.run_id, row.epoch))
    if claimed.rowcount:
        return Lease(row.tenant, row.run_id, row.interaction_id, row.epoch + 1)
    run_row(db, row.tenant, row.run_id)
    return None


def release(db: WritingConnection, lease: Lease) -> None:
    """See `Store.release`."""
    db.drop(lease.tenant, lease.run_id)
    if not db.execute(SQL["release_run"], (lease.tenant, lease.run_id, lease.epoch)).rowcount:
        run_row(db, lease.tenant, lease.run_id)


def _is_within(db: WritingConnection, quota: Quota, row: RunRow) -> bool:
    if quota.running is not None:
        (running,) = db.execute(SQL["at_work"], (row.tenant, row.tenant, row.run_id)).fetchone()
        if running >= quota.running:
            return False
    # A run that was claimed before has had its start.
    if quota.starts is not None and row.epoch == 0:
        (starts,) = db.execute(SQL["started_lately"], (row.tenant, quota.seconds * 1_000_000)).fetchone()
        return bool(starts < quota.starts)
    return True


def reopen(db: WritingConnection, row: RunRow, owner: Owner) -> Lease | None:
    """See `Store.reopen`."""
    db.drop(row.tenant, row.run_id)
    now = run_row(db, row.tenant, row.run_id)
    if now.epoch != row.epoch or now.status != "limited":
        return None
    run, *_ = db.execute(SQL["run_number"], (row.tenant, row.run_id)).fetchone()
    number, open_run, _ = db.execute(SQL["interaction"], (row.tenant, now.interaction_id)).fetchone()
    if now.parent is None:
        if open_run is not None:
            raise Conflict(f"interaction {now.interaction_id} has another open run; wait for its end")
        db.execute(SQL["occupy"], (run, number))
    db.execute(SQL["reopen"], (owner_text(owner), run))
    return Lease(row.tenant, row.run_id, now.interaction_id, row.epoch + 1)


def post(
    db: WritingConnection, tenant: str, run_id: str, entry: Entry, request: tuple[str, str] | None = None
) -> RunRow:
    """See `Store.post`."""
    before = run_row(db, tenant, run_id)
    ended = before.status not in ("running", "paused")
    if ended and isinstance(entry, CancelEntry):
        return before
    run, tip = db.run_and_tip(tenant, run_id)
    if request is not None:
        key, digest = request
        if (found := db.execute(SQL["sent"], (run.number, key)).fetchone()) is not None:
            return sent_before(before, digest, *found)
    check(db, run, tip, run_id, (entry,))
    if request is not None:
        db.execute(SQL["new_sent"], (run.number, *request, before.status))
    db.rows += rows_for(tip, run.number, (entry,))
    if isinstance(entry, CancelEntry):
        db.execute(SQL["close_approvals"], (run.number,))
    if not isinstance(entry, NoteEntry):
        _wake(db, run, entry.at)
    return before


def _wake(db: WritingConnection, run: KnownRun, at: int) -> None:
    """The run and those above it are runnable."""
    db.execute(SQL["runnable"], (at, run.number))
    if run.parent is not None:
        db.execute(SQL["wake_all"], (run.interaction, run.parent))


def decide(db: WritingConnection, tenant: str, run_id: str, call_id: str, decision: Decision) -> tuple[Approval, bool]:
    """See `Store.decide`."""
    run, tip = db.run_and_tip(tenant, run_id)
    asked = db.execute(SQL["approvals_of_call"], (run.number, call_id)).fetchall()
    approval, entry, number = decided(run_id, call_id, asked, decision)
    if entry is None:
        return approval, False
    stored = decision_json(entry.decision)
    db.rows += rows_for(tip, run.number, (entry,))
    db.execute(SQL["decided"], (stored, decision.choice, number))
    _wake(db, run, decision.at)
    return approval, True


def erase(db: WritingConnection, tenant: str, run_id: str, at: int) -> int:
    """See `Store.erase`."""
    found = db.execute(SQL["run_number"], (tenant, run_id)).fetchone()
    if found is None:
        raise NotFound(f"no run {run_id}")
    top, interaction, *_ = found
    runs = db.execute(SQL["with_below"], (top,)).fetchall()
    must_have_ended(run_id, [(below, status) for _, below, status in runs])
    db.write_rows()
    erased = 0
    for run, *_ in runs:
        erased += db.execute(SQL["erase_entries"], (at, run, interaction, interaction)).rowcount
        for (kept,) in db.execute(SQL["kept_of_run"], (run,)).fetchall():
            db.execute(SQL["erase_pieces_of"], (kept, kept))
        erased += db.execute(SQL["erase_kept"], (at, run)).rowcount
        erased += db.execute(SQL["erase_reports"], (run,)).rowcount
        db.execute(SQL["erase_approvals"], (run,))
        db.execute(SQL["erased"], (at, run))
    db.forget()
    return erased
