"""A run as messages of the AI SDK's user interface, version 7 (the type `UIMessage` of the npm package ``ai``)."""

from __future__ import annotations

import base64
from typing import Final

from counterfoil.core.content import Audio, Block, File, Image, Text, block_text
from counterfoil.core.items import Message, Note, Reasoning, ToolCallPart, ToolResultPart
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.outcome import Denied, Rejected, Skipped, Succeeded
from counterfoil.core.parts import items_of
from counterfoil.model import json_object
from counterfoil.run import Run

ROLES: Final = {"Human": "user", "Agent": "assistant", "System": "system"}


def told_runs(run: Run, *, conversation: bool) -> list[str]:
    """The ids of the run and, with its conversation, of those before it in its thread."""
    runs = run._fold.record.runs
    order = list(runs)
    threads = {one: head.thread_id for one in order if (head := runs[one].head) is not None}
    before = order[: order.index(run.id) + 1] if conversation else [run.id]
    return [one for one in before if threads.get(one) == threads.get(run.id)]


def ui_messages(run: Run, *, conversation: bool = False) -> list[JsonValue]:
    """The run's messages: a person's, a system's, and between them all that the model said and called as one.

    A call is a part ``dynamic-tool``, in whatever state it is on record: waiting for a person, rejected or denied,
    failed with the model's text, or with its output. Nothing of details, narration or another thread is in it.

    Args:
        run: on record, ended or not.
        conversation: with the runs of its interaction before it.
    """
    record = run._fold.record
    out: list[JsonValue] = []
    parts: list[JsonValue] = []
    used: set[str] = set()
    head = record.runs[run.id].head
    thread = head.thread_id if head is not None else None
    for run_id in told_runs(run, conversation=conversation):
        step: int | None = None
        items = items_of(record, run_id)
        results = {item.call_id: item for item in items if isinstance(item, ToolResultPart)}
        for item in items:
            if isinstance(item, (ToolResultPart, Note)):
                continue
            if isinstance(item, (Message, Reasoning)) and item.thread_id != thread:
                continue  # what it told its manager alone
            if isinstance(item, Message) and item.step_index is None:
                parts = []
                said: JsonValue = [_piece(block) for block in item.blocks or (Text(item.text),)]
                role = ROLES[item.author.type]
                out.append({"id": f"{run_id}:{item.sequence}", "role": role, "parts": said})
                step = None
                continue
            if step is None:
                parts = []
                out.append({"id": f"{run_id}:{item.sequence}", "role": "assistant", "parts": parts})
            if step != item.step_index:
                step = item.step_index
                parts.append({"type": "step-start"})
            if isinstance(item, (Message, Reasoning)):
                kind = "text" if isinstance(item, Message) else "reasoning"
                parts.append({"type": kind, "text": item.text, "state": "done"})
            else:
                # A call's id is unique in its run alone.
                shown = f"{run_id}:{item.call_id}" if item.call_id in used else item.call_id
                used.add(shown)
                parts.append(_call(item, shown, results.get(item.call_id)))
    return out


def _piece(block: Block) -> JsonValue:
    if not isinstance(block, (Image, Audio, File)):
        return {"type": "text", "text": block_text(block)}
    named: dict[str, JsonValue] = {"filename": block.name} if isinstance(block, File) and block.name else {}
    url = f"data:{block.mime};base64,{base64.b64encode(block.data).decode()}"
    return {"type": "file", "mediaType": block.mime, **named, "url": url}


def _call(call: ToolCallPart, shown_id: str, result: ToolResultPart | None) -> JsonValue:
    part: dict[str, JsonValue] = {
        "type": "dynamic-tool",
        "toolName": call.tool_name,
        "toolCallId": shown_id,
        "input": _input(call),
    }
    asked = call.approval
    if result is None:
        if asked is None:
            return {**part, "state": "input-available"}
        if asked.decision is None:
            return {**part, "state": "approval-requested", "approval": {"id": asked.id}}
        mark: dict[str, JsonValue] = {"id": asked.id, "approved": asked.decision == "approve"}
        return {**part, "state": "approval-responded", "approval": mark}
    text = result.result.model_output
    match result.result.outcome:
        case Rejected() | Denied() as refused:
            why: dict[str, JsonValue] = {"reason": refused.reason} if refused.reason else {}
            given = asked.id if asked is not None else call.call_id
            return {**part, "state": "output-denied", "approval": {"id": given, "approved": False, **why}}
        case Succeeded() | Skipped():
            output = text if result.output is None else result.output
            return {**part, "state": "output-available", "output": output}
        case _:
            return {**part, "state": "output-error", "errorText": text}


def _input(call: ToolCallPart) -> JsonValue:
    known = call.effective_input if call.effective_input is not None else call.input
    if known is not None:
        return known
    value = json_object(call.raw_input)
    return call.raw_input if value is None else value
