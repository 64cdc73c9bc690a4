"""Agents for the tests of the command line: `tests.cli_desk:NAME`."""

import json
import os
import time
from pathlib import Path

from counterfoil import Agent, Limits, ToolContext, ToolError, ToolResult, tool
from counterfoil.testing import ScriptedModel, call, say

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u202c [bold red]loud[/] \x00\x08\u200b你好 👩\u200d👩\u200d👧 end"
"""A title, an erased screen, colours, a turned direction, markup, invisible and wide characters."""


@tool(read_only=True)
def get_order(order_id: str) -> dict[str, object]:
    """Look up an order."""
    if order_id == "W404":
        raise ToolError("There is no order W404.", code=404)
    if order_id == "W500":
        raise ValueError(f"the disk said {HOSTILE}")
    return {"id": order_id, "cents": 1200}


@tool(needs_approval=True)
def refund(order_id: str, cents: int) -> ToolResult:
    """Refund part of an order."""
    return ToolResult.text(f"Refunded {cents}.").with_narration(f"Refunded {cents / 100:.2f} on {order_id}")


@tool(read_only=True)
def long_text() -> str:
    """A text that is kept apart."""
    return "é0123456789\n" * 8000


@tool(read_only=True)
def naughty(index: int) -> ToolResult:
    """One string of the file in NAUGHTY as narration, of eight."""
    texts = json.loads(Path(os.environ["NAUGHTY"]).read_text(encoding="utf-8"))
    return ToolResult.text("x").with_narration("|".join(texts[8 * index : 8 * index + 8]) or "nothing")


@tool
def wait_for_file(ctx: ToolContext, name: str) -> str:
    """Say by a file that it runs, then wait for another file, or to be told to stop."""
    Path(f"{name}.began").touch()
    while not Path(name).exists() and not ctx.cancelled:
        time.sleep(0.01)
    return "the file came" if Path(name).exists() else "told to stop"


desk = Agent(
    "desk",
    ScriptedModel(
        [
            [say("Let me look."), call("get_order", order_id="W100", id="look")],
            [call("refund", order_id="W100", cents=500, id="pay-1")],
            lambda request: say(f"The tool said: {request.messages[-1]['content']}"),
        ]
    ),
    tools=[get_order, refund],
)
pair = Agent(
    "pair",
    ScriptedModel(
        [
            [
                call("refund", order_id="W1", cents=100, id="pay-a"),
                call("refund", order_id="W2", cents=200, id="pay-b"),
            ],
            say("Both are decided."),
        ]
    ),
    tools=[refund],
)
hello = Agent("hello", ScriptedModel([say("Hello!")]))
echo = Agent(
    "echo",
    ScriptedModel([lambda request: say(f"You said {request.messages[-1]['content']}")]),
)
broken = Agent("broken", ScriptedModel([call("get_order", order_id="W1")]), tools=[get_order])
limited = Agent(
    "limited",
    ScriptedModel([call("get_order", order_id="W1"), call("get_order", order_id="W1")]),
    tools=[get_order],
    limits=Limits(steps=1),
)
clumsy = Agent(
    "clumsy",
    ScriptedModel(
        [
            [
                call("get_order", order_id="W404", id="e1"),
                call("get_order", order_id="W500", id="e2"),
                call("get_order", id="e3"),
            ],
            say("I give up."),
        ]
    ),
    tools=[get_order],
)
large = Agent("large", ScriptedModel([call("long_text", id="big"), say("Read it.")]), tools=[long_text])
hostile = Agent(
    "hostile",
    ScriptedModel(
        [
            [say(HOSTILE), call("refund", order_id=HOSTILE, cents=1, id="h1")],
            say(HOSTILE),
        ]
    ),
    tools=[refund],
)
waiting = Agent(
    "waiting",
    ScriptedModel([call("wait_for_file", name="go", id="w1"), say("It is done.")]),
    tools=[wait_for_file],
)
blns = Agent(
    "blns",
    ScriptedModel([[call("naughty", index=index, id=f"n{index}") for index in range(65)], say("All said.")]),
    tools=[naughty],
)
no_model = Agent("no_model", "scripted:/no/such/turns.json")

_miner = Agent("miner", ScriptedModel([call("refund", order_id="W1", cents=5, id="pay"), say("Dug.")]), tools=[refund])
chief = Agent(
    "chief",
    ScriptedModel(
        [
            call("dispatch", agent="miner", task="Dig.", id="task"),
            call("ask", participant="ada", question="Well?", id="ask"),
            lambda request: say(f"They said: {request.messages[-1]['content']}"),
        ]
    ),
    manages=[_miner],
)
boss = Agent("boss", ScriptedModel([call("dispatch", agent="clumsy", task="Look."), say("No.")]), manages=[clumsy])
twice = Agent(
    "twice",
    ScriptedModel([[call("dispatch", agent="miner", task="Dig.", id=one) for one in ("d1", "d2")], say("Both dug.")]),
    manages=[_miner],
)
