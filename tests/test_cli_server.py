"""The command at a server: it prints what it prints of a file, with the same exit codes."""

from __future__ import annotations

import re

import pytest

from counterfoil import Runtime
from counterfoil.doors import wiring
from tests import cli_desk
from tests.served import in_thread
from tests.test_cli import STORE, Typed, folder, run_of, type_

__all__ = ["folder"]  # a fixture, for every test here


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    for name in ("COUNTERFOIL_URL", "COUNTERFOIL_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(folder):
    """A server without agents on the same file, for whoever types."""
    with in_thread(lambda: Runtime(STORE), dev=wiring.login()) as url:
        yield url


@pytest.fixture
def working(folder):
    """A server with agents, on a file of its own."""
    agents = [cli_desk.desk, cli_desk.hello, cli_desk.pair, cli_desk.waiting]
    with in_thread(lambda: Runtime("sqlite:///served.db", agents=agents), dev=wiring.login()) as url:
        yield url


def there(url, *arguments, text=None):
    return type_(*arguments, "--server", url, text=text, store=None)


def same(typed, **known):
    """What was printed, without what differs between two runs of the same."""
    return [_plain(part, known) for part in (typed.out, typed.err)] + [typed.code]


def _plain(text, known):
    for name, run_id in known.items():
        text = text.replace(run_id, name)
    for pattern, word in (
        (r"\d{4}-\d\d-\d\d[T ][\d:.]+(Z|\+00:00)?", "DATE"),
        (r"\b\d\d:\d\d:\d\d\b", "TIME"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
        (r"\b[0-9a-f]{64}\b", "DIGEST"),
        (r'("seconds"|"durationMs"): [\d.]+', "TOOK"),
        (r"\b(under )?[\d.]+ (ms|s|µs)\b", "TOOK"),
        (r" --with tests\.cli_desk:\w+", ""),
        (r"a worker with its agent goes on: counterfoil work MODULE|the server goes on with it", "GOES ON"),
        (r" --(store|server) \S+", ""),
    ):
        text = re.sub(pattern, word, text)
    return text


def test_what_is_read_at_a_server_is_what_is_read_of_its_file(server):
    desk, clumsy, large, hello = (run_of(name) for name in ("desk", "clumsy", "large", "hello"))
    gone = run_of("large", "--user", "grace")
    type_("erase", gone, "--yes")
    number = next(row["sequence"] for row in type_("show", large, "--json").data["timeline"] if row["kept"])
    commands = [
        ("runs",), ("runs", "--limit", "2"), ("runs", "--status", "completed"), ("runs", "--agent", "desk"),
        ("runs", "--before", large), ("show", "last"), ("show", desk), ("show", desk, "--full"), ("show", clumsy),
        ("show", large, "--full"), ("show", gone), ("watch", hello), ("watch", clumsy), ("errors",), ("errors", clumsy),
        ("errors", "--tool", "get_order", "--code", "404"),
        ("errors", "--group"), ("errors", "--since", "1h"), ("approvals",), ("approvals", desk), ("approvals", hello),
        ("result", large, str(number)), ("result", large, str(number), "--offset", "13", "--limit", "20"),
        ("result", gone, str(number)), ("result", large, "99"), ("show", "0" * 36), ("show", "zz"), ("show", desk[:4]),
        ("approve", hello), ("approve", desk, "nothing"), ("reject", clumsy, "e1"),
        ("cancel", hello), ("runs", "--status", "odd"),
    ]  # fmt: skip  # one row
    for words in commands:
        here, away = type_(*words), there(server, *words)
        assert (away.out, away.err, away.code) == (here.out, here.err, here.code), words
        if "result" not in words or here.code == 0:
            here, away = type_(*words, "--json"), there(server, *words, "--json")
            assert (away.out, away.err, away.code) == (here.out, here.err, here.code), words


def test_what_is_decided_at_a_server_is_what_is_decided_on_a_file(server):
    for as_json in ((), ("--json",)):
        pairs = [(run_of("desk"), run_of("desk")) for _ in range(4)]
        steps = [
            (0, "settle", "--rerun"), (0, "approve"), (0, "approve", "pay-1"),
            (0, "reject", "pay-1", "--reason", "late"), (0, "show"),
            (1, "reject", "pay-1", "--reason", "no"), (1, "settle", "pay-1", "--result", "x"), (1, "show"),
            (2, "approve", "pay-1", "--digest", "00"), (2, "cancel", "--reason", "enough"), (2, "approve"),
            (2, "send", "hello"), (2, "show"), (3, "send", "hello"), (3, "show"),
        ]  # fmt: skip  # one row
        for which, name, *rest in steps:
            first, second = pairs[which]
            here = type_(name, first, *rest, *as_json)
            away = there(server, name, second, *rest, *as_json)
            assert same(away, RUN=second) == same(here, RUN=first), (name, rest)


def test_a_run_is_started_asked_about_decided_and_watched_at_a_server(working):
    here = type_("run", "tests.cli_desk:desk", "Refund W100")
    away = there(working, "run", "desk", "Refund W100")
    run = away.err.split()[1]
    assert away.code == 3
    assert same(away) == same(here)
    assert f"counterfoil approve {run} pay-1 --server {working}" in away.out
    assert there(working, "approve", run, "--input", '{"order_id": "W100", "cents": 5}').code == 0
    watched = there(working, "watch", run)
    assert (watched.code, watched.out.splitlines()[-1]) == (0, "Refunded 5.")
    asked = there(working, "run", "tests.cli_desk:pair", "Go", "--yes")
    assert (asked.code, asked.out.count("approved by --yes: refund")) == (0, 2)
    kept = [there(working, "run", "hello", "Hi", "--key", "k", "--json").data for _ in range(2)]
    assert kept[0] == kept[1]
    talk = there(working, "chat", "hello", text="Hi\nand again\n")
    assert (talk.code, talk.out.count("Hello!")) == (0, 2)


def test_the_server_may_come_from_the_environment_and_a_named_store_wins(working, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_URL", working)
    run = run_of("hello")  # names a store
    assert type_("runs", "--json", store=None).data == []
    assert Typed(["--server", working, "runs", "--json"], None).data == []
    assert [row["runId"] for row in type_("runs", "--json").data] == [run]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("verify", "--server", "URL"), 2, "verify needs the store itself, and --server names a server"),
        (("replay", "last", "--server", "URL"), 2, "replay needs the store itself"),
        (("keys", "list", "--server", "URL"), 2, "counterfoil: keys list needs the store itself"),
        (("work", "shop", "--server", "URL"), 2, "work needs the store itself"),
        (("runs", "--server", "URL", "--store", STORE), 2, "--server and --store are two places; name one"),
        (("runs", "--server", "URL", "--tenant", "acme"), 2, "leave out --tenant"),
        (("approve", "last", "--server", "URL", "--by", "eve"), 5, "there is no run yet"),
        (("approve", "last", "--server", "URL", "--with", "shop"), 2, "leave out --with"),
        (("run", "desk", "Hi", "--server", "URL", "--user", "eve"), 2, "leave out --user and --role"),
        (("errors", "last", "--group", "--server", "URL"), 5, "there is no run yet"),
        (("runs", "--server", "127.0.0.1"), 2, "expected an address such as http://127.0.0.1:8000"),
        (("runs", "--server", "http://127.0.0.1:1"), 1, "http://127.0.0.1:1 cannot be reached"),
    ],
)  # fmt: skip  # a row each
def test_what_a_server_cannot_do_is_said(server, words, code, said, monkeypatch):
    monkeypatch.setattr("counterfoil.client.wire.FIRST_PAUSE", 0.0)
    typed = type_(*(server if word == "URL" else word for word in words), store=None)
    assert (typed.code, said in " ".join(typed.err.split())) == (code, True), typed.err


def test_who_decides_at_a_server_is_the_keys_user(server):
    run = run_of("desk")
    typed = there(server, "approve", run, "--by", "eve")
    assert (typed.code, "leave out --by" in typed.err) == (2, True)


def test_a_command_for_a_store_alone_reads_no_other_one_where_a_server_is_meant(server, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_URL", server)
    run_of("hello")
    typed = type_("verify", store=None)
    assert (typed.code, "COUNTERFOIL_URL names a server" in " ".join(typed.err.split())) == (2, True)
    assert type_("verify").code == 0
