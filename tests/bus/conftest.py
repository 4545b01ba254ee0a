from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from stepwire_broker.core.definitions.settings import BusSettings


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def ipc(tmp_path: Path) -> BusSettings:
    return BusSettings(steps=f"ipc://{tmp_path}/steps.sock", results=f"ipc://{tmp_path}/results.sock")


@pytest.fixture(params=["inproc", "ipc", "tcp"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> BusSettings:
    """The same test over each transport."""
    return {
        "inproc": BusSettings(steps="inproc://steps", results="inproc://results"),
        "ipc": BusSettings(steps=f"ipc://{tmp_path}/steps.sock", results=f"ipc://{tmp_path}/results.sock"),
        "tcp": BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*"),
    }[request.param]
