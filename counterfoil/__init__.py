"""Accountable tool calls for AI agents: every call that a model makes gets exactly one result, on record."""

from counterfoil.agent import Agent
from counterfoil.core.approval import Approval
from counterfoil.core.call import Caller
from counterfoil.core.content import Audio, File, Image, Json, Link, Text
from counterfoil.core.errors import DecisionConflict, InvalidInput, NotFound, NotPending, ToolError
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
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.result import ToolResult
from counterfoil.hooks import Change, Hooks, Skip
from counterfoil.policy import Policy
from counterfoil.run import Run
from counterfoil.runtime import Runtime
from counterfoil.tool import Tool, tool
from counterfoil.toolcontext import ToolContext

__all__ = [
    "Agent", "Approval", "Audio", "CallEnded", "CallProgress", "CallStarted", "CallWaiting", "Caller", "Cancelled",
    "Change", "Decided", "DecisionConflict", "Denied", "ErrorCode", "Failed", "File", "Hooks", "Image", "InvalidInput",
    "Json", "Limits", "Link", "NotFound", "NotPending", "Policy", "Rejected", "Rule", "Run", "RunEnded", "RunPaused",
    "RunResumed", "RunStarted", "Runtime", "Skip", "Skipped", "Succeeded", "Text", "Tool", "ToolContext", "ToolError",
    "ToolErrorReport", "ToolFailure", "ToolResult", "TurnDelta", "TurnRecorded", "tool",
]  # fmt: skip  # names in rows
