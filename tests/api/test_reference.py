"""The generated pages in docs/ are up to date."""

from pathlib import Path

import pytest
from stepwire_broker.api import reference

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_reference_page_is_up_to_date(name: str) -> None:
    """To update it: python -m stepwire_broker.api.reference docs/reference"""
    assert (DOCS / name).read_text(encoding="utf-8") == reference.PAGES[name]()
