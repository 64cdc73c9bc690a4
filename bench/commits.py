"""Counts the transactions that a store made durable, seen from outside, so whatever program wrote them."""

from __future__ import annotations

import os
import sqlite3
import struct
from pathlib import Path


class Sqlite:
    """The commits to a file: commit frames of its log, or where it has none the counter of changes in its header."""

    def __init__(self, folder: str) -> None:
        (self.path,) = (p for p in Path(folder).iterdir() if p.read_bytes()[:15] == b"SQLite format 3")
        self.reader = sqlite3.connect(self.path, isolation_level=None)
        self.has_log = self.reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        if self.has_log:
            # As long as somebody reads the log is not begun anew, so every frame is still there at the end.
            self.reader.execute("BEGIN")
            self.reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        self.before = self._now()

    def _now(self) -> tuple[bytes, int]:
        """The salt of the log, which a new beginning changes, and the commits in it."""
        if not self.has_log:
            with self.path.open("rb") as file:
                return b"", int(struct.unpack_from(">I", file.read(100), 24)[0])
        data = self.path.with_name(self.path.name + "-wal").read_bytes()
        (size,) = struct.unpack_from(">I", data, 8)
        salt, commits = data[16:24], 0
        for at in range(32, len(data), 24 + size):
            _, pages_after, frame_salt = struct.unpack_from(">II8s", data, at)
            if frame_salt != salt:
                break  # left over from before the log was begun anew
            commits += pages_after > 0
        return salt, commits

    def since(self) -> int:
        """Commits since this began."""
        salt, commits = self._now()
        self.reader.close()
        return commits - self.before[1] if salt == self.before[0] else commits


class Postgres:
    """The transactions of a server that wrote something: each took the next number."""

    def __init__(self) -> None:
        import psycopg  # of the environment of whoever is measured

        self.db = psycopg.connect(os.environ["BENCH_PG"], autocommit=True)
        self.before = self._now()

    def _now(self) -> int:
        row = self.db.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
        return int(row[0])

    def since(self) -> int:
        """Commits since this began."""
        now = self._now()
        self.db.close()
        return now - self.before
