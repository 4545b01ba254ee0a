"""A stranger on the bus: a process with the rights of its way in, and with every id that it could learn or guess.

It reads what it knows as one JSON line, attacks, and prints what it heard as one JSON line.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import zmq
from stepwire_protocol import topics

from tests.bus import strangers as plain

TOPICS_OF_BROKER: Final = 3
ADMITTED_S: Final = 2.0
HEAR_S: Final = 1.0
FLOOD_S: Final = 2.0
LINGER_MS: Final = 1_000
MANY: Final = 300


class Delivery(NamedTuple):
    """A running delivery at another worker."""

    worker: str
    session: str
    batch_id: str
    step_id: int
    delivery: int


class Known(msgspec.Struct):
    """All that the stranger has to begin with."""

    attack: str
    steps: str
    results: str
    deployment: str
    victim: Delivery  # runs at a worker on the bus
    program: Delivery  # runs inside the broker
    batch_id: str  # of a step at another principal's level-0 handler
    batch_step_id: int
    uid: int | None = None
    server_key: str = ""
    public: str = ""
    secret: str = ""


class Stranger:
    """Its sockets, and all frames that it has received."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.heard: list[str] = []
        self.context: zmq.Context[Any] = zmq.Context()
        self.name = f"{known.attack}:{os.urandom(8).hex()}"

    def socket(self, kind: int) -> Any:
        made = self.context.socket(kind)
        made.linger = LINGER_MS
        made.reconnect_ivl = 50
        made.sndhwm = 0  # a flood is limited by the broker, not by the stranger
        if self.known.server_key:
            made.curve_serverkey = self.known.server_key.encode()
            made.curve_publickey, made.curve_secretkey = self.known.public.encode(), self.known.secret.encode()
        return made

    def listen(self, *subscriptions: bytes) -> Any:
        sub = self.socket(zmq.SUB)
        for topic in subscriptions:
            sub.subscribe(topic)
        sub.connect(self.known.steps)
        return sub

    def speak(self, *frames: bytes) -> None:
        """Send these frames, if the broker lets this peer in."""
        pub = self.socket(zmq.XPUB)
        pub.connect(self.known.results)
        for _ in range(TOPICS_OF_BROKER):
            if not pub.poll(int(ADMITTED_S * 1000)):
                pub.close(0)
                return
            pub.recv()
        for frame in frames:
            pub.send(frame)
        pub.close()

    def hear(self, sub: Any, seconds: float = HEAR_S) -> list[str]:
        """Note the frames of this time. Returns those of a session or a batch: what the broker calls to all is none."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            if sub.poll(int(left_s * 1000) + 1):
                frame = sub.recv()
                if not frame.startswith(topics.BROKERS):
                    self.heard.append(frame.decode(errors="replace"))
        return self.heard

    def hello(self, worker: str, **changes: Any) -> bytes:
        members = {"worker": worker, "n": 100_000, "versions": ["2.0"], "next": {"b1": 1}, "handlers": ["shop.**"]}
        return topics.WORKERS + message("hello", **members | {"slots": 10, "free": {"b1": 10}} | changes)

    def join(self, worker: str, seconds: float = HEAR_S, **changes: Any) -> None:
        """Offer to work, as long as the broker may need to send steps."""
        sub = self.listen(topics.to_worker(worker), topics.BROKERS)
        self.speak(self.hello(worker, **changes))
        self.hear(sub, seconds)
        sub.close(0)


def message(kind: str, **members: Any) -> bytes:
    return json.dumps({"type": kind, "v": "2.0", **members}).encode()


def of_session(kind: str, held: Delivery, **members: Any) -> bytes:
    return topics.results_to("b1") + message(kind, worker=held.worker, session=held.session, **members)


def completed(held: Delivery, deployment: str) -> bytes:
    item = {"step_id": held.step_id, "delivery": held.delivery, "status": "completed", "output": {"by": "stranger"}}
    members = {"deployment": deployment, "batch_id": held.batch_id, "protocol_version": "2.0"}
    return of_session("results", held, **members, rid=77_777, n=99_998, results=[item])


def failed(held: Delivery, deployment: str) -> bytes:
    error = {"message": "the stranger says so", "retryable": False}
    item = {"step_id": held.step_id, "delivery": held.delivery, "status": "error", "error": error}
    members = {"deployment": deployment, "batch_id": held.batch_id, "protocol_version": "2.0"}
    return of_session("results", held, **members, rid=77_778, n=99_999, results=[item])


def completed_at_level0(batch_id: str, step_id: int) -> bytes:
    result = {"step_id": step_id, "status": "completed", "output": {"by": "stranger"}}
    return topics.RESULTS + json.dumps({"batch_id": batch_id, "protocol_version": "1.0", "results": [result]}).encode()


# -- the attacks: each is named as its function, with hyphens ---------------------------------------------------------

ATTACKS: dict[str, Callable[[Stranger], None]] = {}


def attack(function: Callable[[Stranger], None]) -> Callable[[Stranger], None]:
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


@attack
def joins(stranger: Stranger) -> None:
    """Offers to run steps of others, with the key or as the user that this row gives it."""
    stranger.join(stranger.name, ADMITTED_S, handlers=["**"])


@attack
def another_name(stranger: Stranger) -> None:
    stranger.join(f"shop:{os.urandom(8).hex()}")


@attack
def foreign_handlers(stranger: Stranger) -> None:
    stranger.join(stranger.name, handlers=["shop.charge"])


@attack
def foreign_labels(stranger: Stranger) -> None:
    stranger.join(stranger.name, handlers=["own.**"], labels={"region": "us"})


@attack
def foreign_namespaces(stranger: Stranger) -> None:
    stranger.join(stranger.name, ADMITTED_S, handlers=["own.**"])


@attack
def eavesdropping(stranger: Stranger) -> None:
    sub = stranger.listen(topics.to_worker(stranger.known.victim.worker), b"@shop", b"@", b"")
    stranger.hear(sub, ADMITTED_S)


@attack
def muting_an_inbox(stranger: Stranger) -> None:
    """Subscribes another worker's inbox, and never reads."""
    sub = stranger.socket(zmq.SUB)
    sub.rcvhwm = 1
    sub.subscribe(topics.to_worker(stranger.known.victim.worker))
    sub.connect(stranger.known.steps)
    time.sleep(ADMITTED_S)


@attack
def results(stranger: Stranger) -> None:
    known = stranger.known
    stranger.speak(completed(known.victim, known.deployment), failed(known.victim, known.deployment))


@attack
def hello(stranger: Stranger) -> None:
    stranger.speak(stranger.hello(stranger.known.victim.worker, next={"b1": 9}))


@attack
def heartbeat(stranger: Stranger) -> None:
    members = {"worker": stranger.known.victim.worker, "n": 100_001, "next": {"b1": 9}, "holding": []}
    stranger.speak(topics.WORKERS + message("heartbeat", **members))


@attack
def gone(stranger: Stranger) -> None:
    stranger.speak(topics.WORKERS + message("gone", worker=stranger.known.victim.worker))


@attack
def bye(stranger: Stranger) -> None:
    stranger.speak(topics.WORKERS + message("bye", worker=stranger.known.victim.worker, n=100_002))


@attack
def refuse(stranger: Stranger) -> None:
    held = stranger.known.victim
    members = {"batch_id": held.batch_id, "items": [[held.step_id, held.delivery]], "free": 1}
    stranger.speak(*(of_session("refuse", held, **members, code=code) for code in ("bad_message", "busy")))


@attack
def adopted(stranger: Stranger) -> None:
    held = stranger.known.victim
    stranger.speak(of_session("adopted", held, items=[[held.step_id, held.delivery, "unknown", 0]]))


@attack
def level0_answers(stranger: Stranger) -> None:
    stranger.speak(completed_at_level0(stranger.known.batch_id, stranger.known.batch_step_id))


@attack
def own_executors(stranger: Stranger) -> None:
    """Answers a program that the broker runs, ends it, and takes its inbox."""
    known, program = stranger.known, stranger.known.program
    stranger.speak(
        completed(program, known.deployment),
        completed_at_level0(program.batch_id, program.step_id),
        topics.WORKERS + message("gone", worker=program.worker),
        stranger.hello(program.worker, next={"b1": 9}),
    )


@attack
def tiny_messages(stranger: Stranger) -> None:
    """Offers the handler of others, and says that it receives messages of one byte."""
    stranger.join(stranger.name, handlers=["own.**"], max_message_bytes=1)


@attack
def flood_of_hellos(stranger: Stranger) -> None:
    frames = (stranger.hello(f"{stranger.known.attack}:{n:016x}", handlers=["own.x"]) for n in range(100 * MANY))
    stranger.speak(*frames)


@attack
def flood_of_subscriptions(stranger: Stranger) -> None:
    sub = stranger.listen(*(topics.to_worker(f"{stranger.known.attack}:{n:016x}") for n in range(MANY)))
    stranger.hear(sub, ADMITTED_S)


@attack
def flood_of_refused_topics(stranger: Stranger) -> None:
    sub = stranger.listen(*(b"%08d" % n + b"x" * 400 for n in range(10 * MANY)))
    stranger.hear(sub, ADMITTED_S)


@attack
def flood_of_user_messages(stranger: Stranger) -> None:
    peer = stranger.socket(zmq.XSUB)
    peer.connect(stranger.known.steps)
    until_s = time.monotonic() + ADMITTED_S
    while time.monotonic() < until_s:
        with contextlib.suppress(zmq.Again):
            peer.send(b"hello", zmq.NOBLOCK)
        time.sleep(0.0005)
    peer.close(0)


@attack
def flood_of_large_frames(stranger: Stranger) -> None:
    stranger.speak(*(topics.results_to("b1") + b'{"type":"results",' + b"x" * 4_000_000 for _ in range(MANY // 3)))


@attack
def unfinished_handshakes(stranger: Stranger) -> None:
    _hold(stranger, plain.GREETING + b"\x04\xff\x05READY")


@attack
def silent_connections(stranger: Stranger) -> None:
    _hold(stranger, b"")


def _hold(stranger: Stranger, data: bytes) -> None:
    peers: list[socket.socket] = []
    until_s = time.monotonic() + FLOOD_S + ADMITTED_S
    while time.monotonic() < until_s:
        if len(peers) < MANY:
            with contextlib.suppress(OSError):
                peer = plain.connected(stranger.known.results)
                peers.append(peer)
                peer.sendall(data)
        else:
            time.sleep(0.1)
    for peer in peers:
        peer.close()


def main() -> None:
    known = msgspec.json.decode(sys.stdin.buffer.readline(), type=Known)
    if known.uid is not None:
        os.setgroups([])
        os.setuid(known.uid)  # the group stays the broker's, as `bus.ipc_mode: "0660"` requires
    stranger = Stranger(known)
    ATTACKS[known.attack](stranger)
    stranger.context.destroy(linger=LINGER_MS)  # waits until its last frames are sent
    print(json.dumps(stranger.heard), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
