"""The tools and questions of the demo's first act: a small model looks into a clone.

Each tool has one short argument, bounded and with examples, and a description of one plain sentence. That is what a
model of 135 million parameters needs to choose well: the chat template makes a worked call of each example by setting
it behind the tool's sentence ("Count the lines of a file: src/main.py"), and the questions are put in the same words.
The order of the tools was measured too.
"""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

__all__ = ["INSTRUCTIONS", "QUESTIONS", "Clone", "CloneError", "Found", "Question", "demo_tools"]

MAX_LISTED: Final = 40
"""Names in one listing; more would crowd a small model's context."""

MAX_READ: Final = 1200
"""Characters of a file that the model reads, about 400 tokens."""

MAX_COUNTED: Final = 64 * 1024 * 1024
"""Bytes of the largest file that is counted."""

MAX_COMMITS: Final = 20

GIT_TIMEOUT: Final = 10.0
"""Seconds for git, which needs milliseconds unless its disk is gone."""


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
"""The agent's instructions; any other text was measured no better."""

QUESTIONS: Final = (
    Question("List the files in the folder docs.", "list_files", {"folder": "docs"}),
    Question("Count the lines of the file README.md.", "count_lines", {"path": "README.md"}),
    Question("Show the last 3 commits.", "git_log", {"commits": 3}),
)


class CloneError(Exception):
    """A tool cannot do what was asked; the message is written for the model."""


@dataclass(frozen=True)
class Found:
    """What a tool found.

    Attributes:
        text: what the model reads.
        narration: the same as one sentence for a person.
    """

    text: str
    narration: str


class Clone:
    """A folder that the tools may look into, and nothing outside of it.

    Args:
        root: the folder.

    Raises:
        CloneError: it is no folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not self.root.is_dir():
            raise CloneError(f"Expected a folder, got {str(root)!r}; give the folder of a clone.")

    def list_files(self, folder: str) -> Found:
        """List what a folder holds, folders with a slash, at most `MAX_LISTED` names.

        Raises:
            CloneError: there is no such folder here.
        """
        place = self._inside(folder)
        if not place.is_dir():
            raise CloneError(f"{folder} is not a folder here; {self._hint(place)}")
        entries = sorted(entry for entry in place.iterdir() if not entry.name.startswith("."))
        names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
        shown = "\n".join(f"- {name}" for name in names[:MAX_LISTED])
        if len(names) > MAX_LISTED:
            shown += f"\n({len(names) - MAX_LISTED} more are not shown)"
        name = self._name(place)
        return Found(
            f"{name} holds {_count(len(names), 'entry', 'entries')}:\n{shown}" if names else f"{name} is empty.",
            f"Listed {_count(len(names), 'entry', 'entries')} in {name}",
        )

    def read_file(self, path: str) -> Found:
        """Read the start of a text file, at most `MAX_READ` characters.

        Raises:
            CloneError: there is no such file here, or it is no text.
        """
        place = self._file(path)
        with place.open("rb") as file:
            head = file.read(4 * MAX_READ + 4)
        if b"\0" in head:
            raise CloneError(f"{path} is not a text file; choose one that is.")
        text = head.decode("utf-8", errors="replace")
        size = place.stat().st_size
        if len(text) > MAX_READ:
            text = f"{text[:MAX_READ]}\n(cut off here; the file has {size} bytes)"
        name = self._name(place)
        return Found(text or f"{name} is empty.", f"Read {name}, {_count(size, 'byte')}")

    def count_lines(self, path: str) -> Found:
        """Count the lines of a file.

        Raises:
            CloneError: there is no such file here, or it is larger than `MAX_COUNTED` bytes.
        """
        place = self._file(path)
        if place.stat().st_size > MAX_COUNTED:
            raise CloneError(f"{path} is larger than {MAX_COUNTED} bytes; choose a smaller file.")
        with place.open("rb") as file:
            lines = sum(1 for _ in file)
        name = self._name(place)
        return Found(f"{name} has {_count(lines, 'line')}.", f"Counted {_count(lines, 'line')} in {name}")

    def git_log(self, commits: int) -> Found:
        """Show the last commits of the clone: short hash, date, author and subject, newest first.

        Raises:
            CloneError: git is not installed, or this folder is not the root of a clone.
        """
        if not (self.root / ".git").exists():
            raise CloneError("There is no git history here: this folder is not a clone, but perhaps an archive.")
        number = max(1, min(commits, MAX_COMMITS))
        command = ["git", "-C", str(self.root), "log", f"-{number}", "--no-color", "--date=short"]
        try:
            done = subprocess.run(  # noqa: S603 - a fixed command; the model chooses the number alone
                [*command, "--format=- %h %ad %an: %s"],
                capture_output=True,
                check=False,
                timeout=GIT_TIMEOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except FileNotFoundError:
            raise CloneError("The program git is not installed, so the history cannot be read.") from None
        except subprocess.TimeoutExpired:
            raise CloneError(f"git did not answer within {GIT_TIMEOUT:g} seconds.") from None
        if done.returncode != 0:
            raise CloneError(f"git could not read the history: {_first_line(done.stderr)}")
        shown = done.stdout.splitlines()
        return Found(
            f"The last {_count(len(shown), 'commit')}:\n" + "\n".join(line[:160] for line in shown),
            f"Read the last {_count(len(shown), 'commit')}",
        )

    def _inside(self, path: str) -> Path:
        """Find a path below the root; links are followed first, so none leads out."""
        try:
            place = (self.root / path.strip()).resolve()
        except (OSError, ValueError, RuntimeError):
            raise CloneError(f"{path!r} is not a path; give one such as README.md.") from None
        if not place.is_relative_to(self.root):
            raise CloneError(f"{path} is outside this folder; give a path inside it, such as README.md.")
        if ".git" in place.relative_to(self.root).parts:
            raise CloneError(f"{path} belongs to git and is not shown; use git_log for the history.")
        return place

    def _file(self, path: str) -> Path:
        place = self._inside(path)
        if not place.is_file():
            raise CloneError(f"{path} is not a file here; {self._hint(place)}")
        return place

    def _hint(self, place: Path) -> str:
        """Say what there is instead of something that is not there."""
        folder = next((parent for parent in place.parents if parent.is_dir()), self.root)
        folder = folder if folder.is_relative_to(self.root) else self.root
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
        return f"{self._name(folder)} holds {', '.join(names[:12]) or 'nothing'}."

    def _name(self, place: Path) -> str:
        return "the clone" if place == self.root else place.relative_to(self.root).as_posix()


def demo_tools(root: Path) -> list[Any]:
    """Make the four tools that look into a folder.

    Args:
        root: the folder, such as a clone of this repository.

    Returns:
        The tools, in the order in which the model chooses best.

    Raises:
        CloneError: `root` is no folder.
    """
    # Imported here: the questions and turns are read by programs that need no tool.
    from counterfoil import ToolError, ToolResult, tool  # noqa: PLC0415

    clone = Clone(root)

    def answer(find: Callable[[], Found]) -> ToolResult:
        try:
            found = find()
        except CloneError as error:
            raise ToolError(str(error)) from error
        return ToolResult.text(found.text).with_narration(found.narration)

    @tool(read_only=True, timeout=10)
    def read_file(
        path: Annotated[str, Field(min_length=1, max_length=60, examples=["setup.cfg", "AUTHORS"])],
    ) -> ToolResult:
        """Read the text of a file.

        Args:
            path: the file.
        """
        return answer(lambda: clone.read_file(path))

    @tool(read_only=True, timeout=10)
    def list_files(
        folder: Annotated[str, Field(min_length=1, max_length=60, examples=["src", "examples"])],
    ) -> ToolResult:
        """List the files in a folder.

        Args:
            folder: the folder.
        """
        return answer(lambda: clone.list_files(folder))

    @tool(read_only=True, timeout=10)
    def git_log(commits: Annotated[int, Field(ge=1, le=MAX_COMMITS, examples=[5, 2])]) -> ToolResult:
        """Show the last commits.

        Args:
            commits: how many.
        """
        return answer(lambda: clone.git_log(commits))

    @tool(read_only=True, timeout=10)
    def count_lines(
        path: Annotated[str, Field(min_length=1, max_length=60, examples=["src/main.py", "CHANGES.md"])],
    ) -> ToolResult:
        """Count the lines of a file.

        Args:
            path: the file.
        """
        return answer(lambda: clone.count_lines(path))

    return [list_files, read_file, count_lines, git_log]


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "no reason given")[:300]
