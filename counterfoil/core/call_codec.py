"""Entries about one call, from the JSON that they were written as."""

from __future__ import annotations

from typing import cast

from counterfoil.core.approval import Approval, Choice, Decision, approval_from_json
from counterfoil.core.call_entries import DecidedEntry, LateEntry, MemoEntry, ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.content import Block, Json, Text, block_from_json
from counterfoil.core.entries import ERASED, Entry, Fields
from counterfoil.core.extensions import NO_EXTENSIONS
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.core.outcome import SUCCEEDED, outcome_from_json
from counterfoil.core.result import seal
from counterfoil.core.turn import AuthorType, moment


def head_of(f: Fields, *, call: bool = False) -> dict[str, object]:
    """What all entries have, and what those about one call have, as fields."""
    head: dict[str, object] = {"run_id": f["run"], "thread_id": f["thread"], "at": f["at"]}
    if call:
        head |= {"step": f["step"], "index": f["index"], "call_id": f["callId"], "tool_name": f["toolName"]}
    return head


def start_of(f: Fields, c: JsonValue) -> Entry:
    """A start."""
    if f["same"]:
        parsed, effective = None, dumps(c)
    else:
        both = cast("list[JsonValue]", c) if c is not None else [None, None]
        parsed, effective = dumps(both[0]), dumps(both[1])
    return StartEntry(
        **head_of(f, call=True),  # type: ignore[arg-type]  # the head's values are typed by encode
        attempt=cast("int", f["attempt"]),
        key=cast("str", f["key"]),
        safe=cast("bool", f["safe"]),
        effective=effective,
        parsed=parsed,
        decision=f["decision"],
        approval_id=cast("str | None", f["approvalId"]),
        lock=cast("str | None", f["lock"]),
        most=cast("int", f["most"]),
        child=cast("str | None", f["child"]),
    )


def waiting_of(f: Fields, c: JsonValue) -> Entry:
    """An approval; without its content, what the facts still say of it."""
    if c is not None:
        approval = approval_from_json(cast("Fields", c))
    else:
        approval = Approval(
            id=cast("str", f["approvalId"]),
            kind=cast("str", f["approvalKind"]),  # type: ignore[arg-type]  # one of the kinds, as encode wrote it
            run_id=cast("str", f["run"]),
            call_id=cast("str", f["callId"]),
            tool_name=cast("str", f["toolName"]),
            input=ERASED,
            effective_input=ERASED,
            digest=cast("str", f["digest"]),
            rule=None,
            reason=None,
            requested_at=moment(cast("int", f["at"])),
            after=cast("str | None", f.get("after")),
        )
    return WaitingEntry(**head_of(f, call=True), approval=approval, decision=f["decision"])  # type: ignore[arg-type]  # as above


def decided_of(f: Fields, c: JsonValue) -> Entry:
    """A person's decision."""
    reason, edited, value = cast("tuple[str | None, str | None, JsonValue]", c or (ERASED, None, None))
    decision = Decision(
        choice=cast("Choice", f["choice"]),
        by=cast("str | None", f["by"]),
        reason=reason,
        input=None if edited is None else edited.encode(),
        digest=cast("str | None", f["digest"]),
        value=value,
        at=cast("int", f["at"]),
        approval=cast("str", f["approvalId"]),
    )
    return DecidedEntry(
        **head_of(f, call=True),  # type: ignore[arg-type]  # as above
        approval_id=cast("str", f["approvalId"]),
        decision=decision,
    )


def _stored_block(data: Fields | str) -> Block:
    if isinstance(data, str):
        return Text(data)
    if data.get("type") == "json":
        return Json.from_text(cast("str", data["text"]))
    return block_from_json(data)


def _erased_result(f: Fields) -> list[JsonValue]:
    outcome: Fields = {"type": f["outcome"], "reason": ERASED, "by": ERASED, "rule": None}
    if f["outcome"] == "failed":
        outcome["failure"] = {
            "code": f["code"],
            "message": ERASED,
            "retryable": None,
            "origin": "gateway",
            "body": "unknown",
            "data": None,
        }
    return [[ERASED], outcome]


def result_of(f: Fields, c: JsonValue) -> Entry:
    """A result, in time or late."""
    blocks, *given = cast("list[JsonValue]", c or _erased_result(f))
    outcome, details, narration, replaced, parsed, effective = [*given, None, None, None, None, None, None][:6]
    result = seal(
        tuple(_stored_block(b) for b in cast("list[Fields | str]", blocks)),
        SUCCEEDED if outcome is None else outcome_from_json(cast("Fields", outcome)),
        details,
        NO_EXTENSIONS,
        cast("bool", f["terminate"]),
        cast("str | None", narration),
    )
    kind = LateEntry if f["kind"] == "late" else ResultEntry
    return kind(
        **head_of(f, call=True),  # type: ignore[arg-type]  # as above
        result=result,
        size=cast("int", f["size"]),
        attempt=cast("int", f["attempt"]),
        started_at=cast("int | None", f["startedAt"]),
        duration=cast("int | None", f["duration"]),
        kept_id=cast("str | None", f["keptId"]),
        kept_digest=cast("str | None", f["keptDigest"]),
        author_type=cast("AuthorType", f["authorType"]),
        author_name=cast("str", f["authorName"]),
        decision=f["decision"],
        parsed=parsed.encode() if isinstance(parsed, str) else None,
        effective=effective.encode() if isinstance(effective, str) else None,
        replaced=replaced,
        over=cast("bool | None", f.get("over")),
    )


def memo_of(f: Fields, c: JsonValue) -> Entry:
    """A memo."""
    return MemoEntry(**head_of(f, call=True), name=cast("str", f["name"]), value=c)  # type: ignore[arg-type]  # as above
