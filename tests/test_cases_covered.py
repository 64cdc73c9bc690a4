"""Every case of the field that is ours has a test, or a reason for having none."""

import ast
import re
from textwrap import dedent

import pytest

from tests.promises import CASES, LAWS, NOT_HERE, enforced, groups, marked, marks, missing, shared


@enforced
def test_every_case_has_a_test_or_a_reason() -> None:
    assert missing("case", CASES) == {}


@enforced
def test_a_reason_is_given_for_a_promise_without_a_test_only() -> None:
    proved = marked("case") | marked("law")
    assert {key: proved[key] for key in NOT_HERE if key in proved} == {}


def test_every_reason_is_a_sentence_about_a_promise() -> None:
    assert set(NOT_HERE) <= CASES.keys() | LAWS.keys()
    assert [key for key, reason in NOT_HERE.items() if len(reason.split()) < 3] == []


def test_marks_are_found_wherever_pytest_takes_them() -> None:
    file = """
        pytestmark = law("1")
        @law("2", "3")
        def test_one(): ...
        @pytest.mark.law("4")
        class TestTwo: ...
        @pytest.mark.parametrize("x", [pytest.param(1, marks=law("5"))])
        def test_three(x): ...
        @case("R001")
        def test_four(): ...
    """
    assert set(marks(ast.parse(dedent(file)), "law")) == set("12345")


def test_a_mark_names_a_case() -> None:
    assert {key: files for key, files in marked("case").items() if not re.fullmatch(r"R\d{3}", key)} == {}


def test_the_list_of_cases_agrees_with_the_design() -> None:
    folder = shared()
    if folder is None:
        pytest.skip("the design's papers are not beside this repository")
    listed: dict[str, set[str]] = {}
    group = ""
    for line in (folder / "cases" / "cases.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## ([A-Z])\. ", line):
            group = heading[1]
        elif row := re.match(r"\| (R\d{3}) \|", line):
            listed.setdefault(group, set()).add(row[1])
    ours = {group: set(promises) for group, promises in groups("cases.toml").items()}
    assert ours == {group: listed[group] for group in listed}
