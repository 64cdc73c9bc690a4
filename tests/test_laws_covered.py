"""Every law of the contract has a test, or a reason for having none."""

import re

import pytest

from tests.promises import LAWS, enforced, marked, missing, shared


@enforced
def test_every_law_has_a_test_or_a_reason() -> None:
    assert missing("law", LAWS) == {}


@enforced
def test_a_mark_names_a_law() -> None:
    unknown = {
        key: files
        for key, files in marked("law").items()
        if key not in LAWS and not any(law.startswith(f"{key}.") for law in LAWS)
    }
    assert unknown == {}, "no such id, nor a section of ids, in tests/laws.toml"


@pytest.fixture(scope="module")
def contract() -> dict[str, str]:
    folder = shared()
    if folder is None:
        pytest.skip("the design's papers are not beside this repository")
    page = (folder / "design" / "contract.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^###? (?=\d)", page, flags=re.MULTILINE)
    return {part.split()[0].rstrip("."): part for part in parts}


def listed(prefix: str) -> set[str]:
    return {law.removeprefix(prefix) for law in LAWS if law.startswith(prefix)}


def test_the_laws_of_the_result_agree_with_the_design(contract: dict[str, str]) -> None:
    fields = set(re.findall(r"^\| (\w+) \|", contract["1.1"], re.MULTILINE)) - {"field", "outcome"}
    outcomes = set(re.findall(r"^\| `(\w+)\(", contract["1.1"], re.MULTILINE))
    assert fields | outcomes | {"outcome"} <= listed("1.1.")


def test_the_laws_of_the_part_agree_with_the_design(contract: dict[str, str]) -> None:
    rows = re.findall(r"^\| [a-z_, ]+ \| ([\w?, ]+) \|", contract["1.2"], re.MULTILINE)
    names = {name.strip(" ?") for row in rows for name in row.split(",")}
    names -= {"the same", "each optional"}
    assert len(names) > 10
    assert names <= listed("1.2.")


def test_the_laws_of_the_report_agree_with_the_design(contract: dict[str, str]) -> None:
    names = set(re.findall(r"`([a-z_]+)`(?: \(|,)", contract["1.3"][contract["1.3"].index("`tenant_id`") :]))
    assert len(names) > 10
    assert names <= listed("1.3.")


def test_the_laws_of_the_context_agree_with_the_design(contract: dict[str, str]) -> None:
    names = set(re.findall(r"(?:: |· )`(\w+)`", contract["1.4"]))
    assert len(names) == 10
    assert names <= listed("1.4.")


@pytest.mark.parametrize("section", ["2", "7"])
def test_the_numbered_laws_agree_with_the_design(contract: dict[str, str], section: str) -> None:
    numbers = {f"{section}.{number}" for number in re.findall(r"^(\d)\. ", contract[section], re.MULTILINE)}
    assert numbers == {law for law in LAWS if re.fullmatch(rf"{section}\.\d", law)}


def test_the_codes_agree_with_the_design(contract: dict[str, str]) -> None:
    rows = dict(re.findall(r"^\| (\d{4}) \| (\w+) \|", contract["3"], re.MULTILINE))
    ours = {code: LAWS[f"3.{code}"].partition(":")[0] for code in listed("3.") if code.isdecimal()}
    assert ours == rows


def test_the_endings_agree_with_the_design(contract: dict[str, str]) -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", contract["5"], re.MULTILINE)) <= listed("5.")


def test_the_fields_of_the_sources_agree_with_the_design() -> None:
    folder = shared()
    if folder is None:
        pytest.skip("the design's papers are not beside this repository")
    patterns = {
        "000": r"^(?:optional )?(\w+)\??: ",
        "001": r"^(?:optional )?(\w+)\??: ",
        "002": r"^(\w+)\t",
        "003": r"^pub fn (\w+)[<(]",
        "004": r"^(?:pub fn |    pub )(\w+)[<(:]",
    }
    for source, pattern in patterns.items():
        (page,) = (folder / "sources").glob(f"{source}_*")
        names = set(re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE))
        names -= {"Field", "Interface"}
        assert len(names) > 5, source
        assert names <= listed(f"source.{source}."), source
