"""Reader: the CLIENT. The record as JSON; the names are a promise (contract 1.2, 1.4 and 9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TypeAlias

from counterfoil.core.entries import MessageEntry, NoteEntry, TurnEntry
from counterfoil.core.items import Message, Note, Reasoning, ToolCallPart, ToolResultPart
from counterfoil.core.jsontext import JsonValue, loads
from counterfoil.core.outcome import outcome_to_json
from counterfoil.core.parts import Part, entry_parts, participant
from counterfoil.core.record import Record, RunState
from counterfoil.core.threads import Thread, lines
from counterfoil.core.turn import Author, Usage, date_json, moment
from counterfoil.core.waits import waits_of

Fields: TypeAlias = dict[str, JsonValue]
Source: TypeAlias = "MessageEntry | NoteEntry | TurnEntry"


def author_json(who: Author) -> Fields:
    """An author by field."""
    return {"id": who.id, "name": who.name, "type": who.type}


def usage_json(usage: Usage) -> Fields:
    """What turns cost, by field."""
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cachedTokens": usage.cached_tokens,
        "reasoningTokens": usage.reasoning_tokens,
        "cost": usage.cost,
    }


def context_items(
    record: Record,
    run_id: str | None = None,
    *,
    after: int = 0,
    since: int = 0,
    thread: Thread = ...,
    limit: int | None = None,
) -> list[Fields]:
    """The items of a conversation in reading order, as contract 1.4 has them.

    The kinds are ``Message``, ``Reasoning``, ``Note``, ``ToolCall`` and, once a call has its result, ``ToolResult``.
    Every field of a kind is present, and empty ones are None.

    Args:
        record: the interaction.
        run_id: a run of it, with the runs below it; None: all of them.
        after: a reading number (``sequence``); items with a larger one are given.
        since: an entry's number (``record.tip`` of an earlier reading); items that arrived later are given,
            so that one who follows a live run misses no result, whatever number was reserved for it.
        thread: a thread's id, None for the main thread; by default all threads. One that is named is given whole,
            whichever runs wrote on it.
        limit: items at most, the first ones in reading order; None: all.

    Raises:
        KeyError: the record has no such run.
    """
    items: list[Fields] = []
    for part, run, source in _parts(record, run_id, thread, after):
        if limit is not None and len(items) >= limit:
            break
        if not since or _arrival(part, run, source) > since:
            items.append(_context_item(part, run, source))
    return items


def timeline_items(record: Record, run_id: str, *, thread: Thread = ..., admin: bool = False) -> list[Fields]:
    """The items of a run and of those below it with all of contract 1.2: calls with their decisions, results whole.

    Beside the fields of `ToolCallPart.to_json` and `ToolResultPart.to_json`, where an absent flag means
    false, each has ``sequence``, ``author``, ``date``, ``threadId`` and ``runId``.

    Args:
        record: the interaction.
        run_id: a run of it.
        thread: as for `context_items`.
        admin: also give what an after-guard replaced, as ``replaced``.

    Raises:
        KeyError: the record has no such run.
    """
    items: list[Fields] = []
    for part, run, source in _parts(record, run_id, thread, 0):
        if isinstance(part, (Message, Reasoning, Note)):
            fields: Fields = {"kind": part.kind, "text": part.text, "stepIndex": part.step_index}
        else:
            fields = part.to_json()
        if admin and isinstance(part, ToolResultPart):
            fields["replaced"] = part.replaced
        items.append({**fields, **_place(part, run, source), "runId": run.run_id})
    return items


def interaction_json(
    interaction_id: str, created_at: int, participants: Iterable[Author], open_run: str | None
) -> Fields:  # fmt: skip  # one row
    """An interaction by field; times as `date_json` writes them."""
    return {
        "interactionId": interaction_id,
        "createdAt": date_json(moment(created_at)),
        "participants": [author_json(one) for one in participants],
        "openRunId": open_run,
    }


def run_json(record: Record, run_id: str, interaction_id: str, now: datetime | None = None) -> Fields:
    """A run by field; every field present, empty ones None, times as `date_json` writes them; ``now``: of `waits_of`.

    Raises:
        KeyError: the record has no such run.
    """
    run = record.runs[run_id]
    head, ended, waits = run.head, run.ended, waits_of(record, run, now)
    return {
        "runId": run_id,
        "interactionId": interaction_id,
        "parentRunId": head.parent if head else None,
        "threadId": head.thread_id if head else None,
        "agent": head.agent if head else None,
        "user": head.caller.user if head else None,
        "status": run.status,
        "endedBy": ended.ended_by if ended else None,
        "answer": ended.answer if ended else None,
        "output": ended.output if ended else None,
        "reason": ended.reason if ended else None,
        "steps": run.turns,
        "calls": len(run.calls),
        "waiting": sum(one.kind != "run" for one in waits),
        "waitsFor": [one.to_json() for one in waits],
        "usage": usage_json(run.usage),
        "seconds": run.seconds,
        "createdAt": date_json(moment(head.at)) if head else None,
        "updatedAt": date_json(moment(run.last_at)),
        "endedAt": date_json(moment(ended.at)) if ended else None,
    }


def _parts(record: Record, run_id: str | None, thread: Thread, after: int) -> Iterator[tuple[Part, RunState, Source]]:
    """Parts with a number over ``after``, in reading order, each with its run and its entry."""
    for entry in lines(record, run_id, thread):
        if entry.sequence and entry.sequence + entry.width > after + 1:  # 0: not on record yet
            run = record.runs[entry.run_id]
            for part in entry_parts(entry, run):
                if part.sequence > after:
                    yield part, run, entry


def _arrival(part: Part, run: RunState, source: Source) -> int:
    result = run.call_ids[part.call_id].result if isinstance(part, ToolResultPart) else None
    return source.entry if result is None else result.entry


def _context_item(part: Part, run: RunState, source: Source) -> Fields:
    place = _place(part, run, source)
    match part:
        case Message() | Reasoning() | Note():
            return {"kind": type(part).__name__, "runId": run.run_id, "text": part.text, **place}
        case ToolCallPart():
            return {
                "kind": "ToolCall",
                "runId": run.run_id,
                "toolCallId": part.call_id,
                "toolName": part.tool_name,
                "input": _parsed(part.raw_input),
                "rawInput": part.raw_input,
                "state": part.state,
                **place,
            }
        case ToolResultPart():
            return {
                "kind": "ToolResult",
                "runId": run.run_id,
                "outcome": outcome_to_json(part.result.outcome)["type"],
                "toolCallId": part.call_id,
                "result": None if part.tool_result_id else part.result.model_output,
                "isError": part.is_error,
                "toolResultId": part.tool_result_id,
                "resultSize": part.result_size,
                "rejectionReason": part.rejection_reason,
                **place,
            }


def _place(part: Part, run: RunState, source: Source) -> Fields:
    if isinstance(part, ToolCallPart):
        who, date = participant(run, "Agent", ""), moment(source.at)
    else:
        who, date = part.author, part.date
    return {
        "sequence": part.sequence,
        "author": author_json(who),
        "date": date_json(date),
        "threadId": source.thread_id,
    }


def _parsed(raw: str) -> JsonValue:
    try:
        return loads(raw)
    except ValueError:
        return None
