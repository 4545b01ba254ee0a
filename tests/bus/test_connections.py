"""Budgets on real sockets: a peer that exceeds one is disconnected, and other peers are served meanwhile."""

import asyncio
import contextlib
import itertools
import os
import socket as plain_socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from stepwire_broker.bus import authenticator, budgets
from stepwire_broker.bus.bus_connection import Role
from stepwire_broker.bus.connections import Connections
from stepwire_broker.bus.counters import WireCounters
from stepwire_broker.bus.disconnecting import disconnect, inode_of
from stepwire_broker.bus.keys import server_key
from stepwire_broker.bus.newcomers import Newcomers
from stepwire_broker.bus.unread_memory import UnreadMemory
from stepwire_broker.core.definitions.settings import BusSettings, CurveSettings
from stepwire_broker.core.model.principal import ANONYMOUS, OWNER

from . import strangers
from .bench import Bench, new_worker, run, serving, until

Context = zmq.Context[Any]
MIB = 1024 * 1024

TCP = BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*")


@pytest.fixture(params=["ipc", "tcp"])
def remote(request: pytest.FixtureRequest, ipc: BusSettings) -> BusSettings:
    """The transports whose peers have connections."""
    return ipc if request.param == "ipc" else TCP


async def join(bench: Bench) -> zmq.Socket[bytes]:
    """The inbox of an honest worker, once it receives messages."""
    worker, inbox = new_worker()
    subscriber = bench.subscriber(b"brokers ", inbox)
    # After a reconnect, a SUB subscribes again only when its owner uses it.
    await until(lambda: subscriber.poll(0) >= 0 and ("subscribed", worker) in bench.log.peers)
    await until(lambda: bench.wire.send(inbox, b"{}"))
    while await bench.receive(subscriber) != inbox + b"{}":
        pass
    return subscriber


async def flood(peer: plain_socket.socket, data: bytes) -> None:
    """Send everything, or as much as the broker accepts before it ends the connection."""
    with contextlib.suppress(OSError):
        await asyncio.to_thread(peer.sendall, data)


async def hands_shaken(endpoint: str, kind: str) -> plain_socket.socket:
    """A peer that has finished its handshake. The broker needs its loop for that."""
    return await asyncio.to_thread(strangers.shake_hands, endpoint, kind)


async def admitted(endpoint: str, kind: str) -> plain_socket.socket:
    """A peer that has finished its handshake and read what the broker sends then, as libzmq does."""
    peer = await hands_shaken(endpoint, kind)
    await asyncio.to_thread(strangers.receive, peer, 1)
    assert not strangers.is_closed(peer)
    return peer


def ended(bench: Bench, reason: str) -> int:
    return bench.wire.counters.disconnected[reason]


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- handshakes -------------------------------------------------------------------------------------------------------


def test_no_connection_is_admitted_while_the_loop_does_not_know_it(
    remote: BusSettings, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a connection would have no budgets: the broker could not disconnect it, and its topics fill the memory."""
    monkeypatch.setattr(authenticator, "KNOWN_WITHIN_S", 60.0)

    async def story() -> None:
        async with serving(remote, context) as bench:
            peer = strangers.connected(bench.wire.bound[0].steps)
            peer.sendall(strangers.GREETING + strangers.ready("SUB"))
            strangers.receive(peer, len(strangers.GREETING))
            peer.settimeout(0.3)
            with pytest.raises(TimeoutError):  # the loop is busy with this test
                strangers.receive(peer, 1)
            peer.settimeout(strangers.READ_S)
            await asyncio.to_thread(strangers.receive, peer, 1)
            peer.close()

    run(story())


def test_the_broker_closes_while_a_connection_waits_for_its_loop(
    remote: BusSettings, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "KNOWN_WITHIN_S", 3_600.0)
    asked = threading.Event()
    wait_until_known = Newcomers.wait_until_known

    def waiting(newcomers: Newcomers, wait_s: float) -> None:
        asked.set()
        wait_until_known(newcomers, wait_s)

    monkeypatch.setattr(Newcomers, "wait_until_known", waiting)

    async def story() -> None:
        async with serving(remote, context) as bench:
            peer = strangers.connected(bench.wire.bound[0].steps)
            peer.sendall(strangers.GREETING + strangers.ready("SUB"))
            assert asked.wait(strangers.READ_S)
        peer.close()

    run(story())


# -- subscriptions ----------------------------------------------------------------------------------------------------


def test_a_peer_that_requests_thousands_of_topics_is_disconnected_and_costs_no_memory(
    remote: BusSettings, context: Context
) -> None:
    async def story() -> None:
        async with serving(remote, context) as bench:
            await join(bench)
            topics = b"".join(strangers.frame(b"\x01%08d" % n + b"x" * 450) for n in range(20_000))
            peer = await hands_shaken(bench.wire.endpoints["steps"], "SUB")
            before = resident_bytes()
            await flood(peer, topics)
            await until(lambda: ended(bench, "subscriptions") == 1)
            await join(bench)
            assert resident_bytes() - before < 64 * MIB  # without a budget: 400 MiB

    run(story())


def test_a_peer_may_subscribe_eight_topics_and_not_nine(remote: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(remote, context) as bench:
            worker, inbox = new_worker()
            others = [b"other%d " % n for n in range(budgets.SUBSCRIPTIONS_MAX - 1)]
            peer = bench.subscriber(*others, inbox, kind=zmq.XSUB)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            assert not any(bench.wire.counters.disconnected.values())
            peer.send(b"\x01one more ")
            await until(lambda: ended(bench, "subscriptions") == 1)
            await until(lambda: ("vanished", worker) in bench.log.peers)

    run(story())


def test_a_peer_that_subscribes_and_unsubscribes_without_end_is_disconnected(
    remote: BusSettings, context: Context
) -> None:
    async def story() -> None:
        async with serving(remote, context) as bench:
            worker, inbox = new_worker()
            turns = budgets.SUBSCRIPTION_CHANGES_MAX
            peer = await hands_shaken(bench.wire.endpoints["steps"], "SUB")
            await flood(peer, (strangers.frame(b"\x01" + inbox) + strangers.frame(b"\x00" + inbox)) * turns)
            await until(lambda: ended(bench, "subscriptions") == 1)
            assert bench.log.peers.count(("subscribed", worker)) <= turns / 2 + 1

    run(story())


def test_a_user_message_disconnects_its_sender_and_no_other_peer(remote: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(remote, context) as bench:
            honest = await join(bench)
            peer = await hands_shaken(bench.wire.endpoints["steps"], "XSUB")
            peer.sendall(strangers.frame(b"hello"))
            await until(lambda: strangers.is_closed(peer))
            assert {reason: n for reason, n in bench.wire.counters.disconnected.items() if n} == {"user_message": 1}
            inbox = next(iter(bench.wire._audience.inboxes))
            assert bench.wire.send(inbox, b"still")
            assert await bench.receive(honest) == inbox + b"still"

    run(story())


def test_a_worker_joins_while_user_messages_flood_the_steps_socket(remote: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(remote, context) as bench:
            stop = False

            def attack() -> None:
                with zmq.Context() as own, own.socket(zmq.XSUB) as peer:
                    peer.linger = 0
                    peer.connect(bench.wire.endpoints["steps"])
                    while not stop:
                        for _ in range(100):
                            with contextlib.suppress(zmq.Again):
                                peer.send(b"hello", zmq.NOBLOCK)
                        time.sleep(0.005)  # the attack shares the interpreter with the broker

            attacker = asyncio.create_task(asyncio.to_thread(attack))
            try:
                await until(lambda: ended(bench, "user_message") >= 2)
                for _ in range(5):
                    await join(bench)  # in less than the time after which a worker rebuilds its sockets
            finally:
                stop = True
                await attacker

    run(story())


def test_the_older_of_two_readers_of_an_inbox_is_disconnected_when_it_does_not_read(
    ipc: BusSettings, context: Context
) -> None:
    async def story() -> None:
        settings = BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*", steps_hwm=10)
        async with serving(settings, context) as bench:
            worker, inbox = new_worker()
            stranger = await hands_shaken(bench.wire.endpoints["steps"], "SUB")
            stranger.sendall(strangers.frame(b"\x01" + inbox))
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            honest = bench.subscriber(inbox)
            await until(lambda: bench.log.peers.count(("subscribed", worker)) == 2)
            received = 0
            for _ in range(500):
                if bench.wire.send(inbox, b"x" * 100_000):
                    await bench.receive(honest)
                    received += 1
                else:
                    await asyncio.sleep(0.001)
            assert received >= 490
            assert ended(bench, "muted_inbox") == 1

    run(story())


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_peer_with_too_many_refused_messages_is_disconnected(remote: BusSettings, context: Context) -> None:
    async def story() -> None:
        seen: list[bytes] = []

        def refuse(topic: bytes, body: bytes, principal: str) -> str | None:
            seen.append(body)
            return "not_json" if body == b"bad" else None

        async with serving(remote, context, on_message=refuse) as bench:
            peer = await hands_shaken(bench.wire.endpoints["results"], "PUB")
            honest = await hands_shaken(bench.wire.endpoints["results"], "PUB")
            peer.sendall(strangers.frame(b"workers bad") * budgets.REFUSED_MAX + strangers.frame(b"workers {}"))
            await until(lambda: seen.count(b"{}") == 1)
            assert not ended(bench, "refused_frames")
            peer.sendall(strangers.frame(b"workers bad") + strangers.frame(b"workers late") * 100)
            await until(lambda: strangers.is_closed(peer))
            assert ended(bench, "refused_frames") == 1
            honest.sendall(strangers.frame(b"workers honest"))
            await until(lambda: b"honest" in seen)
            assert b"late" not in seen  # what a disconnected peer has already sent is ignored

    run(story())


def test_parts_of_messages_count_as_refused(remote: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(remote, context) as bench:
            peer = await hands_shaken(bench.wire.endpoints["results"], "PUB")
            message = strangers.frame(b"workers ", more=True) + strangers.frame(b"{}")
            peer.sendall(message * (budgets.REFUSED_MAX + 1))
            await until(lambda: ended(bench, "refused_frames") == 1)

    run(story())


def test_the_connection_that_floods_is_disconnected_before_others_of_its_principal(
    remote: BusSettings, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr(budgets, "MESSAGES_PER_S", 500)
        async with serving(remote, context) as bench:
            honest = await hands_shaken(bench.wire.endpoints["results"], "PUB")
            honest.sendall(strangers.frame(b"workers honest"))
            await until(lambda: bool(bench.log.messages))
            peer = await hands_shaken(bench.wire.endpoints["results"], "PUB")
            await flood(peer, strangers.frame(b"workers flood") * 20_000)
            await until(lambda: ended(bench, "rate") == 1)
            assert len(bench.log.messages) < 15_000  # of 20,000; a slow machine has more time for its rate
            assert bench.wire.counters.refused["rate"] > 0
            await until(lambda: honest.sendall(strangers.frame(b"workers again")) is None and _has(bench, b"again"))

    run(story())


def _has(bench: Bench, body: bytes) -> bool:
    return any(message == body for _, message in bench.log.messages)


@pytest.mark.parametrize(
    "attack",
    [
        lambda n: strangers.begun(8 * MIB) + bytes(4 * MIB),
        lambda n: strangers.frame(bytes(MIB), more=True) * 4,
    ],
    ids=["unfinished frames", "unfinished messages of many parts"],
)
def test_unfinished_messages_of_all_peers_together_stay_within_the_budget(
    attack: Callable[[int], bytes], context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr(budgets, "UNREAD_BYTES_MAX", 32 * MIB)
        settings = BusSettings(steps=TCP.steps, results=TCP.results, max_message_bytes=4 * MIB)
        async with serving(settings, context) as bench:
            honest = await bench.publisher()
            peers = [await hands_shaken(bench.wire.endpoints["results"], "PUB") for _ in range(16)]
            # An honest PUB sends its first message after the broker's subscriptions.
            await until(lambda: all(one.is_admitted for one in bench.wire._connections._open.values()))
            await asyncio.gather(*(flood(peer, attack(n)) for n, peer in enumerate(peers)))
            await until(lambda: ended(bench, "unread_bytes") >= 8)
            await until(lambda: sum(map(strangers.is_closed, peers)) == ended(bench, "unread_bytes"))
            assert ended(bench, "unread_bytes") <= 10
            honest.send(b"workers honest")
            await until(lambda: _has(bench, b"honest"))

    run(story())


def test_an_endless_message_into_the_steps_socket_is_disconnected(context: Context) -> None:
    async def story() -> None:
        async with serving(TCP, context) as bench:
            peer = await hands_shaken(bench.wire.endpoints["steps"], "XSUB")
            await flood(peer, strangers.frame(bytes(500), more=True) * 20_000)
            await until(lambda: ended(bench, "unread_bytes") + ended(bench, "user_message") == 1)
            await until(lambda: strangers.is_closed(peer))

    run(story())


@pytest.mark.parametrize("mechanism", [b"NULL", b"CURVE"])
def test_a_handshake_with_a_large_command_is_disconnected_before_its_end(
    mechanism: bytes, context: Context, keys: CurveSettings
) -> None:
    async def story() -> None:
        settings = msgspec.structs.replace(TCP, curve=keys) if mechanism == b"CURVE" else TCP
        async with serving(settings, context) as bench:
            address = bench.wire.endpoints["results"]
            peers = [strangers.connected(address) for _ in range(8)]
            data = strangers.greeting(mechanism) + b"\x06" + (4 * MIB).to_bytes(8, "big") + bytes(MIB)
            await asyncio.gather(*(flood(peer, data) for peer in peers))
            await until(lambda: all(map(strangers.is_closed, peers)))
            assert ended(bench, "unauthenticated") == 8

    run(story())


@pytest.fixture
def keys(tmp_path: Path) -> CurveSettings:
    secret_file, clients = tmp_path / "server.key", tmp_path / "clients"
    server_key.init(secret_file, clients)
    return CurveSettings(secret_file=str(secret_file), clients_dir=str(clients))


def test_new_connections_wait_while_too_much_waits_unread(
    remote: BusSettings, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr(budgets, "HOLD_BACK_S", 60.0)
        async with serving(remote, context) as bench:
            monkeypatch.setattr(bench.wire._connections.floods._memory, "is_too_large", lambda: True)
            held = bench.wire._gate._authenticator
            assert held is not None
            await until(lambda: not held._may_answer.is_set())
            joining = asyncio.ensure_future(
                asyncio.to_thread(strangers.shake_hands, bench.wire.endpoints["results"], "PUB")
            )
            await until(lambda: bench.wire.counters.connections["results"] == 1)
            for _ in range(20):  # a connection that does not wait needs a few turns of the loop
                await asyncio.sleep(0.005)
            assert not joining.done()
            monkeypatch.setattr(bench.wire._connections.floods._memory, "is_too_large", lambda: False)
            await joining

    run(story())


def test_the_memory_of_messages_is_measured_from_the_last_time_when_none_waited() -> None:
    memory = UnreadMemory(64 * MIB)
    assert not memory.is_too_large()
    block = b"x" * (128 * MIB)
    assert memory.is_too_large()
    memory.queue_emptied()
    assert not memory.is_too_large()  # read, and kept: this memory is not the bus's
    assert not memory.is_too_large()
    del block


def test_a_disconnection_discards_what_the_kernel_holds_of_a_tcp_connection() -> None:
    with plain_socket.create_server(("127.0.0.1", 0)) as server:
        far = plain_socket.create_connection(server.getsockname())
        near, _ = server.accept()
        with near, far:
            far.sendall(bytes(100_000))
            assert disconnect(near.fileno(), inode_of(near.fileno()))
            for end in (near, far):
                with pytest.raises(ConnectionError):
                    end.recv(1)


# -- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("socket_name", ["steps", "results"])
def test_the_oldest_of_many_connections_without_a_handshake_are_disconnected(
    socket_name: str, remote: BusSettings, context: Context
) -> None:
    async def story() -> None:
        async with serving(remote, context) as bench:
            kind = "SUB" if socket_name == "steps" else "PUB"
            honest = [await admitted(bench.wire.endpoints[socket_name], kind) for _ in range(5)]
            silent = [strangers.connected(bench.wire.endpoints[socket_name]) for _ in range(100)]
            await until(lambda: ended(bench, "unauthenticated") >= 36)
            await until(lambda: all(map(strangers.is_closed, silent[:36])))
            await join(bench)
            assert not any(map(strangers.is_closed, honest))
            # The others are disconnected when their time for the handshake is over.
            await until(lambda: all(map(strangers.is_closed, silent)))

    run(story())


def test_ipc_peers_that_finished_their_handshake_are_not_counted_as_strangers(
    ipc: BusSettings, context: Context
) -> None:
    """Such a peer sends no frame, as the results socket of a level-0 handler before its first result."""

    async def story() -> None:
        async with serving(ipc, context) as bench:
            endpoint = bench.wire.endpoints["results"]
            quiet = [await admitted(endpoint, "PUB") for _ in range(100)]
            await join(bench)
            assert ended(bench, "unauthenticated") == 0
            left = [await hands_shaken(endpoint, "PUB") for _ in range(100)]  # successes of peers that leave
            for peer in left:
                peer.close()
            await until(lambda: bench.wire.counters.connections["results"] == len(quiet))
            silent = [strangers.connected(endpoint) for _ in range(100)]
            await until(lambda: ended(bench, "unauthenticated") >= 36)
            assert not any(map(strangers.is_closed, quiet))
            assert len(silent) == 100

    run(story())


def test_ipc_peers_that_are_no_zmtp_peers_do_not_widen_the_limit(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(ipc, context) as bench:
            endpoint = bench.wire.endpoints["results"]
            for _ in range(100):
                with strangers.connected(endpoint) as peer:
                    peer.sendall(b"GET / HTTP/1.1\r\n\r\n" * 8)
                    await until(lambda peer=peer: strangers.is_closed(peer))
            silent = [strangers.connected(endpoint) for _ in range(100)]
            await until(lambda: ended(bench, "unauthenticated") >= 36)
            assert len(silent) == 100

    run(story())


def test_the_newest_connection_above_the_limit_is_disconnected(remote: BusSettings, context: Context) -> None:
    async def story() -> None:
        settings = BusSettings(steps=remote.steps, results=remote.results, max_connections=5)
        async with serving(settings, context) as bench:
            first = [await hands_shaken(bench.wire.endpoints["results"], "PUB") for _ in range(5)]
            await until(lambda: bench.wire.counters.connections["results"] == 5)
            more = [strangers.connected(bench.wire.endpoints[name]) for name in ("steps", "results") for _ in range(5)]
            await until(lambda: ended(bench, "connections") == 10)
            await until(lambda: all(map(strangers.is_closed, more)))
            assert not any(map(strangers.is_closed, first))
            first.pop().close()
            await until(lambda: bench.wire.counters.connections["results"] == 4)
            late = await hands_shaken(bench.wire.endpoints["results"], "PUB")
            late.sendall(strangers.frame(b"workers late"))
            await until(lambda: _has(bench, b"late"))

    run(story())


def test_connections_that_come_and_go_leave_no_descriptor_and_no_record(remote: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(remote, context) as bench:
            await join(bench)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                peers = [strangers.connected(bench.wire.endpoints["results"]) for _ in range(10)]
                peers.append(await hands_shaken(bench.wire.endpoints["steps"], "SUB"))
                await until(lambda: sum(bench.wire.counters.connections.values()) == 12)
                for peer in peers:
                    peer.close()
                await until(lambda: sum(bench.wire.counters.connections.values()) == 1)
            await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
            assert len(bench.wire._connections._open) == 1
            assert not bench.wire._connections._muted
            assert not bench.wire._audience._unsubscriptions_due

    run(story())


def test_every_connection_of_a_principal_can_be_disconnected(remote: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(remote, context) as bench:
            worker, inbox = new_worker()
            subscriber = await hands_shaken(bench.wire.endpoints["steps"], "SUB")
            subscriber.sendall(strangers.frame(b"\x01" + inbox))
            publisher = await hands_shaken(bench.wire.endpoints["results"], "PUB")
            publisher.sendall(strangers.frame(b"workers {}"))
            await until(lambda: ("subscribed", worker) in bench.log.peers and bool(bench.log.messages))
            assert bench.wire.disconnect("another") == 0
            principal = OWNER if remote.steps.startswith("ipc") else ANONYMOUS
            assert bench.wire.disconnect(principal) == 2
            await until(lambda: strangers.is_closed(subscriber) and strangers.is_closed(publisher))
            await until(lambda: ("vanished", worker) in bench.log.peers)
            assert ended(bench, "revoked") == 2

    run(story())


def test_disconnections_are_reported_once_and_counted_each(remote: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(remote, context) as bench:
            for number in range(10):
                peer = await hands_shaken(bench.wire.endpoints["steps"], "XSUB")
                peer.sendall(strangers.frame(b"hello"))
                await until(lambda number=number: ended(bench, "user_message") == number + 1)  # type: ignore[misc]
            assert bench.log.disconnected == [("user_message", 1)]

    run(story())


def test_a_descriptor_that_the_other_socket_reuses_belongs_to_its_new_connection(context: Context) -> None:
    """The two monitors are two queues: the end of the earlier connection may be read after the begin of the later."""

    async def story() -> None:
        pairs: tuple[tuple[Role, Role], ...] = (("results", "steps"), ("steps", "results"))
        far: dict[Role, zmq.Socket[bytes]] = {"steps": context.socket(zmq.PAIR), "results": context.socket(zmq.PAIR)}
        near: dict[Role, zmq.Socket[bytes]] = {"steps": context.socket(zmq.PAIR), "results": context.socket(zmq.PAIR)}
        for role, monitor in near.items():
            monitor.bind(f"inproc://{role}")
            far[role].connect(f"inproc://{role}")
        counters = WireCounters()
        connections = Connections(near, 10, MIB, counters, lambda _: None, lambda *_: None)

        def report(role: Role, event: int) -> None:
            far[role].send_multipart([struct.pack("=Hi", event, 30), b"tcp://127.0.0.1:1"])

        for earlier, later in pairs:
            report(earlier, zmq.EVENT_ACCEPTED)
            report(earlier, zmq.EVENT_DISCONNECTED)
            report(later, zmq.EVENT_ACCEPTED)
            connections.read_events()
            assert counters.connections == {earlier: 0, later: 1}
            report(later, zmq.EVENT_DISCONNECTED)
            connections.read_events()
        report("results", zmq.EVENT_ACCEPTED)
        connections.read_events()
        report("results", zmq.EVENT_DISCONNECTED)
        report("steps", zmq.EVENT_ACCEPTED)
        connections.read_events()
        assert counters.connections == {"steps": 1, "results": 0}
        report("steps", zmq.EVENT_DISCONNECTED)
        connections.read_events()
        assert counters.connections == {"steps": 0, "results": 0}

    run(story())


def test_the_loop_does_other_work_while_connections_begin_and_end_without_a_pause(context: Context) -> None:
    """Each read event is replaced by a new one, as by peers that connect again at once."""

    async def story() -> None:
        far, near = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        near.bind("inproc://results")
        far.connect("inproc://results")

        class Endless:
            FD = near.FD

            def recv_multipart(self, flags: int) -> list[bytes]:
                event = next(kinds)
                far.send_multipart([struct.pack("=Hi", event, 30), b"tcp://127.0.0.1:1"])
                return near.recv_multipart(flags)

        kinds = itertools.cycle((zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED))
        counters = WireCounters()
        monitors: Any = {"results": Endless()}
        connections = Connections(monitors, 10, MIB, counters, lambda _: None, lambda *_: None)
        connections.start()
        for _ in range(20):
            await asyncio.sleep(0)
        connections.stop()
        far.close(0)
        near.close(0)

    run(story())


def test_a_descriptor_that_was_closed_or_reused_is_left_alone() -> None:
    first, other = plain_socket.socketpair()
    innocent, far = plain_socket.socketpair()
    descriptor, inode = first.fileno(), inode_of(first.fileno())
    first.close()
    assert not disconnect(descriptor, inode)
    os.dup2(innocent.fileno(), descriptor)
    assert not disconnect(descriptor, inode)
    innocent.sendall(b"still connected")
    assert far.recv(64) == b"still connected"
    assert disconnect(descriptor, inode_of(descriptor))
    assert far.recv(64) == b""
    os.close(descriptor)
    for peer in (other, innocent, far):
        peer.close()
