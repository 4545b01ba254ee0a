"""The places in which the command tests run."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from .a_place import Place, a_shop, place


@pytest.fixture
def empty(tmp_path: Path) -> Place:
    """A place without a broker."""
    tmp_path.chmod(0o700)
    return place(tmp_path)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory, free_port: int) -> Iterator[Place]:
    """A place with a broker, two workflows and a worker."""
    with a_shop(tmp_path_factory.mktemp("shop"), free_port) as here:
        yield here


@pytest.fixture(scope="session")
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
