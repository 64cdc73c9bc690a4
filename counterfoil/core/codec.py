"""Entries as bytes and back, and the hash chain over them (contract 11)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import cast

from counterfoil.core.approval import Approval, Choice, Decision, approval_from_json
from counterfoil.core.call import caller_from_json
from counterfoil.core.content import Block, Json, block_from_json
from counterfoil.core.entries import (
    CallRecord,
    CancelEntry,
    DecidedEntry,
    EndedEntry,
    Entry,
    Fields,
    LateEntry,
    MemoEntry,
    MessageEntry,
    PausedEntry,
    QueuedEntry,
    ResultEntry,
    ResumedEntry,
    RunEntry,
    StartEntry,
    TurnEntry,
    WaitingEntry,
)
from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.core.limits import limits_from_json
from counterfoil.core.outcome import outcome_from_json
from counterfoil.core.extensions import NO_EXTENSIONS
from counterfoil.core.result import seal
from counterfoil.core.turn import AuthorType, Usage, moment

ERASED = "(erased)"
"""Stands in for every text whose content retention has erased."""

GENESIS = b"\x00" * 32
"""The hash before the first entry of an interaction."""


def encode(entry: Entry) -> tuple[bytes, bytes | None]:
    """The entry's body and content, as they are stored."""
    content = entry.content()
    body: Fields = {
        "kind": entry.kind,
        "run": entry.run_id,
        "thread": entry.thread_id,
        "at": entry.at,
        "seq": entry.sequence,
        **entry.facts(),
        "content": None if content is None else hashlib.sha256(content).hexdigest(),
        "size_": None if content is None else len(content),
    }
    return dumps(body), content


def chain(previous: bytes, body: bytes) -> bytes:
    """The hash of an entry: SHA-256 over the hash of the one before it and its own body."""
    return hashlib.sha256(previous + body).digest()


def decode(body: bytes, content: bytes | None, number: int) -> Entry:
    """The entry whose body and content these are; content that was erased is shown as such.

    Raises:
        ValueError: the bytes are no entry.
    """
    facts = loads(body)
    if not isinstance(facts, dict):
        raise ValueError(f"expected an entry's body, got {type(facts).__name__}")
    made = _DECODERS.get(str(facts.get("kind")))
    if made is None:
        raise ValueError(f"expected an entry of a known kind, got {facts.get('kind')!r}; is the program too old?")
    entry = made(facts, None if content is None else loads(content))
    entry.entry = number
    entry.sequence = cast("int", facts["seq"])
    return entry


def _head(f: Fields, *, call: bool = False) -> dict[str, object]:
    head: dict[str, object] = {"run_id": f["run"], "thread_id": f["thread"], "at": f["at"]}
    if call:
        head |= {"step": f["step"], "index": f["index"], "call_id": f["callId"], "tool_name": f["toolName"]}
    return head


def _pair(value: JsonValue) -> tuple[int, int] | None:
    return cast("tuple[int, int]", tuple(value)) if isinstance(value, list) else None


def _run(f: Fields, _: JsonValue) -> Entry:
    return RunEntry(
        **_head(f),  # type: ignore[arg-type]  # the head's values are typed by encode
        agent=cast("str", f["agent"]),
        caller=caller_from_json(cast("Fields", f["caller"])),
        limits=limits_from_json(cast("Fields", f["limits"])),
        approvals=cast("str", f["approvals"]),
        on_disconnect=cast("str", f["onDisconnect"]),
        parent=cast("str | None", f["parent"]),
    )


def _message(f: Fields, c: JsonValue) -> Entry:
    return MessageEntry(
        **_head(f),  # type: ignore[arg-type]  # as above
        text=ERASED if c is None else cast("str", c),
        author_type=cast("AuthorType", f["authorType"]),
        author_name=cast("str", f["authorName"]),
        queued=cast("int | None", f["queued"]),
    )


def _queued(f: Fields, c: JsonValue) -> Entry:
    return QueuedEntry(
        **_head(f),  # type: ignore[arg-type]  # as above
        text=ERASED if c is None else cast("str", c),
        author_name=cast("str", f["authorName"]),
    )


def _turn(f: Fields, c: JsonValue) -> Entry:
    calls = cast("list[list[str]]", f["calls"])
    text, raws, reasoning = (
        cast("tuple[str, list[str], JsonValue]", c)
        if c is not None
        else (ERASED if f["head"] else "", [ERASED] * len(calls), None)
    )
    return TurnEntry(
        **_head(f),  # type: ignore[arg-type]  # as above
        step=cast("int", f["step"]),
        text=text,
        calls=tuple(CallRecord(c[0], c[1], c[2], raw, bool(c[3])) for c, raw in zip(calls, raws, strict=True)),
        stop=cast("str", f["stop"]),
        usage=Usage(*cast("list[int]", f["usage"])),
        model=cast("str", f["model"]),
        offered=cast("str", f["offered"]),
        reasoning=reasoning,
    )


def _start(f: Fields, c: JsonValue) -> Entry:
    if f["same"]:
        parsed, effective = None, dumps(c)
    else:
        both = cast("list[JsonValue]", c) if c is not None else [None, None]
        parsed, effective = dumps(both[0]), dumps(both[1])
    return StartEntry(
        **_head(f, call=True),  # type: ignore[arg-type]  # as above
        attempt=cast("int", f["attempt"]),
        key=cast("str", f["key"]),
        safe=cast("bool", f["safe"]),
        effective=effective,
        parsed=parsed,
        decision=f["decision"],
        approval_id=cast("str | None", f["approvalId"]),
        lock=cast("str | None", f["lock"]),
        most=cast("int", f["most"]),
    )


def _waiting(f: Fields, c: JsonValue) -> Entry:
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
        )
    return WaitingEntry(**_head(f, call=True), approval=approval, decision=f["decision"])  # type: ignore[arg-type]  # as above


def _decided(f: Fields, c: JsonValue) -> Entry:
    reason, edited, value = cast("tuple[str | None, str | None, JsonValue]", c or (ERASED, None, None))
    decision = Decision(
        choice=cast("Choice", f["choice"]),
        by=cast("str | None", f["by"]),
        reason=reason,
        input=None if edited is None else edited.encode(),
        digest=cast("str | None", f["digest"]),
        value=value,
        at=cast("int", f["at"]),
    )
    return DecidedEntry(
        **_head(f, call=True),  # type: ignore[arg-type]  # as above
        approval_id=cast("str", f["approvalId"]),
        decision=decision,
    )


def _stored_block(data: Fields) -> Block:
    if data.get("type") == "json":
        return Json.from_text(cast("str", data["text"]))
    return block_from_json(data)


def _erased_result(f: Fields) -> list[JsonValue]:
    outcome: Fields = {"type": f["outcome"], "reason": ERASED, "by": ERASED, "rule": None}
    if f["outcome"] == "failed":
        outcome["failure"] = {
            "code": f["code"], "message": ERASED, "retryable": None, "origin": "gateway", "body": "unknown", "data": None,
        }  # fmt: skip  # one row reads better than six
    return [[{"type": "text", "text": ERASED}], outcome, None, None, None, None]


def _result(f: Fields, c: JsonValue) -> Entry:
    blocks, outcome, details, narration, replaced, parsed, *changed = cast("list[JsonValue]", c or _erased_result(f))
    result = seal(
        tuple(_stored_block(b) for b in cast("list[Fields]", blocks)),
        outcome_from_json(cast("Fields", outcome)),
        details,
        NO_EXTENSIONS,
        cast("bool", f["terminate"]),
        cast("str | None", narration),
    )
    kind = LateEntry if f["kind"] == "late" else ResultEntry
    return kind(
        **_head(f, call=True),  # type: ignore[arg-type]  # as above
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
        effective=cast("str", changed[0]).encode() if changed else None,
        replaced=replaced,
    )


def _memo(f: Fields, c: JsonValue) -> Entry:
    return MemoEntry(**_head(f, call=True), name=cast("str", f["name"]), value=c)  # type: ignore[arg-type]  # as above


def _paused(f: Fields, _: JsonValue) -> Entry:
    return PausedEntry(**_head(f), ended_run=_pair(f["endedRun"]))  # type: ignore[arg-type]  # as above


def _resumed(f: Fields, _: JsonValue) -> Entry:
    limits = cast("Fields | None", f["limits"])
    return ResumedEntry(**_head(f), limits=limits_from_json(limits) if limits else None)  # type: ignore[arg-type]  # as above


def _ended(f: Fields, c: JsonValue) -> Entry:
    answer, output, reason = cast("tuple[str | None, JsonValue, str | None]", c or (ERASED, None, ERASED))
    return EndedEntry(
        **_head(f),  # type: ignore[arg-type]  # as above
        status=cast("str", f["status"]),
        ended_by=cast("str", f["endedBy"]),
        ended_run=_pair(f["endedRun"]),
        answer=answer,
        output=output,
        reason=reason,
        seconds=cast("float", f["seconds"]),
    )


def _cancel(f: Fields, c: JsonValue) -> Entry:
    return CancelEntry(**_head(f), reason=cast("str | None", c), by=cast("str | None", f["by"]))  # type: ignore[arg-type]  # as above


_DECODERS: Mapping[str, Callable[[Fields, JsonValue], Entry]] = {
    "run": _run,
    "message": _message,
    "queued": _queued,
    "turn": _turn,
    "start": _start,
    "waiting": _waiting,
    "decided": _decided,
    "result": _result,
    "late": _result,
    "memo": _memo,
    "paused": _paused,
    "resumed": _resumed,
    "ended": _ended,
    "cancel": _cancel,
}
"""One decoder for each kind."""
