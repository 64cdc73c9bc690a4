"""The demo: a real small model on real files, then an order desk with everything that can happen to a call.

Act one asks a model on this machine; where its wheels are not installed it plays recorded turns of the same model, and
says so. Act two is scripted, and says so too. Both leave their record on disk.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from typing import Any, Final

from rich.console import Console
from rich.rule import Rule as Line
from rich.table import Table
from rich.text import Text

from counterfoil.agent import Agent
from counterfoil.core.approval import Approval
from counterfoil.core.errors import CounterfoilError
from counterfoil.core.events import CallStarted
from counterfoil.core.result import ToolResult
from counterfoil.doors import wiring
from counterfoil.doors.cli.demo_desk import NAME, PROMPT, labels, make_orders
from counterfoil.doors.cli.demo_record import load_turns
from counterfoil.doors.cli.demo_record import main as record_turns
from counterfoil.doors.cli.demo_tools import INSTRUCTIONS, QUESTIONS, demo_tools
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.output import Out
from counterfoil.doors.cli.plain import line
from counterfoil.doors.cli.terminal import Terminal
from counterfoil.doors.cli.view import row_lines
from counterfoil.model import Model
from counterfoil.run import Run
from counterfoil.runtime import Runtime
from counterfoil.testing import RecordedModel

__all__ = ["run_demo"]

FOLDER: Final = Path(".counterfoil")
NAME_OF_COMMAND: Final = "counterfoil"
PRINTED: Final = "The label was printed before the process died; it lies in the tray."


@asynccontextmanager
async def small_model(console: Console) -> AsyncIterator[Model | None]:
    """The local model, or None where it cannot be had; says which."""
    try:
        model = wiring.local_model()
        server = await model.start()
    except CounterfoilError as error:
        console.print(Text(line(f"The small model is not at hand ({error})."), style="yellow"))
        console.print("So its recorded turns are played; the tools and the files are real.\n")
        yield None
        return
    console.print(f"{model.model} runs on this machine, at {server.base_url}.\n")
    try:
        yield model
    finally:
        await model.aclose()


async def act_one(console: Console, setting: wiring.Setting, root: Path) -> bool:
    """Three questions about the clone; True when each was answered by the tool that it needs."""
    console.print(Line("Act one: a small model, real files", align="left"))
    folder = line(root.resolve().name, 100)  # noqa: ASYNC240  # nothing else runs here
    console.print(
        f"{len(QUESTIONS)} questions about the files in {folder}. What to look at is the line with ok: the model chose "
        "that tool, and this is what it did. The answer below it is the model's own wording; from one this small it "
        "may be muddled or break off.\n"
    )
    good = True
    async with small_model(console) as model:
        recorded = load_turns()
        for question in QUESTIONS:
            player = model or RecordedModel(recorded[question.text])
            agent = Agent("reader", model=player, instructions=INSTRUCTIONS, tools=demo_tools(root))
            async with wiring.open_runtime(setting, [agent]) as runtime:
                run = await runtime.start("reader", question.text)
                await run.wait(60)
                await show(console, runtime, run)
            calls = [(c.tool_name, c.input) for c in run.calls]
            # Without git history, as in a tarball, the log says so: a clean failure is as good an answer.
            ran = all(r.executed for r in run.results) or not Path(root, ".git").exists()  # noqa: ASYNC240  # as above
            fits = run.status == "completed" and ran and calls == [(question.tool, question.input)]
            if not fits:
                console.print(Text(f"expected {question.tool}; the model did {calls}", style="red"))
            good = good and fits
    return good


async def show(console: Console, runtime: Runtime, run: Run) -> None:
    """The run's timeline, whole."""
    for row in await runtime.timeline(run.id):
        console.print(row_lines(row))
    console.print()


class Desk:
    """Act two: the worker processes, the person, and what is shown of it."""

    def __init__(self, console: Console, setting: wiring.Setting, *, ask: bool) -> None:
        self.console = console
        self.setting = setting
        self.ask = ask
        self.orders = FOLDER / "orders.db"
        self.worker: asyncio.subprocess.Process | None = None
        self.victim: asyncio.subprocess.Process | None = None
        """The worker that was killed on purpose."""

    async def play(self) -> Run:
        """From the first turn to the end of the run."""
        make_orders(self.orders)
        async with wiring.open_runtime(self.setting) as runtime:
            run = await runtime.start(NAME, PROMPT)
            try:
                await self.work()
                await self._while_driven(self._follow(runtime, run))
            finally:
                await self.stop()
            await run.refresh()
            return run

    async def work(self) -> None:
        """Start a worker process; it takes up what is unfinished."""
        self.worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "counterfoil.doors.cli.demo_desk", self.setting.value, str(self.orders),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip  # two rows
        self._say(f"A worker process has the run (pid {self.worker.pid}).")

    async def stop(self) -> None:
        """End the worker process, if there is one."""
        if self.worker is not None and self.worker.returncode is None:
            self.worker.kill()
            await self.worker.wait()

    async def _while_driven(self, following: Coroutine[Any, Any, None]) -> None:
        """Follow the run; but never wait for ever for a worker that cannot work."""
        follow, gone = asyncio.ensure_future(following), asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait((follow, gone), return_when=asyncio.FIRST_COMPLETED)
            if not follow.done():
                raise Stop(f"the worker process ended by itself, with {gone.result()}", Code.FAILED)
            await follow
        finally:
            follow.cancel()
            gone.cancel()
            await asyncio.gather(follow, gone, return_exceptions=True)

    async def _gone(self) -> int:
        """The exit code of a worker that ended and was not killed here."""
        while True:
            worker = self.worker
            if worker is not None and worker is not self.victim:
                code = await worker.wait()
                if worker is not self.victim:
                    return code
            await asyncio.sleep(0.02)

    async def _follow(self, runtime: Runtime, run: Run) -> None:
        after = 0
        while True:
            async for event in runtime.events(run.id, after=after):
                after = max(after, event.entry)
                if isinstance(event, CallStarted) and event.tool_name == "print_label" and self.victim is None:
                    await self._kill()
            await run.refresh()
            if run.status != "paused":
                return
            for approval in await run.approvals():
                await self._decide(run, approval)

    async def _kill(self) -> None:
        worker = self.worker
        if worker is None:
            return
        while not labels(self.orders, "W100"):  # noqa: ASYNC110  # another process prints them
            await asyncio.sleep(0.02)
        self.victim = worker
        worker.kill()
        await worker.wait()
        self._say(f"print_label hangs after its effect: pid {worker.pid} is killed in the middle of it (SIGKILL).")
        await self.work()

    async def _decide(self, run: Run, approval: Approval) -> None:
        if approval.kind == "interrupted":
            number = labels(self.orders, "W100")
            self._say("print_label was interrupted: nobody knows what it did.")
            self._say(f"A person looks: {number} label for W100.")
            await run.settle(approval.call_id, by=wiring.login(), result=ToolResult.text(PRINTED))
            self._say("The person records what happened; the label is not printed twice.")
            return
        text = f"{approval.tool_name} {approval.effective_input} waits for a person ({approval.reason})."
        if not self.ask:
            self._say(f"{text} Approved, since nobody is asked here.")
            await run.approve(approval.call_id, by=wiring.login(), digest=approval.digest)
            return
        self._say(text)
        answer = await Terminal(Out()).line("          Approve? [Y/n] ")
        if answer is None:
            raise Stop(f"nobody decided: the run waits on record; `{_typed()} approvals` shows the call", Code.PAUSED)
        if answer.strip().lower() in ("", "y", "yes"):
            await run.approve(approval.call_id, by=wiring.login(), digest=approval.digest)
        else:
            await run.reject(approval.call_id, by=wiring.login(), reason=None)

    def _say(self, text: str) -> None:
        told = Table.grid()  # where the line wraps it stays behind its sign
        told.add_row(Text("  > ", style="cyan"), Text(line(text), style="cyan"))
        self.console.print(told)


async def act_two(console: Console, setting: wiring.Setting, *, ask: bool) -> bool:
    """The order desk; True when it came to its end."""
    console.print(Line("Act two: an order desk, with all that can happen to a call", align="left"))
    console.print("A real SQLite database and real processes; the model's turns are scripted.\n")
    act = Desk(console, setting, ask=ask)
    run = await act.play()
    console.print()
    async with wiring.open_runtime(setting) as runtime:
        await show(console, runtime, await runtime.get(run.id))
        found = await runtime.verify()
        kept = [r for r in run.results if r.tool_result_id]
    words = "verify: every law of the record holds" if found.ok else f"verify found {len(found.problems)} problems"
    counts = f"{found.runs} runs, {found.calls} calls, {found.results} results, {found.entries} entries"
    console.print(Text(f"{words} ({counts}).", style="green" if found.ok else "red"))
    for problem in found.problems[:5]:
        console.print(Text(line(problem.message), style="red"))
    _next(console, setting, run, kept[0].sequence if kept else None)
    good = run.status == "completed" and run.ended_by == "tool" and act.victim is not None and bool(kept)
    return found.ok and good


def _next(console: Console, setting: wiring.Setting, run: Run, sequence: int | None) -> None:
    store = "" if setting.source == "default" else f" --store {setting.value}"
    short = run.id[:13]
    commands = [f"show {short}", f"errors {short}"]
    commands += [] if sequence is None else [f"result {short} {sequence} --limit 300"]
    console.print("\nThe record stays on disk. What to type next:")
    for command in (*commands, "verify"):
        console.print(Text(f"  {_typed()} {command}{store}"), soft_wrap=True)


def _typed() -> str:
    """The command as this terminal finds it: by its name, or by its path where no PATH has it."""
    script = Path(sys.argv[0])
    if script.name != NAME_OF_COMMAND or which(NAME_OF_COMMAND):
        return NAME_OF_COMMAND
    here = Path.cwd()
    return str(script.relative_to(here) if script.is_absolute() and script.is_relative_to(here) else script)


def run_demo(console: Console, store_url: str | None, yes: bool, record: bool) -> int:  # noqa: FBT001  # a command's switches
    """Play both acts; the exit code.

    Args:
        console: where to show it.
        store_url: another store than the default one.
        yes: approve without asking, and say so; so does a standard input that is no terminal.
        record: record the small model's turns anew instead, for developers.
    """
    if record:
        return record_turns([])
    return asyncio.run(_play(console, store_url, ask=not yes and sys.stdin.isatty()))


async def _play(console: Console, store_url: str | None, *, ask: bool) -> int:
    setting = wiring.Setting("store", store_url, "--store") if store_url else wiring.store_setting(None)
    FOLDER.mkdir(exist_ok=True)
    wiring.store_url(setting)
    one = await act_one(console, setting, Path())
    two = await act_two(console, setting, ask=ask)
    return 0 if one and two else 1
