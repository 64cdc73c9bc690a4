"""What goes between a program and its child processes, and what cannot.

What is the user's travels as a pickle of its own inside the messages of process.py and child.py, so that a
value that cannot be read spoils no message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias, cast

from counterfoil.core.errors import CounterfoilError, DefinitionError, ToolError

Message: TypeAlias = "tuple[Any, ...]"
"""Its first item names it."""
CARRIED: ContextVar[Mapping[str, object]] = ContextVar("counterfoil_carried", default={})  # noqa: B039  # never changed
"""What goes with a body into a process of its own: ``module:function``, which is called there, and what with."""


class ProcessBodyError(CounterfoilError):
    """In place of an exception that cannot cross over: ``class_name`` and ``message`` are the original's."""

    def __init__(self, class_name: str, message: str) -> None:
        super().__init__(class_name, message)
        self.class_name = class_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.class_name}: {self.message}"


class ProcessTraceback(CounterfoilError):
    """The cause of an exception that crossed over: its text is the traceback on the other side."""


class CannotCross(CounterfoilError, TypeError):
    """A value has no pickle, or none that the other process can read."""


def check_importable(fn: Callable[..., Any]) -> str:
    """``"module:qualname"`` of a function that a child process can import.

    Raises:
        DefinitionError: it cannot; the message names the function and says what to do.
    """
    name, module = getattr(fn, "__qualname__", None), getattr(fn, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str) or inspect.ismethod(fn):
        fault = "is a method or an object and has no name to import"
    elif "<lambda>" in name:
        fault = "is a lambda"
    elif "<locals>" in name:
        fault = "is defined inside a function"
    elif "." in name:
        fault = "is defined inside a class"
    elif module == "__main__":
        fault = "is defined in the program's main file, which a child cannot import"
    else:
        return f"{module}:{name}"
    raise DefinitionError(
        f'isolation="process" needs a function that can be imported, but {name or repr(fn)} {fault}; '
        'define it at the top level of a module of its own, or use isolation="thread"'
    )


def pack(value: object, what: str) -> bytes:
    """The pickle of a value; ``what`` names it in the CannotCross that it may raise."""
    import pickle  # few programs isolate a tool, and all import this file

    try:
        return pickle.dumps(value)
    except Exception as error:
        raise CannotCross(f"{what}, a {type(value).__name__}, cannot be pickled: {error}") from error


def unpack(data: bytes, what: str) -> Any:
    """The value of a pickle; ``what`` names it in the CannotCross that it may raise."""
    import pickle  # as in pack

    try:
        return pickle.loads(data)  # noqa: S301  # made by the same user's code, in a child of this program
    except Exception as error:
        raise CannotCross(f"{what} cannot be unpickled: {type(error).__name__}: {error}") from error


def pack_error(error: BaseException) -> tuple[bytes, str]:
    """The exception, or the nearest to it that the other side can read, and its traceback as text."""
    import traceback  # as in pack

    text = "".join(traceback.format_exception(error))
    forms: list[Callable[[], BaseException]] = []
    if isinstance(error, Exception):  # any other kind would mean something else to the loop over there
        forms.append(lambda: error)
    if isinstance(error, ToolError):  # a subclass with an __init__ of its own: the model's half still crosses
        fields = (error.message, error.code, error.retryable, error.data, error.details, error.narration)
        forms.append(lambda: ToolError(*fields))
    forms.append(lambda: ProcessBodyError(type(error).__qualname__, str(error)))
    for form in forms:
        try:
            data = pack(form(), "the exception")
            unpack(data, "the exception")
        except Exception:  # noqa: BLE001, S112  # whatever a user's class does: the next form is simpler
            continue
        return data, text
    return pack(ProcessBodyError(type(error).__qualname__, "(its text cannot be read)"), "the exception"), text


def unpack_error(packed: tuple[bytes, str]) -> BaseException:
    """The exception of `pack_error`, caused by a ProcessTraceback."""
    data, text = packed
    try:
        error = cast("BaseException", unpack(data, "the exception"))
    except CannotCross as unreadable:
        error = ProcessBodyError("Exception", str(unreadable))
    error.__cause__ = ProcessTraceback(text)
    return error
