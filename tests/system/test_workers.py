"""Workers that are killed, suspended or drained: their steps run elsewhere, and none twice without a cause."""

import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from stepwire_protocol import codec, host, messages, topics

from tests.checker import assert_kept

from .harness import Program, Site, eventually, workflow
from .ledger import read
from .peers import endpoint

LEASE_MS = 2_000
QUICK_LEASE = {"bus.lease_ms": LEASE_MS, "bus.heartbeat_ms": 400}
PROOF_PROMISE_S, PROOF_BOUND_S = 2.0, 4.0  # promised; asserted on a busy machine

GATED = workflow("gated", {"name": "a", "handler_config": {"gate": "go"}})
GATED_ONCE = workflow(
    "gated_once",
    {"name": "pay", "handler_config": {"gate": "go"}, "delivery_mode": "at_most_once"},
    {"name": "ship", "depends_on": ["pay"]},
)


def test_the_steps_of_a_killed_worker_run_again_on_another_within_two_seconds(
    site: Site, figure: Callable[[str], None]
) -> None:
    site.start_broker()
    site.apply(GATED)
    doomed = site.start_worker("doomed", slots=20, prefetch=20)
    answer = site.recorded_client().submit_many("gated", [f"k{i}" for i in range(40)])
    assert answer.status == 201, answer
    in_flight = eventually(lambda: _started(site, doomed, 20), "20 steps started on the doomed worker")
    # The steps that it held but had not started are included.
    eventually(lambda: _session_of(site, doomed)["holding"] == 40 or None, "40 steps held")
    heir = site.start_worker("heir", slots=50)
    doomed.kill9()
    killed_ns = _fault_ns(site, doomed, "killed")
    again = eventually(lambda: _started(site, heir, 40), "all steps started on the other worker", 15)
    times_s = sorted((run["at"] - killed_ns) / 1e9 for run in again)
    figure(f"40 steps ran again {times_s[0]:.2f} to {times_s[-1]:.2f} s after the kill (promise {PROOF_PROMISE_S:g} s)")
    assert times_s[-1] < PROOF_BOUND_S
    site.open_gate("go")
    _await_all(site, answer.body["task_ids"])
    verdict = assert_kept(site.database, site.ledgers)
    assert verdict.figures["started again"] == {"its worker was killed": len(in_flight)}


def test_a_worker_that_died_before_its_hello_arrived_holds_no_steps(site: Site) -> None:
    """A process is killed while its hello is under way: its steps must not wait for a lease."""
    site.start_broker()
    site.apply(GATED)
    with subprocess.Popen(["sleep", "60"]) as process:
        started = host.started(process.pid)
        process.kill()
    hello = messages.Hello(
        v="2.0",
        worker=f"dead:{process.pid:016x}",
        n=1,
        versions=["2.0"],
        next={"b1": 1},
        handlers=["**"],
        slots=10,
        prefetch=0,
        free={"b1": 10},
        host=host.identity(),
        pid=process.pid,
        pid_started=started,
        proof=True,
    )
    task_id = site.recorded_client().submit_until_acknowledged("gated", "k")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.PUB)
        socket.connect(endpoint(site, "results"))

        def is_known_dead() -> bool:
            socket.send(codec.frame(topics.WORKERS, hello))  # a message can be lost while a connection is new
            return b"stepwire_worker_deaths_proven_total 1" in site.ask("GET", "/metrics").body

        eventually(is_known_dead, "the dead to be known as dead")
    finally:
        context.destroy(linger=0)
    heir = site.start_worker("heir")
    eventually(lambda: _started(site, heir, 1), "its step started on another", PROOF_BOUND_S)
    site.open_gate("go")
    _await_all(site, [task_id])
    assert_kept(site.database, site.ledgers)


def test_a_worker_suspended_past_its_lease_does_no_harm_when_it_resumes(
    new_site: Callable[..., Site], figure: Callable[[str], None]
) -> None:
    site = new_site(settings=QUICK_LEASE)
    site.start_broker()
    site.apply(GATED)
    site.apply(GATED_ONCE)
    sleeper = site.start_worker("sleeper", slots=12, prefetch=0)
    client = site.recorded_client()
    task_ids = client.submit_many("gated", [f"k{i}" for i in range(8)]).body["task_ids"]
    once_ids = client.submit_many("gated_once", [f"once{i}" for i in range(4)]).body["task_ids"]
    eventually(lambda: _started(site, sleeper, 12), "12 steps started on the sleeper")
    heir = site.start_worker("heir", slots=20)
    sleeper.pause()
    paused_ns = _fault_ns(site, sleeper, "paused")
    again = eventually(lambda: _started(site, heir, 8), "its steps started elsewhere", 15)
    times_s = sorted((run["at"] - paused_ns) / 1e9 for run in again)
    figure(f"with a lease of {LEASE_MS} ms: 8 steps ran again {times_s[0]:.2f} to {times_s[-1]:.2f} s after SIGSTOP")
    held = eventually(lambda: _attended(site, once_ids), "the at_most_once steps to be held")
    assert all(task["state"] == "running" for task in held)
    site.open_gate("go")
    _await_all(site, task_ids)
    sleeper.go_on()
    # Its late successes decide the steps whose outcome was unknown.
    eventually(lambda: all(site.task(i)["state"] == "completed" for i in once_ids) or None, "held steps decided")
    back = eventually(lambda: _idle(site, sleeper), "the sleeper back in a session of its own, with nothing in hand")
    assert back["session"].endswith(".2")
    verdict = assert_kept(site.database, site.ledgers, lease_ms=LEASE_MS)
    assert verdict.figures["started again"] == {"its worker was silent for a lease": 8}


def test_an_at_most_once_step_of_a_killed_worker_is_held_until_an_operator_resolves_it(site: Site) -> None:
    site.start_broker()
    site.apply(GATED_ONCE)
    doomed = site.start_worker("doomed", slots=1, prefetch=0)
    task_id = site.recorded_client().submit_until_acknowledged("gated_once", "k")
    eventually(lambda: _started(site, doomed, 1), "the step started")
    site.start_worker("heir")
    doomed.kill9()
    task = eventually(lambda: next(iter(_attended(site, [task_id]) or []), None), "the task to hang on a held step")
    pay, ship = task["steps"]
    assert (task["state"], task["attention"], pay["state"], ship["state"]) == ("running", "held", "held", "waiting")
    assert pay["reason"]["code"] == "held"
    listed = site.stepwire("step", "list", "--state", "held", "-o", "json")
    assert str(pay["step_id"]) in listed.stdout, listed.stderr
    resolved = site.stepwire(
        "step", "resolve", f"{task_id}/pay", "--completed", '{"charged": true}', "--reason", "the bank says so", "--yes"
    )
    assert resolved.returncode == 0, resolved.stderr
    ended = site.client().wait(task_id, timeout=10)
    assert [step["state"] for step in ended["steps"]] == ["completed", "completed"]
    assert len(site.runs("started")) == 2
    assert_kept(site.database, site.ledgers)


def test_a_worker_asked_to_end_returns_its_queue_and_finishes_its_runs(site: Site) -> None:
    site.start_broker()
    site.apply(GATED)
    leaver = site.start_worker("leaver", slots=5, prefetch=25)
    task_ids = site.recorded_client().submit_many("gated", [f"k{i}" for i in range(30)]).body["task_ids"]
    eventually(lambda: _started(site, leaver, 5), "5 steps started on the leaver")
    eventually(lambda: _session_of(site, leaver)["holding"] == 30 or None, "30 steps held")
    heir = site.start_worker("heir", slots=50)
    leaver.ask_to_end()
    given_back = eventually(lambda: _started(site, heir, 25), "its queue started on the other worker")
    assert leaver.is_running
    site.open_gate("go")
    assert leaver.wait() == 0
    _await_all(site, task_ids)
    kept = {run["step_id"] for run in site.runs("finished", pid=leaver.pid)}
    assert len(kept) == 5
    assert kept.isdisjoint(run["step_id"] for run in given_back)
    assert not assert_kept(site.database, site.ledgers).figures["started again"]


def test_a_broker_asked_to_end_lets_runs_finish_and_its_successor_does_the_rest(site: Site) -> None:
    broker = site.start_broker()
    site.apply(GATED)
    worker = site.start_worker("steady", slots=5, prefetch=5)
    task_ids = site.recorded_client().submit_many("gated", [f"k{i}" for i in range(40)]).body["task_ids"]
    eventually(lambda: _started(site, worker, 5), "5 steps started")
    broker.ask_to_end()
    eventually(lambda: site.ask("GET", "/readyz").status == 503 or None, "/readyz to say that it drains")
    refused = site.recorded_client().submit("gated", "too-late")
    assert (refused.status, refused.code) == (503, "draining")
    site.open_gate("go")
    assert broker.wait() == 0
    finished_before = len(site.runs("finished"))
    assert 5 <= finished_before < 40
    site.start_broker()
    _await_all(site, task_ids)
    assert not assert_kept(site.database, site.ledgers).figures["started again"]


def _started(site: Site, worker: Program, count: int) -> list[dict[str, Any]] | None:
    runs = site.runs("started", pid=worker.pid)
    assert len(runs) <= count, f"{len(runs)} runs on {worker.name}, {count} expected"
    return runs if len(runs) == count else None


def _session_of(site: Site, worker: Program) -> dict[str, Any]:
    return site.await_worker(worker)


def _idle(site: Site, worker: Program) -> dict[str, Any] | None:
    session = next((w for w in site.workers() if w["pid"] == worker.pid), None)
    is_idle = session is not None and session["holding"] == 0 and session["free"] == session["slots"]
    return session if is_idle else None


def _attended(site: Site, task_ids: Sequence[int]) -> list[dict[str, Any]] | None:
    tasks = [site.task(task_id) for task_id in task_ids]
    return tasks if all(task["attention"] == "held" for task in tasks) else None


def _await_all(site: Site, task_ids: Sequence[int], bound_s: float = 20.0) -> None:
    client = site.client()
    for task_id in task_ids:
        task = client.wait(task_id, timeout=bound_s)
        assert task["state"] == "completed", task


def _fault_ns(site: Site, program: Program, event: str) -> int:
    faults = read(site.ledgers, "faults-")
    return int(next(e["at"] for e in faults if e["pid"] == program.pid and e["event"] == event))
