"""The answers to probes."""

from .running_api import Api


def test_a_broker_that_can_accept_work_is_ready(api: Api) -> None:
    answer = api.call("GET", "/readyz")
    assert (answer.status, answer.json) == (200, {"ready": True, "reasons": [], "insecure": []})


def test_a_broker_that_cannot_accept_work_gives_the_reasons_and_stays_alive(api: Api) -> None:
    api.broker.reasons = ["disk_full", "draining"]
    try:
        answer = api.call("GET", "/readyz")
        assert (answer.status, answer.json) == (
            503,
            {"ready": False, "reasons": ["disk_full", "draining"], "insecure": []},
        )
        assert answer.headers["retry-after"] == "1"
        assert api.call("GET", "/livez").status == 200
    finally:
        api.broker.reasons = None
