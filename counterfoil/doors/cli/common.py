"""What all commands share: options, the store, how RUN and CALL are found, and how a command ends."""

import asyncio
import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from counterfoil.agent import Agent
from counterfoil.core.approval import Approval
from counterfoil.core.errors import NotFound
from counterfoil.core.media import Prompt, medium_of, prompt_of
from counterfoil.core.row import Row
from counterfoil.doors import wiring
from counterfoil.doors.cli.config import COMMANDS, NOTHING, Filed, prefix, read_file
from counterfoil.doors.cli.errors import Code, Stop, guarded
from counterfoil.doors.cli.output import Out
from counterfoil.doors.cli.remote import Remote
from counterfoil.run import Run
from counterfoil.runtime import Runtime

__all__ = ["Given", "RunArgument", "Session", "command", "find_call", "find_run", "root_options"]

_STORE = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="The store, such as sqlite:///shop.db.", show_default=False),
]
_TENANT = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="Whose records; default unless given.", show_default=False),
]
_SERVER = typer.Option(
    "--server", metavar="URL", help="A server of the HTTP API in place of a store.", show_default=False
)
_HIDDEN = typer.Option("--server", metavar="URL", hidden=True)
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]
_CONFIG = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Settings; counterfoil.toml unless given.", show_default=False),
]
_DEBUG = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, a unique beginning of it, or last.")]

_WHOLE_ID = 36
"""Characters of a UUID."""

PAGE = 200
"""Runs that are read at once in search of a beginning of an id."""


@dataclass(frozen=True, slots=True)
class Given:
    """Options that stand before the command's name; those behind it win."""

    store: str | None = None
    tenant: str | None = None
    server: str | None = None
    debug: bool = False
    filed: Filed = NOTHING


def root_options(
    ctx: typer.Context,
    store: _STORE = None,
    tenant: _TENANT = None,
    server: Annotated[str | None, _SERVER] = None,
    config: _CONFIG = None,
    *,
    debug: _DEBUG = False,
) -> None:
    """Accountable tool calls for AI agents: every call gets exactly one result, on record.

    RUN is a run's id, a unique beginning of it, or the word last: the newest run that no other waits for. CALL is a
    call's id or a unique beginning; it may be left out where only one call waits. The store is --store URL, else
    COUNTERFOIL_STORE, else what the file of settings says, else .counterfoil/counterfoil.db in this folder; --server
    URL, or COUNTERFOIL_URL, asks a server in its place, with the key in COUNTERFOIL_KEY.
    """

    def configure() -> None:
        group = cast("TyperGroup", ctx.command)
        ctx.obj = Given(store, tenant, server, debug, read_file(config, group))
        ctx.default_map = ctx.obj.filed.defaults(group)

    code = guarded(configure, debug=debug)
    if code:
        raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class Session:
    """One invocation of a command."""

    out: Out
    store: wiring.Setting
    whose: wiring.Setting
    debug: bool = False
    filed: Filed = NOTHING
    server: wiring.Setting | None = None
    """What is asked in place of the store."""
    absent: str | None = None
    """Why no store is read that nobody named: a server is, and this command cannot ask one."""

    @property
    def json(self) -> bool:
        """Standard output takes JSON alone."""
        return self.out.json

    @property
    def tenant(self) -> str:
        """Whose records."""
        return self.whose.value

    @asynccontextmanager
    async def reader(self, agents: Sequence[Agent] = ()) -> AsyncIterator[Runtime]:
        """A Runtime on a store that must be there. Its agents can drive a run, but take up none.

        Raises:
            NotFound: there is no such store.
        """
        if self.absent is not None:
            raise Stop(self.absent)
        if self.server is None:
            wiring.needs_store(self.store)
        async with self.writer(agents) as runtime:
            yield runtime

    @asynccontextmanager
    async def writer(self, agents: Sequence[Agent] = ()) -> AsyncIterator[Runtime]:
        """As `reader`, but a store that is not there is made."""
        if self.server is not None:
            async with Remote(self.server.value) as remote:
                yield cast("Runtime", remote)  # it has of one what the commands with `server` ask for
            return
        async with wiring.open_runtime(self.store) as runtime:
            # After the opening: a command for one run must not take up others and drop them at its end.
            for agent in agents:
                runtime.register(agent)
            yield runtime

    def store_flags(self) -> str:
        """What a command that is typed next must repeat to mean the same store and tenant."""
        if self.server is not None:
            return f" --server {self.server.value}" if self.server.source == "--server" else ""
        given = []
        if self.store.source == "--store":
            given.append(f" --store {self.store.value}")
        if self.whose.source != "default":
            given.append(f" --tenant {self.tenant}")
        return "".join(given)


Body = Callable[..., "int | Awaitable[int | None] | None"]


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    data: bool = True,
    server: bool = False,
    cls: type[TyperCommand] | None = None,
) -> Callable[[Body], Body]:
    """Make a command of a function that takes the Session first, may be async, and gives an exit code.

    Args:
        app: where the command belongs.
        name: the command's name; that of the function unless given.
        data: it prints data, so it takes ``--json``.
        server: a server will do in place of a store.
        cls: a class of its own for how arguments are read.
    """

    def register(body: Body) -> Body:
        def run(ctx: typer.Context, **options: Any) -> None:
            given = ctx.find_root().obj or Given()
            debug = options.pop("debug") or given.debug
            store, tenant = options.pop("store") or given.store, options.pop("tenant") or given.tenant
            asked = options.pop("server") or given.server
            as_json = bool(options.pop("as_json", False))
            out = Out(as_json=as_json)

            def work() -> int | None:
                known = wiring.store_setting(store, given.filed.store)
                there, absent = wiring.server_setting(asked, store), None
                if there is not None and server and tenant:
                    raise Stop("the tenant is that of the key in COUNTERFOIL_KEY; leave out --tenant")
                if there is not None and not server:
                    told = f"{ctx.command_path.partition(' ')[2]} needs the store itself, and {there.source} "
                    told += "names a server; type it where the store is, with --store URL"
                    if asked is not None:
                        raise Stop(told)
                    there, absent = None, told if known.source == "default" else None
                session = Session(out, known, _tenant(tenant, given), debug, given.filed, there, absent)
                # What agents and tools print must not mix with the data.
                with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
                    answer = body(session, **options)
                    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer

            raise typer.Exit(guarded(work, debug=debug))

        run.__name__, run.__doc__ = body.__name__, body.__doc__
        run.__signature__ = _signature(body, data=data, server=server)  # type: ignore[attr-defined]  # Typer reads it
        run.__annotations__ = {}
        known = name or body.__name__
        settings = {"auto_envvar_prefix": prefix(known)} if known in COMMANDS else None
        app.command(name, cls=cls, context_settings=settings)(run)
        return body

    return register


async def _awaited(answer: Awaitable[int | None]) -> int | None:
    return await answer


def _tenant(option: str | None, given: Given) -> wiring.Setting:
    if option:
        return wiring.Setting("tenant", option, "--tenant")
    return given.filed.tenant or wiring.Setting("tenant", "default", "default")


def _signature(body: Body, *, data: bool, server: bool) -> inspect.Signature:
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = list(inspect.signature(body).parameters.values())[1:]
    shared: list[tuple[str, Any, Any]] = [("store", _STORE, None), ("tenant", _TENANT, None)]
    shared += [("server", Annotated[str | None, _SERVER if server else _HIDDEN], None)]
    shared += [("as_json", _JSON, False)] if data else []
    shared += [("debug", _DEBUG, False)]
    return inspect.Signature(
        [
            inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *(parameter.replace(kind=keyword) for parameter in own),
            *(inspect.Parameter(n, keyword, default=value, annotation=kind) for n, kind, value in shared),
        ]
    )


# --------------------------------------------------------------------------------------- RUN and CALL


async def find_run(session: Session, runtime: Runtime, text: str) -> Run:
    """The run that a person means.

    Raises:
        Stop: there is none, or several begin so.
    """
    if len(text) == _WHOLE_ID:
        try:
            return await runtime.get(text.lower(), tenant=session.tenant)
        except NotFound:
            raise _no_run(session, text) from None
    if text == "last":
        newest = await runtime.runs(limit=1, roots=True, tenant=session.tenant)
        if not newest:
            raise Stop("there is no run yet; `counterfoil run MODULE:AGENT PROMPT` starts one", Code.NOT_FOUND)
        return await runtime.get(newest[0].run_id, tenant=session.tenant)
    found: list[str] = []
    before: str | None = None
    while text:
        page = await runtime.runs(limit=PAGE, before=before, tenant=session.tenant)
        found += [row.run_id for row in page if row.run_id.startswith(text.lower())]
        if len(page) < PAGE:
            break
        before = page[-1].run_id
    if not found:
        raise _no_run(session, text)
    return await runtime.get(the_one(text, found, "run"), tenant=session.tenant)


def the_one(text: str, found: Sequence[str], what: str) -> str:
    """The id that a person means, of those (at least one) that begin so. Raises Stop where there are several."""
    if text.lower() in found or len(found) == 1:
        return text.lower() if text.lower() in found else found[0]
    shown = ", ".join(found[:4])
    raise Stop(f"{len(found)} {what}s begin with {text!r:.80}, such as {shown}; type more of the id")


def _no_run(session: Session, text: str) -> Stop:
    whose = "" if session.whose.source == "default" else f" of tenant {session.tenant}"
    return Stop(f"there is no run {text!r:.80}{whose}; `counterfoil runs` lists them", Code.NOT_FOUND)


async def find_call(session: Session, runtime: Runtime, run: Run, text: str | None) -> str:
    """The call that a person means: an id, a unique beginning, or nothing where only one call waits.

    Raises:
        Stop: there is none, or several.
    """
    waiting = await run.approvals()
    if text is None:
        if len(waiting) == 1:
            return waiting[0].call_id
        if not waiting:
            raise Stop(f"no call of run {run.id} waits for a person; {_stands(run)}", Code.CONFLICT)
        raise Stop(f"{len(waiting)} calls of run {run.id} wait; name one of them: {_named(waiting)}")
    rows: list[Row] = await runtime.timeline(run.id, tenant=session.tenant)
    calls = [row.call_id for row in rows if row.kind == "call" and row.call_id is not None]
    calls += [a.call_id for a in waiting if a.run_id != run.id]  # of a run below it
    if text in calls:
        return text
    found = [call for call in dict.fromkeys(calls) if call.startswith(text)]
    found = found if len(found) == 1 else list(dict.fromkeys(a.call_id for a in waiting if a.call_id in found)) or found
    if len(found) == 1:
        return found[0]
    if not found:
        hint = f"; waiting: {_named(waiting)}" if waiting else f"; `counterfoil show {run.id}` lists its calls"
        raise Stop(f"run {run.id} has no call {text!r:.80}{hint}", Code.NOT_FOUND)
    raise Stop(f"{len(found)} calls of run {run.id} begin with {text!r:.80}; type more of the id")


def _stands(run: Run) -> str:
    if run.status == "running":
        return "it is running; if its process has died, `counterfoil work MODULE --once` takes it up"
    if run.status == "paused":
        return "all is decided, and `counterfoil work MODULE --once` goes on with it"
    return f"it is {run.status}"


def _named(waiting: Sequence[Approval]) -> str:
    ids = [a.call_id for a in waiting]
    runs = [f" of run {a.run_id}" if ids.count(a.call_id) > 1 else "" for a in waiting]
    return ", ".join(f"{a.call_id} ({a.tool_name}){run}" for a, run in zip(waiting[:10], runs, strict=False))


FilesOption = Annotated[
    list[Path] | None,
    typer.Option("--file", metavar="PATH", help="An image, a sound, a PDF or a text file for the model; repeatable."),
]


def prompt_with(session: Session, text: str, files: Sequence[Path] | None) -> Prompt:
    """A text and the files that were named beside it. Raises Stop where one cannot be read, here or by a model."""
    if session.server is not None:
        if files:
            raise Stop("a server takes text alone; leave out --file, or type it where the store is, with --store URL")
        return text
    try:
        prompt = [text, *(medium_of(file.read_bytes(), file.name) for file in files or ())]
        prompt_of(prompt)
    except OSError as error:
        raise Stop(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise Stop(str(error)) from error
    return prompt
