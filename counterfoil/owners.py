"""Which process drives what: telling a living one from a dead one with the same pid."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

from counterfoil.store import Owner

_tokens: set[str] = set()
"""Runtimes of this process that are open."""
_DEAD = (b"Z", b"X", b"x")
"""States of a process that has ended and is still listed (proc(5))."""


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


def this_process(token: str) -> Owner:
    """The owner that a Runtime of this process is; `leave` when it closes."""
    _tokens.add(token)
    host, pid, started = _identity(os.getpid())
    return Owner(host, pid, started, token)


@functools.lru_cache(maxsize=1)
def _identity(pid: int) -> tuple[str, int, int]:
    return socket.gethostname(), pid, _started(pid)


def leave(owner: Owner) -> None:
    """The Runtime is closed: what it still owns may be taken up."""
    _tokens.discard(owner.token)


def alive(owner: Owner) -> bool:
    """Whether the owner may still be at work. Of another host nothing is known, so it counts as alive."""
    if owner.host != socket.gethostname():
        return True
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
