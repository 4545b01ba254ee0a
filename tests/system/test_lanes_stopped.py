"""A real broker on PostgreSQL, one of whose lanes has lost commits: the broker serves its other lanes."""

from collections.abc import Iterator

import pytest

from tests.postgres.server import PostgresServer
from tests.postgres.site import PostgresSite

from .harness import Answer, eventually, workflow

SCHEMA = "stopped"
BOUND_S = 60.0
ORDERS = workflow("orders", {"name": "reserve", "handler_config": {"gate": "open"}})


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def orders(server: PostgresServer) -> Iterator[PostgresSite]:
    with PostgresSite(server, SCHEMA, {"database.lanes": 2}) as site:
        yield site


def submit(site: PostgresSite, number: int) -> Answer:
    """Submit a task. Tasks go to each lane in turn."""
    return site.ask("POST", "/v1/tasks", {"workflow": "orders", "context": {}, "idempotency_key": f"k{number}"})


def test_a_lane_whose_commits_were_lost_is_named_by_readyz_and_the_other_lane_goes_on(
    server: PostgresServer, orders: PostgresSite
) -> None:
    broker = orders.start_broker()
    orders.apply(ORDERS)
    before = [submit(orders, number) for number in range(4)]
    assert {answer.status for answer in before} == {201}
    server.sql(f"DELETE FROM {SCHEMA}.commits WHERE lane = 2")  # noqa: S608
    numbers = iter(range(10, 10_000))
    eventually(lambda: submit(orders, next(numbers)).code == "commit_unknown" or None, "the lane to stop", BOUND_S)
    ready = orders.ask("GET", "/readyz")
    assert (ready.status, ready.body["reasons"]) == (503, ["lost_commits in lane 2"])
    assert {submit(orders, number).status for number in range(20_000, 20_010)} == {201}
    assert "lane_stopped" in broker.stderr
    cancels = [orders.ask("POST", f"/v1/tasks/{answer.body['task_id']}/cancel", {}) for answer in before]
    assert sorted(answer.code or "" for answer in cancels) == ["", "", "database_unavailable", "database_unavailable"]
    assert broker.is_running
