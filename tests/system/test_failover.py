"""A real broker on a server with a standby, which takes over when the server crashes."""

from tests.postgres.server import PostgresServer
from tests.postgres.site import PostgresSite
from tests.postgres.standby import PRIMARY, StandbyServer

from .harness import Answer, Site, eventually, workflow

BOUND_S = 60.0
OWN = {"database.lanes": 2, "broker.lease_ms": 2_000}
ORDERS = workflow("orders", {"name": "pay", "delivery_mode": "at_most_once", "handler_config": {"gate": "open"}})


def submit(site: Site, key: str) -> Answer:
    """Submit a task. Tasks go to each lane in turn."""
    return site.ask("POST", "/v1/tasks", {"workflow": "orders", "context": {}, "idempotency_key": key})


def test_lost_commits_of_a_failover_stop_the_lanes_until_accept_loss_which_holds_what_may_have_run() -> None:
    with (
        PostgresServer(PRIMARY) as primary,
        StandbyServer(primary) as standby,
        PostgresSite(primary, "lost", OWN | {"database.url": standby.failover_url()}) as site,
    ):
        broker = site.start_broker()
        site.apply(ORDERS)
        kept = [submit(site, f"kept-{n}") for n in range(2)]
        standby.catch_up()
        standby.lag()
        lost = [submit(site, f"lost-{n}") for n in range(2)]
        assert {answer.status for answer in kept + lost} == {201}
        standby.take_over()
        site.server = standby

        numbers = iter(range(10_000))
        stopped = ["no_lane", "lost_commits in lane 1", "lost_commits in lane 2"]

        def reasons() -> list[str] | None:
            submit(site, f"later-{next(numbers)}")
            found: list[str] = site.ask("GET", "/readyz").body.get("reasons", [])
            return found if found == stopped else None

        eventually(reasons, "both lanes to stop", BOUND_S)
        assert broker.stderr.count("lane_stopped") == 2
        broker.kill9()
        ended = site.administer("db", "accept-loss", "--yes")
        assert ended.returncode == 0, ended
        site.start_broker()
        found = [site.ask("GET", f"/v1/tasks/{answer.body['task_id']}") for answer in kept + lost]
        assert [answer.status for answer in found] == [200, 200, 404, 404]
        assert [answer.body["attention"] for answer in found[:2]] == ["held", "held"]
        assert submit(site, "lost-0").status == 201


def test_a_failover_to_a_synchronous_standby_loses_nothing_and_its_broker_goes_on() -> None:
    with (
        PostgresServer(PRIMARY) as primary,
        StandbyServer(primary, is_synchronous=True) as standby,
        PostgresSite(primary, "kept", OWN | {"database.url": standby.failover_url()}) as site,
    ):
        broker = site.start_broker()
        site.apply(ORDERS)
        tasks = [submit(site, f"k{n}") for n in range(10)]
        assert {answer.status for answer in tasks} == {201}
        standby.take_over()
        site.server = standby
        more = eventually(
            lambda: answer if (answer := submit(site, "more")).status == 201 else None, "an answer", BOUND_S
        )
        assert more.body["task_id"] not in {answer.body["task_id"] for answer in tasks}
        eventually(lambda: site.ask("GET", "/readyz").status == 200 or None, "the broker to be ready", BOUND_S)
        for answer in tasks:  # a connection to the first server is noticed to be lost by the first read on it
            path = f"/v1/tasks/{answer.body['task_id']}"
            eventually(lambda path=path: site.ask("GET", path).status == 200 or None, path, BOUND_S)  # type: ignore[misc]
        assert broker.is_running
        assert "database_timeline_changed" in broker.stderr
        assert "lane_stopped" not in broker.stderr
