"""`import` and `export`: conversations of other programs onto the record and from it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from counterfoil import Caller
from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import JsonValue
from counterfoil.doors.cli.common import RunArgument, Session, command, find_run
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.plain import line
from counterfoil.doors.cli.view import counted, print_table, short_ids
from counterfoil.run import Run
from counterfoil.transcripts import FORMATS, Transcript, body_of, export_messages, import_messages, read_messages
from counterfoil.transcripts import transcript_of as read_run
from counterfoil.transcripts.files import read_values

__all__ = ["app"]

app = typer.Typer()

SHOWN = 20
"""Repairs that are told one by one; `show` and ``--json`` have all."""


@command(app, name="import")
async def import_(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON, or JSON Lines.")],
    *,
    form: Annotated[
        str | None, typer.Option("--format", metavar="F", help=f"{', '.join(FORMATS)}; told apart unless given.")
    ] = None,
    agent: Annotated[
        str, typer.Option("--agent", metavar="NAME", help="The agent whose runs they are on record.")
    ] = "imported",
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user whose runs they are.")] = None,
) -> int:
    """Put conversations of other programs on record, each as a run that has ended.

    All are read before the first is recorded: a file in which one cannot be read changes nothing. Histories in which
    calls and results do not pair are repaired, and each repair is told and on record.
    """
    read = _conversations(file, form)
    done: list[tuple[Transcript, Run]] = []
    async with session.writer() as runtime:
        for transcript in read:
            caller = Caller(session.tenant, user)
            done.append((transcript, await import_messages(runtime, transcript, agent=agent, caller=caller)))
    if session.json:
        session.out.data([_json(transcript, run) for transcript, run in done])
        return Code.DONE
    ids = short_ids([run.id for _, run in done])
    rows = [
        (ids[run.id], line(t.source, 40), t.format, run.steps, len(run.calls), len(_repairs(run)) or None)
        for t, run in done
    ]
    print_table(session.out.console, ("run", "from", "format", "turns", "calls", "repairs"), rows)
    told = [(ids[run.id], repair) for _, run in done for repair in _repairs(run)]
    for run_id, repair in told[:SHOWN]:
        said = line(f"{repair['place']}: {repair['why']}", 300)
        session.out.console.print(Text(f"{run_id} {said}", style="yellow"))
    if len(told) > SHOWN:
        session.out.say(f"and {counted(len(told) - SHOWN, 'repair')} more; `counterfoil show RUN` tells them")
    return Code.DONE


def _repairs(run: Run) -> list[dict[str, JsonValue]]:
    repairs = (run.imported or {}).get("repairs")
    return [one for one in repairs if isinstance(one, dict)] if isinstance(repairs, list) else []


def _json(transcript: Transcript, run: Run) -> JsonValue:
    return {
        "runId": run.id,
        "interactionId": run.interaction_id,
        "source": transcript.source or None,
        "format": transcript.format,
        "turns": run.steps,
        "calls": len(run.calls),
        "repairs": [*_repairs(run)],
    }


def _conversations(file: Path, form: str | None) -> list[Transcript]:
    """A file's conversations: one whose messages are its values, or one for each value."""
    values = read_values(file)
    if not values:
        raise Stop(f"{file} holds nothing to import; expected messages, or conversations with their messages")
    many = [isinstance(v, list) or (isinstance(v, dict) and ("messages" in v or "input" in v)) for v, _ in values]
    if not any(many):
        return [_read([v for v, _ in values], str(file), form)]
    if not all(many):
        place = values[many.index(False)][1]
        raise Stop(f"{place}: expected a conversation as in the others, with its messages under messages or input")
    return [_read(v, str(file) if len(values) == 1 else place, form) for v, place in values]


def _read(value: JsonValue, place: str, form: str | None) -> Transcript:
    try:
        return read_messages(value, form)
    except DefinitionError as error:
        raise Stop(f"{place}: {error}") from error


@command(app)
async def export(
    session: Session,
    run: RunArgument,
    *,
    form: Annotated[str, typer.Option("--format", metavar="F", help=f"{', '.join(FORMATS)} or ui.")] = "openai",
    conversation: Annotated[
        bool, typer.Option("--conversation", help="With the runs of its conversation before it.")
    ] = False,
) -> int:
    """A run as messages of another program, as JSON."""
    async with session.reader() as runtime:
        found = await find_run(session, runtime, run)
        messages = export_messages(found, form, conversation=conversation)
        session.out.data(body_of(read_run(found, conversation=conversation), messages, form))
        if found.status in ("running", "paused") and form != "ui":
            session.out.note(f"the run is {found.status}: a turn whose calls have no result yet is left out")
    return Code.DONE
