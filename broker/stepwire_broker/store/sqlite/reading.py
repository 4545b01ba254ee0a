"""Reading rows from SQLite.

A result of many rows is read as one row: a JSON array that SQLite builds and msgspec decodes. Python's driver releases
the GIL at every row it steps over and, next to a busy loop, waits a switch interval for the GIL. With one row, a page
of any length costs the loop only a few hand-overs.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

Row = TypeVar("Row", bound=tuple[Any, ...])

# The open tasks, from the three indexes that hold them: however many have ended, their rows are not read.
OPEN_TASK_IDS: Final = """
 SELECT id FROM tasks WHERE finished_ms IS NULL AND stored = 0
 UNION ALL SELECT id FROM tasks WHERE finished_ms IS NULL AND stored = 1 AND wants IS NOT NULL
 UNION ALL SELECT id FROM tasks WHERE finished_ms IS NULL AND stored = 1 AND wake_ms IS NOT NULL AND wants IS NULL
"""

_encode: Final = msgspec.json.Encoder().encode

WORKFLOW: Final = "id, namespace, name, version, digest, document, created_ms, active"


class Reading:
    """A connection to read on. Its methods return committed rows, unless the connection itself is writing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute

    def rows(self, row: type[Row], select: str, values: Mapping[str, Any]) -> list[Row]:
        """Return the selected rows in their order, which the aggregate keeps. An ORDER BY needs a LIMIT (-1 is enough),
        or SQLite may ignore the order."""
        columns, decoder = _decoder(row)
        text = self.execute(
            f"WITH page ({columns}) AS ({select}) SELECT json_group_array(json_array({columns})) FROM page",  # noqa: S608
            values,
        ).fetchone()[0]
        decoded: list[Row] = decoder.decode(text)
        return decoded

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let several statements see one state. Keep the time short: the log cannot be reset past the oldest reader."""
        self.execute("BEGIN")
        try:
            yield
        finally:
            self.execute("COMMIT")


@cache
def _decoder(row: type[Any]) -> tuple[str, msgspec.json.Decoder[Any]]:
    """Return the names of a row's columns in a statement, and the decoder of a page of such rows."""
    columns = ", ".join(f"c{i}" for i in range(len(row._fields)))
    return columns, msgspec.json.Decoder(list[row])  # type: ignore[valid-type]


def json_list(values: Sequence[Any]) -> str:
    """Return values as one parameter, for `IN (SELECT value FROM json_each(…))`."""
    return _encode(values).decode()


# Tasks that retention has partly removed are neither shown nor loaded.
NOT_PRUNED: Final = """
tasks.id NOT IN (SELECT value FROM json_each((SELECT value FROM meta WHERE name = 'pruning')))""".strip()
