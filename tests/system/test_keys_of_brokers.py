"""Two brokers on one PostgreSQL with keys: a grant, its end, and a quota hold at each broker."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from stepwire import Client, ClientError

from tests.cli.a_place import Place, place, stop
from tests.postgres.server import PostgresServer

from .harness import eventually
from .test_keys import WORKER

BOUND_S = 60.0
QUOTA = "limits: {namespaces: {shop: {max_open_steps: 3}}}\n"


class Broker(NamedTuple):
    place: Place
    facts: dict[str, Any]

    @property
    def clients_dir(self) -> Path:
        return self.place.directory / ".stepwire/keys/clients"

    def client(self) -> Client:
        return Client(self.facts["http"], token_file=str(self.place.directory / self.facts["token_file"]))

    def workers(self) -> list[str]:
        with self.client() as client:
            return [one["worker"].partition(":")[0] for one in client.workers()["workers"]]

    def run(self, *words: str) -> None:
        done = self.place.stepwire(*words)
        assert done.code == 0, done


class Pair(NamedTuple):
    b1: Broker
    b2: Broker
    worker: "subprocess.Popen[str]"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with PostgresServer() as server, ExitStack() as stack:
        first, second = (started(tmp_path_factory.mktemp(name), name, server, stack) for name in ("b1", "b2"))
        first.run("keys", "new", "shop", "--handlers", "shop.*", "--workers", "shop", "--out", "shop.key")
        take_files(first, second)
        endpoints = first.facts["listeners"][0]
        (first.place.directory / "worker.py").write_text(WORKER.replace('os.environ["OFFERS"]', '"shop.pay"'))
        worker = subprocess.Popen(
            [sys.executable, "worker.py"],
            cwd=first.place.directory,
            env=first.place.environ
            | {
                "STEPWIRE_STEPS": endpoints["steps"],
                "STEPWIRE_RESULTS": endpoints["results"],
                "STEPWIRE_NAME": "shop",
                "STEPWIRE_CURVE_FILE": "shop.key",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        stack.callback(stop, worker)
        for each in (first, second):
            eventually(lambda each=each: each.workers() == ["shop"], "the worker to join each broker", BOUND_S)  # type: ignore[misc]
        yield Pair(first, second, worker)


def started(directory: Path, name: str, server: PostgresServer, stack: ExitStack) -> Broker:
    directory.chmod(0o700)
    here = place(directory)
    here.environ.update(
        DATABASE_URL=server.socket_url(),
        STEPWIRE_BROKER__ID=name,
        STEPWIRE_BROKER__LEASE_MS="2000",
        STEPWIRE_DATABASE__LANES="2",
    )
    assert here.stepwire("keys", "init").code == 0
    with socket.create_server(("127.0.0.1", 0)) as steps, socket.create_server(("127.0.0.1", 0)) as results:
        ports = steps.getsockname()[1], results.getsockname()[1]
    settings = here.stepwire("keys", "init").out
    settings += f'  steps: "tcp://127.0.0.1:{ports[0]}"\n  results: "tcp://127.0.0.1:{ports[1]}"\n'
    (directory / "stepwire.yaml").write_text(settings + QUOTA)
    serving = here.serve("-o", "json")
    stack.callback(stop, serving.process)
    facts = json.loads(serving.ready)
    here.environ["STEPWIRE_URL"] = facts["http"]
    return Broker(here, facts)


def take_files(of: Broker, to: Broker) -> None:
    """Distribute the public keys, as an operator does between hosts."""
    for file in of.clients_dir.iterdir():
        shutil.copy2(file, to.clients_dir / file.name)


def test_a_quota_counts_the_open_steps_of_all_brokers(pair: Pair) -> None:
    steps = [{"name": name, "handler_class": "nobody.offers"} for name in ("a", "b")]
    with pair.b1.client() as first, pair.b2.client() as second:
        first.apply_workflow({"namespace": "shop", "name": "order", "version": "1", "steps": steps})
        task_id = first.submit("order", namespace="shop").task_id

        def is_refused() -> bool:
            """The other broker learns the count with a beat."""
            with Client(
                pair.b2.facts["http"], token_file=str(pair.b2.place.directory / pair.b2.facts["token_file"]), outage_s=0
            ) as hasty:
                try:
                    second.cancel(hasty.submit("order", namespace="shop").task_id)
                except ClientError as error:
                    return error.code == "quota"
            return False

        eventually(is_refused, "the other broker to refuse", BOUND_S)
        second.cancel(task_id)


def test_a_grant_holds_at_each_broker_and_ends_at_each_when_its_files_have_changed(pair: Pair) -> None:
    step = {"name": "only", "handler_class": "shop.pay"}
    with pair.b1.client() as first, pair.b2.client() as second:
        first.apply_workflow({"name": "pay", "version": "1", "steps": [step]})
        for client in (first, second):
            assert client.run("pay", timeout=BOUND_S)["state"] == "completed"
        pair.b1.run("keys", "revoke", "shop")
        at_first = until_revoked(first, 1)
        waits = first.submit("pay").task_id
        assert second.run("pay", timeout=BOUND_S)["state"] == "completed", "each broker has files of its own"
        take_files(pair.b1, pair.b2)
        at_second = until_revoked(first, 2)
        print(f"seconds from the change of the files to the end of the grant: {at_first:.2f}, {at_second:.2f}")
        assert second.task(waits)["state"] == "running", "no broker sends a step to the revoked worker"
        for broker in (pair.b1, pair.b2):
            broker.run("keys", "allow", "shop")
        assert second.wait(waits, timeout=BOUND_S)["state"] == "completed"


def until_revoked(client: Client, rows: int) -> float:
    """Wait for the rows that the brokers write when they notice the change, each in a lane of its own."""
    began_s = time.monotonic()
    eventually(lambda: len(client.audit(action="grant_revoked")["rows"]) == rows, "the broker to notice it", BOUND_S)
    return time.monotonic() - began_s
