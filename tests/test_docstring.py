import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.docstring import read_docstring

GOOGLE = """Refund part of an order.

    Only paid orders can be refunded.

    Args:
        order_id: the order's id,
            such as W100.
        cents (int): how much: at least 1.

    Returns:
        What the bank said.
    """

NUMPY = """Refund part of an order.

    Only paid orders can be refunded.

    Parameters
    ----------
    order_id : str
        the order's id,
        such as W100.
    cents : int, optional
        how much: at least 1.

    Returns
    -------
    str
        What the bank said.
    """

SPHINX = """Refund part of an order.

    Only paid orders can be refunded.

    :param order_id: the order's id,
        such as W100.
    :param int cents: how much: at least 1.
    :returns: What the bank said.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_style_gives_the_same_descriptions(text):
    found = read_docstring(text)
    assert found.description == "Refund part of an order.\n\nOnly paid orders can be refunded."
    assert found.parameters == {
        "order_id": "the order's id,\nsuch as W100.",
        "cents": "how much: at least 1.",
    }


def test_a_numpy_line_may_describe_several_parameters():
    found = read_docstring("Add.\n\nParameters\n----------\na, b : int\n    A number.\n")
    assert found.parameters == {"a": "A number.", "b": "A number."}


@pytest.mark.parametrize("text", ["", None, "   \n "])
def test_no_docstring_is_no_description(text):
    assert read_docstring(text) == ("", {})


def test_plain_text_is_the_description_as_it_stands():
    text = "Search the log.\n\nArgs: are not explained here.\n\n    grep -n this\n\n:) and that's it"
    assert read_docstring(text) == (text, {})


def test_an_indented_remark_is_no_section():
    text = "Search.\n\nSyntax:\n    a AND b\n\nArgs:\n    query: what to look for"
    assert read_docstring(text) == ("Search.\n\nSyntax:\n    a AND b", {"query": "what to look for"})


@pytest.mark.parametrize(
    "text",
    [
        "Args:\n        query: what to look for\n    ",
        "Search.\nArgs:\n    query: what to look for",
        "Search.\n\nArgs:\n\n    query: what to look for",
        "Search.\n\nArguments:\n    query (str): what to look for",
        "Search.\n\nReturns:\n    lines\n\nArgs:\n    query: what to look for",
        "Search.\n\n:type query: str\n:param query: what to look for",
    ],
)
def test_sections_are_found_where_authors_put_them(text):
    found = read_docstring(text)
    assert found.parameters == {"query": "what to look for"}
    assert found.description in ("", "Search.")


@given(st.lists(st.sampled_from(["Args:", "  x: y", "", "Parameters", "-----", ":param x: y", "\t", "Returns:"])))
def test_no_docstring_is_ever_an_error(lines):
    found = read_docstring("\n".join(lines))
    assert isinstance(found.description, str)
    assert all(isinstance(text, str) for text in found.parameters.values())


def test_nothing_is_printed_for_a_faulty_section():
    source = (
        "import logging; from counterfoil.docstring import read_docstring as r;"
        "r('Add.\\n\\nArgs:\\n    no colon here\\n  badly: indented\\n\\nReturns:\\n    x: y: z');"
        "r('Add.\\n\\nParameters\\n---------\\n\\n\\nRaises\\n------\\n')"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_griffe_is_imported_only_for_a_docstring_with_sections():
    source = (
        "import sys; import counterfoil.schema; from counterfoil.docstring import read_docstring as r;"
        "r('Plain.'); print([m in sys.modules for m in ('griffe', 'jsonschema_rs')]);"
        "r('Add.\\n\\nArgs:\\n    x: y'); print('griffe' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[False, False]", "True"]
