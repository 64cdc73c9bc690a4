"""The programs of the documentation run as they stand there, and its tables name what there is."""

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import typer

import counterfoil
from counterfoil import ErrorCode, Limits, Policy
from counterfoil.adapters import policy_toml
from counterfoil.adapters.models.anthropic import AnthropicMessages
from counterfoil.adapters.models.google import GoogleGemini
from counterfoil.adapters.models.openai import OpenAIResponses
from counterfoil.adapters.models.openai_chat import OpenAIChat
from counterfoil.adapters.models.shared.sdk_model import SdkModel
from counterfoil.doors.cli.app import app
from counterfoil.registry import TARGETS
from counterfoil.tool import SETTINGS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LIBRARY = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    """The fenced blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def section(title: str, text: str = README) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def names(text: str) -> list[str]:
    """What stands in backticks in the rows of tables."""
    return [name for row in text.splitlines() if row.startswith("|") for name in re.findall(r"`([^`]+)`", row)]


def first_names(text: str) -> list[str]:
    """As `names`, of the first cells alone."""
    return names("\n".join("|" + row.split("|")[1] for row in text.splitlines() if row.startswith("|")))


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_program_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    (program,) = blocks("python")
    (tmp_path / "shop.py").write_text(program, encoding="utf-8")
    done = run(tmp_path, "-W", "error", "shop.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "refund {'order_id': 'W100', 'cents': 4200} waits",
        "completed answer Refunded.",
    ]
    for command in re.findall(r"`counterfoil ((?:show|run) [^`]+)`", section("An agent with two tools")):
        words = [word.strip('"') for word in re.findall(r'"[^"]+"|\S+', command)]
        typed = run(tmp_path, "-c", "from counterfoil.doors.cli import main; main()", *words)
        assert typed.returncode == (3 if words[0] == "run" else 0), typed.stderr
        assert "Refunded 15.00 on W100" in typed.stdout


def test_the_policy_of_the_readme_is_the_same_in_both_forms(tmp_path: Path) -> None:
    (program,), (policy,) = blocks("python"), blocks("toml")
    (tmp_path / "policy.toml").write_text(policy, encoding="utf-8")
    space: dict[str, object] = {"__name__": "shop"}
    exec(compile(program, "README.md", "exec"), space)  # noqa: S102  # the page's own program
    support = space["support"]
    assert isinstance(support, counterfoil.Agent)
    assert support.policy is not None
    assert support.policy.revision == Policy.from_toml(tmp_path / "policy.toml").revision


def test_the_readme_lists_what_can_be_imported_and_no_other() -> None:
    assert sorted(names(section("Public names"))) == sorted({*counterfoil.__all__, *counterfoil._HOME})


def test_the_readme_lists_the_commands_and_no_other() -> None:
    there = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group
    listed = {name.split()[0] for name in names(section("The command")) if not name.startswith("-")}
    assert listed == set(there)


@pytest.mark.parametrize("program", blocks("python", LIBRARY + MODELS), ids=lambda program: program.split()[1])
def test_each_program_of_the_library_page_prints_what_stands_beside_it(tmp_path: Path, program: str) -> None:
    name = re.match(r"# (\w+\.py)\n", program)
    assert name is not None, "a program needs a name in its first line"
    (policy,) = blocks("toml", LIBRARY)
    (tmp_path / "policy.toml").write_text(policy, encoding="utf-8")
    (tmp_path / name[1]).write_text(program, encoding="utf-8")
    if name[1].startswith("test_"):
        done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", name[1])
        assert done.returncode == 0, done.stdout
    else:
        done = run(tmp_path, "-W", "error", name[1])
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == re.findall(r"\S  # (.+)$", program, re.MULTILINE)


def test_the_tables_of_the_library_page_leave_nothing_out() -> None:
    settings, limits, keys = (first_names(section(title, LIBRARY)) for title in ("Tools", "Agents", "Policies"))
    assert sorted(settings) == sorted(["name", "description", *SETTINGS])
    assert sorted(limits) == sorted(field.name for field in fields(Limits))
    assert sorted(keys) == sorted({*policy_toml._TOP, *policy_toml._RULE} - {"rule"})
    codes = re.findall(r"`([A-Z_]+)`\s(\d{4})", section("Results and errors", LIBRARY))
    assert codes == [(code.name, str(code.value)) for code in ErrorCode]


def test_the_tables_of_the_models_page_leave_no_scheme_and_no_setting_out() -> None:
    schemes = {name.partition(":")[0] for name in first_names(MODELS.partition("## Settings")[0])}
    assert schemes == set(TARGETS["model"])
    taken = {
        name
        for kind in (AnthropicMessages, GoogleGemini, OpenAIResponses, OpenAIChat, SdkModel)
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert set(first_names(section("Settings", MODELS))) == taken


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
