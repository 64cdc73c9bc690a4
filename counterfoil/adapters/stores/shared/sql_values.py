"""What stands in the columns of a database and in the folder of its statements, whatever the database."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources.abc import Traversable
from typing import Any, Final, cast

from counterfoil.core.approval import Approval, Choice, Decision, approval_from_json, meant, settle
from counterfoil.core.call_entries import DecidedEntry
from counterfoil.core.entries import Fields
from counterfoil.core.errors import NotPending, StoreError
from counterfoil.core.jsontext import dumps, loads
from counterfoil.core.keys import ApiKey
from counterfoil.core.turn import participants_from_json
from counterfoil.store import InteractionRow, NewRun, RunRow

SETTLED: Final = -1
"""State of a call with a result; otherwise the attempt of the call's newest start, 0 where there is none."""
PAGE_ROWS: Final = 256
"""Entries that `rows` takes at a time, at most."""
PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of them after which a page ends; a single entry may be larger."""
_PIECE_BYTES: Final = 64 * 1024
"""Bytes of one piece of a text kept apart, at most: what a read of a few characters costs."""
_CONTINUES: Final = range(0x80, 0xC0)
"""Bytes of UTF-8 that go on with a character."""


def statements_in(folder: Traversable) -> Mapping[str, str]:
    """Every statement of statements.sql, by name."""
    parts = re.split(r"^-- name: (\w+)\n", (folder / "statements.sql").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))


def migrations_in(folder: Traversable) -> list[tuple[int, str]]:
    """Each numbered migration with its text, in order."""
    found = [
        (int(match[1]), file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if (match := re.fullmatch(r"(\d{4})_\w+\.sql", file.name))
    ]
    return sorted(found)


def not_newer(version: int, newest: int, place: str) -> int:
    """The version of a schema. Raises StoreError where this program does not know it yet."""
    if version > newest:
        raise StoreError(
            f"{place} has schema {version}, this program knows {newest} at most; install a newer counterfoil"
        )
    return version


def new_row(new: NewRun, epoch: int) -> RunRow:
    """The row of a run that has just been made."""
    return RunRow(
        new.run_id, new.interaction_id, new.tenant, new.agent, "running", None, epoch, new.owner,
        new.owner is None, new.created_at, new.created_at, None, new.key, new.parent, new.pool, new.priority,
        new.not_before,
    )  # fmt: skip  # as it was written


def interaction_row(tenant: str, line: Sequence[Any]) -> InteractionRow:
    """From id, time, participants and open run."""
    id_, at, who, open_run = line
    return InteractionRow(id_, tenant, at, participants_from_json(loads(who or b"[]"), tenant), open_run)


def approvals_of(found: Sequence[Sequence[Any]]) -> list[Approval]:
    """The approvals of rows that hold nothing else, oldest first."""
    asked = [approval_from_json(cast("Fields", loads(data))) for (data,) in found]
    return sorted(asked, key=lambda a: a.requested_at)


def decided(
    run_id: str, call_id: str, asked: Sequence[Sequence[Any]], decision: Decision
) -> tuple[Approval, DecidedEntry | None, int]:
    """The approval that a decision is meant for, its entry, and the approval's number; no entry: it is a repeat.

    Args:
        run_id: the run.
        call_id: its call.
        asked: rows of the call's approvals: number, step, index, thread, approval, decision, whether it is open.
        decision: what was said.

    Raises:
        NotPending: the call has no approvals; and as `settle`.
    """
    if not asked:
        raise NotPending(f"call {call_id} of run {run_id} awaits no decision; list the approvals that do")
    approvals = [approval_from_json(cast("Fields", loads(row[4]))) for row in asked]
    place = meant(approvals, decision)
    approval = approvals[place]
    number, step, index, thread, _, first, is_open = asked[place]
    if not settle(approval, None if first is None else _decision(first), decision, open_=bool(is_open)):
        return approval, None, number
    entry = DecidedEntry(
        run_id=run_id, thread_id=thread, at=decision.at, step=step, index=index, call_id=call_id,
        tool_name=approval.tool_name, approval_id=approval.id, decision=replace(decision, approval=approval.id),
    )  # fmt: skip  # one line a field says no more
    return approval, entry, number


def decision_json(d: Decision) -> bytes:
    """What a decision is stored as."""
    edited = None if d.input is None else d.input.decode()
    return dumps([d.choice, d.by, d.reason, edited, d.digest, d.value, d.at])


def _decision(stored: bytes) -> Decision:
    choice, by, reason, edited, digest, value, at = cast("list[str | None]", loads(stored))
    text = None if edited is None else edited.encode()
    return Decision(cast("Choice", choice), by, reason, text, digest, value, cast("int", at))


def key_of(values: Sequence[Any]) -> ApiKey:
    """A key of the HTTP API."""
    id_, tenant, user, roles, scopes, *rest = values
    return ApiKey(id_, tenant, user, tuple(loads(roles)), tuple(loads(scopes)), *rest)  # type: ignore[arg-type]  # names


def key_values(key: ApiKey) -> tuple[object, ...]:
    """What a key is stored as."""
    roles, scopes = dumps(key.roles).decode(), dumps(key.scopes).decode()
    return key.id, key.tenant, key.user, roles, scopes, key.digest, key.created_at, key.expires_at, key.revoked_at


def pieces_of(text: str) -> Iterator[tuple[int, bytes]]:
    """A text kept apart, in pieces that end where a character ends; each with the number of its first character."""
    data = text.encode()
    first = start = 0
    while start < len(data):
        end = min(start + _PIECE_BYTES, len(data))
        while end < len(data) and data[end] in _CONTINUES:
            end -= 1
        piece = data[start:end]
        yield first, piece
        first += len(piece.decode())
        start = end


def range_of(pieces: Sequence[tuple[int, bytes]], offset: int, end: int) -> str:
    """The characters of a range, from the pieces that it touches."""
    if not pieces:
        return ""
    first = pieces[0][0]
    return b"".join(piece for _, piece in pieces).decode()[offset - first : end - first]
