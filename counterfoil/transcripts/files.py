"""Turns and messages from JSON, as scripts and recordings hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, get_args

from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.core.turn import Usage
from counterfoil.model import ModelCall, ModelTurn, StopReason

_STOPS: Final = get_args(StopReason)


def read_values(path: Path) -> list[tuple[JsonValue, str]]:
    """The values of a JSON array or of JSON Lines, each with its place for a message.

    Raises:
        DefinitionError: the file cannot be read, or is no JSON.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # programs on Windows write a mark before the text
    except (OSError, ValueError) as error:
        raise DefinitionError(f"cannot read {path}: {error}") from error
    try:
        whole = loads(text)
    except ValueError as error:
        if text.lstrip().startswith("["):  # an array that is broken, and no JSON Lines
            raise DefinitionError(f"{path} is no JSON: {error}") from error
    else:
        values = whole if isinstance(whole, list) else [whole]
        return [(value, f"{path}, item {n}") for n, value in enumerate(values, 1)]
    rows: list[tuple[JsonValue, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"{path}, line {number}"
            try:
                rows.append((loads(line), place))
            except ValueError as error:
                raise DefinitionError(f"{place} is no JSON: {error}") from error
    return rows


def turn_of(message: object, place: str) -> ModelTurn:
    """The turn of an assistant message; ``place`` says where it stands, for an error.

    Raises:
        DefinitionError: it does not have the form that `RecordedModel` describes.
    """
    if not isinstance(message, Mapping):
        raise DefinitionError(f"{place} is {type(message).__name__}; expected an object with content or tool_calls")
    text, calls = message.get("content"), message.get("tool_calls") or ()
    stop, usage = message.get("stop"), message.get("usage") or {}
    if text is not None and not isinstance(text, str):
        raise DefinitionError(f"{place}: content is {type(text).__name__}; expected a string or null")
    if not isinstance(calls, (list, tuple)):
        raise DefinitionError(f"{place}: tool_calls is {type(calls).__name__}; expected a list")
    if stop is not None and stop not in _STOPS:
        raise DefinitionError(f"{place}: stop is {stop!r:.40}; expected one of {', '.join(_STOPS)}")
    try:
        spent = Usage(**usage)
    except TypeError as error:
        raise DefinitionError(f"{place}: usage does not fit ({error})") from error
    made = tuple(_call_of(c, f"{place}, call {n}") for n, c in enumerate(calls, 1))
    return ModelTurn(text or "", made, stop or ("calls" if made else "end"), spent, "recorded")


def _call_of(given: object, place: str) -> ModelCall:
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise DefinitionError(f"{place} is {given!r:.80}; expected an object with id, name and arguments")
    identity, raw = given.get("id"), given.get("arguments_raw")
    if identity is not None and not isinstance(identity, str):
        raise DefinitionError(f"{place}: id is {identity!r:.40}; expected a string or null")
    if raw is not None and not isinstance(raw, str):
        raise DefinitionError(f"{place}: arguments_raw is {type(raw).__name__}; expected a string")
    return ModelCall(identity, given["name"], raw if raw is not None else dumps(given.get("arguments", {})).decode())
