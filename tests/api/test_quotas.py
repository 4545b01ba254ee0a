"""Quotas of namespaces over HTTP: the answer, the figures, and what a client repeats."""

from collections.abc import Iterator

import msgspec
import pytest
from stepwire.client.outages import failed_try_of
from stepwire.errors import ClientError
from stepwire_broker.core.definitions.settings import LimitSettings, QuotaSettings

from .running_api import Api, running, settings_in
from .test_metrics import scrape

STEPS = [{"name": name, "handler_class": "shop.pay"} for name in ("a", "b")]
QUOTAS = {"shop": QuotaSettings(max_open_steps=3, priority_max=5), "fast": QuotaSettings(steps_per_s=1)}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory = tmp_path_factory.mktemp("quotas", numbered=True)
    directory.chmod(0o700)
    settings = msgspec.structs.replace(settings_in(directory), limits=LimitSettings(namespaces=QUOTAS))
    with running(directory, settings) as found:
        for namespace in ("shop", "fast", "free"):
            body = {"namespace": namespace, "name": "order", "version": "1", "steps": STEPS}
            assert found.call("POST", "/v1/workflows", body).status == 201
        yield found


def test_a_submission_over_a_quota_is_answered_with_its_namespace_its_limit_and_a_time(api: Api) -> None:
    body = {"namespace": "shop", "workflow": "order"}
    task_id = api.call("POST", "/v1/tasks", body).json["task_id"]
    for path, over in (("/v1/tasks", body), ("/v1/tasks/batch", {"tasks": [{**body, "namespace": "free"}, body]})):
        answer = api.call("POST", path, over)
        assert (answer.status, answer.code) == (429, "quota")
        assert (answer.json["limit"], answer.json["owner"]) == ("open_steps_of_namespace", "shop")
        assert answer.headers["retry-after"] == "1"
        assert answer.json["detail"].startswith("2 steps of the namespace shop are open and this submission adds 2")
        assert answer.json["next"] == {"code": "wait_for_quota", "namespace": "shop"}
    assert api.call("GET", "/v1/tasks?namespace=free").json["tasks"] == []
    figures = scrape(api)
    assert figures["stepwire_namespace_open_steps", "shop"] == 2
    assert figures["stepwire_quota_refusals_total", "shop", "open_steps_of_namespace"] == 2
    api.call("POST", f"/v1/tasks/{task_id}/cancel")
    assert scrape(api)["stepwire_namespace_open_steps", "shop"] == 0


def test_a_submission_that_never_fits_has_no_time_after_which_it_may_be_repeated(api: Api) -> None:
    answer = api.call("POST", "/v1/tasks", {"namespace": "shop", "workflow": "order", "priority": 6})
    assert (answer.status, answer.code, answer.json["limit"]) == (429, "quota", "priority_of_namespace")
    assert "retry-after" not in answer.headers
    assert "retry_after_ms" not in answer.json


def test_a_rate_names_the_time_until_its_steps_are_paid(api: Api) -> None:
    body = {"namespace": "fast", "workflow": "order"}
    assert api.call("POST", "/v1/tasks", body).status == 201
    answer = api.call("POST", "/v1/tasks", body)
    assert (answer.status, answer.code, answer.json["limit"]) == (429, "quota", "steps_per_s_of_namespace")
    assert 1_000 < answer.json["retry_after_ms"] <= 2_000


@pytest.mark.parametrize(("retry_after_ms", "is_repeated"), [(250, True), (None, False)])
def test_a_client_repeats_only_what_may_fit_later(retry_after_ms: int | None, is_repeated: bool) -> None:
    refusal = ClientError("over", code="quota", status=429, retry_after_ms=retry_after_ms)
    assert (failed_try_of(refusal) is not None) is is_repeated
