"""`replay`: a run step by step from its record, and what today's code would do otherwise."""

from collections.abc import Iterator
from typing import Annotated, Final, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from counterfoil.core.differences import Difference
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.narrate import TURN_ENDS
from counterfoil.doors.cli.common import RunArgument, Session, command, find_run
from counterfoil.doors.cli.errors import Code
from counterfoil.doors.cli.load import load_agent
from counterfoil.doors.cli.plain import block, line
from counterfoil.doors.cli.view import counted, facts, status_text
from counterfoil.replay import Replay, ReplayStep

__all__ = ["app"]

app = typer.Typer()

SHOWN: Final = 300
"""Characters of a message or an input that are shown, unless all is asked for."""
WHO_WIDTH: Final = 14


@command(app)
async def replay(
    session: Session,
    run: RunArgument,
    agent: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:AGENT]", help="Whose code of today is asked; the record alone unless given."),
    ] = None,
    *,
    full: Annotated[bool, typer.Option("--full", help="Each request whole, not only what is new in it.")] = False,
) -> int:
    """Replay a run from its record: what the model read and answered, step by step.

    With its agent, today's code is asked again: policy, schemas, guards, texts, the end. Recorded turns stand in for
    the model and recorded results for the tools, so no effect is repeated. Ends with 1 where something differs.
    """
    asked = None if agent is None else load_agent(agent)
    async with session.reader() as runtime:
        found = await find_run(session, runtime, run)
        again = await runtime.replay(found.id, agent=asked, tenant=session.tenant)
    code = Code.DONE if again.ok else Code.FAILED
    if session.json:
        session.out.data(again.to_json(all_=full))
        return code
    console = session.out.console
    facts(
        console,
        [
            ("run", found.id),
            ("agent", line(found.agent)),
            ("status", status_text(found.status, found.ended_by)),
            ("replayed", _how(again)),
        ],
    )
    for step in again.steps:
        console.print()
        _print_step(console, step, full=full)
    if again.ended is not None and again.ended.answer is None and again.ended.reason:
        console.print(Text(f"\n{line(again.ended.reason)}"))
    _print_verdict(console, again)
    return code


def _how(again: Replay) -> str:
    if again.agent is None:
        return "from the record alone; with MODULE:AGENT behind it, today's code is asked too"
    return f"with {line(again.agent)} of today; no tool ran"


def _print_step(console: Console, step: ReplayStep, *, full: bool) -> None:
    old = "" if full or not step.read_before else f", {step.read_before} of them as before"
    console.print(Text(f"step {step.step}: the model read {counted(step.request.length, 'item')}{old}", style="bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=2)
    table.add_column(width=WHO_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_column(overflow="fold", ratio=1)
    for message in step.messages(all_=full):
        # What the model said itself stands in the step before, unless that is another run's.
        if full or not step.read_before or message["role"] != "assistant":
            for who, text in _rows(message):
                table.add_row("", Text(line(who)), Text(_shown(text, full=full), style="dim"))
    if step.broken is not None:
        table.add_row("✗", "pairs", Text(line(step.broken), style="red"))
    if step.turn.text:
        table.add_row("▸", Text("said", style="bold"), Text(_shown(step.turn.text, full=full)))
    for call in step.turn.calls:
        table.add_row("▸", Text(line(call.tool_name), style="bold"), Text(_shown(call.raw, full=full)))
    if step.turn.stop in TURN_ENDS:
        table.add_row("▸", "", f"({TURN_ENDS[step.turn.stop]})")
    console.print(table)


def _rows(message: dict[str, JsonValue]) -> Iterator[tuple[str, str]]:
    text = cast("str | None", message["content"])
    if message["role"] == "tool":
        yield f"= {message['tool_name']}", text or ""
        return
    if text:
        yield str(message["role"]), text
    for call in cast("list[dict[str, str]]", message.get("tool_calls") or []):
        yield call["name"], call["arguments_raw"]


def _shown(text: str, *, full: bool) -> str:
    return block(text) if full else line(text, SHOWN)


def _print_verdict(console: Console, again: Replay) -> None:
    console.print()
    steps = counted(len(again.steps), "step")
    broken = sum(step.broken is not None for step in again.steps)
    if again.ok:
        word = "calls and results pair in each request" if again.agent is None else "nothing differs from the record"
        console.print(Text(f"✓ ok: {steps}, {word}", style="green"))
        return
    for difference in again.differences:
        _print_difference(console, difference)
    found = [counted(len(again.differences), "difference")] if again.differences else []
    found += [f"{counted(broken, 'request')} that no model may be sent"] if broken else []
    console.print(Text(f"✗ {', '.join(found)} in {steps}", style="red"))


def _print_difference(console: Console, difference: Difference) -> None:
    d = difference
    place = [f"step {d.step}"] if d.step is not None else []
    place += [f"{d.tool_name} ({d.call_id})"] if d.tool_name is not None else []
    console.print(Text(line(f"≠ {': '.join([d.kind, ', '.join(place)]) if place else d.kind}"), style="yellow"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=4)
    table.add_column(width=4)
    table.add_column(overflow="fold", ratio=1)
    for name, text in (("then", d.then), ("now", d.now)):
        table.add_row("", Text(name, style="dim"), Text(line(text, 2 * SHOWN)))
    console.print(table)
