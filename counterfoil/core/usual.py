"""Facts that a body leaves out where they have their usual value: most entries are shorter by half.

The values are part of the format: what is on record without a fact means the value that stands here.
"""

from __future__ import annotations

from collections.abc import Mapping

from counterfoil.core.jsontext import JsonValue

USUAL_MOST = 3
"""Attempts that a start allows; as it is written, whatever the limit may be in a later version."""
_HEAD: dict[str, JsonValue] = {"thread": None, "seq": 0, "content": None, "size_": None}
_RESULT: dict[str, JsonValue] = {
    **_HEAD, "code": None, "terminate": False, "keptId": None, "keptDigest": None, "authorType": "Agent",
    "authorName": "", "decision": None,
}  # fmt: skip  # rows by what belongs together
_USUAL: Mapping[object, dict[str, JsonValue]] = {
    "turn": {**_HEAD, "stop": "calls", "usage": None, "model": "", "head": 0, "thought": 0},
    "start": {
        **_HEAD, "most": USUAL_MOST, "safe": False, "decision": None, "approvalId": None, "lock": None, "same": True,
        "child": None,
    },
    "run": {**_HEAD, "call": None},
    "paused": {**_HEAD, "children": False},
    "result": _RESULT,
    "late": _RESULT,
}  # fmt: skip  # as above


def filled(facts: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The facts of a body as it lies in a store, with those that it leaves out."""
    kind = facts.get("kind")
    found = {**_USUAL.get(kind, _HEAD), **facts} if isinstance(kind, str) else facts
    if kind == "start" and "key" not in found:
        found["key"] = usual_key(found.get("run"), found.get("step"), found.get("index"))
    return found


def usual_key(run_id: object, step: object, index: object) -> str:
    """The idempotency key of a call, the same in every attempt."""
    return f"{run_id}:{step}:{index}"
