"""Refused requests leave log lines: the first of a source at once, further ones counted, once in ten seconds."""

from collections.abc import Callable
from typing import Any

from stepwire_broker.api import token
from stepwire_broker.api.refusal_log import LOG_EVERY_S, OTHERS, SOURCES_MAX, RefusalLog
from stepwire_broker.core.answers.scopes import Scope
from structlog.testing import capture_logs

from .running_api import Api


class Later:
    """The calls that a log asks for, in place of a loop."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[..., None], Any]] = []

    def __call__(self, delay_s: float, call: Callable[..., None], argument: Any) -> None:
        assert delay_s == LOG_EVERY_S
        self.waiting.append((call, argument))

    def ten_seconds_pass(self) -> None:
        due, self.waiting = self.waiting, []
        for call, argument in due:
            call(argument)


def test_ten_thousand_wrong_tokens_of_a_source_leave_one_line_at_once_and_one_with_their_number() -> None:
    later = Later()
    refusals = RefusalLog(later)
    with capture_logs() as lines:
        for _ in range(10_000):
            refusals.note("10.0.0.9", "401")
        refusals.note("10.0.0.8", "403 watcher")
    assert [(line["event"], line["source"], line["refused"]) for line in lines] == [
        ("requests_refused", "10.0.0.9", {"401": 1}),
        ("requests_refused", "10.0.0.8", {"403 watcher": 1}),
    ]
    with capture_logs() as lines:
        later.ten_seconds_pass()
    assert [(line["source"], line["refused"]) for line in lines] == [("10.0.0.9", {"401": 9_999})]
    with capture_logs() as lines:
        later.ten_seconds_pass()  # nothing was refused since
        assert (lines, later.waiting) == ([], [])
        refusals.note("10.0.0.9", "401")
    assert [line["refused"] for line in lines] == [{"401": 1}]


def test_the_sources_that_are_remembered_are_bounded() -> None:
    later = Later()
    refusals = RefusalLog(later)
    with capture_logs() as lines:
        for number in range(SOURCES_MAX + 500):
            refusals.note(f"source {number}", "401")
        later.ten_seconds_pass()
    assert [line["refused"] for line in lines if line["source"] == OTHERS] == [{"401": 1}, {"401": 499}]
    assert len(lines) == SOURCES_MAX + 2


def test_a_request_with_a_wrong_token_is_logged_with_its_source_and_without_the_token(api: Api) -> None:
    secret = token.add_token(api.tokens.file, token.Grant("watcher", frozenset({Scope.READ})))
    api.tokens.reload()
    with capture_logs() as lines:
        assert api.call("GET", "/v1/tasks", headers={"Authorization": "Bearer " + "x" * 43}).status == 401
        named = {"Authorization": f"Bearer {secret}"}
        assert api.call("POST", "/v1/tasks/1/cancel", {}, named).status == 403
        assert api.call("GET", "/v1/tasks", headers=named).status == 200
        api.on_loop(lambda: None)
    refused = [line for line in lines if line["event"] == "requests_refused"]
    assert [(line["source"], line["refused"], line["log_level"]) for line in refused] == [
        ("127.0.0.1", {"401": 1}, "warning")  # the second refusal of the source is counted
    ]
    assert "x" * 43 not in repr(lines)
