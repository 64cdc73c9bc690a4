"""Commands that look: verify, policy test, doctor; and the demo."""

import asyncio
import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, cast

import typer
from rich.text import Text
from typer.core import TyperCommand

from counterfoil.core.errors import CounterfoilError
from counterfoil.core.jsontext import JsonValue
from counterfoil.doors import wiring
from counterfoil.doors.cli.common import Session, command
from counterfoil.doors.cli.config import COMMANDS, prefix
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.view import counted, print_table

__all__ = ["app"]

app = typer.Typer()
db = typer.Typer(help="Look after the database of the record.", no_args_is_help=True)


class _Verify(TyperCommand):
    """``--head`` with nothing behind it prints a head, as ``--print-head`` does."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # Typer's own class
        following = [*args[1:], "--"]
        args = (
            [
                "--print-head" if arg == "--head" and after.startswith("-") and after != "-" else arg
                for arg, after in zip(args, following, strict=True)
            ]
            if args
            else args
        )
        return super().parse_args(ctx, args)


@command(db)
async def upgrade(session: Session) -> int:
    """Bring the store's schema up to date.

    End the older programs that have it open first. A file of SQLite is brought up to date by whoever opens it.
    """
    wiring.needs_store(session.store)
    before, now = await wiring.upgrade_store(session.store)
    if session.json:
        session.out.data({"before": before, "now": now})
    else:
        session.out.say(f"the schema was {before} and is {now}" if before != now else f"the schema is {now} already")
    return Code.DONE


@command(app, cls=_Verify)
async def verify(
    session: Session,
    *,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="[FILE]",
            help="Compare with a head kept elsewhere: a file, - or the text. With nothing behind it, print one.",
        ),
    ] = None,
    print_head: Annotated[bool, typer.Option("--print-head", help="Print the head to keep elsewhere.")] = False,
) -> int:
    """Prove the rules of the record on the whole store.

    Of all tenants. A record proves itself only against a head that is kept elsewhere.
    """
    out = session.out
    async with session.reader() as runtime:
        with _progress(session) as progress:
            found = await runtime.verify(sys.stdin.read() if head == "-" else head, progress)
    if out.json:
        out.data({**found.to_json(), "head": found.head})
        return Code.DONE if found.ok else Code.FAILED
    if print_head:
        out.raw(found.head)
    console = out.notes if print_head else out.console
    if found.problems:
        print_table(
            console,
            ("problem", "interaction", "entry", "what"),
            [(p.kind, (p.interaction_id or "")[:13], p.entry, p.message) for p in found.problems],
        )
    verdict = "✓ ok" if found.ok else f"✗ {counted(len(found.problems), 'problem')}"
    console.print(Text(f"{verdict}: {_counts(found)}", style="green" if found.ok else "red"))
    if head is None and not print_head:
        out.note("not compared with a head kept elsewhere; verify --head prints one", style="dim")
    return Code.DONE if found.ok else Code.FAILED


def _counts(found: Any) -> str:
    much = f"{counted(found.runs, 'run')}, {counted(found.calls, 'call')}, {counted(found.results, 'result')}"
    extra = [f"{number} {word}" for number, word in ((found.kept, "kept apart"), (found.erased, "erased")) if number]
    return ", ".join([much, counted(found.entries, "entry", "entries"), *extra])


def _progress(session: Session) -> AbstractContextManager[Callable[[int], None] | None]:
    """On a terminal, how many entries were read."""
    if not session.out.notes.is_terminal or session.out.notes.is_dumb_terminal:
        return nullcontext()
    return _Counter(session)


class _Counter:
    """A line on the terminal that counts, and goes when the work is done."""

    def __init__(self, session: Session) -> None:
        self._status = session.out.notes.status("reading the record")

    def __enter__(self) -> Callable[[int], None]:
        self._status.start()
        return lambda entries: self._status.update(f"{entries} entries read")

    def __exit__(self, *_: object) -> None:
        self._status.stop()


# ---------------------------------------------------------------------------------------------- doctor


@command(app)
async def doctor(session: Session) -> int:
    """What this machine has and lacks, and where settings come from."""
    checks = [*wiring.checks(), await _store_check(session)]
    settings = wiring.settings(
        session.store, session.whose, session.filed.path, session.filed.commands, {c: prefix(c) for c in COMMANDS}
    )
    checks += [wiring.Check(s.source, "broken", why) for s in settings if (why := session.filed.fault(s))]
    broken = any(check.state == "broken" for check in checks)
    if session.json:
        data: dict[str, JsonValue] = {
            "ok": not broken,
            "checks": [check.to_json() for check in checks],
            "settings": [setting.to_json() for setting in settings],
        }
        session.out.data(data)
        return Code.FAILED if broken else Code.DONE
    marks = {
        "ok": Text("✓ ok", "green"),
        "missing": Text("- missing", "yellow"),
        "broken": Text("✗ broken", "red"),
    }
    print_table(
        session.out.console,
        ("", "what", "found"),
        [(marks[c.state], c.name, f"{c.found}; {c.do}" if c.do else c.found) for c in checks],
        most=24,
    )
    session.out.console.print()
    print_table(session.out.console, ("setting", "from", "value"), [(s.name, s.source, s.value) for s in settings])
    return Code.FAILED if broken else Code.DONE


async def _store_check(session: Session) -> wiring.Check:
    url = wiring.shown(session.store.value)
    try:
        wiring.needs_store(session.store)
    except CounterfoilError as error:
        return wiring.Check("store", "missing", str(error))
    try:
        async with session.reader() as runtime:
            newest = await runtime.runs(tenant=session.tenant, limit=1)
    except CounterfoilError as error:
        return wiring.Check("store", "broken", f"{url}: {error}", "name another store with --store URL")
    return wiring.Check("store", "ok", f"{url}, {'with runs' if newest else 'no runs'} of tenant {session.tenant}")


# ------------------------------------------------------------------------------------------------ demo


@command(app, data=False)
def demo(
    session: Session,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking, and say so.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Record the small model's turns anew, for developers.")
    ] = False,
) -> int | None:
    """Show the main job on real input: no key, no server."""
    try:
        module = importlib.import_module("counterfoil.doors.cli.demo")  # no other command needs it
    except ImportError as error:
        raise Stop(
            f"the demo is not part of this installation ({error}); install counterfoil anew", Code.FAILED
        ) from error
    url = None if session.store.source == "default" else session.store.value
    answer = module.run_demo(session.out.console, url, yes, record)
    if inspect.iscoroutine(answer):
        answer = asyncio.run(answer)
    return cast("int | None", answer)
