"""The health of the stages over HTTP: the document and the metrics."""

from stepwire_broker.core.pools.executor_types import ExecutorType

from .running_api import Api
from .test_metrics import scrape

PATH = "/health/orchestration"


def test_the_document_has_the_members_of_every_stage(api: Api) -> None:
    answer = api.call("GET", PATH)
    assert answer.status == 200
    health = answer.json
    assert health["coordinator"]["running"] is True
    assert list(health["executor_pools"]) == [str(kind) for kind in ExecutorType]
    for pool in health["executor_pools"].values():
        assert pool["healthy"] + pool["unhealthy"] <= pool["size"] == len(pool["members"]) == health["lanes"]["owned"]
    assert 0 <= health["database"]["active_connections"] <= health["database"]["pool_size"]
    assert api.broker.broker_id in [each["broker"] for each in health["brokers"]]


def test_the_counts_of_the_document_and_of_the_metrics_are_equal(api: Api) -> None:
    for _ in range(3):
        assert api.call("POST", "/v1/tasks", {"workflow": "order"}).status == 201
    health, values = api.call("GET", PATH).json, scrape(api)
    members = health["executor_pools"]["task_request_processor"]["members"]  # one for each lane
    assert api.owner_port != api.port or sum(member["items"] for member in members) >= 3
    for kind, pool in health["executor_pools"].items():
        for member in pool["members"]:
            for counter in ("items", "failed_batches"):
                assert values[f"stepwire_member_{counter}_total", kind, member["id"]] == member[counter]
        assert values["stepwire_pool_items_total", kind] == sum(each["items"] for each in pool["members"])
        assert (
            sum(n for (name, *of), n in values.items() if name == "stepwire_pool_members" and of[0] == kind)
            == (pool["size"])
        )
    assert values["stepwire_database_connections", "configured"] == health["database"]["pool_size"]
    assert values["stepwire_orchestration_status", health["status"]] == 1
