"""Brokers b1, b2, … on one schema of a server, each a process with a directory of its own.

The first one's directory has the ledgers of clients and workers; each directory has that of its broker's faults. With
`is_proxied`, each broker reaches the server through a proxy of its own. With `is_apart`, each has a pid namespace of
its own, as on another host: no broker then sees the end of another's process.
"""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.checker import Verdict, judge
from tests.postgres.proxy import Proxy
from tests.postgres.server import PostgresServer
from tests.postgres.site import PostgresSite
from tests.system.harness import Answer, Program, eventually
from tests.system.ledger import Ledger, now_ns

BOUND_S: Final = 120.0  # on a busy machine
SCHEMA: Final = "several"
APART: Final = ("unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")


class Shape(NamedTuple):
    brokers: int = 3
    lanes: int = 6
    lease_ms: int = 10_000
    worker_lease_ms: int = 10_000
    is_proxied: bool = False
    is_apart: bool = False

    @property
    def heartbeat_ms(self) -> int:
        return self.worker_lease_ms // 5


class Broker:
    """One broker: its site, its proxy, and its process, which may be replaced."""

    def __init__(self, server: PostgresServer, number: int, shape: Shape, url: str | None) -> None:
        self.id = f"b{number}"
        self.proxy = Proxy(server.port) if shape.is_proxied else None
        self._is_apart = shape.is_apart
        own = {
            "broker.id": self.id,
            "broker.lease_ms": shape.lease_ms,
            "database.lanes": shape.lanes,
            "bus.lease_ms": shape.worker_lease_ms,
            "bus.heartbeat_ms": shape.heartbeat_ms,
            "bus.lost_sessions_max": 1000,  # brokers and workers are killed at random, not by the steps they run
        }
        if self.proxy is not None:
            own["database.url"] = server.url(port=self.proxy.port)
        if url is not None:
            own["database.url"] = url
        self.site = PostgresSite(server, SCHEMA, own, transport="tcp")

    @property
    def url(self) -> str:
        return self.site.url

    @property
    def program(self) -> Program:
        assert self.site.broker is not None
        return self.site.broker

    @property
    def is_running(self) -> bool:
        return self.site.broker is not None and self.site.broker.is_running

    def start(self) -> Program:
        """Start the process, without waiting for it."""
        program = self.site.start_broker(wait=False, wrapper=APART if self._is_apart else ())
        self.site.fault("named", program, broker=self.id)
        return program

    def await_listening(self) -> None:
        """Wait for the line that the broker prints when it listens. It may own no lane yet."""
        eventually(self._is_listening, f"{self.id} to listen", BOUND_S)
        self.site.ready = json.loads(self.program.stdout.partition("\n")[0])

    def _is_listening(self) -> bool:
        if "\n" in self.program.stdout:
            return True
        self.assert_running()
        return False

    def assert_running(self) -> None:
        """Fail if the broker has ended by itself."""
        assert self.is_running, f"{self.id} ended with {self.program.process.poll()}:\n{self.program.stderr[-3000:]}"

    def await_ready(self) -> None:
        self.await_listening()
        eventually(lambda: self.ask("GET", "/readyz").status == 200 or None, f"{self.id} to be ready", BOUND_S)

    def ask(self, method: str, path: str, body: Any = None, *, timeout_s: float = 10.0) -> Answer:
        return self.site.ask(method, path, body, timeout_s=timeout_s)

    def kill9(self) -> int:
        """Kill the process, which must be alive. Returns the time of the signal."""
        self.assert_running()
        self.site.fault("killed", self.program)
        at = now_ns()
        os.kill(self._process(), signal.SIGKILL)
        self.program.process.wait(BOUND_S)
        return at

    def ask_to_end(self) -> int:
        """Send SIGTERM. Returns its time."""
        self.site.fault("asked_to_end", self.program)
        at = now_ns()
        os.kill(self._process(), signal.SIGTERM)
        return at

    def await_end(self) -> int:
        return self.program.wait(BOUND_S)

    def pause(self) -> int:
        """Suspend the process. Returns the time of the signal."""
        self.site.fault("paused", self.program)
        at = now_ns()
        os.kill(self._process(), signal.SIGSTOP)
        return at

    def go_on(self) -> int:
        at = now_ns()
        os.kill(self._process(), signal.SIGCONT)
        self.site.fault("resumed", self.program)
        return at

    def _process(self) -> int:
        """The broker's own process. That of the site may be the one that made its namespace."""
        pid = self.program.pid
        if not self._is_apart:
            return pid
        text = eventually(
            lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().strip() or None, "the process of the broker"
        )
        return int(text)

    @property
    def pid(self) -> int:
        return self._process()

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of the present process's log with this event."""
        lines = [line for line in self.program.stderr.splitlines() if f'"{event}"' in line]
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self.site.close()
        if self.proxy is not None:
            self.proxy.close()


class Brokers:
    """`with Brokers(server, shape) as brokers:`, then `start`."""

    def __init__(self, server: PostgresServer, shape: Shape, url: str | None = None) -> None:
        """`url`: of the database, if it is not that of the server alone."""
        self.server = server
        self.shape = shape
        self.all = [Broker(server, number, shape, url) for number in range(1, shape.brokers + 1)]
        self._ledgers = 0
        self._faults: Ledger | None = None

    def go_on_at(self, server: PostgresServer) -> None:
        """Read the rows of this server from now on, because it has taken over."""
        self.server = server
        for broker in self.all:
            broker.site.server = server

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for broker in reversed(self.all):  # the first one's site has the workers
            broker.close()

    def __iter__(self) -> Iterator[Broker]:
        return iter(self.all)

    def __getitem__(self, index: int) -> Broker:
        return self.all[index]

    @property
    def first(self) -> PostgresSite:
        return self.all[0].site

    def configure(self, text: str) -> None:
        """Give every broker this configuration, in YAML, before it starts."""
        for broker in self.all:
            (broker.site.directory / "stepwire.yaml").write_text(text)

    def start(self) -> None:
        """Start all brokers with one token, and wait until each listens."""
        self[0].start()
        self[0].await_listening()
        for broker in self.all[1:]:
            state = broker.site.directory / ".stepwire"
            state.mkdir(mode=0o700)
            shutil.copy(self.first.directory / ".stepwire" / "token", state)
            broker.start()
        for broker in self.all[1:]:
            broker.await_listening()

    def await_shares(self) -> None:
        """Wait until every broker has its share of the lanes."""
        least = self.shape.lanes // self.shape.brokers

        def are_equal() -> bool | None:
            owned = self.owners()
            return all(owned.count(broker.id) >= least for broker in self.all) or None

        eventually(are_equal, "equal shares of the lanes", BOUND_S)

    @property
    def urls(self) -> str:
        """The URLs of all brokers, as a client takes them."""
        return ",".join(broker.url for broker in self.all)

    @property
    def token_file(self) -> Path:
        return self.first.directory / ".stepwire" / "token"

    def endpoints(self) -> dict[str, str]:
        """The environment of a worker that knows every broker."""
        return {
            f"STEPWIRE_{key.upper()}": ",".join(str(broker.site.settings[f"bus.{key}"]) for broker in self.all)
            for key in ("steps", "results")
        }

    def ledger(self, name: str) -> Ledger:
        """A new ledger of the whole site."""
        self._ledgers += 1
        return Ledger(self.first.ledgers, f"{name}-{os.getpid()}-several{self._ledgers}", is_synced=False)

    def owners(self) -> list[str | None]:
        """The owner of each lane."""
        rows = self.server.sql(f"SELECT owner FROM {SCHEMA}.lanes ORDER BY id")  # noqa: S608
        return [row[0] for row in rows]

    def stop_server(self) -> None:
        """Crash the server of the database, and record that it is away."""
        self._record("away", "database")
        self.server.stop("immediate")

    def start_server(self) -> None:
        self.server.start()
        self._record("back", "database")

    def record_owners(self, known: dict[int, str | None]) -> dict[int, str | None]:
        """Record each lane whose owner is not the known one. Returns the owners."""
        owners = dict(self.server.sql(f"SELECT id, owner FROM {SCHEMA}.lanes ORDER BY id"))  # noqa: S608
        for lane, owner in owners.items():
            if lane not in known or owner != known[lane]:
                self._record("owned", "lane", lane=lane, broker=owner)
        return owners

    def _record(self, event: str, role: str, **facts: Any) -> None:
        if self._faults is None:
            self._faults = self.ledger("faults")
        self._faults.write(event, role=role, pid=0, **facts)

    def lanes_of(self, broker: str) -> list[int]:
        rows = self.server.sql(f"SELECT id FROM {SCHEMA}.lanes WHERE owner = %s ORDER BY id", broker)  # noqa: S608
        return [int(row[0]) for row in rows]

    def open_tasks(self) -> int:
        """Count the open tasks. A task that waits for a held step will not end by itself and is not counted."""
        return self.first.number("SELECT count(*) FROM tasks WHERE finished_ms IS NULL AND attention IS NULL")

    def judge(self, **how: Any) -> Verdict:
        ledgers = [broker.site.ledgers for broker in self.all]
        return judge(self.first.database, ledgers, lease_ms=self.shape.worker_lease_ms, **how)

    def start_worker(self, name: str, *words: str, handlers: Sequence[str] = ()) -> Program:
        """Start a worker with a session, which knows every broker."""
        argv = [str(self.first.directory), name, "--heartbeat-ms", str(self.shape.heartbeat_ms), "--unsynced", *words]
        if handlers:
            argv += ["--offers", *handlers]
        return self.first.start_program("worker", f"worker-{name}", "tests.system.handlers", argv, self.endpoints())

    def copy_to(self, directory: Path) -> None:
        """Copy the ledgers and the logs of every process."""
        for broker in self.all:
            for each in (broker.site.ledgers, broker.site.directory / "logs"):
                shutil.copytree(each, directory / broker.id / each.name)

    def transcripts(self) -> Iterator[tuple[str, str]]:
        for broker in self.all:
            with contextlib.suppress(OSError):
                for name, text in broker.site.transcripts():
                    yield f"{broker.id}: {name}", text
