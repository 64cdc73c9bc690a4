"""Settings from a file: the store and the tenant of every command, and all flags of `serve` and `work`."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import typer
from typer.core import TyperGroup

from counterfoil.doors import wiring
from counterfoil.doors.cli.errors import Stop

__all__ = ["COMMANDS", "NOTHING", "Filed", "prefix", "read_file"]

COMMANDS: Final = ("serve", "work")
"""Those that go on for ever, so that nobody types their flags each time."""
SHARED: Final = ("store", "tenant")
NEVER: Final = frozenset({"help", "debug", "json", *SHARED})
"""Flags that stand in no table of a command."""


@dataclass(frozen=True, slots=True)
class Filed:
    """What a file says."""

    path: str = ""
    store: wiring.Setting | None = None
    tenant: wiring.Setting | None = None
    commands: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values by flag, without its dashes, by command."""
    group: TyperGroup | None = None
    """The whole command."""

    def defaults(self, group: TyperGroup) -> dict[str, dict[str, Any]]:
        """The same by the names of parameters, as the parser of arguments takes defaults."""
        return {
            command: {_flags(group, command)[flag].name or flag: value for flag, value in table.items()}
            for command, table in self.commands.items()
        }

    def fault(self, setting: wiring.Setting) -> str | None:
        """What is wrong with a setting of a command from the environment; None: nothing that can be seen."""
        command, _, flag = setting.name.partition(" --")
        if self.group is None or not flag or setting.source == self.path:
            return None
        flags = _flags(self.group, command)
        if flag not in flags:
            return f"{command} has no --{flag}; {_meant(flag, flags)}"
        return _misfit(self.group.commands[command], flags[flag], setting.value)


NOTHING: Final = Filed()


def prefix(command: str) -> str:
    """What stands before the name of a flag in the environment."""
    return f"COUNTERFOIL_{command.upper()}"


def read_file(given: str | None, group: TyperGroup) -> Filed:
    """What the file says, of `wiring.config_file`; nothing where there is none.

    Args:
        given: the option ``--config``.
        group: the whole command.

    Raises:
        Stop: it cannot be read, or holds what is no setting; the message says what is.
    """
    path = wiring.config_file(given)
    if path is None:
        return Filed(group=group)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Stop(f"{path} cannot be read: {error.strerror or error}; --config FILE names another one") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Stop(f"{path} is no TOML: {error}") from error
    _check(str(path), "", data, [*SHARED, *COMMANDS])
    shared: dict[str, wiring.Setting] = {}
    for name in SHARED:
        if name in data:
            if not isinstance(data[name], str):
                raise Stop(f"{path}: {name} is a text, not {data[name]!r:.80}")
            shared[name] = wiring.Setting(name, data[name], str(path))
    commands: dict[str, dict[str, Any]] = {}
    for command in COMMANDS:
        table = data.get(command, {})
        if not isinstance(table, dict):
            raise Stop(f"{path}: {command} is a table: write [{command}]")
        flags = _flags(group, command)
        _check(str(path), f"[{command}] ", table, list(flags))
        for flag, value in table.items():
            many = flags[flag].nargs == -1
            if isinstance(value, dict) or isinstance(value, list) != many:
                raise Stop(f"{path}: [{command}] {flag} is {'a list' if many else 'one value'}, not {value!r:.80}")
            if why := _misfit(group.commands[command], flags[flag], value):
                raise Stop(f"{path}: [{command}] {flag} cannot be {value!r:.80}: {why}")
        commands[command] = table
    return Filed(str(path), shared.get("store"), shared.get("tenant"), commands, group)


def _flags(group: TyperGroup, command: str) -> dict[str, Any]:
    """Parameters of a command by flag without dashes; an argument by its name."""
    found = {max(p.opts, key=len).lstrip("-"): p for p in group.commands[command].params}
    return {flag: p for flag, p in found.items() if flag not in NEVER}


def _misfit(command: Any, parameter: Any, value: object) -> str | None:
    """Why a flag does not take a value; None: it does, or it is a list of anything."""
    if parameter.nargs != -1:
        try:
            parameter.process_value(typer.Context(command), value)
        except typer.BadParameter as error:
            return str(error.message)
    return None


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"


def _check(path: str, where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in table:
        if name not in known:
            raise Stop(f"{path}: {where}{name} is no setting; {_meant(name, known)}")
