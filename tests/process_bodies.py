"""Functions that tests/test_process.py runs in child processes; a named pipe tells how far one is."""

import asyncio
import ctypes
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from counterfoil.core.errors import ToolError


class AsTool:
    """What a decorator leaves at the module's level: the function is inside."""

    def __init__(self, fn):
        self.fn = fn


def tell(pipe: str, text: str = "ready") -> int:
    """Write a line; the end stays open until this process is gone."""
    line = os.open(pipe, os.O_WRONLY)
    os.write(line, f"{text}\n".encode())
    return line


def add(a: int, b: int) -> int:
    return a + b


async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@AsTool
def decorated(word: str) -> str:
    return word.upper()


def pid() -> int:
    return os.getpid()


def surroundings() -> tuple[str, list[str], bytes]:
    return str(Path.cwd()), sys.path, sys.stdin.buffer.read()


def noisy() -> str:
    print("printed by the body", flush=True)  # noqa: T201
    os.write(1, b"written to descriptor 1\n")
    return "quiet"


def letters(upto: int) -> Iterator[str]:
    for index in range(upto):
        yield chr(ord("a") + index)
    raise ValueError("no further letter")


async def numbers(upto: int) -> AsyncIterator[int]:
    for index in range(upto):
        await asyncio.sleep(0)
        yield index


class Refusal(ToolError):
    """Its constructor takes other arguments than it hands on, so it cannot be rebuilt from them."""

    def __init__(self, shop: str, *, till: int) -> None:
        super().__init__(f"{shop} is closed until {till}", code=77, retryable=True, data={"till": till})


class Awkward(Exception):
    def __init__(self, left: str, right: str) -> None:
        super().__init__(left + right)


def refuse() -> None:
    raise ToolError("closed", code=7, retryable=False, data={"a": 1}, details=["x"], narration="Found the shop closed")


def refuse_specially() -> None:
    raise Refusal("The till", till=9)


def miss() -> None:
    raise FileNotFoundError(2, "No such file", "/nowhere")


def awkward() -> None:
    raise Awkward("left", "right")


def local_exception() -> None:
    class Hidden(Exception):
        pass

    raise Hidden("nobody can import me")


def cancel_itself() -> None:
    raise asyncio.CancelledError


def unsendable() -> object:
    return threading.Lock()


def leave(code: int) -> None:
    os._exit(code)


def scribble() -> None:
    """Writes a well-formed frame that holds no pickle to every descriptor that is a socket."""
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"\0\0\0\x05oops!")
        except OSError:
            continue
    signal.pause()


def leave_politely() -> None:
    sys.exit(4)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def null_pointer() -> None:
    ctypes.string_at(0)


def kill_after_forking(pipe: str) -> None:
    """Dies with a fork alive that holds a copy of all that it held."""
    told, tell_it = os.pipe()
    if os.fork() == 0:
        tell(pipe, str(os.getpid()))
        os.write(tell_it, b"x")
        signal.pause()
    os.read(told, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def hang(pipe: str) -> None:
    tell(pipe, str(os.getpid()))
    signal.pause()


def hang_without_letting_go(pipe: str) -> None:
    """A match that takes for ever and, in C, lets no other thread of this process run."""
    tell(pipe, str(os.getpid()))
    re.match(r"(a+)+b", "a" * 64)


def leave_a_thread() -> int:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return os.getpid()


def who(ctx, word: str) -> tuple[object, ...]:
    return (
        ctx.caller, ctx.run_id, ctx.thread_id, ctx.step_index, ctx.call_id, ctx.idempotency_key, ctx.attempt,
        ctx.cancelled, word,
    )  # fmt: skip


def want(ctx, name: str) -> object:
    return getattr(ctx, name)


def until_cancelled(ctx, pipe: str) -> str:
    tell(pipe)
    while not ctx.cancelled:
        threading.Event().wait(0.005)
    return "stopped in time"


def report(ctx) -> str:
    ctx.progress("half", done=1, total=2)
    ctx.progress("whole", done=2, total=2)
    return "reported"


async def report_later(ctx) -> str:
    ctx.progress("half", done=1, total=2)
    await ctx.progress("whole", done=2, total=2)
    return "reported"


def remember(ctx, name: str) -> object:
    return ctx.memo(name, lambda: f"computed {name}")


async def remember_later(ctx, names: list[str]) -> list[object]:
    async def compute() -> str:
        await asyncio.sleep(0)
        return "computed asynchronously"

    kinds = [compute if name.startswith("async") else (lambda: "computed at once") for name in names]
    return await asyncio.gather(*(ctx.memo(name, kind) for name, kind in zip(names, kinds, strict=True)))


def remember_a_failure(ctx) -> str:
    def compute() -> None:
        raise LookupError("not today")

    try:
        ctx.memo("price", compute)
    except LookupError as error:
        return f"the body saw {error!r}"
    return "the body saw nothing"


def remember_asynchronously(ctx) -> object:
    async def compute() -> str:
        await asyncio.sleep(0)
        return "computed in a loop of its own"

    return ctx.memo("price", compute)


kept = []


def keep_the_context(ctx) -> None:
    kept.append(ctx)


def use_the_kept_context() -> None:
    kept[0].progress("too late")


def echo(value: object) -> object:
    return value


class OnlyHere:
    """Comes out of its pickle in the child alone."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __setstate__(self, state: dict[str, int]) -> None:
        if os.getpid() == state["parent"]:
            raise RuntimeError("not in the parent")
        self.__dict__.update(state)
