"""The house rules of docs/design.md: floors, purity, sizes, names, documented settings."""

import ast
import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from importlinter.api import read_configuration

from tests.floors import PACKAGE, ROOT, House, Room, files, is_bare_package, read_map
from tests.promises import enforced

ROOMS = read_map((ROOT / "docs" / "design.md").read_text(encoding="utf-8"))
SQLITE = next(room for room in ROOMS if room.holds("adapters/stores/sqlite/store.py"))
SIZES = tomllib.loads((ROOT / "tests" / "sizes.toml").read_text(encoding="utf-8"))
ENVIRONMENT = {**os.environ, "NO_COLOR": "1"}

CORE_MAY_IMPORT = {
    "__future__",
    "base64",  # media in JSON
    "bisect",
    "collections",
    "collections.abc",
    "copy",
    "dataclasses",
    "datetime",  # as values; no reading of the clock
    "decimal",
    "difflib",  # close matches for an unknown tool's name
    "enum",
    "fnmatch",  # a rule's tool is a glob
    "functools",
    "hashlib",  # digests and the chain
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "string",
    "textwrap",
    "traceback",  # an exception as text, for its report
    "types",
    "typing",
    "unicodedata",
    "uuid",  # as a type
}
MAY_ALSO_IMPORT = {"core/jsontext.py": {"pydantic_core"}}  # the writer of JSON that the contract names
CORE_MAY_NOT_CALL = {
    "open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint",
}  # fmt: skip
CORE_MAY_NOT_CALL_OF_A_MODULE = {
    "now", "utcnow", "today", "uuid1", "uuid4", "uuid6", "uuid7", "uuid8", "print_exc", "print_exception",
}  # fmt: skip
HEAVY = {
    "anthropic", "cel_expr_python", "dbos", "griffe", "jsonschema_rs", "multiprocessing", "numpy", "openai", "psycopg",
    "google", "opentelemetry", "prometheus_client", "rich", "sqlalchemy", "sqlite3", "temporalio", "typer",
}  # fmt: skip


def tree_of(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"), file)


def lines_of(file: str) -> int:
    return len((PACKAGE / file).read_text(encoding="utf-8").splitlines())


def texts_of(file: str) -> Iterator[str]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


CORE_FILES = [file for file in files() if file.startswith("core/")]


# ----------------------------------------------------------------------------------- rooms and floors


def test_every_import_goes_to_a_lower_floor_and_every_file_has_a_floor() -> None:
    checked = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture(scope="module")
def house() -> House:
    (contract,) = read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    return House(
        rooms=[
            *ROOMS,
            Room("adapters/stores/other.py", SQLITE.floor, "another adapter"),
            Room("doors/http/", SQLITE.floor + 50, "another door"),
        ],
        adapters_know=tuple(contract["adapters_know"]),
        doors_know=tuple(contract["doors_know"]),
        names_adapters=tuple(contract["names_adapters"]),
    )


@pytest.mark.parametrize(
    ("importer", "imported", "fault"),
    [
        ("core/result.py", "core/words.py", "only lower floors"),
        ("core/policy.py", "core/approval.py", "only lower floors"),
        ("judge.py", "loop.py", "only lower floors"),
        ("adapters/stores/sqlite/store.py", "adapters/stores/other.py", "only lower floors"),
        ("adapters/stores/sqlite/store.py", "batch.py", "only lower floors"),
        ("adapters/stores/sqlite/store.py", "registry.py", "an adapter knows"),
        ("runtime.py", "adapters/stores/sqlite/store.py", "name adapters"),
        ("doors/http/app.py", "adapters/stores/sqlite/store.py", "a door knows"),
        ("doors/http/app.py", "batch.py", "a door knows"),
        ("core/__init__.py", "core/result.py", "holds no code"),
    ],
)
def test_the_contract_finds_an_import_that_breaks_a_floor(
    house: House, importer: str, imported: str, fault: str
) -> None:
    assert fault in "\n".join(house.faults({importer: {imported}}))


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("core/words.py", "core/result.py"),
        ("adapters/stores/sqlite/store.py", "store.py"),
        ("adapters/stores/sqlite/store.py", "core/entries.py"),
        ("doors/cli/show.py", "runtime.py"),
        ("doors/cli/show.py", "doors/wiring.py"),
        ("doors/cli/show.py", "doors/cli/table.py"),
        ("doors/wiring.py", "adapters/stores/sqlite/store.py"),
    ],
)
def test_the_contract_lets_an_import_of_a_lower_floor_pass(house: House, importer: str, imported: str) -> None:
    assert house.faults({importer: {imported}}) == []


def test_the_contract_finds_a_cycle_and_a_file_without_a_floor(house: House) -> None:
    cycle = {"doors/cli/a.py": {"doors/cli/b.py"}, "doors/cli/b.py": {"doors/cli/a.py"}}
    assert "cycle" in "\n".join(house.faults(cycle))
    assert "has no floor" in "\n".join(house.faults({"attic.py": set()}))


def test_the_map_names_each_room_once() -> None:
    paths = [room.path for room in ROOMS]
    assert sorted(paths) == sorted(set(paths))


@enforced
def test_the_map_equals_the_files() -> None:
    empty = [room.path for room in ROOMS if not room.to_come and not any(map(room.holds, files()))]
    built = [room.path for room in ROOMS if room.to_come and any(map(room.holds, files()))]
    assert empty == [], "rooms of the map without a file: remove the line or mark it (to come)"
    assert built == [], "rooms that have come: remove the mark (to come)"


@pytest.mark.parametrize("file", [file for file in files() if is_bare_package(file, ROOMS)])
def test_a_package_holds_nothing_of_its_own(file: str) -> None:
    code = [node for node in tree_of(file).body if not _is_docstring(node)]
    assert code == [], "code in a package's __init__.py needs a line in the map"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


# ---------------------------------------------------------------------------------------- core is pure


@pytest.mark.parametrize("file", CORE_FILES)
def test_core_imports_core_and_a_few_standard_modules(file: str) -> None:
    strange = [
        name
        for name in _imported(tree_of(file))
        if name not in CORE_MAY_IMPORT | MAY_ALSO_IMPORT.get(file, set())
        and not f"{name}.".startswith("counterfoil.core.")
    ]
    assert strange == []


@pytest.mark.parametrize("file", CORE_FILES)
def test_core_never_waits(file: str) -> None:
    waits = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert [node.lineno for node in ast.walk(tree_of(file)) if isinstance(node, waits)] == []


@pytest.mark.parametrize("file", CORE_FILES)
def test_core_reads_no_clock_makes_no_id_and_does_no_input_or_output(file: str) -> None:
    functions = [node.func for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call)]
    built_in = {node.id for node in functions if isinstance(node, ast.Name)}
    of_a_module = built_in | {node.attr for node in functions if isinstance(node, ast.Attribute)}
    assert built_in & CORE_MAY_NOT_CALL | of_a_module & CORE_MAY_NOT_CALL_OF_A_MODULE == set()


@pytest.mark.parametrize("file", CORE_FILES)
def test_core_keeps_no_state_between_calls(file: str) -> None:
    assert [node.lineno for node in ast.walk(tree_of(file)) if isinstance(node, ast.Global)] == []


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


# ------------------------------------------------------------------------------------------- the edges


@pytest.mark.parametrize("file", [file for file in files() if file not in {"client/wire.py", "doors/wiring.py"}])
def test_only_wiring_and_the_client_read_the_environment(file: str) -> None:
    read = [
        node.lineno
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}
    ]
    assert read == []


@pytest.mark.parametrize("file", [file for file in files() if file not in {"registry.py", "doors/wiring.py"}])
def test_only_registry_and_wiring_name_an_adapter_as_text(file: str) -> None:
    assert [text for text in texts_of(file) if "counterfoil.adapters" in text] == []


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = f"import sys, counterfoil; print(*sorted({HEAVY} & set(sys.modules)))"
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert imported.stdout.split() == []


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


# ----------------------------------------------------------------------------------------------- sizes


def functions_of(file: str) -> Iterator[tuple[str, int]]:
    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}" if name else child.name
                if not isinstance(child, ast.ClassDef):
                    yield inner, (child.end_lineno or 0) - child.lineno + 1
                yield from walk(child, inner)
            else:
                yield from walk(child, name)

    yield from walk(tree_of(file), "")


@pytest.mark.parametrize("file", files())
def test_a_file_and_its_functions_keep_to_their_sizes(file: str) -> None:
    aims = SIZES["aims"]
    sizes = {file: (lines_of(file), aims["core_module"] if file in CORE_FILES else aims["module"])}
    sizes |= {f"{file}:{name}": (size, aims["function"]) for name, size in functions_of(file)}
    exceptions = SIZES["exceptions"]
    over = {
        name: f"{size} lines, {exceptions.get(name, {'lines': aim})['lines']} allowed"
        for name, (size, aim) in sizes.items()
        if size > exceptions.get(name, {"lines": aim})["lines"]
    }
    assert over == {}


@enforced
def test_an_exception_to_the_sizes_has_a_reason_and_is_still_needed() -> None:
    sizes = {file: lines_of(file) for file in files()}
    sizes |= {f"{file}:{name}": size for file in files() for name, size in functions_of(file)}
    sizes["package"] = sum(map(lines_of, files()))
    aims = SIZES["aims"]
    for name, exception in SIZES["exceptions"].items():
        kind = "function" if ":" in name else "core_module" if name in CORE_FILES else "module"
        aim = aims["package" if name == "package" else kind]
        assert exception["reason"].strip(), name
        assert sizes.get(name, 0) > aim, f"{name} keeps to {aim} lines: remove its exception"


def test_the_package_stays_small() -> None:
    allowed = SIZES["exceptions"].get("package", {"lines": SIZES["aims"]["package"]})["lines"]
    assert sum(map(lines_of, files())) < allowed


# ----------------------------------------------------------------------------------------- public names


COUNTED, UNCOUNTED = (
    part.split() for part in (ROOT / "tests" / "public_names.txt").read_text(encoding="utf-8").split("\n\n")
)


@enforced
def test_the_public_names_are_the_pinned_ones() -> None:
    package = importlib.import_module("counterfoil")
    assert sorted(package.__all__) == sorted(COUNTED)
    assert {*package._HOME} - {*package.__all__} == {*UNCOUNTED}
    assert all(hasattr(package, name) for name in (*COUNTED, *UNCOUNTED))


def test_the_public_names_are_few() -> None:
    assert len(set(COUNTED)) == len(COUNTED) <= 45


# ------------------------------------------------------------------------------ every setting documented


def documentation() -> str:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def test_every_limit_is_documented_with_its_default() -> None:
    if "core/limits.py" not in files():
        pytest.skip("core/limits.py has not come yet")
    limits = importlib.import_module("counterfoil.core.limits").Limits
    assert is_dataclass(limits)
    rows = [line for line in documentation().splitlines() if line.startswith("|")]
    missing = {
        field.name: field.default
        for field in fields(limits)
        if not any(f"`{field.name}`" in row and _written(field.default) & _words(row) for row in rows)
    }
    assert missing == {}


def _words(row: str) -> set[str]:
    return {cell.strip().strip("`") for cell in row.split("|")}


def _written(default: object) -> set[str]:
    """The ways to write a default: as it is, with its unit, in KiB or MiB."""
    ways = {str(default), f"{default} s", "none" if default is None else str(default)}
    if isinstance(default, float) and default.is_integer():
        ways |= _written(int(default))
    if isinstance(default, int):
        for unit, size in (("KiB", 2**10), ("MiB", 2**20)):
            if default and default % size == 0:
                ways.add(f"{default // size} {unit}")
    return ways


COMES_WITH = {
    "pydantic-core": "pydantic", "typing-extensions": "pydantic", "starlette": "fastapi", "sqlalchemy": "dbos",
}  # fmt: skip  # a table
"""Packages that are imported though they are not declared, and the declared one that brings each."""


def _package(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")  # type: ignore[index]  # it begins with a name


def test_every_package_that_is_imported_is_declared_or_comes_with_one_that_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    declared = {_package(line) for group in (project["dependencies"], *extras) for line in group}
    for package, bringer in COMES_WITH.items():
        assert bringer in declared
        assert package in {_package(line) for line in importlib.metadata.requires(bringer) or ()}
    here = importlib.metadata.packages_distributions()
    wild: dict[str, set[str]] = {}
    for file in files():
        for node in ast.walk(tree_of(file)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for top in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"counterfoil"}:
                if not {_package(name) for name in here.get(top, [top])} & (declared | COMES_WITH.keys()):
                    wild.setdefault(top, set()).add(file)
    assert wild == {}


def test_every_environment_variable_is_documented() -> None:
    named = {text for file in files() for text in texts_of(file) if re.fullmatch(r"COUNTERFOIL_[A-Z_]+", text)}
    assert {name for name in named if f"`{name}`" not in documentation()} == set()


def test_every_command_and_flag_is_documented() -> None:
    typer = importlib.import_module("typer")
    found = vars(importlib.import_module("counterfoil.doors.cli.app")).values()
    app = next(value for value in found if isinstance(value, typer.Typer))
    text = documentation()
    missing = [
        name
        for command, flags in _commands(typer.main.get_command(app))
        for name in (command, *flags)
        if not re.search(rf"`[^`\n]*(?<![\w-]){re.escape(name)}(?![\w-])[^`\n]*`", text)
    ]
    assert missing == []


def _commands(command: object, path: str = "") -> Iterator[tuple[str, list[str]]]:
    flags = [
        option
        for parameter in getattr(command, "params", [])
        if not getattr(parameter, "hidden", False)
        for option in parameter.opts
        if option.startswith("--") and option not in {"--help", "--install-completion", "--show-completion"}
    ]
    yield path, flags
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _commands(inner, f"{path} {name}".strip())


@enforced
def test_every_public_name_is_documented() -> None:
    text = documentation()
    assert [name for name in (*COUNTED, *UNCOUNTED) if not re.search(rf"\b{name}\b", text)] == []


# --------------------------------------------------------------------------------------- lint and types


@pytest.mark.parametrize(
    "command",
    [("ruff", "check", "--no-cache"), ("ruff", "format", "--check", "--no-cache"), ("mypy",)],
    ids=["ruff", "format", "mypy"],
)
def test_the_checker_is_content(command: tuple[str, ...]) -> None:
    program = Path(sys.executable).with_name(command[0])
    checked = subprocess.run(
        [program, *command[1:]], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
