"""The API reads the core's state in one module only."""

import re
from pathlib import Path

import pytest
from stepwire_broker import api

ROOM = Path(api.__file__).parent
STATE = re.compile(r"\b_?broker\.state\b")


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOM)))
def test_only_core_views_reads_the_state_of_the_core(path: Path) -> None:
    assert path.name == "core_views.py" or not STATE.search(path.read_text())
