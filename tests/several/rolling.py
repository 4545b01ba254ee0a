"""A rolling restart of three brokers under load, as an upgrade does it: SIGTERM, wait, start, the next one.

    python -m tests.several.rolling --rounds 3 --rate 30

Programs submit tasks with the shipped client, which has the URLs of all brokers and waits for none of them: a call that
no broker carries out at once is a failed request. At the end, every task has ended, the judge has compared the rows
with the ledgers, and no step was started twice.
"""

import argparse
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from stepwire import Client
from stepwire.client import ClientError

from tests.checker import page
from tests.postgres.server import PostgresServer
from tests.system.harness import eventually, workflow

from .brokers import BOUND_S, Brokers, Shape

TASK: Final = workflow(
    "orders",
    {"name": "take", "handler_config": {"work_ms": 100}},
    {"name": "pay", "depends_on": ["take"], "handler_config": {"work_ms": 300}, "delivery_mode": "at_most_once"},
    {"name": "ship", "depends_on": ["pay"], "handler_config": {"work_ms": 100}},
)


class Clients:
    """Threads that submit and read with a client each."""

    def __init__(self, brokers: Brokers, count: int, rate: float) -> None:
        self._brokers = brokers
        self._pause_s = count / rate
        self._is_over = threading.Event()
        self.requests: Counter[str] = Counter()
        self.failed: list[str] = []
        self.longest_s = 0.0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        ledger = self._brokers.ledger("client")
        urls = self._brokers.urls.split(",")
        listed = ",".join(urls[number % len(urls) :] + urls[: number % len(urls)])
        with Client(listed, token_file=self._brokers.token_file, outage_s=0) as client:
            count = 0
            while not self._is_over.wait(self._pause_s):
                key = f"c{number}-{count}"
                count += 1
                ledger.write("asked", key=key, workflow="orders")
                submitted = self._timed("submit", lambda key=key: client.submit("orders", {}, key=key))
                if submitted is not None:
                    task_id = submitted.task_id
                    ledger.write("acknowledged", key=key, workflow="orders", task_id=task_id, created=submitted.created)
                    self._timed("task", lambda task_id=task_id: client.task(task_id))

    def _timed(self, name: str, call: Any) -> Any:
        began_s = time.monotonic()
        try:
            return call()
        except ClientError as error:
            with self._lock:
                self.failed.append(f"{name}: {error.status} {error.code} {error.message}")
        finally:
            with self._lock:
                self.requests[name] += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="how often each broker is restarted")
    parser.add_argument("--rate", type=float, default=30.0, help="tasks a second")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"settings: {json.dumps({**vars(options), 'json': None})}", flush=True)
    restarts_s: list[float] = []
    with PostgresServer() as server, Brokers(server, Shape()) as brokers:
        brokers.start()
        workers = [brokers.start_worker(f"w{i}", "--slots", "30") for i in range(2)]
        for broker in brokers:
            eventually(lambda broker=broker: len(broker.site.workers()) == len(workers) or None, "the workers", BOUND_S)  # type: ignore[misc]
        brokers.await_shares()
        brokers.first.apply(TASK)
        clients = Clients(brokers, options.clients, options.rate)
        try:
            for number in range(options.rounds * len(brokers.all)):
                broker = brokers[number % len(brokers.all)]
                began_s = time.monotonic()
                broker.ask_to_end()
                code = broker.await_end()
                ended_s = time.monotonic() - began_s
                broker.start()
                broker.await_ready()
                brokers.await_shares()
                restarts_s.append(round(time.monotonic() - began_s, 1))
                took = f"ended with {code} after {ended_s:.1f} s, has its lanes again after {restarts_s[-1]} s"
                print(f"{broker.id}: {took}", flush=True)
        finally:
            clients.stop()
        eventually(lambda: brokers.open_tasks() == 0 or None, "every task to end", BOUND_S)
        verdict = brokers.judge()
    found = {
        "settings": {**vars(options), "json": None},
        "restarts": len(restarts_s),
        "restart_s": restarts_s,
        "requests": dict(clients.requests),
        "failed_requests": len(clients.failed),
        "failed": clients.failed[:20],
        "longest_request_s": round(clients.longest_s, 2),
        "tasks": verdict.figures["tasks"],
        "steps": verdict.figures["steps"],
        "started": verdict.figures["started"],
        "started_again": verdict.figures["started again"],
        "held": verdict.figures["held"],
        "violations": [str(each) for each in verdict.violations],
    }
    print(json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if verdict.violations:
        print(page(verdict))
    return int(bool(verdict.violations or clients.failed))


if __name__ == "__main__":
    sys.exit(main())
