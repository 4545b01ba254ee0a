"""The database of a test that promises the same for every database.

    STEPWIRE_TEST_POSTGRES=1 pytest tests/api

The value is the number of lanes. Without this variable a test uses SQLite, which takes a tenth of the time.

    STEPWIRE_TEST_POSTGRES=2 STEPWIRE_TEST_OWNER=b2 pytest tests/api

Then a second broker runs, which gets the new tasks, and owns the lane that they are in. The tests send everything else
to the first one, which owns none of the tasks.

    STEPWIRE_TEST_POOLER=1 STEPWIRE_TEST_POSTGRES=3 pytest tests/api
    STEPWIRE_TEST_POOLER=1 pytest tests/store/conformance -k postgresql

puts pgbouncer in transaction mode between the broker and the server.
"""

import atexit
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.store.postgres.stored_state import open_state
from stepwire_broker.store.sqlite.backup import open_stored
from stepwire_broker.store.sqlite.opening import path_of
from stepwire_broker.store.sqlite.stored_state import SqliteState
from stepwire_broker.store.stored_state import StoredState

from .pooler import Pooler
from .server import PostgresServer

IS_POOLED: Final = os.environ.get("STEPWIRE_TEST_POOLER") == "1"
LANES: Final = int(os.environ.get("STEPWIRE_TEST_POSTGRES") or 0)
OWNER: Final = os.environ.get("STEPWIRE_TEST_OWNER") or None  # the id of the broker that owns the lanes


def database_in(directory: Path, lanes: int = LANES) -> DatabaseSettings:
    """The same directory has the same database, of SQLite if `lanes` is 0. A database on a server ends with the test
    process."""
    if lanes == 0:
        return DatabaseSettings(url=f"sqlite:///{directory}/state.db")
    schema = f"d{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"
    server = _server()
    url = server.url(port=pooler_port(server)) if IS_POOLED else server.socket_url()
    return DatabaseSettings(url=url, schema=schema, lanes=lanes, pool_size=2)


_poolers: dict[PostgresServer, Pooler] = {}


def pooler_port(server: PostgresServer) -> int:
    """Return the port of a pooler in front of the server. The pooler ends with the server. 0: no pooler is wanted."""
    if not IS_POOLED:
        return 0
    if server not in _poolers:
        # Connections of a lane that waits are open transactions, and each store has its own.
        _poolers[server] = Pooler(server, connections=80)
    return _poolers[server].port


def state_of(settings: DatabaseSettings) -> AbstractContextManager[StoredState]:
    """The state of a test's database, for reading."""
    return open_state(settings, "test") if LANES else _state_of_file(settings)


@contextmanager
def _state_of_file(settings: DatabaseSettings) -> Iterator[StoredState]:
    with closing(open_stored(path_of(settings.url))) as connection:
        yield SqliteState(connection)


@contextmanager
def writes_held(settings: DatabaseSettings) -> Iterator[None]:
    """No broker can write meanwhile: another connection has the lock."""
    if LANES == 0:
        with closing(sqlite3.connect(path_of(settings.url), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")
        return
    with _server().connect() as connection, connection.transaction():
        connection.execute(f"SELECT 1 FROM {settings.schema}.lanes FOR UPDATE".encode())
        yield


def give_lane(settings: DatabaseSettings, lane: int, broker: str) -> None:
    """Let a broker own a lane, as its owner's release for that broker would."""
    _server().sql(
        f"UPDATE {settings.schema}.lanes SET owner = b.id, owner_epoch = b.epoch, epoch = lanes.epoch + 1 "
        f"FROM {settings.schema}.brokers b WHERE lanes.id = %s AND b.id = %s",
        lane,
        broker,
    )


@cache
def _server() -> PostgresServer:
    server = PostgresServer()
    atexit.register(server.close)
    return server
