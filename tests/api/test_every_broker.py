"""Every operation of the API, at a broker that does not own the task: the answer is the owner's.

Two brokers share a database. `b2` owns the lane of every task, and the tests ask both. The table has every operation of
the OpenAPI document, so an operation that is added without a decision about other brokers' tasks fails the first test.
"""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pytest
from stepwire import Context, OutcomeUnknown, Permanent, Worker
from stepwire_broker.api.operations import OPERATIONS

from tests.postgres.databases import database_in

from .poller import Poller
from .running_api import Answer, Api, of_owner_bus, running, settings_in
from .test_events import following
from .test_tap import tapped

ASKED: Final = "b1"
OWNER: Final = "b2"
PATIENCE_S: Final = 60.0


class Brokers(NamedTuple):
    """The same API at the broker that owns no task of a test, and at the broker that owns all of them."""

    asked: Api
    owner: Api

    @property
    def both(self) -> tuple[Api, Api]:
        return self.asked, self.owner


class Tasks(NamedTuple):
    """Tasks that no test changes. `step` is the first step of `waiting`."""

    waiting: int
    held: int
    ended: int

    @property
    def step(self) -> int:
        return self.waiting + 1


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("every", numbered=True)
    directory.chmod(0o700)
    settings = msgspec.structs.replace(settings_in(directory), database=database_in(directory, lanes=2))
    with running(directory, settings, owner_id=OWNER) as found:
        at_owner = found._replace(port=found.owner_port)
        for name, handler in (("order", "shop.charge"), ("idle", "shop.later"), ("polled", "shop.polled")):
            steps = [
                {"name": "pay", "handler_class": handler, "delivery_mode": "at_most_once"},
                {"name": "send", "handler_class": "shop.later", "depends_on": ["pay"]},
            ]
            applied = at_owner.call("POST", "/v1/workflows", {"name": name, "version": "1", "steps": steps})
            assert applied.status == 201, applied
        owner_bus = of_owner_bus(settings)
        worker = Worker(
            steps=[str(settings.bus.steps), owner_bus.steps],
            results=[str(settings.bus.results), owner_bus.results],
            name="shop",
        )

        @worker.handler("shop.charge")
        def charge(context: Context, order: dict[str, str]) -> None:
            if order["ends"] == "held":
                raise OutcomeUnknown("the gateway did not answer")
            raise Permanent("no money", code="card_declined")

        worker.start()
        try:
            yield Brokers(found._replace(owner_port=found.port), at_owner)
        finally:
            worker.stop()


@pytest.fixture(scope="module")
def tasks(brokers: Brokers) -> Tasks:
    return Tasks(submitted(brokers), held(brokers), failed(brokers))


# -- the states in which a command finds its task ---------------------------------------------------------------------


def submitted(brokers: Brokers, workflow: str = "idle", **context: str) -> int:
    """A task of the owner. `idle` waits for a worker that does not exist."""
    answer = brokers.owner.call("POST", "/v1/tasks", {"workflow": workflow, "context": context})
    assert answer.status == 201, answer
    task_id: int = answer.json["task_id"]
    return task_id


def held(brokers: Brokers) -> int:
    task_id = submitted(brokers, "order", ends="held")
    assert settled(brokers, task_id)["attention"] == "held"
    return task_id


def failed(brokers: Brokers) -> int:
    task_id = submitted(brokers, "order", ends="failed")
    assert settled(brokers, task_id)["state"] == "failed"
    return task_id


def paused(brokers: Brokers) -> int:
    return after(brokers, submitted(brokers), "pause")


def cancelled(brokers: Brokers) -> int:
    return after(brokers, submitted(brokers), "cancel")


def after(brokers: Brokers, task_id: int, command: str) -> int:
    assert brokers.owner.call("POST", f"/v1/tasks/{task_id}/{command}", {}).status == 200
    return task_id


def settled(brokers: Brokers, task_id: int) -> Any:
    return brokers.owner.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000").json


# -- the table --------------------------------------------------------------------------------------------------------


class Same(NamedTuple):
    """The same request at both brokers gets the same answer."""

    paths: tuple[str, ...]  # with members of Tasks
    method: str = "GET"
    body: Any = None


class Command(NamedTuple):
    """A command at one broker and at the other, on equal tasks, has the same answer and the same effect."""

    task: Callable[[Brokers], int]
    path: str
    body: Any = None


class Own(NamedTuple):
    """The answer is that of the broker itself, by design. `is_document`: it is a document that names its broker."""

    path: str
    reason: str
    method: str = "GET"
    is_document: bool = True


Check: TypeAlias = Callable[[Brokers, Tasks], None]


def submits_one_task_for_a_key(brokers: Brokers, tasks: Tasks) -> None:
    body = {"workflow": "idle", "idempotency_key": "one", "context": {}}
    first, again = (api.call("POST", "/v1/tasks", body) for api in (brokers.owner, brokers.asked))
    assert (first.status, again.status) == (201, 200)
    assert again.json == {**first.json, "created": False}
    other = brokers.asked.call("POST", "/v1/tasks?wait_ms=1", {"workflow": "idle", "context": {}})
    assert (other.status, other.json["task"]["steps"][0]["reason"]["code"]) == (201, "no_worker_offers")
    same(brokers, f"/v1/tasks/{other.json['task_id']}")


def submits_a_batch_once(brokers: Brokers, tasks: Tasks) -> None:
    body = {"tasks": [{"workflow": "idle", "idempotency_key": f"batch-{n}"} for n in range(3)]}
    first, again = (api.call("POST", "/v1/tasks/batch", body) for api in (brokers.owner, brokers.asked))
    assert (first.status, again.status) == (201, 200)
    assert again.json == {**first.json, "created": 0}


def streams_the_same_events(brokers: Brokers, tasks: Tasks) -> None:
    told = []
    for api in brokers.both:
        with following(api, f"?after=0&task_id={tasks.ended}") as until:
            told.append(until(lambda event: event["kind"] == "ended"))
    assert told[0] == told[1]


def applies_a_workflow_for_both(brokers: Brokers, tasks: Tasks) -> None:
    body = {"name": "fresh", "version": "1", "steps": [{"name": "a", "handler_class": "shop.later"}]}
    first, again = (api.call("POST", "/v1/workflows", body) for api in brokers.both)
    assert (first.status, again.status, again.json) == (201, 200, {**first.json, "created": False})
    assert brokers.owner.call("POST", "/v1/tasks", {"workflow": "fresh"}).status == 201


def activates_a_version_for_both(brokers: Brokers, tasks: Tasks) -> None:
    for version in ("1", "2"):
        body = {"name": "versions", "version": version, "steps": [{"name": "a", "handler_class": "shop.later"}]}
        assert brokers.owner.call("POST", "/v1/workflows", body).status == 201
    activated = brokers.asked.call("POST", "/v1/workflows/versions/activate?version=1")
    assert (activated.status, activated.json["version"]) == (200, "1")
    same(brokers, "/v1/workflows/versions")

    def is_used() -> bool:
        """The owner learns of the change at its next look for orders."""
        task_id = brokers.owner.call("POST", "/v1/tasks", {"workflow": "versions"}).json["task_id"]
        return bool(brokers.asked.call("GET", f"/v1/tasks/{task_id}").json["version"] == "1")

    eventually(is_used)


def drains_a_worker_of_both(brokers: Brokers, tasks: Tasks) -> None:
    workers = brokers.asked.call("GET", "/v1/workers").json["workers"]
    (leaver,) = [one["worker"] for one in workers if one["worker"].startswith("shop")]
    assert brokers.asked.call("POST", f"/v1/workers/{leaver}/drain", {"quit": False}).status == 200

    def is_draining() -> bool:
        found = brokers.owner.call("GET", "/v1/workers").json["workers"]
        return any(one["worker"] == leaver and one["draining"] for one in found)

    eventually(is_draining)


def pauses_an_executor_of_both(brokers: Brokers, tasks: Tasks) -> None:
    assert brokers.asked.call("POST", "/v1/executors/poll/pause", {}).status == 200
    eventually(lambda: brokers.owner.call("GET", "/v1/executors/poll").json["paused_since"] is not None)
    resumes_an_executor_of_both(brokers, tasks)


def resumes_an_executor_of_both(brokers: Brokers, tasks: Tasks) -> None:
    assert brokers.asked.call("POST", "/v1/executors/poll/resume", {}).status == 200
    eventually(lambda: brokers.owner.call("GET", "/v1/executors/poll").json["paused_since"] is None)


def sets_a_rule_of_both(brokers: Brokers, tasks: Tasks) -> None:
    assert brokers.asked.call("POST", "/v1/rules", {"match": "z::**", "executor": "poll"}).status == 200
    eventually(lambda: "z::**" in rules(brokers.owner))
    same(brokers, "/v1/rules", "/v1/route?path=z::y::x")


def removes_a_rule_of_both(brokers: Brokers, tasks: Tasks) -> None:
    sets_a_rule_of_both(brokers, tasks)
    assert brokers.asked.call("POST", "/v1/rules/remove", {"match": "z::**"}).status == 200
    eventually(lambda: "z::**" not in rules(brokers.owner))


def rules(api: Api) -> list[str]:
    return [rule["match"] for rule in api.call("GET", "/v1/rules").json["rules"]]


def forces_a_breaker_of_both(brokers: Brokers, tasks: Tasks) -> None:
    assert brokers.asked.call("POST", "/v1/breakers/shop.later", {"state": "open"}).status == 200

    def is_open() -> bool:
        found = brokers.owner.call("GET", "/v1/breakers").json["breakers"]
        return any(one["handler_class"] == "shop.later" and one["state"] == "open" for one in found)

    eventually(is_open)


def lists_the_same_brokers(brokers: Brokers, tasks: Tasks) -> None:
    listed = [api.call("GET", "/v1/brokers").json for api in brokers.both]
    known = [
        {one["broker"]: (one["epoch"], one["lanes"], one["is_alive"]) for one in each["brokers"]} for each in listed
    ]
    assert known[0] == known[1]
    assert set(known[0]) == {ASKED, OWNER}
    assert [each["broker"] for each in listed] == [ASKED, OWNER]


def lists_the_same_lanes(brokers: Brokers, tasks: Tasks) -> None:
    listed = [api.call("GET", "/v1/lanes").json["lanes"] for api in brokers.both]
    owners = [{one["lane"]: (one["broker"], one["epoch"]) for one in each} for each in listed]
    assert owners[0] == owners[1]
    for each, own in zip(listed, (ASKED, OWNER), strict=True):
        assert {one["broker"] for one in each if one["open_steps"] is not None} == {own}


def counts_the_steps_of_both(brokers: Brokers, tasks: Tasks) -> None:
    """The steps are in the memory of the owner, which tells the other broker with its next beats."""
    body = {"name": "counted", "steps": [{"name": "a", "handler_class": "shop.counted"}]}
    assert brokers.owner.call("POST", "/v1/workflows", body).status == 201
    assert brokers.owner.call("POST", "/v1/tasks/batch", {"tasks": [{"workflow": "counted"}] * 3}).status == 201

    def figures(api: Api) -> tuple[int, int, int]:
        found = api.call("GET", "/v1/backlog?handler_class=shop.counted&slots=2").json
        return found["waiting"], found["stored"], found["wanted_workers"]

    eventually(lambda: [figures(api) for api in brokers.both] == [(3, 0, 2)] * 2)


def keeps_a_session_at_its_broker(call: str) -> Check:
    def check(brokers: Brokers, tasks: Tasks) -> None:
        poller = Poller(brokers.owner, "shop.never")
        poller.open()
        elsewhere = Poller(brokers.asked, "shop.never")
        elsewhere.id, elsewhere.session, elsewhere.n = poller.id, poller.session, 5
        answer = elsewhere.start((tasks.step, 1)) if call == "start" else getattr(elsewhere, CALLS[call])()
        assert (answer.status, answer.code) == (421, "other_broker"), answer
        assert str(brokers.owner.port) in answer.body.decode()

    return check


CALLS: Final = {"lease": "lease_call", "heartbeat": "heartbeat", "start": "start", "bye": "bye"}


def takes_results_of_both(brokers: Brokers, tasks: Tasks) -> None:
    """The session of the worker is with the owner, and its results arrive at the other broker."""
    rule = {"match": "default::polled::pay", "executor": "poll"}
    assert brokers.owner.call("POST", "/v1/rules", rule).status == 200
    task_id = submitted(brokers, "polled")
    poller = Poller(brokers.owner, "shop.polled")
    until = time.monotonic() + PATIENCE_S
    while not (steps := poller.lease()):
        assert time.monotonic() < until
    item = (steps[0]["step_id"], steps[0]["delivery"])
    assert poller.start(item).status == 200
    poller.api = brokers.asked
    assert poller.report(item).status == 200
    eventually(lambda: brokers.asked.call("GET", f"/v1/steps/{task_id + 1}").json["state"] == "completed")
    same(brokers, f"/v1/tasks/{task_id}")


TASK: Final = "/v1/tasks/{task}"
TABLE: Final[dict[str, Same | Command | Own | Check]] = {
    "submitTask": submits_one_task_for_a_key,
    "submitTasks": submits_a_batch_once,
    "listTasks": Same(("/v1/tasks?limit=500", "/v1/tasks?state=failed", "/v1/tasks?workflow=order&limit=1")),
    "getTask": Same(
        (
            *("/v1/tasks/{waiting}", "/v1/tasks/{held}?wait_ms=20000", "/v1/tasks/{waiting}?wait_ms=1"),
            *("/v1/tasks/{ended}", "/v1/tasks/{step}", "/v1/tasks/999999999"),
        )
    ),
    "explainTask": Same(tuple(f"/v1/tasks/{{{name}}}/why" for name in (*Tasks._fields, "step"))),
    "getTaskStep": Same(("/v1/tasks/{waiting}/steps/pay", "/v1/tasks/{held}/steps/send", "/v1/tasks/{held}/steps/no")),
    "explainStep": Same(("/v1/tasks/{waiting}/steps/send/why", "/v1/tasks/{held}/steps/no/why")),
    "listTaskEvents": Same(("/v1/tasks/{ended}/events", "/v1/tasks/{waiting}/events?limit=1")),
    "cancelTask": Command(submitted, TASK + "/cancel", {"reason": "sold out"}),
    "pauseTask": Command(submitted, TASK + "/pause"),
    "resumeTask": Command(paused, TASK + "/resume"),
    "retryTask": Command(cancelled, TASK + "/retry", {"reason": "a second chance"}),
    "eraseTask": Command(cancelled, TASK + "/erase", {"reason": "a request"}),
    "streamEvents": streams_the_same_events,
    "listSteps": Same(("/v1/steps?state=held", "/v1/steps?state=failed&limit=1", "/v1/steps?handler_class=shop.later")),
    "getStep": Same(("/v1/steps/{step}", "/v1/steps/{waiting}", "/v1/steps/999999999")),
    "resolveStep": Command(held, "/v1/steps/{step}/resolve", {"outcome": "completed", "reason": "asked the bank"}),
    "applyWorkflow": applies_a_workflow_for_both,
    "listWorkflows": Same(("/v1/workflows", "/v1/workflows?namespace=no")),
    "getWorkflow": Same(("/v1/workflows/order", "/v1/workflows/no")),
    "activateWorkflow": activates_a_version_for_both,
    "listWorkers": Own("/v1/workers", "each broker has sessions of its own, and a worker has one with each broker"),
    "drainWorker": drains_a_worker_of_both,
    "leaseSteps": keeps_a_session_at_its_broker("lease"),
    "sendHeartbeat": keeps_a_session_at_its_broker("heartbeat"),
    "startSteps": keeps_a_session_at_its_broker("start"),
    "reportResults": takes_results_of_both,
    "endSession": keeps_a_session_at_its_broker("bye"),
    "listExecutors": Own("/v1/executors", "the figures are those of the runs that the broker has dispatched"),
    "getExecutor": Own("/v1/executors/bus", "as listExecutors", is_document=False),
    "pauseExecutor": pauses_an_executor_of_both,
    "resumeExecutor": resumes_an_executor_of_both,
    "explainRoute": Same(("/v1/route?path=default::order::pay",)),
    "listRules": Same(("/v1/rules",)),
    "setRule": sets_a_rule_of_both,
    "removeRule": removes_a_rule_of_both,
    "listShadows": Own("/v1/shadows", "each broker compares the copies of its own steps"),
    "listBreakers": Own("/v1/breakers", "a breaker opens at each broker by the failures that the broker has seen"),
    "setBreaker": forces_a_breaker_of_both,
    "getBacklog": counts_the_steps_of_both,
    "listBrokers": lists_the_same_brokers,
    "listLanes": lists_the_same_lanes,
    "moveLane": Same(("/v1/lanes/1/move", "/v1/lanes/2/move", "/v1/lanes/99/move"), "POST", {"to": "b9"}),
    "pruneDatabase": Own("/v1/database/prune", "each broker removes tasks of its own lanes", "POST", is_document=False),
    "finishErasures": Same(("/v1/database/finish-erasures",), "POST"),
    "recordBackup": Own("/v1/database/backups", "recorded in a lane of the broker", "POST", is_document=False),
    "listAudit": Same(("/v1/audit?action=apply_workflow", "/v1/audit?limit=2")),
    "getAuditHead": Same(("/v1/audit/head",)),
    "streamBusMessages": Own("/v1/tap", "the bus of each broker has its own messages", is_document=False),
    "getMetrics": Own("/metrics", "the figures of the broker itself", is_document=False),
    "getOpenapi": Same(("/openapi.json",)),
    "getOrchestrationHealth": Own("/health/orchestration", "the stages of the broker itself", is_document=False),
    "checkReadiness": Own("/readyz", "whether the broker itself accepts work", is_document=False),
    "checkLiveness": Same(("/livez",)),
}
METHODS: Final = {operation.id: (method, path) for (method, path), operation in OPERATIONS.items()}


def test_every_operation_has_a_row_for_a_broker_that_does_not_own_the_task() -> None:
    assert set(TABLE) == set(METHODS)
    for name, row in TABLE.items():
        method, path = METHODS[name]
        pattern = re.sub(r"\{\w+\}", "[^/?]+", path)
        if isinstance(row, Same):
            assert row.method == method, name
            assert all(re.fullmatch(pattern, each.partition("?")[0]) for each in row.paths), name
        elif isinstance(row, Command | Own):
            assert re.fullmatch(pattern, row.path.partition("?")[0]), name


@pytest.mark.parametrize("name", TABLE)
def test_an_operation_at_another_broker_is_like_one_at_the_owner(brokers: Brokers, tasks: Tasks, name: str) -> None:
    row = TABLE[name]
    if isinstance(row, Same):
        paths = [path.format(step=tasks.step, **tasks._asdict()) for path in row.paths]
        same(brokers, *paths, method=row.method, body=row.body)
    elif isinstance(row, Command):
        obeyed(brokers, row)
    elif isinstance(row, Own):
        answers_for_itself(brokers, row)
    else:
        row(brokers, tasks)


def same(brokers: Brokers, *paths: str, method: str = "GET", body: Any = None) -> None:
    for path in paths:
        asked, owner = (api.call(method, path, body) for api in brokers.both)
        assert (asked.status, shown(asked)) == (owner.status, shown(owner)), path


def obeyed(brokers: Brokers, row: Command) -> None:
    results = []
    for api in brokers.both:
        task_id = row.task(brokers)
        answer = api.call("POST", row.path.format(task=task_id, step=task_id + 1), row.body)
        assert answer.status == 200, answer
        states = [shown(each.call("GET", f"/v1/tasks/{task_id}"), task_id) for each in brokers.both]
        assert states[0] == states[1]
        rows = [shown(each.call("GET", f"/v1/audit?target=task%20{task_id}"), task_id) for each in brokers.both]
        assert rows[0] == rows[1]
        results.append((shown(answer, task_id), states[0]))
    assert results[0][0] == results[1][0]
    assert results[0][1] == results[1][1]


def answers_for_itself(brokers: Brokers, row: Own) -> None:
    for api, name in zip(brokers.both, (ASKED, OWNER), strict=True):
        if row.path == "/v1/tap":
            with tapped(api):
                continue
        answer = api.call(row.method, row.path, {"file": "b.db"} if row.path.endswith("backups") else None)
        assert answer.status in (200, 202), answer
        if row.is_document:
            assert answer.json["broker"] == name


TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


def shown(answer: Answer, task_id: int | None = None) -> Any:
    """The body without times. With `task_id`, ids are relative to this one."""
    text = TIME.sub("<time>", answer.body.decode())
    if task_id is not None:
        for number in range(9, -1, -1):
            text = re.sub(rf"\b{task_id + number}\b", f'"<task+{number}>"', text)
        text = re.sub(r'"(queue_ms|run_ms|erased)":\d+', r'"\1":0', text)
        text = re.sub(r'\\?"<task', "<task", re.sub(r'(<task\+\d>)\\?"', r"\1", text))
        return text
    return json.loads(text) if answer.headers["content-type"].endswith("json") else text


def eventually(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    for pause_s in itertools.chain((0.02, 0.05), itertools.repeat(0.1)):
        if is_so():
            return
        assert time.monotonic() < until
        time.sleep(pause_s)
