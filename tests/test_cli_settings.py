"""Settings of the command: flags, the environment, a file, and what is usual, in that order; and `doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_cli import folder, run_of, type_

__all__ = ["folder"]
WORK = '[work]\nmodules = ["tests.cli_desk:hello"]\nonce = true\npool = "filed"\n'


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith(("COUNTERFOIL_", "OTEL_")):
            monkeypatch.delenv(name)


def write(text: str, name: str = "counterfoil.toml") -> None:
    Path(name).write_text(text, encoding="utf-8")


def test_a_flag_wins_over_the_environment_which_wins_over_the_file_which_wins_over_what_is_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def said(*words: str) -> str:
        typed = type_("work", *words, store=None)
        assert typed.code == 0, typed.err
        return typed.err.splitlines()[0]

    write('store = "sqlite:///filed.db"\n' + WORK)
    assert said() == "working for hello on sqlite:///filed.db, pool filed"
    monkeypatch.setenv("COUNTERFOIL_WORK_POOL", "around")
    monkeypatch.setenv("COUNTERFOIL_WORK_MODULES", "tests.cli_desk:hello tests.cli_desk:large")
    monkeypatch.setenv("COUNTERFOIL_STORE", "sqlite:///around.db")
    assert said() == "working for hello, large on sqlite:///around.db, pool around"
    flags = ("--pool", "typed", "--store", "sqlite:///typed.db", "tests.cli_desk:large")
    assert said(*flags) == "working for large on sqlite:///typed.db, pool typed"


def test_without_a_file_everything_is_as_usual() -> None:
    typed = type_("work", "tests.cli_desk:hello", "--once", store=None)
    assert typed.err.splitlines()[0] == "working for hello on sqlite:///.counterfoil/counterfoil.db"


def test_the_tenant_of_the_file_counts_for_every_command() -> None:
    run = run_of("hello")
    write('tenant = "acme"\n')
    assert type_("show", run).code == 5
    assert type_("show", run, "--tenant", "default").code == 0


def test_another_file_is_named_by_a_flag_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    write('store = "sqlite:///here.db"\n')
    write('store = "sqlite:///there.db"\n', "other.toml")

    def store(*before: str) -> tuple[str, str]:
        (row,) = [s for s in type_(*before, "doctor", "--json", store=None).data["settings"] if s["name"] == "store"]
        return row["value"], row["source"]

    assert store() == ("sqlite:///here.db", "counterfoil.toml")
    monkeypatch.setenv("COUNTERFOIL_CONFIG", "other.toml")
    assert store() == ("sqlite:///there.db", "other.toml")
    assert store("--config", "counterfoil.toml") == ("sqlite:///here.db", "counterfoil.toml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[serve]\nprot = 1\n", "counterfoil.toml: [serve] prot is no setting; did you mean port?"),
        ("stor = 'x'\n", "counterfoil.toml: stor is no setting; did you mean store?"),
        ("[runs]\nlimit = 1\n", "counterfoil.toml: runs is no setting; known are serve, store, tenant, work"),
        ("serve = 1\n", "counterfoil.toml: serve is a table: write [serve]"),
        ("store = 1\n", "counterfoil.toml: store is a text, not 1"),
        ("[serve]\nmodules = 'shop'\n", "[serve] modules is a list, not 'shop'"),
        ("[serve]\nport = [1]\n", "[serve] port is one value, not [1]"),
        ("[serve]\nwebhook-secret = 'x'\n", "webhook-secret is no setting"),
        ("[serve\n", "counterfoil.toml is no TOML"),
        (None, "none.toml cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_setting_is_said_with_its_place(text: str | None, told: str) -> None:
    if text is None:
        typed = type_("--config", "none.toml", "runs")
    else:
        write(text)
        typed = type_("runs")
    assert typed.code == 2
    assert told in typed.err


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_value_that_does_not_fit_its_flag_is_refused_with_its_place(command: str) -> None:
    write("[serve]\nport = 'many'\n")
    typed = type_(command)
    assert typed.code == 2
    assert "counterfoil.toml: [serve] port cannot be 'many': Input should be a valid integer" in typed.err


def test_doctor_finds_variables_that_are_no_setting_or_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFOIL_SERVE_PORT", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("COUNTERFOIL_WORK_POL", "slow")
    monkeypatch.setenv("COUNTERFOIL_WORK_MODULES", "a b")
    typed = type_("doctor", "--json", store=None)
    broken = {check["name"]: check["found"] for check in typed.data["checks"] if check["state"] == "broken"}
    assert typed.code == 1
    assert broken.keys() == {"COUNTERFOIL_SERVE_PORT", "COUNTERFOIL_WORK_POL"}
    assert "valid integer" in broken["COUNTERFOIL_SERVE_PORT"]
    assert broken["COUNTERFOIL_WORK_POL"] == "work has no --pol; did you mean pool?"


def test_doctor_shows_each_setting_that_counts_with_its_source_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        'store = "postgresql://app:hunter2@127.0.0.1:1/shop"\n[serve]\nport = 9000\ngrace = 60.0\n'
        'webhook = "https://u:hunter2@desk.example/hunter2?t=hunter2"\n'
    )
    for name, value in {
        "COUNTERFOIL_SERVE_PORT": "9001",
        "COUNTERFOIL_WEBHOOK_SECRET": "hunter2",
        "COUNTERFOIL_WORK_WEBHOOK": "https://desk.example/hunter2",
        "OPENAI_API_KEY": "hunter2",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=hunter2",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://app:hunter2@collector:4318",
        "PGPASSWORD": "hunter2",
    }.items():
        monkeypatch.setenv(name, value)
    typed = type_("doctor", "--json", store=None)
    assert "hunter2" not in typed.out + typed.err + type_("doctor", store=None).out
    found = {s["name"]: (s["value"], s["source"]) for s in typed.data["settings"]}
    expected = {
        "store": ("postgresql://app:***@127.0.0.1:1/shop", "counterfoil.toml"),
        "serve --port": ("9001", "COUNTERFOIL_SERVE_PORT"),
        "serve --grace": ("60.0", "counterfoil.toml"),
        "serve --webhook": ("https://desk.example/***", "counterfoil.toml"),
        "work --webhook": ("https://desk.example/***", "COUNTERFOIL_WORK_WEBHOOK"),
        "COUNTERFOIL_WEBHOOK_SECRET": ("***", "environment"),
        "OPENAI_API_KEY": ("***", "environment"),
        "OTEL_EXPORTER_OTLP_HEADERS": ("***", "environment"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": ("http://app:***@collector:4318", "environment"),
        "PGPASSWORD": ("***", "environment"),
    }
    assert {name: found[name] for name in expected} == expected
