"""The command line: `import` and `export`, as a person types them."""

import json
from pathlib import Path
from typing import Any

import pytest

from counterfoil.transcripts import FORMATS
from tests.test_cli import run_of, type_
from tests.transcripts import ANTHROPIC, CHAT, FORMS, OWN

STRAY = {"role": "tool", "tool_call_id": "zz", "content": "stray"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COUNTERFOIL_STORE", raising=False)
    return tmp_path


def file(value: Any, name: str = "talk.json") -> str:
    Path(name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return name


def lines(*values: Any) -> str:
    return "\n".join(map(json.dumps, values)) + "\n"


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_is_imported_and_comes_out_again(form: str) -> None:
    typed = type_("import", file(FORMS[form]), "--json")
    assert typed.code == 0
    (made,) = typed.data
    assert (made["format"], made["turns"], made["calls"], made["repairs"]) == (form, 2, 2, [])
    out = type_("export", made["runId"], "--format", form)
    assert out.code == 0
    again = type_("import", file(out.out, "again.json"), "--json").data[0]
    assert type_("export", again["runId"], "--format", form).out == out.out
    assert type_("verify").code == 0
    shown = type_("show", "last")
    assert "imported was imported" in shown.out
    assert shown.out.endswith("\nRome is sunny.\n")


def test_messages_or_conversations_may_stand_in_lines() -> None:
    typed = type_("import", file(lines(*CHAT), "one.jsonl"), "--json")
    assert [made["format"] for made in typed.data] == ["openai"]
    many = lines({"id": "a/1", "messages": CHAT}, ANTHROPIC, OWN)
    typed = type_("import", file(many, "many.jsonl"), "--agent", "desk", "--user", "ada")
    assert typed.code == 0
    assert "a/1" in typed.out
    rows = type_("runs", "--json").data
    assert [row["agent"] for row in rows] == ["desk", "desk", "desk", "imported"]


def test_a_mark_of_the_byte_order_before_the_text_is_no_part_of_it() -> None:
    for name, value in (
        ("talk.json", json.dumps(CHAT)),
        ("talks.jsonl", lines({"messages": CHAT}, {"messages": CHAT})),
    ):
        assert type_("import", file("\ufeff" + value, name)).code == 0


def test_repairs_are_told_and_stay_on_record() -> None:
    typed = type_("import", file([*CHAT[:4], STRAY, CHAT[5]]))
    assert typed.code == 0
    assert "messages[4]: a result of call zz, which nobody made; it is left out" in typed.out
    assert "messages[2]: the call of weather (c1) has no result" in typed.out
    assert "repaired messages[4]" in type_("show", "last").out
    kinds = [r["kind"] for r in type_("import", "talk.json", "--json").data[0]["repairs"]]
    assert kinds == ["orphan-result", "unanswered"]


def test_of_many_repairs_the_first_are_told() -> None:
    typed = type_("import", file([*CHAT, *[STRAY] * 30]))
    assert typed.out.count("which nobody made") == 20
    assert "and 10 repairs more; `counterfoil show RUN` tells them" in typed.out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"role": "user"}, {"role": "bot"}], "talk.json: messages[1].role: expected system, developer, user"),
        (lines({"messages": CHAT}, {"messages": [7]}), "talk.json, line 2: messages[0]: expected an object, got int"),
        (lines({"messages": CHAT}, CHAT[1]), "talk.json, line 2: expected a conversation as in the others"),
        ("[", "talk.json is no JSON"),
        ("", "talk.json holds nothing to import"),
        ("[" * 300 + "]" * 300, "talk.json"),
    ],
)
def test_a_file_in_which_one_cannot_be_read_changes_nothing(content: Any, said: str) -> None:
    typed = type_("import", file(content))
    assert typed.code == 2
    assert said in typed.err
    assert typed.out == ""
    assert not Path("shop.db").exists()


def test_what_is_not_there_is_said() -> None:
    assert type_("import", "none.json").code == 2
    assert type_("export", "last").code == 5
    type_("import", file(CHAT))
    typed = type_("export", "last", "--format", "pdf")
    assert typed.code == 2
    assert "there is no transcript format 'pdf'; there are openai, " in typed.err
    assert type_("import", "talk.json", "--format", "ui").code == 2


def test_a_run_of_our_own_is_exported_alone_or_with_its_conversation() -> None:
    run_of("hello")
    talk = type_("show", "last", "--json").data["interactionId"]
    run_of("echo", "--interaction", talk)
    assert [m["content"] for m in json.loads(type_("export", "last").out)] == ["Go on", "You said Go on"]
    assert len(json.loads(type_("export", "last", "--conversation").out)) == 4


def test_a_policy_is_tried_on_what_was_imported() -> None:
    type_("import", file(CHAT))
    rule = '[[rule]]\nname = "no-oslo"\ntool = "weather"\nwhen = "input.city == \'Oslo\'"\nthen = "deny"\n'
    Path("policy.toml").write_text(f'default = "allow"\n{rule}', encoding="utf-8")
    typed = type_("policy", "test", "policy.toml", "last", "--json")
    assert typed.code == 1
    assert (typed.data["calls"], typed.data["differing"], typed.data["leftOut"]) == (2, 1, 0)
    broken = [CHAT[1], {**CHAT[2], "tool_calls": [{"id": "x", "function": {"name": "weather", "arguments": "{"}}]}]
    type_("import", file(broken))
    assert type_("policy", "test", "policy.toml", "last", "--json").data["leftOut"] == 1


def test_of_a_run_that_waits_the_open_turn_is_left_out_and_said() -> None:
    run_of("desk")
    typed = type_("export", "last")
    assert [m["role"] for m in json.loads(typed.out)] == ["user", "assistant", "tool"]
    assert "the run is paused: a turn whose calls have no result yet is left out" in typed.err
    shown = json.loads(type_("export", "last", "--format", "ui").out)
    assert shown[-1]["parts"][-1]["state"] == "approval-requested"
