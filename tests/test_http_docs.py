"""The page on HTTP: what it types works as it stands, and its tables leave nothing out."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from counterfoil import Runtime
from counterfoil.core import events
from counterfoil.core.keys import SCOPES
from counterfoil.doors.http import create_app
from counterfoil.doors.http.problems import KINDS
from tests.floors import ROOT
from tests.test_cli_process import done, serving, typed
from tests.test_docs import blocks, first_names, section

__all__ = ["typed"]
PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_work_as_they_stand(typed, tmp_path):  # a fixture
    shell = shutil.which("bash")
    if shell is None or shutil.which("curl") is None:
        pytest.skip("bash and curl are not on this machine")
    (program,) = blocks("python", PAGE)
    (tmp_path / "shop.py").write_text(program, encoding="utf-8")
    process = typed("serve", "--dev", "--port", "0", "shop", env={"PYTHONPATH": str(ROOT)})
    script = "\n".join(blocks("sh", PAGE)).replace("http://127.0.0.1:8000", serving(process))
    came = subprocess.run(
        [shell, "-euo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    process.terminate()
    done(process)
    assert (came.returncode, came.stderr) == (0, "")
    lines = came.stdout.split("\n")
    assert [line for line in lines if line.startswith("event: Run")] == [
        "event: RunStarted", "event: RunPaused", "event: RunResumed", "event: RunEnded",
    ]  # fmt: skip  # one row
    assert lines[-4:] == ['"kind":"Message"', '"kind":"ToolCall"', '"kind":"ToolResult"', "1500 cents"]


def _routes(paths: dict[str, dict[str, object]]) -> Iterator[str]:
    for path, operations in paths.items():
        for method in operations:
            yield f"{method.upper()} {path}"


def test_the_tables_of_the_page_leave_no_route_scope_problem_or_event_out():
    routes = [name for name in first_names(section("Routes", PAGE)) if name.startswith(("GET ", "POST "))]
    assert sorted(routes) == sorted(_routes(create_app(Runtime()).openapi()["paths"]))
    assert first_names(section("Keys", PAGE)) == list(SCOPES)
    assert first_names(section("Errors", PAGE)) == list(KINDS)
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \|", section("Errors", PAGE), re.MULTILINE)
    assert rows == [(name, str(kind.status)) for name, kind in KINDS.items()]
    assert set(first_names(section("Events", PAGE))) == {kind.__name__ for kind in events.Event.__subclasses__()}
