"""Where the stores of these tests lie."""

from pathlib import Path

import pytest

from .running import MemoryPlace


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A file for SQLite, in a directory that does not exist yet."""
    return tmp_path / "state" / "state.db"


@pytest.fixture(params=["sqlite", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | MemoryPlace:
    """Each store in turn: what a test promises with this fixture holds for all of them."""
    return tmp_path / "state.db" if request.param == "sqlite" else MemoryPlace()
