"""Mutated messages of a worker over connections to a broker process, with the budgets of the bus.

The hostile worker is anonymous, on tcp; the honest peers have the identity of the broker's user. A connection that
sends too many refused frames is ended, so every EACH messages use a new one.
"""

import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import zmq
from stepwire_protocol import topics

from tests.attacks.listeners import LISTENERS, of_honest_load
from tests.attacks.target import Target, running_target
from tests.bus import strangers

from .bus_mutations import BLOCK, BROKER, HANDLER, Live, Messages
from .honest_peers import HELD, LEVEL0, OUTPUT, QUICK, honest_peers
from .observed import Observed, check_database

WORKER: Final = "fuzz:00000000000000fe"
SUPPLY_EVERY: Final = 20  # blocks
TASKS: Final = 20
EACH: Final = 50  # messages of one connection; after 32 refused ones the broker ends it
ANSWER_S: Final = 60.0
STEPS: Final = [{"name": "a", "handler_class": HANDLER}, {"name": "b", "handler_class": HANDLER}]
FUZZED: Final[dict[str, Any]] = {"name": "fuzzed", "version": "1", "steps": STEPS}


def run(seed: int, first: int, count: int) -> dict[str, Any]:
    """Send messages to a broker process of its own, and return the report."""
    observed = Observed()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz") as name:
        directory = Path(name)
        settings = LISTENERS["tcp"](directory) | {"bus.level0.handlers": json.dumps([LEVEL0])}
        with running_target(directory, settings) as target:
            listener, release = of_honest_load(target), directory / "release"
            with honest_peers(listener["steps"], listener["results"], release), _Hostile(target, seed) as hostile:
                held = _begin(target)
                hostile.send(first, count)
                _finish(target, held, release, observed)
            refused, ended, arrived = target.refusals(), target.disconnections(), _arrived(target)
            database = directory / ".stepwire/state.db"
        for line in (directory / "log").read_text().splitlines():
            if "Traceback" in line or '"exception"' in line or "broker_failed" in line:
                observed.fault(line[:600])
        check_database(database, observed)
    return {
        "seed": seed,
        "first": first,
        "over_sockets": hostile.sent,
        "arrived": arrived,
        "connections": hostile.connections,
        "seconds": round(time.monotonic() - began_s, 1),
        "refusals": {code: times for code, times in refused.items() if times},
        "disconnections": ended,
        "faults": observed.faults,
        "ok": not observed.faults,
    }


class _Hostile:
    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._messages = Messages(seed)
        self._live = Live.unknown(WORKER)
        self._n = 0
        self._k = 1
        self.sent = self.connections = 0

    def __enter__(self) -> "_Hostile":
        self._context = zmq.Context[Any]()
        self._inbox = self._context.socket(zmq.SUB)
        self._inbox.linger = 0
        self._inbox.subscribe(topics.to_worker(WORKER))
        self._inbox.connect(self._target.ready["steps"])
        assert self._target.call("POST", "/v1/workflows", self._target.admin, FUZZED)[0] == 201
        return self

    def __exit__(self, *error: object) -> None:
        self._inbox.close()
        self._context.term()

    def send(self, first: int, count: int) -> None:
        for number in range(first, first + count, BLOCK):
            if number // BLOCK % SUPPLY_EVERY == 0:
                body = {"tasks": [{"workflow": "fuzzed"}] * TASKS}
                self._target.call("POST", "/v1/tasks/batch", self._target.admin, body)
            self._learn()
            block = self._messages.block(number, self._live)
            for at in range(0, BLOCK, EACH):
                self._connect_and_send([(self._hello(), b""), *block[at : at + EACH]])

    def _connect_and_send(self, messages: list[tuple[bytes, bytes]]) -> None:
        self.sent += len(messages)
        with contextlib.suppress(OSError), strangers.shake_hands(self._target.ready["results"], "PUB") as peer:
            self.connections += 1
            for topic, body in messages:
                peer.sendall(strangers.frame(topic + body))
            # A connection with unread bytes would be reset: the broker could lose what it has not read.
            with contextlib.suppress(TimeoutError):
                peer.settimeout(0.02)
                while peer.recv(65_536):
                    pass

    def _hello(self) -> bytes:
        self._n += 1
        hello = {"type": "hello", "v": "2.0", "worker": WORKER, "n": self._n, "versions": ["2.0"], "slots": 50}
        hello |= {"next": {BROKER: self._k}, "free": {BROKER: 50}, "handlers": [HANDLER]}
        return topics.WORKERS + json.dumps(hello).encode()

    def _learn(self) -> None:
        """Take the ids of everything that the broker has sent to this worker."""
        live = self._live
        self._n += 1
        live.update({"n": b"%d" % self._n, "rid": b"%d" % self._n, "next": b"%d" % self._k})
        while self._inbox.poll(0):
            message = json.loads(self._inbox.recv().partition(b" ")[2])
            match message["type"]:
                case "welcome":
                    live["session"], live["deployment"] = (
                        json.dumps(message[name]).encode() for name in ("session", "deployment")
                    )
                    self._k = int(message["session"].partition(".")[2])
                case "reset":
                    self._k = max(self._k, message["next"]) + 1
                case "steps":
                    step = message["steps"][0]
                    live["old.batch"], live["old.step"] = live["batch"], live["step"]
                    live["batch"] = json.dumps(message["batch_id"]).encode()
                    live["step"], live["delivery"] = b"%d" % step["step_id"], b"%d" % step["delivery"]


def _begin(target: Target) -> list[int]:
    """Let the honest peers take their steps."""
    for workflow in (HELD, QUICK):
        assert target.call("POST", "/v1/workflows", target.admin, workflow)[0] == 201
    held = [_submit(target, "held")]
    ends_s = time.monotonic() + ANSWER_S
    while True:
        steps = [step for task_id in held for step in _task(target, task_id)["steps"]]
        if all(step["state"] == "dispatched" for step in steps):
            return held
        assert time.monotonic() < ends_s, steps
        time.sleep(0.1)


def _finish(target: Target, held: list[int], release: Path, observed: Observed) -> None:
    """The honest steps end as their own workers say, and another task is run."""
    release.touch()
    for task_id in (*held, _submit(target, "quick")):
        ends_s, document = time.monotonic() + ANSWER_S, _task(target, task_id)
        while document["state"] != "completed" and time.monotonic() < ends_s:
            time.sleep(0.1)
            document = _task(target, task_id)
        outputs = [step.get("output") for step in document["steps"]]
        if document["state"] != "completed" or any(output != OUTPUT for output in outputs):
            observed.fault(f"honest task {task_id} is {document['state']} with the outputs {outputs}")


def _submit(target: Target, workflow: str) -> int:
    code, body = target.call("POST", "/v1/tasks", target.admin, {"workflow": workflow})
    assert code == 201, body
    return int(json.loads(body)["task_id"])


def _task(target: Target, task_id: int) -> dict[str, Any]:
    return dict(json.loads(target.call("GET", f"/v1/tasks/{task_id}", target.admin)[1]))


def _arrived(target: Target) -> int:
    lines = target.call("GET", "/metrics", target.admin)[1].decode().splitlines()
    received = [line for line in lines if line.startswith("stepwire_bus_messages_total{") and '"in"' in line]
    return sum(int(float(line.split()[-1])) for line in received)
