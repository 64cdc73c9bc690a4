"""Parts (contract 1.2) from the folded record."""

from __future__ import annotations

from copy import copy
from typing import TypeAlias

from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.content import Json, Kept, Text, block_to_json
from counterfoil.core.entries import MessageEntry, NoteEntry, TurnEntry
from counterfoil.core.items import ApprovalMark, Message, Note, Reasoning, ToolCallPart, ToolResultPart
from counterfoil.core.jsontext import JsonValue, loads
from counterfoil.core.outcome import CODE_TABLE, Failed, Succeeded
from counterfoil.core.record import CallState, Record, RunState
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.turn import Author, AuthorType, author, moment
from counterfoil.core.words import REJECTION_FALLBACK, edited

Part: TypeAlias = "Message | Reasoning | Note | ToolCallPart | ToolResultPart"
"""One item of the conversation, as readers see it."""


def items_of(record: Record, run_id: str) -> list[Part]:
    """All items of a run in reading order; a call whose result is not there yet stands alone.

    Raises:
        KeyError: the record has no such run.
    """
    run = record.runs[run_id]
    items: list[Part] = []
    for entry in record.said():
        if entry.run_id == run_id and entry.sequence:  # 0: not on record yet
            items += entry_parts(entry, run)
    return items


def entry_parts(entry: MessageEntry | NoteEntry | TurnEntry | ResultEntry, run: RunState) -> list[Part]:
    """What an entry amounts to; a result's part stands with its turn."""
    if isinstance(entry, TurnEntry):
        return _turn_parts(entry, run)
    if isinstance(entry, ResultEntry):
        return []
    at = moment(entry.at), entry.sequence, entry.thread_id, entry.run_id
    if isinstance(entry, NoteEntry):
        return [Note(entry.text, participant(run, "Human", entry.author_name), *at)]
    return [Message(entry.text, participant(run, entry.author_type, entry.author_name), *at, blocks=entry.blocks)]


def _turn_parts(turn: TurnEntry, run: RunState) -> list[Part]:
    """What a model's turn amounts to: its reasoning, its text, its calls, and the results that are there."""
    parts: list[Part] = []
    sequence = turn.sequence
    if turn.thought or turn.head:
        who, at = participant(run, "Agent", ""), moment(turn.at)
        if turn.thought:
            parts.append(Reasoning(turn.thought, who, at, sequence, turn.thread_id, turn.run_id, turn.step))
            sequence += 1
        if turn.head:
            parts.append(Message(turn.text, who, at, sequence, turn.thread_id, turn.run_id, turn.step))
    calls = [run.call_ids[c.call_id] for c in turn.calls]
    parts += [call_part(call) for call in calls]
    parts += [result_part(call, run) for call in calls if call.result is not None]
    return parts


def output_of(result: ToolResult) -> JsonValue:
    """What the call gave, as JSON (``output`` of contract 1.2); None where some of it is kept apart.

    Of a success: the text of one text block, the value of one JSON block, else the list of blocks. Of a
    failure: ``{"error": {"code"?, "name"?, "message"}}``, where only the gateway's codes have a name and the
    message is what the model reads. Of anything else: what the model reads.
    """
    if any(isinstance(block, Kept) for block in result.content):
        return None
    match result.outcome, result.content:
        case Failed(failure), _:
            error: dict[str, JsonValue] = {}
            if failure.code is not None:
                error["code"] = int(failure.code)
                if failure.code in CODE_TABLE:
                    error["name"] = CODE_TABLE[failure.code].code.name
            return {"error": {**error, "message": result.model_output}}
        case Succeeded(), (Text(text),):
            return text
        case Succeeded(), (Json() as block,):
            return block.value
        case Succeeded(), blocks:
            return [block_to_json(block) for block in blocks]
        case _:
            return result.model_output


def _as_returned(call: CallState, entry: ResultEntry) -> ToolResult:
    """The result without the line that tells the model of a person's edit."""
    result, start = entry.result, call.start
    if not call.edits or start is None or len(result.content) < 2:  # noqa: PLR2004  # the line and what was returned
        return result
    if result.content[0] != Text(edited(entry.tool_name, start.effective.decode())):
        return result
    return seal(result.content[1:], result.outcome, result.details, terminate=result.terminate)


def result_part(call: CallState, run: RunState) -> ToolResultPart:
    """The result part of a call that has its result."""
    entry = call.result
    if entry is None:
        raise ValueError(f"call {call.record.call_id} has no result yet; read its ToolCallPart instead")
    return ToolResultPart(
        call_id=entry.call_id,
        tool_name=entry.tool_name,
        output=None if entry.kept_id else output_of(_as_returned(call, entry)),
        result=entry.result if entry.result.details is None else copy(entry.result),  # whoever reads may spoil it
        result_size=entry.size,
        sequence=call.turn.result_sequence(call.index),
        author=result_author(entry, run),
        date=moment(entry.at),
        rejection_text=REJECTION_FALLBACK,
        tool_result_id=entry.kept_id,
        ended_run=run.ended_run == call.key,
        started_at=None if entry.started_at is None else moment(entry.started_at),
        duration_ms=None if entry.duration is None else entry.duration / 1000,
        attempt=entry.attempt or None,
        replaced=entry.replaced,
    )


def result_author(entry: ResultEntry, run: RunState) -> Author:
    """Human for a rejected or settled call, System for a skip or a refusal by the gateway, else the agent."""
    return participant(run, entry.author_type, entry.author_name)


def participant(run: RunState, kind: AuthorType, name: str) -> Author:
    """Who that is in this run. Unnamed, an agent is the run's own, a person "user", a system counterfoil."""
    tenant = run.head.caller.tenant if run.head else "default"
    if not name:
        name = "user" if kind == "Human" else "counterfoil" if kind == "System" else ""
    if not name and run.head:
        name = run.head.agent
    return author(kind, name, tenant)


def call_part(call: CallState) -> ToolCallPart:
    """The call part as the record stands."""
    start, waiting, decided, result = call.start, call.waiting, call.decided, call.result
    parsed: JsonValue = None
    effective: JsonValue = None
    if start is not None:
        effective = loads(start.effective)
        parsed = effective if start.parsed is None else loads(start.parsed)
    elif waiting is not None:
        parsed, effective = waiting.approval.input, waiting.approval.effective_input
        if decided is not None and decided.decision.input is not None:
            effective = loads(decided.decision.input)
    elif result is not None and result.parsed is not None:
        parsed = loads(result.parsed)
        effective = parsed if result.effective is None else loads(result.effective)
    source = start or waiting or result
    mark = None
    if waiting is not None:
        d = decided.decision if decided else None
        mark = ApprovalMark(
            waiting.approval.id,
            d.choice if d else None,
            d.by if d else None,
            moment(d.at) if d else None,
            d.reason if d else None,
        )
    return ToolCallPart(
        call_id=call.record.call_id,
        provider_call_id=call.record.provider_call_id,
        tool_name=call.record.tool_name,
        raw_input=call.record.raw,
        state=call.state,
        step_index=call.turn.step,
        index=call.index,
        sequence=call.turn.call_sequence(call.index),
        input=parsed,
        effective_input=effective,
        decision=source.decision if source is not None else None,
        approval=mark,
        attempt=start.attempt if start else 0,
        child_run_id=start.child if start else None,
    )
