"""`/v1/backlog`: what an autoscaler reads, also with a token that can do nothing else."""

import math
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from msgspec import structs
from stepwire_broker.api.token import Grant, add_token
from stepwire_broker.core.answers.scopes import Scope

from .running_api import OWNER, Api, running, settings_in
from .test_openapi import check


def backlog_of(api: Api, query: str) -> dict[str, Any]:
    answer = api.call("GET", f"/v1/backlog?{query}")
    check("GET", "/v1/backlog", answer.status, answer.headers["content-type"], answer.body)
    assert answer.status == 200, answer
    document: dict[str, Any] = answer.json
    return document


def submitted(api: Api, name: str, count: int, **step: Any) -> None:
    document = {"name": name, "steps": [{"name": "only", "handler_class": f"to.{name}", **step}]}
    assert api.call("POST", "/v1/workflows", document).status in (200, 201)
    assert api.call("POST", "/v1/tasks/batch", {"tasks": [{"workflow": name}] * count}).status == 201


def test_the_backlog_of_a_handler_is_read_with_a_token_for_metrics_only(api: Api) -> None:
    submitted(api, "counted", 7)
    value = add_token(api.tokens.file, Grant("keda", frozenset({Scope.METRICS})))
    api.on_loop(api.tokens.reload)
    named = {"Authorization": f"Bearer {value}"}
    answer = api.call("GET", "/v1/backlog?handler_class=to.counted&slots=3", headers=named)
    assert answer.status == 200, answer
    assert api.call("GET", "/v1/workers", headers=named).status == 403
    if OWNER is None:
        assert (answer.json["waiting"], answer.json["wanted_workers"]) == (7, 3)
        assert answer.json["oldest_wait_ms"] >= 0
        metrics = api.call("GET", "/metrics").body.decode()
        assert 'stepwire_backlog_steps{handler_class="to.counted",state="waiting"} 7' in metrics


def test_steps_that_need_other_labels_are_counted_apart_with_a_sentence(api: Api) -> None:
    submitted(api, "rendered", 2, worker_selector={"gpu": "true"})
    if OWNER is None:
        plain = backlog_of(api, "handler_class=to.rendered")
        assert (plain["waiting"], plain["unfit"], plain["wanted_workers"]) == (0, 2, 0)
        assert plain["because"] == [
            "2 steps of `to.rendered` need the labels gpu=true, and these workers have no labels"
        ]
        assert backlog_of(api, "handler_class=to.r*&labels=gpu%3Dtrue")["wanted_workers"] == 2


def test_the_call_of_the_scaler_in_the_example_finds_the_number_of_workers(api: Api) -> None:
    """KEDA's metrics-api scaler: a GET with a bearer token, and a number at `valueLocation` of the answer."""
    path = Path(__file__).parents[2] / "examples/operating/kubernetes/workers.yaml"
    (scaled,) = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "ScaledObject"]
    (trigger,) = scaled["spec"]["triggers"]
    url = urlsplit(trigger["metadata"]["url"])
    (handler,) = parse_qs(url.query)["handler_class"]
    document = {"name": "keda", "steps": [{"name": "only", "handler_class": handler}]}
    assert api.call("POST", "/v1/workflows", document).status in (200, 201)
    value = add_token(api.tokens.file, Grant("of-keda", frozenset({Scope.METRICS})))
    api.on_loop(api.tokens.reload)
    named = {"Authorization": f"Bearer {value}", "Accept": "*/*", "Accept-Encoding": "gzip"}

    def replicas() -> int:
        answer = api.call("GET", f"{url.path}?{url.query}", headers=named)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        found = answer.json
        for member in trigger["metadata"]["valueLocation"].split("."):
            found = found[member]
        return math.ceil(found / float(trigger["metadata"]["targetValue"]))

    assert replicas() == 0
    assert api.call("POST", "/v1/tasks/batch", {"tasks": [{"workflow": "keda"}] * 9}).status == 201
    if OWNER is None:
        assert replicas() == 3  # of four slots


@pytest.mark.parametrize(
    ("query", "cause"),
    [
        ("handler_class=a,,b", "`handler_class` must name 1 to 64 handlers"),
        ("labels=gpu", "`labels` has 'gpu'"),
        ("slots=0", "`slots` is '0': it must be a number from 1 to 10000"),
        ("handler=a", "`handler` is not a member of this query"),
    ],
)
def test_an_invalid_query_of_the_backlog_is_refused_with_the_cause(api: Api, query: str, cause: str) -> None:
    answer = api.call("GET", f"/v1/backlog?{query}")
    assert (answer.status, answer.code) == (400, "bad_query")
    assert cause in answer.json["detail"]


@pytest.mark.skipif(OWNER is not None, reason="the limit of memory is that of one broker")
def test_tasks_that_are_only_in_the_database_count_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = settings_in(tmp_path)
    few = structs.replace(settings, limits=structs.replace(settings.limits, max_active_tasks=10))
    with running(tmp_path, few) as api:
        submitted(api, "many", 40)
        submitted(api, "gpu", 5, worker_selector={"gpu": "true"})
        document = {
            "name": "both",
            "steps": [{"name": "only", "handler_class": "to.many", "worker_selector": {"gpu": "1"}}],
        }
        assert api.call("POST", "/v1/workflows", document).status == 201
        assert api.call("POST", "/v1/tasks/batch", {"tasks": [{"workflow": "both"}] * 4}).status == 201
        seen = backlog_of(api, "handler_class=to.many&slots=4")
        assert (seen["waiting"], seen["wanted_workers"], seen["unfit"]) == (40, 10, 4)
        assert 0 < seen["stored"] <= 40
