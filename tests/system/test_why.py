"""Every reason for which a step can wait, produced on a running broker and read over HTTP.

A story produces one reason after the other. CORE_ONLY lists the reasons that no story can hold for long enough, with
the cause; tests/core/test_explain.py has those.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from stepwire_broker.core.why import CODES

from .harness import Program, Site, eventually, workflow

CORE_ONLY = {
    "lane_moving": "a lane waits for its running steps for seconds, and only where several brokers share a database",
    "worker_elsewhere": "a worker needs one of several brokers to be out of its reach",
    "payload_fetched": "a read of the database takes milliseconds, and nothing outside can delay it",
    "queued": "the time until the next commit is as short, and a writer that is stopped for long is database_stalled",
    "outside_grant": "a worker whose grant does not allow its handlers gets no session, so the grant must change later",
    "workers_too_small": "the worker of these tests accepts messages of any size",
    "committing": "an answer waits for the commits before it, so over HTTP this is over when the answer arrives",
}

SETTINGS = """
execution:
  rules:
    - {match: "why::exec::*", executor: exec}
    - {match: "why::poll::*", executor: poll}
executors:
  exec:
    slots: 1
    commands:
      w.exec: [sh, -c, "until [ -e gates/exec ]; do sleep 0.02; done"]
dispatch:
  breaker: {open: 2s, open_max: 2s}
  retry_budget: {percent: 0, at_least: 1}
"""

Found = tuple[str, int, str]  # the expected code, and the step, by its task and name
Story = Callable[[Site], Iterator[Found]]


@pytest.fixture(scope="module")
def shared(new_shared_site: Callable[..., Site]) -> Site:
    site: Site = new_shared_site()
    (site.directory / "stepwire.yaml").write_text(SETTINGS)
    site.start_broker()
    site.start_worker("steady", slots=20, offers=["w.plain", "w.fails", "w.half", "w.retried", "w.labelled"])
    return site


def step(handler_class: str = "w.plain", name: str = "s", **more: Any) -> dict[str, Any]:
    config = {key: more.pop(key) for key in CONFIG if key in more}
    return {"name": name, "handler_class": handler_class, "retry_limit": 0, "handler_config": config, **more}


CONFIG = ("gate", "failures", "category", "outcome_unknown")
ONCE = {"delivery_mode": "at_most_once"}


def submit(site: Site, *steps: dict[str, Any], name: str = "") -> int:
    name = name or f"w{secrets.token_hex(4)}"
    assert site.ask("POST", "/v1/workflows", workflow(name, *steps, namespace="why")).status in (200, 201)
    answer = site.ask("POST", "/v1/tasks", {"workflow": name, "namespace": "why", "context": {}})
    assert answer.status == 201, answer
    return int(answer.body["task_id"])


def order(site: Site, path: str, body: Any = None) -> Any:
    answer = site.ask("POST", path, body if body is not None else {})
    assert answer.status in (200, 202), answer
    return answer.body


def why(site: Site, task_id: int, name: str) -> str | None:
    answer = site.ask("GET", f"/v1/tasks/{task_id}/steps/{name}/why")
    assert answer.status == 200, answer
    assert answer.body["message"]
    return str(answer.body["code"])


# -- with one broker --------------------------------------------------------------------------------------------------


def nobody_is_there(site: Site) -> Iterator[Found]:
    task_id = submit(site, step("w.nobody"), step("w.nobody", "after", depends_on=["s"]))
    yield "no_worker_offers", task_id, "s"
    yield "waits_for", task_id, "after"
    order(site, f"/v1/tasks/{task_id}/pause")
    yield "paused", task_id, "s"
    order(site, f"/v1/tasks/{task_id}/cancel")
    yield "cancelled", task_id, "s"


def nobody_bears_the_labels(site: Site) -> Iterator[Found]:
    yield "no_worker_matches", submit(site, step("w.labelled", worker_selector={"gpu": "true"})), "s"


def it_ends(site: Site) -> Iterator[Found]:
    task_id = submit(site, step(), step("w.fails", "bad", failures=9), step(name="after", depends_on=["bad"]))
    yield "completed", task_id, "s"
    yield "failed", task_id, "bad"
    yield "skipped", task_id, "after"


def nobody_knows(site: Site) -> Iterator[Found]:
    yield "held", submit(site, step(outcome_unknown=True, **ONCE)), "s"


def it_failed_and_is_tried_again(site: Site) -> Iterator[Found]:
    late = {"kind": "constant", "base_ms": 60_000, "jitter": "none"}
    yield "back_off", submit(site, step("w.fails", failures=9, retry_limit=1, backoff=late)), "s"
    soon = {"kind": "constant", "base_ms": 1, "jitter": "none"}
    submit(site, step("w.retried", failures=99, retry_limit=99, backoff=soon))
    yield "retries_wait", submit(site, step("w.retried", failures=99, retry_limit=99, backoff=soon)), "s"


def all_are_busy(site: Site) -> Iterator[Found]:
    site.start_worker("narrow", slots=1, prefetch=1, offers=["w.narrow"])
    running, given, waiting = (submit(site, step("w.narrow", gate="narrow")) for _ in range(3))
    yield "running", running, "s"
    yield "handed_out", given, "s"
    yield "workers_busy", waiting, "s"
    site.open_gate("narrow")


def an_executor_rests_or_is_full(site: Site) -> Iterator[Found]:
    order(site, "/v1/executors/exec/pause")
    first = submit(site, step("w.exec"), name="exec")
    yield "executor_paused", first, "s"
    order(site, "/v1/executors/exec/resume")
    yield "running", first, "s"
    yield "executor_full", submit(site, step("w.exec"), name="exec"), "s"
    site.open_gate("exec")


def over_http(site: Site) -> Iterator[Found]:
    worker = {"worker": f"poller:{secrets.token_hex(8)}"}
    offer = {**worker, "handlers": ["w.poll"], "slots": 1}
    session = order(site, "/v1/worker/lease", {**offer, "n": 1})["session"]
    task_id = submit(site, step("w.poll"), name="poll")
    yield "no_poll_waits", task_id, "s"
    leased = order(site, "/v1/worker/lease", {**offer, "n": 2, "session": session, "wait_ms": 5_000})
    (given,) = leased["steps"]
    done = [given["step_id"], given["delivery"], "done", 0]
    order(site, "/v1/worker/heartbeat", {**worker, "n": 2, "session": session, "holding": [done]})
    yield "result_awaited", task_id, "s"


def its_worker_leaves(site: Site) -> Iterator[Found]:
    leaver = site.start_worker("leaver", slots=2, offers=["w.leaves"])
    yield "running", submit(site, step("w.leaves", gate="leave")), "s"
    leaver.ask_to_end()
    yield "workers_leaving", submit(site, step("w.leaves", gate="leave")), "s"
    site.open_gate("leave")


def its_workers_die(site: Site) -> Iterator[Found]:
    both = [submit(site, step("w.alone", gate="alone")) for _ in range(2)]
    for _ in range(2):
        doomed = site.start_worker("doomed", slots=2, offers=["w.alone"])
        eventually(lambda: len(site.runs("started", pid=doomed.pid)) == 2, "both to run")  # noqa: B023
        yield "running", both[0], "s"
        doomed.kill9()
    site.start_worker("heir", slots=4, offers=["w.alone"])
    codes = eventually(lambda: _all(why(site, task_id, "s") for task_id in both), "one of them to have to wait")
    yield "runs_alone", both[codes.index("runs_alone")], "s"
    site.open_gate("alone")


def _all(codes: Iterator[str | None]) -> list[str] | None:
    sorted_codes = [code or "" for code in codes]
    return sorted_codes if sorted(sorted_codes) == ["running", "runs_alone"] else None


def its_handler_is_left_alone(site: Site) -> Iterator[Found]:
    for _ in range(5):
        submit(site, step("w.half", failures=9, category="unavailable"))
    eventually(lambda: _breaker(site) == "open", "its breaker to open")
    tasks = [submit(site, step("w.half", gate="half")) for _ in range(3)]
    yield "breaker_open", tasks[2], "s"
    yield "breaker_half_open", tasks[2], "s"  # the other two are the trial steps
    site.open_gate("half")
    yield "completed", tasks[2], "s"


def _breaker(site: Site) -> str | None:
    breakers = site.ask("GET", "/v1/breakers").body["breakers"]
    return next((each["state"] for each in breakers if each["handler_class"] == "w.half"), None)


STORIES: list[tuple[Story, list[str]]] = [
    (nobody_is_there, ["no_worker_offers", "waits_for", "paused", "cancelled"]),
    (nobody_bears_the_labels, ["no_worker_matches"]),
    (it_ends, ["completed", "failed", "skipped"]),
    (nobody_knows, ["held"]),
    (it_failed_and_is_tried_again, ["back_off", "retries_wait"]),
    (all_are_busy, ["running", "handed_out", "workers_busy"]),
    (an_executor_rests_or_is_full, ["executor_paused", "running", "executor_full"]),
    (over_http, ["no_poll_waits", "result_awaited"]),
    (its_worker_leaves, ["running", "workers_leaving"]),
    (its_workers_die, ["running", "running", "runs_alone"]),
    (its_handler_is_left_alone, ["breaker_open", "breaker_half_open", "completed"]),
]


@pytest.mark.parametrize(("story", "codes"), STORIES, ids=lambda each: getattr(each, "__name__", ""))
def test_why_returns_the_reason_of_a_waiting_step(shared: Site, story: Story, codes: list[str]) -> None:
    codes_seen = []
    for code, task_id, name in story(shared):
        eventually(lambda: why(shared, task_id, name) == code, f"{code}, and not {why(shared, task_id, name)}")  # noqa: B023
        codes_seen.append(code)
    assert codes_seen == codes


def test_the_command_line_prints_the_same_reasons(shared: Site) -> None:
    task_id = submit(shared, step("w.nobody"))
    over_http = shared.ask("GET", f"/v1/tasks/{task_id}/steps/s/why").body
    done = shared.stepwire("why", f"{task_id}/s", "--json")
    assert json.loads(done.stdout)["message"] == over_http["message"]


# -- with a broker that has trouble, stops, and starts again -----------------------------------------------------------

RESTARTED = ["not_loaded", "database_stalled", "broker_draining", "worker_awaited", "no_executor"]


def test_why_returns_the_reason_around_a_restart(new_site: Callable[..., Site]) -> None:
    site = new_site(settings={"limits.max_active_tasks": 1, "execution.default_executor": "bus"})
    broker = site.start_broker(with_faults=True)
    worker = site.start_worker("steady", offers=["w.plain"])
    running = submit(site, step(gate="g"))
    eventually(lambda: why(site, running, "s") == "running", "it to run")
    waiting = submit(site, step())
    codes_seen = []

    def tells(code: str, task_id: int) -> None:
        eventually(lambda: why(site, task_id, "s") == code, f"{code}, and not {why(site, task_id, 's')}")
        codes_seen.append(code)

    tells("not_loaded", waiting)
    order(site, "/v1/rules", {"match": "why::elsewhere::*", "executor": "poll"})
    elsewhere = submit(site, step(), name="elsewhere")
    _stall(site, waiting, tells)
    broker.ask_to_end()
    tells("broker_draining", waiting)
    _restart_without(worker, broker, site)
    tells("worker_awaited", running)
    tells("no_executor", elsewhere)
    assert codes_seen == RESTARTED


def _stall(site: Site, task_id: int, tells: Callable[[str, int], None]) -> None:
    """The broker must write, and the database refuses."""
    stall = site.faults / "stall"
    stall.touch()
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(submit, site, step())
        tells("database_stalled", task_id)
        stall.unlink()
        waits.result()


def _restart_without(worker: Program, broker: Program, site: Site) -> None:
    """The worker is suspended, so that it cannot report its steps, and the executor `poll` no longer exists."""
    worker.pause()
    broker.kill9()
    site.settings["executors.poll.enabled"] = "false"
    site.start_broker()


def test_every_reason_is_reached_or_its_absence_is_explained() -> None:
    reached = {code for _, codes in STORIES for code in codes} | set(RESTARTED)
    assert reached.isdisjoint(CORE_ONLY)
    assert reached | CORE_ONLY.keys() == CODES.keys()
