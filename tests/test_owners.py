"""Which process lives: told by pid and start time (contract 7.6)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from counterfoil.owners import alive, leave, this_process
from tests.marks import law


@law("7.6")
def test_this_process_lives_until_its_runtime_leaves():
    owner = this_process("one")
    other = this_process("two")
    assert alive(owner)
    assert alive(other)
    leave(owner)
    assert not alive(owner)
    assert alive(other)
    leave(other)


@law("7.6")
def test_another_process_lives_until_it_ends():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = this_process("x")
    started = int(Path(f"/proc/{child.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    owner = replace(mine, pid=child.pid, started=started)
    assert alive(owner)
    assert not alive(replace(owner, started=started - 1))  # the pid of an earlier process
    child.communicate(b"\n")
    assert not alive(owner)
    leave(mine)


@law("7.6")
def test_a_process_that_ended_is_dead_though_its_parent_never_asked_for_its_end():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = this_process("w")
    started = int(Path(f"/proc/{child.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    owner = replace(mine, pid=child.pid, started=started)
    assert alive(owner)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays listed
    assert not alive(owner)
    child.communicate()
    leave(mine)


@law("7.6")
def test_this_pid_with_another_start_is_a_dead_process():
    owner = this_process("y")
    assert not alive(replace(owner, started=owner.started - 1))
    assert owner.pid == os.getpid()
    assert owner.host == socket.gethostname()
    leave(owner)


@law("7.6")
def test_of_another_host_nothing_is_known():
    owner = this_process("z")
    assert alive(replace(owner, host="elsewhere.example", pid=1, started=1))
    leave(owner)
