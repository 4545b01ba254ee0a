"""The state of a PostgreSQL schema for commands: the port store/stored_state.py."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Final, TypeVar

import psycopg

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.store.checking import reference_faults
from stepwire_broker.store.errors import NotThere
from stepwire_broker.store.queries import Queries

from .address import read_address
from .connecting import PostgresConnection, connect_first
from .loading import OPEN_TASK_IDS
from .queries import PostgresQueries
from .refusals import refusals_of
from .schema import has_tables, read_schema_name

T = TypeVar("T")

ROWS_AT_ONCE: Final = 1_000


class PostgresState:
    """`is_in_transaction`: the caller has a transaction open, with the schema as search_path, and all reads see it."""

    name: ClassVar[str] = "PostgreSQL"
    damage: ClassVar[tuple[type[Exception], ...]] = (psycopg.InternalError,)
    open_task_ids: ClassVar[str] = OPEN_TASK_IDS

    def __init__(self, connection: PostgresConnection, schema: str, *, is_in_transaction: bool = False) -> None:
        self.connection = connection
        self.schema = schema
        self._is_open = is_in_transaction

    @contextmanager
    def moment(self) -> Iterator[None]:
        if self._is_open:
            yield
            return
        self.connection.execute(_BEGIN.format(schema=self.schema).encode())
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            if not self.connection.closed:
                self.connection.execute("ROLLBACK")

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        with self.moment():
            return self.connection.execute(statement.encode()).fetchall()

    def each(self, statement: str) -> Iterator[tuple[Any, ...]]:
        with self.connection.cursor("rows") as cursor:
            cursor.itersize = ROWS_AT_ONCE
            cursor.execute(statement.encode())
            yield from cursor

    def read(self, query: Callable[[Queries], T]) -> T:
        with self.moment():
            return query(PostgresQueries(self.connection))

    def own_faults(self) -> Iterator[str]:
        """Check what other databases have as foreign keys or as columns of a lane."""
        yield from reference_faults(self, _REFERENCES)


@contextmanager
def open_state(settings: DatabaseSettings, application: str) -> Iterator[PostgresState]:
    """Connect to the server, and read from the tables of the schema. Raises StoreRefused, also for errors inside."""
    address, schema = read_address(settings.url), read_schema_name(settings.schema)
    with refusals_of(address, "a statement"), closing(connect_first(address, f"stepwire: {application}")) as connection:
        if not has_tables(connection, schema):
            raise NotThere(f"the schema {schema} of {address.shown} has no tables yet")
        yield PostgresState(connection, schema)


_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT set_config('search_path', '{schema}', true)"

_NUMBERED: Final = (
    ("blocks", "number", "blocks_number_seq"),
    ("workflows", "id", "workflows_id_seq"),
    ("parked", "id", "parked_id_seq"),
    ("brokers", "epoch", "epochs"),
)

_REFERENCES: Final = (
    (
        "SELECT id, last, committed FROM (SELECT id, (SELECT max(seq) FROM history WHERE lane_id = lanes.id) AS last, "
        "(SELECT max(seq) FROM commits WHERE lane = lanes.id) AS committed FROM lanes) AS ends WHERE last > committed",
        "the history of lane {0} ends at sequence {1}, but the lane's last commit has sequence {2}",
    ),
    (
        "SELECT DISTINCT lane_id FROM history WHERE NOT EXISTS (SELECT 1 FROM lanes WHERE lanes.id = lane_id)",
        "the history has rows of lane {0}, which does not exist",
    ),
    (
        "SELECT id FROM lanes WHERE NOT EXISTS (SELECT 1 FROM commits WHERE lane = lanes.id)",
        "lane {0} has no row in commits, so no group can be written in it",
    ),
    (
        "SELECT lane, count(*), max(seq) - min(seq) + 1 FROM commits GROUP BY lane "
        "HAVING count(*) <> max(seq) - min(seq) + 1",
        "lane {0} has {1} of {2} consecutive commits",
    ),
    (
        "SELECT earlier.lane, earlier.seq FROM commits AS earlier JOIN commits AS later "
        "ON later.lane = earlier.lane AND later.seq = earlier.seq + 1 WHERE later.epoch < earlier.epoch",
        "commit {1} of lane {0} has a higher epoch than the commit after it",
    ),
    (
        "SELECT id, lanes.epoch, max(commits.epoch) FROM lanes JOIN commits ON lane = id GROUP BY id "
        "HAVING max(commits.epoch) > lanes.epoch",
        "lane {0} has epoch {1}, and a commit of epoch {2}",
    ),
    (
        "SELECT id, owner FROM lanes WHERE owner IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM brokers WHERE brokers.id = lanes.owner)",
        "lane {0} is owned by the broker {1!r}, which has no row",
    ),
    *(
        (
            f"SELECT {column} FROM {table} WHERE {column} > "  # noqa: S608
            f"(SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence})",
            f"the {column} {{0}} of {table} is beyond the sequence that numbers new rows",
        )
        for table, column, sequence in _NUMBERED
    ),
)
