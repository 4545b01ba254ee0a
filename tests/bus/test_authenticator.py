"""The authenticator: which connections it admits, as whom, and that no request ends it."""

import itertools
from typing import Any

import pytest
import zmq
from stepwire_broker.bus.admission import Admission, ZapVerdict, proof_of_key
from stepwire_broker.bus.authenticator import (
    CURVE_DOMAIN,
    IPC_DOMAIN,
    OPEN_DOMAIN,
    ZAP_ENDPOINT,
    Authenticator,
    AuthenticatorTaken,
    decide,
)

KEY, OTHER, OLD = (bytes([n]) * 32 for n in range(1, 4))
ADMISSION = Admission(
    keys={KEY: "shop"},
    uids={1000: "owner", 1001: "batch"},
    anonymous="anonymous",
    refused_keys={OLD: ZapVerdict("gone", "revoked_key")},
    refused_uids={1003: ZapVerdict("late", "expired_key")},
)


def request(domain: bytes, mechanism: bytes, *credentials: bytes, address: bytes = b"10.0.0.1") -> list[bytes]:
    return [b"1.0", b"7", domain, address, b"", mechanism, *credentials]


def user(uid: str) -> list[bytes]:
    return request(IPC_DOMAIN, b"NULL", address=f"localhost:{uid}:0:4711".encode())


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        (request(CURVE_DOMAIN, b"CURVE", KEY), ZapVerdict("shop", proof=proof_of_key(KEY))),
        (request(CURVE_DOMAIN, b"CURVE", OTHER), ZapVerdict("", "unknown_key")),
        (request(CURVE_DOMAIN, b"CURVE", OLD), ZapVerdict("gone", "revoked_key")),
        (request(CURVE_DOMAIN, b"CURVE"), ZapVerdict("", "unknown_key")),
        (request(CURVE_DOMAIN, b"CURVE", KEY, KEY), ZapVerdict("", "unknown_key")),
        (request(CURVE_DOMAIN, b"NULL"), ZapVerdict("", "bad_handshake")),
        (request(CURVE_DOMAIN, b"PLAIN", b"shop", b"secret"), ZapVerdict("", "bad_handshake")),
        (request(OPEN_DOMAIN, b"NULL"), ZapVerdict("anonymous")),
        (request(OPEN_DOMAIN, b"CURVE", KEY), ZapVerdict("", "bad_handshake")),
        (request(b"", b"NULL"), ZapVerdict("", "bad_handshake")),
        (request(b"other", b"CURVE", KEY), ZapVerdict("", "bad_handshake")),
        (user("1000"), ZapVerdict("owner", proof="unix=1000")),
        (user("1001"), ZapVerdict("batch", proof="unix=1001")),
        (user("1002"), ZapVerdict("", "unknown_user")),
        (user("1003"), ZapVerdict("late", "expired_key")),
        (user("-1"), ZapVerdict("", "unknown_user")),
        (user("1000:1"), ZapVerdict("", "unknown_user")),
        (request(IPC_DOMAIN, b"NULL", address=b""), ZapVerdict("", "unknown_user")),
        (request(IPC_DOMAIN, b"NULL", address=b"localhost"), ZapVerdict("", "unknown_user")),
        ([b"1.0", b"7"], ZapVerdict("", "bad_handshake")),
        ([], ZapVerdict("", "bad_handshake")),
        ([b"2.0", *user("1000")[1:]], ZapVerdict("", "bad_handshake")),
    ],
)
def test_a_connection_is_admitted_by_its_listener_and_its_proof(asked: list[bytes], verdict: ZapVerdict) -> None:
    assert decide(ADMISSION, asked) == verdict


def test_without_a_principal_for_open_connections_they_are_refused() -> None:
    assert decide(Admission(), request(OPEN_DOMAIN, b"NULL")) == ZapVerdict("", "no_key")


def test_a_blocked_principal_is_refused() -> None:
    blocked = Admission(keys={KEY: "shop"}, blocked=frozenset({"shop"}))
    assert decide(blocked, request(CURVE_DOMAIN, b"CURVE", KEY)) == ZapVerdict("shop", "blocked", proof_of_key(KEY))


def test_every_answer_is_200_with_a_user_id_or_300_without_one(context: zmq.Context[Any]) -> None:
    authenticator = Authenticator(context, ADMISSION)
    try:
        for asked in (request(CURVE_DOMAIN, b"CURVE", KEY), request(CURVE_DOMAIN, b"CURVE", OTHER), user("x")):
            answer = ask(context, asked)
            assert answer[:2] == [b"1.0", b"7"]
            assert (answer[2], bool(answer[4])) in ((b"200", True), (b"300", False)), answer
        assert authenticator.refused["unknown_key"] == authenticator.refused["unknown_user"] == 1
        refusals = authenticator.take_refusals()
        assert [(one.reason, one.address, len(one.key)) for one in refusals] == [
            ("unknown_key", "10.0.0.1", 40),
            ("unknown_user", "localhost:x:0:4711", 0),
        ]
        assert authenticator.take_refusals() == []
    finally:
        authenticator.close()


def test_no_request_ends_the_authenticator(context: zmq.Context[Any]) -> None:
    authenticator = Authenticator(context, ADMISSION)
    parts = (
        b"",
        b"1.0",
        b"\xff" * 32,
        IPC_DOMAIN,
        CURVE_DOMAIN,
        b"NULL",
        b"CURVE",
        b"localhost:\xb2:0:1",
        b"x" * 70_000,
    )
    try:
        for number, mixed in enumerate(itertools.product(parts, repeat=3)):
            frames = [b"1.0", b"7", *mixed, b"NULL", b"x"][: 1 + number % 7]
            assert ask(context, frames)[2] == b"300", frames
        assert ask(context, request(CURVE_DOMAIN, b"CURVE", KEY))[2] == b"200"
    finally:
        authenticator.close()


def test_a_replaced_admission_counts_for_the_next_request(context: zmq.Context[Any]) -> None:
    authenticator = Authenticator(context, Admission())
    try:
        assert ask(context, request(CURVE_DOMAIN, b"CURVE", KEY))[2] == b"300"
        authenticator.replace(ADMISSION)
        user_id = f"shop#{proof_of_key(KEY)}#0".encode()
        assert ask(context, request(CURVE_DOMAIN, b"CURVE", KEY))[2:5] == [b"200", b"", user_id]
    finally:
        authenticator.close()


def test_a_context_has_one_authenticator_at_a_time(context: zmq.Context[Any]) -> None:
    first = Authenticator(context, Admission())
    with pytest.raises(AuthenticatorTaken):
        Authenticator(context, Admission())
    first.close()
    Authenticator(context, Admission()).close()


def ask(context: zmq.Context[Any], frames: list[bytes]) -> list[bytes]:
    """Ask as libzmq does."""
    socket = context.socket(zmq.REQ)
    socket.linger = 0
    socket.connect(ZAP_ENDPOINT)
    try:
        socket.send_multipart(frames)
        assert socket.poll(10_000), frames
        answer: list[bytes] = socket.recv_multipart()
        return answer
    finally:
        socket.close()
