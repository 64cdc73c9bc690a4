"""Entries as bytes and back, and the hash chain over them (contract 11)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import cast

from counterfoil.core.call import caller_from_json
from counterfoil.core.call_codec import decided_of, head_of, memo_of, result_of, start_of, waiting_of
from counterfoil.core.content import Block, block_from_json, block_text
from counterfoil.core.entries import (
    ERASED,
    CallRecord,
    CancelEntry,
    EndedEntry,
    Entry,
    Fields,
    MessageEntry,
    NoteEntry,
    PausedEntry,
    QueuedEntry,
    ResumedEntry,
    RunEntry,
    SummaryEntry,
    TurnEntry,
)
from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.core.limits import limits_from_json
from counterfoil.core.plain_bodies import WRITERS
from counterfoil.core.turn import NO_USAGE, AuthorType, Usage
from counterfoil.core.usual import filled

GENESIS = b"\x00" * 32
"""The hash before the first entry of an interaction."""


def encode(entry: Entry) -> tuple[bytes, bytes | None]:
    """The entry's body and content, as they are stored."""
    write = WRITERS.get(type(entry))
    if write is not None:
        try:
            made = write(entry)
        except UnicodeEncodeError:
            made = None
        if made is not None:
            return made
    return by_dict(entry)


def by_dict(entry: Entry) -> tuple[bytes, bytes | None]:
    """As `encode`, for any entry."""
    content = entry.content()
    body = entry.facts()
    if content is not None:
        body["content"] = hashlib.sha256(content).hexdigest()
        body["size_"] = len(content)
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
    facts = filled(facts)
    made = _DECODERS.get(str(facts.get("kind")))
    if made is None:
        raise ValueError(f"expected an entry of a known kind, got {facts.get('kind')!r}; is the program too old?")
    entry = made(facts, None if content is None else loads(content))
    entry.entry = number
    entry.sequence = cast("int", facts["seq"])
    return entry


def _pair(value: JsonValue) -> tuple[int, int] | None:
    return cast("tuple[int, int]", tuple(value)) if isinstance(value, list) else None


def _run(f: Fields, c: JsonValue) -> Entry:
    return RunEntry(
        **head_of(f),  # type: ignore[arg-type]  # the head's values are typed by encode
        agent=cast("str", f["agent"]),
        caller=caller_from_json(cast("Fields", f["caller"])),
        limits=limits_from_json(cast("Fields", f["limits"])),
        approvals=cast("str", f["approvals"]),
        on_disconnect=cast("str", f["onDisconnect"]),
        parent=cast("str | None", f["parent"]),
        call=_pair(f["call"]),
        direct=cast("bool", f["direct"]),
        imported={"format": f["imported"]} if c is None and "imported" in f else cast("Fields | None", c),
    )


def _message(f: Fields, c: JsonValue) -> Entry:
    text, blocks = _said(c)
    return MessageEntry(
        **head_of(f),  # type: ignore[arg-type]  # as above
        text=text,
        blocks=blocks,
        author_type=cast("AuthorType", f["authorType"]),
        author_name=cast("str", f["authorName"]),
        queued=cast("int | None", f["queued"]),
    )


def _note(f: Fields, c: JsonValue) -> Entry:
    text = ERASED if c is None else cast("str", c)
    return NoteEntry(**head_of(f), text=text, author_name=cast("str", f["authorName"]))  # type: ignore[arg-type]  # as above


def _queued(f: Fields, c: JsonValue) -> Entry:
    text, blocks = _said(c)
    return QueuedEntry(
        **head_of(f),  # type: ignore[arg-type]  # as above
        text=text,
        blocks=blocks,
        author_name=cast("str", f["authorName"]),
    )


def _said(content: JsonValue) -> tuple[str, tuple[Block, ...]]:
    """Text and blocks of a message."""
    if not isinstance(content, list):
        return ERASED if content is None else cast("str", content), ()
    blocks = tuple(block_from_json(cast("Fields", block)) for block in content)
    return "\n".join(map(block_text, blocks)), blocks


def _turn(f: Fields, c: JsonValue) -> Entry:
    calls = cast("list[list[str]]", f["calls"])
    text, raws, *reasoning = (
        cast("tuple[str, list[str], JsonValue]", c)
        if c is not None
        else (ERASED if f["head"] else "", [ERASED] * len(calls), None, ERASED if f["thought"] else "")
    )
    return TurnEntry(
        **head_of(f),  # type: ignore[arg-type]  # as above
        step=cast("int", f["step"]),
        text=text,
        calls=tuple(_call(call, raw) for call, raw in zip(calls, raws, strict=True)),
        stop=cast("str", f["stop"]),
        usage=_usage(f["usage"]),
        discarded=_usage(f.get("discarded")),
        model=cast("str", f["model"]),
        offered=cast("str", f["offered"]),
        reasoning=reasoning[0] if reasoning else None,
        thought=cast("str", reasoning[1]) if len(reasoning) > 1 else "",
    )


def _summary(f: Fields, c: JsonValue) -> Entry:
    return SummaryEntry(
        **head_of(f),  # type: ignore[arg-type]  # as above
        text=ERASED if c is None else cast("str", c),
        first=cast("int", f["first"]),
        last=cast("int", f["last"]),
        usage=_usage(f["usage"]),
        model=cast("str", f["model"]),
    )


def _usage(given: JsonValue) -> Usage:
    return NO_USAGE if given is None else Usage(*cast("list[int]", given))


def _call(call: list[str], raw: str) -> CallRecord:
    if len(call) == 2:  # noqa: PLR2004  # its id, which is the provider's too, and the tool
        return CallRecord(call[0], call[0], call[1], raw)
    return CallRecord(call[0], call[1], call[2], raw, bool(call[3]))


def _paused(f: Fields, _: JsonValue) -> Entry:
    return PausedEntry(**head_of(f), ended_run=_pair(f["endedRun"]), children=cast("bool", f["children"]))  # type: ignore[arg-type]  # as above


def _resumed(f: Fields, _: JsonValue) -> Entry:
    limits = cast("Fields | None", f["limits"])
    return ResumedEntry(**head_of(f), limits=limits_from_json(limits) if limits else None)  # type: ignore[arg-type]  # as above


def _ended(f: Fields, c: JsonValue) -> Entry:
    # What completed has an answer, and what did not a reason.
    erased = (ERASED, None, None) if f["status"] == "completed" else (None, None, ERASED)
    answer, output, reason = cast("tuple[str | None, JsonValue, str | None]", c or erased)
    return EndedEntry(
        **head_of(f),  # type: ignore[arg-type]  # as above
        status=cast("str", f["status"]),
        ended_by=cast("str", f["endedBy"]),
        ended_run=_pair(f["endedRun"]),
        answer=answer,
        output=output,
        null="null" in f,
        reason=reason,
        seconds=cast("float", f["seconds"]),
        discarded=_usage(f.get("discarded")),
    )


def _cancel(f: Fields, c: JsonValue) -> Entry:
    return CancelEntry(**head_of(f), reason=cast("str | None", c), by=cast("str | None", f["by"]))  # type: ignore[arg-type]  # as above


_DECODERS: Mapping[str, Callable[[Fields, JsonValue], Entry]] = {
    "run": _run,
    "message": _message,
    "note": _note,
    "queued": _queued,
    "turn": _turn,
    "summary": _summary,
    "start": start_of,
    "waiting": waiting_of,
    "decided": decided_of,
    "result": result_of,
    "late": result_of,
    "memo": memo_of,
    "paused": _paused,
    "resumed": _resumed,
    "ended": _ended,
    "cancel": _cancel,
}
"""One decoder for each kind."""
