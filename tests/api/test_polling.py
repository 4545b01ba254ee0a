"""Workers over HTTP, call by call: the answers, and the safety of steps whose answer was lost."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from stepwire_broker.api import token
from stepwire_broker.api.polling import gateway
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.core.definitions.settings import (
    BatchSettings,
    ExecutionSettings,
    ExecutorsSettings,
    PollSettings,
    RuleSettings,
    Settings,
)
from stepwire_broker.core.model.states import StepState

from tests.postgres.databases import writes_held

from .poller import Item, Poller
from .running_api import Answer, Api, running, settings_in

T = TypeVar("T")

WORKFLOWS: list[dict[str, Any]] = [
    {"name": "one", "steps": [{"name": "a"}]},
    {"name": "once", "steps": [{"name": "a", "delivery_mode": "at_most_once"}]},
    {"name": "many", "steps": [{"name": f"s{i}"} for i in range(25)]},
    {
        "name": "order",
        "steps": [
            {"name": "reserve"},
            {"name": "charge", "depends_on": ["reserve"], "delivery_mode": "at_most_once"},
        ],
    },
]
LEASE_MS = 600


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory = tmp_path_factory.mktemp("polling", numbered=True)
    directory.chmod(0o700)
    with running(directory, polled(directory)) as found:
        yield found


@pytest.fixture
def api(shared: Api) -> Api:
    """One broker for most of these tests, each with a handler of its own."""
    apply(shared)
    return shared


@pytest.fixture
def fresh(directory: Path) -> Iterator[Api]:
    with running(directory, polled(directory)) as found:
        apply(found)
        yield found


@pytest.fixture
def hasty(directory: Path) -> Iterator[Api]:
    """A broker with a short lease."""
    with running(directory, short(directory)) as found:
        apply(found)
        yield found


def polled(directory: Path) -> Settings:
    settings = settings_in(directory)
    bus = msgspec.structs.replace(settings.bus, batch=BatchSettings(max_steps=10))
    return msgspec.structs.replace(settings, bus=bus, execution=ExecutionSettings(default_executor="poll"))


def short(directory: Path) -> Settings:
    settings = polled(directory)
    bus = msgspec.structs.replace(settings.bus, lease_ms=LEASE_MS, heartbeat_ms=100)
    return msgspec.structs.replace(settings, bus=bus)


def apply(api: Api) -> None:
    """Apply a new version of each workflow, whose handler no other worker offers."""
    version = next(VERSIONS)
    Poller.offers = f"h{version}.a"
    for workflow in WORKFLOWS:
        steps = [{**step, "handler_class": Poller.offers} for step in workflow["steps"]]
        made = {"name": workflow["name"], "version": str(version), "steps": steps}
        assert api.call("POST", "/v1/workflows", made).status == 201


VERSIONS = itertools.count(1)


def submit(api: Api, workflow: str, **more: Any) -> int:
    task_id: int = api.call("POST", "/v1/tasks", {"workflow": workflow, **more}).json["task_id"]
    return task_id


def step_of(api: Api, task_id: int, index: int = 0) -> dict[str, Any]:
    step: dict[str, Any] = api.call("GET", f"/v1/tasks/{task_id}").json["steps"][index]
    return step


def steps_of(api: Api, task_id: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.call("GET", f"/v1/tasks/{task_id}").json["steps"]
    return found


def item_of(step: dict[str, Any]) -> Item:
    return step["step_id"], step["delivery"]


def eventually(look: Callable[[], T | None]) -> T:
    until = time.monotonic() + 20
    while (found := look()) is None or found is False:
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


def has_steps(api: Api, poller: Poller) -> bool:
    """Whether the broker has answered a call of this worker with steps, as far as it knows."""

    def look() -> bool:
        session = api.broker.state.sessions.get(poller.id)
        return session is not None and bool(session.deliveries) and not session.unanswered

    return bool(api.on_loop(look))


def waits(api: Api, poller: Poller) -> bool:
    session = api.on_loop(lambda: api.broker.state.sessions.get(poller.id))
    return session is not None and session.free > 0


def lose_an_answer(api: Api, poller: Poller, **said: Any) -> None:
    """Send a lease call, and disconnect after it was answered and before reading the answer."""
    poller.n += 1
    usual = {
        "worker": poller.id,
        "n": poller.n,
        "session": poller.session,
        "handlers": list(poller.handlers),
        "slots": poller.slots,
        "holding": poller.holding(),
    }
    body = json.dumps(usual | said).encode()
    with api.raw() as connection:
        connection.sendall(
            b"POST /v1/worker/lease HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + api.token.encode() + b"\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        eventually(lambda: has_steps(api, poller))


def in_background(call: Callable[[], Answer]) -> Callable[[], Answer]:
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()

    def answer() -> Answer:
        thread.join(30)
        assert found, "no answer"
        return found[0]

    return answer


# -- the good case ----------------------------------------------------------------------------------------------------


def test_a_task_runs_to_its_end(api: Api) -> None:
    poller = Poller(api)
    task_id = submit(api, "order")
    (reserve,) = poller.lease()
    assert poller.report(item_of(reserve)).json["rids"] == [1]
    (charge,) = poller.lease()
    assert charge["delivery_mode"] == "at_most_once"
    assert charge["previous_results"] == {"reserve": {"by": poller.id}}
    assert poller.start(item_of(charge)).json["items"] == [list(item_of(charge))]
    assert poller.report(item_of(charge)).status == 200
    assert api.call("GET", f"/v1/tasks/{task_id}").json["state"] == "completed"


def test_the_first_call_opens_a_session_that_later_calls_name(api: Api) -> None:
    submit(api, "one")
    poller = Poller(api)
    opened = poller.lease_call()
    assert opened.json["steps"] == []
    assert opened.json["batch_id"] is None
    assert opened.json["lease_ms"] == 10_000
    poller.session = opened.json["session"]
    assert len(poller.lease_call().json["steps"]) == 1


def test_an_answer_contains_at_most_as_many_steps_as_are_free(api: Api) -> None:
    submit(api, "many")
    poller = Poller(api, slots=3)
    assert len(poller.lease()) == 3
    assert poller.lease(wait_ms=0) == []
    assert len(poller.lease(free=50)) == 10  # one answer is one batch
    assert len(poller.lease(free=50)) == 10
    assert len(poller.lease(free=50)) == 2


def test_steps_that_exceed_one_message_come_with_the_next_calls(directory: Path) -> None:
    """The steps are dispatched together; one answer is one batch."""
    settings = polled(directory)
    bus = msgspec.structs.replace(settings.bus, batch=BatchSettings(max_bytes=200_000))
    with running(directory, msgspec.structs.replace(settings, bus=bus)) as api:
        apply(api)
        poller = Poller(api, slots=25)
        poller.open()
        submit(api, "many", context={"text": "x" * 80_000})
        found: list[dict[str, Any]] = []
        while len(found) < 25:
            steps = poller.lease()
            assert len(steps) <= 2
            found += steps
        assert {step["delivery"] for step in found} == {1}


def test_steps_for_which_the_next_call_has_no_room_are_given_back(api: Api) -> None:
    poller = Poller(api)
    poller.open()
    state = api.broker.state
    api.on_loop(lambda: setattr(state.sessions[poller.id], "free", 10))  # as if its call had ended just now
    task_id = submit(api, "many")
    eventually(lambda: has_steps(api, poller))
    assert poller.lease(free=0) == []
    eventually(lambda: {step["state"] for step in steps_of(api, task_id)} == {"ready"})
    assert len(poller.lease(free=3)) == 3


def test_a_call_with_a_short_wait_gets_ready_steps(api: Api) -> None:
    poller = Poller(api)
    poller.open()
    assert poller.lease(wait_ms=0) == []
    submit(api, "one")
    assert len(poller.lease(wait_ms=0)) == 1


def test_the_longest_idle_worker_and_the_most_urgent_step_come_first(api: Api) -> None:
    pollers = [Poller(api, slots=1, name=f"p{i}") for i in range(3)]
    for poller in pollers:
        poller.open()
    later, first = submit(api, "one", priority=1), submit(api, "one", priority=9)
    (urgent,) = pollers[0].lease()
    assert urgent["task_id"] == first
    (other,) = pollers[1].lease()
    assert other["task_id"] == later
    for poller, step in zip(pollers, (urgent, other), strict=False):
        poller.report(item_of(step))
    answers = []
    for poller in pollers:
        answers.append(in_background(poller.lease_call))
        eventually(lambda poller=poller: waits(api, poller))  # type: ignore[misc]
    submit(api, "one")
    assert len(answers[2]().json["steps"]) == 1, "the one that has had nothing yet"
    submit(api, "one")
    assert len(answers[0]().json["steps"]) == 1
    submit(api, "one")
    assert len(answers[1]().json["steps"]) == 1


# -- lost answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workflow", ["one", "once"])
def test_the_next_call_gives_back_the_steps_of_a_lost_answer(api: Api, workflow: str) -> None:
    poller = Poller(api)
    poller.open()
    task_id = submit(api, workflow)
    lose_an_answer(api, poller)
    (again,) = poller.lease()
    assert again["delivery"] == 2
    if workflow == "once":
        assert poller.start(item_of(again)).status == 200
    assert poller.report(item_of(again)).status == 200
    step = step_of(api, task_id)
    assert (step["state"], step["attempt"], step["deliveries"]) == ("completed", 0, 2)


def test_a_heartbeat_does_not_give_back_steps_that_may_be_under_way(api: Api) -> None:
    poller = Poller(api)
    poller.open()
    task_id = submit(api, "one")
    lose_an_answer(api, poller)
    other = Poller(api)
    for _ in range(3):
        assert poller.heartbeat(holding=[]).status == 200
        assert other.lease(wait_ms=0) == []
    assert step_of(api, task_id)["deliveries"] == 1


def test_a_call_outside_of_the_session_gives_nothing_back(api: Api) -> None:
    """The call may be older than the answer that it does not know of."""
    poller = Poller(api)
    poller.open()
    task_id = submit(api, "one")
    lose_an_answer(api, poller)
    assert poller.lease_call(session="1.9999").json["session"] == poller.session
    assert step_of(api, task_id)["deliveries"] == 1
    (again,) = poller.lease()
    assert again["delivery"] == 2


def test_a_step_that_holding_names_is_kept(api: Api) -> None:
    poller = Poller(api)
    submit(api, "one")
    (step,) = poller.lease()
    for _ in range(3):
        assert poller.lease(wait_ms=0) == []
    assert poller.report(item_of(step)).status == 200


def test_a_granted_step_that_the_client_never_started_may_run_elsewhere(api: Api) -> None:
    """The answer to `start` was lost too, and the worker reports that it does not hold the step."""
    poller = Poller(api)
    task_id = submit(api, "once")
    (step,) = poller.lease()
    assert poller.start(item_of(step)).status == 200
    poller.held.clear()
    (again,) = poller.lease()
    assert again["delivery"] == 2
    assert poller.start(item_of(step)).code == "not_granted"
    assert poller.start(item_of(again)).status == 200
    assert poller.report(item_of(again)).status == 200
    assert step_of(api, task_id)["state"] == "completed"


# -- two calls --------------------------------------------------------------------------------------------------------


def test_a_second_call_ends_the_first_with_an_empty_answer(api: Api) -> None:
    poller = Poller(api)
    poller.open()
    first = in_background(lambda: poller.lease_call(wait_ms=60_000))
    eventually(lambda: waits(api, poller))
    second = in_background(poller.lease_call)
    assert first().json["steps"] == []
    submit(api, "one")
    assert len(second().json["steps"]) == 1


def test_a_call_that_is_older_than_another_is_refused(api: Api) -> None:
    """A proxy may repeat it while steps of a later call are running."""
    poller = Poller(api)
    task_id = submit(api, "one")
    poller.open()
    old = poller.n
    poller.lease()
    for n in (old, poller.n):
        assert (
            poller.call("lease", n=n, session=poller.session, handlers=list(poller.handlers), slots=1, holding=[]).code
            == "stale_call"
        )
        assert poller.call("bye", n=n, session=poller.session).code == "stale_call"
    assert step_of(api, task_id)["deliveries"] == 1


def test_a_new_process_must_not_take_the_id_of_one_that_has_steps(api: Api) -> None:
    poller = Poller(api)
    submit(api, "once")
    (step,) = poller.lease()
    assert poller.start(item_of(step)).status == 200
    poller.held.clear()
    assert poller.lease_call(session=None, n=1_000).code == "worker_taken"


def test_the_id_of_a_worker_of_the_bus_is_refused(served: Api) -> None:
    bus = eventually(lambda: next(iter(served.call("GET", "/v1/workers").json["workers"]), None))
    poller = Poller(served)
    poller.id = bus["worker"]
    assert poller.lease_call().code == "worker_taken"
    assert len(served.call("GET", "/v1/workers").json["workers"]) == 1


# -- who is not there -------------------------------------------------------------------------------------------------


def test_a_client_that_disconnects_no_longer_waits(api: Api) -> None:
    gone, other = Poller(api), Poller(api)
    gone.open()
    other.open()
    body = json.dumps(
        {"worker": gone.id, "n": 2, "session": gone.session, "handlers": list(gone.handlers), "slots": 1}
    ).encode()
    with api.raw() as connection:
        connection.sendall(
            b"POST /v1/worker/lease HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + api.token.encode() + b"\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        eventually(lambda: waits(api, gone))
    eventually(lambda: not waits(api, gone))
    task_id = submit(api, "one")
    (step,) = other.lease()
    assert (step["task_id"], step["delivery"]) == (task_id, 1)


def test_steps_that_arrive_between_calls_go_to_the_next_call_or_to_another_worker(api: Api) -> None:
    poller, other = Poller(api), Poller(api, slots=30)
    poller.open()
    other.open()
    state = api.broker.state
    api.on_loop(lambda: setattr(state.sessions[poller.id], "free", 20))  # as if its call had ended just now
    submit(api, "many")
    eventually(lambda: has_steps(api, poller))
    assert {step["delivery"] for step in poller.lease(wait_ms=0)} == {1}
    # What it does not ask for is another's a second later.
    found: list[dict[str, Any]] = []
    while len(found) < 15:
        found += other.lease()
    assert {step["delivery"] for step in found} == {1, 2}


@pytest.mark.parametrize("granted", [False, True])
def test_a_worker_that_falls_silent_loses_its_steps_with_its_lease(hasty: Api, granted: bool) -> None:
    poller, other = Poller(hasty), Poller(hasty)
    task_id = submit(hasty, "once" if granted else "one")
    (step,) = poller.lease()
    if granted:
        assert poller.start(item_of(step)).status == 200
        eventually(lambda: step_of(hasty, task_id)["state"] == "held")
    else:
        while not (found := other.lease()):
            pass
        assert found[0]["delivery"] == 2
    for answer in (poller.heartbeat(), poller.start(item_of(step))):
        assert answer.code == "unknown_session"
        assert "lease again" in answer.json["hint"]
    # It lives after all, and says so: it is told that the run is not its own any more.
    session, poller.held[item_of(step)] = poller.session, "running"
    again = poller.lease_call()
    assert again.json["session"] != session
    poller.session = again.json["session"]
    told = eventually(lambda: poller.heartbeat().json["cancel"])
    assert told == [[*item_of(step), "superseded"]]
    # And what it did counts.
    assert poller.report(item_of(step)).status == 200
    assert step_of(hasty, task_id)["state"] == "completed"


def test_a_worker_that_waits_and_holds_nothing_keeps_its_session(hasty: Api) -> None:
    poller = Poller(hasty)
    poller.open()
    answer = in_background(lambda: poller.lease_call(wait_ms=20_000))
    since = time.monotonic()
    eventually(lambda: time.monotonic() - since > 2.5 * LEASE_MS / 1000)
    task_id = submit(hasty, "one")
    (step,) = poller.take(answer().json)
    assert step["task_id"] == task_id
    assert poller.heartbeat().status == 200


def test_a_waiting_call_does_not_renew_the_lease_of_held_steps(hasty: Api) -> None:
    """The client may be gone without its connection being closed."""
    poller = Poller(hasty, slots=2)
    submit(hasty, "one")
    poller.lease()
    assert poller.lease_call(wait_ms=3 * LEASE_MS).code == "unknown_session"


def test_a_silent_worker_is_detached(hasty: Api) -> None:
    pollers = [Poller(hasty) for _ in range(5)]
    for poller in pollers:
        poller.open()
    pollers[0].call("results", session="1.1", deployment=pollers[0].deployment, batch_id="b", results=[RESULT])
    assert hasty.on_loop(lambda: len(hasty.broker.state.attached)) == 5
    eventually(lambda: hasty.on_loop(lambda: not hasty.broker.state.attached and not hasty.broker.state.sessions))


def test_the_number_of_workers_over_http_is_limited(fresh: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "WORKERS_MAX", 2)
    first, second, third = Poller(fresh), Poller(fresh), Poller(fresh)
    first.open()
    second.open()
    refused = third.lease_call()
    assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "too_many_workers", "10")
    first.bye()
    third.open()


def test_a_worker_belongs_to_the_token_that_opened_it(fresh: Api, directory: Path) -> None:
    api = fresh
    shop, other = (
        token.add_token(directory / "tokens", token.Grant(name, frozenset({Scope.WORK}))) for name in ("shop", "other")
    )
    api.tokens.reload()
    task_id = submit(api, "once")
    worker = Poller(api._replace(token=shop))
    worker.open()
    (step,) = worker.lease()
    item = (step["step_id"], step["delivery"])
    stranger = Poller(api._replace(token=other))
    stranger.id, stranger.session, stranger.deployment = worker.id, worker.session, worker.deployment
    stranger.batches, stranger.n = dict(worker.batches), 1_000
    calls = {
        "lease": stranger.lease_call,
        "heartbeat": stranger.heartbeat,
        "start": lambda: stranger.start(item),
        "results": lambda: stranger.report(item),
        "bye": stranger.bye,
    }
    for what, call in calls.items():
        refused = call()
        assert (refused.status, refused.code) == (403, "not_yours"), (what, refused)
    assert step_of(api, task_id)["state"] == StepState.DISPATCHED
    assert worker.start(item).status == 200
    assert worker.report(item).status == 200
    assert step_of(api, task_id)["state"] == StepState.COMPLETED


def test_the_workers_of_one_token_leave_room_for_those_of_another(fresh: Api, directory: Path) -> None:
    api = fresh
    few, other = (
        token.add_token(directory / "tokens", token.Grant(name, frozenset({Scope.WORK}), sessions=count))
        for name, count in (("few", 2), ("other", 2))
    )
    api.tokens.reload()
    workers = [Poller(api._replace(token=few)) for _ in range(3)]
    workers[0].open()
    workers[1].open()
    refused = workers[2].lease_call()
    assert (refused.status, refused.code) == (429, "too_many_workers")
    Poller(api._replace(token=other)).open()
    workers[0].bye()
    workers[2].open()


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"handlers": ["billing.**"]}, "does not cover the handler `billing.**`"),
        ({"labels": {"region": "us"}}, "does not allow the label region=us"),
    ],
)
def test_a_worker_that_offers_more_than_its_token_allows_is_refused(
    fresh: Api, directory: Path, changed: dict[str, Any], detail: str
) -> None:
    api = fresh
    grant = token.Grant("shop", frozenset({Scope.WORK}), handlers=("shop.**",), labels=(("region", "eu"),))
    value = token.add_token(directory / "tokens", grant)
    api.tokens.reload()
    worker = Poller(api._replace(token=value), "shop.**")
    refused = worker.lease_call(**changed)
    assert (refused.status, refused.code) == (403, "outside_grant")
    assert detail in refused.json["detail"]
    assert worker.lease_call(labels={"region": "eu"}).status == 200


def test_a_token_allows_only_workers_with_its_names(fresh: Api, directory: Path) -> None:
    value = token.add_token(directory / "tokens", token.Grant("shop", frozenset({Scope.WORK}), workers=("shop-*",)))
    fresh.tokens.reload()
    api = fresh._replace(token=value)
    assert Poller(api, name="other").lease_call().code == "outside_grant"
    Poller(api, name="shop-1").open()


# -- results ----------------------------------------------------------------------------------------------------------

RESULT = {"step_id": 1, "delivery": 1, "status": "completed"}


def test_results_may_be_sent_again(api: Api) -> None:
    poller = Poller(api)
    submit(api, "one")
    (step,) = poller.lease()
    for _ in range(3):
        assert poller.report(item_of(step)).status == 200


def test_a_call_that_left_before_its_results_were_acked_does_not_bring_them_back(hasty: Api) -> None:
    """Otherwise the broker would consider them held, and not renew the session of a waiting worker."""
    poller = Poller(hasty)
    submit(hasty, "one")
    (step,) = poller.lease()
    assert poller.report(item_of(step)).status == 200
    answer = in_background(lambda: poller.lease_call(holding=[[*item_of(step), "done", 0]], wait_ms=2 * LEASE_MS))
    assert answer().status == 200


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"batch_id": "batch_of_others"}, "wrong_batch"),
        ({"worker": "else:0123456789abcdef"}, "wrong_sender"),
        ({"results": [{"delivery": 7}]}, "unknown_delivery"),
        ({"deployment": "another"}, "other_deployment"),
    ],
)
def test_results_of_an_impossible_delivery_are_refused_with_a_code(api: Api, what: dict[str, Any], code: str) -> None:
    poller = Poller(api)
    task_id = submit(api, "one")
    (step,) = poller.lease()
    item = item_of(step)
    if "results" in what:
        what = {"results": [{**RESULT, "step_id": item[0], **what["results"][0]}]}
    assert poller.report(item, **what).code == code
    assert step_of(api, task_id)["state"] == "dispatched"
    assert poller.report(item).status == 200


def test_a_failure_is_retried_by_the_steps_policy(api: Api) -> None:
    poller = Poller(api)
    task_id = submit(api, "one")
    (step,) = poller.lease()
    error = {"message": "not yet", "retry_after_ms": 1}
    failed = {"step_id": step["step_id"], "delivery": step["delivery"], "status": "failed", "error": error}
    assert poller.report(item_of(step), results=[failed]).status == 200
    (again,) = poller.lease()
    assert (again["delivery"], again["metadata"]["attempt"]) == (2, 1)
    assert poller.report(item_of(again)).status == 200
    assert step_of(api, task_id)["state"] == "completed"


def test_a_body_that_is_too_large_is_refused(api: Api) -> None:
    poller = Poller(api)
    submit(api, "one")
    (step,) = poller.lease()
    huge = {**RESULT, "step_id": step["step_id"], "output": "x" * 5_000_000}
    assert poller.report(item_of(step), results=[huge]).status == 413
    assert poller.lease_call(lang="x" * 600_000).status == 413


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("lease", {"handlers": ["**"], "slots": 1}),
        ("lease", {"n": 1, "handlers": ["**"], "slots": 1, "wait_ms": 60_001}),
        ("lease", {"n": 1, "handlers": ["**"], "slots": 1, "holding": [[1, 1, "unknown", 0]]}),
        ("heartbeat", {}),
        ("start", {"session": "1.1", "items": []}),
        ("results", {"session": "1.1", "deployment": "d", "batch_id": "b", "results": [{**RESULT, "delivery": 0}]}),
        ("bye", {"session": "1.1"}),
    ],
)
def test_a_malformed_call_is_refused(api: Api, what: str, said: dict[str, Any]) -> None:
    assert Poller(api).call(what, **said).code == "bad_field"


def test_the_same_step_twice_is_refused(api: Api) -> None:
    poller = Poller(api)
    poller.open()
    assert poller.heartbeat(holding=[[1, 1, "running", 0], [1, 1, "done", 0]]).code == "duplicate_item"


# -- orders -----------------------------------------------------------------------------------------------------------


def test_a_cancel_reaches_running_steps_and_steps_that_ask_to_start(api: Api) -> None:
    poller = Poller(api)
    running_task, asking_task = submit(api, "one"), submit(api, "once")
    steps = {step["task_id"]: step for step in poller.lease()}
    poller.held[item_of(steps[running_task])] = "running"
    assert poller.heartbeat().json["cancel"] == []
    for task_id in steps:
        assert api.call("POST", f"/v1/tasks/{task_id}/cancel").status == 200
    told = {tuple(item): why for *item, why in poller.heartbeat().json["cancel"]}
    assert told[item_of(steps[running_task])] == "task_cancelled"
    assert poller.start(item_of(steps[asking_task])).code == "not_granted"
    del poller.held[item_of(steps[asking_task])]
    poller.lease(wait_ms=0)
    failed = {**RESULT, "step_id": item_of(steps[running_task])[0], "status": "failed"}
    assert poller.report(item_of(steps[running_task]), results=[failed]).status == 200
    for task_id in steps:
        assert api.call("GET", f"/v1/tasks/{task_id}").json["state"] == "cancelled"
    assert poller.heartbeat().json["cancel"] == []


def test_a_heartbeat_reports_progress(api: Api) -> None:
    poller = Poller(api)
    task_id = submit(api, "one")
    (step,) = poller.lease()
    poller.held[item_of(step)] = "running"
    assert poller.heartbeat(progress=[[*item_of(step), 3, 10, "packing"]]).status == 200
    (shown,) = api.call("GET", f"/v1/tasks/{task_id}").json["steps"]
    assert {**shown["progress"], "at": None} == {"done": 3, "total": 10, "note": "packing", "at": None}


def test_an_operator_can_pause_the_executor(fresh: Api) -> None:
    poller = Poller(fresh)
    poller.open()
    assert fresh.call("POST", "/v1/executors/poll/pause").status == 200
    submit(fresh, "one")
    assert poller.lease(wait_ms=0) == []
    answer = in_background(poller.lease_call)
    eventually(lambda: waits(fresh, poller))
    assert fresh.call("POST", "/v1/executors/poll/resume").status == 200
    assert len(answer().json["steps"]) == 1


def test_an_operator_can_drain_a_worker_over_http(hasty: Api) -> None:
    api, poller = hasty, Poller(hasty)
    poller.open()
    answer = in_background(lambda: poller.lease_call(wait_ms=60_000))
    eventually(lambda: waits(api, poller))
    assert api.call("POST", f"/v1/workers/{poller.id}/drain", {"quit": True}).status == 200
    assert answer().json["quit"] is True
    assert poller.heartbeat().json["quit"] is True


def test_a_worker_that_says_goodbye_gives_back_steps_that_it_has_not_started(api: Api) -> None:
    poller, other = Poller(api), Poller(api)
    task_ids = {submit(api, "one"), submit(api, "one")}
    first, second = poller.lease()
    del poller.held[item_of(second)]
    poller.held[item_of(first)] = "running"
    assert poller.bye().json["ended"] is False
    (given,) = other.lease()
    assert (given["step_id"], given["delivery"]) == (second["step_id"], 2)
    assert poller.lease(wait_ms=0) == []
    assert poller.report(item_of(first)).status == 200
    assert poller.heartbeat().code == "unknown_session"
    assert poller.bye().json["ended"] is True
    assert other.report(item_of(given)).status == 200
    for task_id in task_ids:
        step = step_of(api, task_id)
        assert (step["state"], step["attempt"]) == ("completed", 0)


def test_a_worker_that_leaves_at_once_leaves_its_running_steps_to_other_workers(api: Api) -> None:
    poller, other = Poller(api), Poller(api)
    kept, lost = submit(api, "once"), submit(api, "one")
    steps = {step["task_id"]: step for step in poller.lease()}
    assert poller.start(item_of(steps[kept])).status == 200
    assert poller.bye(drain=False).json["ended"] is True
    eventually(lambda: step_of(api, kept)["state"] == "held")
    (again,) = other.lease()
    assert (again["task_id"], again["delivery"]) == (lost, 2)


# -- the broker -------------------------------------------------------------------------------------------------------


def test_a_hundred_waiting_calls_are_answered_when_the_broker_stops(directory: Path) -> None:
    with running(directory, polled(directory)) as api:
        pollers = [Poller(api) for _ in range(100)]
        for poller in pollers:
            poller.open()
        answers = [in_background(lambda p=poller: p.lease_call(wait_ms=60_000)) for poller in pollers]  # type: ignore[misc]
        for poller in pollers:
            eventually(lambda p=poller: waits(api, p))  # type: ignore[misc]
    for answer in answers:
        assert (answer().status, answer().code) == (503, "draining")


def test_results_that_are_not_stored_are_not_acked_by_a_broker_that_stops(directory: Path) -> None:
    with ExitStack() as stack:
        with running(directory, polled(directory)) as api:
            apply(api)
            poller = Poller(api)
            task_id = submit(api, "one")
            (step,) = poller.lease()
            stack.enter_context(writes_held(api.broker.settings.database))
            answer = in_background(lambda: poller.report(item_of(step)))
            eventually(lambda: api.on_loop(lambda: len(api.broker.state.outbox)))
        assert answer().code == "draining"
    with running(directory, polled(directory)) as api:
        assert step_of(api, task_id)["state"] == "dispatched"
        poller.api = api
        assert poller.report(item_of(step)).status == 200
        assert step_of(api, task_id)["state"] == "completed"


def test_results_that_are_not_stored_are_not_acked_when_the_worker_leaves(fresh: Api, directory: Path) -> None:
    poller = Poller(fresh)
    submit(fresh, "one")
    (step,) = poller.lease()
    with writes_held(fresh.broker.settings.database):
        answer = in_background(lambda: poller.report(item_of(step)))
        eventually(lambda: fresh.on_loop(lambda: len(fresh.broker.state.outbox)))
        assert poller.bye(holding=[]).json["ended"] is True
        assert (answer().status, answer().code) == (503, "overloaded")
    assert poller.report(item_of(step)).status == 200


def test_after_a_restart_running_steps_are_adopted_and_the_others_are_sent_again(directory: Path) -> None:
    with running(directory, polled(directory)) as api:
        apply(api)
        task_ids = [submit(api, "once"), submit(api, "one"), submit(api, "one")]
        poller = Poller(api)
        steps = poller.lease()
        runs, done, dropped = (item_of(next(s for s in steps if s["task_id"] == t)) for t in task_ids)
        assert poller.start(runs).status == 200
        poller.held[runs], poller.held[done] = "running", "done"
    with running(directory, polled(directory)) as api:
        poller.api = api
        assert poller.heartbeat().code == "unknown_session"
        assert poller.start(runs).code == "unknown_session"
        assert poller.report(done).status == 200  # results need no session
        del poller.held[dropped]
        # Said outside of the session: it takes nothing away from anybody.
        stale = poller.lease_call(holding=[])
        assert stale.json["steps"] == []
        assert step_of(api, task_ids[0])["state"] == "dispatched"
        assert step_of(api, task_ids[0])["deliveries"] == 1
        assert step_of(api, task_ids[2])["deliveries"] == 1
        poller.session = stale.json["session"]
        (again,) = poller.lease()
        assert again["step_id"] == dropped[0]
        assert again["delivery"] == 2
        assert poller.heartbeat().json["cancel"] == []
        assert poller.report(runs).status == 200
        assert poller.report(item_of(again)).status == 200
        for task_id in task_ids:
            assert step_of(api, task_id)["state"] == StepState.COMPLETED
        assert step_of(api, task_ids[0])["deliveries"] == 1


def test_a_worker_over_http_gets_only_steps_that_are_routed_to_poll(directory: Path) -> None:
    rules = (RuleSettings(match="default::once::*", executor="poll"),)
    routed = msgspec.structs.replace(settings_in(directory), execution=ExecutionSettings(rules=rules))
    with running(directory, routed) as api:
        apply(api)
        poller = Poller(api)
        poller.open()
        other, own = submit(api, "one"), submit(api, "once")
        (step,) = poller.lease()
        assert step["task_id"] == own
        assert poller.lease(wait_ms=0) == []
        assert step_of(api, other)["state"] == "ready"


def test_leasing_over_http_can_be_disabled(directory: Path) -> None:
    off = msgspec.structs.replace(settings_in(directory), executors=ExecutorsSettings(poll=PollSettings(enabled=False)))
    with running(directory, off) as api:
        assert Poller(api).lease_call().code == "not_enabled"


def test_a_token_with_the_scope_work_permits_nothing_else(fresh: Api, directory: Path) -> None:
    api = fresh
    work, reads = (
        token.add_token(directory / "tokens", token.Grant(str(scope), frozenset({scope})))
        for scope in (Scope.WORK, Scope.READ)
    )
    api.tokens.reload()
    worker = Poller(api._replace(token=work))
    worker.open()
    assert worker.api.call("GET", "/v1/workers").code == "scope_missing"
    assert Poller(api._replace(token=reads)).lease_call().code == "scope_missing"
