"""Two and three brokers on one PostgreSQL, with a worker that is connected to all of them, while brokers end.

The judge compares the rows with what clients and handlers have written down: nothing is lost, nothing runs twice.
"""

import os
import re
from collections.abc import Callable, Iterator

import pytest

from tests.checker import assert_kept
from tests.postgres.server import PostgresServer
from tests.postgres.site import PostgresSite

from .harness import Program, RecordedClient, Site, eventually, workflow
from .ledger import Ledger

LANES = 4
LEASE_MS = 2_000
BOUND_S = 60.0
SCHEMA = "several"
TASKS = workflow(
    "orders",
    {"name": "reserve", "handler_config": {"gate": "open"}},
    {"name": "pay", "depends_on": ["reserve"], "delivery_mode": "at_most_once"},
)
PAYMENTS = workflow("payments", {"name": "pay", "delivery_mode": "at_most_once", "handler_config": {"gate": "open"}})


class Brokers:
    """Brokers b1, b2, … on one schema, each with a directory and a process of its own. The first one's directory has
    the ledgers of the worker and of the client."""

    def __init__(self, server: PostgresServer, new_site: Callable[..., Site], count: int) -> None:
        self._server = server
        self.sites: list[Site] = []
        self.programs: list[Program] = []
        for number in range(1, count + 1):
            own = {"broker.id": f"b{number}", "broker.lease_ms": LEASE_MS, "database.lanes": LANES}
            own |= {"bus.heartbeat_ms": 500, "bus.lease_ms": 3_000}
            if number == 1:
                self.sites.append(PostgresSite(server, SCHEMA, own, transport="tcp"))
            else:
                shared = {"database.url": server.url(), "database.schema": SCHEMA}
                self.sites.append(new_site("tcp", settings=own | shared))

    @property
    def first(self) -> Site:
        return self.sites[0]

    def start(self) -> None:
        """Start all brokers and one worker, and wait until each broker has the worker and its share of the lanes."""
        for site in self.sites:
            program = site.start_broker(wait=False)
            self.programs.append(program)
            eventually(lambda program=program: "\n" in program.stdout or None, "the broker's ready line", BOUND_S)  # type: ignore[misc]
        self.first.start_worker("all", slots=20, heartbeat_ms=500)
        for site in self.sites:
            eventually(lambda site=site: site.workers() or None, "the worker to know every broker", BOUND_S)  # type: ignore[misc]
        least = LANES // len(self.sites)
        eventually(
            lambda: all(len(self.lanes_of(n)) >= least for n in range(1, len(self.sites) + 1)) or None,
            "equal shares of the lanes",
            BOUND_S,
        )
        self.first.apply(TASKS)
        self.first.apply(PAYMENTS)

    def lanes_of(self, number: int) -> list[int]:
        rows = self._server.sql(f"SELECT id FROM {SCHEMA}.lanes WHERE owner = %s ORDER BY id", f"b{number}")  # noqa: S608
        return [int(row[0]) for row in rows]

    def submit(self, count: int) -> list[int]:
        """Submit tasks to each broker, which stores them in its own lanes, and wait until the worker runs them."""
        before = len(self.first.runs("started"))
        tasks = []
        for n, site in enumerate(self.sites):
            client = RecordedClient(site, Ledger(self.first.ledgers, f"client-{os.getpid()}-b{n + 1}"))
            for name in ("orders", "payments"):
                keys = [f"{name}-{n}-{i}" for i in range(count)]
                tasks += client.submit_many_until_stored(name, keys, BOUND_S)
        running = before + len(tasks)
        eventually(lambda: len(self.first.runs("started")) >= running or None, "every task to run", BOUND_S)
        return tasks

    def await_lanes(self, number: int, count: int) -> None:
        eventually(lambda: len(self.lanes_of(number)) == count or None, f"b{number} to have {count} lanes", BOUND_S)

    def await_notification(self, number: int) -> None:
        """Wait until this broker has received a notification besides the one that opens its connection."""
        pattern = re.compile(r"^stepwire_notifications_received_total\S* (\d+)", re.MULTILINE)

        def received() -> int:
            (count,) = pattern.findall(self.sites[number - 1].ask("GET", "/metrics").body.decode())
            return int(count)

        eventually(lambda: received() > 1 or None, f"a notification of b{number}", BOUND_S)

    def await_end_of(self, tasks: list[int], at: int) -> None:
        """Open the gate, and wait until a broker reports the end of every task."""
        self.first.open_gate("open")
        for task_id in tasks:
            eventually(
                lambda task_id=task_id: self.sites[at].task(task_id)["state"] == "completed" or None,  # type: ignore[misc]
                f"task {task_id} to complete",
                BOUND_S,
            )

    def judge(self) -> None:
        """Every step ran once, and the rows agree with what client and handlers have written down."""
        started = [(run["step_id"], run["delivery"]) for run in self.first.runs("started")]
        assert len({step for step, _ in started}) == len(started), "a step was started twice"
        assert isinstance(self.first, PostgresSite)
        assert_kept(self.first.database, self.first.ledgers)


@pytest.fixture
def new_brokers(new_site: Callable[..., Site]) -> Iterator[Callable[[int], Brokers]]:
    with PostgresServer() as server:
        made: list[Brokers] = []

        def make(count: int) -> Brokers:
            made.append(Brokers(server, new_site, count))
            return made[-1]

        yield make
        for brokers in made:
            for site in reversed(brokers.sites):
                site.close()


def test_running_steps_of_a_killed_broker_go_on_under_another_one(new_brokers: Callable[[int], Brokers]) -> None:
    brokers = new_brokers(2)
    brokers.start()
    tasks = brokers.submit(3)
    brokers.programs[0].kill9()
    brokers.await_lanes(2, LANES)
    brokers.await_end_of(tasks, at=1)
    brokers.judge()


def test_a_broker_that_was_suspended_for_longer_than_its_lease_has_lost_its_lanes_and_does_no_harm(
    new_brokers: Callable[[int], Brokers],
) -> None:
    brokers = new_brokers(2)
    brokers.start()
    tasks = brokers.submit(3)
    brokers.programs[0].pause()
    brokers.await_lanes(2, LANES)
    brokers.programs[0].go_on()
    eventually(lambda: "lane_lost" in brokers.programs[0].stderr or None, "the loss to be noticed", BOUND_S)
    brokers.await_end_of(tasks, at=1)
    brokers.await_lanes(1, LANES // 2)  # its share comes back
    more = [brokers.first.recorded_client().submit_until_acknowledged("payments", "after", bound_s=BOUND_S)]
    brokers.await_end_of(more, at=0)
    assert brokers.programs[0].is_running
    brokers.judge()


def test_a_broker_that_ends_gives_its_lanes_to_the_others_while_their_steps_run(
    new_brokers: Callable[[int], Brokers],
) -> None:
    brokers = new_brokers(3)
    brokers.start()
    tasks = brokers.submit(2)
    brokers.programs[1].ask_to_end()
    brokers.await_lanes(2, 0)  # while the gate holds every step
    brokers.await_lanes(1, LANES // 2)
    brokers.await_lanes(3, LANES // 2)
    brokers.await_notification(3)
    brokers.await_end_of(tasks, at=2)
    assert brokers.programs[1].wait(BOUND_S) == 0
    brokers.judge()
