"""What runs do as lines of a log, with ids, names and numbers and not a word of anybody."""

from __future__ import annotations

import logging
from typing import Any, Final

from counterfoil.core.events import CallEnded, CallWaiting, Decided, Event, RunEnded, RunPaused, RunResumed, RunStarted
from counterfoil.core.outcome import Failed
from counterfoil.hooks import Hooks

log = logging.getLogger("counterfoil.runs")

UNKNOWN: Final = "(unknown)"
"""For a tool that the agent has not: its name is the model's invention."""


class RunLog:
    """Logs beginning, pause, resumption and end of runs, and each call's result, at INFO.

    Args:
        runtime: a Runtime; its hooks get one more.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        runtime.add_hooks(Hooks(on_event=self._see))

    def _see(self, event: Event) -> None:
        run = event.run_id
        match event:
            case CallEnded():
                outcome = event.part.result.outcome
                code = outcome.failure.code if isinstance(outcome, Failed) else None
                told = self._tool(event), type(outcome).__name__.lower(), code, event.part.duration_ms
                log.info(
                    "call %s of run %s: tool %s, outcome %s, code %s, took %s ms", event.call_id, run, *told
                )  # fmt: skip  # two rows
            case CallWaiting():
                log.info("call %s of run %s waits for a person, tool %s", event.call_id, run, self._tool(event))
            case Decided():
                log.info("call %s of run %s: decision %s", event.call_id, run, event.decision.choice)
            case RunStarted():
                log.info("run %s began, agent %s", run, event.agent)
            case RunResumed():
                log.info("run %s goes on, agent %s", run, event.agent)
            case RunPaused():
                log.info("run %s pauses for %d calls", run, len(event.waiting))
            case RunEnded():
                log.info("run %s ended, status %s by %s", run, event.status, event.ended_by)
            case _:
                pass

    def _tool(self, event: CallEnded | CallWaiting) -> str:
        drive = self._runtime._drives.get(event.run_id)
        return event.tool_name if drive is not None and event.tool_name in drive.env.tools else UNKNOWN
