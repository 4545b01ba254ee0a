"""The rate of a token: its requests, submitted steps and bytes per second."""

import pytest
from stepwire_broker.api.token import Grant, TokenError, add_token, read_lines
from stepwire_broker.api.token_rate import UNLIMITED, Allowances, Rate, RateError, read_rate
from stepwire_broker.core.answers.scopes import Scope

from .running_api import Answer, Api
from .test_limits import is_refused, with_token


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("requests=100", Rate(requests=100)),
        ("requests:100,steps:1000,bytes:10485760", Rate(100, 1000, 10 * 1024**2)),
        ("bytes=10MiB,steps=5", Rate(None, 5, 10 * 1024**2)),
        ("bytes=1GiB", Rate(bytes=1024**3)),
    ],
)
def test_a_rate_is_read_and_written(text: str, rate: Rate) -> None:
    assert read_rate(text) == rate == read_rate(str(rate))


@pytest.mark.parametrize(
    "text", ["", "requests", "requests=0", "requests=-1", "steps=10MiB", "bytes=1TiB", "steps=1,steps=2", "x=1",
             "requests=²", "bytes=" + "9" * 5000]
)  # fmt: skip
def test_a_text_that_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(RateError):
        read_rate(text)


def test_an_allowance_grows_with_time_up_to_one_second_of_the_rate() -> None:
    now_s = 0.0
    allowances = Allowances(lambda: now_s)
    rate = Rate(requests=10)

    def used() -> int:
        count = 0
        while not allowances.wait_s("ci", rate, "requests"):
            allowances.pay("ci", rate, "requests", 1)
            count += 1
        return count

    assert used() == 10
    assert 0 < allowances.wait_s("ci", rate, "requests") <= 0.1
    now_s = 0.5
    assert used() == 5
    now_s = 100.0
    assert used() == 10
    assert allowances.wait_s("other", rate, "requests") == 0


def test_more_than_the_rate_is_paid_before_the_next_use() -> None:
    now_s = 0.0
    allowances = Allowances(lambda: now_s)
    rate = Rate(steps=100)
    allowances.pay("ci", rate, "steps", 1_100)
    assert allowances.wait_s("ci", rate, "steps") == pytest.approx(10.01)
    now_s = 10.1
    assert allowances.wait_s("ci", rate, "steps") == 0


def test_a_token_without_a_rate_is_never_refused_for_it() -> None:
    allowances = Allowances()
    allowances.pay("ci", UNLIMITED, "bytes", 10**15)
    assert allowances.wait_s("ci", UNLIMITED, "bytes") == 0


def with_rate(api: Api, name: str, rate: Rate, *scopes: Scope) -> dict[str, str | None]:
    return with_token(add_token(api.tokens.file, Grant(name, frozenset(scopes), rate=rate)))


def first_refusal(answers: "list[Answer]") -> Answer:
    return next(answer for answer in answers if answer.status == 429)


def test_a_token_over_its_request_rate_is_refused_and_other_tokens_are_answered(api: Api) -> None:
    headers = with_rate(api, "polls", Rate(requests=2), Scope.READ)
    answers = [api.call("GET", "/v1/tasks", headers=headers) for _ in range(200)]
    assert answers[0].status == 200
    assert is_refused(first_refusal(answers), "requests_per_s_of_token", "polls")
    assert "2 requests per second" in first_refusal(answers).json["detail"]
    assert api.call("GET", "/v1/tasks").status == 200


def test_a_token_over_its_step_rate_may_not_submit_and_may_read(api: Api) -> None:
    headers = with_rate(api, "shop", Rate(steps=10), Scope.SUBMIT, Scope.READ)
    tasks = {"tasks": [{"workflow": "order"}] * 500}  # 1,000 steps, which take 100 s
    assert api.call("POST", "/v1/tasks/batch", tasks, headers).status == 201
    answer = api.call("POST", "/v1/tasks", {"workflow": "order"}, headers)
    assert is_refused(answer, "steps_per_s_of_token", "shop")
    assert 50 < int(answer.headers["retry-after"]) <= 100
    assert api.call("GET", "/v1/tasks", headers=headers).status == 200


def test_bytes_of_requests_and_answers_count_towards_the_byte_rate(api: Api) -> None:
    for name, method, path, body in (
        ("sends", "POST", "/v1/tasks", {"workflow": "order", "context": {"x": "x" * 50_000}}),
        ("receives", "GET", "/openapi.json", None),
    ):
        headers = with_rate(api, name, Rate(bytes=1_000), Scope.SUBMIT, Scope.READ)
        assert api.call(method, path, body, headers).status in (200, 201)
        assert is_refused(api.call("GET", "/readyz", headers=headers), "bytes_per_s_of_token", name)


def test_a_rate_is_stored_in_the_token_file(api: Api) -> None:
    add_token(api.tokens.file, Grant("stored", frozenset({Scope.READ}), rate=Rate(1, 2, 3)))
    (grant,) = [line.grant for line in read_lines(api.tokens.file) if line.grant.name == "stored"]
    assert grant.rate == Rate(1, 2, 3)
    good = api.tokens.file.read_text()
    api.tokens.file.write_text(f"{good}{'y' * 43} name=bad rate=requests:none\n")
    with pytest.raises(TokenError, match=r"line .*: rate: requests=none must be a number above 0"):
        read_lines(api.tokens.file)
    api.tokens.file.write_text(good)
