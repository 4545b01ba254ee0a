"""How long a command takes at a broker that does not own its task: `python -m tests.postgres.orders --commands 40`.

Two brokers share a database. Commands on tasks of the second one are sent to both, with pauses between them. First the
brokers notify each other; then they are behind a pooler, without `database.listen_url`, and find orders by their looks.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence

from tests.system.harness import Site, eventually, workflow

from .pooler import Pooler
from .server import PostgresServer
from .site import PostgresSite

LEASE_MS = 2_000
BOUND_S = 60.0
PAUSE_S = 0.3  # longer than the interval of looks, so that each command meets another phase of them
HELD = workflow("orders", {"name": "pay", "handler_config": {"gate": "open"}})


def measure(server: PostgresServer, schema: str, commands: int, shared: Mapping[str, object]) -> tuple[float, ...]:
    """The times of commands, in ms: median and 95th percentile at the owner, and at the other broker."""
    shared = {"database.lanes": 2, "broker.lease_ms": LEASE_MS, **shared}
    with contextlib.ExitStack() as stack:
        sites: list[Site] = [
            stack.enter_context(PostgresSite(server, schema, shared | {"broker.id": "b1"}, transport="tcp")),
        ]
        own = {"database.url": server.url(), "database.schema": schema, "broker.id": "b2"}
        sites.append(stack.enter_context(Site("tcp", own | shared)))
        for site in sites:
            site.start_broker(wait=False)
            eventually(lambda site=site: "\n" in site.broker.stdout or None, "the ready line", BOUND_S)  # type: ignore[misc]
        for site in sites:
            eventually(lambda site=site: site.ask("GET", "/readyz").status == 200 or None, "a lane", BOUND_S)  # type: ignore[misc]
        sites[1].apply(HELD)
        task = sites[1].ask("POST", "/v1/tasks", {"workflow": "orders", "context": {}}).body["task_id"]
        times: list[list[float]] = [[], []]
        for number in range(commands):
            for at in (1, 0):
                command = "pause" if (number + at) % 2 else "resume"
                time.sleep(PAUSE_S + 0.01 * (number % 25))
                begun = time.monotonic()
                answer = sites[at].ask("POST", f"/v1/tasks/{task}/{command}", {}, timeout_s=BOUND_S)
                times[at].append((time.monotonic() - begun) * 1_000)
                assert answer.status == 200, answer
    return tuple(figure for each in (times[1], times[0]) for figure in (statistics.median(each), _p95(each)))


def _p95(times: Sequence[float]) -> float:
    return sorted(times)[int(0.95 * (len(times) - 1))]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.postgres.orders", description=__doc__)
    parser.add_argument("--commands", type=int, default=40)
    parser.add_argument("--in-memory", action="store_true", help="keep the server's data in memory, not on the disk")
    given = parser.parse_args(arguments)
    with PostgresServer({"max_connections": "200"}, on_disk=not given.in_memory) as server:
        _print("with notifications", measure(server, "notified", given.commands, {}))
        with Pooler(server, connections=60) as pooler:
            pooled = {"database.url": pooler.url()}
            _print("pooler, looks only", measure(server, "looking", given.commands, pooled))
            pooled["database.listen_url"] = server.url()
            _print("pooler, listen_url", measure(server, "listening", given.commands, pooled))


def _print(title: str, figures: tuple[float, ...]) -> None:
    text = "owner {:6.1f} ms (p95 {:6.1f}), other broker {:6.1f} ms (p95 {:6.1f})".format(*figures)
    print(f"{title:20} {text}", flush=True)


if __name__ == "__main__":
    main()
