"""Conditions of policies in CEL, the Common Expression Language.

Each text is compiled twice. The first time every known key is a variable of its own with a type (``run.hour``
is an integer), and ``run`` itself is unknown: so a misspelt key and a comparison of wrong types fail when the
policy loads. What is evaluated is compiled with ``run`` as a map, where the language's rules for maps hold.

The native library (0.1.3) is kept from what it does not bear: it crashes on integers of many digits and on
deep nesting, and a text ends for it at its first NUL, so that a rule would not see what follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, NamedTuple

from cel_expr_python import cel  # type: ignore[import-untyped]  # it has stubs, but no py.typed

from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import MAX_DEPTH, JsonValue, clean_text
from counterfoil.core.policy import KNOWN_KEYS, Facts

MAX_TEXT: Final = 10_000
"""Characters of one condition. The library takes 100,000; what a person can review has a few hundred."""
MAX_MESSAGE: Final = 500
"""Characters of the library's complaint that are kept: it may quote the whole text or value."""

_INT_LEAST, _INT_MOST = -(2**63), 2**64 - 1
"""CEL has signed and unsigned integers of 64 bits."""

_Type = cel.Type
_TYPES: Final = {
    "tool.name": _Type.STRING,
    "tool.read_only": _Type.BOOL,
    "tool.idempotent": _Type.BOOL,
    "tool.destructive": _Type.BOOL,
    "caller.tenant": _Type.STRING,
    "caller.user": _Type.DYN,  # a text or null
    "caller.roles": _Type.List(_Type.STRING),
    "caller.attributes": _Type.Map(_Type.STRING, _Type.DYN),
    "run.id": _Type.STRING,
    "run.agent": _Type.STRING,
    "run.step": _Type.INT,
    "run.calls": _Type.INT,
    "run.hour": _Type.INT,
    "run.weekday": _Type.INT,
    "run.parent": _Type.DYN,  # a text or null
    "run.depth": _Type.INT,
    "thread.id": _Type.DYN,  # a text or null
    "thread.kind": _Type.STRING,
}

_GROUPS: Final = tuple(KNOWN_KEYS)
_SILENT: Final = re.compile(
    r"""//[^\n]*
      | (?:[rR][bB]?|[bB][rR]) (?: \"\"\".*?\"\"\" | '''.*?''' | "[^"\n]*" | '[^'\n]*' )
      | [bB]?
        (?: \"\"\" (?:\\.|[^\\])*? \"\"\" | ''' (?:\\.|[^\\])*? '''
          | " (?:\\.|[^"\\\n])* " | ' (?:\\.|[^'\\\n])* ' )""",
    re.DOTALL | re.VERBOSE,
)
"""Comments and strings, which hold no names."""
_PRESENCE: Final = re.compile(rf"\bhas[\s(]*\(\s*\.?\s*({'|'.join(_GROUPS)})\s*\.\s*`?(\w+)`?\s*\)")
"""A test for a known key. One that is written too strangely to be seen here is true, as the language says."""
_WORD: Final = re.compile(r"\w+")
_UNDECLARED: Final = re.compile(r"undeclared reference to '([^']*)'")
_NOISE: Final = re.compile(r" \(in container ''\)| \[[A-Z_]+\]|^[A-Z_]+: |ERROR: <input>:|\n \|.*")


class _Envs(NamedTuple):
    checking: cel.Env
    running: cel.Env


@cache
def _envs() -> _Envs:
    anything = _Type.Map(_Type.STRING, _Type.DYN)
    return _Envs(
        cel.NewEnv(variables={"input": _Type.DYN, **_TYPES}),
        cel.NewEnv(variables={"input": _Type.DYN, **dict.fromkeys(_GROUPS, anything)}),
    )


def compile_condition(text: str) -> Callable[[Facts], object]:
    """The condition that a CEL text writes, as a function of the facts.

    The variables are ``tool``, ``caller``, ``run`` and ``thread`` with the keys of `Facts`, and ``input``,
    whose keys are free, as are those of ``caller.attributes``. ``run.weekday`` is 0 on a Monday.

    The function returns True or False. It raises ValueError where the text gives anything else or an error,
    such as a missing key, and where what it reads holds what CEL cannot: nesting over 200 levels, an integer
    beyond 64 bits, a NUL. It sees U+FFFD in place of a lone surrogate.

    Raises:
        DefinitionError: the text cannot be used; the message quotes it and says what to change.
    """
    run, surely_bool = _compiled(text)
    used, sees_input = _used(text)

    def condition(facts: Facts) -> object:
        data = _seen(facts, used, sees_input=sees_input)
        try:
            value = run.eval(data=data)
        except RuntimeError as error:
            raise ValueError(_shortened(str(error))) from error
        # A null must never be taken out: the library then gives away a reference to None that it does not
        # own, and in the end the process dies of it. Of a known type there is none, and asking takes time.
        if surely_bool or value.type() == _Type.BOOL:
            answer = value.value()
            if answer is True or answer is False:
                return answer
        raise ValueError(_unusable(value))

    return condition


def _compiled(text: str) -> tuple[cel.Expression, bool]:
    """The expression to evaluate, and whether it gives a bool or an error and nothing else."""
    if len(text) > MAX_TEXT:
        raise DefinitionError(
            f"the condition has {len(text)} characters, {MAX_TEXT} are the most; split it into several rules"
        )
    if clean_text(text) is not text or "\0" in text:
        raise _fault(text, "it holds a lone surrogate or a NUL; write the character as an escape")
    for group, key in _PRESENCE.findall(_SILENT.sub(" ", text)):
        if key in KNOWN_KEYS[group]:
            raise _fault(text, f"{group}.{key} is always there, so has(…) says nothing; read it instead")
    try:
        kind = _envs().checking.compile(text).return_type()
        run = _envs().running.compile(text)
    except RuntimeError as error:
        raise _fault(text, _explained(str(error))) from error
    if kind not in (_Type.BOOL, _Type.DYN):
        raise _fault(text, f"it gives {kind.name().lower()}, and a condition must give true or false")
    return run, run.return_type() == _Type.BOOL


def _unusable(value: cel.Value) -> str:
    if value.type() == _Type.ERROR:
        message = _shortened(str(value.value()))
        if message.startswith("Key not found"):
            message += "; where it may be missing, ask has(…) first"
        return message
    return f"the condition gave {value.type().name().lower()}, and it must give true or false"


def _shortened(message: str) -> str:
    message = _NOISE.sub("", message).strip()
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"


def _fault(text: str, what: str) -> DefinitionError:
    quoted = text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "…"
    return DefinitionError(f"the condition {quoted!r} cannot be used: {what}")


def _explained(message: str) -> str:
    """The library's complaint, and what to write where a name is unknown."""
    complaint = _shortened(message)
    found = _UNDECLARED.search(message)
    if found:
        complaint += "; " + _known_names(*found[1].split(".")[:2])
    elif "recursion" in message:
        complaint += "; it is nested too deeply, so split it into several rules"
    return complaint


def _known_names(group: str, key: str = "") -> str:
    if group not in KNOWN_KEYS:
        close = get_close_matches(group, ["input", *_GROUPS], n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{hint}the variables are input, {', '.join(_GROUPS)}"
    keys = KNOWN_KEYS[group]
    if not key:
        return f"{group!r} is read by key only, such as {group}.{keys[0]}; its keys are {', '.join(keys)}"
    close = get_close_matches(key, keys, n=1)
    hint = f"did you mean {group}.{close[0]}? " if close else ""
    return f"{hint}{group!r} has {', '.join(keys)}"


def _used(text: str) -> tuple[dict[str, tuple[str, ...]], bool]:
    """The groups and keys that the text may read, and whether it may read the input.

    A name can only be read where it is written, so its word is in the text; one that is only part of a string
    is given without need and does no harm.
    """
    words = set(_WORD.findall(text))
    used = {group: tuple(key for key in keys if key in words) for group, keys in KNOWN_KEYS.items() if group in words}
    return used, "input" in words


def _seen(facts: Facts, used: Mapping[str, tuple[str, ...]], *, sees_input: bool) -> dict[str, object]:
    """The facts that a condition reads, as plain values that CEL can hold."""
    data: dict[str, object] = {}
    if sees_input:
        data["input"] = facts.input if _is_plain(facts.input, 0) else _plain(facts.input, 0, "input")
    for group, keys in used.items():
        values: Mapping[str, JsonValue] = getattr(facts, group)
        part: dict[str, object] = {}
        for key in keys:
            value = values[key]
            part[key] = value if _is_plain(value, 1) else _plain(value, 1, f"{group}.{key}")
        data[group] = part
    return data


def _is_plain(value: Any, depth: int) -> bool:
    """Whether CEL can hold the value as it is. Exact types only: a subclass may be strange to the library."""
    kind = type(value)
    if kind is str:
        return value.isascii() and "\0" not in value
    if kind is int:
        return bool(_INT_LEAST <= value <= _INT_MOST)
    if value is None or kind is bool or kind is float:
        return True
    if depth >= MAX_DEPTH:
        return False
    if kind is dict:
        for key in value:
            if type(key) is not str or not key.isascii() or "\0" in key:
                return False
        value = value.values()
    elif kind is not list:
        return False
    return all(_is_plain(item, depth + 1) for item in value)


def _plain(value: object, depth: int, path: str) -> object:
    """A copy that CEL can hold: each lone surrogate is U+FFFD there.

    Raises:
        ValueError: it cannot be held; the message says where.
    """
    if isinstance(value, str):
        return _plain_text(value, path)
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        if not _INT_LEAST <= value <= _INT_MOST:
            raise ValueError(f"{_shortened(path)} is an integer beyond 64 bits, which CEL cannot hold")
        return int(value)
    if depth >= MAX_DEPTH:
        raise ValueError(f"{re.split(r'[.[]', path)[0]} is nested over {MAX_DEPTH} levels")
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        return _plain_object(value, depth, path)
    raise ValueError(f"{_shortened(path)} is no JSON value but {type(value).__name__}")


def _plain_text(text: str, path: str) -> str:
    if "\0" in text:
        raise ValueError(f"{_shortened(path)} holds a NUL, and CEL would see the text only up to it")
    return clean_text(str(text))


def _plain_object(value: dict[Any, object], depth: int, path: str) -> dict[str, object]:
    copy: dict[str, object] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise ValueError(f"{_shortened(path)} has a key that is no text but {type(key).__name__}")
        name = _plain_text(key, path)
        if name in copy:
            raise ValueError(f"{_shortened(path)} has keys that differ in lone surrogates only")
        copy[name] = _plain(item, depth + 1, f"{path}.{name}")
    return copy
