import copy
import dataclasses
import json
import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.content import Image, Json, Link, Text
from counterfoil.core.errors import ToolError
from counterfoil.core.extensions import Extensions
from counterfoil.core.outcome import (
    Cancelled,
    Denied,
    ErrorCode,
    Failed,
    Rejected,
    Skipped,
    Succeeded,
    ToolFailure,
)
from counterfoil.core.result import NO_OUTPUT, ToolResult, seal
from tests.marks import case, law
from tests.test_content import ANY_TEXT, BLOCKS, VALUES
from tests.test_outcome import OUTCOMES

NOT_AN_AUTHOR_S = [Denied("policy", "r", "why"), Rejected("no"), Skipped("cut off"), Cancelled("bye")]
EVERY = [Succeeded(), Failed(ToolFailure()), Denied("tool"), *NOT_AN_AUTHOR_S]
CONTENT = (Text("a"),)


@law("1.1.constructors")
def test_each_constructor_makes_what_its_name_says():
    assert ToolResult.text("a") == ToolResult((Text("a"),), Succeeded())
    assert ToolResult.json({"a": 1}) == ToolResult((Json({"a": 1}),))
    assert ToolResult.blocks(Text("a"), Image(b"b")).content == (Text("a"), Image(b"b"))
    assert ToolResult.terminal("a") == ToolResult((Text("a"),), terminate=True)
    assert ToolResult.error("a").outcome == Failed(ToolFailure(message="a"))
    assert ToolResult.error("a", ToolFailure(7, "b")).outcome == Failed(ToolFailure(7, "b"))
    assert ToolResult.denied("a").outcome == Denied("tool", None, "a")
    assert ToolResult.denied("a").model_output == ToolResult.error("a").model_output == "a"


@law("1.1.constructors", "1.1.content")
def test_a_result_without_a_block_is_a_value_error():
    with pytest.raises(ValueError, match="at least one block"):
        ToolResult.blocks()
    with pytest.raises(ValueError, match="at least one block"):
        ToolResult(())


@law("1.1.content")
@pytest.mark.parametrize("content", [("a",), (Text("a"), {"b": 1}), ({"type": "text", "text": "a"},)])
def test_what_is_no_block_is_a_type_error(content):
    with pytest.raises(TypeError, match="content block"):
        ToolResult(content)


@law("1.1.no-forging")
@pytest.mark.parametrize("outcome", NOT_AN_AUTHOR_S)
def test_no_public_constructor_makes_what_only_the_gateway_decides(outcome):
    with pytest.raises(ValueError, match="only the gateway can"):
        ToolResult(CONTENT, outcome)
    with pytest.raises(ValueError, match="only the gateway can"):
        dataclasses.replace(ToolResult.text("a"), outcome=outcome)


@law("3.reserved-codes", "1.1.ToolError")
@pytest.mark.parametrize("code", [4000, 4080, 5000, 5999, ErrorCode.TIMEOUT, True, "7"])
def test_an_author_s_code_is_a_number_and_none_of_ours(code):
    with pytest.raises(ValueError, match="outside"):
        ToolError("a", code=code)
    with pytest.raises(ValueError, match="outside"):
        ToolResult.error("a", ToolFailure(code=code))


@law("1.1.ToolError")
@case("R170")
def test_a_tool_error_carries_all_of_a_failure_and_survives_a_pickle():
    error = ToolError("a", code=7, retryable=True, data={"d": (1,)}, details={"e": 2}, narration="n")
    for same in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert str(same) == same.message == "a"
        assert (same.code, same.retryable, same.narration) == (7, True, "n")
        assert (same.data, same.details) == ({"d": [1]}, {"e": 2})


@law("1.1.is_error", "1.1.executed", "1.1.outcome", "source.004.is_error")
@pytest.mark.parametrize(
    ("outcome", "is_error", "executed"),
    [
        (Succeeded(), False, True),
        (Failed(ToolFailure()), True, False),
        (Denied("tool"), True, False),
        (Denied("policy"), True, False),
        (Rejected(), True, False),
        (Skipped(), False, False),
        (Cancelled(), True, False),
    ],
)
def test_is_error_and_executed_follow_from_the_outcome_alone(outcome, is_error, executed):
    result = seal((Text("Error: failed, denied, rejected"),), outcome)
    assert (result.is_error, result.executed) == (is_error, executed)


@law("1.1.model_output", "source.003.model_output", "source.004.content")
def test_model_output_is_the_text_of_the_content():
    blocks = (Text("a"), Json([1]), Image(b"xyz"), Link("u:x", "X"))
    assert ToolResult(blocks).model_output == "a\n[1]\n[image, image/png, 3 bytes]\nX <u:x>"


@law("1.1.model_output", "4.never-empty")
@case("R151")
@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_model_output_is_never_empty_and_the_content_is_kept(text):
    assert ToolResult.text(text).model_output == NO_OUTPUT == "(no output)"
    assert ToolResult.text(text).content == (Text(text),)


@law("1.1.with")
def test_the_with_methods_change_a_copy():
    result = ToolResult.text("a")
    changed = result.with_terminate().with_narration("n").with_details({"d": 1}).with_extensions("e")
    assert (changed.terminate, changed.narration, changed.details) == (True, "n", {"d": 1})
    assert list(changed.extensions) == ["e"]
    assert (changed.content, changed.outcome) == (result.content, result.outcome)
    assert result == ToolResult((Text("a"),))
    assert len(result.extensions) == 0
    assert changed.with_terminate(False).terminate is False
    assert changed.with_details(None).details is None


@law("1.1.with")
@pytest.mark.parametrize("outcome", EVERY)
def test_a_change_keeps_any_outcome(outcome):
    assert seal(CONTENT, outcome).with_narration("n").outcome == outcome


@law("1.1.with", "1.1.narration", "source.004.with_narration")
@pytest.mark.parametrize(("said", "kept"), [(" read 3 files\n", "read 3 files"), (" \n", None), ("", None)])
def test_a_narration_is_trimmed_and_white_space_alone_is_dropped(said, kept):
    assert ToolResult.text("a").with_narration("before").with_narration(said).narration == kept
    assert ToolResult(CONTENT, narration=said).narration == kept


@law("1.1.details")
def test_details_are_json_of_their_own():
    details = {"d": (1, float("inf"))}
    for result in (ToolResult.text("a").with_details(details), ToolResult(CONTENT, details=details)):
        assert result.details == {"d": [1, None]}


@case("R115")
@pytest.mark.parametrize("make", [lambda x: ToolResult.text("a").with_details(x), lambda x: ToolError("a", data=x)])
def test_what_cannot_be_stored_fails_at_once_and_names_the_type(make):
    with pytest.raises(ValueError, match="lock"):
        make({"lock": threading.Lock()})


@law("1.1.extensions", "source.003.with_extensions", "source.003.with_extension")
def test_extensions_hold_one_value_of_each_type():
    result = ToolResult.text("a").with_extensions(1, "x").with_extension(2)
    assert result.extensions.get(int) == result.extensions[int] == 2
    assert result.extensions[str] == "x"
    assert result.extensions.get(bool) is None
    assert bool not in result.extensions
    assert list(result.with_extensions(3).extensions) == [3]


@law("1.1.immutable")
def test_a_copy_shares_nothing_that_could_be_changed_in_place():
    result = ToolResult.text("a").with_details({"a": [1]})
    for copied in (copy.copy(result), copy.deepcopy(result)):
        assert copied == result
        copied.details["a"].append(2)
        assert result.details == {"a": [1]}


@law("1.1.extensions", "1.1.immutable", "source.003.clone", "source.004.clone")
def test_extensions_are_no_part_of_equality_and_are_not_stored_sent_or_copied_apart():
    lock = threading.Lock()
    result = ToolResult.text("a").with_extension(lock)
    assert result == ToolResult.text("a")
    assert hash(result) == hash(ToolResult.text("a"))
    assert "extensions" not in result.to_dict()
    assert len(ToolResult.from_json(result.to_json()).extensions) == 0
    assert len(pickle.loads(pickle.dumps(result)).extensions) == 0  # noqa: S301
    for copied in (copy.copy(result), copy.deepcopy(result)):
        assert copied == result
        assert copied.extensions[type(lock)] is lock


@law("1.1.terminate", "source.004.terminal")
def test_the_vote_is_part_of_the_result():
    assert ToolResult.text("a").terminate is False
    assert ToolResult.text("a") != ToolResult.terminal("a")
    assert ToolResult.from_json(ToolResult.terminal("a").to_json()).terminate is True


@law("1.1.immutable")
@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(ToolResult)])
def test_a_field_cannot_be_set(name):
    with pytest.raises(AttributeError):
        setattr(ToolResult.text("a"), name, None)


RESULTS = st.builds(
    seal,
    st.lists(BLOCKS, min_size=1).map(tuple),
    OUTCOMES,
    st.none(),
    st.just(Extensions()),
    st.booleans(),
).flatmap(
    lambda result: st.builds(
        lambda details, narration: result.with_details(details).with_narration(narration), VALUES, ANY_TEXT
    )
)


@law("1.1.json", "1.1.immutable", "source.004.serialize")
@case("R136", "R137")
@given(RESULTS)
def test_any_result_goes_through_json_and_comes_back_equal(result):
    again = ToolResult.from_json(result.to_json())
    assert again == result == copy.deepcopy(result) == pickle.loads(pickle.dumps(result))  # noqa: S301
    assert again.to_json() == result.to_json()
    assert again.model_output == result.model_output


@law("1.1.json")
def test_a_result_as_json_has_five_fields():
    result = ToolResult.error("a\0b", ToolFailure(7)).with_details({"k": "v\0"}).with_narration("n")
    assert json.loads(result.to_json()) == {
        "content": [{"type": "text", "text": "a\0b"}],
        "outcome": {
            "type": "failed",
            "failure": {
                "code": 7,
                "message": "",
                "retryable": None,
                "origin": "tool",
                "body": "ended",
                "data": None,
            },
        },
        "details": {"k": "v\0"},
        "terminate": False,
        "narration": "n",
    }


@law("1.1.repr")
@pytest.mark.parametrize("outcome", EVERY)
def test_the_repr_prints_no_content(outcome):
    result = seal((Text("canary"), Json("canary")), outcome, {"d": "canary"}, Extensions("canary"), True, "canary")
    assert "canary" not in repr(result)
    assert "canary" not in str(result)
    assert type(outcome).__name__ in repr(result)
