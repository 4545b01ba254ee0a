"""Workers of other authors whose messages are wrong: the broker keeps them connected where it can, and names the fault
in its log, in `stepwire worker show`, in `stepwire doctor` and in `stepwire tap`."""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from stepwire_protocol import host

from tests.system.harness import eventually

from .a_place import STEPWIRE, Place, place

pytestmark = pytest.mark.skipif(not host.identity(), reason="needs a /proc of this system")


class Peer:
    """A worker written by hand: it answers each `here` with a hello, and counts the messages that it receives."""

    def __init__(self, directory: Path, name: str, **hello: Any) -> None:
        self.worker = f"{name}:0123456789abcdef"
        self.received: list[dict[str, Any]] = []
        self._hello = hello
        self._context = zmq.Context()
        self._context.linger = 0
        self._sub = self._context.socket(zmq.SUB)
        self._sub.subscribe(f"@{self.worker} ")
        self._sub.connect(f"ipc://{directory}/.stepwire/steps.sock")
        self._pub = self._context.socket(zmq.PUB)
        self._pub.connect(f"ipc://{directory}/.stepwire/results.sock")

    def send(self, topic: str, **message: Any) -> None:
        self._pub.send(f"{topic} {json.dumps(message)}".encode())

    def hello(self, k: int) -> None:
        common = {"v": "2.0", "worker": self.worker, "n": k, "versions": ["2.0"], "next": {"b1": k}}
        self.send("workers", type="hello", **common, handlers=["peer.work"], slots=1, **self._hello)

    def receive(self, kind: str) -> dict[str, Any]:
        """The next message of this type."""
        while self._sub.poll(5_000):
            message = json.loads(self._sub.recv().partition(b" ")[2])
            self.received.append(message)
            if message["type"] == kind:
                return dict(message)
        raise AssertionError(f"no {kind} among {[one['type'] for one in self.received]}")

    def join(self, k: int = 1) -> dict[str, Any]:
        """Send hello until the broker answers with a welcome."""
        for _ in range(50):
            self.hello(k)
            if self._sub.poll(100):
                return self.receive("welcome")
        raise AssertionError("no welcome")

    def close(self) -> None:
        self._context.destroy()


class Watched:
    """A place with a broker, and the lines of its log."""

    def __init__(self, here: Place) -> None:
        self.here = here
        self._process = subprocess.Popen(
            [*STEPWIRE, "serve"],
            cwd=here.directory,
            env=here.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        eventually(lambda: bool(self.logged("broker_started")), "the broker to start", 30)

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self._lines if line.get("event") == event]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._reader.join(5)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith("{"):
                self._lines.append(json.loads(line))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("watched")
    directory.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    watched = Watched(place(directory, port))
    yield watched
    watched.close()


@pytest.fixture
def peers(watched: Watched) -> Iterator[Any]:
    made: list[Peer] = []

    def make(name: str, **hello: Any) -> Peer:
        made.append(Peer(watched.here.directory, name, **hello))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


def test_a_start_time_in_unix_seconds_does_not_end_the_session_and_is_reported_to_people(
    watched: Watched, peers: Any
) -> None:
    claim = {"host": host.identity(), "pid": os.getpid(), "pid_started": int(time.time()), "proof": True}
    peer = peers("unix-seconds", **claim)
    peer.join()

    def shown() -> dict[str, Any]:
        return dict(watched.here.stepwire("worker", "show", peer.worker, "--json").json)

    eventually(lambda: "clock ticks" in (shown()["death_unprovable_because"] or ""), "the claim to be refuted", 20)
    assert shown()["death_provable"] is False
    assert shown()["session"].endswith(".1")  # the first session of this worker
    assert [one["type"] for one in peer.received].count("reset") == 0
    text = watched.here.stepwire("worker", "show", peer.worker).out
    assert "\ndeath provable    no, because the process with its pid started at another time" in text
    findings = watched.here.stepwire("doctor", "--json").json
    (finding,) = [one for one in findings if "cannot be proven" in one["text"]]
    assert peer.worker in finding["text"]


def test_the_true_start_time_makes_the_death_provable(watched: Watched, peers: Any) -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    claim = {"host": host.identity(), "pid": sleeper.pid, "pid_started": host.started(sleeper.pid), "proof": True}
    peer = peers("honest", **claim)
    peer.join()
    assert watched.here.stepwire("worker", "show", peer.worker, "--json").json["death_provable"] is True
    sleeper.kill()
    sleeper.wait()
    peer.close()  # the end of the subscription starts the check
    died = lambda: [one for one in watched.logged("worker_died") if one["worker"] == peer.worker]  # noqa: E731
    eventually(lambda: bool(died()), "the death to be logged", 10)
    assert died()[0]["pid"] == sleeper.pid


def test_the_first_refusal_of_each_code_is_logged_for_each_worker_and_tapped_with_its_reason(
    watched: Watched, peers: Any
) -> None:
    peer = peers("refused")
    peer.join()
    tap = subprocess.Popen(
        [*STEPWIRE, "tap", "--topic", "workers", "-o", "jsonl"],
        cwd=watched.here.directory,
        env=watched.here.environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert tap.stdout is not None
        tapped: dict[str, Any] = {}
        threading.Thread(target=lambda: tapped.update(_first_refused(tap.stdout)), daemon=True).start()

        def is_tapped() -> bool:
            peer.send("workers", type="heartbeat", v="2.0", worker=peer.worker, n="seven")
            return bool(tapped)

        eventually(is_tapped, "the refused message to be tapped", 20)
    finally:
        tap.terminate()
        tap.wait(20)
    assert tapped["refused"] == "bad_field"
    assert "`n`" in tapped["reason"]
    peer.send("workers", type="heartbeat", v="9.0", worker=peer.worker, n=1)
    of_peer = lambda: [one for one in watched.logged("message_refused") if one["worker"] == peer.worker]  # noqa: E731
    eventually(lambda: len(of_peer()) == 2, "both refusals to be logged", 10)
    assert [(one["type"], one["code"]) for one in of_peer()] == [
        ("heartbeat", "bad_field"),
        ("heartbeat", "unknown_version"),
    ]
    assert of_peer()[0]["text"] == tapped["reason"]


def test_a_sender_with_an_id_of_the_wrong_form_is_logged_without_an_id(watched: Watched, peers: Any) -> None:
    peer = peers("misnamed")
    peer.join()
    peer.send("workers", type="heartbeat", v="2.0", worker="misnamed", n=1)
    nameless = lambda: [one for one in watched.logged("message_refused") if one["worker"] is None]  # noqa: E731
    eventually(lambda: bool(nameless()), "the refusal to be logged", 10)
    assert "`worker`" in nameless()[0]["text"]


def test_a_worker_that_is_reset_again_and_again_is_logged(watched: Watched, peers: Any) -> None:
    peer = peers("flaps")
    epoch = peer.join()["epoch"]
    for k in range(2, 12):
        session = {"b1": f"{epoch}.{k}"}
        peer.send("workers", type="heartbeat", v="2.0", worker=peer.worker, n=k, next={"b1": k}, sessions=session)
        assert peer.receive("reset")["code"] == "unknown_session"
    eventually(lambda: bool(watched.logged("worker_flaps")), "the resets to be logged", 10)
    (line,) = watched.logged("worker_flaps")
    assert (line["worker"], line["code"], line["resets"]) == (peer.worker, "unknown_session", 5)


def _first_refused(lines: Any) -> dict[str, Any]:
    for line in lines:
        message = json.loads(line)
        if message.get("refused"):
            return dict(message)
    return {}
