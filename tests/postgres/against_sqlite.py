"""One broker on PostgreSQL against one on SQLite: `python -m tests.postgres.against_sqlite --pairs 5`.

Both are measured in turn, on the same disk, with the settings of `stepwire bench`, and the order alternates, so that a
slower machine slows both. The processes share the cores: the CPU of each is printed, because rates depend on it.
Exit code 1: a target is missed.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stepwire_broker.bench import product
from stepwire_broker.bench.load import DEFAULT, Setup, Workload, tuned

from .figures import backend_cpu_s
from .server import PostgresServer

# The figure, and the ratio of PostgreSQL to SQLite that is the most, or with a minus the least.
TARGETS: Final = {"broker µs/step": 0.85, "steps/s": -0.8, "p50 of a task alone, ms": 1.5}
_NUMBERS: Final = itertools.count(1)


def measure(load: Workload, setup: Setup, server: PostgresServer, lanes: int) -> dict[str, float]:
    """Run one round. `lanes` 0: on SQLite."""
    with tempfile.TemporaryDirectory(prefix="against-") as name:
        database = {}
        if lanes:
            schema = f"bench{next(_NUMBERS)}"
            database = {
                "database.url": server.socket_url(),
                "database.schema": schema,
                "database.lanes": str(lanes),
            }
        with product.running(Path(name), load, setup, database=database) as running:
            before_s = backend_cpu_s(server)
            throughput, cpu = running.run(load, lambda _: None)
            server_s = backend_cpu_s(server) - before_s if lanes else 0.0
            alone = running.latencies_ms(load.lone_tasks)
        if lanes:
            server.sql(f"DROP SCHEMA {schema} CASCADE")
    return {
        "steps/s": throughput.steps_per_s,
        "broker µs/step": cpu.broker / throughput.steps * 1e6,
        "server µs/step": server_s / throughput.steps * 1e6,
        "worker µs/step": cpu.worker / throughput.steps * 1e6,
        "client µs/step": cpu.client / throughput.steps * 1e6,
        "p50 of a task alone, ms": statistics.median(alone),
    }


def compared(pairs: Sequence[tuple[dict[str, float], dict[str, float]]]) -> tuple[list[str], bool]:
    """A line for each figure, and whether all targets are met."""
    lines, is_met = [], True
    for name in pairs[0][0]:
        sqlite, postgres = (statistics.median(pair[i][name] for pair in pairs) for i in (0, 1))
        ratios = sorted(pair[1][name] / pair[0][name] for pair in pairs if pair[0][name])
        line = f"{name:26} SQLite {sqlite:10,.1f}  PostgreSQL {postgres:10,.1f}"
        if ratios:
            ratio, target = statistics.median(ratios), TARGETS.get(name)
            line += f"  ratio {ratio:5.2f} ({ratios[0]:.2f} – {ratios[-1]:.2f})"
            if target is not None:
                is_good = ratio <= target if target > 0 else ratio >= -target
                is_met &= is_good
                line += f"  {'at most' if target > 0 else 'at least'} {abs(target)}: {'met' if is_good else 'MISSED'}"
        lines.append(line)
    return lines, is_met


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.postgres.against_sqlite", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=Workload().tasks, help="chains of four steps, in each round")
    parser.add_argument("--lone-tasks", type=int, default=Workload().lone_tasks)
    parser.add_argument("--default", action="store_true", help="the product's default settings and two workers")
    parser.add_argument("--in-memory", action="store_true", help="keep the server's data in memory, not on the disk")
    given = parser.parse_args(arguments)
    load = Workload(tasks=given.tasks, lone_tasks=given.lone_tasks)
    setup = DEFAULT if given.default else tuned(load)
    pairs = []
    with PostgresServer({"shared_buffers": "512MB", "max_wal_size": "4GB"}, on_disk=not given.in_memory) as server:
        print(server.sql("SELECT version()")[0][0], flush=True)
        for number in range(given.pairs):
            order = (0, given.lanes) if number % 2 == 0 else (given.lanes, 0)
            measured = {lanes: measure(load, setup, server, lanes) for lanes in order}
            pairs.append((measured[0], measured[given.lanes]))
            print(json.dumps({"pair": number + 1, "sqlite": measured[0], "postgresql": measured[given.lanes]}))
            sys.stdout.flush()
    lines, is_met = compared(pairs)
    print("\n".join(lines))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
