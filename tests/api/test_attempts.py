"""Documents about runs: attempts with their errors, durations, standard error, progress and cancels."""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from stepwire_broker.api import progress_feed, token
from stepwire_broker.api.progress_feed import ProgressFeed
from stepwire_broker.core.definitions.settings import ExecutionSettings

from .poller import Poller
from .running_api import Api, running, settings_in
from .test_events import following

QUICK = {"kind": "constant", "base_ms": 1, "jitter": "none"}
BACKTRACE = ["Traceback (most recent call last):", '  File "/home/ann/shop.py", line 3, in charge', "KeyError: 'nope'"]
KEY_ERROR = {"message": "'nope'", "code": "KeyError", "backtrace": BACKTRACE}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A broker whose steps go to workers over HTTP."""
    tmp_path.chmod(0o700)
    settings = msgspec.structs.replace(settings_in(tmp_path), execution=ExecutionSettings(default_executor="poll"))
    with running(tmp_path, settings) as found:
        step = {"name": "charge", "handler_class": "h", "retry_limit": 2, "backoff": QUICK}
        assert found.call("POST", "/v1/workflows", {"name": "one", "steps": [step]}).status == 201
        yield found


def submit(api: Api) -> int:
    task_id: int = api.call("POST", "/v1/tasks", {"workflow": "one"}).json["task_id"]
    return task_id


def taken(poller: Poller) -> tuple[int, int]:
    """The next step, which the poller now runs."""
    until = time.monotonic() + 20
    while not (steps := poller.lease()):
        assert time.monotonic() < until
    item = (steps[0]["step_id"], steps[0]["delivery"])
    poller.held[item] = "running"
    return item


def answer(poller: Poller, item: tuple[int, int], status: str, **members: Any) -> None:
    result = {"step_id": item[0], "delivery": item[1], "status": status, **members}
    assert poller.report(item, results=[result]).status == 200


def failed_then_completed(api: Api) -> tuple[int, int]:
    """A task whose step failed once and then succeeded: the ids of both."""
    task_id, poller = submit(api), Poller(api)
    answer(poller, taken(poller), "failed", error=KEY_ERROR, metadata={"execution_time_ms": 4.2, "stderr": "first"})
    item = taken(poller)
    answer(poller, item, "completed", output=7, metadata={"execution_time_ms": 7.6, "stderr": "second\n"})
    return task_id, item[0]


# -- attempts ---------------------------------------------------------------------------------------------------------


def test_a_step_lists_its_attempts_with_outcome_error_worker_and_duration(api: Api) -> None:
    _, step_id = failed_then_completed(api)
    step = api.call("GET", f"/v1/steps/{step_id}").json
    first, second = step["attempts"]
    assert (first["delivery"], first["attempt"], first["outcome"], first["run_ms"]) == (1, 0, "backed_off", 4)
    assert (first["code"], first["message"]) == ("KeyError", "KeyError: 'nope'")
    assert (second["delivery"], second["attempt"], second["outcome"], second["run_ms"]) == (2, 1, "completed", 8)
    assert (second["code"], second["message"], step["attempts_omitted"]) == (None, None, 0)
    for attempt in (first, second):
        assert attempt["worker"].startswith("poller:")
        assert attempt["dispatched_at"] <= attempt["started_at"] <= attempt["ended_at"]


def test_a_running_attempt_has_no_outcome_yet(api: Api) -> None:
    submit(api)
    step_id, _ = taken(Poller(api))
    (attempt,) = api.call("GET", f"/v1/steps/{step_id}").json["attempts"]
    assert (attempt["outcome"], attempt["ended_at"], attempt["run_ms"]) == (None, None, None)


def test_attempts_before_an_operators_retry_are_listed_and_the_count_begins_again(api: Api) -> None:
    task_id, poller = submit(api), Poller(api)
    fatal = {**KEY_ERROR, "retryable": False}
    answer(poller, taken(poller), "failed", error=fatal)
    assert api.call("POST", f"/v1/tasks/{task_id}/retry", {}).status == 200
    item = taken(poller)
    answer(poller, item, "completed", output=7)
    attempts = api.call("GET", f"/v1/steps/{item[0]}").json["attempts"]
    assert [(each["delivery"], each["attempt"], each["outcome"]) for each in attempts] == [
        (1, 0, "failed"),
        (2, 0, "completed"),
    ]


def test_a_step_that_fails_in_the_queue_has_an_attempt_without_a_worker(api: Api) -> None:
    step = {"name": "a", "handler_class": "unoffered", "queue_timeout_ms": 1}
    assert api.call("POST", "/v1/workflows", {"name": "queued", "steps": [step]}).status == 201
    task_id = api.call("POST", "/v1/tasks", {"workflow": "queued"}).json["task_id"]
    (shown,) = api.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000").json["steps"]
    (attempt,) = api.call("GET", f"/v1/steps/{shown['step_id']}").json["attempts"]
    assert (attempt["worker"], attempt["outcome"], attempt["code"]) == (None, "failed", "queue_timeout")
    assert (shown["started_at"], shown["run_ms"], shown["queue_ms"]) == (None, None, None)


def test_only_the_latest_attempts_are_listed_and_the_others_counted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwire_broker.api.attempts.ATTEMPTS_MAX", 1)
    monkeypatch.setattr("stepwire_broker.api.attempts.PAGE_ROWS_MAX", 2)
    _, step_id = failed_then_completed(api)
    step = api.call("GET", f"/v1/steps/{step_id}").json
    assert ([each["delivery"] for each in step["attempts"]], step["attempts_omitted"]) == ([2], 1)


# -- durations --------------------------------------------------------------------------------------------------------


def test_a_short_step_has_its_start_duration_and_queue_time(api: Api) -> None:
    task_id, _ = failed_then_completed(api)
    (step,) = api.call("GET", f"/v1/tasks/{task_id}").json["steps"]
    assert (step["run_ms"], step["retry_limit"], step["attempt"]) == (8, 2, 1)
    assert step["queue_ms"] >= 0
    assert step["ready_at"] <= step["dispatched_at"] <= step["started_at"] <= step["finished_at"]


def test_a_step_of_a_worker_that_reports_no_duration_is_measured_by_the_broker(api: Api) -> None:
    task_id, poller = submit(api), Poller(api)
    answer(poller, taken(poller), "completed", output=7)
    (step,) = api.call("GET", f"/v1/tasks/{task_id}").json["steps"]
    assert step["started_at"] == step["dispatched_at"]
    assert step["run_ms"] >= 0


# -- errors and standard error ----------------------------------------------------------------------------------------


def test_only_the_document_of_a_single_step_has_the_backtrace(api: Api) -> None:
    task_id, poller = submit(api), Poller(api)
    item = taken(poller)
    answer(poller, item, "failed", error={**KEY_ERROR, "retryable": False})
    step = api.call("GET", f"/v1/steps/{item[0]}").json
    assert step["error"]["backtrace"] == BACKTRACE
    assert api.call("GET", f"/v1/tasks/{task_id}/steps/charge").json == step
    (listed,) = api.call("GET", "/v1/steps?state=failed").json["steps"]
    (of_task,) = api.call("GET", f"/v1/tasks/{task_id}").json["steps"]
    for shown in (listed, of_task):
        assert (shown["error"]["code"], shown["error"]["message"]) == ("KeyError", "'nope'")
        assert "backtrace" not in shown["error"]
    assert b"/home/ann" not in api.call("GET", f"/v1/tasks/{task_id}?wait_ms=1").body
    assert b"/home/ann" not in api.call("GET", f"/v1/tasks/{task_id}/events").body


def test_a_step_shows_the_standard_error_of_its_last_run(api: Api) -> None:
    _, step_id = failed_then_completed(api)
    assert api.call("GET", f"/v1/steps/{step_id}").json["stderr"] == {"delivery": 2, "text": "second\n"}


def test_the_events_of_a_task_have_the_error_and_duration_of_every_attempt(api: Api) -> None:
    task_id, _ = failed_then_completed(api)
    by_kind = {event["kind"]: event for event in api.call("GET", f"/v1/tasks/{task_id}/events").json["events"]}
    assert (by_kind["backed_off"]["message"], by_kind["backed_off"]["run_ms"]) == ("KeyError: 'nope'", 4)
    assert by_kind["completed"]["run_ms"] == 8
    assert "message" not in by_kind["completed"]
    assert "run_ms" not in by_kind["readied"]


# -- operators --------------------------------------------------------------------------------------------------------


def test_a_cancelled_task_shows_the_reason_and_the_name_of_the_token(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    secret = token.add_token(file, token.Grant("ann", frozenset(token.Scope)))
    api.tokens.reload()
    task_id = submit(api)
    named = {"Authorization": f"Bearer {secret}"}
    assert api.call("POST", f"/v1/tasks/{task_id}/cancel", {"reason": "wrong order"}, named).status == 200
    cancel = api.call("GET", f"/v1/tasks/{task_id}").json["cancel"]
    assert (cancel["reason"], cancel["by"]) == ("wrong order", "ann")
    events = api.call("GET", f"/v1/tasks/{task_id}/events").json["events"]
    assert [event["by"] for event in events if event["kind"] == "cancel_asked"] == ["ann"]


@pytest.mark.parametrize("command", ["cancel", "pause", "resume", "retry"])
def test_a_command_of_a_token_without_a_name_has_an_author(command: str, api: Api) -> None:
    task_id = submit(api)
    before = {"resume": "pause", "retry": "cancel"}.get(command)
    for each in [before, command] if before else [command]:
        assert (
            api.call("POST", f"/v1/tasks/{task_id}/{each}", {"reason": "a test"} if each == "retry" else {}).status
            == 200
        )
    events = api.call("GET", f"/v1/tasks/{task_id}/events").json["events"]
    kinds = {"cancel": "cancel_asked", "pause": "paused", "resume": "resumed", "retry": "operated"}
    author = f"sha256:{hashlib.sha256(api.token.encode()).hexdigest()[:12]}"
    assert [event["by"] for event in events if event["kind"] == kinds[command]] == [author]


# -- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_shown_with_the_running_step_and_its_worker_until_the_run_ends(api: Api) -> None:
    task_id, poller = submit(api), Poller(api)
    item = taken(poller)
    assert poller.heartbeat(progress=[[*item, 3, 10, "x" * 300]]).status == 200
    (step,) = api.call("GET", f"/v1/tasks/{task_id}").json["steps"]
    progress = step["progress"]
    assert (progress["done"], progress["total"], progress["note"]) == (3, 10, "x" * 200)
    assert api.call("GET", f"/v1/steps/{item[0]}").json["progress"] == progress
    assert api.call("GET", "/v1/steps?state=dispatched").json["steps"][0]["progress"] == progress
    workers = {each["worker"]: each for each in api.call("GET", "/v1/workers").json["workers"]}
    running_step = {"task_id": task_id, "step_id": item[0], "step": "charge", **progress}
    assert workers[poller.id]["progress"] == [running_step]
    assert "progress 3 of 10 (30%): xxx" in api.call("GET", f"/v1/tasks/{task_id}/why").json["message"]
    answer(poller, item, "completed", output=7)
    assert api.call("GET", f"/v1/tasks/{task_id}").json["steps"][0]["progress"] is None


def test_a_stream_that_asks_for_progress_gets_it_and_no_other_stream_does(api: Api) -> None:
    task_id, poller = submit(api), Poller(api)
    item = taken(poller)
    with following(api, "?kind=progress,ended") as with_progress, following(api) as without:
        assert poller.heartbeat(progress=[[*item, 3, None, "packing"]]).status == 200
        (event,) = with_progress(lambda event: event["kind"] == "progress")
        answer(poller, item, "completed", output=7)
        (ended,) = with_progress(lambda event: event["kind"] == "ended")
        assert "progress" not in [each["kind"] for each in without(lambda event: event["kind"] == "ended")]
    assert (event["task_id"], event["step_id"], event["step"], event["delivery"]) == (task_id, *item[:1], "charge", 1)
    assert (event["done"], event["total"], event["note"]) == (3, None, "packing")
    # The id of a progress event is a position in the history: a client that continues there misses nothing.
    with following(api, "?kind=ended", last_id=event["id"]) as until:
        assert until(lambda event: event["kind"] == "ended") == [ended]


def test_a_stream_of_another_task_gets_no_progress(api: Api) -> None:
    other, poller = submit(api), Poller(api)
    item = taken(poller)
    task_id = submit(api)
    with following(api, f"?kind=progress,cancel_asked&task_id={task_id}") as until:
        assert poller.heartbeat(progress=[[*item, 3, None, None]]).status == 200
        assert api.call("POST", f"/v1/tasks/{other}/cancel", {}).status == 200
        assert api.call("POST", f"/v1/tasks/{task_id}/cancel", {}).status == 200
        assert [event["task_id"] for event in until(lambda event: True)] == [task_id]


class Reports:
    """A broker for the feed alone, on a loop whose time the test sets."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(progress={})
        self.listeners: list[Callable[[Any], None]] = []

    def add_progress_listener(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def report(self, step_id: int, done: int) -> None:
        report = SimpleNamespace(step=SimpleNamespace(id=step_id), delivery=1, done=done)
        self.state.progress[step_id] = report
        for listener in tuple(self.listeners):
            listener(report)


class TimedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0

    def time(self) -> float:
        return self.now_s


@contextlib.contextmanager
def feeding() -> Iterator[tuple[Reports, ProgressFeed, Callable[[float], None], TimedLoop]]:
    loop = TimedLoop()
    broker = Reports()

    def run_until(now_s: float) -> None:
        loop.now_s = now_s
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))

    try:
        yield broker, ProgressFeed(broker), run_until, loop  # type: ignore[arg-type]
    finally:
        loop.close()


def test_a_stream_gets_at_most_one_report_of_a_step_a_second_and_then_the_newest() -> None:
    with feeding() as (broker, feed, run_until, loop):
        wakes: list[int] = []

        async def tell(*reports: tuple[int, int]) -> list[tuple[int, int]]:
            for report in reports:
                broker.report(*report)
            return taken_from(reader)

        async def begin() -> Any:
            return feed.open(lambda: wakes.append(1))

        def taken_from(reader: Any) -> list[tuple[int, int]]:
            return [(report.step.id, report.done) for report in reader.take()]

        reader = loop.run_until_complete(begin())
        assert loop.run_until_complete(tell((1, 10), (1, 11), (2, 20), (1, 12))) == [(1, 10), (2, 20)]
        run_until(100.0 + progress_feed.EVERY_S / 2)
        assert loop.run_until_complete(tell((1, 13))) == []
        run_until(100.0 + progress_feed.EVERY_S)
        assert taken_from(reader) == [(1, 13)]
        assert len(wakes) == 3
        feed.close(reader)
        assert broker.listeners == []


def test_a_report_that_waited_is_not_sent_after_its_run_has_ended() -> None:
    with feeding() as (broker, feed, run_until, loop):

        async def begin() -> Any:
            reader = feed.open(lambda: None)
            broker.report(1, 10)
            broker.report(1, 11)
            return reader

        reader = loop.run_until_complete(begin())
        broker.state.progress.clear()
        run_until(100.0 + 2 * progress_feed.EVERY_S)
        assert reader.take() == []


def test_reports_that_wait_for_a_slow_stream_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_feed, "WAITING_MAX", 2)
    with feeding() as (broker, feed, _, loop):

        async def begin() -> Any:
            reader = feed.open(lambda: None)
            for step_id in (1, 2, 3):
                broker.report(step_id, 0)
            return reader

        assert [report.step.id for report in loop.run_until_complete(begin()).take()] == [2, 3]


def test_an_unknown_kind_names_progress_among_the_known_ones(api: Api) -> None:
    problem = api.call("GET", "/v1/events?kind=finished")
    assert (problem.status, problem.code) == (400, "bad_query")
    assert "progress" in json.dumps(problem.json)
