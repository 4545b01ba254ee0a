"""A broker without storage, for the measurement of an SDK: it opens a session, sends batches as far as the worker's
credit permits, and acknowledges results at once. And its counterpart at level 0, for a loop without an SDK.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec
import zmq
from msgspec import Raw
from stepwire_protocol import codec, limits, topics
from stepwire_protocol.messages import (
    Accept,
    Ack,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Here,
    Refuse,
    Results,
    ResultsLevel0,
    StepMetadata,
    StepMetadataLevel0,
    StepRequest,
    StepRequestLevel0,
    Steps,
    StepsLevel0,
    Welcome,
    WorkerMessage,
)

from .load import CONTEXT, OUTPUT, STEPS, BenchFailed

V: Final = limits.PROTOCOL_LEVEL_1
SESSION: Final = "1.1"
HANDLER: Final = "conform.echo"
LEASE_MS: Final = 3_600_000  # a measurement of another language must not end the session of this one
HEARTBEAT_MS: Final = 2_000
SILENCE_S: Final = 20.0  # without a result for this time, the measurement fails
CONNECT_S: Final = 30.0

_context: Final = Raw(msgspec.json.encode(CONTEXT))
_previous: Final = Raw(msgspec.json.encode({STEPS[-2]: OUTPUT}))
_metadata: Final = StepMetadata(attempt=0, retry_limit=3, timeout_ms=30_000, idempotency_key="bench/ship_order")
_metadata_level0: Final = StepMetadataLevel0(attempt=0, retry_limit=3, timeout_ms=30_000)


class TcpEndpoints(NamedTuple):
    steps: str
    results: str


class BoundSockets(NamedTuple):
    to_worker: "zmq.Socket[bytes]"
    from_worker: "zmq.Socket[bytes]"
    endpoints: TcpEndpoints


@contextmanager
def bound() -> Iterator[BoundSockets]:
    """Both sockets of a broker on free tcp ports of this host."""
    context = zmq.Context()
    context.linger = 0
    to_worker, from_worker = context.socket(zmq.XPUB), context.socket(zmq.SUB)
    to_worker.sndhwm = from_worker.rcvhwm = 0
    from_worker.subscribe(b"")
    try:
        ports = to_worker.bind_to_random_port("tcp://127.0.0.1"), from_worker.bind_to_random_port("tcp://127.0.0.1")
        yield BoundSockets(to_worker, from_worker, TcpEndpoints(*(f"tcp://127.0.0.1:{port}" for port in ports)))
    finally:
        context.destroy()


class BareEcho:
    """Level 0: sends batches to a loop that answers each of them."""

    def __init__(self, sockets: BoundSockets) -> None:
        self._to, self._from, _ = sockets
        self._number = 0
        self._decode = msgspec.json.Decoder(ResultsLevel0).decode

    def connect(self) -> None:
        """Send a batch until the loop answers, and drop late answers."""
        until = time.monotonic() + CONNECT_S
        while not self._from.poll(50):
            if time.monotonic() > until:
                raise BenchFailed(f"the loop did not answer within {CONNECT_S:g} s")
            self._send(1)
        while self._from.poll(200):
            self._from.recv()

    def run(self, batches: int, batch_steps: int, window: int) -> float:
        """Send this many batches with `window` in flight. Returns the seconds until the last answer."""
        sent = answered = 0
        started = time.perf_counter()
        while answered < batches:
            while sent < batches and sent - answered < window:
                self._send(batch_steps)
                sent += 1
            answered += self._receive(batch_steps)
        return time.perf_counter() - started

    def _send(self, batch_steps: int) -> None:
        self._number += 1
        steps = [
            StepRequestLevel0(
                step_id=number + 1,
                task_id=1,
                step_name=STEPS[-1],
                handler_class=HANDLER,
                task_context=_context,
                previous_results=_previous,
                metadata=_metadata_level0,
            )
            for number in range(batch_steps)
        ]
        batch = StepsLevel0(batch_id=f"batch_{self._number}", protocol_version=limits.PROTOCOL_LEVEL_0, steps=steps)
        self._to.send(topics.STEPS + codec.encode(batch))

    def _receive(self, batch_steps: int) -> int:
        """Read the answers that have arrived, at least one. Returns their number."""
        if not self._from.poll(int(SILENCE_S * 1000)):
            raise BenchFailed(f"the loop sent no answer for {SILENCE_S:g} s")
        count = 0
        while True:
            try:
                frame = self._from.recv(zmq.NOBLOCK)
            except zmq.Again:
                return count
            answer = self._decode(frame.partition(b" ")[2])
            if len(answer.results) != batch_steps or answer.results[0].status != "completed":
                raise BenchFailed(f"the loop answered wrongly: {frame[:200]!r}")
            count += 1


class BrokerWithoutStorage:
    """Level 1: one session with one worker."""

    def __init__(self, sockets: BoundSockets) -> None:
        self._to, self._from, self._endpoints = sockets
        # The strict rules of the product's entry are not for this broker: it must cost as little as the loop's sender.
        self._decode = msgspec.json.Decoder(WorkerMessage).decode
        self._worker = ""
        self._inbox = b""
        self._batch = self._step = self._done = 0
        self._unsent = 0  # steps of this run that are to be sent, or to be sent again
        self._free = 0
        self._free_n = -1
        self._unanswered: dict[str, int] = {}  # steps of each batch that was neither accepted nor answered
        self._acks: list[int] = []
        self._rid = 0  # the highest number of a results message: lower ones are resent
        self._result_s = 0.0  # when the last result arrived

    def connect(self) -> None:
        """Wait for a worker, and open its session."""
        until = time.monotonic() + CONNECT_S
        while not self._inbox or not self._free_n > 0:
            if time.monotonic() > until:
                raise BenchFailed(f"no worker opened a session within {CONNECT_S:g} s")
            self._greet()
            if self._from.poll(20):
                self._drain()

    def run(self, steps: int, batch_steps: int, window: int) -> float:
        """Run this many steps in batches, with at most `window` batches in flight and never more than the worker's
        credit. Returns the seconds until the last result."""
        until = self._done + steps
        self._unsent = steps
        self._result_s = time.monotonic()
        started = time.perf_counter()
        while self._done < until:
            while self._unsent and self._has_room(until - self._done - self._unsent, batch_steps, window):
                size = min(batch_steps, self._unsent)
                self._send(size)
                self._unsent -= size
            self._wait()
        return time.perf_counter() - started

    def idle(self, seconds: float) -> None:
        """Only acknowledge heartbeats for a while."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._from.poll(int(left * 1000) + 1):
                self._drain()

    def _has_room(self, in_flight: int, batch_steps: int, window: int) -> bool:
        credit = self._free - sum(self._unanswered.values())
        return in_flight + batch_steps <= window * batch_steps and credit >= batch_steps

    def _wait(self) -> None:
        if not self._from.poll(int(SILENCE_S * 1000)):
            raise BenchFailed(f"the worker sent nothing for {SILENCE_S:g} s")
        before = self._done
        self._drain()
        if self._acks:
            self._say(Ack(v=V, broker="bench", epoch=1, rids=self._acks))
            self._acks = []
        if self._done != before:
            self._result_s = time.monotonic()
        elif time.monotonic() - self._result_s > SILENCE_S:
            raise BenchFailed(f"the worker sent no result for {SILENCE_S:g} s, although it sends heartbeats")

    def _greet(self) -> None:
        here = Here(v=V, broker="bench", epoch=1, deployment="bench", versions=[V])
        while self._to.poll(0):
            self._to.recv()
        self._to.send(topics.BROKERS + codec.encode(here))

    def _drain(self) -> None:
        while True:
            try:
                frame = self._from.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._decode(frame.partition(b" ")[2])
            except msgspec.DecodeError as error:
                raise BenchFailed(f"the worker sent a message that is none: {error}") from None
            self._on_message(message)

    def _on_message(self, message: object) -> None:
        match message:
            case Results():
                self._on_results(message)
            case Hello():
                self._on_hello(message)
            case Heartbeat():
                self._offer(message.n, message.free.get("bench"))
                ack = HeartbeatAck(v=V, broker="bench", epoch=1, session=SESSION, n=message.n)
                self._say(ack)
            case Accept():
                self._unanswered.pop(message.batch_id, None)
                self._free = message.free
            case Refuse(code="busy"):  # its steps became longer, so it returns some that wait: they are sent again
                self._unanswered.pop(message.batch_id, None)
                self._free = message.free
                self._unsent += len(message.items)
            case Refuse():
                raise BenchFailed(f"the worker refused steps: {message.code}")

    def _on_hello(self, message: Hello) -> None:
        if message.next.get("bench") not in (None, 1):
            raise BenchFailed("the worker has dropped its session")
        self._worker = message.worker
        self._inbox = topics.to_worker(message.worker)
        if "bench" not in message.next:
            return  # it has not received `here` yet
        welcome = Welcome(
            v=V,
            broker="bench",
            epoch=1,
            session=SESSION,
            deployment="bench",
            n=message.n,
            lease_ms=LEASE_MS,
            heartbeat_ms=HEARTBEAT_MS,
            max_message_bytes=limits.MESSAGE_BYTES_MAX,
        )
        self._say(welcome)

    def _on_results(self, message: Results) -> None:
        self._acks.append(message.rid)
        if message.rid <= self._rid:
            return
        self._rid = message.rid
        self._unanswered.pop(message.batch_id, None)
        for result in message.results:
            if result.status != "completed":
                raise BenchFailed(f"a step failed: {result.error}")
        self._done += len(message.results)
        self._offer(message.n, message.free)

    def _offer(self, n: int, free: int | None) -> None:
        if free is not None and n > self._free_n:
            self._free, self._free_n = free, n

    def _send(self, batch_steps: int) -> None:
        self._batch += 1
        steps = []
        for _ in range(batch_steps):
            self._step += 1
            step = StepRequest(
                step_id=self._step,
                task_id=1,
                step_name=STEPS[-1],
                handler_class=HANDLER,
                task_context=_context,
                previous_results=_previous,
                delivery=1,
                metadata=_metadata,
            )
            steps.append(step)
        batch_id = f"batch_bench_{self._batch}"
        self._unanswered[batch_id] = batch_steps
        message = Steps(
            v=V,
            broker="bench",
            epoch=1,
            session=SESSION,
            batch_id=batch_id,
            protocol_version=V,
            steps=steps,
        )
        self._say(message)

    def _say(self, message: Welcome | HeartbeatAck | Ack | Steps) -> None:
        self._to.send(self._inbox + codec.encode(message))
