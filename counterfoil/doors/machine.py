"""What is installed on this machine."""

import importlib.metadata
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from counterfoil.core.jsontext import JsonValue

__all__ = ["Check", "checks"]

OLDEST_PYTHON: Final = (3, 11)


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


def checks() -> list[Check]:
    """What this machine has for Counterfoil, the store and the small model left out."""
    return [
        _python(),
        _package(),
        _sqlite(),
        *map(_needed, _NEEDED),
        *(_extra(*row) for row in _EXTRAS),
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
    ("PostgreSQL (extra postgres)", ("psycopg",), "pip install 'counterfoil[postgres]'"),
    ("Anthropic (extra anthropic)", ("anthropic",), "pip install 'counterfoil[anthropic]'"),
    ("Google (extra google)", ("google-genai",), "pip install 'counterfoil[google]'"),
    ("OpenAI (extra openai)", ("openai",), "pip install 'counterfoil[openai]'"),
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
