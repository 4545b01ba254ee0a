"""Workers of two brokers on one PostgreSQL: with a session, at level 0 and over HTTP. Each outlives either broker."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.postgres.server import PostgresServer
from tests.postgres.site import PostgresSite

from .harness import Program, Site, eventually, workflow

BOUND_S = 60.0
LANES = 4
SETTINGS = {"broker.lease_ms": 2_000, "database.lanes": LANES, "bus.heartbeat_ms": 500, "bus.lease_ms": 3_000}
EXAMPLE = Path(__file__).parents[2] / "examples/poll/handler.py"


class Brokers(NamedTuple):
    server: PostgresServer
    first: Site
    second: Site

    def start(self, **settings: Any) -> None:
        """Start both brokers. The second one accepts the token of the first one."""
        for number, site in enumerate((self.first, self.second), start=1):
            site.settings |= {"broker.id": f"b{number}", **SETTINGS, **settings}
            if site is self.second:
                state = site.directory / ".stepwire"
                state.mkdir(mode=0o700)
                shutil.copy(self.first.directory / ".stepwire" / "token", state)
            start(site)

    def kill_first(self) -> None:
        assert self.first.broker is not None
        self.first.broker.kill9()
        self.await_lanes("b2", LANES)

    def await_lanes(self, owner: str, count: int) -> None:
        def owned() -> bool | None:
            return len(self.server.sql("SELECT id FROM site.lanes WHERE owner = %s", owner)) == count or None

        eventually(owned, f"{count} lanes of {owner}", BOUND_S)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with (
        PostgresServer() as server,
        PostgresSite(server, "site", transport="tcp") as first,
        PostgresSite(server, "site", transport="tcp") as second,
    ):
        yield Brokers(server, first, second)


def start(site: Site) -> None:
    """Start a broker, which may own no lane yet, and then is not ready for tasks."""
    broker = site.start_broker(wait=False)
    eventually(lambda: "\n" in broker.stdout or None, "the broker's ready line", BOUND_S)
    site.ready = json.loads(broker.stdout.partition("\n")[0])


def submitted(site: Site, name: str, context: Any = None) -> int:
    """Submit a task, as soon as the broker accepts it."""
    answer = eventually(
        lambda: found if (found := post(site, name, context)).status == 201 else None, "a submission", BOUND_S
    )
    return int(answer.body["task_id"])


def post(site: Site, name: str, context: Any) -> Any:
    return site.ask("POST", "/v1/tasks", {"workflow": name, "context": context or {}})


def await_completed(site: Site, *tasks: int) -> None:
    eventually(lambda: all(site.task(one)["state"] == "completed" for one in tasks) or None, "the tasks' ends", BOUND_S)


def pids(site: Site) -> set[int]:
    return {worker["pid"] for worker in site.workers()}


def started(site: Site, worker: Program) -> list[int]:
    return [run["step_id"] for run in site.runs("started", pid=worker.pid)]


def test_a_worker_that_knows_one_broker_finds_the_other_and_keeps_its_run_when_the_first_is_killed(
    brokers: Brokers,
) -> None:
    brokers.start()
    first, second = brokers.first, brokers.second
    worker = first.start_worker("w", slots=2, heartbeat_ms=500)
    eventually(lambda: worker.pid in pids(second) or None, "a session with the second broker", BOUND_S)
    brokers.await_lanes("b2", LANES // 2)
    first.apply(workflow("flow", {"name": "slow", "handler_config": {"gate": "open"}}))
    tasks = [submitted(first, "flow"), submitted(second, "flow")]
    eventually(lambda: len(started(first, worker)) == 2 or None, "both runs", BOUND_S)
    brokers.kill_first()
    first.open_gate("open")
    await_completed(second, *tasks)
    assert len(started(first, worker)) == 2, "no step ran twice"


def test_a_level_0_handler_serves_both_brokers_and_goes_on_when_one_is_killed(brokers: Brokers) -> None:
    brokers.start()
    first, second = brokers.first, brokers.second
    lists = {
        f"STEPWIRE_{key.upper()}": ",".join(str(site.settings[f"bus.{key}"]) for site in (first, second))
        for key in ("steps", "results")
    }
    program = Path(__file__).with_name("level0_handler.py")
    book = first.directory / "level0.jsonl"
    first.start("loop", [sys.executable, str(program), str(book), str(first.directory / "gates")], lists)
    for site in (first, second):
        eventually(lambda site=site: site.workers() or None, "the handler's subscription", BOUND_S)  # type: ignore[misc]
    brokers.await_lanes("b2", LANES // 2)
    first.apply(workflow("flow", {"name": "one"}, {"name": "two", "depends_on": ["one"]}))
    await_completed(second, *[submitted(site, "flow") for site in (first, second, first, second)])
    runs = [json.loads(line)["step_id"] for line in book.read_text().splitlines() if '"started"' in line]
    assert len(runs) == len(set(runs)) == 8, "each step ran once"
    brokers.kill_first()
    await_completed(second, submitted(second, "flow"))


def test_a_worker_over_http_goes_on_at_the_next_broker_of_its_list(brokers: Brokers) -> None:
    brokers.start(**{"execution.default_executor": "poll"})
    first, second = brokers.first, brokers.second
    environ = {
        "STEPWIRE_URL": f"{first.url},{second.url}",
        "STEPWIRE_TOKEN_FILE": str(first.directory / ".stepwire" / "token"),
    }
    worker = first.start("poller", [sys.executable, str(EXAMPLE)], environ)
    eventually(lambda: worker.pid in pids(first) or None, "a session with the first broker", BOUND_S)
    first.apply(workflow("price", {"name": "price", "handler_class": "order.price"}))
    order = {"items": [{"cents": 700, "count": 3}]}
    await_completed(first, submitted(first, "price", order))
    brokers.kill_first()
    await_completed(second, submitted(second, "price", order))
    assert worker.pid in pids(second)
