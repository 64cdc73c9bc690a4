"""What the engine tells DBOS and asks it, by a client that needs no DBOS in the process. All of it waits for a server.

A workflow's id is run, segment and a word that makes it one of a kind; its deduplication id is run and segment.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from typing import Any, NamedTuple
from urllib.parse import quote

import sqlalchemy as sa
from dbos import DBOSClient, EnqueueOptions, Serializer

from counterfoil.owners import owner_of
from counterfoil.store import Owner, RunRow

APPLICATION = "counterfoil"
"""The owner of our rows in DBOS's tables."""
NAME = "counterfoil.segment"
"""The workflow's name in DBOS."""
VERSION = "counterfoil-1"
"""DBOS's application version. It never changes with the user's code: what was told before a deploy is driven after."""
POLL_SECONDS = 0.1
"""How often a worker looks into each of its queues, in seconds, while they are few."""
LOOKS = 30
"""How often a second it looks into queues at most, all together: a look costs 3 ms of a processor."""
MANY = 10_000
"""Workflows that are deleted at once."""
_MIDDLE, _LAST = 2**30, 2**31 - 1
"""DBOS's priorities: what goes first has the lowest, from 1."""


class Words(Serializer):
    """JSON for what DBOS stores: ids and a word. Of anything else, such as an exception, the type's name alone."""

    def serialize(self, data: Any) -> str:
        """See `dbos.Serializer`."""
        return json.dumps(data, default=lambda o: type(o).__name__)

    def deserialize(self, serialized_data: str) -> Any:
        """See `dbos.Serializer`."""
        return json.loads(serialized_data)

    def name(self) -> str:
        """See `dbos.Serializer`."""
        return "counterfoil_json"


class Held(NamedTuple):
    """A segment that a worker took, alive or dead."""

    workflow: str
    owner: Owner


class Desk:
    """Tells DBOS of segments, and looks after what it holds.

    Args:
        db: DBOS's database; it is this object's.
        schema: DBOS's in PostgreSQL.
    """

    def __init__(self, db: sa.Engine, schema: str | None) -> None:
        self._db = db
        self._is_closed = False
        sa.event.listen(db, "checkin", self._checked_in)
        self._client = DBOSClient(
            system_database_engine=db, dbos_system_schema=schema, serializer=Words(), application_name=APPLICATION,
            lazy=True, retry_connection_errors=False,
        )  # fmt: skip  # two rows

    def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        self._client.destroy()
        self._db.dispose()

    def _checked_in(self, _connection: object, record: sa.PoolProxiedConnection) -> None:
        if self._is_closed:
            record.invalidate()  # a thread of DBOS had it when all others were closed

    def make_queues(self, pool: str, agents: Collection[str], most: int | None) -> None:
        """Make the queues of these agents, as this worker means them to be.

        Args:
            pool: of the runs.
            agents: by name.
            most: segments of one queue that a worker has at once; None: any number.
        """
        seconds = max(POLL_SECONDS, len(agents) / LOOKS)
        for name in agents:
            self._client.register_queue(
                queue_of(pool, name), worker_concurrency=most, polling_interval_sec=seconds
            )  # fmt: skip  # one call

    def tell(self, row: RunRow) -> Held | None:
        """Have the run's segment given to a worker, unless it waits for one already.

        Returns:
            Who has it, where a worker has; then nothing was told.
        """
        segment = f"{row.run_id}:{row.epoch}"
        options = EnqueueOptions(
            workflow_name=NAME, queue_name=queue_of(row.pool, row.agent), app_version=VERSION,
            workflow_id=f"{segment}:{uuid.uuid4().hex[:12]}", deduplication_id=segment,
            duplication_policy="return-existing", priority=min(max(_MIDDLE - row.priority, 1), _LAST),
        )  # fmt: skip  # rows by what belongs together
        there = self._client.enqueue(options, row.tenant, row.run_id, row.epoch).get_workflow_id()
        if there == options["workflow_id"]:
            return None
        found = self._client.list_workflows(workflow_ids=[there], load_input=False, load_output=False)
        if not found or found[0].status != "PENDING" or found[0].executor_id is None:
            return None
        return Held(there, owner_of(found[0].executor_id))

    def is_busy(self, executor: str) -> bool:
        """Whether a worker holds a workflow whose end DBOS has not written down."""
        return bool(
            self._client.list_workflows(
                executor_id=executor, status="PENDING", load_input=False, load_output=False, limit=1
            )
        )

    def delete(self, **which: Any) -> list[str]:
        """Delete workflows, also what a worker holds: it was told to stop, or is dead.

        Args:
            which: as `DBOSClient.list_workflows` takes it.

        Returns:
            Their ids.
        """
        gone: list[str] = []
        while True:
            found = self._client.list_workflows(load_input=False, load_output=False, limit=MANY, **which)
            if not found:
                return gone
            ids = [status.workflow_id for status in found]
            self.delete_these(ids)
            gone += ids

    def delete_these(self, workflows: list[str]) -> None:
        """Delete workflows by their ids."""
        self._client.delete_workflows(workflows)


def queue_of(pool: str, agent: str) -> str:
    """The queue of an agent's segments."""
    return f"{quote(pool, '', errors='surrogatepass')}/{quote(agent, '', errors='surrogatepass')}"
