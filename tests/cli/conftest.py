"""The places in which the command tests run."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres.databases import OWNER
from tests.system.harness import free_ports

from .a_place import Place, a_shop, place

# With STEPWIRE_TEST_OWNER, the shop's state is on a server. These tests are about the file of a SQLite database.
collect_ignore = [] if OWNER is None else ["test_db.py"]


@pytest.fixture
def empty(tmp_path: Path) -> Place:
    """A place without a broker."""
    tmp_path.chmod(0o700)
    return place(tmp_path)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, free_port: int) -> Iterator[Place]:
    """A place with a broker, two workflows and a worker: of this module, so that no other one has filled its lists."""
    with a_shop(tmp_path_factory.mktemp("shop"), free_port) as here:
        yield here


@pytest.fixture(scope="module")
def stored(shop: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a database with a completed task, a held one and a waiting one."""
    for card, code in (("good", 0), ("unknown", 13)):
        submitted = shop.stepwire("task", "submit", "shop::order", "--context", json.dumps({"card": card}), "--wait")
        assert submitted.code == code, submitted
    assert shop.stepwire("task", "submit", "shop::slow").code == 0
    file = tmp_path_factory.mktemp("stored") / "b.db"
    made = shop.stepwire("db", "backup", str(file))
    assert made.code == 0, made
    return file


@pytest.fixture(scope="module")
def free_port() -> int:
    return free_ports(1)[0]
