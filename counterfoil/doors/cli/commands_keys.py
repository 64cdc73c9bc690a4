"""Commands for the keys of the HTTP API."""

from typing import Annotated

import typer

from counterfoil.core.jsontext import JsonValue
from counterfoil.core.keys import SCOPES, ApiKey
from counterfoil.core.turn import date_json, moment
from counterfoil.doors import http, wiring
from counterfoil.doors.cli.ages import age
from counterfoil.doors.cli.common import Session, command, the_one
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.view import print_table, when

__all__ = ["app"]

app = typer.Typer(help="Keys of the HTTP API.", no_args_is_help=True)


def _whose(key: ApiKey) -> str:
    return f"{key.user} ({', '.join(key.roles)})" if key.roles else key.user


def _view(key: ApiKey) -> dict[str, JsonValue]:
    times = {"createdAt": key.created_at, "expiresAt": key.expires_at, "revokedAt": key.revoked_at}
    return {**key.to_json(), **{name: None if at is None else date_json(moment(at)) for name, at in times.items()}}


def _counts(key: ApiKey, now: int) -> str:
    """Until which day it counts, or since which no more."""
    at = key.expires_at if key.revoked_at is None else key.revoked_at
    if at is None:
        return "for ever"
    fault = key.fault(now)
    return f"{'until' if fault is None else f'no, {fault.split()[-1]}'} {moment(at):%Y-%m-%d}"


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
    if lasts is not None and not lasts:
        raise Stop("--expires: a key that counts for no time is none; give an age such as 90d")
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
        until = "for ever" if key.expires_at is None else f"until {when(moment(key.expires_at), day=True)} UTC"
        session.out.note(
            f"made key {key.id} of {_whose(key)}, tenant {key.tenant}, for {', '.join(key.scopes)}; "
            f"it counts {until}; its secret is shown this once"
        )
    return Code.DONE


@command(app, "list")
async def list_(session: Session) -> int:
    """The tenant's keys, also those that count no more.

    When a key was last used is not on record.
    """
    async with session.reader() as runtime:
        keys, now = await runtime.store.keys(session.tenant), runtime.effects.now()
    if session.json:
        session.out.data([_view(key) for key in keys])
    elif not keys:
        session.out.note("no keys; `counterfoil keys create` makes one")
    else:
        print_table(
            session.out.console,
            ("key", "counts", "whose: scopes"),
            [(key.id, _counts(key, now), f"{_whose(key)}: {', '.join(key.scopes)}") for key in keys],
        )
    return Code.DONE


@command(app)
async def revoke(
    session: Session,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key's id or a unique beginning; `keys list` has them.")],
) -> int:
    """Have a key count no more, from now on."""
    async with session.reader() as runtime:
        now = runtime.effects.now()
        found = [one.id for one in await runtime.store.keys(session.tenant) if key and one.id.startswith(key.lower())]
        which = the_one(key, found, "key") if found else key
        revoked = await runtime.store.revoke_key(session.tenant, which, now)
    if session.json:
        session.out.data(_view(revoked))
    else:
        at = revoked.revoked_at or now
        since = "from now on" if at == now else f"since {when(moment(at), day=True)} UTC"
        session.out.say(f"key {revoked.id} of {_whose(revoked)}, tenant {revoked.tenant}, counts no more, {since}")
    return Code.DONE
