"""Counterfoil: accountable tool calls for AI agents. Every call that a model makes gets exactly one result, on record.

The public names. All but the tool decorator are loaded on first use: a program pays for what it names (decision 20).
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Eager, since the submodule of this name would stand in the way of the decorator.
from counterfoil.tool import Tool, tool
from counterfoil.toolcontext import ToolContext

if TYPE_CHECKING:
    # What is imported under its own name once more can be imported from here and is not counted in `__all__`.
    from counterfoil.agent import Agent
    from counterfoil.client.blocking import Client as Client
    from counterfoil.client.calls import AsyncClient as AsyncClient
    from counterfoil.core.approval import Approval
    from counterfoil.core.call import Caller
    from counterfoil.core.content import Audio, File, Image, Json, Link, Text
    from counterfoil.core.errors import AmbiguousCall as AmbiguousCall
    from counterfoil.core.errors import Conflict as Conflict
    from counterfoil.core.errors import CounterfoilError as CounterfoilError
    from counterfoil.core.errors import DecisionConflict, InvalidInput, NotFound, NotPending, ToolError
    from counterfoil.core.errors import DefinitionError as DefinitionError
    from counterfoil.core.errors import ModelError as ModelError
    from counterfoil.core.errors import NotAllowed as NotAllowed
    from counterfoil.core.errors import ServerError as ServerError
    from counterfoil.core.errors import StoreError as StoreError
    from counterfoil.core.errors import UnknownAgent as UnknownAgent
    from counterfoil.core.errors import UsageError as UsageError
    from counterfoil.core.events import (
        CallEnded,
        CallProgress,
        CallStarted,
        CallWaiting,
        Decided,
        RunEnded,
        RunPaused,
        RunResumed,
        RunStarted,
        TurnDelta,
        TurnRecorded,
    )
    from counterfoil.core.items import ToolCallPart as ToolCallPart
    from counterfoil.core.items import ToolResultPart as ToolResultPart
    from counterfoil.core.limits import Limits
    from counterfoil.core.outcome import (
        Cancelled,
        Denied,
        ErrorCode,
        Failed,
        Rejected,
        Skipped,
        Succeeded,
        ToolFailure,
    )
    from counterfoil.core.policy import Rule
    from counterfoil.core.report import ToolErrorReport as ToolErrorReport
    from counterfoil.core.result import ToolResult
    from counterfoil.hooks import Change, Hooks, Skip
    from counterfoil.policy import Policy
    from counterfoil.run import Run
    from counterfoil.runtime import Runtime

__all__ = [
    "Agent",
    "Approval",
    "Audio",
    "CallEnded",
    "CallProgress",
    "CallStarted",
    "CallWaiting",
    "Caller",
    "Cancelled",
    "Change",
    "Decided",
    "DecisionConflict",
    "Denied",
    "ErrorCode",
    "Failed",
    "File",
    "Hooks",
    "Image",
    "InvalidInput",
    "Json",
    "Limits",
    "Link",
    "NotFound",
    "NotPending",
    "Policy",
    "Rejected",
    "Rule",
    "Run",
    "RunEnded",
    "RunPaused",
    "RunResumed",
    "RunStarted",
    "Runtime",
    "Skip",
    "Skipped",
    "Succeeded",
    "Text",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolFailure",
    "ToolResult",
    "TurnDelta",
    "TurnRecorded",
    "tool",
]

_HOMES = {
    "agent": "Agent",
    "client.blocking": "Client",
    "client.calls": "AsyncClient",
    "core.approval": "Approval",
    "core.call": "Caller",
    "core.content": "Audio File Image Json Link Text",
    "core.errors": "AmbiguousCall Conflict CounterfoilError DecisionConflict DefinitionError InvalidInput ModelError "
    "NotAllowed NotFound NotPending ServerError StoreError ToolError UnknownAgent UsageError",
    "core.events": "CallEnded CallProgress CallStarted CallWaiting Decided RunEnded RunPaused RunResumed RunStarted "
    "TurnDelta TurnRecorded",
    "core.items": "ToolCallPart ToolResultPart",  # for annotations, as ToolErrorReport
    "core.limits": "Limits",
    "core.outcome": "Cancelled Denied ErrorCode Failed Rejected Skipped Succeeded ToolFailure",
    "core.policy": "Rule",
    "core.report": "ToolErrorReport",
    "core.result": "ToolResult",
    "hooks": "Change Hooks Skip",
    "policy": "Policy",
    "run": "Run",
    "runtime": "Runtime",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
