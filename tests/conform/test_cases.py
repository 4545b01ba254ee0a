"""The table of cases."""

import re
from pathlib import Path

import pytest
from stepwire_conform import cases
from stepwire_conform.case import CASES, Case, Level

PROTOCOL = Path(__file__).parents[2] / "protocol"
CONTRACT = (PROTOCOL / "conformance/CONTRACT.md").read_text()
assert cases.__all__


def headings(page: str) -> set[str]:
    return set(re.findall(r"^##+ ([0-9]+)\.", (PROTOCOL / page).read_text(), re.MULTILINE))


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_case_has_a_rule_in_a_section_that_exists(case: Case) -> None:
    assert case.rule[0].isupper() or case.rule[0] in "`*0123456789"
    assert not case.rule.endswith(".")
    for part in case.section.split(" and "):
        guide, _, number = part.rpartition("SDK_GUIDE ")
        page = "SDK_GUIDE.md" if "SDK_GUIDE" in part else "SPEC.md"
        assert part == "CONTRACT" or re.split(r"[. (]", number)[0] in headings(page), guide


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_case_needs_only_handlers_of_the_contract(case: Case) -> None:
    assert all(f"| `{handler}` |" in CONTRACT for handler in case.needs)


def test_every_level_has_cases() -> None:
    assert {case.level for case in CASES.values()} == set(Level)
    assert len(CASES) >= 100


def test_every_file_of_cases_is_imported() -> None:
    files = {path.stem for path in (PROTOCOL / "stepwire_conform/cases").glob("*.py")} - {"__init__"}
    assert files == set(cases.__all__)
