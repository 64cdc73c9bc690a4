"""Commands that read the record: show, runs, errors, result."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from counterfoil.core.jsontext import JsonValue
from counterfoil.core.report import ReportGroup, ToolErrorReport, store_error
from counterfoil.core.turn import date_json, moment
from counterfoil.core.wire_live import group_json, report_json
from counterfoil.doors.cli.ages import ago
from counterfoil.doors.cli.common import RunArgument, Session, command, find_run
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.plain import block, line
from counterfoil.doors.cli.view import (
    error_lines,
    moment_text,
    of_run,
    print_run,
    print_table,
    row_lines,
    rows_of,
    short_ids,
    status_text,
    when,
    without_answer,
)
from counterfoil.run import Run
from counterfoil.runtime import Runtime

__all__ = ["app"]

app = typer.Typer()

CHUNK = 64 * 1024
"""Characters of a result that are read and printed at once: a result of any size takes this much memory."""

STATUSES = ("running", "paused", "completed", "limited", "cancelled", "failed")

_LIMIT = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="How many at most.")]


@command(app, server=True)
async def show(
    session: Session,
    run: RunArgument,
    *,
    full: Annotated[bool, typer.Option("--full", help="With each call's number, input and details.")] = False,
) -> int:
    """The timeline of a run and of the runs that it waits for, and its answer."""
    async with session.reader() as runtime:
        found = await find_run(session, runtime, run)
        rows = await runtime.timeline(found.id, thread=..., tenant=session.tenant)
        hint = await found.hint()
        if session.json:
            session.out.data({**of_run(found, hint), "timeline": [row.to_json() for row in rows]})
            return Code.DONE
        print_run(session.out, found, hint)
        for one in dict.fromkeys([found.id, *(row.run_id for row in rows)]):
            of = rows_of(rows, one)
            session.out.console.print()
            if one != found.id:
                session.out.console.print(Text(f"child run {one}", style="bold"))
            for row in without_answer(of) if one == found.id and found.answer else of:
                session.out.console.print(row_lines(row, full=full))
        if found.answer:
            session.out.console.print()
            session.out.say(found.answer)
    return Code.DONE


@command(app, server=True)
async def runs(
    session: Session,
    *,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="S", help=f"{', '.join(STATUSES)}."),
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Of this agent.")] = None,
    limit: _LIMIT = 50,
    before: Annotated[str | None, typer.Option("--before", metavar="RUN", help="Older than this run.")] = None,
    roots: Annotated[bool, typer.Option("--roots", help="None that another run waits for.")] = False,
) -> int:
    """Runs, newest first."""
    if status is not None and status not in STATUSES:
        raise Stop(f"--status: expected one of {', '.join(STATUSES)}, got {status!r:.80}")
    async with session.reader() as runtime:
        older = None if before is None else (await find_run(session, runtime, before)).id
        rows = await runtime.runs(
            tenant=session.tenant, status=status, agent=agent, limit=limit, before=older, roots=roots
        )
    if session.json:
        session.out.data([row.to_json() for row in rows])
        return Code.DONE
    if not rows:
        session.out.note("no runs")
        return Code.DONE
    ids = short_ids([*(row.run_id for row in rows), *(row.parent for row in rows if row.parent)])
    print_table(
        session.out.console,
        ("run", "began (UTC)", "status", "agent"),
        [
            (
                ids[row.run_id],
                moment_text(row.created_at),
                status_text(row.status, row.ended_by),
                f"{row.agent} (for {ids[row.parent]})" if row.parent else row.agent,
            )
            for row in rows
        ],
    )
    return Code.DONE


@command(app, server=True)
async def errors(
    session: Session,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Of this run, each report whole.")] = None,
    *,
    tool: Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Of this tool.")] = None,
    code: Annotated[int | None, typer.Option("--code", metavar="N", help="With this code.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="AGE", help="Not older: 12h, 30d, 8w.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="AGE", help="Not newer.")] = None,
    group: Annotated[bool, typer.Option("--group", help="Counted by tool and code.")] = False,
    limit: _LIMIT = 50,
) -> int:
    """Reports of failed calls, newest first.

    Of one run each is shown whole, with everything that is known.
    """
    began = None if since is None else ago("--since", since)
    ended = None if until is None else ago("--until", until)
    async with session.reader() as runtime:
        found = None if run is None else await find_run(session, runtime, run)
        if found is not None:
            await _failed_below(session, runtime, found)
        where: Any = {
            "tool": tool, "code": code, "since": began, "until": ended, "limit": limit, "tenant": session.tenant,
        }  # fmt: skip  # one row
        if group:
            return _print_groups(session, await runtime.error_groups(found.id if found else None, **where))
        reports = await runtime.errors(found.id if found else None, **where)
    if session.json:
        session.out.data([report_json(report) for report in reports])
    elif not reports:
        session.out.note("no reports")
    elif found is not None:
        for number, report in enumerate(reports):
            if number:
                session.out.console.rule(style="dim", characters="-")
            error_lines(session.out.console, report)
    else:
        ids = short_ids([report.run_id for report in reports])
        print_table(
            session.out.console,
            ("when (UTC)", "run", "tool", "code", "error"),
            [(when(r.at, day=True), ids[r.run_id], line(r.tool_name, 20), r.code, _error_line(r)) for r in reports],
        )
    return Code.DONE


async def _failed_below(session: Session, runtime: Runtime, run: Run) -> None:
    """Say which runs below this one have reports of their own."""
    rows = await runtime.timeline(run.id, thread=..., tenant=session.tenant)
    for one in dict.fromkeys(row.run_id for row in rows if row.outcome == "failed" and row.run_id != run.id):
        session.out.note(f"a run below it has reports too: counterfoil errors {one}{session.store_flags()}")


def _print_groups(session: Session, groups: Sequence[ReportGroup]) -> int:
    if session.json:
        session.out.data([group_json(group) for group in groups])
    elif not groups:
        session.out.note("no reports")
    else:
        print_table(
            session.out.console,
            ("count", "tool", "code", "first (UTC)", "last (UTC)"),
            [(g.count, line(g.tool_name, 40), g.code, moment_text(g.first_us), moment_text(g.last_us)) for g in groups],
        )
    return Code.DONE


def _error_line(report: ToolErrorReport) -> str:
    error = store_error(report.error)
    stored: dict[str, JsonValue] = error if isinstance(error, dict) else {}
    # The class alone: in full, with its module, it stands in the report.
    return line(f"{str(stored.get('type')).rpartition('.')[2]}: {stored.get('message')}", 200)


@command(app, server=True)
async def result(
    session: Session,
    run: RunArgument,
    sequence: Annotated[
        int, typer.Argument(metavar="SEQUENCE", min=1, help="The result's number; show --full tells it.")
    ],
    *,
    offset: Annotated[int, typer.Option("--offset", min=0, metavar="N", help="Characters to leave out.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="Characters at most.")] = None,
) -> int:
    """A whole result, or a range of its characters.

    To a file or a pipe it is written as it is; to a terminal without what could steer it.
    """
    async with session.reader() as runtime:
        found = await find_run(session, runtime, run)
        if session.json:
            piece = await runtime.tool_result(found.id, sequence, offset=offset, limit=limit, tenant=session.tenant)
            session.out.data(
                {
                    "runId": found.id,
                    "sequence": sequence,
                    "text": piece.text,
                    "offset": piece.offset,
                    "total": piece.total,
                    "size": piece.size,
                    "erasedAt": None if piece.erased_at is None else date_json(moment(piece.erased_at)),
                }
            )
            return Code.DONE
        return await _stream(session, runtime, found.id, sequence, offset=offset, limit=limit)


async def _stream(
    session: Session, runtime: Runtime, run_id: str, sequence: int, *, offset: int, limit: int | None
) -> int:
    out = session.out
    last = ""
    while True:
        size = CHUNK if limit is None else min(limit, CHUNK)
        piece = await runtime.tool_result(run_id, sequence, offset=offset, limit=size, tenant=session.tenant)
        if piece.erased_at is not None:
            out.note(f"the result was erased at {moment_text(piece.erased_at)} UTC; it had {piece.size} bytes")
            return Code.NOT_FOUND
        out.raw(block(piece.text) if out.terminal else piece.text)
        last = piece.text[-1:] or last
        offset += len(piece.text)
        limit = None if limit is None else limit - len(piece.text)
        if not piece.text or offset >= piece.total or limit == 0 or out.broken:
            break
    if out.terminal and last != "\n":
        out.raw("\n")
    return Code.DONE
