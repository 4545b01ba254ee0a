"""Lists that no index serves: they end in time, continue where they ended, and delay no other read."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from stepwire_broker.api import scanning
from stepwire_broker.api.token import Grant, add_token
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.store.rows import StepFilter, TaskFilter

from .running_api import WORKFLOW, Api, running, settings_in
from .test_limits import until, usage

TASKS = 40


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A broker with 40 tasks. Every tenth has the label region=eu."""
    directory = tmp_path_factory.mktemp("scanning")
    directory.chmod(0o700)
    with running(directory, settings_in(directory)) as found:
        assert found.call("POST", "/v1/workflows", WORKFLOW).status == 201
        tasks = [
            {"workflow": "order", "labels": {"region": "eu" if number % 10 == 0 else "us"}} for number in range(TASKS)
        ]
        assert found.call("POST", "/v1/tasks/batch", {"tasks": tasks}).status == 201
        yield found


def test_a_list_that_is_complete_has_no_cursor(api: Api) -> None:
    page = api.call("GET", "/v1/tasks?label=region=eu").json
    assert len(page["tasks"]) == 4
    assert (page["next_cursor"], page["scanned_to"]) == (None, None)
    assert api.call("GET", "/v1/tasks?label=region=none").json == {
        "tasks": [],
        "next_cursor": None,
        "scanned_to": None,
    }


@pytest.mark.parametrize(
    ("path", "member", "count"),
    [
        ("/v1/tasks?label=region=eu", "tasks", 4),
        ("/v1/tasks?state=running&label=region=us", "tasks", TASKS - 4),
        ("/v1/tasks?since=2020-01-01T00:00:00Z&label=region=us&workflow=order", "tasks", TASKS - 4),
        ("/v1/steps?handler_class=**.charge", "steps", TASKS),
        ("/v1/steps?handler_class=shop.reserve&state=ready", "steps", TASKS),
    ],
)
def test_a_list_whose_time_is_over_continues_without_a_gap(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str, member: str, count: int
) -> None:
    whole = [row["task_id"] for row in api.call("GET", f"{path}&limit=500").json[member]]
    assert len(whole) == count
    monkeypatch.setattr(scanning, "CHUNK_ROWS_MIN", 6)
    monkeypatch.setattr(scanning, "CHUNK_ROWS_MAX", 6)
    monkeypatch.setattr(scanning, "TIME_MAX_S", 0.0)
    parts: list[int] = []
    pages = 0
    cursor = ""
    while True:
        page = api.call("GET", f"{path}&limit=500{cursor}").json
        parts += [row["task_id"] for row in page[member]]
        pages += 1
        if page["next_cursor"] is None:
            break
        assert page["scanned_to"] is not None
        cursor = f"&cursor={page['next_cursor']}"
    assert page["scanned_to"] is None
    assert parts == whole
    assert pages >= 6


@pytest.mark.parametrize(
    ("wanted", "is_needed"),
    [
        (TaskFilter(), False),
        (TaskFilter(workflow="order", namespace="default"), False),
        (TaskFilter(state="failed"), False),
        (TaskFilter(key="k", label=("a", "b")), False),
        (TaskFilter(state="running"), False),
        (TaskFilter(since_ms=1), False),
        (TaskFilter(label=("a", "b"), workflow="order"), True),
        (StepFilter(), False),
        (StepFilter(state="held"), False),
        (StepFilter(state="failed"), False),
        (StepFilter(state="completed"), True),
        (StepFilter(handler_class="a.b", state="held"), True),
    ],
)
def test_a_list_is_scanned_if_no_index_serves_it(wanted: TaskFilter | StepFilter, is_needed: bool) -> None:
    assert scanning.needs_scan(wanted) is is_needed


def test_other_reads_do_not_wait_for_scans_and_a_token_runs_one_scan_at_a_time(api: Api) -> None:
    values = [add_token(api.tokens.file, Grant(f"reader-{n}", frozenset({Scope.READ}))) for n in range(2)]
    task_id = api.call("GET", "/v1/tasks?limit=1").json["tasks"][0]["task_id"]
    go_on = threading.Event()

    async def occupy() -> None:
        await api.broker.scan(lambda queries: go_on.wait(20))

    api.broker.heard.clear()
    occupied = [asyncio.run_coroutine_threadsafe(occupy(), api.loop) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        scans = [
            pool.submit(api.call, "GET", "/v1/tasks?label=region=eu", None, {"Authorization": f"Bearer {value}"})
            for value in (values[0], values[0], values[0], values[1])
        ]
        until(lambda: usage(api, "requests") == [5])
        assert api.call("GET", f"/v1/tasks/{task_id}").status == 200
        assert api.call("GET", "/v1/tasks").status == 200
        assert api.call("POST", "/v1/tasks", {"workflow": "order"}).status == 201
        assert list(api.broker.heard).count("scan") == len(occupied) + 2
        go_on.set()
        assert [scan.result().status for scan in scans] == [200] * 4
    for each in occupied:
        each.result(20)
