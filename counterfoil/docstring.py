"""Descriptions of a tool and of its parameters from a docstring, in any of the three usual styles."""

from __future__ import annotations

import inspect
import re
from textwrap import indent
from typing import Literal, NamedTuple

_WORDS = (
    "args|arguments|params|parameters|keyword args|keyword arguments|other args|other arguments|other params"
    "|other parameters|returns?|yields?|receives|raises|exceptions|except|warns|warnings?|notes?|examples?"
    "|attributes|references|see also|todo"
)
# In the order in which they are tried. A line of dashes below a word is the clearest sign; a Google section
# is an ordinary word with a colon, so it counts only with an indented line below.
_SECTIONS: tuple[tuple[Literal["numpy", "sphinx", "google"], re.Pattern[str]], ...] = (
    ("numpy", re.compile(rf"^(?:{_WORDS})[ \t]*\n-{{3,}}[ \t]*$", re.IGNORECASE | re.MULTILINE)),
    (
        "sphinx",
        re.compile(
            r"^:(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|except|exception|yields?)\b[^:\n]*:",
            re.MULTILINE,
        ),
    ),
    (
        "google",
        re.compile(rf"^(?:{_WORDS}):[ \t]*\n(?:[ \t]*\n)?[ \t]+\S", re.IGNORECASE | re.MULTILINE),
    ),
)


class Described(NamedTuple):
    """What a docstring says to a model."""

    description: str
    """The text before the sections; empty where there is none."""
    parameters: dict[str, str]
    """Descriptions of parameters, by name."""


def read_docstring(text: str | None) -> Described:
    """What a docstring in Google's, NumPy's or Sphinx's style says; never an error, whatever it holds.

    The description is the text before the first section. Sections on results, errors and the like are for the
    people who read the code; a model is not told them.
    """
    if not text:
        return Described("", {})
    text = inspect.cleandoc(text)
    first, _, rest = text.partition("\n")
    # A docstring that is one section alone lost the section's indentation to cleandoc.
    for candidate in (text, f"{first}\n{indent(rest, '    ')}"):
        found = [(match.start(), style) for style, pattern in _SECTIONS if (match := pattern.search(candidate))]
        if found and (candidate is text or min(found)[0] == 0):
            start, style = min(found)
            return Described(candidate[:start].strip(), _parameters(candidate[start:], style))
    return Described(text.strip(), {})


def _parameters(sections: str, style: Literal["numpy", "sphinx", "google"]) -> dict[str, str]:
    # Imported only here: a docstring without sections is common, and griffe takes long to import.
    from griffe import Docstring, DocstringSectionKind

    kinds = (DocstringSectionKind.parameters, DocstringSectionKind.other_parameters)
    try:
        # Griffe takes the margin off again, and would take a lone section's own without the first line; it
        # skips a section with an empty line below its title.
        parts = Docstring("\n" + re.sub(r"\A(.+:)\n\s*\n", r"\1\n", sections)).parse(style, warnings=False)
        return {
            name.strip("* "): item.description.strip()
            for part in parts
            if part.kind in kinds
            for item in part.value
            for name in item.name.split(",")
            if item.description
        }
    except Exception:  # noqa: BLE001  # a description that cannot be read is no reason to lose the tool
        return {}
