"""`stepwire db lanes N` while a broker runs: the broker takes the new lanes, and uses them."""

from itertools import islice

from tests.postgres.server import PostgresServer
from tests.postgres.site import PostgresSite

from .harness import eventually, workflow

BOUND_S = 60.0
ORDERS = workflow("orders", {"name": "pay"})


def test_a_running_broker_takes_added_lanes_and_an_older_cursor_sees_their_events() -> None:
    own = {"database.lanes": 2, "broker.lease_ms": 2_000}
    with PostgresServer() as server, PostgresSite(server, "added", own) as site:
        site.start_broker()
        site.apply(ORDERS)
        ended = site.administer("db", "lanes", "4")
        assert ended.returncode == 0, ended
        owned = "SELECT count(*) FROM lanes WHERE owner = 'b1'"
        eventually(lambda: site.number(owned) == 4 or None, "the broker to own four lanes", BOUND_S)

        def task_in_every_lane() -> list[int] | None:
            """A new lane gets tasks as soon as ids are reserved in it."""
            tasks.append(site.ask("POST", "/v1/tasks", {"workflow": "orders", "context": {}}).body["task_id"])
            return tasks if site.number("SELECT count(DISTINCT lane) FROM tasks") == 4 else None

        tasks: list[int] = []
        eventually(task_in_every_lane, "a task in every lane", BOUND_S)
        of_two_lanes = "1.1.0.0,2.1.0.0"
        followed = {
            event["task_id"]
            for event in islice(site.client().events(after=of_two_lanes, kinds=["submitted"]), len(tasks))
        }
        assert followed == set(tasks)
        assert site.ask("GET", "/readyz").status == 200
