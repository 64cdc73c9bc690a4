"""Policies from TOML files: what they may hold, and that every complaint says where and what to do."""

import pytest

from counterfoil.adapters.policy_toml import MAX_BYTES, load_rules
from counterfoil.core.errors import DefinitionError
from counterfoil.core.policy import Facts, Rule, RuleSet
from counterfoil.policy import Policy
from tests.marks import law

README = """
default = "ask"

[[rule]]
name = "small-refunds"
tool = "refund"
when = "input.cents <= 2000 && 'support' in caller.roles"
then = "allow"

[[rule]]
name = "no-deletes-at-night"
tool = "delete_*"
when = "run.hour < 6"
then = "deny"
reason = "Deletes wait for the morning."
"""


@pytest.fixture
def policy_file(tmp_path):
    def write(text):
        path = tmp_path / "policy.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def facts(tool, hour, input):
    return Facts(
        tool={"name": tool, "read_only": False, "idempotent": False, "destructive": False},
        input=input,
        caller={"tenant": "acme", "user": "ada", "roles": ["support"], "attributes": {}},
        run={"id": "r", "agent": "a", "step": 0, "calls": 0, "hour": hour, "weekday": 0},
        thread={"id": None, "kind": "main"},
    )


@pytest.mark.parametrize(
    ("call", "verdict", "rule"),
    [
        (("refund", 12, {"cents": 2000}), "allow", "small-refunds"),
        (("refund", 12, {"cents": 2001}), "ask", None),
        (("delete_order", 5, {}), "deny", "no-deletes-at-night"),
        (("delete_order", 6, {}), "ask", None),
        (("Delete_order", 5, {}), "ask", None),
    ],
)
def test_the_policy_of_the_documentation_decides_as_it_reads(policy_file, call, verdict, rule):
    policy = Policy.from_toml(policy_file(README))
    got = policy.judge(facts(*call), read_only=False, needs_approval=True)
    assert (got.verdict, got.rule, got.error) == (verdict, rule, None)
    assert got.reason == ("Deletes wait for the morning." if verdict == "deny" else None)


@law("3.5003")
def test_a_rule_that_cannot_be_evaluated_refuses(policy_file):
    policy = Policy.from_toml(policy_file(README))
    verdict = policy.judge(facts("refund", 12, {}), read_only=False, needs_approval=False)
    assert (verdict.verdict, verdict.rule) == ("deny", "small-refunds")
    assert "cents" in verdict.error


def test_a_file_and_the_same_rules_in_python_have_one_revision(policy_file):
    path = policy_file(README)
    assert Policy.from_toml(path).revision == Policy.from_toml(str(path)).revision
    assert Policy.from_toml(path).revision == Policy(load_rules(path).rules).revision


def test_every_key_of_a_file_arrives(policy_file):
    path = policy_file(
        """
        default = "deny"
        repeat_block = true
        rule = [{name = "a", tool = "t", when = "true", then = "ask", reason = "r", expires_in = 90}]
        """
    )
    assert load_rules(path) == RuleSet((Rule("a", "ask", "t", "true", "r", 90),), "deny", repeat_block=True)
    assert Policy.from_toml(path).repeat_block is True


def test_an_empty_file_is_a_policy_that_asks(policy_file):
    assert load_rules(policy_file("")) == RuleSet()


def test_line_ends_and_byte_order_marks_of_other_systems_do_no_harm(policy_file):
    path = policy_file(b"\xef\xbb\xbf" + README.replace("\n", "\r\n").encode())
    assert Policy.from_toml(path).revision == Policy.from_toml(policy_file(README)).revision


RULE = '[[rule]]\nname = "night"\nthen = "deny"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("default = ", ["no TOML", "quotes"]),
        ("\n\ndefault = ask", ["no TOML", "line 3"]),
        ('default = "maybe"', ["default", "'maybe'", "'allow', 'ask' or 'deny'"]),
        ("default = 1", ["default", "1"]),
        ('repeat_block = "yes"', ["repeat_block", "'yes'"]),
        ('defualt = "ask"', ["'defualt'", "did you mean 'default'"]),
        (RULE.replace("rule", "rules"), ["'rules'", "did you mean 'rule'"]),
        (RULE.replace("[[", "[").replace("]]", "]"), ["[[rule]]", "double the brackets"]),
        ("rule = 5", ["list of tables", "5"]),
        ("rule = [5]", ["rule 1", "table", "5"]),
        ('[[rule]]\nthen = "deny"', ["rule 1", "has no name", "name = "]),
        ('[[rule]]\nname = ""\nthen = "deny"', ["rule 1", "name", "not empty"]),
        ('[[rule]]\nname = 5\nthen = "deny"', ["rule 1", "name", "5"]),
        ('[[rule]]\nname = "night"', ["rule 1", "'night'", "has no verdict", "then = "]),
        (RULE + 'wehn = "true"', ["rule 1", "'night'", "'wehn'", "did you mean 'when'"]),
        (RULE + 'colour = "red"', ["'night'", "'colour'", "known are name, tool, when", "remove it"]),
        (RULE + "when = true", ["'night'", "when", "True"]),
        (RULE + 'when = ""', ["'night'", "when"]),
        (RULE + 'tool = ["a", "b"]', ["'night'", "tool", "glob"]),
        (RULE + "reason = 5", ["'night'", "reason", "5"]),
        (RULE + "expires_in = 60", ["'night'", "expires_in", "'deny'"]),
        (RULE + "expires_in = 07:30:00", ["'night'", "expires_in", "seconds"]),
        (RULE.replace("deny", "refuse"), ["'night'", "then", "'refuse'"]),
        (RULE + RULE, ["two rules", "'night'", "rename"]),
        (RULE + 'when = "run.huor < 6"', ["'night'", "run.huor < 6", "did you mean run.hour"]),
        (RULE + 'when = "run.hour <"', ["'night'", "run.hour <", "Syntax error"]),
        (b'default = "\xff"', ["UTF-8", "0xff", "11"]),
        ("a = " + "[" * 100_000, ["nested too deeply"]),
        ("#" * (MAX_BYTES + 1), ["split it"]),
    ],
)
def test_every_complaint_names_file_and_rule_and_says_what_to_do(policy_file, text, words):
    path = policy_file(text)
    with pytest.raises(DefinitionError) as refused:
        Policy.from_toml(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert message.count(str(path)) == 1
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_file_that_cannot_be_read_says_so(tmp_path, name):
    with pytest.raises(DefinitionError, match="cannot be read"):
        Policy.from_toml(tmp_path / name)
