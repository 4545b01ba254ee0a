"""One, two and three brokers on one PostgreSQL, under the same load: `python -m tests.postgres.brokers --rounds 3`.

Each broker gets its part of the tasks from a client of its own, and all of them send steps to one worker. The processes
share the machine's cores, so the rates show little: the CPU of each process per step is what to compare.
`--lanes 1 2 4 8` measures one broker with these numbers of lanes instead. Exit code 1: a target is missed.
"""

import argparse
import itertools
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.request import Request

import msgspec
from stepwire.client import Client
from stepwire_broker.bench import product
from stepwire_broker.bench.load import Workload, chain
from stepwire_broker.bench.product import Product, cpu_s_of

from .figures import backend_cpu_s
from .pooler import Pooler
from .server import PostgresServer

COMPANY_MOST: Final = 1.10  # the CPU of the brokers a step, with two or three of them, relative to one
LANES: Final = 6  # each number of brokers gets equal shares
BATCH_STEPS: Final = 50
SLOTS: Final = 1_000
PATIENCE_S: Final = 60.0
_NUMBERS: Final = itertools.count(1)


class Measured(msgspec.Struct):
    """µs of CPU a step, except for the rate."""

    steps_per_s: float
    brokers: float
    server: float
    worker: float
    client: float


@contextmanager
def running(
    directory: Path, url: str, schema: str, brokers: int, lanes: int
) -> Iterator[tuple[list[Product], list[int], int]]:
    """Brokers with equal shares of the lanes, and a worker that has a session with each. Yields a client for each, the
    brokers' processes, and the worker's."""
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
    python = [sys.executable, "-m"]
    with ExitStack() as stack:
        urls, pids, first = [], [], {}
        for number in range(1, brokers + 1):
            own = directory / f"b{number}"
            own.mkdir()
            (own / "stepwire.yaml").touch()
            settings = {
                "broker.id": f"b{number}",
                "http.listen": "127.0.0.1:0",
                "http.tokens_file": str(token),
                "database.url": url,
                "database.schema": schema,
                "database.lanes": lanes,
                "bus.steps": f"ipc://{own}/steps",
                "bus.results": f"ipc://{own}/results",
                "bus.batch.max_steps": BATCH_STEPS,
            }
            serve = [
                *python,
                "stepwire",
                "serve",
                "-o",
                "json",
                *(f"--set={key}={value}" for key, value in settings.items()),
            ]
            broker = stack.enter_context(product.process(serve, own))
            assert broker.stdout is not None
            urls.append(msgspec.json.decode(broker.stdout.readline())["http"])
            pids.append(broker.pid)
            first = first or settings
        work = [*python, "stepwire_broker.bench.worker", first["bus.steps"], first["bus.results"], str(SLOTS)]
        worker = stack.enter_context(product.process(work, directory))
        clients = [stack.enter_context(Client(each, token_file=token)) for each in urls]
        _until(lambda: all(client.workers()["workers"] for client in clients))
        _until(lambda: _shares(clients[0]) == [lanes // brokers] * brokers)
        clients[0].apply_workflow(chain())
        header = {"Authorization": f"Bearer {token.read_text().strip()}"}
        metrics = [partial(product._read, Request(f"{each}/metrics", headers=header)) for each in urls]
        yield [Product(*each, worker_pids=[]) for each in zip(clients, metrics, pids, strict=True)], pids, worker.pid


def _shares(client: Client) -> list[int]:
    owners = [lane["broker"] for lane in client.lanes()["lanes"]]
    return sorted(owners.count(owner) for owner in {*owners, None} if owner in owners)


def measure(server: PostgresServer, url: str, brokers: int, lanes: int, load: Workload, window: int = 0) -> Measured:
    """`window`: tasks in flight of each broker. 0: all brokers together have those of the load."""
    schema = f"brokers{next(_NUMBERS)}"
    with (
        tempfile.TemporaryDirectory(prefix="brokers-") as name,
        running(Path(name), url, schema, brokers, lanes) as made,
    ):
        products, pids, worker = made
        part = msgspec.structs.replace(load, tasks=load.tasks // brokers, window=window or load.window // brokers)
        _run(products, msgspec.structs.replace(part, tasks=300))
        before = [sum(map(cpu_s_of, pids)), backend_cpu_s(server), cpu_s_of(worker), time.process_time()]
        begun = time.monotonic()
        _run(products, part)
        seconds = time.monotonic() - begun
        after = [sum(map(cpu_s_of, pids)), backend_cpu_s(server), cpu_s_of(worker), time.process_time()]
    server.sql(f"DROP SCHEMA {schema} CASCADE")
    steps = part.tasks * brokers * 4
    return Measured(steps / seconds, *((b - a) / steps * 1e6 for a, b in zip(before, after, strict=True)))


def _run(products: list[Product], load: Workload) -> None:
    threads = [threading.Thread(target=each.run, args=(load, lambda _: None)) for each in products]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "the brokers did not share the lanes and the worker"
        time.sleep(0.05)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.postgres.brokers", description=__doc__)
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--lanes", type=int, nargs="+", help="of one broker, instead of several brokers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=6_000, help="chains of four steps, in each round")
    parser.add_argument("--window", type=int, default=0, help="tasks in flight of each broker; 0: the same in all")
    parser.add_argument("--pooler", action="store_true", help="pgbouncer is between the brokers and the server")
    parser.add_argument("--in-memory", action="store_true", help="keep the server's data in memory, not on the disk")
    given = parser.parse_args(arguments)
    load = Workload(tasks=given.tasks)
    kinds = [(1, lanes) for lanes in given.lanes] if given.lanes else [(count, LANES) for count in given.brokers]
    measured: dict[tuple[int, int], list[Measured]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        large = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
        server = stack.enter_context(PostgresServer(large, on_disk=not given.in_memory))
        url = server.socket_url()
        if given.pooler:
            url = stack.enter_context(Pooler(server, connections=60)).url()
        for number in range(given.rounds):
            for kind in kinds if number % 2 == 0 else reversed(kinds):
                measured[kind].append(measure(server, url, *kind, load, given.window))
    lines = {kind: _median(rounds) for kind, rounds in measured.items()}
    for (brokers, lanes), line in lines.items():
        print(
            f"{brokers} brokers, {lanes} lanes  {line.steps_per_s:8,.0f} steps/s; µs a step: "
            f"brokers {line.brokers:5.1f}, server {line.server:5.1f}, worker {line.worker:5.1f}, "
            f"client {line.client:5.1f}",
            flush=True,
        )
    one = lines.get((1, LANES))
    ratios = {count: line.brokers / one.brokers for (count, _), line in lines.items() if one is not None and count > 1}
    for count, ratio in ratios.items():
        verdict = "met" if ratio <= COMPANY_MOST else "MISSED"
        print(f"{count} brokers against one: {ratio:.2f} of its CPU a step, at most {COMPANY_MOST}: {verdict}")
    return int(any(ratio > COMPANY_MOST for ratio in ratios.values()))


def _median(rounds: Sequence[Measured]) -> Measured:
    names = Measured.__struct_fields__
    return Measured(**{name: statistics.median(getattr(each, name) for each in rounds) for name in names})


if __name__ == "__main__":
    sys.exit(main())
