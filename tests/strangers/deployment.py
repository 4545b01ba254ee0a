"""A broker with honest peers that have work in progress, and one way in for a stranger."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import zmq
from stepwire import Context, Worker
from stepwire_broker.bus.keys import server_key
from stepwire_broker.bus.keys.key_text import KeyPair, new_pair
from stepwire_broker.timestamps import rfc3339
from stepwire_protocol import topics

from tests.attacks.target import Target, running_target

from .rows import ACCOUNT, KEYS, OPEN, SHARED, Row
from .stranger import Delivery, Known

T = TypeVar("T")

BOUND_S: Final = 20.0
OTHER_UID: Final = 54_322
UNKNOWN_UID: Final = 54_323
RELEASE: Final = "release"
PROGRAM: Final = (
    'import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint(\'{"by": "program"}\')'
)
LONG_AGO_MS: Final = 1_600_000_000_000


def eventually(look: Callable[[], T | None], what: str) -> T:
    until_s = time.monotonic() + BOUND_S
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > until_s:
            raise AssertionError(f"after {BOUND_S:g} s still waiting for {what}")
        time.sleep(0.02)


class Work(NamedTuple):
    """A step in progress, and the output that only its honest worker gives."""

    task_id: int
    step_id: int
    by: str  # the output of the honest side is {"by": by}


class Deployment:
    """The honest side: a broker, a worker `shop`, a level-0 handler and a program of the broker, each with a step that
    lasts until `release`."""

    def __init__(self, target: Target, way: str) -> None:
        self.target = target
        listeners = target.ready["listeners"]
        self.way_in = listeners[-1] if way in (KEYS, OPEN, SHARED) else listeners[0]
        self._release = target.directory / RELEASE
        self._own = listeners[0]
        self._worker = self._start_worker()
        self._level0 = _Level0(self._own, self._release)
        self.charge = self._submit("charge", "shop")
        self.program = self._submit("program", "program")
        self.old = self._submit("old", "level 0")
        self.begun = {work: eventually(lambda w=work: self._delivery(w), "a step to run") for work in self.all()}

    def all(self) -> tuple[Work, Work, Work]:
        return self.charge, self.program, self.old

    def known(self, row: Row, access: "Access") -> Known:
        held = eventually(self._held, "the worker to run its step")
        program = self._last_dispatch(self.program)
        batch = eventually(lambda: self._level0.batch, "the batch at level 0")
        return Known(
            attack=row.attack or row.name,
            steps=self.way_in["steps"],
            results=self.way_in["results"],
            deployment=held.peer.deployment or "",
            victim=Delivery(self._worker.id or "", held.batch.session, held.batch.id, *held.item),
            program=Delivery(program["worker"], "1.1", program["batch_id"], self.program.step_id, 1),
            batch_id=batch["batch_id"],
            batch_step_id=self.old.step_id,
            uid=access.uid,
            server_key=access.server_key,
            public=access.pair.public if access.pair else "",
            secret=access.pair.secret if access.pair else "",
        )

    def changed(self) -> list[str]:
        """Report the steps in progress that the stranger has changed."""
        found = [(work, self._delivery(work)) for work in self.all()]
        return [
            f"a step of {work.by} was {self.begun[work]}, and is {now}"
            for work, now in found
            if now != self.begun[work]
        ]

    def finish(self) -> list[str]:
        """Let everything end. Returns the outputs that are not those of the honest side."""
        self._release.touch()
        return [
            f"the step of {work.by} ended as {ended}"
            for work in self.all()
            if (ended := eventually(lambda w=work: self._ended(w), "the end of a step"))
            != ("completed", {"by": work.by})
        ]

    def serves(self) -> None:
        """Run a few more steps."""
        for _ in range(3):
            work = self._submit("reserve", "shop")
            ended = eventually(lambda w=work: self._ended(w), "an honest step to end")
            assert ended == ("completed", {"by": work.by}), ended

    def offer_own(self) -> Work:
        """A step that only the stranger's handlers fit, in a namespace that its grant excludes."""
        return self._submit("own", "")

    def why(self, work: Work) -> str:
        return self._get(f"/v1/tasks/{work.task_id}/why").decode()

    def close(self) -> None:
        self._release.touch()
        self._worker.stop()
        self._level0.close()

    def counts(self) -> dict[str, int]:
        """Refusals and disconnections by name."""
        refused, ended = self.target.refusals(), self.target.disconnections()
        return {name: refused.get(name, 0) + ended.get(name, 0) for name in {*refused, *ended}}

    # -- inner ---------------------------------------------------------------------------------------------------------

    def _start_worker(self) -> Worker:
        worker = Worker(steps=self._own["steps"], results=self._own["results"], name="shop", slots=4)
        release = self._release

        @worker.handler("shop.charge")
        def charge(context: Context) -> dict[str, str]:
            while not release.exists():
                time.sleep(0.01)
            return {"by": "shop"}

        @worker.handler("shop.reserve")
        def reserve(context: Context) -> dict[str, str]:
            return {"by": "shop"}

        worker.start()
        return worker

    def _submit(self, workflow: str, by: str) -> Work:
        code, body = self.target.call("POST", "/v1/tasks", self.target.admin, {"workflow": workflow})
        assert code == 201, body
        task_id = json.loads(body)["task_id"]
        step = json.loads(self._get(f"/v1/tasks/{task_id}"))["steps"][0]
        return Work(task_id, step["step_id"], by)

    def _held(self) -> Any:
        assert self._worker._thread is not None
        return next(iter(self._worker._thread.session.holdings.running()), None)

    def _last_dispatch(self, work: Work) -> dict[str, Any]:
        events = json.loads(self._get(f"/v1/tasks/{work.task_id}/events"))["events"]
        return next(event for event in reversed(events) if event["kind"] == "dispatched")

    def _delivery(self, work: Work) -> tuple[str, int, str, int] | None:
        """The state of a step, the number of its deliveries, and the last one's worker and number. None before it is
        dispatched."""
        step = json.loads(self._get(f"/v1/steps/{work.step_id}"))
        attempts = step["attempts"]
        if step["state"] == "ready" or not attempts:
            return None
        return step["state"], len(attempts), attempts[-1]["worker"], attempts[-1]["delivery"]

    def _ended(self, work: Work) -> tuple[str, Any] | None:
        step = json.loads(self._get(f"/v1/steps/{work.step_id}"))
        state = step["state"]
        return (state, step.get("output")) if state in ("completed", "failed", "held", "cancelled") else None

    def _get(self, path: str) -> bytes:
        code, body = self.target.call("GET", path, self.target.admin)
        assert code == 200, (path, code, body)
        return body


class _Level0:
    """A handler without an SDK. It keeps its first batch until the release."""

    def __init__(self, own: dict[str, str], release: Path) -> None:
        self.batch: dict[str, Any] | None = None
        self._own, self._release = own, release
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.SUB) as sub, context.socket(zmq.PUB) as pub:
            sub.linger, pub.linger = 0, 500
            sub.connect(self._own["steps"])
            pub.connect(self._own["results"])
            sub.subscribe(topics.STEPS)
            while not self._is_over.is_set():
                if sub.poll(50):
                    self.batch = json.loads(sub.recv().partition(b" ")[2])
                if self.batch and self._release.exists():
                    done = [
                        {"step_id": step["step_id"], "status": "completed", "output": {"by": "level 0"}}
                        for step in self.batch["steps"]
                    ]
                    answer = {"batch_id": self.batch["batch_id"], "protocol_version": "1.0", "results": done}
                    pub.send(topics.RESULTS + json.dumps(answer).encode())
                    self._is_over.wait(0.3)


class Access(NamedTuple):
    """With what the stranger connects."""

    uid: int | None = None
    server_key: str = ""
    pair: KeyPair | None = None


@contextmanager
def deployed(directory: Path, row: Row, way: str) -> Iterator[tuple[Deployment, Access]]:
    directory.chmod(0o711)
    for parent in list(directory.parents)[:-2]:  # another user has to reach the sockets
        if parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o011)
    access = _admit(directory, row, way)
    (directory / "stepwire.yaml").write_text(json.dumps(_settings(directory, way)))
    with running_target(directory) as target:
        for name, handler, more in (
            ("charge", "shop.charge", {"delivery_mode": "at_most_once"}),
            ("reserve", "shop.reserve", {}),
            ("program", "program", {"delivery_mode": "at_most_once"}),
            ("old", "old.pay", {}),
            ("own", "own.step", {}),
        ):
            steps = [{"name": "s", "handler_class": handler, **more}]
            workflow = {"name": name, "version": "1", "steps": steps}
            assert target.call("POST", "/v1/workflows", target.admin, workflow)[0] == 201
        deployment = Deployment(target, way)
        try:
            yield deployment, access
        finally:
            deployment.close()


def _settings(directory: Path, way: str) -> dict[str, Any]:
    tcp = "tcp://127.0.0.1:*"
    steps, results = ([f"ipc://{directory}/{name}.sock"] for name in ("steps", "results"))
    if way in (KEYS, OPEN):
        steps, results = [*steps, tcp], [*results, tcp]
    elif way == SHARED:
        steps, results = [tcp], [tcp]
    bus: dict[str, Any] = {"steps": steps, "results": results, "level0": {"handlers": ["old.*"]}}
    bus["ipc_mode"] = "0660" if way == ACCOUNT else "0600"
    if way == KEYS:
        bus["curve"] = {"secret_file": str(directory / "server.key"), "clients_dir": str(directory / "clients")}
    elif way == ACCOUNT:
        bus["curve"] = {"clients_dir": str(directory / "clients")}
    program = [sys.executable, "-c", PROGRAM, str(directory / RELEASE)]
    return {
        "bus": bus,
        "executors": {"exec": {"commands": {"program": program}, "runs_dir": str(directory / "runs")}},
        "execution": {"rules": [{"match": "default::program::*", "executor": "exec"}]},
    }


def _admit(directory: Path, row: Row, way: str) -> Access:
    """Write the stranger's client file, as its row says. Returns what it connects with."""
    if way not in (KEYS, ACCOUNT):
        return Access()
    pair = new_pair()
    server = server_key.init(directory / "server.key", directory / "clients")
    name = row.attack or row.name
    lines = [f"public={pair.public}" if way == KEYS else f"unix={OTHER_UID}", f"workers={name}", "handlers=own.**"]
    lines.append("labels=region=eu")
    if row.name == "foreign-namespaces":
        lines.append("namespaces=mine")
    if row.access in ("expired", "revoked"):
        lines.append(f"{'expires' if row.access == 'expired' else 'revoked'}={rfc3339(LONG_AGO_MS)}")
    client = directory / "clients" / "stranger"
    client.write_text("\n".join(lines) + "\n")
    client.chmod(0o600)
    if way == ACCOUNT:
        return Access(UNKNOWN_UID if row.access == "none" else OTHER_UID)
    if row.access == "none":
        return Access()
    shown = new_pair().public if row.access == "wrong_server" else server.public
    return Access(None, shown, new_pair() if row.access == "unknown" else pair)


def spoken(known: Known) -> bytes:
    return msgspec.json.encode(known) + b"\n"
