"""A revoked key is mute: `python -m tests.strangers.mute`.

A peer on plain ZeroMQ sockets holds a step when its key is revoked. It keeps its sockets, and after the broker's reset
it sends everything that a worker can send, as fast as possible: its result, heartbeats, hellos, other sessions. The
frames that arrive before the broker ends the connection have no effect either, also if the key is allowed meanwhile.
On a new connection of the allowed key the same frames count, so they are right. Exit code 1: a frame had an effect, or
the peer has received one.
"""

import argparse
import json
import os
import sys
import time
from typing import Any, Final

import zmq
from stepwire_protocol import topics

from tests.system.harness import Site, eventually, workflow

from .account import Account
from .stranger import TOPICS_OF_BROKER, Delivery, completed, message, of_session

BOUND_S: Final = 60.0
SPEAKS_S: Final = 3.0
ANSWER_MS: Final = 20_000
KEYS: Final = ".stepwire/keys"
HELD: Final = workflow("held", {"name": "only", "handler_class": "mute.step", "retry_limit": 0})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.strangers.mute", description=__doc__)
    parser.parse_args()
    return run(Account()).print()


def run(account: Account) -> Account:
    settings = {"bus.curve.secret_file": f"{KEYS}/server.key", "bus.curve.clients_dir": f"{KEYS}/clients"}
    with Site("tcp", settings) as site:
        _command(site, "keys", "init")
        _command(site, "keys", "new", "mute", "--handlers", "mute.*", "--out", "mute.key")
        site.start_broker(bound_s=BOUND_S)
        site.apply(HELD)
        peer = Peer(site)
        try:
            _prove(site, peer, account)
        finally:
            peer.close()
    return account


def _prove(site: Site, peer: "Peer", account: Account) -> None:
    peer.join()
    task, held = _take_a_step(site, peer)
    before = _refused(site)
    _command(site, "keys", "revoke", "mute")
    peer.until_reset()
    sent, told = peer.shout(held)
    refused = _refused(site) - before
    account.note(f"frames after the reset: {sent} sent, {refused} arrived on the open connection and were refused")
    account.check(refused > 0, "no frame arrived after the reset, so nothing is proven")
    account.check(told == 0, f"the revoked peer has received {told} messages that are no refusals")
    state = _state(site, task)
    account.check(state == "dispatched", f"the step of the revoked peer is {state}, and was dispatched")
    if account.faults:
        return
    peer.close()  # what its sockets still queue would count again as soon as the key is allowed
    _command(site, "keys", "allow", "mute")
    peer.open()
    peer.join()
    again = peer.take()  # the new session held nothing, so the step was handed over again
    account.check((again.step_id, again.delivery) == (held.step_id, held.delivery + 1), f"{again} after {held}")
    peer.speak(completed(again, peer.deployment))
    eventually(lambda: _state(site, task) == "completed" or None, "the same frame of an allowed key to count", BOUND_S)


class Peer:
    """The two sockets of a worker, with the keys of `mute`."""

    def __init__(self, site: Site) -> None:
        self.deployment = ""
        self._session = ""
        self._n = 0
        self._worker = f"mute:{os.urandom(8).hex()}"
        lines = (site.directory / "mute.key").read_text().splitlines()
        server, public, secret = (line.partition("='")[2].removesuffix("'").encode() for line in lines)
        self._keys = server, public, secret
        self._endpoints = site.settings["bus.steps"], site.settings["bus.results"]
        self.open()

    def open(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._sub, self._pub = self._context.socket(zmq.SUB), self._context.socket(zmq.XPUB)
        for socket, endpoint in zip((self._sub, self._pub), self._endpoints, strict=True):
            socket.linger = 0
            socket.reconnect_ivl = 50
            socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = self._keys
            if socket is self._sub:
                socket.subscribe(topics.to_worker(self._worker))
            socket.connect(endpoint)

    def close(self) -> None:
        self._sub.close()
        self._pub.close()
        self._context.term()

    def join(self) -> None:
        """Wait for the broker's subscriptions, and open a session."""
        for _ in range(TOPICS_OF_BROKER):
            assert self._pub.poll(BOUND_S * 1000), "the broker has not admitted the key"
            self._pub.recv()
        k = 1 if not self._session else int(self._session.partition(".")[2]) + 1

        def is_welcome() -> bool | None:
            self.speak(self._hello(k))
            return self._receive("welcome", 200) is not None or None

        eventually(is_welcome, "the welcome of an allowed key", BOUND_S)

    def speak(self, *frames: bytes) -> None:
        for frame in frames:
            self._pub.send(frame)

    def take(self) -> Delivery:
        """Wait for a step, and accept it."""

        def steps_of() -> dict[str, Any] | None:
            self.speak(topics.WORKERS + self._heartbeat(None))
            return self._receive("steps", 1_000)

        steps = eventually(steps_of, "a step for the peer", BOUND_S)
        step = steps["steps"][0]
        held = Delivery(self._worker, self._session, steps["batch_id"], step["step_id"], step["delivery"])
        self.speak(of_session("accept", held, batch_id=held.batch_id, free=0))
        return held

    def until_reset(self) -> None:
        reset = self._receive("reset", ANSWER_MS)
        assert reset is not None
        assert reset["code"] == "unauthorized", reset

    def shout(self, held: Delivery) -> tuple[int, int]:
        """Send everything for some seconds. Returns the number of frames that were sent, and of messages received
        that are no refusals."""
        k = int(held.session.partition(".")[2])
        frames = (
            completed(held, self.deployment),
            topics.WORKERS + self._heartbeat(held),
            self._hello(k),
            self._hello(k + 1),
            of_session(
                "refuse", held, batch_id=held.batch_id, items=[[held.step_id, held.delivery]], code="busy", free=1
            ),
            topics.WORKERS + message("bye", worker=self._worker, drain=True),
        )
        sent = told = 0
        until_s = time.monotonic() + SPEAKS_S
        while time.monotonic() < until_s:
            self.speak(*frames)
            sent += len(frames)
            while self._sub.poll(1):
                answer = json.loads(self._sub.recv().partition(b" ")[2])
                told += answer["type"] not in ("refused", "reset") or answer["code"] != "unauthorized"
        return sent, told

    def _hello(self, k: int) -> bytes:
        self._n += 1
        members = {"n": self._n, "versions": ["2.0"], "next": {"b1": k}, "handlers": ["mute.*"], "slots": 1}
        return topics.WORKERS + message("hello", worker=self._worker, prefetch=0, free={"b1": 1}, **members)

    def _heartbeat(self, held: Delivery | None) -> bytes:
        self._n += 1
        holding = [] if held is None else [[held.step_id, held.delivery, "running", 10]]
        sessions, free = {"b1": self._session}, {"b1": 1 - len(holding)}
        members = {"next": {"b1": int(self._session.partition(".")[2])}, "sessions": sessions, "free": free}
        return message("heartbeat", worker=self._worker, n=self._n, holding=holding, **members)

    def _receive(self, kind: str, wait_ms: int) -> dict[str, Any] | None:
        """The next message of this type; others are dropped."""
        until_s = time.monotonic() + wait_ms / 1000
        while (left_ms := (until_s - time.monotonic()) * 1000) > 0:
            if self._sub.poll(left_ms + 1):
                received: dict[str, Any] = json.loads(self._sub.recv().partition(b" ")[2])
                if received["type"] == "welcome":
                    self._session, self.deployment = received["session"], received["deployment"]
                if received["type"] == kind:
                    return received
        return None


def _take_a_step(site: Site, peer: Peer) -> tuple[int, Delivery]:
    """Submit a task, and let the peer take its step."""
    answer = site.ask("POST", "/v1/tasks", {"workflow": "held"})
    assert answer.status == 201, answer
    held = peer.take()
    return int(answer.body["task_id"]), held


def _refused(site: Site) -> int:
    lines = site.ask("GET", "/metrics").body.decode().splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if 'bus_refusals_total{code="unauthorized"}' in line)


def _state(site: Site, task: int) -> str:
    return str(site.task(task)["steps"][0]["state"])


def _command(site: Site, *words: str) -> None:
    done = site.stepwire(*words)
    assert done.returncode == 0, done


if __name__ == "__main__":
    sys.exit(main())
