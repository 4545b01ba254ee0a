"""The processor time of three idle brokers with ten workers, and of the server.

    python -m tests.several.idle --seconds 60

Per process, in percent of one core. The server's is that of all its processes.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Final

from tests.postgres.server import PostgresServer
from tests.system.harness import eventually

from .brokers import BOUND_S, Brokers, Shape

TICKS: Final = os.sysconf("SC_CLK_TCK")
SETTLE_S: Final = 15.0


def ticks(pid: int) -> int:
    """The time that a process and its ended children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def server_processes(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"settings: {json.dumps({**vars(options), 'json': None})}", flush=True)
    with PostgresServer() as server, Brokers(server, Shape(lanes=options.lanes)) as brokers:
        brokers.start()
        workers = [brokers.start_worker(f"w{i}") for i in range(options.workers)]
        for broker in brokers:
            eventually(lambda broker=broker: len(broker.site.workers()) == len(workers) or None, "the workers", BOUND_S)  # type: ignore[misc]
        brokers.await_shares()
        time.sleep(SETTLE_S)
        groups = {broker.id: [broker.pid] for broker in brokers}
        groups["server"] = server_processes(server.pid)
        groups["a worker"] = [workers[0].pid]
        before = {name: sum(map(ticks, pids)) for name, pids in groups.items()}
        began_s = time.monotonic()
        time.sleep(options.seconds)
        took_s = time.monotonic() - began_s
        used = {name: sum(map(ticks, pids)) - before[name] for name, pids in groups.items()}
    percent = {name: round(100 * count / TICKS / took_s, 2) for name, count in used.items()}
    found = {"settings": {**vars(options), "json": None}, "percent_of_a_core": percent}
    print(json.dumps(found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
