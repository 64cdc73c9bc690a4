"""Agents of the user's own modules, named as MODULE:AGENT."""

import contextlib
import importlib
import linecache
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from counterfoil.agent import Agent
from counterfoil.doors.cli.errors import Stop

__all__ = ["load_agent", "load_agents"]

_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
"""The folder of Counterfoil itself."""


def load_agent(spec: str) -> Agent:
    """The agent that MODULE:AGENT names; MODULE alone will do where it holds a single one.

    Raises:
        Stop: there is no such module or agent, or it cannot be imported; says which, where and what to type.
    """
    name, separator, attribute = spec.partition(":")
    module = _import(name, spec)
    known = _agents_of(module)
    if separator:
        return _attribute(module, attribute, known)
    if len(known) != 1:
        raise Stop(f"expected MODULE:AGENT, got {spec!r:.200}; {_holds(name, known)}")
    return next(iter(known.values()))


def load_agents(spec: str) -> list[Agent]:
    """All agents of MODULE, or the one that MODULE:AGENT names.

    Raises:
        Stop: as `load_agent`; or the module holds no agent.
    """
    if ":" in spec:
        return [load_agent(spec)]
    known = _agents_of(_import(spec, spec))
    if not known:
        raise Stop(f"expected a module with agents, got {spec!r:.200}, which holds none; make one with Agent(…)")
    return list(dict.fromkeys(known.values()))


def _import(name: str, spec: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # a console script begins in its own folder, and users in theirs
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise Stop(f"expected a module's name, got the path {name!r:.200}; write {dotted}{spec[len(name) :]}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise Stop(f"expected MODULE:AGENT such as shop:support, got {spec!r:.200}")
    try:
        # What a module prints while it is imported must not mix with data on standard output.
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise Stop(
                f"there is no module {error.name!r} in {here} or among the installed ones; "
                f"give MODULE:AGENT, and type the command in the folder of the module"
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> Stop:
    """The last line of the traceback, and the last place in it that is not the import machinery's."""
    last = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
        return Stop(f"the module {name!r} cannot be imported: {last} ({where}); mend it")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen importlib")]
    frames = [f for f in frames if f.filename not in (__file__, importlib.__file__)]
    if not frames:
        return Stop(f"the module {name!r} cannot be imported: {last}; mend it")
    place = next((f for f in reversed(frames) if Path(f.filename).is_relative_to(Path.cwd()) and _own(f)), frames[-1])
    code = linecache.getline(place.filename, place.lineno or 0).strip()
    where = f"{place.filename}, line {place.lineno}{f': {code}' if code else ''}"
    return Stop(f"the module {name!r} cannot be imported: {last} ({where}); mend it")


def _own(frame: traceback.FrameSummary) -> bool:
    """In a file of the user's own, not in an installed package that was used wrongly."""
    return "site-packages" not in Path(frame.filename).parts and not frame.filename.startswith(_PACKAGE)


def _agents_of(module: ModuleType) -> dict[str, Agent]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Agent)}


def _attribute(module: ModuleType, attribute: str, known: dict[str, Agent]) -> Agent:
    name = module.__name__
    value = getattr(module, attribute, None) if attribute.isidentifier() else None
    if isinstance(value, Agent):
        return value
    by_name = [agent for agent in _teams(known.values()) if agent.name == attribute]
    if value is None and by_name:
        return by_name[0]
    if value is None:
        close = get_close_matches(attribute, known, n=1)
        hint = f"; did you mean {name}:{close[0]}?" if close else f"; {_holds(name, known)}"
        raise Stop(f"the module {name!r} has no agent {attribute!r:.80}{hint}")
    raise Stop(f"expected an Agent at {name}:{attribute}, got {type(value).__name__}; {_holds(name, known)}")


def _teams(agents: Iterable[Agent]) -> Iterator[Agent]:
    for agent in agents:
        yield agent
        yield from _teams(agent.manages)


def _holds(name: str, known: dict[str, Agent]) -> str:
    if not known:
        return f"{name} holds no agent; make one with Agent(…)"
    return f"{name} holds {', '.join(f'{name}:{attribute}' for attribute in known)}"
