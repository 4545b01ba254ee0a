"""A part of the fuzzers that run as commands: no crash, no exception, no 500, and honest work afterwards."""

import random
from pathlib import Path

import pytest
from stepwire_broker.api.operations import OPERATIONS

from . import handshakes, http_bodies
from .http_requests import BODIES, request


def test_hostile_requests_to_every_operation_harm_nothing() -> None:
    report = http_bodies.run(seed=0, count=3_000, sockets=200)
    assert report["faults"] == []


@pytest.mark.parametrize("with_keys", [False, True])
def test_hostile_handshakes_harm_nothing(tmp_path: Path, with_keys: bool) -> None:
    tmp_path.chmod(0o700)
    report = handshakes.fuzz(tmp_path, 0, 300, with_keys=with_keys)
    assert report["faults"] == []


def test_each_operation_with_a_body_has_an_example_to_mutate() -> None:
    assert BODIES.keys() == {name for name, operation in OPERATIONS.items() if operation.body is not None}


def test_a_seed_gives_the_same_request_again() -> None:
    assert request(random.Random("1.7"), 7) == request(random.Random("1.7"), 7)
