"""`/v1/route` and `/v1/rules`: the target of a path, the rule that nearly matches, and invalid queries."""

from typing import Any
from urllib.parse import quote

import pytest

from .running_api import Answer, Api
from .test_openapi import check


@pytest.fixture(scope="module")
def ruled(api: Api) -> Api:
    """Set rules at run time. The rule that is set last comes first."""
    for match, rule in [
        ("*::ml::*", {"executor": "poll"}),
        ("shop::**::charge", {"worker_selector": {"release": "now"}, "canary": {"percent": 5, "executor": "poll"}}),
    ]:
        assert promised(api, "POST", "/v1/rules", {"match": match, **rule}).status == 200
    return api


def promised(api: Api, method: str, path: str, body: Any = None) -> Answer:
    answer = api.call(method, path, body)
    check(method, path.partition("?")[0], answer.status, answer.headers["content-type"], answer.body)
    return answer


def route(api: Api, path: str, selector: str = "") -> Answer:
    asks = f"&worker_selector={quote(selector)}" if selector else ""
    return promised(api, "GET", f"/v1/route?path={quote(path)}{asks}")


@pytest.mark.parametrize(
    ("path", "executor", "matched", "nearly"),
    [
        ("default::order::pay", "bus", None, None),
        ("public::ml::train", "poll", "*::ml::*", None),
        # The classic slip: a namespace may itself hold ::, and a * is one segment.
        ("public::embedded::ml::train", "bus", None, "* matches exactly one segment; **::ml::** would match"),
        ("shop::order::charge", "bus", "shop::**::charge", None),
        ("shop::eu::order::charge", "bus", "shop::**::charge", None),
        ("Shop::order::charge", "bus", None, "the rule differs in upper and lower case"),
    ],
)
def test_a_route_shows_the_target_and_the_rule_that_nearly_matches(
    ruled: Api, path: str, executor: str, matched: str | None, nearly: str | None
) -> None:
    said = route(ruled, path).json
    assert (said["path"], said["executor"], said["decided"]) == (path, executor, "distributed")
    assert (said["rule"] and said["rule"]["match"]) == matched
    assert (said["nearly"] and said["nearly"]["why"]) == nearly


def test_a_route_shows_the_canary_and_uses_the_steps_own_selector(ruled: Api) -> None:
    said = route(ruled, "shop::order::charge").json
    assert said["canary"] == {"executor": "poll", "worker_selector": {"release": "now"}}
    assert said["reason"].endswith("with release=now, and for 5 % of its tasks to executor poll with release=now")
    assert route(ruled, "shop::order::charge", "gpu=true").json["worker_selector"] == {"gpu": "true"}
    assert route(ruled, "shop::order::charge", "local").json["decided"] == "local"


@pytest.mark.parametrize(("percent", "said"), [(100, "poll, and is"), (12.5, "poll for 12.5 % of its tasks, and is")])
def test_a_route_shows_the_percentage_of_shadow_copies(ruled: Api, percent: float, said: str) -> None:
    rule = {"match": "**::quote", "shadow": {"executor": "poll", "percent": percent}}
    assert promised(ruled, "POST", "/v1/rules", rule).status == 200
    reason = route(ruled, "shop::order::quote").json["reason"]
    assert reason.endswith(f"the step goes to executor bus; a copy goes to executor {said} compared")


@pytest.mark.parametrize("path", ["", "charge", "shop::charge", "shop::::charge", "::a::b", "a::b::"])
def test_a_malformed_path_is_refused(ruled: Api, path: str) -> None:
    answer = route(ruled, path)
    assert (answer.status, answer.code) == (400, "bad_query")


@pytest.mark.parametrize("selector", ["gpu", "=true", "gpu=true,,", ",gpu=true"])
def test_malformed_labels_are_refused(ruled: Api, selector: str) -> None:
    answer = route(ruled, "shop::order::charge", selector)
    assert (answer.status, answer.code) == (400, "bad_query")


def test_a_rule_that_was_not_set_at_run_time_cannot_be_removed(ruled: Api) -> None:
    answer = promised(ruled, "POST", "/v1/rules/remove", {"match": "no::such::rule"})
    assert (answer.status, answer.code) == (404, "not_found")
