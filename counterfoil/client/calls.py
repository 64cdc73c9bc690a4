"""The client for asyncio, which is the source of the other one."""

from __future__ import annotations

import ssl
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import EllipsisType
from typing import Any, Self, cast

from counterfoil.client.following import follow
from counterfoil.client.values import (
    AgentInfo,
    InteractionInfo,
    RunInfo,
    ToolInfo,
    camel,
    group_of,
    made,
    report_of,
    run_info,
)
from counterfoil.client.wire import Calm, Way, Wire, part, pause
from counterfoil.core.approval import Approval
from counterfoil.core.errors import NotFound, UsageError
from counterfoil.core.events import Event
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.report import ReportGroup, ToolErrorReport
from counterfoil.core.result import ToolResult
from counterfoil.core.row import Row
from counterfoil.core.turn import AuthorType, micros
from counterfoil.store import KeptRange

PAGE = 200
"""Items of a page, at most."""


class AsyncClient:
    """A client of the HTTP API, for asyncio. An async context manager.

    Its errors are those of `Runtime`, with the server's own sentence; and `ServerError` where the server cannot be
    reached, refuses the key or fails. What is lost on the way is asked again where that cannot do a thing twice.

    Args:
        base_url: the server's address, such as ``https://agents.example.com``; else COUNTERFOIL_URL.
        key: of `counterfoil keys create`; else COUNTERFOIL_KEY; a server for development needs none. It stands in no
            error and in no ``repr``.
        timeout: seconds for a connection, and for each piece of an answer.
        retries: how often a request is tried again.
        patience: seconds for which a stream of events that brings nothing new is connected again.
        verify: for TLS; None: the certificates that Python trusts.

    Raises:
        UsageError: there is no address, or it or the key cannot be one.
        DefinitionError: the extra ``client`` is not installed.
    """

    _way: type[Way] = Calm

    def __init__(
        self, base_url: str | None = None, key: str | None = None, *, timeout: float = 30.0, retries: int = 3,
        patience: float = 60.0, verify: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip  # two rows
        self._wire = Wire(self._way(), base_url, key, timeout, retries, verify)
        self._patience = patience

    @property
    def base_url(self) -> str:
        """The server's address."""
        return self._wire.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._wire.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._wire.way.close()

    # runs

    async def start(
        self, agent: str, prompt: str, *, interaction: str | None = None, key: str | None = None,
        pool: str = "default", priority: int = 0, not_before: datetime | None = None, approvals: str = "any-order",
        on_disconnect: str = "go-on", limits: Mapping[str, float | None] | None = None,
    ) -> RunInfo:  # fmt: skip  # rows by what belongs together
        """Start a run, on behalf of the key's user.

        Args:
            agent: its name.
            prompt: the first message.
            interaction: the id of an earlier conversation to go on with.
            key: a repeat with the same key and request gives the first run; one is made unless given, so that a
                request whose answer is lost starts no second run.
            pool: which workers may take it up.
            priority: higher goes first where workers choose.
            not_before: it begins then; with a time zone.
            approvals: ``any-order``, or ``one-by-one``.
            on_disconnect: ``cancel``: when the last client that followed its events is gone for a while.
            limits: budgets by their names in `Limits`: steps, calls, tokens, cost, seconds, consecutive_failures; what
                is left out is as the agent has it.

        Raises:
            NotFound: the interaction does not exist for this tenant.
            Conflict: it has an open run, or the key was used for another request.
            UnknownAgent: others are known, and none of this name.
        """
        budget = limits and {camel(name): value for name, value in limits.items()}
        body = {
            "agent": agent, "prompt": prompt, "pool": pool, "priority": priority,
            "notBefore": not_before and not_before.isoformat(), "approvals": approvals, "onDisconnect": on_disconnect,
            "limits": budget,
        }  # fmt: skip  # rows by what belongs together
        path = "/v1/runs" if interaction is None else f"/v1/interactions/{part(interaction)}/runs"
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return run_info(await self._wire.json("POST", path, body=body, headers=headers, again=True))

    async def get(self, run_id: str) -> RunInfo:
        """A run as it stands. Raises NotFound, also for another tenant's."""
        return run_info(await self._wire.json("GET", _run(run_id)))

    async def wait(self, run_id: str, timeout: float | None = None) -> RunInfo:
        """The run, once it has ended or paused.

        Raises:
            NotFound
            TimeoutError: it did neither within ``timeout`` seconds; it goes on.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        found = await self._wire.json("GET", _run(run_id))
        if not run_info(found).open:
            return run_info(found)
        tip = found["context"]["tip"]
        try:
            async for _ in follow(self._wire, _run(run_id), tip, to_end=False, patience=self._patience, ends=ends):
                pass
        except TimeoutError:
            raise TimeoutError(f"run {run_id} is not at rest after {timeout:g} s; it goes on") from None
        return await self.get(run_id)

    async def runs(
        self, *, status: str | None = None, agent: str | None = None, interaction: str | None = None,
        before: str | None = None, limit: int | None = None, roots: bool = False,
    ) -> AsyncGenerator[RunInfo]:  # fmt: skip  # two rows
        """Runs, newest first, page by page.

        Args:
            status: running, paused, completed, limited, cancelled or failed.
            agent: of this agent.
            interaction: of this conversation.
            before: older than this run.
            limit: so many at most.
            roots: none that another run waits for.
        """
        where = {"status": status, "agent": agent, "interaction": interaction, "before": before}
        where["roots"] = "true" if roots else None
        async for item in self._pages("/v1/runs", where, limit):
            yield run_info(item)

    async def create_interaction(
        self, participants: Iterable[tuple[AuthorType, str]] = (), *, key: str | None = None
    ) -> InteractionInfo:
        """Begin a conversation before its first run.

        Args:
            participants: type and name of each: Human, Agent or System.
            key: as of `start`.

        Raises:
            Conflict: the key was used for other participants.
        """
        body = {"participants": [{"type": kind, "name": name} for kind, name in participants]}
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        found = await self._wire.json("POST", "/v1/interactions", body=body, headers=headers, again=True)
        return made(InteractionInfo, found)

    async def interaction(self, interaction_id: str) -> InteractionInfo:
        """A conversation and who takes part in it. Raises NotFound."""
        return made(InteractionInfo, await self._wire.json("GET", f"/v1/interactions/{part(interaction_id)}"))

    async def interactions(self, *, limit: int | None = None) -> AsyncGenerator[InteractionInfo]:
        """Conversations, newest first, page by page."""
        async for item in self._pages("/v1/interactions", {}, limit):
            yield made(InteractionInfo, item)

    async def context(
        self, run_id: str, *, after: int = 0, thread: str | EllipsisType | None = None, limit: int | None = None
    ) -> AsyncGenerator[dict[str, JsonValue]]:
        """The items of a run in reading order, page by page: messages, calls and their results (contract 1.4).

        Args:
            run_id: the run.
            after: a reading number (``sequence``); items with a larger one are given.
            thread: of this thread alone, ``main`` for the main one; another needs the scope ``threads``. None, and the
                dots ``...`` as for a `Runtime`: all that the key may see of the run and of those below it.
            limit: so many at most.

        Raises:
            NotFound
        """
        path = f"{_run(run_id)}/context"
        async for item in self._pages(path, {"thread": thread}, limit, "after", after):
            yield item

    async def timeline(self, run_id: str, *, thread: str | EllipsisType | None = None) -> list[Row]:
        """What happened, in rows for a person; ``thread`` as of `context`. Raises NotFound."""
        found = await self._wire.json("GET", f"{_run(run_id)}/timeline", params={"thread": thread})
        return [made(Row, row) for row in found["rows"]]

    async def items(self, run_id: str, *, thread: str | EllipsisType | None = None) -> list[dict[str, JsonValue]]:
        """The run's items with everything that is on record of them, as `timeline` of the API has them."""
        found = await self._wire.json("GET", f"{_run(run_id)}/timeline", params={"thread": thread})
        return cast("list[dict[str, JsonValue]]", found["items"])

    def events(self, run_id: str, *, after: int | None = None, to_end: bool = False) -> AsyncGenerator[Event]:
        """A run's events from the first, or after an entry, until it ends; or pauses, unless ``to_end``.

        A stream that is cut off is connected again after the last event that came, so none is lost and none comes
        twice. Deltas and progress come while they happen and are not repeated.

        Raises:
            NotFound
            ServerError: for ``patience`` seconds the server could not be reached again, or ended each stream before
                anything new came.
        """
        return follow(self._wire, _run(run_id), after or 0, to_end=to_end, patience=self._patience)

    # people

    async def approvals(self, run_id: str | None = None) -> AsyncGenerator[Approval]:
        """What waits for a decision, oldest first, page by page. Raises NotFound for an unknown run."""
        async for item in self._pages("/v1/approvals", {"run": run_id}, None):
            yield made(Approval, item)

    async def approve(
        self, run_id: str, call_id: str, *, reason: str | None = None,
        input: dict[str, JsonValue] | None = None,  # the contract's own word
        digest: str | None = None,
    ) -> Approval:  # fmt: skip  # two rows
        """Let a call run, perhaps with an edited input. Who decides is the key's user.

        Args:
            run_id: the run.
            call_id: the call.
            reason: why, for the record.
            input: what runs instead; schema and policy must take it.
            digest: of the approval that the person saw. With it the decision counts for no other input, and is sent
                again where its answer was lost.

        Raises:
            NotFound: no such run for this tenant.
            NotPending: no decision is awaited.
            NotAllowed: this user may not decide.
            DecisionConflict: it was decided differently, or ``digest`` is of another input.
            InvalidInput: schema or policy refuse the edited input; the call stays pending.
        """
        return await self._decide(run_id, call_id, "approve", digest, reason=reason, input=input)

    async def reject(
        self, run_id: str, call_id: str, *, reason: str | None = None, digest: str | None = None
    ) -> Approval:
        """Refuse a call; the model reads why. Raises as `approve`."""
        return await self._decide(run_id, call_id, "reject", digest, reason=reason)

    async def settle(
        self, run_id: str, call_id: str, *, rerun: bool = False, result: ToolResult | str | None = None,
        reason: str | None = None, digest: str | None = None,
    ) -> Approval:  # fmt: skip  # two rows
        """Say what became of an interrupted call.

        Args:
            run_id: the run.
            call_id: the call.
            rerun: run it again.
            result: what it gave, or how it failed.
            reason: why, for the record.
            digest: as of `approve`.

        Raises:
            UsageError: neither or both of ``rerun`` and ``result``.
            NotPending: as `approve` raises, and its others.
        """
        if rerun == (result is not None):
            raise UsageError("settle takes one of rerun=True and result=ToolResult")
        if rerun:
            return await self._decide(run_id, call_id, "rerun", digest, reason=reason)
        value = result.to_dict() if isinstance(result, ToolResult) else result
        return await self._decide(run_id, call_id, "record", digest, reason=reason, result=value)

    async def answer(self, run_id: str, call_id: str, *, text: str, digest: str | None = None) -> Approval:
        """Answer a question. Raises as `approve`."""
        return await self._decide(run_id, call_id, "answer", digest, text=text)

    async def _decide(self, run_id: str, call_id: str, decision: str, digest: str | None, **more: object) -> Approval:
        body = {"decision": decision, "digest": digest, **more}
        path = f"{_run(run_id)}/calls/{part(call_id)}/decision"
        # Without a digest a repeat could count for what the call asks next.
        found = await self._wire.json("POST", path, body=body, again=digest is not None)
        return made(Approval, found["approval"])

    async def cancel(self, run_id: str, *, reason: str | None = None) -> RunInfo:
        """End a run: nothing new starts, bodies are told and waited for, every call gets its result. Raises NotFound.

        Returns:
            The run, which may not have ended yet.
        """
        return run_info(await self._wire.json("POST", f"{_run(run_id)}/cancel", body={"reason": reason}, again=True))

    async def send(self, run_id: str, text: str, *, key: str | None = None) -> bool:
        """Queue a message for a run.

        Args:
            run_id: the run.
            text: what the model reads.
            key: as of `start`; it counts within the run.

        Returns:
            True: the run is open and reads it. False: it has ended, and the next run of the interaction reads it.

        Raises:
            NotFound
            Conflict: the key was used for another message.
        """
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        path = f"{_run(run_id)}/messages"
        found = await self._wire.json("POST", path, body={"text": text}, headers=headers, again=True)
        return bool(found["delivered"])

    async def trace(self, run_id: str, *, all: bool = False) -> list[dict[str, JsonValue]]:
        """What the model was asked in each step, and what it answered, as the API has it. Raises NotFound.

        Args:
            run_id: the run.
            all: every message of each request, also those read before.
        """
        pages = self._pages(f"{_run(run_id)}/trace", {"all": "true" if all else None}, None)
        return [step async for step in pages]

    # results and reports

    async def tool_result(self, run_id: str, sequence: int, *, offset: int = 0, limit: int | None = None) -> KeptRange:
        """A whole result, or characters of it.

        Args:
            run_id: the run.
            sequence: the result's number in reading order, as its item and its row have it.
            offset: characters to leave out.
            limit: characters at most.

        Returns:
            The piece, with the size of the whole; of a result that was erased, when that was, and no text.

        Raises:
            NotFound: no result has this number.
        """
        params = {"offset": offset or None, "limit": limit}
        try:
            answer = await self._wire.ask("GET", _result(run_id, sequence), params=params)
        except NotFound as error:
            told = error.problem or {}
            if "erasedAt" not in told:
                raise
            gone = micros(datetime.fromisoformat(str(told["erasedAt"])))
            return KeptRange("", offset, 0, int(str(told["size"])), gone)
        total, size = (int(answer.headers[name]) for name in ("X-Characters", "X-Bytes"))
        return KeptRange(answer.content.decode(), offset, total, size)

    async def save_result(self, run_id: str, sequence: int, path: str | Path) -> int:
        """Write a whole result into a file as UTF-8, piece by piece. The file is there when all of it is.

        Returns:
            Its bytes.

        Raises:
            NotFound: no result has this number, or it was erased.
            OSError: the file cannot be written.
        """
        import httpx2

        target = Path(path)
        for attempt in range(self._wire.retries + 1):
            answer = await self._wire.ask("GET", _result(run_id, sequence), quiet=self._wire.timeout)
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
                try:
                    async for piece in self._wire.way.pieces(answer):
                        file.write(piece)
                    size = file.tell()
                    file.close()
                    Path(file.name).replace(target)  # noqa: ASYNC240  # a rename
                    return size
                except httpx2.RequestError as fault:
                    if attempt == self._wire.retries:
                        raise self._wire.lost(fault) from None
                finally:
                    await self._wire.way.end(answer)
                    Path(file.name).unlink(missing_ok=True)  # noqa: ASYNC240  # as the rename
            await self._wire.way.sleep(pause(attempt))
        raise AssertionError  # the last attempt returns or raises

    async def errors(
        self, run_id: str | None = None, *, tool: str | None = None, code: int | None = None,
        since: datetime | None = None, until: datetime | None = None, limit: int | None = None,
    ) -> AsyncGenerator[ToolErrorReport]:  # fmt: skip  # two rows
        """Error reports, newest first, page by page; the key needs the scope ``admin``.

        Args:
            run_id: of this run alone.
            tool: of this tool.
            code: with this code.
            since: a time with its zone: none that are older.
            until: as ``since``: none that are newer.
            limit: so many at most.

        Raises:
            NotFound: there is no such run.
        """
        where = {"tool": tool, "code": code, "since": _time(since), "until": _time(until)}
        async for item in self._pages("/v1/errors" if run_id is None else f"{_run(run_id)}/errors", where, limit):
            yield report_of(item)

    async def error_groups(
        self, *, tool: str | None = None, code: int | None = None, since: datetime | None = None,
        until: datetime | None = None, limit: int = 100,
    ) -> list[ReportGroup]:  # fmt: skip  # two rows
        """What `errors` gives of all runs, counted by tool and code, what was seen last first."""
        where = {"tool": tool, "code": code, "since": _time(since), "until": _time(until), "limit": limit}
        return [group_of(item) for item in (await self._wire.json("GET", "/v1/errors/groups", params=where))["items"]]

    # the server

    async def agents(self) -> list[AgentInfo]:
        """The agents of the server, by name."""
        return [made(AgentInfo, item) for item in (await self._wire.json("GET", "/v1/agents"))["items"]]

    async def tools(self) -> list[ToolInfo]:
        """The tools of each agent of the server."""
        return [made(ToolInfo, item) for item in (await self._wire.json("GET", "/v1/tools"))["items"]]

    async def _pages(
        self, path: str, params: Mapping[str, object], limit: int | None, name: str = "cursor", place: object = None
    ) -> AsyncGenerator[dict[str, Any]]:
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            page = await self._wire.json("GET", path, params={**params, name: place, "limit": size})
            for item in page["items"]:
                yield item
            left = None if left is None else left - len(page["items"])
            place = page["next"]
            if place is None:
                return


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _run(run_id: str) -> str:
    return f"/v1/runs/{part(run_id)}"


def _result(run_id: str, sequence: int) -> str:
    return f"{_run(run_id)}/tool-results/{sequence:d}"
