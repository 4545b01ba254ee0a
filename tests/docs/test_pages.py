"""The pages run as they are written."""

import pytest

from . import pages
from .reader import Reader

PAGES = pages.with_blocks()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_it_is_written(name: str, reader: Reader) -> None:
    reader.read(PAGES[name].read_text())
