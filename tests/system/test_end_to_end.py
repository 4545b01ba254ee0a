"""Workflows from a client to handlers and back, over every transport."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from stepwire import Context, Worker
from stepwire_broker.core.answers.answers import Applied, Done, TasksSubmitted
from stepwire_broker.core.definitions.settings import BusSettings, DatabaseSettings, Settings
from stepwire_broker.core.definitions.workflow import read_workflow
from stepwire_broker.core.model.events import ApplyWorkflow, AwaitTask
from stepwire_broker.engine import Engine
from stepwire_broker.stages import requests

from tests.checker import assert_kept

from .harness import RecordedClient, Site, eventually, workflow

CHAIN = workflow("chain", {"name": "a"}, {"name": "b", "depends_on": ["a"]}, {"name": "c", "depends_on": ["b"]})
DIAMOND = workflow(
    "diamond",
    {"name": "top"},
    {"name": "left", "depends_on": ["top"]},
    {"name": "right", "depends_on": ["top"], "handler_class": "system.quick"},
    {"name": "bottom", "depends_on": ["left", "right"]},
)


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_chain_and_a_diamond_run_from_end_to_end(new_site: Callable[..., Site], transport: str) -> None:
    site = new_site(transport)
    site.start_broker()
    site.start_worker("one")
    site.start_worker("two")
    client = site.client()
    submitter = site.recorded_client()
    for document in (CHAIN, DIAMOND):
        client.apply_workflow(document)
    tasks = [
        submitter.submit_until_acknowledged(name, f"{name}-{i}", {"i": i})
        for name in ("chain", "diamond")
        for i in range(25)
    ]
    for task_id in tasks:
        assert client.wait(task_id, timeout=20)["state"] == "completed"
    verdict = assert_kept(site.database, site.ledgers)
    assert verdict.figures["started"] == 25 * 3 + 25 * 4
    assert not verdict.figures["started again"]


def test_the_command_line_applies_submits_waits_and_shows(site: Site) -> None:
    site.start_broker()
    site.start_worker("one")
    path = site.directory / "chain.json"
    path.write_bytes(msgspec.json.encode(CHAIN))
    applied = site.stepwire("workflow", "apply", str(path))
    assert applied.returncode == 0, applied.stderr
    submitted = site.stepwire("task", "submit", "chain", "--wait", "-o", "json")
    assert submitted.returncode == 0, submitted.stderr
    shown = site.stepwire("task", "list", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    assert '"completed"' in shown.stdout


def test_a_failed_attempt_is_retried_with_the_same_inputs(site: Site) -> None:
    site.start_broker()
    site.start_worker("one")
    backoff = {"kind": "constant", "base_ms": 50, "jitter": "none"}
    site.apply(
        workflow(
            "flaky",
            {"name": "a"},
            {"name": "b", "depends_on": ["a"], "handler_config": {"failures": 2}, "backoff": backoff},
            {"name": "c", "depends_on": ["b"]},
        )
    )
    task_id = site.recorded_client().submit_until_acknowledged("flaky", "k")
    task = site.client().wait(task_id, timeout=20)
    assert [(s["state"], s["attempt"]) for s in task["steps"]] == [("completed", 0), ("completed", 2), ("completed", 0)]
    verdict = assert_kept(site.database, site.ledgers)
    assert verdict.figures["started again"] == {"its handler had failed": 2}


def test_concurrent_submissions_of_one_key_make_one_task_and_another_body_is_a_conflict(site: Site) -> None:
    site.start_broker()
    site.start_worker("one")
    site.apply(CHAIN)
    clients = [site.recorded_client() for _ in range(8)]
    together = threading.Barrier(len(clients))

    def submit(client: RecordedClient, key: str) -> Any:
        together.wait(10)
        return client.submit("chain", key, {"of": key})

    with ThreadPoolExecutor(len(clients)) as threads:
        for key in [f"once-{i}" for i in range(20)]:
            answers = list(threads.map(submit, clients, [key] * len(clients)))
            assert sorted(a.status for a in answers) == [200] * 7 + [201]
            assert len({a.body["task_id"] for a in answers}) == 1
            assert sum(a.body["created"] for a in answers) == 1
    other = clients[0].submit("chain", "once-0", {"of": "something else"})
    assert (other.status, other.code) == (409, "key_conflict")
    eventually(lambda: all(t["state"] == "completed" for t in _tasks(site)) or None, "all tasks completed", 20)
    assert_kept(site.database, site.ledgers)


def test_over_inproc_the_worker_lives_in_the_brokers_process(tmp_path: Path) -> None:
    ran: list[str] = []

    async def main() -> None:
        context: zmq.Context[Any] = zmq.Context()
        settings = Settings(
            database=DatabaseSettings(url=f"sqlite:///{tmp_path}/state.db"),
            bus=BusSettings(steps="inproc://steps", results="inproc://results"),
        )
        broker = Engine(settings, context=context)
        await broker.start()
        worker = Worker(steps="inproc://steps", results="inproc://results", context=context, name="inside")

        @worker.handler("system.*")
        async def work(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
            ran.append(ctx.step_name)
            return {"order": order, "before": sorted(ctx.results)}

        await asyncio.to_thread(worker.start)
        try:
            applied = await broker.ask(lambda request: ApplyWorkflow(request, read_workflow(DIAMOND), True))
            assert isinstance(applied, Applied)
            body = msgspec.json.encode({"workflow": "diamond", "context": {"id": 7}})
            stored = await broker.ask(requests.submission([requests.read_task(body, settings.limits)]))
            assert isinstance(stored, TasksSubmitted)
            async with asyncio.timeout(10):
                done = await broker.ask(lambda request: AwaitTask(request, stored.task_ids[0]))
            assert isinstance(done, Done)
            assert done.state == "completed"
        finally:
            await asyncio.to_thread(worker.stop)
            await broker.stop()
            context.destroy(linger=0)

    asyncio.run(main())
    assert (ran[0], sorted(ran[1:3]), ran[3]) == ("top", ["left", "right"], "bottom")
    assert_kept(tmp_path / "state.db", tmp_path)


def test_a_broker_on_every_interface_sends_its_workers_a_host_to_connect_to(tmp_path: Path) -> None:
    async def main() -> None:
        bus = BusSettings(steps="tcp://*:*", results="tcp://*:*", allow_insecure=True, advertise="broker.test")
        broker = Engine(Settings(database=DatabaseSettings(url=f"sqlite:///{tmp_path}/state.db"), bus=bus))
        await broker.start()
        worker = Worker(**{name: f"tcp://127.0.0.1:{at.rpartition(':')[2]}" for name, at in broker.endpoints.items()})
        worker.handler("system.*")(lambda context: None)
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def look(_direction: str, _topic: bytes, body: bytes, _code: str | None, _reason: str | None) -> None:
            if b'"type":"welcome"' in body and not received.done():
                received.set_result(body)

        broker.add_tap(look)
        await asyncio.to_thread(worker.start)
        try:
            welcome = msgspec.json.decode(await asyncio.wait_for(received, 20))
        finally:
            await asyncio.to_thread(worker.stop)
            await broker.stop()
        (entry,) = welcome["brokers"]
        assert entry["steps"] == f"tcp://broker.test:{broker.endpoints['steps'].rpartition(':')[2]}"

    asyncio.run(main())


def _tasks(site: Site) -> list[dict[str, Any]]:
    answer = site.ask("GET", "/v1/tasks?limit=500")
    assert answer.status == 200, answer
    return answer.body["tasks"]  # type: ignore[no-any-return]
