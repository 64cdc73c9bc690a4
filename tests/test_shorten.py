import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.shorten import clip, head_and_tail
from tests.marks import case, law

MIXED = "a👩‍👩‍👧b漢字é̂c🇨🇭🇩🇪d👍🏽e❤️f\r\ng한글"
FAMILY = "👩‍👩‍👧"


def size(text: str) -> int:
    return len(text.encode())


@law("6.preview")
@case("R157", "R158")
@pytest.mark.parametrize("head_bytes", range(size(MIXED) + 2))
@pytest.mark.parametrize("tail_bytes", [0, 1, 7, 30])
def test_a_cut_at_any_byte_gives_whole_characters_within_the_limit(head_bytes, tail_bytes):
    head, left_out, tail = head_and_tail(MIXED, head_bytes, tail_bytes)
    assert "\ufffd" not in head + tail
    assert MIXED.startswith(head)
    assert MIXED.endswith(tail)
    assert size(head) + left_out + size(tail) == size(MIXED)
    if left_out:
        assert size(head) <= head_bytes
        assert size(tail) <= tail_bytes
    else:
        assert (head, tail) == (MIXED, "")


@law("6.preview")
@given(st.text(), st.integers(-2, 60), st.integers(-2, 60))
def test_head_what_is_left_out_and_tail_make_the_whole(text, head_bytes, tail_bytes):
    head, left_out, tail = head_and_tail(text, head_bytes, tail_bytes)
    assert size(head) + left_out + size(tail) == size(text)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert left_out == 0 or (size(head) <= max(head_bytes, 0) and size(tail) <= max(tail_bytes, 0))


@law("6.preview")
@pytest.mark.parametrize("text", ["", "abc", "漢字"])
def test_a_text_that_fits_is_all_head(text):
    assert head_and_tail(text, 3, 3) == (text, 0, "")


@law("6.preview")
@pytest.mark.parametrize(
    ("text", "bytes_", "head"),
    [
        ("abcdef", 3, "abc"),
        ("a漢字z", 3, "a"),
        ("a漢字z", 4, "a漢"),
        ("xe\u0301yz", 2, "x"),
        ("xe\u0301yz", 4, "xe\u0301"),
        (f"a{FAMILY}b", 12, "a"),
        (f"a{FAMILY}b", 19, f"a{FAMILY}"),
        ("a👍🏽b", 5, "a"),
        ("a🇨🇭🇩🇪b", 5, "a"),
        ("a🇨🇭🇩🇪b", 9, "a🇨🇭"),
        ("a🇨🇭🇩🇪b", 13, "a🇨🇭"),
        ("a❤️b", 4, "a"),
    ],
)
def test_a_head_ends_before_a_visible_character_that_does_not_fit(text, bytes_, head):
    assert head_and_tail(text, bytes_, 0)[0] == head


@law("6.preview")
@pytest.mark.parametrize(
    ("text", "bytes_", "tail"),
    [
        ("abcdef", 3, "def"),
        ("z漢字a", 3, "a"),
        ("xe\u0301y", 2, "y"),
        (f"b{FAMILY}a", 12, "a"),
        ("a🇨🇭🇩🇪b", 5, "b"),
        ("a👍🏽b", 5, "b"),
    ],
)
def test_a_tail_begins_after_a_visible_character_that_does_not_fit(text, bytes_, tail):
    assert head_and_tail(text, 0, bytes_)[2] == tail


@law("6.preview")
def test_an_endless_visible_character_is_cut_between_its_code_points():
    text = "e" + "\u0301" * 1000
    head, left_out, tail = head_and_tail(text, 101, 100)
    assert (size(head), left_out, size(tail)) == (101, 1800, 100)


@case("R139")
def test_lone_surrogates_become_ufffd_before_anything_is_counted():
    assert head_and_tail("\ud800abc", 3, 1) == ("\ufffd", 2, "c")


@case("R158")
@given(st.text(alphabet=MIXED + "\ud800"), st.integers(-1, 40))
def test_a_clipped_text_keeps_to_its_limit_and_can_be_written(text, limit):
    clipped = clip(text, limit)
    clipped.encode()
    assert len(clipped) <= max(limit, 0) or clipped == ""
    assert clipped.endswith("…") or limit <= 0 or len(text) <= limit


@case("R158")
@pytest.mark.parametrize(
    ("text", "limit", "clipped"),
    [
        ("hello", 5, "hello"),
        ("hello", 4, "hel…"),
        ("hello", 1, "…"),
        ("hello", 0, ""),
        ("two words", 5, "two…"),
        (f"ab{FAMILY}", 4, "ab…"),
        ("\ud800", 1, "\ufffd"),
    ],
)
def test_the_ellipsis_of_a_clipped_text_is_inside_its_limit(text, limit, clipped):
    assert clip(text, limit) == clipped
