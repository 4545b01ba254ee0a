"""A site: one directory with a broker, its workers, its clients and their ledgers, all of them real processes.

A site ends every process that it started, also if a test fails. It writes faults (kill, suspend, resume) to the ledger
of faults, and operators' commands and observed states to a client's ledger, so that the checker knows the causes.
"""

import contextlib
import errno
import http.client
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from stepwire import Client

from tests.cli import forked

from .handlers import GATES, LEDGERS
from .ledger import Ledger, now_ns, read

T = TypeVar("T")

REPOSITORY: Final = Path(__file__).resolve().parents[2]
START_BOUND_S: Final = 20.0
END_BOUND_S: Final = 20.0
POLL_S, POLL_MAX_S = 0.01, 0.05  # a long wait polls less often, because polls slow down the polled process
SHOWN_BYTES_MAX: Final = 6_000
ORDERS: Final = ("cancel", "pause", "resume", "retry", "resolve")
ENDED: Final = ("completed", "failed", "cancelled")


class Stuck(AssertionError):
    """An awaited event did not happen within its bound."""


def eventually(check: Callable[[], T | None], what: str, bound_s: float = 10.0) -> T:
    """Poll `check`, and return its first value that is neither None nor False."""
    until = time.monotonic() + bound_s
    pause_s = POLL_S
    while True:
        value = check()
        if value is not None and value is not False:
            return value
        if time.monotonic() > until:
            raise Stuck(f"not within {bound_s:g} s: {what}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, POLL_MAX_S)


class Program:
    """A process of the site, with its output in two files."""

    def __init__(self, site: "Site", role: str, name: str, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.role = role
        self.name = name
        self._site = site
        self._out, self._err = site.directory / "logs" / f"{name}.out", site.directory / "logs" / f"{name}.err"
        self._out.parent.mkdir(exist_ok=True)
        self.started_ns = now_ns()
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self._out_from, self._err_from = out.tell(), err.tell()
            # In a session of its own: a Ctrl-C in the tests does not reach it.
            self.process = forked.start(
                argv,
                site.directory,
                environ,
                stdout=out,
                stderr=err,
                start_new_session=True,
                may_fork=site.may_fork,
            )
        self.pid = self.process.pid
        site.fault("started", self)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def stdout(self) -> str:
        return self._read(self._out, self._out_from)

    @property
    def stderr(self) -> str:
        return self._read(self._err, self._err_from)

    @staticmethod
    def _read(path: Path, start: int) -> str:
        with path.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")

    def kill9(self) -> None:
        """Kill the process. The ledger line comes first: anything after it may be an effect of the fault."""
        self._site.fault("killed", self)
        self.process.kill()
        self.process.wait(END_BOUND_S)

    def pause(self) -> None:
        self._site.fault("paused", self)
        self.process.send_signal(signal.SIGSTOP)
        eventually(lambda: _state_of(self.pid) == "T" or None, f"{self.name} stopped")

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self._site.fault("resumed", self)

    def ask_to_end(self) -> None:
        self._site.fault("asked_to_end", self)
        self.process.terminate()

    def wait(self, bound_s: float = END_BOUND_S) -> int:
        try:
            code = self.process.wait(bound_s)
        except subprocess.TimeoutExpired:
            raise Stuck(f"{self.name} (process {self.pid}) did not end within {bound_s:g} s") from None
        self._site.fault("ended", self, code=code)
        return code

    def rss_bytes(self) -> int:
        return _status_bytes(self.pid, "VmRSS")

    def rss_peak_bytes(self) -> int:
        return _status_bytes(self.pid, "VmHWM")

    def end(self) -> None:
        """End the process in any state."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
                self.process.kill()
            self.process.wait(END_BOUND_S)


class Answer(NamedTuple):
    status: int
    body: Any

    @property
    def code(self) -> str | None:
        return self.body.get("code") if isinstance(self.body, dict) else None


class Site:
    """`with Site() as site:`, then `start_broker`, `start_worker`, `client`. Everything ends with the block."""

    def __init__(
        self,
        transport: Literal["ipc", "tcp"] = "ipc",
        settings: Mapping[str, Any] | None = None,
        *,
        state_directory: Path | None = None,
        may_fork: bool = True,
    ) -> None:
        """`may_fork`: brokers and workers start quickly, but /proc has the forker's arguments and environment."""
        self.may_fork = may_fork
        # Not pytest's own directory: the path of a socket has at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="sw-"))
        self.programs: list[Program] = []
        self._fault_ledger = Ledger(self.directory / LEDGERS, f"faults-{os.getpid()}")
        self._own_ledger = Ledger(self.directory / LEDGERS, f"client-{os.getpid()}-site")
        self._client_ledgers = 0
        self._cleanups: list[Callable[[], None]] = [self._fault_ledger.close, self._own_ledger.close]
        self.broker: Program | None = None
        self.ready: dict[str, Any] = {}
        port = free_ports(3)
        self.settings: dict[str, Any] = {"http.listen": f"127.0.0.1:{port[0]}"}
        if transport == "tcp":
            self.settings |= {"bus.steps": f"tcp://127.0.0.1:{port[1]}", "bus.results": f"tcp://127.0.0.1:{port[2]}"}
        if state_directory is not None:
            self.settings["database.url"] = f"sqlite:///{state_directory}/state.db"
        self.settings |= settings or {}
        (self.directory / GATES).mkdir()
        self._is_kept = bool(os.environ.get("STEPWIRE_TEST_KEEP"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for program in reversed(self.programs):
            program.end()
        for cleanup in reversed(self._cleanups):
            cleanup()
        self._cleanups.clear()
        if not self._is_kept:
            shutil.rmtree(self.directory, ignore_errors=True)

    def at_close(self, cleanup: Callable[[], None]) -> None:
        self._cleanups.append(cleanup)

    # -- processes ----------------------------------------------------------------------------------------------------

    @property
    def environ(self) -> dict[str, str]:
        """The environment of every process of the site, without the caller's own configuration."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("STEPWIRE_") and k != "DATABASE_URL"}
        endpoints = {
            f"STEPWIRE_{key.upper()}": str(self.settings[f"bus.{key}"])
            for key in ("steps", "results")
            if f"bus.{key}" in self.settings
        }
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        return inherited | endpoints | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}

    @property
    def faults(self) -> Path:
        return self.directory / "faults"

    def start_broker(
        self,
        *,
        with_faults: bool = False,
        environ: Mapping[str, str] | None = None,
        wait: bool = True,
        bound_s: float = START_BOUND_S,
        wrapper: Sequence[str] = (),
    ) -> Program:
        """Start `stepwire serve`, by a program `wrapper` if there is one, and wait until it is ready unless `wait` is
        False."""
        module = "tests.system.serve_with_faults" if with_faults else "stepwire"
        argv = [*wrapper, sys.executable, "-m", module, "serve", "-o", "jsonl"]
        for key, value in self.settings.items():
            argv += ["--set", f"{key}={value}"]
        extra = dict(environ or {})
        if with_faults:
            self.faults.mkdir(exist_ok=True)
            extra["STEPWIRE_FAULTS"] = str(self.faults)
        name = f"broker-{sum(p.role == 'broker' for p in self.programs) + 1}"
        self.broker = self._start("broker", name, argv, extra)
        if wait:
            self.await_ready(self.broker, bound_s)
        return self.broker

    def await_ready(self, broker: Program, bound_s: float = START_BOUND_S) -> None:
        def find() -> dict[str, Any] | None:
            out = broker.stdout
            if "\n" in out:
                line: dict[str, Any] = json.loads(out.partition("\n")[0])
                return line
            if not broker.is_running:
                raise AssertionError(f"the broker ended with {broker.process.returncode}:\n{broker.stderr[-3000:]}")
            return None

        self.ready = eventually(find, "the broker's ready line", bound_s)
        eventually(lambda: self.ask("GET", "/readyz").status == 200 or None, "/readyz to return 200", bound_s)

    def start_worker(
        self,
        name: str,
        *,
        slots: int = 10,
        prefetch: int | None = None,
        heartbeat_ms: int | None = None,
        offers: Sequence[str] = (),
        labels: str = "",
        is_synced: bool = True,
        wait: bool = True,
    ) -> Program:
        """Start a worker with the handlers of these tests, or with `system.work` under the names in `offers`.

        Wait for its session unless `wait` is False.
        """
        argv = [sys.executable, "-m", "tests.system.handlers", str(self.directory), name, "--slots", str(slots)]
        if prefetch is not None:
            argv += ["--prefetch", str(prefetch)]
        if heartbeat_ms is not None or "bus.heartbeat_ms" in self.settings:
            argv += ["--heartbeat-ms", str(heartbeat_ms or self.settings["bus.heartbeat_ms"])]
        if not is_synced:
            argv += ["--unsynced"]
        if offers:
            argv += ["--offers", *offers]
        worker = self._start("worker", f"worker-{name}-{len(self.programs)}", argv, {"STEPWIRE_LABELS": labels})
        if wait:
            self.await_worker(worker)
        return worker

    def start_other_worker(self, name: str, command: Sequence[str], *, slots: int = 10, wait: bool = True) -> Program:
        """Start a worker program in any language. Its handler `conform.book` writes the same ledger as the handlers of
        these tests."""
        state = self.directory / ".stepwire"
        environ = {
            "STEPWIRE_NAME": name,
            "STEPWIRE_SLOTS": str(slots),
            "STEPWIRE_STEPS": str(self.settings.get("bus.steps", f"ipc://{state}/steps.sock")),
            "STEPWIRE_RESULTS": str(self.settings.get("bus.results", f"ipc://{state}/results.sock")),
            "CONFORM_BOOK": str(self.ledgers),
        }
        worker = self._start("worker", f"worker-{name}-{len(self.programs)}", command, environ)
        if wait:
            self.await_worker(worker)
        return worker

    def await_worker(self, worker: Program, bound_s: float = START_BOUND_S) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            assert worker.is_running, f"{worker.name} ended:\n{worker.stderr[-3000:]}"
            return next((w for w in self.workers() if w["pid"] == worker.pid), None)

        return eventually(find, f"a session of {worker.name}", bound_s)

    def start(self, name: str, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Program:
        """Start any other program."""
        return self._start("other", name, argv, environ or {})

    def start_program(
        self, role: str, name: str, module: str, arguments: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> Program:
        """Start a module of these tests in this role."""
        return self.start_as(role, name, [sys.executable, "-m", module, *arguments], environ)

    def start_as(self, role: str, name: str, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Program:
        """Start a program in this role. Its output has a name of its own."""
        return self._start(role, f"{name}-{len(self.programs)}", argv, environ or {})

    def _start(self, role: str, name: str, argv: Sequence[str], extra: Mapping[str, str]) -> Program:
        program = Program(self, role, name, argv, self.environ | dict(extra))
        self.programs.append(program)
        return program

    def fault(self, event: str, program: Program, **facts: Any) -> None:
        self._fault_ledger.write(event, role=program.role, program=program.name, pid=program.pid, **facts)

    def stepwire(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line as an operator would."""
        self._record_command(arguments)
        words = [*arguments, "--url", self.url]
        return subprocess.CompletedProcess(words, *forked.run(words, self.directory, self.environ, ""))

    # -- requests -----------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://{self.settings['http.listen']}"

    @property
    def token(self) -> str:
        return (self.directory / ".stepwire" / "token").read_text().strip()

    def client(self) -> Client:
        client = Client(self.url, token_file=self.directory / ".stepwire" / "token")
        self.at_close(client.close)
        return client

    def recorded_client(self) -> "RecordedClient":
        self._client_ledgers += 1
        ledger = Ledger(self.directory / LEDGERS, f"client-{os.getpid()}-{self._client_ledgers}")
        return RecordedClient(self, ledger)

    def _record_command(self, words: Sequence[str]) -> None:
        """Record an operator's command before it is sent, because a command without an answer may have been executed.

        Commands are `task cancel 7` or `step resolve 7/pay`, or paths: `tasks/7/cancel`, `steps/9/resolve`.
        """
        order = next((word for word in words if word in ORDERS), None)
        about = next((word for word in words[1:3] if word.partition("/")[0].isdigit()), None)
        if order is not None and about is not None:
            number, of_task, _ = about.partition("/")
            is_step = words[0].startswith("step") and not of_task
            self._own_ledger.write("ordered", order=order, **{"step_id" if is_step else "task_id": int(number)})

    def ask(self, method: str, path: str, body: Any = None, *, timeout_s: float = 10.0) -> Answer:
        """Send one request on a connection of its own, without a retry. Status 0: no answer."""
        if method == "POST":
            self._record_command(path.split("/")[2:])
        answer = self._ask(method, path, body, timeout_s)
        shown = answer.body if isinstance(answer.body, dict) else {}
        if method == "GET" and "task_id" in shown and shown.get("state") in ENDED:
            self._own_ledger.write("observed", task_id=shown["task_id"], state=shown["state"])
        return answer

    def _ask(self, method: str, path: str, body: Any, timeout_s: float) -> Answer:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout_s)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, {"code": type(error).__name__})
        finally:
            connection.close()
        try:
            return Answer(response.status, json.loads(text))
        except ValueError:
            return Answer(response.status, text)

    def workers(self) -> list[dict[str, Any]]:
        answer = self.ask("GET", "/v1/workers")
        return answer.body["workers"] if answer.status == 200 else []

    def task(self, task_id: int) -> dict[str, Any]:
        answer = self.ask("GET", f"/v1/tasks/{task_id}")
        assert answer.status == 200, answer
        return answer.body  # type: ignore[no-any-return]

    def apply(self, workflow: Mapping[str, Any]) -> None:
        answer = self.ask("POST", "/v1/workflows", workflow)
        assert answer.status in (200, 201), answer

    # -- evidence ------------------------------------------------------------------------------------------------------

    def open_gate(self, name: str) -> None:
        (self.directory / GATES / name).touch()

    @property
    def ledgers(self) -> Path:
        return self.directory / LEDGERS

    def runs(self, *events: str, pid: int | None = None) -> list[dict[str, Any]]:
        """Return the lines of the handlers' ledgers."""
        return [
            event
            for event in read(self.ledgers, "worker-")
            if (not events or event["event"] in events) and (pid is None or event["pid"] == pid)
        ]

    @property
    def database(self) -> Path:
        url = str(self.settings.get("database.url", "sqlite:///.stepwire/state.db"))
        return self.directory / url.removeprefix("sqlite:///")

    def number(self, query: str) -> int:
        """Return the only value of a query, read from the database itself."""
        with closing(sqlite3.connect(f"{self.database.as_uri()}?mode=ro", uri=True)) as connection:
            return int(connection.execute(query).fetchone()[0])

    def crash_server(self) -> None:
        raise AssertionError("SQLite has no server")

    def transcripts(self) -> Iterator[tuple[str, str]]:
        """Yield the output of every process, or the end of a long one."""
        for path in sorted((self.directory / "logs").glob("*")):
            text = path.read_text(errors="replace")
            if text:
                yield path.name, text[-SHOWN_BYTES_MAX:]


class RecordedClient:
    """A client that records every submission before it sends it, and every answer after it arrived."""

    def __init__(self, site: Site, ledger: Ledger) -> None:
        self._site = site
        self._ledger = ledger

    def submit(self, workflow: str, key: str, context: Any = None, *, timeout_s: float = 10.0) -> Answer:
        task = {"workflow": workflow, "context": context or {}, "idempotency_key": key}
        self._ledger.write("asked", key=key, workflow=workflow)
        answer = self._site.ask("POST", "/v1/tasks", task, timeout_s=timeout_s)
        if answer.status in (200, 201):
            self._acknowledged(key, workflow, answer.body["task_id"], answer.body["created"])
        else:
            self._ledger.write("not_acknowledged", key=key, status=answer.status, code=answer.code)
        return answer

    def submit_many(self, workflow: str, keys: Sequence[str], context: Any = None, timeout_s: float = 60.0) -> Answer:
        tasks = [{"workflow": workflow, "context": context or {}, "idempotency_key": key} for key in keys]
        self._ledger.write("asked_many", keys=list(keys), workflow=workflow)
        answer = self._site.ask("POST", "/v1/tasks/batch", {"tasks": tasks}, timeout_s=timeout_s)
        if answer.status in (200, 201):
            self._ledger.write(
                "acknowledged_many", keys=list(keys), workflow=workflow, task_ids=answer.body["task_ids"]
            )
        else:
            self._ledger.write("not_acknowledged_many", keys=list(keys), status=answer.status, code=answer.code)
        return answer

    def submit_many_until_stored(self, workflow: str, keys: Sequence[str], bound_s: float = 30.0) -> list[int]:
        """Submit a batch. A new broker has few ids for tasks and steps, so a large batch may have to wait for more."""
        answer = eventually(lambda: self._stored(workflow, keys), f"a batch of {len(keys)} to be stored", bound_s)
        return list(answer.body["task_ids"])

    def _stored(self, workflow: str, keys: Sequence[str]) -> Answer | None:
        answer = self.submit_many(workflow, keys)
        assert answer.status in (200, 201, 429, 503), answer
        return answer if answer.status in (200, 201) else None

    def submit_until_acknowledged(self, workflow: str, key: str, context: Any = None, bound_s: float = 30.0) -> int:
        """Repeat a submission with the same key until it is acknowledged, as a client does that must not lose it."""
        until = time.monotonic() + bound_s
        while True:
            answer = self.submit(workflow, key, context, timeout_s=5.0)
            if answer.status in (200, 201):
                return int(answer.body["task_id"])
            self._repeat(answer, key, until)

    def submit_many_until_acknowledged(
        self, workflow: str, keys: Sequence[str], context: Any = None, bound_s: float = 30.0
    ) -> None:
        """Repeat a batch with the same keys until it is acknowledged."""
        until = time.monotonic() + bound_s
        while (answer := self.submit_many(workflow, keys, context, timeout_s=10.0)).status not in (200, 201):
            self._repeat(answer, keys[0], until)

    def _repeat(self, answer: Answer, key: str, until: float) -> None:
        """Pause before a submission is repeated, or raise an error if that is in vain or takes too long."""
        assert answer.status in (0, 429, 503), f"{answer}\n" + "\n".join(
            program.stderr[-3000:] for program in self._site.programs if program.name.startswith("broker")
        )
        if time.monotonic() > until:
            raise Stuck(f"{key} was not acknowledged in time: {answer}")
        time.sleep(POLL_MAX_S)

    def _acknowledged(self, key: str, workflow: str, task_id: int, created: bool) -> None:
        self._ledger.write("acknowledged", key=key, workflow=workflow, task_id=task_id, created=created)


def workflow(name: str, *steps: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a workflow document; a step's handler is `system.work` unless the step names one."""
    return {"name": name, "steps": [{"handler_class": "system.work", **step} for step in steps], **more}


def free_ports(count: int) -> list[int]:
    """Return free ports below the range that the system assigns, so that no other process takes one first."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(12_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
        if port not in ports:
            ports.append(port)
    return ports


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no {name}")
