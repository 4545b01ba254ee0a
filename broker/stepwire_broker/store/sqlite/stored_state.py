"""The state of a SQLite database for commands: the port store/stored_state.py."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from stepwire_broker.store.checking import FINDINGS_MAX, reference_faults
from stepwire_broker.store.queries import Queries

from .queries import SqliteQueries
from .reading import OPEN_TASK_IDS

T = TypeVar("T")


class SqliteState:
    """The caller opens and closes the connection, in autocommit."""

    name: ClassVar[str] = "SQLite"
    damage: ClassVar[tuple[type[Exception], ...]] = (sqlite3.DatabaseError,)
    open_task_ids: ClassVar[str] = OPEN_TASK_IDS

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    @contextmanager
    def moment(self) -> Iterator[None]:
        self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.connection.execute("ROLLBACK")

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement).fetchall()

    def each(self, statement: str) -> Iterator[tuple[Any, ...]]:
        return self.connection.execute(statement)

    def read(self, query: Callable[[Queries], T]) -> T:
        return query(SqliteQueries(self.connection))

    def own_faults(self) -> Iterator[str]:
        yield from self._integrity()
        yield from self._constraints()
        yield from reference_faults(self, (LANE_ENDS,))

    def _integrity(self) -> Iterator[str]:
        """SQLite's own check: pages, indexes, NOT NULL and types."""
        for (finding,) in self.connection.execute(f"PRAGMA integrity_check({FINDINGS_MAX})"):
            if finding != "ok":
                yield f"SQLite reports: {finding}"

    def _constraints(self) -> Iterator[str]:
        """Evaluate the CHECKs of the schema, which SQLite ignores on a read-only connection."""
        from sqlalchemy import CheckConstraint

        from stepwire_broker.store.tables import metadata

        for table in metadata.sorted_tables:
            key = ", ".join(column.name for column in table.primary_key)
            for constraint in table.constraints:
                if isinstance(constraint, CheckConstraint):
                    broken = self.connection.execute(
                        f"SELECT {key} FROM {table.name} WHERE NOT ({constraint.sqltext}) LIMIT ?",  # noqa: S608
                        (FINDINGS_MAX,),
                    ).fetchall()
                    for row in broken:
                        which = ", ".join(map(str, row))
                        yield f"row {which} of {table.name} breaks its constraint {constraint.name}"


LANE_ENDS = (
    "SELECT lane_id, last, seq FROM (SELECT lane_id, max(history.seq) AS last FROM history GROUP BY lane_id) AS ends "
    "LEFT JOIN lanes ON lanes.id = lane_id WHERE seq IS NULL OR last > seq",
    "the history of lane {0} ends at sequence {1}, but the lane's row has sequence {2}",
)
