"""A schema for each test, and connections."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from stepwire_broker.store.postgres.address import read_address
from stepwire_broker.store.postgres.connecting import connect
from stepwire_broker.store.postgres.pipeline import Pipeline
from stepwire_broker.store.postgres.schema import create_tables

from tests.postgres.server import PostgresServer

_NUMBERS = itertools.count(1)


@pytest.fixture
def schema(server: PostgresServer) -> Iterator[str]:
    """A schema with tables and two lanes."""
    name = f"test_{next(_NUMBERS)}"
    with server.connect() as connection:
        create_tables(connection, name, lanes=2, first=0)
    yield name
    server.sql(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def open_pipeline(server: PostgresServer) -> Iterator[Callable[..., Pipeline]]:
    """Opens connections, by default to the server itself, and closes them after the test."""
    opened: list[Pipeline] = []

    def make(url: str | None = None, *, is_prepared: bool = True, answer_s: float = 30.0) -> Pipeline:
        connection = connect(read_address(url or server.socket_url()), "stepwire test")
        opened.append(Pipeline(connection, is_prepared=is_prepared, answer_s=answer_s))
        return opened[-1]

    yield make
    for pipeline in opened:
        pipeline.close()
