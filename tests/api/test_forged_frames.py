"""Frames of strangers on the real sockets of a running broker, with every id that a stranger could learn or guess."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from stepwire import Context, Worker
from stepwire_broker.api import token
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.core.definitions.settings import ExecSettings, ExecutionSettings, ExecutorsSettings, RuleSettings
from stepwire_protocol import topics

from .running_api import Api, running, settings_in

OTHER_UID = 54_321
RELEASE_FILE = "release"
PROGRAM = (
    f'import os, time\nwhile not os.path.exists({RELEASE_FILE!r}): time.sleep(0.01)\nprint(\'{{"by": "program"}}\')'
)


def eventually(look: Callable[[], Any]) -> Any:
    until = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A broker that runs a program for `once`, and has a worker for `many`, which waits until it is released."""
    tmp_path.chmod(0o700)
    commands = {"program": (sys.executable, "-c", PROGRAM.replace(RELEASE_FILE, str(tmp_path / RELEASE_FILE)))}
    settings = msgspec.structs.replace(
        settings_in(tmp_path),
        executors=ExecutorsSettings(exec=ExecSettings(commands=commands, runs_dir=str(tmp_path / "runs"))),
        execution=ExecutionSettings(rules=(RuleSettings("default::once::*", executor="exec"),)),
    )
    with running(tmp_path, settings) as found:
        for name, handler in (("once", "program"), ("many", "wait")):
            steps = [{"name": "s", "handler_class": handler, "delivery_mode": "at_most_once"}]
            assert found.call("POST", "/v1/workflows", {"name": name, "version": "1", "steps": steps}).status == 201
        worker = Worker(steps=settings.bus.steps, results=settings.bus.results, name="w")

        @worker.handler("wait")
        def wait(context: Context) -> dict[str, str]:
            while not (tmp_path / RELEASE_FILE).exists():
                time.sleep(0.01)
            return {"by": "worker"}

        worker.start()
        try:
            yield found
        finally:
            (tmp_path / RELEASE_FILE).touch()
            worker.stop()


def submitted(api: Api, workflow: str, key: str | None = None) -> tuple[int, dict[str, Any]]:
    """Submit a task. Returns its id and everything about its running delivery that the broker itself knows."""
    task_id = api.call(
        "POST", "/v1/tasks", {"workflow": workflow, **({} if key is None else {"idempotency_key": key})}
    ).json["task_id"]

    def known() -> dict[str, Any] | None:
        step = api.broker.state.steps.get(task_id + 1)
        if step is None or step.session is None or not step.granted or step.batch is None or not step.batch.answered:
            return None
        return {
            "worker": step.worker,
            "session": step.session.id,
            "k": step.session.k,
            "batch_id": step.batch_id,
            "item": [step.id, step.delivery],
        }

    found: dict[str, Any] = eventually(lambda: api.on_loop(known))
    return task_id, found


def forged(api: Api, known: dict[str, Any]) -> list[bytes]:
    """Every message that would complete, fail, take back or end the delivery, in the name of its worker."""
    worker, session, item = known["worker"], known["session"], known["item"]
    of_session = {"v": "2.0", "worker": worker, "session": session}
    result = {"step_id": item[0], "delivery": item[1], "status": "completed", "output": {"by": "stranger"}}
    to_all = [
        {"type": "bye", "v": "2.0", "worker": worker, "n": 99_999},
        {
            "type": "hello",
            "v": "2.0",
            "worker": worker,
            "n": 100_000,
            "versions": ["2.0"],
            "next": {"b1": known["k"] + 1},
            "handlers": ["**"],
            "slots": 1,
        },
        {"type": "gone", "v": "2.0", "worker": worker},
    ]
    to_broker = [
        {
            "type": "results",
            **of_session,
            "deployment": api.broker.deployment,
            "batch_id": known["batch_id"],
            "protocol_version": "2.0",
            "rid": 77_777,
            "n": 99_998,
            "results": [result],
        },
        {
            "type": "refuse",
            **of_session,
            "batch_id": known["batch_id"],
            "items": [item],
            "code": "bad_message",
            "free": 1,
        },
        {"type": "adopted", **of_session, "items": [[*item, "unknown", 0]]},
    ]
    level0 = {
        "batch_id": known["batch_id"],
        "protocol_version": "1.0",
        "results": [{"step_id": item[0], "status": "completed", "output": {"by": "stranger"}}],
    }
    return [
        *(topics.results_to("b1") + msgspec.json.encode(message) for message in to_broker),
        topics.RESULTS + msgspec.json.encode(level0),
        *(topics.WORKERS + msgspec.json.encode(message) for message in to_all),
    ]


def send_all(endpoint: str, frames: list[bytes], wait_ms: int = 10_000) -> None:
    with zmq.Context() as context:
        socket = context.socket(zmq.XPUB)
        socket.connect(endpoint)
        for _ in range(3):  # the topics of the broker
            assert socket.poll(wait_ms)
            socket.recv()
        for frame in frames:
            socket.send(frame)
        socket.close(5_000)


def refused(api: Api) -> int:
    counts = api.broker.state.counters.refused
    return sum(counts.get(code, 0) for code in ("unauthorized", "wrong_sender"))


def test_no_message_on_a_socket_ends_or_answers_a_program_that_the_broker_runs(api: Api, tmp_path: Path) -> None:
    task_id, known = submitted(api, "once")
    frames = forged(api, known)
    send_all(api.broker.settings.bus.results, frames)
    eventually(lambda: refused(api) == len(frames))
    assert api.call("GET", f"/v1/tasks/{task_id}").json["steps"][0]["state"] == "dispatched"
    assert api.broker.state.steps[task_id + 1].delivery == known["item"][1]
    (tmp_path / RELEASE_FILE).touch()
    assert final_output(api, task_id) == {"by": "program"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_account_cannot_speak_for_a_worker_whose_ids_it_knows(api: Api, tmp_path: Path) -> None:
    task_id, known = submitted(api, "many")
    frames = forged(api, known)
    endpoint = api.broker.settings.bus.results
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    Path(endpoint.removeprefix("ipc://")).chmod(0o777)
    child = os.fork()
    if child == 0:
        try:
            os.setuid(OTHER_UID)
            send_all(endpoint, frames, wait_ms=2_000)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert api.broker.core_loop.wire.counters.connections_refused["unknown_user"] > 0
    assert refused(api) == 0, "a frame has arrived"
    assert api.call("GET", f"/v1/tasks/{task_id}").json["steps"][0]["state"] == "dispatched"
    (tmp_path / RELEASE_FILE).touch()
    assert final_output(api, task_id) == {"by": "worker"}


def test_a_worker_with_a_tiny_limit_of_messages_fails_no_step(api: Api, tmp_path: Path) -> None:
    hello = {
        "type": "hello",
        "v": "2.0",
        "worker": "tiny:00000000000000aa",
        "n": 1,
        "versions": ["2.0"],
        "next": {"b1": 1},
        "handlers": ["wait"],
        "slots": 100,
        "free": {"b1": 100},
        "max_message_bytes": 1,
    }
    send_all(api.broker.settings.bus.results, [topics.WORKERS + msgspec.json.encode(hello)])
    eventually(lambda: api.broker.state.counters.refused.get("bad_field") == 1)
    (tmp_path / RELEASE_FILE).touch()
    task_ids = [api.call("POST", "/v1/tasks", {"workflow": "many"}).json["task_id"] for _ in range(5)]
    assert [final_output(api, task_id) for task_id in task_ids] == [{"by": "worker"}] * 5


def final_output(api: Api, task_id: int) -> Any:
    task = eventually(lambda: (t := api.call("GET", f"/v1/tasks/{task_id}").json)["state"] == "completed" and t)
    step_id = task["steps"][0]["step_id"]
    return api.call("GET", f"/v1/steps/{step_id}").json["output"]


def test_a_token_that_may_only_read_sees_no_id_that_speaks_for_a_worker(api: Api, tmp_path: Path) -> None:
    task_id, known = submitted(api, "many", "its-key")
    reader, operator = (
        api._replace(token=token.add_token(api.tokens.file, token.Grant(name, frozenset(scopes))))
        for name, scopes in (("reader", {Scope.READ}), ("operator", {Scope.READ, Scope.OPERATE}))
    )
    api.on_loop(api.tokens.reload)
    digits, batch = known["worker"].partition(":")[2], known["batch_id"]
    paths = [
        f"/v1/tasks/{task_id}/events",
        f"/v1/tasks/{task_id}",
        f"/v1/steps/{task_id + 1}",
        f"/v1/tasks/{task_id}/why",
        "/v1/workers",
    ]
    for path in paths:
        shown = reader.call("GET", path)
        assert shown.status == 200, shown
        assert digits.encode() not in shown.body, path
        assert batch.encode() not in shown.body, path
    submitter = api._replace(
        token=token.add_token(api.tokens.file, token.Grant("submitter", frozenset({Scope.SUBMIT, Scope.READ})))
    )
    api.on_loop(api.tokens.reload)
    shown = submitter.call("POST", "/v1/tasks?wait_ms=0", {"workflow": "many", "idempotency_key": "its-key"})
    assert (shown.status, shown.json["task"]["task_id"]) == (200, task_id)
    assert digits.encode() not in shown.body
    assert b'"batch_id":' not in shown.body
    assert {worker["worker"] for worker in reader.call("GET", "/v1/workers").json["workers"]} >= {"w"}
    events = operator.call("GET", f"/v1/tasks/{task_id}/events").json["events"]
    dispatched = next(event for event in events if event["kind"] == "dispatched")
    assert (dispatched["worker"], dispatched["batch_id"]) == (known["worker"], batch)
    (tmp_path / RELEASE_FILE).touch()
