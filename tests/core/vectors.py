"""The tables among the protocol's vectors."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"


def vectors(name: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table, each with its members in the written order."""
    table = json.loads((FOLDER / f"{name}.json").read_text())
    assert table["format"] == 1
    return [tuple(row.values()) for row in table[name]]
