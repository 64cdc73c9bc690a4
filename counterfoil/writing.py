"""One writer of a run: what is put on record, taken into the fold, and told to whoever follows."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from counterfoil.core.entries import Entry, PausedEntry, RunEntry, TurnEntry
from counterfoil.core.errors import Fenced, StoreError
from counterfoil.core.events import CallProgress, event_of
from counterfoil.core.record import CallState, Record
from counterfoil.core.turn import moment
from counterfoil.effects import Effects
from counterfoil.hooks import BodyBegins, HookList
from counterfoil.hub import Hub
from counterfoil.store import Behind, KeptText, Lease, StatusChange, Store

log = logging.getLogger("counterfoil")

PATIENCE_SECONDS = 60.0
"""For which a driver goes on trying to write while its store is away: a server's start, or that of its stand-in."""
AGAIN_SECONDS = 0.1
"""Between two tries."""


class Writing:
    """A run under a lease, and the only one who appends to its record as its driver."""

    def __init__(
        self, lease: Lease, record: Record, *, store: Store, effects: Effects, hub: Hub, hooks: HookList
    ) -> None:
        self.lease = lease
        self.record = record
        self.run = record.runs[lease.run_id]
        self.head = cast("RunEntry", self.run.head)
        self.store = store
        self._commit_now: Callable[[Lease, Sequence[Entry]], int | None] | None = getattr(store, "commit_now", None)
        self.effects = effects
        self.hub = hub
        self.hooks = hooks
        self.loop = asyncio.get_running_loop()
        self._foreign = False
        """Somebody else wrote to the record since it was read."""
        self._applied: TurnEntry | None = None
        """A turn that the fold has already, before it is on record: its calls are judged meanwhile."""
        self._side: set[asyncio.Task[None]] = set()

    def _aside(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._side.add(task)
        task.add_done_callback(self._side.discard)

    def _head(self) -> Any:
        return {"run_id": self.run.run_id, "thread_id": self.head.thread_id, "at": self.effects.now()}

    def _unseen(self) -> list[Entry]:
        """What is on record of the run that no driver could tell observers: its beginning, decisions in a pause."""
        if self.lease.epoch <= 1:
            return [cast("RunEntry", self.run.head)]
        log = self.run.log
        paused = max((i for i, e in enumerate(log) if isinstance(e, PausedEntry)), default=len(log))
        return log[paused + 1 :]

    async def write(
        self, entries: Sequence[Entry], reports: Sequence[Any] = (), kept: Sequence[KeptText] = (), *,
        change: StatusChange | None = None, exact: bool = False,
    ) -> None:  # fmt: skip  # rows by what belongs together
        """Append entries and take them into the fold, with whatever others appended in between.

        Raises:
            Behind: ``exact``, and somebody else appended first; nothing was written, the fold is up to date.
            Fenced: another worker drives the run.
        """
        probe = self.effects.probe
        if probe is not None:
            probe("store:before:" + ",".join(e.kind for e in entries))
        record = self.record
        before = record.tip
        try:
            tip = await self.store.commit(
                self.lease, entries, change=change, reports=reports, kept=kept, expect=before if exact else None
            )
        except Behind:
            await self.refresh()
            raise
        except StoreError as error:
            if not (entries and self.store.shared):
                raise
            tip = await self._again(error, before, entries, reports, kept, change=change, exact=exact)
        if probe is not None:
            probe("store:after:" + ",".join(e.kind for e in entries))
        if record.tip != before or not self._take(entries, tip):
            await self.refresh()

    async def _again(
        self, error: StoreError, before: int, entries: Sequence[Entry], reports: Sequence[Any],
        kept: Sequence[KeptText], *, change: StatusChange | None, exact: bool,
    ) -> int:  # fmt: skip  # rows by what belongs together
        """Write what the store did not take, once it does: what a body did is known nowhere else.

        A lost connection does not tell whether it was written after all, so that is looked for first.

        Args:
            error: what the store said.
            before: the newest entry when it was tried.
            entries: as of `write`, like all that follow.
            reports: the same.
            kept: the same.
            change: the same.
            exact: the same.

        Returns:
            The newest entry's number.

        Raises:
            StoreError: the store is away for too long.
            Behind: as of `write`.
        """
        ends = self.effects.clock() + PATIENCE_SECONDS
        log.warning("run %s cannot be written to, and is for %g s: %s", self.run.run_id, PATIENCE_SECONDS, error)
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                seen = await self.store.entries(self.lease.tenant, self.lease.interaction_id, before)
                if any(_is_same(entries[0], e) for e in seen):
                    return seen[-1].entry
                tip = before if exact or not seen else seen[-1].entry
                return await self.store.commit(
                    self.lease, entries, change=change, reports=reports, kept=kept, expect=tip
                )  # fmt: skip  # one row
            except Behind:  # what was on its way to the server came there after all, or it is somebody else's
                if exact and seen:
                    await self.refresh()
                    raise
            except StoreError:
                if self.effects.clock() > ends:
                    raise

    def put(
        self, entries: Sequence[Entry], reports: Sequence[Any], kept: Sequence[KeptText]
    ) -> Awaitable[None] | None:  # fmt: skip  # one row
        """As `write`, at once where the store need not wait (`store.CommitsNow`); what is awaitable is not done yet."""
        tip = None
        if self._commit_now is not None and not (reports or kept) and self.effects.probe is None:
            tip = self._commit_now(self.lease, entries)
        if tip is None:
            return self.write(entries, reports, kept)
        return None if self._take(entries, tip) else self.refresh()

    def _take(self, entries: Sequence[Entry], tip: int) -> bool:
        """Take what is on record now, up to ``tip``, into the fold; False: there is more than that."""
        record = self.record
        if tip != record.tip + len(entries):
            return False
        applied = self._applied
        for entry in entries:
            if entry is applied:
                record.tip = entry.entry
            else:
                record.apply(entry)
        if self.hooks.on_event or self.run.run_id in self.hub.wanted:
            self._publish(entries)
        return True

    async def refresh(self) -> None:
        """Take in what is on record beyond the fold."""
        self._foreign = False
        fresh = await self.store.entries(self.lease.tenant, self.lease.interaction_id, self.record.tip)
        fresh = [e for e in fresh if e.entry > self.record.tip]
        for entry in fresh:
            mine = self._applied
            if mine is not None and isinstance(entry, TurnEntry) and entry.entry == mine.entry:
                self.record.tip = entry.entry
            else:
                self.record.apply(entry)
        self._publish(fresh)

    def write_later(self, entry: Entry) -> None:
        """Append an entry that nobody waits for."""

        async def write() -> None:
            try:
                await self.write([entry])
            except Fenced:
                # The run has ended, or has another driver: what came too late belongs on record all the same.
                await self.store.post(self.lease.tenant, self.run.run_id, entry)

        self._aside(write())

    def _publish(self, entries: Sequence[Entry]) -> None:
        self.hub.wake(self.run.run_id)
        if not self.hooks.on_event:
            return
        for entry in entries:
            event = event_of(entry, self.record) if entry.run_id == self.run.run_id else None
            if event is None:
                continue
            for observer in self.hooks.on_event:
                self.observe(observer, event)

    def _body(self, x: Any, point: str) -> None:
        """A body is about to begin, or has ended (`Env.probe`)."""
        if self.effects.probe is not None:
            self.effects.probe(point)
        if point == "body:before" and self.hooks.on_body:
            begins = BodyBegins(
                x.env.where(x.call), x.env.caller, x.call.record.call_id, x.ready.tool, x.ready.attempt
            )  # fmt: skip  # two rows
            for observer in self.hooks.on_body:
                self.observe(observer, begins)

    def observe(self, observer: Callable[[Any], object], event: object) -> None:
        """Tell an observer; whatever it raises is logged and changes nothing."""
        try:
            answer = observer(event)
            if inspect.isawaitable(answer):
                self._aside(_observed(answer, event))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # an observer changes nothing
            log.exception("%s failed", _place(event))

    def tell_progress(self, call: CallState, text: str, done: float | None, total: float | None) -> None:
        """Hand progress to whoever listens."""
        at = moment(self.effects.now())
        event = CallProgress(
            self.record.tip, self.run.run_id, self.head.thread_id, at, call.record.call_id, call.record.tool_name,
            text, done, total,
        )  # fmt: skip  # two rows
        self.hub.tell(self.run.run_id, event)


def _is_same(mine: Entry, there: Entry) -> bool:
    """Whether an entry on record is the one that this process tried to write; the store had numbered it."""
    return (mine.entry, mine.kind, mine.run_id, mine.at) == (there.entry, there.kind, there.run_id, there.at)


def _place(event: object) -> str:
    return "on_body" if isinstance(event, BodyBegins) else "on_event"


async def _observed(answer: Any, event: object) -> None:
    try:
        await answer
    except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        raise
    except BaseException:  # an observer changes nothing
        log.exception("%s failed", _place(event))
