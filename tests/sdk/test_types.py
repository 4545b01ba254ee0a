"""The published types: a user's project passes mypy in strict mode, and its mistakes are found.

`tests/packages` checks another project against the installed wheel, also with pyright.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "typed_project"
RIGHT, WRONG = PROJECT / "right.py", PROJECT / "wrong.py"
BOUND_S = 300.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for both runs, so that the second has the cache of the first."""
    return tmp_path_factory.mktemp("typed")


def mypy(file: Path, directory: Path) -> list[str]:
    """The lines of `mypy --strict` as a user runs it, without this repository's configuration."""
    shutil.copy(file, directory)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", file.name]
    return subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=BOUND_S, check=False
    ).stdout.splitlines()


def marked() -> dict[int, set[str]]:
    """The codes of the mistakes, by line."""
    lines = enumerate(WRONG.read_text().splitlines(), 1)
    return {number: set(match[1].split(", ")) for number, line in lines if (match := re.search(r"  # (.+)$", line))}


def test_a_project_with_the_documented_api_passes_mypy_in_strict_mode(directory: Path) -> None:
    assert mypy(RIGHT, directory) == []


def test_mypy_finds_each_mistake_of_a_project(directory: Path) -> None:
    found: dict[int, set[str]] = {}
    for line in mypy(WRONG, directory):
        if match := re.match(r"wrong\.py:(\d+): error: .*\[([\w-]+)\]$", line):
            found.setdefault(int(match[1]), set()).add(match[2])
    assert found == marked()
