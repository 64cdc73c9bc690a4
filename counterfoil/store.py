"""Port: the record. Each method is one transaction; `counterfoil.testing.store_suite` tests a store.

A store keeps, for each interaction, an append-only log of entries with a hash chain (core.codec), and beside
it what it needs to refuse a write that would break a law: the run rows (status, owner, epoch), the approvals,
which calls have starts and results. Everything that people read is a fold of the entries (core.record).

A write by a run's driver names its lease; when another worker has claimed the run since, the store raises
`Fenced` and writes nothing. Every read and write carries a tenant; what is another tenant's is `NotFound`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from counterfoil.core.approval import Approval, Decision
from counterfoil.core.entries import Entry
from counterfoil.core.errors import Conflict, UsageError
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.keys import ApiKey
from counterfoil.core.limits import HEARTBEAT
from counterfoil.core.report import ReportGroup, ToolErrorReport
from counterfoil.core.turn import Author, date_json, moment

SWEEP_ROWS = 100
"""Runs that a sweep reads at once, at most: more than one worker claims before it looks again."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told apart from a later one with the same pid by its start time."""

    host: str
    """Where its pid means this process; see `owners.this_host`."""
    pid: int
    started: int
    """Start time of the process in the kernel's ticks since boot."""
    token: str = ""
    """Tells the Runtimes of one process apart."""


@dataclass(frozen=True, slots=True)
class Worker:
    """An owner that has said that it lives. Seconds are by the database's clock."""

    owner: Owner
    ago: float
    """Seconds since it last said so."""
    every: float
    """Seconds between two times, as it means them to be."""
    steady: float
    """Seconds for which it has done so without a gap of `DEAD_AFTER` heartbeats."""


@dataclass(slots=True)  # one for each run: a frozen one takes ten times as long to make
class RunRow:
    """What the store knows of a run without folding its entries."""

    run_id: str
    interaction_id: str
    tenant: str
    agent: str
    status: str
    """running, paused, completed, limited, cancelled or failed."""
    ended_by: str | None
    epoch: int
    """Grows with each claim; a write that names an older one is fenced."""
    owner: Owner | None
    runnable: bool
    """Something happened that a driver must see: the outbox."""
    created_at: int
    """Microseconds since 1970, UTC."""
    updated_at: int
    wake_at: int | None = None
    """When a driver must look at a paused run though nobody decided: the earliest expiry of an approval."""
    key: str | None = None
    parent: str | None = None
    """The run whose call waits for this one; None of a root run."""
    pool: str = "default"
    priority: int = 0
    not_before: int | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """The row as a list of runs has it at every door; times as `date_json` writes them."""
        return {
            "runId": self.run_id,
            "interactionId": self.interaction_id,
            "parentRunId": self.parent,
            "tenant": self.tenant,
            "agent": self.agent,
            "status": self.status,
            "endedBy": self.ended_by,
            "key": self.key,
            "createdAt": date_json(moment(self.created_at)),
            "updatedAt": date_json(moment(self.updated_at)),
        }


@dataclass(frozen=True, slots=True)
class InteractionRow:
    """A conversation, and who takes part in it: whom it was opened with, and whom its runs brought in."""

    interaction_id: str
    tenant: str
    created_at: int
    """Microseconds since 1970, UTC."""
    participants: tuple[Author, ...]
    """In the order of their coming; without those of interactions that an earlier version began."""
    open_run: str | None
    """The id of its open root run."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a run: its row's epoch at the claim."""

    tenant: str
    run_id: str
    interaction_id: str
    epoch: int


@dataclass(slots=True)
class NewRun:
    """What `Store.create` puts on record."""

    tenant: str
    run_id: str
    interaction_id: str
    new_interaction: bool
    """False: the interaction must exist for the tenant."""
    agent: str
    entries: Sequence[Entry]
    """The run's first entries: a RunEntry and its message."""
    created_at: int
    owner: Owner | None = None
    """Given: the run is created claimed, at epoch 1. None: it is runnable, at epoch 0."""
    key: str | None = None
    """A repeat with this key returns the first run (in the tenant)."""
    key_digest: str | None = None
    """Digest of the request; the same key with another digest is a Conflict."""
    pool: str = "default"
    priority: int = 0
    not_before: int | None = None
    parent: str | None = None
    """The run whose call waits for this one; it is no root run then, and its interaction may have an open one."""
    parent_epoch: int | None = None
    """Of the lease of whoever begins it for ``parent``; who drives that run no more begins nothing."""
    participants: Sequence[Author] = ()
    """Who takes part in the interaction from now on."""


@dataclass(frozen=True, slots=True)
class StatusChange:
    """What a commit makes of the run's row. Any status but ``running`` gives up the lease (owner None)."""

    status: str
    ended_by: str | None = None
    wake_at: int | None = None
    leaves: bool = False
    """Also ``running`` gives up the lease: the run waits for its child runs, and is runnable again by their doing."""


@dataclass(frozen=True, slots=True)
class KeptText:
    """A text that is stored apart, once, under an id (contract 6)."""

    id: str
    text: str
    """Holds no lone surrogate."""
    size: int
    """Bytes in UTF-8."""
    digest: str
    """SHA-256 (hex) of the UTF-8 bytes."""


class Refusal(Exception):  # a signal between store and whoever drives, not an error of anybody's
    """Nothing was written."""


class OverQuota(Refusal):
    """The tenant's quota is used up for now; the run is as it was."""


class Behind(Refusal):
    """The commit expected another last entry: somebody else's must be read first. Nothing was written."""


class LockLost(Refusal):
    """A start names a lock that the run's owner has no longer. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may use, over all workers that are given it. A run that is paused uses nothing.

    Raises:
        ValueError: a number is negative.
    """

    running: int | None = None
    """Runs that are driven at once."""
    starts: int | None = None
    """Runs that are claimed for the first time within ``seconds``."""
    seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("running", "starts", "seconds"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"Quota.{name} must be at least 0, got {value!r}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker's sweep asks for."""

    me: Owner
    """The worker: an owner that is dead to it owns nothing any more."""
    now: int
    """Microseconds since 1970, to which `RunRow.wake_at` and `RunRow.not_before` are compared."""
    agents: Sequence[str]
    pool: str = "default"
    without: Collection[str] = ()
    """Tenants to leave out."""
    limit: int = SWEEP_ROWS


class Counts(NamedTuple):
    """How many unfinished runs there are."""

    driven: int
    """That have an owner."""
    queued: int
    """That nobody drives, and that are to be driven now or when their time comes."""
    paused: int
    """That wait for people alone."""
    asked: int
    """Calls that wait for a decision, of all of them."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One entry exactly as it lies in the store, for `verify`."""

    tenant: str
    interaction_id: str
    entry: int
    run_id: str
    """From the row's own columns, not from the body."""
    kind: str
    sequence: int
    width: int
    body: bytes
    content: bytes | None
    erased_at: int | None
    hash: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The tip of an interaction's chain."""

    tenant: str
    interaction_id: str
    entry: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class KeptRange:
    """A piece of a text kept apart."""

    text: str
    offset: int
    """In characters."""
    total: int
    """Characters of the whole text."""
    size: int
    """Bytes of the whole text."""
    erased_at: int | None = None


@dataclass(frozen=True, slots=True)
class ReportFilter:
    """Which error reports to read; None leaves a field open. The tenant is never open."""

    run_id: str | None = None
    tool_name: str | None = None
    code: int | None = None
    since: int | None = None
    """Microseconds since 1970, UTC."""
    until: int | None = None
    """As ``since``: none that are newer."""
    limit: int = 100
    main: bool = False
    """Of the main thread alone: none of a run that another one waits for."""


EVERY_REPORT = ReportFilter()


def needs_tenant(tenant: str) -> None:
    """Refuse to read or write for nobody: there is no "null means all" (contract 10).

    Raises:
        UsageError: no tenant was given.
    """
    if not tenant:
        raise UsageError(f"every read and write of the record needs a tenant, got {tenant!r}")


def sent_before(row: RunRow, digest: str, first: str, status: str) -> RunRow:
    """What `Store.post` gives for a key that was used before.

    Args:
        row: the run's as it is now.
        digest: of the request that came.
        first: of the first one with the key.
        status: of the run then.

    Raises:
        Conflict: they are two requests.
    """
    if digest != first:
        raise Conflict("this key was used for another message; take another key")
    return replace(row, status=status)


class CommitsNow(Protocol):
    """What a store may have beside `Store`: a commit that need not wait saves a driver two coroutines."""

    def commit_now(self, lease: Lease, entries: Sequence[Entry]) -> int | None:
        """As `Store.commit` of entries alone; None: nothing was written, and `Store.commit` is to be awaited."""


class Store(Protocol):
    """The record. One object may be used by many runs of one event loop at once."""

    shared: bool
    """Several processes may have it open: locks and wake-ups must go through it."""

    async def open(self) -> None:
        """Make it ready; bring an older schema up to date where that is safe. Raises StoreError."""

    async def close(self) -> None:
        """Let go of it; what was acknowledged is durable."""

    async def create(self, new: NewRun) -> tuple[RunRow, bool]:
        """Put a run on record: interaction, row and entries.

        Returns:
            The row, and True; or, for a key used before with the same digest, the first run's row and False.

        Raises:
            NotFound: the interaction does not exist for the tenant.
            Conflict: the interaction has an open root run or (where it is new) exists, the run exists, or the
                key was used for another request.
            Fenced: another worker drives its parent than ``parent_epoch`` says, or nobody does.
        """

    async def open_interaction(
        self, tenant: str, interaction_id: str, participants: Sequence[Author], at: int, digest: str | None = None
    ) -> bool:
        """Begin an interaction before its first run.

        Args:
            tenant: whose.
            interaction_id: its id.
            participants: who takes part from the beginning.
            at: microseconds since 1970.
            digest: of the request that begins it, where that had a key.

        Returns:
            True; or False where the interaction exists and was begun with this digest.

        Raises:
            Conflict: it exists, and no digest says that it was begun by this very request.
        """

    async def interaction(self, tenant: str, interaction_id: str) -> InteractionRow:
        """The interaction's row. Raises NotFound."""

    async def interactions(self, tenant: str, *, limit: int = 50, before: str | None = None) -> list[InteractionRow]:
        """Interactions of the tenant, newest first; ``before``: those that are older than this one. Raises NotFound."""

    async def claim(self, row: RunRow, owner: Owner, quota: Quota | None = None) -> Lease | None:
        """Take the run over if its row still has ``row.epoch``: epoch + 1, this owner, not runnable, running.

        With a quota, only while the tenant's other runs and starts leave room for it, whoever else claims at once.

        Returns:
            The lease, or None when somebody else was first or the run has ended.

        Raises:
            OverQuota, NotFound
        """

    async def commit(
        self,
        lease: Lease,
        entries: Sequence[Entry],
        *,
        change: StatusChange | None = None,
        reports: Sequence[ToolErrorReport] = (),
        kept: Sequence[KeptText] = (),
        expect: int | None = None,
    ) -> int:
        """Append the driver's entries, all or none; sets ``entry`` and ``sequence`` of each.

        Laws that it keeps: a StartEntry is the only one of its (run, step, index, attempt), attempts grow,
        its call has no result, and the approval that it names was decided approve or rerun and is consumed
        by it, once. A ResultEntry is the only one of its call and names the attempt of the call's newest
        start (0 where there is none). Where the store is `shared`, the run's owner holds the lock that a
        StartEntry names: who was silent for too long may have lost it meanwhile. A WaitingEntry opens an
        approval in place of an earlier one of its call; a ResultEntry closes what is still open for its call.
        An end closes the interaction's open run and every approval of the run. A child
        run that pauses or ends makes its parent runnable.

        Args:
            lease: what `claim` gave; a run that was created claimed has epoch 1.
            entries: in their order; they are the store's from now on.
            change: what becomes of the run's row.
            reports: error reports of the results among the entries.
            kept: texts that the results among the entries keep apart; one that is there already stays.
            expect: the interaction's last entry must have this number, else Behind.

        Returns:
            The number of the interaction's last entry, now the last of ``entries``.

        Raises:
            Fenced: another worker holds the run, or nobody does, or a law above would break.
            LockLost: the run's owner has lost the lock of a start.
            Behind: see ``expect``.
            UsageError: an entry names another run than the lease, or a turn or call entry another thread than
                the run's first entry.
            NotFound
        """

    async def post(self, tenant: str, run_id: str, entry: Entry, request: tuple[str, str] | None = None) -> RunRow:
        """Append an entry by somebody who does not drive the run (a message, a cancel) and make it runnable.

        A CancelEntry closes the run's open approvals; on a run that has ended it appends nothing. Any other entry
        leaves such a run as it is, and a note any run. The runs above it become runnable too.

        Args:
            tenant: whose run it is.
            run_id: the run.
            entry: what is appended.
            request: an idempotency key and a digest; what was posted to this run with both is not posted again.

        Returns:
            The row as it was before; its status as it was when the entry came first.

        Raises:
            NotFound
            Conflict: the key was used with another digest.
        """

    async def decide(self, tenant: str, run_id: str, call_id: str, decision: Decision) -> tuple[Approval, bool]:
        """Settle the newest approval of the call by `core.approval.settle`; make the run and those above it runnable.

        Returns:
            The approval, and whether this decision is the first (False: an equal repeat).

        Raises:
            NotFound, NotPending, DecisionConflict
        """

    async def release(self, lease: Lease) -> None:
        """Give the run back undone, for whoever takes it up next: no owner, runnable. Nothing when fenced."""

    async def reopen(self, row: RunRow, owner: Owner) -> Lease | None:
        """As `claim`, for a root run that ended as ``limited``: it is the interaction's open run again.

        Raises:
            Conflict: its interaction has another open run.
        """

    async def lock(self, tenant: str, name: str, owner: Owner) -> bool:
        """Take a lock for an owner, unless another that lives has it; True when this one has it now.

        Who lives is judged by `owners.Watch`, in the same transaction.
        """

    async def unlock(self, tenant: str, name: str, owner: Owner) -> None:
        """Give a lock back; nothing when this owner does not have it."""

    async def beat(self, owner: Owner, every: float = HEARTBEAT, agents: Sequence[str] = ()) -> None:
        """Put on record that the owner lives, in the database's time, and that it will say so again in ``every`` s.

        Forgets whoever has been silent for `FORGET_SECONDS`.

        Args:
            owner: who.
            every: seconds.
            agents: the names of those that it has, each once.
        """

    async def agents(self) -> dict[str, bool]:
        """Agents that an owner has said it has, by name; whether one of those that have it lives.

        An owner that left counts until its next sign of life would have been too late. A name is forgotten
        `FORGET_SECONDS` later.
        """

    async def leave(self, owner: Owner) -> None:
        """The owner drives nothing any more: forget it."""

    async def workers(self) -> list[Worker]:
        """Every owner that beats, or did lately: for workers and those who look after them, never a reader."""

    async def lives(self, owner: Owner, me: Owner) -> bool:
        """Whether an owner lives, as far as ``me`` can know: `owners.Watch` on what `workers` gives."""

    async def run(self, tenant: str, run_id: str) -> RunRow:
        """The run's row. Raises NotFound."""

    async def runs(
        self,
        tenant: str,
        *,
        status: str | None = None,
        agent: str | None = None,
        interaction_id: str | None = None,
        limit: int = 50,
        before: str | None = None,
        roots: bool = False,
    ) -> list[RunRow]:
        """Runs of the tenant, newest first.

        Args:
            tenant: whose.
            status: only these; likewise ``agent`` and ``interaction_id``.
            agent: as ``status``.
            interaction_id: as ``status``.
            limit: how many at most.
            before: a run id; runs that are older.
            roots: none that another run waits for.

        Raises:
            NotFound: the tenant has no run ``before``.
        """

    async def open_runs(self, wanted: Wanted) -> list[RunRow]:
        """Runs that a worker may take up now, of all tenants: for its sweep alone, never a reader.

        A run that nobody drives and that is runnable or whose ``wake_at`` has come, and whatever a dead owner drives;
        none before its ``not_before``. The higher priority comes first, then the older run. What only waits for people
        costs nothing.
        """

    async def posted(self, owner: Owner) -> list[str]:
        """Ids of the runs that the owner drives and that somebody else has written to since it claimed them."""

    async def counts(self, agents: Sequence[str], pool: str = "default", tenant: str | None = None) -> Counts:
        """Unfinished runs of these agents in this pool, of a tenant; None: of all, for a worker, never a reader."""

    async def to_erase(self, agents: Sequence[str], at: int, limit: int) -> list[tuple[str, str]]:
        """Runs of these agents that ended before a time and were not erased since, the oldest first.

        Returns:
            Tenant and id of each. For a worker, never a reader.
        """

    async def entries(self, tenant: str, interaction_id: str, after: int = 0) -> list[Entry]:
        """The interaction's entries with a number over ``after``, in order of arrival. Raises NotFound."""

    async def approvals(self, tenant: str, run_id: str | None = None) -> list[Approval]:
        """What waits for a decision, oldest first; what has expired too. Raises NotFound.

        Of a run: also what waits in the runs below it.
        """

    async def reports(self, tenant: str, where: ReportFilter = EVERY_REPORT) -> list[ToolErrorReport]:
        """Error reports, newest first."""

    async def report_groups(self, tenant: str, where: ReportFilter = EVERY_REPORT) -> list[ReportGroup]:
        """The same reports counted by tool and code, what was seen last first; ``limit`` is of groups."""

    async def kept(self, tenant: str, kept_id: str, offset: int = 0, limit: int | None = None) -> KeptRange:
        """Characters of a text kept apart; reads no more than the range needs. Raises NotFound."""

    async def erase(self, tenant: str, run_id: str, at: int) -> int:
        """Erase what entries, kept texts and reports of an ended run and of those below it hold. Digests, sizes stay.

        `to_erase` gives them no more.

        Returns:
            How many contents were erased, each report counted as one. Their reports and approvals are gone.

        Raises:
            NotFound
            Conflict: the run, or one below it, has not ended.
        """

    def rows(self) -> AsyncIterator[StoredRow]:
        """Every entry of the store, by interaction and number: for `verify`."""

    def kept_texts(self) -> AsyncIterator[tuple[str, str, bytes | None, int, str]]:
        """(tenant, id, UTF-8 bytes or None when erased, size, digest) of every text kept apart."""

    async def heads(self) -> list[Head]:
        """The tip of every interaction's chain."""

    async def tips(self, interactions: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """The newest entry's number of each interaction, by (tenant, id): cheap, for who waits for what is new.

        What does not exist is left out.
        """

    async def add_key(self, key: ApiKey) -> None:
        """Put a key on record; its id and its digest are new."""

    async def key(self, digest: str) -> ApiKey | None:
        """The key with this digest, of whatever tenant: it is what says whose a request is."""

    async def keys(self, tenant: str) -> list[ApiKey]:
        """The tenant's keys, also those that count no more, oldest first."""

    async def revoke_key(self, tenant: str, key_id: str, at: int) -> ApiKey:
        """Have a key count no more, from the first time that this is asked on. Raises NotFound."""

    async def has_keys(self, at: int) -> bool:
        """Whether any tenant has a key that counts: for a server that is about to begin, never a reader."""

    async def version(self) -> object:
        """A value that differs after any process has written to the store; cheap, for pollers."""
