"""``make bench-peers``: an environment for each framework that bench/durable.py measures, from PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

VENVS = Path(os.environ.get("BENCH_VENVS", Path(__file__).parent.parent / "out" / "venvs"))
NEEDS = {
    "langgraph_durable": (
        "langchain", "langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "psycopg[binary]",
    ),
    "dbos_durable": ("pydantic-ai-slim[dbos]", "psycopg[binary]"),
}  # fmt: skip  # a row an environment

for name, packages in NEEDS.items():
    folder = VENVS / name
    if not (folder / "bin" / "python").exists():
        print(f"Setting up {folder}.")
        venv.create(folder, with_pip=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *packages], check=True)
    show = "from importlib.metadata import version as v; print(', '.join(f'{n} {v(n)}' for n in %r))"
    names = [package.partition("[")[0] for package in packages]
    sys.stdout.write(subprocess.check_output([str(folder / "bin" / "python"), "-c", show % names], text=True))
