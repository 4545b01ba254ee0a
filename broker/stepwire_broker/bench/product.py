"""The product as users run it: broker, worker and client in separate processes, tasks over HTTP, every commit synced.

Afterwards the history of every task is replayed and compared with the tables.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import groupby
from math import nan
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Final, NamedTuple
from urllib.request import Request, urlopen

import msgspec
from stepwire.client import Client
from stepwire_protocol import limits

from stepwire_broker.bus.keys import server_key
from stepwire_broker.bus.keys.client_file import ClientFile, text_of
from stepwire_broker.bus.keys.key_text import new_pair
from stepwire_broker.bus.keys.server_key import CLIENTS_DIR, SECRET_FILE
from stepwire_broker.bus.keys.trusted_text import write_new
from stepwire_broker.core.commit import history
from stepwire_broker.core.definitions.stored_rows import StoredStep, StoredTask
from stepwire_broker.core.definitions.workflow import Workflow, stored_workflow
from stepwire_broker.core.model.principal import ANY_LABEL, Grant
from stepwire_broker.end_with_parent import end_with_parent
from stepwire_broker.store.queries import Queries
from stepwire_broker.store.rows import TaskFilter
from stepwire_broker.store.sqlite.opening import open_reader
from stepwire_broker.store.sqlite.queries import SqliteQueries

from .load import CONTEXT, IDLE, NAME, STEPS, BenchFailed, Progress, Setup, Throughput, Workload, chain, idle

START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
TASK_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.005
CHECK_TASKS: Final = 1_000  # tasks read at a time
WARM_UP_TASKS: Final = 500
IDLE_BATCH: Final = 5_000  # idle tasks in one submission
LOG_TAIL_CHARACTERS: Final = 2_000
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")

_PYTHON: Final = (sys.executable, "-m")


class Cpu(NamedTuple):
    """Seconds of CPU time of each process, all threads included."""

    broker: float
    worker: float
    client: float


class Product:
    """A running broker and its workers."""

    def __init__(self, client: Client, metrics: Callable[[], str], broker_pid: int, worker_pids: list[int]) -> None:
        self._client = client
        self._metrics = metrics
        self._broker_pid = broker_pid
        self._worker_pids = worker_pids
        self._idle_tasks = 0

    def run(self, load: Workload, progress: Progress) -> tuple[Throughput, Cpu]:
        """Run `load.tasks` tasks with about `load.window` in flight.

        The measurement begins before the first submission and ends when only the idle tasks are open. The client waits
        for the last task of each submission, and at the end polls the number of open tasks.
        """
        batch = [{"workflow": NAME, "context": CONTEXT}] * load.submit_tasks
        in_flight: deque[list[int]] = deque()
        submitted = done = 0
        cpu_before = self._cpu()
        started = time.perf_counter()
        while done < load.tasks:
            while submitted < load.tasks and submitted - done < load.window:
                in_flight.append(self._client.submit_many(batch[: load.tasks - submitted]))
                submitted += len(in_flight[-1])
            task_ids = in_flight.popleft()
            _expect_completed(self._client.wait(task_ids[-1], TASK_TIMEOUT_S))
            done += len(task_ids)
            progress(len(task_ids))
        while self._open_tasks() > self._idle_tasks:
            time.sleep(POLL_S)
        seconds = time.perf_counter() - started
        cpu = Cpu(*(after - before for before, after in zip(cpu_before, self._cpu(), strict=True)))
        return Throughput(load.tasks * len(STEPS), seconds), cpu

    def latencies_ms(self, count: int) -> list[float]:
        """Run one task at a time on an idle broker, each timed from its submission until the client has its outputs."""
        latencies_ms = []
        for _ in range(count):
            started = time.perf_counter()
            document = self._client.run(NAME, CONTEXT, timeout=TASK_TIMEOUT_S)
            latencies_ms.append((time.perf_counter() - started) * 1000)
            _expect_completed(document)
        return latencies_ms

    def submit_idle(self, count: int, progress: Progress) -> float:
        """Submit tasks of one step whose handler no worker offers. Returns the seconds it took."""
        self._client.apply_workflow(idle())
        started = time.perf_counter()
        for first in range(0, count, IDLE_BATCH):
            batch = [{"workflow": IDLE, "context": CONTEXT}] * min(IDLE_BATCH, count - first)
            self._idle_tasks += len(self._client.submit_many(batch))
            progress(len(batch))
        return time.perf_counter() - started

    def memory_mb(self) -> float:
        """The memory of the broker, from /proc; NaN on systems without it."""
        try:
            status = Path(f"/proc/{self._broker_pid}/status").read_text()
        except OSError:
            return nan
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024

    def _open_tasks(self) -> int:
        lines = self._metrics().splitlines()
        return next(int(float(line.split()[1])) for line in lines if line.startswith("stepwire_open_tasks "))

    def rules(self) -> dict[str, Any]:
        """The broker's routing rules with their counts."""
        return self._client.rules()

    def workers(self) -> list[dict[str, Any]]:
        return list(self._client.workers()["workers"])

    def _cpu(self) -> Cpu:
        return Cpu(cpu_s_of(self._broker_pid), sum(map(cpu_s_of, self._worker_pids)), time.process_time())


def _expect_completed(task: dict[str, Any]) -> None:
    if task["state"] != "completed":
        raise BenchFailed(f"task {task['task_id']} is {task['state']}: {task['steps']}")


@contextmanager
def running(
    directory: Path,
    load: Workload,
    setup: Setup,
    configuration: Mapping[str, Any] | None = None,
    database: Mapping[str, str] | None = None,
) -> Iterator[Product]:
    """Start a broker with its database in this directory, or with these settings of a database, and the workers of the
    setup.

    All processes are ended afterwards, even after an error.
    """
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
    # Written even when empty, so that the broker does not read the user's own configuration file.
    (directory / "stepwire.yaml").write_bytes(msgspec.json.encode(configuration or {}))
    steps, results = _endpoints(directory, setup)
    settings = {
        "http.listen": "127.0.0.1:0",
        "http.tokens_file": str(token),
        "database.url": f"sqlite:///{_database(directory)}",
        "bus.steps": steps,
        "bus.results": results,
    }
    settings |= database or {}
    if setup.batch_steps is not None:
        settings["bus.batch.max_steps"] = str(setup.batch_steps)
    if setup.has_keys:
        settings["bus.curve.secret_file"] = str(directory / SECRET_FILE)
        settings["bus.curve.clients_dir"] = str(directory / CLIENTS_DIR)
    serve = [*_PYTHON, "stepwire", "serve", "-o", "json", *(f"--set={key}={value}" for key, value in settings.items())]
    own = [*_PYTHON, f"{__package__}.worker", steps, results, str(setup.slots or "default")]
    work = list(setup.command) or own
    environ = {"STEPWIRE_STEPS": steps, "STEPWIRE_RESULTS": results} if setup.command else {}
    if setup.has_keys:
        environ |= _write_keys(directory, setup.handler)
    with ExitStack() as stack:
        broker = stack.enter_context(process(serve, directory))
        assert broker.stdout is not None
        url = _ready(broker.stdout, directory)["http"]
        pids = [
            stack.enter_context(
                process([*work, *(f"{key}={value}" for key, value in labels.items())], directory, environ)
            ).pid
            for labels in setup.workers
        ]
        client = stack.enter_context(Client(url, token_file=token))
        client.apply_workflow(chain(setup.handler))
        _until(
            lambda: sum(worker["executor"] == "bus" for worker in client.workers()["workers"]) == len(pids),
            lambda: f"a worker did not connect: {_log_tail(directory)}",
        )
        request = Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token.read_text().strip()}"})
        product = Product(client, partial(_read, request), broker.pid, pids)
        product.run(msgspec.structs.replace(load, tasks=WARM_UP_TASKS), lambda _: None)
        yield product


def _write_keys(directory: Path, handler: str) -> dict[str, str]:
    """Write the keys of the broker and of one principal for the workers. Returns the workers' environment."""
    server, pair = server_key.init(directory / SECRET_FILE, directory / CLIENTS_DIR), new_pair()
    grant = Grant(principal="bench", workers=("*",), handlers=(handler,), labels=(ANY_LABEL,))
    write_new(directory / CLIENTS_DIR / "bench", text_of(ClientFile(grant=grant, public=(pair.public,))))
    return {
        "STEPWIRE_CURVE_SERVER_KEY": server.public,
        "STEPWIRE_CURVE_PUBLIC_KEY": pair.public,
        "STEPWIRE_CURVE_SECRET_KEY": pair.secret,
    }


def _endpoints(directory: Path, setup: Setup) -> tuple[str, str]:
    if not setup.is_tcp:
        return f"ipc://{directory}/steps", f"ipc://{directory}/results"
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return f"tcp://127.0.0.1:{one.getsockname()[1]}", f"tcp://127.0.0.1:{other.getsockname()[1]}"


def _read(request: Request) -> str:
    with urlopen(request, timeout=TASK_TIMEOUT_S) as answer:
        return str(answer.read().decode())


def check(directory: Path, progress: Progress) -> int:
    """Replay the history of every measured task, and compare it with the tables of the stopped broker. Returns the
    number of tasks.

    Raises BenchFailed if a task is not completed, or its history differs from its rows.
    """
    checked = 0
    with closing(open_reader(_database(directory))) as connection:
        queries = SqliteQueries(connection)
        workflows = {row.id: stored_workflow(row) for row in queries.workflows()}
        page = queries.tasks(TaskFilter(workflow=NAME, limit=CHECK_TASKS))
        while page:
            loaded = queries.load_tasks([row.id for row in page], limits.MESSAGE_BYTES_MAX)
            steps = {task_id: list(rows) for task_id, rows in groupby(loaded.steps, attrgetter("task_id"))}
            for row in loaded.tasks:
                _check(queries, workflows[row.workflow_id], row, steps[row.id])
            checked += len(page)
            progress(len(page))
            page = queries.tasks(TaskFilter(workflow=NAME, limit=CHECK_TASKS, before=page[-1].point))
    return checked


def _check(queries: Queries, workflow: Workflow, row: StoredTask, steps: list[StoredStep]) -> None:
    facts = [item.facts.encode() for item in queries.task_events(row.id)]
    differences = history.differences(history.replay(row.id, workflow, facts), row, steps)
    if row.state != "completed" or differences:
        raise BenchFailed(
            f"task {row.id} is {row.state}; differences between its history and its rows: {differences or 'none'}"
        )


def _database(directory: Path) -> Path:
    return directory / "product.db"


@contextmanager
def process(
    command: list[str], directory: Path, environ: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A child process that is ended with this block: by TERM, or by KILL if TERM does not end it in time."""
    with (directory / "log").open("ab") as log:
        child = subprocess.Popen(
            command,
            cwd=directory,
            env=_environment() | dict(environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            preexec_fn=end_with_parent(),
        )
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.communicate(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()


def _environment() -> dict[str, str]:
    """The environment without the user's settings, so that the measurement uses the printed settings only."""
    return {name: value for name, value in os.environ.items() if not name.startswith("STEPWIRE_")}


def _ready(stdout: IO[bytes], directory: Path) -> dict[str, Any]:
    line = stdout.readline()
    if not line:
        raise BenchFailed(f"the broker did not start: {_log_tail(directory)}")
    return dict(msgspec.json.decode(line))


def _log_tail(directory: Path) -> str:
    return (directory / "log").read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARACTERS:]


def _until(condition: Callable[[], object], failure: Callable[[], str]) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > until:
            raise BenchFailed(failure())
        time.sleep(POLL_S)


def cpu_s_of(pid: int) -> float:
    """The CPU time of all threads of a process, from /proc; NaN on systems without it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return nan
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
