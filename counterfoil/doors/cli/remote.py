"""A server in place of a store: what the commands ask of a Runtime and of a Run, asked of the HTTP API."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

from counterfoil import AsyncClient
from counterfoil.client.values import RunInfo
from counterfoil.core.approval import Approval
from counterfoil.core.events import Event
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.report import ReportGroup, ToolErrorReport
from counterfoil.core.row import Row
from counterfoil.core.turn import micros
from counterfoil.doors.cli.errors import Stop

__all__ = ["Remote", "RemoteRun"]


class RemoteRun:
    """A run at a server, as of the last answer. Who decides is the key's user, so ``by`` says nothing."""

    tenant = ""
    """The key's; the server alone knows it."""

    def __init__(self, remote: "Remote", info: RunInfo) -> None:
        self._remote, self.info = remote, info

    def __getattr__(self, name: str) -> Any:
        return getattr(self.info, name)

    def to_json(self) -> dict[str, JsonValue]:
        """The run as the server writes it."""
        return self.info.data

    async def hint(self) -> str | None:
        return self.info.hint

    async def refresh(self) -> "RemoteRun":
        self.info = await self._remote.client.get(self.info.id)
        return self

    async def wait(self, timeout: float | None = None) -> "RemoteRun":
        self.info = await self._remote.client.wait(self.info.id, timeout)
        return self

    async def approvals(self) -> list[Approval]:
        return [one async for one in self._remote.client.approvals(self.info.id)]

    async def approve(self, call_id: str, *, by: str | None = None, **options: Any) -> Approval:
        return await self._remote.client.approve(self.info.id, call_id, **options)

    async def reject(self, call_id: str, *, by: str | None = None, **options: Any) -> Approval:
        return await self._remote.client.reject(self.info.id, call_id, **options)

    async def settle(self, call_id: str, *, by: str | None = None, **options: Any) -> Approval:
        return await self._remote.client.settle(self.info.id, call_id, **options)

    async def answer_question(self, call_id: str, *, by: str | None = None, **options: Any) -> Approval:
        return await self._remote.client.answer(self.info.id, call_id, **options)

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> None:
        await self._remote.client.cancel(self.info.id, reason=reason)

    async def send(self, text: str, *, by: str | None = None) -> bool:
        return await self._remote.client.send(self.info.id, text)


@dataclass(frozen=True)
class _Listed:
    """A run in a list, by the names of a store's row."""

    run_id: str
    interaction_id: str
    parent: str | None
    tenant: str
    agent: str
    status: str
    ended_by: str | None
    key: str | None
    created_at: int
    updated_at: int
    data: dict[str, JsonValue]

    def to_json(self) -> dict[str, JsonValue]:
        """The row as the server writes it."""
        return self.data


class Remote:
    """What the commands ask of a Runtime. The tenant is the key's, so ``tenant`` says nothing.

    Args:
        url: the server's address.
    """

    def __init__(self, url: str) -> None:
        self.client = AsyncClient(url)
        self._runs: dict[str, RemoteRun] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    def register(self, agent: object) -> None:
        """The server has its agents."""

    async def start(self, agent: str, prompt: str, *, caller: object, **options: Any) -> RemoteRun:
        return self._held(await self.client.start(agent, prompt, **options))

    async def get(self, run_id: str, tenant: str = "") -> RemoteRun:
        return self._held(await self.client.get(run_id))

    def _held(self, info: RunInfo) -> RemoteRun:
        """The one handle of a run, which shows what was heard last."""
        run = self._runs.setdefault(info.id, RemoteRun(self, info))
        run.info = info
        return run

    async def runs(self, *, tenant: str, limit: int, **where: Any) -> list[_Listed]:
        return [_listed(run) async for run in self.client.runs(limit=limit, **where)]

    async def timeline(self, run_id: str, *, thread: object = ..., tenant: str = "") -> list[Row]:
        run = await self.get(run_id)
        rows = await self.client.timeline(run_id)  # of all threads that the key sees
        if run.open and rows and rows[-1].kind == "ended":
            await run.refresh()  # it has ended in between: its answer belongs to these rows
        return rows

    def events(self, run_id: str, *, after: int, to_end: bool, tenant: str = "") -> AsyncIterator[Event]:
        return self.client.events(run_id, after=after, to_end=to_end)

    async def approvals(self, run_id: str | None = None, *, tenant: str = "") -> list[Approval]:
        return [one async for one in self.client.approvals(run_id)]

    async def errors(self, run_id: str | None, *, tenant: str = "", **where: Any) -> list[ToolErrorReport]:
        return [one async for one in self.client.errors(run_id, **where)]

    async def error_groups(self, run_id: str | None, *, tenant: str = "", **where: Any) -> list[ReportGroup]:
        if run_id is not None:
            raise Stop("a server counts the reports of all runs; leave out RUN, or --group")
        return await self.client.error_groups(**where)

    async def tool_result(self, run_id: str, sequence: int, *, tenant: str = "", **piece: Any) -> Any:
        return await self.client.tool_result(run_id, sequence, **piece)


def _listed(run: RunInfo) -> _Listed:
    return _Listed(
        run.run_id, run.interaction_id, run.parent_run_id, str(run.data.get("tenant")), run.agent, run.status,
        run.ended_by, run.key, micros(run.created_at), micros(run.updated_at), run.data,
    )  # fmt: skip  # two rows
