"""The Typer application: all commands under one name, and what its help says of the whole."""

import typer

from counterfoil.doors.cli import (
    commands_check,
    commands_keys,
    commands_people,
    commands_policy,
    commands_read,
    commands_replay,
    commands_run,
    commands_serve,
    commands_transcripts,
    commands_work,
)
from counterfoil.doors.cli.common import root_options
from counterfoil.doors.cli.errors import EXIT_TEXT

__all__ = ["app"]

# Plain help without boxes: it reads the same in a pipe, in a narrow window and aloud.
app = typer.Typer(
    name="counterfoil",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    epilog=f"\b\n{EXIT_TEXT}",
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.callback()(root_options)
for part in (
    commands_run,
    commands_serve,
    commands_work,
    commands_read,
    commands_people,
    commands_check,
    commands_replay,
    commands_transcripts,
):
    app.add_typer(part.app)
app.add_typer(commands_check.db, name="db")
app.add_typer(commands_keys.app, name="keys")
app.add_typer(commands_policy.app, name="policy")
