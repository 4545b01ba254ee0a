"""Reading rows from PostgreSQL, in the one transaction that a query of a reader is."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from .connecting import PostgresConnection

Row = TypeVar("Row", bound=tuple[Any, ...])

# Tasks that retention has partly removed are neither shown nor loaded. Each lane has a note of its own.
PARTLY_REMOVED: Final = "pruning"
NOT_PRUNED: Final = """
tasks.id NOT IN (SELECT noted.id::bigint FROM meta, json_array_elements_text(meta.value::json) AS noted (id)
 WHERE meta.name LIKE 'pruning %%')""".strip()


WORKFLOW: Final = "id, namespace, name, version, digest, document, created_ms, active::int"


class PostgresReading:
    """A connection to read on, whose search_path is the schema. All statements of its transaction see one state."""

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection

    def rows(self, row: type[Row], select: str, values: Mapping[str, Any] | None = None) -> list[Row]:
        """Return the selected rows in their order."""
        make: Any = row._make  # type: ignore[attr-defined]
        return [make(values) for values in self.plain(select, values)]

    def plain(self, select: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        return self._connection.execute(select.encode(), _sendable(values or {})).fetchall()

    def one(self, select: str, values: Mapping[str, Any] | None = None) -> tuple[Any, ...] | None:
        """Return the first selected row."""
        return self._connection.execute(select.encode(), _sendable(values or {})).fetchone()


NEVER_STORED: Final = "\U0010ffff"


def _sendable(values: Mapping[str, Any]) -> dict[str, Any]:
    """A text with U+0000 or half a character cannot be sent. It cannot be stored either, so it has to find nothing."""
    return {name: _never_stored(value) if isinstance(value, str) else value for name, value in values.items()}


def _never_stored(text: str) -> str:
    return text.encode(errors="replace").decode().replace("\0", NEVER_STORED)
