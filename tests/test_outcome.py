import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.jsontext import dumps, loads
from counterfoil.core.outcome import (
    CODE_TABLE,
    RESERVED_CODES,
    Cancelled,
    Denied,
    ErrorCode,
    Failed,
    Rejected,
    Skipped,
    Succeeded,
    ToolFailure,
    outcome_from_json,
    outcome_to_json,
    retryable,
)
from tests.marks import case, law

TEXTS = st.text(alphabet=st.characters())
MAYBE = st.none() | TEXTS
JSON = st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, st.lists, max_leaves=5)
FAILURES = st.builds(
    ToolFailure,
    code=st.none() | st.integers(),
    message=TEXTS,
    retryable=st.none() | st.booleans(),
    origin=st.sampled_from(["tool", "gateway"]),
    body=st.sampled_from(["not_started", "ended", "unknown"]),
    data=JSON,
)
OUTCOMES = st.one_of(
    st.just(Succeeded()),
    st.builds(Failed, FAILURES),
    st.builds(Denied, st.sampled_from(["policy", "tool"]), MAYBE, MAYBE),
    st.builds(Rejected, MAYBE, MAYBE),
    st.builds(Skipped, TEXTS, TEXTS),
    st.builds(Cancelled, MAYBE),
)

WHOLE = ToolFailure(7, "no", retryable=True, origin="gateway", body="unknown", data=[1])
WHOLE_AS_JSON = {
    "code": 7,
    "message": "no",
    "retryable": True,
    "origin": "gateway",
    "body": "unknown",
    "data": [1],
}


@law("1.1.outcome", "1.1.Succeeded", "1.1.Failed", "1.1.Denied", "1.1.Rejected", "1.1.Skipped", "1.1.Cancelled")
@pytest.mark.parametrize(
    ("outcome", "written"),
    [
        (Succeeded(), {"type": "succeeded"}),
        (Failed(WHOLE), {"type": "failed", "failure": WHOLE_AS_JSON}),
        (Denied("policy", "r1", "why"), {"type": "denied", "by": "policy", "rule": "r1", "reason": "why"}),
        (Rejected("no", "ann"), {"type": "rejected", "reason": "no", "by": "ann"}),
        (Skipped("cut off", "framework"), {"type": "skipped", "reason": "cut off", "by": "framework"}),
        (Cancelled("bye"), {"type": "cancelled", "reason": "bye"}),
    ],
)
def test_each_way_a_call_can_end_has_one_json_form(outcome, written):
    assert outcome_to_json(outcome) == written
    assert outcome_from_json(written) == outcome


@law("1.1.json")
@case("R137")
@given(OUTCOMES)
def test_any_outcome_goes_through_json_and_comes_back_equal(outcome):
    assert outcome_from_json(loads(dumps(outcome_to_json(outcome)))) == outcome


@law("1.1.ToolFailure")
def test_a_failure_says_by_itself_only_that_the_tool_ran_and_failed():
    assert ToolFailure() == ToolFailure(None, "", None, "tool", "ended", None)


@law("1.1.ToolFailure")
def test_a_failure_keeps_its_own_copy_of_its_data():
    data = {"seen": [1]}
    failure = ToolFailure(data=data)
    data["seen"].append(2)
    assert failure.data == {"seen": [1]}


@law("1.1.outcome")
@pytest.mark.parametrize(
    "data", [{}, {"type": "won"}, {"type": "failed"}, {"type": "failed", "failure": None}, {"type": "denied"}]
)
def test_what_is_no_outcome_is_a_value_error(data):
    with pytest.raises(ValueError, match="outcome"):
        outcome_from_json(data)


@law("3.table")
def test_the_table_has_one_row_for_each_code_and_all_lie_in_our_range():
    assert set(CODE_TABLE) == set(ErrorCode)
    assert all(code in RESERVED_CODES for code in ErrorCode)
    assert (RESERVED_CODES.start, RESERVED_CODES.stop) == (4000, 6000)


@law("3.table")
@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("code", list(ErrorCode))
def test_only_a_timeout_of_a_safe_tool_may_be_tried_again_and_of_a_tool_s_own_error_nobody_knows(code, safe):
    expected = {ErrorCode.TIMEOUT: safe, ErrorCode.TOOL_ERROR: None}.get(code, False)
    assert retryable(code, safe=safe) is expected
