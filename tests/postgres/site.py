"""A site whose broker stores its state on a server, and the copy of that state that the judge reads."""

import sqlite3
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal

import psycopg
from stepwire_broker.store.postgres.schema import read_schema_name
from stepwire_broker.store.tables import metadata

from tests.cli import forked
from tests.system.harness import Site

from .server import PostgresServer

PAUSE_S: Final = 0.05
PATIENCE_S: Final = 60.0

# Columns that PostgreSQL keeps in another form.
_SELECTED: Final = {
    "lanes": {"seq": "coalesce((SELECT max(seq) FROM commits WHERE lane = lanes.id), 0)"},
    "brokers": {"lease_until_ms": "0"},
}


class PostgresSite(Site):
    """`with PostgresSite(server, "schema") as site:`, and then as every site."""

    def __init__(
        self,
        server: PostgresServer,
        schema: str,
        settings: Mapping[str, Any] | None = None,
        *,
        transport: Literal["ipc", "tcp"] = "ipc",
    ) -> None:
        own = {"database.url": server.url(), "database.schema": schema}
        super().__init__(transport, settings=own | dict(settings or {}))
        self.server = server  # that the judge reads: after a failover, the promoted one
        self._schema = read_schema_name(schema)
        self._copies = 0
        self.at_close(lambda: self.server.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE") and None)

    @property
    def database(self) -> Path:
        """A copy, as of one moment, in a new file of SQLite with the declared tables."""
        self._copies += 1
        path = self.directory / f"copy-{self._copies}.db"
        with self.server.connect() as source, source.transaction():
            source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            source.execute("SELECT set_config('search_path', %s, true)", (self._schema,))
            copy(source, path)
        return path

    def number(self, query: str) -> int:
        """Return the only value of a query, also while the server recovers from a crash."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.server.connect() as connection, connection.transaction():
                    connection.execute("SELECT set_config('search_path', %s, true)", (self._schema,))
                    row = connection.execute(query.encode()).fetchone()
                    return 0 if row is None else int(row[0])
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "the server did not come back"
                time.sleep(PAUSE_S)

    def administer(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command that opens the database itself."""
        own = {
            f"STEPWIRE_{name.upper().replace('.', '__')}": str(value)
            for name, value in self.settings.items()
            if name.startswith(("database.", "broker."))
        }
        return subprocess.CompletedProcess(words, *forked.run(words, self.directory, self.environ | own, ""))

    def crash_server(self) -> None:
        self.server.restart("immediate")


def copy(source: psycopg.Connection[tuple[Any, ...]], path: Path) -> None:
    schema = (Path(__file__).parents[2] / "broker/stepwire_broker/store/sqlite/schema.sql").read_text()
    with closing(sqlite3.connect(path)) as target:
        target.executescript(schema)
        for table in metadata.sorted_tables:
            names = [column.name for column in table.columns]
            selected = ", ".join(_SELECTED.get(table.name, {}).get(name, f'"{name}"') for name in names)
            rows = source.execute(f"SELECT {selected} FROM {table.name}".encode()).fetchall()
            marks = ", ".join("?" * len(names))
            into = (
                f"INSERT INTO {table.name} ({', '.join(chr(34) + name + chr(34) for name in names)}) VALUES ({marks})"
            )
            target.executemany(into, ([_plain(value) for value in row] for row in rows))
        target.commit()


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value
