"""The load of several clients: each submission, of one task or a few, goes to any broker, and is repeated at any until
it is acknowledged."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.system.harness import RecordedClient

from .brokers import Brokers
from .workers import WORKFLOWS

TRY_S: Final = 4.0
PAUSE_S: Final = 0.2
BATCHES: Final = (1, 1, 3, 7)  # the number of tasks of a submission; 3 on average
PASSING: Final = (0, 429, 503)


class Load:
    """`rate` tasks a second in all, as long as at most `backlog` are open."""

    def __init__(self, brokers: Brokers, seed: int, rate: float, clients: int, backlog: int) -> None:
        self._brokers = brokers
        self._rate = rate / clients
        self._backlog = backlog
        self._is_over = threading.Event()
        self._is_full = False
        self._lock = threading.Lock()
        self.acknowledged = 0
        self.tries_failed = 0
        self._threads = ThreadPoolExecutor(clients + 1, "client")
        self._futures = [self._threads.submit(self._submit, i, random.Random(f"{seed}/{i}")) for i in range(clients)]
        self._futures.append(self._threads.submit(self._watch))

    def stop(self) -> None:
        """End after the submissions that are on their way are acknowledged."""
        self._is_over.set()
        self._threads.shutdown()
        for future in self._futures:
            future.result()

    def _watch(self) -> None:
        while not self._is_over.wait(1.0):
            self._is_full = self._brokers.open_tasks() > self._backlog

    def _submit(self, client: int, chance: random.Random) -> None:
        ledger = self._brokers.ledger("client")
        doors = [RecordedClient(broker.site, ledger) for broker in self._brokers]
        names = list(WORKFLOWS)
        shares = [share for share, _ in WORKFLOWS.values()]
        due_s = time.monotonic()
        number = 0
        while not self._is_over.is_set():
            count = chance.choice(BATCHES)
            due_s = max(due_s + count / self._rate, time.monotonic() - 1)
            if self._is_over.wait(max(0.0, due_s - time.monotonic())):
                break
            if self._is_full:
                continue
            (name,) = chance.choices(names, shares)
            keys = [f"c{client}-{number + i}" for i in range(count)]
            self._until_acknowledged(doors, name, keys, chance)
            number += count

    def _until_acknowledged(
        self, doors: list[RecordedClient], name: str, keys: list[str], chance: random.Random
    ) -> None:
        while True:
            door = chance.choice(doors)
            if len(keys) == 1:
                answer = door.submit(name, keys[0], timeout_s=TRY_S)
            else:
                answer = door.submit_many(name, keys, timeout_s=TRY_S)
            if answer.status in (200, 201):
                with self._lock:
                    self.acknowledged += len(keys)
                return
            assert answer.status in PASSING, answer
            with self._lock:
                self.tries_failed += 1
            time.sleep(PAUSE_S)
