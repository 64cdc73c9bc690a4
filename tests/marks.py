"""Marks that tie a test to the promise it proves.

    @law("2.1", "3.4000")     ids of tests/laws.toml
    @case("R013")             ids of tests/cases.toml

Both take one id or more. `python -m tests.missing` lists the ids that no test carries yet.
"""

import pytest


def law(*ids: str) -> pytest.MarkDecorator:
    """The test proves these laws of the contract."""
    return pytest.mark.law(*ids)


def case(*ids: str) -> pytest.MarkDecorator:
    """The test is the right behaviour in these cases from the field."""
    return pytest.mark.case(*ids)
