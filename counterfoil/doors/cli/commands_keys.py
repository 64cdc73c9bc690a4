"""Commands for the keys of the HTTP API."""

from typing import Annotated

import typer

from counterfoil.core.jsontext import JsonValue
from counterfoil.core.keys import SCOPES, ApiKey
from counterfoil.core.turn import date_json, moment
from counterfoil.doors import http, wiring
from counterfoil.doors.cli.ages import age
from counterfoil.doors.cli.common import Session, command
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.view import print_table

__all__ = ["app"]

app = typer.Typer(help="Keys of the HTTP API.", no_args_is_help=True)


def _view(key: ApiKey) -> dict[str, JsonValue]:
    times = {"createdAt": key.created_at, "expiresAt": key.expires_at, "revokedAt": key.revoked_at}
    return {**key.to_json(), **{name: None if at is None else date_json(moment(at)) for name, at in times.items()}}


@command(app)
async def create(
    session: Session,
    *,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Who starts and decides with it; you unless given.")
    ] = None,
    role: Annotated[list[str] | None, typer.Option("--role", metavar="NAME", help="Of the user; may repeat.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="NAME", help=f"Of {', '.join(SCOPES)}; may repeat; the first three."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="AGE", help="Counts for so long, such as 90d; else for ever.")
    ] = None,
) -> int:
    """Make a key for the tenant.

    Its secret is printed now and never again.
    """
    lasts = None if expires is None else age("--expires", expires)
    async with session.writer() as runtime:
        try:
            token, key = await http.create_key(
                runtime, user or wiring.login(), tenant=session.tenant, roles=role or (),
                scopes=scope or http.DEFAULT_SCOPES, expires=lasts,
            )  # fmt: skip  # two rows
        except ValueError as error:
            raise Stop(str(error)) from error
    if session.json:
        session.out.data({**_view(key), "key": token})
    else:
        session.out.say(token)
        session.out.note(
            f"key {key.id} of {key.user}, tenant {key.tenant}: {', '.join(key.scopes)}; it is shown this once"
        )
    return Code.DONE


@command(app, "list")
async def list_(session: Session) -> int:
    """The tenant's keys, also those that count no more."""
    async with session.reader() as runtime:
        keys, now = await runtime.store.keys(session.tenant), runtime.effects.now()
    if session.json:
        session.out.data([_view(key) for key in keys])
    elif not keys:
        session.out.note("no keys; `counterfoil keys create` makes one")
    else:
        print_table(
            session.out.console,
            ("key", "state", "user", "scopes"),
            [(key.id, key.fault(now) or "counts", key.user, " ".join(key.scopes)) for key in keys],
        )
    return Code.DONE


@command(app)
async def revoke(
    session: Session, key: Annotated[str, typer.Argument(metavar="KEY", help="A key's id; `keys list` has them.")]
) -> int:
    """Have a key count no more, from now on."""
    async with session.reader() as runtime:
        revoked = await runtime.store.revoke_key(session.tenant, key, runtime.effects.now())
    if session.json:
        session.out.data(_view(revoked))
    else:
        session.out.say(f"revoked: {revoked.id} of {revoked.user}")
    return Code.DONE
