"""The peer process of the first two measurements. It only answers every step."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import zmq
from msgspec import Raw
from stepwire_protocol import codec, limits
from stepwire_protocol.messages import Result, ResultMetadata, ResultsLevel0, StepsLevel0

from .load import OUTPUT, BenchFailed

Sockets = tuple[zmq.Socket[bytes], zmq.Socket[bytes]]  # to the peer, from the peer

TOPIC: Final = b"steps "
ANSWER: Final = b"results "
STOP: Final = TOPIC + b"stop"
HELLO: Final = TOPIC + b"hello"
TIMEOUT_S: Final = 20.0
POLL_MS: Final = 1_000

_output: Final = Raw(msgspec.json.encode(OUTPUT))
_metadata: Final = ResultMetadata(execution_time_ms=1, handler_version="1.2.3")
_decode: Final = msgspec.json.Decoder(StepsLevel0).decode


@contextmanager
def echoing() -> Iterator[Sockets]:
    """Start a peer that answers, and yield the two sockets to it."""
    context = zmq.Context()
    context.linger = 0
    to_peer, from_peer = context.socket(zmq.PUB), context.socket(zmq.SUB)
    to_peer.sndhwm = from_peer.rcvhwm = 0
    from_peer.subscribe(ANSWER)
    with tempfile.TemporaryDirectory(prefix="stepwire-bench-") as directory:
        endpoints = f"ipc://{directory}/steps", f"ipc://{directory}/results"
        to_peer.bind(endpoints[0])
        from_peer.bind(endpoints[1])
        process = multiprocessing.get_context("spawn").Process(
            target=_echo, args=(*endpoints, os.getpid()), daemon=True
        )
        process.start()
        try:
            _meet(to_peer, from_peer)
            yield to_peer, from_peer
        finally:
            to_peer.send(STOP)
            process.join(TIMEOUT_S)
            process.kill()
            context.destroy()


def wait_for(socket: "zmq.Socket[bytes]") -> None:
    if not socket.poll(int(TIMEOUT_S * 1000)):
        raise BenchFailed("a message was lost on the bus")


def _meet(to_peer: "zmq.Socket[bytes]", from_peer: "zmq.Socket[bytes]") -> None:
    """Send hello until the peer answers, because its subscription takes a moment to arrive. Then drop late answers."""
    until = time.monotonic() + TIMEOUT_S
    while not from_peer.poll(20):
        if time.monotonic() > until:
            raise BenchFailed("the echoing process did not start")
        to_peer.send(HELLO)
    while from_peer.poll(100):
        from_peer.recv()


def _echo(steps: str, results: str, parent: int) -> None:
    context: zmq.Context[Any] = zmq.Context()
    incoming, outgoing = context.socket(zmq.SUB), context.socket(zmq.PUB)
    incoming.rcvhwm = outgoing.sndhwm = 0
    incoming.subscribe(TOPIC)
    incoming.connect(steps)
    outgoing.connect(results)
    while os.getppid() == parent:
        if not incoming.poll(POLL_MS):
            continue
        frame = incoming.recv()
        if frame == STOP:
            break
        outgoing.send(ANSWER + (b"" if frame == HELLO else _answer(frame[len(TOPIC) :])))
    context.destroy(linger=POLL_MS)


def _answer(body: bytes) -> bytes:
    batch = _decode(body)
    results = [
        Result(step_id=step.step_id, status="completed", output=_output, metadata=_metadata) for step in batch.steps
    ]
    return codec.encode(
        ResultsLevel0(batch_id=batch.batch_id, protocol_version=limits.PROTOCOL_LEVEL_0, results=results)
    )
