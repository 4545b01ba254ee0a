"""The how-to pages run as they are written."""

import pytest

from . import pages
from .reader import Reader

PAGES = {name: path for name, path in pages.with_blocks().items() if name.startswith("docs/how-to/")}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_it_is_written(name: str, reader: Reader) -> None:
    reader.read(PAGES[name].read_text())
