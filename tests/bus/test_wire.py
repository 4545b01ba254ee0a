"""The wire on real sockets: which peer receives what, which frames are refused, and that nothing starves."""

import asyncio
import itertools
import os
import random
import signal
import socket as plain_socket
import subprocess
import sys
from typing import Any

import pytest
import zmq
from stepwire_broker.bus import sockets as sockets_module
from stepwire_broker.bus.endpoints import EndpointRefused
from stepwire_broker.bus.paths import LISTENERS_LOST_MAX
from stepwire_broker.bus.reader import MESSAGES_PER_TURN
from stepwire_broker.core.brokers.listeners import ListenerKind
from stepwire_broker.core.definitions.settings import BusSettings
from stepwire_protocol import limits

from .bench import HERE, Bench, new_worker, run, serving, until

Context = zmq.Context[Any]

_KILLABLE_WORKER = """
import sys, zmq
context = zmq.Context()
socket = context.socket(zmq.SUB)
socket.subscribe(sys.argv[2].encode())
socket.connect(sys.argv[1])
print(socket.recv().decode(), flush=True)
socket.recv()
"""


# -- which peer receives what -----------------------------------------------------------------------------------------


def test_a_worker_receives_its_inbox_and_its_results_arrive(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            worker, inbox = new_worker()
            subscriber = bench.subscriber(inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            assert bench.wire.send(inbox, b'{"n":1}')
            assert await bench.receive(subscriber) == inbox + b'{"n":1}'
            assert bench.wire.send_frame(inbox + b'{"a b":2}')
            assert await bench.receive(subscriber) == inbox + b'{"a b":2}'

            publisher = await bench.publisher()
            for topic in (b"workers ", b"results ", b"results@b1 "):
                publisher.send(topic + b'{"a b":3}')
            await until(lambda: len(bench.log.messages) == 3)
            assert bench.log.messages == [
                (b"workers ", b'{"a b":3}'),
                (b"results ", b'{"a b":3}'),
                (b"results@b1 ", b'{"a b":3}'),
            ]

    run(story())


def test_an_inbox_is_private_even_to_a_peer_that_subscribes_everything(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            worker, inbox = new_worker()
            other, other_inbox = new_worker()
            mine = bench.subscriber(inbox)
            # XSUB does not filter what arrives, so it would show a leak that SUB hides.
            eavesdropper = bench.subscriber(
                b"", b"@", b"@test", inbox[:-1], b"steps_", b"stepsX ", b"results ", kind=zmq.XSUB
            )
            listens_too = bench.subscriber(other_inbox, kind=zmq.XSUB)
            await until(lambda: {("subscribed", worker), ("subscribed", other)} <= set(bench.log.peers))
            await until(lambda: sum(bench.wire.counters.refused.values()) == 7)
            for n in range(20):
                bench.wire.send(inbox, b"%d" % n)
            bench.wire.send(other_inbox, b"last")
            assert await bench.receive(listens_too) == other_inbox + b"last"
            assert await bench.receive(mine) == inbox + b"0"
            assert await bench.greeting(eavesdropper) == b"brokers " + HERE
            assert not eavesdropper.poll(0)
            assert bench.wire.counters.refused["subscription"] == 7

    run(story())


def test_a_broker_greets_everyone_who_connects(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            _, inbox = new_worker()
            assert await bench.greeting(bench.subscriber(b"brokers ", inbox)) == b"brokers " + HERE

    run(story())


def test_results_for_a_broker_with_a_longer_name_are_not_received(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            publisher = await bench.publisher()
            for topic in (b"results@b10 ", b"results@b", b"resultsX ", b"steps ", b"results@b1 "):
                publisher.send(topic + b"{}")
            await until(lambda: bool(bench.log.messages))
            assert bench.log.messages == [(b"results@b1 ", b"{}")]

    run(story())


def test_a_message_sent_while_the_subscription_is_reported_arrives(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        held: list[Bench] = []

        def greet(worker: str, principal: str, kind: ListenerKind) -> None:
            assert held[0].wire.send(b"@" + worker.encode() + b" ", b"at once")

        async with serving(settings, context, on_subscribed=greet) as bench:
            held.append(bench)
            for _ in range(100):
                _, inbox = new_worker()
                assert await bench.receive(bench.subscriber(inbox)) == inbox + b"at once"

    run(story())


def test_a_message_without_a_receiver_is_dropped_and_counted(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            _, inbox = new_worker()
            assert not bench.wire.send(inbox, b"{}")
            assert bench.wire.counters.dropped["no_receiver"] == 1
            assert bench.wire.counters.sent == 0

    run(story())


def test_a_worker_that_does_not_read_loses_only_its_own_messages(context: Context) -> None:
    async def story() -> None:
        settings = BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*", steps_hwm=10)
        async with serving(settings, context) as bench:
            slow_worker, slow_inbox = new_worker()
            quick_worker, quick_inbox = new_worker()
            slow = bench.subscriber(slow_inbox)
            quick = bench.subscriber(quick_inbox)
            await until(lambda: {("subscribed", slow_worker), ("subscribed", quick_worker)} <= set(bench.log.peers))
            slow.close(0)  # replaced by one with a small buffer, so that it fills quickly
            await until(lambda: ("vanished", slow_worker) in bench.log.peers)
            slow = bench._socket(zmq.SUB)
            slow.rcvhwm = 1
            slow.subscribe(slow_inbox)
            slow.connect(bench.wire.endpoints["steps"])
            await until(lambda: bench.log.peers[-1] == ("subscribed", slow_worker))

            taken = sum(bench.wire.send(slow_inbox, b"x" * 100_000) for _ in range(500))
            assert taken < 500
            assert bench.wire.counters.dropped["full"] == 500 - taken
            for n in range(5):
                assert bench.wire.send(quick_inbox, b"%d" % n)
            assert [await bench.receive(quick) for _ in range(5)] == [quick_inbox + b"%d" % n for n in range(5)]
            for _ in range(taken):
                await bench.receive(slow)
            await until(lambda: bench.wire.send(slow_inbox, b"again"))
            assert await bench.receive(slow) == slow_inbox + b"again"

    run(story())


# -- peers that come and go -------------------------------------------------------------------------------------------


def test_an_inbox_vanishes_with_its_last_pipe_and_not_before(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            worker, inbox = new_worker()
            old = bench.subscriber(inbox)
            await until(lambda: bench.log.peers == [("subscribed", worker)])
            new = bench.subscriber(inbox)
            await until(lambda: bench.log.peers == [("subscribed", worker)] * 2)
            old.close(0)
            marker, marker_inbox = new_worker()
            bench.subscriber(marker_inbox)
            await until(
                lambda: ("subscribed", marker) in bench.log.peers and bench.wire._audience.inboxes[inbox].pipes == 1
            )
            assert ("vanished", worker) not in bench.log.peers
            assert bench.wire.send(inbox, b"still here")
            assert await bench.receive(new) == inbox + b"still here"
            new.close(0)
            await until(lambda: ("vanished", worker) in bench.log.peers)
            assert not bench.wire.send(inbox, b"no receiver")

    run(story())


def test_a_worker_that_unsubscribes_receives_nothing_further(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            worker, inbox = new_worker()
            other, other_inbox = new_worker()
            peer = bench.subscriber(inbox, other_inbox, kind=zmq.XSUB)
            await until(lambda: {("subscribed", worker), ("subscribed", other)} <= set(bench.log.peers))
            peer.send(b"\x00" + inbox)
            await until(lambda: ("vanished", worker) in bench.log.peers)
            bench.wire._xpub.send(inbox + b"{}")  # bypasses the wire's own books: the socket must not deliver it
            bench.wire.send(other_inbox, b"{}")
            assert await bench.receive(peer) == other_inbox + b"{}"

    run(story())


def test_an_unsubscription_that_was_never_granted_changes_nothing(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            worker, inbox = new_worker()
            bench.subscriber(b"", b"steps_").close(0)
            peer = bench.subscriber(inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            assert bench.wire.send(inbox, b"{}")
            assert await bench.receive(peer) == inbox + b"{}"
            assert bench.log.peers == [("subscribed", worker)]

    run(story())


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_killed_worker_vanishes(transport: str, ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        tcp = BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*")
        async with serving(ipc if transport == "ipc" else tcp, context) as bench:
            worker, inbox = new_worker()
            command = [sys.executable, "-c", _KILLABLE_WORKER, bench.wire.endpoints["steps"], inbox.decode()]
            process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220
            try:
                await until(lambda: bench.log.peers == [("subscribed", worker)])
                bench.wire.send(inbox, b"hello")
                assert process.stdout is not None
                assert process.stdout.readline() == inbox + b"hello\n"
                process.send_signal(signal.SIGKILL)
                await until(lambda: bench.log.peers == [("subscribed", worker), ("vanished", worker)])
            finally:
                process.kill()
                process.communicate()

    run(story())


# -- refused frames ---------------------------------------------------------------------------------------------------


def test_a_multipart_message_is_refused_once_and_by_its_code(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            publisher = await bench.publisher()
            publisher.send_multipart([b"workers ", b"{}"])
            publisher.send_multipart([b"results ", b"workers {}", b"results@b1 {}"])
            publisher.send_multipart([b"workers x"] * 1000)
            publisher.send(b"workers {}")
            await until(lambda: bool(bench.log.messages))
            assert bench.log.messages == [(b"workers ", b"{}")]
            assert bench.log.refused == [
                ("multipart", b"workers "),
                ("multipart", b"results "),
                ("multipart", b"workers x"),
            ]
            assert bench.wire.counters.refused["multipart"] == 3

    run(story())


def test_a_frame_over_the_limit_is_cut_and_the_broker_still_serves(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(ipc, context) as bench:
            publisher = await bench.publisher()
            publisher.send(b"workers " + b"x" * limits.FRAME_BYTES_MAX)
            other = await bench.publisher()  # after the time that the frame would have needed
            other.send(b"workers {}")
            await until(lambda: (b"workers ", b"{}") in bench.log.messages)
            assert not [body for _, body in bench.log.messages if len(body) > 100]
            # The peer that was disconnected connects again by itself, and its messages arrive.
            await until(
                lambda: publisher.send(b"workers back") is None and (b"workers ", b"back") in bench.log.messages
            )

    run(story())


def test_the_largest_legal_frame_arrives(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(ipc, context) as bench:
            publisher = await bench.publisher()
            publisher.send(b"workers " + b"x" * (limits.FRAME_BYTES_MAX - 8))
            await until(lambda: bool(bench.log.messages))
            assert len(bench.log.messages[0][1]) == limits.FRAME_BYTES_MAX - 8

    run(story())


def test_a_subscription_over_the_limit_is_cut_and_the_broker_still_serves(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(ipc, context) as bench:
            bench.subscriber(b"x" * (limits.SUBSCRIPTION_BYTES_MAX + 1))  # a client crashes itself with far more
            worker, inbox = new_worker()
            bench.subscriber(inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            assert bench.wire.counters.refused["subscription"] == 0

    run(story())


@pytest.mark.parametrize("socket_name", ["steps", "results"])
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\xff\0\0\0", random.Random(3).randbytes(4096), b""]
)
def test_garbage_on_a_tcp_port_harms_no_other_peer(socket_name: str, garbage: bytes, context: Context) -> None:
    async def story() -> None:
        async with serving(BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*"), context) as bench:
            host, _, port = bench.wire.endpoints[socket_name].removeprefix("tcp://").rpartition(":")
            with plain_socket.create_connection((host, int(port)), timeout=5) as raw:
                raw.sendall(garbage)
                worker, inbox = new_worker()
                unsure = bench.wire.counters.refused

                # Garbage may pass for messages of an old peer; a worker that subscribes meanwhile has to try again.
                bench.subscriber(inbox)
                await until(lambda: ("subscribed", worker) in bench.log.peers or unsure["unsure_peer"] > 0)
                bench.subscriber(inbox)
                await until(lambda: ("subscribed", worker) in bench.log.peers)
                await bench.publisher()

    run(story())


def test_messages_into_the_steps_socket_are_dropped_and_raise_one_alarm(
    settings: BusSettings, context: Context
) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            intruder = bench.subscriber(b"brokers ", kind=zmq.XSUB)
            await bench.greeting(intruder)  # the greeting: it is connected
            for _ in range(50):
                intruder.send_multipart([b"hello", b"there"])
            # A peer on inproc cannot be disconnected. Of other peers, the first message is the last one that counts.
            has_descriptor = not settings.steps.startswith("inproc")
            at_least = 1 if has_descriptor else 100
            await until(lambda: bench.wire.counters.refused["user_message"] >= at_least)
            assert (bench.wire.counters.disconnected["user_message"] == 1) is has_descriptor
            assert bench.log.alarms == ["a peer sends messages to the steps socket; a peer should only subscribe there"]

    run(story())


def test_a_peer_cannot_shift_an_inbox_to_another_peer(settings: BusSettings, context: Context) -> None:
    """libzmq counts events to find their pipe, and miscounts after a user message while events are queued."""

    async def story() -> None:
        async with serving(settings, context) as bench:
            intruder = bench.subscriber(b"brokers ", kind=zmq.XSUB)
            await bench.greeting(intruder)
            intruder.send(b"hello")
            # The loop does not run until all are queued: a worker that got the greeting has sent its subscription.
            assert bench.wire._xpub.poll(5000)
            workers = [new_worker() for _ in range(4)]
            peers = []
            for _, inbox in workers:
                peers.append(bench.subscriber(inbox, kind=zmq.XSUB))
                while not peers[-1].poll(1):
                    bench.wire._xpub.getsockopt(zmq.EVENTS)
            bench.wire._steps.schedule()  # the poll consumed the edge
            await until(lambda: bench.wire.counters.refused["user_message"] == 1)
            await until(lambda: bench.wire.counters.refused["unsure_peer"] + len(bench.wire._audience.inboxes) >= 4)
            # A worker whose subscription was refused connects again, and is served.
            again = [bench.subscriber(inbox) for _, inbox in workers]
            await until(lambda: all(bench.wire._audience.inboxes.get(inbox) for _, inbox in workers))
            for (_, inbox), peer in zip(workers, again, strict=True):
                assert bench.wire.send(inbox, b"secret")
                assert await bench.receive(peer) == inbox + b"secret"
            for (_, inbox), peer in zip(workers, peers, strict=True):
                while peer.poll(0):
                    assert peer.recv().startswith((inbox, b"brokers "))

    run(story())


# -- fairness and pressure --------------------------------------------------------------------------------------------


def test_ten_thousand_queued_messages_do_not_starve_a_timer(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            publisher = await bench.publisher()
            for n in range(10_000):  # without an await, so that the loop reads none of them yet
                publisher.send(b"workers %d" % n)
            seen_by_timer: list[int] = []
            loop = asyncio.get_running_loop()

            def tick() -> None:
                seen_by_timer.append(len(bench.log.messages))
                loop.call_soon(tick)

            loop.call_soon(tick)
            await until(lambda: len(bench.log.messages) == 10_000)
            assert [int(body) for _, body in bench.log.messages] == list(range(10_000))
            steps = [b - a for a, b in itertools.pairwise(seen_by_timer)]
            assert max(steps) <= MESSAGES_PER_TURN
            # Called once per drain, not once per message.
            assert bench.log.drains[-1] == 10_000
            assert len(bench.log.drains) < 2_000

    run(story())


def test_a_flood_of_results_does_not_keep_newcomers_out(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            publisher = await bench.publisher()
            worker, inbox = new_worker()
            for n in range(10_000):  # without an await, so that the loop reads none of them yet
                publisher.send(b"workers %d" % n)
            subscriber = bench.subscriber(inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            assert bench.wire.send(inbox, b"{}")
            assert await bench.receive(subscriber) == inbox + b"{}"
            # A publisher that connects now receives the broker's subscriptions.
            newcomer = bench._socket(zmq.XPUB)
            newcomer.connect(bench.wire.endpoints["results"])
            subscriptions = {await bench.receive(newcomer) for _ in range(3)}
            assert subscriptions == {b"\x01results ", b"\x01results@b1 ", b"\x01workers "}
            newcomer.send(b"workers last")
            await until(lambda: len(bench.log.messages) == 10_001)

    run(story())


def test_messages_and_sends_in_both_directions_at_once_never_stall(settings: BusSettings, context: Context) -> None:
    """Each call on a socket may consume the edge of its descriptor: an echo under load would stop for good."""

    async def story() -> None:
        held: list[Bench] = []
        worker, inbox = new_worker()

        def echo(topic: bytes, body: bytes, principal: str) -> None:
            held[0].log.messages.append((topic, body))
            if not body.startswith((b"probe", b"last")):
                held[0].wire.send(inbox, body)

        async with serving(settings, context, on_message=echo) as bench:
            held.append(bench)
            subscriber = bench.subscriber(inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            publisher = await bench.publisher()
            for turn in range(300):
                burst = 1 + turn % 7
                for n in range(burst):
                    publisher.send(b"workers %d" % n)
                for n in range(burst):
                    assert await bench.receive(subscriber) == inbox + b"%d" % n
                if turn % 50 == 0:
                    late, late_inbox = new_worker()
                    bench.subscriber(late_inbox)
                    await until(lambda late=late: ("subscribed", late) in bench.log.peers)  # type: ignore[misc]

    run(story())


def test_a_listener_that_fails_does_not_stop_the_bus(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what["exception"]))
        held: list[Bench] = []

        def fail_sometimes(topic: bytes, body: bytes, principal: str) -> None:
            if body == b"bad":
                raise RuntimeError("bad")
            held[0].log.messages.append((topic, body))

        async with serving(settings, context, on_message=fail_sometimes) as bench:
            held.append(bench)
            publisher = await bench.publisher()
            for body in (b"1", b"bad", b"bad", b"2"):
                publisher.send(b"workers " + body)
            await until(lambda: [body for _, body in bench.log.messages] == [b"1", b"2"])
            assert [str(failure) for failure in failures] == ["bad", "bad"]

    run(story())


# -- taps -------------------------------------------------------------------------------------------------------------


def test_a_tap_sees_sent_messages_until_it_is_removed(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(ipc, context) as bench:
            worker, inbox = new_worker()
            bench.subscriber(inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            shown: list[tuple[bytes, bytes]] = []
            remove = bench.wire.add_sent_tap(lambda topic, body: shown.append((topic, body)))
            detach = bench.wire.attach(b"@inside ", lambda topic, body: None)
            bench.wire.send(inbox, b"out")
            bench.wire.send(b"@inside ", b"within")
            bench.wire.send(b"@unknown ", b"dropped")
            detach()
            remove()
            remove()
            bench.wire.send(inbox, b"unseen")
            assert shown == [(inbox, b"out"), (b"@inside ", b"within")]
            assert bench.wire.counters.sent == 2

    run(story())


# -- life -------------------------------------------------------------------------------------------------------------


def test_the_sockets_have_the_options_of_the_protocol(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(ipc, context) as bench:
            xpub, sub = bench.wire._xpub, bench.wire._sockets.sub
            read = {
                name: (xpub.getsockopt(getattr(zmq, name)), sub.getsockopt(getattr(zmq, name)))
                for name in (
                    "LINGER",
                    "IMMEDIATE",
                    "HEARTBEAT_IVL",
                    "HANDSHAKE_IVL",
                    "BACKLOG",
                    "TCP_KEEPALIVE",
                    "TCP_KEEPALIVE_IDLE",
                    "TCP_KEEPALIVE_INTVL",
                    "TCP_KEEPALIVE_CNT",
                    "RCVHWM",
                    "MAXMSGSIZE",
                )
            }
            assert read == {
                "LINGER": (0, 0),
                "IMMEDIATE": (0, 0),
                "HEARTBEAT_IVL": (0, 0),
                "HANDSHAKE_IVL": (2000, 2000),
                "BACKLOG": (1024, 1024),
                "TCP_KEEPALIVE": (1, 1),
                "TCP_KEEPALIVE_IDLE": (15, 15),
                "TCP_KEEPALIVE_INTVL": (5, 5),
                "TCP_KEEPALIVE_CNT": (3, 3),
                "RCVHWM": (64, 16),
                "MAXMSGSIZE": (512, 8 * 1024 * 1024),
            }
            assert xpub.getsockopt(zmq.SNDHWM) == 1000

    run(story())


def test_workers_reconnect_by_themselves_when_a_broker_is_restarted(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        worker, inbox = new_worker()
        async with serving(ipc, context, here=b"first") as bench:
            subscriber = context.socket(zmq.SUB)
            subscriber.subscribe(inbox)
            subscriber.subscribe(b"brokers ")
            subscriber.connect(bench.wire.endpoints["steps"])
            assert await bench.receive(subscriber) == b"brokers first"
        async with serving(ipc, context, here=b"second") as bench:
            assert await bench.receive(subscriber) == b"brokers second"
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            assert bench.wire.send(inbox, b"{}")
            assert await bench.receive(subscriber) == inbox + b"{}"
        subscriber.close(0)

    run(story())


def test_a_message_sent_before_closing_with_linger_still_arrives(context: Context) -> None:
    async def story() -> None:
        bench = Bench(BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*"), zmq.Context())
        bench.wire._is_context_ours = True
        await bench.wire.open(HERE)
        worker, inbox = new_worker()
        subscriber = context.socket(zmq.SUB)
        subscriber.subscribe(inbox)
        subscriber.connect(bench.wire.endpoints["steps"])
        await until(lambda: ("subscribed", worker) in bench.log.peers)
        for n in range(500):
            bench.wire.send(inbox, b"%d" % n)
        bench.wire.close(linger_ms=1000)
        bench.wire.close()
        assert [await bench.receive(subscriber) for _ in range(500)] == [inbox + b"%d" % n for n in range(500)]
        subscriber.close(0)

    run(story())


def test_binding_a_busy_tcp_port_is_retried_until_it_is_free(context: Context) -> None:
    async def story() -> None:
        with plain_socket.socket() as squatter:
            squatter.bind(("127.0.0.1", 0))
            squatter.listen()
            port = squatter.getsockname()[1]
            asyncio.get_running_loop().call_later(0.3, squatter.close)
            async with serving(BusSettings(steps=f"tcp://127.0.0.1:{port}", results="tcp://127.0.0.1:*"), context) as b:
                assert b.wire.endpoints["steps"] == f"tcp://127.0.0.1:{port}"

    run(story())


def test_a_tcp_port_that_stays_busy_is_refused_by_name(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(sockets_module, "BIND_RETRY_MAX_MS", 200)
        with plain_socket.socket() as squatter:
            squatter.bind(("127.0.0.1", 0))
            squatter.listen()
            taken = f"tcp://127.0.0.1:{squatter.getsockname()[1]}"
            with pytest.raises(
                EndpointRefused, match=r"bus\.steps: tcp://.* in use by another process \(tried for 200"
            ):
                await Bench(BusSettings(steps=taken, results="tcp://127.0.0.1:*"), context).wire.open(HERE)

    run(story())


def test_one_endpoint_for_both_sockets_is_refused(context: Context) -> None:
    async def story() -> None:
        with pytest.raises(EndpointRefused, match=r"bus\.steps and bus\.results are both 'inproc://x'"):
            await Bench(BusSettings(steps="inproc://x", results="inproc://x"), context).wire.open(HERE)

    run(story())


# -- ipc paths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["steps", "results"])
def test_a_replaced_ipc_path_is_bound_again_and_reported(name: str, ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        settings = BusSettings(steps=ipc.steps, results=ipc.results, heartbeat_ms=20)
        async with serving(settings, context) as bench:
            worker, inbox = new_worker()
            early = bench.subscriber(inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            thief = context.socket(zmq.PUB)
            thief.bind(getattr(ipc, name))
            await until(lambda: bool(bench.log.alarms))
            thief.close(0)
            assert f"bus.{name}: another process had bound or removed" in bench.log.alarms[0]
            assert "must connect to this path, not bind it" in bench.log.alarms[0]
            # Newcomers reach the broker again, and a peer that was connected still is.
            assert bench.wire.send(inbox, b"still")
            assert await bench.receive(early) == inbox + b"still"
            late_worker, late_inbox = new_worker()
            bench.subscriber(late_inbox)
            await until(lambda: ("subscribed", late_worker) in bench.log.peers)
            await bench.publisher()
            assert len(bench.log.alarms) == 1

    run(story())


def test_a_path_replaced_repeatedly_does_not_use_up_descriptors(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(ipc, context) as bench:
            before = _descriptors()
            for _ in range(3 * LISTENERS_LOST_MAX):
                os.unlink(ipc.steps.removeprefix("ipc://"))
                bench.wire.check_paths()
            await until(lambda: _descriptors() < before + 2 * LISTENERS_LOST_MAX)
            worker, inbox = new_worker()
            bench.subscriber(inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)

    run(story())


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_second_broker_on_the_same_path_is_refused_and_the_first_is_untouched(
    ipc: BusSettings, context: Context
) -> None:
    async def story() -> None:
        async with serving(ipc, context) as bench:
            with pytest.raises(EndpointRefused, match=rf"another broker \(pid {os.getpid()}\) serves .*results.sock"):
                await Bench(ipc, zmq.Context()).wire.open(HERE)
            worker, inbox = new_worker()
            bench.subscriber(inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            bench.wire.check_paths()
            assert bench.log.alarms == []

    run(story())
