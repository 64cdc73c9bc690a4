"""Who lives: here by pid and start time, elsewhere by signs of life (contract 7.6)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from counterfoil.core.limits import DEAD_AFTER, HEARTBEAT
from counterfoil.owners import Watch, leave, owner_of, owner_text, runs_here, this_host, this_process
from counterfoil.store import Owner, Worker
from tests.marks import law

ME = Owner("a", 1, 1, "me")
FAR = Owner("b", 2, 2, "far")
LATE = DEAD_AFTER * 5.0 + 0.1
"""Seconds of silence that are too long for an owner that beats every 5."""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@law("7.6")
def test_this_process_lives_until_its_runtime_leaves():
    owner = this_process("one")
    other = this_process("two")
    assert runs_here(owner)
    assert runs_here(other)
    leave(owner)
    assert not runs_here(owner)
    assert runs_here(other)
    leave(other)


@law("7.6")
def test_another_process_lives_until_it_ends():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = this_process("x")
    started = int(Path(f"/proc/{child.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    owner = replace(mine, pid=child.pid, started=started)
    assert Watch().lives(owner, mine, [])
    assert not Watch().lives(replace(owner, started=started - 1), mine, [])  # the pid of an earlier process
    child.communicate(b"\n")
    assert not Watch().lives(owner, mine, [Worker(owner, 0.0, 60.0, 60.0)])
    leave(mine)


@law("7.6")
def test_a_process_that_ended_is_dead_though_its_parent_never_asked_for_its_end():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = this_process("w")
    started = int(Path(f"/proc/{child.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    owner = replace(mine, pid=child.pid, started=started)
    assert runs_here(owner)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays listed
    assert not runs_here(owner)
    child.communicate()
    leave(mine)


@law("7.6")
def test_this_pid_with_another_start_is_a_dead_process():
    owner = this_process("y")
    assert not runs_here(replace(owner, started=owner.started - 1))
    assert owner.pid == os.getpid()
    leave(owner)


def test_a_host_is_its_name_its_boot_and_its_namespace_of_pids():
    name, boot, space = this_host().rsplit("/", 2)
    assert name == socket.gethostname()
    assert Path("/proc/sys/kernel/random/boot_id").read_text().startswith(boot)
    assert len(boot) == 8
    assert f"pid:[{space}]" == str(Path("/proc/self/ns/pid").readlink())
    assert this_host().isprintable()
    owner = this_process("h")
    assert owner.host == this_host()
    leave(owner)


@law("7.6")
def test_a_pid_of_another_namespace_says_nothing_though_the_name_and_the_boot_are_the_same():
    mine = this_process("n")
    elsewhere = replace(mine, host=mine.host.rpartition("/")[0] + "/1", pid=2**30, started=1)
    assert Watch().lives(elsewhere, mine, [Worker(elsewhere, 0.0, 5.0, 0.0)])
    leave(mine)


def test_a_host_that_is_given_stands_instead():
    owner = this_process("g", host="elsewhere")
    assert (owner.host, owner.pid) == ("elsewhere", os.getpid())
    leave(owner)


# ------------------------------------------------------------------------------------------ signs of life


@law("7.6")
@pytest.mark.parametrize(("ago", "lives"), [(0.0, True), (LATE - 0.2, True), (LATE, False)])
def test_an_owner_elsewhere_lives_for_two_of_its_own_heartbeats(ago, lives):
    assert Watch().lives(FAR, ME, [Worker(FAR, ago, 5.0, 0.0)]) == lives


@law("7.6")
def test_an_owner_elsewhere_that_never_beat_has_that_long_from_when_it_is_first_seen():
    clock = Clock()
    watch = Watch(clock)
    assert watch.lives(FAR, ME, [])
    clock.now += DEAD_AFTER * HEARTBEAT - 0.1
    assert watch.lives(FAR, ME, [])
    assert watch.lives(Owner("c", 3, 3), ME, [])
    clock.now += 0.2
    assert not watch.lives(FAR, ME, [])
    assert watch.lives(Owner("c", 3, 3), ME, [])


@law("7.6")
def test_a_process_here_that_is_silent_is_dead_though_it_is_listed():
    mine = this_process("m")
    other = this_process("o")
    assert Watch().lives(other, mine, [])
    assert Watch().lives(other, mine, [Worker(other, 0.0, 5.0, 0.0)])
    assert not Watch().lives(other, mine, [Worker(other, LATE, 5.0, 0.0)])
    leave(mine)
    leave(other)


@law("7.6")
@pytest.mark.parametrize(
    ("mine", "lives"),
    [
        (Worker(ME, 0.0, 2.0, LATE), False),
        (Worker(ME, 0.0, 2.0, LATE - 0.2), True),  # it stood still itself not long ago, or has just come
        (Worker(ME, 4.1, 2.0, LATE), True),  # it stands still just now
    ],
)
def test_silence_counts_only_while_i_was_there_to_hear(mine, lives):
    assert Watch().lives(FAR, ME, [Worker(FAR, 1000.0, 5.0, 0.0), mine]) == lives


@law("7.6")
def test_nobody_thinks_itself_dead():
    assert Watch().lives(ME, ME, [Worker(ME, 1000.0, 2.0, 0.0)])


@pytest.mark.parametrize("text", ["", "a", 'h "1"/\x00\x1b é漢', "x" * 300])
def test_an_owner_comes_back_from_its_text(text):
    owner = Owner(text, 2**40, 2**50, text)
    assert owner_of(owner_text(owner)) == owner
    assert owner_text(owner).isascii()
