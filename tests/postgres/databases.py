"""The database of a test that promises the same for every database.

    STEPWIRE_TEST_POSTGRES=1 pytest tests/api

The value is the number of lanes. Without this variable a test uses SQLite, which takes a tenth of the time.

    STEPWIRE_TEST_POSTGRES=2 STEPWIRE_TEST_OWNER=b2 pytest tests/api

Then a second broker runs, which gets the new tasks, and owns the lane that they are in. The tests send everything else
to the first one, which owns none of the tasks.
"""

import atexit
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Final

from stepwire_broker.core.definitions.settings import DatabaseSettings

from .server import PostgresServer

LANES: Final = int(os.environ.get("STEPWIRE_TEST_POSTGRES") or 0)
OWNER: Final = os.environ.get("STEPWIRE_TEST_OWNER") or None  # the id of the broker that owns the lanes


def database_in(directory: Path) -> DatabaseSettings:
    """The same directory has the same database. A database on a server ends with the test process."""
    if LANES == 0:
        return DatabaseSettings(url=f"sqlite:///{directory}/state.db")
    schema = f"d{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"
    return DatabaseSettings(url=_server().socket_url(), schema=schema, lanes=LANES, pool_size=2)


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
