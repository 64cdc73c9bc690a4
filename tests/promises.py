"""What was promised, what a test proves, and what has a reason not to be proved here.

The promises are the ids of tests/cases.toml and tests/laws.toml. A test carries the ids that it proves as
marks of tests/marks.py. tests/not_here.toml holds a reason for each id that has no test.
"""

import ast
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def _read(name: str) -> dict[str, object]:
    return tomllib.loads((TESTS / name).read_text(encoding="utf-8"))


def groups(name: str) -> dict[str, dict[str, str]]:
    """Sentences by id, by group, of cases.toml or laws.toml."""
    return {group: promises for group, promises in _read(name).items() if isinstance(promises, dict)}


def sentences(name: str) -> dict[str, str]:
    """Sentences by id, of cases.toml or laws.toml."""
    return {key: text for promises in groups(name).values() for key, text in promises.items()}


CASES = sentences("cases.toml")
LAWS = sentences("laws.toml")
NOT_HERE = {key: str(reason) for key, reason in _read("not_here.toml").items()}
ENFORCED = _read("cases.toml")["enforce"] is True

enforced = pytest.mark.skipif(not ENFORCED, reason="tests/cases.toml says enforce = false")
"""For tests that can only pass when the whole is built."""


def marked(mark: str) -> dict[str, set[str]]:
    """The ids that tests carry under this mark, with the files that carry them."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for key in marks(ast.parse(path.read_text(encoding="utf-8")), mark):
            found.setdefault(key, set()).add(path.relative_to(TESTS).as_posix())
    return found


def marks(tree: ast.Module, mark: str) -> Iterator[str]:
    """The ids in a file under this mark: on a test, on a class, in `pytestmark`, in a parameter's `marks`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == mark:
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _name(node: ast.expr) -> str:
    """`law` of `law(…)` and of `marks.law(…)` and of `pytest.mark.law(…)`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def missing(mark: str, promised: dict[str, str]) -> dict[str, str]:
    """The promises that neither a test nor a reason answers."""
    proved = marked(mark)
    return {key: text for key, text in promised.items() if key not in proved and key not in NOT_HERE}


def shared() -> Path | None:
    """The folder of the design's own papers, where there is one."""
    folder = Path(os.environ.get("COUNTERFOIL_SHARED") or TESTS.parent.parent / "shared")
    return folder if folder.is_dir() else None
