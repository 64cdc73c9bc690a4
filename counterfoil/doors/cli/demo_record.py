"""Record the model turns of the demo's first act, for machines where the local model cannot be had.

    python -m counterfoil.doors.cli.demo_record

asks the local model the demo's questions over the Chat Completions wire, runs the tools on this folder and
writes `demo_turns.jsonl` beside this file: one run a line, `{"question", "model", "messages"}`. It is for
whoever works on Counterfoil; it needs the extra `openai` and the wheels of the local model.
"""

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from counterfoil.core.errors import CounterfoilError, ToolError
from counterfoil.doors import wiring
from counterfoil.doors.cli.demo_tools import INSTRUCTIONS, QUESTIONS, Question, demo_tools
from counterfoil.tool import Tool

__all__ = ["TURNS", "load_turns", "main", "record"]

TURNS: Final = Path(__file__).with_name("demo_turns.jsonl")
"""The recorded turns that come with the package."""

Message: TypeAlias = dict[str, Any]
"""`role`, `content`; calls: `tool_calls` [{id, name, arguments}]; a result: `tool_call_id`, `tool_name`."""


def load_turns(path: Path = TURNS) -> dict[str, list[Message]]:
    """Read recorded runs.

    Args:
        path: a file as `main` writes it.

    Returns:
        The messages of each run by its question, from the user's to the model's answer.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is no JSON.
    """
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {run["question"]: run["messages"] for run in runs}


async def record(root: Path) -> list[dict[str, Any]]:
    """Ask the local model every question of the demo.

    Args:
        root: the folder that the tools look into.

    Returns:
        One run for each question, as JSON.

    Raises:
        ModelError: the local model cannot be had, does not start, or chose another call than is expected.
    """
    local = wiring.local_model()
    openai = importlib.import_module("openai")
    tools = demo_tools(root)
    async with local.LocalServer() as server:
        client = openai.AsyncOpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0)
        runs = []
        for question in QUESTIONS:
            messages: list[Message] = [{"role": "user", "content": question.text}]
            for step in range(2):
                response = await client.chat.completions.create(
                    model=server.model_name,
                    messages=[{"role": "system", "content": INSTRUCTIONS}, *map(_on_the_wire, messages)],
                    tools=[_offer(tool) for tool in tools],
                    tool_choice=local.tool_choice(step),
                    **local.REQUEST,
                )
                messages += _turn(response.choices[0].message, tools)
            _check(question, messages, local.LocalServerError)
            runs.append({"question": question.text, "model": server.model_name, "messages": messages})
        return runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the questions and write the file.

    Args:
        arguments: the command line; that of the process unless given.

    Returns:
        The exit code: 0 written, 1 not, with the reason on standard error.
    """
    parser = argparse.ArgumentParser(prog="python -m counterfoil.doors.cli.demo_record", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="the clone to ask about (default: this folder)")
    parser.add_argument("--out", type=Path, default=TURNS, help="the file to write (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        runs = asyncio.run(record(options.root))
    except (CounterfoilError, ImportError, OSError) as error:
        print(f"nothing was recorded: {error}", file=sys.stderr)
        return 1
    lines = "".join(json.dumps(run, ensure_ascii=False) + "\n" for run in runs)
    options.out.write_text(lines, encoding="utf-8")
    for run in runs:
        print(f"{run['question']} {run['messages'][-1]['content']}")
    return 0


def _offer(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _on_the_wire(message: Message) -> dict[str, Any]:
    """A message as Chat Completions wants it."""
    wire = {key: value for key, value in message.items() if key != "tool_name"}
    if "tool_calls" in wire:
        wire["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for call in wire["tool_calls"]
        ]
    return wire


def _turn(answer: Any, tools: Sequence[Tool]) -> list[Message]:
    """The model's message and the results of its calls."""
    calls = [
        {"id": call.id, "name": call.function.name, "arguments": json.loads(call.function.arguments)}
        for call in answer.tool_calls or ()
    ]
    message: Message = {"role": "assistant", "content": answer.content or None}
    if not calls:
        return [message]
    return [{**message, "tool_calls": calls}, *(_result(call, tools) for call in calls)]


def _result(call: Mapping[str, Any], tools: Sequence[Tool]) -> Message:
    tool = next(tool for tool in tools if tool.name == call["name"])
    try:
        content = tool(**call["arguments"]).model_output
    except ToolError as error:
        content = error.message
    return {"role": "tool", "tool_call_id": call["id"], "tool_name": tool.name, "content": content}


def _check(question: Question, messages: Sequence[Message], error: type[Exception]) -> None:
    """A run that shows the wrong thing is not worth recording."""
    made = [(call["name"], call["arguments"]) for message in messages for call in message.get("tool_calls", ())]
    if made != [(question.tool, question.input)] or not messages[-1]["content"]:
        raise error(f"expected {question.tool} with {question.input} for {question.text!r}, got {made}; ask again")


if __name__ == "__main__":
    sys.exit(main())
