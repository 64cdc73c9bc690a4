"""Text of strangers made fit for a terminal: it can neither steer it nor be read in a false order."""

import re
from typing import Final

from counterfoil.core.jsontext import clean_text
from counterfoil.core.shorten import clip

__all__ = ["ascii_only", "block", "escaped", "line"]

_LONGEST: Final = 1024
"""Characters of the longest sequence that is taken out whole.

Of a longer one only its signs are, so that one without an end hides nothing, and a search stays linear.
"""

_SEQUENCE: Final = re.compile(
    # colours, moves, erasing
    "(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"
    # titles, links
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d\x9e\x9f])"
    f"[^\x07\x1b\x9c]{{0,{_LONGEST}}}(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]{0,4}[0-~]"
)
"""Control sequences of ECMA-48, in seven bits and in eight."""

_BIDI: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Marks that change the order in which text is shown, so that it reads as what it is not."""

_INVISIBLE: Final = (
    "\u00ad\u180e\u200b\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
"""What takes no room. Joiners and variation selectors stay: emoji are made with them."""

_CONTROL: Final = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_INVISIBLE}]")
_HIDDEN: Final = re.compile(f"[\x7f-\x9f\u2028\u2029{_BIDI}{_INVISIBLE}\ud800-\udfff]")
_BREAKS: Final = re.compile("\r\n?|[\u2028\u2029\x85\x0b\x0c]")
_PLANE: Final = 0xFFFF
"""Beyond it JSON needs two escapes, a surrogate pair (RFC 8259, section 7)."""
_ASCII: Final = re.compile("[^\x00-\x7f]")


def block(text: str) -> str:
    """The text over several lines: tabs and line ends stay, other controls and what is invisible go."""
    text = _SEQUENCE.sub("", clean_text(text))
    return _CONTROL.sub("", _BREAKS.sub("\n", text))


def line(text: str, max_chars: int = 2000) -> str:
    """The text on one line, white space run together, cut on a visible character with an ellipsis."""
    # What is cut off need not be cleaned: a result of megabytes becomes a row of the timeline.
    return clip(" ".join(block(text[: 4 * max_chars]).split()), max_chars)


def escaped(json_text: str) -> str:
    """JSON text with all that is hidden or moves text as an escape: nothing is lost, all can be seen."""
    return _HIDDEN.sub(_escape, json_text)


def ascii_only(json_text: str) -> str:
    """JSON text for a terminal or file that takes ASCII alone."""
    return _ASCII.sub(_escape, json_text)


def _escape(found: "re.Match[str]") -> str:
    code = ord(found[0])
    if code <= _PLANE:
        return f"\\u{code:04x}"
    code -= _PLANE + 1
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
