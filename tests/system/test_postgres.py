"""A broker on PostgreSQL under load, while the broker or the server is killed: nothing is lost, and nothing runs twice.

`python -m tests.system.chaos --postgres` is the long form.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.postgres.server import PostgresServer
from tests.postgres.site import PostgresSite

from .chaos import Campaign, run
from .harness import eventually


@pytest.fixture
def postgres_site() -> Iterator[PostgresSite]:
    with PostgresServer() as server, PostgresSite(server, "site") as site:
        yield site


def test_kills_of_the_broker_and_crashes_of_the_server_lose_and_double_nothing(
    postgres_site: PostgresSite, figure: Callable[[str], None]
) -> None:
    campaign = Campaign(seed=23, cycles=4, faults=("broker", "server", "commit"), in_flight=60, backlog=100)
    verdict, cycles = run(postgres_site, campaign, print)
    figure(f"{', '.join(cycle.fault for cycle in cycles)}; {verdict}")
    assert {cycle.fault for cycle in cycles} >= {"broker", "server"}
    assert not verdict.violations, str(verdict)


def test_a_read_without_the_server_is_refused_as_unavailable_and_works_again_afterwards() -> None:
    with PostgresServer() as server, PostgresSite(server, "site") as site:
        site.start_broker()
        server.stop("immediate")
        answer = site.ask("GET", "/v1/tasks")
        assert (answer.status, answer.code) == (503, "database_unavailable")
        server.start()
        eventually(lambda: site.ask("GET", "/v1/tasks").status == 200, "reads to work again")
