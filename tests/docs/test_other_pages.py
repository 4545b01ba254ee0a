"""All other pages run as they are written. They have a module of their own, so that both run in parallel."""

import pytest

from . import pages
from .reader import Reader

PAGES = {name: path for name, path in pages.with_blocks().items() if not name.startswith("docs/how-to/")}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_it_is_written(name: str, reader: Reader) -> None:
    reader.read(PAGES[name].read_text())
