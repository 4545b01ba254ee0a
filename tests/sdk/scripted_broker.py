"""The other end of a worker's sockets: raw XPUB and SUB, and as much of a broker as a test needs."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import zmq
from stepwire_protocol import codec, topics
from stepwire_protocol.messages import (
    Ack,
    Bye,
    Endpoints,
    FromBroker,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Here,
    Reset,
    Result,
    Results,
    StepRequest,
    Steps,
    Welcome,
    WorkerMessage,
)

M = TypeVar("M")
BOUND_S = 20.0


class ScriptedBroker:
    """Answers hellos and heartbeats and acks results by itself, while the test calls `serve` or `until`."""

    def __init__(
        self,
        steps: str,
        results: str,
        context: "zmq.Context[Any] | None" = None,
        epoch: int = 1,
        id: str = "b1",
        curve: tuple[bytes, bytes] | None = None,
    ) -> None:
        """`curve`: the server's key pair. The context then needs a ZAP handler."""
        self.id = id
        self.context = context or zmq.Context()
        self._owns_context = context is None
        self.epoch = epoch
        self.pub = self.context.socket(zmq.XPUB)
        self.pub.linger = 0
        self.pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.sub = self.context.socket(zmq.SUB)
        self.sub.linger = 0
        self.sub.subscribe(b"")
        self.brokers: list[Endpoints] = []
        for sock in (self.pub, self.sub) if curve else ():
            sock.zap_domain = b"stepwire"
            sock.curve_server = True
            sock.curve_publickey, sock.curve_secretkey = curve  # type: ignore[misc]
        self.pub.bind(steps)
        self.sub.bind(results)
        self.steps_endpoint = self.pub.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self.results_endpoint = self.sub.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self.worker: str | None = None
        self.session = ""
        self.received: list[WorkerMessage] = []
        self.results: dict[int, Result] = {}
        self.acks = True
        self.batches = 0

    def close(self) -> None:
        self.pub.close()
        self.sub.close()
        if self._owns_context:
            self.context.term()

    def send(self, kind: type[FromBroker], **members: Any) -> None:
        assert self.worker is not None
        message = kind(v="2.0", broker=self.id, epoch=self.epoch, **members)
        self.pub.send(topics.to_worker(self.worker) + codec.encode(message))

    def drop_session(self, code: str) -> None:
        """Reset the session. The next hello opens another one."""
        self.send(Reset, next=int(self.session.partition(".")[2]), code=code)

    def restart(self) -> None:
        """Continue as the same broker's next process."""
        self.epoch += 1
        self.session = ""
        self.send(Here, deployment="dep", versions=["2.0"])

    def run(self, *steps: StepRequest) -> str:
        """Send these as one batch."""
        self.batches += 1
        batch_id = f"batch_s{self.epoch}_{self.batches}"
        self.send(Steps, session=self.session, batch_id=batch_id, protocol_version="2.0", steps=list(steps))
        return batch_id

    def until(self, is_met: Callable[[], Any], what: str = "") -> Any:
        """Serve until the condition is true; fail if that takes too long."""
        end = time.monotonic() + BOUND_S
        while not (value := is_met()):
            if time.monotonic() > end:
                kinds = [type(m).__name__ for m in self.received[-20:]]
                raise AssertionError(f"waited {BOUND_S} s in vain for {what or is_met}; received {kinds}")
            self.serve(20)
        return value

    def until_welcomed(self) -> None:
        self.until(lambda: self.first(Heartbeat, lambda m: bool(m.sessions)), "a session")

    def result(self, step_id: int) -> Result:
        self.until(lambda: step_id in self.results, f"the result of {step_id}")
        return self.results[step_id]

    def until_received(self, kind: type[M], fits: Callable[[M], bool] = lambda _: True) -> M:
        message: M = self.until(lambda: self.first(kind, fits), kind.__name__)
        return message

    def first(self, kind: type[M], fits: Callable[[M], bool] = lambda _: True) -> M | None:
        return next((m for m in self.received if isinstance(m, kind) and fits(m)), None)

    def serve(self, wait_ms: int = 0) -> None:
        poller = zmq.Poller()
        poller.register(self.sub, zmq.POLLIN)
        poller.register(self.pub, zmq.POLLIN)
        poller.poll(wait_ms)
        while self.pub.poll(0):
            self.pub.recv()
        while self.sub.poll(0):
            _topic, body = codec.split(self.sub.recv())
            self._take(codec.decode_worker(body))

    def _take(self, message: WorkerMessage) -> None:
        self.received.append(message)
        self.worker = message.worker
        match message:
            case Hello():
                self.session = topics.session_id(self.epoch, message.next.get(self.id, 1))
                self.send(
                    Welcome,
                    session=self.session,
                    deployment="dep",
                    n=message.n,
                    lease_ms=10_000,
                    heartbeat_ms=500,
                    max_message_bytes=1_000_000,
                    brokers=self.brokers,
                )
            case Heartbeat() if message.sessions.get(self.id) == self.session:
                self.send(HeartbeatAck, session=self.session, n=message.n)
            case Heartbeat():
                self.send(Here, deployment="dep", versions=["2.0"])
            case Results():
                for result in message.results:
                    self.results.setdefault(result.step_id, result)
                if self.acks:
                    self.send(Ack, rids=[message.rid])
            case Bye():
                pass
