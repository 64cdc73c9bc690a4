"""Schemes and what answers to them."""

import importlib.util
import subprocess
import sys

import pytest

from counterfoil.core.errors import DefinitionError
from counterfoil.registry import TARGETS, resolve
from tests.promises import enforced


def test_a_scheme_gives_the_factory_that_the_table_names():
    assert resolve("policy", "toml").__name__ == "load_rules"
    assert resolve("policy", "cel").__name__ == "compile_condition"


@pytest.mark.parametrize(
    ("kind", "scheme", "words"),
    [
        ("store", "sqllite", ["store", "'sqllite'", "memory, postgres, postgresql, sqlite", "did you mean 'sqlite'?"]),
        ("store", "SQLite", ["did you mean 'sqlite'?"]),
        ("model", "openai-chatt", ["did you mean 'openai-chat'?", "recorded", "scripted"]),
        ("policy", "rego", ["cel, toml"]),
        ("policy", "", ["''", "cel, toml"]),
    ],
)
def test_an_unknown_scheme_names_the_known_ones_and_a_close_match(kind, scheme, words):
    with pytest.raises(DefinitionError) as refused:
        resolve(kind, scheme)
    assert [word for word in words if word not in str(refused.value)] == []


BLOCKED = """
import sys
from counterfoil.registry import resolve
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
try:
    resolve({kind!r}, {scheme!r})
except ValueError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("kind", "scheme", "module", "command"),
    [
        ("model", "openai-chat", "openai", "pip install 'counterfoil[openai]'"),
        ("model", "anthropic", "anthropic", "pip install 'counterfoil[anthropic]'"),
        ("model", "google", "google", "pip install 'counterfoil[google]'"),
        ("store", "postgresql", "psycopg", "pip install 'counterfoil[postgres]'"),
        ("dispatch", "dbos", "dbos", "pip install 'counterfoil[dbos]'"),
        ("dispatch", "dbos", "sqlalchemy", "pip install 'counterfoil[dbos]'"),
        ("dispatch", "temporal", "temporalio", "pip install 'counterfoil[temporal]'"),
        ("policy", "cel", "cel_expr_python", "pip install cel-expr-python"),
        ("policy", "toml", "tomllib", "install the package that provides tomllib"),
    ],
)
def test_a_dependency_that_is_missing_says_what_to_install(kind, scheme, module, command):
    name = TARGETS[kind][scheme].partition(":")[0]
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} has not come yet")
    program = BLOCKED.format(kind=kind, scheme=scheme, module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("DefinitionError ")
    assert command in done.stdout


@enforced
@pytest.mark.parametrize(
    ("kind", "scheme"), [(kind, scheme) for kind, schemes in TARGETS.items() for scheme in schemes]
)
def test_every_scheme_of_the_table_has_its_factory(kind, scheme):
    assert callable(resolve(kind, scheme))


def test_importing_the_registry_imports_no_adapter():
    program = "import sys, counterfoil.registry; print(*[m for m in sys.modules if 'adapters' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
