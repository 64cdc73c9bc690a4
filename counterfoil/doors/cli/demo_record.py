"""Record the model turns of the demo's first act, for machines where the local model cannot be had.

    python -m counterfoil.doors.cli.demo_record

asks the model `local` the demo's questions about this folder and writes `demo_turns.jsonl` beside this file: one run a
line, `{"question", "model", "messages"}`. It is for whoever works on Counterfoil.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from counterfoil.agent import Agent
from counterfoil.core.errors import CounterfoilError, ModelError
from counterfoil.doors import wiring
from counterfoil.doors.cli.demo_tools import INSTRUCTIONS, QUESTIONS, demo_tools

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
        CounterfoilError: the local model cannot be had, does not start, or chose another call than is expected.
    """
    model = wiring.local_model()
    runs = []
    try:
        for question in QUESTIONS:
            agent = Agent("reader", model=model, instructions=INSTRUCTIONS, tools=demo_tools(root))
            run = await agent.run(question.text)
            # A run that shows the wrong thing is not worth recording.
            made = [(call.tool_name, call.input) for call in run.calls]
            if made != [(question.tool, question.input)] or not run.answer:
                raise ModelError(
                    f"expected {question.tool} with {question.input} for {question.text!r}, got {made} and "
                    f"{run.reason or run.answer!r}; ask again"
                )
            call, result = run.calls[0], run.results[0].result
            messages: list[Message] = [
                {"role": "user", "content": question.text},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": call.call_id, "name": call.tool_name, "arguments": call.input}],
                },
                {
                    "role": "tool",
                    "tool_call_id": call.call_id,
                    "tool_name": call.tool_name,
                    "content": result.model_output,
                },
                {"role": "assistant", "content": run.answer},
            ]
            runs.append({"question": question.text, "model": model.model, "messages": messages})
    finally:
        await model.aclose()
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
    except (CounterfoilError, OSError) as error:
        print(f"nothing was recorded: {error}", file=sys.stderr)
        return 1
    lines = "".join(json.dumps(run, ensure_ascii=False) + "\n" for run in runs)
    options.out.write_text(lines, encoding="utf-8")
    for run in runs:
        print(f"{run['question']} {run['messages'][-1]['content']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
