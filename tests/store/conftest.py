"""Where the stores of these tests lie."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres.databases import pooler_port
from tests.postgres.server import PostgresServer

from .running import MemoryPlace, Place, PostgresPlace

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """A server that tests may restart, and leave as it was."""
    with PostgresServer() as running:
        yield running


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A file for SQLite, in a directory that does not exist yet."""
    return tmp_path / "state" / "state.db"


@pytest.fixture(params=["sqlite", "memory", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each store in turn: what a test promises with this fixture holds for all of them."""
    if request.param == "postgresql":
        yield from _postgres_place(request)
    else:
        yield tmp_path / "state.db" if request.param == "sqlite" else MemoryPlace()


@pytest.fixture(params=["memory", "postgresql"])
def shared(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each store that several brokers can use at a time."""
    if request.param == "postgresql":
        yield from _postgres_place(request)
    else:
        yield MemoryPlace()


def _postgres_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    server: PostgresServer = request.getfixturevalue("server")
    schema = f"place_{next(_NUMBERS)}"
    yield PostgresPlace(server, schema, pooler_port(server))
    server.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
