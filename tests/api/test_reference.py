"""The generated pages in docs/ are what the code says now."""

from pathlib import Path

import pytest
from stepwire_broker.api import reference

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_fresh(name: str) -> None:
    """Otherwise: python -m stepwire_broker.api.reference docs/reference"""
    assert (DOCS / name).read_text(encoding="utf-8") == reference.PAGES[name]()
