"""`/v1/breakers`: an operator stops and resumes a handler, and the list is as the document declares."""

from .running_api import Api
from .test_openapi import check

HANDLER = "/v1/breakers/%s"


def promised(api: Api, method: str, path: str, body: object = None) -> dict[str, object]:
    answer = api.call(method, path, body)
    template = "/v1/breakers/{handler_class}" if method == "POST" else path
    check(method, template, answer.status, answer.headers["content-type"], answer.body)
    assert answer.status == 200, answer
    said: dict[str, object] = answer.json
    return said


def test_a_breaker_held_open_stops_a_handler_until_it_is_closed(api: Api) -> None:
    api.call("POST", "/v1/workflows", {"name": "stopped", "steps": [{"name": "a", "handler_class": "to.stop"}]})
    assert promised(api, "POST", HANDLER % "to.stop", {"state": "open", "reason": "a test"}) == {
        "handler_class": "to.stop",
        "state": "open",
        "forced": True,
    }
    (shown,) = promised(api, "GET", "/v1/breakers")["breakers"]  # type: ignore[misc, attr-defined]
    assert (shown["state"], shown["forced"], shown["reason"], shown["next_probe"]) == ("open", True, "a test", None)
    task_id = api.call("POST", "/v1/tasks", {"workflow": "stopped"}).json["task_id"]
    assert promised(api, "POST", HANDLER % "to.stop", {"state": "auto"})["forced"] is False
    assert api.call("GET", f"/v1/tasks/{task_id}").status == 200
    metrics = api.call("GET", "/metrics").body.decode()
    assert 'stepwire_breaker_state{handler_class="to.stop"} 0' in metrics
    assert "stepwire_breakers_opened_total 1" in metrics


def test_an_invalid_breaker_setting_is_refused_with_the_cause(api: Api) -> None:
    unknown = api.call("POST", HANDLER % "nobody.knows", {"state": "open"})
    assert (unknown.status, unknown.code) == (404, "not_found")
    wrong = api.call("POST", HANDLER % "nobody.knows", {"status": "open"})
    assert (wrong.status, wrong.code) == (400, "bad_field")
    assert "did you mean state?" in wrong.json["detail"]
