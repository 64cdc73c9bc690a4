"""A turn that is streamed over real HTTP to whoever follows its run: ``python stream.py WIRE MEGABYTES``.

The strict server of the wire runs in a process of its own, so that what is counted is the client's CPU alone: the SDK,
the adapter, the loop, and the events of the run. Prints JSON: seconds of CPU, events.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time

from counterfoil import Agent
from counterfoil.adapters.models.anthropic import AnthropicMessages
from counterfoil.adapters.models.google import GoogleGemini
from counterfoil.adapters.models.openai import OpenAIResponses
from counterfoil.adapters.models.openai_chat import OpenAIChat
from counterfoil.core.events import TurnDelta
from counterfoil.testing.fake_anthropic import FakeAnthropic
from counterfoil.testing.fake_google import FakeGoogle
from counterfoil.testing.fake_openai import FakeOpenAI
from counterfoil.testing.fake_responses import FakeResponses
from counterfoil.testing.fake_server import Play

WIRES = {
    "anthropic": (FakeAnthropic, AnthropicMessages),
    "google": (FakeGoogle, GoogleGemini),
    "openai": (FakeResponses, OpenAIResponses),
    "openai-chat": (FakeOpenAI, OpenAIChat),
}
PIECE = 40
"""Characters of a delta; providers send some ten."""


async def serve(wire: str, size: int) -> None:
    """Answer every request with a text of this size, until the input closes."""
    play = Play("0123456789 and so on, ...ends: " * (size // 31), pieces=size // PIECE)
    async with WIRES[wire][0]([play] * 100) as server:
        print(server.base_url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def read(wire: str, url: str, size: int) -> int:
    """One run, followed; the number of its deltas."""
    model = WIRES[wire][1]("any", base_url=url)
    count = chars = 0
    async for event in Agent("reader", model).stream("Tell me."):
        if isinstance(event, TurnDelta):
            count += 1
            chars += len(event.text)
    await model.aclose()
    if chars < size * 0.9:
        raise SystemExit(f"{chars} characters came of {size}")
    return count


def measure(wire: str, size: int) -> dict[str, float]:
    """The best of three runs, after a short one."""
    command = [sys.executable, __file__, wire, str(size / 1e6), "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().strip()
        taken = []
        for _ in range(3):
            began = time.process_time()
            count = asyncio.run(read(wire, url, size))
            taken.append(time.process_time() - began)
        with contextlib.suppress(BrokenPipeError):
            server.stdin.close()
    return {"cpu": min(taken), "events": count}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wire", choices=WIRES)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    bytes_ = int(options.megabytes * 1e6)
    if options.serve:
        asyncio.run(serve(options.wire, bytes_))
    else:
        print(json.dumps(measure(options.wire, bytes_)))
