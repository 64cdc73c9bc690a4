"""What a worker looks for among the runs: those to take up, and those to erase; and what a tenant may use."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from counterfoil.adapters.stores.memory.state import Run
from counterfoil.owners import Watch
from counterfoil.store import Counts, Quota, RunRow, Wanted, Worker


def open_runs(runs: Iterable[Run], watch: Watch, workers: Sequence[Worker], wanted: Wanted) -> list[RunRow]:
    """See `Store.open_runs`."""
    found = [
        run.row()
        for run in runs
        if run.new.agent in wanted.agents
        and run.new.pool == wanted.pool
        and run.new.tenant not in wanted.without
        and (run.new.not_before or 0) <= wanted.now
        and (
            run.runnable or (run.wake_at is not None and run.wake_at <= wanted.now)
            if run.owner is None
            else not watch.lives(run.owner, wanted.me, workers)
        )
    ]
    return sorted(found, key=lambda row: -row.priority)[: max(wanted.limit, 0)]


def counts(runs: Iterable[Run], agents: Sequence[str], pool: str, tenant: str | None) -> Counts:
    """See `Store.counts`."""
    whose = [run for run in runs if tenant in (None, run.new.tenant)]
    mine = [run for run in whose if not run.ended and run.new.agent in agents and run.new.pool == pool]
    driven = sum(run.owner is not None for run in mine)
    queued = sum(run.owner is None and run.runnable for run in mine)
    asked = sum(approval.open for run in mine for approval in (run.asked or {}).values())
    return Counts(driven, queued, len(mine) - driven - queued, asked)


def to_erase(runs: Iterable[Run], agents: Sequence[str], at: int, limit: int) -> list[tuple[str, str]]:
    """See `Store.to_erase`."""
    found = [
        (run.ended_at, run.new.tenant, run.new.run_id)
        for run in runs
        if run.new.agent in agents and run.ended_at is not None and run.ended_at < at and not run.is_erased
    ]
    return [(tenant, run_id) for _, tenant, run_id in sorted(found)[: max(limit, 0)]]


def is_within(runs: Iterable[Run], quota: Quota, run: Run) -> bool:
    """Whether a tenant's quota leaves room for a claim of the run."""
    others = [other for other in runs if other.new.tenant == run.new.tenant and other is not run]
    since = time.monotonic() - quota.seconds
    if quota.running is not None and sum(other.owner is not None for other in others) >= quota.running:
        return False
    # A run that was claimed before has had its start.
    if quota.starts is None or run.started is not None:
        return True
    return sum(other.started is not None and other.started > since for other in others) < quota.starts
