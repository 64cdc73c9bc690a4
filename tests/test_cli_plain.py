"""Text of strangers on a terminal."""

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.doors.cli.plain import ascii_only, block, escaped, line
from tests.marks import case
from tests.promises import shared

HARMLESS = re.compile(
    "[\n\t\u200c\u200d\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f]"
)
"""Line ends, joiners, and signs of format that are seen: around Arabic and Egyptian numbers and names."""


def moves_or_hides(text: str) -> list[str]:
    """Controls, and marks of format: all that a terminal could obey, or a reader not see."""
    return [c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and not HARMLESS.match(c)]


@pytest.mark.parametrize(
    ("hostile", "seen"),
    [
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://elsewhere\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bPdevice\x1b\\after", "after"),
        ("\x1b[\x1b[31m2J", "2J"),
        ("gpj.exe\u202e", "gpj.exe"),
        ("over\rwritten", "over written"),
        ("bell\x07 and \x00nul", "bell and nul"),
        ("\u2066isolated\u2069", "isolated"),
        ("half \ud83d of a pair", "half \ufffd of a pair"),
    ],
)
def test_nothing_that_steers_a_terminal_is_left(hostile: str, seen: str) -> None:
    assert line(hostile) == seen


def test_a_sequence_without_an_end_hides_nothing() -> None:
    assert line("\x1b]0;" + "visible " * 500, 100000).endswith("visible")


@pytest.mark.parametrize(
    "text", ["你好，世界", "👩\u200d👩\u200d👧 and ☀\ufe0f", "naïve café", "שלום", "می\u200cخواهم"]
)
def test_the_writing_of_people_stays(text: str) -> None:
    assert line(text) == text
    assert block(text) == text


def test_a_block_keeps_its_lines_and_a_line_is_one() -> None:
    assert block("a\r\nb\tc\u2028d") == "a\nb\tc\nd"
    assert line("a\r\nb\tc\u2028d") == "a b c d"


@case("R158")
def test_a_line_is_cut_on_a_whole_character_with_an_ellipsis() -> None:
    assert line("x" * 50, 10) == "x" * 9 + "…"
    assert line("ab👩\u200d👩\u200d👧 and more", 6) == "ab…"


@given(st.text())
def test_whatever_comes_can_be_printed(text: str) -> None:
    for made in (line(text), block(text)):
        assert moves_or_hides(made) == []
        made.encode()
    assert "\n" not in line(text)


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_an_input_is_shown_whole_with_nothing_hidden(value: object) -> None:
    shown = escaped(json.dumps(value, ensure_ascii=False))
    assert json.loads(shown) == value
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b]", shown)
    assert ascii_only(shown).isascii()
    assert json.loads(ascii_only(shown)) == value


def test_every_naughty_string_becomes_harmless() -> None:
    folder = shared()
    if folder is None:
        pytest.skip("the list of naughty strings lies in the folder of COUNTERFOIL_SHARED")
    strings = json.loads((folder / "data" / "hostile" / "blns.json").read_text(encoding="utf-8"))
    for text in strings:
        assert moves_or_hides(line(text)) == []
        assert moves_or_hides(escaped(json.dumps(text, ensure_ascii=False))) == []


def test_time_grows_with_the_length_alone() -> None:
    text = "\x1b]" * 200_000 + "\x1b[" + "1" * 200_000
    assert block(text)
