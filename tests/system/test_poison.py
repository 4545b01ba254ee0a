"""Every invalid message, sent to a running broker over its real socket while a worker runs steps."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq
from conformance import vectors

from tests.checker import assert_kept

from .harness import Site, eventually, workflow

SENDER = "shop-1:0123456789abcdef"  # the sender in the vectors
MARKER = "marker:0000000000000000"
INBOX_BOUND_MS = 5_000
ARRIVAL_BOUND_S = 10.0
AGAIN_S = 0.2

SUBSCRIBED = (b"results ", b"results@b1 ", b"workers ")  # a socket drops the rest before the broker sees it
REFUSED_A_CONNECTION = 16  # fewer than the broker refuses of one connection before it ends the connection
CUT_BYTES = 8 * 1024 * 1024  # a longer frame is cut by the socket, and its sender disconnected

REFUSED = [vector for vector in vectors.load("refused")["messages"] if vector["to"] == "broker"]


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_every_invalid_message_is_refused_by_its_code_and_the_broker_goes_on(
    new_site: Callable[..., Site], figure: Callable[[str], None], transport: str
) -> None:
    site = new_site(transport)
    site.start_broker()
    site.apply(workflow("chain", {"name": "a"}, {"name": "b", "depends_on": ["a"]}))
    worker = site.start_worker("steady")
    session = site.await_worker(worker)["session"]
    client = site.recorded_client()
    tasks: list[int] = []
    wrong: list[str] = []
    answered = 0
    with poisoner(site) as poison:
        for number, vector in enumerate(REFUSED):
            if number % REFUSED_A_CONNECTION == 0:
                poison.connect_again(site)
            tasks.append(client.submit_until_acknowledged("chain", f"k{number}"))
            frames = vectors.frames_of(vector)
            poison.send(frames)
            refused = poison.refused_until_marker(number)
            if refused != ([vector["code"]] if _arrives(frames) else []):
                wrong.append(f"{vector['name']}: {vector['code']} was expected, the tap shows {refused}")
            elif refused and vector.get("sender", {}).get("worker") == SENDER:
                answered += 1
                answer = poison.inbox()
                if (answer.get("type"), answer.get("code")) != ("refused", vector["code"]):
                    wrong.append(f"{vector['name']}: {vector['code']} was expected, its sender received {answer}")
    assert not wrong, "\n".join(wrong)
    figure(f"{len(REFUSED)} poisons over {transport}, each refused by its code; {answered} senders were answered")
    for task_id in tasks:
        assert site.client().wait(task_id, timeout=20)["state"] == "completed"
    assert site.await_worker(worker)["session"] == session
    assert not assert_kept(site.database, site.ledgers).figures["started again"]


def _arrives(frames: list[bytes]) -> bool:
    return frames[0].startswith(SUBSCRIBED) and max(map(len, frames)) <= CUT_BYTES


class Poisoner:
    """A raw PUB and SUB, as any program could open them, and the broker's tap of the messages it received."""

    def __init__(self, pub: zmq.Socket[bytes], sub: zmq.Socket[bytes], tapped: "queue.Queue[dict[str, Any]]") -> None:
        self._pub = pub
        self._sub = sub
        self._tapped = tapped
        self._connections = 0

    def connect_again(self, site: Site) -> None:
        results = _absolute(site, site.ready["results"])
        self._pub.disconnect(results)
        self._pub.connect(results)
        self._connections += 1
        self.refused_until_marker(2**33 + self._connections)

    def send(self, frames: list[bytes]) -> None:
        self._pub.send_multipart(frames)

    def refused_until_marker(self, number: int) -> list[str]:
        """Return the codes of refusals before the marker, a valid message that is repeated until it arrives."""
        codes: list[str] = []
        marker = b'workers {"type":"bye","v":"2.0","worker":"%s","n":%d}' % (MARKER.encode(), number)

        def is_there() -> bool | None:
            self._pub.send(marker)
            try:
                while True:
                    message = self._tapped.get(timeout=AGAIN_S)
                    if message.get("direction") != "in":
                        continue
                    if message.get("refused"):
                        codes.append(message["refused"])
                    body = message.get("message") or {}
                    if isinstance(body, dict) and body.get("worker") == MARKER and body.get("n") == number:
                        return True
            except queue.Empty:
                return None

        eventually(is_there, f"marker {number} to arrive", ARRIVAL_BOUND_S)
        return codes

    def inbox(self) -> dict[str, Any]:
        if not self._sub.poll(INBOX_BOUND_MS):
            return {}
        answer = msgspec.json.decode(self._sub.recv().partition(b" ")[2])
        assert isinstance(answer, dict)
        return answer


@contextmanager
def poisoner(site: Site) -> Iterator[Poisoner]:
    tapped: queue.Queue[dict[str, Any]] = queue.Queue()
    tap = site.client()

    def listen() -> None:
        try:
            for message in tap.tap():
                tapped.put(message)
        except Exception:  # the site ends, and with it the tap
            return

    threading.Thread(target=listen, daemon=True).start()
    context: zmq.Context[Any] = zmq.Context()
    pub, sub = context.socket(zmq.PUB), context.socket(zmq.SUB)
    try:
        pub.linger = sub.linger = 0
        sub.subscribe(f"@{SENDER} ".encode())
        pub.connect(_absolute(site, site.ready["results"]))
        sub.connect(_absolute(site, site.ready["steps"]))
        one = Poisoner(pub, sub, tapped)
        one.refused_until_marker(2**32)
        # A refusal reaches its sender only if the sender's inbox exists, so wait for it first.
        _await_inbox(one)
        yield one
    finally:
        context.destroy(linger=0)


def _await_inbox(one: Poisoner) -> None:
    bad = b'workers {"type":"bye","v":"9.0","worker":"%s"}' % SENDER.encode()

    def is_answered() -> bool | None:
        one.send([bad])
        return one._sub.poll(200) != 0 or None

    eventually(is_answered, "the sender's inbox", ARRIVAL_BOUND_S)
    one.refused_until_marker(2**32 + 1)
    while one._sub.poll(200):
        one._sub.recv()


def _absolute(site: Site, endpoint: str) -> str:
    path = endpoint.removeprefix("ipc://")
    return endpoint if path == endpoint or path.startswith("/") else f"ipc://{site.directory / path}"
