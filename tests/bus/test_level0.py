"""Level-0 handlers on real sockets: each receives only its own batches, and the wire knows which of them is gone."""

import signal
import subprocess
import sys
from typing import Any

import pytest
import zmq
from stepwire_broker.core.definitions.settings import BusSettings

from .bench import Bench, new_worker, run, serving, until

Context = zmq.Context[Any]

_KILLABLE_HANDLER = """
import sys, zmq
context = zmq.Context()
socket = context.socket(zmq.SUB)
socket.subscribe(b"steps")
socket.connect(sys.argv[1])
print(socket.recv().decode(), flush=True)
socket.recv()
"""


def body_for(to: str) -> bytes:
    return b'{"to":"%s","batch_id":"x"}' % to.encode()


async def handler(bench: Bench, *wanted: bytes, kind: int = zmq.SUB) -> tuple[str, zmq.Socket[bytes]]:
    """A handler's socket, and its `to`, once it is granted."""
    before = bench.granted
    socket = bench.subscriber(*(wanted or (b"steps",)), kind=kind)
    await until(lambda: bench.granted > before)
    return f"1.{bench.granted}", socket


def test_each_handler_receives_only_its_own_messages(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            # XSUB does not filter what arrives, so it would show a leak that SUB hides.
            handlers = [
                await handler(bench, b"steps"),
                await handler(bench, b"steps "),
                await handler(bench, b"steps", kind=zmq.XSUB),
            ]
            for _ in range(20):
                for to, _ in handlers:
                    assert bench.wire.send_to_peer(to, body_for(to))
            for to, socket in handlers:
                for _ in range(20):
                    assert await bench.receive(socket) == b"steps " + body_for(to)
                assert not socket.poll(20)
            assert not bench.wire.send_to_peer("1.99", body_for("1.99"))
            # 1 is a prefix of 1.1, and another handler.
            assert not bench.wire.send_to_peer("1", body_for("1"))

    run(story())


def test_a_handler_that_subscribes_twice_is_one_peer(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(ipc, context) as bench:
            to, socket = await handler(bench, b"steps", b"steps ")
            marker, inbox = new_worker()
            bench.subscriber(inbox)
            await until(lambda: ("subscribed", marker) in bench.log.peers)
            assert bench.granted == 1
            socket.unsubscribe(b"steps")
            await until(lambda: len(next(iter(bench.wire._audience._peers.values())).topics) == 1)
            assert bench.wire.send_to_peer(to, body_for(to))
            assert await bench.receive(socket) == b"steps " + body_for(to)
            socket.close(0)
            await until(lambda: ("peer gone", to) in bench.log.peers)
            assert ("uncertain", "") not in bench.log.peers

    run(story())


@pytest.mark.parametrize("gone_first", [0, 1, 2])
def test_the_handler_that_disconnects_is_identified(gone_first: int, context: Context) -> None:
    async def story() -> None:
        settings = BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*")
        async with serving(settings, context) as bench:
            handlers = [await handler(bench) for _ in range(3)]
            for to, socket in handlers[gone_first:] + handlers[:gone_first]:
                socket.close(0)
                await until(lambda to=to: ("peer gone", to) in bench.log.peers)  # type: ignore[misc]
                assert not bench.wire.send_to_peer(to, body_for(to))
            assert [kind for kind, _ in bench.log.peers] == ["peer"] * 3 + ["peer gone"] * 3
            to, socket = await handler(bench)  # on a descriptor that was another's
            assert bench.wire.send_to_peer(to, body_for(to))
            assert await bench.receive(socket) == b"steps " + body_for(to)

    run(story())


def test_a_handler_that_unsubscribes_receives_nothing_further(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(ipc, context) as bench:
            worker, inbox = new_worker()
            to, socket = await handler(bench, b"steps", inbox, kind=zmq.XSUB)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            socket.send(b"\x00steps")
            await until(lambda: ("peer gone", to) in bench.log.peers)
            bench.wire._xpub.send(b"steps " + body_for(to))  # bypasses the wire's own books
            bench.wire.send(inbox, b"{}")
            assert await bench.receive(socket) == inbox + b"{}"
            socket.send(b"\x01steps")
            await until(lambda: bench.granted == 2)
            assert bench.wire.send_to_peer("1.2", body_for("1.2"))
            assert await bench.receive(socket) == b"steps " + body_for("1.2")

    run(story())


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_killed_handler_is_gone(transport: str, ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        tcp = BusSettings(steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*")
        async with serving(ipc if transport == "ipc" else tcp, context) as bench:
            stays, _ = await handler(bench)
            command = [sys.executable, "-c", _KILLABLE_HANDLER, bench.wire.endpoints["steps"]]
            process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220
            try:
                await until(lambda: bench.granted == 2)
                bench.wire.send_to_peer("1.2", body_for("1.2"))
                assert process.stdout is not None
                assert process.stdout.readline() == b"steps " + body_for("1.2") + b"\n"
                process.send_signal(signal.SIGKILL)
                await until(lambda: bench.log.peers[-1] == ("peer gone", "1.2"))
                assert bench.wire.send_to_peer(stays, body_for(stays))
            finally:
                process.kill()
                process.communicate()

    run(story())


def test_an_inproc_handler_that_leaves_cannot_be_identified(context: Context) -> None:
    async def story() -> None:
        settings = BusSettings(steps="inproc://steps", results="inproc://results")
        async with serving(settings, context) as bench:
            _, first = await handler(bench)
            to, _ = await handler(bench, b"steps ")
            first.close(0)
            await until(lambda: bench.log.peers[-1] == ("peer gone", "1.1"))  # the only one with this topic
            _, third = await handler(bench, b"steps ")
            third.close(0)
            await until(lambda: bench.log.peers[-1] == ("uncertain", ""))
            assert bench.wire.send_to_peer(to, body_for(to))

    run(story())


def test_a_handler_without_a_grant_receives_nothing_and_is_counted(ipc: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(ipc, context, on_peer=lambda principal: None) as bench:
            socket = bench.subscriber(b"steps", kind=zmq.XSUB)
            await until(lambda: bench.wire.counters.refused["level0"] == 1)
            bench.wire._xpub.send(b"steps " + body_for("1.1"))
            worker, inbox = new_worker()
            socket.send(b"\x01" + inbox)
            await until(lambda: ("subscribed", worker) in bench.log.peers)
            bench.wire.send(inbox, b"{}")
            assert await bench.receive(socket) == inbox + b"{}"
            socket.close(0)
            await until(lambda: ("vanished", worker) in bench.log.peers)
            assert len(bench.log.peers) == 2

    run(story())
