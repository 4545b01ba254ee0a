"""The vectors, as every implementation reads them: messages to accept, and messages to refuse with their codes."""

import time
from typing import Any

import pytest
from conformance.values import members
from conformance.vectors import frames_of, load
from msgspec import Struct
from stepwire_protocol import codec, errors, schema, strict_json
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import BrokerMessage, WorkerMessage

from .receivers import read_as_broker, read_as_worker

ACCEPTED = load("accepted")["messages"]
IGNORED = load("accepted")["ignored"]
REFUSED = load("refused")["messages"]
# Codes that depend on the state of the receiver, not on the bytes alone.
NEEDS_STATE = {"unauthorized", "unknown_session", "wrong_batch", "wrong_sender", "unknown_delivery"}


def read(vector: dict[str, Any]) -> Struct:
    of_worker = vector.get("sender") == "worker" or vector.get("to") == "broker"
    return (read_as_broker if of_worker else read_as_worker)(frames_of(vector))


@pytest.mark.parametrize("vector", ACCEPTED, ids=lambda v: v["name"])
def test_an_accepted_message_has_its_value(vector: dict[str, Any]) -> None:
    message = read(vector)
    assert members(message) == vector["value"]
    if vector["exact"]:
        assert codec.encode(message) == vector["text"].encode()
    assert read({**vector, "text": codec.encode(message).decode()}) == message


@pytest.mark.parametrize("vector", REFUSED, ids=lambda v: v["name"])
def test_an_invalid_message_is_refused_with_its_code(vector: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage) as refused:
        read(vector)
    assert refused.value.code == vector["code"]
    assert len(refused.value.message) < 1024


@pytest.mark.parametrize("vector", [v for v in REFUSED if "sender" in v], ids=lambda v: v["name"])
def test_the_sender_of_an_invalid_message_can_be_read(vector: dict[str, Any]) -> None:
    (frame,) = frames_of(vector)
    assert codec.sender_of(codec.split(frame)[1])._asdict() == vector["sender"]


@pytest.mark.parametrize("vector", IGNORED, ids=lambda v: v["sender"])
def test_a_type_of_a_later_version_is_an_unknown_type(vector: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage) as refused:
        read(vector)
    assert refused.value.code == "unknown_type"


def test_the_names_of_vectors_are_unique() -> None:
    for vectors in (ACCEPTED, REFUSED):
        names = [v["name"] for v in vectors]
        assert len(set(names)) == len(names)


def test_every_type_of_message_has_an_accepted_vector() -> None:
    seen = {type(read(vector)) for vector in ACCEPTED}
    every: set[type] = {*WorkerMessage.__args__, *BrokerMessage.__args__}  # type: ignore[attr-defined]
    assert seen == every | {d.type for d in schema.DOCUMENTS if d.name.startswith("level0")}


def test_every_optional_member_is_in_an_accepted_vector() -> None:
    def names(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value).union(*map(names, value.values()))
        return set().union(*map(names, value)) if isinstance(value, list) else set()

    sent = set().union(*(names(strict_json.parse(v["text"].encode())) for v in ACCEPTED))
    for document in schema.DOCUMENTS:
        assert set(document.type.__struct_fields__) <= sent, document.name


def test_every_code_that_depends_on_the_bytes_has_a_refused_vector() -> None:
    codes = {v["code"] for v in REFUSED}
    assert codes == set(errors.REFUSALS) - NEEDS_STATE - {"unknown_type"}


def test_no_invalid_message_takes_long_to_refuse() -> None:
    """The limit is far above the expected time: only an algorithm of quadratic time exceeds it."""
    slowest = max(REFUSED, key=lambda v: sum(map(len, frames_of(v))))
    begin = time.process_time()
    for vector in (slowest, *REFUSED):
        with pytest.raises(InvalidMessage):
            read(vector)
    assert time.process_time() - begin < 20
