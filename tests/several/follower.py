"""Followers of the events that change the broker every second: each fact comes once, and a task's facts in their order.

    python -m tests.several.follower --seconds 600 --rate 20
    python -m tests.several.follower --seconds 600 --rate 20 --kills        # and a broker is killed every 20 s

The cursor of the last event goes to the next broker as `Last-Event-ID`. At the end, the events that were received are
compared with all facts of the rows.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.postgres.server import PostgresServer
from tests.system.harness import eventually, workflow

from .brokers import BOUND_S, Brokers, Shape
from .load import Load
from .workers import WORKFLOWS

STAY_S: Final = 1.0
KILL_EVERY_S: Final = 20.0
TASK: Final = workflow(
    "orders",
    {"name": "take", "handler_config": {"work_ms": 20}},
    {"name": "pay", "depends_on": ["take"], "handler_config": {"work_ms": 20}, "delivery_mode": "at_most_once"},
)


class Follower:
    """Follows one broker for a second, then the next one."""

    def __init__(self, brokers: Brokers, seed: int) -> None:
        self._brokers = brokers
        self._chance = random.Random(f"{seed}/follower")
        self._token = brokers.token_file.read_text().strip()
        self.received: list[dict[str, Any]] = []
        self.changes = 0
        self.refused: Counter[str] = Counter()
        self._cursor = "0"
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        at = 0
        while not self.is_over.is_set():
            at = (at + self._chance.randrange(1, len(self._brokers.all))) % len(self._brokers.all)
            self._follow(at)
            self.changes += 1

    def _follow(self, at: int) -> None:
        """Receive the events of one broker for a second. An event counts once it was received whole."""
        address = str(self._brokers[at].site.settings["http.listen"])
        connection = http.client.HTTPConnection(address, timeout=STAY_S)
        until_s = time.monotonic() + STAY_S
        headers = {"Authorization": f"Bearer {self._token}", "Last-Event-ID": self._cursor}
        try:
            connection.request("GET", "/v1/events", headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                self.refused[str(json.loads(answer.read()).get("code"))] += 1
                time.sleep(0.1)
                return
            cursor = self._cursor
            while time.monotonic() < until_s:
                line = answer.readline()
                if not line.endswith(b"\n"):
                    return
                if line.startswith(b"id: "):
                    cursor = line[4:].strip().decode()
                elif line.startswith(b"data: "):
                    self._cursor = cursor
                    self.received.append(json.loads(line[6:]))
                elif line == b"\n":
                    self._cursor = cursor
        except (OSError, http.client.HTTPException) as error:
            if not isinstance(error, TimeoutError):
                self.refused[type(error).__name__] += 1
                time.sleep(0.1)
        finally:
            connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--kills", action="store_true", help=f"kill a broker every {KILL_EVERY_S:g} s")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"settings: {json.dumps({**vars(options), 'json': None})}", flush=True)
    kills = 0
    with PostgresServer() as server, Brokers(server, Shape(lease_ms=4_000, worker_lease_ms=5_000)) as brokers:
        brokers.start()
        brokers.start_worker("all", "--slots", "40")
        for broker in brokers:
            eventually(lambda broker=broker: broker.site.workers() or None, "a session with each broker", BOUND_S)  # type: ignore[misc]
        brokers.await_shares()
        for name in WORKFLOWS:
            brokers.first.apply({**TASK, "name": name})
        follower = Follower(brokers, options.seed)
        load = Load(brokers, options.seed, options.rate, clients=4, backlog=400)
        until_s = time.monotonic() + options.seconds
        next_s = time.monotonic() + KILL_EVERY_S
        while (now_s := time.monotonic()) < until_s:
            time.sleep(min(1.0, until_s - now_s))
            if options.kills and now_s > next_s:
                next_s = now_s + KILL_EVERY_S
                broker = brokers[kills % len(brokers.all)]
                broker.kill9()
                kills += 1
                broker.start()
        load.stop()
        eventually(lambda: brokers.open_tasks() == 0 or None, "every task to end", BOUND_S)
        listed = _listed(brokers)
        missing = set(listed)

        def has_all() -> bool | None:
            missing.difference_update(event["id"] for event in follower.received)
            return not missing or None

        try:
            eventually(has_all, "every event", BOUND_S)
        finally:
            follower.is_over.set()
            follower.join()
    ids = [event["id"] for event in follower.received]
    twice = [id for id, count in Counter(ids).items() if count > 1]
    wrong = [event["id"] for event in follower.received if listed.get(event["id"]) != event]
    disorder = _out_of_order(follower.received)
    found = {
        "settings": {**vars(options), "json": None},
        "changes_of_broker": follower.changes,
        "refused": dict(follower.refused),
        "kills": kills,
        "tasks": load.acknowledged,
        "events": len(listed),
        "received": len(ids),
        "missing": len(missing),
        "twice": len(twice),
        "different": len(wrong),
        "out_of_order": len(disorder),
    }
    print(json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(bool(missing or twice or wrong or disorder))


def _listed(brokers: Brokers) -> dict[str, dict[str, Any]]:
    """Every event of the deployment by its id, read from the rows in one go."""
    events: dict[str, dict[str, Any]] = {}
    client = brokers.first.client()
    for row in brokers.server.sql("SELECT id FROM several.tasks ORDER BY id"):
        events |= {event["id"]: event for event in client.task_events(int(row[0]), limit=500)["events"]}
    return events


def _out_of_order(received: list[dict[str, Any]]) -> list[str]:
    """The events that came after a later one of their task. An id is the place: sequence, position and fact."""
    last: dict[int, list[int]] = {}
    found = []
    for event in received:
        place = [int(number) for number in event["id"].split(".")]
        if place < last.get(event["task_id"], []):
            found.append(event["id"])
        last[event["task_id"]] = place
    return found


if __name__ == "__main__":
    sys.exit(main())
