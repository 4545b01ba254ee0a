"""The principal of a frame, on real sockets of each transport."""

import asyncio
import os
import socket as sockets
from pathlib import Path
from typing import Any

import pytest
import zmq
from stepwire_broker.bus.identity import Identities
from stepwire_broker.core.brokers.listeners import ListenerKind
from stepwire_broker.core.definitions.settings import BusSettings, CurveSettings
from stepwire_broker.core.model.principal import ANONYMOUS, OWNER, PROCESS
from stepwire_protocol import topics

from .bench import Bench, new_worker, run, serving, until

Context = zmq.Context[Any]
OTHER_UID = 54_321
TOPICS = 3  # that the broker subscribes


async def publishing(bench: Bench, endpoint: str) -> zmq.Socket[bytes]:
    """Return a socket whose messages reach the wire from now on: it has received the wire's subscriptions."""
    socket = bench._socket(zmq.XPUB)
    socket.connect(endpoint)
    for _ in range(TOPICS):
        await until(lambda: socket.poll(0) != 0)
        socket.recv()
    return socket


def expected(settings: BusSettings) -> str:
    return {"tcp": ANONYMOUS, "ipc": OWNER, "inproc": PROCESS}[settings.steps.partition(":")[0]]


def test_every_event_of_the_bus_has_the_principal_of_its_connection(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        found: list[tuple[str, str]] = []
        methods = {
            "on_message": lambda topic, body, principal: found.append(("message", principal)),
            "on_refused_frame": lambda code, data, principal: found.append(("refused", principal)),
            "on_subscribed": lambda worker, principal, kind: found.append(("subscribed", principal)),
            "on_vanished": lambda worker, principal: found.append(("vanished", principal)),
        }
        async with serving(settings, context, **methods) as bench:
            _, inbox = new_worker()
            subscriber = bench.subscriber(inbox)
            await until(lambda: any(kind == "subscribed" for kind, _ in found))
            publisher = await publishing(bench, bench.wire.endpoints["results"])
            publisher.send(b"workers {}")
            publisher.send_multipart([b"workers {}", b"more"])
            subscriber.close(0)
            await until(lambda: {kind for kind, _ in found} == {"message", "refused", "subscribed", "vanished"})
        assert {principal for _, principal in found} == {expected(settings)}

    run(story())


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_worker_in_this_process_has_another_principal_than_one_on_the_socket(
    transport: str, tmp_path: Path, context: Context
) -> None:
    """Both use the same broker sockets: frames of inproc have no metadata at all."""
    settings = {
        "ipc": BusSettings(steps=f"ipc://{tmp_path}/steps.sock", results=f"ipc://{tmp_path}/results.sock"),
        "tcp": BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*"),
    }[transport]

    async def story() -> None:
        found: list[tuple[bytes, str]] = []
        peers: dict[str, str] = {}
        kinds: set[ListenerKind] = set()
        async with serving(
            settings,
            context,
            on_message=lambda topic, body, principal: found.append((body, principal)),
            on_subscribed=lambda worker, principal, kind: (peers.__setitem__(worker, principal), kinds.add(kind)),
        ) as bench:
            steps, results = bench.wire.inner_endpoints()
            (inner, inner_inbox), (outer, outer_inbox) = new_worker(), new_worker()
            for topic, endpoint in ((inner_inbox, steps), (outer_inbox, bench.wire.endpoints["steps"])):
                socket = bench._socket(zmq.SUB)
                socket.subscribe(topic)
                socket.connect(endpoint)
            for body, endpoint in ((b"inner", results), (b"outer", bench.wire.endpoints["results"])):
                publisher = await publishing(bench, endpoint)
                publisher.send(topics.WORKERS + body)
            await until(lambda: len(found) >= 2 and len(peers) >= 2)
        outside = expected(settings)
        assert dict(found) == {b"inner": PROCESS, b"outer": outside}
        assert peers == {inner: PROCESS, outer: outside}
        assert kinds == {ListenerKind.INPROC, ListenerKind(transport)}

    run(story())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_account_over_ipc_is_the_principal_of_its_client_file(tmp_path: Path, context: Context) -> None:
    clients = tmp_path / "clients"
    clients.mkdir(mode=0o700)
    (clients / "batch").write_text(f"unix={OTHER_UID}\n")
    (clients / "batch").chmod(0o600)
    settings = BusSettings(
        steps=f"ipc://{tmp_path}/steps.sock",
        results=f"ipc://{tmp_path}/results.sock",
        curve=CurveSettings(clients_dir=str(clients)),
    )

    async def story() -> None:
        found: list[str] = []
        async with serving(
            settings, context, on_message=lambda topic, body, principal: found.append(principal)
        ) as bench:
            for path in (tmp_path, *tmp_path.parents):
                if path.stat().st_uid == os.geteuid() and path != Path("/"):
                    path.chmod(path.stat().st_mode | 0o011)
            (tmp_path / "results.sock").chmod(0o777)
            child = os.fork()
            if child == 0:
                _send_as(OTHER_UID, bench.wire.endpoints["results"])
            await until(lambda: bool(found))
            await asyncio.to_thread(os.waitpid, child, 0)
        assert set(found) == {"batch"}

    run(story())


def _send_as(uid: int, endpoint: str) -> None:
    """Send one message from a process of another user, which this process becomes."""
    try:
        os.setuid(uid)
        with zmq.Context() as own:
            socket = own.socket(zmq.XPUB)
            socket.connect(endpoint)
            for _ in range(TOPICS):
                socket.poll(5_000)
                socket.recv(zmq.NOBLOCK)
            socket.send(b"workers {}")
            socket.close(1_000)
    finally:
        os._exit(0)


def test_a_user_id_that_the_peer_writes_itself_is_not_believed(context: Context) -> None:
    """libzmq passes on what a peer writes into its handshake, but never in place of what the authenticator answers."""

    async def story() -> None:
        found: list[str] = []
        settings = BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*")
        async with serving(
            settings, context, on_message=lambda topic, body, principal: found.append(principal)
        ) as bench:
            forged = ForgedPeer(bench.wire.endpoints["results"])
            forged.send(b"workers {}")
            await until(lambda: bool(found))
            forged.close()
        assert found == [ANONYMOUS]

    run(story())


class ForgedPeer:
    """A PUB that speaks ZMTP itself, and claims a User-Id and an address in its handshake."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._socket = sockets.create_connection((host, int(port)), timeout=5)
        self._socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32))
        self._read(64)
        properties = {"Socket-Type": b"PUB", "User-Id": b"owner", "Peer-Address": b"localhost:0:0:1"}
        body = b"\x05READY" + b"".join(
            bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value
            for name, value in properties.items()
        )
        self._socket.sendall(bytes([4, len(body)]) + body)

    def send(self, frame: bytes) -> None:
        self._socket.sendall(bytes([0, len(frame)]) + frame)

    def close(self) -> None:
        self._socket.close()

    def _read(self, count: int) -> None:
        while count:
            count -= len(self._socket.recv(count))


def test_the_end_of_a_refused_subscriber_does_not_close_the_inbox(settings: BusSettings, context: Context) -> None:
    """libzmq does not say whose pipe ended, only that one which had asked for this topic did."""
    if settings.steps.startswith("inproc"):
        pytest.skip("all peers of inproc are this process")

    async def story() -> None:
        strangers = 0

        def refusal_of(topic: bytes, principal: str) -> str | None:
            nonlocal strangers
            if topic == inbox and held:
                strangers += 1
                return "foreign_inbox"
            return None

        worker, inbox = new_worker()
        held: list[str] = []
        async with serving(settings, context, refusal_of=refusal_of) as bench:
            own = bench.subscriber(inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            held.append(worker)
            for number in range(1, 31):
                stranger = bench.subscriber(inbox)
                await until(lambda number=number: strangers == number)
                stranger.close(0)
            marker, marker_inbox = new_worker()
            bench.subscriber(marker_inbox)
            await until(lambda: ("subscribed", marker) in bench.log.peers)
            assert ("vanished", worker) not in bench.log.peers
            assert bench.wire.counters.refused["foreign_inbox"] == 30
            assert bench.wire.send(inbox, b"still here")
            assert await until_received(own) == inbox + b"still here"
            own.close(0)
            await until(lambda: ("vanished", worker) in bench.log.peers)

    async def until_received(socket: zmq.Socket[bytes]) -> bytes:
        await until(lambda: socket.poll(0) != 0)
        return socket.recv()

    run(story())


def test_a_frame_without_metadata_is_nobodys_where_no_inproc_endpoint_is_bound() -> None:
    assert Identities(has_inner=False).of(zmq.Frame(b"x")) == ""
    assert Identities(has_inner=True).of(zmq.Frame(b"x")) == PROCESS
