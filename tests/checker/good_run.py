"""A short real run with many faults in which every promise is kept. Forgeries start from its evidence.

A broker, three workers, five level-0 handlers and a client take part. One worker and the broker are killed, and one
worker is suspended past its lease. Steps fail, are retried, time out, and are skipped, held, resolved, cancelled and
reopened. Two level-0 handlers are killed, and one takes longer than its lease.
"""

import shutil
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.system.harness import Program, Site, eventually, workflow
from tests.system.peers import start_peers

LEASE_MS: Final = 1_500
SETTINGS: Final = {
    "bus.lease_ms": LEASE_MS,
    "bus.heartbeat_ms": 300,
    "bus.level0.handlers": "loop.*",
    "bus.level0.at_most_once": "true",
}
BACKOFF: Final = {"kind": "constant", "base_ms": 200, "jitter": "none"}

CHAIN = workflow(
    "chain",
    {"name": "a"},
    {"name": "pay", "depends_on": ["a"], "delivery_mode": "at_most_once"},
    {"name": "b", "depends_on": ["pay"], "handler_class": "system.quick"},
)
DOOMED = workflow("doomed", {"name": "a", "handler_config": {"gate": "go"}}, {"name": "b", "depends_on": ["a"]})
HELD = workflow(
    "held",
    {"name": "pay", "handler_config": {"gate": "go"}, "delivery_mode": "at_most_once"},
    {"name": "ship", "depends_on": ["pay"]},
)
SLEPT = workflow("slept", {"name": "a", "handler_config": {"gate": "go"}}, {"name": "b", "depends_on": ["a"]})
FLAKY = workflow("flaky", {"name": "a", "handler_config": {"failures": 1}, "backoff": BACKOFF})
RESCUED = workflow(
    "rescued",
    {"name": "try", "handler_config": {"failures": 9}, "retry_limit": 0, "allow_failure": True},
    {"name": "rescue", "depends_on": ["try"], "trigger_rule": {"failed": "try"}},
    {"name": "usual", "depends_on": ["try"], "trigger_rule": {"completed": "try"}},
)
SLOW = workflow(
    "slow",
    {"name": "a", "handler_config": {"gate": "late"}, "timeout_ms": 300, "retry_limit": 1, "backoff": BACKOFF},
)
CANCELLED = workflow(
    "cancelled", {"name": "a", "handler_config": {"gate": "never"}}, {"name": "b", "depends_on": ["a"]}
)
LOOP = {"handler_class": "loop.work", "timeout_ms": 500}
GATED_LOOP = LOOP | {"handler_config": {"gate": "loop"}}
LOOPED = workflow(
    "looped",
    {"name": "a", **LOOP, "handler_config": {"failures": 1}, "backoff": BACKOFF},
    {"name": "pay", "depends_on": ["a"], "delivery_mode": "at_most_once", **LOOP},
)
LATE = workflow("late", {"name": "a", **GATED_LOOP}, {"name": "b", "depends_on": ["a"], **LOOP})
UNANSWERED = workflow("unanswered", {"name": "pay", "delivery_mode": "at_most_once", **GATED_LOOP})


class Evidence(NamedTuple):
    database: Path
    ledgers: Path


def run(directory: Path) -> Evidence:
    """Make the run, which takes about twelve seconds. Return its evidence, which is copied to `directory`."""
    with Site(settings=SETTINGS) as site:
        broker = site.start_broker(with_faults=True)
        for document in (CHAIN, DOOMED, HELD, SLEPT, FLAKY, RESCUED, SLOW, CANCELLED, LOOPED, LATE, UNANSWERED):
            site.apply(document)
        client = site.recorded_client()

        def submit(name: str, *keys: str) -> list[int]:
            return [client.submit_until_acknowledged(name, key) for key in keys]

        doomed = site.start_worker("doomed", slots=3, prefetch=0)
        tasks = submit("doomed", "doomed-0", "doomed-1")
        (held,) = submit("held", "held-0")
        _started(site, doomed, 3)
        sleeper = site.start_worker("sleeper", slots=2, prefetch=0)
        slept = submit("slept", "slept-0", "slept-1")
        _started(site, sleeper, 2)
        eventually(lambda: _known_to_run(site) == 5 or None, "the broker to know of five runs")
        site.start_worker("steady", slots=30)
        doomed.kill9()
        sleeper.pause()
        (slow,) = submit("slow", "slow-0")
        (cancelled,) = submit("cancelled", "cancelled-0")
        tasks += submit("chain", "chain-0", "chain-1") + submit("flaky", "flaky-0") + submit("rescued", "rescued-0")
        eventually(lambda: site.task(held)["attention"] == "held" or None, "the step to be held")
        _order(site, f"tasks/{cancelled}/cancel", {"reason": "no longer needed"})
        eventually(lambda: len(_runs_of(site, slept, "a")) == 4 or None, "the sleeper's steps to start elsewhere")
        eventually(lambda: site.task(slow)["state"] == "failed" or None, "the slow step to run out of time")
        site.open_gate("late")
        _order(site, f"tasks/{slow}/retry", {"reason": "it was the gate"})
        broker.kill9()
        broker = site.start_broker(with_faults=True)
        peers = {peer.pid: peer for peer in start_peers(site, 3)}
        late = submit("late", "late-0", "late-1")
        (unanswered,) = submit("unanswered", "unanswered-0")
        for peer in peers.values():
            _started(site, peer, 1)
        start_peers(site, 2)
        for task_id, step in ((late[1], "a"), (unanswered, "pay")):
            peers[_runs_of(site, [task_id], step)[0]["pid"]].kill9()
        tasks += submit("looped", "looped-0")
        site.open_gate("go")
        for task_id in slept:
            eventually(partial(_has_ended, site, task_id), "the sleeper's tasks to end without it", 20)
        sleeper.go_on()
        tasks += submit("chain", "chain-2")
        (step_id,) = [step["step_id"] for step in site.task(held)["steps"] if step["name"] == "pay"]
        resolved = {"outcome": "completed", "output": {"charged": True}, "reason": "the bank confirmed it"}
        _order(site, f"steps/{step_id}/resolve", resolved)
        eventually(lambda: len(_runs_of(site, late, "a")) == 4 or None, "the late steps to start elsewhere", 20)
        site.open_gate("loop")
        eventually(lambda: site.task(unanswered)["attention"] == "held" or None, "the payment to be held", 20)
        _end(site, broker, (*tasks, *slept, *late, held, slow, cancelled))
        shutil.copytree(site.ledgers, directory / "ledgers")
        shutil.copy(site.database, directory / "state.db")
    return Evidence(directory / "state.db", directory / "ledgers")


def _end(site: Site, broker: Program, tasks: Sequence[int]) -> None:
    """Wait until every task has ended and every result is acknowledged, then stop the broker."""
    for task_id in tasks:
        eventually(partial(_has_ended, site, task_id), f"task {task_id} to end", 20)
    eventually(lambda: _all_acked(site) or None, "every result to be acknowledged")
    broker.ask_to_end()
    broker.wait()


def _order(site: Site, path: str, body: dict[str, Any]) -> None:
    answer = site.ask("POST", f"/v1/{path}", body)
    assert answer.status in (200, 202), answer


def _started(site: Site, worker: Program, count: int) -> None:
    eventually(lambda: len(site.runs("started", pid=worker.pid)) == count or None, f"{count} runs on {worker.name}")


def _runs_of(site: Site, task_ids: Sequence[int], step: str) -> list[dict[str, Any]]:
    return [run for run in site.runs("started") if run["task_id"] in task_ids and run["step"] == step]


def _known_to_run(site: Site) -> int:
    connection = sqlite3.connect(f"{site.database.as_uri()}?mode=ro", uri=True)
    try:
        (count,) = connection.execute("SELECT count(*) FROM steps WHERE started_ms IS NOT NULL").fetchone()
        return int(count)
    finally:
        connection.close()


def _has_ended(site: Site, task_id: int) -> bool:
    return site.task(task_id)["state"] in ("completed", "failed", "cancelled")


def _all_acked(site: Site) -> bool:
    return all(session["holding"] == 0 for session in site.workers())
