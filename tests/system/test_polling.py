"""Workers over HTTP and a broker as processes: kills and lost answers break no promise."""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.checker import assert_kept

from .harness import Program, Site, eventually, workflow

LEASE_MS = 2_000
STEPS = 10


@pytest.fixture
def site(new_site: Callable[..., Site]) -> Site:
    settings = {"bus.lease_ms": LEASE_MS, "bus.heartbeat_ms": 200, "execution.default_executor": "poll"}
    site = new_site(settings=settings)
    site.start_broker()
    site.apply(workflow("plain", *({"name": f"s{i}"} for i in range(STEPS))))
    once = {"delivery_mode": "at_most_once"}
    site.apply(workflow("mixed", {"name": "a"}, {"name": "b", "depends_on": ["a"], **once}, {"name": "c", **once}))
    busy = {"handler_config": {"work_ms": 150}}
    site.apply(workflow("busy", {"name": "a", **busy}, {"name": "b", **busy, **once}, {"name": "c", **busy}))
    site.apply(workflow("gated", {"name": "least", **GATED}, {"name": "once", **once, **GATED}))
    return site


GATED: dict[str, Any] = {"handler_config": {"gate": "g"}}


def start(site: Site, name: str, *more: str) -> Program:
    argv = [sys.executable, "-m", "tests.system.poll_worker", str(site.directory), name, site.url, *more]
    worker = site._start("worker", f"worker-{name}-{len(site.programs)}", argv, {})
    site.await_worker(worker)
    return worker


def submit(site: Site, name: str, many: int) -> list[int]:
    client = site.recorded_client()
    return [client.submit(name, f"{name}-{i}").body["task_id"] for i in range(many)]


def wait(site: Site, task_ids: list[int], bound_s: float = 60) -> None:
    def all_done() -> bool:
        page = site.ask("GET", "/v1/tasks?state=running&limit=500")
        return page.status == 200 and not {task["task_id"] for task in page.body["tasks"]} & set(task_ids)

    eventually(all_done, "the tasks to end", bound_s)
    assert {site.task(task_id)["state"] for task_id in task_ids} == {"completed"}


def kept(site: Site, **how: Any) -> None:
    assert_kept(site.database, site.ledgers, lease_ms=LEASE_MS, **how)


def starts(site: Site) -> Counter[int]:
    return Counter(run["step_id"] for run in site.runs("started"))


def test_three_workers_share_two_hundred_steps_and_none_runs_twice(site: Site) -> None:
    workers = [start(site, f"p{i}") for i in range(3)]
    wait(site, submit(site, "plain", 200 // STEPS))
    assert set(starts(site).values()) == {1}
    assert len(starts(site)) == 200
    by_worker = Counter(run["pid"] for run in site.runs("started"))
    assert by_worker.keys() == {worker.pid for worker in workers}
    assert min(by_worker.values()) > 20, by_worker
    kept(site)


def test_lost_answers_lose_no_step_and_repeat_no_run(site: Site) -> None:
    """A third of all calls reach the broker, and their answers are lost."""
    for i in range(3):
        start(site, f"p{i}", "--loses", "0.33", "--seed", str(i))
    task_ids = submit(site, "mixed", 40)
    wait(site, task_ids)
    assert set(starts(site).values()) == {1}
    kept(site)
    deliveries = sum(step["deliveries"] for task_id in task_ids for step in _steps(site, task_id))
    assert deliveries > len(starts(site)), "no answer with steps was lost"


def _steps(site: Site, task_id: int) -> list[dict[str, Any]]:
    answer = site.ask("GET", f"/v1/tasks/{task_id}")
    return answer.body["steps"] if answer.status == 200 else []


def test_a_step_of_a_killed_worker_runs_elsewhere_after_its_lease_or_is_held(site: Site) -> None:
    first = start(site, "first")
    (task_id,) = submit(site, "gated", 1)
    eventually(lambda: len(site.runs("started")) == 2, "both to start")
    start(site, "second")
    first.kill9()
    eventually(lambda: len(site.runs("started")) == 3, "one of them to start again", 4 * LEASE_MS / 1000)
    eventually(lambda: _states(site, task_id)["once"] == "held", "the other to be held")
    site.open_gate("g")
    eventually(lambda: _states(site, task_id) == {"least": "completed", "once": "held"}, "the second run's end")
    steps = {step["name"]: step["step_id"] for step in _steps(site, task_id)}
    assert starts(site) == {steps["least"]: 2, steps["once"]: 1}
    kept(site, all_ended=False)


def test_a_worker_suspended_past_its_lease_learns_that_its_session_ended(site: Site) -> None:
    first = start(site, "first")
    (task_id,) = submit(site, "gated", 1)
    eventually(lambda: len(site.runs("started")) == 2, "both to start")
    second = start(site, "second")
    first.pause()
    eventually(lambda: site.runs("started", pid=second.pid), "one of them to start again", 4 * LEASE_MS / 1000)
    eventually(lambda: _states(site, task_id)["once"] == "held", "the other to be held")
    first.go_on()
    eventually(lambda: len(site.runs("stopped", pid=first.pid)) == 2, "it to hear that both are not its own any more")
    site.open_gate("g")
    eventually(lambda: _states(site, task_id) == {"least": "completed", "once": "held"}, "the second run's end")
    kept(site, all_ended=False)


def _states(site: Site, task_id: int) -> dict[str, str]:
    return {step["name"]: step["state"] for step in _steps(site, task_id)}


def test_a_restarted_broker_keeps_the_runs_that_go_on(site: Site) -> None:
    workers = [start(site, f"p{i}") for i in range(2)]
    task_ids = submit(site, "gated", 3)
    eventually(lambda: len(site.runs("started")) == 6, "all to start")
    assert site.broker is not None
    site.broker.kill9()
    site.start_broker()
    for worker in workers:
        site.await_worker(worker)
    site.open_gate("g")
    wait(site, task_ids)
    assert set(starts(site).values()) == {1}
    kept(site)


def test_repeated_kills_under_load_lose_and_double_nothing(site: Site) -> None:
    for i in range(3):
        start(site, f"p{i}", "--loses", "0.1", "--seed", str(i))
    task_ids = site.recorded_client().submit_many_until_stored("busy", [f"k{i}" for i in range(60)])
    for enough in (30, 70, 110):
        eventually(lambda enough=enough: len(site.runs("finished")) >= enough, f"{enough} to end", 60)  # type: ignore[misc]
        assert site.broker is not None
        site.broker.kill9()
        site.start_broker()
    wait(site, task_ids)
    assert set(starts(site).values()) == {1}
    kept(site)


def test_a_broker_asked_to_end_answers_waiting_calls_and_accepts_late_results(site: Site) -> None:
    start(site, "worker")
    (task_id,) = submit(site, "gated", 1)
    eventually(lambda: len(site.runs("started")) == 2, "both to start")
    waiting: list[Any] = []
    named = {"worker": "idle:0123456789abcdef", "handlers": ["none"], "slots": 1}
    session = site.ask("POST", "/v1/worker/lease", {**named, "n": 1}).body["session"]
    call = {**named, "n": 2, "session": session, "wait_ms": 60_000}
    thread = threading.Thread(target=lambda: waiting.append(site.ask("POST", "/v1/worker/lease", call, timeout_s=60)))
    thread.start()
    eventually(lambda: any(w["free"] for w in site.workers() if w["worker"].startswith("idle")), "it to wait")
    assert site.broker is not None
    site.broker.ask_to_end()
    thread.join(10)
    assert (waiting[0].status, waiting[0].code) == (503, "draining")
    site.open_gate("g")
    assert site.broker.wait() == 0
    site.start_broker()
    assert _states(site, task_id) == {"least": "completed", "once": "completed"}
