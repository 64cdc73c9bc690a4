"""The command line as a person types it, in this process."""

import json
import logging
import re
import socket
import sqlite3
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from counterfoil.core.timeline import rows
from counterfoil.doors import cli, http
from counterfoil.doors.cli.app import app
from counterfoil.testing.model_bench import PNG
from tests.floors import ROOT
from tests.test_cli_plain import moves_or_hides

STORE = "sqlite:///shop.db"


class Typed:
    """What came of one command."""

    def __init__(self, arguments: list[str], text: str | None) -> None:
        result = CliRunner().invoke(app, arguments, input=text, env={"COLUMNS": "80"})
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr
        self.error = result.exception if not isinstance(result.exception, SystemExit) else None

    @property
    def data(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COUNTERFOIL_STORE", raising=False)
    return tmp_path


def type_(*arguments: str, text: str | None = None, store: str | None = STORE) -> Typed:
    typed = Typed([*arguments, *(["--store", store] if store else [])], text)
    assert typed.error is None
    assert "Traceback" not in typed.err
    return typed


def run_of(agent: str, *options: str) -> str:
    """The id of a new run of an agent of tests.cli_desk."""
    return str(type_("run", f"tests.cli_desk:{agent}", "Go on", "--json", *options).data["runId"])


# ------------------------------------------------------------------------------------------------- run


def test_a_run_shows_its_timeline_and_ends_with_its_answer() -> None:
    typed = type_("run", "tests.cli_desk:hello", "Hi there", "--user", "ada")
    assert typed.code == 0
    assert "hello began for ada" in typed.out
    assert "Hi there" in typed.out
    assert typed.out.endswith("\nHello!\n")
    assert typed.out.count("Hello!") == 1


def test_with_json_standard_output_is_one_object_and_nothing_else() -> None:
    typed = type_("run", "tests.cli_desk:hello", "Hi", "--json")
    assert typed.data["status"] == "completed"
    assert typed.data["endedBy"] == "answer"
    assert typed.data["answer"] == "Hello!"


def test_without_a_terminal_a_run_pauses_and_what_it_says_to_type_works() -> None:
    typed = type_("run", "tests.cli_desk:desk", "Refund W100")
    assert typed.code == 3
    assert "✓ ok" in typed.out
    assert "? waits" in typed.out
    (next_,) = re.findall(r"^  counterfoil (.*)$", typed.out, re.MULTILINE)
    done = type_(*next_.split(), store=None)
    assert done.code == 0
    assert "Refunded 5.00 on W100" in done.out
    assert "Let me look" not in done.out, "what was shown before the pause is not shown again"
    assert done.out.endswith("The tool said: Refunded 500.\n")


def test_yes_approves_and_says_so_here_and_on_record() -> None:
    typed = type_("run", "tests.cli_desk:desk", "Refund W100", "--yes")
    assert typed.code == 0
    assert "approved by --yes: refund (call pay-1)" in typed.out
    decisions = [row["text"] for row in type_("show", "last", "--json").data["timeline"] if row["kind"] == "decision"]
    assert len(decisions) == 1
    assert "(--yes) approved refund" in decisions[0]


def test_a_model_that_cannot_be_had_is_said_in_a_sentence() -> None:
    typed = type_("run", "tests.cli_desk:no_model", "Hi")
    assert typed.code == 1
    assert "cannot read /no/such/turns.json" in " ".join(typed.out.split())


def test_a_prompt_may_come_from_standard_input() -> None:
    assert type_("run", "tests.cli_desk:echo", "-", text="one\ntwo\n").out.endswith("You said one\ntwo\n")


def test_files_beside_a_prompt_are_the_models_to_read_and_named_in_the_timeline(folder: Path) -> None:
    (folder / "a.png").write_bytes(PNG)
    (folder / "notes.txt").write_text("one", encoding="utf-8")
    typed = type_("run", "tests.cli_desk:hello", "Look", "--file", "a.png", "--file", "notes.txt")
    assert typed.code == 0
    assert "[image, image/png, 33 bytes]" in typed.out
    assert "[file notes.txt, text/plain, 3 bytes]" in " ".join(typed.out.split())
    run = type_("runs", "--json").data[0]["runId"]
    assert "waits for the next run" in type_("send", run, "And?", "--file", "a.png").out
    (folder / "a.zip").write_bytes(b"PK\x03\x04\x00\xff")
    for wrong, said in (("a.zip", "a.zip, application/octet-stream"), ("none.png", "none.png: No such file")):
        typed = type_("run", "tests.cli_desk:hello", "Look", "--file", wrong)
        assert typed.code == 2
        assert said in typed.err
    assert len(type_("runs", "--json").data) == 1


def test_the_same_key_gives_the_first_run() -> None:
    first, again = (run_of("hello", "--key", "k1") for _ in range(2))
    assert first == again


def test_the_exit_code_says_how_a_run_ended() -> None:
    assert type_("run", "tests.cli_desk:broken", "Go").code == 1
    assert type_("run", "tests.cli_desk:limited", "Go").code == 4
    paused = run_of("desk")
    assert type_("cancel", paused, "--reason", "changed my mind").code == 0
    watched = type_("watch", paused)
    assert watched.code == 4
    assert "changed my mind" in watched.out


def test_a_chat_is_one_conversation() -> None:
    typed = type_("chat", "tests.cli_desk:echo", "--json", text="first\n\nsecond\n/exit\nnever\n")
    assert [run["answer"] for run in typed.data] == ["You said first", "You said second"]
    assert len({run["interactionId"] for run in typed.data}) == 1


def test_a_chat_shows_no_more_than_calls_and_answers() -> None:
    typed = type_("chat", "tests.cli_desk:echo", text="first\n")
    assert typed.out == "\nYou said first\n"


def test_a_chat_that_waits_for_a_person_ends_paused() -> None:
    typed = type_("chat", "tests.cli_desk:desk", text="refund\nmore\n")
    assert typed.code == 3
    assert typed.out.count("counterfoil approve") == 1


def test_a_worker_goes_on_with_what_was_decided() -> None:
    run = run_of("desk")
    assert type_("approve", run).code == 0
    worked = type_("work", "tests.cli_desk", "--once")
    assert worked.code == 0
    assert worked.out == ""
    assert type_("show", run, "--json").data["status"] == "completed"


# ------------------------------------------------------------------------------------------- decisions


def test_the_first_decision_counts_an_equal_repeat_is_acknowledged_a_different_one_is_a_conflict() -> None:
    run = run_of("desk")
    (approval,) = type_("approvals", "--json").data
    assert approval["requestedAt"].endswith("0Z"), "as the HTTP API writes it"
    assert approval["effectiveInput"] == {"order_id": "W100", "cents": 500}
    assert type_("approve", run, "pay-1", "--by", "grace", "--digest", approval["digest"]).code == 0
    assert type_("approve", run, "pay").code == 0
    typed = type_("reject", run, "pay-1", "--reason", "no")
    assert typed.code == 6
    assert "grace" in typed.err
    assert type_("approvals", "--json").data == []
    assert type_("reject", run).code == 6, "no call waits any more"


def test_what_waits_is_shown_with_its_exact_input() -> None:
    run_of("hostile")
    typed = type_("approvals")
    assert typed.code == 0
    assert r"\u202eevil\u202c" in typed.out
    assert r"\u001b]0;owned\u0007" in typed.out
    assert moves_or_hides(typed.out) == []


def test_an_edit_is_checked_by_the_agent_and_runs_in_place_of_the_input() -> None:
    run = run_of("desk")
    refused = type_("approve", run, "--input", '{"order_id": "W100", "cents": "many"}', "--with", "tests.cli_desk:desk")
    assert refused.code == 2
    assert "cents" in refused.err
    assert len(type_("approvals", run, "--json").data) == 1, "the call stays pending"
    alone = type_("approve", run, "--input", '{"order_id": "W100", "cents": 1}')
    assert alone.code == 2
    assert "--with MODULE:AGENT" in alone.err
    typed = type_(
        "approve",
        run,
        "--input",
        '{"order_id": "W100", "cents": 1}',
        "--with",
        "tests.cli_desk:desk",
        "--json",
    )
    assert typed.code == 0
    assert typed.data["run"]["answer"].endswith("Refunded 1.")


def test_where_several_calls_wait_one_must_be_named() -> None:
    run = run_of("pair")
    typed = type_("approve", run)
    assert typed.code == 2
    assert "pay-a (refund), pay-b (refund)" in typed.err
    assert type_("approve", run, "pay-").code == 2
    assert type_("approve", run, "pay-a").code == 0
    done = type_("reject", run, "--reason", "too much", "--with", "tests.cli_desk:pair")
    assert done.code == 0
    assert "✗ rejected" in done.out


def test_with_names_the_agent_of_the_run() -> None:
    typed = type_("approve", run_of("desk"), "--with", "tests.cli_desk:pair")
    assert typed.code == 2
    assert "'desk'" in typed.err


def test_settle_takes_exactly_one_ending() -> None:
    run = run_of("desk")
    assert type_("settle", run, "--rerun", "--failed", "x").code == 2
    assert type_("settle", run).code == 2
    typed = type_("settle", run, "--rerun")
    assert typed.code == 6
    assert "approve or reject" in typed.err


def test_a_message_into_an_ended_run_waits_for_the_next_one() -> None:
    run = run_of("hello")
    assert type_("send", run, "and more", "--json").data["delivered"] == "next run"
    assert type_("send", run_of("desk"), "hurry", "--json").data["delivered"] == "queued"


def test_a_run_that_has_ended_is_not_cancelled() -> None:
    typed = type_("cancel", run_of("hello"))
    assert typed.code == 6
    assert "completed already" in typed.err


# --------------------------------------------------------------------------------------------- reading


def test_runs_are_listed_newest_first_and_filtered() -> None:
    first, second, third = run_of("hello"), run_of("desk"), run_of("hello")
    rows = type_("runs", "--json").data
    assert [row["runId"] for row in rows] == [third, second, first]
    assert rows[1]["status"] == "paused"
    assert {row["runId"] for row in type_("runs", "--agent", "hello", "--json").data} == {first, third}
    assert [row["runId"] for row in type_("runs", "--status", "paused", "--json").data] == [second]
    assert [row["runId"] for row in type_("runs", "--before", second, "--json").data] == [first]
    table = type_("runs").out.splitlines()
    assert table[0].split() == ["run", "began", "(UTC)", "status", "agent"]
    for line, run in zip(table[1:], (third, second, first), strict=True):
        assert run.startswith(line.split()[0])
        assert type_("show", line.split()[0], "--json").data["runId"] == run


def test_an_ambiguous_beginning_is_refused() -> None:
    first, second = run_of("hello"), run_of("hello")
    typed = type_("show", first[:4])
    assert typed.code == 2
    assert first in typed.err
    assert second in typed.err


def test_the_timeline_names_outcomes_in_words_and_fits_eighty_columns() -> None:
    run_of("clumsy")
    typed = type_("show", "last", "--full")
    for text in ("✗ failed 404", "✗ failed 5000", "✗ failed 4003", "completed", "I give up."):
        assert text in typed.out
    assert max(map(len, typed.out.splitlines())) <= 80
    assert "\x1b" not in typed.out
    assert typed.out.count("I give up.") == 1


def test_reports_are_whole_for_one_run_and_a_row_each_for_all() -> None:
    run = run_of("clumsy")
    reports = type_("errors", "--json").data
    assert {report["code"] for report in reports} == {404, 5000, 4003}
    assert [r["callId"] for r in type_("errors", "--code", "5000", "--json").data] == ["e2"]
    assert type_("errors", "--tool", "other").err == "no reports\n"
    table = type_("errors").out
    assert "ValueError: the disk said evil [bold red]loud[/]" in " ".join(table.split())
    whole = type_("errors", run).out
    assert "Traceback (most recent call last):" in whole
    assert moves_or_hides(table + whole) == []


def test_reports_are_counted_by_tool_and_code() -> None:
    run_of("clumsy")
    run = run_of("clumsy")
    groups = type_("errors", "--group", "--json").data
    assert {(g["toolName"], g["code"], g["count"]) for g in groups} == {
        ("get_order", 404, 2), ("get_order", 5000, 2), ("get_order", 4003, 2),
    }  # fmt: skip  # one row
    assert all(g["firstAt"] < g["lastAt"] for g in groups)
    assert [g["count"] for g in type_("errors", run, "--group", "--code", "404", "--json").data] == [1]
    assert type_("errors", "--group", "--since", "1h", "--limit", "1").out.splitlines()[-1].split()[0] == "2"
    assert type_("errors", "--group", "--since", "0s").err == "no reports\n"
    assert type_("errors", "--since", "yesterday").code == 2


def test_a_large_result_is_given_whole_or_in_part() -> None:
    run_of("large")
    (row,) = [row for row in type_("show", "last", "--json").data["timeline"] if row["kind"] == "call"]
    assert row["kept"] is True
    number = str(row["sequence"])
    assert type_("result", "last", number).out == "é0123456789\n" * 8000
    piece = type_("result", "last", number, "--offset", "3", "--limit", "5", "--json").data
    assert (piece["text"], piece["offset"], piece["total"], piece["size"]) == ("23456", 3, 96000, 104000)
    assert type_("result", "last", "99").code == 5


def test_watch_with_json_gives_the_events_as_one_array() -> None:
    run_of("hello")
    events = type_("watch", "last", "--json").data
    assert [event["type"] for event in events] == ["RunStarted", "TurnRecorded", "RunEnded"]
    assert events[1]["usage"]["inputTokens"] == 0


def test_hostile_text_reaches_no_terminal() -> None:
    typed = type_("run", "tests.cli_desk:hostile", "\x1b[31mred\u202e", "--yes")
    assert typed.code == 0
    shown = typed.out + type_("show", "last", "--full").out
    assert moves_or_hides(shown) == []
    assert "[bold red]loud[/]" in shown
    assert "你好 👩\u200d👩\u200d👧 end" in shown
    written = type_("show", "last", "--json")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", written.out)
    assert written.data["answer"].startswith("\x1b]0;owned")


# ------------------------------------------------------------------------------------- tenants, stores


def test_another_tenants_run_does_not_exist() -> None:
    run = run_of("desk", "--tenant", "acme")
    for command in ("show", "approve", "cancel", "erase", "errors", "watch"):
        typed = type_(command, run)
        assert typed.code == 5, command
        assert f"there is no run {run!r}" in typed.err
    assert type_("runs", "--json").data == []
    assert type_("approve", run, "--tenant", "acme").code == 0


def test_the_store_is_the_option_else_the_environment_else_a_file_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type_("run", "tests.cli_desk:hello", "Hi", store=None).code == 0
    assert (folder / ".counterfoil" / "counterfoil.db").exists()
    monkeypatch.setenv("COUNTERFOIL_STORE", "sqlite:///env.db")
    assert type_("run", "tests.cli_desk:hello", "Hi", store=None).code == 0
    assert (folder / "env.db").exists()
    assert type_("run", "tests.cli_desk:hello", "Hi").code == 0
    assert (folder / "shop.db").exists()
    before = Typed(["--store", "sqlite:///before.db", "run", "tests.cli_desk:hello", "Hi"], None)
    assert before.code == 0
    assert (folder / "before.db").exists()


def test_reading_never_makes_a_store(folder: Path) -> None:
    for command in (["runs"], ["verify"], ["approvals"], ["show", "last"]):
        typed = type_(*command)
        assert typed.code == 5
        assert "there is no store at shop.db" in typed.err
    assert list(folder.iterdir()) == []


# -------------------------------------------------------------------------------------------- checking


def test_the_schema_of_a_store_is_brought_up_to_date_by_hand_and_of_a_file_by_whoever_opens_it(folder: Path) -> None:
    assert type_("db", "upgrade").code == 5, "there is no store"
    run_of("hello")
    with sqlite3.connect(folder / "shop.db") as db:
        (newest,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    assert type_("db", "upgrade", "--json").data == {"before": newest, "now": newest}
    assert "already" in type_("db", "upgrade").out


def test_verify_proves_a_store_and_finds_what_was_changed(folder: Path) -> None:
    run_of("desk", "--yes")
    assert type_("verify").code == 0
    head = type_("verify", "--head")
    assert head.code == 0
    assert head.out == type_("verify", "--print-head").out
    (folder / "head.txt").write_text(head.out, encoding="utf-8")
    run_of("hello")
    assert type_("verify", "--head", "head.txt").code == 0, "a store that has grown since is well"
    assert type_("verify", "--head", "-", text=head.out).code == 0
    with sqlite3.connect(folder / "shop.db") as db:
        db.execute("update entries set content = cast(replace(content, '500', '900') as blob) where kind = 'start'")
    db.close()
    typed = type_("verify", "--head", "head.txt", "--json")
    assert typed.code == 1
    assert typed.data["problems"]
    table = type_("verify")
    assert table.code == 1
    assert "✗" in table.out


def test_verify_refuses_what_is_no_head(folder: Path) -> None:
    run_of("hello")
    (folder / "head.txt").write_text("nonsense", encoding="utf-8")
    for head in ("head.txt", "missing.txt", "{}"):
        typed = type_("verify", "--head", head)
        assert typed.code == 2
        assert "head" in typed.err


POLICY = """
[[rule]]
name = "small"
tool = "refund"
when = "input.cents < 600"
then = "allow"

[[rule]]
name = "never-w1"
tool = "get_*"
when = "input.order_id == 'W1'"
then = "deny"
"""


def test_policy_test_says_what_a_policy_would_have_decided(folder: Path) -> None:
    run_of("desk", "--yes")
    limited = run_of("limited")
    (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
    typed = type_("policy", "test", "policy.toml", "--agents", "tests.cli_desk", "--json")
    assert typed.code == 1
    assert {rule["rule"]: rule["matched"] for rule in typed.data["rules"]} == {
        "small": 1,
        "never-w1": 1,
        None: 0,
    }
    verdicts = {(one["callId"], one["verdict"], one["rule"]) for one in typed.data["judged"] if one["runId"] != limited}
    assert verdicts == {("look", "allow", None), ("pay-1", "allow", "small")}
    table = type_("policy", "test", "policy.toml", limited)
    assert "never-w1" in table.out
    assert "1 call" in table.out
    wrong = type_("policy", "test", "missing.toml")
    assert wrong.code == 2
    assert "missing.toml" in wrong.err


def test_doctor_tells_what_is_here_and_where_settings_come_from() -> None:
    run_of("hello")
    typed = type_("doctor", "--json")
    assert typed.code == 0
    assert {check["name"]: check["state"] for check in typed.data["checks"]}["store"] == "ok"
    assert {"name": "store", "value": STORE, "source": "--store"} in typed.data["settings"]
    assert "SQLite" in type_("doctor").out


def test_what_doctor_finds_has_room_for_a_path_at_80_columns() -> None:
    path = "a-place/" + "x" * 33
    found = type_("doctor", store=f"sqlite:///{path}").out.partition("setting  from")[0]
    assert path in found, found


def test_doctor_finds_a_store_that_cannot_be_opened(folder: Path) -> None:
    (folder / "shop.db").write_bytes(b"this is no database" * 100)
    typed = type_("doctor", "--json")
    assert typed.code == 1
    assert {check["name"]: check["state"] for check in typed.data["checks"]}["store"] == "broken"


def test_erasing_takes_the_contents_and_leaves_the_proof() -> None:
    run = run_of("hello")
    assert type_("erase", run_of("desk")).code == 6, "a run that is open is not erased"
    typed = type_("erase", run, "--json")
    assert typed.data["erased"] > 0
    assert "Hello!" not in type_("show", run).out
    assert type_("verify", "--json").data["erased"] > 0


def test_erasing_a_manager_takes_the_tasks_that_it_gave_and_what_came_of_them() -> None:
    run = run_of("chief", "--user", "ada")
    assert type_("approve", run, "pay", "--with", "tests.cli_desk:chief").code == 3
    assert type_("answer", run, "ask", "Well.", "--by", "ada", "--with", "tests.cli_desk:chief").code == 0
    assert "Dug." in type_("show", run).out
    (below,) = {row["runId"] for row in type_("show", run, "--json").data["timeline"]} - {run}
    assert type_("erase", run).code == 0
    for one in (run, below):
        assert not [
            word for word in ("Dig.", "Dug.", "W1") if word in type_("export", one).out + type_("show", one).out
        ]
    assert type_("verify").code == 0


def older(store: Path, run: str, days: int) -> None:
    """As if the run had ended so many days ago."""
    with sqlite3.connect(store) as db:
        db.execute("UPDATE runs SET updated_at = updated_at - ? WHERE id = ?", (days * 86_400_000_000, run))
    db.close()


def test_retention_erases_the_runs_that_ended_long_enough_ago_and_says_how_many(folder: Path) -> None:
    old, older_, new, open_ = run_of("hello"), run_of("limited"), run_of("hello"), run_of("desk")
    for run, days in ((old, 31), (older_, 400), (new, 29), (open_, 31)):
        older(folder / "shop.db", run, days)
    typed = type_("erase", "--older-than", "30d", "--json")
    assert (typed.code, typed.data["runs"]) == (0, 2)
    assert typed.data["before"].endswith("Z")
    assert "(erased)" in type_("show", old).out
    assert "(erased)" in type_("show", older_).out
    assert "Hello!" in type_("show", new).out
    assert type_("show", open_).out.count("(erased)") == 0
    again = type_("erase", "--older-than", "4w", "--yes")
    assert "of 1 run that ended before" in again.out
    assert "erased 0 contents of 0 runs" in type_("erase", "--older-than", "28d").out
    assert type_("verify").code == 0


def test_retention_leaves_other_tenants_alone(folder: Path) -> None:
    run = run_of("hello", "--tenant", "acme")
    older(folder / "shop.db", run, 31)
    assert type_("erase", "--older-than", "30d", "--json").data["runs"] == 0
    assert type_("erase", "--older-than", "30d", "--tenant", "acme", "--json").data["runs"] == 1


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1y", "1.5d", "", "999999w"])
def test_an_age_that_is_none_is_refused(age: str) -> None:
    run_of("hello")
    typed = type_("erase", "--older-than", age)
    assert typed.code == 2
    assert "--older-than" in typed.err


def test_erase_takes_a_run_or_an_age() -> None:
    run = run_of("hello")
    assert type_("erase").code == 2
    assert type_("erase", run, "--older-than", "30d").code == 2


# ------------------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "nowhere:agent", "Hi"], 2, "there is no module 'nowhere'"),
        (["run", "tests.cli_desk:nobody", "Hi"], 2, "has no agent 'nobody'"),
        (["run", "tests.cli_desk:helo", "Hi"], 2, "did you mean tests.cli_desk:hello"),
        (["run", "tests.cli_desk:HOSTILE", "Hi"], 2, "expected an Agent at tests.cli_desk:HOSTILE, got str"),
        (["run", "tests.cli_desk", "Hi"], 2, "expected MODULE:AGENT"),
        (["run", "tests/cli_desk.py:hello", "Hi"], 2, "write tests.cli_desk:hello"),
        (["run", "not a module", "Hi"], 2, "expected MODULE:AGENT"),
        (["run", "tests.cli_desk:hello", " "], 2, "expected a prompt"),
        (["run", "raises:agent", "Hi"], 2, "ZeroDivisionError: division by zero"),
        (["run", "unfinished:agent", "Hi"], 2, "SyntaxError"),
        (["run", "exits:agent", "Hi"], 2, "SystemExit"),
        (["run", "lacks:agent", "Hi"], 2, "No module named 'no_such_thing'"),
        (["run", "tests.cli_desk:hello", "Hi", "--interaction", "unknown"], 5, "unknown"),
        (["work"], 2, "at least one module"),
        (["work", "json"], 2, "holds none"),
        (["runs", "--status", "happy"], 2, "expected one of running"),
        (["runs", "--limit", "none"], 2, "--limit"),
        (["show"], 2, "RUN"),
        (["show", "last"], 5, "no run"),
        (["show", "01a22910-1537-7001-a32d-17dfd32522a8"], 5, "there is no run '01a22910-"),
        (["approve", "0", "--input", "{"], 2, "no JSON"),
        (["approve", "0", "--input", "[1]"], 2, "expected a JSON object"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_a_mistake_gets_one_sentence_that_says_what_to_do(
    folder: Path, arguments: list[str], code: int, said: str
) -> None:
    (folder / "raises.py").write_text("x = 1\ny = x / 0\n", encoding="utf-8")
    (folder / "unfinished.py").write_text("def f(:\n", encoding="utf-8")
    (folder / "exits.py").write_text("raise SystemExit(0)\n", encoding="utf-8")
    (folder / "lacks.py").write_text("import no_such_thing\n", encoding="utf-8")
    run_of("hello", "--tenant", "other")
    typed = type_(*arguments)
    assert typed.code == code
    assert said in typed.err
    assert typed.out == ""


def test_the_place_in_a_module_that_raises_is_named(folder: Path) -> None:
    (folder / "deep.py").write_text("import helper_of_deep\n", encoding="utf-8")
    (folder / "helper_of_deep.py").write_text("\n\nvalue = {}['missing']\n", encoding="utf-8")
    typed = type_("run", "deep:agent", "Hi")
    assert "helper_of_deep.py, line 3: value = {}['missing']" in typed.err


def test_of_a_mistake_in_the_use_of_the_library_the_user_s_own_line_is_named(folder: Path) -> None:
    (folder / "misused.py").write_text("from counterfoil import Agent\n\nagent = Agent('')\n", encoding="utf-8")
    typed = type_("run", "misused:agent", "Hi")
    assert "misused.py, line 3: agent = Agent('')" in typed.err


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("shop.db", "for that file write sqlite:///shop.db"),
        ("oracle://x", "no store has the scheme 'oracle'"),
        ("sqlite:///missing/shop.db", "the folder missing for the store shop.db does not exist"),
        ("sqlite://shop.db", "expected sqlite:///"),
    ],
)
def test_a_wrong_store_is_explained(store: str, said: str) -> None:
    typed = type_("run", "tests.cli_desk:hello", "Hi", store=store)
    assert typed.code == 2
    assert said in typed.err


def test_debug_shows_the_traceback(folder: Path) -> None:
    (folder / "raises_too.py").write_text("1 / 0\n", encoding="utf-8")
    typed = Typed(["run", "raises_too:agent", "Hi", "--debug"], None)
    assert typed.code == 2
    assert "Traceback (most recent call last)" in typed.err


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rich", None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "pip install 'counterfoil[cli]'" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- documentation


def _commands(command: Any, path: str = "") -> dict[str, Any]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return {path: command}
    return {
        key: value for name, one in inner.items() for key, value in _commands(one, f"{path} {name}".strip()).items()
    }


def test_the_page_has_every_command_with_its_flags_and_every_exit_code() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, command in _commands(get_command(app)).items():
        assert re.search(rf"^###? .*`{name}\b", page, re.MULTILINE), f"{name} has no heading in docs/cli.md"
        for parameter in command.params:
            flags = [flag for flag in parameter.opts if flag.startswith("--") and flag != "--help"]
            assert all(re.search(rf"`{flag}(?![\w-])", page) for flag in flags), f"{name}: {flags}"
    help_ = Typed(["--help"], None).out
    for code in range(7):
        assert re.search(rf"^\| {code} \|", page, re.MULTILINE)
        assert re.search(rf"^ *{code}  \w", help_, re.MULTILINE)


# ------------------------------------------------------------------------------------------------ keys


def test_a_key_is_printed_once_listed_without_its_secret_and_revoked() -> None:
    made = type_("keys", "create", "--user", "ada", "--role", "finance", "--scope", "read", "--expires", "1d")
    secret = made.out.strip()
    assert re.fullmatch(r"cf_[\w-]{43}", secret)
    (key,) = type_("keys", "list", "--json").data
    assert (key["user"], key["roles"], key["scopes"], key["tenant"]) == ("ada", ["finance"], ["read"], "default")
    assert key["expiresAt"][:10] > key["createdAt"][:10]
    assert secret not in type_("keys", "list").out + type_("keys", "list", "--json").out
    assert type_("keys", "list", "--tenant", "acme", "--json").data == []
    assert type_("keys", "revoke", key["id"], "--tenant", "acme").code == 5
    assert re.search(rf"key {key['id']} of ada \(finance\), tenant default, for read; it counts until 2", made.err)
    assert listed_keys() == [f"{key['id']} until {key['expiresAt'][:10]} ada (finance): read"]
    first, again = (type_("keys", "revoke", one) for one in (key["id"][:13], key["id"]))
    assert (first.code, first.out) == (
        0, f"key {key['id']} of ada (finance), tenant default, counts no more, from now on\n",
    )  # fmt: skip  # one row
    assert (again.code, bool(re.search(r"no more, since \d{4}-\d\d-\d\d [\d:]{8} UTC$", again.out))) == (0, True)
    (key,) = type_("keys", "list", "--json").data
    assert type_("keys", "revoke", "zz").code == 5
    type_("keys", "create")
    assert "2 keys begin with '0'" in type_("keys", "revoke", "0").err
    assert listed_keys()[:1] == [f"{key['id']} no, revoked {key['revokedAt'][:10]} ada (finance): read"]


def test_a_key_is_revoked_by_a_unique_beginning_of_its_id() -> None:
    type_("keys", "create")
    assert type_("keys", "revoke", "").code == 5, "nothing is the beginning of no id"
    type_("keys", "create")
    one, other = (key["id"] for key in type_("keys", "list", "--json").data)
    both = one[: next(place for place in range(len(one)) if one[place] != other[place])]
    typed = type_("keys", "revoke", both)
    assert (typed.code, f"2 keys begin with {both!r}" in typed.err) == (2, True)
    assert type_("keys", "revoke", one[: len(both) + 1].upper(), "--json").data["id"] == one
    assert type_("keys", "revoke", "zzz").code == 5
    revoked = [key["revokedAt"] is not None for key in type_("keys", "list", "--json").data]
    assert revoked == [True, False]


def listed_keys() -> list[str]:
    """What `keys list` says of each, on one line."""
    rows = type_("keys", "list").out.partition("scopes")[2]
    return [" ".join(row.split()) for row in re.split(r"\n(?=0)", rows) if row.strip()]


def test_a_key_that_counts_for_no_time_is_refused() -> None:
    refused = type_("keys", "create", "--expires", "0d")
    assert (refused.code, "give an age such as 90d" in refused.err) == (2, True)


def test_a_key_of_json_has_its_secret_and_the_first_three_scopes() -> None:
    made = type_("keys", "create", "--json").data
    assert made["key"].startswith("cf_")
    assert made["scopes"] == ["run", "approve", "read"]
    assert made["expiresAt"] is None


def test_an_unknown_scope_and_a_server_without_keys_are_refused_with_what_to_do() -> None:
    refused = type_("keys", "create", "--scope", "all")
    assert (refused.code, "the scopes are run, approve, read, threads, admin" in refused.err) == (2, True)
    bare = type_("serve", "--port", "0")
    assert (bare.code, "type counterfoil keys create" in bare.err) == (2, True)


# ----------------------------------------------------------------------------------------------- teams


def test_what_waits_below_a_run_is_decided_by_that_run_and_a_question_is_answered() -> None:
    run = run_of("chief", "--user", "ada")
    (approval,) = type_("approvals", "--json").data
    assert (approval["callId"], approval["agent"]) == ("pay", "miner")
    assert approval["runId"] != run
    assert type_("answer", run, "pay", "Yes.").code == 6
    assert type_("approve", run, "pay", "--with", "tests.cli_desk:chief").code == 3
    assert re.search(r"chief asks ada; since \d{4}-\d\d-\d\d [\d:]{8} UTC", type_("approvals").out)
    assert f"counterfoil answer {run} ask TEXT --store {STORE}\n" in type_("approve", run, "ask").err
    assert type_("answer", run, "ask", "Yes.", "--by", "grace").code == 1
    typed = type_("answer", run, "ask", "All is well.", "--by", "ada", "--with", "tests.cli_desk:chief")
    assert typed.code == 0
    assert typed.out.endswith("They said: All is well.\n")
    assert "Dug." in type_("show", "last").out


def test_a_manager_says_what_it_waits_for_and_shows_the_runs_below_it() -> None:
    run = run_of("chief", "--user", "ada")
    (child,) = (row["runId"] for row in type_("runs", "--json").data if row["parentRunId"] == run)
    typed = type_("show", run)
    assert "waits for    a person: refund (pay of miner)" in typed.out
    mine, below = typed.out.split(f"child run {child}\n")
    assert "waits for a person: refund (pay of miner)" in " ".join(mine.split())
    assert "miner began for ada" in below
    shown = type_("show", run, "--json").data
    assert [(w["kind"], w["runId"], w["callId"]) for w in shown["waitsFor"]] == [("approval", child, "pay")]
    assert {row["runId"] for row in shown["timeline"]} == {run, child}
    assert [row["runId"] for row in type_("show", child, "--json").data["timeline"]] == [child] * 4


def test_the_reports_of_a_run_name_the_runs_below_it_that_have_some() -> None:
    run = run_of("boss")
    (child,) = (row["runId"] for row in type_("runs", "--json").data if row["parentRunId"] == run)
    typed = type_("errors", run)
    assert typed.err == f"a run below it has reports too: counterfoil errors {child} --store {STORE}\nno reports\n"
    assert "the disk said" in type_("errors", child).out
    assert "below" not in type_("errors", child).err


def test_watching_a_manager_shows_what_happened_below_it_as_show_does() -> None:
    run = run_of("twice")
    first, second = (row["runId"] for row in type_("approvals", "--json").data)
    for one in (first, second):
        assert type_("approve", one, "pay", "--with", "tests.cli_desk:twice").code in (0, 3)
    watched = type_("watch", run)
    assert watched.code == 0
    below = re.split(r"^child run (.*)$", type_("show", run).out, flags=re.MULTILINE)[1:]
    for child, told_there in zip(below[::2], below[1::2], strict=True):
        told = watched.out.partition(f"child run {child}\n")[2]
        assert [line for line in told_there.splitlines()[:-2] if line and line not in told] == []
    assert watched.out.count("Dug.") == 2, "each once"
    assert watched.out.rstrip().endswith("Both dug.")


def test_a_timeline_is_not_made_anew_at_each_event_that_is_watched() -> None:
    run = run_of("blns")
    events = len(type_("watch", run, "--json").data)
    made = 0

    def counts(frame: FrameType, event: str, _: object) -> None:
        nonlocal made
        made += event == "call" and frame.f_code is rows.__code__

    sys.setprofile(counts)
    try:
        shown = type_("watch", run).out
    finally:
        sys.setprofile(None)
    assert events > 130
    assert shown.count("naughty") >= 65
    assert 0 < made < events / 4


def test_calls_of_one_id_in_two_runs_below_are_told_apart_and_decided_each_in_its_own() -> None:
    typed = type_("run", "tests.cli_desk:twice", "Go on")
    (run,) = (row["runId"] for row in type_("runs", "--roots", "--json").data)
    first, second = (row["runId"] for row in type_("approvals", "--json").data)
    asked = [line.split()[2:4] for line in typed.out.splitlines() if line.startswith("  counterfoil approve")]
    assert asked == [[first, "pay"], [second, "pay"]]
    which = type_("approve", run)
    assert (which.code, f"pay (refund) of run {first}, pay (refund) of run {second}" in which.err) == (2, True)
    for beginning in ("pay", "p"):
        which = type_("approve", run, beginning)
        assert (which.code, first in which.err, second in which.err) == (6, True, True)
    # --with may name the agent of a run above: that run goes on.
    other = type_("approve", first, "pay", "--with", "tests.cli_desk:chief")
    assert (other.code, "is of agent 'miner', and --with names 'chief'" in other.err) == (2, True)
    assert type_("approve", first, "pay", "--with", "tests.cli_desk:twice").code == 3
    last = type_("approve", run, "--with", "tests.cli_desk:twice")
    assert (last.code, last.out.endswith("Both dug.\n")) == (0, True)
    shown = type_("show", first).out
    assert f"works for    run {run}" in shown
    assert shown.count("Dug.") == 1  # not again as what its agent remembers
    assert type_("replay", first, "tests.cli_desk:miner").code == 0


def test_the_last_run_and_the_roots_are_none_that_another_run_waits_for() -> None:
    run = run_of("chief", "--user", "ada")
    child, root = type_("runs", "--json").data
    assert (child["parentRunId"], child["agent"], root["parentRunId"], root["runId"]) == (run, "miner", None, run)
    assert type_("runs", "--roots", "--json").data == [root]
    _, first, second = type_("runs").out.splitlines()
    assert first.endswith(f"miner (for {second.split()[0]})")
    assert type_("show", "last", "--json").data["runId"] == run


def test_serve_says_what_to_install_and_that_a_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = type_("serve", "--dev", "--port", str(port))
        assert logging.getLogger("counterfoil.http").handlers == []
        assert (busy.code, f"cannot listen on 127.0.0.1 port {port}" in busy.err) == (1, True)
    monkeypatch.setattr(http, "NEEDED", ("a_package_that_is_nowhere",))
    bare = type_("serve", "--dev")
    assert (bare.code, "pip install 'counterfoil[http]'" in bare.err) == (2, True)
