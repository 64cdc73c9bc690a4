"""Which process drives what: telling a living owner from a dead one, on this host and on others."""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from counterfoil.core.errors import Fenced
from counterfoil.core.limits import DEAD_AFTER, HEARTBEAT
from counterfoil.store import Owner, RunRow, Worker

_tokens: set[str] = set()
"""Runtimes of this process that are open."""
_DEAD = (b"Z", b"X", b"x")
"""States of a process that has ended and is still listed (proc(5))."""
_SEEN = 10_000
"""Owners that never beat, of which it is known since when they are."""


def _started(pid: int) -> int:
    """The start time of a process in ticks since boot (field 22 of /proc/PID/stat, proc(5)); 0 where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    # The command name, in parentheses, may hold spaces and parentheses itself.
    fields = stat.rpartition(b")")[2].split()
    # A dead process stays listed until its parent asks for its end, which some never do.
    return 0 if fields[0] in _DEAD else int(fields[19])


def this_process(token: str, host: str | None = None) -> Owner:
    """The owner that a Runtime of this process is; `leave` when it closes.

    Args:
        token: tells it from other Runtimes of the process.
        host: instead of `this_host`: what owns under another one is judged by its heartbeats alone.
    """
    _tokens.add(token)
    here, pid, started = _identity(os.getpid())
    return Owner(here if host is None else host, pid, started, token)


@functools.lru_cache(maxsize=1)
def _identity(pid: int) -> tuple[str, int, int]:
    return this_host(), pid, _started(pid)


def this_host() -> str:
    """Where a pid means the same process: the host's name, the boot and the namespace of its pids.

    Two containers may share a name, and a machine keeps its name when it starts anew. Printable. Where the system
    does not say, as on macOS, the name stands alone.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
        space = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        boot = space = ""
    return "".join(c if c.isprintable() else "?" for c in "/".join(filter(None, (socket.gethostname(), boot, space))))


def still_drives(row: RunRow, epoch: int) -> None:
    """Refuse what comes from a driver of a run that drives it no more; ``epoch`` is of its lease.

    Raises:
        Fenced: another worker drives it, or nobody does.
    """
    if row.epoch != epoch or row.owner is None:
        raise Fenced(f"run {row.run_id} is held by another worker, or by none; claim it again")


def leave(owner: Owner) -> None:
    """The Runtime is closed: what it still owns may be taken up."""
    _tokens.discard(owner.token)


def runs_here(owner: Owner) -> bool:
    """Whether the process of an owner of this host runs, and its Runtime is open."""
    if owner.pid == os.getpid() and owner.started in (0, _started(owner.pid)):
        return owner.token in _tokens
    started = _started(owner.pid)
    if started == 0 and not Path("/proc/self/stat").exists():
        return _exists(owner.pid)
    return started != 0 and started == owner.started


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Watch:
    """Judges who lives. Each store has one: what it has seen of owners that never beat is its own.

    Args:
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Owner, float] = {}
        """Owners of other hosts that never beat, and when they were first asked about, in seconds."""

    def lives(self, owner: Owner, me: Owner, workers: Iterable[Worker]) -> bool:
        """Whether an owner lives, as far as ``me`` can know: the one rule of every sweep, cancel and lock.

        An owner of my host whose process has ended is dead at once. Any other is dead when it has been silent for
        `DEAD_AFTER` of its own heartbeats while I was there to hear it: after a standstill of mine, or of the
        database, everybody has as long to beat again. An owner of my host that never beat lives while its process
        does; one of another host has that time from when it was first asked about.
        """
        if owner == me:
            return True
        near = owner.host == me.host
        if near and not runs_here(owner):
            return False
        theirs = mine = None
        for worker in workers:
            if worker.owner == owner:
                theirs = worker
            elif worker.owner == me:
                mine = worker
        if theirs is not None:
            silent, every = theirs.ago, theirs.every
        elif near:
            return True
        else:
            silent, every = self._known_for(owner), HEARTBEAT
        if mine is not None:
            silent = min(silent, 0.0 if mine.ago > DEAD_AFTER * mine.every else mine.steady)
        return silent <= DEAD_AFTER * every

    def _known_for(self, owner: Owner) -> float:
        now = self._clock()
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        return now - self._seen.setdefault(owner, now)


@functools.lru_cache(maxsize=1024)
def owner_text(owner: Owner) -> str:
    """An owner as stores keep it, in one column."""
    return json.dumps([owner.host, owner.pid, owner.started, owner.token])


@functools.lru_cache(maxsize=1024)
def owner_of(text: str) -> Owner:
    """The owner that `owner_text` wrote."""
    return Owner(*json.loads(text))
