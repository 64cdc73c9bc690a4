"""How records look on a terminal: rows of 80 columns without frames, readable without colour."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, cast

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from counterfoil.core.approval import Approval
from counterfoil.core.jsontext import JsonValue, normal
from counterfoil.core.narrate import waits_text
from counterfoil.core.report import ToolErrorReport, store_error
from counterfoil.core.timeline import Row
from counterfoil.core.turn import moment, thread_kind
from counterfoil.core.wire import run_json
from counterfoil.doors.cli.output import Out
from counterfoil.doors.cli.plain import block, escaped, line
from counterfoil.doors.cli.remote import RemoteRun
from counterfoil.run import Run

__all__ = [
    "approval_lines",
    "counted",
    "error_lines",
    "facts",
    "moment_text",
    "of_run",
    "pretty",
    "print_run",
    "print_table",
    "row_lines",
    "rows_of",
    "short_ids",
    "status_text",
    "when",
    "without_answer",
]

WHO_WIDTH: Final = 14
TIME_WIDTH: Final = 8
SHORTEST_ID: Final = 8
"""Characters of a shortened id at least: as many as people are used to from elsewhere."""
LAST_WIDTH: Final = 16
"""Columns that the last column of a table keeps, however wide the others are."""
SHOWN_INPUT: Final = 2000
"""Characters of an input that a person is asked about; what is left out is said."""

MARKS: Final = {
    "succeeded": ("✓ ok", "green"),
    "failed": ("✗ failed", "red"),
    "denied": ("⊘ denied", "red"),
    "rejected": ("✗ rejected", "yellow"),
    "skipped": ("↷ skipped", "dim"),
    "cancelled": ("■ cancelled", "yellow"),
    "waiting": ("? waits", "yellow"),
    "interrupted": ("! interrupted", "yellow"),
    "started": ("▶ runs", "cyan"),
    "judged": ("· judged", "dim"),
}
"""Each outcome and open state: a sign with its word, so that neither colour nor font is needed."""

_STATUS_STYLE: Final = {
    "completed": "green",
    "failed": "red",
    "paused": "yellow",
    "limited": "yellow",
    "cancelled": "yellow",
    "running": "cyan",
}


def of_run(run: Run, hint: str | None = None) -> dict[str, JsonValue]:
    """The run as JSON, as every door writes it; ``hint``: as `Run.hint` gives it."""
    if isinstance(run, RemoteRun):
        return run.to_json()
    # The fold is what a view is made of.
    return {**run_json(run._fold.record, run.id, run.interaction_id, run._now), "hint": hint}


def when(at: datetime, *, day: bool = False) -> str:
    """A time of day in UTC, with its date where the day is not plain."""
    return f"{at:%Y-%m-%d %H:%M:%S}" if day else f"{at:%H:%M:%S}"


def pretty(value: JsonValue, max_chars: int | None = None) -> str:
    """A value as JSON over several lines; what is hidden or moves text is written as an escape."""
    text = escaped(json.dumps(normal(value), ensure_ascii=False, indent=2))
    if max_chars is not None and len(text) > max_chars:
        return f"{text[:max_chars]}\n… {len(text) - max_chars} more characters"
    return text


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """The shortest beginnings that tell these ids apart, all of one length."""
    for length in range(SHORTEST_ID, max(map(len, ids), default=0)):
        if len({i[:length] for i in ids}) == len(set(ids)) and not any(i[:length].endswith("-") for i in ids):
            return {i: i[:length] for i in ids}
    return {i: i for i in ids}


def status_text(status: str, ended_by: str | None = None) -> Text:
    """A run's status, with what ended it."""
    return Text(
        f"{status} ({ended_by})" if ended_by not in (None, status) else status,
        style=_STATUS_STYLE.get(status, ""),
    )


def print_table(
    console: Console,
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text | int | None]],
    most: int | None = None,
) -> None:
    """A table without frames: the last column wraps, the others keep their width where there is room.

    With ``most``, they wrap at so many characters, so that what is long in the last one is not broken.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=most is None, overflow="ellipsis", max_width=most)
    table.add_column(headings[-1], overflow="fold", ratio=1, min_width=LAST_WIDTH)
    for row in rows:
        table.add_row(
            *(cell if isinstance(cell, Text) else Text("" if cell is None else line(str(cell))) for cell in row)
        )
    console.print(table)


def facts(console: Console, pairs: Iterable[tuple[str, str | Text | None]]) -> None:
    """Names and values, a row each; what is None has no row."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for name, value in pairs:
        if value is not None:
            table.add_row(Text(name), value if isinstance(value, Text) else Text(block(value)))
    console.print(table)


# ---------------------------------------------------------------------------------------- the timeline


def row_lines(row: Row, *, full: bool = False) -> RenderableType:
    """A row of the timeline: time, who or which tool, what happened; notes below.

    Args:
        row: from `core.timeline`.
        full: with the number of its result, the input and the details.
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=TIME_WIDTH, no_wrap=True)
    table.add_column(width=WHO_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_column(overflow="fold", ratio=1)
    table.add_row(Text(when(row.at), style="dim"), Text(line(_who(row)), style="bold"), _what(row, full=full))
    for note in row.notes:
        table.add_row("", "", Text(line(note), style="dim"))
    if not full:
        return table
    extra: list[RenderableType] = [table]
    for name, value in (("input", row.input), ("details", row.details)):
        if value is not None:
            extra.append(Padding(Text(f"{name} {pretty(value)}", style="dim"), (0, 0, 0, TIME_WIDTH + 2)))
    return Group(*extra)


def _who(row: Row) -> str:
    if row.kind == "call" and row.tool_name:
        return row.tool_name
    return row.author.name


def _what(row: Row, *, full: bool) -> Text:
    text = Text()
    mark = MARKS.get(row.outcome or row.state or "") if row.kind == "call" else None
    if mark is not None:
        word, style = mark
        text.append(f"{word} {row.code}" if row.code is not None else word, style=style)
        text.append(" · ")
    text.append(line(row.text))
    if full and row.outcome is not None:
        text.append(f" (result {row.sequence})", style="dim")
    if row.ended_run:
        text.append(" (ended the run)", style="dim")
    return text


# ------------------------------------------------------------------------------- approvals and reports


def approval_lines(approval: Approval) -> RenderableType:
    """All that a person decides on: the tool, why it is asked, and the exact input with nothing hidden."""
    title = Text()
    title.append({"approval": "approve? ", "interrupted": "interrupted: ", "question": "question: "}[approval.kind])
    title.append(line(approval.tool_name, 100), style="bold")
    title.append(f"  (call {line(approval.call_id, 100)}, run {line(approval.run_id, 100)})", style="dim")
    parts: list[RenderableType] = [title]
    asked = [f"rule {approval.rule}" if approval.rule else "the tool or the policy's default asks"]
    if approval.kind == "question":
        asked = [f"{approval.agent} asks {', '.join(approval.approvers)}"]
    asked += [approval.reason] if approval.reason else []
    if approval.kind == "interrupted":
        asked = [approval.reason or "the process ended while it ran; nobody can say what it did"]
    asked.append(f"since {when(approval.requested_at, day=True)} UTC")
    if approval.expires_at is not None:
        asked.append(f"expires {when(approval.expires_at, day=True)} UTC")
    parts.append(Padding(Text(line("; ".join(asked))), (0, 0, 0, 2)))
    parts.append(Padding(Text(pretty(approval.effective_input, SHOWN_INPUT)), (0, 0, 0, 2)))
    return Group(*parts)


def error_lines(console: Console, report: ToolErrorReport) -> None:
    """A report whole: for the developer, with nothing held back."""
    error = store_error(report.error)
    stored: dict[str, JsonValue] = error if isinstance(error, dict) else {}
    causes = stored.get("causes")
    facts(
        console,
        [
            ("when", f"{when(report.at, day=True)} UTC"),
            ("tool", f"{report.tool_name}, call {report.call_id}, step {report.step_index}"),
            ("run", f"{report.run_id}, thread {report.thread_id}"),
            ("caller", f"{report.user_context.user or 'nobody'} of {report.tenant_id}"),
            ("code", None if report.code is None else str(report.code)),
            ("error", f"{stored.get('type')}: {stored.get('message')}"),
            ("causes", "\n".join(map(str, causes)) if isinstance(causes, list) and causes else None),
            ("model read", report.model_text),
            ("took", f"{report.duration_ms:.1f} ms"),
            ("attempts", "\n".join(report.attempts) or None),
            ("input", Text(pretty(report.input))),
            ("partial", None if report.partial is None else Text(pretty(report.partial))),
        ],
    )
    if stored.get("traceback"):
        console.print(Padding(Text(block(str(stored["traceback"])).rstrip()), (0, 0, 0, 2)))


def print_run(out: Out, run: Run, hint: str | None) -> None:
    """The head of a run's page."""
    data = of_run(run)
    usage = run.usage
    tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
    spent = f"{counted(run.steps, 'step')}, {counted(cast('int', data['calls']), 'call')}, {tokens}"
    facts(
        out.console,
        [
            ("run", run.id),
            ("agent", line(run.agent)),
            ("works for", None if data["parentRunId"] is None else f"run {data['parentRunId']}"),
            ("user", None if data["user"] is None else line(str(data["user"]))),
            ("status", status_text(run.status, run.ended_by)),
            ("waits for", line(waits_text(run.waits_for, run.id)) or None),
            ("hint", hint),
            ("reason", None if run.reason is None else line(run.reason)),
            ("spent", spent),
            ("interaction", run.interaction_id),
        ],
    )


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its word: 1 call, 2 calls."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def without_answer(rows: Sequence[Row]) -> list[Row]:
    """The rows without the turn whose text ended the run: it is the answer, which stands below whole."""
    last = rows[-1] if rows else None
    if len(rows) > 1 and last is not None and last.kind == "ended" and rows[-2].kind == "turn":
        return [*rows[:-2], last]
    return list(rows)


def rows_of(rows: Sequence[Row], run_id: str) -> list[Row]:
    """The rows of one run, without what repeats its task and its answer for its agent's later runs."""
    return [row for row in rows if row.run_id == run_id and thread_kind(row.thread_id) != "private"]


def moment_text(at: int) -> str:
    """Microseconds since 1970 as a date and time in UTC."""
    return when(moment(at), day=True)
