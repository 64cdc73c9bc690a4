"""The workflow that a run has in Temporal: it has segments driven, one after another, and waits in between."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

DEAD = timedelta(seconds=30)
"""A worker that has sent no heartbeat for so long has died: its segment is given to another."""
BACK_OFF_SECONDS = (1, 60)
"""Before a run goes on whose driver failed: at first, doubling, and at most."""
CLOSING = timedelta(seconds=0.5)
"""Before another worker gets the segment of one that closes: by then it has given its runs back."""
LONG = 1_000
"""Events of a history after which it is begun anew: about a hundred segments."""
FOREVER = timedelta(days=3650)
PAUSED, RUNNING, LEFT = "paused", "running", "left"
"""What `Host.drive` says; ``left`` is ours: given back by a worker that drains."""

WORKFLOW, ACTIVITY, SEGMENT, FORGET = "counterfoil.run", "counterfoil.drive", "segment", "forget"
"""What the server knows these by: a workflow may be older than the code that goes on with it."""


@workflow.defn(name=WORKFLOW)
class RunWorkflow:
    """One run.

    It is played again from its history. What was written by another version of it may not fit; the engine replaces it.
    """

    def __init__(self) -> None:
        self._wanted = -1
        self._after = -1
        self._over = False

    @workflow.signal(name=SEGMENT)
    def segment(self, number: int) -> None:
        """The run may be driven, from this epoch on."""
        self._wanted = max(self._wanted, number)

    @workflow.signal(name=FORGET)
    def forget(self) -> None:
        """The run has ended elsewhere."""
        self._over = True

    @workflow.run
    async def run(self, tenant: str, run_id: str, wanted: int = -1, failures: int = 0) -> str:
        """Have segments driven until the run ends.

        Args:
            tenant: of the run.
            run_id: its id.
            wanted: the segment that comes next; -1: what a signal says.
            failures: segments whose driver failed, since the last one that went well.

        Returns:
            What the last segment came to.
        """
        self._wanted = max(self._wanted, wanted)
        while True:
            await workflow.wait_condition(lambda: self._over or self._wanted > self._after)
            if self._over:
                return FORGET
            if workflow.info().get_current_history_length() > LONG:
                workflow.continue_as_new(args=[tenant, run_id, self._wanted, failures])
            said, self._after = await self._drive(tenant, run_id, self._wanted)
            failures = failures + 1 if said == RUNNING else 0
            if failures:  # what fails at once must not be tried without end
                await self._back_off(failures)
            if said in (RUNNING, LEFT):
                self._wanted = max(self._wanted, self._after + 1)
            if said != PAUSED and self._wanted <= self._after and not self._over:
                return said

    async def _drive(self, tenant: str, run_id: str, segment: int) -> tuple[str, int]:
        """One segment, until it is over or a later one is wanted: then its worker is dead, or about to say so."""
        driven = workflow.start_activity(
            ACTIVITY, args=[tenant, run_id, segment], activity_id=str(segment),
            result_type=tuple[str, int],
            start_to_close_timeout=FOREVER, heartbeat_timeout=DEAD,
            retry_policy=RetryPolicy(initial_interval=CLOSING, maximum_interval=timedelta(minutes=1)),
        )  # fmt: skip  # rows by what belongs together
        await workflow.wait_condition(lambda: driven.done() or self._over or self._wanted > segment)
        if driven.done():
            over: tuple[str, int] = await driven
            return over
        driven.cancel()
        with suppress(ActivityError, asyncio.CancelledError):
            await driven
        return PAUSED, segment

    async def _back_off(self, failures: int) -> None:
        first, most = BACK_OFF_SECONDS
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._over, timeout=min(first * 2 ** min(failures - 1, 10), most))
