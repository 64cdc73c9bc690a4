"""Policies from TOML files: a default, and one ``[[rule]]`` for each rule."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Final, NoReturn

from counterfoil.core.errors import DefinitionError
from counterfoil.core.policy import Rule, RuleSet
from counterfoil.core.verdict import VERDICT_NAMES

MAX_BYTES: Final = 1024 * 1024
"""Bytes of a policy file, 1 MiB: some ten thousand rules."""

_TOP: Final = ("default", "repeat_block", "rule")
_RULE: Final = ("name", "tool", "when", "then", "reason", "expires_in", "approvers", "not_caller")


def load_rules(path: str | PathLike[str]) -> RuleSet:
    """The rules that a file holds; their conditions are not compiled yet.

    Top-level keys are ``default`` and ``repeat_block``, both optional, and ``[[rule]]`` with ``name``,
    ``then`` and, if need be, ``tool``, ``when``, ``reason``, ``expires_in`` (seconds),
    ``approvers`` and ``not_caller``.

    Raises:
        DefinitionError: there is no such file, or it holds no policy; the message names the file and the
            rule, what was expected, what came, and what to do.
    """
    file = Path(path)
    table = _parsed(file)
    _refuse_unknown(table, _TOP, f"{file}:")
    rules = table.get("rule", [])
    if isinstance(rules, dict):
        raise DefinitionError(f"{file}: expected [[rule]], got [rule]; double the brackets, also for one rule alone")
    if not isinstance(rules, list):
        raise DefinitionError(f"{file}: rule must be a list of tables, got {rules!r:.80}; write [[rule]]")
    made = tuple(_rule(file, number, rule) for number, rule in enumerate(rules, 1))
    try:
        return RuleSet(made, table.get("default", "ask"), table.get("repeat_block", False))  # type: ignore[arg-type]
    except DefinitionError as error:
        raise DefinitionError(f"{file}: {error}") from error


def _parsed(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise DefinitionError(
            f"{file}: the policy cannot be read ({error.strerror}); give the path of a TOML file"
        ) from error
    if len(data) > MAX_BYTES:
        raise DefinitionError(f"{file}: a policy has at most {MAX_BYTES} bytes, and this file has more; split it")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))  # some editors start a file with a byte order mark
    except UnicodeDecodeError as error:
        raise DefinitionError(
            f"{file}: expected UTF-8, got byte 0x{data[error.start]:02x} at offset {error.start}; "
            "save the file as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(f"{file}: this is no TOML: {error}; put texts in quotes and one key on a line") from error
    except RecursionError as error:
        raise DefinitionError(f"{file}: its values are nested too deeply; a policy needs no nesting") from error


def _rule(file: Path, number: int, table: object) -> Rule:
    if not isinstance(table, dict):
        raise DefinitionError(f"{file}: rule {number} must be a table, got {table!r:.80}; write [[rule]]")
    where = f"{file}: rule {number}"
    name = table.get("name")
    if isinstance(name, str) and name:
        where += f" ({name!r:.80})"
    _refuse_unknown(table, _RULE, f"{where}:")
    if name is None:
        raise DefinitionError(f'{where}: has no name; write name = "…", since decisions are on record by it')
    if "then" not in table:
        _no_then(where)
    when = table.get("when")
    if when is not None and not isinstance(when, str):
        raise DefinitionError(f"{where}: when must be a CEL text in quotes, got {when!r:.80}")
    try:
        return Rule(**table)
    except DefinitionError as error:
        raise DefinitionError(f"{where}: {error}") from error


def _no_then(where: str) -> NoReturn:
    raise DefinitionError(f"{where}: has no verdict; write then = {' or '.join(map(repr, VERDICT_NAMES))}")


def _refuse_unknown(table: dict[str, object], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            close = get_close_matches(key.lower(), known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "; remove it"
            raise DefinitionError(f"{where} unknown key {key!r:.80}; known are {', '.join(known)}{hint}")
