"""Conditions in CEL: what they see, what fails when the policy loads, and that nothing ends the process."""

import contextlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.adapters.policy_cel import MAX_TEXT, compile_condition
from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import MAX_DEPTH
from counterfoil.core.policy import KNOWN_KEYS, Facts
from counterfoil.policy import Policy, Rule
from tests.marks import case, law


def facts(input=None, **changed):
    values = {
        "tool": {"name": "refund", "read_only": False, "idempotent": True, "destructive": False},
        "input": {} if input is None else input,
        "caller": {"tenant": "acme", "user": None, "roles": ["support"], "attributes": {"team": "eu"}},
        "run": {
            "id": "r1",
            "agent": "desk",
            "step": 2,
            "calls": 7,
            "hour": 12,
            "weekday": 0,
            "parent": None,
            "depth": 0,
        },
        "thread": {"id": None, "kind": "main"},
    }
    return Facts(**{name: value | changed[name] if name in changed else value for name, value in values.items()})


def holds(text, seen=None):
    return compile_condition(text)(facts() if seen is None else seen)


# ---------------------------------------------------------------------------------- what it sees


@pytest.mark.parametrize(
    "text",
    [
        "tool.name == 'refund' && !tool.read_only && tool.idempotent && !tool.destructive",
        "caller.tenant == 'acme' && caller.user == null && 'support' in caller.roles",
        "caller.attributes.team == 'eu' && caller.attributes['team'] == 'eu'",
        "has(caller.attributes.team) && !has(caller.attributes.desk)",
        "run.id == 'r1' && run.agent == 'desk' && run.step == 2 && run.calls == 7",
        "run.hour >= 6 && run.hour < 18 && run.weekday == 0",
        "thread.id == null && thread.kind == 'main'",
        "tool.name.startsWith('ref') && tool.name.matches('^r.*d$')",
        "caller.roles.exists(role, role == 'support')",
        "run . // a comment\n hour == 12",
    ],
)
def test_every_fact_is_there_by_its_name(text):
    assert holds(text) is True


def test_every_known_key_can_be_read():
    for group, keys in KNOWN_KEYS.items():
        for key in keys:
            assert holds(f"{group}.{key} == {group}.{key}") is True


@pytest.mark.parametrize(
    ("text", "input", "answer"),
    [
        ("input.cents <= 2000", {"cents": 2000}, True),
        ("input.cents <= 2000", {"cents": 2000.0}, True),
        ("input.cents <= 2000", {"cents": 2000.5}, False),
        ("input.cents <= 2000.0", {"cents": 2000}, True),
        ("input.cents == 2000", {"cents": 2000.0}, True),
        ("input.cents < 2000", {"cents": 2**63}, False),
        ("input.cents > 9223372036854775807", {"cents": 2**64 - 1}, True),
        ("input.cents < 0", {"cents": -(2**63)}, True),
        ("input.cents < 5", {"cents": float("nan")}, False),
        ("has(input.note)", {"note": None}, True),
        ("has(input.note)", {}, False),
        ("input.note == null", {"note": None}, True),
        ("input.lines.all(line, line.cents > 0)", {"lines": [{"cents": 1}, {"cents": 2}]}, True),
        ("size(input.note) == 2", {"note": "é€"}, True),
        ("input == 5", 5, True),
        ("input == null", None, False),
    ],
)
def test_the_input_is_free_and_numbers_compare_by_value(text, input, answer):
    assert holds(text, facts(input)) is answer


def test_names_inside_a_macro_hide_the_facts():
    assert holds("[{'nme': 1}].exists(tool, tool.nme == 1)") is True


def test_a_lone_surrogate_is_seen_as_a_replacement_character():
    seen = facts({"note": "a\ud800", "b\udfff": 1})
    assert holds("input.note == 'a\ufffd' && input['b\ufffd'] == 1", seen) is True


def test_two_keys_that_would_become_one_are_an_error_since_one_would_be_hidden():
    with pytest.raises(ValueError, match="lone surrogates"):
        holds("size(input) == 1", facts({chr(0xD800): 1, chr(0xD801): 2}))


# ------------------------------------------------------------------------- errors when it is asked


@law("3.5003")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("input.cnts < 5", ["cnts", "has("]),
        ("caller.attributes.desk == 'x'", ["desk", "has("]),
        ("input.a.b.c == 1", ["SELECT"]),
        ("input.cents < '5'", ["overload"]),
        ("input.cents", ["true or false"]),
        ("caller.user", ["true or false"]),
        ("1 / 0 == 1", ["zero"]),
        ("input.cents + 9223372036854775807 > 0", ["overflow"]),
        ("input.note.matches('(')", ["regular expression"]),
        ("input.many.all(x, input.many.all(y, true))", ["budget"]),
        ("timestamp(input.note) == timestamp(input.note)", ["conversion"]),
    ],
)
def test_what_cannot_be_evaluated_is_an_error_and_the_policy_refuses(text, words):
    seen = facts({"cents": 5, "a": 1, "note": "x", "many": [0] * 1000})
    verdict = Policy([Rule("r", "allow", when=text)]).judge(seen, read_only=True, needs_approval=False)
    assert (verdict.verdict, verdict.rule) == ("deny", "r")
    assert [word for word in words if word not in verdict.error] == []


def deep(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@law("3.5003")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [{"b": 2**64}]}, "input.a[0].b is an integer beyond 64 bits"),
        ({"a": -(2**63) - 1}, "input.a is an integer beyond 64 bits"),
        ({"a": 10**5000}, "input.a is an integer beyond 64 bits"),
        (deep(MAX_DEPTH + 1), "input is nested over 200 levels"),
        ({"a": {1, 2}}, "input.a is no JSON value but set"),
        ({1: 2}, "input has a key that is no text but int"),
        ({"a": ["ls\0; rm"]}, "input.a[0] holds a NUL"),
        ({"a": {"é\0": 1}}, "input.a holds a NUL"),
    ],
)
def test_an_input_that_cel_cannot_hold_is_an_error_that_says_where(value, words):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the words stand in the table
        holds("input.cents == 1", facts(value))
    assert words in str(refused.value)


def test_an_input_within_the_depth_is_seen_whole():
    assert holds("input" + ".a" * 20 + " != null", facts(deep(MAX_DEPTH))) is True


def test_a_condition_that_does_not_read_the_input_does_not_depend_on_it():
    assert holds("run.hour == 12", facts({"a": 10**5000})) is True


# --------------------------------------------------------------------- errors when the policy loads


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tool.nme == 'x'", ["tool.nme", "did you mean tool.name", "1:5"]),
        ("run.huor < 6", ["did you mean run.hour", "weekday"]),
        ("has(run.huor)", ["did you mean run.hour"]),
        ("true || caller.rolls == []", ["did you mean caller.roles"]),
        ("thread.idd == null", ["did you mean thread.id"]),
        ("tol.name == 'x'", ["did you mean 'tool'", "input, tool, caller, run, thread"]),
        ("inptu.cents > 1", ["did you mean 'input'"]),
        ("tool['name'] == 'x'", ["read by key only", "tool.name"]),
        ("size(caller) > 1", ["read by key only"]),
        ("has(caller.user)", ["caller.user is always there", "read it instead"]),
        ("has( // why\n tool.read_only )", ["always there"]),
        ("run.hour < '6'", ["overload", "int, string"]),
        ("tool.name.nme == 'x'", ["string"]),
        ("input.cents <", ["Syntax error"]),
        ("input.cents = 5", ["Syntax error"]),
        ("if x then y", ["Syntax error"]),
        ("", ["Syntax error"]),
        ("nothing(1)", ["nothing"]),
        ("1 + 1", ["gives int", "true or false"]),
        ("'allow'", ["gives string"]),
        ("true\x00", ["NUL"]),
        ("'\ud800' == input.x", ["lone surrogate"]),
        ("(" * 40 + "true" + ")" * 40, ["nested too deeply", "several rules"]),
        ("true" + " || true" * MAX_TEXT, [str(MAX_TEXT), "several rules"]),
    ],
)
def test_a_text_that_cannot_be_used_fails_when_the_policy_loads_and_says_why(text, words):
    with pytest.raises(DefinitionError) as refused:
        compile_condition(text)
    message = str(refused.value)
    assert [word for word in words if word not in message] == []
    assert len(message) < 2000


def test_a_string_may_speak_of_what_is_always_there():
    assert holds("input.note == 'has(tool.name)' // has(tool.name)", facts({"note": "has(tool.name)"})) is True


# ------------------------------------------------------------------------------- nothing hostile ends it


HOSTILE_TEXTS = [
    "(" * 100_000, "[" * 9_000, "{" * 9_000, "!" * 9_990 + "true", "-" * 9_000 + "1 == 1", "a" + ".a" * 4_000,
    "true ? true : " * 600 + "true", "1 + " * 2_000 + "1 == 1", " || ".join(["true"] * 1_000), "'" * 9_000,
    "\\" * 9_000, "f(" * 2_000, "[1].all(x, " * 800 + "true" + ")" * 800, "input" + "[0]" * 3_000 + " == 1",
    "'a'.matches('" + "(" * 4_000 + "a" + ")" * 4_000 + "')", "input.a.matches('((a{1,99}){1,99}){1,99}')",
    "[0,1,2,3,4,5,6,7,8,9].all(x, " * 9 + "true" + ")" * 9, "9" * 9_000 + " == 1", "1e99999 == 1.0",
    "'\\U00110000' == ''", "-9223372036854775808 / -1 == 1", "google.protobuf.Any{} == 1", "has(has(has(a)))",
    "has(", "has(tool.", "`" * 100, "\ud800", "\x00", "input[input]", "string(b'\\xff') == ''", "?" * 9_000,
]  # fmt: skip

TEXTS_PROGRAM = """
import json, sys
from tests.test_policy_cel import HOSTILE_TEXTS, facts
from counterfoil.adapters.policy_cel import compile_condition
for text in HOSTILE_TEXTS:
    try:
        assert compile_condition(text)(facts({"a": "a" * 1000})) in (True, False)
    except ValueError:  # DefinitionError is one
        pass
print("alive")
"""

VALUES_PROGRAM = """
from tests.test_policy_cel import deep, facts
from counterfoil.adapters.policy_cel import compile_condition
class Odd(int): pass
class Text(str): pass
loop = []; loop.append(loop)
wide = [[0] * 1000] * 1000
condition = compile_condition("input.a == 1")
for value in (deep(100_000), 10**5000, -10**5000, "\\ud800", {"\\ud800": 1}, loop, wide, b"x", float("inf"),
              object(), {None: 1}, {1.5: 1}, Odd(5), Text("x"), 1j, (1, (2,)), {"a": "x" * 10_000_000}):
    for seen in (facts(value), facts({"a": value}), facts({"a": 1, "b": [value]})):
        try:
            assert condition(seen) in (True, False)
        except ValueError:
            pass
print("alive")
"""

NULLS_PROGRAM = """
from tests.test_policy_cel import facts
from counterfoil.adapters.policy_cel import compile_condition
yes, no = compile_condition("caller.user == null"), compile_condition("caller.user")
seen = facts({"a": None, "b": [None]})
for _ in range(30_000):
    assert yes(seen)
    try:
        no(seen)
    except ValueError:
        pass
print("alive")
"""


@case("R086")
@pytest.mark.parametrize("program", [TEXTS_PROGRAM, VALUES_PROGRAM, NULLS_PROGRAM], ids=["texts", "values", "nulls"])
def test_no_text_and_no_value_ends_the_process(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "alive", "")


@given(st.text(st.characters(exclude_characters="\0")))
def test_a_text_is_seen_to_its_last_character(text):
    assert holds(f"size(input.note) == {len(text)}", facts({"note": text})) is True


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=20,
)
SAME = compile_condition("input == input")
IS_MAP = compile_condition("type(input) == map")


@given(json_values)
def test_any_json_value_is_seen_or_is_a_clean_error(value):
    try:
        answer = IS_MAP(facts(value)) if value is not None else False
    except ValueError as error:
        assert any(word in str(error) for word in ("64 bits", "lone surrogates", "NUL"))  # noqa: PT017
    else:
        assert answer is isinstance(value, dict)


@given(json_values.filter(lambda value: value is not None))
def test_looking_at_a_value_changes_nothing_in_it(value):
    before = json.dumps(value)
    with contextlib.suppress(ValueError):
        SAME(facts(value))
    assert json.dumps(value) == before
