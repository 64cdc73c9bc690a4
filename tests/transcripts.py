"""Transcripts for tests: one conversation in every form, what a conversation means, and histories broken at random."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from hypothesis import strategies as st

from counterfoil.core.content import Text
from counterfoil.core.jsontext import clean_text, loads
from counterfoil.model import ModelCall, ModelTurn
from counterfoil.transcripts import Answered, Reply, Said, Transcript
from counterfoil.transcripts.values import Part, failed

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Rome and Oslo?"},
    {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
            {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "c2", "content": "no such city"},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "Rome is sunny."},
]
RESPONSES: dict[str, Any] = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Rome and Oslo?"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call_output", "call_id": "c2", "output": "no such city"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "sunny"}]},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": "Rome is sunny."},
    ],
}
ANTHROPIC: dict[str, Any] = {
    "model": "claude",
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Rome and Oslo?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "c2", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c2", "content": "no such city", "is_error": True},
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "Go on."},
            ],
        },
        {"role": "assistant", "content": "Rome is sunny."},
    ],
}
OWN: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Rome and Oslo?"},
    {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [
            {"id": None, "name": "weather", "arguments": {"city": "Rome"}},
            {"id": None, "name": "weather", "arguments": {}, "arguments_raw": '{"city":"Oslo"}'},
        ],
    },
    {"role": "tool", "content": "sunny", "tool_call_id": None, "tool_name": "weather", "error": None},
    {"role": "tool", "content": "", "tool_call_id": None, "tool_name": "weather", "error": "no such city"},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "Rome is sunny."},
]
FORMS: dict[str, Any] = {"openai": CHAT, "openai-responses": RESPONSES, "anthropic": ANTHROPIC, "counterfoil": OWN}
"""The same conversation in each form; two of them say that a call failed."""
TELLS_FAILURES = ("anthropic", "counterfoil")


def meaning(transcript: Transcript, *, failures: bool = True) -> list[Any]:
    """What a conversation means, whatever its form: who said what, and each call with its result.

    Turns of the model that follow each other are one where the first made no call: some forms cannot tell them apart.
    """
    out: list[Any] = [["system", transcript.instructions]] if transcript.instructions else []
    waiting: list[tuple[str | None, list[Any]]] = []
    for item in transcript.items:
        match item:
            case Said():
                out.append([item.role, item.text])
            case Reply(turn):
                text = turn.text if turn.text.strip() else ""
                if out and out[-1][0] == "model" and not out[-1][2] and text:
                    out[-1][1] += "\n\n" + text
                elif not (out and out[-1][0] == "model" and not out[-1][2]):
                    out.append(["model", text, []])
                calls = [[c.name, parsed(c.arguments or "")] for c in turn.calls]
                out[-1][2] += calls
                waiting = [(c.id or None, made) for c, made in zip(turn.calls, calls, strict=True)]
            case Answered():
                pair = next(pair for pair in waiting if pair[0] == (item.call_id or None))
                waiting.remove(pair)
                pair[1].extend([item.text, item.failure is not None] if failures else [item.text])
    return out


def parsed(raw: str) -> Any:
    """Arguments as a value; as they are where they are no JSON object."""
    try:
        value = loads(raw)
    except ValueError:
        return raw
    return value if isinstance(value, dict) else raw


def recorded_meaning(messages: list[dict[str, Any]]) -> list[Any]:
    """As `meaning`, of a recording whose calls and results pair by their places, without a line of the package."""
    out: list[Any] = []
    waiting: list[Any] = []
    for message in copy.deepcopy(messages):
        said = message["content"] if (message["content"] or "").strip() else ""
        match message["role"]:
            case "assistant":
                if out and out[-1][0] == "model" and not out[-1][2]:
                    out[-1][1] += "\n\n" + said if said else ""
                else:
                    out.append(["model", said, []])
                waiting = [
                    [c["name"], json.loads(c["arguments_raw"]) if "arguments_raw" in c else c["arguments"]]
                    for c in message.get("tool_calls") or []
                ]
                out[-1][2] += waiting
            case "tool":
                waiting[0] += [said or message["error"] or "(no output)", message["error"] is not None]
                waiting = waiting[1:]
            case role:
                out.append([role, said])
    return out


# ------------------------------------------------------------------------------------------- at random

ATOMS: list[Any] = [
    None, 7, -1, 1.5, True, "", "x", [], {}, [None], {"type": "text"}, [{"type": "image"}], {"url": 7},
    "data:image/png;base64,QQ==",
]  # fmt: skip  # values alone
KEYS = ["type", "role", "content", "id", "name", "system", "input", "messages"]


def damaged(value: Any, dice: random.Random) -> Any:
    """A copy of a JSON value in which some places hold something else, or nothing."""
    value = copy.deepcopy(value)
    for _ in range(dice.randint(1, 4)):
        node, home, key = value, None, None
        while isinstance(node, (dict, list)) and node and dice.random() < 0.8:
            home, key = node, dice.choice(list(node) if isinstance(node, dict) else range(len(node)))
            node = node[key]
        if home is None:
            continue
        match dice.choice(["replace", "replace", "delete", "more"]):
            case "replace":
                home[key] = dice.choice(ATOMS)
            case "delete":
                del home[key]
            case _ if isinstance(home, list):
                home.insert(key, dice.choice(home))
            case _:
                home[dice.choice(KEYS)] = dice.choice(ATOMS)
    return value


texts = st.text(min_size=1, max_size=12).map(clean_text).filter(str.strip)
names = st.sampled_from(["look", "weather"])


@st.composite
def whole(draw: st.DrawFn) -> Transcript:
    """A conversation in which each call has its one result, right behind its turn, in any order; ids as they come."""
    items: list[Part] = []
    for _ in range(draw(st.integers(0, 4))):
        items += [Said(draw(texts), draw(st.sampled_from(["user", "system"])))] if draw(st.booleans()) else []
        count, named = draw(st.integers(0, 3)), draw(st.booleans())
        ids = draw(st.lists(st.sampled_from("abcdef"), min_size=count, max_size=count, unique=True)) if named else []
        calls = tuple(ModelCall(call_id, draw(names), draw(texts)) for call_id in ids or [None] * count)
        text = draw(texts) if not calls else draw(st.sampled_from(["", "Wait."]))
        items.append(Reply(ModelTurn(text, calls, "calls" if calls else "end")))
        order = draw(st.permutations(calls)) if named else calls
        items += [Answered(c.id, (Text(draw(texts)),), draw(fails), c.name) for c in order]
    return Transcript(tuple(items), draw(st.sampled_from(["", "Be kind."])))


fails = st.sampled_from([None, None, failed("it broke")])


@st.composite
def broken(draw: st.DrawFn) -> Transcript:
    """A conversation with items lost, doubled, moved, emptied, or with other ids."""
    transcript = draw(whole())
    items = list(transcript.items)
    for _ in range(draw(st.integers(1, 4))):
        if not items:
            break
        at = draw(st.integers(0, len(items) - 1))
        match draw(st.sampled_from(["drop", "double", "move", "empty", "rename", "stray"])):
            case "drop":
                del items[at]
            case "double":
                items.insert(draw(st.integers(0, len(items))), items[at])
            case "move":
                items.insert(draw(st.integers(0, len(items) - 1)), items.pop(at))
            case "empty":
                items.insert(at, draw(st.sampled_from([Said(" \n"), Said("", "system"), Reply(ModelTurn())])))
            case "stray":
                items.insert(at, Answered(draw(st.sampled_from(["a", "z", "", None])), (Text(draw(texts)),)))
            case _:
                items[at] = renamed(items[at], draw(st.sampled_from(["a", "b", "", None])))
    return Transcript(tuple(items), transcript.instructions)


def renamed(item: Part, call_id: str | None) -> Part:
    match item:
        case Answered():
            return Answered(call_id, item.content, item.failure, item.tool_name)
        case Reply(turn) if turn.calls:
            first, *rest = turn.calls
            calls = (ModelCall(call_id, first.name, first.arguments), *rest)
            return Reply(ModelTurn(turn.text, calls, turn.stop))
        case _:
            return item


def faults(transcript: Transcript) -> list[str]:
    """What breaks the rules of any provider: checked item by item, by another way than the repair goes."""
    found, items = [], list(transcript.items)
    for at, item in enumerate(items):
        match item:
            case Said(text) if not text.strip():
                found.append(f"{at} is empty")
            case Reply(turn):
                behind = items[at + 1 : at + 1 + len(turn.calls)]
                if not all(isinstance(one, Answered) for one in behind) or len(behind) < len(turn.calls):
                    found.append(f"{at} lacks results")
                    continue
                want = sorted(c.id or "" for c in turn.calls)
                if want != sorted(one.call_id or "" for one in behind if isinstance(one, Answered)):
                    found.append(f"{at} has the results of others")
                if len(set(filter(None, want))) < len([*filter(None, want)]):
                    found.append(f"{at} uses an id twice")
                if not (turn.text.strip() or turn.calls):
                    found.append(f"{at} is empty")
            case Answered():
                turns = [n for n in range(at) if not isinstance(items[n], Answered)]
                owner = items[turns[-1]] if turns else None
                if not isinstance(owner, Reply) or at - turns[-1] > len(owner.turn.calls):
                    found.append(f"{at} is a stray result")
            case Said():
                pass
    return found
