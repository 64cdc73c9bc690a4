import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.content import (
    Audio,
    File,
    Image,
    Json,
    Kept,
    Link,
    Text,
    block_from_json,
    block_text,
    block_to_json,
)
from counterfoil.core.jsontext import clean_text, dumps, loads, normal, utf8_size
from tests.marks import case, law

ANY_TEXT = st.text(alphabet=st.characters())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=20,
)
BLOCKS = st.one_of(
    st.builds(Text, ANY_TEXT),
    st.builds(Json, VALUES),
    st.builds(Image, st.binary(), ANY_TEXT),
    st.builds(Audio, st.binary(), ANY_TEXT),
    st.builds(File, st.binary(), ANY_TEXT, st.none() | ANY_TEXT),
    st.builds(Link, ANY_TEXT, st.none() | ANY_TEXT),
    st.builds(Kept, ANY_TEXT, st.integers(0), ANY_TEXT, st.booleans()),
)


@law("1.1.content")
@pytest.mark.parametrize(
    ("block", "written", "read"),
    [
        (Text("a"), {"type": "text", "text": "a"}, "a"),
        (Json({"a": [1]}), {"type": "json", "value": {"a": [1]}}, '{"a":[1]}'),
        (
            Image(b"\xff"),
            {"type": "image", "data": "/w==", "mime": "image/png"},
            "[image, image/png, 1 bytes]",
        ),
        (
            Audio(b"\xff"),
            {"type": "audio", "data": "/w==", "mime": "audio/wav"},
            "[audio, audio/wav, 1 bytes]",
        ),
        (
            File(b"\xff", "text/csv", "a.csv"),
            {"type": "file", "data": "/w==", "mime": "text/csv", "name": "a.csv"},
            "[file a.csv, text/csv, 1 bytes]",
        ),
        (
            File(b""),
            {"type": "file", "data": "", "mime": "application/octet-stream", "name": None},
            "[file, application/octet-stream, 0 bytes]",
        ),
        (Link("u:x", "X"), {"type": "link", "uri": "u:x", "title": "X"}, "X <u:x>"),
        (Link("u:x"), {"type": "link", "uri": "u:x", "title": None}, "u:x"),
        (Kept("i", 9, "p"), {"type": "kept", "id": "i", "size": 9, "preview": "p", "json": False}, "p"),
    ],
)
def test_each_block_has_one_json_form_and_one_text_for_the_model(block, written, read):
    assert block_to_json(block) == written
    assert block_from_json(written) == block
    assert block_text(block) == read


@law("1.1.content", "1.1.json")
@case("R137", "R160")
@given(BLOCKS)
def test_any_block_goes_through_json_and_comes_back_equal(block):
    assert block_from_json(loads(dumps(block_to_json(block)))) == block


@law("1.1.immutable")
@given(BLOCKS)
def test_a_block_can_be_copied_pickled_and_hashed(block):
    for copied in (copy.copy(block), copy.deepcopy(block), pickle.loads(pickle.dumps(block))):  # noqa: S301
        assert copied == block
        assert hash(copied) == hash(block)


@law("1.1.immutable")
@pytest.mark.parametrize(
    ("block", "name"),
    [
        (Text("a"), "text"),
        (Json([1]), "text"),
        (Image(b"a"), "data"),
        (Link("u"), "uri"),
        (Kept("i", 1, "p"), "id"),
    ],
)
def test_a_block_cannot_be_changed(block, name):
    with pytest.raises(AttributeError):
        setattr(block, name, "b")


@law("1.1.immutable")
def test_a_json_block_holds_nothing_that_anybody_else_could_change():
    value = {"a": [1]}
    block = Json(value)
    value["a"].append(2)
    block.value["a"].append(3)
    assert block.value == {"a": [1]}


@law("1.1.content")
@pytest.mark.parametrize("block", [Text, Image, Audio, File])
@pytest.mark.parametrize("wrong", [None, 1, {"a": 1}])
def test_a_block_refuses_data_of_the_wrong_kind_where_it_is_made(block, wrong):
    with pytest.raises(TypeError, match=block.__name__):
        block(wrong)


@law("1.1.content")
def test_media_take_bytes_of_any_kind_and_keep_their_own_copy():
    data = bytearray(b"ab")
    image = Image(data)
    data[0] = 0
    assert image.data == b"ab"


@law("1.1.content")
@pytest.mark.parametrize(
    "data", [{}, {"type": "video"}, {"type": "text"}, {"type": "image", "data": 1}, {"type": "link"}]
)
def test_what_is_no_block_is_a_value_error(data):
    with pytest.raises(ValueError, match="content block"):
        block_from_json(data)


@law("1.1.immutable")
def test_json_blocks_are_equal_by_their_text_and_equal_to_nothing_else():
    assert Json({"a": 1}) == Json({"a": 1})
    assert Json([1]) != Json([2])
    assert Json("a") != Text('"a"')


@law("1.1.repr")
def test_the_repr_of_a_json_block_prints_no_content():
    assert "canary" not in repr(Json(["canary"]))


# --------------------------------------------------------------------------------------------- JSON as text


@law("8.same-bytes")
@given(VALUES)
def test_json_that_was_read_is_written_as_it_was(value):
    written = dumps(value)
    assert dumps(loads(written)) == written
    json.loads(written, parse_constant=pytest.fail)


@law("8.surrogate")
@case("R133", "R140")
@given(ANY_TEXT)
def test_a_cleaned_text_can_be_encoded_and_is_the_same_where_nothing_was_wrong(text):
    cleaned = clean_text(text)
    assert len(cleaned.encode()) == utf8_size(cleaned)
    assert cleaned == text or any("\ud800" <= char <= "\udfff" for char in text)
    assert clean_text(cleaned) is cleaned


@case("R133")
def test_two_halves_of_a_pair_are_one_character_and_a_half_alone_is_ufffd():
    assert clean_text("\ud83d\ude00 \ude00\ud83d") == "😀 \ufffd\ufffd"


@law("1.1.details")
def test_a_normal_value_is_plain_json_that_nobody_else_holds():
    inner = [1]
    value = normal({"a": (inner, float("nan"))})
    inner.append(2)
    assert value == {"a": [[1], None]}


@law("8.cycle")
def test_a_cycle_is_a_value_error():
    value: list[object] = []
    value.append(value)
    with pytest.raises(ValueError, match=r"200 levels|ircular"):
        dumps(value)
