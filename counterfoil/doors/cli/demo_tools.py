"""The tools and questions of the demo's first act: a small model looks into a clone.

Each tool has one short argument, bounded and with examples, and a description of one plain sentence. That is
what a model of 135 million parameters needs to choose well: its chat template makes worked calls by setting
each example behind the tool's sentence ("Count the lines of a file: src/main.py"), and the questions are put
in the same words. The order of the tools, the commas in a listing and the short log were measured too.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from counterfoil.core.errors import ToolError
from counterfoil.core.result import ToolResult
from counterfoil.tool import Tool, tool

__all__ = ["INSTRUCTIONS", "QUESTIONS", "Clone", "Question", "demo_tools"]

MAX_PATH: Final = 60
"""Characters of a path; the bound also closes a string that the model would not end."""

MAX_LISTED: Final = 8
"""Names in one listing; the model repeats as many, and loses itself in more."""

MAX_READ: Final = 1200
"""Characters of a file that the model reads, about 400 tokens."""

MAX_COUNTED: Final = 64 * 1024 * 1024
"""Bytes of the largest file that is counted."""

MAX_COMMITS: Final = 20

MAX_SUBJECT: Final = 72
"""Characters of a commit's line."""

GIT_TIMEOUT: Final = 8.0
"""Seconds for git, which needs milliseconds unless its disk is gone."""

TIMEOUT: Final = 10.0
"""Seconds for a whole call."""


@dataclass(frozen=True)
class Question:
    """One question of the demo.

    Attributes:
        text: what the model is asked.
        tool: the name of the tool that answers it.
        input: the arguments that the tool should get.
    """

    text: str
    tool: str
    input: dict[str, str | int]


INSTRUCTIONS: Final = "You answer questions about a folder of files with the help of tools."

QUESTIONS: Final = (
    Question("List the files in the folder docs.", "list_files", {"folder": "docs"}),
    Question("Count the lines of the file README.md.", "count_lines", {"path": "README.md"}),
    Question("Show the last 3 commits.", "git_log", {"commits": 3}),
)


class Clone:
    """A folder that the tools may look into, and nothing outside of it.

    Args:
        root: the folder.

    Raises:
        NotADirectoryError: it is no folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not self.root.is_dir():
            raise NotADirectoryError(f"expected a folder, got {str(root)!r}; give the folder of a clone")

    @tool(read_only=True, timeout=TIMEOUT)
    def list_files(
        self, folder: Annotated[str, Field(min_length=1, max_length=MAX_PATH, examples=["src", "examples"])]
    ) -> ToolResult:
        """List the files in a folder.

        Args:
            folder: the folder, such as src.
        """
        place = self._inside(folder)
        if not place.is_dir():
            raise ToolError(f"{folder} is not a folder here; {self._hint(place)}")
        names = _names(place)
        shown = ", ".join(names[:MAX_LISTED])
        if len(names) > MAX_LISTED:
            shown += f", and {len(names) - MAX_LISTED} more"
        name, number = self._name(place), _count(len(names), "entry", "entries")
        text = f"{name} holds {number}: {shown}." if names else f"{name} is empty."
        return ToolResult.text(text).with_narration(f"Listed {number} in {name}")

    @tool(read_only=True, timeout=TIMEOUT)
    def read_file(
        self,
        path: Annotated[str, Field(min_length=1, max_length=MAX_PATH, examples=["setup.cfg", "AUTHORS"])],
    ) -> ToolResult:
        """Read the text of a file.

        Args:
            path: the file, such as setup.cfg.
        """
        place = self._file(path)
        with place.open("rb") as file:
            head = file.read(4 * MAX_READ + 4)  # four bytes are the most that a character takes
        if b"\0" in head:
            raise ToolError(f"{path} is not a text file; choose one that is")
        text = head.decode("utf-8", errors="replace")
        size = place.stat().st_size
        if len(text) > MAX_READ:
            text = f"{text[:MAX_READ]}\n(cut off here; the file has {size} bytes)"
        name = self._name(place)
        return ToolResult.text(text or f"{name} is empty.").with_narration(f"Read {name}, {_count(size, 'byte')}")

    @tool(read_only=True, timeout=TIMEOUT)
    def count_lines(
        self,
        path: Annotated[str, Field(min_length=1, max_length=MAX_PATH, examples=["src/main.py", "CHANGES.md"])],
    ) -> ToolResult:
        """Count the lines of a file.

        Args:
            path: the file, such as CHANGES.md.
        """
        place = self._file(path)
        if place.stat().st_size > MAX_COUNTED:
            raise ToolError(f"{path} is larger than {MAX_COUNTED} bytes; choose a smaller file")
        with place.open("rb") as file:
            lines = _count(sum(1 for _ in file), "line")
        name = self._name(place)
        return ToolResult.text(f"{name} has {lines}.").with_narration(f"Counted {lines} in {name}")

    @tool(read_only=True, timeout=TIMEOUT)
    def git_log(self, commits: Annotated[int, Field(ge=1, le=MAX_COMMITS, examples=[5, 2])]) -> ToolResult:
        """Show the last commits.

        Args:
            commits: how many.
        """
        # Asked here and not of git, which would find the history of a folder above.
        if not (self.root / ".git").exists():
            raise ToolError("This folder has no git history; it is not a clone.")
        command = ["git", "-C", str(self.root), "log", f"-{commits}", "--no-color", "--format=- %h %s"]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=GIT_TIMEOUT)  # noqa: S603 - the model chooses the number alone
        except FileNotFoundError:
            raise ToolError("The program git is not installed.") from None
        except subprocess.TimeoutExpired:
            raise ToolError(f"git did not answer within {GIT_TIMEOUT:g} seconds.") from None
        if done.returncode != 0:
            reason = done.stderr.decode(errors="replace").strip().splitlines()[:1]
            raise ToolError(f"git cannot read the history: {''.join(reason)[:300] or 'it gave no reason'}")
        lines = [line[:MAX_SUBJECT] for line in done.stdout.decode(errors="replace").splitlines()]
        number = _count(len(lines), "commit")
        return ToolResult.text("\n".join([f"The last {number}:", *lines])).with_narration(f"Read the last {number}")

    def _inside(self, path: str) -> Path:
        """Find a path below the root; links are followed first, so none leads out."""
        try:
            place = (self.root / path.strip()).resolve()
            place.exists()  # too long a name shows only when it is looked up
        except (OSError, ValueError, RuntimeError):
            raise ToolError(f"{path!r} is not a path; give one such as README.md") from None
        if not place.is_relative_to(self.root):
            raise ToolError(f"{path} is outside this folder; give a path inside it, such as README.md")
        if ".git" in place.relative_to(self.root).parts:
            raise ToolError(f"{path} belongs to git and is not shown; git_log shows the history")
        return place

    def _file(self, path: str) -> Path:
        place = self._inside(path)
        if not place.is_file():
            raise ToolError(f"{path} is not a file here; {self._hint(place)}")
        return place

    def _hint(self, place: Path) -> str:
        """Say what there is instead of something that is not there."""
        folder = next(parent for parent in (*place.parents, self.root) if parent.is_dir())
        return f"{self._name(folder)} holds {', '.join(_names(folder)[:MAX_LISTED]) or 'nothing'}"

    def _name(self, place: Path) -> str:
        return "the clone" if place == self.root else place.relative_to(self.root).as_posix()


def demo_tools(root: Path) -> list[Tool]:
    """Make the four tools that look into a folder.

    Args:
        root: the folder, such as a clone of this repository.

    Returns:
        The tools, in the order in which the model chooses best.

    Raises:
        NotADirectoryError: `root` is no folder.
    """
    clone = Clone(root)
    return [clone.list_files, clone.read_file, clone.count_lines, clone.git_log]


def _names(folder: Path) -> list[str]:
    """What a folder holds, sorted, folders with a slash, without hidden files."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"
