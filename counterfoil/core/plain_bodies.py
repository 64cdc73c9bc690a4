"""The bytes of turns, starts and results about which nothing is unusual: written as text, not by way of a dict.

They are the bytes that `facts` and ``content`` of the entry amount to, for a third of the time; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from counterfoil.core.call_entries import ResultEntry, StartEntry
from counterfoil.core.content import Text
from counterfoil.core.entries import Entry, TurnEntry
from counterfoil.core.jsontext import dumps, quoted
from counterfoil.core.outcome import Succeeded
from counterfoil.core.turn import NO_USAGE
from counterfoil.core.usual import USUAL_MOST


def _turn(e: TurnEntry) -> tuple[bytes, bytes] | None:
    calls, raws = [], []
    for c in e.calls:
        if not c.offered or c.provider_call_id != c.call_id:
            return None
        calls.append(f"[{quoted(c.call_id)},{quoted(c.tool_name)}]")
        raws.append(quoted(c.raw))
    if e.thread_id is not None or e.reasoning is not None or e.thought or not calls or not e.sequence:
        return None
    body = (
        f'{{"kind":"turn","run":{quoted(e.run_id)},"at":{e.at},"seq":{e.sequence},"step":{e.step},'
        f'"offered":{quoted(e.offered)},"calls":[{",".join(calls)}]'
    )
    if e.stop != "calls":
        body += f',"stop":{quoted(e.stop)}'
    if e.usage is not NO_USAGE:
        body += f',"usage":{dumps([*e.usage.facts()]).decode()}'
    if e.discarded is not NO_USAGE:
        body += f',"discarded":{dumps([*e.discarded.facts()]).decode()}'
    if e.model:
        body += f',"model":{quoted(e.model)}'
    if e.text:
        body += ',"head":1'
    content = f"[{quoted(e.text)},[{','.join(raws)}]]".encode()
    return f'{body},"content":"{sha256(content).hexdigest()}","size_":{len(content)}}}'.encode(), content


def _start(e: StartEntry) -> tuple[bytes, bytes] | None:
    if (
        e.safe
        or e.sequence
        or e.decision is not None
        or e.approval_id is not None
        or e.lock is not None
        or e.child is not None
        or e.parsed is not None
        or e.most != USUAL_MOST
        or e.thread_id is not None
        or e.key != f"{e.run_id}:{e.step}:{e.index}"  # as `usual_key`
    ):
        return None
    content = e.effective
    body = (
        f'{{"kind":"start","run":{quoted(e.run_id)},"at":{e.at},"step":{e.step},"index":{e.index},'
        f'"callId":{quoted(e.call_id)},"toolName":{quoted(e.tool_name)},"attempt":{e.attempt},'
        f'"content":"{sha256(content).hexdigest()}","size_":{len(content)}}}'
    )
    return body.encode(), content


def _result(e: ResultEntry) -> tuple[bytes, bytes] | None:
    r = e.result
    if (
        e.thread_id is not None
        or type(r.outcome) is not Succeeded
        or len(r.content) != 1
        or type(r.content[0]) is not Text
        or r.terminate
        or r.details is not None
        or r.narration is not None
        or e.started_at is None
        or e.duration is None
        or e.kept_id is not None
        or e.kept_digest is not None
        or e.author_type != "Agent"
        or e.author_name
        or e.sequence
        or e.decision is not None
        or e.parsed is not None
        or e.effective is not None
        or e.replaced is not None
        or e.over is not None
    ):
        return None
    content = f"[[{quoted(r.content[0].text)}]]".encode()
    body = (
        f'{{"kind":"result","run":{quoted(e.run_id)},"at":{e.at},"step":{e.step},"index":{e.index},'
        f'"callId":{quoted(e.call_id)},"toolName":{quoted(e.tool_name)},"outcome":"succeeded","attempt":{e.attempt},'
        f'"startedAt":{e.started_at},"duration":{e.duration},"size":{e.size},'
        f'"content":"{sha256(content).hexdigest()}","size_":{len(content)}}}'
    )
    return body.encode(), content


WRITERS: Mapping[type[Entry], Callable[[Any], tuple[bytes, bytes] | None]] = {  # type: ignore[explicit-any]  # each takes its own kind
    TurnEntry: _turn,
    StartEntry: _start,
    ResultEntry: _result,
}
"""What writes an entry of a kind: body and content, or None, where they are to be written by way of a dict.

It raises UnicodeEncodeError where a text holds half a surrogate pair, which a dict's writer replaces.
"""
