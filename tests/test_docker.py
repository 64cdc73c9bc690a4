"""The Dockerfile and the compose file, as far as linters and this machine can tell without Docker."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from counterfoil import Limits, Runtime
from counterfoil.doors.cli.app import app
from counterfoil.doors.cli.commands_serve import GRACE_SECONDS
from tests.floors import ROOT
from tests.helpers import agent, go
from tests.served import served

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
STEPS = re.sub(r"\\\n\s*", " ", DOCKERFILE).splitlines()
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|KEY")


def steps(name: str) -> list[str]:
    return [step.removeprefix(f"{name} ").strip() for step in STEPS if step.startswith(f"{name} ")]


def lint(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def variables() -> dict[str, str]:
    """What the image and the services put into the environment."""
    found = dict(pair.split("=", 1) for step in steps("ENV") for pair in step.split())
    for service in COMPOSE["services"].values():
        found |= service["environment"]
    return found


def test_the_dockerfile_has_no_fault_for_its_linter():
    checked = lint("hadolint", "Dockerfile")
    assert checked.returncode == 0, checked.stdout


def test_the_compose_file_has_no_fault_for_its_linter_but_digests():
    found = json.loads(lint("compose-lint", "check", "--format", "json", "compose.yaml").stdout)
    rows = found if isinstance(found, list) else found["findings"]
    # A digest is right for one registry and one architecture; who deploys this pins it there.
    assert {row["rule_id"] for row in rows} <= {"CL-0019"}, rows


def test_images_have_a_whole_version_and_programs_no_privileges():
    images = [step.split()[0] for step in steps("FROM")] + [COMPOSE["services"]["db"]["image"]]
    for image in images:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?-[a-z-]+", image), image
    assert steps("USER")[-1] == "10001:10001"
    for service in COMPOSE["services"].values():
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
    assert [port.split(":")[0] for port in COMPOSE["services"]["server"]["ports"]] == ["127.0.0.1"]
    assert "ports" not in COMPOSE["services"]["db"]


def test_no_secret_stands_in_either_and_a_password_must_be_given():
    for name, value in variables().items():
        if SECRET.search(name):
            assert re.fullmatch(r"\$\{\w+(:-|:\?[^}]*)\}", value), name
    assert variables()["PGPASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    assert ":" not in COMPOSE["services"]["server"]["environment"]["COUNTERFOIL_STORE"].partition("://")[2]
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()


def test_variables_are_flags_that_there_are_and_extras_are_those_of_the_package():
    group = get_command(app)
    for name in variables():
        found = re.fullmatch(r"COUNTERFOIL_(SERVE|WORK)_(\w+)", name)
        if found:
            names = {parameter.name for parameter in group.commands[found[1].lower()].params}
            assert found[2].lower() in names, name
    extras = re.search(r'"\.\[([a-z,]+)\]"', DOCKERFILE)[1].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(extras) <= set(known)


def test_what_is_copied_is_there_and_let_into_the_build():
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert allowed[0] == "*"
    for step in steps("COPY"):
        if not step.startswith("--from"):
            for name in step.split()[:-1]:
                name = name.removeprefix("./")  # noqa: PLW2901
                assert (ROOT / name).exists()
                assert f"!{name}" in allowed


def test_bodies_have_their_grace_before_they_are_killed():
    for name in ("server", "worker"):
        requests, traces, webhook = 5, 10, 10
        most = GRACE_SECONDS + Limits().cancel_grace + requests + traces + webhook
        assert int(COMPOSE["services"][name]["stop_grace_period"].removesuffix("s")) > most
        assert COMPOSE["services"][name]["restart"] == "unless-stopped"  # it ends with 0 when the machine does
        assert COMPOSE["services"][name]["depends_on"]["db"]["condition"] == "service_healthy"
    assert json.loads(steps("ENTRYPOINT")[0]) == ["counterfoil"]
    assert json.loads(steps("CMD")[-1]) == ["serve"]


def test_the_health_check_sees_a_server_and_its_absence():
    (check,) = steps("HEALTHCHECK")
    _, flag, code = json.loads(check.partition("CMD ")[2])
    assert flag == "-c"
    assert variables()["COUNTERFOIL_WORK_LISTEN"] in code

    async def main():
        async with served(Runtime(agents=[agent()])) as http:
            command = code.replace("127.0.0.1:8000", f"127.0.0.1:{http.client.base_url.port}")
            process = await asyncio.create_subprocess_exec(sys.executable, flag, command)
            assert await process.wait() == 0
        pipe = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(sys.executable, flag, command, stderr=pipe)
        assert await process.wait() == 1

    go(main())


@pytest.mark.parametrize("given", ["", " "])
def test_modules_that_are_empty_in_the_environment_are_none(given, monkeypatch, tmp_path):
    from tests.test_cli import Typed

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTERFOIL_WORK_MODULES", given)
    typed = Typed(["work"], None)
    assert (typed.code, "expected at least one module" in typed.err) == (2, True)
