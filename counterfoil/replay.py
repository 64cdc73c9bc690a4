"""Replay: a run step by step from its record, and what today's code would do otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from counterfoil.asking import Driven
from counterfoil.core.differences import Difference, compare
from counterfoil.core.entries import ERASED, EndedEntry, Entry, MessageEntry, SummaryEntry, TurnEntry
from counterfoil.core.errors import UsageError
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.pairs import check_pairs
from counterfoil.core.record import Record
from counterfoil.core.threads import View, view_of
from counterfoil.hooks import HookList
from counterfoil.model import ModelRequest
from counterfoil.replaying import Replaying


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One turn of the model, and what it read for it."""

    step: int
    """0-based."""
    request: ModelRequest
    """Of a replay without an agent it has neither instructions nor tools, for the record holds none."""
    turn: TurnEntry
    """As it is on record."""
    read_before: int
    """How many of the request's items an earlier step of this run had read."""

    @property
    def broken(self) -> str | None:
        """What is wrong with the pairs of calls and results in the request; no model may be sent such a one."""
        try:
            check_pairs(self.request.items)
        except ValueError as error:
            return str(error)
        return None

    def messages(self, *, all_: bool = False) -> list[dict[str, JsonValue]]:
        """What the model read, as plain dicts (see `ModelRequest.messages`): what is new to it, or all of it."""
        request, known = self.request, self.read_before
        if all_ or not known:
            return request.messages
        new, left_out = request.items[known:], {i - known for i in request.elided if i >= known}
        return replace(request, instructions="", history=new, length=len(new), elided=frozenset(left_out)).messages

    def to_json(self, *, all_: bool = False) -> dict[str, JsonValue]:
        """The step by field, in camelCase; of what was read only what is new, unless all is asked for."""
        return {
            "step": self.step,
            "items": self.request.length,
            "readBefore": self.read_before,
            "messages": cast("JsonValue", self.messages(all_=all_)),
            "tools": [tool.name for tool in self.request.tools],
            "text": self.turn.text,
            "stop": self.turn.stop,
            "calls": [
                {"callId": c.call_id, "toolName": c.tool_name, "arguments": c.raw, "offered": c.offered}
                for c in self.turn.calls
            ],
            "broken": self.broken,
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a replay."""

    run_id: str
    agent: str | None
    """Whose code of today was asked; None: the record alone was read."""
    steps: tuple[ReplayStep, ...]
    differences: tuple[Difference, ...]
    """Where today's code would not do what is on record; of the record alone there are none."""
    ended: EndedEntry | None
    """How the run ended, on record."""

    @property
    def ok(self) -> bool:
        """Nothing differs, and each request pairs calls and results."""
        return not self.differences and all(step.broken is None for step in self.steps)

    def to_json(self, *, all_: bool = False) -> dict[str, JsonValue]:
        """The replay by field, in camelCase."""
        ended = self.ended
        return {
            "ok": self.ok,
            "runId": self.run_id,
            "agent": self.agent,
            "steps": [step.to_json(all_=all_) for step in self.steps],
            "status": ended.status if ended else None,
            "endedBy": ended.ended_by if ended else None,
            "answer": ended.answer if ended else None,
            "differences": [difference.to_json() for difference in self.differences],
        }


def replay(entries: Sequence[Entry], run_id: str) -> Replay:
    """A run step by step, from the record alone.

    Args:
        entries: those of its interaction, in order of arrival.
        run_id: the run.
    """
    record = Record()
    requests: dict[int, ModelRequest] = {}
    view: View | None = None
    for entry in entries:
        if isinstance(entry, TurnEntry) and entry.run_id == run_id:
            view = view or view_of(record, record.runs[run_id])
            items = record.items if view is None else view.take()
            requests[entry.step] = ModelRequest("", items, len(items), (), run_id, entry.step)
        record.apply(entry)
    head = record.runs[run_id].head
    if head is not None and head.direct:
        requests.clear()  # no model was asked
    return Replay(run_id, None, _steps(entries, run_id, requests), (), record.runs[run_id].ended)


async def replay_with(
    agent: Driven, entries: Sequence[Entry], run_id: str, hooks: HookList, deps: Callable[[], Any] | None = None
) -> Replay:
    """A run once more through today's loop, with recorded turns and results; no body runs.

    Args:
        agent: whose tools, policy, instructions and output type of today are asked.
        entries: those of its interaction, in order of arrival.
        run_id: the run.
        hooks: their guards before calls, and around the model, are asked; guards after calls and observers are not.
        deps: makes what ``ctx.deps`` is for conditions and guards.

    Raises:
        UsageError: what the run held was erased.
    """
    mine = [e for e in entries if e.run_id == run_id]
    if any(_erased(e) for e in mine):
        raise UsageError(f"what run {run_id} held was erased; without an agent its replay shows what is left")
    again = Replaying(entries, run_id, agent, hooks, deps)
    await again.go()
    offered = {step: [tool.name for tool in request.tools] for step, request in again.requests.items()}
    found = compare(mine, again.log, offered)
    ended = next((e for e in reversed(mine) if isinstance(e, EndedEntry)), None)
    return Replay(run_id, agent.name, _steps(entries, run_id, again.requests), tuple(found), ended)


def _erased(entry: Entry) -> bool:
    match entry:
        case MessageEntry() | SummaryEntry():
            return entry.text == ERASED
        case TurnEntry():
            return any(call.raw == ERASED for call in entry.calls)
        case _:
            return False


def _steps(entries: Sequence[Entry], run_id: str, requests: dict[int, ModelRequest]) -> tuple[ReplayStep, ...]:
    steps: list[ReplayStep] = []
    before: ModelRequest | None = None
    for turn in (e for e in entries if isinstance(e, TurnEntry) and e.run_id == run_id):
        request = requests.get(turn.step)
        if request is None:
            continue
        steps.append(ReplayStep(turn.step, request, turn, _read(before, request)))
        before = request
    return tuple(steps)


def _read(before: ModelRequest | None, request: ModelRequest) -> int:
    """How many items both begin with: a request that was cut to fit may have lost some."""
    if before is None:
        return 0
    if before.history is request.history and not request.elided:
        return before.length
    same = 0
    for one, other in zip(before.items, request.items, strict=False):
        if one is not other or (same in request.elided and same not in before.elided):
            break
        same += 1
    return same


__all__ = ["Difference", "Replay", "ReplayStep", "replay", "replay_with"]
