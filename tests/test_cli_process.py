"""The command as a process: signals, pipes, terminals, crashes."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.floors import ROOT
from tests.marks import case
from tests.promises import shared
from tests.test_cli_plain import moves_or_hides

COMMAND = Path(sys.executable).with_name("counterfoil")
PATIENCE = 30.0
"""Seconds until a test gives up on something that takes a fraction of one."""


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts the command in a folder of its own; ends what is left."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "80",
            "TERM": "xterm",
            **options.pop("env", {}),
        }
        environment.pop("COUNTERFOIL_STORE", None)
        process = subprocess.Popen(
            [COMMAND, *arguments],
            cwd=tmp_path,
            env=environment,
            text=True,
            encoding="utf-8",
            preexec_fn=_hears,  # noqa: PLW1509  # it takes no lock
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _hears() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores Ctrl-C, by inheritance


def done(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in (err or "")
    return process.returncode, out, err


def until(holds: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    """Wait for what another process will bring about."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came"
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


# --------------------------------------------------------------------------------- signals and crashes


def test_ctrl_c_leaves_a_run_on_record_and_a_worker_goes_on_with_it(typed: Any, tmp_path: Path) -> None:
    process = typed("run", "tests.cli_desk:waiting", "Go")
    until((tmp_path / "go.began").exists, process)
    process.send_signal(signal.SIGINT)
    code, _, err = done(process)
    assert code == 130
    assert "is on record and unfinished: counterfoil work tests.cli_desk --once" in err
    assert err.endswith("counterfoil: interrupted\n")
    assert "RuntimeWarning" not in err
    code, out, _ = done(typed("show", "last", "--json"))
    assert code == 0
    assert json.loads(out)["status"] in {"running", "paused"}


def test_after_a_crash_a_person_settles_the_call_whose_end_nobody_knows(typed: Any, tmp_path: Path) -> None:
    process = typed("run", "tests.cli_desk:waiting", "Go")
    until((tmp_path / "go.began").exists, process)
    process.kill()
    process.communicate()
    code, _, _ = done(typed("work", "tests.cli_desk:waiting", "--once"))
    assert code == 0
    (waiting,) = json.loads(done(typed("approvals", "--json"))[1])
    assert (waiting["kind"], waiting["toolName"]) == ("interrupted", "wait_for_file")
    code, out, _ = done(typed("settle", "last", "--result", "It went out.", "--with", "tests.cli_desk:waiting"))
    assert code == 0
    assert out.endswith("It is done.\n")
    assert done(typed("verify"))[0] == 0


def test_a_cancel_from_another_process_ends_a_run_that_is_driven_here(typed: Any, tmp_path: Path) -> None:
    process = typed("run", "tests.cli_desk:waiting", "Go")
    until((tmp_path / "go.began").exists, process)
    code, out, _ = done(typed("cancel", "last", "--reason", "enough"))
    assert code == 0
    assert "is cancelled" in out
    code, out, _ = done(process)
    assert code == 4
    assert "enough" in out


def test_a_worker_ends_in_good_order_when_it_is_told_to(typed: Any, tmp_path: Path) -> None:
    process = typed("work", "tests.cli_desk")
    until(lambda: select.select([process.stderr], [], [], 0)[0], process)
    assert process.stderr.readline().startswith("working for ")
    process.send_signal(signal.SIGTERM)
    code, out, err = done(process)
    assert (code, out) == (0, "")
    assert err.endswith("stopping\n")


def test_a_worker_that_is_told_to_end_lets_a_body_end_and_leaves_the_next_step_to_another(
    typed: Any, tmp_path: Path
) -> None:
    process = typed("run", "tests.cli_desk:waiting", "Go")
    until((tmp_path / "go.began").exists, process)
    process.kill()
    process.wait(PATIENCE)
    (tmp_path / "go.began").unlink()
    assert done(typed("work", "tests.cli_desk:waiting", "--once"))[0] == 0
    assert done(typed("settle", "last", "--rerun"))[0] == 0
    worker = typed("work", "tests.cli_desk:waiting", "--concurrency", "1", "--tenant-running", "1", "--retain", "1d")
    until((tmp_path / "go.began").exists, worker)
    worker.send_signal(signal.SIGTERM)
    lines: list[str] = []
    while "stopping\n" not in lines:
        lines.append(worker.stderr.readline())
        assert lines[-1], lines
    (tmp_path / "go").touch()
    code, _, err = done(worker)
    assert (code, err) == (0, "")
    shown = done(typed("show", "last"))[1]
    assert "gave 13 bytes" in shown  # the file came, and it was not told to stop
    assert "It is done." not in shown
    assert done(typed("work", "tests.cli_desk:waiting", "--once"))[0] == 0
    assert "It is done." in done(typed("show", "last"))[1]
    assert done(typed("verify"))[0] == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tenant-starts", "often"], "such as 60/m"),
        (["--retain", "a while"], "such as 30d"),
        (["--dispatch", "pigeon"], "known are dbos, inline, temporal"),
    ],
)
def test_a_worker_says_what_it_expected(typed: Any, flags: list[str], says: str) -> None:
    code, _, err = done(typed("work", "tests.cli_desk:waiting", "--once", *flags))
    assert code == 2
    assert says in " ".join(err.split())


def test_a_reader_that_goes_away_ends_nothing_and_changes_no_exit_code(typed: Any) -> None:
    assert done(typed("run", "tests.cli_desk:clumsy", "Go"))[0] == 0
    process = typed("errors", "last")
    process.stdout.close()
    process.stdout = None
    assert process.stderr.read() == ""
    assert process.wait(PATIENCE) == 0


def test_standard_output_that_takes_ascii_alone_is_no_error(typed: Any) -> None:
    plain = {"PYTHONIOENCODING": "ascii"}
    code, out, _ = done(typed("run", "tests.cli_desk:echo", "naïve 你好", "--json", env=plain))
    assert code == 0
    assert json.loads(out)["answer"] == "You said naïve 你好"
    code, out, _ = done(typed("show", "last", env=plain))
    assert code == 0
    assert out.isascii()


def test_hundreds_of_naughty_strings_reach_no_terminal(typed: Any) -> None:
    folder = shared()
    if folder is None:
        pytest.skip("the list of naughty strings lies in the folder of COUNTERFOIL_SHARED")
    strings = {"NAUGHTY": str(folder / "data" / "hostile" / "blns.json")}
    screen = Screen()
    process = typed("run", "tests.cli_desk:blns", "Go", env=strings, **screen.streams())
    text = screen.read_until("\nAll said.")  # read on the way: a terminal takes some thousand bytes and no more
    assert process.wait(PATIENCE) == 0
    screen.rest()
    assert text.count("✓ ok") == 65
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "")  # colours and line ends are our own
    assert moves_or_hides(plain) == []


# --------------------------------------------------------------------------------------------- terminal


class Screen:
    """A terminal, and what a person sees and types there."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.seen = ""

    def streams(self) -> dict[str, int]:
        return {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}

    def read_until(self, text: str) -> str:
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def rest(self) -> str:
        """What is left when the process has ended."""
        os.close(self.slave)
        text, self.seen = bytearray(self.seen.encode()), ""
        while True:
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # nobody has the other side open any more
                break
            if not piece:
                break
            text += piece
        os.close(self.master)
        return text.decode("utf-8", "replace")


@case("R082")
def test_on_a_terminal_a_person_is_asked_and_decides(typed: Any) -> None:
    screen = Screen()
    process = typed("run", "tests.cli_desk:desk", "Refund W100", **screen.streams())
    asked = screen.read_until("[l]ater? ")
    assert '"cents": 500' in asked
    screen.type("maybe\n")
    screen.read_until("expected y, n, e or l")
    screen.read_until("[l]ater? ")
    screen.type("e\n")
    screen.read_until("(empty: back)? ")
    screen.type('{"order_id": "W100", "cents": "lots"}\n')
    screen.read_until("does not take this input")
    screen.read_until("[l]ater? ")
    screen.type("y\n")
    assert process.wait(PATIENCE) == 0
    assert "The tool said: Refunded 500." in screen.rest()


def test_on_a_terminal_a_person_rejects_with_a_reason_or_leaves_it_for_later(typed: Any) -> None:
    screen = Screen()
    process = typed("run", "tests.cli_desk:desk", "Refund W100", **screen.streams())
    screen.read_until("[l]ater? ")
    screen.type("l\n")
    assert process.wait(PATIENCE) == 3
    process = typed("approve", "last", "--by", "ann", **screen.streams())
    assert process.wait(PATIENCE) == 0
    process = typed("run", "tests.cli_desk:desk", "Refund W100", **screen.streams())
    screen.read_until("[l]ater? ")
    screen.type("n\n")
    screen.read_until("may be empty)? ")
    screen.type("too dear\n")
    assert process.wait(PATIENCE) == 0
    text = screen.rest()
    assert "rejected" in text
    assert "too dear" in text


def test_on_a_terminal_a_person_decides_for_a_managed_agent_and_answers_a_question(typed: Any) -> None:
    screen = Screen()
    process = typed("run", "tests.cli_desk:chief", "Go on", env={"LOGNAME": "ada"}, **screen.streams())
    assert "refund" in screen.read_until("[l]ater? ")
    screen.type("y\n")
    assert "chief asks ada" in screen.read_until("your answer (empty: later)? ")
    screen.type("All is well.\n")
    assert process.wait(PATIENCE) == 0
    assert "They said: All is well." in screen.rest()


def test_a_chat_on_a_terminal_answers_line_by_line_until_ctrl_d(typed: Any) -> None:
    screen = Screen()
    process = typed("chat", "tests.cli_desk:echo", **screen.streams())
    screen.read_until("> ")
    screen.type("one\n")
    screen.read_until("You said one")
    screen.read_until("> ")
    screen.type("\x04")
    assert process.wait(PATIENCE) == 0
    screen.rest()


def test_erasing_many_runs_asks_first_on_a_terminal(typed: Any) -> None:
    assert typed("run", "tests.cli_desk:hello", "Hi").wait(PATIENCE) == 0
    for answer, code, told in (("n", 1, "nothing was erased"), ("y", 0, "erased 3 contents of 1 run that ended")):
        screen = Screen()
        process = typed("erase", "--older-than", "0m", **screen.streams())
        assert "the contents of 1 run that ended before" in screen.read_until("[y/N]? ")
        screen.type(f"{answer}\n")
        assert process.wait(PATIENCE) == code
        assert told in screen.rest()


def test_verify_on_a_terminal_shows_how_far_it_is_and_leaves_its_verdict(typed: Any) -> None:
    assert typed("run", "tests.cli_desk:hello", "Hi").wait(PATIENCE) == 0
    screen = Screen()
    process = typed("verify", **screen.streams())
    assert " entries read" in screen.read_until("ok: 1 run")
    assert process.wait(PATIENCE) == 0
    screen.rest()


# --------------------------------------------------------------------------------------------- serving


def serving(process: "subprocess.Popen[str]") -> str:
    """The address of a server, once it serves."""
    line = process.stderr.readline()
    found = re.search(r"serving (http://\S+)", line)
    assert found, line
    return found[1]


def test_serve_answers_until_it_is_told_to_end_and_gives_its_runs_back(typed: Any, tmp_path: Path) -> None:
    process = typed("serve", "--dev", "--port", "0", "tests.cli_desk:waiting")
    address = serving(process)
    begun = httpx2.post(f"{address}/v1/runs", json={"agent": "waiting", "prompt": "Go"})
    until((tmp_path / "go.began").exists, process)
    process.send_signal(signal.SIGTERM)
    until(lambda: httpx2.get(f"{address}/readyz").status_code == 503, process)  # it waits for the body, and says so
    (tmp_path / "go").touch()
    code, _, error = done(process)
    assert (code, error.splitlines()[-1]) == (0, "stopped")
    worker = typed("work", "--once", "tests.cli_desk:waiting")
    assert done(worker)[0] == 0
    code, out, _ = done(typed("show", begun.json()["runId"], "--json"))
    assert (code, json.loads(out)["answer"]) == (0, "It is done.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dev", "--host", "::"], "--dev asks for no key"),
        (["--dev", "--host", "192.0.2.7"], "--dev asks for no key"),
    ],
)
def test_serve_without_keys_listens_on_this_machine_alone(typed: Any, words: list[str], told: str) -> None:
    code, _, error = done(typed("serve", *words))
    assert code == 2
    assert told in error
