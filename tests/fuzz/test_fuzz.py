"""A part of the fuzzers that run as commands: no crash, no exception, no 500, and honest work afterwards."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.api.operations import OPERATIONS
from stepwire_protocol.messages import FromWorker

from tests.api.running_api import running, settings_in

from . import bus_messages, bus_sockets, handshakes, http_bodies
from .bus_mutations import BLOCK, WORKER, Live, Messages, templates
from .http_requests import BODIES, Request, request
from .observed import Observed

NAMES = {"lane": "1", "task_id": "1", "step_id": "2", "worker": "w", "executor": "bus", "handler_class": "fuzz.a"}


def test_hostile_requests_to_every_operation_harm_nothing() -> None:
    report = http_bodies.run(seed=0, count=3_000, sockets=200)
    assert report["faults"] == []


def test_a_long_poll_whose_client_has_gone_is_no_missing_answer() -> None:
    number = next(
        number for number in range(100_000) if _waits_for_a_new_task(request(random.Random(f"1.{number}"), number))
    )
    report = http_bodies.run(seed=1, first=number, count=1, sockets=0)
    assert (report["answers"][http_bodies.GONE], report["faults"]) == (1, [])


def _waits_for_a_new_task(hostile: Request) -> bool:
    return hostile[:3] == ("POST", "/v1/tasks", "wait_ms=1") and b'"workflow": "order"' in hostile.body


def test_a_request_that_ends_without_an_answer_to_its_client_is_a_fault() -> None:
    async def silent(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()

    observed = Observed()
    hostile = Request("GET", "/v1/tasks", "", b"application/json", b"")
    asyncio.run(http_bodies._enter(silent, hostile, 7, observed))
    assert [fault[:2] for fault in observed.faults] == ["7:"]


@pytest.mark.parametrize("with_keys", [False, True])
def test_hostile_handshakes_harm_nothing(tmp_path: Path, with_keys: bool) -> None:
    tmp_path.chmod(0o700)
    report = handshakes.fuzz(tmp_path, 0, 300, with_keys=with_keys)
    assert report["faults"] == []


def test_mutated_messages_of_a_worker_harm_nothing() -> None:
    report = bus_messages.run(seed=0, first=0, count=4_000)
    assert report["faults"] == []
    assert report["messages"] == 4_000
    assert report["steps"]["completed"] > 0, "none of them has reached the steps of the worker itself"


def test_mutated_messages_over_connections_harm_nothing() -> None:
    report = bus_sockets.run(seed=0, first=0, count=500)
    assert report["faults"] == []
    assert report["arrived"] > 0
    assert report["disconnections"]["refused_frames"] > 0


def test_every_message_of_a_worker_is_mutated() -> None:
    mutated = {dict(each.tree).get(b'"type"', b'"level0"').decode().strip('"') for each in templates()}
    assert mutated == {each.__struct_config__.tag for each in FromWorker.__subclasses__()} | {"level0"}


def test_a_seed_and_a_number_give_the_same_message_again() -> None:
    live = Live.unknown(WORKER)
    assert Messages(1).block(7 * BLOCK, live) == Messages(1).block(7 * BLOCK, live)
    assert Messages(1).block(7 * BLOCK, live) != Messages(2).block(7 * BLOCK, live)


def test_each_operation_with_a_body_has_an_example_to_mutate() -> None:
    assert BODIES.keys() == {name for name, operation in OPERATIONS.items() if operation.body is not None}


def test_a_seed_gives_the_same_request_again() -> None:
    assert request(random.Random("1.7"), 7) == request(random.Random("1.7"), 7)


def test_a_body_that_is_no_unicode_is_a_bad_request_for_each_operation(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with running(tmp_path, settings_in(tmp_path)) as api:
        for method, path in BODIES:
            for name, value in NAMES.items():
                path = path.replace(f"{{{name}}}", value)
            for body in (b'{"\xff": 1}', b'{"a": "\xed\xa0\x80"}', b'{"a":' * 2_000):
                assert api.call(method, path, body).status == 400, (path, body)
