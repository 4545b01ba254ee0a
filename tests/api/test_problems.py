"""Every refusal has one status, and the time to retry after where a retry helps."""

from typing import get_args

import pytest
from stepwire_broker.api import http_problems
from stepwire_broker.core.answers.answers import CommandRefused, RefusedCode
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_protocol.errors import InvalidMessage

from .running_api import Api

EXPECTED = {
    "invalid": 400,
    "too_large": 413,
    "not_found": 404,
    "wrong_state": 409,
    "version_conflict": 409,
    "key_conflict": 409,
    "too_many_open_steps": 429,
    "quota": 429,
    "overloaded": 429,
    "no_executor": 503,
    "draining": 503,
    "starting": 503,
    "broker_dark": 503,
    "database_locked": 503,
    "disk_full": 503,
    "database_read_only": 503,
    "database_unavailable": 503,
    "commit_unknown": 503,
    "refused_by_database": 422,
}


def test_the_table_knows_every_code_of_the_core() -> None:
    assert set(EXPECTED) == set(get_args(RefusedCode))


@pytest.mark.parametrize(("code", "status"), EXPECTED.items())
@pytest.mark.parametrize(("method", "path", "body"), [
    ("POST", "/v1/tasks", {"workflow": "order"}),
    ("POST", "/v1/tasks/batch", {"tasks": [{"workflow": "order"}]}),
    ("POST", "/v1/tasks/1/cancel", None),
    ("POST", "/v1/steps/1/resolve", {"outcome": "retry", "reason": "r"}),
])  # fmt: skip
def test_a_refusal_of_the_core_has_its_status(
    api: Api, method: str, path: str, body: object, code: RefusedCode, status: int
) -> None:
    api.broker.next_answer = CommandRefused(code, "said the core", Hint(HintCode.SHOW_TASK, task_id=7))
    answer = api.call(method, path, body)
    assert (answer.status, answer.code) == (status, code)
    assert answer.json["detail"] == "said the core"
    assert answer.json["hint"] == "GET /v1/tasks/7 shows the states of its steps"
    assert answer.json["next"] == {"code": "show_task", "task_id": 7}
    assert answer.json["title"]
    assert ("retry-after" in answer.headers) == (status in (429, 503) and code != "quota")


@pytest.mark.parametrize(("retry_after_ms", "seconds"), [(1, "1"), (1000, "1"), (1001, "2"), (60_000, "60")])
def test_a_refusal_may_carry_the_time_to_retry_after(api: Api, retry_after_ms: int, seconds: str) -> None:
    api.broker.next_answer = CommandRefused("overloaded", "busy", retry_after_ms=retry_after_ms)
    answer = api.call("POST", "/v1/tasks", {"workflow": "order"})
    assert (answer.headers["retry-after"], answer.json["retry_after_ms"]) == (seconds, retry_after_ms)


def test_a_malformed_request_gets_the_hint_of_its_code() -> None:
    problem = http_problems.of_invalid(InvalidMessage("duplicate_key", "the member `a` is there twice"))
    assert (problem.hint, problem.next) == ("name each member of an object once", None)


def test_an_empty_body_is_named_so_and_not_a_frame() -> None:
    assert http_problems.of_invalid(InvalidMessage("empty")).detail == "the body is empty"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "empty"),
        (b"{", 400, "not_json"),
        (b"[]", 400, "not_an_object"),
        (b"\xff", 400, "not_utf8"),
        (b'{"a":1,"a":2}', 400, "duplicate_key"),
        (b'{"workflow":"order","context":{"x":"\\u0000"}}', 400, "nul_character"),
        (b'{"workflow":"order","context":{"x":' + b"9" * 30 + b"}}", 400, "integer_out_of_range"),
        (b'{"workflow":"order","context":' + b'{"a":' * 40 + b"1" + b"}" * 41, 400, "too_deep"),
        (b'{"workflw":"order"}', 400, "bad_field"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/tasks/batch"])
def test_a_body_that_cannot_be_parsed_is_refused_with_a_code(
    api: Api, path: str, body: bytes, status: int, code: str
) -> None:
    if path.endswith("batch") and body.startswith(b'{"work'):
        body = b'{"tasks":[' + body + b"]}"
    answer = api.call("POST", path, body)
    assert (answer.status, answer.code) == (status, code)


def test_a_size_over_the_limit_is_413_wherever_it_is_found() -> None:
    assert http_problems.of_invalid(InvalidMessage("too_large")).status == 413


def test_a_fault_of_the_broker_is_500_without_details(api: Api) -> None:
    class NotAnAnswer:
        pass

    api.broker.next_answer = NotAnAnswer()  # type: ignore[assignment]
    answer = api.call("POST", "/v1/tasks", {"workflow": "order"})
    assert (answer.status, answer.code) == (500, "internal_error")
    assert "NotAnAnswer" not in answer.body.decode()
    assert api.call("POST", "/v1/tasks", {"workflow": "order"}).status == 201
