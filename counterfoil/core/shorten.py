"""Cutting a text on character boundaries: for what is kept apart, and for logs, titles and narrations."""

from __future__ import annotations

import re
import unicodedata

from counterfoil.core.jsontext import clean_text

ELLIPSIS = "…"
_NEAR = 16
"""Code points that a cut may move to keep a visible character whole; a longer one is cut between them."""
_JOINER = "\u200d"
_EXTENDS = re.compile("[\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
"""Skin tones and tags, which change the emoji before them."""
_MARKS = ("Mn", "Me", "Mc")
"""Accents, variation selectors and other signs that have no place of their own."""


def head_and_tail(text: str, head_bytes: int, tail_bytes: int) -> tuple[str, int, str]:
    """The beginning and the end of ``text``, and what lies between.

    A cut never splits a code point and, where it need not go far, no visible character made of several. Lone
    surrogates become U+FFFD before anything is counted.

    Args:
        text: the whole text.
        head_bytes: bytes of UTF-8 that the head may have; a negative number counts as 0.
        tail_bytes: the same for the tail.

    Returns:
        Head, the number of bytes of UTF-8 left out, tail. A text that needs no cut is all head.
    """
    head_bytes, tail_bytes = max(head_bytes, 0), max(tail_bytes, 0)
    if text.isascii():
        left_out = len(text) - head_bytes - tail_bytes
        if left_out <= 0:
            return text, 0, ""
        return text[:head_bytes], left_out, text[head_bytes + left_out :]
    try:
        data = text.encode()
    except UnicodeEncodeError:
        text = clean_text(text)
        data = text.encode()
    if len(data) <= head_bytes + tail_bytes:
        return text, 0, ""
    # Half a code point at a cut is all that "ignore" can meet here: the rest came out of the encoder.
    head = data[:head_bytes].decode(errors="ignore")
    tail = data[len(data) - tail_bytes :].decode(errors="ignore")
    head = head[: _whole_until(text, len(head))]
    tail = text[_whole_from(text, len(text) - len(tail)) :]
    return head, len(data) - len(head.encode()) - len(tail.encode()), tail


def clip(text: str, max_chars: int) -> str:
    """``text`` in at most ``max_chars`` characters; the last is an ellipsis where something is missing.

    Lone surrogates become U+FFFD, so that whoever writes the text to a file or a terminal can encode it.
    """
    if len(text) <= max_chars:
        return clean_text(text)
    if max_chars <= 0:
        return ""
    return clean_text(text[: _whole_until(text, max_chars - 1)].rstrip()) + ELLIPSIS


def _whole_until(text: str, cut: int) -> int:
    """The nearest place at or before ``cut`` where no visible character is split; ``cut`` if none is near."""
    for place in range(cut, max(cut - _NEAR, 0), -1):
        if not _splits(text, place):
            return place
    return cut


def _whole_from(text: str, cut: int) -> int:
    """The nearest place at or after ``cut`` where no visible character is split; ``cut`` if none is near."""
    for place in range(cut, min(cut + _NEAR, len(text))):
        if not _splits(text, place):
            return place
    return cut


def _splits(text: str, place: int) -> bool:
    """Whether a cut before ``text[place]`` goes through one visible character."""
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1], text[place]
    if after.isascii():
        return False
    if _JOINER in (before, after) or _EXTENDS.match(after) or unicodedata.category(after) in _MARKS:
        return True
    if _is_flag_half(before) and _is_flag_half(after):
        start = place
        while start > max(place - 2 * _NEAR, 0) and _is_flag_half(text[start - 1]):
            start -= 1
        return (place - start) % 2 == 1
    return False


def _is_flag_half(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"
