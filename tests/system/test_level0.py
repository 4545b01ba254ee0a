"""Level-0 handlers as real processes: they share the work, double nothing, and a killed one loses nothing."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.checker import assert_kept

from .harness import Program, Site, eventually, workflow
from .peers import peers_of, start_peers

SHORT = 1_000  # ms of a timeout; the lease is 5 s longer

QUICK = workflow("quick", *({"name": f"s{i}", "handler_config": {"work_ms": 2}} for i in range(10)))
GATED = workflow("gated", {"name": "a", "handler_config": {"gate": "go"}, "timeout_ms": SHORT})
PAY = workflow(
    "pay",
    {"name": "pay", "handler_config": {"gate": "go"}, "timeout_ms": SHORT, "delivery_mode": "at_most_once"},
    {"name": "ship", "depends_on": ["pay"]},
)


def started(site: Site, peer: Program | None = None) -> list[dict[str, Any]]:
    return site.runs("started", pid=None if peer is None else peer.pid)


def await_all(site: Site, task_ids: list[int], bound_s: float = 60.0) -> None:
    for task_id in task_ids:
        task = eventually(
            lambda i=task_id: ((task := site.task(i))["state"] == "completed" and task) or None,  # type: ignore[misc]
            f"task {task_id} to be completed",
            bound_s,
        )
        assert task["state"] == "completed"


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_three_handlers_share_300_steps_and_none_runs_one_twice(
    transport: Literal["ipc", "tcp"], new_site: Callable[..., Site], figure: Callable[[str], None]
) -> None:
    site = new_site(transport)
    site.start_broker()
    site.apply(QUICK)
    peers = start_peers(site, 3)
    answer = site.recorded_client().submit_many("quick", [f"k{i}" for i in range(30)])
    assert answer.status == 201, answer
    await_all(site, answer.body["task_ids"])
    runs = Counter(event["step_id"] for event in started(site))
    assert len(runs) == 300
    assert max(runs.values()) == 1
    shares = [len(started(site, peer)) for peer in peers]
    figure(f"{transport}: 300 steps over three level-0 handlers: {shares}")
    assert min(shares) >= 60
    assert sum(worker["completed"] for worker in peers_of(site)) == 300
    assert_kept(site.database, site.ledgers)


def test_a_killed_handlers_step_runs_elsewhere_after_its_lease(new_site: Callable[..., Site]) -> None:
    site = new_site()
    site.start_broker()
    site.apply(GATED)
    (doomed,) = start_peers(site, 1)
    task_id = site.recorded_client().submit_until_acknowledged("gated", "k")
    eventually(lambda: started(site, doomed) or None, "the step started")
    doomed.kill9()
    eventually(lambda: not peers_of(site) or None, "the broker to see it gone")
    why = site.stepwire("why", str(task_id))
    assert "has gone since and may still answer" in why.stdout, why
    (heir,) = start_peers(site, 1)
    eventually(lambda: started(site, heir) or None, "the step started on the other", 20)
    site.open_gate("go")
    await_all(site, [task_id])
    assert [event["pid"] for event in started(site)] == [doomed.pid, heir.pid]
    verdict = assert_kept(site.database, site.ledgers)
    assert verdict.figures["started again"] == {"its lease at level 0 was over": 1}


def test_at_most_once_is_refused_by_default_and_if_allowed_held_when_its_lease_ends(
    new_site: Callable[..., Site],
) -> None:
    site = new_site()
    site.start_broker()
    site.apply(PAY)
    start_peers(site, 1)
    client = site.recorded_client()
    task_id = client.submit_until_acknowledged("pay", "k")
    why = site.stepwire("why", str(task_id))
    assert "at_most_once" in why.stdout, why
    assert not started(site)
    assert_kept(site.database, site.ledgers, all_ended=False)

    site = new_site(settings={"bus.level0.at_most_once": "true"})
    site.start_broker()
    site.apply(PAY)
    (doomed,) = start_peers(site, 1)
    task_id = site.recorded_client().submit_until_acknowledged("pay", "k")
    eventually(lambda: started(site, doomed) or None, "the payment started")
    start_peers(site, 1)
    doomed.kill9()
    task = eventually(lambda: ((t := site.task(task_id))["attention"] == "held" and t) or None, "it to be held", 20)
    assert [step["state"] for step in task["steps"]] == ["held", "waiting"]
    assert len(started(site)) == 1
    verdict = assert_kept(site.database, site.ledgers)
    assert verdict.figures["held for"] == {"its lease at level 0 was over": 1}


def test_a_worker_with_a_session_is_preferred_to_level_0(new_site: Callable[..., Site]) -> None:
    site = new_site(settings={"bus.level0.handlers": "system.work"})
    site.start_broker()
    site.apply(QUICK)
    peers = start_peers(site, 2)
    worker = site.start_worker("sdk", slots=2)
    answer = site.recorded_client().submit_many("quick", ["k1", "k2"])
    await_all(site, answer.body["task_ids"])
    assert {run["pid"] for run in started(site)} == {worker.pid}
    worker.kill9()
    eventually(lambda: len(site.workers()) == 2 or None, "the worker to be gone")
    answer = site.recorded_client().submit_many("quick", ["k3"])
    await_all(site, answer.body["task_ids"])
    assert {run["pid"] for run in started(site)[20:]} <= {peer.pid for peer in peers}
    assert len(started(site)) == 30
    assert_kept(site.database, site.ledgers)


def test_steps_of_a_workers_handler_wait_for_the_worker_while_level_0_handlers_are_connected(site: Site) -> None:
    """The worker is killed and both it and the broker start again, as in a deployment."""
    broker = site.start_broker()
    site.apply(QUICK)
    start_peers(site, 2)
    worker = site.start_worker("sdk", slots=2)
    worker.kill9()
    eventually(lambda: len(site.workers()) == 2 or None, "the worker to be gone")
    client = site.recorded_client()
    first = client.submit_until_acknowledged("quick", "k1")
    why = site.stepwire("why", str(first))
    assert "offered it" in why.stdout, why
    assert "only if bus.level0.handlers names it" in why.stdout, why
    broker.kill9()
    site.start_broker()
    eventually(lambda: len(site.workers()) == 2 or None, "the level-0 handlers to be back")
    second = client.submit_until_acknowledged("quick", "k2")
    heir = site.start_worker("sdk", slots=2)
    await_all(site, [first, second])
    assert {run["pid"] for run in started(site)} == {heir.pid}
    assert_kept(site.database, site.ledgers)


def test_level_0_handlers_that_know_different_steps_share_a_broker_and_fail_nothing(site: Site) -> None:
    site.start_broker()
    names = ("a.one", "b.two")
    steps = [{"name": f"s{i}", "handler_class": names[i % 2], "retry_limit": 0} for i in range(10)]
    site.apply(workflow("mixed", *steps))
    peers = [start_peers(site, 1, name)[0] for name in names]
    answer = site.recorded_client().submit_many("mixed", [f"k{i}" for i in range(5)])
    await_all(site, answer.body["task_ids"])
    for number, peer in enumerate(peers):
        runs = started(site, peer)
        assert {int(run["step"][1:]) % 2 for run in runs} == {number}
        assert (len(runs), {run["attempt"] for run in runs}) == (25, {0})
    unknown = {worker["session"]: worker["unknown_handlers"] for worker in peers_of(site)}
    assert all(set(refused) < set(names) for refused in unknown.values())
    assert_kept(site.database, site.ledgers)


def test_a_restarted_broker_accepts_an_answer_to_its_earlier_batch(site: Site) -> None:
    broker = site.start_broker()
    site.apply(workflow("long", {"name": "a", "handler_config": {"gate": "go"}, "timeout_ms": 60_000}))
    start_peers(site, 1)
    task_id = site.recorded_client().submit_until_acknowledged("long", "k")
    eventually(lambda: started(site) or None, "the step started")
    broker.kill9()
    site.start_broker()
    site.open_gate("go")
    await_all(site, [task_id])
    assert len(started(site)) == 1
    assert_kept(site.database, site.ledgers)
