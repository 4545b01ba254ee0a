"""The pages run as they are written."""

from pathlib import Path

import pytest

from tests.postgres.server import PostgresServer

from . import pages
from .reader import Reader

ON_POSTGRESQL = "docs/operating/postgres.md"
PAGES = {name: path for name, path in pages.with_blocks().items() if name != ON_POSTGRESQL}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_it_is_written(name: str, reader: Reader) -> None:
    reader.read(PAGES[name].read_text())


def test_the_page_about_postgresql_runs_on_a_server(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with PostgresServer() as server:
        reader = Reader(tmp_path, {"DATABASE_URL": server.url()})
        try:
            reader.read(pages.with_blocks()[ON_POSTGRESQL].read_text())
        finally:
            reader.close()
