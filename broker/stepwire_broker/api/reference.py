"""Writes the reference pages of the API: `python -m stepwire_broker.api.reference docs/reference`.

A test checks that the pages in docs/ are up to date.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from . import http_page, metrics_page

PAGES: Final[dict[str, Callable[[], str]]] = {"http.md": http_page.page, "metrics.md": metrics_page.page}


def write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (directory / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
