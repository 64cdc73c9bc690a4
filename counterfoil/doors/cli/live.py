"""A run on the terminal while it goes on: its rows as they come, and a person's decisions."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from rich.text import Text

from counterfoil.core.approval import Approval
from counterfoil.core.errors import InvalidInput, RecordError
from counterfoil.core.events import CallProgress, Event, TurnDelta
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.timeline import Row
from counterfoil.doors import wiring
from counterfoil.doors.cli.common import Session
from counterfoil.doors.cli.errors import Code, code_of_status
from counterfoil.doors.cli.plain import block, line
from counterfoil.doors.cli.remote import Remote
from counterfoil.doors.cli.terminal import Terminal
from counterfoil.doors.cli.view import approval_lines, counted, row_lines, rows_of, status_text, without_answer
from counterfoil.run import Run
from counterfoil.runtime import Runtime

__all__ = ["Follower", "attended", "drive", "print_end"]

LOOK_SECONDS = 0.1
"""How often a run that is driven here looks for what other processes put on record: a decision, a cancel."""

SHOW_SECONDS = 0.1
"""Rows are shown so long after an event at the latest, those of all events that come meanwhile at once."""

_KNOWN = ("run", "message", "ended")
"""Rows that a terse follower leaves out."""

_OPEN_STATES = ("judged", "started")
"""A call in one of these has no row yet: it would be out of date when it is read."""


@asynccontextmanager
async def attended(runtime: Runtime, run: Run) -> AsyncIterator[None]:
    """While inside, decisions and cancels of other processes reach the run that is driven here."""
    if isinstance(runtime, Remote):
        yield
        return

    async def look() -> None:
        seen: object = None
        while True:
            version = await runtime.store.version()
            if version != seen:
                seen = version
                runtime.kick(run.tenant, run.id)
            await asyncio.sleep(LOOK_SECONDS)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@dataclass
class Follower:
    """Prints the rows of a run once each, as they come."""

    session: Session
    runtime: Runtime
    run: Run
    after: int = 0
    """The newest entry that was shown."""
    terse: bool = False
    """Without what a person who types the messages knows: who began, what was said, how it ended."""
    to_end: bool = False
    """Over pauses."""
    below: bool = False
    """Also the runs below it, as far as who reads may see them; their rows come with its own."""
    printed: set[tuple[object, ...]] = field(default_factory=set)
    _told: str = ""
    """Whose row was printed last."""

    def __post_init__(self) -> None:
        self._told = self.run.id

    async def rows(self) -> None:
        """Print until the run ends; or pauses, unless ``to_end``."""
        out, events, clock = self.session.out, self.events(), asyncio.get_running_loop().time
        due: float | None = None
        coming = asyncio.ensure_future(anext(events, None))
        try:
            while not out.broken:
                if due is not None:
                    await asyncio.wait({coming}, timeout=max(due - clock(), 0.0))
                    if due <= clock() or not coming.done():
                        await self._show()
                        due = None
                event = await coming
                if event is None or (due is not None and isinstance(event, CallProgress)):
                    await self._show()
                    due = None
                if event is None:
                    return
                coming = asyncio.ensure_future(anext(events, None))
                if isinstance(event, CallProgress):
                    if out.terminal and not out.json:
                        out.console.print(_progress(event))
                elif due is None and not isinstance(event, TurnDelta):
                    due = clock() + SHOW_SECONDS
        finally:
            coming.cancel()

    async def events(self) -> AsyncIterator[Event]:
        """Its events since the last time, until it ends or pauses, as of `rows`."""
        run, after = self.run, self.after
        async for event in self.runtime.events(run.id, after=after, to_end=self.to_end, tenant=run.tenant):
            self.after = max(self.after, event.entry)
            yield event

    async def _show(self) -> None:
        out = self.session.out
        for row in await self._due():
            self.printed.add(_key(row))
            if out.json:
                continue
            if row.run_id != self._told:
                which = "child run" if row.run_id != self.run.id else "run"
                out.console.print(Text(f"{which} {row.run_id}", style="bold"))
                self._told = row.run_id
            out.console.print(row_lines(row))

    async def pass_over(self) -> None:
        """Take what is on record by now as shown."""
        self.printed |= {_key(row) for row in await self._due()}

    async def _due(self) -> list[Row]:
        """What can be shown and was not yet."""
        rows = await self.runtime.timeline(self.run.id, thread=..., tenant=self.run.tenant)
        mine = rows_of(rows, self.run.id)
        if self.run.answer:
            mine = without_answer(mine)
        elif mine and mine[-1].kind == "turn":
            mine = mine[:-1]  # it may be the answer
        runs = dict.fromkeys(row.run_id for row in rows if row.run_id != self.run.id) if self.below else ()
        mine += [row for one in runs for row in rows_of(rows, one)]
        return [row for row in mine if not self._hidden(row) and _key(row) not in self.printed]

    def _hidden(self, row: Row) -> bool:
        if row.kind == "call":
            return row.state in _OPEN_STATES
        return self.terse and row.kind in _KNOWN


def _key(row: Row) -> tuple[object, ...]:
    if row.kind == "call":
        decided = row.approval.decision if row.approval else None
        return row.run_id, row.kind, row.call_id, row.state, row.outcome, None if row.outcome else decided
    return row.run_id, row.kind, row.at, row.sequence, row.call_id, row.text


def _progress(event: CallProgress) -> Text:
    part = ""
    if event.done is not None:
        part = f" ({event.done:g})" if event.total is None else f" ({event.done:g} of {event.total:g})"
    return Text(f"          {line(event.tool_name, 40)}: {line(event.text, 200)}{part}", style="dim")


async def drive(
    session: Session,
    runtime: Runtime,
    run: Run,
    *,
    yes: bool,
    terminal: Terminal,
    follower: Follower | None = None,
) -> Code:
    """Follow a run that is driven here; ask for what waits, or approve it with ``yes``.

    Args:
        session: of the command.
        runtime: with the run's agent.
        run: what to drive.
        yes: approve.
        terminal: where to ask.
        follower: one that has shown the beginning already.

    Returns:
        How the run stands: ended, or paused because nobody decided.
    """
    follower = follower or Follower(session, runtime, run)
    async with attended(runtime, run):
        while True:
            await follower.rows()
            await run.wait()
            if run.status != "paused" or not await _decide_all(session, runtime, run, yes=yes, terminal=terminal):
                break
    return code_of_status(run.status)


async def _decide_all(session: Session, runtime: Runtime, run: Run, *, yes: bool, terminal: Terminal) -> bool:
    """Whether the run may go on: somebody decided at least one of the calls that wait."""
    moved = False
    for approval in await run.approvals():
        of = run if approval.run_id == run.id else await runtime.get(approval.run_id, run.tenant)
        try:
            if approval.kind == "approval" and yes:
                await of.approve(approval.call_id, by=f"{wiring.login()} (--yes)", digest=approval.digest)
                session.out.say(f"approved by --yes: {line(approval.tool_name, 100)} (call {approval.call_id})")
                moved = True
            elif terminal.attended:
                moved = await _ask(session, of, approval, terminal) or moved
        except RecordError as error:
            # Somebody else was first: the run goes on with that decision.
            session.out.note(str(error))
            moved = True
    return moved


async def _ask(session: Session, run: Run, approval: Approval, terminal: Terminal) -> bool:
    session.out.notes.print(approval_lines(approval))
    asks = {"approval": _ask_approval, "interrupted": _ask_interrupted, "question": _ask_question}
    return await asks[approval.kind](session, run, approval, terminal)


async def _ask_question(session: Session, run: Run, approval: Approval, terminal: Terminal) -> bool:
    del session
    text = await terminal.line("your answer (empty: later)? ")
    if not (text or "").strip():
        return False
    await run.answer_question(approval.call_id, by=wiring.login(), text=text or "")
    return True


async def _ask_approval(session: Session, run: Run, approval: Approval, terminal: Terminal) -> bool:
    by = wiring.login()
    while True:
        answer = await terminal.line("[y]es, [n]o, [e]dit the input, [l]ater? ")
        match (answer or "later").strip().lower():
            case "y" | "yes":
                await run.approve(approval.call_id, by=by, digest=approval.digest)
                return True
            case "n" | "no":
                reason = await terminal.line("why (the model reads it; may be empty)? ")
                await run.reject(approval.call_id, by=by, reason=(reason or "").strip() or None, digest=approval.digest)
                return True
            case "e" | "edit":
                if await _edit(session, run, approval, terminal):
                    return True
            case "l" | "later" | "":
                return False
            case other:
                session.out.note(f"expected y, n, e or l, got {other!r:.40}")


async def _edit(session: Session, run: Run, approval: Approval, terminal: Terminal) -> bool:
    text = await terminal.line("the whole input as JSON on one line (empty: back)? ")
    if not (text or "").strip():
        return False
    try:
        await run.approve(approval.call_id, by=wiring.login(), input=json_object(text or ""), digest=approval.digest)
    except (ValueError, InvalidInput) as error:
        session.out.note(str(error))
        return False
    return True


async def _ask_interrupted(session: Session, run: Run, approval: Approval, terminal: Terminal) -> bool:
    from counterfoil.core.result import ToolResult  # few runs get here

    by = wiring.login()
    while True:
        answer = await terminal.line("[r]un it again, it [d]id its work, it [f]ailed, [l]ater? ")
        match (answer or "later").strip().lower():
            case "r" | "rerun" | "run":
                await run.settle(approval.call_id, by=by, rerun=True, digest=approval.digest)
                return True
            case "d" | "done" | "did":
                text = await terminal.line("what the model reads as its result? ")
                await run.settle(approval.call_id, by=by, result=ToolResult.text(text or ""), digest=approval.digest)
                return True
            case "f" | "failed":
                text = await terminal.line("what the model reads of the failure? ")
                await run.settle(
                    approval.call_id, by=by, result=ToolResult.error(text or "It failed."), digest=approval.digest
                )
                return True
            case "l" | "later" | "":
                return False
            case other:
                session.out.note(f"expected r, d, f or l, got {other!r:.40}")


def json_object(text: str) -> dict[str, JsonValue]:
    """The JSON object that a person typed.

    Raises:
        ValueError: it is none; says where.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("expected a JSON object, got one that is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"expected a JSON object, got {text!r:.80}, which is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f'expected a JSON object such as {{"cents": 100}}, got {text!r:.80}')
    return value


async def print_end(session: Session, run: Run, spec: str) -> None:
    """The answer; or, of a paused run, what to type next."""
    out, flags = session.out, session.store_flags()
    if run.answer:
        if not out.json:
            out.console.print()
            out.console.print(Text(block(run.answer)))
        return
    if run.status == "paused":
        waiting = await run.approvals()
        out.say(f"paused: {counted(len(waiting), 'call')} of run {run.id} waiting for a person")
        ids = [approval.call_id for approval in waiting]
        for approval in waiting:
            of = approval.run_id if ids.count(approval.call_id) > 1 else run.id  # what waits below may be decided here
            call, more = f"{of} {approval.call_id}", flags + (f" --with {spec}" if session.server is None else "")
            if approval.kind == "interrupted":
                out.say(f"  counterfoil settle {call}{more} --rerun")
            elif approval.kind == "question":
                out.say(f"  counterfoil answer {call} TEXT{more}")
            else:
                out.say(f"  counterfoil approve {call}{more}")
    else:
        why = f": {line(run.reason)}" if run.reason else ""
        out.say(f"{status_text(run.status, run.ended_by)}{why}")
