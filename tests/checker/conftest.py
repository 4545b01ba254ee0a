"""One good run for all tests of the checker, and a copy of its evidence for each test."""

import shutil
from pathlib import Path

import pytest

from .good_run import Evidence, run


@pytest.fixture(scope="session")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return run(tmp_path_factory.mktemp("truth"))


@pytest.fixture
def evidence(truth: Evidence, tmp_path: Path) -> Evidence:
    shutil.copytree(truth.ledgers, tmp_path / "ledgers")
    shutil.copy(truth.database, tmp_path / "state.db")
    return Evidence(tmp_path / "state.db", tmp_path / "ledgers")
